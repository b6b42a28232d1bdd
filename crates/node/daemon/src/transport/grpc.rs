//! gRPC, to servers that know nothing of nodes. There is no handshake: the schema is the app's own, and is believed.

mod attempts;
mod called_server;
pub(crate) mod channels;
mod learn;
mod own_dials;
mod same_server;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use provost_datapath::{
    CompressedMessages, Engine, EngineStart, FieldReader, Predecessor, PrivateBytes, RestoreError,
};
use provost_grpc::MessageEncoding;
use provost_shm::now_ns;
use provost_tls::{LoadedStreamTls, TlsSource, TlsStream};
use provost_transport_grpc::{self as grpc, ByteCarrier};
use provost_wire::Code;
use rustix::net::AddressFamily;

use self::attempts::{DialAttempts, DialTarget, TlsTarget};
use self::called_server::CalledServer;
pub(crate) use self::learn::{FILES_MAX as TOLD_FILES_MAX, ToldSchema, learn as learn_schema};
pub(crate) use self::own_dials::is_own_dial;
use super::tcp::{first_to_answer, stop};
use super::{
    ConnectFailure, ConnectRequest, Encoding, EstablishedPeer, Limits, LiveCalls, Method, NetworkTransport,
    OpenedPeer, PeerAddress, PeerOpening, PeerProgram, StopHandshake, TLS_CARRIER, TlsCarrier,
    TransportDescription, TransportKind, TransportOptions, TransportRestore, finish_handshake, saved_of,
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
        peer: PeerProgram::GrpcServer,
    }),
    restore: TransportRestore::OfServer(restore),
    state_form: Some(grpc::STATE_FORM),
};

/// Attempts of all connections of the process, as servers are to be spared by all of them.
static ATTEMPTS: DialAttempts = DialAttempts::new();

/// What servers at Unix sockets are called (gRPC's naming document says nothing; its libraries do so).
const UNIX_HOST: &str = "localhost";
/// Who does not answer within this time counts as not reached.
const ATTEMPT_TIME_MIN: Duration = Duration::from_secs(1);

/// How a gRPC server is spoken to.
#[derive(Clone, Default)]
pub(crate) struct GrpcServerTerms {
    /// TLS, where it speaks it.
    pub(crate) tls: Option<GrpcServerTls>,
    /// How messages are compressed of which the caller asks nothing.
    pub(crate) compression: MessageEncoding,
    /// For how long about calls begin on one of its connections; zero for ever.
    pub(crate) age_max: Duration,
    /// How many connections the calls of one client may have at a time; 0 as 1.
    pub(crate) connections: usize,
    /// What its connections are marked with.
    pub(crate) mark: Option<u32>,
    /// What it is asked when hands were shaken.
    pub(crate) question: Option<Arc<SchemaQuestion>>,
}

/// Asks a server for the schema of a service, by server reflection.
pub(crate) struct SchemaQuestion {
    service: String,
    told: OnceLock<Result<ToldSchema, String>>,
}

impl SchemaQuestion {
    pub(crate) fn about(service: &str) -> SchemaQuestion {
        SchemaQuestion {
            service: service.to_owned(),
            told: OnceLock::new(),
        }
    }

    /// What the server has told, once it was reached.
    pub(crate) fn told(&self) -> Result<ToldSchema, String> {
        let told = self.told.get().cloned();
        told.unwrap_or_else(|| Err("it was not asked".to_owned()))
    }

    /// Asks a server that was reached.
    fn ask(&self, met: &mut MetServer, authority: &str, deadline: Instant) {
        let told = learn_schema(&self.service, |path, message| {
            let question = grpc::ServerQuestion {
                path,
                authority,
                message,
            };
            met.link.ask(question, learn::ANSWER_BYTES_MAX, deadline, now_ns)
        });
        // It is asked once.
        let _ = self.told.set(told.map_err(|fault| fault.to_string()));
    }
}

