//! The quick start, typed as it stands in a directory outside the repository.

use std::ffi::OsStr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use provost_e2e::{Program, built};
use rustix::process::Signal;

use crate::command::{Outcome, ROLE, is_missing, outcome};
use crate::documents::{ENDS_WITH_THE_TEST, ShellGroup, document, root, with_free_ports};

/// How long it may take to build the crate with all that it depends on, on a busy machine.
const TIME_MAX: Duration = Duration::from_secs(900);
/// How long a manager waits for what it is to be told.
const NOTICE_WAIT_MAX: Duration = Duration::from_secs(60);
/// How long nothing comes that is not to come.
const SILENCE: Duration = Duration::from_millis(300);
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

/// A directory beside the repository, in which the document's crate is made.
struct CrateWorkshop {
    directory: tempfile::TempDir,
    programs: PathBuf,
}

impl CrateWorkshop {
    fn new() -> CrateWorkshop {
        let daemon = built::present("provostd", "provostd", ROLE);
        built::present("provost", "provost-cli", ROLE);
        let directory = tempfile::Builder::new().prefix("pquick-").tempdir().unwrap();
        std::os::unix::fs::symlink(root().canonicalize().unwrap(), directory.path().join("provost")).unwrap();
        CrateWorkshop {
            directory,
            programs: daemon.parent().unwrap().to_owned(),
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where cargo puts what it builds. Kept over runs: what the crate depends on is built once.
    fn target() -> PathBuf {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("quickstart")
    }

    /// A command in the directory, with the programs of nodes in its path.
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(program);
        command
            .current_dir(self.directory.path())
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env_remove("PROVOST_SOCKET")
            .env_remove("PROVOST_ADMIN_SOCKET")
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null());
        command
    }

    /// Carries out the document's script. What it has started goes on until the group is dropped.
    fn run(&self, script: &str) -> (ShellGroup, String) {
        let mut command = self.command("bash");
        command
            .args(["-e", "-c", &(ENDS_WITH_THE_TEST.to_owned() + script)])
            .env("CARGO_TARGET_DIR", CrateWorkshop::target())
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        ShellGroup::to_its_end(command, &self.at("output"), TIME_MAX)
    }

    /// What a program of the crate answers whose node is at this socket.
    fn answer(&self, program: &str, socket: &str) -> Outcome {
        let mut command = self.command(CrateWorkshop::target().join("debug").join(program));
        command.arg("Dan").env("PROVOST_SOCKET", self.at(socket));
        outcome(command)
    }
}

#[test]
fn the_quick_start_goes_from_cargo_new_to_two_nodes() {
    if is_missing("openssl", "openssl") {
        return;
    }
    let workshop = CrateWorkshop::new();
    // The versions that the repository has, which are on this machine.
    let lock = format!("cp {}/Cargo.lock .\n", workshop.at("provost").display());
    let script = script(&document("../quickstart.md"));
    let script = script.replacen("mkdir proto", &format!("{lock}mkdir proto"), 1);
    let (shell, said) = workshop.run(&with_free_ports(&script, &["7702"]));
    let mut rest = &*said;
    for text in [
        "Hello, Ann!\n",
        "Good day, Ben!\n",
        "Good day, Cid!\n",
        " datagram ",
    ] {
        let (_, behind) = rest
            .split_once(text)
            .unwrap_or_else(|| panic!("no {text:?} in its turn: {said}"));
        rest = behind;
    }
    let log = std::fs::read_to_string(workshop.at("hello/a.log")).unwrap();
    for transport in ["tcp", "datagram"] {
        let agreed = format!("identity=\"spiffe://example.org/node/b\" transport=\"{transport}\"");
        assert!(log.contains(&agreed), "{agreed}: {log}");
    }
    sockets_that_are_wrong_are_named(&workshop);
    strangers_are_told_what_is_different(&workshop);
    drop(shell);
    the_manager_hears_of_the_service(&workshop);
}

/// What the crate's programs say where `PROVOST_SOCKET` is not their node's.
fn sockets_that_are_wrong_are_named(workshop: &CrateWorkshop) {
    let table = [
        ("nowhere.sock", "is provostd running, and PROVOST_SOCKET right?"),
        ("hello/a.admin.sock", "does PROVOST_SOCKET name the one of apps?"),
    ];
    for (socket, part) in table {
        for program in ["client", "server"] {
            let said = workshop.answer(program, socket);
            let names = said.stderr.contains(part) && said.stderr.contains(socket);
            assert!(said.code == Some(1) && names, "{program} {socket}: {said:?}");
        }
    }
}

/// A client of another schema or name than the server's: how `sed` makes it of the document's, and what it is told.
struct StrangeClient {
    name: &'static str,
    schema: &'static str,
    client: &'static str,
    told: &'static [&'static str],
}

