//! The engine of a connection that migrates to another transport: two transports beside each other. It knows no transport:
//! whoever composes datapaths says how each is started and restored.
//!
//! ```text
//!   steps ──► begins a call? or its call began on the new one? ──► the new transport
//!                        └── else ──► the old one, which drains; when it has ended, only the new one is left
//! ```
#![forbid(unsafe_code)]

use std::collections::{HashSet, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datapath::{
    ConnectionSignals, Context, Engine, EngineStart, FieldReader, FieldWriter, Interest, Nanos, Ports,
    Predecessor, Progress, Queue, RestoreError, SavedState, Saver, SocketHint, Step, TransportEngine,
};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

/// What kind of engine it is, as long as there are two transports.
pub const KIND: &str = "transport-switch";
/// The newest form of what it saves.
const FORM: u32 = 1;
/// Steps that wait for one of the two.
const STEPS_MAX: usize = 256;
/// Calls that began on the new transport.
const CALLS_MAX: usize = 1 << 20;
/// Transports that wait for the end of their calls, one behind the other.
const DEPTH_MAX: u8 = 3;
/// How often the old transport's socket is looked at: the runtime watches the new one's. The less there was, the more
/// seldom.
const LOOK_NS_MIN: Nanos = 200_000;
const LOOK_NS_MAX: Nanos = 5_000_000;

/// Two transports beside each other, or what is left of that.
struct TransportMigration {
    old: Option<DrainingTransport>,
    new: Box<dyn Engine>,
    new_steps: Queue<Step>,
    link: Arc<ConnectionSignals>,
    depth: u8,
}

struct DrainingTransport {
    engine: Box<dyn Engine>,
    link: Arc<ConnectionSignals>,
    steps: Queue<Step>,
    /// Calls that are the new transport's.
    elsewhere: HashSet<u64>,
    moved_at: Nanos,
    looked_at: Nanos,
}

/// Starts a transport beside the one before, whose code has the version `old_version`. The new one is started without a
/// predecessor. `restoring` says how a transport, whose engine has this kind, goes on from what this version of its code has
/// saved; for [`KIND`] that is [`restore`].
pub fn beside(
    new: EngineStart,
    old_version: u32,
    restoring: impl Fn(&str, u32) -> Option<EngineStart> + Send + 'static,
) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        let damaged = |reason: &str| RestoreError::Damaged {
            kind: KIND,
            reason: reason.to_owned(),
        };
        let saved = predecessor.saved.ok_or_else(|| damaged("nothing was saved"))?;
        let depth = depth_of(saved) + 1;
        if depth > DEPTH_MAX {
            return Err(damaged(
                "calls of earlier transports are still in flight: try again later",
            ));
        }
        let start = restoring(&saved.kind, old_version);
        let start = start.ok_or_else(|| damaged("this transport cannot be left while calls go on"))?;
        let share = predecessor.link.peer_share().cloned();
        let link = Arc::new(ConnectionSignals::new().with_peer_share(share));
        let old = start(Predecessor {
            saved: Some(saved),
            descriptors: predecessor.descriptors,
            link: Arc::clone(&link),
            restorer: &mut *predecessor.restorer,
        })?;
        link.drain();
        let new = new(Predecessor {
            saved: None,
            descriptors: Vec::new(),
            link: Arc::clone(&predecessor.link),
            restorer: predecessor.restorer,
        })?;
        Ok(Box::new(TransportMigration {
            old: Some(DrainingTransport::new(old, link)),
            new,
            new_steps: Queue::with_bound(STEPS_MAX),
            link: predecessor.link,
            depth,
        }))
    })
}

/// Goes on with what another process had, or another engine of this one. `restoring` is as in [`beside`].
///
/// # Errors
/// The state is not one of this engine, or one of its transports does not exist or does not start.
pub fn restore(
    predecessor: Predecessor<'_>,
    restoring: impl Fn(&str, u32) -> Option<EngineStart>,
) -> Result<Box<dyn Engine>, RestoreError> {
    Ok(Box::new(TransportMigration::restore(predecessor, restoring)?))
}

fn depth_of(saved: &SavedState) -> u8 {
    if saved.kind == KIND {
        saved.bytes.first().copied().unwrap_or(0)
    } else {
        0
    }
}

impl DrainingTransport {
    fn new(engine: Box<dyn Engine>, link: Arc<ConnectionSignals>) -> DrainingTransport {
        DrainingTransport {
            engine,
            link,
            steps: Queue::with_bound(STEPS_MAX),
            elsewhere: HashSet::new(),
            moved_at: 0,
            looked_at: 0,
        }
    }