/// TLS with a gRPC server.
#[derive(Clone)]
pub(crate) struct GrpcServerTls {
    /// What connections are made with.
    pub(crate) source: TlsSource<LoadedStreamTls<rustls::ClientConfig>>,
    /// What the server is called, if it is not called by its endpoint.
    pub(crate) given_name: Option<String>,
}

impl GrpcServerTls {
    /// The server's name at an endpoint.
    fn name(&self, endpoint: &str) -> String {
        if let Some(name) = &self.given_name {
            return name.clone();
        }
        if PeerAddress::is_unix(endpoint) {
            return UNIX_HOST.to_owned();
        }
        endpoint
            .rsplit_once(':')
            .map_or(endpoint, |(host, _)| host)
            .to_owned()
    }

    /// A stream within TLS.
    fn around<S: Read + Write>(&self, socket: S, endpoint: &str) -> io::Result<TlsStream<S>> {
        let config = Arc::clone(&self.source.current().config);
        TlsStream::client(socket, config, &self.name(endpoint)).map_err(io::Error::other)
    }
}

/// A socket of a server, connected or about to be. It does not block.
enum ServerSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ServerSocket {
    /// Begins to connect to a server.
    fn dial(address: &PeerAddress, mark: Option<u32>) -> io::Result<ServerSocket> {
        Ok(match address {
            PeerAddress::Internet(address) => {
                let stream = grpc::dial(*address, |socket| own_dials::prepare(socket, mark))?;
                own_dials::note(&stream, *address);
                ServerSocket::Tcp(stream)
            }
            unix => ServerSocket::Unix(grpc::dial_unix(&unix.socket_address()?)?),
        })
    }

    /// What carries HTTP/2 over it, in cleartext.
    fn carrier(self) -> Box<dyn ByteCarrier> {
        match self {
            ServerSocket::Tcp(stream) => Box::new(stream),
            ServerSocket::Unix(stream) => Box::new(stream),
        }
    }

    /// Shutting a socket down ends whatever waits for it.
    fn stop(&self) -> io::Result<StopHandshake> {
        match self {
            ServerSocket::Tcp(stream) => stop(stream),
            ServerSocket::Unix(stream) => {
                let stream = stream.try_clone()?;
                // It fails only where the connection has ended already.
                Ok(Box::new(move || drop(stream.shutdown(Shutdown::Both))))
            }
        }
    }
}

fn open(addresses: Vec<PeerAddress>, request: &ConnectRequest) -> PeerOpening {
    let (endpoint, deadline, mark) = (request.address.clone(), request.deadline, request.grpc.mark);
    let tls = request.grpc.tls.as_ref().map(|tls| TlsTarget {
        name: tls.name(&endpoint),
        source: tls.source.version(),
    });
    let target = move |address| DialTarget {
        address,
        tls: tls.clone(),
    };
    let targets: Vec<DialTarget> = addresses.into_iter().map(target).collect();
    Box::pin(async move {
        let addresses = targets.iter().map(|target| target.address.clone()).collect();
        let targets = ATTEMPTS.allowed(&targets, Instant::now())?;
        let began = Instant::now();
        let (socket, address) = match connect(&targets, deadline, mark).await {
            Ok(connected) => connected,
            Err(error) => {
                if is_the_servers(error.kind(), began) {
                    ATTEMPTS.failed(&targets, began, &error);
                }
                return Err(error);
            }
        };
        let target = targets.into_iter().find(|target| target.address == address);
        let attempt = DialAttempt::new(target, began);
        let stop = attempt.stop_of(socket.stop()?);
        let named = NamedAddresses {
            met: address,
            all: addresses,
        };
        let handshake = Box::new(move |request| greet(socket, named, request, attempt));
        Ok(OpenedPeer { handshake, stop })
    })
}

/// The addresses of an endpoint.
struct NamedAddresses {
    /// The one that has answered.
    met: PeerAddress,
    all: Vec<PeerAddress>,
}

