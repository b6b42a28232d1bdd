//! Access control in front of the key-value service: where calls are made and where they are served, by fields, by
//! metadata, and by the identity that mutual TLS proves.

mod authority;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use authority::Authority;
use provost::blocking::block_on;
use provost::{App, Channel, Code, Request, Server, Status};
use provost_e2e::watched;
use provost_kv::proto::kv_client::SERVICE;
use provost_kv::proto::kv_client::blocking::KvClient;
use provost_kv::proto::kv_server::KvServer;
use provost_kv::proto::{Entry, GetRequest, PutRequest, ScanRequest};
use provost_kv::service::KvService;
use provost_kv::store::Store;
use provostd::{Config, Node};
use tokio::sync::oneshot;

/// The rules of most tests, for one side.
fn rules(side: &str) -> String {
    format!(
        r#"
        [[policy]]
        name = "acl"
        kind = "access"
        side = "{side}"
        [policy.config]
        default = "allow"
        [[policy.config.rule]]
        name = "blocked-keys"
        methods = ["/kv.Kv/Get"]
        when = "request.key in lists.blocked || request.key.startsWith('secret/')"
        action = "deny"
        [[policy.config.rule]]
        name = "writers"
        methods = ["/kv.Kv/Put", "/kv.Kv/Load"]
        when = "!('role' in metadata) || metadata['role'] != 'writer'"
        action = "deny"
        [[policy.config.rule]]
        name = "no-hidden-entries"
        methods = ["/kv.Kv/Scan"]
        when = "'hidden' in response.labels"
        action = "deny"
        [[policy.config.rule]]
        name = "small-loads"
        methods = ["/kv.Kv/Load"]
        when = "size(request.value) > 100000 || request.labels.exists(k, k == 'hidden')"
        action = "deny"
        [policy.config.lists.blocked]
        values = ["alpha", "beta"]
        "#
    )
}

/// A node's service in this process.
fn node(name: &str, directory: &Path, tables: &str) -> (Node, std::path::PathBuf) {
    let socket = directory.join(format!("{name}.sock"));
    let text = format!(
        "[node]\nname = \"{name}\"\n[control]\nsocket = \"{}\"\n{tables}",
        socket.display()
    );
    let config = Config::parse(&text, "test.toml").unwrap_or_else(|error| panic!("{error}"));
    (Node::start(config).unwrap(), socket)
}

fn attach(socket: &Path) -> App {
    App::builder().socket(socket).attach().unwrap()
}

fn client(app: &App) -> Result<KvClient, Status> {
    block_on(Channel::builder(&SERVICE).app(app).connect("kv.Kv")).map(KvClient::new)
}

