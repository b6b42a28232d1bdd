//! The key-value service, with a node, its server and its client in one process.

use std::sync::Arc;

use provost::blocking::block_on;
use provost::shared::Optional;
use provost::{App, Channel, Code, Server};
use provost_e2e::watched;
use provost_kv::proto::kv_client::SERVICE;
use provost_kv::proto::kv_client::blocking::KvClient;
use provost_kv::proto::kv_server::KvServer;
use provost_kv::proto::{
    DeleteRequest, Entry, GetRequest, KeyRange, PutRequest, ScanRequest, SyncRequest, scan_request,
    sync_reply, sync_request,
};
use provost_kv::service::KvService;
use provost_kv::store::Store;
use provostd::{Config, Node};

/// Runs `test` with a client of a new store.
fn with_store(test: impl FnOnce(KvClient) + Send + 'static) {
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.control.socket = directory.path().join("n.sock");
        let node = Node::start(config.clone()).unwrap();
        let app = App::builder().socket(&config.control.socket).attach().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let server = std::thread::spawn({
            let app = app.clone();
            move || {
                let service = KvServer::new(KvService::new(Arc::new(Store::default())));
                let shutdown = async {
                    let _ = stopped.await;
                };
                let is_served = move || {
                    let _ = ready.try_send(());
                };
                Server::builder()
                    .app(&app)
                    .add_service(service)
                    .on_ready(is_served)
                    .serve_blocking_with_shutdown(shutdown)
            }
        });
        is_ready.recv().unwrap();
        let channel = block_on(Channel::builder(&SERVICE).app(&app).connect("kv.Kv"));
        test(KvClient::new(channel.unwrap()));
        stop.send(()).unwrap();
        server.join().unwrap().unwrap();
        drop(node);
    });
}

fn entry(key: &str, value: &[u8]) -> Entry {
    Entry {
        key: key.into(),
        value: value.into(),
        labels: [("source".into(), "test".into())].into(),
        ..Entry::default()
    }
}

fn get(key: &str) -> GetRequest {
    GetRequest { key: key.into() }
}

fn scanned(client: &KvClient, request: ScanRequest) -> Vec<String> {
    let entries = client.scan(request).unwrap().into_inner();
    entries.map(|entry| entry.unwrap().key.to_string()).collect()
}

#[test]
fn entries_are_put_got_and_deleted() {
    with_store(|client| {
        assert_eq!(client.get(get("a")).unwrap_err().code(), Code::NotFound);
        let put = |value: &[u8], if_version: Option<u64>| {
            client.put(PutRequest {
                entry: entry("a", value).into(),
                if_version: if_version.into(),
            })
        };
        assert_eq!(put(b"1", Some(0)).unwrap().get_ref().version, 1);
        assert_eq!(put(b"2", None).unwrap().get_ref().version, 2);
        assert_eq!(put(b"3", Some(1)).unwrap_err().code(), Code::Aborted);
        let reply = client.get(get("a")).unwrap();
        let got = reply.get_ref().entry.as_deref().unwrap();
        assert_eq!((&*got.value, &*got.labels["source"]), (&b"2"[..], "test"));
        assert_eq!(got.version, Optional::Some(2));
        assert!(got.updated_unix_ns > 0);
        for existed in [true, false] {
            let reply = client.delete(DeleteRequest { key: "a".into() }).unwrap();
            assert_eq!(reply.get_ref().existed, existed);
        }
    });
}

#[test]
fn wrong_entries_are_refused() {
    with_store(|client| {
        let long = "k".repeat(1025);
        for entry in [None, Some(entry("", b"")), Some(entry(&long, b""))] {
            let entry = entry.map_or(Optional::None, Optional::from);
            let status = client
                .put(PutRequest {
                    entry,
                    ..PutRequest::default()
                })
                .unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument);
        }
    });
}

#[test]
fn a_load_is_scanned_whole_and_in_part() {
    with_store(|client| {
        let keys: Vec<String> = (0..1000).map(|number| format!("{number:03}")).collect();
        let entries: Vec<Entry> = keys.iter().map(|key| entry(key, key.as_bytes())).collect();
        let summary = client.load(entries.clone()).unwrap();
        let summary = summary.get_ref();
        assert_eq!((summary.entries, summary.replaced), (1000, 0));
        assert_eq!((summary.key_bytes, summary.value_bytes), (3000, 3000));
        assert_eq!(client.load(entries).unwrap().get_ref().replaced, 1000);
        assert_eq!(scanned(&client, ScanRequest::default()), keys);
        let prefix = ScanRequest {
            keys: scan_request::Keys::Prefix("12".into()),
            limit: 4,
        };
        assert_eq!(scanned(&client, prefix), ["120", "121", "122", "123"]);
        let range = KeyRange {
            first: "997".into(),
            end: "999".into(),
        };
        let range = ScanRequest {
            keys: scan_request::Keys::Range(range.into()),
            limit: 0,
        };
        assert_eq!(scanned(&client, range), ["997", "998"]);
    });
}

#[test]
fn actions_of_a_stream_are_carried_out_in_order() {
    use sync_reply::Outcome;
    use sync_request::Action;
    with_store(|client| {
        let actions = [
            Action::Get("a".into()),
            Action::Put(entry("a", b"1").into()),
            Action::Get("a".into()),
            Action::Delete("a".into()),
            Action::Delete("a".into()),
        ];
        let numbered = (1..).zip(actions).map(|(id, action)| SyncRequest { id, action });
        let replies = client.sync(numbered.collect::<Vec<_>>()).unwrap().into_inner();
        let replies: Vec<_> = replies.map(Result::unwrap).collect();
        let outcomes: Vec<_> = replies.iter().map(|reply| &reply.outcome).collect();
        assert!(
            matches!(
                outcomes[..],
                [
                    Outcome::Missing(true),
                    Outcome::Stored(1),
                    Outcome::Found(_),
                    Outcome::Deleted(true),
                    Outcome::Deleted(false),
                ]
            ),
            "{outcomes:?}"
        );
        let ids: Vec<u64> = replies.iter().map(|reply| reply.id).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5]);
    });
}
