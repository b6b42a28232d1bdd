//! Servers that send back what they get, each on a thread of its own.

use std::convert::Infallible;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use provost_insight::profile::Protocol;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Mutex, oneshot};

use super::calls::{CallPath, WINDOW_BYTES};
use super::{GRPC_PREFIX_BYTES, MESSAGE_BYTES_MAX, TCP_PREFIX_BYTES, message};
use crate::failure::{Doing, ProbeFailure};

/// An echo server; it ends when this is dropped.
pub struct EchoServer {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl EchoServer {
    /// Starts one at a free port of the loopback device.
    ///
    /// # Errors
    /// If there is no port or no thread to be had.
    pub fn start(protocol: Protocol) -> Result<EchoServer, ProbeFailure> {
        EchoServer::start_at(protocol, 0)
    }

    /// Starts one at a port of the loopback device.
    ///
    /// # Errors
    /// If the port is taken, or no thread is to be had.
    pub fn start_at(protocol: Protocol, port: u16) -> Result<EchoServer, ProbeFailure> {
        EchoServer::start_calling(protocol, port, ServiceCalls::default())
    }

    /// Starts one at a free port of the loopback device, and at a Unix socket as well.
    ///
    /// # Errors
    /// If the path is taken or too long, or no port or no thread is to be had.
    pub fn start_at_socket(protocol: Protocol, path: &Path) -> Result<EchoServer, ProbeFailure> {
        let mut listeners = EchoListeners::at_port(0)?;
        let unix = UnixListener::bind(path).doing(|| format!("listen at {}", path.display()))?;
        unix.set_nonblocking(true).doing(|| "prepare a listener".into())?;
        // A proxy that root starts may work as another user.
        fs::set_permissions(path, Permissions::from_mode(0o666))
            .doing(|| format!("open {} to all users", path.display()))?;
        listeners.unix = Some(unix);
        EchoServer::start_listening(protocol, listeners, ServiceCalls::default())
    }

    /// Starts one that makes calls of its own before it answers.
    ///
    /// # Errors
    /// If the port is taken, or no thread is to be had.
    pub fn start_calling(
        protocol: Protocol,
        port: u16,
        calls: ServiceCalls,
    ) -> Result<EchoServer, ProbeFailure> {
        EchoServer::start_listening(protocol, EchoListeners::at_port(port)?, calls)
    }

    fn start_listening(
        protocol: Protocol,
        listeners: EchoListeners,
        calls: ServiceCalls,
    ) -> Result<EchoServer, ProbeFailure> {
        let address = listeners.tcp.local_addr().doing(|| "name a listener".into())?;
        let (end, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing(|| "start a runtime".into())?;
        let thread = std::thread::Builder::new()
            .name(format!("echo-{protocol}"))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(listeners, protocol, calls) => {}
                        // The sender's end of life is the end as well.
                        _ = ended => {}
                    }
                });
            })
            .doing(|| "start a thread".into())?;
        Ok(EchoServer {
            address,
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Where it can be reached.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic has printed itself already.
            let _ = thread.join();
        }
    }
}

/// Where a server is reached.
struct EchoListeners {
    tcp: TcpListener,
    unix: Option<UnixListener>,
}

impl EchoListeners {
    fn at_port(port: u16) -> Result<EchoListeners, ProbeFailure> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .doing(|| format!("listen at port {port} of the loopback device"))?;
        tcp.set_nonblocking(true).doing(|| "prepare a listener".into())?;
        Ok(EchoListeners { tcp, unix: None })
    }
}

/// What a service calls for each request that it gets.
#[derive(Clone, Debug, Default)]
pub struct ServiceCalls {
    /// Services that are called at once, one such group after the other.
    pub stages: Vec<Vec<SocketAddr>>,
}

/// A service's own connections, for the requests of one of its clients' connections.
struct ServiceCallees {
    stages: Vec<Vec<CallPath>>,
    protocol: Protocol,
}

/// Requests on a connection of HTTP/2 may come at once; each has the callees for itself in turn.
type SharedCallees = Arc<Mutex<ServiceCallees>>;

impl ServiceCallees {
    async fn connect(calls: &ServiceCalls, protocol: Protocol) -> Result<SharedCallees, ProbeFailure> {
        let mut stages = Vec::new();
        for stage in &calls.stages {
            let mut paths = Vec::new();
            for address in stage {
                paths.extend(CallPath::connect(*address, protocol, 1).await?);
            }
            stages.push(paths);
        }
        Ok(Arc::new(Mutex::new(ServiceCallees { stages, protocol })))
    }

