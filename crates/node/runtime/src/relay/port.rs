//! The port.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use provost_datapath::{
    Body, Buffer, BufferPool, EncodedBody, Gathered, Interest, Nanos, Offsets, PrivateBytes, ReceiveHeap,
    ReceivedBody, Step, UNCOUNTED_BYTES_MAX, message_offset,
};
use provost_frontend::MethodShape;
use provost_frontend_grpc::{PortProgress, PrivateHeap, ServiceBinding, ServiceRefusal, WantedService};
use provost_marshal::Tables;
use provost_schema::MessageId;
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::{BLOCK_ALIGN_BYTES, STREAM_MESSAGE_COST_BYTES};
use provost_wire::metadata;

use super::call::{RELAY_ENDS, RelayCall, RelayEnd};
use crate::call_port::{CallPort, NamedBlocks, SavedPort};

/// How soon room for a message is looked for again where others hold it.
const ROOM_RETRY_NS: Nanos = 1_000_000;
/// For how long a server that was not reached answers further calls, before it is asked for again.
const REFUSED_NS: Nanos = 1_000_000_000;
/// What is said of a message that cannot go back.
const TOO_LONG: &str = "the server's message is longer than the calling node takes";

/// What a port is made of.
pub struct RelayPortParts {
    /// The service that is called.
    pub service: String,
    /// Tables of its schema.
    pub tables: Arc<Tables>,
    /// Its methods, by index.
    pub methods: Arc<[MethodShape]>,
    /// Largest message that the other node takes, in bytes.
    pub message_bytes_max: u32,
    /// The share of private memory that messages take.
    pub share: Arc<PrivateBytes>,
    /// Bytes of messages that were received and not passed on, at most.
    pub receive_heap_bytes: u64,
}

/// The connection to the server.
///
/// ```text
/// Unknown ──a call comes──► Wanted (calls wait) ──► Bound ──it goes away, or ends──► Unknown
///                              └──► Refused (calls are, for a while) ──► Wanted
/// ```
#[derive(Debug)]
pub(super) enum ServerConnection {
    Unknown,
    Wanted,
    Bound { connection: u32, last_call: u64 },
    Refused { refusal: ServiceRefusal, until: Nanos },
}

/// See the module's documentation.
pub struct RelayPort {
    pub(super) parts: RelayPortParts,
    /// The connection that it serves, once it is there.
    pub(super) serving: Option<u32>,
    pub(super) server: ServerConnection,
    /// The control plane is to be asked for the server.
    asks: bool,
    /// By their numbers on the connection that is served; as many as its frontend allows.
    pub(super) calls: BTreeMap<u64, RelayCall>,
    /// Those numbers, by the connection to the server and the number there.
    pub(super) begun: HashMap<(u32, u64), u64>,
    /// Calls with steps for one of their ends.
    ready: VecDeque<(u64, RelayEnd)>,
    /// Cancellations for the server: at most one for each call that there was.
    pub(super) cancels: VecDeque<(u32, Step)>,
    pub(super) heap: PrivateHeap,
    /// Tokens that nobody has asked for.
    sent: Vec<u64>,
    /// When room for a message is looked for again.
    retry_at: Option<Nanos>,
    pub(super) now: Nanos,
    pub(super) ended: Option<String>,
}

impl RelayPort {
    /// A port whose connection is not there yet.
    #[must_use]
    pub fn new(parts: RelayPortParts, now: Nanos) -> RelayPort {
        RelayPort {
            heap: PrivateHeap::new(parts.receive_heap_bytes),
            parts,
            serving: None,
            server: ServerConnection::Unknown,
            asks: false,
            calls: BTreeMap::new(),
            begun: HashMap::new(),
            ready: VecDeque::new(),
            cancels: VecDeque::new(),
            sent: Vec::new(),
            retry_at: None,
            now,
            ended: None,
        }
    }

    /// How many calls are under way.
    #[must_use]
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }
}

// What comes.
impl RelayPort {
    fn on_caller_step(&mut self, step: Step) {
        let id = step.call;
        if step.parts.contains(Parts::BEGIN) {
            let Some(shape) = self.parts.methods.get(usize::from(step.method)) else {
                debug_assert!(false, "the frontend has checked the method");
                return self.free(step.body);
            };
            self.calls.insert(id, RelayCall::new(step.method, *shape));
            self.take(id, RelayEnd::Server, step);
            return self.look_for_server(id);
        }
        if step.parts.contains(Parts::CANCEL) {
            self.free(step.body);
            return self.forget(id, step.status);
        }
        self.take(id, RelayEnd::Server, step);
    }

