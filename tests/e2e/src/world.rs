//! What a test runs in: nodes, servers and agents, each a process of its own, in a directory of the test's own.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};

use provost::blocking::block_on;
use provost::{App, Channel};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::agent::Executor;
use crate::built;
use crate::driver::{Agent, WAIT_MAX};
use crate::lines::Lines;
use crate::node::{DESCRIPTORS_MAX, SUCCESSOR};
use crate::probe::probe_client::blocking::ProbeClient;
use crate::probe::probe_service::SERVICE;
use crate::program::{Program, Usage, eventually, usage_of};
use crate::script::Answer;
use crate::successor::Fault;

/// What a node logs when it has been replaced, and when it has not.
const TAKEN_OVER: &str = "another process has taken over";
const GOES_ON: &str = "the service goes on in this process";

/// The processes' directory, and the program that all of them are.
#[derive(Debug)]
pub struct World {
    directory: TempDir,
    role: PathBuf,
    started: usize,
}

/// How a node is configured.
#[derive(Clone, Debug, Default)]
pub struct NodeOptions {
    /// Where `probe.Probe` is: the address of another node.
    pub peer: Option<SocketAddr>,
    /// Lines of the `[control]` table.
    pub control: String,
    /// Lines of the `[limits]` table.
    pub limits: String,
    /// Further tables, in TOML.
    pub tables: String,
    /// How many descriptors the node may have.
    pub descriptors_max: Option<u64>,
    /// The program and the arguments by which the node is started; none: it is started itself.
    pub launcher: &'static [&'static str],
}

#[derive(Debug)]
pub struct Node {
    pub program: Program,
    /// The socket that apps attach to.
    pub socket: PathBuf,
    /// The socket of its admin API.
    pub admin_socket: PathBuf,
    /// Where it listens for other nodes.
    pub address: SocketAddr,
    plan: NodePlan,
    /// The process that has replaced the first one, if one has.
    successor: Option<u32>,
    /// Kept open: the programs of a test end when their input does.
    _input: ChildStdin,
}

