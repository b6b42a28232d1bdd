//! Good apps beside an attack, and what the service uses meanwhile.

use std::time::{Duration, Instant};

use provost_e2e::{Node, NodeOptions, Server, Usage, World};
use provost_hostile::peak::PeakWatch;
use provost_hostile::victim::{Outcome, Victim};

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

/// Good apps on a node, whose calls are judged beside an attack.
pub(crate) struct GoodPair {
    _server: Server,
    victim: Victim,
    beside_loops: Outcome,
    begin: Instant,
}

impl GoodPair {
    pub(crate) fn start(world: &mut World, node: &Node) -> GoodPair {
        let server = world.server(node);
        let mut victim = Victim::start(ROLE.as_ref(), node).expect("a client");
        let beside_loops = victim.beside_loops(2).expect("an outcome");
        GoodPair {
            _server: server,
            victim,
            beside_loops,
            begin: Instant::now(),
        }
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
