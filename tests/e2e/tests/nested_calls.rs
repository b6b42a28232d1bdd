//! A call goes from a client through three services, each on a node of its own: its deadline and its trace go with it, though
//! no handler names them.

mod collector;

use std::net::SocketAddr;
use std::time::Duration;

use collector::{SpanCollector, hex};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use provost::blocking::block_on;
use provost::codegen::{Methods, Service, ServiceDescriptor};
use provost::{
    App, CallContext, Channel, Code, Received, Request, Response, Server, Status, Target, context,
};
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::{ProbeClient, SERVICE};
use provost_e2e::{Node, NodeOptions, World, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// Index of `Echo` in the service.
const ECHO: u16 = 0;

/// Answers `Echo` with the answer of the next service, before which it puts what its own call brought: the time left in
/// nanoseconds into `numbers`, the trace and the baggage into `text`.
struct RelayService {
    next: Option<ProbeClient>,
}

impl RelayService {
    async fn echo(
        next: Option<ProbeClient>,
        request: Request<Received<EchoMessage>>,
    ) -> Result<EchoMessage, Status> {
        let left = request.time_left().map_or(0, |left| left.as_nanos() as u64);
        let header = |key: &str| request.metadata().get(key).unwrap_or("none").to_owned();
        let mut answer = EchoMessage {
            text: format!(
                "{} {} {}",
                header("traceparent"),
                header("tracestate"),
                header("baggage")
            )
            .into(),
            numbers: [left].into_iter().collect(),
            ..EchoMessage::default()
        };
        let message = request.get_ref().to_owned();
        let behind = match (next, &*message.text) {
            (None, _) => return Ok(answer),
            (Some(next), "by a task") => {
                let call = async move { next.echo(message).await };
                tokio::spawn(context::inherit(call)).await.unwrap()?
            }
            (Some(next), "by a task without") => tokio::spawn(async move { next.echo(message).await })
                .await
                .unwrap()?,
            (Some(next), "by itself") => {
                let mut request = Request::new(message);
                request.set_timeout(Duration::from_secs(5));
                request.metadata_mut().insert("traceparent", OWN).unwrap();
                request.metadata_mut().insert("baggage", "own").unwrap();
                next.echo(request).await?
            }
            (Some(next), _) => next.echo(message).await?,
        };
        answer.text.push_str("\n");
        answer.text.push_str(&behind.get_ref().text);
        answer.numbers.extend(behind.get_ref().numbers.iter().copied());
        Ok(answer)
    }
}

impl Service for RelayService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn register(&self, methods: &mut Methods) {
        let next = self.next.clone();
        methods.unary(ECHO, move |request| {
            let next = next.clone();
            async move { RelayService::echo(next, request).await.map(Response::new) }
        });
    }
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const OWN: &str = "00-11111111111111111111111111111111-2222222222222222-00";

fn app(node: &Node) -> App {
    App::builder().socket(&node.socket).attach().unwrap()
}

/// Three services, each on a node, of which each calls the next; and a client of the first.
struct ServiceChain {
    client: ProbeClient,
    runtime: tokio::runtime::Runtime,
    _nodes: [Node; 3],
    _world: World,
}

impl ServiceChain {
    fn new(tables: &str) -> ServiceChain {
        let mut world = World::new(ROLE);
        let options = NodeOptions {
            control: "allow_app_addresses = true".to_owned(),
            tables: tables.to_owned(),
            ..NodeOptions::default()
        };
        let nodes = ["a", "b", "c"].map(|name| world.node(name, &options));
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let mut next = None;
        for node in nodes.iter().rev() {
            let service = RelayService { next: next.take() };
            let server = Server::builder()
                .app(&app(node))
                .add_service(service)
                .pass_on("baggage");
            runtime.spawn(server.spawn(|handler| drop(tokio::spawn(handler))).serve());
            // The one who calls it is on the node before it.
            let before = nodes
                .iter()
                .take_while(|other| other.address != node.address)
                .last();
            next = Some(connected(before.unwrap_or(node), node.address));
        }
        ServiceChain {
            client: next.unwrap(),
            runtime,
            _nodes: nodes,
            _world: world,
        }
    }

    fn call(&self, request: Request<EchoMessage>) -> Result<(Vec<u64>, Vec<String>), Status> {
        let response = self.runtime.block_on(self.client.echo(request))?;
        let answer = response.get_ref();
        let lines = answer.text.lines().map(str::to_owned).collect();
        Ok((answer.numbers.to_vec(), lines))
    }
}

/// A client on one node of the service on another, as soon as that serves.
fn connected(node: &Node, address: SocketAddr) -> ProbeClient {
    let app = app(node);
    let mut client = None;
    eventually("the service is there", WAIT_MAX, || {
        let builder = Channel::builder(&SERVICE).app(&app);
        let channel = block_on(builder.connect(Target::address(address.to_string())));
        client = channel.ok().map(ProbeClient::new);
        let mut request = Request::new(EchoMessage::default());
        request.set_timeout(Duration::from_secs(10));
        client
            .as_ref()
            .is_some_and(|client| block_on(client.echo(request)).is_ok())
    });
    client.expect("a client that has called")
}

fn request(text: &str) -> Request<EchoMessage> {
    let mut request = Request::new(EchoMessage {
        text: text.into(),
        ..EchoMessage::default()
    });
    let traceparent = format!("00-{TRACE}-b7ad6b7169203331-01");
    request
        .metadata_mut()
        .insert("traceparent", &traceparent)
        .unwrap();
    request.metadata_mut().insert("tracestate", "vendor=1").unwrap();
    request.metadata_mut().insert("baggage", "user=ann").unwrap();
    request.set_timeout(Duration::from_secs(100));
    request
}

#[test]
fn three_services_make_one_trace_and_share_one_deadline() {
    watched(|| {
        let collecting = tokio::runtime::Runtime::new().unwrap();
        let collector = SpanCollector::default();
        let tracing = format!(
            "[[policy]]\nname = \"tracing\"\nkind = \"tracing\"\n[policy.config]\n\
             endpoint = \"{}\"\nschedule_delay_ms = 10\nphases = false\n",
            collector.serve(&collecting)
        );
        let chain = ServiceChain::new(&tracing);
        let (left, lines) = chain.call(request("")).unwrap();
        let of_trace = || {
            let spans = collector.spans().into_iter();
            spans
                .filter(|span| hex(&span.trace_id) == TRACE)
                .collect::<Vec<Span>>()
        };
        eventually("all spans are exported", WAIT_MAX, || of_trace().len() == 6);
        let spans = of_trace();
        let mut parent = "b7ad6b7169203331".to_owned();
        let mut seen_by_handlers = Vec::new();
        for kind in [SpanKind::Client, SpanKind::Server].repeat(3) {
            let span = spans.iter().find(|span| hex(&span.parent_span_id) == parent);
            let span = span.unwrap_or_else(|| panic!("no span has the parent {parent}: {spans:#?}"));
            assert_eq!(span.kind, kind as i32);
            parent = hex(&span.span_id);
            if kind == SpanKind::Server {
                seen_by_handlers.push(format!("00-{TRACE}-{parent}-01 vendor=1 user=ann"));
            }
        }
        assert_eq!(lines, seen_by_handlers);
        assert!(left[0] <= 100_000_000_000 && left[2] > 1_000_000_000, "{left:?}");
        assert!(left.is_sorted_by(|before, after| before > after), "{left:?}");
        collecting.shutdown_background();
    });
}

#[test]
fn handlers_learn_of_the_trace_that_their_node_begins() {
    watched(|| {
        let collecting = tokio::runtime::Runtime::new().unwrap();
        let collector = SpanCollector::default();
        // The sides of clients make no spans, and the client has none: the first server's node begins the trace.
        let tracing = format!(
            "[[policy]]\nname = \"tracing\"\nkind = \"tracing\"\nside = \"server\"\n[policy.config]\n\
             endpoint = \"{}\"\nschedule_delay_ms = 10\nphases = false\n",
            collector.serve(&collecting)
        );
        let chain = ServiceChain::new(&tracing);
        for metadata in [&[][..], &[("baggage", "user=ann")]] {
            let mut request = Request::new(EchoMessage {
                text: "whole".into(),
                numbers: (0..100).collect(),
                ..EchoMessage::default()
            });
            for (key, value) in metadata {
                request.metadata_mut().insert(key, value).unwrap();
            }
            let (_, lines) = chain.call(request).unwrap();
            let traces: Vec<&str> = lines.iter().map(|line| line.split('-').nth(1).unwrap()).collect();
            assert_eq!(traces, [traces[0]; 3], "{lines:?}");
            let of_trace = || {
                let spans = collector.spans().into_iter();
                spans
                    .filter(|span| hex(&span.trace_id) == traces[0])
                    .collect::<Vec<Span>>()
            };
            eventually("all spans are exported", WAIT_MAX, || of_trace().len() == 3);
            let spans = of_trace();
            let mut parent = String::new();
            for line in &lines {
                let span = spans.iter().find(|span| hex(&span.parent_span_id) == parent);
                let span = span.unwrap_or_else(|| panic!("no span has the parent {parent}: {spans:#?}"));
                parent = hex(&span.span_id);
                let baggage = metadata.first().map_or("none", |(_, value)| value);
                assert_eq!(*line, format!("00-{}-{parent}-01 none {baggage}", traces[0]));
            }
        }
        collecting.shutdown_background();
    });
}

#[test]
fn tasks_inherit_what_they_are_given_and_calls_keep_what_is_their_own() {
    watched(|| {
        let chain = ServiceChain::new("");
        let whole = format!("00-{TRACE}-b7ad6b7169203331-01 vendor=1 user=ann");
        let (left, lines) = chain.call(request("by a task")).unwrap();
        assert_eq!(lines, [&*whole; 3]);
        assert!(left.is_sorted_by(|before, after| before > after), "{left:?}");
        let (left, lines) = chain.call(request("by a task without")).unwrap();
        assert_eq!(lines, [&*whole, "none none none", "none none none"]);
        assert!(left[0] > 0 && left[1..] == [0, 0], "{left:?}");
        let own = format!("{OWN} none own");
        let (left, lines) = chain.call(request("by itself")).unwrap();
        assert_eq!(lines, [&*whole, &*own, &*own]);
        assert!(left[1] <= 5_000_000_000, "{left:?}");
        let mut short = request("by itself");
        short.set_timeout(Duration::from_secs(3));
        let (left, _) = chain.call(short).unwrap();
        assert!(left[1] <= 3_000_000_000, "{left:?}");
    });
}

#[test]
fn a_call_outside_of_handlers_has_the_context_that_it_is_given() {
    watched(|| {
        let chain = ServiceChain::new("");
        let plain = || Request::new(EchoMessage::default());
        let (left, lines) = chain.call(plain()).unwrap();
        assert_eq!((left, lines), (vec![0; 3], vec!["none none none".to_owned(); 3]));
        let given = CallContext::new().with_metadata("baggage", "a=1").unwrap();
        let (left, lines) = context::enter(given.with_timeout(Duration::from_secs(50)), || {
            chain.call(plain())
        })
        .unwrap();
        assert_eq!(lines, ["none none a=1"; 3]);
        assert!(left[0] <= 50_000_000_000 && left[2] > 0, "{left:?}");
        let late = CallContext::new().with_timeout(Duration::ZERO);
        let code = context::enter(late, || chain.call(plain())).unwrap_err().code();
        assert_eq!(code, Code::DeadlineExceeded);
    });
}
