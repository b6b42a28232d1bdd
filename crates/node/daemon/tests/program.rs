//! The program `provostd`: its options, its signals, and what it tells a service manager.

mod support;

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use provost_shm::PacketSocket;
use rustix::process::{Pid, Signal, kill_process};
use support::{TestApp, WAIT_MAX, attach_request};

/// A running program, killed when it is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    fn start(socket: &Path, more: &[&str]) -> Program {
        let child = provostd()
            .arg("--socket")
            .arg(socket)
            .args(more)
            .stderr(Stdio::null())
            .spawn()
            .expect("a program that starts");
        let program = Program(child);
        program.wait_until_it_serves(socket);
        program
    }

    fn wait_until_it_serves(&self, socket: &Path) {
        let until = Instant::now() + WAIT_MAX;
        while PacketSocket::connect(socket).is_err() {
            assert!(Instant::now() < until, "it does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.0);
        kill_process(id, signal).expect("a program that lives");
    }

    fn exit_code(mut self) -> Option<i32> {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                return status.code();
            }
            assert!(Instant::now() < until, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn provostd() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_provostd"));
    command.env_remove("PROVOSTD_LOG").env_remove("NOTIFY_SOCKET");
    command
}

fn check(text: &str) -> (Option<i32>, String) {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("a file");
    let output: Output = provostd()
        .arg("--check-config")
        .arg("--config")
        .arg(file.path())
        .output()
        .expect("a program that runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_configuration_is_checked_and_its_faults_are_named() {
    assert_eq!(check("").0, Some(0));
    let (code, text) = check("[runtime]\nthreads = 0\nspin_us = \"x\"\n");
    assert_eq!(code, Some(2));
    assert!(text.contains("spin_us") && text.contains('3'), "{text}");
    let (code, text) = check("[limits]\nconections = 5\n");
    assert_eq!(code, Some(2));
    assert!(text.contains("conections"), "{text}");
    let (code, text) = check("[runtime]\nthreads = 0\n");
    assert_eq!(code, Some(2));
    assert!(text.contains("runtime.threads"), "{text}");
}

#[test]
fn what_is_to_be_made_where_there_is_no_folder_is_refused_before_anything_starts() {
    let (code, text) = check(
        "[control]\nsocket = \"/nonexistent/x.sock\"\n[observe]\nlisten = \"unix:/gone/m\"\n\
         [admin]\npolicies_file = \"/none/policies.toml\"\n",
    );
    assert_eq!(code, Some(2));
    for said in [
        "control.socket: /nonexistent/x.sock: there is no directory /nonexistent",
        "observe.listen: /gone/m: there is no directory /gone",
        "admin.policies_file: /none/policies.toml: there is no directory /none",
    ] {
        assert!(text.contains(said), "{text}");
    }
    // Where a service manager makes the folder, it need not be there before.
    assert_eq!(
        check("[control]\nsocket = \"/run/no-such-service/x.sock\"\n").0,
        Some(0)
    );
}

#[test]
fn what_is_only_checked_leaves_no_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path().display();
    let text = format!(
        "[observe]\naudit_file = \"{folder}/audit.log\"\n\
         [[policy]]\nname = \"lines\"\nkind = \"access-log\"\n[policy.config]\npath = \"{folder}/access.log\"\n"
    );
    let (code, said) = check(&text);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(
        std::fs::read_dir(directory.path()).expect("a directory").count(),
        0
    );
    let (code, said) = check(&text.replace("/access.log", "/none/access.log"));
    assert_eq!(code, Some(2), "{said}");
}

#[test]
fn a_library_that_is_none_is_said_to_be_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let library = directory.path().join("text.so");
    std::fs::write(&library, "no library at all, whatever its name says").expect("a file");
    let (code, text) = check(&format!("engines = [\"{}\"]\n", library.display()));
    assert_eq!(code, Some(2));
    // The C library's words.
    assert!(
        text.contains("invalid ELF header") || text.contains("file too short"),
        "{text}"
    );
}

#[test]
fn the_printed_defaults_are_a_good_configuration() {
    let output = provostd()
        .arg("--print-default-config")
        .output()
        .expect("a program that runs");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(check(&text).0, Some(0));
}

#[test]
fn nobody_has_to_read_what_it_prints() {
    let unread = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    for (arguments, code) in [
        (["--print-default-config"], 0),
        (["--check-config"], 0),
        (["--config=/nowhere.toml"], 2),
    ] {
        let status = provostd()
            .args(arguments)
            .stdout(unread())
            .stderr(unread())
            .status()
            .expect("a program that runs");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

/// The kernel has the files of a process in `/proc` belong to root where its memory is to be nobody's, whoever runs it.
#[test]
fn its_memory_goes_into_no_core_dump_and_to_no_process_of_its_user() {
    /// A user that nobody is.
    const NOBODY: u32 = 64_010;
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).expect("a directory");
    // Another user may not reach where it was built.
    let program = directory.path().join("provostd");
    std::fs::copy(env!("CARGO_BIN_EXE_provostd"), &program).expect("a copy");
    let mut command = Command::new(program);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let socket = directory.path().join("control.sock");
    let child = command.arg("--socket").arg(&socket).stderr(Stdio::null()).spawn();
    let program = Program(child.expect("a program that starts"));
    program.wait_until_it_serves(&socket);
    let file = |name: &str| format!("/proc/{}/{name}", program.0.id());
    let limits = std::fs::read_to_string(file("limits")).expect("limits of a child");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let words: Vec<_> = core.unwrap_or_default().split_whitespace().collect();
    assert_eq!(&words[4..], ["0", "0", "bytes"], "{limits}");
    assert_eq!(std::fs::metadata(file("mem")).expect("a child").uid(), 0);
}

/// Memory of a process that no file stands behind and that no other process shares, in bytes: heaps and stacks.
fn own_memory_bytes(process: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps")).expect("maps of a child");
    let mut is_own = false;
    let mut sum = 0;
    for line in maps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words.as_slice() {
            // "address-address rw-p offset device inode path"
            [range, _, _, _, inode, ..] if range.contains('-') => is_own = *inode == "0",
            ["Anonymous:", kib, "kB"] if is_own => sum += kib.parse::<u64>().expect("a number") * 1024,
            _ => {}
        }
    }
    sum
}

#[test]
fn at_rest_it_keeps_little_memory_of_its_own() {
    const BOUND_BYTES: u64 = 1 << 20;
    let directory = tempfile::tempdir().expect("a directory");
    let program = Program::start(&directory.path().join("control.sock"), &["--log", "warn"]);
    let bytes = own_memory_bytes(program.0.id());
    // A heap and four stacks that have been used at all.
    assert!((100 << 10..BOUND_BYTES).contains(&bytes), "{bytes} bytes");
}

/// A line of what the kernel says of a process, in bytes.
fn status_bytes(process: u32, file: &str, line: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).expect("a child");
    let kib = text.lines().find_map(|told| told.strip_prefix(line));
    let kib = kib.and_then(|kib| kib.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("a number") * 1024
}

/// A build that is not optimized has four times the code of a package's, so this compares with what starting took; `bench call` holds
/// what packages are built of against a bound.
#[test]
fn at_rest_it_has_given_back_what_starting_took() {
    let directory = tempfile::tempdir().expect("a directory");
    let more = ["--listen", "127.0.0.1:0", "--policy", "null", "--log", "warn"];
    let program = Program::start(&directory.path().join("control.sock"), &more);
    let process = program.0.id();
    let until = Instant::now() + WAIT_MAX;
    loop {
        let (most, now) = (
            status_bytes(process, "status", "VmHWM:"),
            status_bytes(process, "smaps_rollup", "Rss:"),
        );
        if now < most / 3 * 2 {
            return;
        }
        assert!(Instant::now() < until, "{now} bytes of {most} are resident");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn options_are_checked_like_the_file() {
    let bad: [&[&str]; 4] = [
        &["--route", "kv.Kv"],
        &["--route", "kv.Kv=nowhere"],
        &["--policy", "none-such"],
        &["--threads", "0"],
    ];
    for arguments in bad {
        let output = provostd()
            .args(arguments)
            .arg("--check-config")
            .output()
            .expect("a program that runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        let is_of_clap = said.starts_with("error: invalid value");
        assert!(
            is_of_clap || said.starts_with("provostd: the command line: "),
            "{said}"
        );
    }
}

#[test]
fn a_route_of_the_command_line_is_in_the_place_of_the_file_s() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("provostd.toml");
    let text = "[[route]]\nservice = \"kv.Kv\"\ntransport = \"tcp\"\nendpoints = [\"no-port\"]\n";
    std::fs::write(&file, text).expect("a file");
    let code = |routes: &[&str]| {
        let routes = routes.iter().map(|route| format!("--route=kv.Kv={route}"));
        let mut command = provostd();
        command
            .arg("--check-config")
            .arg("--config")
            .arg(&file)
            .args(routes);
        command.output().expect("a program that runs").status.code()
    };
    assert_eq!(code(&[]), Some(2));
    assert_eq!(code(&["a:1"]), Some(0));
    // The second one is another endpoint.
    assert_eq!(code(&["a:1", "b:1"]), Some(0));
    assert_eq!(code(&["a:1", "no-port"]), Some(2));
    assert_eq!(code(&["no-port", "a:1"]), Some(2));
}

#[test]
fn a_level_that_the_environment_has_is_checked_like_the_file_s() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("a.sock");
    for more in [&["--check-config"][..], &[]] {
        let ended = provostd()
            .arg("--socket")
            .arg(&socket)
            .args(more)
            .env("PROVOSTD_LOG", "verbose")
            .output()
            .expect("a program that runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{more:?}: {said}");
        assert!(
            said.contains("PROVOSTD_LOG: \"verbose\" is not a log filter"),
            "{said}"
        );
    }
}

#[test]
fn it_reads_its_configuration_again_when_it_is_told_to() {
    let directory = tempfile::tempdir().expect("a directory");
    let (socket, files) = (directory.path().join("a.sock"), directory.path().join("conf.d"));
    std::fs::create_dir(&files).expect("a directory");
    let log = directory.path().join("log");
    let child = provostd()
        .arg("--socket")
        .arg(&socket)
        .arg("--config-dir")
        .arg(&files)
        .stderr(std::fs::File::create(&log).expect("a file"))
        .spawn()
        .expect("a program that starts");
    let program = Program(child);
    program.wait_until_it_serves(&socket);
    let wait_for = |part: &str| {
        let until = Instant::now() + WAIT_MAX;
        while !std::fs::read_to_string(&log).expect("a log").contains(part) {
            assert!(Instant::now() < until, "the log does not say {part:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    std::fs::write(files.join("a.toml"), "policies = [\"none-such\"]\n").expect("a file");
    program.signal(Signal::HUP);
    wait_for("there is no kind of policy \"none-such\"");
    std::fs::write(
        files.join("a.toml"),
        "policies = [\"null\"]\n[log]\nlevel = \"debug\"\n",
    )
    .expect("a file");
    program.signal(Signal::HUP);
    wait_for("the configuration was read again changes=");
    program.signal(Signal::TERM);
    assert_eq!(program.exit_code(), Some(0));
}

#[test]
fn it_ends_well_when_it_is_told_to_and_takes_its_socket_away() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("a.sock");
    for signal in [Signal::TERM, Signal::INT] {
        let program = Program::start(&socket, &["--listen", "127.0.0.1:0"]);
        program.signal(signal);
        assert_eq!(program.exit_code(), Some(0));
        assert!(!socket.exists());
    }
}

#[test]
fn a_killed_service_leaves_a_socket_that_the_next_one_replaces() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("a.sock");
    drop(Program::start(&socket, &[]));
    assert!(socket.exists());
    let next = Program::start(&socket, &[]);
    let refused = provostd()
        .arg("--socket")
        .arg(&socket)
        .output()
        .expect("a program that runs");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another service answers"));
    next.signal(Signal::TERM);
    assert_eq!(next.exit_code(), Some(0));
}

/// A start that fails with a configuration: what it says.
fn fails_with(directory: &Path, text: &str) -> String {
    let file = directory.join("provostd.toml");
    std::fs::write(&file, text).expect("a file");
    let output = provostd()
        .arg("--config")
        .arg(&file)
        .output()
        .expect("a program that runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    std::fs::remove_file(&file).expect("a file");
    said
}

#[test]
fn a_start_that_fails_leaves_no_sockets() {
    let directory = tempfile::tempdir().expect("a directory");
    let folder = directory.path();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("a port").port();
    let text = format!(
        "[control]\nsocket = \"{0}/a.sock\"\n[observe]\nlisten = \"unix:{0}/m.sock\"\n\
         [[grpc.listener]]\nname = \"unix\"\napp = \"g\"\naddress = \"unix:{0}/g.sock\"\n\
         [[grpc.listener]]\nname = \"port\"\napp = \"g\"\naddress = \"127.0.0.1:{port}\"\n",
        folder.display()
    );
    let said = fails_with(folder, &text);
    assert!(said.contains("another program listens there"), "{said}");
    assert_eq!(std::fs::read_dir(folder).expect("a directory").count(), 0);
}

#[test]
fn what_is_no_socket_is_named_for_what_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name).display().to_string();
    std::fs::write(path("file"), "precious").expect("a file");
    std::fs::create_dir(path("folder")).expect("a folder");
    let control = format!("[control]\nsocket = \"{}\"\n", path("a.sock"));
    let grpc = "[[grpc.listener]]\nname = \"g\"\napp = \"g\"\naddress = ";
    for (name, what) in [("file", "is a file"), ("folder", "is a directory")] {
        let there = path(name);
        for text in [
            format!("[control]\nsocket = \"{there}\"\n"),
            format!("{control}[admin]\nsocket = \"{there}\"\n"),
            format!("{control}{grpc}\"unix:{there}\"\n"),
        ] {
            let said = fails_with(directory.path(), &text);
            let expected = format!("{there}: {what}, not a socket: name another path");
            assert!(said.contains(&expected), "{said}");
            assert!(!said.contains("another service"), "{said}");
        }
    }
    assert_eq!(std::fs::read_to_string(path("file")).expect("a file"), "precious");
}

#[test]
fn a_service_manager_hears_when_it_is_ready_and_when_it_stops() {
    let directory = tempfile::tempdir().expect("a directory");
    let manager = directory.path().join("notify.sock");
    let heard = UnixDatagram::bind(&manager).expect("a socket");
    heard.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
    let next = || {
        let mut text = [0; 256];
        let length = heard.recv(&mut text).expect("a notice");
        String::from_utf8_lossy(&text[..length]).into_owned()
    };
    let socket = directory.path().join("a.sock");
    let child = provostd()
        .arg("--socket")
        .arg(&socket)
        .env("NOTIFY_SOCKET", &manager)
        .stderr(Stdio::null())
        .spawn()
        .expect("a program that starts");
    let program = Program(child);
    assert!(next().contains("READY=1"));
    PacketSocket::connect(&socket).expect("ready means that apps can attach");
    program.signal(Signal::TERM);
    assert!(next().contains("STOPPING=1"));
    assert_eq!(program.exit_code(), Some(0));
}

/// A program under a service manager, and the one that replaces it, which begins when it is let.
struct ReplacedProgram {
    directory: tempfile::TempDir,
    notices: UnixDatagram,
    old: Program,
    new: Option<Pid>,
}

impl Drop for ReplacedProgram {
    fn drop(&mut self) {
        if let Some(new) = self.new {
            // It may have ended.
            let _ = kill_process(new, Signal::KILL);
        }
    }
}

impl ReplacedProgram {
    fn start() -> ReplacedProgram {
        let directory = tempfile::tempdir().expect("a directory");
        let file = |name: &str| directory.path().join(name);
        let notices = UnixDatagram::bind(file("notify.sock")).expect("a socket");
        notices.set_read_timeout(Some(WAIT_MAX)).expect("a timeout");
        // It is started by the name by which the first one was called.
        let script = format!(
            "#!/bin/sh\necho $$ > {0}/new\nmv {0}/new {0}/process\n\
             until [ -e {0}/go ]; do sleep 0.01; done\nexec {1} \"$@\"\n",
            directory.path().display(),
            env!("CARGO_BIN_EXE_provostd")
        );
        std::fs::write(file("next"), script).expect("a script");
        std::fs::set_permissions(file("next"), Permissions::from_mode(0o755)).expect("a script");
        std::fs::create_dir(file("conf.d")).expect("a directory");
        let child = provostd()
            .arg0(file("next"))
            .arg("--socket")
            .arg(file("a.sock"))
            .arg("--config-dir")
            .arg(file("conf.d"))
            .env("NOTIFY_SOCKET", file("notify.sock"))
            .stderr(std::fs::File::create(file("log")).expect("a file"))
            .spawn()
            .expect("a program that starts");
        let replaced = ReplacedProgram {
            directory,
            notices,
            old: Program(child),
            new: None,
        };
        replaced.wait_for_notice("READY=1");
        replaced
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Has the other one start, and wait.
    fn begin(&mut self) {
        self.old.signal(Signal::USR2);
        self.wait_for("the other process", || self.file("process").exists());
        let text = std::fs::read_to_string(self.file("process")).expect("a number");
        self.new = Pid::from_raw(text.trim().parse().expect("a number"));
    }

    fn let_it_take_over(&self) {
        std::fs::write(self.file("go"), "").expect("a file");
    }

    fn wait_for(&self, what: &str, is_there: impl Fn() -> bool) {
        let until = Instant::now() + WAIT_MAX;
        while !is_there() {
            assert!(Instant::now() < until, "there is no {what}: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("log")).expect("a log")
    }

    fn wait_for_log(&self, part: &str) {
        self.wait_for(part, || self.log().contains(part));
    }

    /// Reads what the manager is told up to this.
    fn wait_for_notice(&self, part: &str) {
        loop {
            let mut text = [0; 256];
            let length = self
                .notices
                .recv(&mut text)
                .unwrap_or_else(|error| panic!("{part}: {error}: {}", self.log()));
            if String::from_utf8_lossy(&text[..length]).contains(part) {
                return;
            }
        }
    }

    fn new_process(&self) -> Pid {
        self.new.expect("a process that has been started")
    }
}

#[test]
fn a_reload_that_comes_while_it_is_replaced_is_the_next_process_s() {
    let mut replaced = ReplacedProgram::start();
    replaced.begin();
    replaced.old.signal(Signal::HUP);
    replaced.wait_for_log("told to read the configuration again");
    replaced.let_it_take_over();
    replaced.wait_for_notice("MAINPID=");
    replaced.wait_for_log("the configuration was read again");
}

#[test]
fn a_service_manager_that_stops_it_while_it_is_replaced_hears_of_the_next_process() {
    let mut replaced = ReplacedProgram::start();
    replaced.begin();
    replaced.let_it_take_over();
    replaced.wait_for_notice("READY=1");
    // The old one has not ended yet.
    replaced.old.signal(Signal::TERM);
    replaced.wait_for_notice(&format!("MAINPID={}", replaced.new_process().as_raw_nonzero()));
    replaced.wait_for_log("stopped connections=");
}

/// Until the manager has read which process goes on, it tells the old one.
#[test]
fn what_it_is_told_when_it_has_been_replaced_the_next_process_does() {
    for (signal, done) in [
        (Signal::HUP, "the configuration was read again"),
        (Signal::TERM, "stopped connections="),
    ] {
        let mut replaced = ReplacedProgram::start();
        replaced.begin();
        replaced.let_it_take_over();
        replaced.wait_for_notice("MAINPID=");
        replaced.old.signal(signal);
        // With this it knows.
        replaced.wait_for_notice("BARRIER=1");
        replaced.wait_for_log(done);
    }
}

#[test]
fn a_service_manager_that_stops_both_processes_lets_calls_finish() {
    let mut replaced = ReplacedProgram::start();
    let attach = || TestApp::attach_at(&replaced.file("a.sock"), attach_request());
    let (mut server, mut client) = (attach(), attach());
    server.bind();
    let connection = client.connect();
    let note = client.write_note(0, 1, "x", &[]);
    client.begin(connection, note);
    server.next_step();
    replaced.begin();
    replaced.let_it_take_over();
    replaced.wait_for_notice("READY=1");
    for process in [Pid::from_child(&replaced.old.0), replaced.new_process()] {
        kill_process(process, Signal::TERM).expect("a process that lives");
    }
    replaced.wait_for_log("told to stop a second time");
    assert!(!replaced.log().contains("stopped connections="));
    kill_process(replaced.new_process(), Signal::TERM).expect("a process that lives");
    replaced.wait_for_log("ending at once");
}

#[test]
fn logs_can_be_json() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("a.sock");
    let mut program = Program(
        provostd()
            .arg("--log-json")
            .arg("--socket")
            .arg(&socket)
            .stderr(Stdio::piped())
            .spawn()
            .expect("a program that starts"),
    );
    program.wait_until_it_serves(&socket);
    let stderr = program.0.stderr.take().expect("a pipe");
    program.signal(Signal::TERM);
    let text = std::io::read_to_string(stderr).expect("text");
    let first = text.lines().next().expect("a line");
    assert!(first.starts_with('{') && first.ends_with('}'), "{first}");
    assert!(first.contains("\"message\":\"serving\""), "{first}");
    assert_eq!(program.exit_code(), Some(0));
}

#[test]
fn every_option_stands_in_the_manual_page() {
    let help = provostd()
        .arg("--help")
        .output()
        .expect("a program that runs")
        .stdout;
    let help = String::from_utf8(help).expect("text");
    let manual = include_str!("../../../../packaging/provostd.8").replace('\\', "");
    let words = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    let options: Vec<&str> = words.filter(|word| word.starts_with("--")).collect();
    assert!(options.len() > 5, "{help}");
    for option in options {
        assert!(manual.contains(option), "provostd.8 does not have {option}");
    }
}
