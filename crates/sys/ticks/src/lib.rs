//! The machine's monotonic clock, read from the processor's time stamp counter.
//!
//! To ask the kernel what time it is costs as much as a good part of a small call. The counter costs an instruction; what
//! its ticks are worth is learnt by asking the kernel from time to time, at first after half a millisecond and then at least every
//! [`INTERVAL_NS_MAX`]. In between, this clock is off by no more than the counter drifts in such an interval. It never runs
//! backwards: where it was ahead of the kernel's, it waits.
//!
//! Where the counter is not known to be good ([`Counting`]), or turns out not to be, every look asks the kernel.
#![deny(unsafe_code)]

mod machine;

pub use machine::Machine;

/// Between two questions to the kernel, at first.
pub const INTERVAL_NS_MIN: u64 = 1_000_000;
/// The same, at most, to which it doubles.
pub const INTERVAL_NS_MAX: u64 = 128_000_000;
/// The kernel is asked so often in a row, and the answer counts that took the fewest ticks: a program that is taken off its
/// core between the two looks has learnt nothing.
const LOOKS: usize = 3;
/// Looks may take no more than this part of the interval that they bound, so that the rate is that exact.
const LOOKS_PART: u64 = 1024;
/// A clock that is wrong by more than this part of an interval was not told the truth by its counter.
const WRONG_PART: u64 = 64;
/// It is believed no longer after so many such intervals: a machine may be stopped and moved a few times.
const WRONG_MAX: u32 = 16;
/// Values of [`Clock::scale`] are so many times as large as the nanoseconds of a tick: a power of two.
const SCALE_SHIFT: u32 = 32;
// The product of ticks and scale must fit its type.
const _: () = assert!(INTERVAL_NS_MAX < 1 << (64 - SCALE_SHIFT));

/// Whether a counter is good to tell the time by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// It counts at one rate, from any core.
    Steady,
    Unknown,
}

/// What a clock is made of.
pub trait Source {
    /// Whether [`Source::ticks`] can be used.
    fn counting(&self) -> Counting;
    fn ticks(&mut self) -> u64;
    /// The kernel's clock, in nanoseconds since some moment.
    fn kernel_ns(&mut self) -> u64;
}

/// A clock. It belongs to one thread.
#[derive(Clone, Debug)]
pub struct Clock<S = Machine> {
    source: S,
    /// The counter and the time when the kernel was asked last.
    asked: Moment,
    /// What a tick is worth, see [`SCALE_SHIFT`].
    scale: u64,
    /// Ticks after that moment from which on the kernel is asked; zero if always.
    ticks_max: u64,
    /// The latest time told.
    told_ns: u64,
    interval_ns: u64,
    /// Since when the rate is being measured.
    anchor: Option<Moment>,
    wrong: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moment {
    ticks: u64,
    kernel_ns: u64,
    /// How many ticks it took to look.
    took: u64,
}

impl<S: Source + Default> Default for Clock<S> {
    fn default() -> Self {
        Clock::of(S::default())
    }
}

impl<S: Source> Clock<S> {
    /// A clock of this source.
    pub fn of(source: S) -> Clock<S> {
        Clock {
            source,
            asked: Moment::default(),
            scale: 0,
            ticks_max: 0,
            told_ns: 0,
            interval_ns: INTERVAL_NS_MIN,
            anchor: None,
            wrong: 0,
        }
    }

    /// Nanoseconds since some moment; they never run backwards.
    #[inline]
    pub fn now_ns(&mut self) -> u64 {
        if self.ticks_max > 0 {
            let ticks = self.source.ticks().wrapping_sub(self.asked.ticks);
            if ticks < self.ticks_max {
                return self.advance_to(self.asked.kernel_ns + ((ticks * self.scale) >> SCALE_SHIFT));
            }
        }
        self.ask()
    }

    #[inline]
    fn advance_to(&mut self, now_ns: u64) -> u64 {
        self.told_ns = self.told_ns.max(now_ns);
        self.told_ns
    }

    #[cold]
    fn ask(&mut self) -> u64 {
        if self.source.counting() == Counting::Unknown || self.wrong >= WRONG_MAX {
            let kernel_ns = self.source.kernel_ns();
            return self.advance_to(kernel_ns);
        }
        let moment = self.look();
        match self.anchor {
            Some(anchor) if moment.ticks > anchor.ticks && moment.kernel_ns >= anchor.kernel_ns => {
                self.learn(anchor, moment);
            }
            Some(_) => {
                self.wrong += 1;
                self.begin(moment);
            }
            None => self.begin(moment),
        }
        self.advance_to(moment.kernel_ns)
    }

    /// What the counter and the kernel say at one moment.
    fn look(&mut self) -> Moment {
        let looks = std::array::from_fn::<Moment, LOOKS, _>(|_| {
            let before = self.source.ticks();
            let kernel_ns = self.source.kernel_ns();
            let took = self.source.ticks().wrapping_sub(before);
            let ticks = before.wrapping_add(took / 2);
            Moment {
                ticks,
                kernel_ns,
                took,
            }
        });
        let best = looks.into_iter().min_by_key(|moment| moment.took);
        best.unwrap_or_default()
    }

    /// Measures the rate from here on; until it is known, the kernel tells the time.
    fn begin(&mut self, moment: Moment) {
        self.anchor = Some(moment);
        self.interval_ns = INTERVAL_NS_MIN;
        self.ticks_max = 0;
    }

    /// Learns the rate from two moments, if they are far enough apart. Else the kernel tells the time once more.
    fn learn(&mut self, anchor: Moment, moment: Moment) {
        let (ticks, elapsed_ns) = (moment.ticks - anchor.ticks, moment.kernel_ns - anchor.kernel_ns);
        let is_exact = anchor.took.saturating_add(moment.took) <= ticks / LOOKS_PART;
        if elapsed_ns < self.interval_ns / 2 || !is_exact {
            return;
        }
        let was_known = self.ticks_max > 0;
        if was_known {
            let counted_ns = scaled(ticks, self.scale);
            let is_wrong = counted_ns.abs_diff(elapsed_ns) > elapsed_ns / WRONG_PART;
            if is_wrong {
                self.wrong += 1;
                return self.begin(moment);
            }
            self.interval_ns = (2 * self.interval_ns).min(INTERVAL_NS_MAX);
        }
        let scale = (u128::from(elapsed_ns) << SCALE_SHIFT) / u128::from(ticks);
        let scale = u64::try_from(scale).unwrap_or(u64::MAX);
        let ticks_max = (u128::from(self.interval_ns) << SCALE_SHIFT) / u128::from(scale.max(1));
        let ticks_max = u64::try_from(ticks_max).unwrap_or(u64::MAX);
        (self.scale, self.ticks_max) = (scale, ticks_max);
        (self.asked, self.anchor) = (moment, Some(moment));
    }
}

fn scaled(ticks: u64, scale: u64) -> u64 {
    ((u128::from(ticks) * u128::from(scale)) >> SCALE_SHIFT) as u64
}

#[cfg(test)]
mod tests;
