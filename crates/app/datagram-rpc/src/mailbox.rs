//! What other threads ask of the thread that owns an [`Rpc`](crate::Rpc): closures in a bounded queue, and a bell for
//! an event loop that sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::task::Waker;

use crossbeam_queue::{ArrayQueue, SegQueue};

use crate::context::Context;

/// What is to be done in the event loop.
pub(crate) type Errand<A, S> = Box<dyn FnOnce(&mut S, &mut Context<'_, A, S>) + Send>;

/// Reaches the event loop of an [`Rpc`](crate::Rpc) from other threads. Cheap to clone.
pub struct Remote<A, S> {
    mailbox: Arc<Mailbox<A, S>>,
}

/// Nothing more was taken: as much waits as may, or the [`Rpc`](crate::Rpc) is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailboxFull {
    /// As much waits as may.
    #[error("as much waits for the event loop as may; try again later")]
    Full,
    /// There is no event loop any more.
    #[error("the event loop is gone")]
    Gone,
}

impl<A, S> Clone for Remote<A, S> {
    fn clone(&self) -> Self {
        Self {
            mailbox: self.mailbox.clone(),
        }
    }
}

impl<A, S> std::fmt::Debug for Remote<A, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote")
            .field("waiting", &self.mailbox.errands.len())
            .finish()
    }
}

impl<A, S> Remote<A, S> {
    /// Has this run in the event loop, with its state. If the loop ends before, it is dropped.
    ///
    /// # Errors
    /// If it was not taken; it is dropped.
    pub fn run(
        &self,
        errand: impl FnOnce(&mut S, &mut Context<'_, A, S>) + Send + 'static,
    ) -> Result<(), MailboxFull> {
        self.mailbox.push(Box::new(errand)).map_err(|(error, _)| error)
    }

    /// Has this run in the event loop, however much waits there. Only for what gives up something of the loop: each is given up
    /// once, so that no more of these wait than the loop has sessions, channels and calls.
    pub(crate) fn give_up(&self, errand: impl FnOnce(&mut S, &mut Context<'_, A, S>) + Send + 'static) {
        self.mailbox.give_up(Box::new(errand));
    }

    /// Has the handler run that was registered by [`Handlers::on_ring`](crate::Handlers::on_ring): once, soon, however
    /// often this is called before it does.
    pub fn ring(&self) {
        self.mailbox.bell.call();
    }

    /// Whether there is an event loop that takes something.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.mailbox.is_closed.load(Ordering::SeqCst)
    }

    pub(crate) fn new(mailbox: Arc<Mailbox<A, S>>) -> Self {
        Self { mailbox }
    }

    /// What [`Remote::ring`] rings.
    pub(crate) fn bell(&self) -> Arc<Bell> {
        self.mailbox.bell.clone()
    }
}

pub(crate) struct Mailbox<A, S> {
    errands: ArrayQueue<Errand<A, S>>,
    /// What [`Remote::give_up`] was given, which waits beside them.
    given_up: SegQueue<Errand<A, S>>,
    is_closed: AtomicBool,
    pub(crate) bell: Arc<Bell>,
}

impl<A, S> Mailbox<A, S> {
    pub(crate) fn new(errands_max: usize, bell: Arc<Bell>) -> Self {
        Self {
            errands: ArrayQueue::new(errands_max),
            given_up: SegQueue::new(),
            is_closed: AtomicBool::new(false),
            bell,
        }
    }

    fn push(&self, errand: Errand<A, S>) -> Result<(), (MailboxFull, Errand<A, S>)> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err((MailboxFull::Gone, errand));
        }
        self.errands
            .push(errand)
            .map_err(|errand| (MailboxFull::Full, errand))?;
        self.pushed();
        Ok(())
    }

    fn give_up(&self, errand: Errand<A, S>) {
        self.given_up.push(errand);
        self.pushed();
    }

    fn pushed(&self) {
        // Pairs with `close`: one of the two sees what the other did, so nothing stays in here.
        fence(Ordering::SeqCst);
        if self.is_closed.load(Ordering::SeqCst) {
            self.drop_all();
        }
        self.bell.ring();
    }

    /// Takes what is there now, and what was given up last: whoever gives something up has asked for it before. What comes meanwhile
    /// waits for the next time, so that neither kind keeps the other waiting.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = Errand<A, S>> {
        let (given_up, errands) = (self.given_up.len(), self.errands.len());
        let errands = std::iter::repeat_with(|| self.errands.pop()).take(errands);
        let given_up = std::iter::repeat_with(|| self.given_up.pop()).take(given_up);
        errands.chain(given_up).flatten()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errands.is_empty() && self.given_up.is_empty()
    }

    /// Takes nothing more, and drops what is there.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.drop_all();
    }

    fn drop_all(&self) {
        while self.errands.pop().or_else(|| self.given_up.pop()).is_some() {}
    }
}

/// Wakes an event loop that sleeps at its wire.
#[derive(Debug)]
pub(crate) struct Bell {
    sleeps: AtomicBool,
    /// Whether somebody wants the handler of [`Remote::ring`] to run.
    called: AtomicBool,
    waker: Option<Waker>,
}

impl Bell {
    pub(crate) fn new(waker: Option<Waker>) -> Self {
        Self {
            sleeps: AtomicBool::new(false),
            called: AtomicBool::new(false),
            waker,
        }
    }

    /// Whether it can wake anybody. If not, the event loop must look by itself.
    pub(crate) fn rings(&self) -> bool {
        self.waker.is_some()
    }

    /// Something was put where the event loop looks.
    #[inline]
    pub(crate) fn ring(&self) {
        // Pairs with `sleep`: either this sees that it sleeps, or its last look sees what was put.
        fence(Ordering::SeqCst);
        if self.sleeps.load(Ordering::Relaxed)
            && self.sleeps.swap(false, Ordering::SeqCst)
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn call(&self) {
        if !self.called.swap(true, Ordering::SeqCst) {
            self.ring();
        }
    }

    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Whether somebody has called since the last time.
    pub(crate) fn answer(&self) -> bool {
        self.is_called() && self.called.swap(false, Ordering::SeqCst)
    }

    /// Says that the event loop is about to sleep; it looks once more after this.
    pub(crate) fn sleep(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn awake(&self) {
        self.sleeps.store(false, Ordering::Relaxed);
    }
}
