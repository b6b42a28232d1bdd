//! Programs that speak gRPC and know nothing of Provost call services through a node: tonic as it is, against real nodes.

mod grpc_client;
#[allow(dead_code, reason = "the other test uses the rest of it")]
mod rpc_status;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grpc_client::traffic::{CountingProxy, SteadyTraffic};
use grpc_client::{
    DripMessage, EchoMessage, FailRequest, FillReply, GrpcProbe, HoldReply, HoldRequest, NoContent,
    PourRequest, place, run, spawn, tcp_listener,
};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::scrape::{metrics, value};
use provost_e2e::successor::Fault;
use provost_e2e::{Node, NodeOptions, Replacement, Server, World, built, eventually, watched};
use rustix::process::{Pid, Signal};
use tokio::task::JoinHandle;
use tonic::metadata::{BinaryMetadataValue, MetadataValue};
use tonic::{Code, Request, Status};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// A node with a listener, and a server on it.
struct GrpcWorld {
    world: World,
    node: Node,
    _server: Server,
}

fn listening() -> NodeOptions {
    NodeOptions {
        tables: tcp_listener("web", "web"),
        ..NodeOptions::default()
    }
}

impl GrpcWorld {
    fn new() -> GrpcWorld {
        GrpcWorld::with(&listening())
    }

    fn with(options: &NodeOptions) -> GrpcWorld {
        let mut world = World::new(ROLE);
        let node = world.node("one", options);
        let _server = world.server(&node);
        GrpcWorld { world, node, _server }
    }

    fn probe(&self) -> GrpcProbe {
        GrpcProbe::at(&place(&self.node, "web"))
    }
}

fn payload(bytes: usize) -> Vec<u8> {
    (0..=250).cycle().take(bytes).collect()
}

fn drips(count: u32, bytes: usize) -> Vec<DripMessage> {
    let drip = |number| DripMessage {
        number,
        payload: payload(bytes),
    };
    (1..=count).map(drip).collect()
}

/// Calls of all four kinds, with small and large messages.
async fn calls_of_all_kinds(probe: &GrpcProbe) {
    for bytes in [0, 100, 300_000, 3_000_000] {
        let message = EchoMessage {
            text: "text".to_owned(),
            payload: payload(bytes),
            numbers: vec![1, u64::MAX],
            labels: [("a".to_owned(), "b".to_owned())].into(),
        };
        let reply = probe.unary::<_, EchoMessage>("Echo", message.clone()).await;
        assert!(reply.unwrap() == message, "{bytes}");
    }
    for (count, bytes) in [(0, 0), (2_000, 100), (20, 300_000)] {
        let request = PourRequest {
            count,
            bytes: bytes as u32,
            ..PourRequest::default()
        };
        let mut pour = probe
            .server_streaming::<_, DripMessage>("Pour", request)
            .await
            .unwrap();
        let mut numbers = 0..;
        while let Some(drip) = pour.message().await.unwrap() {
            numbers.next();
            assert!(drip.number == numbers.start && drip.payload == payload(bytes));
        }
        assert_eq!(numbers.start, count);

        let requests = stream(drips(count, bytes));
        let filled: FillReply = probe.client_streaming("Fill", requests).await.unwrap();
        assert_eq!(
            (filled.count, filled.bytes),
            (count.into(), u64::from(count) * bytes as u64)
        );

        let requests = stream(drips(count, bytes));
        let mut chat = probe.streaming::<_, DripMessage>("Chat", requests).await.unwrap();
        for drip in drips(count, bytes) {
            assert!(chat.message().await.unwrap() == Some(drip));
        }
        assert_eq!(chat.message().await.unwrap(), None);
    }
}

/// A stream of these messages.
fn stream(
    messages: Vec<DripMessage>,
) -> impl tonic::codegen::tokio_stream::Stream<Item = DripMessage> + Send + 'static {
    tonic::codegen::tokio_stream::iter(messages)
}

#[test]
fn calls_of_all_kinds_go_through_one_node() {
    watched(|| {
        let world = GrpcWorld::new();
        run(calls_of_all_kinds(&world.probe()));
    });
}

