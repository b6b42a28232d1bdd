//! The native protocol over a NIC that carries the datagram protocol's calls. There is no board: the NIC is simulated, and the
//! feature `nic` compiles its model.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use provost_transport_nic as nic;

use super::packets::{self, PacketListener};
use super::{
    ConnectFailure, ConnectRequest, DecidePeer, EstablishedPeer, HandshakeTerms, ListeningTransport,
    LiveCalls, NetworkTransport, PeerAddress, PeerListener, PeerOpening, PeerProgram, TransportDescription,
    TransportKind, TransportRestore, native,
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
        peer: PeerProgram::UnsealedNode {
            reason: "a NIC does not seal what it sends",
        },
    }),
    // It goes on with the board of an engine of this process; of another, it says that there is none.
    restore: TransportRestore::FromState(native::restore::<nic::NicCarrier>),
    state_form: None,
};

/// Why a peer is not let in with TLS.
const SEALED: &str = "a NIC does not seal what it sends: take [tls] out, or listen with another transport";

fn open(addresses: Vec<PeerAddress>, _request: &ConnectRequest) -> PeerOpening {
    let addresses = PeerAddress::of_internet(addresses);
    packets::open(move |request, stop| greet(&addresses, request, stop))
}

fn greet(
    addresses: &[SocketAddr],
    request: ConnectRequest,
    stop: &nic::HandshakeStop,
) -> Result<EstablishedPeer, ConnectFailure> {
    let established = nic::connect_to(addresses, &request.into_params(), stop)?;
    Ok(native::peer(TransportKind::Nic, established))
}

fn bind(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let opened = nic::NicListener::bind(address)?;
    let address = opened.address();
    Ok((opened.into_socket().into(), address))
}

fn listen(socket: OwnedFd) -> io::Result<Box<dyn PeerListener>> {
    packets::listen::<nic::NicListener>(socket.into())
}

impl PacketListener for nic::NicListener {
    type Caller = nic::NicCaller;

    fn listening(socket: UdpSocket) -> io::Result<nic::NicListener> {
        nic::NicListener::listening(socket)
    }

    fn next_caller(&mut self) -> io::Result<Option<nic::NicCaller>> {
        self.next_caller()
    }

    fn left_some(&self) -> bool {
        self.left_some()
    }

    fn address(caller: &nic::NicCaller) -> SocketAddr {
        caller.address()
    }

    fn shake_hands(
        caller: nic::NicCaller,
        terms: HandshakeTerms,
        decide: &mut DecidePeer<'_>,
    ) -> Result<EstablishedPeer, String> {
        if terms.tls.is_some() {
            return Err(format!("{}: {SEALED}", caller.address()));
        }
        let decide = |greeting: nic::Greeting<'_>| decide(greeting.hello, greeting.schema, greeting.peer);
        let established = nic::accept(caller, terms.deadline, decide);
        let established = established.map_err(|error| error.to_string())?;
        Ok(native::peer(TransportKind::Nic, established))
    }
}
