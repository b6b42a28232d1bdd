//! A hot restart carries no app that leaves no room for it: that app is detached, alone, and the node goes on.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use prost::Message;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::peer::{Claim, Handshake};
use provost_e2e::script::{Ask, Hold};
use provost_e2e::{Node, NodeOptions, World, eventually, server, watched};
use provost_shm::{Memfd, PacketSocket, Seals};
use provost_wire::control::{AddSchema, Attach, Bind, CONTROL_VERSION, Reply, Request, reply, request};
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, HEADER_BYTES, frame_kind};
use provost_wire::limits::{CHUNK_BYTES_MAX, SEND_WINDOW};
use zerocopy::IntoBytes;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const SEND_HEAP_BYTES: u64 = 4 << 20;
/// Room for one segment of a receive heap.
const ONE_SEGMENT: u64 = 1 << 20;

/// An app that offers `probe.Probe` and reads nothing of what comes, in a window of one segment.
struct NarrowApp {
    socket: PacketSocket,
    last_id: u64,
}

impl NarrowApp {
    fn serving(node: &Node) -> NarrowApp {
        let mut app = NarrowApp {
            socket: PacketSocket::connect(&node.socket).unwrap(),
            last_id: 0,
        };
        let heap = Memfd::create("narrow-heap", SEND_HEAP_BYTES).unwrap();
        heap.seal(Seals::SHRINK | Seals::GROW | Seals::SEAL).unwrap();
        let attach = Attach {
            version: CONTROL_VERSION,
            name: "narrow".to_owned(),
            receive_window: SEND_WINDOW + (SEND_HEAP_BYTES / 8) as u32,
            receive_window_bytes: ONE_SEGMENT,
            takes_regions: true,
            ..Attach::default()
        };
        let attached = app.ask(request::Body::Attach(attach), &heap);
        assert!(matches!(attached, reply::Body::Attached(_)), "{attached:?}");
        let descriptor = server::descriptor();
        let hash = descriptor.schema_hash.to_vec();
        let schema = Memfd::of_bytes("schema", descriptor.file_descriptor_set).unwrap();
        app.ask(
            request::Body::AddSchema(AddSchema { hash: hash.clone() }),
            &schema,
        );
        let bind = Bind {
            service: descriptor.name.to_owned(),
            schema_hash: hash,
            calls_in_flight_max: 0,
        };
        let bound = app.ask(request::Body::Bind(bind), &heap);
        assert!(matches!(bound, reply::Body::Done(_)), "{bound:?}");
        app
    }

    fn ask(&mut self, body: request::Body, memory: &Memfd) -> reply::Body {
        self.last_id += 1;
        let request = Request {
            id: self.last_id,
            body: Some(body),
        };
        self.socket
            .send(&request.encode_to_vec(), &[memory.as_fd()])
            .unwrap();
        let end = Instant::now() + WAIT_MAX;
        while Instant::now() < end {
            match self.receive() {
                Some(Some(reply)) if reply.id == self.last_id => return reply.body.unwrap(),
                Some(None) => panic!("the service hung up"),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        panic!("the service does not answer");
    }

    /// The next packet, if there is one: none within when the service has hung up.
    fn receive(&self) -> Option<Option<Reply>> {
        match self.socket.receive(64 << 10) {
            Ok(Some(packet)) => Some(Some(Reply::decode(&packet.bytes[..]).unwrap())),
            Ok(None) => Some(None),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(_) => Some(None),
        }
    }

    /// Whether the service says that there is a segment now, which it does when the first message comes.
    fn has_segment(&self) -> bool {
        let said = self.receive().flatten().and_then(|reply| reply.body);
        matches!(said, Some(reply::Body::SegmentAdded(_)))
    }

    /// Whether the service has hung up.
    fn is_detached(&self) -> bool {
        while let Some(packet) = self.receive() {
            if packet.is_none() {
                return true;
            }
        }
        false
    }
}

/// Begins a call whose message comes to the node in part, and waits until it is there.
fn send_in_part(node: &Node) -> std::net::TcpStream {
    let Handshake::Open(mut stream) = Claim::honest(server::descriptor()).shake_hands(node.address) else {
        panic!("no connection to the node");
    };
    let begin = FrameHeader {
        body_bytes: CHUNK_BYTES_MAX.into(),
        kind: frame_kind::STEP,
        parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
        call: 1.into(),
        message_bytes: (2 * CHUNK_BYTES_MAX).into(),
        ..FrameHeader::default()
    };
    let ping = FrameHeader {
        kind: frame_kind::PING,
        ..FrameHeader::default()
    };
    let chunk = vec![0; CHUNK_BYTES_MAX as usize];
    stream
        .write_all(&[begin.as_bytes(), &chunk, ping.as_bytes()].concat())
        .unwrap();
    let mut pong = [0; HEADER_BYTES];
    stream.read_exact(&mut pong).unwrap();
    assert_eq!(pong[4], frame_kind::PONG, "{pong:?}");
    stream
}

#[test]
fn an_app_without_room_for_what_comes_in_is_detached_alone() {
    watched(|| {
        let mut world = World::new(ROLE);
        let c = world.node("c", &NodeOptions::default());
        let _server = world.server(&c);
        // Apps of node b call node c, whatever else is bound on node b.
        let mut b = world.node(
            "b",
            &NodeOptions {
                peer: Some(c.address),
                ..NodeOptions::default()
            },
        );
        let mut honest = world.agent(&b);
        let narrow = NarrowApp::serving(&b);

        // A message that is whole, and that the app keeps; and one that has come in part.
        let a = world.node(
            "a",
            &NodeOptions {
                peer: Some(b.address),
                ..NodeOptions::default()
            },
        );
        let mut caller = world.agent(&a);
        let held = caller.begin(Ask::Hold(Hold {
            key: "held".to_owned(),
            ..Hold::default()
        }));
        eventually("the app has a message", WAIT_MAX, || narrow.has_segment());
        let _stream = send_in_part(&b);

        b.replace();
        eventually("the app is detached", WAIT_MAX, || narrow.is_detached());
        b.program
            .wait_for_log("detaching an app that cannot be gone on with");
        let log = b.program.log();
        assert_eq!(
            log.matches("detaching an app that cannot be gone on with")
                .count(),
            1,
            "{log}"
        );
        // Its callers are told, and everybody else goes on.
        let answer = caller.answer(held);
        assert!(matches!(answer, provost_e2e::Answer::Failed(_)), "{answer:?}");
        honest.calls_well();
        world.agent(&b).calls_well();
    });
}
