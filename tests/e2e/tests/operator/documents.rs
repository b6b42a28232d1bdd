//! What documents tell operators to type works as it stands there, and what they quote is what the programs say.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use provost_e2e::built;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::command::{ROLE, is_missing, tested};

/// How long a pasted block may take on a busy machine.
const PASTED_MAX: Duration = Duration::from_secs(120);

/// The folder of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn document(name: &str) -> String {
    let path = root().join("docs/operators").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The blocks of commands of a document.
fn commands(document: &str) -> Vec<&str> {
    let blocks = document.split("```sh\n").skip(1);
    blocks.filter_map(|block| block.split("```").next()).collect()
}

/// A shell with all that it has started. Nothing of it outlives the test.
pub(crate) struct ShellGroup(Child);

/// What a script begins with: all that it starts ends when the test is gone, however that came.
pub(crate) const ENDS_WITH_THE_TEST: &str =
    "(while [ -d /proc/$E2E_PARENT ]; do sleep 1; done; kill -KILL -$$) </dev/null >/dev/null 2>&1 &\n";

impl ShellGroup {
    pub(crate) fn start(mut command: Command) -> ShellGroup {
        command.env("E2E_PARENT", std::process::id().to_string());
        ShellGroup(command.process_group(0).spawn().unwrap())
    }

