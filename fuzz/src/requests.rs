//! Control requests of several apps in any order, at a running node: attach, add a schema, bind, connect, take back, and go
//! at any moment.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message;
use provost_shm::{AsFd, Interest, Memfd, PacketSocket, SEALS_FIXED_SIZE, Wait, wait_for};
use provost_wire::control::{
    AddSchema, Attach, Bind, CONTROL_VERSION, Connect, RegionMapped, Reply, Request, Unbind, reply, request,
};
use provost_wire::limits::CONTROL_MESSAGE_BYTES_MAX;
use provostd::{Config, Node, Shutdown};

use crate::subject::Subject;

/// Apps of an input.
const APPS: usize = 4;
/// Requests of an input, at most; what follows is not looked at.
const STEPS_MAX: usize = 32;
/// How long the node may take to answer one who does nothing wrong, whatever the machine does.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);
const HEAP_BYTES: u64 = 1 << 20;
const SERVICE: &str = "fuzz.Echo";

/// One byte says which app does what, the next one how.
pub(crate) fn requests(input: &[u8]) {
    let place = ControlPlace::new();
    let node = place.start();
    let mut apps: [Option<FuzzedApp>; APPS] = Default::default();
    for step in input.chunks_exact(2).take(STEPS_MAX) {
        let app = &mut apps[usize::from(step[0]) % APPS];
        take_step(&place.socket, app, step[0] / APPS as u8, step[1]);
    }
    for app in apps.iter_mut().flatten() {
        app.read_answers(ANSWERED_WITHIN);
    }
    drop(apps);
    assert!(!node.has_ended(), "the node has ended");
    honest_app_is_served(&place.socket);
    node.shut_down(Shutdown::Now);
    node.join();
}

pub(crate) fn requests_seeds() -> Vec<Vec<u8>> {
    let app = |number: u8, does: u8| number + APPS as u8 * does;
    // Attach, add the schema, bind, connect, take back, go.
    let alone: Vec<u8> = (0..8).flat_map(|does| [app(0, does), 0]).collect();
    let in_turn: Vec<u8> = (0..8)
        .flat_map(|does| [app(0, does), 0, app(1, does), 1])
        .collect();
    let before_attaching = vec![app(2, 2), 0, app(2, 0), 0, app(2, 2), 0, app(2, 6), 0];
    let gone_while_asking = vec![
        app(1, 0),
        0,
        app(1, 3),
        2,
        app(1, 3),
        3,
        app(1, 6),
        0,
        app(1, 0),
        0,
    ];
    vec![alone, in_turn, before_attaching, gone_while_asking]
}

/// Where a node's control socket is. It is gone with this.
struct ControlPlace {
    directory: PathBuf,
    socket: PathBuf,
}

impl ControlPlace {
    fn new() -> ControlPlace {
        let thread = format!("{:?}", std::thread::current().id());
        let number: String = thread.chars().filter(char::is_ascii_digit).collect();
        let name = format!("provost-fuzz-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        ControlPlace {
            socket: directory.join("node.sock"),
            directory,
        }
    }

    fn start(&self) -> Node {
        std::fs::create_dir_all(&self.directory).expect("a temporary folder");
        let text = format!(
            "[node]\nname = \"fuzz\"\n[control]\nsocket = \"{}\"\n[runtime]\nthreads = 1\n",
            self.socket.display()
        );
        let config = Config::parse(&text, "fuzz.toml").expect("a good configuration");
        Node::start(config).expect("a node")
    }
}