/// Connects to the first address that answers.
async fn connect(
    targets: &[DialTarget],
    deadline: Instant,
    mark: Option<u32>,
) -> io::Result<(ServerSocket, PeerAddress)> {
    let addresses: Vec<PeerAddress> = targets.iter().map(|target| target.address.clone()).collect();
    if let [unix @ (PeerAddress::Path(_) | PeerAddress::Abstract(_))] = &addresses[..] {
        return Ok((ServerSocket::dial(unix, mark)?, unix.clone()));
    }
    let addresses = PeerAddress::of_internet(addresses);
    let stream = first_to_answer(&addresses, deadline, |socket| own_dials::prepare(socket, mark)).await?;
    let stream = stream.into_std()?;
    stream.set_nodelay(true)?;
    let address = stream.peer_addr()?;
    own_dials::note(&stream, address);
    Ok((ServerSocket::Tcp(stream), address.into()))
}

/// One attempt, of those that count together.
struct DialAttempt {
    target: Option<DialTarget>,
    began: Instant,
    /// Whoever asked for it has gone, and this end shuts its socket.
    is_given_up: Arc<AtomicBool>,
}

impl DialAttempt {
    fn new(target: Option<DialTarget>, began: Instant) -> DialAttempt {
        DialAttempt {
            target,
            began,
            is_given_up: Arc::default(),
        }
    }

    /// Gives it up by this.
    fn stop_of(&self, stop: StopHandshake) -> StopHandshake {
        let is_given_up = Arc::clone(&self.is_given_up);
        Box::new(move || {
            // Pairs with the load of who finds the socket shut. Shutting it is a system call, which comes behind.
            is_given_up.store(true, Ordering::Release);
            stop();
        })
    }

    fn succeeded(&self) {
        if let Some(target) = &self.target {
            ATTEMPTS.succeeded(target);
        }
    }

    fn failed(&self, fault: &grpc::EstablishFault) {
        if self.is_the_servers(fault) {
            ATTEMPTS.failed(self.target.as_slice(), self.began, fault);
        }
    }

    /// Whether the server is to be spared the next attempt for a while.
    fn is_the_servers(&self, fault: &grpc::EstablishFault) -> bool {
        match fault {
            grpc::EstablishFault::Deadline => is_the_servers(io::ErrorKind::TimedOut, self.began),
            grpc::EstablishFault::Io(error) => is_the_servers(error.kind(), self.began),
            grpc::EstablishFault::Protocol(_) => true,
            grpc::EstablishFault::Closed => !self.is_given_up.load(Ordering::Acquire),
        }
    }
}

/// What a process that takes over knows of the server of a connection that it is given.
pub(crate) struct RestoredServer {
    pub(crate) service: String,
    pub(crate) methods: Vec<Method>,
    pub(crate) limits: Limits,
    pub(crate) options: TransportOptions,
    /// In which share messages count that wait for it.
    pub(crate) share: Arc<PrivateBytes>,
    /// Where its own configuration says that the service is; else why nothing can be called there.
    pub(crate) route: Result<RestoredRoute, String>,
}

/// A route to gRPC servers, as the process that takes over has it.
pub(crate) struct RestoredRoute {
    pub(crate) endpoints: Vec<String>,
    pub(crate) terms: GrpcServerTerms,
}

impl RestoredServer {
    /// What connects to the server once more, if that is where the route leads.
    fn dialer(&self, saved: &[u8]) -> grpc::LinkDialer {
        let dialer = CalledServer::read(saved)
            .ok_or_else(|| "the process before did not say where the server is".to_owned())
            .and_then(|server| {
                let terms = self.terms(&server)?;
                Ok(server.dialer(terms))
            });
        match dialer {
            Ok(dialer) => dialer,
            Err(reason) => Box::new(move |_| Err(io::Error::other(reason.clone()))),
        }
    }

