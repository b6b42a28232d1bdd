//! The service without a node: the same handlers and the same clients, within this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use provost::blocking::block_on;
use provost::codegen::{Methods, Service, ServiceDescriptor, unary};
use provost::shared::Bytes;
use provost::{
    CallContext, CallDefaults, CallHead, Channel, Code, Received, Request, Response, Server, Status, context,
};
use provost_kv::proto::kv_client::{KvClient, SERVICE};
use provost_kv::proto::kv_server::KvServer;
use provost_kv::proto::*;
use provost_kv::service::KvService;

fn client() -> KvClient {
    KvClient::new(Channel::in_process(KvServer::new(KvService::default())).unwrap())
}

fn entry(key: &str, value_bytes: usize) -> Entry {
    Entry {
        key: key.into(),
        value: Bytes::zeroed(value_bytes),
        ..Entry::default()
    }
}

fn get(key: &str) -> GetRequest {
    GetRequest { key: key.into() }
}

#[test]
fn calls_of_all_kinds_reach_their_handlers() {
    block_on(async {
        let client = client();
        assert_eq!(client.get(get("a")).await.unwrap_err().code(), Code::NotFound);
        // More than the window of a stream, both ways.
        let (mut sender, entries) = provost::stream(4);
        let load = client.load(entries);
        let send = async {
            for number in 0..40 {
                sender
                    .send(entry(&format!("{number:02}"), 100_000))
                    .await
                    .unwrap();
            }
            drop(sender);
        };
        let (summary, ()) = tokio::join!(load, send);
        let summary = summary.unwrap();
        assert_eq!(
            (summary.get_ref().entries, summary.get_ref().value_bytes),
            (40, 4_000_000)
        );
        let mut scanned = client.scan(ScanRequest::default()).await.unwrap().into_inner();
        let mut keys = Vec::new();
        while let Some(entry) = scanned.message().await.unwrap() {
            assert_eq!(entry.value.len(), 100_000);
            keys.push(entry.key.to_string());
        }
        assert!(keys.len() == 40 && keys.is_sorted());
        let (mut actions, requests) = provost::stream(1);
        let mut replies = client.sync(requests).await.unwrap().into_inner();
        for id in 0..10 {
            let action = sync_request::Action::Get("07".into());
            actions.send(SyncRequest { id, action }).await.unwrap();
            let reply = replies.message().await.unwrap().unwrap();
            assert_eq!(reply.id, id);
            assert!(matches!(&reply.outcome, sync_reply::Outcome::Found(entry) if entry.key == "07"));
        }
        drop(actions);
        assert!(replies.message().await.unwrap().is_none());
        assert!(
            client
                .get(get("39"))
                .await
                .unwrap()
                .get_ref()
                .entry
                .as_deref()
                .is_some()
        );
    });
}

#[test]
fn interceptors_peer_and_bounds_are_those_of_the_server() {
    let only_tills = |call: &mut CallHead<'_>| {
        let peer = call.peer();
        match peer.as_ref().and_then(|peer| peer.app()) {
            Some(app) if app.name == "till" => Ok(()),
            _ => Err(Status::permission_denied("not a till")),
        }
    };
    let server = || {
        let builder = Server::builder().add_service(KvServer::new(KvService::default()));
        builder
            .intercept(only_tills)
            .request_bytes_max(5_000)
            .in_process()
            .unwrap()
    };
    let app = |name| provost::PeerApp {
        name,
        user: "",
        uid: 1,
        workload: "",
    };
    let stranger = KvClient::new(server().called_by(app("stranger")).channel(&SERVICE).unwrap());
    let till = KvClient::new(server().called_by(app("till")).channel(&SERVICE).unwrap());
    let put = |bytes| PutRequest {
        entry: entry("a", bytes).into(),
        ..PutRequest::default()
    };
    assert_eq!(
        block_on(stranger.put(put(10))).unwrap_err().code(),
        Code::PermissionDenied
    );
    assert_eq!(
        block_on(stranger.scan(ScanRequest::default()))
            .unwrap_err()
            .code(),
        Code::PermissionDenied
    );
    assert!(block_on(till.put(put(10))).is_ok());
    assert_eq!(
        block_on(till.put(put(10_000))).unwrap_err().code(),
        Code::ResourceExhausted
    );
    assert!(Server::builder().in_process().unwrap().channel(&SERVICE).is_err());
}

