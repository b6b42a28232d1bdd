//! Streams of generated clients and servers over datagram: the key-value service as the node's service offers it too,
//! and one that does what its caller asks for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use provost::codegen::Stream;
use provost::{Code, Received, Request, Response, Status, StreamSender, Streaming};
use provost_datagram_rpc::{Address, Algorithm, RpcConfig, RpcThread, Wire};
use provost_kv::proto::kv_client::{self, KvClient};
use provost_kv::proto::kv_server::{Kv, KvServer};
use provost_kv::proto::{
    DeleteReply, DeleteRequest, Entry, GetReply, GetRequest, LoadSummary, PutReply, PutRequest, ScanRequest,
    SyncReply, SyncRequest, scan_request, sync_reply, sync_request,
};
use provost_kv::service::KvService;
use provost_kv::store::Store;
use provost_packets::InProcess;
use provost_udp::UdpWire;

use crate::moody::until;
use crate::{runtime, udp};

/// A client's thread and a server with this service.
struct Pair<A: Address + Send + Sync + 'static> {
    near: RpcThread<A>,
    far: RpcThread<A>,
}

/// A thread that calls. What it takes for a congested network, on a machine that others keep busy, would slow it down.
fn calling<W>(wire: W) -> RpcThread<W::Address>
where
    W: Wire<Address: Send + Sync + 'static> + Send + 'static,
{
    let mut config = RpcConfig::default();
    config.datagram.congestion.algorithm = Algorithm::Off;
    RpcThread::builder().config(config).start(wire).unwrap()
}

impl<A: Address + Send + Sync + 'static> Pair<A> {
    fn of<W>(near: W, far: W, service: impl Kv) -> Pair<A>
    where
        W: Wire<Address = A> + Send + 'static,
    {
        let server = RpcThread::builder().add_service(KvServer::new(service));
        Pair {
            near: calling(near),
            far: server.start(far).unwrap(),
        }
    }

    async fn client(&self) -> KvClient {
        let channel = self.near.channel(&kv_client::SERVICE, self.far.address()).await;
        KvClient::new(channel.unwrap())
    }
}

fn within_a_process(service: impl Kv) -> Pair<u8> {
    let (near, far) = InProcess::pair(1500, 1024);
    Pair::of(near, far, service)
}

fn entry(key: String, value_bytes: usize) -> Entry {
    Entry {
        key: key.as_str().into(),
        value: vec![7; value_bytes].as_slice().into(),
        ..Entry::default()
    }
}

/// Entries of many sizes: of less than a packet, of several, of more than goes together with others.
fn entries(count: usize) -> Vec<Entry> {
    let bytes = |number: usize| match number % 100 {
        17 => 200_000,
        step if step % 10 == 3 => 5_000,
        step => step,
    };
    (0..count)
        .map(|number| entry(format!("{number:05}"), bytes(number)))
        .collect()
}

async fn all_of(mut scanned: Streaming<Entry>) -> Vec<(String, usize)> {
    let mut all = Vec::new();
    while let Some(entry) = scanned.message().await.unwrap() {
        all.push((entry.key.to_string(), entry.value.len()));
    }
    all
}

fn action(id: u64, key: &str) -> SyncRequest {
    SyncRequest {
        id,
        action: sync_request::Action::Get(key.into()),
    }
}

/// All three kinds of streams, of more bytes than their windows, and beside each other.
fn every_kind<W>(near: W, far: W)
where
    W: Wire<Address: Send + Sync + 'static> + Send + 'static,
{
    let pair = Pair::of(near, far, KvService::new(Arc::new(Store::default())));
    runtime().block_on(async {
        let client = pair.client().await;
        let sent = entries(1000);
        let expected: Vec<(String, usize)> = sent
            .iter()
            .map(|entry| (entry.key.to_string(), entry.value.len()))
            .collect();
        let summary = client.load(iterate(sent)).await.unwrap();
        let bytes: usize = expected.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(
            (summary.get_ref().entries, summary.get_ref().value_bytes),
            (1000, bytes as u64)
        );
        let scanned = client.scan(ScanRequest::default()).await.unwrap();
        assert_eq!(all_of(scanned.into_inner()).await, expected);

        // More at a time than a session has slots.
        let tasks = (0..40).map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let actions = iterate((0..50).map(|id| action(id, "00013")));
                let mut replies = client.sync(actions).await.unwrap().into_inner();
                for id in 0..50 {
                    let reply = replies.message().await.unwrap().unwrap();
                    assert_eq!(reply.id, id, "stream {number}");
                    assert!(matches!(&reply.outcome, sync_reply::Outcome::Found(found) if found.value.len() == 5_000));
                }
                assert!(replies.message().await.unwrap().is_none());
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        // One after the other, each answered before the next is asked.
        let (mut sender, actions) = provost::stream(1);
        let mut replies = client.sync(actions).await.unwrap().into_inner();
        for id in 0..200 {
            sender.send(action(id, "nothing")).await.unwrap();
            let reply = replies.message().await.unwrap().unwrap();
            assert_eq!((reply.id, &reply.outcome), (id, &sync_reply::Outcome::Missing(true)));
        }
        drop(sender);
        assert!(replies.message().await.unwrap().is_none());
    });
}

