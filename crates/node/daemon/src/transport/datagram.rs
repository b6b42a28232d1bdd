//! The native protocol over the datagram transport, in UDP packets.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use provost_transport_datagram as datagram;

use super::packets::{self, PacketListener};
use super::{
    ConnectFailure, ConnectRequest, DecidePeer, EstablishedPeer, HandshakeTerms, ListeningTransport,
    LiveCalls, NetworkTransport, PeerAddress, PeerListener, PeerOpening, PeerProgram, TransportDescription,
    TransportKind, TransportOptions, TransportRestore, native,
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
        peer: PeerProgram::Node,
    }),
    restore: TransportRestore::FromState(native::restore::<datagram::DatagramCarrier>),
    state_form: None,
};

fn packet_options(options: TransportOptions) -> datagram::PacketOptions {
    datagram::PacketOptions {
        packet_bytes: options.packet_bytes,
    }
}

fn open(addresses: Vec<PeerAddress>, _request: &ConnectRequest) -> PeerOpening {
    let addresses = PeerAddress::of_internet(addresses);
    packets::open(move |request, stop| greet(&addresses, request, stop))
}

fn greet(
    addresses: &[SocketAddr],
    request: ConnectRequest,
    stop: &datagram::HandshakeStop,
) -> Result<EstablishedPeer, ConnectFailure> {
    let packets = packet_options(request.options);
    let established = datagram::connect_to(addresses, &request.into_params(), packets, stop)?;
    Ok(native::peer(TransportKind::Datagram, established))
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
    packets::listen::<datagram::Listener>(socket)
}

impl PacketListener for datagram::Listener {
    type Caller = datagram::Caller;

    fn listening(socket: UdpSocket) -> io::Result<datagram::Listener> {
        datagram::Listener::listening(socket)
    }

    fn next_caller(&mut self) -> io::Result<Option<datagram::Caller>> {
        self.next_caller()
    }

    fn left_some(&self) -> bool {
        self.left_some()
    }

    fn address(caller: &datagram::Caller) -> SocketAddr {
        caller.address()
    }

    fn shake_hands(
        caller: datagram::Caller,
        terms: HandshakeTerms,
        decide: &mut DecidePeer<'_>,
    ) -> Result<EstablishedPeer, String> {
        let packets = packet_options(terms.options);
        let decide =
            |greeting: datagram::Greeting<'_>| decide(greeting.hello, greeting.schema, greeting.peer);
        let established = datagram::accept(caller, packets, terms.tls.as_deref(), terms.deadline, decide);
        let established = established.map_err(|error| error.to_string())?;
        Ok(native::peer(TransportKind::Datagram, established))
    }
}
