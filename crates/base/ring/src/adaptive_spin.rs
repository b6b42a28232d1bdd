//! How long one side polls before it sleeps: longer while it pays.
//!
//! A wake-up costs more than a few dozen microseconds of polling, and while calls follow each other one that comes late
//! would put every side on its way to sleep, so that the next pays for each of their wake-ups. But one that polls for
//! long after each of a few calls a second wastes its core. So a side polls for its base time, and for
//! [`LONGER`] times that while what woke it came soon enough for that to have caught it.
//!
//! While it polls, and after each [`TURN_NS`] of work, a side gives its core away to whoever shares it. Where all who share it
//! do so, it comes back soon. A stranger keeps it for a time slice of the kernel, even one of the idle class: a side that
//! polls is runnable, so nothing wakes it in the stranger's place. A side that finds that out sleeps instead of polling
//! ([`ContentionBackoff`]): then who rings its doorbell gets it the core at once. One late return alone says little: beside a job
//! of the idle class, a side that yields a hundred thousand times a second gets its core back late a few times in that
//! second, and to sleep for longer than that job runs would cost more than it takes.
//!
//! Each time that a side gives its core away, it goes back in the kernel's order by a time slice, so one that is alone on its core and
//! does so after each look puts even a job of the idle class ahead of it within milliseconds. A core that comes back at once was
//! wanted by nobody, and is given away less often from then on ([`YieldPace`]).

/// How much longer than its base time a side polls while work follows work closely.
pub const LONGER: u64 = 4;

/// How long a side works before it gives its core away once, in nanoseconds.
pub const TURN_NS: u64 = 200_000;
/// A core that a side gave away comes back after no more than this while only such sides share it, in nanoseconds: the turns of
/// four others, and what is longer than a turn because handlers run in it.
const YIELD_NS_MAX: u64 = 1_000_000;
/// A core that comes back within this was wanted by nobody, in nanoseconds: to let another thread run takes two changes of context.
const UNWANTED_NS_MAX: u64 = 1_000;
/// How far apart, in nanoseconds, a side gives away a core that nobody wants: at first, and from when on no further. What then comes
/// to want it waits for as long, at most.
const YIELDS_APART_NS: (u64, u64) = (500, 7_500);
/// Late returns that lie further apart than this do not tell of others that want the core all the time, in nanoseconds: two time
/// slices of those would be nearer.
const LATE_APART_NS: u64 = 20_000_000;
/// How long a side that found its core crowded does not poll, in nanoseconds: at first, and at most when it finds it so
/// again and again.
const CROWDED_NS: (u64, u64) = (50_000_000, 400_000_000);

/// Whether others that compute share the core.
///
/// Then one that gives the core away gets it back a time slice later, and would pay that for each poll; one that sleeps
/// keeps its claim, and is run when it is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentionBackoff {
    /// Until when not to poll.
    pub until_ns: u64,
    /// How long that was from its beginning.
    pub for_ns: u64,
    /// When the core came back late last; 0 for never.
    pub late_ns: u64,
}

impl ContentionBackoff {
    /// What a side learns that gave its core away at one time and got it back at another: `None` if that was soon. Two late
    /// returns soon after each other begin the back-off.
    #[must_use]
    pub const fn after_yield(self, given_away_ns: u64, back_ns: u64) -> Option<ContentionBackoff> {
        if back_ns.saturating_sub(given_away_ns) <= YIELD_NS_MAX {
            return None;
        }
        if given_away_ns.saturating_sub(self.late_ns) > LATE_APART_NS {
            return Some(ContentionBackoff {
                late_ns: back_ns,
                ..self
            });
        }
        let is_again = given_away_ns < self.until_ns.saturating_add(self.for_ns);
        let doubled_ns = if self.for_ns < CROWDED_NS.1 / 2 {
            2 * self.for_ns
        } else {
            CROWDED_NS.1
        };
        let for_ns = if is_again { doubled_ns } else { CROWDED_NS.0 };
        Some(ContentionBackoff {
            until_ns: back_ns.saturating_add(for_ns),
            for_ns,
            late_ns: back_ns,
        })
    }

    /// Whether to sleep at once instead of polling.
    #[must_use]
    pub const fn is_contended(self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

/// How often a side that polls gives its core away: after each look while others take it, seldom while nobody does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct YieldPace {
    /// When it is time to again.
    pub due_ns: u64,
    /// How long after the last time that is.
    pub apart_ns: u64,
}

impl YieldPace {
    /// What a side learns that gave its core away at one time and got it back at another.
    #[must_use]
    pub const fn after_yield(self, given_away_ns: u64, back_ns: u64) -> YieldPace {
        let apart_ns = if back_ns.saturating_sub(given_away_ns) > UNWANTED_NS_MAX {
            0
        } else if self.apart_ns < YIELDS_APART_NS.1 {
            2 * self.apart_ns + YIELDS_APART_NS.0
        } else {
            self.apart_ns
        };
        YieldPace {
            due_ns: back_ns.saturating_add(apart_ns),
            apart_ns,
        }
    }

    /// Whether to give the core away now.
    #[must_use]
    pub const fn is_due(self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }
}

/// How long one side polls after its last work, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdaptiveSpin {
    base_ns: u64,
    current_ns: u64,
}

impl AdaptiveSpin {
    /// Begins with the base time. 0 never polls; `u64::MAX` never sleeps.
    #[must_use]
    pub const fn new(base_ns: u64) -> AdaptiveSpin {
        AdaptiveSpin {
            base_ns,
            current_ns: base_ns,
        }
    }

