//! Calls that a filter engine's filter lets wait.

use provost_datapath::{Context, Nanos, Ports, Step};

use super::denial::{DeniedBy, too_many_wait};
use super::held::{CallWait, HeldCall};
use super::{BATCH_STEPS, DIRECTIONS, FilterEngine, HELD_STEPS_MAX, QueueDirection, StepOutcome, queues};
use crate::Parts;
use crate::filter::Filter;

/// Whether the beginning of a call has gone past the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallBeginning {
    Yes,
    No,
}

impl<F: Filter> FilterEngine<F> {
    /// Lets a step wait that was judged.
    pub(super) fn wait(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        wait: CallWait,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        if self.may_hold() {
            self.held[queue_direction as usize].add(step, wait.not_before(context.now + 1))
        } else {
            self.deny(
                queue_direction,
                step,
                &too_many_wait(self.parts.kind),
                DeniedBy::FilterEngine,
                ports,
                context,
            )
        }
    }

    /// Lets a step wait behind another one of its call.
    pub(super) fn wait_behind(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        if self.may_hold() {
            self.held[queue_direction as usize].add_behind(step)
        } else {
            self.deny(
                queue_direction,
                step,
                &too_many_wait(self.parts.kind),
                DeniedBy::FilterEngine,
                ports,
                context,
            )
        }
    }

    fn may_hold(&self) -> bool {
        DIRECTIONS
            .into_iter()
            .map(|queue_direction| self.held[queue_direction as usize].steps())
            .sum::<usize>()
            < HELD_STEPS_MAX
    }

    /// Judges the calls whose time has come again.
    pub(super) fn judge_held(
        &mut self,
        queue_direction: QueueDirection,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) -> usize {
        let mut moved = 0;
        self.blocked[queue_direction as usize] = false;
        while moved < BATCH_STEPS
            && self.held[queue_direction as usize]
                .due()
                .is_some_and(|due| due <= context.now)
        {
            if !self.may_judge() || queues(queue_direction, ports).1.is_full() {
                self.blocked[queue_direction as usize] = true;
                break;
            }
            let Some(held) = self.held[queue_direction as usize].take_due(context.now) else {
                break;
            };
            moved += 1;
            moved += self.judge_again(queue_direction, held, ports, context);
        }
        moved
    }

    /// Judges a call's first step again and then the rest as they come, and says how many of these went on. There is
    /// room for one step.
    fn judge_again(
        &mut self,
        queue_direction: QueueDirection,
        mut held: HeldCall,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) -> usize {
        let mut moved = 0;
        loop {
            let since = held.wait.since();
            let verdict = self.judge(&mut held.first, self.direction(queue_direction), since, context);
            match self.conclude(queue_direction, held.first, verdict, since, ports, context) {
                StepOutcome::Passed => {}
                StepOutcome::Denied => {
                    held.rest.into_iter().for_each(|step| step.body.discard(context));
                    return moved;
                }
                StepOutcome::Held { step, until } => {
                    held.first = step;
                    let since = since.unwrap_or(context.now);
                    held.wait = CallWait::Verdict { since, until }.not_before(context.now + 1);
                    self.held[queue_direction as usize].insert(held);
                    return moved;
                }
                StepOutcome::Unjudged(step) => {
                    held.first = step;
                    self.held[queue_direction as usize].insert(held);
                    return moved;
                }
            }
            let Some(next) = held.rest.pop_front() else {
                return moved;
            };
            held.first = next;
            held.wait = CallWait::Room;
            if queues(queue_direction, ports).1.is_full() || !self.may_judge() {
                self.held[queue_direction as usize].insert(held);
                return moved;
            }
            moved += 1;
        }
    }

    /// Forgets what waits of a call in either queue direction, and says whether its beginning had gone past the engine in this
    /// one.
    pub(super) fn drop_held(
        &mut self,
        queue_direction: QueueDirection,
        call: u64,
        context: &mut Context<'_>,
    ) -> CallBeginning {
        let mut begun = CallBeginning::Yes;
        for from in [queue_direction, queue_direction.opposite()] {
            let held = &mut self.held[from as usize];
            if held.is_empty() {
                continue;
            }
            let Some(held) = held.remove(call) else { continue };
            if let Some(since) = held.wait.since() {
                self.waited(held.first.method, since, context.now);
            }
            if from == queue_direction && held.first.parts.contains(Parts::BEGIN) {
                begun = CallBeginning::No;
            }
            held.first.body.discard(context);
            held.rest.into_iter().for_each(|step| step.body.discard(context));
        }
        begun
    }
}

impl CallWait {
    /// So that nothing is judged twice in one poll.
    fn not_before(self, at: Nanos) -> CallWait {
        match self {
            CallWait::Verdict { since, until } => CallWait::Verdict {
                since,
                until: until.max(at),
            },
            CallWait::Room => CallWait::Room,
        }
    }

    const fn since(self) -> Option<Nanos> {
        match self {
            CallWait::Verdict { since, .. } => Some(since),
            CallWait::Room => None,
        }
    }
}
