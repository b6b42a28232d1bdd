//! The engine around a filter: queues, held and denied calls, saved state.
//!
//! ```text
//! tx_in ─► judge ─► tx_out      A denied step becomes cancellations towards whoever knows the call; a held one waits
//! rx_out ◄─ judge ◄─ rx_in      in `held`, and what follows it of the same call behind it.
//! ```
//!
//! Calls that began before the filter was there are not known to it, and pass.

use std::borrow::Cow;
use std::collections::VecDeque;

use provost_datapath::{
    Body, CallHash, CallMap, Context, EncodedBody, Engine, Nanos, Ports, Progress, Queue, RestoreError,
    SavedState, Saver, Step, message_offset,
};
use provost_wire::metadata::{self, STATUS_MESSAGE};

use crate::filter::{CallState, Denial, Direction, Ended, Filter, FilterState, Verdict, Watch};
use crate::held::Held;
use crate::{Code, Parts, Side, Site, StepView};

/// Steps that one poll moves in each direction, at most.
const BATCH_STEPS: usize = 64;
/// Steps that a sieve holds, at most; a call that would need more is denied.
pub const HELD_STEPS_MAX: usize = 4096;
/// Cancellations that wait for room in one direction, at most: past it nothing is judged.
const OWED_STEPS_MAX: usize = 64;
/// Calls that a new table has room for.
const CALLS_AT_START: usize = 64;
/// Version of the form of the saved state.
const STATE_VERSION: u32 = 1;
/// The trailing metadata by which a client is told when to try again (gRPC A6).
const RETRY_PUSHBACK: &str = "grpc-retry-pushback-ms";

/// What a [`Sieve`] is made of.
pub struct SieveParts<F> {
    /// [`Engine::kind`], such as `rate-limit`.
    pub kind: &'static str,
    /// [`Engine::version`].
    pub version: u32,
    /// Where it is.
    pub site: Site,
    /// What judges.
    pub filter: F,
}

/// The engine of a [`Filter`] on one datapath.
pub struct Sieve<F: Filter> {
    parts: SieveParts<F>,
    watch: Watch,
    tracking: Tracking,
    calls: CallMap<Call<F::Call>>,
    held: Held,
    owed: [VecDeque<Step>; 2],
    fault: Option<Cow<'static, str>>,
}

/// Whether calls are kept in mind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    /// At most steps that begin a call are judged: there is nothing to remember.
    None,
    Calls,
}

/// A call in flight whose beginning has been seen.
struct Call<S> {
    method: u16,
    begun_at: Nanos,
    state: S,
}

/// Which queues a step goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// From the app to the wire.
    Tx = 0,
    /// From the wire to the app.
    Rx = 1,
}

const LANES: [Lane; 2] = [Lane::Tx, Lane::Rx];

impl<F: Filter> Sieve<F> {
    /// A sieve that knows no call yet.
    #[must_use]
    pub fn new(parts: SieveParts<F>) -> Sieve<F> {
        let watch = parts.filter.watch();
        let beginnings =
            !watch.calls && watch.responses == Parts::NONE && Parts::BEGIN.contains(watch.requests);
        Sieve {
            watch,
            tracking: match beginnings {
                true => Tracking::None,
                false => Tracking::Calls,
            },
            calls: CallMap::with_capacity_and_hasher(CALLS_AT_START, CallHash::default()),
            held: Held::default(),
            owed: [VecDeque::new(), VecDeque::new()],
            fault: None,
            parts,
        }
    }

    /// A sieve that continues from what an engine of the same kind saved, in whatever version; a new one without.
    pub fn start(parts: SieveParts<F>, saved: Option<&SavedState>) -> Result<Sieve<F>, RestoreError> {
        let mut sieve = Sieve::new(parts);
        if let Some(saved) = saved {
            sieve.restore(saved)?;
        }
        Ok(sieve)
    }

    /// What judges.
    #[must_use]
    pub fn filter(&self) -> &F {
        &self.parts.filter
    }
}

