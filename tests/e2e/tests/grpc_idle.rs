//! Connections of gRPC clients, each of which has called and then says nothing, beside others that call: what the quiet ones cost the
//! node in memory.

mod grpc_client;
mod raw_grpc;

use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use grpc_client::{EchoMessage, place, tcp_listener};
use prost::Message;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, World, watched};
use provost_grpc::{GrpcConfig, GrpcConnection, GrpcEvent, GrpcMessage, MessageForm, RequestHead};
use provost_wire::Code;
use raw_grpc::RawEnd;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Calls of each client that is not idle, beside its first one.
const CALLS: usize = 5;
/// Memory of the node for each idle connection, with its datapath and the server's end of that, in pages that no other process has:
/// half as much again as the most that it takes today.
const BYTES_MAX: u64 = 33 << 10;
/// Descriptors of the test and of the node beside one for each connection.
const OTHER_DESCRIPTORS: u64 = 1_000;
/// Threads on which clients connect and call.
const THREADS: usize = 4;

/// A client that speaks HTTP/2 over a socket of its own.
struct QuietClient(RawEnd);

impl QuietClient {
    fn connect(to: SocketAddr) -> QuietClient {
        let socket = TcpStream::connect(to).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let grpc = GrpcConnection::client(GrpcConfig::default(), 1);
        QuietClient(RawEnd::new(grpc, Box::new(socket)))
    }

    /// Has the server echo a text.
    fn echo(&mut self, text: &str) {
        let sent = EchoMessage {
            text: text.to_owned(),
            ..EchoMessage::default()
        };
        let message = GrpcMessage {
            form: MessageForm::Plain,
            bytes: sent.encode_to_vec(),
        };
        let now = self.0.now();
        let head = RequestHead::new("/probe.Probe/Echo".to_owned());
        let call = self.0.grpc.call(&head, now).unwrap();
        self.0.send(call, &message);
        self.0.grpc.half_close(call, now).unwrap();
        let mut echoed = None;
        loop {
            match self.0.next().expect("the node is there") {
                GrpcEvent::Message { message, .. } => echoed = Some(message),
                GrpcEvent::Ended { status, .. } => {
                    assert_eq!(status.code, Code::Ok, "{status:?}");
                    assert_eq!(echoed, Some(message));
                    return;
                }
                _ => {}
            }
        }
    }
}

/// So many clients, each of which has called once.
fn clients(to: SocketAddr, count: usize) -> Vec<QuietClient> {
    let connecting = move || {
        let mut clients = Vec::new();
        for _ in 0..count / THREADS {
            let mut client = QuietClient::connect(to);
            client.echo("first");
            clients.push(client);
        }
        clients
    };
    let threads: Vec<JoinHandle<_>> = (0..THREADS).map(|_| std::thread::spawn(connecting)).collect();
    threads
        .into_iter()
        .flat_map(|thread| thread.join().unwrap())
        .collect()
}

/// Has clients call in turns, from several threads.
fn call_in_turns(clients: &mut [QuietClient]) {
    std::thread::scope(|scope| {
        let share = clients.len().div_ceil(THREADS);
        for share in clients.chunks_mut(share) {
            scope.spawn(move || {
                for _ in 0..CALLS {
                    share.iter_mut().for_each(|client| client.echo("again"));
                }
            });
        }
    });
}

/// Memory that a process has for itself: of all its pages those that nobody else has.
fn private_bytes(process: u32) -> u64 {
    let rollup = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    let kibibytes = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kibibytes.sum::<u64>() << 10
}

/// Lets this process have a descriptor for each client; whether the kernel does.
fn may_open(descriptors: u64) -> bool {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= descriptors) {
        return true;
    }
    let raised = Rlimit {
        current: Some(descriptors),
        maximum: limit.maximum.map(|maximum| maximum.max(descriptors)),
    };
    setrlimit(Resource::Nofile, raised).is_ok()
}

/// A node with room for all of them, which does not ask the quiet ones whether they are there: none of them reads what it is asked.
fn spacious_node(world: &mut World, descriptors: u64) -> Node {
    let room = 2 * descriptors;
    let of = |key: &str| format!("{key} = {room}\n");
    let limits = [
        "apps",
        "apps_per_user",
        "connections",
        "connections_per_user",
        "connections_per_app",
    ];
    let options = NodeOptions {
        limits: limits.map(of).concat(),
        tables: tcp_listener("web", "web") + "[timeouts]\nkeepalive_interval_ms = 600000\n",
        descriptors_max: Some(descriptors),
        ..NodeOptions::default()
    };
    world.node("one", &options)
}

/// What so many idle connections cost a node, each, while so many others call.
fn idle_connections_take_little(idle_count: usize, active_count: usize) {
    let descriptors = (idle_count + active_count) as u64 + OTHER_DESCRIPTORS;
    if !may_open(descriptors) {
        return provost_skip::forbidden(format_args!("a process may not have {descriptors} descriptors"));
    }
    watched(move || {
        let mut world = World::new(ROLE);
        let node = spacious_node(&mut world, descriptors);
        let _server = world.server(&node);
        let address = place(&node, "web").replace("http://", "").parse().unwrap();
        let mut active = clients(address, active_count);
        call_in_turns(&mut active);
        let before = private_bytes(node.process());
        let mut idle = clients(address, idle_count);
        call_in_turns(&mut active);
        let after = private_bytes(node.process());
        let each = after.saturating_sub(before) / idle_count as u64;
        println!("{before} bytes before, {after} after: {each} for each of {idle_count} connections");
        assert!(each < BYTES_MAX, "{each} bytes for each idle connection");
        // They are there still.
        call_in_turns(&mut active);
        idle.iter_mut()
            .step_by(100)
            .for_each(|client| client.echo("still"));
    });
}

#[test]
fn idle_connections_take_little_beside_others_that_call() {
    idle_connections_take_little(1_000, 100);
}

#[test]
#[ignore = "a measurement: some ten seconds of two cores"]
fn ten_thousand_idle_connections_take_little_beside_a_thousand_others() {
    idle_connections_take_little(10_000, 1_000);
}