/// A stream of what an iterator has.
fn iterate<I>(items: I) -> Iterated<I::IntoIter>
where
    I: IntoIterator,
{
    Iterated(items.into_iter())
}

struct Iterated<I>(I);

impl<I: Iterator + Unpin> Stream for Iterated<I> {
    type Item = I::Item;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<I::Item>> {
        Poll::Ready(self.0.next())
    }
}

#[test]
fn streams_of_all_kinds_pass_within_a_process() {
    let (near, far) = InProcess::pair(1500, 1024);
    every_kind(near, far);
}

#[test]
fn streams_of_all_kinds_pass_over_udp() {
    every_kind(udp(), udp());
}

/// A service whose methods do what the prefix, or the metadata `how`, says.
#[derive(Clone, Default)]
struct Odd(Arc<Seen>);

#[derive(Default)]
struct Seen {
    begun: AtomicUsize,
    produced: AtomicUsize,
    dropped: AtomicUsize,
}

/// Entries without end, counted.
struct Endless(Arc<Seen>);

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

type Responses = Pin<Box<dyn Stream<Item = Result<Entry, Status>> + Send>>;

impl Stream for Endless {
    type Item = Result<Entry, Status>;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let number = self.0.produced.fetch_add(1, Ordering::SeqCst);
        Poll::Ready(Some(Ok(entry(format!("{number:09}"), 1000))))
    }
}

fn not_here<T>() -> Result<T, Status> {
    Err(Status::unimplemented("not in this test"))
}

impl Kv for Odd {
    async fn get(&self, _: Request<Received<GetRequest>>) -> Result<Response<GetReply>, Status> {
        Ok(Response::new(GetReply::default()))
    }

    async fn put(&self, _: Request<Received<PutRequest>>) -> Result<Response<PutReply>, Status> {
        not_here()
    }

    async fn delete(&self, _: Request<Received<DeleteRequest>>) -> Result<Response<DeleteReply>, Status> {
        not_here()
    }

    type ScanStream = Responses;

    async fn scan(&self, request: Request<Received<ScanRequest>>) -> Result<Response<Responses>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let scan_request::Keys::Prefix(how) = &request.get_ref().keys else {
            return not_here();
        };
        let responses: Responses = match how.as_str() {
            "endless" => Box::pin(Endless(self.0.clone())),
            "fail" => {
                let mut status = Status::with_details(Code::Aborted, "out of spite", vec![1, 2, 3]);
                status.metadata_mut().insert("mood", "bad").unwrap();
                let entries = entries(3).into_iter().map(Ok);
                Box::pin(iterate(entries.chain([Err(status)])))
            }
            "panic" => panic!("as asked"),
            "refuse" => return Err(Status::permission_denied("not you")),
            "large" => Box::pin(iterate([Ok(entry("large".to_owned(), 3 << 20))])),
            _ => Box::pin(iterate(entries(2).into_iter().map(Ok))),
        };
        let mut response = Response::new(responses);
        if let Some(user) = request.metadata().get("user") {
            response.metadata_mut().insert("before", user).unwrap();
            response.trailers_mut().insert("after", user).unwrap();
        }
        Ok(response)
    }

    async fn load(&self, request: Request<Streaming<Entry>>) -> Result<Response<LoadSummary>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        match request.metadata().get("how") {
            Some("refuse") => Err(Status::permission_denied("not you")),
            _ => {
                let _dropped = Endless(self.0.clone());
                std::future::pending().await
            }
        }
    }

    type SyncStream = Pin<Box<dyn Stream<Item = Result<SyncReply, Status>> + Send>>;

    async fn sync(
        &self,
        request: Request<Streaming<SyncRequest>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(Box::pin(Waiting {
            requests: request.into_inner(),
            _dropped: Endless(self.0.clone()),
        })))
    }
}

/// Answers nothing, and knows how its requests end.
struct Waiting {
    requests: Streaming<SyncRequest>,
    _dropped: Endless,
}

impl Stream for Waiting {
    type Item = Result<SyncReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match Pin::new(&mut self.requests).poll_next(context) {
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(status))) => Poll::Ready(Some(Err(status))),
            _ => Poll::Pending,
        }
    }
}