    fn terms(&self, server: &CalledServer) -> Result<GrpcServerTerms, String> {
        let route = self.route.as_ref().map_err(String::clone)?;
        let is_there = route.endpoints.contains(&server.endpoint);
        if is_there && route.terms.tls.is_some() == server.has_tls {
            return Ok(route.terms.clone());
        }
        Err(format!(
            "the route of {} does not lead to {} any more as it did",
            self.service, server.endpoint
        ))
    }
}

/// Goes on with a connection of another process to a server.
fn restore(server: RestoredServer) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        let saved = saved_of(&predecessor, grpc::KIND)?;
        let list = Arc::default();
        channels::note(&predecessor.link, &list);
        let terms = server.route.as_ref().map(|route| route.terms.clone());
        let parts = grpc::RestoredTransportParts {
            sockets: predecessor.descriptors,
            carrier: &mut carrier_of,
            dialer: &mut |saved| server.dialer(saved),
            methods: methods(&server.service, &server.methods),
            config: config(&terms.unwrap_or_default(), server.limits, server.options),
            share: server.share.clone(),
            list,
            signals: predecessor.link,
            restorer: predecessor.restorer,
            now: now_ns(),
        };
        let transport = grpc::GrpcTransport::restore(saved, parts)?;
        Ok(Box::new(transport) as Box<dyn Engine>)
    })
}

/// What carries the bytes of a link, by what its state begins with.
fn carrier_of(socket: OwnedFd, fields: &mut FieldReader<'_>) -> Result<Box<dyn ByteCarrier>, RestoreError> {
    let domain = rustix::net::sockopt::socket_domain(&socket);
    let is_unix = domain.map_err(|error| fields.damaged(error.to_string()))? == AddressFamily::UNIX;
    Ok(match (fields.u8()?, is_unix) {
        (grpc::PLAIN_CARRIER, true) => Box::new(UnixStream::from(socket)),
        (grpc::PLAIN_CARRIER, false) => Box::new(TcpStream::from(socket)),
        (TLS_CARRIER, true) => Box::new(TlsCarrier(TlsStream::restore(UnixStream::from(socket), fields)?)),
        (TLS_CARRIER, false) => Box::new(TlsCarrier(TlsStream::restore(TcpStream::from(socket), fields)?)),
        (other, _) => {
            let reason = format!("{other} is no way to carry bytes that this version knows");
            return Err(fields.damaged(reason));
        }
    })
}

/// Waits until the server has proved who it is, where it has to, and has shown that it speaks HTTP/2.
fn greet(
    socket: ServerSocket,
    named: NamedAddresses,
    request: ConnectRequest,
    attempt: DialAttempt,
) -> Result<EstablishedPeer, ConnectFailure> {
    let fail = |reason: String| ConnectFailure {
        code: Code::Unavailable,
        message: format!("{} at {}: {reason}", request.hello.service, request.address),
    };
    if request.tls.is_some() {
        let reason = "the route has no tls table, and with [tls] nothing leaves this node without TLS";
        return Err(fail(reason.to_owned()));
    }
    let config = config(&request.grpc, request.hello.limits, request.options);
    match establish(socket, &request, &config) {
        Ok(mut met) => {
            attempt.succeeded();
            if let Some(question) = &request.grpc.question {
                let authority = authority(&request.address, request.grpc.tls.as_ref());
                question.ask(&mut met, &authority, request.deadline);
            }
            Ok(peer(met, config, named, request))
        }
        Err(fault) => {
            attempt.failed(&fault);
            let hint = hint(&fault, request.grpc.tls.is_some());
            Err(fail(format!("{fault}{hint}")))
        }
    }
}

/// A server that has shown what it is.
struct MetServer {
    link: grpc::GrpcLink,
    /// Who it has proved to be; empty without TLS.
    identity: String,
}

