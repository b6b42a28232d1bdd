//! What gRPC's tools expect of a server is there at a node's listener: health and reflection, asked by tonic as it is.

mod grpc_client;

use std::collections::HashMap;

use grpc_client::{GrpcProbe, NoContent, place, run, tcp_listener};
use prost::Message as _;
use prost_types::FileDescriptorProto;
use provost_e2e::{NodeOptions, World, watched};
use tonic::codegen::tokio_stream;
use tonic::{Code, Status};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;
const SERVICE_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthReply {
    #[prost(int32, tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthList {
    #[prost(map = "string, message", tag = "1")]
    statuses: HashMap<String, HealthReply>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionRequest {
    #[prost(string, optional, tag = "3")]
    file_by_filename: Option<String>,
    #[prost(string, optional, tag = "4")]
    file_containing_symbol: Option<String>,
    #[prost(string, optional, tag = "7")]
    list_services: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionReply {
    #[prost(message, optional, tag = "4")]
    files: Option<FilesReply>,
    #[prost(message, optional, tag = "6")]
    services: Option<ServicesReply>,
    #[prost(message, optional, tag = "7")]
    error: Option<ErrorReply>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FilesReply {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServicesReply {
    #[prost(message, repeated, tag = "1")]
    services: Vec<ServiceName>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ServiceName {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ErrorReply {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

fn health(probe: &GrpcProbe) -> GrpcProbe {
    probe.of_service("grpc.health.v1.Health")
}

fn asking(service: &str) -> HealthRequest {
    let service = service.to_owned();
    HealthRequest { service }
}

async fn check(probe: &GrpcProbe, service: &str) -> Result<i32, Status> {
    let reply: HealthReply = health(probe).unary("Check", asking(service)).await?;
    Ok(reply.status)
}

async fn services(probe: &GrpcProbe, version: &str) -> Vec<String> {
    let request = ReflectionRequest {
        list_services: Some(String::new()),
        ..ReflectionRequest::default()
    };
    let replies = reflect(probe, version, vec![request]).await;
    let services = replies[0].services.clone().unwrap().services;
    services.into_iter().map(|service| service.name).collect()
}

async fn reflect(probe: &GrpcProbe, version: &str, requests: Vec<ReflectionRequest>) -> Vec<ReflectionReply> {
    let reflection = probe.of_service(&format!("grpc.reflection.{version}.ServerReflection"));
    let mut stream = reflection
        .streaming("ServerReflectionInfo", tokio_stream::iter(requests))
        .await
        .unwrap();
    let mut replies = Vec::new();
    while let Some(reply) = stream.message().await.unwrap() {
        replies.push(reply);
    }
    replies
}

fn with_tables(tables: String) -> NodeOptions {
    NodeOptions {
        tables,
        ..NodeOptions::default()
    }
}

fn listening(more: &str) -> NodeOptions {
    with_tables(tcp_listener("web", "web") + more)
}

#[test]
fn health_says_whether_calls_lead_anywhere() {
    watched(|| {
        let mut world = World::new(ROLE);
        let node = world.node("one", &listening(""));
        let server = world.server(&node);
        let probe = GrpcProbe::at(&place(&node, "web"));
        let mut watch = run(async {
            assert_eq!(check(&probe, "").await.unwrap(), SERVING);
            assert_eq!(check(&probe, "probe.Probe").await.unwrap(), SERVING);
            let unknown = check(&probe, "probe.Prob").await.unwrap_err();
            assert_eq!(unknown.code(), Code::NotFound);
            assert!(
                unknown.message().contains("did you mean probe.Probe?"),
                "{unknown}"
            );
            let list: HealthList = health(&probe).unary("List", NoContent {}).await.unwrap();
            let mut listed: Vec<_> = list.statuses.into_iter().collect();
            listed.sort_by(|(one, _), (other, _)| one.cmp(other));
            let serving = |service: &str| (service.to_owned(), HealthReply { status: SERVING });
            assert_eq!(listed, [serving(""), serving("probe.Probe")]);
            let mut watch = health(&probe)
                .server_streaming::<_, HealthReply>("Watch", asking("probe.Probe"))
                .await
                .unwrap();
            assert_eq!(watch.message().await.unwrap().unwrap().status, SERVING);
            let mut unknown = health(&probe)
                .server_streaming::<_, HealthReply>("Watch", asking("other.Service"))
                .await
                .unwrap();
            assert_eq!(unknown.message().await.unwrap().unwrap().status, SERVICE_UNKNOWN);
            watch
        });
        drop(server);
        run(async { assert_eq!(watch.message().await.unwrap().unwrap().status, NOT_SERVING) });
        let _again = world.server(&node);
        run(async { assert_eq!(watch.message().await.unwrap().unwrap().status, SERVING) });
    });
}

#[test]
fn a_route_whose_endpoints_cannot_be_reached_serves_nothing() {
    watched(|| {
        // Nobody listens there.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let route = format!(
            "[[route]]\nservice = \"probe.Probe\"\ntransport = \"grpc\"\nendpoints = [\"{nobody}\"]\n"
        );
        let mut world = World::new(ROLE);
        let node = world.node("one", &listening(&route));
        // It brings the schema.
        let _server = world.server(&node);
        let probe = GrpcProbe::at(&place(&node, "web"));
        run(async {
            assert_eq!(check(&probe, "probe.Probe").await.unwrap(), SERVING);
            assert_eq!(probe.echo("a").await.unwrap_err().code(), Code::Unavailable);
            assert_eq!(check(&probe, "probe.Probe").await.unwrap(), NOT_SERVING);
        });
    });
}

#[test]
fn reflection_has_the_schemas_of_what_can_be_called() {
    watched(|| {
        let mut world = World::new(ROLE);
        let node = world.node("one", &listening(""));
        let _server = world.server(&node);
        let probe = GrpcProbe::at(&place(&node, "web"));
        run(async {
            for version in ["v1", "v1alpha"] {
                assert_eq!(
                    services(&probe, version).await,
                    [
                        "grpc.health.v1.Health",
                        "grpc.reflection.v1.ServerReflection",
                        "grpc.reflection.v1alpha.ServerReflection",
                        "probe.Probe"
                    ]
                );
            }
            let symbol = |symbol: &str| ReflectionRequest {
                file_containing_symbol: Some(symbol.to_owned()),
                ..ReflectionRequest::default()
            };
            // Several questions of one stream are answered in their order.
            let asked = vec![
                symbol("probe.Probe.Echo"),
                symbol("probe.Absent"),
                symbol("grpc.health.v1.Health"),
            ];
            let replies = reflect(&probe, "v1", asked).await;
            let declared = |reply: &ReflectionReply| {
                let file = &reply.files.as_ref().unwrap().files[0];
                let file = FileDescriptorProto::decode(&**file).unwrap();
                format!("{}.{}", file.package(), file.service[0].name())
            };
            assert_eq!(declared(&replies[0]), "probe.Probe");
            let error = replies[1].error.clone().unwrap();
            assert!(
                error.code == 5 && error.message.contains("probe.Absent"),
                "{error:?}"
            );
            assert_eq!(declared(&replies[2]), "grpc.health.v1.Health");
            // Large files come too, by their names.
            let file = FileDescriptorProto::decode(&*replies[0].files.as_ref().unwrap().files[0]).unwrap();
            let by_name = ReflectionRequest {
                file_by_filename: Some(file.name().to_owned()),
                ..ReflectionRequest::default()
            };
            let replies = reflect(&probe, "v1", vec![by_name]).await;
            assert_eq!(declared(&replies[0]), "probe.Probe");
        });
    });
}

#[test]
fn a_client_is_told_of_what_it_may_call_only() {
    watched(|| {
        let apps = "[[app]]\nname = \"e2e-role\"\nmay_bind = [\"*\"]\n\
                    [[app]]\nname = \"web\"\nmay_connect = [\"other.*\"]\n";
        let mut world = World::new(ROLE);
        let node = world.node("one", &listening(apps));
        let _server = world.server(&node);
        let probe = GrpcProbe::at(&place(&node, "web"));
        run(async {
            let unknown = check(&probe, "probe.Probe").await.unwrap_err();
            assert_eq!(unknown.code(), Code::NotFound);
            assert!(!services(&probe, "v1").await.contains(&"probe.Probe".to_owned()));
            let symbol = ReflectionRequest {
                file_containing_symbol: Some("probe.Probe".to_owned()),
                ..ReflectionRequest::default()
            };
            let replies = reflect(&probe, "v1", vec![symbol]).await;
            assert!(replies[0].error.is_some(), "{replies:?}");
        });
    });
}

#[test]
fn a_listener_has_those_that_it_is_told_to() {
    watched(|| {
        let tables = tcp_listener("web", "web") + "node_services = [\"health\"]\n";
        let none = tcp_listener("plain", "web") + "node_services = []\n";
        let mut world = World::new(ROLE);
        let node = world.node("one", &with_tables(tables + &none));
        let _server = world.server(&node);
        let [web, plain] = ["web", "plain"].map(|name| GrpcProbe::at(&place(&node, name)));
        run(async {
            assert_eq!(check(&web, "").await.unwrap(), SERVING);
            // It goes where all calls go.
            let refused = check(&plain, "").await.unwrap_err();
            assert!(
                refused
                    .message()
                    .contains("no app has bound grpc.health.v1.Health"),
                "{refused}"
            );
        });
    });
}
