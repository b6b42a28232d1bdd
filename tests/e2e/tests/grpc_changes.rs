//! Whatever operators change while programs of Go and of Python call through two nodes, these programs notice nothing: policies come,
//! go and get other versions, connections migrate to other transports, nodes are replaced. Which change comes when is drawn from
//! a seed.

mod grpc_client;
#[allow(dead_code, reason = "another test uses the rest of it")]
mod languages;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use grpc_client::{GrpcProbe, place, run, tcp_listener};
use languages::{LanguagePrograms, ProgramSources};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::successor::FAULTS;
use provost_e2e::{Node, NodeOptions, Program, World, built, eventually, watched};
use provost_random::SeededRandom;
use rustix::process::Signal;
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
const INTEROP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../interop");
/// Changes of each seed that the test has time for.
const CHANGES: usize = 40;
/// Changes of each seed of the soak.
const SOAK_CHANGES: usize = 500;
/// Policies that a node has at a time at most.
const POLICIES_MAX: usize = 4;
/// What a node logs when a connection has gone over.
const MIGRATED: &str = "migrated to another transport";
/// How long a connection gets to migrate before the next change.
const MIGRATION_WAIT: Duration = Duration::from_secs(2);
/// What programs say at their end, before the number of calls.
const CARRIED_OUT: &str = "carried out: ";

/// The programs that call without pause, each ready to be run.
fn callers() -> Option<Vec<(&'static str, LanguagePrograms)>> {
    let sources = ProgramSources {
        name: "steady",
        folder: INTEROP.into(),
    };
    let mut python = sources.python()?;
    python.client = vec![
        python.client[0].clone(),
        Path::new(INTEROP).join("python/steady.py").into(),
    ];
    Some(vec![("go", sources.go_program("steady")?), ("python", python)])
}

/// A policy that an operator has attached to a node.
struct AttachedPolicy {
    name: String,
    kind: &'static str,
}

/// A node, and what the test has attached to it.
struct GovernedNode {
    node: Node,
    policies: Vec<AttachedPolicy>,
}

impl GovernedNode {
    fn new(node: Node) -> GovernedNode {
        node.operate(&["schema", "prefetch", PROTO]);
        GovernedNode {
            node,
            policies: Vec::new(),
        }
    }

    /// Attaches a policy that lets everything pass, or takes one away, or gives one another version or configuration.
    fn change_policies(&mut self, name: String, random: &mut SeededRandom) -> String {
        let full = self.policies.len() >= POLICIES_MAX;
        let chosen = random.below(self.policies.len().max(1) as u64) as usize;
        let limits = |policy: &AttachedPolicy| policy.kind == "rate-limit";
        match (random.below(4), self.policies.get(chosen)) {
            (0, Some(_)) => self.detach(chosen),
            (1, Some(policy)) if limits(policy) => {
                let more = ["rate-limit", "--policy", &policy.name];
                self.operate(&[&["engine", "upgrade"], &more[..]].concat())
            }
            (2, Some(policy)) if limits(policy) => {
                let rate = format!("requests_per_second={}", 1_000_000 + random.below(1_000_000));
                self.operate(&["policy", "set", &policy.name, "--set", &rate])
            }
            (_, Some(_)) if full => self.detach(chosen),
            _ => self.attach(name, random),
        }
    }

    fn attach(&mut self, name: String, random: &mut SeededRandom) -> String {
        let kinds: [(&str, &[&str]); 4] = [
            ("null", &[]),
            (
                "rate-limit",
                &[
                    "--set",
                    "requests_per_second=1000000000",
                    "--set",
                    "burst=1000000000",
                ],
            ),
            ("access", &["--set", "default=\"allow\""]),
            ("metrics", &[]),
        ];
        let (kind, set) = kinds[random.below(kinds.len() as u64) as usize];
        let attach = ["policy", "attach", "--kind", kind, "--name", &name];
        let done = self.operate(&[&attach, set].concat());
        self.policies.push(AttachedPolicy { name, kind });
        done
    }

