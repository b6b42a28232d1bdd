//! Peers that come and are reached in packets: nothing connects before the handshake, and one socket listens for all who come.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;

use provost_transport::HandshakeStop;

use super::{
    ConnectFailure, ConnectRequest, DecidePeer, EstablishedPeer, HandshakeTerms, IncomingPeer, OpenedPeer,
    PeerHandshake, PeerListener, PeerOpening, SpeakingPeer, StopHandshake,
};

/// Reaches a peer by a handshake alone, whose first packet is what opens the way.
pub(super) fn open(
    greet: impl FnOnce(ConnectRequest, &HandshakeStop) -> Result<EstablishedPeer, ConnectFailure> + Send + 'static,
) -> PeerOpening {
    let stop = HandshakeStop::default();
    let stopped = stop.clone();
    let handshake = Box::new(move |request| greet(request, &stopped));
    let stop: StopHandshake = Box::new(move || stop.stop());
    Box::pin(std::future::ready(Ok(OpenedPeer { handshake, stop })))
}

/// A socket at which peers ask for connections, each of which gets a socket of its own.
pub(super) trait PacketListener: Sized + 'static {
    /// A peer that has asked, and has shown its address.
    type Caller: Send + 'static;

    /// Listens at a socket that is bound.
    fn listening(socket: UdpSocket) -> io::Result<Self>;

    /// The next peer, if one is there now.
    fn next_caller(&mut self) -> io::Result<Option<Self::Caller>>;

    /// Whether the last look left packets in the socket.
    fn left_some(&self) -> bool;

    fn address(caller: &Self::Caller) -> SocketAddr;

    /// Shakes hands with a peer. It blocks.
    fn shake_hands(
        caller: Self::Caller,
        terms: HandshakeTerms,
        decide: &mut DecidePeer<'_>,
    ) -> Result<EstablishedPeer, String>;
}

/// Listens at a socket that is bound.
pub(super) fn listen<L: PacketListener>(socket: UdpSocket) -> io::Result<Box<dyn PeerListener>> {
    Ok(Box::new(PacketPeers {
        ready: tokio::net::UdpSocket::from_std(socket.try_clone()?)?,
        listener: RefCell::new(L::listening(socket)?),
    }))
}

struct PacketPeers<L> {
    listener: RefCell<L>,
    /// The same socket, as the event loop knows it.
    ready: tokio::net::UdpSocket,
}

impl<L: PacketListener> PeerListener for PacketPeers<L> {
    fn accept(&self) -> Pin<Box<dyn Future<Output = io::Result<IncomingPeer>> + '_>> {
        Box::pin(async {
            let caller = self.next_caller().await?;
            let address = L::address(&caller);
            let handshake: PeerHandshake =
                Box::new(move |terms, decide| L::shake_hands(caller, terms, decide));
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

impl<L: PacketListener> PacketPeers<L> {
    async fn next_caller(&self) -> io::Result<L::Caller> {
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
    fn look(&self) -> io::Result<Option<L::Caller>> {
        let mut listener = self.listener.borrow_mut();
        match listener.next_caller()? {
            None if !listener.left_some() => Err(io::ErrorKind::WouldBlock.into()),
            next => Ok(next),
        }
    }
}