fn prefix(how: &str) -> ScanRequest {
    ScanRequest {
        keys: scan_request::Keys::Prefix(how.into()),
        ..ScanRequest::default()
    }
}

#[test]
fn statuses_metadata_and_trailers_pass() {
    let pair = within_a_process(Odd::default());
    runtime().block_on(async {
        let client = pair.client().await;
        let mut request = Request::new(prefix("ask"));
        request.metadata_mut().insert("user", "ann").unwrap();
        let response = client.scan(request).await.unwrap();
        assert_eq!(response.metadata().get("before"), Some("ann"));
        let mut entries = response.into_inner();
        while entries.message().await.unwrap().is_some() {}
        assert_eq!(entries.trailers().unwrap().get("after"), Some("ann"));

        let mut entries = client.scan(prefix("fail")).await.unwrap().into_inner();
        for _ in 0..3 {
            assert!(entries.message().await.unwrap().is_some());
        }
        let failed = entries.message().await.unwrap_err();
        assert_eq!((failed.code(), failed.message()), (Code::Aborted, "out of spite"));
        assert_eq!(
            (failed.details(), failed.metadata().get("mood")),
            (&[1, 2, 3][..], Some("bad"))
        );
        assert!(entries.message().await.unwrap().is_none(), "the end is told once");

        let refused = client.scan(prefix("refuse")).await.map(drop).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (Code::PermissionDenied, "not you")
        );
        let panicked = client.scan(prefix("panic")).await.map(drop).unwrap_err();
        assert_eq!(panicked.code(), Code::Internal);
        let mut request = Request::new(iterate(entries_without_end()));
        request.metadata_mut().insert("how", "refuse").unwrap();
        let refused = client.load(request).await.map(drop).unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied);
        // A message that is larger than the window, and than any response that is kept ready.
        let large = client.scan(prefix("large")).await.unwrap().into_inner();
        assert_eq!(all_of(large).await, [("large".to_owned(), 3 << 20)]);
    });
}

fn entries_without_end() -> impl Iterator<Item = Entry> + Send + Unpin {
    (0..).map(|number| entry(format!("{number:09}"), 1000))
}

/// Entries of 1000 bytes that fill a window, with what one goes beyond it.
const WINDOW_ENTRIES: usize = (1 << 20) / 1000 + 1;

#[test]
fn a_stream_that_nobody_reads_stands_still_and_holds_up_nobody() {
    let odd = Odd::default();
    let seen = odd.0.clone();
    let pair = within_a_process(odd);
    runtime().block_on(async {
        let client = pair.client().await;
        let unread = client.scan(prefix("endless")).await.unwrap().into_inner();
        let mut read = client.scan(prefix("endless")).await.unwrap().into_inner();
        for _ in 0..3 * WINDOW_ENTRIES {
            assert!(read.message().await.unwrap().is_some());
        }
        drop(read);
        until(|| seen.dropped.load(Ordering::SeqCst) == 1).await;
        // Two of its windows can be on their way when it is dropped.
        let produced = seen.produced.load(Ordering::SeqCst);
        assert!(
            produced <= 6 * WINDOW_ENTRIES,
            "{produced} entries: nothing held them up"
        );
        client.get(GetRequest::default()).await.unwrap();
        assert_eq!(seen.dropped.load(Ordering::SeqCst), 1);
        drop(unread);
        until(|| seen.dropped.load(Ordering::SeqCst) == 2).await;

        // Requests stand still too. Only the window lets entries through to a server that takes none.
        let counted = Arc::new(AtomicUsize::new(0));
        let counts = counted.clone();
        let requests = entries_without_end().inspect(move |_| {
            counts.fetch_add(1, Ordering::SeqCst);
        });
        let loading = tokio::spawn({
            let client = client.clone();
            async move { client.load(iterate(requests)).await.map(drop) }
        });
        until(|| counted.load(Ordering::SeqCst) >= WINDOW_ENTRIES / 2).await;
        until(|| seen.begun.load(Ordering::SeqCst) == 3).await;
        client.get(GetRequest::default()).await.unwrap();
        let sent = counted.load(Ordering::SeqCst);
        assert!(sent <= WINDOW_ENTRIES + 1, "{sent} entries: nothing held them up");
        loading.abort();
        until(|| seen.dropped.load(Ordering::SeqCst) == 3).await;
    });
}

#[test]
fn a_stream_ends_at_its_deadline_and_its_handler_is_dropped() {
    let odd = Odd::default();
    let seen = odd.0.clone();
    let pair = within_a_process(odd);
    runtime().block_on(async {
        let client = pair.client().await;
        let (_sender, actions): (StreamSender<SyncRequest>, _) = provost::stream(1);
        let mut request = Request::new(actions);
        request.set_timeout(Duration::from_millis(50));
        let late = match client.sync(request).await {
            Ok(replies) => replies.into_inner().message().await.map(drop),
            Err(status) => Err(status),
        };
        assert_eq!(late.unwrap_err().code(), Code::DeadlineExceeded);
        until(|| seen.dropped.load(Ordering::SeqCst) == seen.begun.load(Ordering::SeqCst)).await;
        client.get(GetRequest::default()).await.unwrap();
    });
}