    fn detach(&mut self, at: usize) -> String {
        let policy = self.policies.remove(at);
        self.operate(&["policy", "detach", &policy.name])
    }

    fn operate(&self, arguments: &[&str]) -> String {
        self.node.operate(arguments);
        arguments.join(" ")
    }

    /// Another process takes over, or is to and fails.
    fn replace(&mut self, random: &mut SeededRandom) -> String {
        if random.below(4) > 0 {
            return format!("hot restart: {:?}", self.node.replace());
        }
        let fault = FAULTS[random.below(FAULTS.len() as u64) as usize];
        self.node.set_faulty_successor(fault);
        let outcome = self.node.try_replace();
        assert!(outcome.is_err(), "{fault:?}: {outcome:?}");
        self.node.set_successor(None);
        format!("no hot restart: {fault:?}")
    }
}

/// Programs that call a tonic server through two nodes.
struct ChangesSetting {
    front: GovernedNode,
    back: GovernedNode,
    /// How the first node reaches the server now.
    transport: &'static str,
    server: TonicServer,
    callers: Vec<Program>,
    /// A client of the server itself.
    direct: GrpcProbe,
    world: World,
}

fn options(tables: String) -> NodeOptions {
    NodeOptions {
        // A successor that hangs is given up soon.
        tables: tables + "[timeouts]\nhot_restart_ms = 2000\n",
        ..NodeOptions::default()
    }
}

fn route(transport: &str, endpoint: SocketAddr, more: &str) -> String {
    format!(
        "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
    )
}

