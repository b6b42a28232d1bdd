//! Engines of libraries come, go and fail while calls go on: no call fails, is lost, doubled or reordered.

#[path = "../../../core/plugin/tests/build/mod.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod build;
mod support;
#[path = "live/traffic.rs"]
#[allow(unreachable_pub, dead_code, reason = "shared with other tests")]
mod traffic;

use provostd::policies::{
    Attachment, Change, ChangeError, Mode, NotLoaded, Origin, Position, Reach, Registry, Report, Upgrade,
};
use support::*;
use traffic::Traffic;

/// Connections of the client.
const CONNECTIONS: usize = 3;
/// The versions of the example, by feature.
const SECOND: u32 = 2;
const PANICS: u32 = 3;
const OTHER_STATE: u32 = 5;
const FAILS_RESTORE: u32 = 6;

/// The built-in kinds and all versions of the example.
fn registry() -> Registry {
    let registry = Registry::with_built_ins();
    for features in ["", "version-2", "panics", "other-state", "fails-restore"] {
        let library = build::example("example-numbered", features);
        let loaded = registry.load(&library.path()).expect("a good library");
        assert!(matches!(loaded.origin, Origin::Library(_)), "{loaded:?}");
        // The same again is no mistake.
        registry.load(&library.path()).expect("the same library");
    }
    registry
}

struct Scene {
    node: TestNode,
    traffic: Traffic,
}

impl Scene {
    fn start() -> Scene {
        let node = TestNode::start_with_kinds(|config| config.runtime.threads = 2, registry());
        let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
        server.bind();
        let connections = (0..CONNECTIONS).map(|_| client.connect()).collect();
        let traffic = Traffic::start(server, client, connections);
        Scene { node, traffic }
    }

    fn change(&self, change: Change) -> Result<Report, ChangeError> {
        self.node.node.change(change, Mode::Apply)
    }
}

fn attach(version: u32) -> Change {
    let attachment = Attachment {
        version: Some(version),
        ..Attachment::of_kind("numbered")
    };
    Change::Attach {
        attachment,
        at: Position::Last,
    }
}

fn upgrade(version: u32) -> Change {
    Change::Upgrade(Upgrade {
        kind: "numbered".to_owned(),
        version: Some(version),
        policy: None,
        reach: Reach::All,
    })
}

#[test]
fn versions_of_a_library_take_turns_while_calls_go_on() {
    let scene = Scene::start();
    scene.traffic.let_calls_pass(100);
    let report = scene.change(attach(1)).expect("attached");
    assert!(report.datapaths >= CONNECTIONS, "{report:?}");
    for _ in 0..20 {
        scene.traffic.let_calls_pass(50);
        scene.change(upgrade(SECOND)).expect("the next version");
        scene.traffic.let_calls_pass(50);
        scene.change(upgrade(1)).expect("the version before");
    }
    let back = Change::Detach {
        name: "numbered".into(),
    };
    scene.change(back).expect("detached");
    scene.traffic.let_calls_pass(100);
    scene.traffic.finish();
}

#[test]
fn a_version_that_panics_at_its_first_calls_is_taken_back_and_no_call_notices() {
    let scene = Scene::start();
    scene.change(attach(1)).expect("attached");
    for _ in 0..5 {
        scene.traffic.let_calls_pass(50);
        match scene.change(upgrade(PANICS)) {
            Ok(_) | Err(ChangeError::Undone { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        scene.traffic.let_calls_pass(1000);
        // The version before is there again, so this upgrade is one.
        scene.change(upgrade(SECOND)).expect("a good version");
        scene.change(upgrade(1)).expect("a good version");
    }
    scene.traffic.finish();
}

#[test]
fn a_version_that_does_not_take_over_changes_nothing() {
    let scene = Scene::start();
    scene.change(attach(1)).expect("attached");
    scene.traffic.let_calls_pass(100);
    for (version, said) in [
        (OTHER_STATE, "saved state has version 1"),
        (FAILS_RESTORE, "likes no state"),
    ] {
        let refused = scene
            .change(upgrade(version))
            .expect_err("it does not take over")
            .to_string();
        assert!(refused.contains(said), "{refused}");
        scene.traffic.let_calls_pass(200);
    }
    let other_abi = build::example("example-numbered", "other-abi");
    let refused = Registry::with_built_ins()
        .load(&other_abi.path())
        .expect_err("another ABI");
    assert!(matches!(refused, NotLoaded::Refused(_)), "{refused}");
    scene.change(upgrade(SECOND)).expect("a good version");
    scene.traffic.let_calls_pass(100);
    scene.traffic.finish();
}
