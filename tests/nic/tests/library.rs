//! Generated clients and servers in one program, whose calls simulated NICs carry: the stubs that call over any transport.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use provost::{Channel, Code, Received, Request, Response, Status};
use provost_datagram::Checking;
use provost_datagram_rpc::{RpcConfig, RpcThread, RpcThreadBuilder};
use provost_hello::hello::greeter_client::{self, GreeterClient};
use provost_hello::hello::greeter_server::{Greeter, GreeterServer};
use provost_hello::hello::{GreetReply, GreetRequest};
use provost_kv::proto::kv_client::{self, KvClient};
use provost_kv::proto::kv_server::KvServer;
use provost_kv::proto::{
    Entry, GetRequest, PutRequest, ScanRequest, SyncRequest, scan_request, sync_reply, sync_request,
};
use provost_kv::service::KvService;
use provost_kv::store::Store;
use provost_nic_rpc::{NicStartError, SimulatedNicDriver};
use provost_nic_tests::say_skipped;
use provost_udp::UdpWire;

/// Bytes of a value that takes all seven packets of a message, nearly.
const LARGE_BYTES: usize = 9_000;
/// Bytes of one that no message of the NIC holds.
const TOO_LARGE_BYTES: usize = 20_000;

/// A greeter that does what the name says, and counts those that it forgets.
#[derive(Clone, Default)]
struct MoodyGreeter(Arc<AtomicUsize>);

struct SleepCounter(Arc<AtomicUsize>);

impl Drop for SleepCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Greeter for MoodyGreeter {
    async fn greet(&self, request: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        let name = request.get_ref().name.to_string();
        if name == "fail" {
            let mut status = Status::with_details(Code::Aborted, "out of spite", vec![1, 2, 3]);
            status.metadata_mut().insert("mood", "bad").unwrap();
            return Err(status);
        }
        if name == "sleep" {
            let _asleep = SleepCounter(self.0.clone());
            std::future::pending::<()>().await;
        }
        let bytes = name.strip_prefix("repeat ").map(|count| count.parse().unwrap());
        let text = bytes.map_or_else(|| format!("Hello, {name}!"), |count| "h".repeat(count));
        let mut response = Response::new(GreetReply {
            text: text.as_str().into(),
        });
        if let Some(user) = request.metadata().get("user") {
            response.metadata_mut().insert("before", user).unwrap();
            response.trailers_mut().insert("after", user).unwrap();
        }
        Ok(response)
    }
}

/// What an end is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndKind {
    Nic,
    Software,
}

fn localhost() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// Starts a thread, if there is a model of the NIC.
fn start(builder: RpcThreadBuilder, end: EndKind) -> Option<RpcThread<SocketAddr>> {
    if end == EndKind::Software {
        let mut config = RpcConfig::default();
        // As the NIC knows it.
        config.datagram.checking = Checking::Packets;
        let wire = UdpWire::bind(localhost(), 1472).unwrap();
        return Some(builder.config(config).start(wire).unwrap());
    }
    match SimulatedNicDriver::bind(localhost()) {
        Ok(driver) => Some(builder.start_over(driver).unwrap()),
        Err(NicStartError::Model(reason)) => {
            say_skipped(reason);
            None
        }
        Err(other) => panic!("{other}"),
    }
}

/// A client's thread and a server's.
struct LinkedPair {
    near: RpcThread<SocketAddr>,
    far: RpcThread<SocketAddr>,
    forgotten: Arc<AtomicUsize>,
}

impl LinkedPair {
    fn of(near: EndKind, far: EndKind) -> Option<LinkedPair> {
        let moody = MoodyGreeter::default();
        let server = RpcThread::builder()
            .add_service(GreeterServer::new(moody.clone()))
            .add_service(KvServer::new(KvService::new(Arc::new(Store::default()))));
        Some(LinkedPair {
            near: start(RpcThread::builder(), near)?,
            far: start(server, far)?,
            forgotten: moody.0,
        })
    }

    async fn greeter(&self) -> GreeterClient {
        GreeterClient::new(self.channel(&greeter_client::SERVICE).await)
    }

    async fn kv(&self) -> KvClient {
        KvClient::new(self.channel(&kv_client::SERVICE).await)
    }

    async fn channel(&self, service: &'static provost::codegen::ServiceDescriptor) -> Channel {
        self.near.channel(service, self.far.address()).await.unwrap()
    }
}

fn run(test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap()
        .block_on(test);
}

fn ask(name: impl AsRef<str>) -> GreetRequest {
    GreetRequest {
        name: name.as_ref().into(),
    }
}

fn entry(key: &str, bytes: usize) -> Entry {
    Entry {
        key: key.into(),
        value: vec![7; bytes].as_slice().into(),
        ..Entry::default()
    }
}

fn put(key: &str, bytes: usize) -> PutRequest {
    PutRequest {
        entry: entry(key, bytes).into(),
        ..PutRequest::default()
    }
}

