//! The best method of the ladder: BPF programs at BTF tracepoints, and what their events say.

mod calibration;
mod event;
mod hops;
mod timeline;
mod tracer;

pub(crate) use calibration::uprobe_cost_ns;
pub(crate) use event::TraceEvent;
pub(crate) use hops::{HopPorts, MessagePath, MessagePaths, PhaseSums, message_paths, middle_mean};
pub(crate) use timeline::ThreadTimeline;
pub(crate) use timeline::{MessagePhase, PhaseTimes};
#[cfg(test)]
pub(crate) use tracer::refused;
pub(crate) use tracer::{
    EventTracer, OLDER_KERNEL, SampleRecording, SampleTimer, attach_sampler, kernel_types, load_object,
    program, try_sampling, try_tracepoints, unavailable,
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Says why where the kernel grants no programs, and then tests nothing.
    #[test]
    fn own_system_calls_are_seen_where_the_kernel_permits() {
        let mut tracer = match EventTracer::load() {
            Ok(tracer) => tracer,
            Err(failure) => return provost_skip::forbidden(failure),
        };
        tracer.watch(&[std::process::id()], &[]).unwrap();
        let (recording, ()) = tracer
            .record(|| std::thread::sleep(std::time::Duration::from_millis(2)))
            .unwrap();
        // 230 is clock_nanosleep.
        let slept = recording
            .events
            .iter()
            .any(|event| event.kind == event::TraceKind::Enter { call: 230 });
        assert!(slept && recording.lost == 0, "{:?}", recording.events.len());
        let cost = tracer.event_cost_ns().unwrap();
        eprintln!("an event costs {cost:.0} ns");
        assert!(cost < 20_000.0, "{cost}");
    }

    #[test]
    fn more_processes_than_there_is_room_for_are_refused_with_what_to_do() {
        let mut tracer = match EventTracer::load() {
            Ok(tracer) => tracer,
            Err(failure) => return provost_skip::forbidden(failure),
        };
        let processes: Vec<u32> = (1..=256).collect();
        tracer.watch(&processes, &[]).unwrap();
        let refused = tracer.watch(&[&processes[..], &[257]].concat(), &[]).unwrap_err();
        assert!(refused.to_string().contains("--differential"), "{refused}");
    }

    /// The ring has room for some 4,000. A kernel that samples too seldom to fill it in a few seconds is not waited for.
    #[test]
    fn samples_that_find_no_room_are_counted() {
        let mut tracer = match EventTracer::load() {
            Ok(tracer) => tracer,
            Err(failure) => return provost_skip::forbidden(failure),
        };
        const TIMES_PER_SECOND: u64 = 20_000;
        tracer.watch(&[std::process::id()], &[]).unwrap();
        let mut spin_for = |time: std::time::Duration| {
            let began = std::time::Instant::now();
            let spin = || while began.elapsed() < time {};
            match tracer.sample(TIMES_PER_SECOND, spin) {
                Ok((recording, ())) => Some(recording),
                Err(failure) => {
                    provost_skip::forbidden(failure);
                    None
                }
            }
        };
        let Some(few) = spin_for(std::time::Duration::from_millis(20)) else {
            return;
        };
        assert_eq!((few.lost, few.lost_share()), (0, 0.0), "{}", few.samples.len());
        let mut time = std::time::Duration::from_millis(500);
        let many = loop {
            let recording = spin_for(time).unwrap();
            if recording.lost > 0 {
                break recording;
            }
            if time.as_secs() >= 8 {
                let samples = recording.samples.len();
                assert!(samples < 4000, "{samples} samples, and none lost");
                return provost_skip::forbidden(format!("the kernel takes {samples} samples in {time:?}"));
            }
            time *= 2;
        };
        let all = many.lost as f64 + many.samples.len() as f64;
        assert!(many.samples.len() > 1000);
        assert_eq!(many.lost_share(), many.lost as f64 / all);
    }
}
