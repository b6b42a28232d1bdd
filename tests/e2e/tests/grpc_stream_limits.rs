//! gRPC servers that allow few streams at a time, or none for a while (SETTINGS_MAX_CONCURRENT_STREAMS): calls wait within their
//! deadlines, and each is carried out once.

mod grpc_client;
#[path = "grpc_out/tonic_probe.rs"]
mod tonic_probe;
mod stream_limits {
    pub(crate) mod proxy;
}

use std::time::Duration;

use grpc_client::{DripMessage, GrpcProbe, HoldReply, HoldRequest, PourRequest, place, routed, run, spawn};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Ask, Echo};
use provost_e2e::{Node, World, built, eventually, watched};
use stream_limits::proxy::LimitingProxy;
use tokio::task::JoinHandle;
use tonic::{Code, Request, Status};
use tonic_probe::TonicServer;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/probe.proto");
const CLIENTS: usize = 4;
const CALLS_OF_CLIENT: usize = 8;

/// How many nodes stand between clients and the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NodesBetween {
    One,
    Two,
}

/// A tonic server, a proxy before it that says how many streams it takes, and nodes that clients reach it through.
struct LimitedSetting {
    proxy: LimitingProxy,
    /// The node that clients connect to.
    front: Node,
    _back: Option<Node>,
    /// A client of the server itself.
    direct: GrpcProbe,
    world: World,
    _server: TonicServer,
}

impl LimitedSetting {
    fn new(between: NodesBetween, streams_max: u32) -> LimitedSetting {
        let server = TonicServer::start();
        let proxy = LimitingProxy::to(server.address, streams_max);
        let mut world = World::new(ROLE);
        let more = "export = true\napp = \"front\"\n";
        let mut front = world.node("one", &routed("grpc", proxy.address(), more));
        let mut back = None;
        if between == NodesBetween::Two {
            let before = world.node("before", &routed("tcp", front.address, ""));
            back = Some(std::mem::replace(&mut front, before));
        }
        for node in std::iter::once(&front).chain(&back) {
            node.operate(&["schema", "prefetch", PROTO]);
        }
        LimitedSetting {
            proxy,
            front,
            _back: back,
            direct: GrpcProbe::at(&format!("http://{}", server.address)),
            world,
            _server: server,
        }
    }

    /// A client with a connection of its own.
    fn client(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.front, "web"))
    }

    fn begun(&self, key: &str) -> u64 {
        run(self.direct.counts(key)).begun
    }

    /// Each of so many calls was carried out, and none twice.
    fn assert_carried_out(&self, key: &str, calls: usize) {
        let counts = run(self.direct.counts(key));
        assert_eq!(
            (counts.begun, counts.finished),
            (calls as u64, calls as u64),
            "{counts:?}"
        );
        assert_eq!(self.proxy.streams_over_limit(), 0);
    }
}

fn held(key: &str, milliseconds: u32) -> Request<HoldRequest> {
    Request::new(HoldRequest {
        key: key.to_owned(),
        milliseconds,
    })
}

/// Begins so many calls at once.
fn begin(
    client: &GrpcProbe,
    key: &str,
    milliseconds: u32,
    calls: usize,
) -> Vec<JoinHandle<Result<(), Status>>> {
    let call = |_| {
        let (client, request) = (client.clone(), held(key, milliseconds));
        spawn(async move { client.request::<_, HoldReply>("Hold", request).await.map(drop) })
    };
    (0..calls).map(call).collect()
}

fn all_succeed(calls: Vec<JoinHandle<Result<(), Status>>>) {
    for call in calls {
        run(call).unwrap().expect("no call fails");
    }
}

/// Makes a call that has to wait for longer than it may.
fn call_comes_to_its_deadline(client: &GrpcProbe, key: &str) {
    let mut late = held(key, 0);
    late.set_timeout(Duration::from_millis(200));
    let late = run(client.request::<_, HoldReply>("Hold", late)).unwrap_err();
    assert!(
        matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{late:?}"
    );
}