/// Unary calls of every outcome, and more at a time than a session has slots.
async fn greet(pair: &LinkedPair) {
    let client = pair.greeter().await;
    let reply = client.greet(ask("Ann")).await.unwrap();
    assert_eq!(reply.get_ref().text, "Hello, Ann!");
    let failed = client.greet(ask("fail")).await.unwrap_err();
    assert_eq!((failed.code(), failed.message()), (Code::Aborted, "out of spite"));
    assert_eq!(
        (failed.details(), failed.metadata().get("mood")),
        (&[1, 2, 3][..], Some("bad"))
    );
    let mut request = Request::new(ask("Eve"));
    request.metadata_mut().insert("user", "eve").unwrap();
    let reply = client.greet(request).await.unwrap();
    assert_eq!(
        (reply.metadata().get("before"), reply.trailers().get("after")),
        (Some("eve"), Some("eve"))
    );
    let mut late = Request::new(ask("sleep"));
    late.set_timeout(Duration::from_millis(100));
    assert_eq!(
        client.greet(late).await.unwrap_err().code(),
        Code::DeadlineExceeded
    );
    while pair.forgotten.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for bytes in [1, 1_300, 1_500, LARGE_BYTES, 1] {
        let reply = client.greet(ask(format!("repeat {bytes}"))).await.unwrap();
        assert_eq!(reply.get_ref().text.len(), bytes);
        let long = "x".repeat(bytes.min(LARGE_BYTES / 2));
        let reply = client.greet(ask(&long)).await.unwrap();
        assert_eq!(reply.get_ref().text, format!("Hello, {long}!").as_str());
    }
    let calls = (0..100).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let reply = client.greet(ask(format!("number {number}"))).await.unwrap();
            assert_eq!(reply.get_ref().text, format!("Hello, number {number}!").as_str());
        })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
}

/// The key-value service: unary, and streams in each direction and in both.
async fn store(pair: &LinkedPair) {
    let client = pair.kv().await;
    client.put(put("large", LARGE_BYTES)).await.unwrap();
    let found = client.get(GetRequest { key: "large".into() }).await.unwrap();
    assert_eq!(found.get_ref().entry.as_ref().unwrap().value.len(), LARGE_BYTES);
    let (mut sender, entries) = provost::stream(4);
    let loading = client.load(entries);
    let sending = async move {
        for number in 0..200 {
            sender
                .send(entry(&format!("n{number:04}"), number * 11))
                .await
                .unwrap();
        }
    };
    let (summary, ()) = tokio::join!(loading, sending);
    assert_eq!(summary.unwrap().get_ref().entries, 200);
    let keys = scan_request::Keys::Prefix("n".into());
    let mut scanned = client
        .scan(ScanRequest {
            keys,
            ..ScanRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    let mut count = 0;
    while let Some(entry) = scanned.message().await.unwrap() {
        assert_eq!(
            (entry.key.to_string(), entry.value.len()),
            (format!("n{count:04}"), count * 11)
        );
        count += 1;
    }
    assert_eq!(count, 200);
    let (mut sender, actions) = provost::stream(1);
    let mut replies = client.sync(actions).await.unwrap().into_inner();
    for id in 0..20 {
        let action = sync_request::Action::Get("large".into());
        sender.send(SyncRequest { id, action }).await.unwrap();
        let reply = replies.message().await.unwrap().unwrap();
        assert_eq!(reply.id, id);
        assert!(
            matches!(&reply.outcome, sync_reply::Outcome::Found(found) if found.value.len() == LARGE_BYTES)
        );
    }
    drop(sender);
    assert!(replies.message().await.unwrap().is_none());
}

#[test]
fn the_same_stubs_call_over_two_nics() {
    let Some(pair) = LinkedPair::of(EndKind::Nic, EndKind::Nic) else {
        return;
    };
    run(async {
        greet(&pair).await;
        store(&pair).await;
    });
}

#[test]
fn the_other_end_may_be_software() {
    for (near, far) in [
        (EndKind::Nic, EndKind::Software),
        (EndKind::Software, EndKind::Nic),
    ] {
        let Some(pair) = LinkedPair::of(near, far) else {
            return;
        };
        run(async {
            greet(&pair).await;
            store(&pair).await;
        });
    }
}

/// What no message of the NIC holds fails alone, with the bound, wherever it comes from: a request, a response, a stream of either end.
#[test]
fn what_is_too_large_fails_alone() {
    let Some(pair) = LinkedPair::of(EndKind::Nic, EndKind::Nic) else {
        return;
    };
    run(async {
        let (kv, greeter) = (pair.kv().await, pair.greeter().await);
        let refused = [
            kv.put(put("long", TOO_LARGE_BYTES)).await.unwrap_err(),
            greeter
                .greet(ask(format!("repeat {TOO_LARGE_BYTES}")))
                .await
                .unwrap_err(),
        ];
        for status in refused {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        }
        let (mut sender, entries) = provost::stream(4);
        let sending = async move {
            let sent = sender.send(entry("fine", 10)).await;
            sent.and(sender.send(entry("long", TOO_LARGE_BYTES)).await)
        };
        let (loaded, _) = tokio::join!(kv.load(entries), sending);
        let status = loaded.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(status.message().contains("takes"), "{status:?}");
        let fine = greeter.greet(ask("Ann")).await.unwrap();
        assert_eq!(fine.get_ref().text, "Hello, Ann!");
    });
}

/// A peer that is not there, and one that goes.
#[test]
fn calls_end_when_nobody_answers() {
    let Some(LinkedPair { near, far, .. }) = LinkedPair::of(EndKind::Nic, EndKind::Nic) else {
        return;
    };
    run(async {
        let nobody = std::net::UdpSocket::bind(localhost()).unwrap();
        let refused = near
            .channel(&greeter_client::SERVICE, nobody.local_addr().unwrap())
            .await;
        assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
        let v6 = near
            .channel(&greeter_client::SERVICE, "[::1]:7".parse().unwrap())
            .await;
        assert_eq!(v6.unwrap_err().code(), Code::Unavailable);
        let client = GreeterClient::new(
            near.channel(&greeter_client::SERVICE, far.address())
                .await
                .unwrap(),
        );
        let waiting = tokio::spawn({
            let client = client.clone();
            async move { client.greet(ask("sleep")).await }
        });
        client.greet(ask("Ann")).await.unwrap();
        tokio::task::spawn_blocking(|| drop(far)).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap_err().code(), Code::Unavailable);
    });
}
