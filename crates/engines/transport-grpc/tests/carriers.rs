//! Carriers that are no plain sockets, as those within TLS.

mod kit;

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kit::{TransportRig, UNARY};
use provost_datapath::TransportEngine;
use provost_grpc::GrpcConfig;
use provost_transport_grpc::{ByteCarrier, GrpcTransportConfig};

/// What a test says of a carrier.
#[derive(Default)]
struct CarrierState {
    /// Hands are shaken: nothing is written.
    is_shaking: AtomicBool,
    /// The next read ends the handshake.
    may_finish: AtomicBool,
    /// The end was read with the bytes before it.
    has_end: AtomicBool,
}

struct ShakingCarrier {
    socket: UnixStream,
    state: Arc<CarrierState>,
}

impl ByteCarrier for ShakingCarrier {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.state.may_finish.load(Ordering::Relaxed) {
            self.state.is_shaking.store(false, Ordering::Relaxed);
        }
        match self.socket.read(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.has_more() => Ok(0),
            other => other,
        }
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.waits_for_peer() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.socket.write_vectored(pieces)
    }

    fn flush_ready(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn waits_for_peer(&self) -> bool {
        self.state.is_shaking.load(Ordering::Relaxed)
    }

    fn has_more(&self) -> bool {
        self.state.has_end.load(Ordering::Relaxed)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn rig(state: &Arc<CarrierState>) -> TransportRig {
    let state = Arc::clone(state);
    let carrier = |socket| Box::new(ShakingCarrier { socket, state }) as Box<dyn ByteCarrier>;
    TransportRig::over(carrier, GrpcTransportConfig::default(), GrpcConfig::default())
}

#[test]
fn room_is_not_looked_for_while_hands_are_shaken_and_what_waits_leaves_then() {
    let state = Arc::new(CarrierState::default());
    state.is_shaking.store(true, Ordering::Relaxed);
    let mut rig = rig(&state);
    rig.call(1, UNARY, b"x");
    rig.run();
    let interest = rig.engine.interest().expect("it is watched");
    assert!(
        !interest.write,
        "the socket has room, and is not what is waited for"
    );
    state.may_finish.store(true, Ordering::Relaxed);
    // The poller speaks once.
    rig.poll();
    rig.server.work(rig.now);
    assert_eq!(rig.server.request().1.path, "/greeter.Greeter/Unary");
}

#[test]
fn an_end_behind_the_last_bytes_is_seen_though_the_socket_says_nothing_more() {
    let state = Arc::new(CarrierState::default());
    let mut rig = rig(&state);
    rig.call(1, UNARY, b"x");
    rig.run();
    let (call, _) = rig.server.request();
    rig.server.respond(call, Vec::new(), rig.now);
    rig.server.work(rig.now);
    state.has_end.store(true, Ordering::Relaxed);
    rig.poll();
    let ended = rig.signals.ended().expect("it has ended");
    assert!(ended.reason.contains("closed the connection"), "{}", ended.reason);
}
