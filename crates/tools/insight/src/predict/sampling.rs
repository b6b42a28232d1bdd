//! Requests played through the graph, with and without the mesh.

use super::costs::{CallCosts, CostTable};
use super::{LatencyDraws, PredictOptions};
use crate::acg::{CallGraph, RepeatMode, RequestGraph, between_quantiles};
use crate::fit::mean;
use crate::random::SeededRandom;

/// A call's part in the critical paths of the requests that were played.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CriticalPart {
    /// In which share of requests it is on the path.
    pub(super) share: f64,
    pub(super) app_us: f64,
    pub(super) network_us: f64,
    /// For each of its proxies.
    pub(super) proxies_us: Vec<f64>,
}

/// A type of request, played.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RequestSamples {
    pub(super) added: LatencyDraws,
    pub(super) shift: LatencyDraws,
    pub(super) base: LatencyDraws,
    pub(super) critical: Vec<CriticalPart>,
}

/// Plays a type of request in every draw, each time with the same chance.
pub(super) fn sample_request(
    graph: &CallGraph,
    table: &CostTable,
    at: usize,
    options: &PredictOptions,
) -> RequestSamples {
    let request = &graph.requests[at];
    let calls = &table.requests[at];
    let random = SeededRandom::new(options.seed).fork(at as u64);
    let mut samples = RequestSamples {
        critical: calls.iter().map(empty_part).collect(),
        ..RequestSamples::default()
    };
    for draw in 0..table.draw_count {
        let mut play = Play {
            request,
            calls,
            draw,
            ends: vec![CallTimes::default(); request.calls.len()],
            path: (draw == 0).then(Vec::new),
        };
        let (mut base, mut with): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        for sample in 0..options.samples {
            let times = play.call(0, &random.fork(sample as u64));
            base.push(times.base_us);
            with.push(times.with_us);
            if let Some(path) = play.path.as_mut() {
                count_path(path, &mut samples.critical, options.samples);
            }
        }
        note_draw(&mut samples, base, with);
    }
    for part in &mut samples.critical {
        part.share /= options.samples as f64;
    }
    samples
}

fn empty_part(call: &CallCosts) -> CriticalPart {
    CriticalPart {
        proxies_us: vec![0.0; call.passages.len()],
        ..CriticalPart::default()
    }
}

fn note_draw(samples: &mut RequestSamples, mut base: Vec<f64>, mut with: Vec<f64>) {
    let mut added: Vec<f64> = with.iter().zip(&base).map(|(with, base)| with - base).collect();
    for values in [&mut added, &mut base, &mut with] {
        values.sort_by(f64::total_cmp);
    }
    let (base_mean, with_mean) = (mean(&base), mean(&with));
    samples.added.push(mean(&added), &added);
    samples.base.push(base_mean, &base);
    let mut with_draws = LatencyDraws::default();
    with_draws.push(with_mean, &with);
    let last = |draws: &LatencyDraws| {
        [&draws.mean, &draws.p50, &draws.p90, &draws.p99].map(|one| one.0.last().copied().unwrap_or(0.0))
    };
    let (with, base) = (last(&with_draws), last(&samples.base));
    let shift = &mut samples.shift;
    for (at, one) in [&mut shift.mean, &mut shift.p50, &mut shift.p90, &mut shift.p99]
        .into_iter()
        .enumerate()
    {
        one.0.push(with[at] - base[at]);
    }
}

/// Times since the beginning of something, without and with the mesh.
#[derive(Clone, Copy, Debug, Default)]
struct CallTimes {
    base_us: f64,
    with_us: f64,
    /// Where the parts of the critical path up to here begin in [`Play::path`], and where they end.
    parts: (usize, usize),
    /// The sibling that was waited for last.
    waited_for: Option<usize>,
}

/// One execution of a call on the critical path.
#[derive(Clone, Copy, Debug)]
struct PathPart {
    call: usize,
    app_us: f64,
    network_us: f64,
    proxies_us: [f64; 2],
}

struct Play<'a> {
    request: &'a RequestGraph,
    calls: &'a [CallCosts],
    draw: usize,
    /// When each call ended, since the call around it began its calls.
    ends: Vec<CallTimes>,
    /// The parts of the critical path, while it is recorded.
    path: Option<Vec<PathPart>>,
}

