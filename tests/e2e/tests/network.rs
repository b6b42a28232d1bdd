//! Peers that are gone, silent, torn, of another version, or no peers at all.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use provost::Code;
use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::peer::{self, Claim, Handshake};
use provost_e2e::script::{Answer, Ask, Echo, Unconnected};
use provost_e2e::{NodeOptions, Setting, World, eventually, watched};
use provost_wire::frame::{FrameHeader, HEADER_BYTES, MAGIC, PROTOCOL_VERSION, frame_kind};
use rustix::process::Signal;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// Timeouts so short that a test can wait for them.
fn impatient() -> NodeOptions {
    NodeOptions {
        tables: "[timeouts]\n\
                 connect_ms = 1000\n\
                 handshake_ms = 500\n\
                 keepalive_interval_ms = 300\n\
                 keepalive_timeout_ms = 300\n"
            .to_owned(),
        ..NodeOptions::default()
    }
}

fn setting() -> Setting {
    Setting::with(ROLE, &impatient(), &impatient())
}

fn claim() -> Claim {
    Claim::honest(provost_e2e::server::descriptor())
}

fn open(setting: &Setting) -> std::net::TcpStream {
    match claim().shake_hands(setting.b.address) {
        Handshake::Open(stream) => stream,
        refused => panic!("{refused:?}"),
    }
}

fn begun(setting: &mut Setting) {
    eventually("the handler has begun", WAIT_MAX, || {
        setting
            .agent
            .succeeds(Ask::Counts {
                key: "hold".to_owned(),
            })
            .begun
            > 0
    });
}

/// What the server's service holds once it has served: each app's receive heap begins with the first call.
fn held(setting: &mut Setting) -> usize {
    setting.agent.calls_well();
    setting.others_are_served();
    setting.b.program.usage().descriptors
}

/// The services serve as before and hold what they held.
fn all_is_well(setting: &mut Setting, descriptors: usize) {
    setting.agent.calls_well();
    setting.others_are_served();
    eventually("the connection's descriptor is closed", WAIT_MAX, || {
        setting.b.program.usage().descriptors <= descriptors
    });
    assert!(setting.a.program.is_running() && setting.b.program.is_running());
}

#[test]
fn a_stopped_peer_is_found_out_and_calls_fail() {
    watched(|| {
        let mut setting = setting();
        let ticket = setting.agent.begin(Ask::endless_hold());
        begun(&mut setting);
        setting.b.program.signal(Signal::STOP);
        let failure = setting.agent.failure(ticket);
        assert_eq!(failure.code, Code::Unavailable, "{failure:?}");
        setting.b.program.signal(Signal::CONT);
        setting.agent.succeeds(Ask::Echo(Echo {
            unconnected: Unconnected::Wait,
            timeout_ms: Some(20_000),
            ..Echo::default()
        }));
        setting.others_are_served();
    });
}

#[test]
fn a_stopped_client_node_is_found_out_and_handlers_are_cancelled() {
    watched(|| {
        let mut setting = setting();
        let c = setting.third_node();
        let mut witness = setting.world.agent(&c);
        setting.agent.begin(Ask::endless_hold());
        begun(&mut setting);
        setting.a.program.signal(Signal::STOP);
        eventually("the handler was cancelled", WAIT_MAX, || {
            witness
                .succeeds(Ask::Counts {
                    key: "hold".to_owned(),
                })
                .cancelled
                > 0
        });
        setting.a.program.signal(Signal::CONT);
    });
}

#[test]
fn a_peer_that_shakes_hands_and_falls_silent() {
    watched(|| {
        let mut setting = setting();
        let before = held(&mut setting);
        let mut silent = open(&setting);
        setting.agent.calls_well();
        // It is asked whether it is there, and cut off when it does not say so.
        let said = peer::until_hung_up(&mut silent);
        assert!(
            said.len() >= HEADER_BYTES && said[4] == frame_kind::PING,
            "{said:02x?}"
        );
        drop(silent);
        all_is_well(&mut setting, before);
    });
}

#[test]
fn a_peer_that_connects_and_says_nothing() {
    watched(|| {
        let mut setting = setting();
        let before = held(&mut setting);
        let mut silent = peer::connect(setting.b.address);
        peer::until_hung_up(&mut silent);
        drop(silent);
        all_is_well(&mut setting, before);
    });
}