    fn look_again_at(&self) -> Nanos {
        let idle_ns = self.looked_at.saturating_sub(self.moved_at);
        self.looked_at + (idle_ns / 8).clamp(LOOK_NS_MIN, LOOK_NS_MAX)
    }
}

/// Has a transport work with its own queue towards the wire, and the app's towards the app.
fn work(
    engine: &mut dyn Engine,
    steps: &mut Queue<Step>,
    rx_out: &mut Queue<Step>,
    context: &mut Context<'_>,
) -> Progress {
    let (mut tx_out, mut rx_in) = (Queue::with_bound(0), Queue::with_bound(0));
    let steps_before = steps.len();
    let ports = Ports {
        tx_in: steps,
        tx_out: &mut tx_out,
        rx_in: &mut rx_in,
        rx_out,
    };
    // What waits in front of it may be of calls that it does not know yet.
    let calls = context.flow.calls;
    context.flow.calls = calls.max(steps_before);
    let progress = engine.do_work(ports, context);
    context.flow.calls = calls;
    progress
}

impl TransportMigration {
    fn restore(
        predecessor: Predecessor<'_>,
        restoring: impl Fn(&str, u32) -> Option<EngineStart>,
    ) -> Result<TransportMigration, RestoreError> {
        let missing = || RestoreError::Damaged {
            kind: KIND,
            reason: "nothing was saved".to_owned(),
        };
        let saved = predecessor.saved.ok_or_else(missing)?;
        let mut fields = saved.open(KIND, FORM)?;
        let depth = fields.u8()?;
        if depth == 0 || depth > DEPTH_MAX {
            return Err(fields.damaged("more transports than there can be"));
        }
        let mut descriptors: VecDeque<OwnedFd> = predecessor.descriptors.into();
        let share = predecessor.link.peer_share().cloned();
        let link = Arc::new(ConnectionSignals::restore(&mut fields)?.with_peer_share(share));
        let mut transport = |fields: &mut FieldReader<'_>, link: &Arc<ConnectionSignals>| {
            let (kind, version, code) = (fields.text()?.to_owned(), fields.u32()?, fields.u32()?);
            let (bytes, count) = (fields.run()?.to_vec(), fields.u32()? as usize);
            let start = restoring(&kind, code);
            let start = start.ok_or_else(|| fields.damaged(format!("there is no transport {kind}")))?;
            let own = count.min(descriptors.len());
            start(Predecessor {
                saved: Some(&SavedState { kind, version, bytes }),
                descriptors: descriptors.drain(..own).collect(),
                link: Arc::clone(link),
                restorer: &mut *predecessor.restorer,
            })
        };
        let old = transport(&mut fields, &link)?;
        let new = transport(&mut fields, &predecessor.link)?;
        let mut old = DrainingTransport::new(old, link);
        for _ in 0..fields.count(CALLS_MAX)? {
            old.elsewhere.insert(fields.u64()?);
        }
        let mut new_steps = Queue::with_bound(STEPS_MAX);
        for queue in [&mut old.steps, &mut new_steps] {
            for step in Step::restore_all(&mut fields, predecessor.restorer, STEPS_MAX)? {
                queue.push_past_bound(step);
            }
        }
        fields.end()?;
        Ok(TransportMigration {
            old: Some(old),
            new,
            new_steps,
            link: predecessor.link,
            depth,
        })
    }

    /// Gives each step to the transport that its call is on.
    fn distribute(&mut self, tx_in: &mut Queue<Step>) -> bool {
        let Some(old) = &mut self.old else {
            return false;
        };
        let mut moved = false;
        while !old.steps.is_full()
            && !self.new_steps.is_full()
            && let Some(step) = tx_in.pop()
        {
            moved = true;
            if step.parts.contains(Parts::BEGIN) {
                old.elsewhere.insert(step.call);
            }
            let ends = step.parts.contains(Parts::CANCEL);
            let is_elsewhere = if ends {
                old.elsewhere.remove(&step.call)
            } else {
                old.elsewhere.contains(&step.call)
            };
            if is_elsewhere {
                self.new_steps.push_past_bound(step)
            } else {
                old.steps.push_past_bound(step)
            }
        }
        moved
    }

    fn work_old(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let Some(old) = &mut self.old else {
            return Progress::Idle;
        };
        if self.link.close_requested() {
            old.link.close();
        }
        let hint = std::mem::replace(&mut context.socket, SocketHint::Try);
        // It knows its own calls, and others that begin are the new one's.
        let calls = std::mem::take(&mut context.flow.calls);
        let progress = work(&mut *old.engine, &mut old.steps, ports.rx_out, context);
        (context.socket, context.flow.calls) = (hint, calls);
        old.looked_at = context.now;
        match progress {
            Progress::Ended => self.leave_old(ports, context),
            Progress::Busy => old.moved_at = context.now,
            Progress::Idle => {}
        }
        progress
    }

    /// The old transport is done: from now on there is the new one alone.
    fn leave_old(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        let Some(mut old) = self.old.take() else {
            return;
        };
        self.link.packets().add(old.link.packets().read());
        while let Some(step) = old.steps.pop() {
            // Of calls that have ended with it.
            step.body.discard(context);
        }
        give_back(&mut self.new_steps, ports.tx_in);
    }
}

