//! Replacements of which the test plays one of the two processes.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use prost::Message;
use prost_types::{
    DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};
use provost_datapath::FieldWriter;
use provost_frontend::{AppPort, AppReceiveHeap, ReceiveLimits, SavedBlocks};
use provost_schema::Schema;
use provost_shm::{
    Doorbell, Interest, Memfd, PacketSocket, SEALS_FIXED_SIZE, ServiceRings, Wait, now_ns, wait_for,
};
use provost_wire::control::{Connect, Reply, Request, Unbind, request};
use provost_wire::limits::{CONTROL_MESSAGE_BYTES_MAX, RING_SLOTS_MIN};
use tokio::sync::oneshot;

use super::channel::{Body, Channel, Commit, State};
use super::fuzzing::{config, control_descriptor, greet, seed_node, send_part};
use super::state::{App, Node as NodeState, PendingRequest};
use super::{PassedOn, Predecessor, UpgradeError, UpgradeReport, UpgradeRequest};
use crate::config::Sources;
use crate::policies::{Attachment, Change, ChangeError, Mode, Position, Registry};
use crate::reload::ReloadError;
use crate::segments::AnnouncedSegments;
use crate::upgrade::{READY_WITHIN_MAX, UPGRADES_WAITING_MAX};
use crate::{Node, NodeParts, Shutdown, StartError};

/// Longer than anything may take that is not broken.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// Bytes of an app's send heap.
const HEAP_BYTES: u64 = 1 << 20;
/// The variable that names the control socket to a process that takes over from a test.
const SOCKET_VARIABLE: &str = "PROVOST_TEST_CONTROL_SOCKET";

fn parts(socket: &Path) -> NodeParts {
    NodeParts {
        config: config(socket),
        kinds: Registry::with_built_ins(),
        sources: Sources::default(),
    }
}

/// Takes over in this process from one that does as `old` says, once it has been told that this one is ready.
fn succeed(old: impl FnOnce(Channel) + Send) -> Result<Node, StartError> {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let (channel, new) = Channel::pair().unwrap();
    let new = Predecessor::at(new.try_clone_descriptor().unwrap());
    std::thread::scope(|scope| {
        let socket = &socket;
        scope.spawn(move || {
            greet(&channel, socket).unwrap();
            old(channel);
        });
        Node::hot_restart(parts(socket), new)
    })
}

/// Gives the new process a state, and waits until it has restored it.
fn give(channel: &Channel, node: &NodeState, of_apps: Vec<OwnedFd>) {
    let descriptors: Vec<OwnedFd> = std::iter::once(control_descriptor().unwrap())
        .chain(of_apps)
        .collect();
    let all = |descriptors| Body::State(State { descriptors });
    send_part(channel, &node.encode_to_vec(), all, &descriptors).unwrap();
    let restored = channel.receive(WAIT_MAX);
    assert!(matches!(restored, Ok((Body::Restored(_), _))), "{restored:?}");
}

fn commit(channel: &Channel) {
    channel.send(Body::Commit(Commit {}), WAIT_MAX).unwrap();
    let committed = channel.receive(WAIT_MAX);
    assert!(matches!(committed, Ok((Body::Committed(_), _))), "{committed:?}");
}

/// Takes over from a process that had this app.
fn go_on_with(app: App, descriptors: Vec<OwnedFd>) -> Node {
    let apps = vec![app];
    let schemas = vec![schema_of_test()];
    let node = NodeState {
        apps,
        schemas,
        ..seed_node()
    };
    let node = succeed(|channel| {
        give(&channel, &node, descriptors);
        commit(&channel);
    });
    node.unwrap()
}

