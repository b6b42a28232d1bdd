//! Where the time of a passage goes while its proxy works in an application, beside what the profile says of one that
//! works alone.

use provost_insight::model::ComponentCost;
use provost_insight::profile::{Component, LOST_SHARE_MAX};
use serde::Serialize;

use crate::application::RunningApplication;
use crate::doctor;
use crate::failure::ProbeFailure;
use crate::load::LoadSlice;
use crate::machine;
use crate::measure::{PhaseMean, now_ns};
use crate::profile::{MethodChoice, median, scaled_to};
use crate::trace::{
    EventTracer, HopPorts, MessagePhase, PhaseSums, PhaseTimes, ThreadTimeline, TraceEvent, message_paths,
    middle_mean,
};

/// A part of a passage through one proxy, in the mean over the proxies of an application. Times are microseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PassagePart {
    /// A component; `user` is all that the proxy does outside of system calls.
    pub component: String,
    /// What the profile says, at the application's size and rate.
    pub predicted_us: f64,
    /// What was traced on the path of the messages.
    pub measured_us: f64,
    /// Processor time, on the path and off it, as the profile says.
    pub predicted_cpu_us: f64,
    /// What the scheduler counted, divided as the traced events say.
    pub measured_cpu_us: f64,
}

/// One round, in the mean over the proxies.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracedPassages {
    /// On the path of the messages, by phase.
    latency_us: PhaseTimes,
    /// While the proxies' threads ran, by phase.
    running_us: PhaseTimes,
}

/// Traces applications, where the kernel grants it.
pub(super) struct PassageTracer {
    tracer: EventTracer,
    event_cost_ns: f64,
}

impl PassageTracer {
    pub(super) fn granted(choice: MethodChoice) -> Result<Option<PassageTracer>, ProbeFailure> {
        if choice != MethodChoice::Best || !doctor::granted().tracepoints {
            return Ok(None);
        }
        let mut tracer = EventTracer::load()?;
        let event_cost_ns = tracer.event_cost_ns()?;
        Ok(Some(PassageTracer {
            tracer,
            event_cost_ns,
        }))
    }

    /// Traces an application under a load; `None` where too few messages were seen whole, or too many events were lost.
    pub(super) fn trace(
        &mut self,
        application: &RunningApplication,
        load: impl FnOnce() -> Result<LoadSlice, ProbeFailure>,
    ) -> Result<Option<TracedPassages>, ProbeFailure> {
        let processes: Vec<u32> = application
            .proxy_processes()
            .into_iter()
            .chain([std::process::id()])
            .collect();
        let hops = application.hops();
        let ports: Vec<u16> = hops
            .iter()
            .flat_map(|hop| hop.proxy.into_iter().chain([hop.server]))
            .collect();
        self.tracer.watch(&processes, &ports)?;
        let outcome = self.tracer.record(|| {
            let from_ns = now_ns();
            let slice = load();
            (slice, from_ns, now_ns())
        });
        self.tracer.watch(&[], &[])?;
        let (recording, (slice, from_ns, to_ns)) = outcome?;
        let slice = slice?;
        if recording.lost_share() > LOST_SHARE_MAX {
            return Ok(None);
        }
        let passages = (slice.count() * hops.len()) as f64;
        let timeline = ThreadTimeline::of(&recording.events);
        let mut latency_us = PhaseTimes::default();
        for hop in hops {
            let Some(passage) = passage(&recording.events, &timeline, *hop) else {
                return Ok(None);
            };
            let net = PhaseMean::of(&passage).net_us(self.event_cost_ns);
            for (sum, time) in latency_us.iter_mut().zip(net) {
                *sum += time / hops.len() as f64;
            }
        }
        let threads = machine::threads(&application.proxy_processes());
        let is_proxy = |thread| threads.contains(&thread);
        let running = PhaseSums {
            times_ns: timeline.running_ns(from_ns, to_ns, is_proxy),
            events: timeline.running_ends(from_ns, to_ns, is_proxy),
        };
        let running_us = PhaseMean::of(&running).net_us(self.event_cost_ns);
        Ok(Some(TracedPassages {
            latency_us,
            running_us: running_us.map(|time| time / passages),
        }))
    }
}

fn passage(events: &[TraceEvent], timeline: &ThreadTimeline, hop: HopPorts) -> Option<PhaseSums> {
    let paths = message_paths(events, timeline, hop).paths;
    middle_mean(paths).map(|path| path.proxy)
}

/// A part of a passage: what it is called, the phases that are measured for it, and the components that are predicted.
struct ComparedPart {
    name: &'static str,
    phases: &'static [MessagePhase],
    is_meant: fn(&Component) -> bool,
}

impl ComparedPart {
    const fn new(
        name: &'static str,
        phases: &'static [MessagePhase],
        is_meant: fn(&Component) -> bool,
    ) -> ComparedPart {
        ComparedPart {
            name,
            phases,
            is_meant,
        }
    }
}

const PARTS: [ComparedPart; 6] = [
    ComparedPart::new("wakeup", &[MessagePhase::WakeUp], |one| *one == Component::Wakeup),
    ComparedPart::new("readiness", &[MessagePhase::Readiness], |one| {
        *one == Component::Readiness
    }),
    ComparedPart::new("read", &[MessagePhase::Read], |one| *one == Component::Read),
    ComparedPart::new("user", &[MessagePhase::User, MessagePhase::OtherSystem], |one| {
        matches!(
            one,
            Component::Parse | Component::OtherUser | Component::Filter(_)
        )
    }),
    ComparedPart::new("write", &[MessagePhase::Write], |one| *one == Component::Write),
    ComparedPart::new("ipc", &[MessagePhase::Ipc], |one| *one == Component::Ipc),
];

/// The median over the rounds, beside what is predicted for one passage. Each round has the processor time of its untraced
/// slice: who is traced takes longer.
pub(super) fn parts(
    rounds: &[(TracedPassages, f64)],
    predicted: &[(Component, ComponentCost)],
) -> Vec<PassagePart> {
    let part = |part: &ComparedPart| {
        let of = |times_us: &PhaseTimes| -> f64 {
            let phases = part.phases.iter();
            phases.map(|phase| times_us[*phase as usize]).sum()
        };
        let latencies = rounds.iter().map(|(traced, _)| of(&traced.latency_us));
        let running = rounds
            .iter()
            .map(|(traced, cpu_us)| of(&scaled_to(traced.running_us, *cpu_us)));
        let meant = || {
            predicted
                .iter()
                .filter(|(component, _)| (part.is_meant)(component))
        };
        Some(PassagePart {
            component: part.name.to_owned(),
            predicted_us: meant().map(|(_, cost)| cost.latency_us).sum(),
            measured_us: median(latencies.collect())?,
            predicted_cpu_us: meant().map(|(_, cost)| cost.cpu_us).sum(),
            measured_cpu_us: median(running.collect())?,
        })
    };
    PARTS.iter().filter_map(part).collect()
}