    /// Makes all calls, each with as much payload as the request has.
    async fn call(&mut self, size_bytes: usize) -> Result<(), ProbeFailure> {
        if self.stages.is_empty() {
            return Ok(());
        }
        let message = message(self.protocol, size_bytes);
        for stage in &mut self.stages {
            let calls: Vec<_> = stage.iter_mut().map(|path| path.call(&message)).collect();
            all(calls).await?;
        }
        Ok(())
    }
}

/// Drives a few futures at once, and returns the first failure.
async fn all<F: Future<Output = Result<(), ProbeFailure>>>(futures: Vec<F>) -> Result<(), ProbeFailure> {
    let mut waiting: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(move |context| {
        let mut failed = None;
        waiting.retain_mut(|future| match future.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(outcome) => {
                failed = failed.take().or(outcome.err());
                false
            }
        });
        match failed {
            Some(failure) => Poll::Ready(Err(failure)),
            None if waiting.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    })
    .await
}

async fn serve(listeners: EchoListeners, protocol: Protocol, calls: ServiceCalls) {
    let Ok(tcp) = tokio::net::TcpListener::from_std(listeners.tcp) else {
        return;
    };
    let unix = listeners.unix.map(tokio::net::UnixListener::from_std);
    let over_unix = async {
        // A connection that cannot be accepted is its client's failure, which the client reports.
        if let Some(Ok(unix)) = unix {
            while let Ok((stream, _)) = unix.accept().await {
                spawn_service(stream, protocol, &calls);
            }
        }
    };
    let over_tcp = async {
        while let Ok((stream, _)) = tcp.accept().await {
            let _ = stream.set_nodelay(true);
            spawn_service(stream, protocol, &calls);
        }
    };
    tokio::join!(over_tcp, over_unix);
}

fn spawn_service(stream: impl LoadStream, protocol: Protocol, calls: &ServiceCalls) {
    let calls = calls.clone();
    tokio::spawn(async move {
        // Whoever waits for an answer sees the connection end.
        if let Ok(callees) = ServiceCallees::connect(&calls, protocol).await {
            serve_one(stream, protocol, callees).await;
        }
    });
}

/// A connection over TCP, or over a Unix socket.
trait LoadStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> LoadStream for S {}

async fn serve_one(stream: impl LoadStream, protocol: Protocol, callees: SharedCallees) {
    let io = TokioIo::new(stream);
    match protocol {
        Protocol::Http1 => {
            let service = service_fn(move |request| echo(request, callees.clone()));
            drop(http1::Builder::new().serve_connection(io, service).await);
        }
        Protocol::Http2 => {
            let service = service_fn(move |request| echo(request, callees.clone()));
            drop(http2_builder().serve_connection(io, service).await);
        }
        Protocol::Grpc => {
            let service = service_fn(move |request| echo_grpc(request, callees.clone()));
            drop(http2_builder().serve_connection(io, service).await);
        }
        Protocol::Tcp | Protocol::Provost => drop(echo_tcp(io.into_inner(), &callees).await),
    }
}

fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_concurrent_streams(1024);
    builder
}

/// What a service answers with, or why it ends the connection.
type Failed = Box<dyn std::error::Error + Send + Sync>;

async fn echo(request: Request<Incoming>, callees: SharedCallees) -> Result<Response<Full<Bytes>>, Failed> {
    let body = request.into_body().collect().await?.to_bytes();
    callees.lock().await.call(body.len()).await?;
    Ok(Response::new(Full::new(body)))
}

