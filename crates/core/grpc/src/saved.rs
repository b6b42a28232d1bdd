//! A connection as bytes, for the process that goes on with it: that of HTTP/2 below, the calls, and what the application was not
//! told yet.
//!
//! Nothing in a state is believed: each length, number and reference is checked. Times are of the host's monotonic clock, so they
//! stay.

use std::collections::{BTreeMap, VecDeque};

use provost_datapath::{FieldReader, FieldWriter, RestoreError, SavedField};
use provost_http2::{DataChunk, EndpointRole, FieldIndexing, FieldList, Http2Connection, SavedConnection};

use crate::call_counts::CallOutcome;
use crate::calls::{CallPhase, CallState, CallTable, EndCause, GrpcEvent};
use crate::connection::{GrpcConfig, GrpcConnection};
use crate::encoding_set::EncodingSet;
use crate::framing::{GrpcMessage, MessageForm, MessageReader, PREFIX_BYTES};
use crate::head::{MessageCodec, RequestHead, ResponseHead};
use crate::large_messages::{ReaderReadiness, WaitingMessage};
use crate::status::GrpcStatus;
use provost_compression::MessageEncoding;

/// The newest version of the form.
const STATE_VERSION: u32 = 1;
/// Calls of one connection that are read: far more than any configuration allows.
const CALLS_MAX: usize = 1 << 20;
/// Events that are read: those of one frame, which may have as many messages as have room in it, and of calls that ended.
const EVENTS_MAX: usize = 1 << 22;
/// Fields of one list that are read.
const FIELDS_MAX: usize = 1 << 16;
/// What a number of bytes that a call holds may come to.
const HELD_BYTES_MAX: usize = u32::MAX as usize / 2;

impl<C: DataChunk> GrpcConnection<C> {
    /// Appends everything that a successor needs. The connection stays as it is. Bodies that wait in queues are copied, so that the
    /// state has at most what the connection's bounds allow.
    pub fn save(&self, out: &mut FieldWriter) {
        out.u32(STATE_VERSION);
        out.run(&self.http2.save().to_bytes());
        let table = &self.table;
        for bytes in [
            table.partial_bytes_max,
            table.large.small_bytes_max,
            table.large.bytes_max,
        ] {
            out.u64(bytes as u64);
        }
        out.count(table.calls.len());
        for (call, state) in table.calls.iter() {
            out.u32(call);
            state.save(out);
        }
        out.count(table.large.admitted.len());
        for (call, bytes) in &table.large.admitted {
            out.u32(*call);
            out.u64(*bytes as u64);
        }
        out.count(table.large.waiting.len());
        for (call, message) in &table.large.waiting {
            out.u32(*call);
            out.u64(message.bytes as u64);
            out.flag(message.readiness == ReaderReadiness::Waits);
        }
        out.list(table.events.iter());
        out.count(self.pending_answers.len());
        for (call, fields) in &self.pending_answers {
            out.u32(*call);
            save_list(fields, out);
        }
    }

    /// Reads what [`GrpcConnection::save`] has appended, for a connection that goes on: it does with every byte what the saved one
    /// would have done. The configuration may be another; the windows, and the bounds that follow from them, are those that the
    /// peer was told. `chunk` makes the bodies that waited in queues.
    ///
    /// # Errors
    /// The state is not one of a connection of this role.
    pub fn restore(
        fields: &mut FieldReader<'_>,
        role: EndpointRole,
        config: GrpcConfig,
        chunk: impl FnMut(Vec<u8>) -> C,
    ) -> Result<GrpcConnection<C>, RestoreError> {
        let version = fields.u32()?;
        if version != STATE_VERSION {
            return Err(fields.unknown_version(version, STATE_VERSION));
        }
        let http2 = SavedConnection::from_bytes(fields.run()?)
            .and_then(|saved| Http2Connection::restore_with(saved, config.http2, chunk))
            .map_err(|fault| fields.damaged(fault.to_string()))?;
        if http2.role() != role {
            return Err(fields.damaged("it is of the connection's other end"));
        }
        let table = restore_table(fields, role, &config)?;
        let mut pending_answers = VecDeque::new();
        for _ in 0..fields.count(CALLS_MAX)? {
            pending_answers.push_back((fields.u32()?, restore_list(fields)?));
        }
        Ok(GrpcConnection {
            http2,
            config,
            table,
            pending_answers,
        })
    }
}

