//! Attacks over TCP: handshakes that do not end, that never stop coming, or that are no handshakes; and peers that were
//! welcomed and then announce much, or say nothing that makes sense.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use provost_e2e::peer::{Claim, Handshake};
use provost_wire::descriptor::Parts;
use provost_wire::frame::{FrameHeader, frame_kind};
use provost_wire::limits::{CHUNK_BYTES_MAX, MESSAGE_BYTES_MAX, SCHEMA_FIELDS_MAX};
use zerocopy::IntoBytes;

use super::{RemoteScene, connect_from};
use crate::random::{AwkwardNumbers, Random};
use crate::schema::bomb_of;

/// Connections of one attack that are open at once.
const HELD_MAX: usize = 150;
/// Connections on which messages are announced.
const ANNOUNCERS: usize = 16;
/// Messages that are begun on each of them.
const ANNOUNCED_CALLS: u64 = 8;
/// Bytes of the longest messages that [`nearly_all`] does not end.
pub const NEARLY_ALL_BYTES: u32 = 4 << 20;
/// Connections of one address on which they come.
const NEARLY_ALL_CONNECTIONS: usize = 6;
/// How often these are halved: the shortest have a kibibyte.
const NEARLY_ALL_HALVINGS: u32 = 13;
/// Handshakes that one address may have under way, of those that a node has where nothing else is configured.
const HANDSHAKES_OF_ONE: usize = 16;
/// Bytes of a schema with as many fields as one may have, at most.
pub const LARGE_SCHEMA_BYTES: u64 = 1100 << 10;
/// Between two rounds over all connections of an attack.
const ROUND: Duration = Duration::from_millis(20);
/// Between two connections of an attack that keeps none open: it is not to see how many connections the kernel can make.
const PAUSE: Duration = Duration::from_millis(2);

/// Connections on which half of an opening is said, and nothing more.
pub fn half_open(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    let mut held = Vec::new();
    while !scene.stop.is_set() {
        top_up(&mut held, HELD_MAX, || {
            let mut stream = connect_from(source, scene.target).ok()?;
            let said = 1 + random.below(scene.opening.len() as u64 - 1) as usize;
            stream.write_all(&scene.opening[..said]).ok()?;
            scene.report.count("half-open: begun");
            Some(stream)
        });
        std::thread::sleep(ROUND);
    }
}

/// Connections on which an opening is said byte by byte.
pub fn drip(scene: &RemoteScene, source: Ipv4Addr, _random: &mut Random) {
    let mut held: Vec<TcpStream> = Vec::new();
    let mut said = 0;
    while !scene.stop.is_set() {
        top_up(&mut held, HELD_MAX, || {
            let mut stream = connect_from(source, scene.target).ok()?;
            stream.write_all(&scene.opening[..1]).ok()?;
            scene.report.count("drip: begun");
            Some(stream)
        });
        said = said % (scene.opening.len() - 1) + 1;
        for stream in &mut held {
            // Who was cut off is let go in the next round.
            let _ = stream.write_all(&scene.opening[said..=said]);
        }
        std::thread::sleep(ROUND);
    }
}

/// Openings that are whole, one after the other; the answer is read and not answered.
pub fn flood(scene: &RemoteScene, source: Ipv4Addr, _random: &mut Random) {
    while !scene.stop.is_set() {
        let answered = connect_from(source, scene.target).and_then(|mut stream| {
            stream.write_all(&scene.opening)?;
            stream.read(&mut [0; 4096])
        });
        match answered {
            Ok(1..) => scene.report.count("flood: answered"),
            _ => scene.report.count("flood: not answered"),
        }
        std::thread::sleep(PAUSE);
    }
}

/// Bytes that are no opening, or the begin of one and then something else.
pub fn nonsense(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    while !scene.stop.is_set() {
        let mut bytes = match random.below(3) {
            0 => Vec::new(),
            1 => b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(),
            _ => scene.opening[..random.below(scene.opening.len() as u64) as usize].to_vec(),
        };
        bytes.extend(random.bytes(4_000));
        if let Ok(mut stream) = connect_from(source, scene.target) {
            // It may be closed before everything is read.
            let _ = stream.write_all(&bytes);
            scene.report.count("nonsense: said");
        }
        std::thread::sleep(PAUSE);
    }
}

