//! The sockets at which gRPC clients come, and what the kernel says of those.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;

use provost_frontend_grpc::ByteCarrier;
use provost_net::transparent::listen_for_others;
use tokio::net::UnixStream;

use super::redirection::ClientRedirection;
use crate::access::Credentials;
use crate::app_process::AppProcess;
use crate::config::{GrpcListenerConfig, ListenAddress, TransparentMode};
use crate::connection_ends::ConnectionEnds;
use crate::places::network_of;
use crate::stream_listener::{AcceptedStream, SocketMode, StreamListener, UnixSocketTerms};

/// Connections that wait to be accepted at a Unix socket, at most. While another process takes over, clients that connect
/// again wait there.
const BACKLOG: i32 = 1024;

/// A client that has connected.
pub(super) struct ArrivedClient {
    pub(super) carrier: Box<dyn ByteCarrier>,
    pub(super) process: AppProcess,
    pub(super) party: ClientParty,
    /// Where it comes from, for people.
    pub(super) origin: String,
    /// Who it has proved to be by a certificate; empty for nobody.
    pub(super) proved: String,
    /// Where it was going, if it was redirected here.
    pub(super) redirection: Option<ClientRedirection>,
    /// Between which addresses its connection is.
    pub(super) ends: ConnectionEnds,
}

/// Whom the place of a client that has asked for nothing counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ClientParty {
    User(u32),
    Network(IpAddr),
}

/// Opens the socket of a listener.
pub(super) fn open(config: &GrpcListenerConfig) -> io::Result<StreamListener> {
    // The configuration was checked: it is an address.
    let address = config.listen_address().map_err(io::Error::other)?;
    if let (ListenAddress::Tcp(address), Some(TransparentMode::Tproxy)) = (&address, config.transparent) {
        return StreamListener::listening(listen_for_others(*address)?.into(), ListenAddress::Tcp(*address));
    }
    let terms = UnixSocketTerms {
        mode: SocketMode::Exactly(config.socket_mode()),
        backlog: BACKLOG,
    };
    StreamListener::open(&address, terms)
}

impl ArrivedClient {
    pub(super) fn of_stream(
        stream: AcceptedStream,
        redirection: Option<ClientRedirection>,
    ) -> io::Result<ArrivedClient> {
        match stream {
            AcceptedStream::Tcp(stream, address) => {
                stream.set_nodelay(true)?;
                Ok(ArrivedClient {
                    ends: ConnectionEnds::of(&stream),
                    carrier: Box::new(stream.into_std()?),
                    process: AppProcess::unknown(),
                    party: ClientParty::Network(network_of(address.ip())),
                    origin: address.to_string(),
                    proved: String::new(),
                    redirection,
                })
            }
            AcceptedStream::Unix(stream) => ArrivedClient::of_process(stream),
        }
    }

    fn of_process(stream: UnixStream) -> io::Result<ArrivedClient> {
        let peer = stream.peer_cred()?;
        let pid = peer
            .pid()
            .ok_or_else(|| io::Error::other("its process is not known"))?;
        let credentials = Credentials::at_socket(&stream, pid, peer.uid(), peer.gid())?;
        let party = ClientParty::User(credentials.uid);
        Ok(ArrivedClient {
            ends: ConnectionEnds::of(&stream),
            process: AppProcess::at_socket(stream.as_fd(), credentials),
            carrier: Box::new(stream.into_std()?),
            party,
            origin: format!("process {pid}"),
            proved: String::new(),
            redirection: None,
        })
    }
}
