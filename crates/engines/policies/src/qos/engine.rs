//! The engine of one datapath.
//!
//! ```text
//! tx_in ─┬─ small, or nobody else has anything ─────────────────────────► tx_out
//!        └─ large, or behind a large one of its call ─► waiting ─ credit ─►
//! rx_in ────────────────────────────────────────────────────────────────► rx_out   (only looked at)
//! ```
//!
//! A datapath that has seen a large message lately takes part in its runtime's rounds: in each it gets credit, its share
//! of what large messages may move, and tells the transport to move no more than that.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use provost_datapath::{Body, CallHash, CallMap, FieldWriter};
use provost_engine::{
    Context, DatapathContext, DeclaredEngine, Engine, Nanos, Parts, PolicyEngine, Ports, Progress,
    RestoreError, SavedState, Saver, Step,
};

use crate::qos::board::RuntimeBoard;
use crate::qos::config::BULK_BYTES_MAX;
use crate::qos::policy::QosShared;
use crate::qos::waiting::{HeadStep, WaitingSteps};
use crate::qos::{KIND, VERSION};

/// Version of the form of the saved state.
const STATE_VERSION: u32 = 1;
/// Steps that one poll moves in each direction, at most.
const BATCH_STEPS: usize = 64;
/// Steps that wait here, at most; more wait in the input queue.
const WAITING_STEPS_MAX: usize = 1024;
/// Steps that the next engine may have left behind from the last poll: while there are more, what it cannot take waits
/// here, where a small one gets past it.
const LEFT_BEHIND_MAX: usize = 4;
/// Least share of a datapath, in bytes: less costs more in polls than it gives the others.
const SHARE_BYTES_MIN: u32 = 16 << 10;
/// Rounds that a message can cost, at most, however large it is.
const DEBT_ROUNDS_MAX: i64 = 2;
/// Calls with a deadline that are kept in mind, at most; those beyond count as having none.
const DEADLINES_MAX: usize = 1 << 16;

pub(crate) struct QosEngine {
    shared: Arc<QosShared>,
    board: Arc<RuntimeBoard>,
    datapath_context: DatapathContext,
    weight: u32,
    /// Of calls that have one: a response does not say its call's.
    deadlines: CallMap<Nanos>,
    waiting: WaitingSteps,
    /// When a large message went by last; 0 for never.
    large_at: Nanos,
    /// The round in which the share was given out last.
    round: Nanos,
    /// Bytes that may still go on in this round; less than none after a message that was larger.
    credit: i64,
    /// How much may be moved in a round while others are to have their turn.
    share: Option<u32>,
    /// The deadline that it announced last; `MAX` for none.
    announced: Nanos,
    wake_at: Option<Nanos>,
}

/// Why no more large messages go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueStop {
    NothingWaits,
    NoRoom,
    /// Others have their turn.
    Turn,
}

impl QosEngine {
    pub(crate) fn new(
        shared: Arc<QosShared>,
        board: Arc<RuntimeBoard>,
        datapath_context: DatapathContext,
    ) -> QosEngine {
        QosEngine {
            weight: shared.rules.weight(&datapath_context.app.name),
            shared,
            board,
            datapath_context,
            deadlines: CallMap::with_hasher(CallHash::default()),
            waiting: WaitingSteps::new(),
            large_at: 0,
            round: 0,
            credit: 0,
            share: None,
            announced: Nanos::MAX,
            wake_at: None,
        }
    }

    /// Looks at a step that goes by, in either direction.
    fn observe(&mut self, step: &Step, now: Nanos) -> u32 {
        if step.parts.contains(Parts::BEGIN) && step.deadline != 0 && self.deadlines.len() < DEADLINES_MAX {
            self.deadlines.insert(step.call, step.deadline);
        }
        if !step.parts.contains(Parts::MESSAGE) {
            return 0;
        }
        let bytes = message_bytes(step);
        if bytes > self.shared.rules.small_bytes {
            self.shared.large.add(&self.datapath_context, 1);
            self.large_at = now;
        } else {
            self.shared.small.add(&self.datapath_context, 1);
            // Those of an app that has large ones, such as their answers, ask for no hurry.
            if !self.is_bulk(now) {
                self.board.note_small(now);
            }
        }
        bytes
    }

