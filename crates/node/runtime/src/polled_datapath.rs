//! A datapath as its runtime sees it.

use std::sync::Arc;

use provost_datapath::{
    Body, BufferPool, ConnectionEnd, Context, Datapath, EgressEvent, FlowHints, Interest, Nanos, Progress,
    SocketHint, Step,
};
use provost_frontend::{AppFault, NotPushed, Notice};
use provost_ring::AdaptiveSpin;
use provost_wire::descriptor::Parts;

use crate::engines::FittedEngine;
use crate::events::RuntimeEvent;
use crate::ids::ConnectionId;
use crate::inbox::DatapathWaker;
use crate::mutation::Mutation;
use crate::numbered_slots::NumberedSlots;
use crate::platform::{RuntimePlatform, WatchedSource};
use crate::poll_token::{KIND_PATH, token};
use crate::polled_app::PolledApp;

pub(crate) struct PolledDatapath {
    pub(crate) id: ConnectionId,
    pub(crate) app: u32,
    pub(crate) number: u32,
    pub(crate) datapath: Datapath,
    /// What is known of its engines, in their order.
    pub(crate) fitted: Vec<FittedEngine>,
    /// How often its engines were changed.
    pub(crate) revision: u64,
    /// An engine is on probation.
    pub(crate) is_on_probation: bool,
    /// Calls that the app began, or was told of.
    pub(crate) calls_begun: u64,
    pub(crate) waker: Arc<DatapathWaker>,
    pub(crate) _permit: Box<dyn Send>,
    pub(crate) accepted_for: Option<u64>,
    pub(crate) told_going_away: bool,
    pub(crate) last_work: Nanos,
    pub(crate) adaptive_spin: AdaptiveSpin,
    pub(crate) is_hot: bool,
    /// Close it once it is flushed.
    pub(crate) is_closing: bool,
    pub(crate) has_ended: bool,
    /// What the poller watches for it.
    pub(crate) watched: Option<Interest>,
    pub(crate) socket_ready: bool,
    pub(crate) timer: Option<Nanos>,
    /// Its calls that are counted as under way.
    pub(crate) calls_counted: usize,
}

impl PolledDatapath {
    pub(crate) fn heat(&mut self, number: u32, hot: &mut Vec<u32>, now: Nanos) {
        let gap_ns = now.saturating_sub(self.last_work);
        self.last_work = now;
        if !self.is_hot {
            self.is_hot = true;
            self.adaptive_spin.woken_after(gap_ns);
            hot.push(number);
        }
    }

    /// Whether it ends as soon as it has no call.
    pub(crate) fn drains(&self) -> bool {
        let link = self.datapath.link();
        link.drain_requested() || link.peer_drains()
    }

    pub(crate) fn poll(
        &mut self,
        app: &mut PolledApp,
        now: Nanos,
        try_socket: bool,
        buffers: &mut BufferPool,
    ) -> bool {
        let (receive, sent) = app.port.lend();
        let mut context = Context {
            socket: if try_socket {
                SocketHint::Try
            } else {
                SocketHint::Skip
            },
            flow: FlowHints::default(),
            now,
            buffers,
            receive,
            sent,
        };
        let progress = self.datapath.poll(&mut context);
        self.has_ended |= progress == Progress::Ended;
        if self.is_closing && self.datapath.is_flushed() {
            self.datapath.link().close();
        }
        progress == Progress::Busy
    }

    /// Moves what came out of the datapath into the app's completion ring, as far as there is room.
    pub(crate) fn deliver(
        &mut self,
        app: &mut PolledApp,
        now: Nanos,
        buffers: &mut BufferPool,
    ) -> Result<bool, AppFault> {
        if app.leaving.is_some() {
            return Ok(self.discard_output(app, now, buffers));
        }
        let mut delivered = false;
        if let Some(bind) = self.accepted_for {
            let accepted = Notice::Accepted {
                connection: self.number,
                bind,
                peer: self.id,
            };
            if !pushed(app.port.push_notice(accepted))? {
                return Ok(false);
            }
            self.accepted_for = None;
            delivered = true;
        }
        let link = self.datapath.link();
        let goes_away = link.peer_drains() || link.drain_requested() || link.ended().is_some();
        if !self.told_going_away && !self.is_closing && goes_away {
            let connection = self.number;
            self.told_going_away = pushed(app.port.push_notice(Notice::GoingAway { connection }))?;
            delivered |= self.told_going_away;
        }
        while let Some(step) = self.datapath.to_app().pop() {
            let begins = step.parts.contains(Parts::BEGIN);
            let egress_event = EgressEvent::of(&step);
            match app.port.push_step(self.number, step) {
                Ok(()) => {
                    delivered = true;
                    self.datapath.note_delivered(egress_event);
                    self.calls_begun += u64::from(begins);
                }
                Err(NotPushed::Full(step)) => {
                    if Mutation::DoubleDelivery.is_active() && matches!(step.body, Body::Empty) {
                        self.datapath.to_app().put_back(Step {
                            body: Body::Empty,
                            ..step
                        });
                    }
                    self.datapath.to_app().put_back(step);
                    break;
                }
                Err(NotPushed::Fault(fault)) => return Err(fault),
            }
        }
        Ok(delivered)
    }

