//! A program that calls the key-value service, tested without the service: the test writes its answers down.

use std::time::Duration;

use provost::blocking::block_on;
use provost::{Code, MetadataMap, Request, Status};
use provost_kv::proto::kv_client::{KvClient, SERVICE};
use provost_kv::proto::*;
use provost_test::{MockAnswer, MockService};

fn get(key: &str) -> GetRequest {
    GetRequest { key: key.into() }
}

fn entry(key: &str) -> Entry {
    Entry {
        key: key.into(),
        ..Entry::default()
    }
}

fn found(key: &str) -> GetReply {
    GetReply {
        entry: entry(key).into(),
    }
}

#[test]
fn unary_calls_get_the_answers_in_the_order_in_which_they_are_written() {
    let kv = MockService::new(&SERVICE);
    let gets = kv.unary::<GetRequest, GetReply>("Get");
    let mut metadata = MetadataMap::new();
    metadata.insert("served-by", "mock").unwrap();
    gets.answer(Err(Status::unavailable("try again"))).answer(
        MockAnswer::from(found("a"))
            .with_metadata(metadata.clone())
            .with_trailers(metadata),
    );
    let client = KvClient::new(kv.channel().unwrap());
    block_on(async {
        let mut request = Request::new(get("a"));
        request.metadata_mut().insert("who", "test").unwrap();
        assert_eq!(client.get(request).await.unwrap_err().code(), Code::Unavailable);
        let response = client.get(get("a")).await.unwrap();
        assert_eq!(*response.get_ref(), found("a"));
        let keys =
            [response.metadata(), response.trailers()].map(|map| map.get("served-by").map(str::to_owned));
        assert_eq!(keys, [Some("mock".to_owned()), Some("mock".to_owned())]);
        let status = client.get(get("b")).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
        assert!(
            status
                .message()
                .starts_with("kv.Kv/Get has no answer to its call 3"),
            "{status}"
        );
        let status = client.put(PutRequest::default()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    });
    assert_eq!(gets.requests(), [get("a"), get("a"), get("b")]);
    assert_eq!((gets.calls(), gets.metadata()[0].get("who")), (3, Some("test")));
}

#[test]
fn a_function_answers_what_is_not_written_down() {
    let kv = MockService::new(&SERVICE);
    let gets = kv.unary::<GetRequest, GetReply>("Get");
    gets.answer_with(|requests| found(&requests[0].key))
        .answer(found("first"));
    let client = KvClient::new(kv.channel().unwrap());
    let keys = ["x", "y"].map(|key| block_on(client.get(get(key))).unwrap().get_ref().to_owned());
    assert_eq!(keys, [found("first"), found("y")]);
}

#[test]
fn streams_of_responses_end_as_they_are_written() {
    let kv = MockService::new(&SERVICE);
    let scans = kv.server_streaming::<ScanRequest, Entry>("Scan");
    scans
        .answer(vec![entry("a"), entry("b")])
        .answer(MockAnswer::broken_off([entry("a")], Status::aborted("gone")));
    let client = KvClient::new(kv.channel().unwrap());
    block_on(async {
        let mut whole = client.scan(ScanRequest::default()).await.unwrap().into_inner();
        for key in ["a", "b"] {
            assert_eq!(*whole.message().await.unwrap().unwrap(), entry(key));
        }
        assert!(whole.message().await.unwrap().is_none());
        let mut broken = client.scan(ScanRequest::default()).await.unwrap().into_inner();
        assert!(broken.message().await.unwrap().is_some());
        assert_eq!(broken.message().await.unwrap_err().code(), Code::Aborted);
    });
    assert_eq!(scans.calls(), 2);
}

#[test]
fn streams_of_requests_are_answered_once_and_kept() {
    let kv = MockService::new(&SERVICE);
    let loads = kv.client_streaming::<Entry, LoadSummary>("Load");
    loads.answer_with(|entries| LoadSummary {
        entries: entries.len() as u64,
        ..LoadSummary::default()
    });
    let client = KvClient::new(kv.channel().unwrap());
    block_on(async {
        let (mut sender, entries) = provost::stream(1);
        let send = async {
            for key in ["a", "b", "c"] {
                sender.send(entry(key)).await.unwrap();
            }
            drop(sender);
        };
        let (summary, ()) = tokio::join!(client.load(entries), send);
        assert_eq!(summary.unwrap().get_ref().entries, 3);
    });
    assert_eq!(loads.requests(), ["a", "b", "c"].map(entry));
}

#[test]
fn streams_both_ways_are_answered_one_by_one_or_at_once() {
    let kv = MockService::new(&SERVICE);
    let syncs = kv.bidirectional::<SyncRequest, SyncReply>("Sync");
    let reply = |id| SyncReply {
        id,
        outcome: sync_reply::Outcome::Missing(true),
    };
    let request = |id| SyncRequest {
        id,
        ..SyncRequest::default()
    };
    syncs
        .answer(vec![reply(70), reply(71)])
        .answer_with(move |requests| match requests[0].id {
            9 => Err(Status::out_of_range("nine")),
            id => Ok(reply(id)),
        });
    let client = KvClient::new(kv.channel().unwrap());
    block_on(async {
        let (mut sender, requests) = provost::stream(1);
        let mut replies = client.sync(requests).await.unwrap().into_inner();
        for id in [70, 71] {
            assert_eq!(replies.message().await.unwrap().unwrap().id, id);
        }
        sender.send(request(1)).await.unwrap();
        drop(sender);
        assert!(replies.message().await.unwrap().is_none());
        let (mut sender, requests) = provost::stream(1);
        let mut replies = client.sync(requests).await.unwrap().into_inner();
        for id in [2, 3] {
            sender.send(request(id)).await.unwrap();
            assert_eq!(replies.message().await.unwrap().unwrap().id, id);
        }
        sender.send(request(9)).await.unwrap();
        assert_eq!(replies.message().await.unwrap_err().code(), Code::OutOfRange);
    });
    assert_eq!(
        syncs
            .requests()
            .iter()
            .map(|request| request.id)
            .collect::<Vec<_>>(),
        [1, 2, 3, 9]
    );
}

#[test]
fn a_call_that_is_never_answered_ends_at_its_deadline() {
    let kv = MockService::new(&SERVICE);
    kv.unary::<GetRequest, GetReply>("Get")
        .answer(MockAnswer::never());
    let client = KvClient::new(kv.channel().unwrap());
    let mut request = Request::new(get("a"));
    request.set_timeout(Duration::from_millis(20));
    assert_eq!(
        block_on(client.get(request)).unwrap_err().code(),
        Code::DeadlineExceeded
    );
}

#[test]
#[should_panic(expected = "kv.Kv has no method Gett (Unary); it has Get (Unary), Put (Unary)")]
fn a_method_that_is_not_there_is_refused_with_those_that_are() {
    let _ = MockService::new(&SERVICE).unary::<GetRequest, GetReply>("Gett");
}
