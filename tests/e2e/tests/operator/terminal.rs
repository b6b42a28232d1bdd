//! Through a real terminal (tmux).

use std::path::PathBuf;
use std::process::Command;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::eventually;
use provost_e2e::script::{Ask, Echo};

use crate::command::{Operator, echo, is_missing, outcome, setting, tested};

/// A terminal of tmux's, with a shell in it.
struct Terminal {
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Terminal {
    /// `None` where tmux is missing.
    fn open(operator: &Operator, columns: u32, rows: u32) -> Option<Terminal> {
        if is_missing("tmux", "tmux") {
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ptty-").tempdir().unwrap();
        let terminal = Terminal {
            socket: directory.path().join("tmux"),
            _directory: directory,
        };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let socket = format!("PROVOST_ADMIN_SOCKET={}", operator.socket.display());
        let path = format!("PROGRAM={}", operator.program.display());
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            "-e",
            &socket,
            "-e",
            &path,
            "-e",
            "LC_ALL=C.UTF-8",
            "-e",
            "NO_COLOR=",
            "sh",
        ]);
        terminal.tmux(&["set-option", "-g", "window-size", "manual"]);
        // The shell says this twice: as it is typed, and as its prompt.
        terminal.types("PS1='ready> '; clear\n");
        eventually("the shell is ready", WAIT_MAX, || {
            terminal.screen().trim_end() == "ready>"
        });
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-u").arg("-S").arg(&self.socket).args(arguments);
        command
            .env_remove("TMUX")
            .env("LC_ALL", "C.UTF-8")
            .env("TERM", "xterm-256color");
        let outcome = outcome(command);
        assert_eq!(outcome.code, Some(0), "tmux {arguments:?}: {outcome:?}");
        outcome.stdout
    }

