//! The configuration is read again while calls go on: all of it, or nothing.

#[path = "live/kinds.rs"]
mod kinds;
mod support;
#[path = "live/traffic.rs"]
mod traffic;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kinds::Notes;
use provost_wire::Code;
use provost_wire::control::{reply, request};
use provostd::Node;
use provostd::config::{Sources, TakesEffect};
use provostd::policies::{Change, ChangeError, Mode};
use support::*;
use traffic::Traffic;

const WITNESS: &str = "[[policy]]\nname = \"w\"\nkind = \"witness\"\nversion = 1\n";

struct Scene {
    node: TestNode,
    notes: Arc<Notes>,
    traffic: Traffic,
    files: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let files = tempfile::tempdir().expect("a directory");
        let notes = Arc::new(Notes::default());
        let sources = Sources {
            directory: Some(files.path().to_path_buf()),
            ..Sources::default()
        };
        let node = TestNode::start_from(sources, kinds::registry(&notes));
        let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
        server.bind();
        let connections = vec![client.connect()];
        Scene {
            node,
            notes,
            traffic: Traffic::start(server, client, connections),
            files,
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file");
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.files.path().join(name)
    }

    fn node(&self) -> &Node {
        &self.node.node
    }

    /// Whether calls are judged now.
    fn judges(&self) -> bool {
        self.traffic.let_calls_pass(100);
        let before = self.notes.judged.load(Ordering::Relaxed);
        self.traffic.let_calls_pass(100);
        self.notes.judged.load(Ordering::Relaxed) > before
    }
}

#[test]
fn policies_come_and_go_with_the_files() {
    let scene = Scene::new();
    assert!(!scene.judges());
    scene.write("10.toml", WITNESS);
    let reloaded = scene.node().reload().expect("a good configuration");
    assert_eq!(reloaded.policies.datapaths, 2);
    assert!(
        reloaded
            .changes
            .iter()
            .any(|change| change.key == "policy.w.kind")
    );
    assert!(scene.judges());
    let again = scene.node().reload().expect("a good configuration");
    assert_eq!((again.policies.datapaths, again.changes), (0, Vec::new()));
    std::fs::remove_file(scene.path("10.toml")).expect("a file");
    scene.node().reload().expect("a good configuration");
    assert!(!scene.judges());
    scene.traffic.finish();
}

#[test]
fn a_configuration_that_is_refused_changes_nothing() {
    let scene = Scene::new();
    scene.write("10.toml", WITNESS);
    scene.node().reload().expect("a good configuration");
    let bad = [
        ("20.toml", "[limits]\nmessage_bytes = 1\n", "limits.message_bytes"),
        ("20.toml", "nonsense", "20.toml"),
        ("20.toml", WITNESS, "policy[1].name"),
        (
            "20.toml",
            "[[policy]]\nname = \"x\"\nkind = \"none-such\"\n",
            "none-such",
        ),
        (
            "20.toml",
            "[[policy]]\nname = \"x\"\nkind = \"witness\"\nversion = 6\n",
            "does not fit",
        ),
        ("20.toml", "[log]\nlevel = \"info,=,=\"\n", "log.level"),
        ("20.toml", "engines = [\"/none/such.so\"]\n", "/none/such.so"),
        (
            "10.toml",
            &WITNESS.replace("version = 1", "version = 4"),
            "did not take over",
        ),
    ];
    for (name, text, part) in bad {
        let before = std::fs::read_to_string(scene.path(name)).ok();
        scene.write(name, text);
        let refused = scene.node().reload().expect_err(part).to_string();
        assert!(refused.contains(part), "{refused}");
        assert!(scene.judges(), "after {refused}");
        match before {
            Some(before) => scene.write(name, &before),
            None => std::fs::remove_file(scene.path(name)).expect("a file"),
        }
    }
    let reloaded = scene.node().reload().expect("a good configuration");
    assert_eq!(reloaded.changes, []);
    scene.traffic.finish();
}

#[test]
fn what_needs_a_restart_is_said_and_the_rest_takes_effect() {
    let scene = Scene::new();
    scene.write(
        "10.toml",
        "[runtime]\nthreads = 2\n[limits]\nconnections_per_app = 1\n",
    );
    let reloaded = scene.node().reload().expect("a good configuration");
    let effects: Vec<_> = reloaded
        .changes
        .iter()
        .map(|change| (change.key.as_str(), change.takes_effect))
        .collect();
    let expected = [
        ("limits.connections_per_app", TakesEffect::Live),
        ("runtime.threads", TakesEffect::Restarted),
    ];
    assert_eq!(effects, expected);
    let mut app = TestApp::attach(&scene.node);
    app.connect();
    let refused = app.ask(
        provost_wire::control::request::Body::Connect(connect_request()),
        None,
    );
    assert!(
        format!("{refused:?}").contains("limits.connections_per_app = 1"),
        "{refused:?}"
    );
    scene.traffic.finish();
}

#[test]
fn what_was_changed_at_run_time_is_written_back() {
    let scene = Scene::new();
    scene.write("10.toml", &format!("[timeouts]\ndrain_ms = 77\n{WITNESS}"));
    scene.write("20.toml", "policies = [\"null\"]\n");
    scene.node().reload().expect("a good configuration");
    let order = Change::Order {
        names: vec!["w".into(), "null".into()],
    };
    scene.node().change(order, Mode::Apply).expect("an order");
    assert_eq!(
        scene.node().write_config().expect("written"),
        scene.path("90-policies.toml")
    );
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file");
    assert!(!read(&scene.path("10.toml")).contains("policy"));
    assert!(read(&scene.path("10.toml")).contains("drain_ms = 77"));
    assert!(read(&scene.path("10.toml.bak")).contains("witness"));
    assert!(!read(&scene.path("20.toml")).contains("null"));
    let reloaded = scene.node().reload().expect("a good configuration");
    assert_eq!((reloaded.changes, reloaded.policies.datapaths), (Vec::new(), 0));
    let gone = scene
        .node()
        .change(Change::Detach { name: "null".into() }, Mode::Apply);
    assert!(!matches!(gone, Err(ChangeError::NoSuchPolicy { .. })));
    // Not written back: a reload brings it again.
    let reloaded = scene.node().reload().expect("a good configuration");
    assert!(
        reloaded
            .changes
            .iter()
            .any(|change| change.key == "policy.null.kind")
    );
    scene.traffic.finish();
}

