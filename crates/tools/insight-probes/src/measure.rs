//! One cell of a profile: the same load in turn without the proxy, through it, and through it while it is traced.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use provost_insight::profile::LoadPacing;

use crate::access_log::{GrowingLog, LoggedSlice};
use crate::failure::ProbeFailure;
use crate::load::{LoadClient, LoadShape, LoadSlice};
use crate::machine;
use crate::pacing::LoadWatch;
use crate::proxies::RunningProxy;
use crate::stop::StopSignal;
use crate::trace::{
    EventTracer, HopPorts, MessagePath, MessagePaths, MessagePhase, PhaseSums, PhaseTimes, SampleRecording,
    ThreadTimeline, message_paths, middle_mean,
};

/// Messages below which the mean of a traced slice says nothing.
const MESSAGES_MIN: usize = 20;
/// Calls that every slice has if the machine grants them at all.
const CALLS_MIN: usize = 4 * MESSAGES_MIN;
/// How often each core's stacks are looked at; a prime number, so that nothing regular keeps step with it.
const SAMPLES_PER_SECOND: u64 = 1999;

/// What one repetition of a cell came to.
#[derive(Clone, Debug)]
pub(crate) struct CellRun {
    pub(crate) direct: LoadSlice,
    pub(crate) proxied: LoadSlice,
    /// Processor time of the proxy for a call of that, in microseconds.
    pub(crate) proxied_cpu_us: f64,
    /// What bounded its rate.
    pub(crate) pacing: LoadPacing,
    /// What the proxy's access log says of that, where it has one.
    pub(crate) logged: Option<LoggedSlice>,
    /// Both while they are traced, where that is granted.
    pub(crate) traced: Option<TracedRun>,
    /// Through it while its stacks are sampled, where that is granted.
    pub(crate) sampled: SampleRecording,
    /// Cores' worth of work of processes that have no part in this.
    pub(crate) foreign_cores: f64,
}

/// What the two traced slices of a repetition came to. Times are microseconds for a call, with what tracing itself takes.
#[derive(Clone, Debug)]
pub(crate) struct TracedRun {
    pub(crate) direct: LoadSlice,
    pub(crate) proxied: LoadSlice,
    /// Processor time of the proxy, as the scheduler counts it.
    pub(crate) cpu_us: f64,
    /// Time that its threads ran, by phase, from the events.
    pub(crate) running: PhaseMean,
    /// The critical path; only of messages that were alone in flight.
    pub(crate) path: Option<PathMean>,
    /// Events that found no room.
    pub(crate) lost: u64,
    /// Of the slice that lost more, as a share of its events.
    pub(crate) lost_share: f64,
    /// What may be between that sum and the scheduler's.
    pub(crate) untold: UntoldTime,
}

/// Time that the scheduler and the events do not count alike, for a call, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UntoldTime {
    /// What the scheduler counts of the proxy's threads of which there is no event.
    pub(crate) unseen_us: f64,
    /// Time of all cores that the scheduler counts to no thread, while the events of one that is interrupted go on: the most
    /// that the events can have too much by it.
    pub(crate) unscheduled_us: f64,
}

/// Means for a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PhaseMean {
    pub(crate) times_us: PhaseTimes,
    /// Events that were written down meanwhile.
    pub(crate) events: PhaseTimes,
}

/// What the critical path has, in the mean over the middle half of the messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathMean {
    /// In the proxy.
    pub(crate) proxy: PhaseMean,
    /// In client and server, when calls go through the proxy.
    pub(crate) neighbours: PhaseMean,
    /// In client and server, when they do not.
    pub(crate) neighbours_direct: PhaseMean,
    /// Messages that were seen through the proxy, and those whose path was not seen whole.
    pub(crate) messages: usize,
    pub(crate) incomplete: usize,
}

impl CellRun {
    /// What the proxy adds to a call that is not disturbed.
    pub(crate) fn added_us(&self) -> f64 {
        self.proxied.middle_mean_us() - self.direct.middle_mean_us()
    }
}