#[test]
fn calls_of_all_kinds_go_through_two_nodes() {
    watched(|| {
        let mut world = World::new(ROLE);
        let b = world.node("b", &NodeOptions::default());
        let _server = world.server(&b);
        let options = NodeOptions {
            peer: Some(b.address),
            ..listening()
        };
        let a = world.node("a", &options);
        let probe = GrpcProbe::at(&place(&a, "web"));
        // A client brings no schema, nobody else has brought it to this node, and the app needs typed messages.
        let refused = run(probe.echo("a")).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains("schemas.prefetch"), "{refused}");
        let mut agent = world.agent(&a);
        agent.calls_well();
        // A refusal is remembered for a second.
        run(async {
            while probe.echo("a").await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            calls_of_all_kinds(&probe).await;
        });
    });
}

/// More large messages at a time than a connection has memory for: none fails.
#[test]
fn many_large_messages_come_at_a_time() {
    watched(|| {
        let world = GrpcWorld::new();
        let probe = world.probe();
        let upload = |probe: GrpcProbe| async move {
            let message = EchoMessage {
                payload: payload(3_000_000),
                ..EchoMessage::default()
            };
            let reply = probe.unary::<_, EchoMessage>("Echo", message.clone()).await;
            assert!(reply.unwrap() == message);
        };
        let uploads: Vec<_> = (0..40).map(|_| spawn(upload(probe.clone()))).collect();
        run(async {
            for upload in uploads {
                upload.await.unwrap();
            }
        });
    });
}

#[test]
fn metadata_goes_both_ways() {
    watched(|| {
        let world = GrpcWorld::new();
        let mut request = Request::new(NoContent {});
        let binary: BinaryMetadataValue = MetadataValue::from_bytes(&[0, 1, 254, 255]);
        request
            .metadata_mut()
            .insert("x-text", "some text".parse().unwrap());
        request.metadata_mut().append("x-twice", "one".parse().unwrap());
        request.metadata_mut().append("x-twice", "two".parse().unwrap());
        request.metadata_mut().insert_bin("x-bytes-bin", binary.clone());
        let (initial, trailing) = run(async {
            let response = world
                .probe()
                .responses::<_, NoContent>("Mirror", request)
                .await
                .unwrap();
            let initial = response.metadata().clone();
            let mut messages = response.into_inner();
            assert_eq!(messages.message().await.unwrap(), Some(NoContent {}));
            (initial, messages.trailers().await.unwrap().unwrap())
        });
        for metadata in [initial, trailing] {
            let of = |key: &str| {
                metadata
                    .get_all(key)
                    .iter()
                    .map(|value| value.to_str().unwrap().to_owned())
            };
            assert_eq!(of("x-text").collect::<Vec<_>>(), ["some text"]);
            assert_eq!(of("x-twice").collect::<Vec<_>>(), ["one", "two"]);
            let bytes: Vec<_> = metadata.get_all_bin("x-bytes-bin").iter().collect();
            assert_eq!(bytes, [&binary]);
        }
    });
}

#[test]
fn statuses_come_with_their_messages_and_details() {
    watched(|| {
        let world = GrpcWorld::new();
        let probe = world.probe();
        run(async {
            for code in 1..=16 {
                let request = FailRequest {
                    code,
                    message: "ünlucky: 100%".to_owned(),
                    details: vec![1, 2, 3],
                };
                let status = probe.unary::<_, NoContent>("Fail", request).await.unwrap_err();
                assert_eq!(status.code(), Code::from_i32(code as i32));
                assert_eq!(
                    (status.message(), status.details()),
                    ("ünlucky: 100%", &[1, 2, 3][..])
                );
            }
            assert_eq!(probe.echo("still").await.unwrap(), "still");
        });
    });
}

