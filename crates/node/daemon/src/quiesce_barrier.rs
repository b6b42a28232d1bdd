//! A quiesce barrier before everything that the control plane does for apps and peers: it is closed while another process of the
//! service takes over, so that what that one is given is all that there is.

use std::future::Future;
use std::time::Duration;

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, watch};

/// See the module's documentation.
pub(crate) struct QuiesceBarrier {
    passes: RwLock<()>,
    is_closing: watch::Sender<bool>,
}

/// Leave to do something that others can notice. It is held for a short time.
pub(crate) struct QuiesceGuard<'a> {
    _inside: RwLockReadGuard<'a, ()>,
}

/// The quiesce barrier is closed until this is dropped.
pub(crate) struct Closed<'a> {
    quiesce_barrier: &'a QuiesceBarrier,
    _alone: RwLockWriteGuard<'a, ()>,
}

/// Somebody was inside for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotClosed;

impl QuiesceBarrier {
    /// An open quiesce barrier.
    pub(crate) fn new() -> QuiesceBarrier {
        QuiesceBarrier {
            passes: RwLock::new(()),
            is_closing: watch::Sender::new(false),
        }
    }

    /// Enters, as soon as the quiesce barrier is open.
    pub(crate) async fn enter(&self) -> QuiesceGuard<'_> {
        let mut closing = self.is_closing.subscribe();
        loop {
            // Its sender is in this quiesce barrier.
            let _ = closing.wait_for(|is_closing| !is_closing).await;
            let inside = self.passes.read().await;
            if !*self.is_closing.borrow() {
                return QuiesceGuard { _inside: inside };
            }
        }
    }

    /// Waits for something that may take long with the quiesce barrier open, and enters as it comes. The waiting is given up, and
    /// begun anew by `wait`, when the quiesce barrier is closed.
    pub(crate) async fn enter_with<T, F: Future<Output = T>>(
        &self,
        mut wait: impl FnMut() -> F,
    ) -> (T, QuiesceGuard<'_>) {
        loop {
            let pass = self.enter().await;
            let mut closing = self.is_closing.subscribe();
            tokio::select! {
                biased;
                _ = closing.wait_for(|is_closing| *is_closing) => {}
                come = wait() => return (come, pass),
            }
        }
    }

    /// Tells whether it is closed, or about to be, again and again.
    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.is_closing.subscribe()
    }

    /// Whether it is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        *self.is_closing.borrow()
    }

    /// Closes it: waits, at most so long, until everybody is out.
    pub(crate) async fn close(&self, limit: Duration) -> Result<Closed<'_>, NotClosed> {
        self.is_closing.send_replace(true);
        match tokio::time::timeout(limit, self.passes.write()).await {
            Ok(alone) => Ok(Closed {
                quiesce_barrier: self,
                _alone: alone,
            }),
            Err(_late) => {
                self.is_closing.send_replace(false);
                Err(NotClosed)
            }
        }
    }
}

impl Closed<'_> {
    /// It is never opened again.
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.quiesce_barrier.is_closing.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.unwrap(), test);
    }

    #[test]
    fn a_closed_barrier_lets_nobody_in_and_what_waits_is_begun_anew() {
        run(async {
            let quiesce_barrier = Rc::new(QuiesceBarrier::new());
            let begun = Rc::new(std::cell::Cell::new(0));
            let (come, coming) = watch::channel(false);
            let waiting = {
                let (quiesce_barrier, begun) = (Rc::clone(&quiesce_barrier), Rc::clone(&begun));
                tokio::task::spawn_local(async move {
                    let wait = || {
                        begun.set(begun.get() + 1);
                        let mut coming = coming.clone();
                        async move { coming.wait_for(|come| *come).await.map(drop) }
                    };
                    let (come, _pass) = quiesce_barrier.enter_with(wait).await;
                    come.unwrap();
                })
            };
            tokio::task::yield_now().await;
            let closed = quiesce_barrier.close(LIMIT).await.unwrap();
            assert!(
                tokio::time::timeout(Duration::from_millis(20), quiesce_barrier.enter())
                    .await
                    .is_err()
            );
            come.send_replace(true);
            drop(closed);
            waiting.await.unwrap();
            assert_eq!(begun.get(), 2);
        });
    }

    #[test]
    fn a_barrier_that_cannot_be_closed_stays_open() {
        run(async {
            let quiesce_barrier = QuiesceBarrier::new();
            let inside = quiesce_barrier.enter().await;
            assert_eq!(
                quiesce_barrier.close(Duration::from_millis(10)).await.err(),
                Some(NotClosed)
            );
            let _second = quiesce_barrier.enter().await;
            drop(inside);
        });
    }
}
