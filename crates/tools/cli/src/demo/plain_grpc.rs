//! A server and a client of `hello.Greeter` that are made with tonic alone: neither knows of Provost.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use prost::Message;
use tokio::runtime::Runtime;
use tonic::client::Grpc as GrpcClient;
use tonic::codegen::http::{self, uri::PathAndQuery};
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError};
use tonic::server::{Grpc as GrpcServer, NamedService, UnaryService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::DemoError;
use super::wire::{Called, Command, Event};
use super::worker::{self, WorkerError};

/// Its description, by which the nodes read its messages.
const PROTO: &str = include_str!("../../../../../apps/hello/proto/hello.proto");
const PATH: &str = "/hello.Greeter/Greet";
/// Calls that the client has in flight.
const IN_FLIGHT: usize = 8;
/// Before a call that was not carried out is made again.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Clone, PartialEq, Message)]
struct GreetRequest {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct GreetReply {
    #[prost(string, tag = "1")]
    text: String,
}

/// Writes the schema of the service to a file that nodes load at their start.
pub(crate) fn write_schema(directory: &Path) -> Result<PathBuf, DemoError> {
    let failed = |message: String| DemoError::Failed {
        name: "the schema of hello.Greeter",
        message,
    };
    let (source, path) = (directory.join("hello.proto"), directory.join("hello.pb"));
    std::fs::write(&source, PROTO).map_err(|error| failed(error.to_string()))?;
    let set = protox::compile([&source], [directory]).map_err(|error| failed(error.to_string()))?;
    std::fs::write(&path, set.encode_to_vec()).map_err(|error| failed(error.to_string()))?;
    Ok(path)
}

/// Serves until the input ends.
pub(crate) fn serve() -> Result<(), WorkerError> {
    let failed = |error: &dyn std::fmt::Display| WorkerError::Service(error.to_string());
    executor()?.block_on(async {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming = TcpIncoming::bind(address).map_err(WorkerError::Socket)?;
        let address = incoming.local_addr().map_err(WorkerError::Socket)?;
        worker::send_event(&Event::Ready {
            address: Some(address.to_string()),
        })?;
        let serving = Server::builder().add_service(GreeterService);
        let served = serving.serve_with_incoming_shutdown(incoming, worker::input_end());
        served.await.map_err(|error| failed(&error))
    })
}

/// Calls what listens at a Unix socket, when it is told to.
pub(crate) fn call(socket: &Path) -> Result<(), WorkerError> {
    let executor = executor()?;
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()));
    let endpoint = endpoint.map_err(|error| WorkerError::Call(error.to_string()))?;
    let channel = {
        let _entered = executor.enter();
        endpoint.connect_lazy()
    };
    worker::send_event(&Event::Ready { address: None })?;
    worker::each_command(|command| match command {
        Command::CallOn { seconds } => {
            let until = Instant::now() + Duration::from_secs_f64(seconds);
            Ok(Event::Called(executor.block_on(call_until(&channel, until))))
        }
        other => Err(WorkerError::NotMine(other)),
    })
}

fn executor() -> Result<Runtime, WorkerError> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().map_err(WorkerError::Socket)
}

/// What callers have counted together.
#[derive(Default)]
struct CallCounts {
    calls: AtomicU64,
    failed: AtomicU64,
    /// When the last call ended, and the longest time without an end, in microseconds from the beginning.
    last_us: AtomicU64,
    gap_us: AtomicU64,
}

async fn call_until(channel: &Channel, until: Instant) -> Called {
    let (began, counts) = (Instant::now(), CallCounts::default());
    let callers = (0..IN_FLIGHT).map(|_| async {
        while Instant::now() < until {
            let outcome = greet(channel).await;
            counts.note(&outcome, began);
            if outcome.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    });
    let callers: Vec<_> = callers.map(Box::pin).collect();
    all(callers).await;
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    Called {
        calls: read(&counts.calls),
        failed: read(&counts.failed),
        longest_gap_ms: read(&counts.gap_us) as f64 / 1e3,
        seconds: began.elapsed().as_secs_f64(),
        ..Called::default()
    }
}

impl CallCounts {
    fn note(&self, outcome: &Result<String, Status>, began: Instant) {
        let count = match outcome {
            Ok(text) if text == "Hello, Ann!" => &self.calls,
            _ => &self.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        let now_us = began.elapsed().as_micros() as u64;
        if outcome.is_ok() {
            let before_us = self.last_us.swap(now_us, Ordering::Relaxed);
            self.gap_us.fetch_max(now_us - before_us, Ordering::Relaxed);
        }
    }
}

/// Polls all of them until each is done.
async fn all<F: Future<Output = ()> + Unpin>(mut left: Vec<F>) {
    std::future::poll_fn(|context| {
        left.retain_mut(|one| std::pin::Pin::new(one).poll(context).is_pending());
        if left.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

async fn greet(channel: &Channel) -> Result<String, Status> {
    let mut grpc = GrpcClient::new(channel.clone());
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = Request::new(GreetRequest { name: "Ann".into() });
    let codec = ProstCodec::<GreetRequest, GreetReply>::default();
    let reply = grpc
        .unary(request, PathAndQuery::from_static(PATH), codec)
        .await?;
    Ok(reply.into_inner().text)
}

/// What the server serves.
#[derive(Clone)]
struct GreeterService;

impl UnaryService<GreetRequest> for GreeterService {
    type Response = GreetReply;
    type Future = BoxFuture<Response<GreetReply>, Status>;

    fn call(&mut self, request: Request<GreetRequest>) -> Self::Future {
        let text = format!("Hello, {}!", request.get_ref().name);
        Box::pin(async { Ok(Response::new(GreetReply { text })) })
    }
}

impl NamedService for GreeterService {
    const NAME: &'static str = "hello.Greeter";
}

impl<B> Service<http::Request<B>> for GreeterService
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("no such method").into_http());
            }
            let codec = ProstCodec::<GreetReply, GreetRequest>::default();
            Ok(GrpcServer::new(codec).unary(GreeterService, request).await)
        })
    }
}