    /// How long to poll after the last work, in nanoseconds.
    #[must_use]
    pub const fn spin_ns(&self) -> u64 {
        self.current_ns
    }

    /// Learns that this side slept, and was woken by work so long after the last.
    pub const fn woken_after(&mut self, gap_ns: u64) {
        let longer_ns = self.base_ns.saturating_mul(LONGER);
        self.current_ns = if gap_ns <= longer_ns {
            longer_ns
        } else {
            self.base_ns
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_polling_longer_would_have_paid_and_shrinks_when_not() {
        let mut adaptive_spin = AdaptiveSpin::new(50);
        adaptive_spin.woken_after(120);
        assert_eq!(adaptive_spin.spin_ns(), 200);
        adaptive_spin.woken_after(1_000_000);
        assert_eq!(adaptive_spin.spin_ns(), 50);
    }

    /// A core that somebody else wants, and what a side does that polls on it.
    struct SharedCore {
        now_ns: u64,
        contention_backoff: ContentionBackoff,
        yields: u64,
    }

    impl SharedCore {
        fn new() -> SharedCore {
            SharedCore {
                now_ns: 1_000_000_000_000,
                contention_backoff: ContentionBackoff::default(),
                yields: 0,
            }
        }

        /// Gives the core away, and gets it back after so long.
        fn yield_for(&mut self, given_away_ns: u64) {
            let from_ns = self.now_ns;
            self.now_ns += given_away_ns;
            self.yields += 1;
            if let Some(changed) = self.contention_backoff.after_yield(from_ns, self.now_ns) {
                self.contention_backoff = changed;
            }
        }

        fn is_contended(&self) -> bool {
            self.contention_backoff.is_contended(self.now_ns)
        }
    }

    #[test]
    fn beside_one_who_always_takes_a_slice_a_side_gives_its_core_away_a_few_times_a_second() {
        const SLICE_NS: u64 = 3_000_000;
        const SLEEP_NS: u64 = 30_000;
        const POLL_NS: u64 = 1_000;
        let mut core = SharedCore::new();
        let end_ns = core.now_ns + 10_000_000_000;
        while core.now_ns < end_ns {
            if core.is_contended() {
                core.now_ns += SLEEP_NS
            } else {
                core.now_ns += POLL_NS;
                core.yield_for(SLICE_NS);
            }
        }
        assert!(core.yields <= 100, "{} yields in ten seconds", core.yields);
    }

    #[test]
    fn beside_a_job_that_takes_the_core_seldom_a_side_goes_on_polling() {
        const SEEN_NS: u64 = 1_000;
        const TICK_NS: u64 = 4_000_000;
        let mut core = SharedCore::new();
        for _ in 0..50 {
            for _ in 0..LATE_APART_NS / SEEN_NS + 1 {
                core.yield_for(SEEN_NS);
                assert!(!core.is_contended());
            }
            core.yield_for(TICK_NS);
            assert!(!core.is_contended());
        }
    }

    #[test]
    fn a_core_that_comes_back_late_is_crowded_longer_each_time() {
        let late_ns = YIELD_NS_MAX + 1;
        let mut core = SharedCore::new();
        let mut twice_late = || {
            core.yield_for(YIELD_NS_MAX);
            core.yield_for(late_ns);
            core.yield_for(late_ns);
            assert!(core.is_contended());
            let for_ns = core.contention_backoff.for_ns;
            core.now_ns += for_ns - 1;
            assert!(core.is_contended());
            core.now_ns += 1;
            assert!(!core.is_contended());
            core.now_ns += 1;
            for_ns
        };
        assert_eq!(twice_late(), CROWDED_NS.0);
        assert_eq!(twice_late(), 2 * CROWDED_NS.0);
        let longest_ns = (0..10).map(|_| twice_late()).last();
        assert_eq!(longest_ns, Some(CROWDED_NS.1));
        core.now_ns += 2 * CROWDED_NS.1;
        core.yield_for(late_ns);
        core.yield_for(late_ns);
        assert_eq!(core.contention_backoff.for_ns, CROWDED_NS.0);
    }

    #[test]
    fn a_core_that_nobody_wants_is_given_away_seldom_until_somebody_takes_it() {
        let (mut pace, mut now_ns) = (YieldPace::default(), 1_000_000);
        let mut apart = |taken_ns| {
            assert!(pace.is_due(now_ns));
            pace = pace.after_yield(now_ns, now_ns + taken_ns);
            now_ns += taken_ns + pace.apart_ns;
            assert!(pace.is_due(now_ns) && !(pace.apart_ns > 0 && pace.is_due(now_ns - 1)));
            pace.apart_ns
        };
        let alone: Vec<u64> = (0..6).map(|_| apart(UNWANTED_NS_MAX)).collect();
        assert_eq!(alone, [500, 1_500, 3_500, 7_500, 7_500, 7_500]);
        assert_eq!(apart(UNWANTED_NS_MAX + 1), 0);
        assert_eq!(apart(UNWANTED_NS_MAX), 500);
    }

    #[test]
    fn never_and_always_stay_so() {
        let mut never = AdaptiveSpin::new(0);
        never.woken_after(1);
        assert_eq!(never.spin_ns(), 0);
        let mut always = AdaptiveSpin::new(u64::MAX);
        always.woken_after(5);
        assert_eq!(always.spin_ns(), u64::MAX);
    }
}