    /// The app is gone: what comes for it goes nowhere.
    pub(crate) fn discard_output(
        &mut self,
        app: &mut PolledApp,
        now: Nanos,
        buffers: &mut BufferPool,
    ) -> bool {
        let (receive, sent) = app.port.lend();
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now,
            buffers,
            receive,
            sent,
        };
        let mut discarded = false;
        while let Some(step) = self.datapath.to_app().pop() {
            step.body.discard(&mut context);
            discarded = true;
        }
        discarded
    }

    pub(crate) fn discard_all(&mut self, app: &mut PolledApp, now: Nanos, buffers: &mut BufferPool) {
        self.discard_output(app, now, buffers);
        let (receive, sent) = app.port.lend();
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now,
            buffers,
            receive,
            sent,
        };
        self.datapath.discard_all(&mut context);
    }

    /// Whether it waits for something of which no event tells: room in the app's ring, or the end of a closing one.
    pub(crate) fn is_stuck(&self) -> bool {
        self.datapath.is_blocked() || self.has_ended || (self.is_closing && !self.datapath.is_flushed())
    }

    pub(crate) fn end(&self) -> ConnectionEnd {
        let end = self.datapath.link().ended().cloned();
        end.unwrap_or_else(RuntimeEvent::silent_end)
    }
}

/// Puts a step into its datapath; it comes back if that is full.
pub(crate) fn submit(
    app: &mut PolledApp,
    paths: &mut NumberedSlots<PolledDatapath>,
    hot_paths: &mut Vec<u32>,
    now: Nanos,
    connection: u32,
    mut step: Step,
) -> Option<Step> {
    let Some(at) = app.path(connection) else {
        give_back(app, &step);
        return None;
    };
    let path = paths.get_mut(at)?;
    path.heat(at, hot_paths, now);
    let begins = step.parts.contains(Parts::BEGIN);
    if step.taken_at == 0 {
        step.taken_at = now;
    }
    match path.datapath.from_app().push(step) {
        Ok(()) => {
            path.calls_begun += u64::from(begins);
            None
        }
        Err(back) => Some(back.0),
    }
}

/// Puts all steps of a connection into its datapath that found it full, past its bound: what is done next needs them there.
pub(crate) fn submit_blocked(
    app: &mut PolledApp,
    paths: &mut NumberedSlots<PolledDatapath>,
    connection: u32,
) {
    let at = app.path(connection);
    for step in app.blocked.take(connection) {
        match at.and_then(|at| paths.get_mut(at)) {
            Some(path) => {
                path.calls_begun += u64::from(step.parts.contains(Parts::BEGIN));
                path.datapath.from_app().push_past_bound(step);
            }
            None => give_back(app, &step),
        }
    }
}

/// The connection of a step has ended, as the app has been told: what it offers there is its own again.
fn give_back(app: &mut PolledApp, step: &Step) {
    if let Body::Untrusted(untrusted) = &step.body
        && untrusted.token != 0
    {
        app.port.lend().1.push(untrusted.token);
    }
}

fn pushed<T>(result: Result<(), NotPushed<T>>) -> Result<bool, AppFault> {
    match result {
        Ok(()) => Ok(true),
        Err(NotPushed::Full(_)) => Ok(false),
        Err(NotPushed::Fault(fault)) => Err(fault),
    }
}

/// Has what the datapath waits for watched; nothing, while reading would not help.
pub(crate) fn sync_watch(platform: &mut impl RuntimePlatform, number: u32, path: &mut PolledDatapath) {
    let wanted = if path.datapath.is_blocked() {
        None
    } else {
        path.datapath.interest()
    };
    if wanted == path.watched {
        return;
    }
    let watch = |interest: Interest| {
        if interest.write {
            provost_shm::Interest::Both
        } else {
            provost_shm::Interest::Readable
        }
    };
    let token = token(KIND_PATH, number);
    let done = match (path.watched, wanted) {
        (Some(old), Some(new)) if old.socket == new.socket => {
            platform.watch_for(WatchedSource::Socket(new.socket), token, watch(new))
        }
        (old, new) => {
            if let Some(old) = old {
                platform.unwatch(WatchedSource::Socket(old.socket));
            }
            new.map_or(Ok(()), |new| {
                platform.watch(WatchedSource::Socket(new.socket), token, watch(new))
            })
        }
    };
    // A socket that cannot be watched is tried in every round (see `poll_path`), and by its timer while dormant.
    path.watched = wanted.filter(|_| done.is_ok());
}