async fn echo_grpc(
    request: Request<Incoming>,
    callees: SharedCallees,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Failed> {
    let body = request.into_body().collect().await?.to_bytes();
    let payload_bytes = body.len().saturating_sub(GRPC_PREFIX_BYTES);
    callees.lock().await.call(payload_bytes).await?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::new(body).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// Each message begins with its whole length, and is sent back once it is there.
async fn echo_tcp(mut stream: impl LoadStream, callees: &Mutex<ServiceCallees>) -> Result<(), Failed> {
    let mut held = Vec::new();
    let mut part = vec![0; 1 << 16];
    loop {
        let length = stream.read(&mut part).await?;
        if length == 0 {
            return Ok(());
        }
        held.extend_from_slice(&part[..length]);
        while let Some(whole) = message_length(&held)? {
            callees.lock().await.call(whole).await?;
            stream.write_all(&held[..whole]).await?;
            held.drain(..whole);
        }
    }
}

/// The length of the message that these bytes begin with, once it is there whole.
fn message_length(held: &[u8]) -> std::io::Result<Option<usize>> {
    let Some((prefix, _)) = held.split_first_chunk::<TCP_PREFIX_BYTES>() else {
        return Ok(None);
    };
    let whole = u32::from_be_bytes(*prefix) as usize;
    if !(TCP_PREFIX_BYTES..=MESSAGE_BYTES_MAX).contains(&whole) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    Ok((held.len() >= whole).then_some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{LoadClient, LoadPace, LoadShape};
    use std::time::Duration;

    #[test]
    fn every_protocol_echoes_every_size() {
        for protocol in [Protocol::Tcp, Protocol::Http1, Protocol::Http2, Protocol::Grpc] {
            let server = EchoServer::start(protocol).unwrap();
            for (size_bytes, in_flight) in [(64, 1), (64, 64), (65536, 3)] {
                let shape = LoadShape {
                    protocol,
                    size_bytes,
                    in_flight,
                    pace: LoadPace::Saturating,
                };
                let mut client = LoadClient::connect(server.address(), shape).unwrap();
                let slice = client.run_enough(Duration::from_millis(100), 1).unwrap();
                assert!(slice.count() > 0, "{shape:?}");
                assert!(slice.middle_mean_us() > 0.0);
            }
        }
    }

    #[test]
    fn a_service_answers_once_those_that_it_calls_have() {
        for protocol in [Protocol::Tcp, Protocol::Http1, Protocol::Grpc] {
            let leaves = [0, 1].map(|_| EchoServer::start(protocol).unwrap());
            let calls = ServiceCalls {
                stages: vec![leaves.iter().map(EchoServer::address).collect()],
            };
            let front = EchoServer::start_calling(protocol, 0, calls).unwrap();
            let shape = LoadShape {
                protocol,
                size_bytes: 100,
                in_flight: 1,
                pace: LoadPace::Saturating,
            };
            let mut client = LoadClient::connect(front.address(), shape).unwrap();
            assert!(client.run_enough(Duration::from_millis(100), 1).unwrap().count() > 0);
            drop(leaves);
            assert!(client.run(Duration::from_millis(20)).is_err());
        }
    }

    #[test]
    fn a_paced_load_is_not_faster_than_its_pace() {
        let server = EchoServer::start(Protocol::Tcp).unwrap();
        let shape = LoadShape {
            protocol: Protocol::Tcp,
            size_bytes: 100,
            in_flight: 2,
            pace: LoadPace::PerSecond(200.0),
        };
        let mut client = LoadClient::connect(server.address(), shape).unwrap();
        let slice = client.run_enough(Duration::from_millis(300), 1).unwrap();
        // Ten more than the time allows, for the first call of each slice is due at once.
        let most = 200.0 * slice.time.as_secs_f64() + 10.0;
        assert!(
            slice.count() as f64 <= most,
            "{} in {:?}",
            slice.count(),
            slice.time
        );
    }

    #[test]
    fn a_server_that_ends_is_a_failure_of_the_load() {
        let server = EchoServer::start(Protocol::Http1).unwrap();
        let shape = LoadShape {
            protocol: Protocol::Http1,
            size_bytes: 100,
            in_flight: 1,
            pace: LoadPace::Saturating,
        };
        let mut client = LoadClient::connect(server.address(), shape).unwrap();
        drop(server);
        assert!(client.run(Duration::from_millis(50)).is_err());
        let absurd = LoadShape {
            in_flight: 0,
            ..shape
        };
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        assert!(LoadClient::connect(address, absurd).is_err());
    }

    #[test]
    fn lengths_that_cannot_be_end_the_connection() {
        assert!(message_length(&[0, 0, 0, 3]).is_err());
        assert!(message_length(&[0xff; 4]).is_err());
        assert_eq!(message_length(&[0, 0, 0, 5]).unwrap(), None);
        assert_eq!(message_length(&[0, 0, 0, 5, 9, 9]).unwrap(), Some(5));
    }
}