/// What a node's log says of its replacement by another process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// The process that goes on.
    pub process: u32,
    /// For how long nobody served, in microseconds.
    pub frozen_us: u64,
    /// How much of that it took to put the state together.
    pub saved_us: u64,
    /// Length of the state in bytes.
    pub state_bytes: u64,
    /// Descriptors that were passed.
    pub descriptors: u64,
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(pid) = self.successor.and_then(|pid| Pid::from_raw(pid as i32)) {
            // It fails only when it is gone already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Node {
    /// A client in the test's own process, attached to this node.
    ///
    /// # Panics
    ///
    /// When it cannot be.
    pub fn client(&self) -> ProbeClient {
        let app = App::builder().socket(&self.socket).attach().unwrap();
        let channel = block_on(Channel::builder(&SERVICE).app(&app).connect("probe.Probe"));
        ProbeClient::new(channel.unwrap())
    }

    /// The process that serves now.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.successor.unwrap_or_else(|| self.program.id())
    }

    /// What the process that serves now uses.
    #[must_use]
    pub fn usage(&self) -> Usage {
        usage_of(self.process()).unwrap_or_else(|error| panic!("{}: {error}", self.program.name()))
    }

    /// Has another process take over, and waits for that.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn replace(&mut self) -> Replacement {
        self.try_replace()
            .unwrap_or_else(|reason| panic!("{}: {reason}", self.program.name()))
    }

    /// Has another process take over; the error is why the old one goes on.
    pub fn try_replace(&mut self) -> Result<Replacement, String> {
        // Nodes with many connections log much, and to read all of it each time would keep them from their work.
        let before = self.program.log_bytes();
        let pid = Pid::from_raw(self.process() as i32).expect("a process has a number");
        kill_process(pid, Signal::USR2).map_err(|error| error.to_string())?;
        let mut outcome = None;
        eventually("an upgrade comes to its end", WAIT_MAX, || {
            let log = self.program.log_from(before);
            let mut lines = log.lines();
            let end = lines.find(|line| line.contains(TAKEN_OVER) || line.contains(GOES_ON));
            outcome = end.map(str::to_owned);
            outcome.is_some()
        });
        let line = outcome.unwrap_or_default();
        if !line.contains(TAKEN_OVER) {
            return Err(line);
        }
        let number = |key: &str| {
            let value = line.split(' ').find_map(|word| word.strip_prefix(key));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let replacement = Replacement {
            process: number("process=") as u32,
            frozen_us: number("frozen_us="),
            saved_us: number("saved_us="),
            state_bytes: number("state_bytes="),
            descriptors: number("descriptors="),
        };
        self.successor = Some(replacement.process);
        Ok(replacement)
    }

    /// Runs `provost` on it, and returns what that prints. (A test builds the program before its time counts.)
    ///
    /// # Panics
    ///
    /// When it fails.
    pub fn operate(&self, arguments: &[&str]) -> String {
        let done = self.try_operate(arguments);
        done.unwrap_or_else(|said| panic!("{arguments:?}: {said}"))
    }

    /// Runs `provost` on it, and returns what that prints; the error is what it says when it fails.
    ///
    /// # Errors
    ///
    /// The command fails, or refuses what is asked.
    ///
    /// # Panics
    ///
    /// When there is no such program.
    pub fn try_operate(&self, arguments: &[&str]) -> Result<String, String> {
        let program = built::program("provost", "provost-cli", &self.plan.role.to_string_lossy());
        let output = Command::new(program)
            .args(arguments)
            .env("PROVOST_ADMIN_SOCKET", &self.admin_socket)
            .stdin(Stdio::null())
            .output()
            .expect("the program provost");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stderr) + &text(&output.stdout))
        }
    }

    /// Writes another configuration: what the process that replaces this one is to read.
    pub fn reconfigure(&mut self, options: &NodeOptions) {
        self.plan.options = options.clone();
        self.plan.write_config(self.address.port());
    }

    /// Has the node start this program in place of its own when it is to be replaced; none: its own again.
    pub fn set_successor(&self, program: Option<&Path>) {
        let named = program.map_or(String::new(), |path| path.display().to_string());
        std::fs::write(self.plan.successor_file(), named).expect("a file");
    }

    /// Has the node start a process that fails in this way when it is to be replaced.
    pub fn set_faulty_successor(&self, fault: Fault) {
        let script = self
            .plan
            .directory
            .join(format!("{}-{}", self.plan.name, fault.name()));
        let role = self.plan.role.display();
        let text = format!(
            "#!/bin/sh\nexec '{role}' successor {} --take-over\n",
            fault.name()
        );
        std::fs::write(&script, text).expect("a script");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&script, mode).expect("a script");
        self.set_successor(Some(&script));
    }

    /// Starts the service again, at the same address, after it has ended or been killed.
    pub fn restart(&mut self) {
        self.program.kill();
        *self = self.plan.start(self.address.port());
    }
}

/// What is needed to start a node, once and again.
#[derive(Clone, Debug)]
struct NodePlan {
    name: String,
    options: NodeOptions,
    directory: PathBuf,
    role: PathBuf,
}

impl NodePlan {
    fn successor_file(&self) -> PathBuf {
        self.directory.join(format!("{}.successor", self.name))
    }

    fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.name))
    }

    fn write_config(&self, port: u16) -> PathBuf {
        let config = self.directory.join(format!("{}.toml", self.name));
        let text = config_text(&self.name, &self.socket(), port, &self.options);
        std::fs::write(&config, text).expect("a configuration file");
        config
    }

    fn start(&self, port: u16) -> Node {
        let (socket, config) = (self.socket(), self.write_config(port));
        let mut command = match self.options.launcher {
            [] => Command::new(&self.role),
            [launcher, arguments @ ..] => {
                let mut command = Command::new(launcher);
                command.args(arguments).arg(&self.role);
                command
            }
        };
        command.arg("provostd").arg(&config);
        command.env(SUCCESSOR, self.successor_file());
        if let Some(descriptors) = self.options.descriptors_max {
            command.env(DESCRIPTORS_MAX, descriptors.to_string());
        }
        let mut program = Program::start(&self.name, command, &self.directory);
        let (input, ready) = first_line(&mut program);
        let address = ready.trim_start_matches("ready ").parse();
        Node {
            address: address.unwrap_or_else(|error| panic!("{} said {ready:?}: {error}", self.name)),
            program,
            admin_socket: socket.with_extension("admin.sock"),
            socket,
            plan: self.clone(),
            successor: None,
            _input: input,
        }
    }
}

/// A server of `probe.Probe`.
#[derive(Debug)]
pub struct Server {
    pub program: Program,
    /// Its end is what asks the server to shut down gracefully.
    pub input: Option<ChildStdin>,
}

impl World {
    /// An empty world. `role` is the program `e2e-role`.
    ///
    /// # Panics
    ///
    /// When there is no directory for it.
    #[must_use]
    pub fn new(role: &str) -> World {
        let directory = tempfile::Builder::new()
            .prefix("pe2e-")
            .tempdir()
            .expect("a directory");
        World {
            directory,
            role: role.into(),
            started: 0,
        }
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a node's service and waits until it is ready.
    pub fn node(&mut self, name: &str, options: &NodeOptions) -> Node {
        let plan = NodePlan {
            name: name.to_owned(),
            options: options.clone(),
            directory: self.directory().to_owned(),
            role: self.role.clone(),
        };
        plan.start(0)
    }

    /// Starts a server of `probe.Probe` on a node and waits until it serves.
    pub fn server(&mut self, node: &Node) -> Server {
        self.server_of(node, &["server"])
    }

    /// Starts a server of a compatible schema of `probe.Probe` on a node and waits until it serves.
    pub fn compatible_server(&mut self, node: &Node) -> Server {
        self.server_of(node, &["server", "compatible"])
    }

    /// Starts a server of gRPC's interoperability tests on a node and waits until it serves.
    pub fn interop_server(&mut self, node: &Node) -> Server {
        self.server_of(node, &["interop-server"])
    }

    fn server_of(&mut self, node: &Node, arguments: &[&str]) -> Server {
        let mut command = Command::new(&self.role);
        command.args(arguments).env("PROVOST_SOCKET", &node.socket);
        let mut program = self.start("server", command);
        let (input, ready) = first_line(&mut program);
        assert_eq!(ready, "ready");
        Server {
            program,
            input: Some(input),
        }
    }

    /// Starts an agent on a node and waits until it is connected.
    pub fn agent(&mut self, node: &Node) -> Agent {
        self.agent_on(node, Executor::TokioMulti)
    }

    /// Starts an agent that runs its calls on this executor.
    pub fn agent_on(&mut self, node: &Node, executor: Executor) -> Agent {
        let mut agent = self.starting_agent(node, executor);
        assert_eq!(agent.first_answer(), Answer::Ready);
        agent
    }

    /// Starts an agent and waits for nothing: it may not get a connection. [`Agent::first_answer`] says.
    pub fn starting_agent(&mut self, node: &Node, executor: Executor) -> Agent {
        let mut command = Command::new(&self.role);
        command
            .args(["agent", executor.name()])
            .env("PROVOST_SOCKET", &node.socket);
        Agent::new(self.start("agent", command))
    }

    /// Starts an agent of this name, which is that of its program, and waits for nothing.
    pub fn agent_named(&mut self, node: &Node, name: &str, executor: Executor) -> Agent {
        let mut command = Command::new(self.copy_of_role(name));
        command
            .args(["agent", executor.name()])
            .env("PROVOST_SOCKET", &node.socket);
        Agent::new(self.start(name, command))
    }

    /// Starts a role, such as `["server"]`, as another user, under the name of a copy of its program in this directory. Only
    /// root can.
    ///
    /// # Panics
    ///
    /// When the program cannot be copied or started.
    pub fn role_as(&mut self, node: &Node, name: &str, user: u32, arguments: &[&str]) -> Program {
        let program = self.copy_of_role(name);
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env("PROVOST_SOCKET", &node.socket)
            .uid(user)
            .gid(user);
        self.start(name, command)
    }

    /// A copy of the program that every user may run. It is made by another process: a file that this one writes could be
    /// held open by what other tests start meanwhile, and so not be run.
    fn copy_of_role(&self, name: &str) -> PathBuf {
        let (directory, program) = (self.directory(), self.directory().join(name));
        let everybody = Permissions::from_mode(0o755);
        std::fs::set_permissions(directory, everybody.clone()).expect("permissions");
        if !program.exists() {
            let copied = Command::new("cp").arg(&self.role).arg(&program).status();
            assert!(
                copied.is_ok_and(|status| status.success()),
                "a copy of the program"
            );
            std::fs::set_permissions(&program, everybody).expect("permissions");
        }
        program
    }

    fn start(&mut self, name: &str, command: Command) -> Program {
        self.started += 1;
        Program::start(
            &format!("{name}-{}", self.started),
            command,
            self.directory.path(),
        )
    }
}

/// The usual setting: a server on node b, an agent on node a, TCP between them.
#[derive(Debug)]
pub struct Setting {
    pub agent: Agent,
    pub a: Node,
    pub server: Server,
    pub b: Node,
    /// Where more can be started.
    pub world: World,
}

impl Setting {
    /// Starts it with default limits.
    #[must_use]
    pub fn new(role: &str) -> Setting {
        Setting::with(role, &NodeOptions::default(), &NodeOptions::default())
    }