    fn forget_ended(&mut self, step: &Step) {
        if !self.deadlines.is_empty() && step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            self.deadlines.remove(&step.call);
        }
    }

    fn is_bulk(&self, now: Nanos) -> bool {
        self.large_at != 0 && now.saturating_sub(self.large_at) <= self.shared.rules.linger
    }

    /// Finds the share of this round, once in each.
    fn take_turn(&mut self, now: Nanos) {
        if !self.is_bulk(now) && self.waiting.is_empty() {
            (self.share, self.large_at) = (None, 0);
            return;
        }
        if self.round == now {
            return;
        }
        self.round = now;
        self.board.announce(now, self.weight);
        let (own, all) = (u64::from(self.weight), self.board.weights());
        let together = if self.board.has_small(now, self.shared.rules.linger) {
            Some(self.shared.rules.bulk_bytes)
        } else {
            (all > own).then_some(BULK_BYTES_MAX)
        };
        // What all move together is at most 2¹⁹ and a weight at most 100: no product overflows.
        self.share = together.map(|bytes| {
            let share = u64::from(bytes) * own / all.max(own);
            (share as u32).max(SHARE_BYTES_MIN)
        });
        let share = i64::from(self.share.unwrap_or(0));
        self.credit = (self.credit + share).min(share);
    }

    fn inbound(&mut self, ports: &mut Ports<'_>, now: Nanos) -> usize {
        let count = ports.rx_in.len().min(ports.rx_out.room()).min(BATCH_STEPS);
        for _ in 0..count {
            let Some(step) = ports.rx_in.pop() else { break };
            self.observe(&step, now);
            self.forget_ended(&step);
            // Cannot be refused: the count was bounded by the room.
            let _ = ports.rx_out.push(step);
        }
        count
    }

    fn outbound(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> usize {
        let mut moved = 0;
        while moved < BATCH_STEPS && !ports.tx_out.is_full() && self.waiting.steps() < WAITING_STEPS_MAX {
            let Some(step) = ports.tx_in.pop() else { break };
            moved += 1;
            let bytes = self.observe(&step, context.now);
            self.take_turn(context.now);
            let is_held = self.waiting.holds(step.call);
            if is_held && step.parts.contains(Parts::CANCEL) {
                self.cancel(step, ports, context);
            } else if is_held || (self.share.is_some() && bytes > self.shared.rules.small_bytes) {
                self.wait(step, context.now);
            } else {
                self.forget_ended(&step);
                // Cannot be refused: there was room.
                let _ = ports.tx_out.push(step);
            }
        }
        moved
    }

    fn wait(&mut self, step: Step, now: Nanos) {
        let deadline = self.deadlines.get(&step.call).copied().unwrap_or(Nanos::MAX);
        self.shared.held.fetch_add(1, Ordering::Relaxed);
        self.waiting.add(step, deadline, now);
    }

    /// A call is given up of which something waits: that is dropped, and if it is the call's beginning, nobody else needs
    /// to hear of the call.
    fn cancel(&mut self, step: Step, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        let held = self.waiting.take_call(step.call);
        self.shared.held.fetch_sub(held.len() as u64, Ordering::Relaxed);
        let begins = held.iter().any(|held| held.parts.contains(Parts::BEGIN));
        held.into_iter().for_each(|held| held.body.discard(context));
        self.forget_ended(&step);
        if begins {
            step.body.discard(context)
        } else {
            // There was room.
            drop(ports.tx_out.push(step))
        }
    }

    /// Lets large messages go on as far as the credit goes, and those that have waited too long.
    fn pass_waiting(
        &mut self,
        left_behind: usize,
        ports: &mut Ports<'_>,
        context: &Context<'_>,
    ) -> (usize, QueueStop) {
        let (mut moved, now) = (0, context.now);
        if self
            .share
            .is_some_and(|share| left_behind > LEFT_BEHIND_MAX || context.flow.unsent_bytes >= share)
        {
            return (0, QueueStop::NoRoom);
        }
        let bound = self.shared.rules.starvation_bound;
        while let Some(head) = self.waiting.head(now, bound) {
            if ports.tx_out.is_full() {
                return (moved, QueueStop::NoRoom);
            }
            let is_starved = now.saturating_sub(head.since) >= bound;
            if !self.may_go(&head) {
                if !is_starved {
                    self.announced = head.deadline;
                    self.board.announce_waiting(now, head.deadline);
                    return (moved, QueueStop::Turn);
                }
                self.shared.starved.add(&self.datapath_context, 1);
            }
            self.pass(&head, ports, now);
            moved += 1;
        }
        (moved, QueueStop::NothingWaits)
    }

    fn may_go(&self, head: &HeadStep) -> bool {
        let earliest = self.board.earliest();
        // What this datapath itself announced holds it not back.
        let is_first = head.deadline <= earliest || self.announced == earliest;
        self.share.is_none() || (self.credit > 0 && is_first)
    }

    fn pass(&mut self, head: &HeadStep, ports: &mut Ports<'_>, now: Nanos) {
        let Some(step) = self.waiting.take(head.call) else {
            return;
        };
        self.shared.held.fetch_sub(1, Ordering::Relaxed);
        if now > head.since {
            self.shared.holds.observe(now - head.since);
        }
        let most = DEBT_ROUNDS_MAX * i64::from(self.share.unwrap_or(0));
        self.credit -= i64::from(message_bytes(&step)).min(most);
        self.large_at = now;
        self.forget_ended(&step);
        // Cannot be refused: the caller saw the room.
        let _ = ports.tx_out.push(step);
    }
}

