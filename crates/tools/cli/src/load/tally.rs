//! What came of the calls of a load.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::Instant;

use crate::call::name_of;
use crate::watch::{Shown, fact};
use provost_terminal::failure::{Exit, Failure, complain};
use provost_terminal::numbers::{percent, plural, rate, time_us};
use provost_terminal::output::print;
use provost_terminal::table::{Canvas, clean};

/// Longer times count as this: a day.
const TIME_NS_MAX: u64 = 86_400_000_000_000;
/// Significant digits of times.
const DIGITS: u8 = 3;
/// Bytes of a failure's text that a report has.
const TEXT_CHARS_MAX: usize = 200;

/// A call that has ended.
#[derive(Debug)]
pub(crate) struct CallResult {
    /// Since it was to begin.
    pub(crate) took: Duration,
    /// Messages that came back.
    pub(crate) messages: u64,
    pub(crate) failure: Option<Failure>,
}

/// Counts calls, in all and in this second.
#[derive(Debug)]
pub(crate) struct LoadTally {
    good: Histogram<u64>,
    failed: Histogram<u64>,
    this_second: Histogram<u64>,
    failed_this_second: u64,
    seconds: u64,
    messages: u64,
    /// When the last call ended that ended well.
    good_until: Instant,
    /// By status: how many, and what the first of them said.
    failures: BTreeMap<&'static str, FailureCount>,
    csv: bool,
}

/// Calls that ended with one status.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct FailureCount {
    calls: u64,
    /// What the first of them said.
    first: String,
}

fn histogram() -> Result<Histogram<u64>, Failure> {
    Histogram::new_with_max(TIME_NS_MAX, DIGITS).map_err(|error| Failure::failed(error.to_string()))
}

impl LoadTally {
    /// Counts from zero; with `csv`, prints a line for each second.
    pub(crate) fn new(csv: bool) -> Result<LoadTally, Failure> {
        if csv {
            print("second,calls,failed,in_flight,p50_us,p90_us,p99_us,max_us\n")?;
        }
        Ok(LoadTally {
            good: histogram()?,
            failed: histogram()?,
            this_second: histogram()?,
            failed_this_second: 0,
            seconds: 0,
            messages: 0,
            good_until: Instant::now(),
            failures: BTreeMap::new(),
            csv,
        })
    }

    pub(crate) fn count(&mut self, result: &CallResult) {
        let took_ns = u64::try_from(result.took.as_nanos()).unwrap_or(u64::MAX);
        self.messages += result.messages;
        let Some(failure) = &result.failure else {
            self.good_until = Instant::now();
            self.good.saturating_record(took_ns);
            self.this_second.saturating_record(took_ns);
            return;
        };
        self.failed.saturating_record(took_ns);
        self.failed_this_second += 1;
        let status = match failure.exit {
            Exit::Ended(code) => name_of(code),
            _ => "no connection",
        };
        let count = self.failures.entry(status).or_insert_with(|| FailureCount {
            calls: 0,
            first: failure.message.chars().take(TEXT_CHARS_MAX).collect(),
        });
        count.calls += 1;
    }

    /// Tells of the second that ends.
    pub(crate) fn end_second(&mut self, in_flight: usize) -> Result<(), Failure> {
        self.seconds += 1;
        let times = LatencyFigures::of(&self.this_second);
        if self.csv {
            print(&format!(
                "{},{},{},{in_flight},{:.1},{:.1},{:.1},{:.1}\n",
                self.seconds,
                self.this_second.len(),
                self.failed_this_second,
                times.p50,
                times.p90,
                times.p99,
                times.max
            ))?;
        } else if Canvas::of_stdout().width.is_some() {
            let line = format!(
                "{} s: {} calls/s, p50 {}, p99 {}, {} in flight, {} failed",
                self.seconds,
                rate(self.this_second.len() as f64),
                time_us(times.p50),
                time_us(times.p99),
                in_flight,
                self.failed_this_second
            );
            complain(&line);
        }
        self.this_second.reset();
        self.failed_this_second = 0;
        Ok(())
    }

    /// Tells of what is left of the last second.
    pub(crate) fn end_part_of_second(&mut self, in_flight: usize) -> Result<(), Failure> {
        if self.this_second.is_empty() && self.failed_this_second == 0 {
            return Ok(());
        }
        self.end_second(in_flight)
    }

    /// What came of all of them; an error if none ended well.
    pub(crate) fn report(self, begun: u64, not_begun: u64, began: Instant) -> Result<LoadReport, Failure> {
        // Calls that fail late are no part of the time in which the others ended.
        let good_s = self.good_until.saturating_duration_since(began).as_secs_f64();
        let report = LoadReport {
            seconds: began.elapsed().as_secs_f64(),
            calls: begun,
            not_begun,
            good: self.good.len(),
            failed: self.failed.len(),
            rate: self.good.len() as f64 / good_s.max(1e-9),
            messages: self.messages,
            latency_us: LatencyFigures::of(&self.good),
            failed_latency_us: LatencyFigures::of(&self.failed),
            failures: self.failures,
            histogram_us: buckets(&self.good),
        };
        match report.failures.iter().next() {
            Some((_, count)) if report.good == 0 => {
                let calls = plural(report.failed, "call");
                Err(Failure::failed(format!(
                    "none of {calls} ended well: {}",
                    count.first
                )))
            }
            _ => Ok(report),
        }
    }
}