#[test]
fn what_cannot_be_written_back_leaves_every_file_as_it_was() {
    let scene = Scene::new();
    scene.write("10.toml", WITNESS);
    scene.node().reload().expect("a good configuration");
    // Nothing can be written there.
    let in_the_way = scene.path("90-policies.toml.new");
    std::fs::create_dir(&in_the_way).expect("a directory");
    let refused = scene.node().write_config().expect_err("a directory in the way");
    assert!(refused.to_string().contains("90-policies.toml"), "{refused}");
    let read = |name: &str| std::fs::read_to_string(scene.path(name)).expect("a file");
    assert_eq!(read("10.toml"), WITNESS);
    assert!(!scene.path("10.toml.new").exists() && !scene.path("90-policies.toml").exists());
    std::fs::remove_dir(&in_the_way).expect("a directory");
    // Nor what was kept when it was written back before.
    scene.write("10.toml.bak", "# before");
    let in_the_way = scene.path("10.toml.bak.new");
    std::fs::create_dir(&in_the_way).expect("a directory");
    let refused = scene.node().write_config().expect_err("a directory in the way");
    assert!(refused.to_string().contains("10.toml"), "{refused}");
    assert_eq!(
        (read("10.toml"), read("10.toml.bak")),
        (WITNESS.to_owned(), "# before".to_owned())
    );
    std::fs::remove_dir(&in_the_way).expect("a directory");
    // Nor is what an operator writes just now.
    let half = "[[policy]]\nname = \"half\"\nkind =";
    scene.write("90-policies.toml", half);
    let refused = scene
        .node()
        .write_config()
        .expect_err("a file that is half written");
    assert!(refused.to_string().contains("90-policies.toml"), "{refused}");
    assert_eq!(read("10.toml"), WITNESS);
    assert_eq!(read("90-policies.toml"), half);
    std::fs::remove_file(scene.path("90-policies.toml")).expect("a file");
    scene.node().write_config().expect("written");
    assert!(read("90-policies.toml").contains("witness") && !read("10.toml").contains("witness"));
    scene.traffic.finish();
}

#[test]
fn reloads_that_come_at_once_follow_each_other() {
    const ROUNDS: usize = 8;
    const RELOADS: usize = 4;
    let scene = Scene::new();
    let socket = scene.path("grpc.sock");
    let listener = format!(
        "[[grpc.listener]]\nname = \"web\"\naddress = \"unix:{}\"\n",
        socket.display()
    );
    for round in 0..ROUNDS {
        let text = if round % 2 == 0 { &listener } else { "" };
        scene.write("10.toml", text);
        let node = scene.node();
        std::thread::scope(|threads| {
            let reloads: Vec<_> = (0..RELOADS).map(|_| threads.spawn(|| node.reload())).collect();
            for reload in reloads {
                reload.join().expect("no panic").expect("a good configuration");
            }
        });
        let is_served = std::os::unix::net::UnixStream::connect(&socket).is_ok();
        assert_eq!(is_served, round % 2 == 0, "round {round}");
    }
    scene.traffic.finish();
}

#[test]
fn a_connection_that_is_on_its_way_while_a_reload_forbids_it_does_not_open() {
    let server_node = TestNode::start();
    let mut serving = TestApp::attach(&server_node);
    serving.bind();
    // It lets the peer wait until it is told to pass on what comes.
    let between = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let files = tempfile::tempdir().expect("a directory");
    let write = |may: &str| {
        let endpoint = between.local_addr().expect("an address");
        let text = format!(
            "[timeouts]\nconnect_ms = 20000\n[[app]]\nname = \"*\"\nmay_connect = [{may}]\n\
             [[route]]\nservice = \"{SERVICE}\"\ntransport = \"tcp\"\nendpoints = [\"{endpoint}\"]\n"
        );
        std::fs::write(files.path().join("10.toml"), text).expect("a file");
    };
    write("\"*\"");
    let sources = Sources {
        directory: Some(files.path().to_path_buf()),
        ..Sources::default()
    };
    let node = TestNode::start_from(sources, provostd::policies::Registry::with_built_ins());
    let mut client = TestApp::attach(&node);
    client.add_schema();
    let connecting = std::thread::spawn(move || client.ask(request::Body::Connect(connect_request()), None));
    let (peer, _) = between.accept().expect("a connection");
    write("");
    node.node.reload().expect("a good configuration");
    let server = std::net::TcpStream::connect(server_node.node.addresses()[0]).expect("a server");
    for (from, to) in [(&peer, &server), (&server, &peer)] {
        let (mut from, mut to) = (
            from.try_clone().expect("a socket"),
            to.try_clone().expect("a socket"),
        );
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    }
    match connecting.join().expect("no panic") {
        reply::Body::Failed(failed) => {
            assert_eq!(
                Code::from_number(failed.code),
                Code::PermissionDenied,
                "{failed:?}"
            );
            assert!(failed.message.contains("may_connect"), "{failed:?}");
        }
        other => panic!("not refused: {other:?}"),
    }
}
