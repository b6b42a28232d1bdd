//! Apps that talk nonsense at the control socket: they are refused, and nobody else notices.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use prost::Message;
use provost::Code;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Setting, eventually, server, watched};
use provost_shm::{Memfd, PacketSocket, Seals};
use provost_wire::control::{
    AddSchema, Attach, Bind, CONTROL_VERSION, Connect, Reply, Request, reply, request,
};
use provost_wire::limits::SEND_WINDOW;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const SEND_HEAP_BYTES: u64 = 4 << 20;

/// A control socket without the library.
struct RawApp {
    socket: PacketSocket,
    last_id: u64,
}

impl RawApp {
    fn connect(setting: &Setting) -> RawApp {
        RawApp {
            socket: PacketSocket::connect(&setting.a.socket).unwrap(),
            last_id: 0,
        }
    }

    fn attached(setting: &Setting) -> RawApp {
        let mut app = RawApp::connect(setting);
        let heap = send_heap(Seals::SHRINK | Seals::GROW | Seals::SEAL);
        let reply = app.ask(request::Body::Attach(attach()), &[heap.as_fd()]);
        assert!(matches!(reply, Some(reply::Body::Attached(_))), "{reply:?}");
        app
    }

    /// Asks for something; `None` when the service hangs up.
    fn ask(&mut self, body: request::Body, descriptors: &[BorrowedFd<'_>]) -> Option<reply::Body> {
        self.last_id += 1;
        let request = Request {
            id: self.last_id,
            body: Some(body),
        };
        self.socket.send(&request.encode_to_vec(), descriptors).ok()?;
        self.reply()
    }

    fn reply(&mut self) -> Option<reply::Body> {
        let end = Instant::now() + WAIT_MAX;
        while Instant::now() < end {
            match self.socket.receive(64 << 10) {
                Ok(Some(packet)) => {
                    let reply = Reply::decode(&packet.bytes[..]).expect("a reply");
                    if reply.id == self.last_id {
                        return reply.body;
                    }
                }
                Ok(None) => return None,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return None,
            }
        }
        panic!("the service does not answer");
    }
}

fn attach() -> Attach {
    Attach {
        version: CONTROL_VERSION,
        name: "raw".to_owned(),
        receive_window: SEND_WINDOW + (SEND_HEAP_BYTES / 8) as u32,
        receive_window_bytes: 1 << 30,
        ..Attach::default()
    }
}

fn send_heap(seals: Seals) -> Memfd {
    let memfd = Memfd::create("raw-heap", SEND_HEAP_BYTES).unwrap();
    memfd.seal(seals).unwrap();
    memfd
}

fn is_refused(reply: &Option<reply::Body>) -> bool {
    match reply {
        Some(reply::Body::Failed(failed)) => {
            Code::from_number(failed.code) != Code::Ok && !failed.message.is_empty()
        }
        None => true,
        _ => false,
    }
}

/// Has a raw app misbehave; afterwards all is as it was.
fn is_harmless(misbehave: impl FnOnce(&Setting) + Send + 'static) {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let before = setting.a.program.usage();
        misbehave(&setting);
        setting.agent.calls_well();
        setting.others_are_served();
        eventually("what the app had is closed", WAIT_MAX, || {
            let now = setting.a.program.usage();
            now.descriptors <= before.descriptors && now.shared_bytes <= before.shared_bytes
        });
    });
}

#[test]
fn garbage_packets() {
    is_harmless(|setting| {
        for bytes in [&[0xff; 100][..], b"GET / HTTP/1.1", &[0; 1], &[0x0a; 60_000]] {
            let mut app = RawApp::connect(setting);
            // The service may have hung up already.
            let _ = app.socket.send(bytes, &[]);
            let reply = app.ask(request::Body::Attach(attach()), &[]);
            assert!(is_refused(&reply), "{reply:?}");
        }
    });
}

#[test]
fn requests_before_attaching() {
    is_harmless(|setting| {
        let bodies = [
            request::Body::Bind(Bind::default()),
            request::Body::Connect(Connect::default()),
            request::Body::AddSchema(AddSchema::default()),
        ];
        for body in bodies {
            let reply = RawApp::connect(setting).ask(body, &[]);
            assert!(is_refused(&reply), "{reply:?}");
        }
    });
}

#[test]
fn attachments_that_cannot_be() {
    is_harmless(|setting| {
        let sealed = send_heap(Seals::SHRINK | Seals::GROW | Seals::SEAL);
        let unsealed = send_heap(Seals::GROW);
        let wrong_version = Attach {
            version: CONTROL_VERSION + 1,
            ..attach()
        };
        let no_window = Attach {
            receive_window: 0,
            ..attach()
        };
        let odd_slots = Attach {
            submission_slots: 1000,
            ..attach()
        };
        let window_past_the_end = Attach {
            receive_window: u32::MAX,
            ..attach()
        };
        let overlapping = Attach {
            receive_window: SEND_WINDOW,
            ..attach()
        };
        for wrong in [
            wrong_version,
            no_window,
            odd_slots,
            window_past_the_end,
            overlapping,
        ] {
            let reply = RawApp::connect(setting).ask(request::Body::Attach(wrong.clone()), &[sealed.as_fd()]);
            assert!(is_refused(&reply), "{wrong:?}: {reply:?}");
        }
        let reply = RawApp::connect(setting).ask(request::Body::Attach(attach()), &[unsealed.as_fd()]);
        assert!(is_refused(&reply), "an unsealed heap: {reply:?}");
        let reply = RawApp::connect(setting).ask(request::Body::Attach(attach()), &[]);
        assert!(is_refused(&reply), "no heap: {reply:?}");
        let pipe = std::io::pipe().unwrap().0;
        let reply = RawApp::connect(setting).ask(request::Body::Attach(attach()), &[pipe.as_fd()]);
        assert!(is_refused(&reply), "a pipe: {reply:?}");
    });
}

#[test]
fn schemas_that_are_not_what_their_hash_says() {
    is_harmless(|setting| {
        let mut app = RawApp::attached(setting);
        let descriptor = server::descriptor();
        let mut hash = descriptor.schema_hash.to_vec();
        hash[0] ^= 1;
        let connect = request::Body::Connect(Connect {
            service: descriptor.name.to_owned(),
            schema_hash: hash.clone(),
            ..Connect::default()
        });
        let reply = app.ask(connect.clone(), &[]);
        assert!(matches!(reply, Some(reply::Body::SchemaUnknown(_))), "{reply:?}");
        for schema in [descriptor.file_descriptor_set, b"no schema", b""] {
            let memfd = Memfd::create("schema", schema.len().max(1) as u64).unwrap();
            memfd.write_at(0, schema).unwrap();
            memfd
                .seal(Seals::SHRINK | Seals::GROW | Seals::WRITE | Seals::SEAL)
                .unwrap();
            let lie = request::Body::AddSchema(AddSchema { hash: hash.clone() });
            let reply = app.ask(lie, &[memfd.as_fd()]);
            assert!(is_refused(&reply), "{reply:?}");
        }
        let reply = app.ask(connect, &[]);
        assert!(!matches!(reply, Some(reply::Body::Connected(_))), "{reply:?}");
    });
}

#[test]
fn a_packet_with_more_descriptors_than_the_protocol_has() {
    is_harmless(|setting| {
        let mut app = RawApp::attached(setting);
        let memfd = send_heap(Seals::SEAL);
        let many = [memfd.as_fd(); 8];
        let reply = app.ask(request::Body::Bind(Bind::default()), &many);
        assert!(is_refused(&reply), "{reply:?}");
    });
}
