//! Numbers about calls, for people who watch.

use std::sync::Arc;

use crate::{Code, Side};

/// What is known of the calls of one method of one app, since the counting began. Rates are differences between two
/// of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MethodCalls {
    /// The app.
    pub app: Arc<str>,
    /// Full name of the service.
    pub service: Arc<str>,
    /// Name of the method.
    pub method: Arc<str>,
    /// Which end of the calls the app is; `None` where both were put together.
    pub side: Option<Side>,
    /// Calls that began.
    pub started: u64,
    /// Calls that are under way.
    pub in_flight: u64,
    /// Calls that ended, by status, in the order of [`Code::ALL`].
    pub ended: [u64; Code::ALL.len()],
    /// Bytes of messages that the app sent.
    pub sent_bytes: u64,
    /// Bytes of messages that the app received.
    pub received_bytes: u64,
    /// How long calls took: upper bounds in seconds, the last infinite, each with how many calls took longer than the
    /// bound before it and at most this one.
    pub latency: Vec<(f64, u64)>,
    /// How long they took together, in seconds.
    pub latency_sum: f64,
    /// How long steps of requests and responses were in the service, from when it took them until it had handed them on, in
    /// the form of `latency`.
    pub time_in_queue: Vec<(f64, u64)>,
    /// All those times together, in seconds.
    pub time_in_queue_sum: f64,
}

impl MethodCalls {
    /// Calls that ended, in whatever way.
    #[must_use]
    pub fn ended_total(&self) -> u64 {
        self.ended.iter().sum()
    }

    /// Calls that ended otherwise than with `OK`.
    #[must_use]
    pub fn failed_total(&self) -> u64 {
        self.ended_total() - self.ended[Code::Ok as usize]
    }

    /// The latency in seconds below which this share of the calls stayed (0.5, 0.99), as far as the bounds tell:
    /// between two bounds it is interpolated. `None` without calls.
    #[must_use]
    pub fn latency_quantile(&self, share: f64) -> Option<f64> {
        quantile(&self.latency, share)
    }

    /// The time in the service, in seconds, below which this share of the steps stayed, as [`MethodCalls::latency_quantile`].
    #[must_use]
    pub fn time_in_queue_quantile(&self, share: f64) -> Option<f64> {
        quantile(&self.time_in_queue, share)
    }

    /// What came after an earlier look at the same method.
    #[must_use]
    pub fn since(&self, earlier: &MethodCalls) -> MethodCalls {
        let mut since = self.clone();
        since.started = self.started.saturating_sub(earlier.started);
        since.sent_bytes = self.sent_bytes.saturating_sub(earlier.sent_bytes);
        since.received_bytes = self.received_bytes.saturating_sub(earlier.received_bytes);
        since.latency_sum = (self.latency_sum - earlier.latency_sum).max(0.0);
        since.time_in_queue_sum = (self.time_in_queue_sum - earlier.time_in_queue_sum).max(0.0);
        for (now, before) in since.ended.iter_mut().zip(earlier.ended) {
            *now = now.saturating_sub(before);
        }
        subtract(&mut since.latency, &earlier.latency);
        subtract(&mut since.time_in_queue, &earlier.time_in_queue);
        since
    }
}

fn subtract(now: &mut [(f64, u64)], earlier: &[(f64, u64)]) {
    for ((_, now), (_, before)) in now.iter_mut().zip(earlier) {
        *now = now.saturating_sub(*before);
    }
}

fn quantile(buckets: &[(f64, u64)], share: f64) -> Option<f64> {
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    if total == 0 {
        return None;
    }
    let wanted = share.clamp(0.0, 1.0) * total as f64;
    let (mut below, mut lower) = (0.0, 0.0);
    for (upper, count) in buckets {
        let count = *count as f64;
        if below + count >= wanted && count > 0.0 {
            // Of what is beyond the last bound, only that is known.
            let within = (wanted - below) / count;
            return Some(if upper.is_finite() {
                lower + (upper - lower) * within
            } else {
                lower
            });
        }
        below += count;
        lower = *upper;
    }
    Some(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(latency: &[(f64, u64)]) -> MethodCalls {
        MethodCalls {
            latency: latency.to_vec(),
            ..MethodCalls::default()
        }
    }

    #[test]
    fn quantiles_lie_within_the_bucket_that_has_them() {
        let some = calls(&[(0.001, 90), (0.01, 9), (f64::INFINITY, 1)]);
        assert_eq!(some.latency_quantile(0.45), Some(0.0005));
        let p95 = some.latency_quantile(0.95).unwrap();
        assert!(p95 > 0.001 && p95 < 0.01, "{p95}");
        assert_eq!(some.latency_quantile(1.0), Some(0.01));
        assert_eq!(calls(&[(0.001, 0)]).latency_quantile(0.5), None);
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let mut earlier = calls(&[(0.001, 4), (f64::INFINITY, 1)]);
        earlier.started = 5;
        earlier.ended[0] = 5;
        let mut later = calls(&[(0.001, 6), (f64::INFINITY, 2)]);
        later.started = 9;
        later.ended[0] = 7;
        later.ended[14] = 1;
        let since = later.since(&earlier);
        assert_eq!(
            (since.started, since.ended_total(), since.failed_total()),
            (4, 3, 1)
        );
        assert_eq!(since.latency, [(0.001, 2), (f64::INFINITY, 1)]);
    }
}
