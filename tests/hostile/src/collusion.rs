//! A client, a server and a peer of one attacker, who work together to have two nodes keep what none of them will ever take:
//! large requests that are never answered, large responses that are never read, and messages that never come whole.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use provost_e2e::peer::{Claim, Handshake};
use provost_session::handshake::{Method, MethodKind};
use provost_wire::descriptor::{Completion, Parts, Submission};
use provost_wire::frame::{FrameHeader, frame_kind};
use provost_wire::limits::CHUNK_BYTES_MAX;
use zerocopy::IntoBytes;

use crate::attacks::shapes::offsets;
use crate::random::Random;
use crate::raw::{Gone, RawApp, window_offset};
use crate::remote::connect_from;
use crate::scene::{Client, MESSAGE_AT, Scene};
use crate::schema::{TAKE, TALK, TARGETS};

/// The service that the three agree on; it has to be routed from the client's node to the server's.
pub const SERVICE: &str = TARGETS[0];
/// Bytes of the blob of each message.
const BLOB_BYTES: u32 = 4 << 20;
/// Where it lies in a send heap, in bytes.
const BLOB_AT: u64 = 1 << 20;
/// Connections of the peer.
const PEER_CONNECTIONS: usize = 8;
/// The address of the peer.
const PEER_SOURCE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 200);
/// Between two looks of those who wait.
const PAUSE: Duration = Duration::from_millis(1);

/// Begins calls with large requests and streams with large responses, and never gives back what comes.
pub fn client(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("colluding client", &[SERVICE], random) {
        if let Err(gone) = call_for_nothing(scene, &mut client) {
            scene.report.ended("colluding client", &gone);
        }
    }
}

fn call_for_nothing(scene: &Scene, client: &mut Client) -> Result<(), Gone> {
    let root = write_message(scene, &client.app);
    let mut next = None;
    while !scene.stop.is_set() {
        let step = next.take().unwrap_or_else(|| request(client, root));
        if client.app.try_submit(&step)? {
            scene.report.count("colluding client: requests");
        } else {
            next = Some(step);
            std::thread::sleep(PAUSE);
        }
        client.app.completions()?;
        if client.app.is_detached() {
            return Err(Gone::Detached);
        }
    }
    Ok(())
}

/// Calls and streams in turn.
fn request(client: &mut Client, root: u32) -> Submission {
    if client.call.is_multiple_of(2) {
        client.unary(root)
    } else {
        client.begin(TALK)
    }
}

/// Takes calls, answers streams with more than their clients will read, and never gives back a block.
pub fn server(scene: &Scene, _random: &mut Random) {
    while !scene.stop.is_set() {
        if let Err(gone) = take_and_keep(scene) {
            scene.report.ended("colluding server", &gone);
        }
        std::thread::sleep(50 * PAUSE);
    }
}

fn take_and_keep(scene: &Scene) -> Result<(), Gone> {
    let mut app = RawApp::attach(&scene.socket, "colluding server")?;
    app.bind(&scene.schema, SERVICE)?;
    scene.report.count("colluding server: attached");
    let root = write_message(scene, &app);
    let mut streams: Vec<(u32, u64)> = Vec::new();
    let mut at = 0;
    while !scene.stop.is_set() {
        for step in app.completions()? {
            scene.report.count("colluding server: steps kept");
            if is_stream(&step) {
                streams.push((step.connection, step.call));
            }
        }
        if let Some((connection, call)) = streams.get(at) {
            let mut message = RawApp::step(*connection, *call, Parts::MESSAGE);
            message.root = root;
            if app.try_submit(&message)? {
                scene.report.count("colluding server: responses");
                at = (at + 1) % streams.len();
                continue;
            }
        }
        if app.is_detached() {
            return Err(Gone::Detached);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn is_stream(step: &Completion) -> bool {
    step.parts.contains(Parts::BEGIN) && step.method == TALK
}

/// Sends the server messages from elsewhere, whole ones and ones that stop before their end.
pub fn peer(scene: &Scene, target: SocketAddr, _random: &mut Random) {
    let claim = claim(scene);
    let mut connections: Vec<TcpStream> = Vec::new();
    let mut call = 0;
    while !scene.stop.is_set() {
        while connections.len() < PEER_CONNECTIONS {
            match connect_from(PEER_SOURCE, target).and_then(|stream| claim.try_shake_hands(stream)) {
                Ok(Handshake::Open(stream)) => connections.push(stream),
                _ => break,
            }
        }
        call += 1;
        let message = linear_message(scene);
        connections.retain_mut(|stream| send(stream, call, &message).is_ok());
        scene.report.count("colluding peer: rounds");
        std::thread::sleep(PAUSE);
    }
}

/// Sends a call's message; of each second one, all but the last chunk.
fn send(stream: &mut TcpStream, call: u64, message: &[u8]) -> std::io::Result<()> {
    let chunks: Vec<&[u8]> = message.chunks(CHUNK_BYTES_MAX as usize).collect();
    let sent = chunks.len() - usize::from(call.is_multiple_of(2));
    for (number, chunk) in chunks.into_iter().take(sent).enumerate() {
        let begin = FrameHeader {
            kind: frame_kind::STEP,
            parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
            method: TAKE.into(),
            message_bytes: (message.len() as u32).into(),
            ..FrameHeader::default()
        };
        let more = FrameHeader {
            kind: frame_kind::CHUNK,
            ..FrameHeader::default()
        };
        let header = FrameHeader {
            call: call.into(),
            body_bytes: (chunk.len() as u32).into(),
            ..if number == 0 { begin } else { more }
        };
        stream.write_all(header.as_bytes())?;
        stream.write_all(chunk)?;
    }
    Ok(())
}

fn claim(scene: &Scene) -> Claim {
    let method = |name: &str, streams: bool| Method {
        name: name.to_owned(),
        kind: MethodKind {
            client_streaming: streams,
            server_streaming: streams,
        },
    };
    Claim {
        service: SERVICE.to_owned(),
        schema_hash: scene.schema.hash(SERVICE).0,
        schema: scene.schema.descriptor_set.clone(),
        methods: vec![method("Take", false), method("Talk", true)],
    }
}

/// A message with a large blob, in a send heap; its root.
pub fn write_message(scene: &Scene, app: &RawApp) -> u32 {
    app.write(MESSAGE_AT, &vec![0; root_bytes(scene)]);
    let blob = [window_offset(BLOB_AT).to_le_bytes(), BLOB_BYTES.to_le_bytes()].concat();
    app.write(MESSAGE_AT + offsets(scene, "blob").0, &blob);
    window_offset(MESSAGE_AT)
}

/// The same in one run of bytes, as peers send it.
fn linear_message(scene: &Scene) -> Vec<u8> {
    let root_bytes = root_bytes(scene);
    let mut message = vec![0; root_bytes + BLOB_BYTES as usize];
    let at = offsets(scene, "blob").0 as usize;
    message[at..at + 4].copy_from_slice(&(root_bytes as u32 / 8).to_le_bytes());
    message[at + 4..at + 8].copy_from_slice(&BLOB_BYTES.to_le_bytes());
    message
}

fn root_bytes(scene: &Scene) -> usize {
    let size = scene.schema.schema.message(scene.schema.everything).size as usize;
    size.next_multiple_of(8)
}
