//! `probe.Probe` as an unmodified tonic server, which knows nothing of Provost.
#![allow(dead_code, reason = "each test uses what it needs of it")]

#[path = "tonic_reflection.rs"]
pub(crate) mod tonic_reflection;

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tonic::codegen::http;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError};
use tonic::server::{
    ClientStreamingService, Grpc, NamedService, ServerStreamingService, StreamingService, UnaryService,
};
use tonic::transport::server::{Connected, TcpIncoming};
use tonic::transport::{Server, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use tonic_reflection::{ReflectionManners, TonicReflection};

/// Largest message that it takes and sends.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NothingMessage {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoMessage {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
    #[prost(uint64, repeated, tag = "3")]
    numbers: Vec<u64>,
    #[prost(map = "string, string", tag = "4")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HoldRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint32, tag = "2")]
    milliseconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HoldReply {
    #[prost(uint64, tag = "1")]
    deadline_milliseconds: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FailRequest {
    #[prost(uint32, tag = "1")]
    code: u32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(bytes = "vec", tag = "3")]
    details: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CountsRequest {
    #[prost(string, tag = "1")]
    key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CountsReply {
    #[prost(uint64, tag = "1")]
    begun: u64,
    #[prost(uint64, tag = "2")]
    cancelled: u64,
    #[prost(uint64, tag = "3")]
    finished: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PourRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(uint32, tag = "2")]
    count: u32,
    #[prost(uint32, tag = "3")]
    bytes: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DripMessage {
    #[prost(uint32, tag = "1")]
    number: u32,
    #[prost(bytes = "vec", tag = "2")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FillReply {
    #[prost(uint64, tag = "1")]
    count: u64,
    #[prost(uint64, tag = "2")]
    bytes: u64,
}

/// What has become of handlers, by key.
type HandlerCounts = Arc<Mutex<HashMap<String, CountsReply>>>;

#[derive(Clone, Default)]
struct TonicProbe {
    counts: HandlerCounts,
}

/// A handler that has begun.
struct HandlerGuard {
    counts: HandlerCounts,
    key: String,
    is_finished: bool,
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        let mut counts = self.counts.lock().unwrap();
        let of_key = counts.entry(self.key.clone()).or_default();
        if self.is_finished {
            of_key.finished += 1;
        } else {
            of_key.cancelled += 1;
        }
    }
}

impl HandlerGuard {
    fn finish(mut self) {
        self.is_finished = true;
    }
}

impl TonicProbe {
    fn begin(&self, key: &str) -> HandlerGuard {
        self.counts
            .lock()
            .unwrap()
            .entry(key.to_owned())
            .or_default()
            .begun += 1;
        HandlerGuard {
            counts: Arc::clone(&self.counts),
            key: key.to_owned(),
            is_finished: false,
        }
    }

    async fn hold(self, request: Request<HoldRequest>) -> Result<Response<HoldReply>, Status> {
        let timeout = request
            .metadata()
            .get("grpc-timeout")
            .map(|value| value.to_str().unwrap_or_default());
        let deadline_milliseconds = timeout.map_or(0, milliseconds_of_timeout);
        let request = request.into_inner();
        let guard = self.begin(&request.key);
        tokio::time::sleep(Duration::from_millis(request.milliseconds.into())).await;
        guard.finish();
        Ok(Response::new(HoldReply {
            deadline_milliseconds,
        }))
    }

    async fn fail(self, request: Request<FailRequest>) -> Result<Response<NothingMessage>, Status> {
        let asked = request.into_inner();
        match Code::from_i32(asked.code as i32) {
            Code::Ok => Ok(Response::new(NothingMessage {})),
            code => Err(Status::with_details(code, asked.message, asked.details.into())),
        }
    }

    async fn counts(self, request: Request<CountsRequest>) -> Result<Response<CountsReply>, Status> {
        let counts = self.counts.lock().unwrap();
        let of_key = counts.get(&request.get_ref().key).cloned();
        Ok(Response::new(of_key.unwrap_or_default()))
    }

    async fn pour(self, request: Request<PourRequest>) -> Result<Response<DripStream>, Status> {
        let request = request.into_inner();
        let (drips, stream) = mpsc::channel(4);
        let guard = self.begin(&request.key);
        tokio::spawn(async move {
            for number in 1..=request.count {
                let payload = (0..=250).cycle().take(request.bytes as usize).collect();
                if drips.send(Ok(DripMessage { number, payload })).await.is_err() {
                    return;
                }
            }
            guard.finish();
        });
        Ok(Response::new(DripStream(stream)))
    }

    async fn fill(self, request: Request<Streaming<DripMessage>>) -> Result<Response<FillReply>, Status> {
        let mut drips = request.into_inner();
        let mut reply = FillReply::default();
        while let Some(drip) = drips.message().await? {
            reply.count += 1;
            reply.bytes += drip.payload.len() as u64;
        }
        Ok(Response::new(reply))
    }

    async fn chat(self, request: Request<Streaming<DripMessage>>) -> Result<Response<DripStream>, Status> {
        let mut come = request.into_inner();
        let (drips, stream) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Ok(Some(drip)) = come.message().await {
                if drips.send(Ok(drip)).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(DripStream(stream)))
    }
}

/// What was left, as `grpc-timeout` says.
fn milliseconds_of_timeout(value: &str) -> u64 {
    let (digits, unit) = value.split_at(value.len().saturating_sub(1));
    let count: u64 = digits.parse().unwrap_or(0);
    match unit {
        "H" => count * 3_600_000,
        "M" => count * 60_000,
        "S" => count * 1_000,
        "m" => count,
        "u" => count / 1_000,
        _ => count / 1_000_000,
    }
}

/// Metadata comes back before and after the response.
async fn mirror(request: Request<NothingMessage>) -> Result<Response<NothingMessage>, Status> {
    let mut response = Response::new(NothingMessage {});
    for entry in request.metadata().iter() {
        match entry {
            tonic::metadata::KeyAndValueRef::Binary(key, value) => {
                response.metadata_mut().append_bin(key, value.clone());
            }
            tonic::metadata::KeyAndValueRef::Ascii(key, value) if key.as_str().starts_with("x-") => {
                response.metadata_mut().append(key, value.clone());
            }
            tonic::metadata::KeyAndValueRef::Ascii(..) => {}
        }
    }
    Ok(response)
}

struct DripStream(mpsc::Receiver<Result<DripMessage, Status>>);

impl Stream for DripStream {
    type Item = Result<DripMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// A handler as tonic has them.
struct HandlerFn<F>(F);

type HandlerFuture<M> = BoxFuture<Response<M>, Status>;

impl<F, Fut, A, B> UnaryService<A> for HandlerFn<F>
where
    F: FnMut(Request<A>) -> Fut,
    Fut: Future<Output = Result<Response<B>, Status>> + Send + 'static,
    B: 'static,
{
    type Response = B;
    type Future = HandlerFuture<B>;

    fn call(&mut self, request: Request<A>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

impl<F, Fut, A> ServerStreamingService<A> for HandlerFn<F>
where
    F: FnMut(Request<A>) -> Fut,
    Fut: Future<Output = Result<Response<DripStream>, Status>> + Send + 'static,
{
    type Response = DripMessage;
    type ResponseStream = DripStream;
    type Future = HandlerFuture<DripStream>;

    fn call(&mut self, request: Request<A>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

impl<F, Fut, A, B> ClientStreamingService<A> for HandlerFn<F>
where
    F: FnMut(Request<Streaming<A>>) -> Fut,
    Fut: Future<Output = Result<Response<B>, Status>> + Send + 'static,
    B: 'static,
{
    type Response = B;
    type Future = HandlerFuture<B>;

    fn call(&mut self, request: Request<Streaming<A>>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

impl<F, Fut, A> StreamingService<A> for HandlerFn<F>
where
    F: FnMut(Request<Streaming<A>>) -> Fut,
    Fut: Future<Output = Result<Response<DripStream>, Status>> + Send + 'static,
{
    type Response = DripMessage;
    type ResponseStream = DripStream;
    type Future = HandlerFuture<DripStream>;

    fn call(&mut self, request: Request<Streaming<A>>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

fn grpc<A, B>() -> Grpc<ProstCodec<B, A>>
where
    A: prost::Message + Default + Send + 'static,
    B: prost::Message + Default + Send + 'static,
{
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

impl NamedService for TonicProbe {
    const NAME: &'static str = "probe.Probe";
}

impl<B> Service<http::Request<B>> for TonicProbe
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
        let probe = self.clone();
        Box::pin(async move {
            let method = request
                .uri()
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            Ok(match method.as_str() {
                "Echo" => {
                    let echo =
                        |request: Request<EchoMessage>| async { Ok(Response::new(request.into_inner())) };
                    grpc().unary(HandlerFn(echo), request).await
                }
                "Hold" => {
                    grpc()
                        .unary(HandlerFn(move |request| probe.clone().hold(request)), request)
                        .await
                }
                "Fail" => {
                    grpc()
                        .unary(HandlerFn(move |request| probe.clone().fail(request)), request)
                        .await
                }
                "Mirror" => grpc().unary(HandlerFn(mirror), request).await,
                "Counts" => {
                    grpc()
                        .unary(HandlerFn(move |request| probe.clone().counts(request)), request)
                        .await
                }
                "Pour" => {
                    let pour = HandlerFn(move |request| probe.clone().pour(request));
                    grpc().server_streaming(pour, request).await
                }
                "Fill" => {
                    let fill = HandlerFn(move |request| probe.clone().fill(request));
                    grpc().client_streaming(fill, request).await
                }
                "Chat" => {
                    grpc()
                        .streaming(HandlerFn(move |request| probe.clone().chat(request)), request)
                        .await
                }
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

/// The versions of server reflection that a server has.
#[derive(Default)]
struct ServerReflection {
    newer: Option<TonicReflection<false>>,
    older: Option<TonicReflection<true>>,
}

/// A tonic server in a thread of its own.
pub(crate) struct TonicServer {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl TonicServer {
    pub(crate) fn start() -> TonicServer {
        TonicServer::at("127.0.0.1:0".parse().unwrap())
    }

    pub(crate) fn at(address: SocketAddr) -> TonicServer {
        TonicServer::serving(address, Server::builder())
    }

    /// One that speaks TLS.
    pub(crate) fn within_tls(address: SocketAddr, tls: ServerTlsConfig) -> TonicServer {
        TonicServer::serving(address, Server::builder().tls_config(tls).unwrap())
    }

    /// One that has server reflection in one of its versions.
    pub(crate) fn reflecting(version: &str, manners: ReflectionManners) -> TonicServer {
        let (runtime, incoming, address) = TonicServer::listening("127.0.0.1:0".parse().unwrap());
        let reflection = ServerReflection {
            older: (version == "v1alpha").then_some(TonicReflection(manners)),
            newer: (version == "v1").then_some(TonicReflection(manners)),
        };
        TonicServer::start_with(runtime, Server::builder(), reflection, incoming, address)
    }

    fn listening(address: SocketAddr) -> (tokio::runtime::Runtime, TcpIncoming, SocketAddr) {
        let runtime = runtime();
        let incoming = {
            let _entered = runtime.enter();
            TcpIncoming::bind(address).unwrap()
        };
        let address = incoming.local_addr().unwrap();
        (runtime, incoming, address)
    }

    fn serving(address: SocketAddr, server: Server) -> TonicServer {
        let (runtime, incoming, address) = TonicServer::listening(address);
        TonicServer::start_with(runtime, server, ServerReflection::default(), incoming, address)
    }

    /// One at a Unix socket; it has no other address.
    pub(crate) fn at_unix(listener: std::os::unix::net::UnixListener) -> TonicServer {
        listener.set_nonblocking(true).unwrap();
        let runtime = runtime();
        let incoming = {
            let _entered = runtime.enter();
            UnixListenerStream::new(tokio::net::UnixListener::from_std(listener).unwrap())
        };
        let address = SocketAddr::from(([0, 0, 0, 0], 0));
        TonicServer::start_with(
            runtime,
            Server::builder(),
            ServerReflection::default(),
            incoming,
            address,
        )
    }

    fn start_with<I, S>(
        runtime: tokio::runtime::Runtime,
        mut server: Server,
        reflection: ServerReflection,
        incoming: I,
        address: SocketAddr,
    ) -> TonicServer
    where
        I: Stream<Item = std::io::Result<S>> + Send + 'static,
        S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let stopped = async { drop(stopped.await) };
            let serving = server
                .add_service(TonicProbe::default())
                .add_optional_service(reflection.newer)
                .add_optional_service(reflection.older)
                .serve_with_incoming_shutdown(incoming, stopped);
            runtime.block_on(serving).unwrap();
        });
        TonicServer {
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Takes no more calls, and ends when those under way have (GOAWAY).
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Waits until it has ended.
    pub(crate) fn ended(mut self) {
        self.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}
