//! Generated clients and servers over datagram: within a process, over UDP, and between processes.

mod allocations;
mod moody;
mod streams;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use provost::codegen::Service;
use provost::{Channel, Code, Received, Request, Response, Status};
use provost_datagram_rpc::{RpcConfig, RpcThread, Wire};
use provost_hello::hello::greeter_client::{self, GreeterClient, SERVICE};
use provost_hello::hello::greeter_server::{Greeter, GreeterServer};
use provost_hello::hello::{GreetReply, GreetRequest};
use provost_kv::service::KvService;
use provost_kv::store::Store;
use provost_packets::InProcess;
use provost_udp::UdpWire;

use crate::moody::{MoodyGreeter, ask, calls_have_every_outcome, given_up_calls_drop_their_handlers, until};

/// How long anything may take.
const WAIT_MAX: Duration = Duration::from_secs(60);

struct Polite;

impl Greeter for Polite {
    async fn greet(&self, request: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        let text = format!("Hello, {}!", request.get_ref().name);
        Ok(Response::new(GreetReply { text: text.into() }))
    }
}

fn udp() -> UdpWire {
    UdpWire::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1472).unwrap()
}

/// A server, and a client's thread, over two wires.
fn pair<W>(near: W, far: W, moody: &MoodyGreeter) -> (RpcThread<W::Address>, RpcThread<W::Address>)
where
    W: Wire<Address: Send + Sync + 'static> + Send + 'static,
{
    let server = RpcThread::builder().add_service(GreeterServer::new(moody.clone()));
    (
        RpcThread::builder().start(near).unwrap(),
        server.start(far).unwrap(),
    )
}

fn runtime() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_time().build().unwrap()
}

fn everything<W>(near: W, far: W)
where
    W: Wire<Address: Send + Sync + 'static> + Send + 'static,
{
    let (near, far) = pair(near, far, &MoodyGreeter::default());
    runtime().block_on(async {
        let client = GreeterClient::new(near.channel(&SERVICE, far.address()).await.unwrap());
        // Of one packet, of several, larger than any buffer that is kept ready; there and back.
        let sizes = [1, 500, 5_000, 200_000, 500, 200_000];
        calls_have_every_outcome(&client, &sizes, 300).await;
    });
}

#[test]
fn the_same_stubs_work_within_a_process() {
    let (near, far) = InProcess::pair(1500, 1024);
    everything(near, far);
}

#[test]
fn the_same_stubs_work_over_udp() {
    everything(udp(), udp());
}

#[test]
fn a_call_that_is_given_up_has_its_handler_dropped() {
    let moody = MoodyGreeter::default();
    let (near, far) = InProcess::pair(1500, 1024);
    let (near, _far) = pair(near, far, &moody);
    runtime().block_on(async {
        let client = GreeterClient::new(near.channel(&SERVICE, 1).await.unwrap());
        given_up_calls_drop_their_handlers(&client, &moody.0).await;
    });
}

#[test]
fn calls_end_as_unavailable_when_the_server_goes_and_go_on_when_it_is_back() {
    let moody = MoodyGreeter::default();
    let (near, far) = (udp(), udp());
    let at = far.address();
    let (near, far) = pair(near, far, &moody);
    runtime().block_on(async {
        let client = GreeterClient::new(near.channel(&SERVICE, at).await.unwrap());
        let sleeping = tokio::spawn({
            let client = client.clone();
            async move { client.greet(ask("sleep")).await.map(drop) }
        });
        until(|| moody.0.asleep.load(Ordering::SeqCst) == 1).await;
        drop(far);
        let lost = sleeping.await.unwrap().unwrap_err();
        assert_eq!(lost.code(), Code::Unavailable);
        assert_eq!(moody.0.dropped.load(Ordering::SeqCst), 1);

        let again = UdpWire::bind(at, 1472).unwrap();
        let builder = RpcThread::builder().add_service(GreeterServer::new(Polite));
        let _far = builder.start(again).unwrap();
        assert_eq!(
            client.greet(ask("again")).await.unwrap().get_ref().text,
            "Hello, again!"
        );

        drop(near);
        assert_eq!(
            client.greet(ask("nobody")).await.unwrap_err().code(),
            Code::Unavailable
        );
    });
}

