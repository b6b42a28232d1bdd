//! What an event costs whom it is about, measured on this very thread.

use std::time::Instant;

use super::tracer::EventTracer;
use crate::failure::ProbeFailure;

/// System calls of one turn: few enough that most turns are not interrupted.
const CALLS: u32 = 400;
/// Turns, of which the fastest counts, for disturbances only ever add; and how often they are taken with and without.
const TURNS: usize = 300;
const ALTERNATIONS: usize = 2;
/// Events of one system call: it is entered and left.
const EVENTS_OF_A_CALL: f64 = 2.0;

impl EventTracer {
    /// Nanoseconds that writing one event down takes: a system call that does next to nothing, with and without.
    pub(crate) fn event_cost_ns(&mut self) -> Result<f64, ProbeFailure> {
        self.watch(&[std::process::id()], &[])?;
        let (mut with, mut without) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ALTERNATIONS {
            without = without.min(fastest_call_ns());
            with = with.min(self.record(fastest_call_ns)?.1);
        }
        self.watch(&[], &[])?;
        Ok(((with - without) / EVENTS_OF_A_CALL).max(0.0))
    }
}

fn fastest_call_ns() -> f64 {
    (0..TURNS).map(|_| call_ns()).fold(f64::INFINITY, f64::min)
}

fn call_ns() -> f64 {
    let began = Instant::now();
    for _ in 0..CALLS {
        std::hint::black_box(rustix::process::getppid());
    }
    began.elapsed().as_nanos() as f64 / f64::from(CALLS)
}
