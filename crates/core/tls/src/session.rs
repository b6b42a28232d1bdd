//! The record layer of a TLS 1.3 connection past its handshake (RFC 8446 §5), without I/O.
//!
//! rustls makes the handshake and proves who the ends are; then this takes over, with the traffic secrets that came out
//! of it. rustls can hand them out but cannot take them back, so a connection that a successor may have to continue
//! keeps its records itself. What it is then is little: a suite, two secrets, two numbers, and the bytes under way.
//!
//! ```text
//! pieces ─► seal() ─► output() ─► socket          socket ─► space(), came() ─► read() ─► plaintext
//! ```

use std::ops::Range;
use std::time::Instant;

use provost_datapath::{BufferPool, ForeignBytes};
use provost_marshal::copy_foreign;
use provost_session::Piece;
use rustls::AlertDescription;

use super::keys::{Keys, TAG_BYTES};
use super::textless::TextlessRecords;

/// Bytes of a record's header: type, version, length.
pub(super) const HEADER_BYTES: usize = 5;
/// Bytes of text in one record at most.
const TEXT_BYTES_MAX: usize = 16 << 10;
/// Bytes of a sealed record at most: what a peer may add is bounded (RFC 8446 §5.2).
pub(super) const SEALED_BYTES_MAX: usize = TEXT_BYTES_MAX + 256;
/// Bytes that are read from the socket at once: two records.
pub(super) const INPUT_BYTES: usize = 2 * (HEADER_BYTES + SEALED_BYTES_MAX);
/// Bytes of records that wait for the socket before no more is sealed.
const OUTPUT_BYTES_MAX: usize = 80 << 10;
/// Bytes of a message about the connection itself, such as a session ticket.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Records that are sealed with one key at most. AES-GCM keeps its promise for 2^24.5 full ones (RFC 8446 §5.5).
pub(super) const RECORDS_PER_KEY_MAX: u64 = 1 << 23;

/// What a record is about.
pub(super) mod content {
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const APPLICATION_DATA: u8 = 23;
}

/// Messages that may come after the handshake.
mod message {
    pub(super) const NEW_SESSION_TICKET: u8 = 4;
    pub(super) const KEY_UPDATE: u8 = 24;
}

const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// A TLS 1.3 connection past its handshake.
pub struct TlsSession {
    pub(super) role: provost_session::Role,
    pub(super) tx: Keys,
    pub(super) rx: Keys,
    pub(super) input: Input,
    /// A message about the connection that has come in part.
    pub(super) message: Vec<u8>,
    pub(super) textless: TextlessRecords,
    /// Records that were opened, of whatever type.
    records_opened: u64,
    /// Sealed records; what of them was sent.
    pub(super) output: Vec<u8>,
    pub(super) output_sent: usize,
    /// Whether the peer waits for this end's keys to change too.
    pub(super) key_update_due: bool,
    /// Whether the peer has said that it sends nothing more.
    pub(super) peer_closed: bool,
    /// Whether this end has.
    pub(super) closed: bool,
}

/// What has come: `[text, unread | sealed, unread | room]`.
#[derive(Default)]
pub(super) struct Input {
    pub(super) bytes: Vec<u8>,
    pub(super) text_at: usize,
    pub(super) text_end: usize,
    pub(super) sealed_at: usize,
    pub(super) end: usize,
}

/// What came of an attempt to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsRead {
    /// So many bytes of text.
    Bytes(usize),
    /// More must come first.
    NeedsMore,
    /// The peer has said that it sends nothing more.
    Closed,
}

/// Why a TLS connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// The peer ended it.
    #[error("the peer ended the TLS connection: {0:?}")]
    Alert(AlertDescription),
    /// The peer, or somebody on the way, broke it.
    #[error("TLS: {reason}")]
    Broken {
        /// What the peer is told.
        alert: AlertDescription,
        reason: &'static str,
    },
}

pub(super) const fn broken(alert: AlertDescription, reason: &'static str) -> TlsFault {
    TlsFault::Broken { alert, reason }
}

impl std::fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TlsSession({:?})", self.tx.suite())
    }
}

impl TlsSession {
    pub(super) fn new(role: provost_session::Role, tx: Keys, rx: Keys) -> TlsSession {
        TlsSession {
            role,
            tx,
            rx,
            input: Input::default(),
            message: Vec::new(),
            textless: TextlessRecords::default(),
            records_opened: 0,
            output: Vec::new(),
            output_sent: 0,
            key_update_due: false,
            peer_closed: false,
            closed: false,
        }
    }
}

