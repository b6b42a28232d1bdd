//! The native protocol over TCP, plain or mutual TLS.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::time::Instant;

use provost_datapath::EngineStart;
use provost_transport_tcp as tcp;
use tokio::net::TcpSocket;

use super::{
    ConnectFailure, ConnectRequest, DecidePeer, EstablishedPeer, HandshakeTerms, IncomingPeer,
    ListeningTransport, LiveCalls, NetworkTransport, OpenedPeer, PeerAddress, PeerHandshake, PeerListener,
    PeerOpening, PeerProgram, SpeakingPeer, StopHandshake, TransportDescription, TransportKind,
    TransportRestore, damaged, native,
};

const ENGINE: &str = tcp::KIND;

pub(super) const DESCRIPTION: TransportDescription = TransportDescription {
    name: "tcp",
    engine: ENGINE,
    summary: "the native protocol over TCP, plain or mutual TLS",
    versions: &[1, 2],
    network: Some(NetworkTransport {
        open,
        listening: Some(ListeningTransport { bind, listen }),
        live_calls: LiveCalls::Migrate,
        peer: PeerProgram::Node,
    }),
    restore: TransportRestore::FromState(restore),
    state_form: None,
};

fn open(addresses: Vec<PeerAddress>, request: &ConnectRequest) -> PeerOpening {
    let deadline = request.deadline;
    Box::pin(async move {
        let addresses = PeerAddress::of_internet(addresses);
        let stream = first_to_answer(&addresses, deadline, |_| Ok(()))
            .await?
            .into_std()?;
        stream.set_nonblocking(false)?;
        let stop = stop(&stream)?;
        let handshake = Box::new(move |request| greet(stream, request));
        Ok(OpenedPeer { handshake, stop })
    })
}

/// Connects to one address after the other; each gets its part of the time that is left. Sockets are prepared before.
pub(super) async fn first_to_answer(
    addresses: &[SocketAddr],
    deadline: Instant,
    prepare: impl Fn(&TcpSocket) -> io::Result<()>,
) -> io::Result<tokio::net::TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (at, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / (addresses.len() - at) as u32;
        let connecting = async {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4()?,
                SocketAddr::V6(_) => TcpSocket::new_v6()?,
            };
            prepare(&socket)?;
            socket.connect(*address).await
        };
        last = match tokio::time::timeout(share, connecting).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "connection timed out"),
        };
    }
    Err(last)
}

/// Shutting a socket down ends whatever waits for it.
pub(super) fn stop(stream: &TcpStream) -> io::Result<StopHandshake> {
    let stream = stream.try_clone()?;
    // It fails only where the connection has ended already.
    Ok(Box::new(move || drop(stream.shutdown(Shutdown::Both))))
}

fn greet(stream: TcpStream, request: ConnectRequest) -> Result<EstablishedPeer, ConnectFailure> {
    Ok(peer(tcp::greet(stream, &request.into_params())?))
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
            let speaks = Box::pin(async move {
                stream.peek(&mut [0]).await?;
                let stream = stream.into_std()?;
                let stop = stop(&stream)?;
                let handshake: PeerHandshake =
                    Box::new(move |terms, decide| shake_hands(stream, terms, decide));
                Ok(SpeakingPeer { handshake, stop })
            });
            Ok(IncomingPeer { address, speaks })
        })
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

fn shake_hands(
    stream: TcpStream,
    terms: HandshakeTerms,
    decide: &mut DecidePeer<'_>,
) -> Result<EstablishedPeer, String> {
    let decide = |greeting: tcp::Greeting<'_>| decide(greeting.hello, greeting.schema, greeting.peer);
    let established =
        tcp::accept(stream, terms.tls, terms.deadline, decide).map_err(|error| error.to_string())?;
    Ok(peer(established))
}

fn peer(established: tcp::Established) -> EstablishedPeer {
    native::peer_by_version(TransportKind::Tcp, established, |carrier, version| {
        carrier.with_version(tcp::TcpVersion::from_number(version).unwrap_or_default())
    })
}

fn restore(version: u32) -> EngineStart {
    Box::new(move |predecessor| {
        let version =
            tcp::TcpVersion::from_number(version).ok_or_else(|| damaged(ENGINE, "the version is unknown"))?;
        native::restore_by(predecessor, |saved, state_transfer| {
            tcp::restore(version, saved, state_transfer)
        })
    })
}
