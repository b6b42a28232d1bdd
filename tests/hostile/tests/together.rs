//! Attackers who work together, and attackers who go on while the services that they attack are replaced.

#[allow(dead_code, reason = "these tests use a part of it")]
mod beside;

use std::time::Duration;

use beside::{
    ANSWERED_WITHIN, APPS_DECIDE, GOOD_SERVICE, GoodPair, JudgedAttack, PeakBounds, newcomer_is_served,
    nodes, nodes_within, scene_at,
};
use provost_e2e::peer::Claim;
use provost_e2e::{Node, World, eventually};
use provost_hostile::attacks::{Attack, control, guided, race, random, rings, shapes};
use provost_hostile::collusion;
use provost_hostile::random::random_of;
use provost_hostile::remote::{RemoteAttackers, RemoteScene, UNWELCOME, WELCOMED};
use provost_hostile::report::Report;
use provost_hostile::scene::{Scene, Stop};
use provost_hostile::schema::TARGETS;
use provost_hostile::server::{Manner, Post, serve};

fn no_tables(_world: &World, _node: &str) -> String {
    String::new()
}

fn found_nothing(report: &Report) {
    let (findings, more) = report.findings();
    assert!(findings.is_empty(), "{findings:#?} and {more} more");
}

#[test]
fn a_client_a_server_and_a_peer_that_collude_cost_their_shares() {
    const CLIENTS: u64 = 3;
    // The heaps are full by then.
    const FILLED_WITHIN: Duration = Duration::from_secs(6);
    // An app's receive heap, which all who send to it share. The attack fills those of the server and of the clients.
    const HEAP_BYTES: u64 = 32 << 20;
    // The largest message: of what an app has sent, the service has seen one in that app's own memory.
    const MESSAGE_BYTES: u64 = 8 << 20;
    // Windows, queues, schemas, stacks of threads, and what a runtime keeps of memory that was freed.
    const SLACK_BYTES: u64 = 32 << 20;
    let (mut world, a, b) = nodes_within(
        &format!("receive_heap_bytes = {HEAP_BYTES}\nmessage_bytes = {MESSAGE_BYTES}\n"),
        "tcp",
        &[GOOD_SERVICE, collusion::SERVICE],
        no_tables,
    );
    let pair = GoodPair::across(&mut world, &a, &b, 2);
    let at_a = scene_at(&a);
    let at_b = Scene {
        socket: b.socket.clone(),
        ..at_a.clone()
    };
    let bounds = |apps: u64| PeakBounds {
        descriptors: 160,
        threads: 16,
        resident_bytes: apps * (HEAP_BYTES + MESSAGE_BYTES) + SLACK_BYTES,
        shared_bytes: APPS_DECIDE,
    };
    let judged = JudgedAttack::begin(pair, [(&a, bounds(CLIENTS)), (&b, bounds(1))]);
    let outcome = std::thread::scope(|scope| {
        let (at_a, at_b, target) = (&at_a, &at_b, b.address);
        scope.spawn(move || collusion::server(at_b, &mut random_of(1, 0)));
        eventually("the colluding server is there", ANSWERED_WITHIN, || {
            at_a.report.counted("colluding server: attached") > 0
        });
        for client in 0..CLIENTS {
            scope.spawn(move || collusion::client(at_a, &mut random_of(1, 1 + client)));
        }
        scope.spawn(move || collusion::peer(at_b, target, &mut random_of(1, 100)));
        std::thread::sleep(FILLED_WITHIN);
        newcomer_is_served(&a);
        let outcome = judged.end();
        at_a.stop.set();
        outcome
    });
    println!("{}", at_a.report);
    for what in [
        "colluding client: requests",
        "colluding server: steps kept",
        "colluding server: responses",
        "colluding peer: rounds",
    ] {
        assert!(at_a.report.counted(what) > 0, "nothing was tested: {what}");
    }
    found_nothing(&at_a.report);
    outcome.judge();
}

/// Local apps and remote peers attack both nodes, each of which is replaced again and again meanwhile.
#[test]
fn services_are_replaced_under_attack_and_good_apps_lose_no_call() {
    // As many as the machine has threads for them at once, and more: fewer attackers run at any time.
    const LOOPS: usize = 4;
    let (mut world, mut a, mut b) = nodes("tcp", &[GOOD_SERVICE, TARGETS[0]], no_tables);
    let pair = GoodPair::across(&mut world, &a, &b, LOOPS);
    let at_a = scene_at(&a);
    let (sockets, report) = ([b.socket.clone(), a.socket.clone()], at_a.report.clone());
    let claim = Claim::honest(provost_e2e::server::descriptor());
    let remote = RemoteScene {
        target: b.address,
        opening: claim.opening(),
        claim,
        report: report.clone(),
        stop: Stop::default(),
    };
    let servers_stop = Stop::default();
    // Not by what the nodes use, whose processes change.
    let judged = JudgedAttack::begin(pair, []);
    let outcome = std::thread::scope(|scope| {
        for (number, (socket, service)) in (0..).zip(sockets.iter().zip(TARGETS)) {
            let (schema, report, stop) = (&at_a.schema, &report, &servers_stop);
            scope.spawn(move || {
                let post = Post {
                    socket,
                    schema,
                    manner: Manner::Honest,
                    service,
                    report,
                };
                serve(&post, random_of(1, 200 + number), stop);
            });
        }
        let local: [Attack; 6] = [
            control::run,
            guided::run,
            race::run,
            random::run,
            rings::run,
            shapes::run,
        ];
        let scene = &at_a;
        let apps: Vec<_> = (0..)
            .zip(local)
            .map(|(number, attack)| scope.spawn(move || attack(scene, &mut random_of(1, number))))
            .collect();
        let peers = RemoteAttackers::begin(&remote, &[&UNWELCOME[..], &WELCOMED].concat(), 1);
        replace_both(&mut a, &mut b);
        let outcome = judged.end();
        at_a.stop.set();
        peers.end();
        for app in apps {
            app.join().expect("an attacker");
        }
        servers_stop.set();
        outcome
    });
    println!("{report}");
    for node in [&a, &b] {
        let log = node.program.log();
        let left_out = log.lines().filter(|line| line.contains("cannot be gone on with"));
        left_out.for_each(|line| println!("{line}"));
    }
    for what in [
        "random: slots",
        "guided: attached",
        "control: answered",
        "flood: answered",
    ] {
        assert!(report.counted(what) > 0, "nothing was tested: {what}");
    }
    found_nothing(&report);
    newcomer_is_served(&a);
    // Replacements take time from calls as well, above all where the machine has much else to do.
    outcome.judge_by(|victim, loops| {
        let outcome = victim.beside_loops_during(loops, || replace_both(&mut a, &mut b));
        outcome.expect("an outcome")
    });
}

fn replace_both(a: &mut Node, b: &mut Node) {
    const REPLACEMENTS: usize = 3;
    const BETWEEN: Duration = Duration::from_millis(700);
    for _ in 0..REPLACEMENTS {
        std::thread::sleep(BETWEEN);
        println!("{:?}", a.replace());
        println!("{:?}", b.replace());
    }
    std::thread::sleep(BETWEEN);
}
