//! A link's doorbell, watched by the runtime that runs the program's calls, while they follow each other.
//!
//! A ring then wakes the thread that waits for the call. Where the reactor watches the doorbell, a ring wakes the reactor's thread,
//! which wakes that one: two context switches more for each call, and twice as many system calls.
//!
//! ```text
//!   a call falls asleep in tokio     nothing for some 16 ms, or a ring that the runtime has not heard one or two ticks later
//!   reactor ──────────────────► runtime ───────────────────────────────────────────────────────────────────► reactor
//! ```
//!
//! A runtime that does something else hears nothing. So the reactor's tick, of which there is one every few milliseconds while
//! something goes on, watches the doorbell itself when it has rung and nothing was heard for as long as a tick; and it does before
//! the ticks end.
//! The first runtime of a program in which a link's calls fall asleep watches its doorbell. Calls in others are woken by the reactor.

#[cfg(not(feature = "tokio"))]
pub(super) use without::RuntimeWatch;

#[cfg(feature = "tokio")]
pub(super) use with_tokio::RuntimeWatch;

#[cfg(not(feature = "tokio"))]
mod without {
    use std::sync::Arc;

    use crate::link::Link;

    /// No runtime is known.
    #[derive(Default)]
    pub(in crate::link) struct RuntimeWatch(());

    impl RuntimeWatch {
        #[expect(clippy::unused_self, reason = "as the one that knows a runtime")]
        pub(in crate::link) fn watches(&self, _link: &Arc<Link>) -> bool {
            false
        }

        #[expect(clippy::unused_self, reason = "as the one that knows a runtime")]
        pub(in crate::link) fn note_unheard(&self) {}

        #[expect(clippy::unused_self, reason = "as the one that knows a runtime")]
        pub(in crate::link) fn stop(&self) {}
    }
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use std::os::fd::OwnedFd;
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, Weak};

    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;
    use tokio::runtime::{Handle, Id};
    use tokio::task::AbortHandle;

    use provost_ring::DoorbellWatcher;

    use crate::link::{Link, lock};

    /// Which runtime watches the doorbell of a link, if one does.
    #[derive(Default)]
    pub(in crate::link) struct RuntimeWatch {
        home: Mutex<HomeRuntime>,
        /// The task runs: it has heard everything that was rung for until it waited last.
        is_responsive: AtomicBool,
    }

    /// The runtime whose task watches a doorbell.
    #[derive(Default)]
    enum HomeRuntime {
        #[default]
        Unknown,
        Of(Id, AbortHandle),
        /// It has no driver of descriptors.
        Unable(Id),
    }

    impl RuntimeWatch {
        /// Whether the runtime of this thread hears the doorbell. Begins that if no runtime does.
        pub(in crate::link) fn watches(&self, link: &Arc<Link>) -> bool {
            let Ok(handle) = Handle::try_current() else {
                return false;
            };
            let id = handle.id();
            let mut home = lock(&self.home);
            match &*home {
                HomeRuntime::Of(known, _) => *known == id && self.is_responsive.load(Ordering::Acquire),
                HomeRuntime::Unable(known) if *known == id => false,
                HomeRuntime::Unknown | HomeRuntime::Unable(_) => {
                    *home = begin(&handle, link);
                    false
                }
            }
        }

        /// A ring was not heard: the task has to run before the runtime is relied on again.
        pub(in crate::link) fn note_unheard(&self) {
            self.is_responsive.store(false, Ordering::Release);
        }

        pub(in crate::link) fn stop(&self) {
            if let HomeRuntime::Of(_, task) = &*lock(&self.home) {
                task.abort();
            }
        }
    }

    fn begin(handle: &Handle, link: &Arc<Link>) -> HomeRuntime {
        let Some(doorbell) = link.doorbell().try_clone_read().ok().and_then(watched) else {
            return HomeRuntime::Unable(handle.id());
        };
        let task = handle.spawn(deliver_rings(Arc::downgrade(link), doorbell));
        HomeRuntime::Of(handle.id(), task.abort_handle())
    }

    /// The descriptor in the care of this thread's runtime.
    fn watched(doorbell: OwnedFd) -> Option<AsyncFd<OwnedFd>> {
        // It panics in a runtime that was built without `enable_io`, which nothing tells beforehand.
        let registered = catch_unwind(|| {
            // SAFETY: the descriptor is open until its owner is dropped, which the `AsyncFd` does when it has let go of it.
            unsafe { AsyncFd::register_with_interest(doorbell, Interest::READABLE) }
        });
        registered.ok()?.ok()
    }

    /// Delivers what the doorbell is rung for, until the link or the runtime ends.
    async fn deliver_rings(link: Weak<Link>, doorbell: AsyncFd<OwnedFd>) {
        let _end = EndOfDelivery(link.clone());
        loop {
            match link.upgrade() {
                Some(link) if !link.is_dead() => {
                    link.waiting.runtime.is_responsive.store(true, Ordering::Release)
                }
                _ => return,
            }
            let Ok(mut ready) = doorbell.readable().await else {
                return;
            };
            ready.clear_ready();
            if let Some(link) = link.upgrade() {
                link.on_ring(DoorbellWatcher::Runtime);
            }
        }
    }

    /// The reactor hears from then on what the task would have.
    struct EndOfDelivery(Weak<Link>);

    impl Drop for EndOfDelivery {
        fn drop(&mut self) {
            if let Some(link) = self.0.upgrade() {
                link.waiting.runtime.note_unheard();
                *lock(&link.waiting.runtime.home) = HomeRuntime::Unknown;
                link.take_over_from_runtime();
            }
        }
    }
}
