//! Which app calls from another node: by the word of that node, where its operator's choice of peers has it; and on the same
//! node by the kernel's.

mod authority;
#[path = "../../../crates/core/plugin/tests/build/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod build;

use std::path::{Path, PathBuf};

use authority::Authority;
use provost::Code;
use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Answer, Ask, Metadatum};
use provost_e2e::{Agent, Node, NodeOptions, Server, World, built, eventually, watched};
use serde_json::Value;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// What the server's handler tells of the peer comes back under this key, to who asks for it.
const WHO: &str = "who-calls-bin";

/// Lets apps of the name `till` in, as one whose node is believed says.
const TILLS_ONLY: &str = r#"
[[policy]]
name = "tills"
kind = "access"
service = "probe.Probe"
side = "server"
[policy.config]
default = "deny"
[[policy.config.rule]]
name = "till"
when = 'peer.app.name == "till" && peer.node == "a" && peer.app.uid >= 0'
action = "allow"
"#;

/// Node b with a server, and node a from which it is called.
struct CallerWorld {
    world: World,
    a: Node,
    b: Node,
    _server: Server,
    audit: PathBuf,
}

/// What is behind `[tls]` of node b: whose word it takes.
fn believing(peers: &str) -> String {
    format!("attesting_peers = [{peers}]\n")
}

fn options_b(tls: &str, attesting: &str, tables: &str, audit: &Path) -> NodeOptions {
    NodeOptions {
        tables: format!(
            "{tls}{attesting}{tables}[observe]\naudit_file = \"{}\"\n",
            audit.display()
        ),
        ..NodeOptions::default()
    }
}

impl CallerWorld {
    fn new(attesting: &str, tables: &str, transport: &str) -> CallerWorld {
        let authority = Authority::new();
        let mut world = World::new(ROLE);
        let audit = world.directory().join("audit.log");
        let tls = authority.vouch_for("b", world.directory());
        let mut b = world.node("b", &options_b(&tls, attesting, tables, &audit));
        if transport == "datagram" {
            // At the same port.
            let listener = format!(
                "{tables}[[listener]]\ntransport = \"datagram\"\naddress = \"{}\"\n",
                b.address
            );
            b.reconfigure(&options_b(&tls, attesting, &listener, &audit));
            b.restart();
        }
        let server = world.server(&b);
        let tls = authority.vouch_for("a", world.directory());
        let a = world.node("a", &calling(&b, &tls, transport));
        CallerWorld {
            world,
            a,
            b,
            _server: server,
            audit,
        }
    }

    fn agent(&mut self, name: &str) -> Agent {
        let mut agent = self.world.agent_named(&self.a, name, Executor::TokioCurrent);
        assert_eq!(agent.first_answer(), Answer::Ready);
        agent
    }

    /// Records of the audit log of node b, of peers whose word was not taken.
    fn not_taken(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.audit).unwrap_or_default();
        let records = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        records.filter(|record| record["action"] == "attest").collect()
    }
}

/// The options of a node from which node b is called, over this transport.
fn calling(b: &Node, tls: &str, transport: &str) -> NodeOptions {
    let address = b.address;
    NodeOptions {
        tables: format!(
            "{tls}[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{address}\"]\n"
        ),
        ..NodeOptions::default()
    }
}

/// What the server's handler is told of the caller: `app user uid workload @ node identity`, or `unknown app @ …`.
fn who_calls(agent: &mut Agent) -> String {
    let asked = Metadatum {
        key: WHO.to_owned(),
        value: Vec::new(),
    };
    let done = agent.succeeds(Ask::Mirror(vec![asked]));
    let told = done
        .trailing
        .into_iter()
        .find(|pair| pair.key == WHO && !pair.value.is_empty());
    String::from_utf8(told.expect("the handler tells").value).unwrap()
}

fn is_denied(agent: &mut Agent) {
    let ticket = agent.begin(Ask::Mirror(Vec::new()));
    match agent.answer(ticket) {
        Answer::Failed(parts) => assert_eq!(parts.code, Code::PermissionDenied.number(), "{parts:?}"),
        other => panic!("not denied: {other:?}"),
    }
}

fn own_user() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_uid = format!(":{uid}:");
    let line = users.lines().find(|line| line.contains(&of_uid));
    let name = line.and_then(|line| line.split(':').next()).unwrap_or_default();
    format!("{name} {uid}")
}

fn a_believed_node_tells_which_of_its_apps_calls(transport: &str) {
    let mut callers = CallerWorld::new(&believing("\"spiffe://test/a\""), TILLS_ONLY, transport);
    let mut till = callers.agent("till");
    let workload = "spiffe://test/a";
    let expected = format!("till {} {workload} @ a spiffe://test/a", own_user());
    assert_eq!(who_calls(&mut till), expected);
    is_denied(&mut callers.agent("thief"));
    assert_eq!(callers.not_taken(), Vec::<Value>::new());

    // Another process of node b knows it, too: for connections that are open, and for those to come.
    callers.b.replace();
    assert_eq!(who_calls(&mut till), expected);
    is_denied(&mut callers.agent("thief"));
    assert_eq!(who_calls(&mut callers.agent("till")), expected);
    // And so does one of node a.
    callers.a.replace();
    assert_eq!(who_calls(&mut callers.agent("till")), expected);
}