impl Drop for ControlPlace {
    fn drop(&mut self) {
        // What cannot be removed is in a temporary folder.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// An app with its control socket, which reads answers when it likes.
struct FuzzedApp {
    socket: PacketSocket,
    heap: Memfd,
    asked: u64,
    /// Answers that are still to come.
    waits_for: Vec<u64>,
}

fn take_step(place: &Path, app: &mut Option<FuzzedApp>, does: u8, how: u8) {
    let Some(known) = app else {
        *app = FuzzedApp::connect(place);
        if let Some(app) = app.as_mut().filter(|_| does.is_multiple_of(8)) {
            app.attach();
        }
        return;
    };
    match does % 8 {
        0 => known.attach(),
        1 => known.add_schema(how),
        2 => known.ask(bind(how), &[]),
        3 => known.ask(connect(how), &[]),
        4 => known.ask(unbind(how), &[]),
        5 => known.read_answers(ANSWERED_WITHIN),
        6 => *app = None,
        _ => known.ask(
            request::Body::RegionMapped(RegionMapped {
                generation: how.into(),
            }),
            &[],
        ),
    }
}

fn service(how: u8) -> String {
    if how < 192 {
        SERVICE.to_owned()
    } else {
        "fuzz.Nobody".to_owned()
    }
}

fn schema_hash(how: u8) -> Vec<u8> {
    match how % 4 {
        3 => vec![how; usize::from(how)],
        _ => {
            let hash = Subject::get().schema.service_hash(SERVICE);
            hash.map(|hash| hash.0.to_vec()).unwrap_or_default()
        }
    }
}

fn bind(how: u8) -> request::Body {
    request::Body::Bind(Bind {
        service: service(how),
        schema_hash: schema_hash(how),
        calls_in_flight_max: how.into(),
    })
}

fn unbind(how: u8) -> request::Body {
    request::Body::Unbind(Unbind {
        service: service(how),
    })
}

/// To the same node, to nobody, or to what is no address.
fn connect(how: u8) -> request::Body {
    let address = ["", "", "127.0.0.1:1", "nonsense"][usize::from(how / 4) % 4];
    request::Body::Connect(Connect {
        service: service(how),
        schema_hash: schema_hash(how),
        address: address.to_owned(),
        timeout_ns: u64::from(how) * 1_000_000,
    })
}

impl FuzzedApp {
    fn connect(place: &Path) -> Option<FuzzedApp> {
        let heap = Memfd::create("fuzz-heap", HEAP_BYTES).ok()?;
        heap.seal(SEALS_FIXED_SIZE).ok()?;
        Some(FuzzedApp {
            socket: PacketSocket::connect_within(place, ANSWERED_WITHIN).ok()?,
            heap,
            asked: 0,
            waits_for: Vec::new(),
        })
    }

    fn attach(&mut self) {
        let attach = Attach {
            version: CONTROL_VERSION,
            name: "fuzzed".to_owned(),
            receive_window: (1 << 30) / 8,
            receive_window_bytes: 16 << 20,
            takes_regions: true,
            ..Attach::default()
        };
        let heap = self.heap.as_fd().try_clone_to_owned();
        let heap: Vec<OwnedFd> = heap.into_iter().collect();
        self.ask(request::Body::Attach(attach), &heap);
    }

    /// The schema, or its beginning.
    fn add_schema(&mut self, how: u8) {
        let whole = &Subject::get().descriptor_set;
        let part = if how.is_multiple_of(4) {
            &whole[..whole.len() * usize::from(how) / 256]
        } else {
            &whole[..]
        };
        let add = request::Body::AddSchema(AddSchema { hash: Vec::new() });
        let Ok(memory) = Memfd::of_bytes("fuzz-schema", part) else {
            return;
        };
        let memory = memory.as_fd().try_clone_to_owned();
        self.ask(add, &memory.into_iter().collect::<Vec<_>>());
    }

    fn ask(&mut self, body: request::Body, descriptors: &[OwnedFd]) {
        self.asked += 1;
        let packet = Request {
            id: self.asked,
            body: Some(body),
        };
        let beside: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        // Who has been thrown out is told nothing more.
        if self.socket.send(&packet.encode_to_vec(), &beside).is_ok() {
            self.waits_for.push(self.asked);
        }
    }

    /// Reads until everything is answered, or the node has hung up.
    fn read_answers(&mut self, limit: Duration) {
        let begin = Instant::now();
        while !self.waits_for.is_empty() {
            let left = limit.saturating_sub(begin.elapsed()).as_nanos() as u64;
            assert!(left > 0, "requests {:?} are not answered", self.waits_for);
            // An error is found out by reading.
            let _ = wait_for(&self.socket, Interest::Readable, Wait::AtMost(left));
            match self.socket.receive(CONTROL_MESSAGE_BYTES_MAX) {
                Ok(Some(packet)) => self.take(&packet.bytes),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Ok(None) | Err(_) => self.waits_for.clear(),
            }
        }
    }

    fn take(&mut self, packet: &[u8]) {
        let reply = Reply::decode(packet).expect("the node says what can be read");
        // What the node says on its own account has no number.
        if reply.id == 0 {
            return;
        }
        let asked = self.waits_for.iter().position(|id| *id == reply.id);
        let asked = asked.expect("what is answered was asked, and is answered once");
        self.waits_for.remove(asked);
        assert!(reply.body.is_some(), "an answer says something");
    }
}

/// An app that comes after all of that attaches, and its schema is taken.
fn honest_app_is_served(place: &Path) {
    let mut app = FuzzedApp::connect(place).expect("the control socket is there");
    app.attach();
    app.read_answers(ANSWERED_WITHIN);
    app.add_schema(1);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < ANSWERED_WITHIN, "the schema is not taken");
        let _ = wait_for(&app.socket, Interest::Readable, Wait::AtMost(100_000_000));
        let Ok(Some(packet)) = app.socket.receive(CONTROL_MESSAGE_BYTES_MAX) else {
            continue;
        };
        let reply = Reply::decode(&*packet.bytes).expect("the node says what can be read");
        if reply.id == 2 {
            assert!(!matches!(reply.body, Some(reply::Body::Failed(_))), "{reply:?}");
            return;
        }
    }
}
