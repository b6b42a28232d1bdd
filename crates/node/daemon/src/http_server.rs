//! A small HTTP/1 server for what a node shows: metrics and health to programs, a page to people. Connections are bounded, as
//! are the time and the memory that each of them may take.

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::access::{Credentials, UNKNOWN_USER};
use crate::places::{BoundedPlaces, PlaceBounds, PlacedStream, let_losers_go};
use crate::quiesce_barrier::QuiesceBarrier;
use crate::stream_listener::{AcceptedStream, StreamListener};

/// Connections at once. When there are more, one of the user who has most of them makes room: that which was silent longest.
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
/// What plain answers are.
const PLAIN_TYPE: &str = "text/plain; charset=utf-8";

/// What a server answers.
pub(crate) type HttpAnswer = Response<Full<Bytes>>;

/// Who asks, as far as the kernel says.
#[derive(Clone, Debug)]
pub(crate) enum HttpVisitor {
    /// Through a Unix socket.
    Process(Credentials),
    /// Over TCP, of which nothing is known.
    Unknown,
}

impl HttpVisitor {
    fn at_socket(stream: &UnixStream) -> io::Result<HttpVisitor> {
        let peer = stream.peer_cred()?;
        let pid = peer.pid().unwrap_or_default();
        Credentials::at_socket(stream, pid, peer.uid(), peer.gid()).map(HttpVisitor::Process)
    }

    /// Connections of one user are one party.
    fn party(&self) -> u32 {
        match self {
            HttpVisitor::Process(credentials) => credentials.uid,
            HttpVisitor::Unknown => UNKNOWN_USER,
        }
    }
}

/// What is at an address.
pub(crate) trait HttpResponder: 'static {
    /// Answers a request, which is a GET or a HEAD.
    fn answer(&self, visitor: &HttpVisitor, request: &Request<Incoming>) -> impl Future<Output = HttpAnswer>;
}

/// Answers requests, for ever.
pub(crate) async fn serve<S: HttpResponder>(
    barrier: Rc<QuiesceBarrier>,
    listener: StreamListener,
    responder: Rc<S>,
) {
    let places = BoundedPlaces::new(CONNECTIONS);
    loop {
        // Who comes while another process takes over waits for the one that goes on: this one may be about to end.
        let (accepted, _) = barrier.enter_with(|| listener.accept()).await;
        let Ok(stream) = accepted else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let visitor = match &stream {
            AcceptedStream::Tcp(..) => Ok(HttpVisitor::Unknown),
            AcceptedStream::Unix(stream) => HttpVisitor::at_socket(stream),
        };
        // Of a process that is gone already nothing is known, and it needs no answer.
        let Ok(visitor) = visitor else { continue };
        let Some(place) = places.enter(visitor.party()) else {
            continue;
        };
        let responder = Rc::clone(&responder);
        tokio::task::spawn_local(async move {
            let served = async {
                match stream {
                    AcceptedStream::Tcp(stream, _) => {
                        answer_all(responder, visitor, PlacedStream::new(stream, place)).await
                    }
                    AcceptedStream::Unix(stream) => {
                        answer_all(responder, visitor, PlacedStream::new(stream, place)).await
                    }
                }
            };
            let _ = tokio::time::timeout(CONNECTION_TIME_MAX, served).await;
        });
        let_losers_go().await;
    }
}

async fn answer_all<S: HttpResponder>(
    responder: Rc<S>,
    visitor: HttpVisitor,
    stream: impl AsyncRead + AsyncWrite + Unpin,
) {
    let (responder, visitor) = (&responder, &visitor);
    let service = service_fn(move |request: Request<Incoming>| async move {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let answer = if is_read {
            responder.answer(visitor, &request).await
        } else {
            plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n")
        };
        Ok::<_, Infallible>(answer)
    });
    // What goes wrong on a connection is over with it.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// An answer of a few words.
pub(crate) fn plain(status: StatusCode, text: impl Into<Bytes>) -> HttpAnswer {
    let mut answer = typed(text, PLAIN_TYPE);
    *answer.status_mut() = status;
    answer
}

/// An answer of this type.
pub(crate) fn typed(body: impl Into<Bytes>, content_type: &'static str) -> HttpAnswer {
    let mut answer = Response::new(Full::from(body.into()));
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer
}
