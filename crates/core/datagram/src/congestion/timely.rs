//! Timely (Mittal et al., SIGCOMM '15): the rate follows the gradient of round trips; corrected as by Zhu et al.
//! (CoNEXT '16), so that it has one equilibrium, which is the form that eRPC uses.

use super::{CongestionControl, MARKED_LEAVES, Sample};

/// After so many round trips in a row, each shorter than the one before, the rate grows by many steps at once.
const HYPERACTIVE_AFTER: u32 = 5;
const HYPERACTIVE_STEPS: f64 = 5.0;
/// Weight of a new gradient.
const GRADIENT_WEIGHT: f64 = 0.46;
/// How strongly the rate answers to a round trip that is too long.
const DECREASE: f64 = 0.26;
/// Round trips longer than so many times the low one are a queue, which no window is to keep up.
const WINDOW_ROUND_TRIPS_LOW: f64 = 2.0;
/// Rates fall by half at most in one step.
const STEP_MIN: f64 = 0.5;

/// Timely's parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimelyConfig {
    /// The round trip of an empty network.
    pub rtt_ns_min: u64,
    /// Round trips below this are no sign of a queue.
    pub rtt_ns_low: u64,
    /// Round trips above this are, whatever their gradient.
    pub rtt_ns_high: u64,
    /// What is added to the rate in one step, as a part of the link's rate.
    pub step: f64,
    /// The least rate, as a part of the link's rate.
    pub floor: f64,
    /// Packets that may be out at any rate, however few its round trip has room for.
    pub window_packets_min: u32,
}

