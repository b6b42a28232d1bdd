//! gRPC, to servers that know nothing of nodes. There is no handshake: the schema is the app's own, and is believed.

mod attempts;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use provost_datapath::{Engine, EngineStart, Predecessor};
use provost_shm::now_ns;
use provost_transport_grpc as grpc;
use provost_wire::Code;

use self::attempts::DialAttempts;
use super::tcp::{first_to_answer, stop};
use super::{
    ConnectFailure, ConnectRequest, Encoding, EstablishedPeer, Hello, LiveCalls, NetworkTransport,
    OpenedPeer, PeerOpening, TransportDescription, TransportKind, TransportOptions, saved_of,
};

pub(super) const DESCRIPTION: TransportDescription = TransportDescription {
    name: "grpc",
    engine: grpc::KIND,
    summary: "gRPC over HTTP/2, to servers that know nothing of Provost",
    versions: &[1],
    network: Some(NetworkTransport {
        open,
        listening: None,
        live_calls: LiveCalls::Stay,
    }),
    restore: Some(restore),
};

/// Attempts of all connections of the process, as servers are to be spared by all of them.
static ATTEMPTS: DialAttempts = DialAttempts::new();

/// Who does not answer within this time counts as not reached.
const ATTEMPT_TIME_MIN: Duration = Duration::from_secs(1);

fn open(addresses: Vec<SocketAddr>, deadline: Instant) -> PeerOpening {
    Box::pin(async move {
        let addresses = ATTEMPTS.allowed(&addresses, Instant::now())?;
        let began = Instant::now();
        let stream = match first_to_answer(&addresses, deadline).await {
            Ok(stream) => stream.into_std()?,
            Err(error) => {
                if is_the_servers(error.kind(), began) {
                    ATTEMPTS.failed(&addresses, began, &error);
                }
                return Err(error);
            }
        };
        stream.set_nonblocking(false)?;
        let stop = stop(&stream)?;
        let handshake = Box::new(move |request| greet(stream, request, began));
        Ok(OpenedPeer { handshake, stop })
    })
}

/// Waits until the server has shown that it speaks HTTP/2.
fn greet(
    stream: TcpStream,
    request: ConnectRequest,
    began: Instant,
) -> Result<EstablishedPeer, ConnectFailure> {
    let fail = |reason: String| ConnectFailure {
        code: Code::Unavailable,
        message: format!("{} at {}: {reason}", request.hello.service, request.address),
    };
    if request.tls.is_some() {
        let reason = "gRPC goes without TLS, and with [tls] nothing leaves this node that way";
        return Err(fail(reason.to_owned()));
    }
    let address = stream.peer_addr().map_err(|error| fail(error.to_string()))?;
    let config = config(&request.hello, request.options);
    match grpc::GrpcLink::establish(stream, &config, request.deadline, now_ns) {
        Ok(link) => {
            ATTEMPTS.succeeded(address);
            Ok(peer(link, config, address, request))
        }
        Err(fault) => {
            let is_the_servers = match &fault {
                grpc::EstablishFault::Deadline => is_the_servers(io::ErrorKind::TimedOut, began),
                grpc::EstablishFault::Io(error) => is_the_servers(error.kind(), began),
                grpc::EstablishFault::Protocol(_) => true,
                // It may be one that this end gave up.
                grpc::EstablishFault::Closed => false,
            };
            if is_the_servers {
                ATTEMPTS.failed(&[address], began, &fault);
            }
            Err(fail(fault.to_string()))
        }
    }
}

/// Whether an attempt failed by the server or the way to it. An app that gives it little time, or a node that is out of
/// descriptors or ports, spoils no other's attempts.
fn is_the_servers(kind: io::ErrorKind, began: Instant) -> bool {
    match kind {
        io::ErrorKind::TimedOut => began.elapsed() >= ATTEMPT_TIME_MIN,
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => true,
        _ => false,
    }
}

fn config(hello: &Hello, options: TransportOptions) -> grpc::GrpcTransportConfig {
    grpc::GrpcTransportConfig {
        keepalive_interval_ns: options.keepalive_interval_ns.max(grpc::KEEPALIVE_INTERVAL_NS_MIN),
        keepalive_timeout_ns: options.keepalive_timeout_ns,
        calls_max: hello.limits.calls_in_flight_max,
        message_bytes_max: hello.limits.message_bytes_max,
    }
}

fn peer(
    link: grpc::GrpcLink,
    config: grpc::GrpcTransportConfig,
    address: SocketAddr,
    request: ConnectRequest,
) -> EstablishedPeer {
    let hello = request.hello;
    let methods = hello.methods.iter().map(|method| grpc::GrpcMethod {
        path: format!("/{}/{}", hello.service, method.name),
        client_streaming: method.kind.client_streaming,
        server_streaming: method.kind.server_streaming,
    });
    let methods = methods.collect();
    EstablishedPeer {
        kind: TransportKind::Grpc,
        identity: String::new(),
        address,
        claimed: None,
        encoding: Encoding::Protobuf,
        peer_limits: hello.limits,
        engine: Box::new(move |_version, _options, signals| {
            let parts = grpc::GrpcTransportParts {
                link,
                dialer: Box::new(move || grpc::dial(address)),
                authority: request.address,
                methods,
                config,
                signals,
            };
            Box::new(grpc::GrpcTransport::new(parts, now_ns()))
        }),
    }
}

fn restore(_version: u32) -> EngineStart {
    Box::new(|predecessor: Predecessor<'_>| {
        let saved = saved_of(&predecessor, grpc::KIND)?;
        let transport = grpc::GrpcTransport::restore(saved, predecessor.link)?;
        Ok(Box::new(transport) as Box<dyn Engine>)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_node_lacks_is_no_failure_of_a_server() {
        let began = Instant::now();
        // Too many open files.
        let descriptors = io::Error::from_raw_os_error(24).kind();
        for kind in [
            descriptors,
            io::ErrorKind::AddrNotAvailable,
            io::ErrorKind::TimedOut,
        ] {
            assert!(!is_the_servers(kind, began), "{kind}");
        }
        assert!(is_the_servers(io::ErrorKind::ConnectionRefused, began));
        let earlier = began
            .checked_sub(ATTEMPT_TIME_MIN)
            .expect("the clock has run that long");
        assert!(is_the_servers(io::ErrorKind::TimedOut, earlier));
    }
}
