//! Marks, after DCTCP (RFC 8257): the window shrinks by half the share of packets that the network marked.

use super::{CongestionControl, Sample};

/// Weight of the latest window's share of marks.
const SHARE_WEIGHT: f64 = 1.0 / 16.0;
const WINDOW_MIN: f64 = 1.0;

/// The parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DctcpConfig {
    /// The window at the start, and at most.
    pub window_packets_max: u32,
}

impl Default for DctcpConfig {
    fn default() -> Self {
        Self {
            window_packets_max: 256,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Dctcp {
    config: DctcpConfig,
    link_rate: f64,
    window: f64,
    marked_share: f64,
    packets: u32,
    packets_marked: u32,
}

impl Dctcp {
    pub(crate) fn new(config: DctcpConfig, link_rate: f64) -> Self {
        Self {
            config,
            link_rate,
            window: f64::from(config.window_packets_max),
            marked_share: 1.0,
            packets: 0,
            packets_marked: 0,
        }
    }

    /// Once a window's worth of packets was acknowledged.
    fn end_window(&mut self) {
        let share = f64::from(self.packets_marked) / f64::from(self.packets);
        self.marked_share += SHARE_WEIGHT * (share - self.marked_share);
        if self.packets_marked > 0 {
            self.window *= 1.0 - self.marked_share / 2.0;
        } else {
            self.window += 1.0;
        }
        (self.packets, self.packets_marked) = (0, 0);
        self.bound();
    }

    fn bound(&mut self) {
        self.window = self
            .window
            .clamp(WINDOW_MIN, f64::from(self.config.window_packets_max));
    }
}

impl CongestionControl for Dctcp {
    fn acknowledged(&mut self, sample: &Sample) {
        self.packets += sample.packets;
        self.packets_marked += if sample.marked { sample.packets } else { 0 };
        if f64::from(self.packets) >= self.window {
            self.end_window();
        }
    }

    fn lost(&mut self, _now_ns: u64) {
        // Counts as a mark, so that many losses of one window are answered once.
        (self.packets, self.packets_marked) = (self.packets + 1, self.packets_marked + 1);
    }

    fn timed_out(&mut self, _now_ns: u64) {
        self.window /= 2.0;
        self.bound();
    }

    #[inline]
    fn rate(&self) -> f64 {
        self.link_rate
    }

    #[inline]
    fn window_packets(&self) -> u32 {
        self.window as u32
    }

    fn indifferent_below_ns(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_share_of_marks() {
        let mut dctcp = Dctcp::new(DctcpConfig::default(), 3.0);
        let mut feed = |marked: bool, packets: u32| {
            for now_ns in 0..u64::from(packets) {
                dctcp.acknowledged(&Sample {
                    now_ns,
                    rtt_ns: None,
                    marked,
                    packets: 1,
                });
            }
            dctcp.window_packets()
        };
        assert!(feed(true, 1_000) < 4);
        assert!(feed(false, 10_000) > 100);
    }
}