impl PhaseMean {
    pub(crate) fn of(sums: &PhaseSums) -> PhaseMean {
        PhaseMean {
            times_us: sums.times_ns.map(|time| time / 1e3),
            events: sums.events,
        }
    }

    /// Without what writing down the events took.
    pub(crate) fn net_us(&self, event_cost_ns: f64) -> PhaseTimes {
        let mut net = self.times_us;
        for (time, events) in net.iter_mut().zip(&self.events) {
            *time = (*time - events * event_cost_ns / 1e3).max(0.0);
        }
        net
    }
}

impl PathMean {
    /// What the proxy adds to the critical path, by phase: its own time, and what its neighbours take longer.
    pub(crate) fn added_us(&self, event_cost_ns: f64) -> PhaseTimes {
        let mut added = self.proxy.net_us(event_cost_ns);
        let longer = self.neighbours_longer_us(event_cost_ns);
        for (time, longer) in added.iter_mut().zip(longer) {
            *time += longer;
        }
        added
    }

    /// What client and server take longer through the proxy than without it.
    pub(crate) fn neighbours_longer_us(&self, event_cost_ns: f64) -> PhaseTimes {
        let mut longer = self.neighbours.net_us(event_cost_ns);
        let direct = self.neighbours_direct.net_us(event_cost_ns);
        for (time, direct) in longer.iter_mut().zip(direct) {
            *time -= direct;
        }
        longer
    }
}

/// What a repetition is measured with beside the client's own clock.
#[derive(Default)]
pub(crate) struct CellProbes<'a> {
    pub(crate) tracer: Option<&'a mut EventTracer>,
    /// Whether events are traced.
    pub(crate) events: bool,
    /// Whether stacks are sampled.
    pub(crate) stacks: bool,
    /// Where the proxy logs each call, if that is read.
    pub(crate) access_log: Option<&'a Path>,
}

/// The parts of a repetition.
#[derive(Clone, Copy)]
enum SliceKind {
    Direct,
    Proxied,
    Traced,
    Sampled,
}

/// A server reached directly and through a proxy, with connections to both kept open.
pub(crate) struct CellBench<'a> {
    direct: LoadClient,
    proxied: LoadClient,
    proxy: &'a mut RunningProxy,
    ports: HopPorts,
    shape: LoadShape,
    slice: Duration,
    stop: &'a StopSignal,
}

/// Before the first slice, so that connections, caches and branch predictors have seen the load.
const WARMUP: Duration = Duration::from_millis(100);