/// A server of a new store, until it is dropped.
struct Serving {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    fn begin(app: &App, store: &Arc<Store>) -> Serving {
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let (app, store) = (app.clone(), Arc::clone(store));
        let thread = std::thread::spawn(move || {
            let shutdown = async {
                let _ = stopped.await;
            };
            let is_served = move || {
                let _ = ready.try_send(());
            };
            let server = Server::builder()
                .app(&app)
                .add_service(KvServer::new(KvService::new(store)));
            server
                .on_ready(is_served)
                .serve_blocking_with_shutdown(shutdown)
                .unwrap();
        });
        is_ready.recv().unwrap();
        Serving {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn get(key: &str) -> GetRequest {
    GetRequest { key: key.into() }
}

fn entry(key: &str, value_bytes: usize, label: &str) -> Entry {
    Entry {
        key: key.into(),
        value: std::iter::repeat_n(7, value_bytes).collect(),
        labels: [(label.into(), "".into())].into(),
        ..Entry::default()
    }
}

fn with_role<T>(message: T, role: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("role", role).unwrap();
    request
}

fn put(entry: Entry) -> PutRequest {
    PutRequest {
        entry: entry.into(),
        ..PutRequest::default()
    }
}

fn check_rules(client: &KvClient, store_len: impl Fn() -> usize) {
    let denied = |status: Status, rule: &str| {
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
        assert_eq!(
            status.message(),
            format!("denied by policy \"acl\", rule \"{rule}\"")
        );
    };
    assert_eq!(client.get(get("free")).unwrap_err().code(), Code::NotFound);
    for key in ["alpha", "beta", "secret/x"] {
        denied(client.get(get(key)).unwrap_err(), "blocked-keys");
    }
    denied(client.put(put(entry("a", 10, "x"))).unwrap_err(), "writers");
    denied(
        client
            .put(with_role(put(entry("a", 10, "x")), "reader"))
            .unwrap_err(),
        "writers",
    );
    assert_eq!(store_len(), 0, "nothing has reached the server");
    client.put(with_role(put(entry("a", 10, "x")), "writer")).unwrap();
    // A value that is sent from where it is, of which a rule reads only the length.
    let load = |entries: Vec<Entry>| client.load(with_role(entries, "writer"));
    assert_eq!(
        load(vec![entry("b", 90_000, "x"), entry("c", 5, "y")])
            .unwrap()
            .get_ref()
            .entries,
        2
    );
    denied(
        load(vec![entry("d", 5, "x"), entry("e", 100_001, "x")]).unwrap_err(),
        "small-loads",
    );
    denied(load(vec![entry("f", 5, "hidden")]).unwrap_err(), "small-loads");
    denied(client.load(vec![entry("g", 5, "x")]).unwrap_err(), "writers");
    let keys = |request| -> Result<Vec<String>, Status> {
        let entries = client.scan(request)?.into_inner();
        entries
            .map(|entry| entry.map(|entry| entry.key.to_string()))
            .collect()
    };
    let seen = keys(ScanRequest::default()).unwrap();
    assert!(
        seen.starts_with(&["a".to_owned(), "b".to_owned(), "c".to_owned()]),
        "{seen:?}"
    );
    assert!(
        !seen.iter().any(|key| ["e", "f", "g"].contains(&key.as_str())),
        "{seen:?}"
    );
    client
        .put(with_role(put(entry("h", 5, "hidden")), "writer"))
        .unwrap();
    denied(keys(ScanRequest::default()).unwrap_err(), "no-hidden-entries");
}

#[test]
fn fields_and_metadata_decide_where_calls_are_made_and_where_they_are_served() {
    for side in ["client", "server"] {
        watched(move || {
            let directory = tempfile::tempdir().unwrap();
            let (_node, socket) = node("a", directory.path(), &rules(side));
            let (server_app, client_app) = (attach(&socket), attach(&socket));
            let store = Arc::new(Store::default());
            let _serving = Serving::begin(&server_app, &store);
            check_rules(&client(&client_app).unwrap(), || entries_in(&store));
        });
    }
}

fn entries_in(store: &Store) -> usize {
    store.len()
}

#[test]
fn over_tcp_too_and_by_the_identity_that_a_peer_has_proved() {
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let only_a = r#"
            [[policy]]
            name = "peers"
            kind = "access"
            side = "server"
            [policy.config]
            default = "deny"
            [[policy.config.rule]]
            name = "a-may"
            when = "peer.identity == 'spiffe://test/a' && peer.transport == 'tcp'"
            action = "allow"
        "#;
        let tables = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n{}{only_a}{}",
            authority.vouch_for("b", directory.path()),
            rules("server")
        );
        let (b, b_socket) = node("b", directory.path(), &tables);
        let server_app = attach(&b_socket);
        let store = Arc::new(Store::default());
        let _serving = Serving::begin(&server_app, &store);
        let far = |name: &str| {
            let tables = format!(
                "[[route]]\nservice = \"kv.Kv\"\ntransport = \"tcp\"\nendpoints = [\"{}\"]\n{}",
                b.addresses()[0],
                authority.vouch_for(name, directory.path())
            );
            node(name, directory.path(), &tables)
        };
        let (_c, c_socket) = far("c");
        let stranger = attach(&c_socket);
        let status = client(&stranger).unwrap().get(get("free")).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
        assert_eq!(status.message(), "denied by policy \"peers\": no rule allows it");
        let (_a, a_socket) = far("a");
        let friend = attach(&a_socket);
        check_rules(&client(&friend).unwrap(), || entries_in(&store));
    });
}

#[test]
fn a_policy_over_fields_that_a_service_does_not_have_keeps_its_calls_out() {
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let wrong = rules("client").replace("request.key in", "request.kee in");
        let (_node, socket) = node("a", directory.path(), &wrong);
        let (server_app, client_app) = (attach(&socket), attach(&socket));
        let _serving = Serving::begin(&server_app, &Arc::new(Store::default()));
        let status = client(&client_app)
            .and_then(|client| client.get(get("x")).map(drop))
            .unwrap_err();
        let said = status.message();
        assert!(said.contains("kv.GetRequest has no field kee"), "{status}");
    });
}
