//! The native protocol over a NIC that carries the datagram protocol's calls. There is no board: the NIC is simulated, and the
//! feature `nic` compiles its model.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use provost_datapath::{Engine, EngineStart, Predecessor};
use provost_shm::now_ns;
use provost_transport_nic as nic;

use super::{
    ConnectFailure, ConnectRequest, EstablishedPeer, HandshakeTerms, IncomingPeer, ListeningTransport,
    LiveCalls, NetworkTransport, OpenedPeer, PeerAddress, PeerHandshake, PeerListener, PeerOpening,
    SpeakingPeer, StopHandshake, TransportDescription, TransportKind, saved_of,
};

pub(super) const DESCRIPTION: TransportDescription = TransportDescription {
    name: "nic",
    engine: nic::KIND,
    summary: "the native protocol over a simulated NIC that carries the datagram protocol's calls (feature nic)",
    versions: &[1],
    network: Some(NetworkTransport {
        open,
        listening: Some(ListeningTransport { bind, listen }),
        live_calls: LiveCalls::Migrate,
    }),
    restore: Some(restore),
};

/// Why a peer is not let in with TLS.
const SEALED: &str = "a NIC does not seal what it sends: take [tls] out, or listen with another transport";

fn open(addresses: Vec<PeerAddress>, _request: &ConnectRequest) -> PeerOpening {
    let addresses = PeerAddress::of_internet(addresses);
    let stop = nic::HandshakeStop::default();
    let stopped = stop.clone();
    let handshake = Box::new(move |request| greet(&addresses, request, &stopped));
    let stop: StopHandshake = Box::new(move || stop.stop());
    // There is nothing to wait for: the first packet is part of the handshake.
    Box::pin(std::future::ready(Ok(OpenedPeer { handshake, stop })))
}

fn greet(
    addresses: &[SocketAddr],
    request: ConnectRequest,
    stop: &nic::HandshakeStop,
) -> Result<EstablishedPeer, ConnectFailure> {
    let params = nic::ConnectParams {
        address: request.address,
        hello: request.hello,
        descriptor_set: request.descriptor_set,
        tls: request.tls,
        deadline: request.deadline,
    };
    let established = nic::connect_to(addresses, &params, stop);
    let established = established.map_err(|error| ConnectFailure {
        code: error.code,
        message: error.message,
    })?;
    Ok(peer(established))
}

fn bind(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let opened = nic::NicListener::bind(address)?;
    let address = opened.address();
    Ok((opened.into_socket().into(), address))
}

fn listen(socket: OwnedFd) -> io::Result<Box<dyn PeerListener>> {
    let socket = UdpSocket::from(socket);
    Ok(Box::new(NicPeers {
        ready: tokio::net::UdpSocket::from_std(socket.try_clone()?)?,
        listener: RefCell::new(nic::NicListener::listening(socket)?),
    }))
}

struct NicPeers {
    listener: RefCell<nic::NicListener>,
    /// The same socket, as the event loop knows it.
    ready: tokio::net::UdpSocket,
}

impl PeerListener for NicPeers {
    fn accept(&self) -> Pin<Box<dyn Future<Output = io::Result<IncomingPeer>> + '_>> {
        Box::pin(async {
            let caller = self.next_caller().await?;
            let address = caller.address();
            let handshake: PeerHandshake = Box::new(move |terms: HandshakeTerms, decide| {
                if terms.tls.is_some() {
                    return Err(format!("{address}: {SEALED}"));
                }
                let decide =
                    |greeting: nic::Greeting<'_>| decide(greeting.hello, greeting.schema, greeting.peer);
                nic::accept(caller, terms.deadline, decide)
                    .map(peer)
                    .map_err(|error| error.to_string())
            });
            // It has spoken: that is how the listener knows of it. Its silence ends the handshake.
            let stop: StopHandshake = Box::new(|| {});
            let speaks = Box::pin(std::future::ready(Ok(SpeakingPeer { handshake, stop })));
            Ok(IncomingPeer { address, speaks })
        })
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        self.ready.as_fd().try_clone_to_owned()
    }
}

impl NicPeers {
    async fn next_caller(&self) -> io::Result<nic::NicCaller> {
        loop {
            self.ready.readable().await?;
            let next = self.ready.try_io(tokio::io::Interest::READABLE, || self.look());
            match next {
                Ok(Some(caller)) => return Ok(caller),
                Ok(None) => tokio::task::yield_now().await,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The next client; none, where there may be one and others are to have their turn before.
    fn look(&self) -> io::Result<Option<nic::NicCaller>> {
        let mut listener = self.listener.borrow_mut();
        match listener.next_caller()? {
            None if !listener.left_some() => Err(io::ErrorKind::WouldBlock.into()),
            next => Ok(next),
        }
    }
}

fn peer(established: nic::NicEstablished) -> EstablishedPeer {
    EstablishedPeer {
        kind: TransportKind::Nic,
        identity: established.peer.name().to_owned(),
        address: established.peer_address.into(),
        claimed: None,
        encoding: established.agreement.encoding,
        peer_limits: established.agreement.peer_limits,
        engine: Box::new(move |_version, options, signals| {
            let config = nic::TransportConfig {
                keepalive_interval_ns: options.keepalive_interval_ns,
                keepalive_timeout_ns: options.keepalive_timeout_ns,
                ..nic::TransportConfig::default()
            };
            Box::new(nic::NicTransport::new(established, config, signals, now_ns()))
        }),
    }
}

/// Goes on with the board of an engine of this process; of another, it says that there is none.
fn restore(_version: u32) -> EngineStart {
    Box::new(|predecessor: Predecessor<'_>| {
        let saved = saved_of(&predecessor, nic::KIND)?;
        let state_transfer = nic::StateTransfer {
            descriptors: predecessor.descriptors,
            link: predecessor.link,
            restorer: predecessor.restorer,
        };
        let transport = nic::NicTransport::restore((), saved, state_transfer)?;
        Ok(Box::new(transport) as Box<dyn Engine>)
    })
}
