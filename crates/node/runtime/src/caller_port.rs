//! Who begins calls at a runtime: an app, through the rings that it shares with the service, or a gRPC client, through its
//! connection. To the datapaths behind, both are the same.

use provost_datapath::{BufferPool, Interest, Nanos, ReceiveHeap, Step};
use provost_frontend::{AppFault, AppPort, AppRequest, NotPushed, Notice, PortLoad};
use provost_frontend_grpc::{GrpcPort, PortProgress};
use provost_shm::Doorbell;

use crate::platform::{RuntimePlatform, WatchedSource};
use crate::worker::{BLOCKED_RETRY_NS, KIND_APP, token};

/// The port of an app or a gRPC client.
pub(crate) enum CallerPort {
    App { port: Box<AppPort>, doorbell: Doorbell },
    Grpc(Box<PolledConnection>),
}

/// A gRPC client's connection, and what is watched of it.
pub(crate) struct PolledConnection {
    pub(crate) port: GrpcPort,
    watched: Option<Interest>,
}

impl CallerPort {
    pub(crate) fn of_app(port: AppPort, doorbell: Doorbell) -> CallerPort {
        let port = Box::new(port);
        CallerPort::App { port, doorbell }
    }

    pub(crate) fn of_grpc(port: GrpcPort) -> CallerPort {
        let watched = None;
        CallerPort::Grpc(Box::new(PolledConnection { port, watched }))
    }

    /// An app's port; a gRPC client has none.
    pub(crate) fn app(&mut self) -> Option<&mut AppPort> {
        match self {
            CallerPort::App { port, .. } => Some(port),
            CallerPort::Grpc(_) => None,
        }
    }

    /// A gRPC client's port; an app has none.
    pub(crate) fn grpc(&mut self) -> Option<&mut GrpcPort> {
        match self {
            CallerPort::App { .. } => None,
            CallerPort::Grpc(connection) => Some(&mut connection.port),
        }
    }

    /// The poller says that the caller has something to say.
    pub(crate) fn note_ready(&mut self) {
        match self {
            // An app that can ring no more is detached by the end of its control socket.
            CallerPort::App { doorbell, .. } => drop(doorbell.drain()),
            CallerPort::Grpc(connection) => connection.port.note_ready(),
        }
    }

    /// Reads what there is, where reading takes more than a look at a ring. Says whether anything came.
    pub(crate) fn poll(&mut self, now: Nanos, try_socket: bool) -> bool {
        let Some(port) = self.grpc() else {
            return false;
        };
        if try_socket {
            port.note_ready();
        }
        port.poll(now) == PortProgress::Busy
    }

    pub(crate) fn next_request(&mut self, buffers: &mut BufferPool) -> Result<Option<AppRequest>, AppFault> {
        match self {
            CallerPort::App { port, .. } => port.next_request(),
            CallerPort::Grpc(connection) => {
                let request = connection.port.next_request(buffers);
                Ok(request.map(|request| AppRequest::Step {
                    connection: request.connection,
                    step: request.step,
                }))
            }
        }
    }

    pub(crate) fn release(&mut self) {
        if let CallerPort::App { port, .. } = self {
            port.release();
        }
    }

    pub(crate) fn push_step(&mut self, connection: u32, step: Step) -> Result<(), NotPushed<Step>> {
        match self {
            CallerPort::App { port, .. } => port.push_step(connection, step),
            CallerPort::Grpc(caller) => caller.port.push_step(connection, step).map_err(NotPushed::Full),
        }
    }

