//! `/metrics`, `/healthz` and `/readyz`, over HTTP/1.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};

use super::{ObserveError, exposition, node_metrics};
use crate::config::ListenAddress;
use crate::control_plane::ControlPlane;
use crate::http_server::{self, HttpAnswer, HttpResponder, HttpVisitor, plain, typed};
use crate::stream_listener::{SocketMode, StreamListener, UnixSocketTerms};

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
    let barrier = Rc::clone(&plane.quiesce_barrier);
    http_server::serve(barrier, listener, Rc::new(MetricsResponder(plane))).await;
}

/// What programs ask for that watch a node.
struct MetricsResponder(ControlPlane);

impl HttpResponder for MetricsResponder {
    async fn answer(&self, _visitor: &HttpVisitor, request: &Request<Incoming>) -> HttpAnswer {
        let plane = &self.0;
        match request.uri().path() {
            "/metrics" => typed(exposition::print(&node_metrics::collect(plane)), METRICS_TYPE),
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
}