    /// Starts it with these options of node a and of node b.
    #[must_use]
    pub fn with(role: &str, options_a: &NodeOptions, options_b: &NodeOptions) -> Setting {
        let mut world = World::new(role);
        let b = world.node("b", options_b);
        let server = world.server(&b);
        let options_a = NodeOptions {
            peer: Some(b.address),
            ..options_a.clone()
        };
        let a = world.node("a", &options_a);
        let agent = world.agent(&a);
        Setting {
            agent,
            a,
            server,
            b,
            world,
        }
    }

    /// A third node, from which the server can be called as from node a.
    pub fn third_node(&mut self) -> Node {
        let options = NodeOptions {
            peer: Some(self.b.address),
            ..NodeOptions::default()
        };
        self.world.node("c", &options)
    }

    /// Another agent on node a calls well: the services still serve.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn others_are_served(&mut self) {
        self.world.agent(&self.a).calls_well();
    }
}

fn first_line(program: &mut Program) -> (ChildStdin, String) {
    let (input, output) = program.take_pipes();
    let line = Lines::of(output).next_within(WAIT_MAX);
    let line = line.unwrap_or_else(|| panic!("{} does not get ready", program.name()));
    (input, line)
}

fn config_text(name: &str, socket: &Path, port: u16, options: &NodeOptions) -> String {
    let route = options.peer.map(|peer| {
        format!("[[route]]\nservice = \"probe.Probe\"\ntransport = \"tcp\"\nendpoints = [\"{peer}\"]\n")
    });
    format!(
        "[node]\nname = \"{name}\"\n\
         [control]\nsocket = \"{}\"\n{}\n\
         [limits]\n{}\n\
         {}\n\
         [[listener]]\naddress = \"127.0.0.1:{port}\"\n\
         {}",
        socket.display(),
        options.control,
        options.limits,
        options.tables,
        route.unwrap_or_default(),
    )
}
