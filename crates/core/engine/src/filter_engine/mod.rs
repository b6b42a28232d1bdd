//! The engine around a filter: queues, held and denied calls, saved state.
//!
//! ```text
//! tx_in ─► judge ─► tx_out      A denied step becomes cancellations towards whoever knows the call; a held one waits
//! rx_out ◄─ judge ◄─ rx_in      in `held`, and what follows it of the same call behind it.
//! ```
//!
//! Calls that began before the filter was there are not known to it, and pass.

mod denial;
mod held;
mod state;
mod waiting;

use std::borrow::Cow;
use std::collections::VecDeque;

use provost_datapath::{
    CallTable, Context, EgressEvents, Engine, Nanos, Ports, Progress, Queue, RestoreError, SavedState, Saver,
    Step,
};

use crate::filter::{Denial, Ended, Filter, Verdict, Watch};
use crate::view::{LocalStep, StepSource, StepView, UnreadableMessage};
use crate::{DatapathContext, Direction, Parts, Side};
use denial::DeniedBy;
use held::{CallWait, DeniedCalls, HeldCalls};
use waiting::CallBeginning;

/// Steps that one poll moves in each direction, at most.
const BATCH_STEPS: usize = 64;
/// Steps that a filter engine holds, at most; a call that would need more is denied.
pub const HELD_STEPS_MAX: usize = 4096;
/// Cancellations that wait for room in one direction, at most: past it nothing is judged.
const PENDING_STEPS_MAX: usize = 64;
/// Calls that a new table has room for.
const CALLS_AT_START: usize = 64;

/// What a [`FilterEngine`] is made of.
pub struct FilterEngineParts<F> {
    /// [`Engine::kind`], such as `rate-limit`.
    pub kind: &'static str,
    /// [`Engine::version`].
    pub version: u32,
    /// Where it is.
    pub datapath_context: DatapathContext,
    /// What judges.
    pub filter: F,
}

/// The engine of a [`Filter`] on one datapath.
pub struct FilterEngine<F: Filter> {
    parts: FilterEngineParts<F>,
    watch: Watch,
    remembers: Remembers,
    calls: CallTable<SeenCall<F::Call>>,
    held: [HeldCalls; 2],
    denied: DeniedCalls,
    pending: [VecDeque<Step>; 2],
    /// Directions in which a call's time has come, but there is no room.
    blocked: [bool; 2],
    fault: Option<Cow<'static, str>>,
}

/// Which calls a filter engine keeps in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remembers {
    /// None: only what begins a call is judged.
    Nothing,
    /// Those whose requests come in more than one step: only requests are judged.
    Streams,
    /// All.
    Calls,
}

impl Remembers {
    fn of(watch: Watch) -> Remembers {
        match watch {
            _ if watch.calls || watch.responses != Parts::NONE => Remembers::Calls,
            _ if Parts::BEGIN.contains(watch.requests) => Remembers::Nothing,
            _ => Remembers::Streams,
        }
    }

    /// Whether a call that begins with such a step is kept.
    fn keeps(self, parts: Parts) -> bool {
        match self {
            Remembers::Nothing => false,
            Remembers::Streams => !parts.contains(Parts::END),
            Remembers::Calls => true,
        }
    }
}

/// A call in flight whose beginning has been seen.
struct SeenCall<S> {
    method: u16,
    begun_at: Nanos,
    state: S,
}

/// Which queues a step goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueDirection {
    /// From the app to the wire.
    Tx = 0,
    /// From the wire to the app.
    Rx = 1,
}

const DIRECTIONS: [QueueDirection; 2] = [QueueDirection::Tx, QueueDirection::Rx];

impl QueueDirection {
    const fn opposite(self) -> QueueDirection {
        match self {
            QueueDirection::Tx => QueueDirection::Rx,
            QueueDirection::Rx => QueueDirection::Tx,
        }
    }
}

/// How a step came to be judged.
#[derive(Clone, Copy)]
struct JudgedAt {
    direction: Direction,
    held_since: Option<Nanos>,
}

/// Why a step does not simply pass.
enum StopReason {
    /// What has become of its call before decides on it, or may do so.
    Special,
    /// The filter has judged it otherwise.
    Verdict(Verdict),
}

/// What became of a step.
enum StepOutcome {
    /// It went on.
    Passed,
    /// Its call has ended.
    Denied,
    /// It waits.
    Held { step: Step, until: Nanos },
    /// It was not judged.
    Unjudged(Step),
}

