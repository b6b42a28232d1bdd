//! The engine, its binding, and its saved state.

use std::sync::Arc;

use provost_datapath::{
    Body, BodyForm, Context, EncodedBody, Engine, Nanos, Ports, PrivateBytes, Progress, Queue, RestoreError,
    Restorer, SavedState, Saver, Step, UNCOUNTED_BYTES_MAX,
};
use provost_marshal::{Scratch, Tables};
use provost_schema::MessageId;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::calls::MarshalledCalls;
use crate::convert::{ConversionFailure, ConversionTables, to_private};
use crate::pending::{PendingSteps, StepDirection};
use crate::saved;

/// [`Engine::kind`] of this engine.
pub const KIND: &str = "marshalling";

/// Steps that one poll moves in each direction, at most.
const BATCH_STEPS: usize = 64;
/// Bytes of messages that one poll converts or checks in each direction before it ends; the last one is converted whole.
const BATCH_BYTES: u64 = 1 << 20;
/// The longest message that is converted or checked in a round of the runtime that has copied enough, in bytes.
const SMALL_MESSAGE_BYTES_MAX: u64 = 64 << 10;
/// How soon room is looked for again where others hold it.
const ROOM_RETRY_NS: Nanos = 1_000_000;

/// Which end of its calls an app is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It makes the calls.
    Client,
    Server,
}

/// How messages go over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// In the native layout: both ends have the same schema.
    Native,
    Protobuf,
}

/// The messages of one method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MethodTypes {
    /// What the client sends.
    pub input: MessageId,
    /// What the server sends.
    pub output: MessageId,
}

/// What the engine needs to know of its connection.
#[derive(Clone, Debug)]
pub struct Binding {
    /// Tables of the app's own schema.
    pub tables: Arc<Tables>,
    /// The service's methods, by index.
    pub methods: Arc<[MethodTypes]>,
    /// Which end the app is.
    pub side: Side,
    /// In which form messages are between the app and this engine.
    pub form: BodyForm,
    pub encoding: Encoding,
    /// The longest message that passes, in bytes.
    pub message_bytes_max: u32,
    /// The private memory that messages of the app take that this engine puts into another form on their way out, and those that come
    /// for an app that has them as protobuf.
    pub share: Arc<PrivateBytes>,
}

/// The engine of one datapath.
pub struct Marshalling {
    binding: Binding,
    calls: MarshalledCalls,
    pending: PendingSteps,
    scratch: Scratch,
    /// When room for messages that are decoded is looked for again.
    retry_at: Option<Nanos>,
    /// A message waits for another round of the runtime.
    is_cut_short: bool,
}

/// A step that does not pass, and how much of its call the far side of it knows.
struct RefusedStep {
    call: u64,
    parts: Parts,
    failure: ConversionFailure,
}

impl Marshalling {
    /// An engine for a connection without calls.
    #[must_use]
    pub fn new(binding: Binding) -> Marshalling {
        Marshalling {
            binding,
            calls: MarshalledCalls::new(),
            pending: PendingSteps::new(),
            scratch: Scratch::default(),
            retry_at: None,
            is_cut_short: false,
        }
    }

    /// Continues from what an engine of any version saved. The binding must be of the same service.
    pub fn restore(
        state: &SavedState,
        binding: Binding,
        restorer: &mut dyn Restorer,
    ) -> Result<Marshalling, RestoreError> {
        let (calls, pending) = saved::restore(state, binding.methods.len(), restorer)?;
        Ok(Marshalling {
            calls,
            pending,
            ..Marshalling::new(binding)
        })
    }

    /// Moves steps from one queue to the next, and the cancellations of those that do not pass to where they belong.
    /// The directions never wait for each other: a direction whose output is full must not stop the other one.
    fn forward(
        &mut self,
        direction: StepDirection,
        from: &mut Queue<Step>,
        to: &mut Queue<Step>,
        context: &mut Context<'_>,
    ) -> usize {
        let mut moved = self.pending.deliver(direction, to);
        let mut bytes = 0;
        while moved < BATCH_STEPS && bytes < BATCH_BYTES && !to.is_full() && self.pending.has_room() {
            let Some(step) = from.peek() else { break };
            if self.waits_for_memory(step.parts, direction) {
                self.retry_at = Some(context.now + ROOM_RETRY_NS);
                break;
            }
            // One of each poll passes in any case: in each round the frontend may have copied as much before.
            if bytes > 0 && self.waits_for_round(step, direction, context) {
                self.is_cut_short = true;
                break;
            }
            let Some(mut step) = from.pop() else { break };
            moved += 1;
            bytes += message_bytes(&step.body);
            match self.convert(&mut step, direction, context) {
                Ok(true) => {
                    let refused = to.push(step).is_err();
                    debug_assert!(!refused, "room was seen before the step was taken");
                }
                Ok(false) => {}
                Err(refused) => self.cancel_both_ways(direction, &refused, context),
            }
        }
        if self.goes_through(direction) {
            context.buffers.note_copied(bytes, context.now);
        }
        moved
    }

