//! Good apps beside an attack, and what the service uses meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_e2e::{Node, NodeOptions, Server, Usage, World};
use provost_hostile::attacks::Attack;
use provost_hostile::peak::PeakWatch;
use provost_hostile::random::random_of;
use provost_hostile::raw::RawApp;
use provost_hostile::report::Report;
use provost_hostile::scene::{Scene, Stop};
use provost_hostile::schema::{TARGETS, TargetSchema};
use provost_hostile::victim::{Outcome, Victim};

/// The service of good apps.
pub(crate) const GOOD_SERVICE: &str = "probe.Probe";
const ROLE: &str = env!("CARGO_BIN_EXE_provost-hostile");
/// How long the service may take to answer those who do nothing wrong: long, as machines are slow and busy.
pub(crate) const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
/// The handshakes that a node has under way at once: `limits.handshakes`, where nothing else is configured.
pub(crate) const HANDSHAKES: usize = 64;
/// Peers that have come and said nothing yet.
const SILENT_MAX: usize = 512;
/// How long an attack goes on at least, and the calls of good apps are judged beside it.
const ATTACKED_FOR: Duration = Duration::from_secs(3);

pub(crate) fn node(tables: &str) -> (World, Node) {
    node_within("", tables)
}

/// A node with these lines in its `[limits]`.
pub(crate) fn node_within(limits: &str, tables: &str) -> (World, Node) {
    node_of(&NodeOptions {
        limits: limits.to_owned(),
        tables: tables.to_owned(),
        ..NodeOptions::default()
    })
}

pub(crate) fn node_of(options: &NodeOptions) -> (World, Node) {
    let mut world = World::new(ROLE);
    let node = world.node("a", options);
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

/// Another app can attach, bring its schema and offer a service.
pub(crate) fn newcomer_offers_a_service(node: &Node, schema: &TargetSchema) {
    let begin = Instant::now();
    let mut app = RawApp::attach(&node.socket, "honest").expect("it attaches");
    app.bind(schema, TARGETS[0]).expect("it binds");
    assert!(begin.elapsed() < ANSWERED_WITHIN, "{:?}", begin.elapsed());
}

/// Where apps attack a node.
pub(crate) fn scene_at(node: &Node) -> Scene {
    Scene {
        socket: node.socket.clone(),
        schema: Arc::new(TargetSchema::load().expect("the schema")),
        report: Report::default(),
        stop: Stop::default(),
    }
}

/// What is mapped for apps is as large as they make it, and is not judged.
pub(crate) const APPS_DECIDE: u64 = u64::MAX;

/// What a node may use more at its peak than before an attack.
#[derive(Clone, Copy)]
pub(crate) struct PeakBounds {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) resident_bytes: u64,
    /// Of mapped memory that is shared with apps: heaps, rings and receive segments, of which only what is used is resident.
    pub(crate) shared_bytes: u64,
}

impl PeakBounds {
    /// For attacks that get nothing but answers. The apps that come meanwhile are in it.
    pub(crate) const FEW: PeakBounds = PeakBounds {
        descriptors: 80,
        threads: 16,
        resident_bytes: 64 << 20,
        shared_bytes: APPS_DECIDE,
    };

    /// For peers that get no further than their handshakes: what is read of their openings, a thread for each handshake that
    /// there may be (a pool that has no more, also when handshakes have lost their places and not noticed), and a few for
    /// the apps that come meanwhile.
    pub(crate) const STRANGERS: PeakBounds = PeakBounds {
        descriptors: SILENT_MAX + 4 * HANDSHAKES + 64,
        threads: HANDSHAKES + 8,
        resident_bytes: 100 << 20,
        shared_bytes: APPS_DECIDE,
    };

    fn judge(&self, before: Usage, peak: Usage) {
        println!("{before:?} became {peak:?}");
        assert!(
            peak.descriptors <= before.descriptors + self.descriptors
                && peak.threads <= before.threads + self.threads
                && peak.resident_bytes <= before.resident_bytes + self.resident_bytes
                && peak.shared_bytes <= before.shared_bytes.saturating_add(self.shared_bytes),
            "{before:?} became {peak:?}"
        );
    }
}

/// An attack, judged from its begin to its end: by the most that the nodes use meanwhile, and by the calls of good apps.
pub(crate) struct JudgedAttack {
    pair: GoodPair,
    nodes: Vec<(Usage, PeakWatch, PeakBounds)>,
    begin: Instant,
}

impl JudgedAttack {
    /// The attack begins after this.
    pub(crate) fn begin<const NODES: usize>(
        mut pair: GoodPair,
        nodes: [(&Node, PeakBounds); NODES],
    ) -> JudgedAttack {
        let watched = nodes.map(|(node, bounds)| {
            let (before, peak) = watch(node);
            (before, peak, bounds)
        });
        // What came before it is not judged.
        pair.victim.end_phase().expect("an outcome");
        JudgedAttack {
            pair,
            nodes: watched.into(),
            begin: Instant::now(),
        }
    }