    fn types(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    fn presses(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    fn shows(&self, text: &str) {
        eventually(&format!("the terminal shows {text:?}"), WAIT_MAX, || {
            self.screen().contains(text)
        });
    }

    fn resize(&self, columns: u32, rows: u32) {
        self.tmux(&[
            "resize-window",
            "-x",
            &columns.to_string(),
            "-y",
            &rows.to_string(),
        ]);
    }

    /// Echo on, no alternate screen, the cursor shown.
    fn is_restored(&self) -> bool {
        let state = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        state.trim() == "0 1"
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).arg("kill-server");
        let _ = command.output();
    }
}

#[test]
fn top_draws_sorts_filters_pauses_resizes_and_leaves_the_terminal_as_it_was() {
    tested(|| {
        let mut setting = setting("[[policy]]\nname = \"metrics\"\nkind = \"metrics\"\n");
        let operator = Operator::of(&setting.a);
        let Some(terminal) = Terminal::open(&operator, 120, 20) else {
            return;
        };
        let calls = Ask::Echo(Echo {
            calls: usize::MAX >> 16,
            in_flight: 2,
            ..Echo::default()
        });
        setting.agent.begin(calls);
        terminal.types("$PROGRAM top --interval 0.3; echo status $?\n");
        terminal.shows("RATE/S*");
        terminal.shows("Echo");
        assert!(!terminal.is_restored());
        terminal.types("s");
        terminal.shows("ERRORS*");
        terminal.types("/nothing-like-it");
        terminal.presses("Enter");
        eventually("the filter hides the row", WAIT_MAX, || {
            !terminal.screen().contains("Echo")
        });
        terminal.types("/");
        terminal.presses("Escape");
        terminal.shows("Echo");
        terminal.types("p");
        terminal.shows("PAUSED");
        terminal.resize(60, 8);
        eventually("it is drawn at the new size", WAIT_MAX, || {
            let screen = terminal.screen();
            let lines: Vec<_> = screen.lines().collect();
            lines.len() <= 8 && lines.last().is_some_and(|last| last.contains("q quit"))
        });
        terminal.resize(140, 30);
        terminal.shows("BYTES/S");
        terminal.types("q");
        terminal.shows("status 0");
        assert!(terminal.is_restored());
        assert!(!terminal.screen().contains("RATE/S"), "{}", terminal.screen());
        // The shell hears what is typed, and shows it.
        terminal.types("echo heard\n");
        terminal.shows("ready> echo heard");

        // A daemon that goes away is said and waited for, and Ctrl-C ends it all the same.
        terminal.types("clear; $PROGRAM top --interval 0.3; echo status $?\n");
        terminal.shows("RATE/S*");
        setting.a.program.kill();
        terminal.shows("waiting for it");
        terminal.presses("C-c");
        terminal.shows("status 0");
        assert!(terminal.is_restored());
    });
}

#[test]
fn watch_draws_over_itself_and_tables_fit_the_terminal() {
    tested(|| {
        let setting = setting("");
        let operator = Operator::of(&setting.a);
        let Some(terminal) = Terminal::open(&operator, 70, 16) else {
            return;
        };
        terminal.types("clear; $PROGRAM datapath\n");
        terminal.shows("ready>");
        terminal.shows("probe.Probe");
        let screen = terminal.screen();
        let rows = screen.lines().filter(|line| line.contains("probe.Probe")).count();
        assert_eq!(rows, 1, "{screen}");
        let coloured = terminal.tmux(&["capture-pane", "-p", "-e"]);
        assert!(coloured.contains("\x1b[1mCONN"), "{coloured:?}");
        terminal.types("clear; NO_COLOR=1 $PROGRAM datapath\n");
        eventually("the same table is there without attributes", WAIT_MAX, || {
            let screen = terminal.tmux(&["capture-pane", "-p", "-e"]);
            screen.contains("CONN") && screen.contains("probe.Probe") && !screen.contains("\x1b[1mCONN")
        });

        terminal.types("clear; $PROGRAM policy list --watch 0.2\n");
        terminal.shows("no policy is attached");
        operator.text(&["policy", "attach", "--kind", "null", "--name", "watched"]);
        terminal.shows("watched");
        eventually("it is drawn over what was there", WAIT_MAX, || {
            !terminal.screen().contains("no policy is attached")
        });
        operator.text(&["policy", "detach", "watched"]);
        terminal.shows("no policy is attached");
        terminal.presses("C-c");
        eventually("the shell asks for the next command", WAIT_MAX, || {
            let screen = terminal.screen();
            let last = screen.lines().rev().find(|line| !line.trim().is_empty());
            last.is_some_and(|last| last.trim_end() == "ready>")
        });
        terminal.types("echo heard\n");
        terminal.shows("ready> echo heard");
    });
}

/// Commands whose answers are tables, facts or sentences.
const ANSWERS: [&str; 15] = [
    "status",
    "apps",
    "datapath",
    "routes",
    "certs",
    "policy list",
    "policy show a-limit-with-a-long-name",
    "engine list",
    "schema list",
    "describe",
    "log level",
    "config diff",
    "doctor --app-socket $APPS",
    "top --once --interval 0.2",
    "daemon upgrade",
];

#[test]
fn no_answer_is_wider_than_a_terminal_of_80_columns() {
    tested(|| {
        let tables = "[[policy]]\nname = \"metrics\"\nkind = \"metrics\"\n\
                      [[policy]]\nname = \"a-limit-with-a-long-name\"\nkind = \"rate-limit\"\nservice = \"probe.Probe\"\n\
                      [[route]]\nservice = \"a.long.package.name.of.Orders\"\nendpoints = [\"nowhere.example.invalid:7700\"]\n";
        let mut setting = setting(tables);
        setting.agent.succeeds(echo(30));
        let operator = Operator::of(&setting.a);
        let Some(terminal) = Terminal::open(&operator, 80, 60) else {
            return;
        };
        terminal.types(&format!("APPS={}\n", setting.a.socket.display()));
        for (number, answer) in ANSWERS.iter().enumerate() {
            terminal.types(&format!(
                "clear; $PROGRAM {answer}; echo answered $(({number}))\n"
            ));
            terminal.shows(&format!("answered {number}\n"));
            // Lines that the terminal has broken are joined.
            let screen = terminal.tmux(&["capture-pane", "-p", "-J"]);
            let shown = screen.lines().filter(|line| !line.starts_with("ready>"));
            for line in shown {
                let line = line.trim_end();
                assert!(line.chars().count() <= 80, "{answer}: {line:?} in {screen}");
            }
        }
    });
}