fn restore_table(
    fields: &mut FieldReader<'_>,
    role: EndpointRole,
    config: &GrpcConfig,
) -> Result<CallTable, RestoreError> {
    let mut table = CallTable::new(role, config);
    table.partial_bytes_max = restore_bytes(fields)?;
    table.large.small_bytes_max = restore_bytes(fields)?;
    table.large.bytes_max = restore_bytes(fields)?;
    for _ in 0..fields.count(CALLS_MAX)? {
        let (call, state) = (fields.u32()?, CallState::restore(fields)?);
        if table.calls.contains_key(call) {
            return Err(fields.damaged(format!("call {call} is there twice")));
        }
        table.partial_bytes += state.reader.buffered_bytes();
        // What is counted begins anew, with the calls that go on.
        table.insert(call, state, 0);
    }
    restore_large(fields, &mut table)?;
    table.events = fields.list(EVENTS_MAX)?.into();
    Ok(table)
}

fn restore_large(fields: &mut FieldReader<'_>, table: &mut CallTable) -> Result<(), RestoreError> {
    let (mut admitted, mut waiting) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..fields.count(CALLS_MAX)? {
        admitted.insert(fields.u32()?, restore_message_bytes(fields)?);
    }
    for _ in 0..fields.count(CALLS_MAX)? {
        let (call, bytes) = (fields.u32()?, restore_message_bytes(fields)?);
        let readiness = if fields.flag()? {
            ReaderReadiness::Waits
        } else {
            ReaderReadiness::Holds
        };
        waiting.insert(call, WaitingMessage { bytes, readiness });
    }
    let has_call = |call: &u32| table.calls.contains_key(*call);
    let is_twice = |call: &u32| admitted.contains_key(call);
    if !admitted.keys().chain(waiting.keys()).all(has_call) || waiting.keys().any(is_twice) {
        return Err(fields.damaged("a large message is of no call, or waits though it may come"));
    }
    table.large.resume(admitted, waiting);
    Ok(())
}

fn restore_bytes(fields: &mut FieldReader<'_>) -> Result<usize, RestoreError> {
    usize::try_from(fields.u64()?).map_err(|_| fields.damaged("a bound is out of range"))
}

/// A length as the prefix of a message says it.
fn restore_message_bytes(fields: &mut FieldReader<'_>) -> Result<usize, RestoreError> {
    let bytes = u32::try_from(fields.u64()?);
    bytes
        .map(|bytes| bytes as usize)
        .map_err(|_| fields.damaged("a message is longer than any can be"))
}

fn restore_held(fields: &mut FieldReader<'_>) -> Result<usize, RestoreError> {
    let bytes = restore_bytes(fields)?;
    if bytes > HELD_BYTES_MAX {
        return Err(fields.damaged(format!("a call holds {bytes} bytes")));
    }
    Ok(bytes)
}