#[test]
fn streams_end_once_as_unavailable_when_the_server_goes_and_others_go_on_when_it_is_back() {
    let odd = Odd::default();
    let seen = odd.0.clone();
    let (near, far) = (udp(), udp());
    let at = far.address();
    let Pair { near, far } = Pair::of(near, far, odd.clone());
    runtime().block_on(async {
        let channel = near.channel(&kv_client::SERVICE, at).await.unwrap();
        let client = KvClient::new(channel);
        let mut streams = Vec::new();
        let mut senders = Vec::new();
        for _ in 0..20 {
            let (sender, actions) = provost::stream(1);
            senders.push(sender);
            streams.push(client.sync(actions).await.unwrap().into_inner());
        }
        assert_eq!(seen.begun.load(Ordering::SeqCst), 20);
        drop(far);
        for stream in &mut streams {
            let lost = stream.message().await.unwrap_err();
            assert_eq!(lost.code(), Code::Unavailable);
            assert!(stream.message().await.unwrap().is_none(), "the end is told once");
        }
        assert_eq!(seen.dropped.load(Ordering::SeqCst), 20);

        let builder = RpcThread::builder().add_service(KvServer::new(odd));
        let far = builder.start(UdpWire::bind(at, 1472).unwrap()).unwrap();
        let again = client.scan(prefix("ask")).await.unwrap().into_inner();
        assert_eq!(all_of(again).await.len(), 2);

        let (_sender, actions) = provost::stream(1);
        let mut open = client.sync(actions).await.unwrap().into_inner();
        drop(near);
        assert_eq!(open.message().await.unwrap_err().code(), Code::Unavailable);
        let nobody = client.scan(prefix("ask")).await.map(drop).unwrap_err();
        assert_eq!(nobody.code(), Code::Unavailable);
        // The server hears goodbye, and drops the handler.
        until(|| seen.dropped.load(Ordering::SeqCst) == 21).await;
        drop(far);
    });
}

#[test]
fn a_channel_that_had_streams_ends_its_session_when_it_is_dropped() {
    let pair = within_a_process(Odd::default());
    runtime().block_on(async {
        // One session only: without its end there is no room for the next.
        let mut config = RpcConfig::default();
        config.datagram.sessions_max = 1;
        let (near, far) = InProcess::pair(1500, 1024);
        let server = RpcThread::builder().add_service(KvServer::new(Odd::default()));
        let far = server.start(far).unwrap();
        let near = RpcThread::builder().config(config).start(near).unwrap();
        for _ in 0..3 {
            let mut channel = near.channel(&kv_client::SERVICE, far.address()).await;
            while channel.is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
                channel = near.channel(&kv_client::SERVICE, far.address()).await;
            }
            let client = KvClient::new(channel.unwrap());
            let entries = client.scan(prefix("ask")).await.unwrap().into_inner();
            assert_eq!(all_of(entries).await.len(), 2);
        }
        drop(pair);
    });
}

#[test]
fn handlers_of_streams_run_where_they_are_spawned() {
    let runtime = runtime();
    let tasks = runtime.handle().clone();
    let (near, far) = InProcess::pair(1500, 1024);
    let near = calling(near);
    let kv = KvService::new(Arc::new(Store::default()));
    let server = RpcThread::builder().add_service(KvServer::new(kv));
    let server = server.spawn(move |handler| {
        tasks.spawn(handler);
    });
    let _far = server.start(far).unwrap();
    runtime.block_on(async {
        let client = KvClient::new(near.channel(&kv_client::SERVICE, 1).await.unwrap());
        client.load(iterate(entries(500))).await.unwrap();
        let scanned = client.scan(ScanRequest::default()).await.unwrap();
        assert_eq!(all_of(scanned.into_inner()).await.len(), 500);
    });
}

#[test]
fn blocking_clients_have_streams_too() {
    let pair = within_a_process(KvService::new(Arc::new(Store::default())));
    let channel = provost::blocking::block_on(pair.near.channel(&kv_client::SERVICE, 1)).unwrap();
    let client = kv_client::blocking::KvClient::new(channel);
    assert_eq!(client.load(entries(200)).unwrap().get_ref().entries, 200);
    let scanned = client.scan(ScanRequest::default()).unwrap().into_inner();
    assert_eq!(scanned.map(Result::unwrap).count(), 200);
}