impl ChangesSetting {
    fn new(programs: &[(&'static str, LanguagePrograms)]) -> ChangesSetting {
        let server = TonicServer::start();
        let mut world = World::new(ROLE);
        let exported = route("grpc", server.address, "export = true\napp = \"front\"\n");
        let mut back = world.node("back", &options(exported.clone()));
        // At the same port.
        let datagrams = format!(
            "[[listener]]\ntransport = \"datagram\"\naddress = \"{}\"\n",
            back.address
        );
        back.reconfigure(&options(exported + &datagrams));
        back.restart();
        let tables = tcp_listener("web", "web") + &route("tcp", back.address, "");
        let front = world.node("front", &options(tables));
        let (front, back) = (GovernedNode::new(front), GovernedNode::new(back));
        let at = place(&front.node, "web").replace("http://", "");
        let callers = programs.iter().map(|(name, program)| {
            let command = program.command(&program.client, &[&at, name]);
            Program::start(name, command, world.directory())
        });
        let callers = callers.collect();
        ChangesSetting {
            direct: GrpcProbe::at(&format!("http://{}", server.address)),
            front,
            back,
            transport: "tcp",
            server,
            callers,
            world,
        }
    }

    /// Waits until each program has got on.
    fn go_on(&mut self) {
        let before: Vec<u64> = self.callers.iter().map(Program::log_bytes).collect();
        for (caller, before) in self.callers.iter_mut().zip(before) {
            eventually("a program's calls go on", WAIT_MAX, || {
                assert!(caller.is_running(), "it has ended: {}", caller.log_from(before));
                caller.log_bytes() > before
            });
        }
    }

    /// Makes one change, and says what it was.
    fn change(&mut self, number: usize, random: &mut SeededRandom) -> String {
        let governed = match random.below(2) {
            0 => &mut self.front,
            _ => &mut self.back,
        };
        match random.below(20) {
            0..2 => governed.replace(random),
            2..5 => self.migrate(random),
            5..7 if self.transport == "tcp" => ChangesSetting::upgrade_transport(governed, random),
            _ => governed.change_policies(format!("p{number}"), random),
        }
    }

    /// Has the first node reach the server by another transport.
    fn migrate(&mut self, random: &mut SeededRandom) -> String {
        let others: Vec<&'static str> = ["tcp", "datagram", "grpc"]
            .into_iter()
            .filter(|transport| *transport != self.transport)
            .collect();
        let next = others[random.below(2) as usize];
        let endpoint = match next {
            "grpc" => self.server.address,
            _ => self.back.node.address,
        };
        let before = self.migrations();
        let tables = tcp_listener("web", "web") + &route(next, endpoint, "");
        self.front.node.reconfigure(&options(tables));
        self.front.node.operate(&["config", "reload"]);
        // The configuration has no policies, and a reload makes them what it says.
        self.front.policies.clear();
        if next != "grpc" && self.transport != "grpc" {
            // None does where the calls of both programs are still about to go over to the transport before.
            let begin = Instant::now();
            while self.migrations() == before && begin.elapsed() < MIGRATION_WAIT {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let said = format!("{} to {next}", self.transport);
        self.transport = next;
        said
    }

    /// Puts another version of the transport's engine into the datapaths of a node, of which native TCP has several. A connection
    /// some of whose calls are still with an earlier transport refuses that, and everything is as it was.
    fn upgrade_transport(governed: &GovernedNode, random: &mut SeededRandom) -> String {
        let version = (1 + random.below(2)).to_string();
        let upgrade = ["engine", "upgrade", "transport-tcp", "--version", &version];
        let outcome = governed.node.try_operate(&upgrade);
        if let Err(refusal) = &outcome {
            assert!(
                refusal.contains("transport-switch") && refusal.contains("nothing has changed"),
                "{refusal}"
            );
        }
        format!("transport-tcp to version {version}: {outcome:?}")
    }

    fn migrations(&self) -> usize {
        self.front.node.program.log().matches(MIGRATED).count()
    }

    /// Ends the programs: each call was carried out once.
    fn end(mut self) {
        for caller in &self.callers {
            caller.signal(Signal::TERM);
        }
        for caller in &mut self.callers {
            let ended = caller.ends_within(WAIT_MAX).expect("it ends");
            let log = caller.log();
            assert!(ended.success(), "{}: {ended}", caller.name());
            let (_, calls) = log.rsplit_once(CARRIED_OUT).expect("it says how many");
            let calls: u64 = calls.trim().parse().unwrap();
            let counts = run(self.direct.counts(caller.name()));
            println!("{}: {calls} unary calls", caller.name());
            assert!(calls > 0);
            assert_eq!((counts.begun, counts.finished), (calls, calls), "{counts:?}");
        }
        drop(self.world);
    }
}

/// Changes of a seed, under calls.
fn changes_of(seed: u64, changes: usize, programs: &[(&'static str, LanguagePrograms)]) {
    let mut random = SeededRandom::new(seed);
    let mut setting = ChangesSetting::new(programs);
    setting.go_on();
    for number in 0..changes {
        let change = setting.change(number, &mut random);
        println!("seed {seed}, {number}: {change}");
        setting.go_on();
    }
    assert!(setting.migrations() > 0, "no connection has migrated");
    setting.end();
}

#[test]
fn programs_of_go_and_python_notice_no_change_of_policies_transports_and_nodes() {
    built::program("provost", "provost-cli", ROLE);
    let Some(programs) = callers() else {
        return;
    };
    watched(move || changes_of(1, CHANGES, &programs));
}

/// The same for as long as `PROVOST_SOAK_MINUTES` says: `cargo xtask soak grpc`.
#[test]
#[ignore = "for an hour"]
fn soak() {
    built::program("provost", "provost-cli", ROLE);
    let programs = callers().expect("Go, and Python with grpcio");
    let minutes = std::env::var("PROVOST_SOAK_MINUTES").ok();
    let minutes: f64 = minutes.and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let end_at = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    for seed in 1.. {
        changes_of(seed, SOAK_CHANGES, &programs);
        if Instant::now() >= end_at {
            break;
        }
    }
}