/// Puts steps back in front of a queue, in their order.
fn give_back(steps: &mut Queue<Step>, tx_in: &mut Queue<Step>) {
    let mut taken = Vec::with_capacity(steps.len());
    while let Some(step) = steps.pop() {
        taken.push(step);
    }
    taken.into_iter().rev().for_each(|step| tx_in.put_back(step));
}

impl Engine for TransportMigration {
    fn kind(&self) -> &'static str {
        match &self.old {
            Some(_) => KIND,
            None => self.new.kind(),
        }
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        if self.old.is_none() {
            return self.new.do_work(ports, context);
        }
        let mut moved = self.distribute(ports.tx_in);
        moved |= self.work_old(&mut ports, context) != Progress::Idle;
        let Some(old) = &mut self.old else {
            return Progress::Busy;
        };
        let before = ports.rx_out.len();
        let progress = work(&mut *self.new, &mut self.new_steps, ports.rx_out, context);
        for step in ports.rx_out.iter().skip(before) {
            if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
                old.elsewhere.remove(&step.call);
            }
        }
        let is_lost = self.link.ended().is_none_or(|end| end.code != Code::Ok);
        if progress == Progress::Ended && is_lost && !self.link.drain_requested() {
            // The new transport was lost, and the app's connection with it. (One that drained just was the first to end.)
            old.link.close();
        }
        if moved || progress == Progress::Busy {
            Progress::Busy
        } else {
            Progress::Idle
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        let old = self.old.as_ref();
        let look = old.map(|old| old.engine.wake_at().unwrap_or(u64::MAX).min(old.look_again_at()));
        [look, self.new.wake_at()].into_iter().flatten().min()
    }

    fn version(&self) -> u32 {
        self.new.version()
    }

    fn release(&mut self, ports: &mut Ports<'_>) {
        if let Some(old) = &mut self.old {
            // They come again, and what ends a call has to find it where it is.
            let ends = |step: &&Step| step.parts.contains(Parts::CANCEL);
            let ended = self.new_steps.iter().filter(ends);
            old.elsewhere.extend(ended.map(|step| step.call));
        }
        give_back(&mut self.new_steps, ports.tx_in);
        if let Some(old) = &mut self.old {
            give_back(&mut old.steps, ports.tx_in);
        }
    }

    fn held(&self) -> usize {
        self.new_steps.len() + self.old.as_ref().map_or(0, |old| old.steps.len())
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        let Some(old) = &self.old else {
            return self.new.save(saver);
        };
        let mut out = FieldWriter::new();
        out.u8(self.depth);
        old.link.save(&mut out);
        for engine in [&*old.engine, &*self.new] {
            let state = engine.save(saver);
            out.text(&state.kind);
            out.u32(state.version);
            out.u32(engine.version());
            out.run(&state.bytes);
            let descriptors = engine
                .as_transport()
                .map_or(0, |engine| engine.descriptors().len());
            out.count(descriptors);
        }
        out.count(old.elsewhere.len());
        old.elsewhere.iter().for_each(|call| out.u64(*call));
        for queue in [&old.steps, &self.new_steps] {
            let steps: Vec<&Step> = queue.iter().collect();
            Step::save_all(steps.into_iter(), saver, &mut out);
        }
        SavedState::new(KIND, FORM, out)
    }

    fn as_transport(&self) -> Option<&dyn TransportEngine> {
        Some(self)
    }
}

impl TransportEngine for TransportMigration {
    fn interest(&self) -> Option<Interest> {
        self.new.as_transport()?.interest()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let engines = self.old.iter().map(|old| &old.engine).chain([&self.new]);
        engines
            .filter_map(|engine| engine.as_transport())
            .flat_map(TransportEngine::descriptors)
            .collect()
    }
}
