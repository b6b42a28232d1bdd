//! The quick start, typed as it stands in a directory outside the repository.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use provost_e2e::built;

use crate::command::ROLE;
use crate::documents::{ENDS_WITH_THE_TEST, ShellGroup, document, root};

/// How long it may take to build the crate with all that it depends on, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(900);
/// Files are written by the shell up to this line.
const END: &str = "END OF THE FILE";
/// Names of languages of blocks that are files.
const FILES: [&str; 3] = ["toml", "proto", "rust"];

/// All files and commands of the document, in its order, for a shell.
fn script(document: &str) -> String {
    let mut script = String::new();
    let mut parts = document.split("```");
    let mut before = parts.next().unwrap_or_default();
    while let (Some(block), Some(after)) = (parts.next(), parts.next()) {
        let (language, text) = block.split_once('\n').unwrap_or_default();
        if FILES.contains(&language) {
            script += &format!("cat > {} <<'{END}'\n{text}{END}\n", file_of(before));
        } else {
            assert_eq!(language, "sh", "{block}");
            script += text;
        }
        before = after;
    }
    script
}

/// The file that the text before a block names: the last one in backticks with an ending, in its last paragraph.
fn file_of(text: &str) -> &str {
    let paragraph = text.trim_end().rsplit("\n\n").next().unwrap_or_default();
    let quoted = paragraph.split('`').skip(1).step_by(2);
    let is_file = |name: &&str| name.ends_with(".rs") || name.ends_with(".toml") || name.ends_with(".proto");
    quoted
        .into_iter()
        .find(is_file)
        .unwrap_or_else(|| panic!("no file is named: {paragraph}"))
}

#[test]
fn the_quick_start_goes_from_cargo_new_to_the_first_call() {
    let daemon = built::present("provostd", "provostd", ROLE);
    let directory = tempfile::Builder::new().prefix("pquick-").tempdir().unwrap();
    let at = directory.path();
    std::os::unix::fs::symlink(root().canonicalize().unwrap(), at.join("provost")).unwrap();
    let script = script(&document("../quickstart.md"));
    // The versions that the repository has, which are on this machine.
    let lock = format!("cp {}/Cargo.lock .\n", at.join("provost").display());
    let script = script.replacen("mkdir proto", &format!("{lock}mkdir proto"), 1);
    let output = at.join("output");
    let log = std::fs::File::create(&output).unwrap();
    let path = format!(
        "{}:{}",
        daemon.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    // Kept over runs: what the crate depends on is built once.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quickstart");
    let mut command = Command::new("bash");
    command
        .args(["-e", "-c", &(ENDS_WITH_THE_TEST.to_owned() + &script)])
        .current_dir(at)
        .env("PATH", path)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("PROVOST_SOCKET")
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let mut shell = ShellGroup::start(command);
    let began = Instant::now();
    let said = || std::fs::read_to_string(&output).unwrap();
    let status = loop {
        if let Some(status) = shell.ended() {
            break status;
        }
        assert!(began.elapsed() < TIME_MAX, "{}", said());
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{status}: {}", said());
    assert!(said().ends_with("Hello, Ann!\n"), "{}", said());
}