    fn on_server_step(&mut self, connection: u32, mut step: Step) {
        let Some(id) = self.begun.get(&(connection, step.call)).copied() else {
            // The caller has given the call up meanwhile.
            return self.free(step.body);
        };
        if step.parts.contains(Parts::CANCEL) {
            // What ended it on its way ends it for the caller: with a status, as servers end calls.
            step.parts = Parts::STATUS;
            if step.status == Code::Ok {
                step.status = Code::Unknown;
            }
        }
        if step.parts.contains(Parts::STATUS) {
            self.end_at_server(id);
        }
        self.take(id, RelayEnd::Caller, step);
    }

    /// Puts a step among those for an end of its call.
    fn take(&mut self, id: u64, to: RelayEnd, step: Step) {
        let Some(call) = self.calls.get_mut(&id) else {
            return self.free(step.body);
        };
        if step.parts.contains(Parts::WINDOW) {
            // It is of the stream towards where it comes from.
            call.queue(to.other()).send_window += i64::from(step.window_bytes);
            return self.note(id, to.other());
        }
        if to == RelayEnd::Server && call.has_end {
            return self.free(step.body);
        }
        call.queue(to).steps.push_back(step);
        self.note(id, to);
    }

    /// The server knows a call no more: what was for it goes nowhere.
    fn end_at_server(&mut self, id: u64) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.has_end = true;
        if let Some(begun) = call.begun {
            self.begun.remove(&begun);
        }
        let left = std::mem::take(&mut call.queue(RelayEnd::Server).steps);
        left.into_iter().for_each(|step| self.free(step.body));
    }

    /// Ends a call at both ends, if nothing has ended it yet.
    fn fail(&mut self, id: u64, code: Code, reason: &str) {
        let Some(call) = self.calls.get(&id).filter(|call| !call.has_end) else {
            return;
        };
        if let Some((connection, number)) = call.begun {
            let cancel = Step::cancel(number, Code::Cancelled);
            self.cancels.push_back((connection, cancel));
        }
        self.end_at_server(id);
        self.take(id, RelayEnd::Caller, status_step(id, code, reason));
    }

    /// The caller knows a call no more; the server is told if it knows it.
    fn forget(&mut self, id: u64, code: Code) {
        let Some(mut call) = self.calls.remove(&id) else {
            return;
        };
        if let Some((connection, number)) = call.begun.filter(|_| !call.has_end) {
            self.begun.remove(&(connection, number));
            self.cancels.push_back((connection, Step::cancel(number, code)));
        }
        for end in RELAY_ENDS {
            let left = std::mem::take(&mut call.queue(end).steps);
            left.into_iter().for_each(|step| self.free(step.body));
        }
    }

    fn free(&mut self, body: Body) {
        if let Body::Received(body) = body {
            self.heap.free(body.block);
        }
    }

    /// Puts a call among those that are looked at next, if it has a step for this end.
    pub(super) fn note(&mut self, id: u64, to: RelayEnd) {
        let may_begin = matches!(self.server, ServerConnection::Bound { .. });
        if let Some(call) = self.calls.get_mut(&id)
            && call.has_step(to, may_begin)
            && !std::mem::replace(&mut call.queue(to).is_ready, true)
        {
            self.ready.push_back((id, to));
        }
    }
}

// The server.
impl RelayPort {
    /// Has a call that begins wait for the server, or refuses it.
    fn look_for_server(&mut self, id: u64) {
        match &self.server {
            ServerConnection::Bound { .. } | ServerConnection::Wanted => {}
            ServerConnection::Refused { refusal, until } if self.now < *until => {
                let refusal = refusal.clone();
                self.fail(id, refusal.code, &refusal.message);
            }
            ServerConnection::Refused { .. } | ServerConnection::Unknown => self.want(),
        }
    }

    pub(super) fn want(&mut self) {
        self.server = ServerConnection::Wanted;
        self.asks = true;
    }

    /// Calls that the server has not heard of.
    pub(super) fn waiting(&self) -> Vec<u64> {
        let calls = self.calls.iter();
        let waiting = calls.filter(|(_, call)| call.begun.is_none() && !call.has_end);
        waiting.map(|(id, _)| *id).collect()
    }

    fn bind(&mut self, connection: u32) {
        let last_call = 0;
        self.server = ServerConnection::Bound {
            connection,
            last_call,
        };
        for id in self.waiting() {
            self.note(id, RelayEnd::Server);
        }
    }