fn assert_one_stream_at_a_time(between: NodesBetween) {
    built::program("provost", "provost-cli", ROLE);
    watched(move || {
        let mut setting = LimitedSetting::new(between, 1);
        let clients: Vec<GrpcProbe> = (0..CLIENTS).map(|_| setting.client()).collect();
        let calls = clients
            .iter()
            .flat_map(|client| begin(client, "many", 10, CALLS_OF_CLIENT))
            .collect();
        all_succeed(calls);
        setting.assert_carried_out("many", CLIENTS * CALLS_OF_CLIENT);
        // Each client's calls have a connection of their own.
        assert_eq!(setting.proxy.connections(), CLIENTS);
        // A native app's calls wait likewise.
        setting.world.agent(&setting.front).succeeds(Ask::Echo(Echo {
            calls: 60,
            in_flight: 12,
            bytes: 20_000,
            ..Echo::default()
        }));

        // While a stream has the only place, a call waits as long as it may, and others' connections are free.
        let request = PourRequest {
            key: "pour".to_owned(),
            count: u32::MAX,
            bytes: 1_000,
            ..PourRequest::default()
        };
        let mut pour = run(clients[0].server_streaming::<_, DripMessage>("Pour", request)).unwrap();
        assert_eq!(run(pour.message()).unwrap().unwrap().number, 1);
        call_comes_to_its_deadline(&clients[0], "late");
        assert_eq!(setting.begun("late"), 0);
        all_succeed(begin(&clients[1], "beside", 0, 3));
        let waiting = begin(&clients[0], "after", 0, 3);
        assert_eq!(setting.begun("after"), 0);
        drop(pour);
        all_succeed(waiting);
        setting.assert_carried_out("after", 3);
    });
}

fn assert_no_streams_for_a_while(between: NodesBetween) {
    const CALLS: usize = 20;
    built::program("provost", "provost-cli", ROLE);
    watched(move || {
        let mut setting = LimitedSetting::new(between, 0);
        let client = setting.client();
        let waiting = begin(&client, "first", 0, CALLS);
        call_comes_to_its_deadline(&client, "late");
        if between == NodesBetween::One {
            // Those that wait are carried too.
            println!("{:?}", setting.front.replace());
        }
        assert_eq!(setting.begun("first"), 0);
        setting.proxy.allow(2);
        all_succeed(waiting);
        setting.assert_carried_out("first", CALLS);

        // Calls under way end as they would when none is allowed any more.
        let calls = begin(&client, "second", 50, CALLS);
        eventually("some calls have begun", WAIT_MAX, || setting.begun("second") >= 3);
        setting.proxy.allow(0);
        eventually("the node has heard of it", WAIT_MAX, || {
            setting.proxy.streams_open() == 0
        });
        let begun = setting.begun("second");
        assert!(begun < CALLS as u64, "they were over before");
        call_comes_to_its_deadline(&client, "late");
        assert_eq!(setting.begun("second"), begun);
        setting.proxy.allow(1);
        all_succeed(calls);
        setting.assert_carried_out("second", CALLS);
        assert_eq!(setting.begun("late"), 0);
        assert_eq!(setting.proxy.connections(), 1);
    });
}

#[test]
fn calls_wait_for_a_server_of_one_stream_at_a_time() {
    assert_one_stream_at_a_time(NodesBetween::One);
}

#[test]
fn calls_wait_for_a_server_of_one_stream_at_a_time_behind_two_nodes() {
    assert_one_stream_at_a_time(NodesBetween::Two);
}

#[test]
fn calls_wait_for_a_server_that_allows_no_stream_for_a_while() {
    assert_no_streams_for_a_while(NodesBetween::One);
}

#[test]
fn calls_wait_for_a_server_that_allows_no_stream_for_a_while_behind_two_nodes() {
    assert_no_streams_for_a_while(NodesBetween::Two);
}