    pub(crate) fn push_notice(&mut self, notice: Notice) -> Result<(), NotPushed<Notice>> {
        let caller = match self {
            CallerPort::App { port, .. } => return port.push_notice(notice),
            CallerPort::Grpc(caller) => caller,
        };
        match notice {
            // Nothing is offered by a client.
            Notice::Accepted { .. } => {}
            Notice::GoingAway { connection } => caller.port.going_away(connection),
            Notice::Closed { connection, status } => caller.port.closed(connection, status),
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self, now: Nanos) -> Result<(), AppFault> {
        match self {
            CallerPort::App { port, .. } => port.flush(),
            CallerPort::Grpc(caller) => {
                caller.port.flush(now);
                Ok(())
            }
        }
    }

    pub(crate) fn maintain(&mut self, now: Nanos, stall_ns_max: Nanos) -> Result<(), AppFault> {
        match self {
            CallerPort::App { port, .. } => port.maintain(now, stall_ns_max),
            CallerPort::Grpc(caller) => match caller.port.blocked_since() {
                Some(since) if now.saturating_sub(since) > stall_ns_max => {
                    let stalled_ns = now.saturating_sub(since);
                    Err(AppFault::Stalled { stalled_ns })
                }
                _ => Ok(()),
            },
        }
    }

    pub(crate) fn take_load(&mut self) -> PortLoad {
        match self {
            CallerPort::App { port, .. } => port.take_load(),
            CallerPort::Grpc(caller) => PortLoad {
                receive_heap_bytes: caller.port.receive_heap_bytes(),
                submission_slots: 1,
                completion_slots: 1,
                ..PortLoad::default()
            },
        }
    }

    pub(crate) fn receive_heap_bytes(&self) -> u64 {
        match self {
            CallerPort::App { port, .. } => port.receive_heap_bytes(),
            CallerPort::Grpc(caller) => caller.port.receive_heap_bytes(),
        }
    }

    pub(crate) fn has_blocks(&self) -> bool {
        match self {
            CallerPort::App { port, .. } => port.has_blocks(),
            CallerPort::Grpc(caller) => caller.port.receive_heap_bytes() > 0,
        }
    }

    pub(crate) fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        match self {
            CallerPort::App { port, .. } => port.wake_at(),
            CallerPort::Grpc(caller) => {
                // Nothing is watched of one whose input waits.
                let retry = caller.port.is_stopped().then_some(now + BLOCKED_RETRY_NS);
                [retry, caller.port.wake_at()].into_iter().flatten().min()
            }
        }
    }

    pub(crate) fn is_blocked(&self) -> bool {
        match self {
            CallerPort::App { port, .. } => port.is_blocked(),
            CallerPort::Grpc(caller) => caller.port.blocked_since().is_some(),
        }
    }

    /// Has the caller ring from now on, and says whether there is nothing to do before that.
    pub(crate) fn arm(&mut self) -> Result<bool, AppFault> {
        match self {
            CallerPort::App { port, .. } => port.arm(),
            CallerPort::Grpc(caller) => Ok(caller.port.is_idle()),
        }
    }

    pub(crate) fn disarm(&mut self) {
        if let CallerPort::App { port, .. } = self {
            port.disarm();
        }
    }

    pub(crate) fn lend(&mut self) -> (&mut dyn ReceiveHeap, &mut Vec<u64>) {
        match self {
            CallerPort::App { port, .. } => port.lend(),
            CallerPort::Grpc(caller) => caller.port.lend(),
        }
    }

    /// Has what the caller speaks through watched. Says whether it is, or need not be.
    pub(crate) fn watch(&mut self, platform: &mut impl RuntimePlatform, number: u32) -> bool {
        let token = token(KIND_APP, number);
        let caller = match self {
            CallerPort::App { doorbell, .. } => {
                let source = WatchedSource::Doorbell(doorbell);
                return platform
                    .watch(source, token, provost_shm::Interest::Readable)
                    .is_ok();
            }
            CallerPort::Grpc(caller) => caller,
        };
        let wanted = caller.port.interest().filter(|_| !caller.port.is_stopped());
        if wanted == caller.watched {
            return true;
        }
        let before = std::mem::replace(&mut caller.watched, wanted);
        let watched = match (before, wanted) {
            (Some(_), Some(new)) => {
                platform.watch_for(WatchedSource::Socket(new.socket), token, of_socket(new))
            }
            (None, Some(new)) => platform.watch(WatchedSource::Socket(new.socket), token, of_socket(new)),
            (Some(old), None) => {
                platform.unwatch(WatchedSource::Socket(old.socket));
                Ok(())
            }
            (None, None) => Ok(()),
        };
        if watched.is_err() {
            caller.watched = None;
        }
        watched.is_ok()
    }

    /// Watches it no more.
    pub(crate) fn unwatch(&mut self, platform: &mut impl RuntimePlatform) {
        match self {
            CallerPort::App { doorbell, .. } => platform.unwatch(WatchedSource::Doorbell(doorbell)),
            CallerPort::Grpc(caller) => {
                if let Some(watched) = caller.watched.take() {
                    platform.unwatch(WatchedSource::Socket(watched.socket));
                }
            }
        }
    }
}

fn of_socket(interest: Interest) -> provost_shm::Interest {
    if interest.write {
        provost_shm::Interest::Both
    } else {
        provost_shm::Interest::Readable
    }
}