impl<F: Filter> Engine for Sieve<F> {
    fn kind(&self) -> &'static str {
        self.parts.kind
    }

    fn version(&self) -> u32 {
        self.parts.version
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut moved = self.send_owed(&mut ports);
        if self.fault.is_none() && self.held.due().is_some_and(|due| due <= context.now) {
            moved += self.judge_held(&mut ports, context);
        }
        for lane in LANES {
            moved += self.forward(lane, &mut ports, context);
        }
        match moved {
            0 => Progress::Idle,
            _ => Progress::Busy,
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.held.due()
    }

    fn release(&mut self, ports: &mut Ports<'_>) {
        for lane in LANES {
            let (input, output) = queues(lane, ports);
            while let Some(step) = self.owed[lane as usize].pop_front() {
                output.push_past_bound(step);
            }
            for step in self.held.take_all(lane).into_iter().rev() {
                input.put_back(step);
            }
        }
    }

    fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        SavedState {
            kind: self.parts.kind.to_owned(),
            version: STATE_VERSION,
            bytes: self.saved_bytes(),
        }
    }
}

// Steps.
impl<F: Filter> Sieve<F> {
    fn forward(&mut self, lane: Lane, ports: &mut Ports<'_>, context: &mut Context<'_>) -> usize {
        let mut moved = 0;
        while moved < BATCH_STEPS && self.fault.is_none() && self.may_deny() {
            let (input, output) = queues(lane, ports);
            if output.is_full() {
                break;
            }
            let Some(step) = input.pop() else { break };
            self.take(lane, step, None, ports, context);
            moved += 1;
        }
        moved
    }

    /// Deals with one step. There is room in the lane's output.
    fn take(
        &mut self,
        lane: Lane,
        mut step: Step,
        held_since: Option<Nanos>,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        let ends = step.parts.intersects(Parts::STATUS | Parts::CANCEL);
        if !self.held.is_empty() && held_since.is_none() {
            if step.parts.contains(Parts::CANCEL) {
                if self.drop_held(lane, step.call, context) == Begun::No {
                    // Nobody behind this engine has heard of the call.
                    self.end_call(&step, self.direction(lane), context.now);
                    step.body.discard(context);
                    return;
                }
            } else if self.held.holds(lane, step.call) {
                self.hold(lane, step, context.now, Nanos::MAX, ports, context);
                return;
            }
        }
        let direction = self.direction(lane);
        match self.judge(&mut step, direction, held_since, context) {
            Verdict::Pass => {
                if ends {
                    self.end_call(&step, direction, context.now);
                }
                // Cannot be refused: the caller saw the room.
                let _ = queues(lane, ports).1.push(step);
            }
            Verdict::Deny(denial) => self.deny(lane, step, &denial, ports, context),
            Verdict::Hold { until } => {
                let since = held_since.unwrap_or(context.now);
                self.hold(lane, step, since, until, ports, context);
            }
            Verdict::Fault(reason) => {
                match held_since {
                    // What follows it of its call is put behind it.
                    Some(since) => self.hold(lane, step, since, context.now, ports, context),
                    None => queues(lane, ports).0.put_back(step),
                }
                self.fault = Some(reason);
            }
        }
    }

    fn judge(
        &mut self,
        step: &mut Step,
        direction: Direction,
        held_since: Option<Nanos>,
        context: &mut Context<'_>,
    ) -> Verdict {
        let watched = match direction {
            Direction::Request => self.watch.requests,
            Direction::Response => self.watch.responses,
        };
        let begins = step.parts.contains(Parts::BEGIN);
        let is_watched = watched.intersects(step.parts);
        let SieveParts { site, filter, .. } = &mut self.parts;
        let mut untracked = Call {
            method: step.method,
            begun_at: context.now,
            state: F::Call::default(),
        };
        let call = match self.tracking {
            Tracking::None if !is_watched || !site.applies_to(step.method) => return Verdict::Pass,
            Tracking::None => &mut untracked,
            Tracking::Calls if begins && held_since.is_none() => {
                if !site.applies_to(step.method) {
                    return Verdict::Pass;
                }
                self.calls.entry(step.call).or_insert(untracked)
            }
            Tracking::Calls => match self.calls.get_mut(&step.call) {
                Some(call) => call,
                None => return Verdict::Pass,
            },
        };
        if !is_watched {
            return Verdict::Pass;
        }
        let mut view = StepView {
            step,
            receive: &mut *context.receive,
            buffers: &mut *context.buffers,
            site,
            now: context.now,
            direction,
            method: call.method,
            begun_at: call.begun_at,
            held_since,
        };
        filter.judge(&mut call.state, &mut view)
    }

    fn direction(&self, lane: Lane) -> Direction {
        match (self.parts.site.side, lane) {
            (Side::Client, Lane::Tx) | (Side::Server, Lane::Rx) => Direction::Request,
            (Side::Client, Lane::Rx) | (Side::Server, Lane::Tx) => Direction::Response,
        }
    }

