//! Takes the profile of a proxy: every cell in turn, round after round, so that a noisy minute does not hit all runs of one
//! cell.

mod logged;
mod order;
mod saturation;
mod setup;

use std::collections::BTreeMap;
use std::time::SystemTime;

use provost_insight::profile::{
    Component, ComponentMethod, LoadCell, LostShares, MachineIdentity, Observation, Passage, Profile,
    ProfileOrigin, Protocol, TotalObservation,
};
use time::UtcDateTime;

use crate::doctor::{self, GrantedMethods};
use crate::failure::ProbeFailure;
use crate::ladder;
use crate::load::{LoadPace, LoadShape};
use crate::machine;
use crate::measure::{CellBench, CellProbes, CellRun, PathMean, TracedRun};
use crate::stacks::{UserCode, UserShares};
use crate::trace::{EventTracer, MessagePhase, PhaseTimes, SampleRecording};
pub use order::{MethodChoice, ProfileOrder, ProfiledProxy};
use setup::{LogUse, ProxySetup, SetupDifference, setups};

/// Takes a profile, and tells of its progress. A proxy that ends on the way, or an operator who
/// stops it, leaves a profile that says it is partial.
///
/// # Errors
/// If nothing was measured at all.
pub fn take(order: &ProfileOrder, tell: &mut dyn FnMut(&str)) -> Result<Profile, ProbeFailure> {
    take_checked(order, tell).map(|(profile, _)| profile)
}

/// Takes a profile, and says how well the sums of its components agree with what they are sums of.
///
/// # Errors
/// If nothing was measured at all.
pub fn take_checked(
    order: &ProfileOrder,
    tell: &mut dyn FnMut(&str),
) -> Result<(Profile, Vec<SumCheck>), ProbeFailure> {
    order.check()?;
    let mut session = ProfileSession::start(order)?;
    let outcome = session.rounds(tell);
    let checks = session.checks();
    Ok((session.finish(outcome.err())?, checks))
}

/// A traced repetition of a cell: sums of components beside what was measured otherwise in the same repetition. Times are
/// microseconds for a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SumCheck {
    pub protocol: Protocol,
    pub size_bytes: usize,
    /// When calls were made.
    pub pace: LoadPace,
    /// Sum of the components' latencies.
    pub sum_us: f64,
    /// What the client measures with the proxy less without, neither of them traced.
    pub added_us: f64,
    /// The same, both of them traced.
    pub traced_added_us: f64,
    /// Sum of the components' latencies with what tracing takes, to hold against that.
    pub traced_sum_us: f64,
    /// Sum of the components' processor time, with what tracing takes.
    pub cpu_sum_us: f64,
    /// What the scheduler has counted in the same slice.
    pub cpu_us: f64,
    /// How much of that it counts to threads of which there is no event.
    pub cpu_unseen_us: f64,
    /// The most that the events can have too much by interrupts and the hypervisor, whose time the scheduler counts to no thread.
    pub unscheduled_us: f64,
    /// Events that found no room.
    pub events_lost: u64,
    /// Calls a second while traced, as a share of those while not.
    pub rate_share: f64,
    /// Cores' worth of other processes' work.
    pub foreign_cores: f64,
}

/// Everything that is up while a profile is taken.
struct ProfileSession<'a> {
    order: &'a ProfileOrder,
    /// Bare ones first, then those that differ from them.
    setups: Vec<ProxySetup>,
    logs: LogUse,
    tracer: Option<EventTracer>,
    granted: GrantedMethods,
    event_cost_ns: f64,
    runs: Vec<MeasuredCell>,
    shares: BTreeMap<(Protocol, usize), UserShares>,
    lost: LostShares,
    samples_lost: u64,
    notes: Vec<String>,
}

struct MeasuredCell {
    shape: LoadShape,
    difference: SetupDifference,
    repetition: u32,
    run: CellRun,
}

