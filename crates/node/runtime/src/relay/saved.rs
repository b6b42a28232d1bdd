//! A port as bytes, for the process that goes on with its calls: what waits for their ends, and blocks that engines of its datapaths
//! name. Neither end notices anything.

use std::io;

use provost_datapath::{
    BlockContent, Body, FieldReader, FieldWriter, ForeignBytes, Nanos, NotSaved, ReceivedBlock, RestoreError,
    Restorer, SavedField, Saver, Step, UNCOUNTED_BYTES_MAX,
};
use provost_frontend_grpc::{PORT_STATE_BYTES_MAX, PrivateHeap};
use provost_marshal::copy_foreign;
use provost_wire::Code;

use super::call::{RELAY_ENDS, RelayCall};
use super::port::{RelayPort, RelayPortParts, ServerConnection};
use crate::call_port::{CallPort, NamedBlocks, SavedPort};

/// What errors call the state.
const KIND: &str = "port of calls that are passed on";
/// The newest version of the form: what a process says that it reads before it is given one.
pub const RELAY_STATE_VERSION: u32 = 1;
/// Calls or steps that are read.
const ITEMS_MAX: usize = 1 << 22;

impl RelayPort {
    /// The state of the port, which stays as it is.
    pub(super) fn saved(&self, named: &NamedBlocks) -> io::Result<SavedPort> {
        let mut saver = StepSaver { named: Vec::new() };
        for (block, content) in named {
            saver.block(block, *content);
        }
        let mut calls = FieldWriter::new();
        self.save_calls(&mut saver, &mut calls);
        let mut out = FieldWriter::new();
        out.u32(RELAY_STATE_VERSION);
        // Steps name blocks, so these come first.
        self.heap.save(&saver.named, &mut out);
        out.bytes.append(&mut calls.bytes);
        let bytes = out.bytes.len();
        if bytes > PORT_STATE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "its state has {bytes} bytes, and {PORT_STATE_BYTES_MAX} are the most"
            )));
        }
        Ok(SavedPort {
            state: out.bytes,
            descriptors: Vec::new(),
        })
    }

    fn save_calls(&self, saver: &mut StepSaver, out: &mut FieldWriter) {
        self.serving.map(u64::from).save(out);
        let server = match self.server {
            ServerConnection::Bound {
                connection,
                last_call,
            } => Some((u64::from(connection), last_call)),
            // It is asked for anew.
            ServerConnection::Unknown | ServerConnection::Wanted | ServerConnection::Refused { .. } => None,
        };
        server.save(out);
        out.text(self.ended.as_deref().unwrap_or_default());
        out.count(self.cancels.len());
        for (connection, cancel) in &self.cancels {
            out.u32(*connection);
            out.u64(cancel.call);
            out.code(cancel.status);
        }
        out.count(self.calls.len());
        for (id, call) in &self.calls {
            out.u64(*id);
            save_call(call, saver, out);
        }
    }

    /// A port that goes on with the calls of another process. Nothing that their ends can see is done before it is polled.
    /// `has_connection` says whether a connection of this number is gone on with.
    ///
    /// # Errors
    /// The state is not one of a port for this service.
    pub fn restore(
        state: &[u8],
        parts: RelayPortParts,
        has_connection: &dyn Fn(u32) -> bool,
        now: Nanos,
    ) -> Result<RelayPort, RestoreError> {
        let mut fields = FieldReader::new(KIND, state);
        let version = fields.u32()?;
        if version != RELAY_STATE_VERSION {
            return Err(fields.unknown_version(version, RELAY_STATE_VERSION));
        }
        let heap_bytes = parts.receive_heap_bytes;
        let mut port = RelayPort::new(parts, now);
        port.heap = PrivateHeap::restore(&mut fields, heap_bytes)?;
        port.restore_calls(&mut fields)?;
        fields.end()?;
        port.resume(has_connection);
        Ok(port)
    }

    fn restore_calls(&mut self, fields: &mut FieldReader<'_>) -> Result<(), RestoreError> {
        let serving: Option<u64> = Option::restore(fields)?;
        self.serving = serving.map(|number| connection(fields, number)).transpose()?;
        let server: Option<(u64, u64)> = Option::restore(fields)?;
        if let Some((number, last_call)) = server {
            let connection = connection(fields, number)?;
            self.server = ServerConnection::Bound {
                connection,
                last_call,
            };
        }
        self.ended = Some(fields.text()?.to_owned()).filter(|reason| !reason.is_empty());
        for _ in 0..fields.count(ITEMS_MAX)? {
            let (connection, call) = (fields.u32()?, fields.u64()?);
            self.cancels
                .push_back((connection, Step::cancel(call, fields.code()?)));
        }
        for _ in 0..fields.count(ITEMS_MAX)? {
            let id = fields.u64()?;
            let call = self.restore_call(fields)?;
            if let Some(begun) = call.begun.filter(|_| !call.has_end)
                && self.begun.insert(begun, id).is_some()
            {
                return Err(fields.damaged(format!("call {} was begun twice", begun.1)));
            }
            if self.calls.insert(id, call).is_some() {
                return Err(fields.damaged(format!("call {id} is there twice")));
            }
        }
        Ok(())
    }

    fn restore_call(&mut self, fields: &mut FieldReader<'_>) -> Result<RelayCall, RestoreError> {
        let method = fields.u16()?;
        let shape = self.parts.methods.get(usize::from(method)).copied();
        let shape = shape.ok_or_else(|| fields.damaged(format!("the service has no method {method}")))?;
        let mut call = RelayCall::new(method, shape);
        let begun: Option<(u64, u64)> = Option::restore(fields)?;
        call.begun = begun
            .map(|(number, at)| Ok((connection(fields, number)?, at)))
            .transpose()?;
        call.has_end = fields.flag()?;
        for end in RELAY_ENDS {
            let queue = call.queue(end);
            queue.send_window = fields.i64()?;
            queue.window_due = fields.u32()?;
            let mut restorer = StepRestorer { heap: &mut self.heap };
            let mut steps = Step::restore_all(fields, &mut restorer, ITEMS_MAX)?;
            for step in &mut steps {
                if let Body::Encoded(body) = &mut step.body {
                    let held = body.buffer.bytes.capacity() as u64;
                    body.buffer.charge = (held > UNCOUNTED_BYTES_MAX).then(|| self.parts.share.charge(held));
                }
            }
            queue.steps = steps.into();
        }
        Ok(call)
    }

    /// Calls go on, but for those whose connection is gone: they end as they do when it ends.
    fn resume(&mut self, has_connection: &dyn Fn(u32) -> bool) {
        let on_calls = self.begun.keys().map(|(connection, _)| *connection);
        let bound = match self.server {
            ServerConnection::Bound { connection, .. } => Some(connection),
            _ => None,
        };
        let mut lost: Vec<u32> = on_calls.chain(bound).chain(self.serving).collect();
        lost.sort_unstable();
        lost.dedup();
        lost.retain(|connection| !has_connection(*connection));
        for connection in lost {
            self.closed(connection, Code::Unavailable);
        }
        self.cancels.retain(|(connection, _)| has_connection(*connection));
        if matches!(self.server, ServerConnection::Unknown) && !self.waiting().is_empty() {
            self.want();
        }
        let calls: Vec<u64> = self.calls.keys().copied().collect();
        for id in calls {
            RELAY_ENDS.into_iter().for_each(|end| self.note(id, end));
        }
    }

    /// The block to use for one that the state of an engine names.
    ///
    /// # Errors
    /// It was not saved, or is named twice.
    pub fn claim(&mut self, saved: &ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.heap.claim(saved)
    }

    /// Every state has been restored: blocks that none of them has claimed are in nobody's hands.
    pub fn end_claims(&mut self) {
        self.heap.end_claims();
    }
}

