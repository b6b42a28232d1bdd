//! A target delay, after Swift (Kumar et al., SIGCOMM '20): a window that grows while round trips stay below a target,
//! and shrinks by how far they are above. A window of less than one packet becomes a pause between packets, so that
//! hundreds of senders can share one link.

use super::{CongestionControl, MARKED_LEAVES, Sample};

/// Packets added to the window in one round trip.
const INCREASE: f64 = 1.0;
/// How strongly the window answers to the excess.
const DECREASE: f64 = 0.8;
/// What the window loses at most in one round trip.
const DECREASE_MAX: f64 = 0.5;
const WINDOW_MIN: f64 = 0.01;
/// Windows between which the target is scaled: small ones get a longer target, which makes flows fair.
const SCALED_WINDOW_MIN: f64 = 0.1;
const SCALED_WINDOW_MAX: f64 = 100.0;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiftConfig {
    /// The round trip to keep to with a large window.
    pub target_ns: u64,
    /// What the target grows by at most for small windows.
    pub scaling_ns: u64,
    /// The window at the start, and at most.
    pub window_packets_max: u32,
}

impl Default for SwiftConfig {
    fn default() -> Self {
        Self {
            target_ns: 40_000,
            scaling_ns: 60_000,
            window_packets_max: 256,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Swift {
    config: SwiftConfig,
    link_rate: f64,
    packet_bytes: f64,
    window: f64,
    rtt_ns: f64,
    decreased_ns: u64,
}

impl Swift {
    pub(crate) fn new(config: SwiftConfig, link_rate: f64, packet_bytes: usize) -> Self {
        Self {
            config,
            link_rate,
            packet_bytes: packet_bytes as f64,
            window: f64::from(config.window_packets_max),
            rtt_ns: config.target_ns as f64,
            decreased_ns: 0,
        }
    }

    fn target_ns(&self) -> f64 {
        let inverse_root = |window: f64| 1.0 / window.sqrt();
        let (steepest, flattest) = (inverse_root(SCALED_WINDOW_MIN), inverse_root(SCALED_WINDOW_MAX));
        let place = (inverse_root(self.window) - flattest) / (steepest - flattest);
        self.config.target_ns as f64 + self.config.scaling_ns as f64 * place.clamp(0.0, 1.0)
    }

    fn grow(&mut self, packets: u32) {
        let packets = f64::from(packets);
        self.window += INCREASE * packets / self.window.max(1.0);
    }

    /// Shrinks, once in a round trip.
    fn shrink(&mut self, now_ns: u64, to: f64) {
        if now_ns.saturating_sub(self.decreased_ns) as f64 >= self.rtt_ns {
            self.window *= to.max(1.0 - DECREASE_MAX);
            self.decreased_ns = now_ns;
        }
    }

    fn shrink_if(&mut self, now_ns: u64, to: f64) {
        if to < 1.0 {
            self.shrink(now_ns, to);
        }
    }

    fn bound(&mut self) {
        let most = f64::from(self.config.window_packets_max);
        self.window = self.window.clamp(WINDOW_MIN, most);
    }
}

impl CongestionControl for Swift {
    fn acknowledged(&mut self, sample: &Sample) {
        // Windows below a packet give way by how large they are, which makes flows fair; the delay bounds them.
        let of_marks = if sample.marked {
            1.0 - (1.0 - MARKED_LEAVES) * self.window.min(1.0)
        } else {
            1.0
        };
        let Some(rtt_ns) = sample.rtt_ns else {
            self.shrink_if(sample.now_ns, of_marks);
            return self.bound();
        };
        let rtt = (rtt_ns as f64).max(1.0);
        self.rtt_ns += (rtt - self.rtt_ns) / 8.0;
        let target_ns = self.target_ns();
        if rtt < target_ns && !sample.marked {
            self.grow(sample.packets);
        } else {
            // What asks for more counts: both speak of one queue.
            let of_delay = 1.0 - DECREASE * (rtt - target_ns).max(0.0) / rtt;
            self.shrink_if(sample.now_ns, of_delay.min(of_marks));
        }
        self.bound();
    }

    fn lost(&mut self, now_ns: u64) {
        self.shrink(now_ns, 1.0 - DECREASE_MAX);
        self.bound();
    }

    fn timed_out(&mut self, now_ns: u64) {
        self.lost(now_ns);
    }

    #[inline]
    fn rate(&self) -> f64 {
        if self.window >= 1.0 {
            return self.link_rate;
        }
        (self.window * self.packet_bytes / self.rtt_ns).min(self.link_rate)
    }

    #[inline]
    fn window_packets(&self) -> u32 {
        (self.window as u32).max(1)
    }

    fn indifferent_below_ns(&self) -> u64 {
        if self.window >= f64::from(self.config.window_packets_max) {
            self.target_ns() as u64
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledgements with this round trip, one after the other.
    fn feed(swift: &mut Swift, now_ns: &mut u64, rtt_ns: u64, rounds: u32) {
        feed_marked(swift, now_ns, rtt_ns, rounds, false);
    }

    fn feed_marked(swift: &mut Swift, now_ns: &mut u64, rtt_ns: u64, rounds: u32, marked: bool) {
        for _ in 0..rounds {
            *now_ns += rtt_ns;
            swift.acknowledged(&Sample {
                now_ns: *now_ns,
                rtt_ns: Some(rtt_ns),
                marked,
                packets: 1,
            });
        }
    }

    #[test]
    fn marks_shrink_the_window_once_in_a_round_trip_however_short_round_trips_are() {
        let mut swift = Swift::new(SwiftConfig::default(), 3.0, 1472);
        let mut now_ns = 1_000_000;
        feed_marked(&mut swift, &mut now_ns, 10_000, 100, true);
        assert!(swift.window_packets() < 128, "{}", swift.window_packets());
        let before = swift.window;
        for _ in 0..50 {
            feed_marked(&mut swift, &mut now_ns, 1, 1, true);
        }
        assert!(swift.window > before * 0.7, "many marks of one round trip");
        feed(&mut swift, &mut now_ns, 10_000, 40_000);
        assert_eq!(swift.window_packets(), 256);
    }

    #[test]
    fn the_window_shrinks_to_pauses_between_packets_and_comes_back() {
        let mut swift = Swift::new(SwiftConfig::default(), 3.0, 1472);
        let mut now_ns = 0;
        feed(&mut swift, &mut now_ns, 1_000_000, 60);
        assert_eq!(swift.window_packets(), 1);
        assert!(swift.rate() < 0.1, "{}", swift.rate());
        feed(&mut swift, &mut now_ns, 10_000, 200);
        assert!(swift.window_packets() > 4 && swift.rate() == 3.0);
    }
}