#[test]
fn standard_details_of_an_app_are_read_by_a_grpc_client() {
    watched(|| {
        let world = GrpcWorld::new();
        let probe = world.probe();
        let refusal = rpc_status::librarys();
        let request = FailRequest {
            code: refusal.code().number(),
            message: refusal.message().to_owned(),
            details: refusal.details().to_vec(),
        };
        run(async {
            let status = probe.unary::<_, NoContent>("Fail", request).await.unwrap_err();
            assert_eq!(
                (status.code(), status.message()),
                (Code::InvalidArgument, "no good")
            );
            rpc_status::assert_others_read(status.details());
        });
    });
}

fn hold(key: &str, milliseconds: u32) -> HoldRequest {
    HoldRequest {
        key: key.to_owned(),
        milliseconds,
    }
}

/// A call that is under way for so long.
fn held(probe: &GrpcProbe, key: &str, milliseconds: u32) -> JoinHandle<Result<HoldReply, Status>> {
    let (probe, request) = (probe.clone(), hold(key, milliseconds));
    spawn(async move { probe.unary("Hold", request).await })
}

#[test]
fn deadlines_and_cancellations_reach_the_handler() {
    watched(|| {
        let world = GrpcWorld::new();
        let probe = world.probe();
        run(async {
            let mut request = Request::new(hold("deadline", 1));
            request.set_timeout(Duration::from_secs(100));
            let reply = probe.request::<_, HoldReply>("Hold", request).await.unwrap();
            let left_ms = reply.into_inner().deadline_milliseconds;
            assert!((1..=100_000).contains(&left_ms), "{left_ms}");

            let mut request = Request::new(hold("deadline", 600_000));
            request.set_timeout(Duration::from_millis(100));
            let status = probe.request::<_, HoldReply>("Hold", request).await.unwrap_err();
            // tonic gives a call up itself when its time is over, and calls that so.
            assert!(
                matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
                "{status}"
            );
            while probe.counts("deadline").await.cancelled < 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }

            let held = held(&probe, "dropped", 600_000);
            while probe.counts("dropped").await.begun < 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            held.abort();
            while probe.counts("dropped").await.cancelled < 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }

            let request = PourRequest {
                key: "poured".to_owned(),
                count: 1_000_000,
                bytes: 1_000,
                ..PourRequest::default()
            };
            let mut pour = probe
                .server_streaming::<_, DripMessage>("Pour", request)
                .await
                .unwrap();
            pour.message().await.unwrap();
            drop(pour);
            while probe.counts("poured").await.cancelled < 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    });
}

fn is_refused(outcome: Result<String, Status>, code: Code, part: &str) {
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(part), "{status}");
}

#[test]
fn what_is_not_there_is_said_by_name() {
    watched(|| {
        let world = GrpcWorld::new();
        let probe = world.probe();
        run(async {
            let near = probe.of_service("probe.Prob").echo("a").await;
            is_refused(near, Code::Unimplemented, "did you mean probe.Probe?");
            let strange = probe.of_service("shop.Cart").echo("a").await;
            is_refused(strange, Code::Unimplemented, "known here: probe.Probe");
            let missing = probe.unary::<_, NoContent>("Ecko", NoContent {}).await;
            let told = "the service probe.Probe has no method Ecko";
            is_refused(missing.map(|_| String::new()), Code::Unimplemented, told);
            assert_eq!(probe.echo("there").await.unwrap(), "there");
        });
    });
}

/// Has a node read another configuration, and waits until it has.
fn reload(node: &mut Node, options: &NodeOptions) {
    let done = |node: &Node| node.program.log().matches("the configuration was ").count();
    let before = done(node);
    node.reconfigure(options);
    let process = Pid::from_raw(node.process() as i32).unwrap();
    rustix::process::kill_process(process, Signal::HUP).unwrap();
    eventually("the configuration is read", WAIT_MAX, || done(node) > before);
}

