//! What each of the two processes of a run does.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cable::Host;
use super::calls::{self, Rules};
use super::plan::{Answers, Carrier, Talk, Work};
use super::wires::{self, Named};
use super::{floor, library, plan};
use crate::failure::Failure;
use crate::load::{Latencies, Run, measure};
use crate::machine;
use crate::process::say_ready;
use crate::report::{Load, Report};

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) carrier: Carrier,
    pub(crate) talk: Talk,
    pub(crate) work: Work,
    /// Where the server can be reached; of shared memory, where it is to listen.
    pub(crate) address: String,
    /// Of AF_XDP, the host that this process is on.
    pub(crate) host: Option<Host>,
    /// The core that this process works on.
    pub(crate) core: usize,
    pub(crate) pause: Pause,
}

/// What a process does that has found nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pause {
    /// Looks again: it has its core to itself.
    None,
    /// Gives its core up: the other process needs it.
    Yield,
}

impl Pause {
    #[inline]
    pub(crate) fn take(self) {
        match self {
            Pause::None => std::hint::spin_loop(),
            Pause::Yield => std::thread::yield_now(),
        }
    }
}

/// Serves until the client has ended, or the bench ends this process.
pub(crate) fn serve(part: &Part) -> Result<(), Failure> {
    // A thread that answers may be on any of the bench's cores; the endpoint is on its own.
    if part.work.answers != Answers::Worker {
        machine::pin(&[part.core])?;
    }
    let shape = part.work.wire;
    match part.carrier {
        Carrier::Tcp => floor::echo_tcp(part.pause),
        Carrier::Udp => {
            let wire = wires::udp(shape)?;
            say_ready(wire.name());
            answer(wire, part)
        }
        Carrier::Xdp => {
            let wire = wires::xdp(part.host.as_ref(), shape)?;
            say_ready(wire.name());
            answer(wire, part)
        }
        Carrier::Shm | Carrier::ShmCopied => {
            let path = Path::new(&part.address);
            let wire = wires::accept_shared(path, part.carrier, shape, || say_ready(&part.address))?;
            answer(wire, part)
        }
    }
}

fn answer<W>(wire: W, part: &Part) -> Result<(), Failure>
where
    W: Named + 'static,
    W::Address: Send + 'static,
{
    match part.talk {
        Talk::Bare => floor::echo(wire, part.pause),
        Talk::Provost => match part.work.answers {
            Answers::Endpoint => calls::serve(wire, &Rules::of(part)),
            Answers::Dispatch | Answers::Worker => library::serve(wire, part),
        },
    }
}

/// Makes load on a server.
pub(crate) fn load(part: &Part, load: &Load) -> Result<Report, Failure> {
    let counters = std::sync::Mutex::new(std::collections::BTreeMap::new());
    let mut report = measure(load, |run| {
        machine::pin(&[part.core])?;
        let (latencies, counted) = call(part, run)?;
        if let Ok(mut counters) = counters.lock() {
            *counters = counted;
        }
        Ok(latencies)
    })?;
    report.counters = counters.into_inner().unwrap_or_default();
    Ok(report)
}

fn call(part: &Part, run: &Run) -> Result<(Latencies, calls::Counters), Failure> {
    let unknown = || Failure::role("client", format!("{} is no address", part.address));
    let shape = part.work.wire;
    match part.carrier {
        Carrier::Tcp => Ok((
            floor::ping_tcp(&part.address, part.pause, run)?,
            calls::Counters::new(),
        )),
        Carrier::Udp => {
            let wire = wires::udp(shape)?;
            let to = part.address.parse().map_err(|_| unknown())?;
            call_over(wire, to, part, run)
        }
        Carrier::Xdp => {
            let wire = wires::xdp(part.host.as_ref(), shape)?;
            let to = part.address.parse().map_err(|_| unknown())?;
            call_over(wire, to, part, run)
        }
        Carrier::Shm | Carrier::ShmCopied => {
            let wire = wires::connect_shared(Path::new(&part.address), part.carrier, shape)?;
            let to = wire.peer();
            call_over(wire, to, part, run)
        }
    }
}

fn call_over<W: Named>(
    wire: W,
    to: W::Address,
    part: &Part,
    run: &Run,
) -> Result<(Latencies, calls::Counters), Failure> {
    match part.talk {
        plan::Talk::Bare => {
            let packets = part.work.batch * part.work.batches;
            let latencies = floor::ping(wire, to, packets, part.pause, run)?;
            Ok((latencies, calls::Counters::new()))
        }
        plan::Talk::Provost => calls::load(wire, to, &Rules::of(part), run),
    }
}
