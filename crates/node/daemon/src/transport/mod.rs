//! The transports of a node: which there are, and what each can do. Adding one takes its crate, a module here that joins
//! it to the node, and one line of the registry below. The rest of the node asks [`TransportKind`] what a transport can do, and
//! names none: `cargo xtask tidy` refuses it.

mod address;
mod datagram;
mod grpc;
pub(crate) mod local;
mod native;
mod nic;
mod packets;
mod tcp;
mod tls_carrier;
mod tls_handshake;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use provost_datapath::{ConnectionSignals, Engine, EngineStart, Predecessor, RestoreError, SavedState};
use provost_wire::Code;

pub(crate) use address::PeerAddress;
pub(crate) use grpc::channels as grpc_channels;
pub(crate) use grpc::{
    GrpcServerTerms, GrpcServerTls, RestoredRoute, RestoredServer, SchemaQuestion, TOLD_FILES_MAX,
    ToldSchema, is_own_dial, learn_schema,
};
pub(crate) use provost_transport::{
    CallerAttestation, Decision, Encoding, Hello, Limits, Method, MethodKind, PeerIdentity,
};
pub(crate) use provost_transport_datagram::{PACKET_BYTES_ETHERNET, PACKET_BYTES_MAX, PACKET_BYTES_MIN};
pub(crate) use provost_transport_grpc::{AskFault, CONNECTIONS_MAX as GRPC_CONNECTIONS_MAX};
pub(crate) use provost_transport_migration::beside;
pub(crate) use tls_carrier::{TLS_CARRIER, TlsCarrier};
pub(crate) use tls_handshake::finish_handshake;

