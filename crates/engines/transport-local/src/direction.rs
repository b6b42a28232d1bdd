//! One direction of a connection: what two runtimes share. Every queue is lock-free.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use provost_datapath::{Buffer, Step};
use provost_wire::Code;

use crate::local_queue::LocalQueue;

/// Steps that wait in one direction of a connection, at most, and bodies that the receiving end has not given back.
pub const DIRECTION_STEPS_MAX: usize = 256;

/// What the receiving end gives back of a body that it has copied.
pub(crate) struct BodyReturn {
    /// The app's token, 0 for none.
    pub(crate) token: u64,
    /// The private buffer, for the pool that it came from.
    pub(crate) buffer: Buffer,
}

/// The end of a call that the other end could not take.
#[derive(Clone)]
pub(crate) struct CallRefusal {
    pub(crate) call: u64,
    pub(crate) code: Code,
    pub(crate) reason: Cow<'static, str>,
}

/// The sending end puts steps and takes returns; the receiving end does the opposite.
pub(crate) struct LocalDirection {
    steps: LocalQueue<Step>,
    /// Where bodies are lent: what speaks gRPC lends none.
    returns: OnceLock<Box<LocalQueue<BodyReturn>>>,
    /// From the sending end, ahead of its steps. Few connections have any.
    refusals: OnceLock<Box<LocalQueue<CallRefusal>>>,
    /// The sending end puts nothing more.
    closed: AtomicBool,
    /// The receiving end takes nothing more.
    deserted: AtomicBool,
    /// The sending end asks for no new calls.
    drains: AtomicBool,
}

impl LocalDirection {
    pub(crate) fn new() -> LocalDirection {
        LocalDirection {
            steps: LocalQueue::with_bound(DIRECTION_STEPS_MAX),
            returns: OnceLock::new(),
            refusals: OnceLock::new(),
            closed: AtomicBool::new(false),
            deserted: AtomicBool::new(false),
            drains: AtomicBool::new(false),
        }
    }

    /// Whether [`LocalDirection::put`] would be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.steps.is_full()
    }

    /// Puts a step; only after [`LocalDirection::is_full`] said no, by the one end that puts.
    pub(crate) fn put(&self, step: Step) {
        let put = self.steps.push(step);
        debug_assert!(put.is_ok(), "only one end puts, and it asks before");
    }

    pub(crate) fn take(&self) -> Option<Step> {
        self.steps.pop()
    }

    /// Gives a body back. The sending end lends no more bodies than fit here.
    pub(crate) fn give_back(&self, back: BodyReturn) {
        let none_yet = || Box::new(LocalQueue::with_bound(DIRECTION_STEPS_MAX));
        let given = self.returns.get_or_init(none_yet).push(back);
        debug_assert!(given.is_ok(), "no more bodies are lent than returns fit");
    }

    pub(crate) fn take_return(&self) -> Option<BodyReturn> {
        self.returns.get()?.pop()
    }

    pub(crate) fn has_room_for_refusal(&self) -> bool {
        self.refusals.get().is_none_or(|refusals| !refusals.is_full())
    }

    /// Refuses a call; only after [`LocalDirection::has_room_for_refusal`] said yes, by the end that puts.
    pub(crate) fn refuse(&self, refusal: CallRefusal) {
        let none_yet = || Box::new(LocalQueue::with_bound(DIRECTION_STEPS_MAX));
        let refused = self.refusals.get_or_init(none_yet).push(refusal);
        debug_assert!(refused.is_ok(), "only one end refuses, and it asks before");
    }

    pub(crate) fn take_refusal(&self) -> Option<CallRefusal> {
        self.refusals.get()?.pop()
    }

    /// Says that nothing more is put.
    pub(crate) fn close(&self) {
        // Pairs with the Acquire in `is_over`: who sees it closed sees what was put before.
        self.closed.store(true, Ordering::Release);
    }

    /// Whether nothing more comes out: asked by the receiving end.
    pub(crate) fn is_over(&self) -> bool {
        self.closed.load(Ordering::Acquire) && self.steps.is_empty() && self.refusals_waiting() == 0
    }

    /// Says that nothing more is taken.
    pub(crate) fn desert(&self) {
        // Pairs with the Acquire in `is_deserted`: who sees it deserted sees what was given back before.
        self.deserted.store(true, Ordering::Release);
    }

    /// Whether what is in the direction will never be taken: asked by the sending end, which may then take it itself.
    pub(crate) fn is_deserted(&self) -> bool {
        self.deserted.load(Ordering::Acquire)
    }

    /// Whether nothing more is put.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Looks at everything in the direction, in order, while both ends rest. What comes out is what was in.
    pub(crate) fn look(
        &self,
        mut step: impl FnMut(&Step),
        mut back: impl FnMut(&BodyReturn),
        mut refusal: impl FnMut(&CallRefusal),
    ) {
        self.steps.look(&mut step);
        if let Some(returns) = self.returns.get() {
            returns.look(&mut back);
        }
        if let Some(refusals) = self.refusals.get() {
            refusals.look(&mut refusal);
        }
    }

    pub(crate) fn lengths(&self) -> [usize; 3] {
        let returns = self.returns.get().map_or(0, |returns| returns.len());
        [self.steps.len(), returns, self.refusals_waiting()]
    }

    fn refusals_waiting(&self) -> usize {
        self.refusals.get().map_or(0, |refusals| refusals.len())
    }

    pub(crate) fn set_drains(&self) {
        self.drains.store(true, Ordering::Relaxed);
    }

    pub(crate) fn drains(&self) -> bool {
        self.drains.load(Ordering::Relaxed)
    }
}
