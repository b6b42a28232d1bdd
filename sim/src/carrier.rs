//! The conformance suite's simulated transport as one that a runtime watches a socket for.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use provost_conformance::simulated::{self, EndHandle, PipeHandle, SimulatedTransport};
use provost_datapath::{
    ConnectionSignals, Context, Engine, Interest, Nanos, Ports, Progress, RestoreError, Restorer, SavedState,
    Saver, TransportEngine,
};
use provost_session::Role;

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

/// By which a successor finds the carrier.
#[derive(Clone)]
pub(crate) struct SocketHandle {
    end: EndHandle,
    socket: SimSocket,
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

    pub(crate) fn handle(&self) -> SocketHandle {
        SocketHandle {
            end: self.transport.carrier().handle(),
            socket: self.socket.clone(),
        }
    }

    pub(crate) fn restore(
        state: &SavedState,
        handle: &SocketHandle,
        link: Arc<ConnectionSignals>,
        restorer: &mut dyn Restorer,
    ) -> Result<SocketTransport, RestoreError> {
        let transport = simulated::restore(state, &handle.end, link.clone(), restorer)?;
        Ok(SocketTransport::new(transport, handle.socket.clone(), link))
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

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.transport.save(saver)
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

    /// A successor finds the carrier by its handle.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }
}