impl PolicyEngine for QosEngine {
    const JUDGES_CALLS: bool = false;

    fn start(
        mut self,
        declared: DeclaredEngine,
        saved: Option<&SavedState>,
    ) -> Result<Box<dyn Engine>, RestoreError> {
        if let Some(saved) = saved {
            let mut fields = saved.open(declared.kind, STATE_VERSION)?;
            for _ in 0..fields.count(DEADLINES_MAX)? {
                self.deadlines.insert(fields.u64()?, fields.u64()?);
            }
            fields.end()?;
        }
        Ok(Box::new(self))
    }
}

impl Engine for QosEngine {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn version(&self) -> u32 {
        VERSION
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let now = context.now;
        let left_behind = ports.tx_out.len();
        self.take_turn(now);
        let mut moved = self.inbound(&mut ports, now);
        moved += self.outbound(&mut ports, context);
        if self.waiting.is_empty() {
            (self.wake_at, self.announced) = (None, Nanos::MAX);
        } else {
            let (passed, stop) = self.pass_waiting(left_behind, &mut ports, context);
            moved += passed;
            // In the next round there is credit again. For room the transport is polled.
            self.wake_at = (stop == QueueStop::Turn).then_some(now + 1);
        }
        if let Some(share) = self.share {
            context.flow.limit_turn(share);
        }
        if moved == 0 && self.wake_at.is_none() {
            Progress::Idle
        } else {
            Progress::Busy
        }
    }

    fn rests(&self) -> bool {
        self.large_at == 0 && self.waiting.is_empty()
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.wake_at
    }

    fn release(&mut self, ports: &mut Ports<'_>) {
        let steps = self.waiting.take_all();
        self.shared.held.fetch_sub(steps.len() as u64, Ordering::Relaxed);
        for step in steps.into_iter().rev() {
            ports.tx_in.put_back(step);
        }
    }

    fn held(&self) -> usize {
        self.waiting.steps()
    }

    /// Version 1: number of deadlines u32, each: call u64, deadline u64.
    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        out.count(self.deadlines.len());
        for (call, deadline) in &self.deadlines {
            out.u64(*call);
            out.u64(*deadline);
        }
        SavedState::new(KIND, STATE_VERSION, out)
    }
}

impl Drop for QosEngine {
    fn drop(&mut self) {
        self.shared
            .held
            .fetch_sub(self.waiting.steps() as u64, Ordering::Relaxed);
    }
}

fn message_bytes(step: &Step) -> u32 {
    match &step.body {
        Body::Gathered(body) => body.message_bytes,
        Body::Received(body) => body.message_bytes,
        Body::Encoded(body) => body.message_bytes,
        Body::Empty | Body::Untrusted(_) => 0,
    }
}
