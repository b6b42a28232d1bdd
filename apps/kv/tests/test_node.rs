//! A node of a test: an app calls another through it, and nothing is left when the test is over.

use std::path::Path;
use std::time::Duration;

use provost::blocking::block_on;
use provost::{Channel, Code, Readiness, Request, Server, Status};
use provost_kv::proto::GetRequest;
use provost_kv::proto::kv_client::{KvClient, SERVICE};
use provost_kv::proto::kv_server::KvServer;
use provost_kv::service::KvService;
use provost_test::{StartError, TestNode};

/// A node, where there is a program for it.
fn node(tables: &str) -> Option<TestNode> {
    match TestNode::builder().tables(tables).start() {
        Ok(node) => Some(node),
        Err(StartError::NoBinary) => {
            provost_skip::missing("provostd", "cargo build --bins -p provostd");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn serve(node: &TestNode) {
    let server = Server::builder()
        .app(&node.app().unwrap())
        .add_service(KvServer::new(KvService::default()));
    std::thread::spawn(|| server.serve_blocking());
}

fn get(node: &TestNode) -> Status {
    let app = node.app().unwrap();
    block_on(async {
        // The server may have started or not.
        let channel = Channel::builder(&SERVICE).app(&app).connect_lazily("");
        let client = KvClient::new(channel.unwrap());
        let mut request = Request::new(GetRequest { key: "a".into() });
        request
            .set_readiness(Readiness::Wait)
            .set_timeout(Duration::from_secs(30));
        client.get(request).await.unwrap_err()
    })
}

#[test]
fn apps_call_each_other_through_a_node_of_the_tests_own() {
    let Some(node) = node("") else { return };
    serve(&node);
    assert_eq!(get(&node).code(), Code::NotFound);
    let (directory, process) = (node.directory().to_owned(), node.process());
    assert!(directory.exists() && node.admin_socket().exists());
    drop(node);
    assert!(!directory.exists() && !Path::new("/proc").join(process.to_string()).exists());
}

#[test]
fn a_node_has_the_policies_that_a_test_gives_it() {
    let denies = "[[policy]]\nname = \"deny\"\nkind = \"access\"\n[policy.config]\ndefault = \"deny\"\n";
    let Some(node) = node(denies) else { return };
    serve(&node);
    let denied = get(&node);
    assert_eq!(denied.code(), Code::PermissionDenied);
    let expected = format!(
        "denied by policy \"deny\": no rule allows it ({})",
        node.directory().join("node.toml").display()
    );
    assert_eq!(denied.message(), expected);
}

#[test]
fn what_is_wrong_is_said() {
    if node("").is_none() {
        return;
    }
    let wrong = TestNode::builder()
        .tables("[nonsense]\n")
        .start()
        .unwrap_err()
        .to_string();
    assert!(wrong.contains("nonsense"), "{wrong}");
    let none = TestNode::builder()
        .binary("/nowhere/provostd")
        .start()
        .unwrap_err()
        .to_string();
    assert!(none.contains("/nowhere/provostd"), "{none}");
}