fn with_tables(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

/// How many calls succeed until one is over the limit.
async fn successes(probe: &GrpcProbe) -> usize {
    for count in 0..1_000 {
        if let Err(status) = probe.echo("a").await {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            return count;
        }
    }
    panic!("nothing limits the calls");
}

#[test]
fn policies_judge_the_calls_and_change_under_them() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let access = "[[policy]]\nname = \"acl\"\nkind = \"access\"\napp = \"web\"\n[policy.config]\ndefault = \"allow\"\n\
                      [[policy.config.rule]]\nname = \"no-secrets\"\nmethods = [\"/probe.Probe/Echo\"]\n\
                      when = \"request.text == 'secret'\"\naction = \"deny\"\n";
        let world = GrpcWorld::with(&with_tables(format!("{}{access}", tcp_listener("web", "web"))));
        let probe = world.probe();
        let operate = |command: &str| world.node.operate(&command.split(' ').collect::<Vec<_>>());
        run(async {
            assert_eq!(probe.echo("open").await.unwrap(), "open");
            is_refused(probe.echo("secret").await, Code::PermissionDenied, "no-secrets");
            operate("policy attach --kind rate-limit --app web --set requests_per_second=0.01 --set burst=5");
            assert_eq!(successes(&probe).await, 5);
            operate("policy detach rate-limit");
            for _ in 0..20 {
                probe.echo("open").await.unwrap();
            }
            operate("policy detach acl");
            assert_eq!(probe.echo("secret").await.unwrap(), "secret");
        });
    });
}

#[test]
fn operators_see_clients_as_they_do_apps() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("metrics.sock");
        let observe = format!("[observe]\nlisten = \"unix:{}\"\n", socket.display());
        let world = GrpcWorld::with(&with_tables(format!("{}{observe}", tcp_listener("web", "shop"))));
        let probe = world.probe();
        assert_eq!(run(probe.echo("a")).unwrap(), "a");
        let apps = world.node.operate(&["apps"]);
        let own = apps.lines().find(|line| line.contains("gRPC client, 127.0.0.1:"));
        assert!(own.is_some_and(|line| line.contains("shop")), "{apps}");
        let status = world.node.operate(&["status"]);
        assert!(
            status.contains("gRPC at") && status.contains("127.0.0.1:"),
            "{status}"
        );
        let datapaths = world.node.operate(&["datapath", "--app", "shop"]);
        assert!(datapaths.contains("probe.Probe"), "{datapaths}");
        let of_clients = |page: &str| value(page, "provost_grpc_clients", &["listener=\"web\""]);
        assert_eq!(of_clients(&metrics(&socket)), Some(1.0));
        drop(probe);
        eventually("the client is forgotten", WAIT_MAX, || {
            let page = metrics(&socket);
            of_clients(&page) == Some(0.0) && value(&page, "provost_apps", &[]) == Some(1.0)
        });
    });
}

/// What the server is told of the app that calls.
async fn who_calls(probe: &GrpcProbe) -> Result<String, Status> {
    let mut request = Request::new(NoContent {});
    let asked = MetadataValue::from_bytes(b"");
    request.metadata_mut().insert_bin("who-calls-bin", asked);
    let response = probe.request::<_, NoContent>("Mirror", request).await?;
    let told = response.metadata().get_all_bin("who-calls-bin").iter();
    let mut told = told.filter_map(|value| value.to_bytes().ok());
    let told = told.rfind(|value| !value.is_empty());
    Ok(String::from_utf8(told.unwrap_or_default().to_vec()).unwrap())
}