const STRANGERS: [StrangeClient; 4] = [
    StrangeClient {
        name: "newer",
        schema: "s/string name = 1;/& string title = 2;/",
        client: "s/name: name.into()/name: name.into(), title: \"Dr\".into()/",
        told: &[],
    },
    StrangeClient {
        name: "incompatible",
        schema: "s/string text = 1;/uint64 text = 1;/",
        client: "",
        told: &[
            "FailedPrecondition",
            "greeter.GreetReply.text",
            "`uint64` at the client",
            "`string` at the server",
        ],
    },
    StrangeClient {
        name: "misspelt",
        schema: "",
        client: "s/\"greeter.Greeter\"/\"greeter.Greter\"/",
        told: &[
            "NotFound",
            "no service greeter.Greter",
            "did you mean greeter.Greeter?",
        ],
    },
    StrangeClient {
        name: "renamed",
        schema: "s/rpc Greet(/rpc Great(/",
        client: "s/client.greet(/client.great(/",
        told: &["Unimplemented", "method"],
    },
];

/// A client that was built with a schema that fits makes its call; another is told what differs, on one node and over two.
fn strangers_are_told_what_is_different(workshop: &CrateWorkshop) {
    for StrangeClient {
        name,
        schema,
        client,
        told,
    } in STRANGERS
    {
        let script = format!(
            "mkdir -p {name}/src/bin {name}/proto\ncp hello/Cargo.* hello/build.rs {name}\ncp hello/src/lib.rs {name}/src\n\
             sed '{schema}' hello/proto/greeter.proto > {name}/proto/greeter.proto\n\
             sed '{client}' hello/src/bin/client.rs > {name}/src/bin/{name}.rs\ncd {name}\ncargo build --quiet\n"
        );
        workshop.run(&script);
        for (socket, greeting) in [
            ("hello/node.sock", "Hello, Dan!\n"),
            ("hello/a.sock", "Good day, Dan!\n"),
        ] {
            let answer = workshop.answer(name, socket);
            if told.is_empty() {
                assert_eq!(
                    (answer.code, &*answer.stdout),
                    (Some(0), greeting),
                    "{name}: {answer:?}"
                );
                continue;
            }
            let is_told = told.iter().all(|part| answer.stderr.contains(part));
            assert!(
                answer.code == Some(1) && is_told,
                "{name} at {socket}: {answer:?}"
            );
        }
    }
}

/// A service manager: the socket at which it is told how its services are.
struct ServiceManager(UnixDatagram);

impl ServiceManager {
    fn at(socket: &Path) -> ServiceManager {
        let socket = UnixDatagram::bind(socket).unwrap();
        socket.set_read_timeout(Some(NOTICE_WAIT_MAX)).unwrap();
        ServiceManager(socket)
    }

    fn hears(&self) -> String {
        let mut text = [0; 256];
        let length = self.0.recv(&mut text).expect("a notice");
        String::from_utf8_lossy(&text[..length]).into_owned()
    }

    /// Whether there is nothing more to hear for a while.
    fn hears_nothing(&self) -> bool {
        self.0.set_read_timeout(Some(SILENCE)).unwrap();
        let heard = self.0.recv(&mut [0; 256]);
        self.0.set_read_timeout(Some(NOTICE_WAIT_MAX)).unwrap();
        heard.is_err()
    }
}

/// The service is ready when a call succeeds and not before, waits for its node, and says when it stops.
fn the_manager_hears_of_the_service(workshop: &CrateWorkshop) {
    let manager = ServiceManager::at(&workshop.at("notify"));
    let node = || {
        let mut command = workshop.command("provostd");
        command.arg("--socket").arg(workshop.at("late.sock"));
        Program::start("node", command, workshop.directory.path())
    };
    let mut command = workshop.command(CrateWorkshop::target().join("debug/service"));
    command
        .env("PROVOST_SOCKET", workshop.at("late.sock"))
        .env("NOTIFY_SOCKET", workshop.at("notify"));
    let mut service = Program::start("service", command, workshop.directory.path());
    assert_eq!(manager.hears(), "STATUS=waiting for the node's service");
    assert!(manager.hears_nothing() && service.is_running());
    for _ in 0..2 {
        let mut node = node();
        assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
        let called = workshop.answer("client", "late.sock");
        assert_eq!(
            (called.code, &*called.stdout),
            (Some(0), "Good day, Dan!\n"),
            "{called:?}"
        );
        node.kill();
        assert_eq!(manager.hears(), "STATUS=waiting for the node's service");
    }
    let _node = node();
    assert_eq!(manager.hears(), "READY=1\nSTATUS=serving");
    service.signal(Signal::TERM);
    assert_eq!(manager.hears(), "STOPPING=1\nSTATUS=finishing calls");
    let ended = service.ends_within(NOTICE_WAIT_MAX);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
}