// What is sent.
impl TlsSession {
    /// Whether records wait for the socket.
    pub fn wants_write(&self) -> bool {
        self.output_sent < self.output.len() || self.key_update_due
    }

    /// The records that wait for the socket. A change of keys that the peer has asked for joins them when nothing else is left: one that
    /// takes nothing away can ask as often as it likes, and finds one answer.
    pub fn output(&mut self, buffers: &mut BufferPool) -> Result<&[u8], TlsFault> {
        if self.output.is_empty() {
            self.update_keys_if_due(buffers)?;
        }
        Ok(self.output.get(self.output_sent..).unwrap_or_default())
    }

    /// Counts bytes of [`TlsSession::output`] that were sent.
    pub fn sent(&mut self, bytes: usize, buffers: &mut BufferPool) {
        self.output_sent += bytes;
        if self.output_sent >= self.output.len() {
            self.output_sent = 0;
            buffers.give_for_frames(std::mem::take(&mut self.output));
        }
    }

    /// Seals pieces, those that follow each other in one record, until enough waits; says how many of their bytes.
    pub fn seal<'a>(
        &mut self,
        pieces: impl Iterator<Item = Piece<'a>>,
        buffers: &mut BufferPool,
    ) -> Result<usize, TlsFault> {
        let mut record = None;
        let mut sealed = 0;
        for piece in pieces {
            let mut from = 0;
            while from < piece_bytes(&piece) {
                let at = match record {
                    Some(at) => at,
                    None if self.output.len() >= OUTPUT_BYTES_MAX => return Ok(sealed),
                    None => {
                        // Whoever asked for new keys gets them before any text (RFC 8446 §4.6.3).
                        self.update_keys_if_due(buffers)?;
                        *record.insert(self.begin_record(buffers))
                    }
                };
                let room = TEXT_BYTES_MAX - (self.output.len() - at - HEADER_BYTES);
                let length = room.min(piece_bytes(&piece) - from);
                append_piece(&piece, from, length, &mut self.output);
                (from, sealed) = (from + length, sealed + length);
                if length == room {
                    self.end_record(at, content::APPLICATION_DATA)?;
                    record = None;
                }
            }
        }
        if let Some(at) = record {
            self.end_record(at, content::APPLICATION_DATA)?;
        }
        Ok(sealed)
    }

    /// Tells the peer that nothing more comes.
    pub fn close(&mut self, buffers: &mut BufferPool) {
        if !std::mem::replace(&mut self.closed, true) {
            // What cannot be sealed any more is not missed: the end of the stream follows.
            let _ = self.put(
                content::ALERT,
                &[WARNING, u8::from(AlertDescription::CloseNotify)],
                buffers,
            );
        }
    }

    /// Tells the peer why the connection ends.
    pub fn complain(&mut self, fault: TlsFault, buffers: &mut BufferPool) {
        if let TlsFault::Broken { alert, .. } = fault
            && !std::mem::replace(&mut self.closed, true)
        {
            let _ = self.put(content::ALERT, &[FATAL, u8::from(alert)], buffers);
        }
    }

    /// Changes this end's keys, if the peer asks for it or they have sealed enough.
    fn update_keys_if_due(&mut self, buffers: &mut BufferPool) -> Result<(), TlsFault> {
        if !self.key_update_due && self.tx.sequence() < RECORDS_PER_KEY_MAX {
            return Ok(());
        }
        self.key_update_due = false;
        /// A `KeyUpdate` that asks for none in return.
        const KEY_UPDATE: [u8; 5] = [message::KEY_UPDATE, 0, 0, 1, 0];
        self.put(content::HANDSHAKE, &KEY_UPDATE, buffers)?;
        self.tx = self.tx.next().ok_or(SEALING)?;
        Ok(())
    }

    pub(super) fn put(&mut self, content: u8, text: &[u8], buffers: &mut BufferPool) -> Result<(), TlsFault> {
        let at = self.begin_record(buffers);
        self.output.extend_from_slice(text);
        self.end_record(at, content)
    }

    /// Makes room for a header; the text is appended behind it.
    fn begin_record(&mut self, buffers: &mut BufferPool) -> usize {
        if self.output.capacity() == 0 {
            self.output = buffers.take_for_frames();
        }
        let at = self.output.len();
        self.output.extend_from_slice(&[0; HEADER_BYTES]);
        at
    }

    fn end_record(&mut self, at: usize, content: u8) -> Result<(), TlsFault> {
        self.output.push(content);
        let record = self.output.get_mut(at..).ok_or(SEALING)?;
        let (header, text) = record.split_first_chunk_mut::<HEADER_BYTES>().ok_or(SEALING)?;
        let [high, low] = ((text.len() + TAG_BYTES) as u16).to_be_bytes();
        *header = [content::APPLICATION_DATA, 3, 3, high, low];
        let tag = self.tx.seal(header, text).map_err(|_| SEALING)?;
        self.output.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

const SEALING: TlsFault = broken(AlertDescription::InternalError, "a record could not be sealed");

fn piece_bytes(piece: &Piece<'_>) -> usize {
    match piece {
        Piece::Private(bytes) => bytes.len(),
        Piece::Foreign { length, .. } => *length as usize,
    }
}

fn append_piece(piece: &Piece<'_>, from: usize, length: usize, out: &mut Vec<u8>) {
    match piece {
        Piece::Private(bytes) => out.extend_from_slice(bytes.get(from..from + length).unwrap_or_default()),
        Piece::Foreign {
            range, from: start, ..
        } => {
            let part: ForeignBytes = range.part(start + from as u32, length as u32);
            copy_foreign(&part, out);
        }
    }
}

// What is received.
impl TlsSession {
    /// Where the next bytes from the socket go; not empty after [`TlsRead::NeedsMore`].
    pub fn space(&mut self) -> &mut [u8] {
        self.input.make_room();
        &mut self.input.bytes[self.input.end..]
    }

    /// Takes the memory away in which nothing is left that has come; it is made again when something comes.
    pub(super) fn take_idle_memory(&mut self) -> Option<Vec<u8>> {
        let is_idle = self.input.text_at == self.input.text_end && self.input.sealed_at == self.input.end;
        (is_idle && !self.input.bytes.is_empty()).then(|| std::mem::take(&mut self.input).bytes)
    }

    /// Gives memory for what comes, if there is none.
    pub(super) fn lend_memory(&mut self, mut bytes: Vec<u8>) {
        if self.input.bytes.is_empty() {
            bytes.resize(INPUT_BYTES, 0);
            self.input.bytes = bytes;
        }
    }

    /// Counts bytes that came in to [`TlsSession::space`].
    pub fn came(&mut self, bytes: usize) {
        self.input.end = (self.input.end + bytes).min(self.input.bytes.len());
    }

    /// Reads text that has come.
    pub fn read(&mut self, into: &mut [u8]) -> Result<TlsRead, TlsFault> {
        loop {
            let text = &self.input.bytes[self.input.text_at..self.input.text_end];
            if !text.is_empty() {
                let bytes = text.len().min(into.len());
                into[..bytes].copy_from_slice(&text[..bytes]);
                self.input.text_at += bytes;
                return Ok(TlsRead::Bytes(bytes));
            }
            if self.peer_closed {
                return Ok(TlsRead::Closed);
            }
            let Some(sealed_bytes) = self.input.next_record()? else {
                return Ok(TlsRead::NeedsMore);
            };
            self.open_record(sealed_bytes)?;
        }
    }

    /// How many records were opened; a successor counts anew.
    pub(super) const fn records_opened(&self) -> u64 {
        self.records_opened
    }

    /// Opens the record that is next, of which all has come, and acts on what it is about.
    fn open_record(&mut self, sealed_bytes: usize) -> Result<(), TlsFault> {
        self.records_opened += 1;
        let at = self.input.sealed_at;
        let end = at + HEADER_BYTES + sealed_bytes;
        self.input.sealed_at = end;
        let (header, sealed) = self.input.bytes[at..end].split_at_mut(HEADER_BYTES);
        let opened = self.rx.open(header, sealed).map_err(|_| {
            broken(
                AlertDescription::BadRecordMac,
                "a record was damaged, or is not the next one",
            )
        })?;
        // Behind the text stand its type, which is not zero, and any number of zeros.
        let typed = sealed[..opened].iter().rposition(|byte| *byte != 0);
        let typed = typed.ok_or(broken(
            AlertDescription::UnexpectedMessage,
            "a record without a type",
        ))?;
        if typed > TEXT_BYTES_MAX {
            return Err(broken(AlertDescription::RecordOverflow, "a record is too long"));
        }
        let (content, text) = (sealed[typed], at + HEADER_BYTES..at + HEADER_BYTES + typed);
        if content != content::HANDSHAKE && !self.message.is_empty() {
            return Err(broken(
                AlertDescription::UnexpectedMessage,
                "a message was interrupted",
            ));
        }
        let has_text = content == content::APPLICATION_DATA && typed > 0;
        self.textless.came(has_text, Instant::now)?;
        match content {
            content::APPLICATION_DATA => {
                (self.input.text_at, self.input.text_end) = (text.start, text.end);
                Ok(())
            }
            content::ALERT => self.alert(text),
            content::HANDSHAKE => self.messages(text),
            _ => Err(broken(
                AlertDescription::UnexpectedMessage,
                "a record of a type that cannot come here",
            )),
        }
    }

    /// In TLS 1.3 every alert is the end of the connection, but that somebody has cancelled, whatever its level says.
    fn alert(&mut self, text: Range<usize>) -> Result<(), TlsFault> {
        let [_, description] = self.input.bytes[text] else {
            return Err(broken(AlertDescription::DecodeError, "a malformed alert"));
        };
        match AlertDescription::from(description) {
            AlertDescription::CloseNotify => {
                self.peer_closed = true;
                Ok(())
            }
            AlertDescription::UserCanceled => Ok(()),
            other => Err(TlsFault::Alert(other)),
        }
    }

    fn messages(&mut self, text: Range<usize>) -> Result<(), TlsFault> {
        if text.is_empty() {
            return Err(broken(
                AlertDescription::UnexpectedMessage,
                "an empty handshake record",
            ));
        }
        self.message.extend_from_slice(&self.input.bytes[text]);
        let mut at = 0;
        while let Some(&[kind, a, b, c]) = self.message.get(at..).and_then(<[u8]>::first_chunk) {
            let length = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
            if length > MESSAGE_BYTES_MAX {
                return Err(broken(AlertDescription::DecodeError, "a message is too long"));
            }
            let end = at + length;
            if self.message.len() < end {
                break;
            }
            self.one_message(kind, at + 4..end)?;
            at = end;
        }
        // Once for all of them: a record has room for thousands.
        self.message.drain(..at);
        if self.message.is_empty() {
            self.message = Vec::new();
        }
        Ok(())
    }

    fn one_message(&mut self, kind: u8, body: Range<usize>) -> Result<(), TlsFault> {
        use provost_session::Role;
        let is_last = body.end == self.message.len();
        match (kind, self.message.get(body)) {
            // Sessions are not resumed, so tickets are of no use.
            (message::NEW_SESSION_TICKET, _) if self.role == Role::Client => Ok(()),
            // Nothing may stand behind it that was sealed with the old keys (RFC 8446 §5.1).
            (message::KEY_UPDATE, Some(&[asks @ (0 | 1)])) if is_last => {
                self.key_update_due |= asks == 1;
                self.rx = self.rx.next().ok_or(SEALING)?;
                Ok(())
            }
            (message::KEY_UPDATE, Some(&[0 | 1])) => Err(broken(
                AlertDescription::UnexpectedMessage,
                "a message behind a change of keys",
            )),
            (message::KEY_UPDATE, _) => Err(broken(
                AlertDescription::IllegalParameter,
                "a malformed change of keys",
            )),
            _ => Err(broken(
                AlertDescription::UnexpectedMessage,
                "a message that cannot come after the handshake",
            )),
        }
    }
}

impl Input {
    /// Length of the next record behind its header, if all of it has come.
    fn next_record(&mut self) -> Result<Option<usize>, TlsFault> {
        let come = &self.bytes[self.sealed_at..self.end];
        let Some(&[content, major, _, high, low]) = come.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        if content != content::APPLICATION_DATA || major != 3 {
            return Err(broken(
                AlertDescription::UnexpectedMessage,
                "what came is no sealed record",
            ));
        }
        if length > SEALED_BYTES_MAX {
            return Err(broken(AlertDescription::RecordOverflow, "a record is too long"));
        }
        Ok((come.len() >= HEADER_BYTES + length).then_some(length))
    }

    /// Moves what has come and was not read to the front.
    fn make_room(&mut self) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; INPUT_BYTES];
        }
        if self.text_at < self.text_end {
            // Only what was read whole makes room; the caller reads first.
            return;
        }
        self.bytes.copy_within(self.sealed_at..self.end, 0);
        self.end -= self.sealed_at;
        (self.sealed_at, self.text_at, self.text_end) = (0, 0, 0);
    }
}
