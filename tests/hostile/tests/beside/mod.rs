//! Good apps beside an attack, and what the service uses meanwhile.

use std::time::{Duration, Instant};

use provost_e2e::{Node, NodeOptions, Server, Usage, World};
use provost_hostile::peak::PeakWatch;
use provost_hostile::victim::{Outcome, Victim};

/// The service of good apps.
pub(crate) const GOOD_SERVICE: &str = "probe.Probe";
const ROLE: &str = env!("CARGO_BIN_EXE_provost-hostile");
/// How long the service may take to answer those who do nothing wrong: long, as machines are slow and busy.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// How long the calls of good apps are judged beside an attack, at least.
const JUDGED_MIN: Duration = Duration::from_secs(1);

pub(crate) fn node(tables: &str) -> (World, Node) {
    let mut world = World::new(ROLE);
    let options = NodeOptions {
        tables: tables.to_owned(),
        ..NodeOptions::default()
    };
    let node = world.node("a", &options);
    (world, node)
}

pub(crate) fn watch(node: &Node) -> (Usage, PeakWatch) {
    let before = node.usage();
    (before, PeakWatch::start(node.process(), before))
}

/// Node a, from which these services are called by this transport on node b, which may be attacked from elsewhere.
pub(crate) fn nodes(
    transport: &str,
    services: &[&str],
    tables: impl Fn(&World, &str) -> String,
) -> (World, Node, Node) {
    nodes_within("", transport, services, tables)
}

/// The same, with these lines in the `[limits]` of both nodes.
pub(crate) fn nodes_within(
    limits: &str,
    transport: &str,
    services: &[&str],
    tables: impl Fn(&World, &str) -> String,
) -> (World, Node, Node) {
    let mut world = World::new(ROLE);
    let mut options = NodeOptions {
        limits: limits.to_owned(),
        tables: tables(&world, "b"),
        ..NodeOptions::default()
    };
    let mut b = world.node("b", &options);
    let address = b.address;
    if transport == "datagram" {
        // At the same port.
        let listener = format!("[[listener]]\ntransport = \"datagram\"\naddress = \"{address}\"\n");
        options.tables.push_str(&listener);
        b.reconfigure(&options);
        b.restart();
    }
    let route = |service: &&str| {
        format!(
            "[[route]]\nservice = \"{service}\"\ntransport = \"{transport}\"\nendpoints = [\"{address}\"]\n"
        )
    };
    let routes: String = services.iter().map(route).collect();
    let options = NodeOptions {
        limits: limits.to_owned(),
        tables: tables(&world, "a") + &routes,
        ..NodeOptions::default()
    };
    let a = world.node("a", &options);
    (world, a, b)
}

/// Another app on a node gets a connection.
pub(crate) fn newcomer_is_served(node: &Node) {
    let begin = Instant::now();
    let newcomer = Victim::start(ROLE.as_ref(), node).expect("it is connected");
    assert!(begin.elapsed() < ANSWERED_WITHIN, "{:?}", begin.elapsed());
    let outcome = newcomer.stop().expect("an outcome");
    assert_eq!((outcome.failed, outcome.corrupt), (0, 0), "{outcome:?}");
}

/// Good apps, whose calls are judged beside an attack.
pub(crate) struct GoodPair {
    _server: Server,
    victim: Victim,
    beside_loops: Outcome,
    begin: Instant,
}

impl GoodPair {
    pub(crate) fn start(world: &mut World, node: &Node) -> GoodPair {
        GoodPair::across(world, node, node, 2)
    }

    /// With its client on one node and its server on another, to be compared with what it is beside so many loops.
    pub(crate) fn across(world: &mut World, client: &Node, server: &Node, loops: usize) -> GoodPair {
        let server = world.server(server);
        let mut victim = Victim::start(ROLE.as_ref(), client).expect("a client");
        let beside_loops = victim.beside_loops(loops).expect("an outcome");
        GoodPair {
            _server: server,
            victim,
            beside_loops,
            begin: Instant::now(),
        }
    }

    /// Ends the attack: no call failed or came back changed.
    pub(crate) fn lost_nothing(mut self) {
        let outcome = self.victim.end_phase().expect("an outcome");
        println!("{outcome:?}");
        assert!(outcome.calls > 0, "{outcome:?}");
        assert_eq!((outcome.failed, outcome.corrupt), (0, 0), "{outcome:?}");
        self.victim.stop().expect("an outcome");
    }

    /// Ends the attack: no call failed, and none was much slower than beside loops.
    pub(crate) fn was_served(mut self) {
        std::thread::sleep(JUDGED_MIN.saturating_sub(self.begin.elapsed()));
        let outcome = self.victim.end_phase().expect("an outcome");
        println!(
            "{outcome:?} beside the attack, {:?} beside loops",
            self.beside_loops
        );
        assert_eq!(outcome.complaint(&self.beside_loops), None);
        self.victim.stop().expect("an outcome");
    }
}