    /// Whether this engine goes through the messages of a direction.
    fn goes_through(&self, direction: StepDirection) -> bool {
        let is_native = self.binding.encoding == Encoding::Native;
        let is_passed_on = (self.binding.form == BodyForm::Native) == is_native;
        !is_passed_on || is_native && direction == StepDirection::Rx
    }

    /// Whether a message waits, as the runtime has copied enough in this round and others are to have their turn.
    fn waits_for_round(&self, step: &Step, direction: StepDirection, context: &Context<'_>) -> bool {
        message_bytes(&step.body) > SMALL_MESSAGE_BYTES_MAX
            && self.goes_through(direction)
            && context.buffers.has_copied_enough(context.now)
    }

    /// Whether a message that would take private memory of the app's share waits until others have gone.
    fn waits_for_memory(&self, parts: Parts, direction: StepDirection) -> bool {
        let takes_memory = match direction {
            StepDirection::Tx => self.binding.encoding == Encoding::Native,
            StepDirection::Rx => self.binding.encoding == Encoding::Protobuf,
        };
        self.binding.form == BodyForm::Protobuf
            && takes_memory
            && parts.contains(Parts::MESSAGE)
            && self.binding.share.message_bytes_now() == 0
    }

    fn cancel_both_ways(
        &mut self,
        direction: StepDirection,
        refused: &RefusedStep,
        context: &mut Context<'_>,
    ) {
        let begins = refused.parts.contains(Parts::BEGIN);
        let ends = refused.parts.intersects(Parts::STATUS | Parts::CANCEL);
        // Whom the step was for has not heard of a call that it begins; for a peer that ends a call it is over.
        let (tell_app, tell_peer) = match direction {
            StepDirection::Tx => (true, !begins),
            StepDirection::Rx => (!begins, !ends),
        };
        if tell_app {
            self.pending.add(
                StepDirection::Rx,
                cancel(refused, refused.failure.code(), context),
            );
        }
        if tell_peer {
            self.pending.add(
                StepDirection::Tx,
                cancel(refused, self.code_for_peer(refused), context),
            );
        }
    }

    /// A server learns that its response is no longer wanted; a client learns what was wrong with its request.
    fn code_for_peer(&self, refused: &RefusedStep) -> Code {
        match self.binding.side {
            Side::Client => Code::Cancelled,
            Side::Server => refused.failure.code(),
        }
    }

    /// Makes the step what goes on, in its place; false if nothing of it does.
    fn convert(
        &mut self,
        step: &mut Step,
        direction: StepDirection,
        context: &mut Context<'_>,
    ) -> Result<bool, RefusedStep> {
        let (call, parts) = (step.call, step.parts);
        let refuse = |failure| RefusedStep { call, parts, failure };
        let ends = parts.intersects(Parts::STATUS | Parts::CANCEL);
        let method = if parts.contains(Parts::BEGIN) {
            if let Err(failure) = self.begin(step) {
                std::mem::take(&mut step.body).discard(context);
                return Err(refuse(failure));
            }
            if ends {
                self.calls.end(call);
            }
            Some(step.method)
        } else if ends {
            self.calls.end(call)
        } else {
            self.calls.method(call)
        };
        let types = method.and_then(|method| self.binding.methods.get(usize::from(method)));
        let Some(types) = types.copied() else {
            // The call has ended here. What is pending for the app or the peer waits by itself; nothing must overtake that.
            std::mem::take(&mut step.body).discard(context);
            return Ok(false);
        };
        if parts.contains(Parts::MESSAGE) {
            let message = self.message_of(types, direction);
            self.convert_body(&mut step.body, message, direction, context)
                .map_err(|failure| {
                    self.calls.end(call);
                    refuse(failure)
                })?;
        }
        Ok(true)
    }

    fn begin(&mut self, step: &Step) -> Result<(), ConversionFailure> {
        if usize::from(step.method) >= self.binding.methods.len() {
            return Err(ConversionFailure::NoMethod(step.method));
        }
        self.calls
            .begin(step.call, step.method)
            .map_err(|_| ConversionFailure::TooManyCalls)
    }

    fn message_of(&self, types: MethodTypes, direction: StepDirection) -> MessageId {
        match (self.binding.side, direction) {
            (Side::Client, StepDirection::Tx) | (Side::Server, StepDirection::Rx) => types.input,
            (Side::Client, StepDirection::Rx) | (Side::Server, StepDirection::Tx) => types.output,
        }
    }