impl<F: Filter> FilterEngineParts<F> {
    #[inline]
    fn ask(
        &mut self,
        call: &mut SeenCall<F::Call>,
        step: &mut Step,
        at: JudgedAt,
        context: &mut Context<'_>,
    ) -> Verdict {
        let mut view = StepView {
            source: StepSource::Local(LocalStep::new(step, &mut *context.receive, &mut *context.buffers)),
            datapath_context: &self.datapath_context,
            now: context.now,
            direction: at.direction,
            method: call.method,
            begun_at: call.begun_at,
            held_since: at.held_since,
        };
        let verdict = self.filter.judge(&mut call.state, &mut view);
        match (view.finish(), verdict) {
            // What could not be read was not judged.
            (Some(error), Verdict::Pass) => unreadable(error),
            (_, verdict) => verdict,
        }
    }
}

/// The verdict on a message that a filter has read in vain.
#[cold]
fn unreadable(error: UnreadableMessage) -> Verdict {
    let reason = match &error {
        UnreadableMessage::Protobuf(_) => format!("the message is malformed, and a policy reads it: {error}"),
        UnreadableMessage::Compressed(_) => format!("a policy reads the message, and cannot: {error}"),
    };
    Verdict::Deny(Denial::new(error.code(), reason))
}

impl<F: Filter> FilterEngine<F> {
    /// A filter engine that knows no call yet.
    #[must_use]
    pub fn new(parts: FilterEngineParts<F>) -> FilterEngine<F> {
        let watch = parts.filter.watch();
        FilterEngine {
            watch,
            remembers: Remembers::of(watch),
            calls: CallTable::with_capacity(CALLS_AT_START),
            held: Default::default(),
            denied: DeniedCalls::default(),
            pending: [VecDeque::new(), VecDeque::new()],
            blocked: [false; 2],
            fault: None,
            parts,
        }
    }

    /// A filter engine that continues from what an engine of the same kind saved, in whatever version; a new one without.
    pub fn start(
        parts: FilterEngineParts<F>,
        saved: Option<&SavedState>,
    ) -> Result<FilterEngine<F>, RestoreError> {
        let mut filter_engine = FilterEngine::new(parts);
        if let Some(saved) = saved {
            filter_engine.restore(saved)?;
        }
        Ok(filter_engine)
    }

    /// What judges.
    #[must_use]
    pub fn filter(&self) -> &F {
        &self.parts.filter
    }
}

impl<F: Filter> Engine for FilterEngine<F> {
    fn kind(&self) -> &'static str {
        self.parts.kind
    }

    fn version(&self) -> u32 {
        self.parts.version
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut moved = self.send_pending(&mut ports);
        for queue_direction in DIRECTIONS {
            moved += self.judge_held(queue_direction, &mut ports, context);
            moved += self.forward(queue_direction, &mut ports, context);
        }
        match moved {
            0 => Progress::Idle,
            _ => Progress::Busy,
        }
    }

    fn rests(&self) -> bool {
        let is_empty = |queue_direction: QueueDirection| {
            self.pending[queue_direction as usize].is_empty()
                && self.held[queue_direction as usize].is_empty()
        };
        self.fault.is_none() && DIRECTIONS.into_iter().all(is_empty)
    }

    fn wake_at(&self) -> Option<Nanos> {
        // Who makes room for a blocked queue direction is busy then, and so everybody is polled again.
        let queue_directions = DIRECTIONS
            .into_iter()
            .filter(|queue_direction| !self.blocked[*queue_direction as usize]);
        let due = queue_directions
            .filter_map(|queue_direction| self.held[queue_direction as usize].due())
            .min();
        due.filter(|_| self.fault.is_none())
    }

    fn release(&mut self, ports: &mut Ports<'_>) {
        for queue_direction in DIRECTIONS {
            let (input, output) = queues(queue_direction, ports);
            while let Some(step) = self.pending[queue_direction as usize].pop_front() {
                output.push_past_bound(step);
            }
            for step in self.held[queue_direction as usize].take_all().rev() {
                input.put_back(step);
            }
        }
    }

    fn held(&self) -> usize {
        self.held.iter().map(|held| held.steps()).sum()
    }

    fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    fn on_egress(&mut self, egress_events: &EgressEvents<'_>) {
        self.parts.filter.on_egress(egress_events);
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        self.saved()
    }
}