#[test]
fn a_service_that_accepts_and_says_nothing() {
    watched(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut world = World::new(ROLE);
        let a = world.node(
            "a",
            &NodeOptions {
                peer: Some(listener.local_addr().unwrap()),
                ..impatient()
            },
        );
        let mut agent = world.starting_agent(&a, Executor::TokioCurrent);
        match agent.first_answer() {
            Answer::Failed(parts) => {
                let refused = [Code::Unavailable.number(), Code::DeadlineExceeded.number()];
                assert!(refused.contains(&parts.code), "{parts:?}");
            }
            other => panic!("{other:?}"),
        }
    });
}

/// Writes this to node b, which hangs up; nobody else notices.
fn is_cut_off(bytes: Vec<u8>, begin: fn(&Setting) -> std::net::TcpStream) {
    watched(move || {
        let mut setting = setting();
        let before = held(&mut setting);
        let mut stream = begin(&setting);
        // The node may hang up before it has read everything.
        let _ = stream.write_all(&bytes);
        peer::until_hung_up(&mut stream);
        drop(stream);
        all_is_well(&mut setting, before);
    });
}

fn stranger(setting: &Setting) -> std::net::TcpStream {
    peer::connect(setting.b.address)
}

fn header(kind: u8) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[4] = kind;
    header
}

#[test]
fn garbage_on_the_port() {
    is_cut_off(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n".to_vec(), stranger);
    is_cut_off(
        (0..100_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect(),
        stranger,
    );
}

#[test]
fn another_version() {
    let mut preamble = MAGIC.to_vec();
    preamble.extend_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
    preamble.extend_from_slice(&[0, 0]);
    is_cut_off(preamble, stranger);
}

#[test]
fn garbage_after_the_handshake() {
    is_cut_off(
        (0..100_000_u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect(),
        open,
    );
}

#[test]
fn frames_that_cannot_be() {
    is_cut_off(header(200).to_vec(), open);
    let mut endless = header(frame_kind::STEP);
    endless[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    is_cut_off(endless.to_vec(), open);
    let mut chunk_of_nothing = header(frame_kind::CHUNK);
    chunk_of_nothing[..4].copy_from_slice(&8_u32.to_le_bytes());
    chunk_of_nothing[8..16].copy_from_slice(&7_u64.to_le_bytes());
    is_cut_off([&chunk_of_nothing[..], &[0; 8]].concat(), open);
}

#[test]
fn torn_frames() {
    watched(|| {
        let mut setting = setting();
        let before = held(&mut setting);
        for torn_at in [1, HEADER_BYTES - 1, HEADER_BYTES + 3] {
            let mut stream = open(&setting);
            let mut step = header(frame_kind::STEP).to_vec();
            step[..4].copy_from_slice(&100_u32.to_le_bytes());
            step[5] = 13; // BEGIN, MESSAGE, END.
            step[8] = 1;
            step[20..24].copy_from_slice(&100_u32.to_le_bytes());
            step.extend_from_slice(&[0; 100]);
            stream.write_all(&step[..torn_at]).unwrap();
        }
        all_is_well(&mut setting, before);
    });
}

#[test]
fn a_schema_that_lies() {
    watched(|| {
        let mut setting = setting();
        let before = held(&mut setting);
        let honest = claim();
        let mut other_hash = honest.clone();
        other_hash.schema_hash[0] ^= 1;
        let mut garbage = other_hash.clone();
        garbage.schema = vec![0xff; 10_000];
        let mut empty = other_hash.clone();
        empty.schema = Vec::new();
        let mut other_service = honest.clone();
        other_service.service = "probe.Nobody".to_owned();
        for lie in [other_hash, garbage, empty, other_service] {
            let answer = lie.shake_hands(setting.b.address);
            assert!(
                !matches!(answer, Handshake::Open(_)),
                "the node believes {}",
                lie.service
            );
        }
        all_is_well(&mut setting, before);
    });
}

#[test]
fn a_message_that_lies_about_its_layout() {
    watched(|| {
        let mut setting = setting();
        let mut stream = open(&setting);
        // An EchoMessage whose text claims to lie far outside of the message.
        let mut body = vec![0_u8; 64];
        body[..8].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0, 0]);
        let header = FrameHeader {
            body_bytes: 64.into(),
            kind: frame_kind::STEP,
            parts: provost_wire::descriptor::Parts(13),
            call: 1.into(),
            message_bytes: 64.into(),
            ..FrameHeader::default()
        };
        stream.write_all(zerocopy::IntoBytes::as_bytes(&header)).unwrap();
        stream.write_all(&body).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        setting.agent.calls_well();
        setting.others_are_served();
        assert!(setting.server.program.is_running() && setting.b.program.is_running());
    });
}
