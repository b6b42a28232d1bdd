//! How long one side polls before it sleeps: longer while it pays.
//!
//! A wake-up costs more than a few dozen microseconds of polling, and while calls follow each other one that comes late
//! would put every side on its way to sleep, so that the next pays for each of their wake-ups. But one that polls for
//! long after each of a few calls a second wastes its core. So a side polls for its base time, and for
//! [`LONGER`] times that while what woke it came soon enough for that to have caught it.

/// How much longer than its base time a side polls while work follows work closely.
pub const LONGER: u64 = 4;

/// How long one side polls after its last work, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    base_ns: u64,
    current_ns: u64,
}

impl Patience {
    /// Begins with the base time. 0 never polls; `u64::MAX` never sleeps.
    #[must_use]
    pub const fn new(base_ns: u64) -> Patience {
        Patience {
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
        let mut patience = Patience::new(50);
        patience.woken_after(120);
        assert_eq!(patience.spin_ns(), 200);
        patience.woken_after(1_000_000);
        assert_eq!(patience.spin_ns(), 50);
    }

    #[test]
    fn never_and_always_stay_so() {
        let mut never = Patience::new(0);
        never.woken_after(1);
        assert_eq!(never.spin_ns(), 0);
        let mut always = Patience::new(u64::MAX);
        always.woken_after(5);
        assert_eq!(always.spin_ns(), u64::MAX);
    }
}