fn establish(
    socket: ServerSocket,
    request: &ConnectRequest,
    config: &grpc::GrpcTransportConfig,
) -> Result<MetServer, grpc::EstablishFault> {
    let (carrier, identity) = match (socket, &request.grpc.tls) {
        (socket, None) => (socket.carrier(), String::new()),
        (ServerSocket::Tcp(stream), Some(tls)) => {
            proved(tls.around(stream, &request.address)?, request.deadline)?
        }
        (ServerSocket::Unix(stream), Some(tls)) => {
            proved(tls.around(stream, &request.address)?, request.deadline)?
        }
    };
    let link = grpc::GrpcLink::establish(carrier, config, request.deadline, now_ns)?;
    Ok(MetServer { link, identity })
}

fn proved<S: Read + Write + AsFd + Send + 'static>(
    mut stream: TlsStream<S>,
    deadline: Instant,
) -> Result<(Box<dyn ByteCarrier>, String), grpc::EstablishFault> {
    finish_handshake(&mut stream, deadline).map_err(of_handshake)?;
    let identity = stream.identity().name().to_owned();
    Ok((Box::new(TlsCarrier(stream)), identity))
}

/// Why hands were not shaken. A connection that ends early is told apart as it is without TLS: whoever asked for it may have
/// gone, and this end has shut its socket then.
fn of_handshake(error: io::Error) -> grpc::EstablishFault {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => grpc::EstablishFault::Closed,
        _ => grpc::EstablishFault::Io(error),
    }
}

/// What may be wrong, where that is not clear.
fn hint(fault: &grpc::EstablishFault, has_tls: bool) -> &'static str {
    match (fault, has_tls) {
        (grpc::EstablishFault::Deadline | grpc::EstablishFault::Closed, false) => {
            ": is it a gRPC server without TLS?"
        }
        (grpc::EstablishFault::Deadline | grpc::EstablishFault::Closed, true) => {
            ": is it a gRPC server, and does it take the certificate of the route?"
        }
        _ => "",
    }
}

/// Whether an attempt failed by the server or the way to it. An app that gives it little time, or a node that is out of
/// descriptors or ports, spoils no other's attempts.
fn is_the_servers(kind: io::ErrorKind, began: Instant) -> bool {
    match kind {
        io::ErrorKind::TimedOut => began.elapsed() >= ATTEMPT_TIME_MIN,
        // What comes is no TLS, or a certificate that is not taken.
        io::ErrorKind::InvalidData
        | io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable => true,
        _ => false,
    }
}

fn config(terms: &GrpcServerTerms, limits: Limits, options: TransportOptions) -> grpc::GrpcTransportConfig {
    grpc::GrpcTransportConfig {
        compression: terms.compression,
        connections_max: terms.connections.max(1),
        // Connections that began together do not end together.
        age_max_ns: attempts::jittered(terms.age_max).as_nanos() as u64,
        keepalive_interval_ns: options.keepalive_interval_ns.max(grpc::KEEPALIVE_INTERVAL_NS_MIN),
        keepalive_timeout_ns: options.keepalive_timeout_ns,
        calls_max: limits.calls_in_flight_max,
        message_bytes_max: limits.message_bytes_max,
        compressed: if limits.takes_compressed() {
            CompressedMessages::Passed
        } else {
            CompressedMessages::Decompressed
        },
    }
}

fn methods(service: &str, methods: &[Method]) -> Arc<[grpc::GrpcMethod]> {
    let method = |method: &Method| grpc::GrpcMethod {
        path: format!("/{service}/{}", method.name),
        client_streaming: method.kind.client_streaming,
        server_streaming: method.kind.server_streaming,
    };
    methods.iter().map(method).collect()
}