    fn refuse(&mut self, refusal: ServiceRefusal) {
        for id in self.waiting() {
            self.fail(id, refusal.code, &refusal.message);
        }
        self.server = ServerConnection::Refused {
            refusal,
            until: self.now + REFUSED_NS,
        };
    }

    /// No call begins on this connection any more; those that wait ask for another.
    fn leave_server(&mut self, of: u32) {
        if !matches!(self.server, ServerConnection::Bound { connection, .. } if connection == of) {
            return;
        }
        self.server = ServerConnection::Unknown;
        if !self.waiting().is_empty() {
            self.want();
        }
    }
}

// What goes on.
impl RelayPort {
    /// A step of a call for one of its ends, if there is one and room for it.
    fn make_step(&mut self, id: u64, to: RelayEnd) -> Option<(u32, Step)> {
        let may_begin = matches!(self.server, ServerConnection::Bound { .. });
        let call = self.calls.get_mut(&id)?;
        call.queue(to).is_ready = false;
        if !call.has_step(to, may_begin) {
            return None;
        }
        if let Some(step) = window_step(call, to) {
            return self.addressed(id, to, step);
        }
        let bytes = call.queue(to).steps.front().map_or(0, held_bytes);
        if bytes > UNCOUNTED_BYTES_MAX && self.parts.share.message_bytes_now() <= bytes {
            self.retry_at = Some(self.now + ROOM_RETRY_NS);
            self.note(id, to);
            return None;
        }
        let mut step = call.queue(to).steps.pop_front()?;
        self.pass_body(id, to, &mut step)?;
        self.count(id, to, &mut step);
        self.addressed(id, to, step)
    }

    /// Makes of a body that was received one that can be sent; none, if that ends its call.
    fn pass_body(&mut self, id: u64, to: RelayEnd, step: &mut Step) -> Option<()> {
        let body = match std::mem::take(&mut step.body) {
            Body::Received(body) => body,
            Body::Encoded(body) => return self.pass_encoded(id, to, body, step),
            other => {
                step.body = other;
                return Some(());
            }
        };
        let shape = self.calls.get(&id)?.shape;
        let message = match to {
            RelayEnd::Caller => shape.output,
            RelayEnd::Server => shape.input,
        };
        let is_too_long = self.is_too_long(to, body.message_bytes);
        match self.sendable(&body, message, step.parts) {
            Some(_) if is_too_long => {
                self.fail_reply(id, Code::ResourceExhausted, TOO_LONG);
                None
            }
            Some(passed) => {
                step.body = Body::Gathered(passed);
                Some(())
            }
            None => {
                self.fail_reply(
                    id,
                    Code::Internal,
                    "the message cannot be passed on: it is malformed",
                );
                None
            }
        }
    }

    fn is_too_long(&self, to: RelayEnd, message_bytes: u32) -> bool {
        to == RelayEnd::Caller && message_bytes > self.parts.message_bytes_max
    }

    /// Has a message in protobuf go on as it came; none, if that ends its call.
    fn pass_encoded(&mut self, id: u64, to: RelayEnd, mut body: EncodedBody, step: &mut Step) -> Option<()> {
        if self.is_too_long(to, body.message_bytes) {
            self.fail_reply(id, Code::ResourceExhausted, TOO_LONG);
            return None;
        }
        body.metadata_bytes = strip_reserved(&mut body.buffer.bytes, body.metadata_bytes, step.parts);
        let held = body.buffer.bytes.capacity() as u64;
        if held > UNCOUNTED_BYTES_MAX && body.buffer.charge.is_none() {
            body.buffer.charge = Some(self.parts.share.charge(held));
        }
        step.body = Body::Encoded(body);
        Some(())
    }

    /// The private copy of a received body, which leaves its block.
    fn sendable(&mut self, body: &ReceivedBody, message: MessageId, parts: Parts) -> Option<Gathered> {
        let mut bytes = self.heap.take(&body.block)?;
        let offset = message_offset(body.metadata_bytes);
        let end = offset + body.message_bytes as usize;
        if parts.contains(Parts::MESSAGE) {
            let linear = bytes.get_mut(offset..end)?;
            if body.offsets == Offsets::Window {
                let window_at = body.block.at + (offset / BLOCK_ALIGN_BYTES) as u32;
                let moved = self.parts.tables.make_movable(message, linear, window_at);
                moved.ok()?;
            }
        }
        bytes.resize(end, 0);
        let metadata_bytes = strip_reserved(&mut bytes, body.metadata_bytes, parts);
        let held = bytes.capacity() as u64;
        let mut buffer = Buffer::from(bytes);
        buffer.charge = (held > UNCOUNTED_BYTES_MAX).then(|| self.parts.share.charge(held));
        Some(Gathered {
            buffer,
            metadata_bytes,
            message_bytes: body.message_bytes,
            token: 0,
        })
    }