    /// Runs a shell to its end, within a limit, and gives what it said, which goes into this file. What it has started goes on until the
    /// group is dropped.
    pub(crate) fn to_its_end(mut command: Command, output: &Path, limit: Duration) -> (ShellGroup, String) {
        let log = std::fs::File::create(output).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let mut shell = ShellGroup::start(command);
        let began = Instant::now();
        let said = || std::fs::read_to_string(output).unwrap();
        let status = loop {
            if let Some(status) = shell.ended() {
                break status;
            }
            assert!(began.elapsed() < limit, "{}", said());
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(status.success(), "{status}: {}", said());
        (shell, said())
    }

    /// How the shell ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }
}

impl Drop for ShellGroup {
    fn drop(&mut self) {
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// The text with ports that are free in the place of those that it names.
pub(crate) fn with_free_ports(text: &str, ports: &[&str]) -> String {
    let held: Vec<_> = ports
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let pairs = ports.iter().zip(&held);
    pairs.fold(text.to_owned(), |text, (port, held)| {
        text.replace(port, &held.local_addr().unwrap().port().to_string())
    })
}

#[test]
fn the_pair_of_nodes_comes_up_as_the_first_page_says() {
    for (program, package) in [("openssl", "openssl"), ("curl", "curl"), ("bash", "bash")] {
        if is_missing(program, package) {
            return;
        }
    }
    built::present("provostd", "provostd", ROLE);
    let hello = built::present("hello-server", "provost-hello", ROLE);
    tested(move || {
        let directory = tempfile::Builder::new().prefix("ppair-").tempdir().unwrap();
        let page = document("README.md");
        let blocks = commands(&page);
        let script: String = blocks
            .iter()
            .enumerate()
            .map(|(at, block)| format!("echo \"==== {}\"\n{block}", at + 1))
            .collect();
        let script = with_free_ports(&script, &["7702", "9471", "9472"]);
        let path = format!(
            "{}:{}",
            hello.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        let output = directory.path().join("output");
        let log = std::fs::File::create(&output).unwrap();
        let mut command = Command::new("bash");
        command
            .args(["-e", "-c", &(ENDS_WITH_THE_TEST.to_owned() + &script)])
            .current_dir(directory.path())
            .env("PATH", path)
            .env_remove("PROVOST_SOCKET")
            .env_remove("PROVOST_ADMIN_SOCKET")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut shell = ShellGroup::start(command);
        let status = shell.0.wait().unwrap();
        let said = std::fs::read_to_string(&output).unwrap();
        assert!(status.success(), "{status}: {said}");
        let sections: Vec<&str> = said.split("==== ").collect();
        assert_eq!(sections.len(), blocks.len() + 1, "{said}");
        let shown = [
            (4, "Hello, Ann!"),
            (5, "spiffe://example.org/node/a"),
            (6, "refused: the limit"),
            (6, "Hello, Ben!"),
            (7, "refused: the rule"),
            (7, "denied by policy"),
            (8, "wrote "),
            (9, "grpc_method=\"hello.Greeter/Greet\",grpc_status=\"OK\""),
            (9, "ready"),
            (10, "Hello, Ann!"),
            (10, "greetings"),
        ];
        for (block, text) in shown {
            assert!(
                sections[block].contains(text),
                "block {block} does not show {text:?}: {said}"
            );
        }
    });
}

/// Carries out the block of a document that has this word, as one pastes it in the repository, with a node that is slow to start,
/// and gives what it said.
fn pasted(document: &str, word: &str, edit: impl FnOnce(&str, &Path) -> String) -> String {
    let daemon = built::present("provostd", "provostd", ROLE);
    built::present("provost", "provost-cli", ROLE);
    built::present("hello-server", "provost-hello", ROLE);
    let directory = tempfile::Builder::new().prefix("ppaste-").tempdir().unwrap();
    let programs = directory.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    let slow = programs.join("provostd");
    let script = format!("#!/bin/sh\nsleep 1\nexec '{}' \"$@\"\n", daemon.display());
    std::fs::write(&slow, script).unwrap();
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).unwrap();

    let text = std::fs::read_to_string(root().join(document)).unwrap();
    let mut blocks = commands(&text).into_iter();
    let block = blocks.find(|block| block.contains(word)).unwrap();
    let is_typed = |line: &&str| !line.starts_with("cargo build");
    let typed: String = block
        .lines()
        .filter(is_typed)
        .map(|line| line.replace("target/release/", "") + "\n")
        .collect();
    let script = ENDS_WITH_THE_TEST.to_owned() + &edit(&typed, directory.path());
    let folder = daemon.parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut command = Command::new("bash");
    command
        .args(["-e", "-c", &script])
        .current_dir(directory.path())
        .env(
            "PATH",
            format!("{}:{}:{path}", programs.display(), folder.display()),
        )
        .env_remove("PROVOST_SOCKET")
        .env_remove("PROVOST_ADMIN_SOCKET")
        .stdin(Stdio::null());
    let output = directory.path().join("output");
    ShellGroup::to_its_end(command, &output, PASTED_MAX).1
}

#[test]
fn what_the_first_pages_start_is_waited_for() {
    if is_missing("bash", "bash") {
        return;
    }
    tested(|| {
        let said = pasted("README.md", "hello-client", |block, directory| {
            block.replace("/tmp/", &format!("{}/", directory.display()))
        });
        assert!(said.contains("Hello, Ann!"), "{said}");
        let said = pasted("examples/README.md", "schema prefetch", |block, directory| {
            let proto = root().join("apps/hello/proto").canonicalize().unwrap();
            let block = block.replace("/tmp/", &format!("{}/", directory.display()));
            let block = block.replace("apps/hello/proto", &proto.display().to_string());
            with_free_ports(&block, &["7700", "50051", "50061"])
        });
        assert_eq!(said.matches("given").count(), 2, "{said}");
    });
}

/// Sources as they read where their texts are said: continued lines joined, and `…` where a value stands.
fn texts_of_sources() -> String {
    let mut texts = String::new();
    let mut left = vec![root().join("crates")];
    while let Some(folder) = left.pop() {
        for path in std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() && !path.ends_with("tests") {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts += &std::fs::read_to_string(&path).unwrap();
            }
        }
    }
    let mut joined = String::new();
    for line in texts.lines() {
        match line.strip_suffix('\\') {
            Some(part) if joined.ends_with('\u{1}') => {
                joined = joined.trim_end_matches('\u{1}').to_owned() + part.trim_start() + "\u{1}"
            }
            Some(part) => joined = joined + part + "\u{1}",
            None if joined.ends_with('\u{1}') => {
                joined = joined.trim_end_matches('\u{1}').to_owned() + line.trim_start() + "\n"
            }
            None => joined = joined + line + "\n",
        }
    }
    values_left_out(&joined.replace("\\\"", "\""))
}

/// `{name}` and `{0:?}` as `…`.
fn values_left_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('{') {
        out += before;
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_.:?#".contains(c);
        match behind.split_once('}') {
            Some((name, after)) if name.chars().all(is_part) => {
                out.push('…');
                rest = after;
            }
            _ => {
                out.push('{');
                rest = behind;
            }
        }
    }
    out + rest
}

/// The quoted text in the first cell of a row: between backticks, one or two.
fn quoted(row: &str) -> Option<String> {
    let cell = row.strip_prefix("| ")?;
    match cell.strip_prefix("``") {
        Some(text) => Some(text.split_once("``")?.0.trim_end().to_owned()),
        None => Some(cell.strip_prefix('`')?.split_once('`')?.0.to_owned()),
    }
}

/// What goes wrong most, each a section with at least so many texts, and what each has to name.
const CLASSES: [(&str, usize, &[&str]); 14] = [
    (
        "A program cannot attach to its node",
        4,
        &["PROVOST_SOCKET", "UNAVAILABLE"],
    ),
    ("A program may not do what it asks for", 6, &["[[app]]", "access"]),
    ("A program finds no service", 4, &["[[route]]"]),
    (
        "Two nodes do not connect",
        6,
        &["server_identities", "allow_peers", "subjectAltName"],
    ),
    (
        "Client and server do not fit",
        4,
        &["FAILED_PRECONDITION", "UNIMPLEMENTED"],
    ),
    (
        "A call ends with an error",
        6,
        &["DEADLINE_EXCEEDED", "INTERNAL", "CANCELLED", "INVALID_ARGUMENT"],
    ),
    ("A limit is reached", 6, &["RESOURCE_EXHAUSTED", "receive heap"]),
    (
        "A gRPC client gets an error",
        18,
        &["grpc.listener", "route.tls", "allow_clients", "ALPN", "export"],
    ),
    ("The daemon does not start", 6, &["config check"]),
    ("A policy or an engine is not taken", 4, &["policy example"]),
    ("A replacement of the daemon fails", 4, &["hot_restart_ms"]),
    (
        "An operator's command fails",
        5,
        &[
            "**1**", "**2**", "**3**", "**4**", "**5**", "**6**", "**7**", "**64**",
        ],
    ),
    (
        "Metrics, logs or spans are missing",
        4,
        &["metrics", "otlp_endpoint"],
    ),
    ("A schema does not compile", 3, &["proto3"]),
];

#[test]
fn texts_that_troubleshooting_quotes_are_what_the_programs_say() {
    let page = document("troubleshooting.md");
    let sources = texts_of_sources();
    let mut seen = BTreeSet::new();
    let mut sections = page.split("\n## ").skip(1);
    for (class, texts_min, named) in CLASSES {
        let section = sections
            .next()
            .unwrap_or_else(|| panic!("no section \"{class}\""));
        assert!(section.starts_with(class), "\"{class}\" is expected: {section}");
        let quotes: Vec<_> = section.lines().filter_map(quoted).collect();
        assert!(quotes.len() >= texts_min, "{class}: {quotes:?}");
        for quote in quotes {
            assert!(sources.contains(&quote), "{class}: no source says \"{quote}\"");
            assert!(seen.insert(quote.clone()), "twice: {quote}");
        }
        for name in named {
            assert!(section.contains(name), "{class} does not name {name}");
        }
    }
}

/// How many bars divide a row of a table into cells, those within code left out.
fn bars(row: &str) -> usize {
    let outside = row.split('`').step_by(2);
    outside
        .map(|part| part.replace("\\|", "").matches('|').count())
        .sum()
}

#[test]
fn rows_of_tables_have_as_many_cells_as_their_heads() {
    let mut tables = 0;
    for page in [
        "README.md",
        "comparison.md",
        "faq.md",
        "page.md",
        "troubleshooting.md",
    ] {
        let mut head = None;
        for (at, line) in document(page).lines().enumerate() {
            if !line.starts_with('|') {
                head = None;
                continue;
            }
            tables += usize::from(head.is_none());
            let expected = *head.get_or_insert_with(|| bars(line));
            assert_eq!(
                bars(line),
                expected,
                "docs/operators/{page}, line {}: {line}",
                at + 1
            );
        }
    }
    assert!(tables > 15, "{tables}");
}

#[test]
fn pictures_have_a_text_and_read_on_any_ground() {
    let mut pictures = BTreeSet::new();
    for page in ["README.md", "comparison.md", "faq.md", "troubleshooting.md"] {
        let text = document(page);
        for picture in text.split("![").skip(1) {
            let (alt, rest) = picture.split_once("](").unwrap();
            let file = rest.split_once(')').unwrap().0;
            assert!(
                alt.len() > 40,
                "{page}: {file} needs a text that says what it shows"
            );
            let svg = document(file);
            for part in [
                "<title",
                "viewBox=",
                "role=\"img\"",
                "prefers-color-scheme: dark",
                "</svg>",
            ] {
                assert!(svg.contains(part), "{file} lacks {part}");
            }
            pictures.insert(file.to_owned());
        }
    }
    let files = std::fs::read_dir(root().join("docs/operators")).unwrap();
    let drawn = files.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let drawn: BTreeSet<_> = drawn.filter(|name| name.ends_with(".svg")).collect();
    assert_eq!(
        pictures, drawn,
        "every picture is shown, and every one shown is there"
    );
}

#[test]
fn figures_of_the_comparison_are_those_of_the_benchmarks() {
    let page = document("comparison.md");
    let benchmarks = std::fs::read_to_string(root().join("docs/benchmarks.md")).unwrap();
    let (_, table) = page
        .split_once("| Provost beside tonic and Envoy |")
        .expect("the table of figures");
    let rows = table.lines().skip(3).take_while(|line| line.starts_with('|'));
    let mut checked = 0;
    for row in rows {
        let figure = row.split(" | ").nth(1).unwrap_or_default();
        let number: String = figure
            .chars()
            .take_while(|c| c.is_ascii_digit() || ",.".contains(*c))
            .collect();
        if !number.is_empty() {
            assert!(
                benchmarks.contains(&number),
                "docs/benchmarks.md has no {number}: {row}"
            );
            checked += 1;
        }
    }
    assert!(checked >= 5, "{checked} figures were found");
}
