//! The native protocol over the datagram transport, in UDP packets.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use provost_datapath::{Engine, EngineStart, Predecessor};
use provost_shm::now_ns;
use provost_transport_datagram as datagram;

use super::{
    ConnectFailure, ConnectRequest, EstablishedPeer, IncomingPeer, ListeningTransport, LiveCalls,
    NetworkTransport, OpenedPeer, PeerAddress, PeerHandshake, PeerListener, PeerOpening, SpeakingPeer,
    StopHandshake, TransportDescription, TransportKind, TransportOptions, saved_of,
};

pub(super) const DESCRIPTION: TransportDescription = TransportDescription {
    name: "datagram",
    engine: datagram::KIND,
    summary: "the native protocol over the datagram transport, in UDP packets",
    versions: &[1],
    network: Some(NetworkTransport {
        open,
        listening: Some(ListeningTransport { bind, listen }),
        live_calls: LiveCalls::Migrate,
    }),
    restore: Some(restore),
};

fn packets(options: TransportOptions) -> datagram::PacketOptions {
    datagram::PacketOptions {
        packet_bytes: options.packet_bytes,
    }
}

fn open(addresses: Vec<PeerAddress>, _request: &ConnectRequest) -> PeerOpening {
    let addresses = PeerAddress::of_internet(addresses);
    let stop = datagram::HandshakeStop::default();
    let stopped = stop.clone();
    let handshake = Box::new(move |request| greet(&addresses, request, &stopped));
    let stop: StopHandshake = Box::new(move || stop.stop());
    // There is nothing to wait for: the first packet is part of the handshake.
    Box::pin(std::future::ready(Ok(OpenedPeer { handshake, stop })))
}

fn greet(
    addresses: &[SocketAddr],
    request: ConnectRequest,
    stop: &datagram::HandshakeStop,
) -> Result<EstablishedPeer, ConnectFailure> {
    let params = datagram::ConnectParams {
        address: request.address,
        hello: request.hello,
        descriptor_set: request.descriptor_set,
        tls: request.tls,
        deadline: request.deadline,
    };
    let established = datagram::connect_to(addresses, &params, packets(request.options), stop);
    let established = established.map_err(|error| ConnectFailure {
        code: error.code,
        message: error.message,
    })?;
    Ok(peer(established))
}

fn bind(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let opened = datagram::Listener::bind(address)?;
    let address = opened.address();
    Ok((opened.into_socket().into(), address))
}

fn listen(socket: OwnedFd) -> io::Result<Box<dyn PeerListener>> {
    let socket = UdpSocket::from(socket);
    let datagram::UdpOffer {
        segmentation,
        coalescing,
    } = datagram::UdpOffer::of(&socket);
    let address = socket.local_addr()?;
    tracing::info!(%address, segmentation, coalescing, "listens for datagrams: what the kernel offers for many in one");
    Ok(Box::new(DatagramPeers {
        ready: tokio::net::UdpSocket::from_std(socket.try_clone()?)?,
        listener: RefCell::new(datagram::Listener::listening(socket)?),
    }))
}

struct DatagramPeers {
    listener: RefCell<datagram::Listener>,
    /// The same socket, as the event loop knows it.
    ready: tokio::net::UdpSocket,
}

impl PeerListener for DatagramPeers {
    fn accept(&self) -> Pin<Box<dyn Future<Output = io::Result<IncomingPeer>> + '_>> {
        Box::pin(async {
            let caller = self.next_caller().await?;
            let address = caller.address();
            let handshake: PeerHandshake = Box::new(move |terms, decide| {
                let packets = packets(terms.options);
                let decide =
                    |greeting: datagram::Greeting<'_>| decide(greeting.hello, greeting.schema, greeting.peer);
                datagram::accept(caller, packets, terms.tls.as_deref(), terms.deadline, decide)
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

impl DatagramPeers {
    async fn next_caller(&self) -> io::Result<datagram::Caller> {
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
    fn look(&self) -> io::Result<Option<datagram::Caller>> {
        let mut listener = self.listener.borrow_mut();
        match listener.next_caller()? {
            None if !listener.left_some() => Err(io::ErrorKind::WouldBlock.into()),
            next => Ok(next),
        }
    }
}

fn peer(established: datagram::Established) -> EstablishedPeer {
    EstablishedPeer {
        kind: TransportKind::Datagram,
        identity: established.peer.name().to_owned(),
        address: established.peer_address.into(),
        claimed: None,
        encoding: established.agreement.encoding,
        peer_limits: established.agreement.peer_limits,
        engine: Box::new(move |_version, options, signals| {
            let config = datagram::TransportConfig {
                keepalive_interval_ns: options.keepalive_interval_ns,
                keepalive_timeout_ns: options.keepalive_timeout_ns,
                ..datagram::TransportConfig::default()
            };
            Box::new(datagram::DatagramTransport::new(
                established,
                config,
                signals,
                now_ns(),
            ))
        }),
    }
}

fn restore(_version: u32) -> EngineStart {
    Box::new(|predecessor: Predecessor<'_>| {
        let saved = saved_of(&predecessor, datagram::KIND)?;
        let state_transfer = datagram::StateTransfer {
            descriptors: predecessor.descriptors,
            link: predecessor.link,
            restorer: predecessor.restorer,
        };
        let transport = datagram::DatagramTransport::restore((), saved, state_transfer)?;
        Ok(Box::new(transport) as Box<dyn Engine>)
    })
}