    /// Puts the body into the form that goes on. One that cannot be has been given back.
    fn convert_body(
        &mut self,
        body: &mut Body,
        message: MessageId,
        direction: StepDirection,
        context: &mut Context<'_>,
    ) -> Result<(), ConversionFailure> {
        let form = ConversionTables {
            binding: &self.binding,
            message,
        };
        // A native body stays in its step, as most are native.
        *body = match (direction, self.binding.encoding, self.binding.form) {
            (StepDirection::Rx, Encoding::Native, _) => {
                let checked = match body {
                    Body::Received(body) => form.check_in_place(body, context),
                    _ => Err(ConversionFailure::Lengths),
                };
                return checked.inspect_err(|_| std::mem::take(body).discard(context));
            }
            (StepDirection::Tx, Encoding::Native, BodyForm::Protobuf) => {
                let scratch = &mut self.scratch;
                match std::mem::take(body) {
                    Body::Encoded(body) => form.decoded_to_send(body, scratch, context)?,
                    Body::Empty => form.decoded_to_send(empty(context), scratch, context)?,
                    body => body,
                }
            }
            (StepDirection::Tx, Encoding::Native, BodyForm::Native) => return Ok(()),
            (StepDirection::Tx, Encoding::Protobuf, _) => match std::mem::take(body) {
                Body::Gathered(body) => form.encoded(body, context)?,
                body => body,
            },
            (StepDirection::Rx, Encoding::Protobuf, _) => {
                form.protobuf_of_peer(std::mem::take(body), &mut self.scratch, context)?
            }
        };
        Ok(())
    }
}

impl ConversionTables<'_> {
    /// A message of a peer that sends protobuf: as it came, unless the app is to have it natively.
    fn protobuf_of_peer(
        &self,
        body: Body,
        scratch: &mut Scratch,
        context: &mut Context<'_>,
    ) -> Result<Body, ConversionFailure> {
        let body = match body {
            Body::Encoded(body) => body,
            Body::Received(body) => to_private(body, context),
            // The protobuf form of a message of defaults has no bytes, and so needs no body.
            Body::Empty => empty(context),
            body => return Err(wrong_form(body, context)),
        };
        match self.binding.form {
            BodyForm::Native => self.decoded(body, scratch, context),
            BodyForm::Protobuf if body.message().is_some() => Ok(Body::Encoded(self.counted(body))),
            BodyForm::Protobuf => Err(wrong_form(Body::Encoded(body), context)),
        }
    }

    /// A body that counts in the share, unless it is small and stays so.
    fn counted(&self, mut body: EncodedBody) -> EncodedBody {
        let held = body.buffer.bytes.capacity() as u64;
        let may_grow = body.compression.is_some();
        if (held > UNCOUNTED_BYTES_MAX || may_grow) && body.buffer.charge.is_none() {
            body.buffer.charge = Some(self.binding.share.charge(held));
        }
        body
    }
}

/// A body whose message has no bytes.
fn empty(context: &mut Context<'_>) -> EncodedBody {
    EncodedBody::plain(context.buffers.take(), 0, 0)
}

fn wrong_form(body: Body, context: &mut Context<'_>) -> ConversionFailure {
    body.discard(context);
    ConversionFailure::Lengths
}

impl Engine for Marshalling {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn do_work(&mut self, ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.retry_at = None;
        self.is_cut_short = false;
        let outbound = self.forward(StepDirection::Tx, ports.tx_in, ports.tx_out, context);
        let inbound = self.forward(StepDirection::Rx, ports.rx_in, ports.rx_out, context);
        // A refusal in one direction may have to be told in the other.
        let told = self.pending.deliver(StepDirection::Tx, ports.tx_out)
            + self.pending.deliver(StepDirection::Rx, ports.rx_out);
        if outbound + inbound + told == 0 && !self.is_cut_short {
            Progress::Idle
        } else {
            Progress::Busy
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.retry_at
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        saved::save(&self.calls, &self.pending, saver)
    }
}

fn message_bytes(body: &Body) -> u64 {
    let bytes = match body {
        Body::Gathered(body) => body.message_bytes,
        Body::Received(body) => body.message_bytes,
        Body::Encoded(body) => body.message_bytes,
        Body::Empty | Body::Untrusted(_) => 0,
    };
    u64::from(bytes)
}

/// A step that ends a call and says why.
fn cancel(refused: &RefusedStep, code: Code, context: &mut Context<'_>) -> Step {
    Step::cancel_because(refused.call, code, &refused.failure.to_string(), context.buffers)
}