impl<'a> ProfileSession<'a> {
    fn start(order: &'a ProfileOrder) -> Result<ProfileSession<'a>, ProbeFailure> {
        let mut notes = Vec::new();
        let granted = match order.methods {
            MethodChoice::Best => doctor::granted(),
            MethodChoice::AccessLog | MethodChoice::Differential => GrantedMethods::default(),
        };
        let mut tracer = None;
        if granted.tracepoints {
            match EventTracer::load() {
                Ok(loaded) => tracer = Some(loaded),
                Err(failure) => notes.push(failure.to_string()),
            }
        } else if order.methods == MethodChoice::Best {
            let left = match LogUse::of(order, granted) {
                LogUse::Unread => "only sums were measured",
                _ => "sums were measured, and what the access log tells",
            };
            let why = machine::process_numbers().err().map_or_else(
                || "the kernel grants no BPF tracepoints".to_owned(),
                |failure| failure.to_string(),
            );
            notes.push(format!("{why}: {left}; see `provost insight doctor`"));
        }
        let event_cost_ns = tracer.as_mut().map_or(Ok(0.0), EventTracer::event_cost_ns)?;
        let logs = LogUse::of(order, granted);
        let setups = setups(order, logs, &mut notes)?;
        if setups.is_empty() {
            return Err(ProbeFailure::Unavailable(notes.join("; ")));
        }
        notes.extend(setups[0].proxy.remark().map(str::to_owned));
        Ok(ProfileSession {
            order,
            setups,
            logs,
            tracer,
            granted,
            event_cost_ns,
            runs: Vec::new(),
            shares: BTreeMap::new(),
            lost: LostShares::default(),
            samples_lost: 0,
            notes,
        })
    }

    fn rounds(&mut self, tell: &mut dyn FnMut(&str)) -> Result<(), ProbeFailure> {
        for repetition in 0..self.order.repetitions {
            for at in 0..self.setups.len() {
                for shape in self.shapes(at) {
                    self.measure(at, shape, repetition)?;
                }
            }
            tell(&format!(
                "round {} of {} done",
                repetition + 1,
                self.order.repetitions
            ));
        }
        Ok(())
    }

    /// A proxy that differs from the bare one is measured with the sizes alone, as fast as one call at a time comes.
    fn shapes(&self, at: usize) -> Vec<LoadShape> {
        let mut shapes = self.order.shapes(self.setups[at].protocol);
        let difference = &self.setups[at].difference;
        if difference.logs {
            shapes.retain(|shape| shape.in_flight == 1);
        } else if !difference.is_bare() {
            shapes.retain(|shape| shape.in_flight == 1 && shape.pace == LoadPace::Saturating);
        }
        shapes
    }

    fn measure(&mut self, at: usize, shape: LoadShape, repetition: u32) -> Result<(), ProbeFailure> {
        let setup = &mut self.setups[at];
        let is_bare = setup.difference.is_bare();
        let is_alone = shape.in_flight == 1;
        let server = setup.server.address();
        let mut bench = CellBench::connect(
            server,
            &mut setup.proxy,
            shape,
            self.order.slice,
            &self.order.stop,
        )?;
        let probes = CellProbes {
            tracer: self.tracer.as_mut(),
            events: is_bare && is_alone,
            stacks: is_bare && is_alone && shape.pace == LoadPace::Saturating && self.granted.stacks,
            // A log of connections tells nothing of calls; of several calls at a time the parts are those of a queue.
            access_log: setup
                .access_log
                .as_deref()
                .filter(|_| self.logs != LogUse::Unread && is_alone && shape.protocol != Protocol::Tcp),
        };
        let mut run = bench.repeat(repetition, probes)?;
        drop(bench);
        let sampled = std::mem::take(&mut run.sampled);
        self.lost = most_lost(self.lost, &sampled, run.traced.as_ref());
        self.samples_lost += sampled.lost;
        let samples = sampled.samples;
        if !samples.is_empty() {
            let processes = setup.proxy.processes();
            let code = setup.code.get_or_insert_with(|| UserCode::of(&processes));
            let shares = self.shares.entry((shape.protocol, shape.size_bytes)).or_default();
            for sample in &samples {
                shares.count(code.attribute(sample));
            }
            if let Some(why) = code.unread.take() {
                let note =
                    format!("{why}: its functions have no names, and parsing is part of other user space");
                self.notes.push(note);
            }
        }
        self.runs.push(MeasuredCell {
            shape,
            difference: self.setups[at].difference.clone(),
            repetition,
            run,
        });
        Ok(())
    }

    fn checks(&self) -> Vec<SumCheck> {
        let check = |cell: &MeasuredCell| {
            let traced = cell.run.traced.as_ref()?;
            let path = traced.path?;
            Some(SumCheck {
                protocol: cell.shape.protocol,
                size_bytes: cell.shape.size_bytes,
                pace: cell.shape.pace,
                sum_us: crate::measure::total(&path.added_us(self.event_cost_ns)),
                added_us: cell.run.added_us(),
                traced_added_us: traced.proxied.middle_mean_us() - traced.direct.middle_mean_us(),
                traced_sum_us: crate::measure::total(&path.added_us(0.0)),
                cpu_sum_us: crate::measure::total(&traced.running.times_us),
                cpu_us: traced.cpu_us,
                cpu_unseen_us: traced.untold.unseen_us,
                unscheduled_us: traced.untold.unscheduled_us,
                events_lost: traced.lost,
                rate_share: traced.proxied.rate() / cell.run.proxied.rate(),
                foreign_cores: cell.run.foreign_cores,
            })
        };
        self.runs.iter().filter_map(check).collect()
    }

    fn finish(self, failure: Option<ProbeFailure>) -> Result<Profile, ProbeFailure> {
        if self.runs.is_empty() {
            let nothing = || ProbeFailure::Invalid("nothing was measured".into());
            return Err(failure.unwrap_or_else(nothing));
        }
        let identity = self.setups[0].proxy.identity().clone();
        let machine: MachineIdentity = machine::identity();
        let mut profile = Profile::new(ProfileOrigin::Measured, machine, identity);
        profile.regime = machine::core_regime();
        profile.taken_at = rfc3339(SystemTime::now());
        if let Some(failure) = failure {
            let (measured, planned) = (self.runs.len(), self.cells() * self.order.repetitions as usize);
            profile.partial = Some(format!(
                "ended after {measured} of {planned} measurements: {failure}"
            ));
            profile.whole_rounds = Some((measured / self.cells()) as u32);
        }
        // What logging costs is a cost of measuring.
        let usual = self.runs.iter().filter(|cell| !cell.difference.logs);
        profile.totals = usual.map(total).collect();
        profile.observations = self
            .runs
            .iter()
            .flat_map(|cell| self.observations(cell))
            .collect();
        profile.observations.extend(self.logged_observations());
        profile.observations.extend(self.differences());
        profile.lost = (self.lost != LostShares::default()).then_some(self.lost);
        profile.ladder = ladder::rungs(self.granted);
        self.note_log_cost(&mut profile.ladder);
        profile.methods = self.methods();
        profile.methods.extend(self.log_methods());
        profile.notes = self.notes();
        profile.notes.extend(saturation::notes(&profile.totals));
        round(&mut profile);
        Ok(profile)
    }

    /// Measurements of one round.
    fn cells(&self) -> usize {
        (0..self.setups.len()).map(|at| self.shapes(at).len()).sum()
    }

    /// The components of one run, from its critical path and the time that the proxy's threads ran.
    fn observations(&self, cell: &MeasuredCell) -> Vec<Observation> {
        let Some(traced) = &cell.run.traced else {
            return Vec::new();
        };
        let Some(path) = &traced.path else {
            return Vec::new();
        };
        let latency = path.added_us(self.event_cost_ns);
        let on_path = path.proxy.net_us(self.event_cost_ns);
        let traced_us = traced.running.net_us(self.event_cost_ns);
        let running = scaled_to(traced_us, cell.run.proxied_cpu_us);
        let shares = self.shares_for(cell.shape);
        let mut observations = Vec::new();
        let mut add = |component: Component, phases: &[MessagePhase], share: f64| {
            let sum = |times: &PhaseTimes| {
                let parts = phases.iter().map(|phase| times[*phase as usize]);
                parts.sum::<f64>() * share
            };
            let cpu_us = sum(&running);
            observations.push(Observation {
                component,
                passage: Passage::RoundTrip,
                load: load_cell(cell),
                repetition: cell.repetition,
                messages: path.messages as u64,
                latency_us: sum(&latency),
                cpu_us,
                cpu_off_path_us: if phases == [MessagePhase::WakeUp] {
                    0.0
                } else {
                    (cpu_us - sum(&on_path)).max(0.0)
                },
                latency_inclusive_us: None,
                latency_quantiles_us: None,
            });
        };
        add(Component::Wakeup, &[MessagePhase::WakeUp], 1.0);
        add(Component::Readiness, &[MessagePhase::Readiness], 1.0);
        add(Component::Read, &[MessagePhase::Read], 1.0);
        add(Component::Write, &[MessagePhase::Write], 1.0);
        add(Component::Ipc, &[MessagePhase::Ipc], 1.0);
        let other = [MessagePhase::User, MessagePhase::OtherSystem];
        match shares {
            Some(shares) => {
                let inclusive = shares.codec_inclusive() * latency[MessagePhase::User as usize];
                let parse = shares.share(&Component::Parse);
                add(Component::Parse, &[MessagePhase::User], parse);
                add(Component::OtherUser, &[MessagePhase::User], 1.0 - parse);
                if let [.., codec, _] = &mut observations[..] {
                    codec.latency_inclusive_us = Some(inclusive);
                }
                // System calls of no other kind count as what the proxy does besides; there is one such observation.
                if let Some(last) = observations.last_mut() {
                    let at = MessagePhase::OtherSystem as usize;
                    last.latency_us += latency[at];
                    last.cpu_us += running[at];
                }
            }
            None => add(Component::OtherUser, &other, 1.0),
        }
        observations
    }

    /// Shares that were sampled with this load, or with the nearest size.
    fn shares_for(&self, shape: LoadShape) -> Option<&UserShares> {
        let of_protocol = self
            .shares
            .iter()
            .filter(|((protocol, _), shares)| *protocol == shape.protocol && shares.samples() >= SAMPLES_MIN);
        let nearest = of_protocol.min_by_key(|((_, size), _)| size.abs_diff(shape.size_bytes));
        nearest.map(|(_, shares)| shares)
    }

    /// A filter costs what a proxy with it alone takes longer than the bare one in the same round. What a variant takes
    /// longer, or less, is booked to one component, beside what that has in the bare proxy.
    fn differences(&self) -> Vec<Observation> {
        self.runs
            .iter()
            .filter_map(|cell| self.difference(cell, &cell.difference.component()?))
            .collect()
    }

    fn difference(&self, cell: &MeasuredCell, component: &Component) -> Option<Observation> {
        let bare = self.runs.iter().find(|other| {
            other.difference.is_bare() && other.shape == cell.shape && other.repetition == cell.repetition
        })?;
        let usual = match cell.difference.variant {
            Some(_) => self
                .observations(bare)
                .into_iter()
                .find(|seen| seen.component == *component)?,
            None => Observation::none_of(component.clone(), load_cell(cell)),
        };
        Some(Observation {
            load: load_cell(cell),
            repetition: cell.repetition,
            messages: cell.run.proxied.count() as u64,
            latency_us: usual.latency_us + cell.run.added_us() - bare.run.added_us(),
            cpu_us: usual.cpu_us + cell.run.proxied_cpu_us - bare.run.proxied_cpu_us,
            ..usual
        })
    }

    fn methods(&self) -> Vec<ComponentMethod> {
        let traced: Vec<_> = self
            .runs
            .iter()
            .filter_map(|cell| Some((&cell.run, cell.run.traced.as_ref()?)))
            .collect();
        let slower = traced
            .iter()
            .map(|(run, traced)| traced.proxied.middle_mean_us() - run.proxied.middle_mean_us());
        let rate_lost = traced
            .iter()
            .map(|(run, traced)| 1.0 - traced.proxied.rate() / run.proxied.rate());
        let (slower, rate_lost) = (median(slower.collect()), median(rate_lost.collect()));
        let mut methods = Vec::new();
        if !traced.is_empty() {
            let has_parse = self.shares.values().any(|shares| shares.samples() >= SAMPLES_MIN);
            for component in Component::FIXED {
                let is_user = matches!(component, Component::Parse | Component::OtherUser);
                if component == Component::Parse && !has_parse {
                    continue;
                }
                methods.push(ComponentMethod {
                    method: if is_user && has_parse {
                        "tp_btf+stack_samples".into()
                    } else {
                        "tp_btf".into()
                    },
                    detail: detail(&component).into(),
                    component,
                    overhead_us_per_message: slower,
                    overhead_rate_share: rate_lost.map(|share| share.clamp(0.0, 1.0)),
                    overhead_subtracted: true,
                });
            }
        }
        let is_measured = |name: &&String| {
            let component = Some(Component::Filter((*name).clone()));
            self.setups
                .iter()
                .any(|setup| setup.difference.component() == component)
        };
        let measured = self.order.filters.iter().filter(is_measured);
        methods.extend(measured.map(|name| ComponentMethod {
            component: Component::Filter(name.clone()),
            method: "differential".into(),
            detail: "a proxy with the filter less one without, in the same round".into(),
            overhead_us_per_message: None,
            overhead_rate_share: None,
            overhead_subtracted: false,
        }));
        methods
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.clone();
        let foreign = median(self.runs.iter().map(|cell| cell.run.foreign_cores).collect());
        notes.push(format!(
            "other processes used {:.2} cores meanwhile (median over the measurements)",
            foreign.unwrap_or_default()
        ));
        if self.tracer.is_some() {
            notes.push(format!(
                "writing an event down takes {:.0} ns, measured before; it is subtracted for each event, from the phase in which it falls",
                self.event_cost_ns
            ));
        }
        notes.extend(self.log_notes());
        for variant in &self.order.variants {
            notes.push(format!(
                "{}: what the proxy takes less, or longer, than in its usual way is booked to {}, from runs in the same rounds",
                variant.name(),
                variant.component()
            ));
        }
        if let Some(share) = median(self.traced_cpu_shares()) {
            notes.push(format!(
                "processor time is what the scheduler counts in slices that are not traced, divided as events say; by the events alone it would be {:+.1} % (median over the measurements)",
                100.0 * (share - 1.0)
            ));
        }
        let paths: Vec<&PathMean> = self.paths().collect();
        let longer = paths
            .iter()
            .map(|path| crate::measure::total(&path.neighbours_longer_us(self.event_cost_ns)));
        if let Some(longer) = median(longer.collect()) {
            notes.push(format!(
                "{longer:.1} us of the added latency are what client and server take longer (median over the measurements)"
            ));
        }
        let lost: u64 = self
            .runs
            .iter()
            .filter_map(|cell| Some(cell.run.traced.as_ref()?.lost))
            .sum();
        if lost > 0 {
            notes.push(format!("{lost} events found no room and are missing"));
        }
        if self.samples_lost > 0 {
            notes.push(format!(
                "{} stack samples found no room and are missing",
                self.samples_lost
            ));
        }
        let incomplete: usize = paths.iter().map(|path| path.incomplete).sum();
        if incomplete > 0 {
            notes.push(format!(
                "{incomplete} messages had gaps in their path and do not count"
            ));
        }
        for ((protocol, size), shares) in &self.shares {
            notes.push(format!("user code, {protocol}, {size} B: {shares}"));
        }
        notes
    }

    /// Processor time by the events, less what writing them down takes, as a share of the scheduler's of the same repetition, untraced.
    fn traced_cpu_shares(&self) -> Vec<f64> {
        let share = |cell: &MeasuredCell| {
            let traced = cell.run.traced.as_ref()?;
            let traced_us = crate::measure::total(&traced.running.net_us(self.event_cost_ns));
            Some(traced_us / cell.run.proxied_cpu_us)
        };
        self.runs.iter().filter_map(share).collect()
    }

    fn paths(&self) -> impl Iterator<Item = &PathMean> {
        let traced = self.runs.iter().filter_map(|cell| cell.run.traced.as_ref());
        traced.filter_map(|traced| traced.path.as_ref())
    }
}

/// What the slice lost that lost most.
fn most_lost(before: LostShares, sampled: &SampleRecording, traced: Option<&TracedRun>) -> LostShares {
    let events = traced.map_or(0.0, |traced| traced.lost_share);
    LostShares {
        events: before.events.max(events),
        stack_samples: before.stack_samples.max(sampled.lost_share()),
    }
}

/// Times in the same proportion, whose sum is another: who is traced takes longer than its events are said to cost, as they also take the
/// place of its own code and data in caches.
pub(crate) fn scaled_to(times_us: PhaseTimes, whole_us: f64) -> PhaseTimes {
    let sum = crate::measure::total(&times_us);
    if sum > 0.0 && whole_us > 0.0 {
        times_us.map(|time| time * whole_us / sum)
    } else {
        times_us
    }
}

/// Leaves nanoseconds, and what is as exact of other figures: no clock here says more.
fn round(profile: &mut Profile) {
    let round = |value: &mut f64| *value = (*value * 1e3).round() / 1e3;
    for seen in &mut profile.observations {
        round(&mut seen.load.rate_per_s);
        [&mut seen.latency_us, &mut seen.cpu_us, &mut seen.cpu_off_path_us]
            .into_iter()
            .chain(seen.latency_inclusive_us.as_mut())
            .for_each(round);
    }
    for total in &mut profile.totals {
        round(&mut total.load.rate_per_s);
        round(&mut total.added_latency_us);
        round(&mut total.added_cpu_us);
        if let Some(pacing) = &mut total.pacing {
            let shares = [
                &mut pacing.late_share,
                &mut pacing.core_wait_share,
                &mut pacing.preemptions_per_call,
                &mut pacing.proxy_busy_share,
                &mut pacing.load_busy_share,
                &mut pacing.own_cores,
                &mut pacing.other_cores,
            ];
            shares.into_iter().for_each(round);
        }
        if let Some(added) = &mut total.added_quantiles_us {
            [&mut added.p10, &mut added.p50, &mut added.p90, &mut added.p99]
                .into_iter()
                .for_each(round);
        }
    }
    for method in &mut profile.methods {
        let overheads = [
            &mut method.overhead_us_per_message,
            &mut method.overhead_rate_share,
        ];
        overheads.into_iter().flatten().for_each(round);
    }
    let lost = profile.lost.iter_mut();
    lost.flat_map(|lost| [&mut lost.events, &mut lost.stack_samples])
        .for_each(round);
    let hits = profile.ladder.iter_mut();
    hits.filter_map(|rung| rung.hit_cost_ns.as_mut()).for_each(round);
}

/// Samples below which shares say nothing.
const SAMPLES_MIN: u64 = 30;

fn detail(component: &Component) -> &'static str {
    match component {
        Component::Ipc => {
            "from net_dev_start_xmit of a packet to sk_data_ready of its receiver; processor time until the call returns"
        }
        Component::Read => "in read, recv and their like",
        Component::Write => "from entering write, send and their like to net_dev_start_xmit",
        Component::Readiness => "in epoll_wait, epoll_ctl and their like, while on a core",
        Component::Wakeup => "from sk_data_ready, or from being preempted, to sched_switch",
        Component::Parse => "in user space, in code of codecs as sampled stacks say",
        Component::OtherUser => "in user space otherwise, and in system calls of no other kind",
        Component::Filter(_) => "",
    }
}