    fn end_call(&mut self, step: &Step, direction: Direction, at: Nanos) {
        if self.tracking == Tracking::None {
            return;
        }
        if let Some(call) = self.calls.remove(&step.call) {
            let end = Ended {
                code: step.status,
                at,
                cancelled: step.parts.contains(Parts::CANCEL),
                direction,
            };
            self.parts.filter.ended(call.state, &end);
        }
    }
}

// Ends of calls by the filter's verdict.
impl<F: Filter> Sieve<F> {
    /// Whether the cancellations of one more call could be kept.
    fn may_deny(&self) -> bool {
        self.owed.iter().all(|owed| owed.len() < OWED_STEPS_MAX)
    }

    fn deny(
        &mut self,
        lane: Lane,
        step: Step,
        denial: &Denial,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        let (call, parts) = (step.call, step.parts);
        let begins = parts.contains(Parts::BEGIN);
        let ends = parts.intersects(Parts::STATUS | Parts::CANCEL);
        let direction = self.direction(lane);
        step.body.discard(context);
        let begun = self.drop_held(lane, call, context);
        if let Some(known) = self.calls.remove(&call)
            && !begins
            && begun == Begun::Yes
        {
            let end = Ended {
                code: denial.code,
                at: context.now,
                cancelled: true,
                direction,
            };
            self.parts.filter.ended(known.state, &end);
        }
        // Whom the step was for has not heard of a call that it begins; for a peer that ends a call it is over.
        let (tell_app, tell_peer) = match lane {
            Lane::Tx => (true, !begins),
            Lane::Rx => (!begins, !ends),
        };
        let client_is_app = self.parts.site.side == Side::Client;
        if tell_app {
            let step = cancel(call, denial, client_is_app, context);
            self.owe(Lane::Rx, step, ports);
        }
        if tell_peer {
            let step = cancel(call, denial, !client_is_app, context);
            self.owe(Lane::Tx, step, ports);
        }
    }

    fn owe(&mut self, lane: Lane, step: Step, ports: &mut Ports<'_>) {
        let owed = &mut self.owed[lane as usize];
        let output = queues(lane, ports).1;
        if !owed.is_empty() {
            owed.push_back(step);
        } else if let Err(full) = output.push(step) {
            owed.push_back(full.0);
        }
    }

    fn send_owed(&mut self, ports: &mut Ports<'_>) -> usize {
        let mut moved = 0;
        for lane in LANES {
            let output = queues(lane, ports).1;
            while !output.is_full()
                && let Some(step) = self.owed[lane as usize].pop_front()
            {
                let _ = output.push(step);
                moved += 1;
            }
        }
        moved
    }
}

// Calls that wait.
impl<F: Filter> Sieve<F> {
    fn hold(
        &mut self,
        lane: Lane,
        step: Step,
        since: Nanos,
        until: Nanos,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        // Not again in this poll.
        let until = until.max(context.now + 1);
        if let Err(step) = self.held.add(lane, step, since, until) {
            let reason = "too many calls wait at a policy: try again later";
            let denial = Denial::new(Code::ResourceExhausted, reason);
            self.deny(lane, step, &denial, ports, context);
        }
    }

    /// Judges the calls whose time has come again, in the order of their times.
    fn judge_held(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> usize {
        let mut moved = 0;
        while self.fault.is_none()
            && self.may_deny()
            && let Some(mut call) = self.held.pop_due(context.now)
        {
            // The first step is judged again, the rest as they come.
            let (lane, id, mut since) = (call.lane, call.call, call.since);
            while !queues(lane, ports).1.is_full()
                && self.fault.is_none()
                && !self.held.holds(lane, id)
                && let Some(step) = call.steps.pop_front()
            {
                self.take(lane, step, Some(since), ports, context);
                since = context.now;
                moved += 1;
            }
            self.held.put_behind(call, context.now + 1);
        }
        moved
    }

    /// Forgets what is held of a call, and says whether its beginning had passed.
    fn drop_held(&mut self, lane: Lane, call: u64, context: &mut Context<'_>) -> Begun {
        let mut begun = Begun::Yes;
        let opposite = match lane {
            Lane::Tx => Lane::Rx,
            Lane::Rx => Lane::Tx,
        };
        for from in [lane, opposite] {
            for step in self.held.remove(from, call) {
                if from == lane && step.parts.contains(Parts::BEGIN) {
                    begun = Begun::No;
                }
                step.body.discard(context);
            }
        }
        begun
    }
}

/// Whether the beginning of a call has gone past the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Begun {
    Yes,
    No,
}