// Steps as they come.
impl<F: Filter> FilterEngine<F> {
    /// Moves what waits in a queue direction, a batch at most. What passes is judged in its place and goes on together.
    fn forward(
        &mut self,
        queue_direction: QueueDirection,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) -> usize {
        if self.is_indifferent(queue_direction) {
            let (input, output) = queues(queue_direction, ports);
            return input.transfer(output, BATCH_STEPS);
        }
        let mut moved = 0;
        while self.may_judge() {
            let (input, output) = queues(queue_direction, ports);
            let count = input.len().min(output.room()).min(BATCH_STEPS - moved);
            if count == 0 {
                break;
            }
            let (passing, stop) = self.judge_run(queue_direction, input.iter_mut().take(count), context);
            moved += input.transfer(output, passing);
            if let Some(stop) = stop
                && let Some(step) = input.pop()
            {
                moved += 1;
                match stop {
                    StopReason::Special => self.take(queue_direction, step, ports, context),
                    StopReason::Verdict(verdict) => {
                        self.take_judged(queue_direction, step, verdict, ports, context)
                    }
                }
            }
        }
        moved
    }

    /// Whether all steps of a queue direction go on, whatever they are: answers at which nobody looks, while nothing is known of any
    /// call. (Of what goes the other way, each beginning counts.)
    fn is_indifferent(&self, queue_direction: QueueDirection) -> bool {
        self.watch.responses == Parts::NONE
            && self.direction(queue_direction) == Direction::Response
            && self.calls.is_empty()
            && self.is_plain()
            && self.fault.is_none()
    }

    /// Whether no step waits here, and none belongs to a call that was denied in its midst.
    fn is_plain(&self) -> bool {
        self.denied.is_empty() && self.held.iter().all(HeldCalls::is_empty)
    }