/// A schema with the service `test.Service`.
fn schema_of_test() -> Vec<u8> {
    let method = MethodDescriptorProto {
        name: Some("Call".into()),
        input_type: Some(".test.Empty".into()),
        output_type: Some(".test.Empty".into()),
        ..Default::default()
    };
    let file = FileDescriptorProto {
        name: Some("test.proto".into()),
        package: Some("test".into()),
        syntax: Some("proto3".into()),
        message_type: vec![DescriptorProto {
            name: Some("Empty".into()),
            ..Default::default()
        }],
        service: vec![ServiceDescriptorProto {
            name: Some("Service".into()),
            method: vec![method],
            ..Default::default()
        }],
        ..Default::default()
    };
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

/// An app as its process knows it: its end of the control socket, its state, and the descriptors beside it.
struct SavedTestApp {
    socket: PacketSocket,
    state: App,
    descriptors: Vec<OwnedFd>,
}

impl SavedTestApp {
    fn new() -> SavedTestApp {
        let (socket, of_service) = PacketSocket::pair().unwrap();
        let heap = Memfd::create("test-heap", HEAP_BYTES).unwrap();
        heap.seal(SEALS_FIXED_SIZE).unwrap();
        let (_ringer, doorbell) = Doorbell::create().unwrap();
        let (rings, _memory) = ServiceRings::create(RING_SLOTS_MIN, RING_SLOTS_MIN).unwrap();
        let (wakes_app, _) = Doorbell::create().unwrap();
        let announcing = of_service.as_fd().try_clone_to_owned().unwrap();
        let limits = ReceiveLimits {
            window_at: 1 << 20,
            window_bytes: 1 << 30,
            bytes_max: 64 << 20,
        };
        let receive = AppReceiveHeap::new(Box::new(AnnouncedSegments::new(announcing)), limits);
        let port = AppPort::new(rings, wakes_app, receive);
        let mut saved = FieldWriter::new();
        port.save(&SavedBlocks::default(), &mut saved);
        let of_port = port.descriptors();
        let state = App {
            id: 1,
            name: "app".to_owned(),
            pid: std::process::id() as i32,
            takes_regions: true,
            port: saved.bytes,
            port_descriptors: of_port.len() as u32,
            ..App::default()
        };
        let own = [of_service.as_fd(), heap.as_fd()].into_iter();
        let all = own.chain(doorbell.ends().unwrap()).chain(of_port);
        let descriptors = all.map(|descriptor| descriptor.try_clone_to_owned().unwrap());
        SavedTestApp {
            socket,
            state,
            descriptors: descriptors.collect(),
        }
    }
}

/// What the service says next; none once it has closed its end.
fn next_reply(socket: &PacketSocket) -> Option<Reply> {
    let limit = Wait::AtMost(WAIT_MAX.as_nanos() as u64);
    assert!(
        wait_for(socket, Interest::Readable, limit).unwrap(),
        "nothing comes"
    );
    let packet = socket.receive(CONTROL_MESSAGE_BYTES_MAX).unwrap()?;
    Some(Reply::decode(packet.bytes.as_slice()).unwrap())
}

/// What a runtime finds an app at fault for while it comes to rest, the control plane hears with its barrier closed.
#[test]
fn an_app_that_was_leaving_learns_that_it_is_detached() {
    let SavedTestApp {
        socket,
        state,
        descriptors,
    } = SavedTestApp::new();
    let app = App {
        leaving_ns: now_ns() + 1_000_000,
        ..state
    };
    let _node = go_on_with(app, descriptors);
    while next_reply(&socket).is_some() {}
}

/// An app can ask for as much again of each process that takes over, while what it asked of those before is not answered.
#[test]
fn all_requests_are_answered_that_the_process_before_was_asked() {
    const REQUESTS: u64 = 200;
    let SavedTestApp {
        socket,
        state,
        descriptors,
    } = SavedTestApp::new();
    let ask = |id: u64| {
        let service = "none.Bound".to_owned();
        let body = Some(request::Body::Unbind(Unbind { service }));
        PendingRequest {
            packet: Request { id, body }.encode_to_vec(),
            descriptors: 0,
            answer: None,
        }
    };
    let app = App {
        requests: (1..=REQUESTS).map(ask).collect(),
        ..state
    };
    let _node = go_on_with(app, descriptors);
    let mut answered = BTreeSet::new();
    while (answered.len() as u64) < REQUESTS {
        let reply = next_reply(&socket).expect("the app stays attached");
        // The service says something on its own account, too.
        if reply.id != 0 {
            assert!(
                answered.insert(reply.id),
                "request {} is answered twice",
                reply.id
            );
        }
    }
}

/// What keeps as much as an app may have under way keeps others waiting in the process that takes over as well.
#[test]
fn a_request_of_the_process_before_counts_by_what_it_keeps() {
    const QUIET: Duration = Duration::from_millis(200);
    let SavedTestApp {
        socket,
        state,
        descriptors,
    } = SavedTestApp::new();
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let schema = Schema::from_descriptor_set(&schema_of_test()).unwrap();
    let connect = Connect {
        service: "test.Service".to_owned(),
        schema_hash: schema.service_hash("test.Service").unwrap().as_bytes().to_vec(),
        address: nobody.local_addr().unwrap().to_string(),
        timeout_ns: WAIT_MAX.as_nanos() as u64,
    };
    let request = |id, body| Request { id, body: Some(body) }.encode_to_vec();
    let mut packet = request(1, request::Body::Connect(connect));
    // A field that no version knows yet.
    let padding = vec![0_u8; CONTROL_MESSAGE_BYTES_MAX - 1024];
    prost::encoding::bytes::encode(1000, &padding, &mut packet);
    let service = "none.Bound".to_owned();
    let next = request(2, request::Body::Unbind(Unbind { service }));
    socket.send(&next, &[]).unwrap();
    let pending = PendingRequest {
        packet,
        descriptors: 0,
        answer: None,
    };
    let app = App {
        requests: vec![pending],
        ..state
    };
    let _node = go_on_with(app, descriptors);
    let is_called = wait_for(
        &nobody,
        Interest::Readable,
        Wait::AtMost(WAIT_MAX.as_nanos() as u64),
    );
    assert!(is_called.unwrap(), "the connection is not begun");
    let reached = nobody.accept().unwrap();
    let mut answered = Vec::new();
    let mut note = |reply: Option<Reply>| {
        let id = reply.expect("the app stays attached").id;
        // The service says something on its own account, too.
        answered.extend((id != 0).then_some(id));
        answered.len()
    };
    while wait_for(&socket, Interest::Readable, Wait::AtMost(QUIET.as_nanos() as u64)).unwrap() {
        note(next_reply(&socket));
    }
    drop((reached, nobody));
    while note(next_reply(&socket)) < 2 {}
    assert_eq!(answered, [1, 2], "the second was read before the first one's end");
}

#[test]
fn a_process_whose_predecessor_has_committed_and_is_gone_goes_on() {
    let node = succeed(|channel| {
        give(&channel, &seed_node(), Vec::new());
        // What the new process says from now on reaches nobody.
        let socket = channel.try_clone_descriptor().unwrap();
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Read).unwrap();
        channel.send(Body::Commit(Commit {}), WAIT_MAX).unwrap();
    });
    assert!(node.is_ok(), "{:?}", node.err());
}