macro_rules! registry {
    ($($(#[$about:meta])* $kind:ident => $module:ident,)+) => {
        /// What carries a connection.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum TransportKind {
            $($(#[$about])* $kind,)+
        }

        impl TransportKind {
            pub const ALL: &[TransportKind] = &[$(TransportKind::$kind),+];
            /// What configurations call them.
            pub(crate) const NAMES: &[&str] = &[$($module::DESCRIPTION.name),+];

            pub(crate) fn description(self) -> &'static TransportDescription {
                match self {
                    $(TransportKind::$kind => &$module::DESCRIPTION,)+
                }
            }
        }
    };
}

registry! {
    /// Both ends are on this node.
    Local => local,
    /// The native protocol over TCP.
    #[default]
    Tcp => tcp,
    /// The native protocol over the datagram transport.
    Datagram => datagram,
    /// gRPC, to servers that are no nodes.
    Grpc => grpc,
    /// The native protocol over a simulated NIC.
    Nic => nic,
}

impl TransportKind {
    /// What carries a connection both of whose ends are on this node.
    pub(crate) const WITHIN_NODE: TransportKind = TransportKind::Local;
    /// What reaches servers of which only the address is known, where an app's connection was redirected to the node.
    pub(crate) const TO_SERVERS: TransportKind = TransportKind::Grpc;
}

/// What the node knows of a transport.
pub(crate) struct TransportDescription {
    /// What configurations, listings and metrics call it.
    pub(crate) name: &'static str,
    /// What its engine is called, in saved state and where it is upgraded.
    pub(crate) engine: &'static str,
    /// For operators, in one line.
    pub(crate) summary: &'static str,
    /// The versions of its code. A node begins with the first.
    pub(crate) versions: &'static [u32],
    /// How it reaches other nodes; none for one that does not leave this node.
    pub(crate) network: Option<NetworkTransport>,
    pub(crate) restore: TransportRestore,
    /// The newest form of its saved state that this process reads, where a process before has to know it.
    pub(crate) state_form: Option<u32>,
}

/// How a transport's engine goes on from what another one has saved.
pub(crate) enum TransportRestore {
    /// An engine of this version starts from the state alone.
    FromState(fn(u32) -> EngineStart),
    /// It has to know where the route of its service leads.
    OfServer(fn(RestoredServer) -> EngineStart),
    /// The two ends are restored together.
    WithOtherEnd,
}

/// What a transport to other nodes can do.
pub(crate) struct NetworkTransport {
    /// Connects to another node that has these addresses, for this attempt. It does not block.
    pub(crate) open: fn(Vec<PeerAddress>, &ConnectRequest) -> PeerOpening,
    /// How other nodes reach this one by it; none for one that only leads away.
    pub(crate) listening: Option<ListeningTransport>,
    /// What becomes of calls when their connection's route names another transport.
    pub(crate) live_calls: LiveCalls,
    pub(crate) peer: PeerProgram,
}

/// What a transport's connections lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerProgram {
    /// Another node. With a `[tls]` table both prove who they are, and what they say is sealed.
    Node,
    /// Another node, to which nothing can be sealed, and why. It is not used beside a `[tls]` table.
    UnsealedNode { reason: &'static str },
    /// A gRPC server, for which the route says what else is to be known: TLS, compression, reflection.
    GrpcServer,
}

/// What becomes of the calls of a connection whose route names another transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LiveCalls {
    /// The connection migrates with them.
    Migrate,
    /// They end where they are, and the app connects anew.
    Stay,
}

/// How other nodes come.
pub(crate) struct ListeningTransport {
    /// Opens the socket of a listener, and says where it is.
    pub(crate) bind: fn(SocketAddr) -> io::Result<(OwnedFd, SocketAddr)>,
    /// Listens at such a socket.
    pub(crate) listen: fn(OwnedFd) -> io::Result<Box<dyn PeerListener>>,
}

impl TransportKind {
    /// What configurations, listings and metrics call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.description().name
    }

    /// The transport of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<TransportKind> {
        TransportKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
    }

    /// Whether it reaches other nodes.
    #[must_use]
    pub fn is_network(self) -> bool {
        self.description().network.is_some()
    }

    /// Whether other nodes can come by it.
    #[must_use]
    pub fn listens(self) -> bool {
        let network = self.description().network.as_ref();
        network.is_some_and(|network| network.listening.is_some())
    }

    /// Whether a connection can migrate from this one to another, or from that, with its calls.
    pub(crate) fn migrates(self) -> bool {
        let network = self.description().network.as_ref();
        network.is_some_and(|network| network.live_calls == LiveCalls::Migrate)
    }

    fn peer(self) -> Option<PeerProgram> {
        let network = self.description().network.as_ref();
        network.map(|network| network.peer)
    }

    /// Whether it leads to gRPC servers, which are no nodes.
    pub(crate) fn leads_to_servers(self) -> bool {
        self.peer() == Some(PeerProgram::GrpcServer)
    }

    /// Why it cannot be used beside a `[tls]` table, if that is so.
    pub(crate) fn unsealed(self) -> Option<&'static str> {
        match self.peer() {
            Some(PeerProgram::UnsealedNode { reason }) => Some(reason),
            Some(PeerProgram::Node | PeerProgram::GrpcServer) | None => None,
        }
    }

    /// The version of its code that a node begins with.
    pub(crate) fn first_version(self) -> u32 {
        self.description().versions.first().copied().unwrap_or(1)
    }

    /// The transport whose engine is called this, if its code has several versions.
    pub(crate) fn upgradable(engine: &str) -> Option<TransportKind> {
        let is_it = |kind: &TransportKind| {
            let description = kind.description();
            description.engine == engine && description.versions.len() > 1
        };
        TransportKind::ALL.iter().copied().find(is_it)
    }
}

impl serde::Serialize for TransportKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for TransportKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<TransportKind, D::Error> {
        let name = <String as serde::Deserialize>::deserialize(deserializer)?;
        TransportKind::parse(&name)
            .ok_or_else(|| serde::de::Error::unknown_variant(&name, TransportKind::NAMES))
    }
}

/// What the configuration says to all transports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransportOptions {
    /// A connection on which nothing came for so long is asked whether it lives.
    pub(crate) keepalive_interval_ns: u64,
    /// How long the answer may take.
    pub(crate) keepalive_timeout_ns: u64,
    /// Largest packet, where the transport makes packets itself.
    pub(crate) packet_bytes: u32,
}