    /// Judges steps until one does not simply pass. Says how many do, and what is with the one behind them.
    #[inline]
    fn judge_run<'s>(
        &mut self,
        queue_direction: QueueDirection,
        steps: impl Iterator<Item = &'s mut Step>,
        context: &mut Context<'_>,
    ) -> (usize, Option<StopReason>) {
        let direction = self.direction(queue_direction);
        let may_be_special = !self.is_plain();
        let mut passing = 0;
        for step in steps {
            if may_be_special && self.is_special(queue_direction, step) {
                return (passing, Some(StopReason::Special));
            }
            let verdict = self.judge(step, direction, None, context);
            if !passes(&verdict, step) {
                return (passing, Some(StopReason::Verdict(verdict)));
            }
            if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
                self.end_call(step, direction, context.now);
            }
            passing += 1;
        }
        (passing, None)
    }

    /// Whether what has become of its call before decides on a step, or may do so.
    fn is_special(&self, queue_direction: QueueDirection, step: &Step) -> bool {
        step.parts.contains(Parts::CANCEL)
            || self.denied.contains(step.call)
            || self.held[queue_direction as usize].holds(step.call)
    }

    /// Whether nothing has failed, and the cancellations of one more call could be kept.
    fn may_judge(&self) -> bool {
        self.fault.is_none()
            && self
                .pending
                .iter()
                .all(|pending| pending.len() < PENDING_STEPS_MAX)
    }

    /// Deals with a step that has come. There is room in the queue direction's output.
    fn take(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        if self.denied.contains(step.call) {
            if !step.parts.contains(Parts::BEGIN) {
                step.body.discard(context);
                return;
            }
            self.denied.forget(step.call);
        }
        let cancels = step.parts.contains(Parts::CANCEL);
        if cancels && self.drop_held(queue_direction, step.call, context) == CallBeginning::No {
            // Nobody behind this engine has heard of the call.
            self.end_call(&step, self.direction(queue_direction), context.now);
            step.body.discard(context);
        } else if self.held[queue_direction as usize].holds(step.call) {
            self.wait_behind(queue_direction, step, ports, context);
        } else {
            let mut step = step;
            let verdict = self.judge(&mut step, self.direction(queue_direction), None, context);
            self.take_judged(queue_direction, step, verdict, ports, context);
        }
    }

    /// Deals with a step that has come and was judged. There is room in the queue direction's output.
    fn take_judged(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        verdict: Verdict,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        match self.conclude(queue_direction, step, verdict, None, ports, context) {
            StepOutcome::Passed | StepOutcome::Denied => {}
            StepOutcome::Held { step, until } => {
                let since = context.now;
                self.wait(
                    queue_direction,
                    step,
                    CallWait::Verdict { since, until },
                    ports,
                    context,
                );
            }
            StepOutcome::Unjudged(step) => queues(queue_direction, ports).0.put_back(step),
        }
    }

    /// Does with a step as its verdict says. There is room in the queue direction's output.
    fn conclude(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        verdict: Verdict,
        held_since: Option<Nanos>,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) -> StepOutcome {
        if passes(&verdict, &step) {
            if let Some(since) = held_since {
                self.waited(step.method, since, context.now);
            }
            if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
                self.end_call(&step, self.direction(queue_direction), context.now);
            }
            // Cannot be refused: the caller saw the room.
            let _ = queues(queue_direction, ports).1.push(step);
            return StepOutcome::Passed;
        }
        match verdict {
            Verdict::Fault(reason) => {
                self.fault = Some(reason);
                StepOutcome::Unjudged(step)
            }
            Verdict::Deny(denial) => {
                if let Some(since) = held_since {
                    self.waited(step.method, since, context.now);
                }
                self.deny(queue_direction, step, &denial, DeniedBy::Filter, ports, context);
                StepOutcome::Denied
            }
            Verdict::Hold { until } => {
                if held_since.is_none() {
                    self.parts.datapath_context.verdicts.held();
                }
                StepOutcome::Held { step, until }
            }
            Verdict::Pass => StepOutcome::Passed,
        }
    }

    #[inline]
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
        let is_watched = watched.intersects(step.parts);
        let at = JudgedAt {
            direction,
            held_since,
        };
        if step.parts.contains(Parts::BEGIN) {
            if !self.parts.datapath_context.applies_to(step.method) {
                return Verdict::Pass;
            }
            let verdict = self.judge_beginning(step, is_watched, at, context);
            if matches!(verdict, Verdict::Pass) {
                self.parts.datapath_context.verdicts.passed();
            }
            return verdict;
        }
        if !is_watched || self.calls.is_empty() {
            return Verdict::Pass;
        }
        match self.calls.get_mut(step.call) {
            Some(call) => self.parts.ask(call, step, at, context),
            None => Verdict::Pass,
        }
    }

    #[inline]
    fn judge_beginning(
        &mut self,
        step: &mut Step,
        is_watched: bool,
        at: JudgedAt,
        context: &mut Context<'_>,
    ) -> Verdict {
        let fresh = || SeenCall {
            method: step.method,
            begun_at: at.held_since.unwrap_or(context.now),
            state: F::Call::default(),
        };
        if self.remembers.keeps(step.parts) {
            let call = self.calls.get_or_insert_with(step.call, fresh);
            return match call {
                Some(call) if is_watched => self.parts.ask(call, step, at, context),
                _ => Verdict::Pass,
            };
        }
        if !is_watched {
            return Verdict::Pass;
        }
        let mut call = fresh();
        let verdict = self.parts.ask(&mut call, step, at, context);
        self.parts.filter.forget(call.state);
        verdict
    }

    /// What was held of a call of this method goes on, or its call has ended.
    fn waited(&self, method: u16, since: Nanos, now: Nanos) {
        let datapath = &self.parts.datapath_context;
        let path = datapath
            .methods
            .get(usize::from(method))
            .map(|method| &method.path);
        datapath.verdicts.waited(path, now.saturating_sub(since));
    }

    fn direction(&self, queue_direction: QueueDirection) -> Direction {
        match (self.parts.datapath_context.side, queue_direction) {
            (Side::Client, QueueDirection::Tx) | (Side::Server, QueueDirection::Rx) => Direction::Request,
            (Side::Client, QueueDirection::Rx) | (Side::Server, QueueDirection::Tx) => Direction::Response,
        }
    }

    fn end_call(&mut self, step: &Step, direction: Direction, at: Nanos) {
        if self.calls.is_empty() {
            return;
        }
        if let Some(call) = self.calls.remove(step.call) {
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

/// Whether a step goes on that was judged so: who gives a call up cannot be kept from it.
fn passes(verdict: &Verdict, step: &Step) -> bool {
    match verdict {
        Verdict::Pass => true,
        Verdict::Fault(_) => false,
        Verdict::Deny(_) | Verdict::Hold { .. } => step.parts.contains(Parts::CANCEL),
    }
}

fn queues<'q>(
    queue_direction: QueueDirection,
    ports: &'q mut Ports<'_>,
) -> (&'q mut Queue<Step>, &'q mut Queue<Step>) {
    match queue_direction {
        QueueDirection::Tx => (&mut *ports.tx_in, &mut *ports.tx_out),
        QueueDirection::Rx => (&mut *ports.rx_in, &mut *ports.rx_out),
    }
}