    /// Counts a step in the windows of the call's streams.
    fn count(&mut self, id: u64, to: RelayEnd, step: &mut Step) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        if !step.parts.contains(Parts::MESSAGE) || !call.queue(to).is_streaming {
            return;
        }
        // What came is given back as it was counted there.
        call.queue(to.other()).window_due += step.window_bytes;
        let message_bytes = match &step.body {
            Body::Gathered(body) => body.message_bytes,
            Body::Encoded(body) => body.message_bytes,
            _ => 0,
        };
        let cost = message_bytes.saturating_add(STREAM_MESSAGE_COST_BYTES);
        step.window_bytes = step.window_bytes.max(cost);
        call.queue(to).send_window -= i64::from(step.window_bytes);
        self.note(id, to.other());
    }

    /// The step as the connection of this end numbers its calls.
    fn addressed(&mut self, id: u64, to: RelayEnd, mut step: Step) -> Option<(u32, Step)> {
        step.taken_at = 0;
        let ends = step.parts.contains(Parts::STATUS);
        let connection = match to {
            RelayEnd::Caller => {
                step.call = id;
                self.serving
            }
            RelayEnd::Server => {
                let (connection, number) = self.number_at_server(id)?;
                step.call = number;
                Some(connection)
            }
        };
        if to == RelayEnd::Caller && ends {
            self.calls.remove(&id);
        } else {
            self.note(id, to);
        }
        Some((connection?, step))
    }

    /// Where the server knows a call; one that begins gets its number there.
    fn number_at_server(&mut self, id: u64) -> Option<(u32, u64)> {
        let call = self.calls.get_mut(&id)?;
        if let Some(begun) = call.begun {
            return Some(begun);
        }
        let ServerConnection::Bound {
            connection,
            last_call,
        } = &mut self.server
        else {
            return None;
        };
        *last_call += 1;
        let begun = (*connection, *last_call);
        call.begun = Some(begun);
        self.begun.insert(begun, id);
        Some(begun)
    }

    /// What is next for the caller cannot be sent to it.
    fn fail_reply(&mut self, id: u64, code: Code, reason: &str) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let left = std::mem::take(&mut call.queue(RelayEnd::Caller).steps);
        let is_over = call.has_end;
        left.into_iter().for_each(|step| self.free(step.body));
        if is_over {
            self.take(id, RelayEnd::Caller, status_step(id, code, reason));
        } else {
            self.fail(id, code, reason);
        }
    }
}

impl CallPort for RelayPort {
    fn poll(&mut self, now: Nanos) -> PortProgress {
        self.now = now;
        // Nobody waits for acknowledgements of private memory.
        self.sent.clear();
        PortProgress::Idle
    }

    fn note_ready(&mut self) {}

    fn next_request(&mut self, _buffers: &mut BufferPool) -> Option<(u32, Step)> {
        if let Some(cancel) = self.cancels.pop_front() {
            return Some(cancel);
        }
        self.retry_at = None;
        // Each is looked at once: one that has no room goes behind the others.
        for _ in 0..self.ready.len() {
            let (id, to) = self.ready.pop_front()?;
            if let Some(request) = self.make_step(id, to) {
                return Some(request);
            }
        }
        None
    }

    fn push_step(&mut self, connection: u32, step: Step) -> Result<(), Step> {
        if Some(connection) == self.serving {
            self.on_caller_step(step);
        } else {
            self.on_server_step(connection, step);
        }
        Ok(())
    }

    fn accepted(&mut self, connection: u32) {
        self.serving = Some(connection);
    }

    fn going_away(&mut self, connection: u32) {
        self.leave_server(connection);
    }

    fn closed(&mut self, connection: u32, code: Code) {
        if Some(connection) == self.serving {
            let calls: Vec<u64> = self.calls.keys().copied().collect();
            for id in calls {
                self.forget(id, Code::Cancelled);
            }
            self.ended = Some("the connection to the calling node has ended".to_owned());
            return;
        }
        self.leave_server(connection);
        let on_it = self.begun.iter().filter(|((of, _), _)| *of == connection);
        let left: Vec<u64> = on_it.map(|(_, id)| *id).collect();
        let code = match code {
            Code::Ok => Code::Unavailable,
            code => code,
        };
        for id in left {
            self.end_at_server(id);
            let status = status_step(id, code, "the connection to the server ended");
            self.take(id, RelayEnd::Caller, status);
        }
    }

