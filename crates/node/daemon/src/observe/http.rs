//! `/metrics`, `/healthz` and `/readyz`, over HTTP/1.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::{ObserveError, exposition, node_metrics};
use crate::config::ListenAddress;
use crate::control_plane::ControlPlane;
use crate::places::{BoundedPlaces, PlaceBounds, PlacedStream, let_losers_go};

/// Connections at once. When there are more, the one that was silent longest makes room.
const CONNECTIONS: PlaceBounds = PlaceBounds {
    all: 16,
    per_party: 16,
    grace: Duration::ZERO,
};
/// How long a request's head may take, and a connection may stay without a request.
const HEADERS_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection may last, so that nobody can read its answer for ever: those who watch come again.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(300);
/// Memory for a request's head, in bytes (the least that the HTTP library takes).
const HEAD_BYTES_MAX: usize = 8192;
/// Before accepting again after an error, such as of too many descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// What Prometheus's text format is called.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An open listener.
pub(crate) enum HttpListener {
    Tcp(TcpListener, SocketAddr),
    Unix(UnixListener, PathBuf),
}

impl HttpListener {
    /// Opens it. A socket file that nobody listens at any more is replaced.
    pub(crate) fn open(address: &ListenAddress) -> Result<HttpListener, ObserveError> {
        let opened = match address {
            ListenAddress::Tcp(address) => open_tcp(*address),
            ListenAddress::Unix(path) => open_unix(path),
        };
        opened.map_err(|source| ObserveError::Listen {
            address: address.to_string(),
            source,
        })
    }

    /// Where it is, with the port that it got.
    pub(crate) fn address(&self) -> ListenAddress {
        match self {
            HttpListener::Tcp(_, address) => ListenAddress::Tcp(*address),
            HttpListener::Unix(_, path) => ListenAddress::Unix(path.clone()),
        }
    }
}

impl HttpListener {
    /// Goes on with a socket that listens already.
    pub(crate) fn listening(socket: OwnedFd, address: ListenAddress) -> std::io::Result<HttpListener> {
        Ok(match address {
            ListenAddress::Tcp(_) => {
                let listener = std::net::TcpListener::from(socket);
                listener.set_nonblocking(true)?;
                let address = listener.local_addr()?;
                HttpListener::Tcp(TcpListener::from_std(listener)?, address)
            }
            ListenAddress::Unix(path) => {
                let listener = std::os::unix::net::UnixListener::from(socket);
                listener.set_nonblocking(true)?;
                HttpListener::Unix(UnixListener::from_std(listener)?, path)
            }
        })
    }

    async fn accept(&self) -> std::io::Result<Stream> {
        Ok(match self {
            HttpListener::Tcp(listener, _) => Stream::Tcp(listener.accept().await?.0),
            HttpListener::Unix(listener, _) => Stream::Unix(listener.accept().await?.0),
        })
    }

    /// What a process that replaces this one takes over.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            HttpListener::Tcp(listener, _) => listener.as_fd(),
            HttpListener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

fn open_tcp(address: SocketAddr) -> std::io::Result<HttpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    Ok(HttpListener::Tcp(TcpListener::from_std(listener)?, address))
}

fn open_unix(path: &PathBuf) -> std::io::Result<HttpListener> {
    use std::os::unix::fs::FileTypeExt;
    // A path that is no socket refuses connections too, and is somebody's file.
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let is_dead = || {
        std::os::unix::net::UnixStream::connect(path)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    if is_socket && is_dead() {
        std::fs::remove_file(path)?;
    }
    Ok(HttpListener::Unix(UnixListener::bind(path)?, path.clone()))
}

/// Answers requests, for ever.
pub(crate) async fn serve(plane: ControlPlane, listener: HttpListener) {
    let places = BoundedPlaces::new(CONNECTIONS);
    loop {
        // Who comes while another process takes over waits for the one that goes on: this one may be about to end.
        let (accepted, _) = plane.quiesce_barrier.enter_with(|| listener.accept()).await;
        let Ok(stream) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        // All are one party, and none has a grace.
        let Some(place) = places.enter(()) else { continue };
        let plane = plane.clone();
        tokio::task::spawn_local(async move {
            let served = async {
                match stream {
                    Stream::Tcp(stream) => answer_all(plane, PlacedStream::new(stream, place)).await,
                    Stream::Unix(stream) => answer_all(plane, PlacedStream::new(stream, place)).await,
                }
            };
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, served).await;
        });
        let_losers_go().await;
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn answer_all(plane: ControlPlane, stream: impl AsyncRead + AsyncWrite + Unpin) {
    let service = service_fn(move |request| {
        let response = answer(&plane, &request);
        async move { Ok::<_, Infallible>(response) }
    });
    // What goes wrong on a connection is over with it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(plane: &ControlPlane, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
    }
    match request.uri().path() {
        "/metrics" => {
            let mut response = Response::new(Full::from(exposition::print(&node_metrics::collect(plane))));
            let content = HeaderValue::from_static(METRICS_TYPE);
            response.headers_mut().insert(CONTENT_TYPE, content);
            response
        }
        // The control plane answers: it lives.
        "/healthz" => plain(StatusCode::OK, "ok\n"),
        "/readyz" if node_metrics::is_ready(plane) => plain(StatusCode::OK, "ready\n"),
        "/readyz" => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            "not ready: the node is draining, or being replaced\n",
        ),
        _ => plain(
            StatusCode::NOT_FOUND,
            "there are /metrics, /healthz and /readyz\n",
        ),
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    let content = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, content);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_alone_and_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics");
        std::fs::write(&path, "somebody's notes").unwrap();
        assert!(open_unix(&path).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's notes");
        std::fs::remove_file(&path).unwrap();
        drop(open_unix(&path).unwrap());
        open_unix(&path).unwrap();
    }
}