fn queues<'q>(lane: Lane, ports: &'q mut Ports<'_>) -> (&'q mut Queue<Step>, &'q mut Queue<Step>) {
    match lane {
        Lane::Tx => (&mut *ports.tx_in, &mut *ports.tx_out),
        Lane::Rx => (&mut *ports.rx_in, &mut *ports.rx_out),
    }
}

/// A cancellation: the client learns of the verdict, the server that the call is no longer wanted.
fn cancel(call: u64, denial: &Denial, for_client: bool, context: &mut Context<'_>) -> Step {
    if !for_client {
        return Step::cancel(call, Code::Cancelled);
    }
    let mut buffer = context.buffers.take();
    // What does not fit is left out; the code says the most of it.
    let _ = metadata::append(&mut buffer.bytes, STATUS_MESSAGE, denial.reason.as_bytes());
    if let Some(milliseconds) = denial.retry_pushback_ms {
        let _ = metadata::append(
            &mut buffer.bytes,
            RETRY_PUSHBACK,
            milliseconds.to_string().as_bytes(),
        );
    }
    let metadata_bytes = buffer.bytes.len() as u32;
    buffer.bytes.resize(message_offset(metadata_bytes), 0);
    Step {
        body: Body::Encoded(EncodedBody {
            buffer,
            metadata_bytes,
            message_bytes: 0,
        }),
        ..Step::cancel(call, denial.code)
    }
}

// Saved state, version 1, little-endian:
//   filter state: version u32, length u32, bytes
//   calls: count u32, each: call u64, begun_at u64, method u16, length u16, bytes
impl<F: Filter> Sieve<F> {
    fn saved_bytes(&self) -> Vec<u8> {
        let FilterState { version, bytes } = self.parts.filter.save();
        let mut out = Vec::new();
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&bytes);
        out.extend_from_slice(&(self.calls.len() as u32).to_le_bytes());
        let mut state = Vec::new();
        for (id, call) in &self.calls {
            state.clear();
            call.state.save(&mut state);
            // A state that is too long to be saved begins anew in the successor.
            let length = u16::try_from(state.len()).unwrap_or_default();
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&call.begun_at.to_le_bytes());
            out.extend_from_slice(&call.method.to_le_bytes());
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(&state[..usize::from(length)]);
        }
        out
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let kind = self.parts.kind;
        if saved.kind != kind {
            return Err(RestoreError::Kind {
                expected: kind,
                found: saved.kind.clone(),
            });
        }
        if saved.version != STATE_VERSION {
            return Err(RestoreError::Version {
                kind,
                found: saved.version,
                newest: STATE_VERSION,
            });
        }
        let damaged = |reason: &str| RestoreError::Damaged {
            kind,
            reason: reason.to_owned(),
        };
        let mut reader = Reader(&saved.bytes);
        let state = reader.filter_state().ok_or_else(|| damaged("it ends early"))?;
        self.parts.filter.restore(&state)?;
        let count = reader.u32().ok_or_else(|| damaged("it ends early"))?;
        for _ in 0..count {
            let (id, call, state) = reader.call().ok_or_else(|| damaged("it ends early"))?;
            let state = F::Call::load(state).ok_or_else(|| damaged("a call's state makes no sense"))?;
            let call = Call {
                method: call.method,
                begun_at: call.begun_at,
                state,
            };
            if self.tracking == Tracking::Calls {
                self.calls.insert(id, call);
            }
        }
        match reader.0.is_empty() {
            true => Ok(()),
            false => Err(damaged("bytes are left over")),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn filter_state(&mut self) -> Option<FilterState> {
        let version = self.u32()?;
        let length = self.u32()?;
        let bytes = self.take(length as usize)?.to_vec();
        Some(FilterState { version, bytes })
    }

    fn call(&mut self) -> Option<(u64, Call<()>, &'a [u8])> {
        let id = self.u64()?;
        let begun_at = self.u64()?;
        let method = self.u16()?;
        let length = self.u16()?;
        let state = self.take(usize::from(length))?;
        let state_of = Call {
            method,
            begun_at,
            state: (),
        };
        Some((id, state_of, state))
    }
}
