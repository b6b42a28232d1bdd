//! A datapath as its runtime sees it.

use std::sync::Arc;

use provost_datapath::{
    Body, BufferPool, Context, Datapath, Departure, Interest, LinkEnd, Nanos, Progress, SocketHint, Step,
};
use provost_frontend::{AppFault, NotPushed, Notice};
use provost_ring::Patience;
use provost_shm::Poller;
use provost_wire::descriptor::Parts;

use super::app::App;
use super::command::{ConnectionId, RuntimeEvent};
use super::reshape::Fitted;
use super::slots::Slots;
use super::wake::PathWaker;
use super::worker::{KIND_PATH, token};

pub(super) struct Path {
    pub(super) id: ConnectionId,
    pub(super) app: u32,
    pub(super) number: u32,
    pub(super) datapath: Datapath,
    /// What is known of its engines, in their order.
    pub(super) fitted: Vec<Fitted>,
    /// How often its engines were changed.
    pub(super) revision: u64,
    /// An engine is on trial.
    pub(super) is_on_trial: bool,
    /// Calls that the app began, or was told of.
    pub(super) calls_begun: u64,
    pub(super) waker: Arc<PathWaker>,
    pub(super) _permit: Box<dyn Send>,
    pub(super) accepted_for: Option<u64>,
    pub(super) told_going_away: bool,
    pub(super) last_work: Nanos,
    pub(super) patience: Patience,
    pub(super) is_hot: bool,
    /// Close it once it is flushed.
    pub(super) is_closing: bool,
    pub(super) has_ended: bool,
    /// What the poller watches for it.
    pub(super) watched: Option<Interest>,
    pub(super) socket_ready: bool,
    pub(super) timer: Option<Nanos>,
    /// Its calls that are counted as under way.
    pub(super) calls_counted: usize,
}

impl Path {
    pub(super) fn heat(&mut self, number: u32, hot: &mut Vec<u32>, now: Nanos) {
        let gap_ns = now.saturating_sub(self.last_work);
        self.last_work = now;
        if !self.is_hot {
            self.is_hot = true;
            self.patience.woken_after(gap_ns);
            hot.push(number);
        }
    }

    pub(super) fn poll(
        &mut self,
        app: &mut App,
        now: Nanos,
        try_socket: bool,
        buffers: &mut BufferPool,
    ) -> bool {
        let (receive, sent) = app.port.lend();
        let mut context = Context {
            socket: match try_socket {
                true => SocketHint::Try,
                false => SocketHint::Skip,
            },
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
    pub(super) fn deliver(
        &mut self,
        app: &mut App,
        now: Nanos,
        buffers: &mut BufferPool,
    ) -> Result<bool, AppFault> {
        if app.leaving.is_some() {
            return Ok(self.discard_output(app, now, buffers));
        }
        let mut delivered = false;
        if let Some(bind) = self.accepted_for {
            let connection = self.number;
            if !pushed(app.port.push_notice(Notice::Accepted { connection, bind }))? {
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
            let departure = Departure::of(&step);
            match app.port.push_step(self.number, step) {
                Ok(()) => {
                    delivered = true;
                    self.datapath.note_delivered(departure);
                    self.calls_begun += u64::from(begins);
                }
                Err(NotPushed::Full(step)) => {
                    self.datapath.to_app().put_back(step);
                    break;
                }
                Err(NotPushed::Fault(fault)) => return Err(fault),
            }
        }
        Ok(delivered)
    }

    /// The app is gone: what comes for it goes nowhere.
    pub(super) fn discard_output(&mut self, app: &mut App, now: Nanos, buffers: &mut BufferPool) -> bool {
        let (receive, sent) = app.port.lend();
        let mut context = Context {
            socket: SocketHint::Skip,
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

    pub(super) fn discard_all(&mut self, app: &mut App, now: Nanos, buffers: &mut BufferPool) {
        self.discard_output(app, now, buffers);
        let (receive, sent) = app.port.lend();
        let mut context = Context {
            socket: SocketHint::Skip,
            now,
            buffers,
            receive,
            sent,
        };
        self.datapath.discard_all(&mut context);
    }

    /// Whether it waits for something of which no event tells: room in the app's ring, or the end of a closing one.
    pub(super) fn is_stuck(&self) -> bool {
        self.datapath.is_blocked() || self.has_ended || (self.is_closing && !self.datapath.is_flushed())
    }

    pub(super) fn end(&self) -> LinkEnd {
        let end = self.datapath.link().ended().cloned();
        end.unwrap_or_else(RuntimeEvent::silent_end)
    }
}

/// Puts a step into its datapath; it comes back if that is full.
pub(super) fn submit(
    app: &mut App,
    paths: &mut Slots<Path>,
    hot_paths: &mut Vec<u32>,
    now: Nanos,
    connection: u32,
    mut step: Step,
) -> Option<(u32, Step)> {
    let Some(at) = app.path(connection) else {
        // The connection has ended, as the app has been told; what it offers there is its own again.
        let (_, sent) = app.port.lend();
        if let Body::Alleged(alleged) = step.body
            && alleged.token != 0
        {
            sent.push(alleged.token);
        }
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
        Err(back) => Some((connection, back.0)),
    }
}

fn pushed<T>(result: Result<(), NotPushed<T>>) -> Result<bool, AppFault> {
    match result {
        Ok(()) => Ok(true),
        Err(NotPushed::Full(_)) => Ok(false),
        Err(NotPushed::Fault(fault)) => Err(fault),
    }
}

/// Makes the poller watch what the datapath waits for; nothing, while reading would not help.
pub(super) fn sync_watch(poller: &Poller, number: u32, path: &mut Path) {
    let wanted = match path.datapath.is_blocked() {
        true => None,
        false => path.datapath.interest(),
    };
    if wanted == path.watched {
        return;
    }
    let watch = |interest: Interest| match interest.write {
        true => provost_shm::Interest::Both,
        false => provost_shm::Interest::Readable,
    };
    let token = token(KIND_PATH, number);
    let done = match (path.watched, wanted) {
        (Some(old), Some(new)) if old.socket == new.socket => {
            poller.modify_number(new.socket, token, watch(new))
        }
        (old, new) => {
            if let Some(old) = old {
                let _ = poller.remove_number(old.socket);
            }
            new.map_or(Ok(()), |new| poller.add_number(new.socket, token, watch(new)))
        }
    };
    // A socket that cannot be watched is tried in every round (see `poll_path`), and by its timer while dormant.
    path.watched = wanted.filter(|_| done.is_ok());
}