impl SavedField for CallState {
    fn save(&self, out: &mut FieldWriter) {
        self.sending.save(out);
        self.sent_encoding.save(out);
        self.receiving.save(out);
        self.received_encoding.save(out);
        self.reader.save(out);
        self.deadline_ns.save(out);
        out.u64(self.held_bytes as u64);
        out.u64(self.unreleased as u64);
        out.u32(self.withheld);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<CallState, RestoreError> {
        Ok(CallState {
            sending: CallPhase::restore(fields)?,
            sent_encoding: MessageEncoding::restore(fields)?,
            receiving: CallPhase::restore(fields)?,
            received_encoding: MessageEncoding::restore(fields)?,
            reader: MessageReader::restore(fields)?,
            deadline_ns: Option::restore(fields)?,
            held_bytes: restore_held(fields)?,
            unreleased: restore_held(fields)?,
            withheld: fields.u32()?,
            part_began_ns: 0,
            outcome: CallOutcome::Failed,
        })
    }
}

impl SavedField for MessageReader {
    fn save(&self, out: &mut FieldWriter) {
        out.run(&self.prefix[..self.prefix_have]);
        out.run(&self.bytes);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<MessageReader, RestoreError> {
        let (prefix, bytes) = (fields.run()?, fields.run()?);
        let mut reader = MessageReader {
            prefix: [0; PREFIX_BYTES],
            prefix_have: prefix.len(),
            bytes: bytes.to_vec(),
        };
        let place = reader.prefix.get_mut(..prefix.len());
        place
            .ok_or_else(|| fields.damaged("the prefix of a message is too long"))?
            .copy_from_slice(prefix);
        let is_within = match reader.announced_bytes() {
            Some(announced) => bytes.is_empty() || bytes.len() < announced,
            None => bytes.is_empty(),
        };
        if !is_within {
            return Err(fields.damaged("more of a message has come than there is"));
        }
        Ok(reader)
    }
}

impl SavedField for CallPhase {
    fn save(&self, out: &mut FieldWriter) {
        out.u8(match self {
            CallPhase::Head => 0,
            CallPhase::Body => 1,
            CallPhase::Ended => 2,
        });
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<CallPhase, RestoreError> {
        match fields.u8()? {
            0 => Ok(CallPhase::Head),
            1 => Ok(CallPhase::Body),
            2 => Ok(CallPhase::Ended),
            other => Err(fields.damaged(format!("{other} is no phase of a call"))),
        }
    }
}

impl SavedField for MessageCodec {
    /// A codec's name is not empty.
    fn save(&self, out: &mut FieldWriter) {
        match self {
            MessageCodec::Protobuf => out.text(""),
            MessageCodec::Named(name) => out.text(name),
        }
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<MessageCodec, RestoreError> {
        Ok(match fields.text()? {
            "" => MessageCodec::Protobuf,
            name => MessageCodec::Named(name.to_owned()),
        })
    }
}

impl SavedField for RequestHead {
    fn save(&self, out: &mut FieldWriter) {
        out.text(&self.path);
        self.authority.save(out);
        self.timeout_ns.save(out);
        self.codec.save(out);
        self.message_type.save(out);
        self.encoding.save(out);
        self.accepts.save(out);
        out.run(&self.metadata);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<RequestHead, RestoreError> {
        Ok(RequestHead {
            path: fields.text()?.to_owned(),
            authority: Option::restore(fields)?,
            timeout_ns: Option::restore(fields)?,
            codec: MessageCodec::restore(fields)?,
            message_type: Option::restore(fields)?,
            encoding: MessageEncoding::restore(fields)?,
            accepts: EncodingSet::restore(fields)?,
            metadata: restore_metadata(fields)?,
        })
    }
}

impl SavedField for ResponseHead {
    fn save(&self, out: &mut FieldWriter) {
        self.codec.save(out);
        self.encoding.save(out);
        self.accepts.save(out);
        out.run(&self.metadata);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<ResponseHead, RestoreError> {
        Ok(ResponseHead {
            codec: MessageCodec::restore(fields)?,
            encoding: MessageEncoding::restore(fields)?,
            accepts: EncodingSet::restore(fields)?,
            metadata: restore_metadata(fields)?,
        })
    }
}

/// Reads a block of metadata, whose entries must be whole.
fn restore_metadata(fields: &mut FieldReader<'_>) -> Result<Vec<u8>, RestoreError> {
    let block = fields.run()?;
    provost_wire::metadata::check(block).map_err(|fault| fields.damaged(fault.to_string()))?;
    Ok(block.to_vec())
}

impl SavedField for GrpcStatus {
    fn save(&self, out: &mut FieldWriter) {
        out.code(self.code);
        out.text(&self.message);
        out.flag(self.details.is_some());
        out.run(self.details.as_deref().unwrap_or_default());
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<GrpcStatus, RestoreError> {
        let (code, message) = (fields.code()?, fields.text()?.to_owned());
        let has_details = fields.flag()?;
        let details = fields.run()?.to_vec();
        Ok(GrpcStatus {
            code,
            message,
            details: has_details.then_some(details),
        })
    }
}

impl SavedField for GrpcMessage {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(self.form == MessageForm::Compressed);
        out.run(&self.bytes);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<GrpcMessage, RestoreError> {
        let form = if fields.flag()? {
            MessageForm::Compressed
        } else {
            MessageForm::Plain
        };
        let bytes = fields.run()?.to_vec();
        Ok(GrpcMessage { form, bytes })
    }
}

impl SavedField for EndCause {
    fn save(&self, out: &mut FieldWriter) {
        out.u8(match self {
            EndCause::Answered => 0,
            EndCause::Reset => 1,
            EndCause::NotProcessed => 2,
            EndCause::Local => 3,
            EndCause::Lost => 4,
        });
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<EndCause, RestoreError> {
        match fields.u8()? {
            0 => Ok(EndCause::Answered),
            1 => Ok(EndCause::Reset),
            2 => Ok(EndCause::NotProcessed),
            3 => Ok(EndCause::Local),
            4 => Ok(EndCause::Lost),
            other => Err(fields.damaged(format!("{other} is no cause of an end"))),
        }
    }
}

/// How events are told apart.
mod event {
    pub(super) const REQUEST: u8 = 0;
    pub(super) const RESPONSE: u8 = 1;
    pub(super) const MESSAGE: u8 = 2;
    pub(super) const HALF_CLOSED: u8 = 3;
    pub(super) const ENDED: u8 = 4;
    pub(super) const WRITABLE: u8 = 5;
    pub(super) const PEER_SETTINGS: u8 = 6;
    pub(super) const DRAINING: u8 = 7;
}

impl SavedField for GrpcEvent {
    fn save(&self, out: &mut FieldWriter) {
        let mut begin = |kind, call: &u32| {
            out.u8(kind);
            out.u32(*call);
        };
        match self {
            GrpcEvent::Request { call, head } => {
                begin(event::REQUEST, call);
                head.save(out);
            }
            GrpcEvent::Response { call, head } => {
                begin(event::RESPONSE, call);
                head.save(out);
            }
            GrpcEvent::Message { call, message } => {
                begin(event::MESSAGE, call);
                message.save(out);
            }
            GrpcEvent::HalfClosed { call } => begin(event::HALF_CLOSED, call),
            GrpcEvent::Ended {
                call,
                status,
                metadata,
                cause,
            } => {
                begin(event::ENDED, call);
                status.save(out);
                out.run(metadata);
                cause.save(out);
            }
            GrpcEvent::Writable { call } => begin(event::WRITABLE, call),
            GrpcEvent::PeerSettings => begin(event::PEER_SETTINGS, &0),
            GrpcEvent::Draining => begin(event::DRAINING, &0),
        }
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<GrpcEvent, RestoreError> {
        let (kind, call) = (fields.u8()?, fields.u32()?);
        Ok(match kind {
            event::REQUEST => {
                let head = RequestHead::restore(fields)?;
                GrpcEvent::Request { call, head }
            }
            event::RESPONSE => {
                let head = ResponseHead::restore(fields)?;
                GrpcEvent::Response { call, head }
            }
            event::MESSAGE => {
                let message = GrpcMessage::restore(fields)?;
                GrpcEvent::Message { call, message }
            }
            event::HALF_CLOSED => GrpcEvent::HalfClosed { call },
            event::ENDED => GrpcEvent::Ended {
                call,
                status: GrpcStatus::restore(fields)?,
                metadata: restore_metadata(fields)?,
                cause: EndCause::restore(fields)?,
            },
            event::WRITABLE => GrpcEvent::Writable { call },
            event::PEER_SETTINGS => GrpcEvent::PeerSettings,
            event::DRAINING => GrpcEvent::Draining,
            other => return Err(fields.damaged(format!("{other} is no event"))),
        })
    }
}

fn save_list(list: &FieldList, out: &mut FieldWriter) {
    out.count(list.len());
    for field in list.iter() {
        out.run(field.name);
        out.run(field.value);
        out.u8(match field.indexing {
            FieldIndexing::Automatic => 0,
            FieldIndexing::Without => 1,
            FieldIndexing::Never => 2,
        });
    }
}

fn restore_list(fields: &mut FieldReader<'_>) -> Result<FieldList, RestoreError> {
    let mut list = FieldList::new();
    for _ in 0..fields.count(FIELDS_MAX)? {
        let (name, value) = (fields.run()?, fields.run()?);
        let indexing = match fields.u8()? {
            0 => FieldIndexing::Automatic,
            1 => FieldIndexing::Without,
            2 => FieldIndexing::Never,
            other => return Err(fields.damaged(format!("{other} does not say who may index a field"))),
        };
        list.push_field(name, value, indexing);
    }
    Ok(list)
}
