//! The transport between two apps of one node: no socket, no encoding of frames.
//!
//! A connection is two *directions*, one in each direction, each a bounded lock-free queue of steps. The receiving end
//! copies a step's body into the receive heap of its app: the structure from the private buffer in which it was
//! checked, the large leaves straight from the sender's heap, once. Buffers and send-completion tokens go back through
//! the direction, so that each runtime keeps its own buffers. The two ends may be on different runtimes; an end that has
//! put something in a direction wakes the other's.
#![forbid(unsafe_code)]

mod direction;
mod local_queue;
mod saved;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use provost_datapath::{
    Body, ConnectionEnd, ConnectionSignals, Context, Engine, FlowHints, Gathered, HeapFull, MissingMethods,
    Offsets, Ports, Progress, Queue, ReceivedBody, SavedState, Saver, Step, message_offset,
};
use provost_marshal::copy_foreign_to;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

pub use direction::DIRECTION_STEPS_MAX;
use direction::{BodyReturn, CallRefusal, LocalDirection};
pub use saved::{SavedEnd, restore_alone, restore_pair, saved_pair};

/// [`Engine::kind`] of this engine.
pub const KIND: &str = "transport-local";
/// Steps that one poll moves in each direction, so that the other datapaths of a runtime get their turn.
const BATCH_STEPS: usize = 64;
/// Bytes of messages that one poll copies to the app's receive heap before it ends, for the same reason; the last one is copied whole.
const BATCH_BYTES: u64 = 1 << 20;

/// Wakes the runtime that polls one end of a connection. Called from the other end's runtime, at most once in each
/// of its polls.
pub trait PeerWake: Send + Sync {
    /// Makes the end be polled soon. Cheap when it is about to be polled anyway.
    fn wake(&self);
}

/// What each end of a connection brings.
pub struct End {
    /// What is not a step: draining, closing, why the connection ended.
    pub link: Arc<ConnectionSignals>,
    /// How the other end wakes this one.
    pub wake: Arc<dyn PeerWake>,
}

/// Which end of a connection a transport is.
#[derive(Clone, Debug)]
enum Role {
    Client,
    /// With a map where the two schemas differ.
    Server(Option<MethodMap>),
}

/// The server's method for each of the client's, and those that it lacks.
#[derive(Clone, Debug)]
pub struct MethodMap {
    pub methods: Vec<Option<u16>>,
    pub missing: MissingMethods,
}

/// One end of a connection.
pub struct LocalTransport {
    role: Role,
    pair: u64,
    link: Arc<ConnectionSignals>,
    hold: Arc<DirectionHold>,
    /// Bodies that were put in `out` and did not come back.
    lent: usize,
    /// Calls that are open: a drained connection ends when there are none.
    open: HashSet<u64>,
    state: ConnectionState,
}

/// This end's part in the directions. When the last engine that holds it is gone, so is the end: an engine and its successor
/// hold it together while one takes over from the other.
struct DirectionHold {
    out: Arc<LocalDirection>,
    incoming: Arc<LocalDirection>,
    peer: Arc<dyn PeerWake>,
}

impl Drop for DirectionHold {
    fn drop(&mut self) {
        self.out.close();
        self.incoming.desert();
        self.peer.wake();
    }
}

/// A handle on an end, by which a successor in the same process finds it ([`LocalTransport::restore`]). It does not keep
/// the end alive.
#[derive(Clone)]
pub struct LocalEnd {
    pair: u64,
    hold: Weak<DirectionHold>,
}

/// ```text
/// Open ──► Closing (what either end has lent goes back to it) ──► Ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Open,
    Closing,
    Ended,
}

/// Makes a connection: its client's end and its server's. There is a map where the two were built from different schemas.
#[must_use]
pub fn connect(client: End, server: End, methods: Option<MethodMap>) -> (LocalTransport, LocalTransport) {
    let (to_server, to_client) = (Arc::new(LocalDirection::new()), Arc::new(LocalDirection::new()));
    let pair = next_pair();
    let end = |role, link, peer, out: &Arc<LocalDirection>, incoming: &Arc<LocalDirection>| LocalTransport {
        role,
        pair,
        link,
        hold: Arc::new(DirectionHold {
            out: out.clone(),
            incoming: incoming.clone(),
            peer,
        }),
        lent: 0,
        open: HashSet::new(),
        state: ConnectionState::Open,
    };
    let at_client = end(Role::Client, client.link, server.wake, &to_server, &to_client);
    let at_server = end(
        Role::Server(methods),
        server.link,
        client.wake,
        &to_client,
        &to_server,
    );
    (at_client, at_server)
}

impl Engine for LocalTransport {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        let moved = match self.state {
            ConnectionState::Open => self.work_open(ports, context),
            ConnectionState::Closing => self.work_closing(ports, context),
            ConnectionState::Ended => false,
        };
        match (self.state, moved) {
            (ConnectionState::Ended, _) => Progress::Ended,
            (_, true) => Progress::Busy,
            (_, false) => Progress::Idle,
        }
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.save_end(saver)
    }
}