#[test]
fn a_believed_node_tells_which_of_its_apps_calls_over_tcp() {
    watched(|| a_believed_node_tells_which_of_its_apps_calls("tcp"));
}

#[test]
fn a_believed_node_tells_which_of_its_apps_calls_over_datagrams() {
    watched(|| a_believed_node_tells_which_of_its_apps_calls("datagram"));
}

#[test]
fn the_word_of_a_node_that_is_not_listed_is_not_taken_and_that_is_said_once() {
    watched(|| {
        let mut callers = CallerWorld::new(&believing("\"spiffe://test/other\""), "", "tcp");
        for _ in 0..3 {
            let mut agent = callers.agent("till");
            assert_eq!(who_calls(&mut agent), "unknown app @  spiffe://test/a");
        }
        eventually("the audit log has it", WAIT_MAX, || {
            !callers.not_taken().is_empty()
        });
        // What comes later is behind it in the log.
        let records = callers.not_taken();
        assert_eq!(records.len(), 1, "{records:?}");
        let record = &records[0];
        assert_eq!(
            (&record["peer"], &record["app"], &record["peer_node"]),
            (&"spiffe://test/a".into(), &"till".into(), &"a".into())
        );
        assert_eq!(
            (&record["rule"], &record["outcome"]),
            (&"tls.attesting_peers".into(), &"IGNORED".into())
        );
        let log = callers.b.program.log();
        assert_eq!(log.matches("a peer's word of its apps was not taken").count(), 1);
    });
}

#[test]
fn a_rule_by_app_holds_for_nobody_whose_node_is_not_believed() {
    watched(|| {
        let mut callers = CallerWorld::new("", TILLS_ONLY, "tcp");
        is_denied(&mut callers.agent("till"));
    });
}

#[test]
fn the_app_that_calls_is_in_lines_of_the_access_log_and_in_keys_of_limits() {
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("calls.log");
        let tables = format!(
            "[[policy]]\nname = \"log\"\nkind = \"access-log\"\nside = \"server\"\n\
             [policy.config]\npath = \"{}\"\nflush_interval_ms = 2\n\
             [[policy]]\nname = \"limit\"\nkind = \"rate-limit\"\nside = \"server\"\nmethods = [\"Mirror\"]\n\
             [policy.config]\nper = [\"peer.app\"]\nrequests_per_second = 0.001\nburst = 2\n",
            log.display()
        );
        let mut callers = CallerWorld::new(&believing("\"spiffe://test/a\""), &tables, "tcp");
        let mirror = || Ask::Mirror(Vec::new());
        let is_limited = |agent: &mut Agent| {
            let refused = agent.fails(mirror());
            assert_eq!(refused.code, Code::ResourceExhausted, "{refused:?}");
        };
        let mut till = callers.agent("till");
        till.succeeds(mirror());
        till.succeeds(mirror());
        is_limited(&mut till);
        // An app has one bucket for all its connections, and another app of that node has its own.
        is_limited(&mut callers.agent("till"));
        callers.agent("thief").succeeds(mirror());

        let user = own_user();
        let (user, _) = user.split_once(' ').unwrap();
        let is_logged = |app: &str| {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let lines = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let told = ["peer_app", "peer_node", "peer_user", "peer_workload"];
            let expected = [app, "a", user, "spiffe://test/a"];
            lines
                .filter(|line| told.map(|key| line[key].as_str()) == expected.map(Some))
                .count()
        };
        eventually("the log has the calls of both", WAIT_MAX, || {
            is_logged("till") >= 2 && is_logged("thief") >= 1
        });
    });
}

#[test]
fn on_the_same_node_the_attachment_tells_who_calls() {
    watched(|| {
        let mut world = World::new(ROLE);
        let node = world.node(
            "a",
            &NodeOptions {
                tables: TILLS_ONLY.to_owned(),
                ..NodeOptions::default()
            },
        );
        let _server = world.server(&node);
        let mut agent = |name: &str| {
            let mut agent = world.agent_named(&node, name, Executor::TokioCurrent);
            assert_eq!(agent.first_answer(), Answer::Ready);
            agent
        };
        assert_eq!(
            who_calls(&mut agent("till")),
            format!("till {}  @ a ", own_user())
        );
        is_denied(&mut agent("thief"));
    });
}

#[test]
fn an_engine_in_c_on_the_servers_node_is_told_what_the_handler_is() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let library = build::c_engine("crates/core/plugin/tests/caller_engine.c", &[]);
        let mut callers = CallerWorld::new(&believing("\"spiffe://test/a\""), "", "tcp");
        let mut till = callers.agent("till");
        let told = who_calls(&mut till);
        assert!(told.starts_with("till "), "{told}");
        let operate = |arguments: &[&str]| callers.b.operate(arguments);
        operate(&["engine", "load", &library.path().display().to_string()]);
        operate(&["policy", "attach", "--kind", "caller", "--side", "server"]);
        let refused = till.fails(Ask::Mirror(Vec::new()));
        assert_eq!(refused.code, Code::PermissionDenied, "{refused:?}");
        assert_eq!(refused.message, told);
    });
}
