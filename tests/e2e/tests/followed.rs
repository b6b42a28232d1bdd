//! The log of a node whose service is replaced: one connection can be followed by its number from the request for it, in one
//! process, to its end, in another.

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// What a node has logged of one connection, on its events or the spans around them.
fn of_connection(node: &Node, id: u64) -> Vec<String> {
    let log = node.program.log();
    let lines = log.lines().filter(|line| field(line, "connection") == Some(id));
    lines.map(str::to_owned).collect()
}

/// The last number of this name in a line: that of the event, or of the nearest span around it.
fn field(line: &str, name: &str) -> Option<u64> {
    let words = line.split([' ', '{', '}']);
    let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    values.next_back()?.parse().ok()
}

/// The connection of the first line with this message, which a node may write only after its peer has been answered.
fn first_connection(node: &Node, message: &str) -> u64 {
    node.program.wait_for_log(message);
    let log = node.program.log();
    let line = log.lines().find(|line| line.contains(message));
    let line = line.expect("a line that was waited for");
    field(line, "connection").unwrap_or_else(|| panic!("no connection in {line}"))
}

/// Waits for the last of these messages of a connection, and checks that each came after the one before, and nothing worse
/// than a notice.
fn assert_followed(node: &Node, id: u64, expected: &[&str]) -> Vec<String> {
    let mut lines = Vec::new();
    eventually("the log tells of the connection's end", WAIT_MAX, || {
        lines = of_connection(node, id);
        let last = expected.last().expect("messages");
        lines.iter().any(|line| line.contains(last))
    });
    let mut rest = lines.iter();
    for message in expected {
        assert!(
            rest.any(|line| line.contains(message)),
            "\"{message}\" is missing, or comes too early: {lines:#?}"
        );
    }
    let is_bad = |line: &&String| line.contains(" WARN ") || line.contains(" ERROR ");
    assert_eq!(lines.iter().find(is_bad), None);
    lines
}

#[test]
fn a_connection_is_followed_through_a_hot_restart_of_either_node() {
    watched(|| {
        let mut world = World::new(ROLE);
        let mut b = world.node("b", &NodeOptions::default());
        let options = NodeOptions {
            peer: Some(b.address),
            ..NodeOptions::default()
        };
        let mut a = world.node("a", &options);
        let _server = world.server(&b);
        let mut agent = world.agent(&a);
        let id = first_connection(&a, "connection opened");
        let accepted = first_connection(&b, "connection opened");
        agent.calls_well();
        a.replace();
        b.replace();
        agent.calls_well();
        drop(agent);
        let lines = assert_followed(
            &a,
            id,
            &[
                "connection requested",
                "agreed with a peer",
                "connection opened",
                "connection restored",
                "connection closed",
            ],
        );
        // The app is beside it in both processes, on whatever thread.
        let app = field(&lines[0], "app").expect("the app that asked");
        assert!(
            lines.iter().all(|line| field(line, "app") == Some(app)),
            "{lines:#?}"
        );
        let lines = assert_followed(
            &b,
            accepted,
            &[
                "a peer has come",
                "agreed with a peer",
                "connection opened",
                "connection restored",
                "connection closed",
            ],
        );
        // The server's app had bound the service that the connection is to.
        let app = lines.iter().find_map(|line| field(line, "app")).expect("an app");
        let log = b.program.log();
        let bound = log.lines().find(|line| line.contains(" bound "));
        assert_eq!(bound.and_then(|line| field(line, "app")), Some(app), "{log}");
    });
}