/// The whole distribution: a time in microseconds, and how many calls took as long or less.
fn buckets(histogram: &Histogram<u64>) -> Vec<(f64, u64)> {
    let mut below = 0;
    let recorded = histogram.iter_recorded();
    let bucket = recorded.map(|step| {
        below += step.count_since_last_iteration();
        (step.value_iterated_to() as f64 / 1e3, below)
    });
    bucket.collect()
}

/// Times of calls, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LatencyFigures {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl LatencyFigures {
    fn of(histogram: &Histogram<u64>) -> LatencyFigures {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(histogram.value_at_quantile(quantile));
        LatencyFigures {
            min: us(histogram.min()),
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            max: us(histogram.max()),
        }
    }
}

/// What came of a load.
#[derive(Debug, Serialize)]
pub(crate) struct LoadReport {
    seconds: f64,
    calls: u64,
    /// That the rate asked for, and there was no room in time.
    not_begun: u64,
    good: u64,
    failed: u64,
    /// Calls a second that ended well, until the last of them did.
    rate: f64,
    /// Messages that came back.
    messages: u64,
    latency_us: LatencyFigures,
    failed_latency_us: LatencyFigures,
    failures: BTreeMap<&'static str, FailureCount>,
    histogram_us: Vec<(f64, u64)>,
}

impl Shown for LoadReport {
    fn draw(&self, canvas: Canvas) -> String {
        let calls = format!(
            "{} in {:.1} s, {} calls/s",
            plural(self.calls, "call"),
            self.seconds,
            rate(self.rate)
        );
        let mut out = fact("calls", &calls, canvas);
        if self.messages != self.good {
            out += &fact("messages", &self.messages.to_string(), canvas);
        }
        if self.not_begun > 0 {
            let left_out = format!("{}: too many were in flight still", self.not_begun);
            out += &fact("not begun", &left_out, canvas);
        }
        let of = |times: &LatencyFigures| {
            let named = [
                ("p50", times.p50),
                ("p90", times.p90),
                ("p99", times.p99),
                ("p99.9", times.p999),
                ("max", times.max),
            ];
            named
                .map(|(name, us)| format!("{name} {}", time_us(us)))
                .join(", ")
        };
        out += &fact("times", &of(&self.latency_us), canvas);
        if self.failed == 0 {
            return out;
        }
        let share = percent(self.failed as f64 / self.calls.max(1) as f64);
        out += &fact("failed", &format!("{} ({share})", self.failed), canvas);
        for (status, count) in &self.failures {
            let _ = writeln!(out, "  {status}: {}, first: {}", count.calls, clean(&count.first));
        }
        out += &fact("their times", &of(&self.failed_latency_us), canvas);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(us: u64, code: Option<tonic::Code>) -> CallResult {
        CallResult {
            took: Duration::from_micros(us),
            messages: 1,
            failure: code.map(|code| Failure::new(Exit::Ended(code), format!("call of {us}"))),
        }
    }

    #[test]
    fn good_calls_and_failed_ones_are_counted_apart() {
        let mut tally = LoadTally::new(false).unwrap();
        for us in 1..=100 {
            tally.count(&ended(us, None));
        }
        for us in [7_000, 8_000] {
            tally.count(&ended(us, Some(tonic::Code::ResourceExhausted)));
        }
        tally.count(&ended(9_000, Some(tonic::Code::NotFound)));
        let began = Instant::now() - Duration::from_secs(2);
        let report = tally.report(103, 7, began).unwrap();
        assert_eq!((report.good, report.failed, report.not_begun), (100, 3, 7));
        assert!((40.0..=60.0).contains(&report.rate), "{report:?}");
        assert!((49.0..=51.0).contains(&report.latency_us.p50), "{report:?}");
        assert!(report.latency_us.max < 101.0, "{report:?}");
        assert_eq!(report.histogram_us.last().unwrap().1, 100);
        let exhausted = &report.failures["RESOURCE_EXHAUSTED"];
        assert_eq!((exhausted.calls, exhausted.first.as_str()), (2, "call of 7000"));
        let drawn = report.draw(Canvas::plain());
        for words in ["103 calls in ", "7: too many were", "3 (2.9 %)", "NOT_FOUND: 1"] {
            assert!(drawn.contains(words), "{words}: {drawn}");
        }
    }

    #[test]
    fn a_load_of_which_nothing_ended_well_is_a_failure() {
        let mut tally = LoadTally::new(false).unwrap();
        tally.count(&ended(1, Some(tonic::Code::Unavailable)));
        let failure = tally.report(1, 0, Instant::now()).unwrap_err();
        assert!(
            failure.message.contains("none of 1 call ended well: call of 1"),
            "{failure}"
        );
    }
}
