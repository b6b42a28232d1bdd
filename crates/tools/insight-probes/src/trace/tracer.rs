//! Loads the BPF programs, has them watch processes and ports for a while, and reads what they wrote.

use std::sync::OnceLock;

use aya::maps::{Array, HashMap, MapData, RingBuf};
use aya::programs::perf_event::{self, PerfEventLinkId};
use aya::programs::{BtfTracePoint, PerfEvent, Program, ProgramError};
use aya::{Btf, BtfError, Ebpf, EbpfLoader};

use super::event::TraceEvent;
use crate::failure::ProbeFailure;
use crate::stacks::StackSample;

/// The programs, compiled; `build.sh` beside it says how.
const OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/probes.bpf.o");

/// The programs of the timeline, each with its tracepoint.
const TRACEPOINTS: [(&str, &str); 6] = [
    ("enter", "sys_enter"),
    ("leave", "sys_exit"),
    ("switched", "sched_switch"),
    ("waking", "sched_waking"),
    ("readable", "sk_data_ready"),
    ("sent", "net_dev_start_xmit"),
];
/// The program that samples stacks.
const SAMPLER: &str = "sample";
/// Processes and ports that are watched at a time; `max_entries` in `bpf/probes.bpf.c`.
const WATCHED_MAX: usize = 256;
/// Events and samples that one recording keeps at most.
const EVENTS_MAX: usize = 4 << 20;
const SAMPLES_MAX: usize = 8 << 10;

/// What was written down between two calls.
#[derive(Debug, Default)]
pub(crate) struct EventRecording {
    /// In the order of their times.
    pub(crate) events: Vec<TraceEvent>,
    /// Events that found no room.
    pub(crate) lost: u64,
}

impl EventRecording {
    /// What found no room, as a share of all that there was.
    pub(crate) fn lost_share(&self) -> f64 {
        lost_share(self.lost, self.events.len())
    }
}

/// Stacks that were sampled between two calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct SampleRecording {
    pub(crate) samples: Vec<StackSample>,
    /// Samples that found no room.
    pub(crate) lost: u64,
}

impl SampleRecording {
    /// What found no room, as a share of all that there was.
    pub(crate) fn lost_share(&self) -> f64 {
        lost_share(self.lost, self.samples.len())
    }
}

fn lost_share(lost: u64, kept: usize) -> f64 {
    lost as f64 / (lost as f64 + kept as f64).max(1.0)
}

/// Loaded programs, attached or not.
pub(crate) struct EventTracer {
    programs: Ebpf,
    events: RingBuf<MapData>,
    samples: RingBuf<MapData>,
    lost_before: [u64; 2],
}

impl EventTracer {
    /// Loads the programs, which costs nothing until they are attached.
    pub(crate) fn load() -> Result<EventTracer, ProbeFailure> {
        let mut programs = load_object()?;
        for (name, tracepoint) in TRACEPOINTS {
            program::<BtfTracePoint>(&mut programs, name)?
                .load(tracepoint, kernel_types()?)
                .map_err(|error| refused(&format!("BPF program at tp_btf/{tracepoint}"), &error))?;
        }
        let events = ring(&mut programs, "events")?;
        let samples = ring(&mut programs, "samples")?;
        Ok(EventTracer {
            programs,
            events,
            samples,
            lost_before: [0; 2],
        })
    }

    /// Watches only these processes, and sockets with these ports.
    pub(crate) fn watch(&mut self, processes: &[u32], ports: &[u16]) -> Result<(), ProbeFailure> {
        if processes.len() > WATCHED_MAX || ports.len() > WATCHED_MAX {
            return Err(ProbeFailure::Unavailable(format!(
                "{} processes and {} ports, of which {WATCHED_MAX} each can be traced: measure sums alone (--differential)",
                processes.len(),
                ports.len()
            )));
        }
        fill(&mut self.programs, "processes", processes)?;
        fill(&mut self.programs, "ports", ports)
    }

