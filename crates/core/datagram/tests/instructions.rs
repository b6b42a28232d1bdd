//! What a call costs, in instructions of both ends with their wire, counted by callgrind: unlike a time, that does not
//! depend on what else the machine does.
//!
//! The budget is for the profile that tests are built with, whose checks cost as much again. For a release:
//!
//! ```text
//! cargo build --release -p provost-datagram --example pingpong
//! PINGPONG=target/release/examples/pingpong cargo test -p provost-datagram --test instructions -- --nocapture
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

/// Calls at a time, and the most instructions that each may cost in the profile of tests: 5 % more than were counted.
const BUDGETS: [(u64, u64); 3] = [(3, 3_050), (5, 2_600), (11, 2_490)];
const CALLS: u64 = 500;

/// The example, which cargo builds beside the tests.
fn example() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PINGPONG") {
        return Some(path.into());
    }
    let test = std::env::current_exe().ok()?;
    let path = test.parent()?.parent()?.join("examples/pingpong");
    path.exists().then_some(path)
}

/// Instructions that the program collects in all, where callgrind is to be had.
fn instructions(program: &Path, calls: u64, batch: u64, out: &Path) -> Option<u64> {
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([&calls.to_string(), "all short cuts", &batch.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let line = text.lines().find(|line| line.contains("Collected"))?;
    line.split(':').nth(1)?.trim().parse().ok()
}

#[test]
fn a_call_stays_within_its_budget_of_instructions() {
    let Some(program) = example() else {
        return provost_skip::missing("the example pingpong", "cargo build --example pingpong");
    };
    let folder = std::env::temp_dir().join(format!("provost-instructions-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let count = |calls, batch| instructions(&program, calls, batch, &folder.join("callgrind.out"));
    // Callgrind takes its time: a common run of the tests counts one batch.
    let batches = match std::env::var_os("PINGPONG") {
        None => &BUDGETS[1..2],
        Some(_) => &BUDGETS[..],
    };
    let counts = batches.iter().map(|&(batch, budget)| {
        let counted = count(CALLS, batch).zip(count(3 * CALLS, batch));
        let per_call = counted.map(|(some, more)| more.saturating_sub(some) / (2 * CALLS));
        (batch, budget, per_call)
    });
    let counts: Vec<_> = counts.collect();
    std::fs::remove_dir_all(&folder).unwrap();
    for (batch, budget, per_call) in counts {
        let Some(per_call) = per_call else {
            return provost_skip::missing("valgrind", "Debian package valgrind");
        };
        println!("{batch:2} calls at a time: {per_call} instructions per call of both ends with their wire");
        assert!(per_call > 300, "{per_call} instructions cannot be all");
        assert!(
            per_call < budget,
            "{per_call} instructions per call, {batch} at a time"
        );
    }
}