#[test]
fn a_channel_that_nobody_waits_for_any_more_keeps_no_session() {
    // Given up before it is there, and after that.
    for pause in [Duration::ZERO, Duration::from_millis(50)] {
        let mut config = RpcConfig::default();
        config.datagram.sessions_max = 1;
        let far = RpcThread::builder()
            .config(config)
            .add_service(GreeterServer::new(Polite))
            .start(udp())
            .unwrap();
        let near = RpcThread::builder().start(udp()).unwrap();
        runtime().block_on(async {
            let mut opening = Box::pin(near.channel(&SERVICE, far.address()));
            let polled =
                std::future::poll_fn(|context| Poll::Ready(opening.as_mut().poll(context).is_pending()));
            // Where the other thread is quicker than this one it is there already, and given up all the same.
            let _ = polled.await;
            tokio::time::sleep(pause).await;
            drop(opening);
            channel_when_room(&near, far.address()).await;
        });
    }
}

/// Opens a channel as soon as the server has room for its session.
async fn channel_when_room(near: &RpcThread<SocketAddr>, to: SocketAddr) -> Channel {
    let began = Instant::now();
    loop {
        match near.channel(&SERVICE, to).await {
            Ok(channel) => return channel,
            Err(status) => assert!(
                began.elapsed() < WAIT_MAX,
                "the session of before is still there: {status}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Holds its event loop up while it is told to.
#[derive(Clone, Default)]
struct HoldUp(Arc<[AtomicBool; 2]>);

impl Greeter for HoldUp {
    async fn greet(&self, _: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        let [is_held, may_go] = &*self.0;
        is_held.store(true, Ordering::SeqCst);
        while !may_go.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Ok(Response::new(GreetReply::default()))
    }
}

/// A thread that can be held up and may be asked for one thing beside, and one that has so many sessions at most.
fn held_up_pair(
    hold_up: &HoldUp,
    service: impl Service,
    sessions_max: usize,
) -> (RpcThread<SocketAddr>, RpcThread<SocketAddr>) {
    let (mut near, mut far) = (RpcConfig::default(), RpcConfig::default());
    near.mailbox_max = 1;
    far.datagram.sessions_max = sessions_max;
    let holder = GreeterServer::new(hold_up.clone());
    let near = RpcThread::builder().config(near).add_service(holder);
    let far = RpcThread::builder().config(far).add_service(service);
    (near.start(udp()).unwrap(), far.start(udp()).unwrap())
}

/// Does something while a thread takes nothing that others ask of it.
async fn while_held_up(near: &RpcThread<SocketAddr>, hold_up: &HoldUp, act: impl FnOnce()) {
    let caller = RpcThread::builder().start(udp()).unwrap();
    let client = GreeterClient::new(caller.channel(&SERVICE, near.address()).await.unwrap());
    let holding = tokio::spawn(async move { client.greet(ask("wait")).await.map(drop) });
    let [is_held, may_go] = &*hold_up.0;
    until(|| is_held.load(Ordering::SeqCst)).await;
    act();
    may_go.store(true, Ordering::SeqCst);
    holding.await.unwrap().unwrap();
}

#[test]
fn channels_that_are_dropped_while_their_thread_takes_nothing_keep_no_session() {
    let hold_up = HoldUp::default();
    let (near, far) = held_up_pair(&hold_up, GreeterServer::new(Polite), 2);
    runtime().block_on(async {
        let channels = [
            channel_when_room(&near, far.address()).await,
            channel_when_room(&near, far.address()).await,
        ];
        while_held_up(&near, &hold_up, || drop(channels)).await;
        // Of both, or there is no room for two others.
        let _first = channel_when_room(&near, far.address()).await;
        channel_when_room(&near, far.address()).await;
    });
}

#[test]
fn calls_that_are_given_up_while_their_thread_takes_nothing_have_their_handlers_dropped() {
    let (hold_up, moody) = (HoldUp::default(), MoodyGreeter::default());
    let (near, far) = held_up_pair(&hold_up, GreeterServer::new(moody.clone()), 64);
    runtime().block_on(async {
        let client = GreeterClient::new(channel_when_room(&near, far.address()).await);
        let mut calls = Vec::new();
        for count in 1..=3 {
            let mut call = Box::pin(client.greet(ask("sleep")));
            let polled =
                std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()));
            assert!(polled.await);
            calls.push(call);
            until(|| moody.0.asleep.load(Ordering::SeqCst) == count).await;
        }
        while_held_up(&near, &hold_up, || drop(calls)).await;
        until(|| moody.0.dropped.load(Ordering::SeqCst) == 3).await;
    });
}

#[test]
fn what_is_not_there_is_refused() {
    let (near, far) = (udp(), udp());
    let silent = udp();
    let mut config = RpcConfig::default();
    config.datagram.peer_timeout_ns = 200_000_000;
    let near = RpcThread::builder().config(config).start(near).unwrap();
    let far = RpcThread::builder()
        .add_service(GreeterServer::new(Polite))
        .start(far)
        .unwrap();
    runtime().block_on(async {
        let other = near
            .channel(&provost_kv::proto::kv_client::SERVICE, far.address())
            .await;
        assert_eq!(other.unwrap_err().code(), Code::Unimplemented);
        let nobody = near.channel(&SERVICE, silent.address()).await;
        assert_eq!(nobody.unwrap_err().code(), Code::Unavailable);
    });
}

/// The demonstration's key-value service, as the node's service offers it too.
#[test]
fn messages_of_all_shapes_pass() {
    use provost_kv::proto::{Entry, GetRequest, PutRequest, kv_client, kv_server};
    let (near, far) = InProcess::pair(1500, 1024);
    let near = RpcThread::builder().start(near).unwrap();
    let kv = KvService::new(Arc::new(Store::default()));
    let server = RpcThread::builder().add_service(kv_server::KvServer::new(kv));
    let _far = server.start(far).unwrap();
    runtime().block_on(async {
        let channel = near.channel(&kv_client::SERVICE, 1).await.unwrap();
        let client = kv_client::KvClient::new(channel);
        for bytes in [0, 10, 5_000, 100_000] {
            let mut entry = Entry {
                key: "ann".into(),
                value: vec![7; bytes].as_slice().into(),
                ..Entry::default()
            };
            entry.labels.insert("colour".into(), "blue".into());
            entry.labels.insert("age".into(), "old".into());
            let put = PutRequest {
                entry: Some(provost::shared::Box::new(entry)).into(),
                ..PutRequest::default()
            };
            client.put(put).await.unwrap();
            let reply = client.get(GetRequest { key: "ann".into() }).await.unwrap();
            let entry = reply.get_ref().entry.as_ref().unwrap();
            assert_eq!((entry.value.len(), entry.labels.len()), (bytes, 2));
            assert_eq!(entry.labels.get("colour").unwrap(), "blue");
        }
        let missing = client.get(GetRequest { key: "bob".into() }).await;
        assert_eq!(missing.map(drop).unwrap_err().code(), Code::NotFound);
    });
}

#[test]
fn handlers_run_where_they_are_spawned() {
    let runtime = runtime();
    let tasks = runtime.handle().clone();
    let moody = MoodyGreeter::default();
    let (near, far) = InProcess::pair(1500, 1024);
    let near = RpcThread::builder().start(near).unwrap();
    let server = RpcThread::builder().add_service(GreeterServer::new(moody.clone()));
    let server = server.spawn(move |handler| {
        tasks.spawn(handler);
    });
    let _far = server.start(far).unwrap();
    runtime.block_on(async {
        let client = GreeterClient::new(near.channel(&SERVICE, 1).await.unwrap());
        for number in 0..50 {
            let reply = client.greet(ask(format!("task {number}"))).await.unwrap();
            assert_eq!(reply.get_ref().text, format!("Hello, task {number}!").as_str());
        }
        assert_eq!(
            client.greet(ask("panic now")).await.unwrap_err().code(),
            Code::Internal
        );
    });
}

#[test]
fn a_blocking_client_needs_no_executor() {
    let (near, far) = InProcess::pair(1500, 1024);
    let (near, _far) = pair(near, far, &MoodyGreeter::default());
    let channel = provost::blocking::block_on(near.channel(&SERVICE, 1)).unwrap();
    let client = greeter_client::blocking::GreeterClient::new(channel);
    assert_eq!(client.greet(ask("Ann")).unwrap().get_ref().text, "Hello, Ann!");
}

/// A process that is ended when the test is over, however that was.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn two_processes_greet_each_other() {
    let server = Command::new(env!("CARGO_BIN_EXE_hello-datagram-server"))
        .args(["--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut server = Process(server);
    let mut address = String::new();
    let stdout = server.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut address).unwrap();
    let client = Command::new(env!("CARGO_BIN_EXE_hello-datagram-client"))
        .args(["--server", address.trim(), "Ann"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&client.stdout),
        "Hello, Ann!\n",
        "{client:?}"
    );
    assert!(client.status.success());
}