    /// Whether the attack has to go on.
    pub(crate) fn goes_on(&self) -> bool {
        self.begin.elapsed() < ATTACKED_FOR
    }

    /// Ends what is judged, once the attack has gone on for long enough. The attackers still attack when this is called.
    pub(crate) fn end(mut self) -> AttackOutcome {
        std::thread::sleep(ATTACKED_FOR.saturating_sub(self.begin.elapsed()));
        let calls = self.pair.victim.end_phase().expect("an outcome");
        let nodes = self.nodes.into_iter();
        AttackOutcome {
            calls,
            pair: self.pair,
            nodes: nodes
                .map(|(before, peak, bounds)| (before, peak.stop(), bounds))
                .collect(),
        }
    }
}

/// Has apps attack a node on a thread each, and does something else meanwhile. What is found is printed, and must be nothing.
pub(crate) fn attacked_by(
    judged: JudgedAttack,
    scene: &Scene,
    attacks: &[Attack],
    meanwhile: impl FnOnce(),
) -> AttackOutcome {
    let outcome = std::thread::scope(|scope| {
        let _ends = EndOfAttack(&scene.stop);
        for (number, attack) in (0..).zip(attacks) {
            scope.spawn(move || attack(scene, &mut random_of(1, number)));
        }
        meanwhile();
        judged.end()
    });
    println!("{}", scene.report);
    let (findings, more) = scene.report.findings();
    assert!(findings.is_empty(), "{findings:#?} and {more} more");
    outcome
}

/// Ends an attack when it is dropped, also by a test that fails.
struct EndOfAttack<'a>(&'a Stop);

impl Drop for EndOfAttack<'_> {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// What became of good apps and of nodes beside an attack.
#[must_use]
pub(crate) struct AttackOutcome {
    calls: Outcome,
    pair: GoodPair,
    nodes: Vec<(Usage, Usage, PeakBounds)>,
}

impl AttackOutcome {
    /// No call failed, none was much slower than beside loops, and the nodes used no more than they may. The attack is over.
    pub(crate) fn judge(self) {
        self.judge_by(|victim, loops| victim.beside_loops(loops).expect("an outcome"));
    }

    /// The same; calls that were slow are compared with what this says of them without the attack, beside so many loops.
    pub(crate) fn judge_by(self, without_attack: impl FnOnce(&mut Victim, usize) -> Outcome) {
        let AttackOutcome {
            calls,
            mut pair,
            nodes,
        } = self;
        println!(
            "{calls:?} beside the attack, {:?} beside loops",
            pair.beside_loops
        );
        for (before, peak, bounds) in nodes {
            bounds.judge(before, peak);
        }
        assert_eq!(pair.complaint_by(&calls, without_attack), None);
    }
}

/// Good apps, whose calls are judged beside an attack.
pub(crate) struct GoodPair {
    _server: Server,
    victim: Victim,
    loops: usize,
    beside_loops: Outcome,
}

impl GoodPair {
    pub(crate) fn start(world: &mut World, node: &Node) -> GoodPair {
        GoodPair::across(world, node, node, 2)
    }

    /// What became of its calls since it was asked last.
    pub(crate) fn end_phase(&mut self) -> Outcome {
        self.victim.end_phase().expect("an outcome")
    }

    /// What is wrong with calls that were made beside an attack.
    pub(crate) fn complaint(&mut self, calls: &Outcome) -> Option<String> {
        self.complaint_by(calls, |victim, loops| {
            victim.beside_loops(loops).expect("an outcome")
        })
    }

    /// The same; if they were slow, what this says of calls without the attack decides, too: the machine may have got more to do.
    fn complaint_by(
        &mut self,
        calls: &Outcome,
        without_attack: impl FnOnce(&mut Victim, usize) -> Outcome,
    ) -> Option<String> {
        calls.complaint(&self.beside_loops)?;
        let again = without_attack(&mut self.victim, self.loops);
        println!("{again:?} beside loops after the attack");
        self.beside_loops.p99_us = self.beside_loops.p99_us.max(again.p99_us);
        calls.complaint(&self.beside_loops)
    }

    /// With its client on one node and its server on another, to be compared with what it is beside so many loops.
    pub(crate) fn across(world: &mut World, client: &Node, server: &Node, loops: usize) -> GoodPair {
        let server = world.server(server);
        let mut victim = Victim::start(ROLE.as_ref(), client).expect("a client");
        // Long enough for nodes to have what calls make them keep: what an attack takes is counted from there.
        let beside_loops = victim.beside_loops(loops).expect("an outcome");
        GoodPair {
            _server: server,
            victim,
            loops,
            beside_loops,
        }
    }
}