impl Play<'_> {
    /// One execution of a call.
    fn call(&mut self, at: usize, random: &SeededRandom) -> CallTimes {
        let node = &self.request.calls[at];
        let costs = &self.calls[at];
        let begin = self.path.as_ref().map_or(0, Vec::len);
        let mut chance = random.fork(1);
        let app_us = node.app_us.at(chance.uniform()) * costs.draws[self.draw].app_factor;
        let network_us = node.network_us.at(chance.uniform());
        let mut part = PathPart {
            call: at,
            app_us,
            network_us,
            proxies_us: [0.0; 2],
        };
        for (passage, spent) in costs.passages.iter().zip(&mut part.proxies_us) {
            let share = chance.uniform();
            let ratio = passage
                .curve
                .as_ref()
                .map_or(1.0, |curve| between_quantiles(curve, share));
            *spent = passage.latency_us[self.draw] * ratio;
        }
        let inner = self.children(at, random);
        self.keep_path(begin, inner.waited_for, part);
        let own_us = app_us + network_us;
        CallTimes {
            base_us: own_us + inner.base_us,
            with_us: own_us + part.proxies_us.iter().sum::<f64>() + inner.with_us,
            parts: (begin, self.path.as_ref().map_or(0, Vec::len)),
            waited_for: None,
        }
    }

    /// The calls that a call makes: when the last of them has ended.
    fn children(&mut self, at: usize, random: &SeededRandom) -> CallTimes {
        let mut last = CallTimes::default();
        for index in 0..self.request.calls[at].children.len() {
            let child = self.request.calls[at].children[index];
            let mut begin = CallTimes::default();
            for sibling in &self.request.calls[child].after {
                let end = self.ends[*sibling];
                begin.base_us = begin.base_us.max(end.base_us);
                if end.with_us >= begin.with_us {
                    begin.with_us = end.with_us;
                    begin.waited_for = Some(*sibling);
                }
            }
            let end = self.repeated(child, begin, &random.fork(2 + child as u64));
            self.ends[child] = end;
            last.base_us = last.base_us.max(end.base_us);
            if end.with_us > last.with_us {
                last.with_us = end.with_us;
                last.waited_for = Some(child);
            }
        }
        last
    }

    /// A call with its repeats, if it is made at all, from when it begins.
    fn repeated(&mut self, at: usize, begin: CallTimes, random: &SeededRandom) -> CallTimes {
        let node = &self.request.calls[at];
        let drawn = self.calls[at].draws[self.draw];
        let mut chance = random.fork(0);
        let here = self.path.as_ref().map_or(0, Vec::len);
        let mut end = CallTimes {
            parts: (here, here),
            ..begin
        };
        // What is not waited for costs no latency.
        if node.detached || chance.uniform() >= drawn.probability {
            return end;
        }
        let whole = drawn.repeats.floor();
        let more = f64::from(u8::from(chance.uniform() < drawn.repeats - whole));
        let count = (whole + more) as u64;
        for repeat in 0..count {
            let times = self.call(at, &random.fork(repeat + 1));
            match node.repeat_mode {
                RepeatMode::Sequential => {
                    end.base_us += times.base_us;
                    end.with_us += times.with_us;
                    end.parts.1 = times.parts.1;
                }
                RepeatMode::Concurrent => {
                    end.base_us = end.base_us.max(begin.base_us + times.base_us);
                    if begin.with_us + times.with_us > end.with_us {
                        end.with_us = begin.with_us + times.with_us;
                        end.parts = times.parts;
                    }
                }
            }
        }
        end
    }

    /// Keeps, of all parts since `begin`, those of the children on the critical path, and adds the call's own.
    fn keep_path(&mut self, begin: usize, last: Option<usize>, part: PathPart) {
        let Some(path) = self.path.as_mut() else {
            return;
        };
        let mut kept = Vec::new();
        let mut child = last;
        while let Some(at) = child {
            let end = self.ends[at];
            kept.extend_from_slice(&path[end.parts.0..end.parts.1]);
            child = end.waited_for;
        }
        path.truncate(begin);
        path.extend(kept);
        path.push(part);
    }
}

/// Adds a request's critical path to the means, and empties it.
fn count_path(path: &mut Vec<PathPart>, critical: &mut [CriticalPart], samples: usize) {
    let weight = 1.0 / samples as f64;
    let mut is_counted = vec![false; critical.len()];
    for part in path.drain(..) {
        let one = &mut critical[part.call];
        if !std::mem::replace(&mut is_counted[part.call], true) {
            one.share += 1.0;
        }
        one.app_us += weight * part.app_us;
        one.network_us += weight * part.network_us;
        for (sum, spent) in one.proxies_us.iter_mut().zip(part.proxies_us) {
            *sum += weight * spent;
        }
    }
}