    /// Records what happens while something is done.
    pub(crate) fn record<T>(
        &mut self,
        during: impl FnOnce() -> T,
    ) -> Result<(EventRecording, T), ProbeFailure> {
        drain(&mut self.events, EVENTS_MAX, |_| None::<()>);
        self.lost_since_last();
        let mut links = Vec::new();
        for (name, tracepoint) in TRACEPOINTS {
            let link = program::<BtfTracePoint>(&mut self.programs, name)?
                .attach()
                .map_err(|error| refused(&format!("attaching to tp_btf/{tracepoint}"), &error))?;
            links.push((name, link));
        }
        let done = during();
        for (name, link) in links {
            program::<BtfTracePoint>(&mut self.programs, name)?
                .detach(link)
                .map_err(|error| refused(&format!("detaching {name}"), &error))?;
        }
        let mut events = drain(&mut self.events, EVENTS_MAX, TraceEvent::parse);
        // Each core reserves its place before it reads the clock.
        events.sort_by_key(|event| event.time_ns);
        let lost = self.lost_since_last()[0];
        Ok((EventRecording { events, lost }, done))
    }

    /// Samples stacks of user code so many times a second on each core, while something is done.
    pub(crate) fn sample<T>(
        &mut self,
        times_per_second: u64,
        during: impl FnOnce() -> T,
    ) -> Result<(SampleRecording, T), ProbeFailure> {
        drain(&mut self.samples, SAMPLES_MAX, |_| None::<()>);
        self.lost_since_last();
        let links = attach_sampler(&mut self.programs, SampleTimer::software(times_per_second))?;
        let done = during();
        let sampler: &mut PerfEvent = program(&mut self.programs, SAMPLER)?;
        for link in links {
            sampler
                .detach(link)
                .map_err(|error| refused("ending a perf event", &error))?;
        }
        let samples = drain(&mut self.samples, SAMPLES_MAX, StackSample::parse);
        let lost = self.lost_since_last()[1];
        Ok((SampleRecording { samples, lost }, done))
    }

    fn lost_since_last(&mut self) -> [u64; 2] {
        let now = [0, 1].map(|which| self.lost(which).unwrap_or_default());
        let since = [0, 1].map(|which| now[which] - self.lost_before[which]);
        self.lost_before = now;
        since
    }

    fn lost(&self, which: usize) -> Option<u64> {
        let counts: Array<_, u64> = self.programs.map("lost")?.try_into().ok()?;
        counts.get(&(which as u32), 0).ok()
    }
}

/// What makes the sampler run.
pub(crate) struct SampleTimer {
    kind: perf_event::PerfTypeId,
    event: u64,
    times_per_second: u64,
}

impl SampleTimer {
    /// The kernel's own clock of each core, which counts while anything runs.
    pub(crate) fn software(times_per_second: u64) -> SampleTimer {
        SampleTimer {
            kind: perf_event::PerfTypeId::Software,
            event: perf_event::perf_sw_ids::PERF_COUNT_SW_CPU_CLOCK as u64,
            times_per_second,
        }
    }

    /// The processor's counter of cycles.
    pub(crate) fn hardware() -> SampleTimer {
        SampleTimer {
            kind: perf_event::PerfTypeId::Hardware,
            event: perf_event::perf_hw_id::PERF_COUNT_HW_CPU_CYCLES as u64,
            times_per_second: 99,
        }
    }
}

/// Has the sampler run on every core.
pub(crate) fn attach_sampler(
    programs: &mut Ebpf,
    timer: SampleTimer,
) -> Result<Vec<PerfEventLinkId>, ProbeFailure> {
    let sampler: &mut PerfEvent = program(programs, SAMPLER)?;
    if sampler.fd().is_err() {
        sampler
            .load()
            .map_err(|error| refused("BPF program at a perf event", &error))?;
    }
    let attach = |cpu| {
        let scope = perf_event::PerfEventScope::AllProcessesOneCpu { cpu };
        let policy = perf_event::SamplePolicy::Frequency(timer.times_per_second);
        sampler
            .attach(timer.kind.clone(), timer.event, scope, policy, false)
            .map_err(|error| refused("perf_event_open", &error))
    };
    crate::machine::online_cores()?.into_iter().map(attach).collect()
}

/// Loads the program of each tracepoint and attaches it for a moment.
pub(crate) fn try_tracepoints() -> Vec<(&'static str, Result<(), ProbeFailure>)> {
    let tried = |(name, tracepoint)| {
        let mut programs = load_object()?;
        let program: &mut BtfTracePoint = program(&mut programs, name)?;
        program
            .load(tracepoint, kernel_types()?)
            .map_err(|error| refused(&format!("BPF program at tp_btf/{tracepoint}"), &error))?;
        let attached = program.attach();
        attached
            .map(drop)
            .map_err(|error| refused(&format!("attaching to tp_btf/{tracepoint}"), &error))
    };
    TRACEPOINTS
        .into_iter()
        .map(|both| (both.1, tried(both)))
        .collect()
}