impl<'a> CellBench<'a> {
    pub(crate) fn connect(
        server: SocketAddr,
        proxy: &'a mut RunningProxy,
        shape: LoadShape,
        slice: Duration,
        stop: &'a StopSignal,
    ) -> Result<CellBench<'a>, ProbeFailure> {
        let mut direct = LoadClient::connect(server, shape)?.stopped_by(stop);
        let listen = proxy.listen();
        let proxied = LoadClient::connect(listen, shape).and_then(|client| {
            let mut client = client.stopped_by(stop);
            client.run(WARMUP)?;
            Ok(client)
        });
        let proxied = proxied.map_err(|failure| blame(proxy, failure))?;
        direct.run(WARMUP)?;
        Ok(CellBench {
            direct,
            proxied,
            ports: HopPorts {
                proxy: Some(listen.port()),
                server: server.port(),
            },
            proxy,
            shape,
            slice,
            stop,
        })
    }

    /// One repetition. Every second one goes the other way round, so that what drifts does not favour one side.
    pub(crate) fn repeat(
        &mut self,
        repetition: u32,
        mut probes: CellProbes<'_>,
    ) -> Result<CellRun, ProbeFailure> {
        let busy = machine::BusyTime::now()?;
        let mut slices = (None, None, None);
        let (mut pacing, mut logged, mut sampled) = (None, None, SampleRecording::default());
        let forwards = repetition.is_multiple_of(2);
        let order = [
            SliceKind::Direct,
            SliceKind::Proxied,
            SliceKind::Traced,
            SliceKind::Sampled,
        ];
        for at in 0..order.len() {
            let slice = order[if forwards { at } else { order.len() - 1 - at }];
            match slice {
                SliceKind::Direct => slices.0 = Some(self.direct.run_enough(self.slice, CALLS_MIN)?),
                SliceKind::Proxied => {
                    let log = probes.access_log.map(GrowingLog::from_now).transpose()?;
                    let watch = LoadWatch::of(&self.proxy.processes())?;
                    let proxied = self.proxied()?;
                    pacing = Some(watch.pacing(self.shape.pace, &proxied.0)?);
                    logged = log
                        .map(|log| log.read_slice(proxied.0.count(), self.stop))
                        .transpose()?;
                    slices.1 = Some(proxied);
                }
                SliceKind::Traced => {
                    if let (Some(tracer), true) = (probes.tracer.as_deref_mut(), probes.events) {
                        slices.2 = Some(self.traced(tracer)?);
                    }
                }
                SliceKind::Sampled => {
                    if let (Some(tracer), true) = (probes.tracer.as_deref_mut(), probes.stacks) {
                        sampled = self.sampled(tracer)?;
                    }
                }
            }
        }
        let ((Some(direct), Some((proxied, proxied_cpu_us)), traced), Some(pacing)) = (slices, pacing) else {
            return Err(ProbeFailure::Invalid("a repetition left out a slice".into()));
        };
        Ok(CellRun {
            direct,
            proxied,
            proxied_cpu_us,
            pacing,
            logged,
            traced,
            sampled,
            foreign_cores: busy.foreign_cores(&self.own_processes())?,
        })
    }

    fn own_processes(&self) -> Vec<u32> {
        let proxy = self.proxy.processes().into_iter();
        proxy.chain([std::process::id()]).collect()
    }

    fn sampled(&mut self, tracer: &mut EventTracer) -> Result<SampleRecording, ProbeFailure> {
        tracer.watch(&self.proxy.processes(), &[])?;
        let outcome = tracer.sample(SAMPLES_PER_SECOND, || self.proxied());
        tracer.watch(&[], &[])?;
        let (recording, load) = outcome?;
        load?;
        Ok(recording)
    }

    fn proxied(&mut self) -> Result<(LoadSlice, f64), ProbeFailure> {
        let processes = self.proxy.processes();
        let before = machine::run_time_ns(&processes)?;
        let slice = self.proxied.run_enough(self.slice, CALLS_MIN);
        let slice = slice.map_err(|failure| blame(self.proxy, failure))?;
        let after = machine::run_time_ns(&processes)?;
        let cpu_us = after.saturating_sub(before) as f64 / 1e3 / slice.count() as f64;
        Ok((slice, cpu_us))
    }

    fn traced(&mut self, tracer: &mut EventTracer) -> Result<TracedRun, ProbeFailure> {
        let processes = self.proxy.processes();
        let watched = self.own_processes();
        let ports: Vec<u16> = self.ports.proxy.into_iter().chain([self.ports.server]).collect();
        tracer.watch(&watched, &ports)?;
        let outcome = self.traced_slices(tracer, &processes);
        tracer.watch(&[], &[])?;
        outcome
    }

    fn traced_slices(
        &mut self,
        tracer: &mut EventTracer,
        processes: &[u32],
    ) -> Result<TracedRun, ProbeFailure> {
        let (direct_recording, direct) = tracer.record(|| self.direct.run_enough(self.slice, CALLS_MIN))?;
        let direct = direct?;
        let (recording, (outcome, from_ns, to_ns, before)) = tracer.record(|| {
            let before = SchedulerCounts::now(processes);
            let from_ns = now_ns();
            let outcome = self.proxied();
            (outcome, from_ns, now_ns(), before)
        })?;
        let (proxied, cpu_us) = outcome?;
        let since = SchedulerCounts::now(processes)?.since(&before?);
        let threads = machine::threads(processes);
        let is_proxy = |thread| threads.contains(&thread);
        let timeline = ThreadTimeline::of(&recording.events);
        let calls = proxied.count() as f64;
        let running = PhaseSums {
            times_ns: timeline
                .running_ns(from_ns, to_ns, is_proxy)
                .map(|time| time / calls),
            events: timeline
                .running_ends(from_ns, to_ns, is_proxy)
                .map(|count| count / calls),
        };
        let path = if self.shape.in_flight == 1 {
            let direct_ports = HopPorts {
                proxy: None,
                ..self.ports
            };
            let direct_timeline = ThreadTimeline::of(&direct_recording.events);
            let without = message_paths(&direct_recording.events, &direct_timeline, direct_ports);
            let through = message_paths(&recording.events, &timeline, self.ports);
            path_mean(through, without)
        } else {
            None
        };
        Ok(TracedRun {
            direct,
            proxied,
            cpu_us,
            running: PhaseMean::of(&running),
            path,
            lost: recording.lost + direct_recording.lost,
            lost_share: recording.lost_share().max(direct_recording.lost_share()),
            untold: UntoldTime {
                unseen_us: since.threads_ns(|thread| !timeline.knows(thread)) / 1e3 / calls,
                unscheduled_us: since.unscheduled_ns as f64 / 1e3 / calls,
            },
        })
    }
}

