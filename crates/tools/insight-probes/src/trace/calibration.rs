//! What an event costs whom it is about, measured on this very thread.

use std::time::Instant;

use aya::programs::UProbe;

use super::tracer::{EventTracer, load_object, program, unavailable};
use crate::failure::ProbeFailure;

/// System calls of one turn: few enough that most turns are not interrupted.
const CALLS: u32 = 400;
/// Turns, of which the fastest counts, for disturbances only ever add; and how often they are taken with and without.
const TURNS: usize = 300;
const ALTERNATIONS: usize = 2;
/// A hit of a uprobe may take tens of microseconds on a virtual machine.
const UPROBE_TURNS: usize = 20;
/// Events of one system call: it is entered and left.
const EVENTS_OF_A_CALL: f64 = 2.0;

impl EventTracer {
    /// Nanoseconds that writing one event down takes: a system call that does next to nothing, with and without.
    pub(crate) fn event_cost_ns(&mut self) -> Result<f64, ProbeFailure> {
        self.watch(&[std::process::id()], &[])?;
        let (mut with, mut without) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ALTERNATIONS {
            without = without.min(fastest_ns(TURNS, system_call));
            with = with.min(self.record(|| fastest_ns(TURNS, system_call))?.1);
        }
        self.watch(&[], &[])?;
        Ok(((with - without) / EVENTS_OF_A_CALL).max(0.0))
    }
}

fn system_call() {
    std::hint::black_box(rustix::process::getppid());
}

/// A function of the C library that does next to nothing.
fn library_call() {
    std::hint::black_box(std::process::id());
}

/// Nanoseconds that a hit of a uprobe takes whose program does nothing.
pub(crate) fn uprobe_cost_ns() -> Result<f64, ProbeFailure> {
    let mut programs = load_object()?;
    let probe: &mut UProbe = program(&mut programs, "nothing_in_user_space")?;
    probe.load().map_err(|error| unavailable(&error))?;
    let (mut with, mut without) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ALTERNATIONS {
        without = without.min(fastest_ns(UPROBE_TURNS, library_call));
        let own = i32::try_from(std::process::id()).ok();
        let link = probe
            .attach(Some("getpid"), 0, "libc", own)
            .map_err(|error| unavailable(&error))?;
        with = with.min(fastest_ns(UPROBE_TURNS, library_call));
        probe.detach(link).map_err(|error| unavailable(&error))?;
    }
    Ok((with - without).max(0.0))
}

fn fastest_ns(turns: usize, call: fn()) -> f64 {
    let turn_ns = |_| {
        let began = Instant::now();
        (0..CALLS).for_each(|_| call());
        began.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..turns).map(turn_ns).fold(f64::INFINITY, f64::min)
}
