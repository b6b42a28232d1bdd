//! gRPC by tonic: one current-thread runtime for the server and for each client thread. The messages are written by
//! hand, with `Bytes` payloads, of which prost hands out slices of what it received: tonic's best case.

use std::cell::RefCell;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use tokio::task::{LocalSet, spawn_local};
use tonic::body::Body;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run, measure};
use crate::process::say_ready;
use crate::report::{Expected, Load, Report, Traffic};
use crate::roles::{RESPONSE, payload};

/// Largest message that either side takes, as Provost's.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The method that is called.
const PATH: &str = "/bench.Echo/Call";
const GUARDED_PATH: &str = "/bench.Echo/Guarded";

/// `message EchoRequest { bytes payload = 1; }`, and the response is alike.
#[derive(Clone, PartialEq, prost::Message)]
struct Echo {
    #[prost(bytes = "bytes", tag = "1")]
    payload: Bytes,
}

/// `message GuardedRequest { string user = 1; bytes payload = 2; }`
#[derive(Clone, PartialEq, prost::Message)]
struct Guarded {
    #[prost(string, tag = "1")]
    user: String,
    #[prost(bytes = "bytes", tag = "2")]
    payload: Bytes,
}

type Codec = ProstCodec<Echo, Echo>;
type GuardedCodec = ProstCodec<Echo, Guarded>;
type GuardedCalls = ProstCodec<Guarded, Echo>;

/// Answers on a loopback port.
pub(crate) fn serve() -> Result<(), Failure> {
    runtime()?.block_on(async {
        let address = SocketAddr::from(([127, 0, 0, 1], crate::machine::free_port()?));
        let incoming = tonic::transport::server::TcpIncoming::bind(address).doing(|| "listen".into())?;
        say_ready(address);
        let served = Server::builder()
            .add_service(EchoService)
            .serve_with_incoming(incoming.with_nodelay(Some(true)));
        served
            .await
            .map_err(|error| Failure::role("server", error.to_string()))
    })
}

/// The whole HTTP service; tonic's code generator would write this.
#[derive(Clone)]
struct EchoService;

impl tonic::server::NamedService for EchoService {
    const NAME: &'static str = "bench.Echo";
}

impl Service<http::Request<Body>> for EchoService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async {
            let max = Some(MESSAGE_BYTES_MAX);
            if request.uri().path() == GUARDED_PATH {
                let grpc = tonic::server::Grpc::new(GuardedCodec::default());
                let mut grpc = grpc.apply_max_message_size_config(max, max);
                return Ok(grpc.unary(Answer, request).await);
            }
            let grpc = tonic::server::Grpc::new(Codec::default());
            let mut grpc = grpc.apply_max_message_size_config(max, max);
            Ok(grpc.unary(Answer, request).await)
        })
    }
}

struct Answer;

impl tonic::server::UnaryService<Echo> for Answer {
    type Response = Echo;
    type Future = Ready<Result<Response<Echo>, Status>>;

    fn call(&mut self, request: Request<Echo>) -> Self::Future {
        let payload = &request.get_ref().payload;
        std::hint::black_box((payload.first(), payload.last()));
        ready(Ok(Response::new(Echo {
            payload: Bytes::from_static(RESPONSE),
        })))
    }
}

impl tonic::server::UnaryService<Guarded> for Answer {
    type Response = Echo;
    type Future = Ready<Result<Response<Echo>, Status>>;

    fn call(&mut self, request: Request<Guarded>) -> Self::Future {
        let payload = &request.get_ref().payload;
        std::hint::black_box((payload.first(), payload.last()));
        ready(Ok(Response::new(Echo {
            payload: Bytes::from_static(RESPONSE),
        })))
    }
}

/// Makes load on a server.
pub(crate) fn load(address: &str, load: &Load) -> Result<Report, Failure> {
    measure(load, |run| {
        let runtime = runtime()?;
        LocalSet::new().block_on(&runtime, async {
            let channel = connect(address).await?;
            let payload = Bytes::from(payload(load.size_bytes));
            let latencies = Rc::new(RefCell::new(Latencies::default()));
            run.ready();
            let caller = || {
                let (channel, payload) = (channel.clone(), payload.clone());
                caller(channel, payload, run.clone(), latencies.clone(), load.traffic)
            };
            let callers: Vec<_> = (0..load.calls_in_flight).map(|_| spawn_local(caller())).collect();
            for caller in callers {
                caller
                    .await
                    .map_err(|error| Failure::role("client", error.to_string()))?;
            }
            let latencies =
                Rc::try_unwrap(latencies).map_err(|_| Failure::role("client", "a caller lives on"))?;
            Ok(latencies.into_inner())
        })
    })
}

/// One call after the other.
async fn caller(
    channel: Channel,
    payload: Bytes,
    run: Arc<Run>,
    latencies: Rc<RefCell<Latencies>>,
    traffic: Traffic,
) {
    let mut client = tonic::client::Grpc::new(channel)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    for number in 0.. {
        if run.is_stopped() {
            return;
        }
        let began = Instant::now();
        let (answered, expected) = match traffic {
            Traffic::Plain | Traffic::Bulk | Traffic::BulkAnswers => {
                (call(&mut client, payload.clone()).await, Expected::Answered)
            }
            Traffic::Guarded(_) => {
                let (user, expected) = traffic.user(number);
                (guarded(&mut client, user, payload.clone()).await, expected)
            }
        };
        match (answered, expected) {
            (Ok(_), Expected::Answered) => run.record(&mut latencies.borrow_mut(), began),
            (Err(status), Expected::Denied) if status.code() == Code::PermissionDenied => {
                run.record(&mut latencies.borrow_mut(), began);
            }
            (Ok(_), Expected::Denied) => run.error(&"a blocked user's call was answered"),
            (Err(status), _) => run.error(&status),
        }
    }
}

async fn guarded(
    client: &mut tonic::client::Grpc<Channel>,
    user: &str,
    payload: Bytes,
) -> Result<Response<Echo>, Status> {
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(GUARDED_PATH);
    let user = user.to_owned();
    client
        .unary(
            Request::new(Guarded { user, payload }),
            path,
            GuardedCalls::default(),
        )
        .await
}

async fn call(client: &mut tonic::client::Grpc<Channel>, payload: Bytes) -> Result<Response<Echo>, Status> {
    client
        .ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(PATH);
    client
        .unary(Request::new(Echo { payload }), path, Codec::default())
        .await
}

async fn connect(address: &str) -> Result<Channel, Failure> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint
        .map_err(|error| Failure::role("client", error.to_string()))?
        .tcp_nodelay(true);
    endpoint
        .connect()
        .await
        .map_err(|error| Failure::role("client", format!("connect to {address}: {error:?}")))
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "start a tokio runtime".into())
}