/// Connects to another node. Whoever drops it gives up.
pub(crate) type PeerOpening = Pin<Box<dyn Future<Output = io::Result<OpenedPeer>>>>;

/// A way to another node, on which nothing was said yet.
pub(crate) struct OpenedPeer {
    /// Agrees with it on a service. It blocks.
    pub(crate) handshake: Box<dyn FnOnce(ConnectRequest) -> Result<EstablishedPeer, ConnectFailure> + Send>,
    pub(crate) stop: StopHandshake,
}

/// Ends a handshake that is under way, at once. After the handshake it must not be called: it would end the connection.
pub(crate) type StopHandshake = Box<dyn FnOnce() + Send>;

/// An attempt to reach another node.
pub(crate) struct ConnectRequest {
    /// `host:port`.
    pub(crate) address: String,
    /// What to say there.
    pub(crate) hello: Hello,
    /// The serialized schema, for a node that asks for it.
    pub(crate) descriptor_set: Arc<[u8]>,
    /// Present to speak TLS.
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    /// How a server is spoken to that is no node.
    pub(crate) grpc: GrpcServerTerms,
    pub(crate) options: TransportOptions,
    /// When to give up.
    pub(crate) deadline: Instant,
}

/// Why another node was not reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectFailure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// Where other nodes come, by one transport. Whoever gives up waiting for one loses none.
pub(crate) trait PeerListener {
    fn accept(&self) -> Pin<Box<dyn Future<Output = io::Result<IncomingPeer>> + '_>>;

    /// A duplicate of its socket.
    fn duplicate(&self) -> io::Result<OwnedFd>;
}

/// Another node that has come to a listener.
pub(crate) struct IncomingPeer {
    pub(crate) address: SocketAddr,
    /// Waits until it has said something. Whoever drops it gives the peer up.
    pub(crate) speaks: PeerSpeaking,
}

/// What [`IncomingPeer::speaks`] waits for.
pub(crate) type PeerSpeaking = Pin<Box<dyn Future<Output = io::Result<SpeakingPeer>>>>;

/// Another node that has begun to speak.
pub(crate) struct SpeakingPeer {
    /// Shakes hands with it. It blocks.
    pub(crate) handshake: PeerHandshake,
    pub(crate) stop: StopHandshake,
}

