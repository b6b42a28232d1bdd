//! Waking futures, and lists of those that wait for the same thing.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Wakes a task. A waker is an executor's code: a panic of it ends here, so that others are woken all the same, and the thread goes on
/// that serves all links.
pub fn wake(waker: Waker) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        // To drop it would be to run more of that code.
        std::mem::forget(payload);
    }
}

/// The wakers of futures that wait for the same thing: one for each future, with however many it is polled.
///
/// [`Waker::will_wake`] does not do for that. It may say no of the waker that a task has always been polled with, because
/// the compiler may give a clone a table of functions of its own, and then a list that asks it grows with each poll.
#[derive(Clone, Debug, Default)]
pub(crate) struct WakerList {
    waiting: Arc<Mutex<WaitingFutures>>,
}

#[derive(Debug, Default)]
struct WaitingFutures {
    next_place: u64,
    wakers: HashMap<u64, Waker>,
}

/// The place of one future in a list, until it is dropped.
#[derive(Debug)]
pub(crate) struct WakerPlace {
    list: WakerList,
    place: u64,
}

impl WakerList {
    pub(crate) fn place(&self) -> WakerPlace {
        let mut waiting = self.waiting();
        waiting.next_place += 1;
        WakerPlace {
            list: self.clone(),
            place: waiting.next_place,
        }
    }

    /// Wakes all that have registered since the last time.
    pub(crate) fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.waiting().wakers);
        wakers.into_values().for_each(wake);
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingFutures> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WakerPlace {
    /// Has `waker` woken the next time, and none that was registered here before.
    pub(crate) fn register(&self, waker: &Waker) {
        drop(self.replace(waker));
    }

    /// As [`WakerPlace::register`], for who holds a lock: the waker that was here before must be dropped without it, as it may be the last
    /// owner of a task.
    #[must_use]
    pub(crate) fn replace(&self, waker: &Waker) -> Option<Waker> {
        self.list.waiting().wakers.insert(self.place, waker.clone())
    }
}

impl Drop for WakerPlace {
    fn drop(&mut self) {
        let waker = self.list.waiting().wakers.remove(&self.place);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct PanicsWithWhatPanics;

    impl Drop for PanicsWithWhatPanics {
        fn drop(&mut self) {
            panic!("as the test wants it");
        }
    }

    impl Wake for PanicsWithWhatPanics {
        fn wake(self: Arc<Self>) {
            // Its last owner must not be this frame, which unwinds.
            std::mem::forget(self);
            std::panic::panic_any(PanicsWithWhatPanics);
        }
    }

    #[test]
    fn a_waker_that_panics_with_what_panics_as_it_is_dropped_does_no_harm() {
        wake(Waker::from(Arc::new(PanicsWithWhatPanics)));
    }

    #[test]
    fn a_future_has_one_waker_however_often_it_is_polled() {
        let list = WakerList::default();
        let place = list.place();
        let wakers: Vec<_> = (0..100).map(|_| Arc::new(CountedWakes::default())).collect();
        for waker in &wakers {
            place.register(&Waker::from(waker.clone()));
        }
        assert!(wakers[..99].iter().all(|waker| Arc::strong_count(waker) == 1));
        list.wake_all();
        list.wake_all();
        let woken: Vec<_> = wakers
            .iter()
            .map(|waker| waker.0.load(Ordering::Relaxed))
            .collect();
        assert_eq!((woken[99], woken.iter().sum()), (1, 1));
    }

    #[test]
    fn a_dropped_future_leaves_nothing_and_others_are_woken() {
        let list = WakerList::default();
        let (gone, waiting) = (
            Arc::new(CountedWakes::default()),
            Arc::new(CountedWakes::default()),
        );
        let (dropped, place) = (list.place(), list.place());
        dropped.register(&Waker::from(gone.clone()));
        place.register(&Waker::from(waiting.clone()));
        drop(dropped);
        assert_eq!(Arc::strong_count(&gone), 1);
        list.wake_all();
        assert_eq!(gone.0.load(Ordering::Relaxed), 0);
        assert_eq!(waiting.0.load(Ordering::Relaxed), 1);
    }
}