fn load_cell(cell: &MeasuredCell) -> LoadCell {
    LoadCell {
        protocol: cell.shape.protocol,
        variant: cell
            .difference
            .variant
            .map_or(String::new(), |variant| variant.name().into()),
        size_bytes: cell.shape.size_bytes as f64,
        rate_per_s: cell.run.proxied.rate(),
        in_flight: cell.shape.in_flight as u32,
    }
}

fn total(cell: &MeasuredCell) -> TotalObservation {
    TotalObservation {
        filters: cell.difference.filters.clone(),
        load: load_cell(cell),
        repetition: cell.repetition,
        messages: cell.run.proxied.count() as u64,
        added_latency_us: cell.run.added_us(),
        added_cpu_us: cell.run.proxied_cpu_us,
        added_quantiles_us: Some(cell.run.proxied.quantiles_over(&cell.run.direct)),
        pacing: Some(cell.run.pacing),
    }
}

/// The middle one; of an even number the mean of the two in the middle.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.retain(|value| value.is_finite());
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some((values[values.len() / 2 - 1] + upper) / 2.0)
}

/// A time in UTC, as RFC 3339 says.
fn rfc3339(time: SystemTime) -> String {
    let time = UtcDateTime::from(time);
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.as_hms();
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn times_are_written_as_calendars_have_them() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_700_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(&at(1_709_251_199)[..10], "2024-02-29");
    }

    #[test]
    fn scaled_times_keep_their_proportion_and_have_the_sum_that_was_measured() {
        let mut times_us = PhaseTimes::default();
        times_us[MessagePhase::Read as usize] = 30.0;
        times_us[MessagePhase::User as usize] = 90.0;
        let scaled = scaled_to(times_us, 100.0);
        assert_eq!(scaled[MessagePhase::Read as usize], 25.0);
        assert_eq!(scaled[MessagePhase::User as usize], 75.0);
        // Where one of the two is not known there is nothing to scale.
        assert_eq!(scaled_to(times_us, 0.0), times_us);
        assert_eq!(scaled_to(PhaseTimes::default(), 100.0), PhaseTimes::default());
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let (machine, proxy) = Default::default();
        let mut profile = Profile::new(ProfileOrigin::Measured, machine, proxy);
        profile.ladder = ladder::rungs(GrantedMethods::default());
        // As the difference of two clocks may be, which a reader of JSON takes for the number next to it.
        profile.ladder[2].hit_cost_ns = Some(9_092.484_999_999_999);
        round(&mut profile);
        assert_eq!(Profile::parse(&profile.to_json()), Ok(profile));
    }

    #[test]
    fn medians_ignore_what_is_no_number() {
        assert_eq!(median(vec![f64::NAN, 3.0, 1.0]), Some(2.0));
        assert_eq!(median(vec![9.0, 3.0, 1.0]), Some(3.0));
        assert_eq!(median(vec![]), None);
    }
}