/// See [`SpeakingPeer::handshake`].
pub(crate) type PeerHandshake =
    Box<dyn FnOnce(HandshakeTerms, &mut DecidePeer<'_>) -> Result<EstablishedPeer, String> + Send>;

/// Says how a peer is answered: what it said, its schema once it was asked for that, and who it has proved to be.
pub(crate) type DecidePeer<'a> = dyn FnMut(&Hello, Option<&[u8]>, &PeerIdentity) -> Decision + 'a;

/// How hands are shaken with a node that has come.
pub(crate) struct HandshakeTerms {
    /// Present to speak TLS.
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    pub(crate) options: TransportOptions,
    /// When to give up.
    pub(crate) deadline: Instant,
}

/// Another node with which a connection has been agreed on.
pub(crate) struct EstablishedPeer {
    /// What carries the connection.
    pub(crate) kind: TransportKind,
    /// Who the peer has proved to be; empty for nobody.
    pub(crate) identity: String,
    pub(crate) address: PeerAddress,
    /// What it says of the app that calls, which nobody has judged.
    pub(crate) claimed: Option<CallerAttestation>,
    /// In which form messages travel.
    pub(crate) encoding: Encoding,
    /// What the peer is ready to receive.
    pub(crate) peer_limits: Limits,
    engine: EngineMaker,
}

/// Makes the engine of an established connection, of a version of its code.
type EngineMaker = Box<dyn FnOnce(u32, TransportOptions, Arc<ConnectionSignals>) -> Box<dyn Engine> + Send>;

impl EstablishedPeer {
    /// Starts its engine, of this version of its code.
    pub(crate) fn start(self, version: u32, options: TransportOptions) -> EngineStart {
        Box::new(move |predecessor: Predecessor<'_>| Ok((self.engine)(version, options, predecessor.link)))
    }
}

/// Starts the engine that is there already.
pub(crate) fn ready(engine: impl Engine + 'static) -> EngineStart {
    Box::new(move |_: Predecessor<'_>| Ok(Box::new(engine) as Box<dyn Engine>))
}

/// The newest forms of the states of engines that this process reads, by their kind, where a process before has to know them.
pub(crate) fn newest_forms() -> impl Iterator<Item = (&'static str, u32)> {
    let all = TransportKind::ALL.iter().map(|kind| kind.description());
    all.filter_map(|description| Some((description.engine, description.state_form?)))
}

/// How a transport, whose engine is called this, goes on from what it has saved, if that is enough.
pub(crate) fn restoring(engine: &str, version: u32) -> Option<EngineStart> {
    if engine == provost_transport_migration::KIND {
        return Some(Box::new(|predecessor| {
            provost_transport_migration::restore(predecessor, restoring)
        }));
    }
    match of_engine(engine)?.restore {
        TransportRestore::FromState(restore) => Some(restore(version)),
        TransportRestore::OfServer(_) | TransportRestore::WithOtherEnd => None,
    }
}

/// The same for a connection that another process has saved, of which `server` tells where its route leads.
pub(crate) fn restoring_connection(
    engine: &str,
    version: u32,
    server: impl FnOnce() -> RestoredServer,
) -> Option<EngineStart> {
    match of_engine(engine).map(|description| &description.restore) {
        Some(TransportRestore::OfServer(restore)) => Some(restore(server())),
        _ => restoring(engine, version),
    }
}

fn of_engine(engine: &str) -> Option<&'static TransportDescription> {
    let mut all = TransportKind::ALL.iter().map(|kind| kind.description());
    all.find(|description| description.engine == engine)
}

/// What a listener is called between two processes: its address alone where it is of the default transport.
pub(crate) fn listener_name(kind: TransportKind, address: SocketAddr) -> String {
    if kind == TransportKind::default() {
        address.to_string()
    } else {
        format!("{}:{address}", kind.name())
    }
}

/// The address in such a name.
pub(crate) fn listener_address(name: &str) -> Option<SocketAddr> {
    let prefixed = name
        .split_once(':')
        .filter(|(kind, _)| TransportKind::parse(kind).is_some());
    prefixed.map_or(name, |(_, address)| address).parse().ok()
}

/// What an engine has to go on from.
fn saved_of<'a>(predecessor: &Predecessor<'a>, kind: &'static str) -> Result<&'a SavedState, RestoreError> {
    predecessor
        .saved
        .ok_or_else(|| damaged(kind, "nothing was saved"))
}

fn damaged(kind: &'static str, reason: &str) -> RestoreError {
    RestoreError::Damaged {
        kind,
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_transports_and_back() {
        for kind in TransportKind::ALL {
            assert_eq!(TransportKind::parse(kind.name()), Some(*kind));
        }
        assert_eq!(TransportKind::parse("carrier-pigeon"), None);
        assert_eq!(
            TransportKind::upgradable("transport-tcp"),
            Some(TransportKind::Tcp)
        );
        assert_eq!(
            TransportKind::upgradable("transport-datagram"),
            None,
            "it has one version"
        );
    }

    #[test]
    fn a_listener_is_found_by_its_name() {
        let address: SocketAddr = "[::1]:7".parse().unwrap();
        for (kind, name) in [
            (TransportKind::Tcp, "[::1]:7"),
            (TransportKind::Datagram, "datagram:[::1]:7"),
        ] {
            assert_eq!(listener_name(kind, address), name);
            assert_eq!(listener_address(name), Some(address));
        }
        assert_eq!(listener_address("datagram:nowhere"), None);
    }
}