/// What the kernel has counted until now.
struct SchedulerCounts {
    threads_ns: BTreeMap<u32, u64>,
    unscheduled_ns: u64,
}

impl SchedulerCounts {
    fn now(processes: &[u32]) -> Result<SchedulerCounts, ProbeFailure> {
        Ok(SchedulerCounts {
            threads_ns: machine::thread_run_times_ns(processes)?,
            unscheduled_ns: machine::unscheduled_ns()?,
        })
    }

    fn since(mut self, before: &SchedulerCounts) -> SchedulerCounts {
        for (thread, time) in &mut self.threads_ns {
            *time -= before
                .threads_ns
                .get(thread)
                .copied()
                .unwrap_or_default()
                .min(*time);
        }
        self.unscheduled_ns = self.unscheduled_ns.saturating_sub(before.unscheduled_ns);
        self
    }

    fn threads_ns(&self, is_meant: impl Fn(u32) -> bool) -> f64 {
        let meant = self.threads_ns.iter().filter(|(thread, _)| is_meant(**thread));
        meant.map(|(_, time)| *time as f64).sum()
    }
}

/// The means of messages through a proxy and without it, if there are enough of both.
fn path_mean(through: MessagePaths, without: MessagePaths) -> Option<PathMean> {
    if through.paths.len().min(without.paths.len()) < MESSAGES_MIN {
        return None;
    }
    let (messages, incomplete) = (through.paths.len(), through.incomplete);
    let MessagePath { proxy, neighbours } = middle_mean(through.paths)?;
    let without = middle_mean(without.paths)?;
    Some(PathMean {
        proxy: PhaseMean::of(&proxy),
        neighbours: PhaseMean::of(&neighbours),
        neighbours_direct: PhaseMean::of(&without.neighbours),
        messages,
        incomplete,
    })
}

/// A load fails because its proxy has ended more often than for a reason of its own.
fn blame(proxy: &mut RunningProxy, failure: ProbeFailure) -> ProbeFailure {
    match (proxy.check_alive(), &failure) {
        (_, ProbeFailure::Stopped(_)) | (Ok(()), _) => failure,
        (Err(dead), _) => dead,
    }
}

/// The clock of the events.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Sum over the phases.
pub(crate) fn total(times: &PhaseTimes) -> f64 {
    MessagePhase::ALL.iter().map(|phase| times[*phase as usize]).sum()
}
