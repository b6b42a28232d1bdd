//! Completions and manual pages.

use std::process::Command;

use provost_e2e::built;

use crate::command::{ROLE, is_missing, outcome, program, tested};

#[test]
fn completions_load_in_bash_and_know_the_commands() {
    if is_missing("bash", "bash") {
        return;
    }
    tested(|| {
        let script = "set -eu; source <(\"$0\" completions bash); complete -p provost; \
                      COMP_WORDS=(provost pol); COMP_CWORD=1; COMPREPLY=(); _provost provost pol provost; \
                      echo \"${COMPREPLY[@]}\"";
        let mut command = Command::new("bash");
        command.args(["-c", script]).arg(program());
        let outcome = outcome(command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(
            outcome.stdout.contains("-F _provost") && outcome.stdout.ends_with("policy\n"),
            "{outcome:?}"
        );
        for shell in ["zsh", "fish", "elvish", "powershell"] {
            let mut command = Command::new(program());
            command.args(["completions", shell]);
            assert!(
                crate::command::outcome(command).stdout.contains("provost"),
                "{shell}"
            );
        }
    });
}

#[test]
fn manual_pages_render_one_for_each_command() {
    tested(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(program());
        command.arg("man").arg(directory.path());
        let written = outcome(command);
        assert_eq!(written.code, Some(0), "{written:?}");
        let page = |name: &str| directory.path().join(format!("{name}.1"));
        for name in [
            "provost",
            "provost-policy-attach",
            "provost-init",
            "provost-plan-run",
            "provost-daemon-upgrade",
        ] {
            let text = std::fs::read_to_string(page(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(text.contains(".SH SYNOPSIS"), "{name}: {text}");
        }
        assert!(!page("provost-demo-part").exists());
        let first = std::fs::read_to_string(page("provost")).unwrap();
        for part in [
            ".SH ENVIRONMENT",
            ".SH FILES",
            ".SH \"EXIT STATUS\"",
            ".BR provostd (8)",
        ] {
            assert!(first.contains(part), "{part}: {first}");
        }
        // Each page that another one names is there.
        let names = first.lines().filter_map(|line| line.strip_suffix("(1)"));
        let names = names.filter(|line| line.starts_with("provost"));
        for name in names.map(|name| name.replace('\\', "")) {
            assert!(page(&name).exists(), "provost(1) names {name}(1)");
        }
        if is_missing("man", "man-db") {
            return;
        }
        let mut command = Command::new("man");
        command
            .args(["--warnings", "-l"])
            .arg(page("provost-policy-attach"));
        command.env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8");
        let rendered = outcome(command);
        assert_eq!(rendered.code, Some(0), "{rendered:?}");
        // A system without its manual pages has a program of that name that only says so.
        if !rendered.stdout.contains("minimized") {
            assert!(
                rendered.stdout.contains("requests_per_second=100"),
                "{rendered:?}"
            );
            assert!(
                rendered.stdout.contains("EXAMPLES") || rendered.stdout.contains("Examples"),
                "{rendered:?}"
            );
        }
    });
}

#[test]
fn the_daemon_s_page_has_its_options_and_renders() {
    let daemon = built::present("provostd", "provostd", ROLE);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/provostd.8");
    let text = std::fs::read_to_string(page).unwrap().replace('\\', "");
    let mut command = Command::new(daemon);
    command.arg("--help");
    let help = outcome(command).stdout;
    let options = help.lines().filter_map(|line| {
        let (_, name) = line
            .split_once("--")
            .filter(|(before, _)| before.trim_matches([' ', ',']).len() <= 2)?;
        name.split([' ', ',']).next()
    });
    let mut listed = 0;
    for option in options {
        assert!(
            text.contains(&format!("--{option}")),
            "provostd(8) lacks --{option}"
        );
        listed += 1;
    }
    assert!(listed >= 12, "{help}");
    if is_missing("man", "man-db") {
        return;
    }
    let mut command = Command::new("man");
    command
        .args(["--warnings", "-l", page])
        .env("MANWIDTH", "80")
        .env("LC_ALL", "C.UTF-8");
    let rendered = outcome(command);
    assert!(
        rendered.code == Some(0) && rendered.stderr.is_empty(),
        "{rendered:?}"
    );
}
