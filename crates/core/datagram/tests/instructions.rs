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

/// The example's setup, calls at a time, and the most instructions that each may cost in the profile of tests: 5 % more than
/// were counted.
const BUDGETS: [(&str, u64, u64); 4] = [
    ("all short cuts", 5, 2_600),
    ("checked by CRC32C", 5, 3_700),
    ("all short cuts", 3, 3_050),
    ("all short cuts", 11, 2_490),
];
/// As many are counted in a common run of the tests: callgrind takes its time.
const BUDGETS_COMMON: usize = 2;
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
fn instructions(program: &Path, setup: &str, calls: u64, batch: u64, out: &Path) -> Option<u64> {
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(program)
        .args([&calls.to_string(), setup, &batch.to_string()])
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
    let out = folder.join("callgrind.out");
    let budgets = match std::env::var_os("PINGPONG") {
        None => &BUDGETS[..BUDGETS_COMMON],
        Some(_) => &BUDGETS[..],
    };
    let counts = budgets.iter().map(|&(setup, batch, budget)| {
        let count = |calls| instructions(&program, setup, calls, batch, &out);
        let counted = count(CALLS).zip(count(3 * CALLS));
        let per_call = counted.map(|(some, more)| more.saturating_sub(some) / (2 * CALLS));
        (setup, batch, budget, per_call)
    });
    let counts: Vec<_> = counts.collect();
    std::fs::remove_dir_all(&folder).unwrap();
    for (setup, batch, budget, per_call) in counts {
        let Some(per_call) = per_call else {
            return provost_skip::missing("valgrind", "Debian package valgrind");
        };
        println!(
            "{setup}, {batch:2} calls at a time: {per_call} instructions per call of both ends with their wire"
        );
        assert!(per_call > 300, "{per_call} instructions cannot be all");
        assert!(
            per_call < budget,
            "{per_call} instructions per call, {setup}, {batch} at a time"
        );
    }
}
