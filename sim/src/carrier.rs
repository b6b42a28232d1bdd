//! The conformance suite's simulated transport as one that a runtime watches a socket for.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use provost_conformance::simulated::{self, PipeHandle, SimulatedTransport};
use provost_datapath::{
    ConnectionSignals, Context, Engine, Interest, Nanos, Ports, Progress, RestoreError, Restorer, SavedState,
    Saver, TransportEngine,
};
use provost_session::Role;

use crate::platform::SimNetwork;

/// A [`SimulatedTransport`] with a socket number.
pub(crate) struct SocketTransport {
    transport: SimulatedTransport,
    socket: SimSocket,
    link: Arc<ConnectionSignals>,
}

/// One end of a carrier, and its number.
#[derive(Clone, Debug)]
pub(crate) struct SimSocket {
    pub(crate) number: RawFd,
    pub(crate) pipe: PipeHandle,
    pub(crate) role: Role,
}

impl SocketTransport {
    pub(crate) fn new(
        transport: SimulatedTransport,
        socket: SimSocket,
        link: Arc<ConnectionSignals>,
    ) -> SocketTransport {
        SocketTransport {
            transport,
            socket,
            link,
        }
    }

    pub(crate) fn restore(
        state: &SavedState,
        network: &SimNetwork,
        link: Arc<ConnectionSignals>,
        restorer: &mut dyn Restorer,
    ) -> Result<SocketTransport, RestoreError> {
        let damaged = |reason: &str| RestoreError::Damaged {
            kind: "socket transport",
            reason: reason.to_owned(),
        };
        let (bytes, number) = state
            .bytes
            .split_last_chunk()
            .ok_or_else(|| damaged("it has no socket's number"))?;
        let (socket, end) = network
            .find(RawFd::from_le_bytes(*number))
            .ok_or_else(|| damaged("its socket is not there"))?;
        let state = SavedState {
            bytes: bytes.to_vec(),
            ..state.clone()
        };
        let transport = simulated::restore(&state, &end, link.clone(), restorer)?;
        Ok(SocketTransport::new(transport, socket, link))
    }
}

impl Engine for SocketTransport {
    fn kind(&self) -> &'static str {
        self.transport.kind()
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.transport.do_work(ports, context)
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.transport.wake_at()
    }

    /// What the transport saves, and behind it the number of its socket.
    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        let mut state = self.transport.save(saver);
        state.bytes.extend_from_slice(&self.socket.number.to_le_bytes());
        state
    }

    fn as_transport(&self) -> Option<&dyn TransportEngine> {
        Some(self)
    }
}

impl TransportEngine for SocketTransport {
    fn interest(&self) -> Option<Interest> {
        // An end that is reached stays readable.
        self.link.ended().is_none().then(|| Interest {
            socket: self.socket.number,
            // Room is waited for while there is none.
            write: !self.socket.pipe.is_writable(self.socket.role),
        })
    }

    /// A successor finds the carrier by its socket's number.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}
