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
/// How long a connection may take.
const TIMES: ConnectionTimes = ConnectionTimes {
    head_max: Duration::from_secs(10),
    all_max: Duration::from_secs(300),
};
/// Memory for a request's head, in bytes (the least that the HTTP library takes).
const HEAD_BYTES_MAX: usize = 8192;
/// Before accepting again after an error, such as of too many descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// What plain answers are.
const PLAIN_TYPE: &str = "text/plain; charset=utf-8";

/// What a server answers.
pub(crate) type HttpAnswer = Response<Full<Bytes>>;

/// How long a connection may take, whatever its other end does.
#[derive(Clone, Copy, Debug)]
struct ConnectionTimes {
    /// For a request's head, and without a request.
    head_max: Duration,
    /// From its begin to its end, so that nobody can read its answer for ever: those who watch come again.
    all_max: Duration,
}

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
            match stream {
                AcceptedStream::Tcp(stream, _) => {
                    let stream = PlacedStream::new(stream, place);
                    answer_within(TIMES, responder, visitor, stream).await;
                }
                AcceptedStream::Unix(stream) => {
                    let stream = PlacedStream::new(stream, place);
                    answer_within(TIMES, responder, visitor, stream).await;
                }
            }
        });
        let_losers_go().await;
    }
}

/// Answers the requests of a connection until it ends, or its time is over.
async fn answer_within<S: HttpResponder>(
    times: ConnectionTimes,
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
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.head_max)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // What goes wrong on a connection is over with it.
    let _ = tokio::time::timeout(times.all_max, served).await;
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

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(3600);
    /// How long a connection may take to end whose time is over.
    const ENDED_WITHIN: Duration = Duration::from_secs(20);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";

    struct SaysFine;

    impl HttpResponder for SaysFine {
        async fn answer(&self, _visitor: &HttpVisitor, _request: &Request<Incoming>) -> HttpAnswer {
            plain(StatusCode::OK, "fine\n")
        }
    }

    /// Sends this at once, and then this again and again, until the connection is over. What was answered until then.
    async fn answers_until_its_end(times: ConnectionTimes, first: &[u8], again: &[u8]) -> String {
        let (server, client) = UnixStream::pair().unwrap();
        assert_eq!(client.try_write(first).unwrap(), first.len());
        let served = answer_within(times, Rc::new(SaysFine), HttpVisitor::Unknown, server);
        let speaking = async {
            loop {
                tokio::time::sleep(SHORT / 10).await;
                // It fails where the connection is over, or the server does not read.
                let _ = client.try_write(again);
            }
        };
        tokio::select! {
            () = served => {}
            () = speaking => unreachable!("it speaks for ever"),
            () = tokio::time::sleep(ENDED_WITHIN) => panic!("the connection goes on"),
        }
        answered(&client)
    }

    fn answered(client: &UnixStream) -> String {
        let mut bytes = vec![0; 1 << 20];
        match client.try_read(&mut bytes) {
            Ok(count) => String::from_utf8_lossy(&bytes[..count]).into_owned(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => String::new(),
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn a_connection_without_a_request_or_with_a_head_that_does_not_end_is_ended() {
        let times = ConnectionTimes {
            head_max: SHORT,
            all_max: LONG,
        };
        assert_eq!(answers_until_its_end(times, b"", b"").await, "");
        assert_eq!(
            answers_until_its_end(times, b"GET / HTTP/1.1\r\nHo", b"").await,
            ""
        );
        // However much of it comes.
        let slow = answers_until_its_end(times, b"GET / HTTP/1.1\r\nHost: n", b"n").await;
        assert_eq!(slow.matches("200 OK").count(), 0, "{slow}");
        // One that was answered has no more time for its next request.
        let idle = answers_until_its_end(times, REQUEST, b"").await;
        assert_eq!(idle.matches("fine").count(), 1, "{idle}");
    }

    #[tokio::test]
    async fn a_connection_that_asks_for_ever_has_its_time_too() {
        let times = ConnectionTimes {
            head_max: LONG,
            all_max: SHORT,
        };
        let answers = answers_until_its_end(times, REQUEST, REQUEST).await;
        assert!(answers.matches("fine").count() > 0, "{answers}");
    }
}