/// A number that no other pair of this process has.
fn next_pair() -> u64 {
    static PAIRS: AtomicU64 = AtomicU64::new(1);
    PAIRS.fetch_add(1, Ordering::Relaxed)
}

impl LocalTransport {
    fn work_open(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> bool {
        let took = self.take_back(context);
        let sent = self.send(ports.tx_in, context);
        let received = self.receive(ports.rx_out, context);
        if sent || received {
            self.hold.peer.wake();
        }
        let drains = self.drains();
        self.look_at_link();
        if let Some(end) = self.end(ports.tx_in, context.flow, drains) {
            self.close(end);
            return true;
        }
        took || sent || received || drains != self.drains()
    }

    /// The connection is over, but not for the memory that is lent over it: gives the peer's back, and waits for what
    /// is lent to the peer, unless that is gone.
    fn work_closing(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = self.take_back(context);
        while let Some(step) = ports.tx_in.pop() {
            step.body.discard(context);
            moved = true;
        }
        while self.hold.incoming.take_refusal().is_some() {}
        let mut gave = false;
        while let Some(step) = self.hold.incoming.take() {
            match step.body {
                Body::Gathered(gathered) => self.give_back(gathered),
                body => body.discard(context),
            }
            gave = true;
        }
        if gave {
            self.hold.peer.wake();
        }
        if self.hold.out.is_deserted() {
            while let Some(step) = self.hold.out.take() {
                step.body.discard(context);
            }
            self.take_back(context);
            self.lent = 0;
        }
        if self.lent == 0 {
            self.hold.incoming.desert();
            self.hold.peer.wake();
            self.state = ConnectionState::Ended;
        }
        moved || gave
    }

    /// Takes what the other end has finished reading.
    fn take_back(&mut self, context: &mut Context<'_>) -> bool {
        let mut took = false;
        while let Some(BodyReturn { token, buffer }) = self.hold.out.take_return() {
            self.lent -= 1;
            context.buffers.give(buffer);
            if token != 0 {
                context.sent.push(token);
            }
            took = true;
        }
        took
    }

    /// Puts steps in the direction, as many as it takes.
    fn send(&mut self, from: &mut Queue<Step>, context: &mut Context<'_>) -> bool {
        let mut sent = false;
        for _ in 0..BATCH_STEPS {
            if self.hold.out.is_full() || self.lent == DIRECTION_STEPS_MAX {
                break;
            }
            let Some(mut step) = from.pop() else { break };
            match step.body {
                Body::Gathered(_) => self.lent += 1,
                // No engine sends a received block on; should one do so, the block is not lost.
                Body::Received(body) => {
                    context.receive.free(body.block);
                    step.body = Body::Empty;
                }
                Body::Empty | Body::Untrusted(_) | Body::Encoded(_) => {}
            }
            self.note_sent(&step);
            self.hold.out.put(step);
            sent = true;
        }
        sent
    }

    /// Takes refusals and steps out of the direction while the next engine has room.
    fn receive(&mut self, to: &mut Queue<Step>, context: &mut Context<'_>) -> bool {
        let mut received = false;
        while !to.is_full() {
            let Some(CallRefusal { call, code, reason }) = self.hold.incoming.take_refusal() else {
                break;
            };
            self.open.remove(&call);
            deliver(to, Step::cancel_because(call, code, &reason, context.buffers));
            received = true;
        }
        // Where others have copied enough in this round, each has a step of its turn.
        let steps = if context.buffers.has_copied_enough(context.now) {
            1
        } else {
            BATCH_STEPS
        };
        let mut copied_bytes = 0;
        for _ in 0..steps {
            if to.is_full() || !self.hold.out.has_room_for_refusal() || copied_bytes >= BATCH_BYTES {
                break;
            }
            let Some(step) = self.hold.incoming.take() else {
                break;
            };
            if let Body::Gathered(gathered) = &step.body {
                copied_bytes += u64::from(gathered.message_bytes);
            }
            if let Some(step) = self.take_in(step, context) {
                deliver(to, step);
            }
            received = true;
        }
        context.buffers.note_copied(copied_bytes, context.now);
        received
    }

    /// A step as this end's app can have it, its body in the app's receive heap; or the call's end, for both sides.
    fn take_in(&mut self, mut step: Step, context: &mut Context<'_>) -> Option<Step> {
        let begins = step.parts.contains(Parts::BEGIN);
        let mut failure = None;
        if begins {
            match self.own_method(step.method) {
                Ok(method) => step.method = method,
                Err(reason) => failure = Some((Code::Unimplemented, Cow::Owned(reason))),
            }
        }
        step.body = match step.body {
            Body::Gathered(gathered) if failure.is_none() => match copy(&gathered, context) {
                Ok(body) => {
                    self.give_back(gathered);
                    Body::Received(body)
                }
                Err(HeapFull) => {
                    self.give_back(gathered);
                    failure = Some((Code::ResourceExhausted, Cow::Borrowed(HEAP_FULL)));
                    Body::Empty
                }
            },
            Body::Gathered(gathered) => {
                self.give_back(gathered);
                Body::Empty
            }
            body => body,
        };
        let Some((code, reason)) = failure else {
            self.note_received(&step);
            return Some(step);
        };
        self.open.remove(&step.call);
        // Of a call that did not begin, this end's app has never heard.
        let end = (!begins).then(|| Step::cancel_because(step.call, code, &reason, context.buffers));
        self.hold.out.refuse(CallRefusal {
            call: step.call,
            code,
            reason,
        });
        end
    }

    /// This end's number of a method, or why its calls are refused.
    fn own_method(&self, method: u16) -> Result<u16, String> {
        let Role::Server(Some(map)) = &self.role else {
            return Ok(method);
        };
        let own = map.methods.get(usize::from(method)).copied().flatten();
        own.ok_or_else(|| map.missing.reason(method))
    }

    fn give_back(&self, gathered: Gathered) {
        self.hold.incoming.give_back(BodyReturn {
            token: gathered.token,
            buffer: gathered.buffer,
        });
    }

    fn note_sent(&mut self, step: &Step) {
        if step.parts.contains(Parts::BEGIN) {
            self.open.insert(step.call);
        }
        if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            self.open.remove(&step.call);
        }
    }