/// A node whose successors are what a shell does with the arguments `of_script`.
struct ReplacedNode {
    node: Node,
    directory: tempfile::TempDir,
}

impl ReplacedNode {
    fn new() -> ReplacedNode {
        ReplacedNode::with_sources(|_| Sources::default())
    }

    fn with_sources(sources: impl FnOnce(&Path) -> Sources) -> ReplacedNode {
        let directory = tempfile::tempdir().unwrap();
        let parts = NodeParts {
            sources: sources(directory.path()),
            ..parts(&directory.path().join("control.sock"))
        };
        let node = Node::start_with(parts).unwrap();
        ReplacedNode { node, directory }
    }

    /// Has a process take over once there is the file `go`.
    fn begin(&self) -> oneshot::Receiver<Result<UpgradeReport, UpgradeError>> {
        let script = format!(
            "touch \"$0/started\"; until [ -e \"$0/go\" ]; do sleep 0.01; done; export {SOCKET_VARIABLE}=\"$0/control.sock\"; \
             exec \"$1\" --exact hot_restart::tests::the_successor_of_a_test --ignored --nocapture"
        );
        let outcome = self.node.begin_upgrade(self.request(&script));
        self.read("started");
        outcome
    }

    /// Lets it take over, and ends it.
    fn let_it_take_over(&self, outcome: oneshot::Receiver<Result<UpgradeReport, UpgradeError>>) {
        std::fs::write(self.file("go"), "").unwrap();
        let report = outcome.blocking_recv().unwrap().unwrap();
        let process = rustix::process::Pid::from_raw(report.process as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The script has the directory as `$0`, this program as `$1`.
    fn request(&self, script: &str) -> UpgradeRequest {
        let program = std::env::current_exe().unwrap();
        let arguments = [
            "-c".into(),
            script.into(),
            self.directory.path().into(),
            program.into(),
        ];
        UpgradeRequest {
            binary: Some("/bin/sh".into()),
            arguments: Some(arguments.to_vec()),
            ready_within: Some(WAIT_MAX),
        }
    }

    /// Waits until a script has written a file.
    fn read(&self, name: &str) -> String {
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Ok(text) = std::fs::read_to_string(self.file(name)) {
                return text;
            }
            assert!(Instant::now() < until, "there is no {name}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_node_that_is_to_end_does_not_wait_for_its_successor_to_get_ready() {
    let replaced = ReplacedNode::new();
    let request = replaced.request("echo $$ > \"$0/new\"; mv \"$0/new\" \"$0/process\"; exec sleep 1000");
    let outcome = replaced.node.begin_upgrade(request);
    let process = replaced.read("process");
    replaced.node.shut_down(Shutdown::Drain);
    let outcome = outcome.blocking_recv().unwrap();
    assert!(matches!(outcome, Err(UpgradeError::ShuttingDown)), "{outcome:?}");
    let process = Path::new("/proc").join(process.trim());
    assert!(!process.exists(), "the new process lives on");
    replaced.node.join();
}

#[test]
fn a_node_that_is_to_end_does_not_wait_for_a_reload_before_it_would_be_replaced() {
    let replaced = ReplacedNode::with_sources(|directory| Sources {
        file: Some(directory.join("provostd.toml")),
        ..Sources::default()
    });
    let pipe = replaced.file("schemas.pb");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    let prefetch = format!("[schemas]\nprefetch = [\"{}\"]\n", pipe.display());
    std::fs::write(replaced.file("provostd.toml"), prefetch).unwrap();
    std::thread::scope(|scope| {
        let reloading = scope.spawn(|| replaced.node.reload());
        // The reload reads the pipe from here on, until what writes it is dropped.
        let written = std::fs::File::options().write(true).open(&pipe).unwrap();
        let until = Instant::now() + WAIT_MAX;
        // One more than may wait has been taken only once the first does not wait in the queue any more.
        let mut taken = Vec::new();
        while taken.len() <= UPGRADES_WAITING_MAX {
            let mut outcome = replaced.node.begin_upgrade(replaced.request("exit 1"));
            if outcome.try_recv().is_err() {
                taken.push(outcome);
            }
            assert!(Instant::now() < until, "no upgrade begins");
        }
        replaced.node.shut_down(Shutdown::Drain);
        let outcome = loop {
            if let Ok(outcome) = taken[0].try_recv() {
                break outcome;
            }
            assert!(Instant::now() < until, "it waits for the reload");
            std::thread::yield_now();
        };
        assert!(matches!(outcome, Err(UpgradeError::ShuttingDown)), "{outcome:?}");
        drop(written);
        assert!(reloading.join().unwrap().is_err());
    });
    replaced.node.join();
}

#[test]
fn a_successor_that_may_take_longer_than_others_should_wait_is_not_started() {
    let replaced = ReplacedNode::new();
    let request = UpgradeRequest {
        ready_within: Some(READY_WITHIN_MAX + Duration::from_millis(1)),
        ..replaced.request("touch \"$0/started\"")
    };
    let outcome = replaced.node.upgrade(request);
    assert!(
        matches!(outcome, Err(UpgradeError::ReadyWithin(_))),
        "{outcome:?}"
    );
    assert!(!replaced.file("started").exists());
}

#[test]
fn a_change_that_waits_while_the_node_is_replaced_is_refused() {
    let replaced = ReplacedNode::new();
    let outcome = replaced.begin();
    let (asks, asked) = mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        let node = &replaced.node;
        let changing = scope.spawn(move || {
            let attachment = Attachment::of_kind("null");
            let at = Position::Last;
            asks.send(()).unwrap();
            node.change(Change::Attach { attachment, at }, Mode::Apply)
        });
        asked.recv().unwrap();
        // Orders come in their order: when this one is refused, the change before it waits for its turn.
        assert!(replaced.node.write_config().is_err());
        replaced.let_it_take_over(outcome);
        let changed = changing.join().unwrap();
        assert!(matches!(changed, Err(ChangeError::Replaced)), "{changed:?}");
    });
}

#[test]
fn what_a_node_is_told_once_it_was_replaced_is_not_forgotten() {
    for (told, by) in [
        (None, (|_| ()) as fn(&Node)),
        (Some(PassedOn::Reload), Node::ask_to_reload),
        (Some(PassedOn::Shutdown), |node| node.shut_down(Shutdown::Drain)),
    ] {
        let replaced = ReplacedNode::new();
        let outcome = replaced.begin();
        replaced.let_it_take_over(outcome);
        while !replaced.node.has_ended() {
            std::thread::sleep(Duration::from_millis(1));
        }
        by(&replaced.node);
        assert_eq!(replaced.node.told_last(), told);
    }
}

#[test]
fn nothing_is_written_back_by_a_process_that_was_replaced() {
    let replaced = ReplacedNode::with_sources(|directory| Sources {
        file: Some(directory.join("provostd.toml")),
        ..Sources::default()
    });
    std::fs::write(replaced.file("provostd.toml"), "").unwrap();
    let attachment = Attachment::of_kind("null");
    let at = Position::Last;
    let attach = Change::Attach { attachment, at };
    replaced.node.change(attach, Mode::Apply).unwrap();
    let outcome = replaced.begin();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| replaced.node.write_config());
        replaced.let_it_take_over(outcome);
        let written = writing.join().unwrap();
        assert!(
            matches!(
                written,
                Err(ReloadError::Policy(ChangeError::Replaced | ChangeError::Ending))
            ),
            "{written:?}"
        );
    });
    assert_eq!(replaced.read("provostd.toml"), "");
}

#[test]
#[ignore = "another test starts it in a process of its own, which takes over from that one"]
fn the_successor_of_a_test() {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else {
        return;
    };
    let predecessor = Predecessor::at_standard_input().unwrap();
    Node::hot_restart(parts(Path::new(&socket)), predecessor)
        .unwrap()
        .join();
}