/// The kernel's types. It takes tenths of a second to read them, and they do not change while it runs.
pub(crate) fn kernel_types() -> Result<&'static Btf, ProbeFailure> {
    static TYPES: OnceLock<Btf> = OnceLock::new();
    if let Some(types) = TYPES.get() {
        return Ok(types);
    }
    let types = Btf::from_sys_fs().map_err(|error| refused("type information", &error))?;
    Ok(TYPES.get_or_init(|| types))
}

/// All programs, none of which is in the kernel yet.
pub(crate) fn load_object() -> Result<Ebpf, ProbeFailure> {
    EbpfLoader::new()
        .btf(Some(kernel_types()?))
        .load(OBJECT)
        .map_err(|error| refused("BPF maps", &error))
}

/// Samples stacks for a moment.
pub(crate) fn try_sampling() -> Result<String, ProbeFailure> {
    let mut programs = load_object()?;
    attach_sampler(&mut programs, SampleTimer::software(99))
        .map(|links| format!("perf_event_open of the software clock on {} cores", links.len()))
}

/// A program of the object, as what it is.
pub(crate) fn program<'a, P>(programs: &'a mut Ebpf, name: &str) -> Result<&'a mut P, ProbeFailure>
where
    &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
{
    programs
        .program_mut(name)
        .ok_or_else(|| missing(name))?
        .try_into()
        .map_err(|error| refused(name, &error))
}

fn ring(programs: &mut Ebpf, name: &str) -> Result<RingBuf<MapData>, ProbeFailure> {
    let map = programs.take_map(name).ok_or_else(|| missing(name))?;
    RingBuf::try_from(map).map_err(|error| refused(name, &error))
}

/// Makes a set have exactly these keys.
fn fill<K: aya::Pod>(programs: &mut Ebpf, name: &str, keys: &[K]) -> Result<(), ProbeFailure> {
    let map = programs.map_mut(name).ok_or_else(|| missing(name))?;
    let mut set: HashMap<_, K, u8> = map.try_into().map_err(|error| refused(name, &error))?;
    let old: Vec<K> = set.keys().filter_map(Result::ok).collect();
    for key in old {
        set.remove(&key).map_err(|error| refused(name, &error))?;
    }
    for key in keys {
        set.insert(key, 1, 0).map_err(|error| refused(name, &error))?;
    }
    Ok(())
}

/// Empties a ring, and keeps at most so many of what it has.
fn drain<T>(ring: &mut RingBuf<MapData>, max: usize, parse: impl Fn(&[u8]) -> Option<T>) -> Vec<T> {
    let mut kept = Vec::new();
    while let Some(item) = ring.next() {
        if kept.len() < max {
            kept.extend(parse(&item));
        }
    }
    kept
}

fn missing(name: &str) -> ProbeFailure {
    ProbeFailure::Unavailable(format!("the compiled BPF object has no '{name}'"))
}

/// What to do about a tracepoint that the kernel has not; `sk_data_ready` came last.
pub(crate) const OLDER_KERNEL: &str =
    "this kernel has no such tracepoint: Linux 6.3 and later ones have all of them";

pub(crate) fn refused(what: &str, error: &(dyn std::error::Error + 'static)) -> ProbeFailure {
    let remedy = match error.downcast_ref() {
        Some(ProgramError::Btf(BtfError::UnknownBtfTypeName { .. })) => OLDER_KERNEL,
        _ => "run as root or with CAP_BPF and CAP_PERFMON; `provost insight doctor` says what is granted",
    };
    ProbeFailure::Refused {
        what: what.into(),
        why: reasons(error),
        remedy: remedy.into(),
    }
}

/// What stands in the way of a method that is tried.
pub(crate) fn unavailable(error: &(dyn std::error::Error + 'static)) -> ProbeFailure {
    ProbeFailure::Unavailable(reasons(error))
}

/// The whole chain of reasons: the loader's own words say which step failed, its sources with which error.
fn reasons(error: &(dyn std::error::Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |error| error.source());
    let mut words: Vec<String> = chain.map(ToString::to_string).collect();
    words.dedup();
    words.join(": ")
}
