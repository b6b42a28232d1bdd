//! Control packets: garbage, lies, and descriptors that are not what they should be.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use prost::Message;
use provost_shm::{Memfd, PacketSocket, SEALS_FIXED_SIZE, Seals};
use provost_wire::control::{
    AddSchema, Attach, Bind, CONTROL_VERSION, Connect, Request, Unbind, reply, request,
};
use provost_wire::limits::{CONTROL_MESSAGE_BYTES_MAX, REGION_BYTES_MAX, SCHEMA_BYTES_MAX};

use crate::random::{AwkwardNumbers, Random};
use crate::raw::{
    Gone, RECEIVE_WINDOW, RECEIVE_WINDOW_BYTES, RawApp, SEND_HEAP_BYTES, receive_within, sealed_memory,
};
use crate::scene::Scene;
use crate::schema::{TARGETS, VANDALS};

/// How long the service may take to say no.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while !scene.stop.is_set() {
        let ended = match random.below(4) {
            0 => garbage_before_attaching(scene, random),
            1 => wrong_attachment(scene, random),
            2 => requests_of_an_attached_app(scene, random),
            _ => schemas(scene, random),
        };
        match ended {
            Ok(()) => scene.report.count("control: answered"),
            Err(gone) => scene.report.ended("control", &gone),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn garbage_before_attaching(scene: &Scene, random: &mut Random) -> Result<(), Gone> {
    let socket = PacketSocket::connect(&scene.socket)?;
    let length = 1 + random.below(300) as usize;
    let packet = match random.below(5) {
        0 => random.bytes(length),
        1 => vec![0; CONTROL_MESSAGE_BYTES_MAX + 1],
        2 => Request {
            id: random.number(),
            body: None,
        }
        .encode_to_vec(),
        3 => {
            let mut packet = request(0, attach()).encode_to_vec();
            packet.truncate(1 + random.below(packet.len() as u64 - 1) as usize);
            packet
        }
        _ => request(
            7,
            request::Body::Unbind(Unbind {
                service: TARGETS[0].to_owned(),
            }),
        )
        .encode_to_vec(),
    };
    let descriptors = vec![socket.as_fd(); random.below(9) as usize];
    socket.send(&packet, &descriptors)?;
    must_not_attach(scene, &socket, "garbage")
}

/// Attachments with one thing wrong.
fn wrong_attachment(scene: &Scene, random: &mut Random) -> Result<(), Gone> {
    let mut body = Attach {
        version: CONTROL_VERSION,
        name: "control".to_owned(),
        submission_slots: 0,
        completion_slots: 0,
        receive_window: RECEIVE_WINDOW,
        receive_window_bytes: RECEIVE_WINDOW_BYTES,
        busy_poll: false,
        takes_regions: false,
    };
    let mut memory = Some(sealed_memory("control", SEND_HEAP_BYTES)?.into_descriptor());
    let what = random.below(13);
    match what {
        0 => body.version += 1 + random.below(9) as u32,
        1 => body.submission_slots = 3 + random.awkward() / 2,
        2 => body.completion_slots = u32::MAX,
        3 => body.receive_window = 0,
        4 => (body.receive_window, body.receive_window_bytes) = (u32::MAX, u64::MAX),
        5 => body.name = "x".repeat(20_000),
        6 => memory = None,
        7 => {
            memory = Some(
                tempfile::tempfile()
                    .and_then(|file| file.set_len(1 << 20).map(|()| file))?
                    .into(),
            )
        }
        8 => memory = Some(std::os::unix::net::UnixStream::pair()?.0.into()),
        9 => memory = Some(unsealed(Seals::empty())?),
        10 => memory = Some(unsealed(Seals::GROW | Seals::SEAL)?),
        11 => memory = Some(sealed_memory("control", REGION_BYTES_MAX + 4096)?.into_descriptor()),
        _ => memory = Memfd::of_bytes("control", b"").ok().map(Memfd::into_descriptor),
    }
    let socket = PacketSocket::connect(&scene.socket)?;
    let packet = request(1, request::Body::Attach(body)).encode_to_vec();
    let descriptors: Vec<_> = memory.iter().map(AsFd::as_fd).collect();
    socket.send(&packet, &descriptors)?;
    must_not_attach(scene, &socket, &format!("wrong attachment {what}"))
}

fn must_not_attach(scene: &Scene, socket: &PacketSocket, what: &str) -> Result<(), Gone> {
    match receive_within(socket, WAIT_MAX) {
        Ok(None) => Err(Gone::Silent("to what is wrong in a control packet")),
        Ok(Some((reply, _))) if matches!(reply.body, Some(reply::Body::Attached(_))) => {
            scene.report.finding(format!("control: {what} was accepted"));
            Ok(())
        }
        Ok(Some(_)) | Err(Gone::Detached) => Ok(()),
        Err(gone) => Err(gone),
    }
}

/// Requests that make no sense, among some that do.
fn requests_of_an_attached_app(scene: &Scene, random: &mut Random) -> Result<(), Gone> {
    let mut app = RawApp::attach(&scene.socket, "control")?;
    let names = [
        TARGETS[0],
        VANDALS[0],
        "",
        ".",
        "no.Such",
        "probe.Probe",
        "\u{0}",
        "a/b",
    ];
    for _ in 0..random.below(40) {
        let service = if random.one_in(10) {
            "x".repeat(random.below(60_000) as usize)
        } else {
            (*random.pick(&names)).to_owned()
        };
        let schema_hash = match random.below(3) {
            0 => scene.schema.hash(TARGETS[0]).0.to_vec(),
            1 => random.bytes(32),
            _ => {
                let length = random.below(100) as usize;
                random.bytes(length)
            }
        };
        let body = match random.below(6) {
            0 => attach(),
            1 => request::Body::Unbind(Unbind { service }),
            2 => request::Body::AddSchema(AddSchema { hash: schema_hash }),
            // A name that good apps use is not offered here: two servers of one name are not an attack.
            3 if service != "probe.Probe" && !TARGETS.contains(&&*service) => request::Body::Bind(Bind {
                service,
                schema_hash,
                calls_in_flight_max: random.awkward(),
            }),
            _ => request::Body::Connect(Connect {
                service,
                schema_hash,
                address: (*random.pick(&["", "127.0.0.1:1", "localhost", "[::1", "999.1.1.1:5", "\n"]))
                    .to_owned(),
                timeout_ns: u64::from(random.awkward() % 200_000_000),
            }),
        };
        let memory = sealed_memory("control", 4096)?;
        let descriptors = vec![memory.as_fd(); random.below(3) as usize];
        match app.ask(body, &descriptors) {
            Ok(_) | Err(Gone::Refused { .. }) => {}
            Err(Gone::Detached) => return Ok(()),
            Err(gone) => return Err(gone),
        }
    }
    if random.one_in(2) {
        // Many requests at once, and gone before they are answered.
        for id in 0..200 {
            let connect = Connect {
                service: TARGETS[0].to_owned(),
                ..Connect::default()
            };
            if app
                .socket
                .send(&request(id, request::Body::Connect(connect)).encode_to_vec(), &[])
                .is_err()
            {
                break;
            }
        }
    }
    Ok(())
}

/// Schemas that lie, or are none.
fn schemas(scene: &Scene, random: &mut Random) -> Result<(), Gone> {
    let mut app = RawApp::attach(&scene.socket, "control")?;
    let good = &scene.schema.descriptor_set;
    let bytes = match random.below(6) {
        0 => {
            let length = 1 + random.below(5000) as usize;
            random.bytes(length)
        }
        1 => good[..1 + random.below(good.len() as u64 - 1) as usize].to_vec(),
        2 => good.repeat(1 + random.below(50) as usize),
        3 => vec![0x0A; SCHEMA_BYTES_MAX + 1],
        4 => {
            let mut changed = good.clone();
            for _ in 0..1 + random.below(20) {
                let at = random.below(changed.len() as u64) as usize;
                changed[at] = random.number() as u8;
            }
            changed
        }
        // Groups in groups: what a careless decoder recurses into.
        _ => vec![0x0B; 100_000],
    };
    let memory = if random.one_in(6) {
        unsealed(Seals::empty())?
    } else {
        Memfd::of_bytes("schema", &bytes)
            .map_err(std::io::Error::from)?
            .into_descriptor()
    };
    let hash = if random.one_in(2) {
        scene.schema.hash(TARGETS[0]).0.to_vec()
    } else {
        random.bytes(32)
    };
    match app.ask(request::Body::AddSchema(AddSchema { hash }), &[memory.as_fd()]) {
        Ok(_) => scene.report.count("control: a changed schema was accepted"),
        Err(Gone::Refused { .. }) => scene.report.count("control: a schema was refused"),
        Err(gone) => return Err(gone),
    }
    Ok(())
}

fn attach() -> request::Body {
    request::Body::Attach(Attach {
        version: CONTROL_VERSION,
        ..Attach::default()
    })
}

fn request(id: u64, body: request::Body) -> Request {
    Request { id, body: Some(body) }
}

fn unsealed(seals: Seals) -> Result<OwnedFd, Gone> {
    debug_assert!(!seals.contains(SEALS_FIXED_SIZE));
    let memory = Memfd::create("control", SEND_HEAP_BYTES).map_err(std::io::Error::from)?;
    memory.seal(seals).map_err(std::io::Error::from)?;
    Ok(memory.into_descriptor())
}