#[test]
fn at_a_unix_socket_a_client_is_who_the_kernel_says() {
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("grpc.sock");
        let own = rustix::process::geteuid().as_raw();
        let others = directory.path().join("others.sock");
        let listener = format!(
            "[[grpc.listener]]\nname = \"local\"\naddress = \"unix:{}\"\nmode = \"0600\"\n\
             [[grpc.listener]]\nname = \"others\"\naddress = \"unix:{}\"\napp = \"others\"\n",
            socket.display(),
            others.display()
        );
        let tables = |owner: u32| {
            with_tables(format!(
                "{listener}[[app]]\nname = \"e2e-role\"\nexecutables = [\"{ROLE}\"]\nmay_bind = [\"*\"]\n\
                 [[app]]\nname = \"others\"\nusers = [64001]\n\
                 [[app]]\nname = \"shop\"\nusers = [{owner}]\nmay_connect = [\"probe.*\"]\n"
            ))
        };
        let mut world = GrpcWorld::with(&tables(own));
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let probe = GrpcProbe::at(&format!("unix:{}", socket.display()));
        let told = run(who_calls(&probe)).unwrap();
        assert!(
            told.starts_with("shop ") && told.contains(&format!(" {own} ")),
            "{told}"
        );
        let other = run(probe.of_service("bank.Bank").echo("a"));
        is_refused(other, Code::PermissionDenied, "may_connect of [[app]] \"shop\"");

        let stranger = GrpcProbe::at(&format!("unix:{}", others.display()));
        is_refused(
            run(stranger.echo("a")),
            Code::PermissionDenied,
            "users of [[app]] \"others\"",
        );

        // The name is another user's from now on.
        reload(&mut world.node, &tables(64_002));
        run(async {
            while probe.echo("a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let mut refused = probe.echo("a").await;
            // The connection that ends may still take a call with it.
            while refused
                .as_ref()
                .is_err_and(|status| status.code() != Code::PermissionDenied)
            {
                refused = probe.echo("a").await;
            }
            is_refused(refused, Code::PermissionDenied, "no [[app]]");
        });
    });
}

#[test]
fn clients_have_a_share_of_apps_and_connections() {
    watched(|| {
        let limits = |limits: &str| NodeOptions {
            limits: limits.to_owned(),
            ..listening()
        };
        let mut world = GrpcWorld::with(&limits("apps_per_user = 2"));
        let place = place(&world.node, "web");
        let [first, second, third] = [(); 3].map(|()| GrpcProbe::at(&place));
        run(async {
            first.echo("a").await.unwrap();
            second.echo("a").await.unwrap();
            is_refused(
                third.echo("a").await,
                Code::ResourceExhausted,
                "limits.apps_per_user",
            );
        });
        // Users of whom the kernel tells have shares of their own.
        world.world.agent(&world.node).calls_well();
        drop(first);
        run(async {
            while third.echo("a").await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });

        reload(&mut world.node, &limits("connections_per_user = 2"));
        let fourth = GrpcProbe::at(&place);
        run(async {
            is_refused(
                fourth.echo("a").await,
                Code::ResourceExhausted,
                "limits.connections_per_user",
            );
            second.echo("a").await.unwrap();
        });
    });
}