/// Handshakes that succeed, one after the other; each connection is let go at once.
pub fn come_and_go(scene: &RemoteScene, source: Ipv4Addr, _random: &mut Random) {
    while !scene.stop.is_set() {
        if welcomed(scene, source).is_some() {
            scene.report.count("come-and-go: welcomed");
        }
        std::thread::sleep(PAUSE);
    }
}

/// Messages as long as they may be of which little comes: on each connection several calls, whose first chunk is whole, and
/// then a byte now and then.
pub fn announce(scene: &RemoteScene, source: Ipv4Addr, _random: &mut Random) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !scene.stop.is_set() {
        top_up(&mut held, ANNOUNCERS, || {
            let mut stream = welcomed(scene, source)?;
            for call in 1..=ANNOUNCED_CALLS {
                stream.write_all(&first_chunk(call)).ok()?;
                scene.report.count("announce: messages begun");
            }
            stream
                .write_all(announcement(ANNOUNCED_CALLS + 1).as_bytes())
                .ok()?;
            Some(stream)
        });
        for stream in &mut held {
            // As in `drip`.
            let _ = stream.write_all(&[0]);
        }
        std::thread::sleep(ROUND);
    }
}

/// Connections on each of which messages come of every length up to [`NEARLY_ALL_BYTES`], all but their last bytes.
pub fn nearly_all(scene: &RemoteScene, source: Ipv4Addr, _random: &mut Random) {
    let mut held: Vec<TcpStream> = Vec::new();
    while !scene.stop.is_set() {
        top_up(&mut held, NEARLY_ALL_CONNECTIONS, || {
            let mut stream = welcomed(scene, source)?;
            let lengths = (0..NEARLY_ALL_HALVINGS).flat_map(|halved| {
                let times = 1 << (halved / 2);
                std::iter::repeat_n(NEARLY_ALL_BYTES >> halved, times)
            });
            for (call, message_bytes) in (1..).zip(lengths) {
                stream.write_all(&nearly_whole(call, message_bytes)).ok()?;
                scene.report.count("nearly all: sent");
            }
            Some(stream)
        });
        std::thread::sleep(ROUND);
    }
}

/// The frames of a message but for its last bytes, at most a chunk.
fn nearly_whole(call: u64, message_bytes: u32) -> Vec<u8> {
    let last = CHUNK_BYTES_MAX.min(message_bytes / 8);
    let begin = FrameHeader {
        body_bytes: CHUNK_BYTES_MAX.min(message_bytes - last).into(),
        message_bytes: message_bytes.into(),
        ..announcement(call)
    };
    let mut frames = with_body(begin);
    for _ in 2..message_bytes / CHUNK_BYTES_MAX {
        frames.extend(with_body(FrameHeader {
            body_bytes: CHUNK_BYTES_MAX.into(),
            kind: frame_kind::CHUNK,
            call: call.into(),
            ..FrameHeader::default()
        }));
    }
    frames
}

