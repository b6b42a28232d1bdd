//! One connection of a client, and one call on it.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST, TE};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use provost_insight::profile::Protocol;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::ECHO_PATH;
use crate::failure::{Doing, ProbeFailure};

/// What a call goes through.
pub(crate) enum CallPath {
    Tcp(TcpStream),
    Http1(http1::SendRequest<Full<Bytes>>, Target),
    Http2(http2::SendRequest<Full<Bytes>>, Target),
    Grpc(http2::SendRequest<Full<Bytes>>, Target),
}

/// Where requests go, in the forms that requests need.
#[derive(Clone)]
pub(crate) struct Target {
    uri: Uri,
    authority: String,
}

impl Target {
    fn of(address: SocketAddr, protocol: Protocol) -> Result<Target, ProbeFailure> {
        let authority = address.to_string();
        let text = if protocol == Protocol::Http1 {
            ECHO_PATH.to_string()
        } else {
            format!("http://{authority}{ECHO_PATH}")
        };
        let uri = text
            .parse()
            .map_err(|error| ProbeFailure::Invalid(format!("{text}: {error}")))?;
        Ok(Target { uri, authority })
    }
}

impl CallPath {
    /// Connects as many calls' paths as shall be in flight: a connection each, or one connection's streams.
    pub(crate) async fn connect(
        address: SocketAddr,
        protocol: Protocol,
        in_flight: usize,
    ) -> Result<Vec<CallPath>, ProbeFailure> {
        let mut paths = Vec::new();
        match protocol {
            Protocol::Tcp => {
                for _ in 0..in_flight {
                    paths.push(CallPath::Tcp(stream(address).await?));
                }
            }
            Protocol::Http1 => {
                for _ in 0..in_flight {
                    let io = TokioIo::new(stream(address).await?);
                    let (sender, connection) = http1::handshake(io).await.map_err(load_failure)?;
                    tokio::spawn(connection);
                    paths.push(CallPath::Http1(sender, Target::of(address, protocol)?));
                }
            }
            Protocol::Http2 | Protocol::Grpc => {
                let io = TokioIo::new(stream(address).await?);
                let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                    .initial_stream_window_size(WINDOW_BYTES)
                    .initial_connection_window_size(WINDOW_BYTES)
                    .handshake(io)
                    .await
                    .map_err(load_failure)?;
                tokio::spawn(connection);
                for _ in 0..in_flight {
                    let (sender, target) = (sender.clone(), Target::of(address, protocol)?);
                    paths.push(if protocol == Protocol::Grpc {
                        CallPath::Grpc(sender, target)
                    } else {
                        CallPath::Http2(sender, target)
                    });
                }
            }
            Protocol::Provost => {
                let why = "the built-in load speaks tcp, http1, http2 and grpc";
                return Err(ProbeFailure::Unavailable(why.into()));
            }
        }
        Ok(paths)
    }

    /// Sends a message and waits until it has come back whole.
    pub(crate) async fn call(&mut self, message: &Bytes) -> Result<(), ProbeFailure> {
        match self {
            CallPath::Tcp(stream) => {
                stream.write_all(message).await.doing(|| "send".into())?;
                let mut left = message.len();
                let mut part = [0; 1 << 16];
                while left > 0 {
                    let wanted = left.min(part.len());
                    let length = stream
                        .read(&mut part[..wanted])
                        .await
                        .doing(|| "receive".into())?;
                    if length == 0 {
                        return Err(ProbeFailure::Load("the connection was closed".into()));
                    }
                    left -= length;
                }
                Ok(())
            }
            CallPath::Http1(sender, target) => {
                let request = request(target).header(HOST, &target.authority);
                let request = finish(request, message)?;
                sender.ready().await.map_err(load_failure)?;
                echoed(sender.send_request(request).await, message).await
            }
            CallPath::Http2(sender, target) => {
                let request = finish(request(target), message)?;
                echoed(sender.send_request(request).await, message).await
            }
            CallPath::Grpc(sender, target) => {
                let request = request(target)
                    .header(CONTENT_TYPE, "application/grpc")
                    .header(TE, "trailers");
                let request = finish(request, message)?;
                answered(sender.send_request(request).await, message).await
            }
        }
    }
}

/// So much of a response may come before it is asked for more: any size that is measured, at once.
pub(crate) const WINDOW_BYTES: u32 = 8 << 20;

fn request(target: &Target) -> hyper::http::request::Builder {
    Request::builder().method(Method::POST).uri(target.uri.clone())
}

fn finish(
    builder: hyper::http::request::Builder,
    message: &Bytes,
) -> Result<Request<Full<Bytes>>, ProbeFailure> {
    builder
        .body(Full::new(message.clone()))
        .map_err(|error| ProbeFailure::Load(error.to_string()))
}

async fn stream(address: SocketAddr) -> Result<TcpStream, ProbeFailure> {
    let stream = TcpStream::connect(address)
        .await
        .doing(|| format!("connect to {address}"))?;
    stream.set_nodelay(true).doing(|| "set TCP_NODELAY".into())?;
    Ok(stream)
}

type Answer = Result<Response<hyper::body::Incoming>, hyper::Error>;

async fn echoed(answer: Answer, message: &Bytes) -> Result<(), ProbeFailure> {
    let answer = answer.map_err(load_failure)?;
    if answer.status() != StatusCode::OK {
        return Err(ProbeFailure::Load(format!("answered {}", answer.status())));
    }
    let body = answer.into_body().collect().await.map_err(load_failure)?;
    check_length(body.to_bytes().len(), message.len())
}

async fn answered(answer: Answer, message: &Bytes) -> Result<(), ProbeFailure> {
    let answer = answer.map_err(load_failure)?;
    let in_head = answer.headers().get("grpc-status").cloned();
    let body = answer.into_body().collect().await.map_err(load_failure)?;
    let in_trailers = body
        .trailers()
        .and_then(|trailers| trailers.get("grpc-status"))
        .cloned();
    match in_trailers.or(in_head) {
        Some(status) if status == "0" => check_length(body.to_bytes().len(), message.len()),
        status => Err(ProbeFailure::Load(format!("gRPC status {status:?}"))),
    }
}

fn check_length(got: usize, sent: usize) -> Result<(), ProbeFailure> {
    if got == sent {
        Ok(())
    } else {
        Err(ProbeFailure::Load(format!(
            "{got} bytes came back instead of {sent}"
        )))
    }
}

fn load_failure(error: hyper::Error) -> ProbeFailure {
    let source = std::error::Error::source(&error).map_or(String::new(), |source| format!(": {source}"));
    ProbeFailure::Load(format!("{error}{source}"))
}
