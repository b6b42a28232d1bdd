//! Who begins calls at a runtime: an app, through the rings that it shares with the service, a gRPC client, through its
//! connection, or another node whose calls are passed on. To the datapaths behind, all are the same.

use provost_datapath::{BufferPool, Interest, Nanos, ReceiveHeap, Step};
use provost_frontend::{AppFault, AppPort, AppRequest, NotPushed, Notice, PortLoad};
use provost_frontend_grpc::PortProgress;
use provost_shm::Doorbell;

use crate::call_port::CallPort;
use crate::platform::{RuntimePlatform, WatchedSource};
use crate::poll_token::{KIND_APP, token};
use crate::timers::BLOCKED_RETRY_NS;

/// The port of an app or of another caller.
pub(crate) enum CallerPort {
    App { port: Box<AppPort>, doorbell: Doorbell },
    Calls(PolledCalls),
}

/// The calls of a caller that is no app, and what is watched of them.
pub(crate) struct PolledCalls {
    pub(crate) port: Box<dyn CallPort>,
    watched: Option<Interest>,
}

impl CallerPort {
    pub(crate) fn of_app(port: AppPort, doorbell: Doorbell) -> CallerPort {
        let port = Box::new(port);
        CallerPort::App { port, doorbell }
    }

    pub(crate) fn of_calls(port: Box<dyn CallPort>) -> CallerPort {
        let watched = None;
        CallerPort::Calls(PolledCalls { port, watched })
    }

    /// An app's port; another caller has none.
    pub(crate) fn app(&mut self) -> Option<&mut AppPort> {
        match self {
            CallerPort::App { port, .. } => Some(port),
            CallerPort::Calls(_) => None,
        }
    }

    /// The port of a caller that is no app.
    pub(crate) fn calls(&mut self) -> Option<&mut dyn CallPort> {
        match self {
            CallerPort::App { .. } => None,
            CallerPort::Calls(connection) => Some(&mut *connection.port),
        }
    }

    /// The poller says that the caller has something to say.
    pub(crate) fn note_ready(&mut self) {
        match self {
            // An app that can ring no more is detached by the end of its control socket.
            CallerPort::App { doorbell, .. } => drop(doorbell.drain()),
            CallerPort::Calls(connection) => connection.port.note_ready(),
        }
    }

    /// Reads what there is, where reading takes more than a look at a ring. Says whether anything came.
    pub(crate) fn poll(&mut self, now: Nanos, try_socket: bool) -> bool {
        let Some(port) = self.calls() else {
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
            CallerPort::Calls(connection) => {
                let request = connection.port.next_request(buffers);
                Ok(request.map(|(connection, step)| AppRequest::Step { connection, step }))
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
            CallerPort::Calls(caller) => caller.port.push_step(connection, step).map_err(NotPushed::Full),
        }
    }

    pub(crate) fn push_notice(&mut self, notice: Notice) -> Result<(), NotPushed<Notice>> {
        let caller = match self {
            CallerPort::App { port, .. } => return port.push_notice(notice),
            CallerPort::Calls(caller) => caller,
        };
        match notice {
            Notice::Accepted { connection, .. } => caller.port.accepted(connection),
            Notice::GoingAway { connection } => caller.port.going_away(connection),
            Notice::Closed { connection, status } => caller.port.closed(connection, status),
        }
        Ok(())
    }

    pub(crate) fn flush(&mut self, now: Nanos) -> Result<(), AppFault> {
        match self {
            CallerPort::App { port, .. } => port.flush(),
            CallerPort::Calls(caller) => {
                caller.port.flush(now);
                Ok(())
            }
        }
    }

    pub(crate) fn maintain(&mut self, now: Nanos, stall_ns_max: Nanos) -> Result<(), AppFault> {
        match self {
            CallerPort::App { port, .. } => port.maintain(now, stall_ns_max),
            CallerPort::Calls(caller) => match caller.port.blocked_since() {
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
            CallerPort::Calls(caller) => PortLoad {
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
            CallerPort::Calls(caller) => caller.port.receive_heap_bytes(),
        }
    }

    pub(crate) fn has_blocks(&self) -> bool {
        match self {
            CallerPort::App { port, .. } => port.has_blocks(),
            CallerPort::Calls(caller) => caller.port.receive_heap_bytes() > 0,
        }
    }

    pub(crate) fn wake_at(&self, now: Nanos) -> Option<Nanos> {
        match self {
            CallerPort::App { port, .. } => port.wake_at(),
            CallerPort::Calls(caller) => {
                // Nothing is watched of one whose input waits.
                let retry = caller.port.is_stopped().then_some(now + BLOCKED_RETRY_NS);
                [retry, caller.port.wake_at()].into_iter().flatten().min()
            }
        }
    }

    pub(crate) fn is_blocked(&self) -> bool {
        match self {
            CallerPort::App { port, .. } => port.is_blocked(),
            CallerPort::Calls(caller) => caller.port.blocked_since().is_some(),
        }
    }

    /// Has the caller ring from now on, and says whether there is nothing to do before that.
    pub(crate) fn arm(&mut self) -> Result<bool, AppFault> {
        match self {
            CallerPort::App { port, .. } => port.arm(),
            CallerPort::Calls(caller) => Ok(caller.port.is_idle()),
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
            CallerPort::Calls(caller) => caller.port.lend(),
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
            CallerPort::Calls(caller) => caller,
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
            CallerPort::Calls(caller) => {
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