impl Default for TimelyConfig {
    fn default() -> Self {
        Self {
            rtt_ns_min: 5_000,
            rtt_ns_low: 50_000,
            rtt_ns_high: 1_000_000,
            step: 0.002,
            floor: 0.005,
            window_packets_min: 2,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Timely {
    config: TimelyConfig,
    link_rate: f64,
    packet_bytes: f64,
    rate: f64,
    rtt_ns_before: f64,
    gradient_ns: f64,
    negative_in_a_row: u32,
    updated_ns: u64,
    decreased_ns: u64,
    /// When marks decreased the rate last.
    marked_ns: u64,
}

impl Timely {
    pub(crate) fn new(config: TimelyConfig, link_rate: f64, packet_bytes: usize) -> Self {
        Self {
            config,
            link_rate,
            packet_bytes: packet_bytes as f64,
            rate: link_rate,
            rtt_ns_before: config.rtt_ns_min as f64,
            gradient_ns: 0.0,
            negative_in_a_row: 0,
            updated_ns: 0,
            decreased_ns: 0,
            marked_ns: 0,
        }
    }

    /// Packets were marked: an answer to that takes a round trip.
    fn marked(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.marked_ns) as f64 >= self.rtt_ns_before {
            self.marked_ns = now_ns;
            self.set(now_ns, self.rate * MARKED_LEAVES);
        }
    }

    fn update(&mut self, now_ns: u64, rtt_ns: u64) {
        let rtt = rtt_ns as f64;
        let difference_ns = rtt - self.rtt_ns_before;
        self.rtt_ns_before = rtt;
        self.negative_in_a_row = if difference_ns < 0.0 {
            self.negative_in_a_row + 1
        } else {
            0
        };
        self.gradient_ns += GRADIENT_WEIGHT * (difference_ns - self.gradient_ns);

        // A step is meant for one round trip; samples that come faster each bring their part of it.
        let share = self.share_of_round_trip(now_ns, self.updated_ns);
        let wanted = if rtt_ns < self.config.rtt_ns_low {
            self.rate + self.increase() * share
        } else if rtt_ns > self.config.rtt_ns_high {
            let excess = 1.0 - self.config.rtt_ns_high as f64 / rtt;
            self.rate * (1.0 - self.decrease_share(now_ns) * DECREASE * excess)
        } else {
            let weight = gradient_weight(self.gradient_ns / self.config.rtt_ns_min as f64);
            let error = (rtt - self.config.rtt_ns_low as f64) / self.config.rtt_ns_low as f64;
            let down = 1.0 - self.decrease_share(now_ns) * DECREASE * weight * error;
            self.increase() * share * (1.0 - weight) + self.rate * down
        };
        self.set(now_ns, wanted.max(self.rate * STEP_MIN));
        self.updated_ns = now_ns;
    }

    fn increase(&self) -> f64 {
        let hyperactive = self.negative_in_a_row >= HYPERACTIVE_AFTER;
        let steps = if hyperactive { HYPERACTIVE_STEPS } else { 1.0 };
        steps * self.config.step * self.link_rate
    }

    fn share_of_round_trip(&self, now_ns: u64, since_ns: u64) -> f64 {
        (now_ns.saturating_sub(since_ns) as f64 / self.config.rtt_ns_min as f64).min(1.0)
    }

    fn decrease_share(&self, now_ns: u64) -> f64 {
        self.share_of_round_trip(now_ns, self.decreased_ns)
    }

    fn set(&mut self, now_ns: u64, rate: f64) {
        if rate < self.rate {
            self.decreased_ns = now_ns;
        }
        self.rate = rate.clamp(self.config.floor * self.link_rate, self.link_rate);
    }
}

/// How much of the answer is decrease: nothing below a gradient of -1/4, all of it above 1/4.
fn gradient_weight(gradient: f64) -> f64 {
    (2.0 * gradient + 0.5).clamp(0.0, 1.0)
}

impl CongestionControl for Timely {
    fn acknowledged(&mut self, sample: &Sample) {
        if sample.marked {
            return self.marked(sample.now_ns);
        }
        if let Some(rtt_ns) = sample.rtt_ns {
            self.update(sample.now_ns, rtt_ns);
        }
    }

    /// A loss is an overflown queue, which its round trips tell of already.
    fn lost(&mut self, _now_ns: u64) {}

    fn timed_out(&mut self, now_ns: u64) {
        self.set(now_ns, self.rate * STEP_MIN);
    }

    #[inline]
    fn rate(&self) -> f64 {
        self.rate
    }

    /// What the rate sends in a round trip. With more on their way, packets would wait in the timing wheel for times that
    /// an older rate gave them: rates would act long after they were found, swing, and leave the link empty between.
    fn window_packets(&self) -> u32 {
        if self.rate >= self.link_rate {
            return u32::MAX;
        }
        let rtt_ns_max = WINDOW_ROUND_TRIPS_LOW * self.config.rtt_ns_low as f64;
        let bytes = self.rate * self.rtt_ns_before.min(rtt_ns_max);
        ((bytes / self.packet_bytes) as u32).max(self.config.window_packets_min)
    }

    fn indifferent_below_ns(&self) -> u64 {
        if self.rate >= self.link_rate {
            self.config.rtt_ns_low
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(now_ns: u64, rtt_ns: u64) -> Sample {
        Sample {
            now_ns,
            rtt_ns: Some(rtt_ns),
            marked: false,
            packets: 1,
        }
    }

    #[test]
    fn long_round_trips_slow_down_and_short_ones_bring_the_rate_back() {
        let mut timely = Timely::new(TimelyConfig::default(), 3.0, 1472);
        assert_eq!(timely.indifferent_below_ns(), 50_000);
        for round in 0..200 {
            timely.acknowledged(&sample(round * 200_000, 200_000));
        }
        assert_eq!(timely.indifferent_below_ns(), 0);
        let congested = timely.rate();
        assert_eq!(
            timely.window_packets(),
            ((congested * 100_000.0 / 1472.0) as u32).max(2)
        );
        assert!(congested < 1.0, "{congested}");
        for round in 0..2_000 {
            timely.acknowledged(&sample(40_000_000 + round * 10_000, 10_000));
        }
        assert_eq!((timely.rate(), timely.window_packets()), (3.0, u32::MAX));
    }

    #[test]
    fn requests_that_a_server_holds_do_not_fill_a_window_that_is_to_have_room_for_them() {
        let config = TimelyConfig {
            window_packets_min: 64,
            ..TimelyConfig::default()
        };
        let mut timely = Timely::new(config, 3.0, 1472);
        for round in 0..1_000 {
            timely.acknowledged(&sample(round * 200_000, 200_000));
        }
        assert!(timely.rate() < 0.1);
        assert_eq!(timely.window_packets(), 64);
    }

    #[test]
    fn the_rate_stays_above_its_floor() {
        let mut timely = Timely::new(TimelyConfig::default(), 3.0, 1472);
        for round in 0..1_000 {
            timely.acknowledged(&sample(round * 10_000_000, 5_000_000));
            timely.timed_out(round * 10_000_000);
        }
        assert_eq!(timely.rate(), 0.015);
    }
}