    /// The same of what came in: a call is open from its first step to its status or cancellation, whoever sends it.
    fn note_received(&mut self, step: &Step) {
        self.note_sent(step);
    }

    fn look_at_link(&mut self) {
        if self.hold.incoming.drains() {
            self.link.set_peer_drains();
        }
        if self.link.drain_requested() && !self.hold.out.drains() {
            self.hold.out.set_drains();
            self.hold.peer.wake();
        }
    }

    fn drains(&self) -> bool {
        self.link.drain_requested() || self.link.peer_drains()
    }

    /// Why the connection is over, once all pending steps of either side are in its queue. What it learned of draining in this
    /// poll does not count yet: before the next one, the runtime takes what the app has submitted until then.
    fn end(&self, tx_in: &Queue<Step>, flow: FlowHints, drained_before: bool) -> Option<ConnectionEnd> {
        if self.hold.incoming.is_over() {
            return Some(if self.open.is_empty() {
                ConnectionEnd {
                    code: Code::Ok,
                    reason: "the other end closed the connection".into(),
                }
            } else {
                ConnectionEnd {
                    code: Code::Unavailable,
                    reason: "the other end of the connection is gone".into(),
                }
            });
        }
        let is_over = self.link.close_requested() || drained_before && self.is_unused(flow);
        (tx_in.is_empty() && is_over).then(|| ConnectionEnd {
            code: Code::Ok,
            reason: "closed".into(),
        })
    }

    /// Whether no call is left. Only the client's end knows: engines before it may hold calls of which the server's has not
    /// heard.
    fn is_unused(&self, flow: FlowHints) -> bool {
        matches!(self.role, Role::Client) && self.open.is_empty() && flow.calls == 0
    }

    fn close(&mut self, end: ConnectionEnd) {
        self.state = ConnectionState::Closing;
        self.link.set_ended(end);
        self.hold.out.close();
        self.hold.peer.wake();
    }
}

const HEAP_FULL: &str = "the receiver's heap is full: it holds on to too many received messages, or limits.receive_heap_bytes is too low";

fn deliver(to: &mut Queue<Step>, step: Step) {
    let delivered = to.push(step);
    debug_assert!(delivered.is_ok(), "the caller has seen that there is room");
}

/// Copies a body into a block of the app's receive heap.
fn copy(gathered: &Gathered, context: &mut Context<'_>) -> Result<ReceivedBody, HeapFull> {
    let message_at = message_offset(gathered.metadata_bytes);
    let total = (message_at as u32)
        .checked_add(gathered.message_bytes)
        .ok_or(HeapFull)?;
    let mut block = context.receive.allocate(total)?;
    let mut rest = context.receive.bytes_mut(&mut block);
    let head = &gathered.buffer.bytes;
    let head_bytes = head.len().min(rest.len());
    rest[..head_bytes].copy_from_slice(&head[..head_bytes]);
    rest = &mut rest[head_bytes..];
    for leaf in &gathered.buffer.foreign {
        let (to, after) = rest.split_at_mut(rest.len().min(leaf.len() as usize));
        copy_foreign_to(leaf, to);
        let padding = (to.len().next_multiple_of(8) - to.len()).min(after.len());
        after[..padding].fill(0);
        rest = &mut after[padding..];
    }
    let (metadata_bytes, message_bytes) = (gathered.metadata_bytes, gathered.message_bytes);
    Ok(ReceivedBody {
        added: None,
        block,
        metadata_bytes,
        message_bytes,
        offsets: Offsets::Message,
    })
}
