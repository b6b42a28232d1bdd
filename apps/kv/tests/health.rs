//! An app that says how its services are, asked without a node and through one.

use std::time::Duration;

use provost::blocking::block_on;
use provost::health::{HealthCheckRequest, HealthClient, HealthReporter, SERVICE, ServingStatus};
use provost::{Channel, Code, Readiness, Request, Server, Streaming};
use provost_kv::proto::kv_server::KvServer;
use provost_kv::service::KvService;
use provost_test::{StartError, TestNode};

type HealthStates = Streaming<provost::health::HealthCheckResponse>;

fn about(service: &str) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest {
        service: service.into(),
    });
    request
        .set_readiness(Readiness::Wait)
        .set_timeout(Duration::from_secs(60));
    request
}

async fn next(states: &mut HealthStates) -> ServingStatus {
    states
        .message()
        .await
        .unwrap()
        .expect("a watch does not end")
        .status
}

/// All that the protocol says, whatever carries it.
async fn exercise(health: &HealthReporter, client: &HealthClient) {
    let check = async |service: &str| {
        client
            .check(about(service))
            .await
            .map(|reply| reply.get_ref().status)
    };
    assert_eq!(check("").await.unwrap(), ServingStatus::SERVING);
    let unknown = check("kv.Kv").await.unwrap_err();
    assert_eq!(unknown.code(), Code::NotFound);
    assert!(unknown.message().contains("`kv.Kv`"), "{unknown}");
    let mut states = client.watch(about("kv.Kv")).await.unwrap().into_inner();
    let mut whole = client.watch(about("")).await.unwrap().into_inner();
    assert_eq!(next(&mut states).await, ServingStatus::SERVICE_UNKNOWN);
    assert_eq!(next(&mut whole).await, ServingStatus::SERVING);
    for status in [ServingStatus::NOT_SERVING, ServingStatus::SERVING] {
        // What is said twice is told once.
        health.set("kv.Kv", status);
        health.set("kv.Kv", status);
        assert_eq!(next(&mut states).await, status);
        assert_eq!(check("kv.Kv").await.unwrap(), status);
        assert_eq!(check("").await.unwrap(), ServingStatus::SERVING);
    }
    health.set_all_not_serving();
    assert_eq!(next(&mut states).await, ServingStatus::NOT_SERVING);
    assert_eq!(next(&mut whole).await, ServingStatus::NOT_SERVING);
    health.remove("kv.Kv");
    assert_eq!(next(&mut states).await, ServingStatus::SERVICE_UNKNOWN);
    assert_eq!(health.status("kv.Kv"), None);
}

#[test]
fn an_app_says_how_its_services_are() {
    let health = HealthReporter::new();
    let client = HealthClient::new(Channel::in_process(health.service()).unwrap());
    block_on(exercise(&health, &client));
}

#[test]
fn watches_that_ended_are_forgotten_and_too_many_are_refused() {
    let health = HealthReporter::new();
    let client = HealthClient::new(Channel::in_process(health.service()).unwrap());
    block_on(async {
        let mut watches = Vec::new();
        let refused = loop {
            let mut states = match client.watch(about("")).await {
                Ok(response) => response.into_inner(),
                Err(status) => break status,
            };
            match states.message().await {
                Ok(_) => watches.push(states),
                Err(status) => break status,
            }
        };
        assert_eq!((refused.code(), watches.len()), (Code::ResourceExhausted, 4096));
        drop(watches);
        let mut states = client.watch(about("")).await.unwrap().into_inner();
        assert_eq!(next(&mut states).await, ServingStatus::SERVING);
    });
}

#[test]
fn health_passes_through_a_node_beside_the_service_that_it_is_of() {
    let node = match TestNode::start() {
        Ok(node) => node,
        Err(StartError::NoBinary) => {
            return provost_skip::missing("provostd", "cargo build --bins -p provostd");
        }
        Err(error) => panic!("{error}"),
    };
    let health = HealthReporter::new();
    let server = Server::builder()
        .app(&node.app().unwrap())
        .add_service(KvServer::new(KvService::default()))
        .add_service(health.service());
    std::thread::spawn(|| server.serve_blocking());
    let app = node.app().unwrap();
    block_on(async {
        let mut channel = Channel::builder(&SERVICE).app(&app).connect("").await;
        while channel.is_err() {
            std::thread::sleep(Duration::from_millis(5));
            channel = Channel::builder(&SERVICE).app(&app).connect("").await;
        }
        exercise(&health, &HealthClient::new(channel.unwrap())).await;
    });
}
