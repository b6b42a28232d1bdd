//! Whoever reaches the port at which a node lets other nodes in: handshakes that do not end, floods of them, messages that are
//! announced and do not come, nonsense behind a good handshake, over TCP, within TLS and by datagrams. What counts is the most
//! that the service uses meanwhile, and that the calls of good apps between two nodes go on as beside loops that leave it alone.

#[path = "../../e2e/tests/authority/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod authority;
#[allow(dead_code, reason = "these tests use a part of it")]
mod beside;

use authority::Authority;
use beside::{
    GOOD_SERVICE, GoodPair, HANDSHAKES, JudgedAttack, PeakBounds, newcomer_is_served,
    newcomer_offers_a_service, nodes, nodes_within,
};
use provost_e2e::peer::Claim;
use provost_e2e::{Node, World};
use provost_hostile::remote::streams::{LARGE_SCHEMA_BYTES, NEARLY_ALL_BYTES};
use provost_hostile::remote::{
    DATAGRAMS, NEARLY_ALL, RemoteAttack, RemoteAttackers, RemoteScene, SCHEMA_BOMBS, UNWELCOME, WELCOMED,
};
use provost_hostile::report::Report;
use provost_hostile::scene::Stop;
use provost_hostile::schema::TargetSchema;
use provost_tls::{Purpose, TlsConfig, TlsHandshake};

/// What each handshake by datagrams may have: an end of the protocol of its own, with its socket and packets.
const DATAGRAM_HANDSHAKE_BYTES: u64 = 4 << 20;

/// What strangers may have a node use by datagrams.
const STRANGERS_BY_DATAGRAMS: PeakBounds = PeakBounds {
    resident_bytes: PeakBounds::STRANGERS.resident_bytes + HANDSHAKES as u64 * DATAGRAM_HANDSHAKE_BYTES,
    ..PeakBounds::STRANGERS
};

/// What peers may have a node use that announce messages: shared memory for what has come of them, and for the apps that come meanwhile.
const ANNOUNCING: PeakBounds = PeakBounds {
    shared_bytes: 64 << 20,
    ..PeakBounds::STRANGERS
};

/// What peers may have a node use with large schemas, of which few are read at once: each handshake keeps what has come of one, and one
/// that has lost its place to another does so until it has noticed.
const LARGE_SCHEMAS: PeakBounds = PeakBounds {
    resident_bytes: PeakBounds::STRANGERS.resident_bytes + HANDSHAKES as u64 * 2 * LARGE_SCHEMA_BYTES,
    ..PeakBounds::STRANGERS
};

fn claim() -> Claim {
    Claim::honest(provost_e2e::server::descriptor())
}

fn scene(target: &Node, opening: Vec<u8>) -> RemoteScene {
    RemoteScene {
        target: target.address,
        claim: claim(),
        opening,
        report: Report::default(),
        stop: Stop::default(),
    }
}

/// Attacks node b while good apps call from node a, and apps that come meanwhile to both are served.
fn survives(
    (mut world, a, b): (World, Node, Node),
    opening: Vec<u8>,
    attacks: &[(&'static str, RemoteAttack)],
    bounds: PeakBounds,
    has_happened: &[&str],
) {
    let pair = GoodPair::across(&mut world, &a, &b, attacks.len());
    let (scene, schema) = (scene(&b, opening), TargetSchema::load().expect("the schema"));
    let judged = JudgedAttack::begin(pair, [(&b, bounds)]);
    let attackers = RemoteAttackers::begin(&scene, attacks, 1);
    newcomer_is_served(&a);
    newcomer_offers_a_service(&b, &schema);
    let outcome = judged.end();
    attackers.end();
    println!("{}", scene.report);
    for what in has_happened {
        assert!(
            scene.report.counted(what) > 0,
            "nothing was tested: {what}\n{}",
            scene.report
        );
    }
    let (findings, _) = scene.report.findings();
    assert!(findings.is_empty(), "{findings:#?}");
    outcome.judge();
}

fn no_tables(_world: &World, _node: &str) -> String {
    String::new()
}

#[test]
fn handshakes_that_do_not_end_or_never_stop_coming_keep_nobody_out() {
    let begun = [
        "half-open: begun",
        "drip: begun",
        "flood: answered",
        "nonsense: said",
    ];
    let nodes = nodes("tcp", &[GOOD_SERVICE], no_tables);
    survives(
        nodes,
        claim().opening(),
        &UNWELCOME,
        PeakBounds::STRANGERS,
        &begun,
    );
}

#[test]
fn within_tls_they_keep_nobody_out_either() {
    let authority = Authority::new();
    let nodes = nodes("tcp", &[GOOD_SERVICE], |world, node| {
        authority.vouch_for(node, world.directory())
    });
    let file = |kind: &str| nodes.0.directory().join(format!("a-{kind}.pem"));
    let config = TlsConfig {
        ca: file("ca"),
        cert: file("cert"),
        key: file("key"),
        crls: Vec::new(),
    };
    let client = config.client().expect("a configuration");
    let handshake = TlsHandshake::client(&client, "127.0.0.1:1", Purpose::Records);
    let opening = handshake.map(|mut tls| tls.output());
    let opening = opening.expect("a ClientHello").expect("a ClientHello");
    let begun = [
        "half-open: begun",
        "drip: begun",
        "flood: answered",
        "nonsense: said",
    ];
    survives(nodes, opening, &UNWELCOME, PeakBounds::STRANGERS, &begun);
}

#[test]
fn peers_that_announce_much_and_send_little_or_nonsense_cost_little() {
    let happened = [
        "come-and-go: welcomed",
        "announce: messages begun",
        "garbage: welcomed",
    ];
    let nodes = nodes("tcp", &[GOOD_SERVICE], no_tables);
    survives(nodes, claim().opening(), &WELCOMED, ANNOUNCING, &happened);
}

/// A heap of four of the largest messages, as by default, and two peers whose connections each have as much as two in part.
#[test]
fn peers_that_send_nearly_all_of_the_largest_messages_keep_nobody_out() {
    let limits = format!(
        "message_bytes = {NEARLY_ALL_BYTES}\nreceive_heap_bytes = {}\n",
        4 * NEARLY_ALL_BYTES
    );
    survives(
        nodes_within(&limits, "tcp", &[GOOD_SERVICE], no_tables),
        claim().opening(),
        &NEARLY_ALL,
        ANNOUNCING,
        &["nearly all: sent"],
    );
}

#[test]
fn peers_with_large_schemas_keep_nobody_out() {
    survives(
        nodes("tcp", &[GOOD_SERVICE], no_tables),
        claim().opening(),
        &SCHEMA_BOMBS,
        LARGE_SCHEMAS,
        &["schema bombs: read and refused"],
    );
}

#[test]
fn sessions_of_datagrams_that_nobody_uses_copies_and_noise_keep_nobody_out() {
    let happened = ["opens: accepted", "copied-opens: sent", "noise: packets"];
    let nodes = nodes("datagram", &[GOOD_SERVICE], no_tables);
    survives(
        nodes,
        claim().opening(),
        &DATAGRAMS,
        STRANGERS_BY_DATAGRAMS,
        &happened,
    );
}
