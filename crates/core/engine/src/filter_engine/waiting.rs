//! Calls that a filter engine's filter lets wait.

use provost_datapath::{Context, Nanos, Ports, Step};

use super::denial::{By, too_many_wait};
use super::held::{HeldCall, Wait};
use super::{BATCH_STEPS, DIRECTIONS, FilterEngine, HELD_STEPS_MAX, Outcome, QueueDirection, queues};
use crate::Parts;
use crate::filter::Filter;

/// Whether the beginning of a call has gone past the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begun {
    Yes,
    No,
}

impl<F: Filter> FilterEngine<F> {
    /// Lets a step wait that was judged.
    pub(super) fn wait(
        &mut self,
        queue_direction: QueueDirection,
        step: Step,
        wait: Wait,
        ports: &mut Ports<'_>,
        context: &mut Context<'_>,
    ) {
        if self.may_hold() {
            self.held[queue_direction as usize].add(step, wait.not_before(context.now + 1))
        } else {
            self.deny(
                queue_direction,
                step,
                &too_many_wait(),
                By::FilterEngine,
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
                &too_many_wait(),
                By::FilterEngine,
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
                Outcome::Passed => {}
                Outcome::Denied => {
                    held.rest.into_iter().for_each(|step| step.body.discard(context));
                    return moved;
                }
                Outcome::Held { step, until } => {
                    held.first = step;
                    let since = since.unwrap_or(context.now);
                    held.wait = Wait::Verdict { since, until }.not_before(context.now + 1);
                    self.held[queue_direction as usize].insert(held);
                    return moved;
                }
                Outcome::Unjudged(step) => {
                    held.first = step;
                    self.held[queue_direction as usize].insert(held);
                    return moved;
                }
            }
            let Some(next) = held.rest.pop_front() else {
                return moved;
            };
            held.first = next;
            held.wait = Wait::Room;
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
    ) -> Begun {
        let mut begun = Begun::Yes;
        for from in [queue_direction, queue_direction.opposite()] {
            let held = &mut self.held[from as usize];
            if held.is_empty() {
                continue;
            }
            let Some(held) = held.remove(call) else { continue };
            if let Some(since) = held.wait.since() {
                self.waited(since, context.now);
            }
            if from == queue_direction && held.first.parts.contains(Parts::BEGIN) {
                begun = Begun::No;
            }
            held.first.body.discard(context);
            held.rest.into_iter().for_each(|step| step.body.discard(context));
        }
        begun
    }
}

impl Wait {
    /// So that nothing is judged twice in one poll.
    fn not_before(self, at: Nanos) -> Wait {
        match self {
            Wait::Verdict { since, until } => Wait::Verdict {
                since,
                until: until.max(at),
            },
            Wait::Room => Wait::Room,
        }
    }

    const fn since(self) -> Option<Nanos> {
        match self {
            Wait::Verdict { since, .. } => Some(since),
            Wait::Room => None,
        }
    }
}
