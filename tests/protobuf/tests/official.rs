//! Protobuf's own conformance tests of binary and JSON, proto3, with the recommended ones.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What `fetch-runner` puts into the target folder.
const RUNNER: &str = "protobuf/conformance_test_runner";
/// The tests that fail, each with the reason.
const FAILURES: &str = "failures.txt";
/// How many tests pass at the least. One that passes no more fails the run by name; this is against a program that skips all.
const PASSED_MIN: usize = 1_500;

fn runner() -> Option<PathBuf> {
    // The folder of temporary files of tests is in the target folder.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent()?;
    Some(target.join(RUNNER)).filter(|runner| runner.exists())
}

/// The number before a word, as in `12 successes`.
fn count(line: &str, word: &str) -> usize {
    let before = line.split_once(word).map(|(before, _)| before.trim_end());
    let number = before.and_then(|before| before.rsplit(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number of {word} in: {line}"))
}

#[test]
fn generated_messages_conform_in_binary_and_json() {
    let Some(runner) = runner() else {
        return provost_skip::missing(
            "protobuf's conformance_test_runner",
            "tests/protobuf/fetch-runner target",
        );
    };
    let failures = Path::new(env!("CARGO_MANIFEST_DIR")).join(FAILURES);
    let output = tempfile::tempdir().unwrap();
    let run = Command::new(runner)
        .args(["--enforce_recommended", "--failure_list"])
        .arg(&failures)
        .arg("--output_dir")
        .arg(output.path())
        .arg(env!("CARGO_BIN_EXE_protobuf-testee"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success(), "{}: {said}", run.status);
    // Of binary and JSON; that of the text format, which is skipped, comes after it.
    let summary = said
        .lines()
        .find(|line| line.contains("CONFORMANCE SUITE PASSED"));
    let summary = summary.unwrap_or_else(|| panic!("no summary: {said}"));
    let listed = std::fs::read_to_string(&failures).unwrap();
    let listed = listed
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    assert_eq!(count(summary, "expected failures"), listed.count(), "{summary}");
    assert!(count(summary, "successes") >= PASSED_MIN, "{summary}");
}
