//! The native protocol over TCP, plain or mutual TLS.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use provost_datapath::{Engine, EngineStart, Predecessor};
use provost_shm::now_ns;
use provost_transport_tcp as tcp;

use super::{
    ConnectFailure, ConnectRequest, DecidePeer, EstablishedPeer, HandshakeTerms, IncomingPeer,
    NetworkTransport, PeerListener, TransportDescription, TransportKind, damaged, saved_of,
};

const ENGINE: &str = tcp::KIND;

pub(super) const DESCRIPTION: TransportDescription = TransportDescription {
    name: "tcp",
    engine: ENGINE,
    summary: "the native protocol over TCP, plain or mutual TLS",
    versions: &[1, 2],
    network: Some(NetworkTransport {
        connect,
        bind,
        listen,
    }),
    restore: Some(restore),
};

fn connect(request: ConnectRequest) -> Result<EstablishedPeer, ConnectFailure> {
    let params = tcp::ConnectParams {
        address: request.address,
        hello: request.hello,
        descriptor_set: request.descriptor_set,
        tls: request.tls,
        deadline: request.deadline,
    };
    let established = tcp::connect(&params).map_err(|error| ConnectFailure {
        code: error.code,
        message: error.message,
    })?;
    Ok(peer(established))
}

fn bind(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let opened = TcpListener::bind(address)?;
    let address = opened.local_addr()?;
    Ok((opened.into(), address))
}

fn listen(socket: OwnedFd) -> io::Result<Box<dyn PeerListener>> {
    let listener = TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(Box::new(TcpPeers(tokio::net::TcpListener::from_std(listener)?)))
}

struct TcpPeers(tokio::net::TcpListener);

impl PeerListener for TcpPeers {
    fn accept(&self) -> Pin<Box<dyn Future<Output = io::Result<IncomingPeer>> + '_>> {
        Box::pin(async {
            let (stream, address) = self.0.accept().await?;
            Ok(IncomingPeer {
                address,
                handshake: Box::new(move |terms, decide| shake_hands(stream, terms, decide)),
            })
        })
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

fn shake_hands(
    stream: tokio::net::TcpStream,
    terms: HandshakeTerms,
    decide: &mut DecidePeer<'_>,
) -> Result<EstablishedPeer, String> {
    let stream = stream.into_std().map_err(|error| error.to_string())?;
    let decide = |greeting: tcp::Greeting<'_>| decide(greeting.hello, greeting.schema, greeting.peer);
    let established =
        tcp::accept(stream, terms.tls, terms.deadline, decide).map_err(|error| error.to_string())?;
    Ok(peer(established))
}

fn peer(established: tcp::Established) -> EstablishedPeer {
    EstablishedPeer {
        kind: TransportKind::Tcp,
        identity: established.peer.name().to_owned(),
        address: established.peer_address,
        encoding: established.agreement.encoding,
        peer_limits: established.agreement.peer_limits,
        engine: Box::new(move |version, options, signals| {
            let version = tcp::TcpVersion::from_number(version).unwrap_or_default();
            let established = tcp::Established {
                carrier: established.carrier.with_version(version),
                ..established
            };
            let config = tcp::TransportConfig {
                keepalive_interval_ns: options.keepalive_interval_ns,
                keepalive_timeout_ns: options.keepalive_timeout_ns,
                ..tcp::TransportConfig::default()
            };
            Box::new(tcp::TcpTransport::new(established, config, signals, now_ns()))
        }),
    }
}

fn restore(version: u32) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        let version =
            tcp::TcpVersion::from_number(version).ok_or_else(|| damaged(ENGINE, "the version is unknown"))?;
        let saved = saved_of(&predecessor, ENGINE)?;
        let state_transfer = tcp::StateTransfer {
            descriptors: predecessor.descriptors,
            link: predecessor.link,
            restorer: predecessor.restorer,
        };
        let transport = tcp::restore(version, saved, state_transfer)?;
        Ok(Box::new(transport) as Box<dyn Engine>)
    })
}