fn peer(
    met: MetServer,
    config: grpc::GrpcTransportConfig,
    named: NamedAddresses,
    request: ConnectRequest,
) -> EstablishedPeer {
    let (hello, terms) = (request.hello, request.grpc);
    let authority = authority(&request.address, terms.tls.as_ref());
    let methods = methods(&hello.service, &hello.methods);
    let server = CalledServer {
        endpoint: request.address,
        others: named
            .all
            .into_iter()
            .filter(|other| *other != named.met)
            .collect(),
        address: named.met.clone(),
        has_tls: terms.tls.is_some(),
        identity: met.identity.clone(),
    };
    EstablishedPeer {
        kind: TransportKind::Grpc,
        identity: met.identity,
        address: named.met,
        claimed: None,
        encoding: Encoding::Protobuf,
        peer_limits: hello.limits,
        engine: Box::new(move |_version, _options, signals| {
            let list = Arc::default();
            channels::note(&signals, &list);
            let parts = grpc::GrpcTransportParts {
                link: met.link,
                list,
                server: server.saved(),
                dialer: server.dialer(terms),
                authority,
                methods,
                config,
                signals,
            };
            Box::new(grpc::GrpcTransport::new(parts, now_ns()))
        }),
    }
}

/// What the server is called (`:authority`): as its endpoint is, unless it has another name.
fn authority(endpoint: &str, tls: Option<&GrpcServerTls>) -> String {
    match tls.and_then(|tls| tls.given_name.clone()) {
        Some(name) => name,
        None if PeerAddress::is_unix(endpoint) => UNIX_HOST.to_owned(),
        None => endpoint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use provost_tls::{ServerTrust, StreamClientFiles, TrustAnchors};

    use super::*;

    const NAME: &str = "server.test";

    fn server_tls() -> GrpcServerTls {
        let directory = tempfile::tempdir().unwrap();
        let ca = directory.path().join("ca.pem");
        let authority = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
        std::fs::write(&ca, authority.cert.pem()).unwrap();
        let trust = ServerTrust {
            anchors: TrustAnchors::File(ca),
            crls: Vec::new(),
        };
        let files = StreamClientFiles {
            trust,
            ..StreamClientFiles::default()
        };
        GrpcServerTls {
            source: TlsSource::new(Arc::new(files.load().unwrap())),
            given_name: Some(NAME.to_owned()),
        }
    }

    /// A socket that does not block, and the one at its other end.
    fn sockets() -> (UnixStream, UnixStream) {
        let (socket, server) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        (socket, server)
    }

    #[test]
    fn what_carries_bytes_within_tls_tells_that_it_waits_for_the_server() {
        let (socket, _server) = sockets();
        let stream = server_tls().around(socket, NAME).unwrap();
        let mut carrier = same_server::SameServerCarrier::new(stream, NAME);
        while carrier.write_ready(&[io::IoSlice::new(&[7; 1_000])]).is_ok() {}
        assert!(carrier.waits_for_peer());
    }

    #[test]
    fn an_attempt_that_is_given_up_within_its_handshake_is_no_failure_of_its_server() {
        let (socket, _server) = sockets();
        let attempt = DialAttempt::new(None, Instant::now());
        let stop = ServerSocket::Unix(socket.try_clone().unwrap()).stop().unwrap();
        let stop = attempt.stop_of(stop);
        let mut stream = server_tls().around(socket, NAME).unwrap();
        assert!(!stream.shake_hands().unwrap());
        // As when the app that has asked for it has gone.
        stop();
        let deadline = Instant::now() + Duration::from_secs(10);
        let fault = proved(stream, deadline).err().unwrap();
        assert!(matches!(fault, grpc::EstablishFault::Closed), "{fault}");
        assert!(!attempt.is_the_servers(&fault));
    }

    /// gRPC's connection back-off protocol: an attempt has succeeded once the server's SETTINGS have come.
    #[test]
    fn a_server_that_closes_what_it_has_accepted_has_failed() {
        let (socket, server) = sockets();
        let attempt = DialAttempt::new(None, Instant::now());
        drop(server);
        let deadline = Instant::now() + Duration::from_secs(10);
        let config = grpc::GrpcTransportConfig::default();
        let fault = grpc::GrpcLink::establish(Box::new(socket), &config, deadline, now_ns).unwrap_err();
        assert!(matches!(fault, grpc::EstablishFault::Closed), "{fault}");
        assert!(attempt.is_the_servers(&fault));
    }

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
