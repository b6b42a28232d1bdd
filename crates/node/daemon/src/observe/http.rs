//! `/metrics`, `/healthz` and `/readyz`, over HTTP/1.

use std::convert::Infallible;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{ObserveError, exposition, node_metrics};
use crate::config::ListenAddress;
use crate::control_plane::ControlPlane;
use crate::places::{BoundedPlaces, PlaceBounds, PlacedStream, let_losers_go};
use crate::stream_listener::{AcceptedStream, SocketMode, StreamListener, UnixSocketTerms};

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

/// How a Unix socket for HTTP is opened.
const UNIX_SOCKET: UnixSocketTerms = UnixSocketTerms {
    mode: SocketMode::ByUmask,
    backlog: 16,
};

/// Opens the socket for HTTP. A socket file that nobody listens at any more is replaced.
pub(crate) fn open(address: &ListenAddress) -> Result<StreamListener, ObserveError> {
    StreamListener::open(address, UNIX_SOCKET).map_err(|source| ObserveError::Listen {
        address: address.to_string(),
        source,
    })
}

/// Answers requests, for ever.
pub(crate) async fn serve(plane: ControlPlane, listener: StreamListener) {
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
                    AcceptedStream::Tcp(stream, _) => {
                        answer_all(plane, PlacedStream::new(stream, place)).await
                    }
                    AcceptedStream::Unix(stream) => answer_all(plane, PlacedStream::new(stream, place)).await,
                }
            };
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, served).await;
        });
        let_losers_go().await;
    }
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
