//! Generated clients and servers in one program, whose calls simulated NICs carry: the stubs that call over any transport.

#[path = "../../../apps/hello/tests/datagram/moody.rs"]
mod moody;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use provost::{Channel, Code};
use provost_datagram::Checking;
use provost_datagram_rpc::{RpcConfig, RpcThread, RpcThreadBuilder};
use provost_hello::hello::greeter_client::{self, GreeterClient};
use provost_hello::hello::greeter_server::GreeterServer;
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

use crate::moody::{
    MoodyGreeter, SeenCalls, ask, calls_have_every_outcome, given_up_calls_drop_their_handlers,
};

/// Bytes of a value that takes all seven packets of a message, nearly.
const LARGE_BYTES: usize = 9_000;
/// Bytes of one that no message of the NIC holds.
const TOO_LARGE_BYTES: usize = 20_000;

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
    seen: Arc<SeenCalls>,
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
            seen: moody.0,
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

/// Unary calls of every outcome, of up to a message's packets, and more at a time than a session has slots.
async fn greet(pair: &LinkedPair) {
    let client = pair.greeter().await;
    let sizes = [1, 450, 500, LARGE_BYTES / 3, 1];
    calls_have_every_outcome(&client, &sizes, 100).await;
    given_up_calls_drop_their_handlers(&client, &pair.seen).await;
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
                .greet(ask(format!("repeat {}", TOO_LARGE_BYTES / 3)))
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

/// More clients than a NIC has sessions: those that say nothing make room, and have a session again with their next call.
#[test]
fn silent_clients_keep_nobody_out() {
    const SESSIONS: usize = 64;
    const IDLE: Duration = Duration::from_millis(300);
    let server = RpcThread::builder().add_service(GreeterServer::new(MoodyGreeter::default()));
    let far = match SimulatedNicDriver::bind_with(localhost(), IDLE) {
        Ok(driver) => server.start_over(driver).unwrap(),
        Err(NicStartError::Model(reason)) => return say_skipped(reason),
        Err(other) => panic!("{other}"),
    };
    let near = start(RpcThread::builder(), EndKind::Software).unwrap();
    run(async {
        let mut clients = Vec::new();
        for number in 0..SESSIONS {
            let channel = near.channel(&greeter_client::SERVICE, far.address()).await;
            let client = GreeterClient::new(channel.unwrap());
            client.greet(ask(format!("number {number}"))).await.unwrap();
            clients.push(client);
        }
        tokio::time::sleep(IDLE).await;
        for _ in 0..2 {
            let channel = near.channel(&greeter_client::SERVICE, far.address()).await;
            let newcomer = GreeterClient::new(channel.unwrap());
            newcomer.greet(ask("newcomer")).await.unwrap();
            clients.push(newcomer);
        }
        tokio::time::sleep(IDLE).await;
        // Of all of them, the first two have lost their sessions.
        for client in &clients[..3] {
            client.greet(ask("back")).await.unwrap();
        }
    });
}