/// Has `Get` alone: it hangs, panics, or says what it sees, as the key wants it.
#[derive(Clone, Default)]
struct OddService {
    dropped: Arc<AtomicU64>,
}

impl Service for OddService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn register(&self, methods: &mut Methods) {
        let dropped = self.dropped.clone();
        methods.unary(0, move |request: Request<Received<GetRequest>>| {
            let dropped = dropped.clone();
            async move {
                let _count = CountDrop(dropped);
                match &*request.get_ref().key {
                    "panic" => panic!("as the test wants it"),
                    "hang" => std::future::pending().await,
                    _ => {}
                }
                let left = request.time_left().map_or(0, |left| left.as_secs());
                let inherited = CallContext::current();
                let mut entry = entry(inherited.traceparent().unwrap_or("none"), left as usize);
                entry.updated_unix_ns = inherited.time_left().map_or(0, |left| left.as_secs()) as i64;
                let mut response = Response::new(GetReply { entry: entry.into() });
                response.metadata_mut().insert("before", "1").unwrap();
                response.trailers_mut().insert("after", "2").unwrap();
                Ok(response)
            }
        });
    }
}

struct CountDrop(Arc<AtomicU64>);

impl Drop for CountDrop {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn handlers_end_with_their_calls() {
    let service = OddService::default();
    let client = KvClient::new(Channel::in_process(service.clone()).unwrap());
    let dropped = || service.dropped.load(Ordering::SeqCst);
    assert_eq!(
        block_on(client.get(get("panic"))).unwrap_err().code(),
        Code::Internal
    );
    assert_eq!(dropped(), 1);
    let mut late = Request::new(get("hang"));
    late.set_timeout(Duration::from_millis(20));
    assert_eq!(
        block_on(client.get(late)).unwrap_err().code(),
        Code::DeadlineExceeded
    );
    assert_eq!(dropped(), 2);
    let mut call = Box::pin(client.get(get("hang")));
    let polled = block_on(std::future::poll_fn(|task| {
        std::task::Poll::Ready(call.as_mut().poll(task))
    }));
    assert!(polled.is_pending() && dropped() == 2);
    drop(call);
    assert_eq!(dropped(), 3);
    assert_eq!(
        block_on(client.scan(ScanRequest::default())).unwrap_err().code(),
        Code::Unimplemented
    );
    let request = Request::new(PutRequest::default());
    let wrong = block_on(unary::<PutRequest, PutReply>(client.channel(), 1, request));
    assert_eq!(wrong.unwrap_err().code(), Code::Unimplemented);
}

#[test]
fn deadline_metadata_and_context_are_the_calls_own() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let defaults = CallDefaults::new().timeout(Duration::from_secs(100));
    let channel = Channel::in_process(OddService::default()).unwrap();
    let client = KvClient::new(channel.with_defaults(defaults));
    let own = CallContext::new().with_metadata("traceparent", TRACE).unwrap();
    let response = context::enter(own.with_metadata("x-other", "1").unwrap(), || {
        block_on(client.get(get("look")))
    });
    let response = response.unwrap();
    assert_eq!(response.metadata().get("before"), Some("1"));
    assert_eq!(response.trailers().get("after"), Some("2"));
    let entry = response.get_ref().entry.as_deref().unwrap();
    assert_eq!(entry.key, TRACE);
    assert!((90..=100).contains(&entry.value.len()) && (90..=100).contains(&entry.updated_unix_ns));
    let response = block_on(client.get(get("look"))).unwrap();
    assert_eq!(response.get_ref().entry.as_deref().unwrap().key, "none");
}

#[test]
fn a_stream_that_always_has_a_message_ends_at_its_deadline() {
    block_on(async {
        let client = client();
        let (mut sender, entries) = provost::stream(4);
        let load = client.load(entries);
        // More than the window of a stream: the handler has not ended when the deadline passes.
        let send = async {
            for number in 0..40 {
                let entry = entry(&format!("{number:02}"), 100_000);
                sender.send(entry).await.unwrap();
            }
            drop(sender);
        };
        let (loaded, ()) = tokio::join!(load, send);
        assert!(loaded.is_ok());
        let mut scan = Request::new(ScanRequest::default());
        scan.set_timeout(Duration::from_millis(300));
        let mut scanned = client.scan(scan).await.unwrap().into_inner();
        assert!(scanned.message().await.unwrap().is_some());
        std::thread::sleep(Duration::from_millis(350));
        let status = loop {
            match scanned.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream was read to its end"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), Code::DeadlineExceeded);
    });
}
