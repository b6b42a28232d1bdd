//! What a call costs, in instructions of both ends with their wire, counted by callgrind: unlike a time, that does not
//! depend on what else the machine does.
//!
//! The profile that tests are usually built with has checks that cost as much again, and a budget of its own. What is published is
//! optimized as packages are, and `cargo xtask ci` counts that, too:
//!
//! ```text
//! cargo build --profile dist -p provost-datagram --example pingpong
//! PINGPONG=$PWD/target/dist/examples/pingpong cargo test -p provost-datagram --test instructions -- --nocapture
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

/// A setup of the example, calls at a time, and the most instructions that each may cost: 5 % more than were counted.
type Budget = (&'static str, u64, u64);

/// With the checks of a debug build. Callgrind takes its time, so these are few.
const BUDGETS_CHECKED: [Budget; 2] = [("all short cuts", 5, 1_588), ("checked by CRC32C", 5, 2_556)];
const BUDGETS_OPTIMIZED: [Budget; 5] = [
    ("all short cuts", 5, 707),
    ("all short cuts", 3, 829),
    ("all short cuts", 11, 750),
    ("checked by CRC32C", 5, 1_590),
    ("sealed by AES-128-GCM", 5, 5_425),
];
const CALLS: u64 = 500;
/// A variable of the environment that names an optimized build of the example.
const OPTIMIZED: &str = "PINGPONG";

fn budgets() -> &'static [Budget] {
    match std::env::var_os(OPTIMIZED) {
        None => &BUDGETS_CHECKED,
        Some(_) => &BUDGETS_OPTIMIZED,
    }
}

/// The example, which cargo builds beside the tests.
fn example() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(OPTIMIZED) {
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
    let counts = budgets().iter().map(|&(setup, batch, budget)| {
        let count = |calls| instructions(&program, setup, calls, batch, &out);
        let counted = count(CALLS).zip(count(3 * CALLS));
        let per_call = counted.map(|(some, more)| more.saturating_sub(some) / (2 * CALLS));
        (setup, batch, budget, per_call)
    });
    let counts: Vec<_> = counts.collect();
    std::fs::remove_dir_all(&folder).unwrap();
    let mut over = Vec::new();
    for (setup, batch, budget, per_call) in counts {
        let Some(per_call) = per_call else {
            return provost_skip::missing("valgrind", "Debian package valgrind");
        };
        println!(
            "{setup}, {batch:2} calls at a time: {per_call} instructions per call of both ends with their wire"
        );
        assert!(per_call > 300, "{per_call} instructions cannot be all");
        if per_call >= budget {
            over.push(format!(
                "{per_call} instructions per call, {setup}, {batch} at a time; {budget} at most"
            ));
        }
    }
    assert!(over.is_empty(), "{over:#?}");
}