    fn flush(&mut self, now: Nanos) {
        self.now = now;
    }

    /// The connection that it serves is drained as such.
    fn drain(&mut self, _now: Nanos) {}

    fn end(&mut self, refusal: &ServiceRefusal, now: Nanos) {
        self.now = now;
        let calls: Vec<u64> = self.calls.keys().copied().collect();
        for id in calls {
            self.fail(id, refusal.code, &refusal.message);
        }
    }

    /// Its connection is for all methods of the service, whichever is called first.
    fn take_wanted(&mut self) -> Option<WantedService> {
        std::mem::take(&mut self.asks).then(|| WantedService {
            service: self.parts.service.clone(),
            method: String::new(),
        })
    }

    fn answer_service(&mut self, _service: &str, answer: Result<ServiceBinding, ServiceRefusal>, now: Nanos) {
        self.now = now;
        if !matches!(self.server, ServerConnection::Wanted) {
            return;
        }
        match answer {
            Ok(binding) => self.bind(binding.connection),
            Err(refusal) => self.refuse(refusal),
        }
    }

    fn ended(&self) -> Option<&str> {
        self.ended.as_deref().filter(|_| self.cancels.is_empty())
    }

    /// It has no socket.
    fn interest(&self) -> Option<Interest> {
        None
    }

    fn is_stopped(&self) -> bool {
        false
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.retry_at
    }

    fn is_idle(&self) -> bool {
        let takes_none = self.ready.is_empty() || self.retry_at.is_some();
        self.cancels.is_empty() && !self.asks && takes_none
    }

    fn blocked_since(&self) -> Option<Nanos> {
        None
    }

    fn receive_heap_bytes(&self) -> u64 {
        self.heap.held_bytes()
    }

    fn lend(&mut self) -> (&mut dyn ReceiveHeap, &mut Vec<u64>) {
        (&mut self.heap, &mut self.sent)
    }

    fn save(&self, named: &NamedBlocks) -> io::Result<SavedPort> {
        self.saved(named)
    }
}

/// What gives an end its window back, if there is something to be given.
fn window_step(call: &mut RelayCall, to: RelayEnd) -> Option<Step> {
    let is_known = call.is_known_at(to);
    let due = &mut call.queue(to).window_due;
    (is_known && *due > 0).then(|| Step {
        window_bytes: std::mem::take(due),
        ..Step::new(0, Parts::WINDOW)
    })
}

fn held_bytes(step: &Step) -> u64 {
    match &step.body {
        Body::Received(body) => u64::from(body.block.bytes),
        Body::Encoded(body) if body.buffer.charge.is_none() => body.buffer.bytes.len() as u64,
        _ => 0,
    }
}

/// Takes reserved keys out of the metadata before a message, unless it is a status's: no node sends them. The length of the rest.
fn strip_reserved(bytes: &mut Vec<u8>, metadata_bytes: u32, parts: Parts) -> u32 {
    let block = bytes.get(..metadata_bytes as usize).unwrap_or_default();
    let is_reserved = |(key, _): (&str, &[u8])| key.starts_with(':');
    if parts.contains(Parts::STATUS) || !metadata::entries(block).any(is_reserved) {
        return metadata_bytes;
    }
    let mut rest = metadata::without_reserved(block.to_vec());
    let rest_bytes = rest.len() as u32;
    rest.resize(message_offset(rest_bytes), 0);
    bytes.splice(..message_offset(metadata_bytes), rest);
    rest_bytes
}

/// A status that this node gives a call, and why.
fn status_step(call: u64, code: Code, reason: &str) -> Step {
    let mut buffer = Buffer::default();
    // A reason that does not fit is left out; the code says the most of it.
    let _ = metadata::append(&mut buffer.bytes, metadata::STATUS_MESSAGE, reason.as_bytes());
    let metadata_bytes = buffer.bytes.len() as u32;
    buffer.bytes.resize(message_offset(metadata_bytes), 0);
    let body = Body::Encoded(EncodedBody::plain(buffer, metadata_bytes, 0));
    Step {
        status: code,
        body,
        ..Step::new(call, Parts::STATUS)
    }
}