fn save_call(call: &RelayCall, saver: &mut StepSaver, out: &mut FieldWriter) {
    out.u16(call.method);
    let begun = call
        .begun
        .map(|(connection, number)| (u64::from(connection), number));
    begun.save(out);
    out.flag(call.has_end);
    for end in RELAY_ENDS {
        let queue = call.waiting(end);
        out.i64(queue.send_window);
        out.u32(queue.window_due);
        Step::save_all(queue.steps.iter(), saver, out);
    }
}

/// The number of a connection, as it was saved.
fn connection(fields: &FieldReader<'_>, number: u64) -> Result<u32, RestoreError> {
    u32::try_from(number).map_err(|_| fields.damaged(format!("{number} is no connection")))
}

/// Notes the blocks that waiting steps name.
struct StepSaver {
    named: NamedBlocks,
}

impl Saver for StepSaver {
    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        copy_foreign(bytes, out);
    }

    fn block(&mut self, block: &ReceivedBlock, content: BlockContent) {
        let (at, bytes) = (block.at, block.bytes);
        self.named.push((ReceivedBlock { at, bytes }, content));
    }
}

/// Gives waiting steps the blocks that they name.
struct StepRestorer<'a> {
    heap: &'a mut PrivateHeap,
}

impl Restorer for StepRestorer<'_> {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.heap.claim(&saved)
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}