#[test]
fn a_reload_adds_changes_and_removes_listeners() {
    watched(|| {
        let mut world = GrpcWorld::new();
        let first = world.probe();
        run(first.echo("a")).unwrap();

        let both = tcp_listener("web", "web") + &tcp_listener("more", "more");
        reload(&mut world.node, &with_tables(both.clone()));
        let more = GrpcProbe::at(&place(&world.node, "more"));
        assert!(run(who_calls(&more)).unwrap().starts_with("more "));

        // What cannot be opened is said, and changes nothing.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let bad = format!("[[grpc.listener]]\nname = \"bad\"\naddress = \"{address}\"\napp = \"bad\"\n");
        reload(&mut world.node, &with_tables(bad));
        let log = world.node.program.log();
        assert!(
            log.contains("grpc.listener \\\"bad\\\"") || log.contains("grpc.listener \"bad\""),
            "{log}"
        );
        run(first.echo("a")).unwrap();

        // One changes its app, the other goes: calls under way end as they would.
        let held = [held(&first, "kept", 2_000), held(&more, "kept", 2_000)];
        run(async {
            while first.counts("kept").await.begun < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        reload(&mut world.node, &with_tables(tcp_listener("web", "other")));
        run(async {
            while !who_calls(&first)
                .await
                .is_ok_and(|told| told.starts_with("other "))
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let mut refused = more.echo("a").await;
            while refused
                .as_ref()
                .is_err_and(|status| status.code() != Code::Unavailable)
            {
                refused = more.echo("a").await;
            }
            is_refused(refused, Code::Unavailable, "");
            for held in held {
                held.await.unwrap().unwrap();
            }
        });
    });
}

#[test]
fn a_shutdown_lets_calls_end() {
    watched(|| {
        let mut world = GrpcWorld::new();
        let probe = world.probe();
        let held = held(&probe, "last", 1_500);
        run(async {
            while probe.counts("last").await.begun < 1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        world.node.program.signal(Signal::TERM);
        run(held).unwrap().unwrap();
        let ended = world.node.program.ends_within(WAIT_MAX);
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
        assert_eq!(run(probe.echo("late")).unwrap_err().code(), Code::Unavailable);
    });
}

#[test]
fn hot_restarts_keep_connections_calls_and_streams() {
    const REPLACEMENTS: usize = 4;
    watched(|| {
        let mut world = GrpcWorld::new();
        let proxy = CountingProxy::to(&place(&world.node, "web"));
        let probe = GrpcProbe::at(&proxy.place());
        let traffic = SteadyTraffic::begin(&probe, "hot");
        for fault in [
            Fault::EndsAtTheState,
            Fault::EndsAmongParties,
            Fault::DeclinesAmongParties,
            Fault::EndsBeforeTheCommit,
        ] {
            world.node.set_faulty_successor(fault);
            let reason = world.node.try_replace().expect_err("it fails");
            println!("{reason}");
            traffic.go_on();
        }
        world.node.set_successor(None);
        for _ in 0..REPLACEMENTS {
            println!("{:?}", world.node.replace());
            traffic.go_on();
        }
        traffic.end();
        assert_eq!(proxy.connections(), 1, "the client has connected again");
        world.world.agent(&world.node).calls_well();
    });
}

#[test]
fn hot_restarts_keep_clients_that_are_quiet_or_wait() {
    watched(|| {
        let mut world = GrpcWorld::new();
        let proxy = CountingProxy::to(&place(&world.node, "web"));
        let probe = GrpcProbe::at(&proxy.place());
        assert_eq!(run(probe.echo("a")).unwrap(), "a");
        let held = held(&probe, "held", 1_500);
        run(async {
            while probe.counts("held").await.begun == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        // One that says nothing but what HTTP/2 begins with.
        let quiet = GrpcProbe::at(&proxy.place());
        assert_eq!(run(quiet.echo("b")).unwrap(), "b");
        world.node.replace();
        world.node.replace();
        assert!(run(held).unwrap().is_ok(), "the call ends well");
        assert_eq!(run(quiet.echo("c")).unwrap(), "c");
        assert_eq!(run(probe.echo("d")).unwrap(), "d");
        assert_eq!(proxy.connections(), 2, "a client has connected again");
    });
}

/// Clients that have called once, and say nothing more.
fn idle_clients(place: &str, count: usize) -> Vec<GrpcProbe> {
    let clients: Vec<GrpcProbe> = (0..count).map(|_| GrpcProbe::at(place)).collect();
    run(async {
        for client in &clients {
            client.echo("a").await.unwrap();
        }
    });
    clients
}

/// What each process that has taken over says of that.
fn told_of_restoring(node: &Node, what: &str) -> Vec<u64> {
    let log = node.program.log();
    let lines = log
        .lines()
        .filter(|line| line.contains("the state of another process has been restored"));
    let of_line = |line: &str| {
        let told = line.split(&format!(" {what}=")).nth(1)?;
        told.split(' ').next()?.parse().ok()
    };
    lines.filter_map(of_line).collect()
}

/// Connections of clients are made while others are still being saved, and so are their servers' ends.
#[test]
fn connections_are_made_as_clients_come() {
    const CLIENTS: u64 = 150;
    watched(|| {
        let mut world = GrpcWorld::new();
        let _clients = idle_clients(&place(&world.node, "web"), CLIENTS as usize);
        println!("{:?}", world.node.replace());
        let mut made = Vec::new();
        eventually("the new process has told it", WAIT_MAX, || {
            made = told_of_restoring(&world.node, "made_as_they_came");
            !made.is_empty()
        });
        // Of each client its own end, and the server's.
        assert!(made[0] >= 2 * CLIENTS, "{made:?}");
    });
}

#[test]
fn an_idle_client_adds_little_to_a_hot_restart_and_no_more_to_the_next() {
    const CLIENTS: u64 = 100;
    const RESTARTS: usize = 3;
    /// Bytes of one client, of its connection to the service, and of the server's end of that.
    const BYTES_MAX: u64 = 3 << 10;
    watched(|| {
        let mut world = GrpcWorld::new();
        let place = place(&world.node, "web");
        let without = world.node.replace();
        let clients = idle_clients(&place, CLIENTS as usize);
        let carried: Vec<Replacement> = (0..RESTARTS).map(|_| world.node.replace()).collect();
        let mut faults = Vec::new();
        // A process tells it when it serves.
        eventually("the last process has told it", WAIT_MAX, || {
            // Page faults while nobody served.
            faults = told_of_restoring(&world.node, "faults");
            faults.len() == 1 + RESTARTS
        });
        println!("{faults:?}");
        for of_clients in &faults[1..] {
            assert!(*of_clients < faults[0] + CLIENTS, "{faults:?}");
        }
        for replacement in &carried {
            let own = (replacement.state_bytes - without.state_bytes) / CLIENTS;
            assert!(own < BYTES_MAX, "{own} bytes each: {replacement:?}");
            let sockets = replacement.descriptors - without.descriptors;
            assert!(sockets >= CLIENTS, "each has its socket: {replacement:?}");
            // The first state may have a schema that the others begin with, and its socket.
            assert!(replacement.state_bytes <= carried[0].state_bytes, "{carried:?}");
        }
        run(async {
            for client in &clients {
                client.echo("b").await.unwrap();
            }
        });
    });
}

/// Calls one after the other, until the longest of them is asked for.
fn longest_call(probe: &GrpcProbe) -> impl FnOnce() -> Duration + use<> {
    let (probe, is_over) = (probe.clone(), Arc::new(AtomicBool::new(false)));
    let ends = Arc::clone(&is_over);
    let calls = spawn(async move {
        let mut longest = Duration::ZERO;
        while !is_over.load(Ordering::Relaxed) {
            let began = Instant::now();
            probe.echo("busy").await.unwrap();
            longest = longest.max(began.elapsed());
        }
        longest
    });
    move || {
        ends.store(true, Ordering::Relaxed);
        run(calls).unwrap()
    }
}

#[test]
#[ignore = "a measurement: it prints for how long nobody served"]
fn the_pause_of_a_hot_restart_with_a_thousand_idle_clients() {
    watched(|| {
        let mut world = GrpcWorld::new();
        let clients = idle_clients(&place(&world.node, "web"), 1_000);
        for _ in 0..5 {
            let longest = longest_call(&GrpcProbe::at(&place(&world.node, "web")));
            println!("{:?}", world.node.replace());
            std::thread::sleep(Duration::from_secs(1));
            println!("the longest call: {:?}", longest());
        }
        drop(clients);
    });
}

#[test]
fn clients_that_go_at_once_leave_nothing() {
    const CLIENTS: usize = 200;
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("metrics.sock");
        let observe = format!("[observe]\nlisten = \"unix:{}\"\n", socket.display());
        let world = GrpcWorld::with(&with_tables(format!("{}{observe}", tcp_listener("web", "web"))));
        let place = place(&world.node, "web");
        for number in 0..CLIENTS {
            let held = held(&GrpcProbe::at(&place), "short", 600_000);
            std::thread::sleep(Duration::from_micros(20 * number as u64));
            held.abort();
        }
        eventually("nothing is left of them", WAIT_MAX, || {
            let page = metrics(&socket);
            let of = |name: &str, labels: &[&str]| value(&page, name, labels);
            of("provost_grpc_clients", &["listener=\"web\""]) == Some(0.0)
                && of("provost_apps", &[]) == Some(1.0)
                && of("provost_runtime_apps", &[]) == Some(1.0)
                && of("provost_connections", &[]).is_none()
        });
    });
}