/// Frames of all kinds with numbers that make no sense, behind a good handshake.
pub fn garbage(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    while !scene.stop.is_set() {
        if let Some(mut stream) = welcomed(scene, source) {
            scene.report.count("garbage: welcomed");
            for _ in 0..1 + random.below(20) {
                // The node hangs up at what makes no sense.
                if stream.write_all(&any_frame(random)).is_err() {
                    scene.report.count("garbage: cut off");
                    break;
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Handshakes with schemas as large as are read, each announced as another one: as many at once as one address may have.
pub fn schema_bombs(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    let bomb = bomb_of(&scene.claim.service, 1, 16, SCHEMA_FIELDS_MAX as i32 / 16);
    assert!(bomb.len() as u64 <= LARGE_SCHEMA_BYTES, "{} bytes", bomb.len());
    std::thread::scope(|scope| {
        for _ in 0..HANDSHAKES_OF_ONE {
            let mut claim = Claim {
                schema: bomb.clone(),
                ..scene.claim.clone()
            };
            let mut random = Random::new(random.number());
            scope.spawn(move || {
                while !scene.stop.is_set() {
                    claim.schema_hash = std::array::from_fn(|_| random.number() as u8);
                    offer_bomb(scene, source, &claim);
                    std::thread::sleep(PAUSE);
                }
            });
        }
    });
}

fn offer_bomb(scene: &RemoteScene, source: Ipv4Addr, claim: &Claim) {
    let shaken = connect_from(source, scene.target).and_then(|stream| claim.try_shake_hands(stream));
    match shaken {
        Ok(Handshake::Refused(why)) if why.to_string().contains("does not have the hash") => {
            scene.report.count("schema bombs: read and refused");
        }
        Ok(Handshake::Refused(_)) => scene.report.count("schema bombs: refused"),
        Ok(Handshake::Open(_)) => scene.report.finding("schema bombs: one was welcomed".to_owned()),
        Ok(Handshake::HungUp) | Err(_) => scene.report.count("schema bombs: not answered"),
    }
}

fn welcomed(scene: &RemoteScene, source: Ipv4Addr) -> Option<TcpStream> {
    let stream = connect_from(source, scene.target).ok()?;
    match scene.claim.try_shake_hands(stream) {
        Ok(Handshake::Open(stream)) => Some(stream),
        _ => None,
    }
}

/// A frame that begins a call with a message as long as it may be.
fn announcement(call: u64) -> FrameHeader {
    FrameHeader {
        body_bytes: CHUNK_BYTES_MAX.into(),
        kind: frame_kind::STEP,
        parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
        call: call.into(),
        message_bytes: MESSAGE_BYTES_MAX.into(),
        ..FrameHeader::default()
    }
}

fn first_chunk(call: u64) -> Vec<u8> {
    with_body(announcement(call))
}

/// A frame with a whole chunk behind its header.
fn with_body(header: FrameHeader) -> Vec<u8> {
    let mut frame = header.as_bytes().to_vec();
    frame.resize(frame.len() + header.body_bytes.get() as usize, 0);
    frame
}

fn any_frame(random: &mut Random) -> Vec<u8> {
    let body_bytes = random.below(2_000) as u32;
    let header = FrameHeader {
        body_bytes: if random.one_in(10) {
            random.awkward().into()
        } else {
            body_bytes.into()
        },
        kind: if random.one_in(4) {
            random.number() as u8
        } else {
            frame_kind::STEP
        },
        parts: Parts(random.number() as u8),
        method: (random.below(20) as u16).into(),
        call: (1 + random.below(6)).into(),
        metadata_bytes: if random.one_in(2) {
            0.into()
        } else {
            random.awkward().into()
        },
        message_bytes: if random.one_in(2) {
            body_bytes.into()
        } else {
            random.awkward().into()
        },
        status_or_window: random.awkward().into(),
        timeout_ns: random.number().into(),
        ..FrameHeader::default()
    };
    let mut frame = header.as_bytes().to_vec();
    frame.extend(random.bytes(body_bytes as usize));
    frame
}

/// Lets connections go that the node has closed, and opens others until there are so many, or one cannot be opened.
fn top_up(held: &mut Vec<TcpStream>, most: usize, mut open: impl FnMut() -> Option<TcpStream>) {
    held.retain_mut(is_open);
    while held.len() < most {
        match open() {
            Some(stream) => held.push(stream),
            None => break,
        }
    }
}

/// Whether the node has not hung up. What it has said is thrown away.
fn is_open(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    let is_open = loop {
        if stream.set_nonblocking(true).is_err() {
            break false;
        }
        match stream.read(&mut bytes) {
            Ok(0) => break false,
            Ok(_) => {}
            Err(error) => break error.kind() == ErrorKind::WouldBlock,
        }
    };
    is_open && stream.set_nonblocking(false).is_ok()
}
