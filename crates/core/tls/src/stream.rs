//! TLS for connections that carry HTTP/2 to and from programs that are no nodes (RFC 9113, sections 3.2 and 9.2): a stream over
//! another stream. rustls makes the handshake. A connection of TLS 1.3 has records of our own from then on ([`TlsSession`]), so
//! that a successor can go on with it; one of TLS 1.2 keeps those of rustls, and ends with its process.
//!
//! The stream below does not block. The handshake goes on as bytes come and room for them is there, so whoever reads and writes
//! needs not know of it; what is written before its end waits.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use provost_datapath::{BufferPool, FieldReader, FieldWriter, RestoreError};
use provost_session::Piece;
use provost_wiping::wipe_stack;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, Connection, ProtocolVersion, ServerConfig};

use crate::handshake::{Secrets, TlsHandshake, session_of};
use crate::session::{HEADER_BYTES, TlsFault, TlsRead, TlsSession};
use crate::{PeerIdentity, explain, identity};

/// What both ends have to agree on (RFC 9113, section 3.1).
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// Bytes that are read from the stream below at a time.
const READ_BYTES: usize = 32 << 10;
/// Bytes that a peer may send before it has proved what it must: a chain of certificates takes a tenth of them.
const HANDSHAKE_BYTES_MAX: usize = 48 << 10;
/// Records of our own, or times that rustls is given bytes, after which a read that has brought text returns, whatever room is left. So
/// a peer whose records have little text, or none, keeps a thread no longer than that.
const READ_STEPS_MAX: u64 = 128;

/// A stream within TLS.
pub struct TlsStream<S: Read + Write> {
    socket: S,
    records: StreamRecords,
    input: TlsInput,
    stage: StreamStage,
    /// The last read stopped before the end or an error.
    has_more: bool,
    /// Who the peer has proved to be, once the handshake is over.
    identity: PeerIdentity,
    /// Another process may go on with the session: as long as nothing is done here, its end is not said.
    is_handed_over: Cell<bool>,
}

/// Who makes the records.
enum StreamRecords {
    Library(Box<LibraryRecords>),
    Own(Box<TlsSession>),
    /// Nobody: those of the library could not be gone on from.
    Lost,
}

/// The handshake, and connections of TLS 1.2.
struct LibraryRecords {
    tls: Connection,
    secrets: Arc<Secrets>,
    /// While hands are shaken, rustls is given nothing of the record after the one that it is at: that may be ours to read.
    limit: RecordLimit,
    /// How often rustls was given bytes.
    steps: u64,
}

/// How far a record is that is given to rustls in parts.
#[derive(Default)]
struct RecordLimit {
    header: [u8; HEADER_BYTES],
    header_have: usize,
    left: usize,
}

/// What came from the stream below and rustls has not taken: it takes little at a time. Buffers are those of the thread, and a
/// stream keeps one only while something is left in it.
#[derive(Default)]
struct TlsInput {
    bytes: Vec<u8>,
    range: Range<usize>,
}

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    /// Where the buffers of sealed records come from.
    static BUFFERS: RefCell<BufferPool> = RefCell::new(BufferPool::new());
}

/// ```text
/// Shaking ──both ends have proved what they must, and agreed on HTTP/2──► Open ──an error──► Broken
/// ```
#[derive(Debug)]
enum StreamStage {
    /// So many bytes have come.
    Shaking(usize),
    Open,
    /// What was wrong, said again to whoever goes on.
    Broken(String),
}

/// What is wrong with a stream within TLS, or with who is at its other end.
#[derive(Debug, thiserror::Error)]
#[error("TLS: {0}")]
pub struct StreamFault(String);

impl<S: Read + Write> TlsStream<S> {
    /// As the end that connects to a server of this name: the host's, or an IP address.
    ///
    /// # Errors
    /// It is no name of a host.
    pub fn client(socket: S, config: Arc<ClientConfig>, name: &str) -> Result<TlsStream<S>, StreamFault> {
        let server =
            server_name(name).ok_or_else(|| StreamFault(format!("\"{name}\" is no name of a host")))?;
        let (secrets, mut config) = (Arc::new(Secrets::default()), ClientConfig::clone(&config));
        config.key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
        config.enable_secret_extraction = true;
        let connection = rustls::ClientConnection::new(Arc::new(config), server);
        let connection = connection.map_err(|error| StreamFault(error.to_string()))?;
        Ok(TlsStream::new(socket, connection.into(), secrets))
    }

    /// As the end that was connected to.
    ///
    /// # Errors
    /// The configuration is of no use.
    pub fn server(socket: S, config: Arc<ServerConfig>) -> Result<TlsStream<S>, StreamFault> {
        let (secrets, mut config) = (Arc::new(Secrets::default()), ServerConfig::clone(&config));
        config.key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
        config.enable_secret_extraction = true;
        let connection = rustls::ServerConnection::new(Arc::new(config));
        let connection = connection.map_err(|error| StreamFault(error.to_string()))?;
        Ok(TlsStream::new(socket, connection.into(), secrets))
    }

    fn new(socket: S, tls: Connection, secrets: Arc<Secrets>) -> TlsStream<S> {
        let library = LibraryRecords {
            tls,
            secrets,
            limit: RecordLimit::default(),
            steps: 0,
        };
        TlsStream {
            socket,
            records: StreamRecords::Library(Box::new(library)),
            input: TlsInput::default(),
            stage: StreamStage::Shaking(0),
            has_more: false,
            identity: PeerIdentity::Anonymous,
            is_handed_over: Cell::new(false),
        }
    }

    /// Whether another process can go on with the session: it is of TLS 1.3, and both ends have proved what they must.
    pub fn can_be_saved(&self) -> bool {
        matches!(
            (&self.records, &self.stage),
            (StreamRecords::Own(_), StreamStage::Open)
        )
    }

    /// Appends what another process goes on with: the secrets of the session among it, so it goes to that process and nowhere else.
    /// The stream stays as it is. Should it end without being used again, it does not tell the peer.
    pub fn save(&self, out: &mut FieldWriter) {
        if let StreamRecords::Own(session) = &self.records {
            self.is_handed_over.set(true);
            session.save(out);
        }
    }

    /// Goes on with a session of another process over a duplicate of its socket. Should it end before it is used, it does not tell
    /// the peer: the other process may go on.
    ///
    /// # Errors
    /// The state is not what [`TlsStream::save`] writes.
    pub fn restore(socket: S, fields: &mut FieldReader<'_>) -> Result<TlsStream<S>, RestoreError> {
        let session = TlsSession::restore(fields)?;
        Ok(TlsStream {
            socket,
            records: StreamRecords::Own(Box::new(session)),
            input: TlsInput::default(),
            stage: StreamStage::Open,
            has_more: false,
            identity: PeerIdentity::Anonymous,
            is_handed_over: Cell::new(true),
        })
    }

    /// Goes on with the handshake as far as that is possible; whether it is over.
    ///
    /// # Errors
    /// The peer does not prove what it must, or does not speak TLS; or the stream below is broken.
    pub fn shake_hands(&mut self) -> io::Result<bool> {
        while self.is_shaking() {
            self.send()?;
            match self.receive() {
                Ok(0) => return Err(closed_early()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.send()?;
        Ok(true)
    }

    /// Whether bytes wait for room in the stream below.
    pub fn has_output(&self) -> bool {
        match &self.records {
            StreamRecords::Library(library) => library.tls.wants_write(),
            StreamRecords::Own(session) => session.wants_write(),
            StreamRecords::Lost => false,
        }
    }

    /// Whether what cannot be written now can be only when the peer has gone on with the handshake, whatever room there is in the
    /// stream below.
    pub fn waits_for_peer(&self) -> bool {
        self.is_shaking() && !self.has_output()
    }

    /// Whether the last read, though it had room, stopped before the end or an error, which the next one tells, or before records that
    /// have come. The stream below may have nothing more to say then.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Who the peer has proved to be, once the handshake is over; nobody, of a stream that goes on with another process's.
    pub fn identity(&self) -> PeerIdentity {
        self.identity.clone()
    }

    /// Whether hands are still shaken.
    pub fn is_shaking(&self) -> bool {
        matches!(self.stage, StreamStage::Shaking(_))
    }

    /// Gives the stream below what it has room for.
    fn send(&mut self) -> io::Result<()> {
        loop {
            let sent = match &mut self.records {
                StreamRecords::Library(library) if library.tls.wants_write() => {
                    library.tls.write_tls(&mut self.socket)
                }
                StreamRecords::Own(session) if session.wants_write() => send_own(session, &mut self.socket),
                _ => return Ok(()),
            };
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes some of what the stream below has; how much of it.
    fn receive(&mut self) -> io::Result<usize> {
        let library = match &mut self.records {
            StreamRecords::Library(library) => library,
            StreamRecords::Own(session) => return receive_own(session, &mut self.socket),
            StreamRecords::Lost => return Ok(0),
        };
        if self.input.range.is_empty() {
            self.input.fill(&mut self.socket)?;
        }
        let count = if matches!(self.stage, StreamStage::Shaking(_)) {
            library.take_part(&mut self.input)?
        } else {
            library.tls.read_tls(&mut self.input)?
        };
        library.steps += 1;
        let processed = library.tls.process_new_packets();
        if matches!(self.stage, StreamStage::Shaking(_)) {
            wipe_stack();
        }
        if let Err(error) = processed {
            return Err(self.broken(explain_stream(&error)));
        }
        if let StreamStage::Shaking(come) = self.stage {
            self.note_progress(come + count)?;
        }
        // What TLS itself has to say, such as that keys have changed.
        self.send()?;
        Ok(count)
    }

    fn note_progress(&mut self, come: usize) -> io::Result<()> {
        let StreamRecords::Library(library) = &self.records else {
            return Ok(());
        };
        if library.tls.is_handshaking() {
            if come > HANDSHAKE_BYTES_MAX {
                return Err(self.broken(format!("a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")));
            }
            self.stage = StreamStage::Shaking(come);
            return Ok(());
        }
        if library.tls.alpn_protocol() != Some(ALPN_HTTP2) {
            let reason = match library.tls {
                Connection::Client(_) => {
                    "the server does not agree on HTTP/2 (ALPN \"h2\"), as gRPC needs it".to_owned()
                }
                Connection::Server(_) => {
                    "the client does not offer HTTP/2 (ALPN \"h2\"), as gRPC needs it".to_owned()
                }
            };
            return Err(self.broken(reason));
        }
        self.identity = identity(&library.tls);
        self.stage = StreamStage::Open;
        if library.tls.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
            self.go_over_to_own_records()?;
        }
        Ok(())
    }

    /// From here on the records are our own. What the handshake has to say still leaves first.
    fn go_over_to_own_records(&mut self) -> io::Result<()> {
        let records = std::mem::replace(&mut self.records, StreamRecords::Lost);
        let StreamRecords::Library(mut library) = records else {
            return Ok(());
        };
        let mut unsent = Vec::new();
        while library.tls.wants_write() {
            library.tls.write_tls(&mut unsent)?;
        }
        let LibraryRecords { tls, secrets, .. } = *library;
        let session = session_of(tls, &secrets);
        let mut session = session.map_err(|error| self.broken(error.to_string()))?;
        session.output = unsent;
        self.input.give_to(&mut session);
        self.records = StreamRecords::Own(Box::new(session));
        Ok(())
    }

    /// Nothing is read or written any more. The peer is told, if there is room.
    fn broken(&mut self, reason: String) -> io::Error {
        let is_handshaking = match &self.records {
            StreamRecords::Library(library) => library.tls.is_handshaking(),
            StreamRecords::Own(_) | StreamRecords::Lost => false,
        };
        // What was written meanwhile is not for a peer that does not agree on HTTP/2.
        if !self.is_shaking() || is_handshaking {
            let _ = self.send();
        }
        let error = fault(&reason);
        self.stage = StreamStage::Broken(reason);
        error
    }

    /// The same where records of our own are at fault.
    fn broken_by(&mut self, fault: TlsFault) -> io::Error {
        if let StreamRecords::Own(session) = &mut self.records {
            BUFFERS.with_borrow_mut(|buffers| session.complain(fault, buffers));
        }
        self.broken(match fault {
            TlsFault::Alert(alert) => explain_stream(&rustls::Error::AlertReceived(alert)),
            TlsFault::Broken { reason, .. } => reason.to_owned(),
        })
    }

    /// Reads text of records that have come.
    fn read_text(&mut self, into: &mut [u8]) -> io::Result<TlsRead> {
        let session = match &mut self.records {
            StreamRecords::Library(library) => return library.read_text(into),
            StreamRecords::Own(session) => session,
            StreamRecords::Lost => return Ok(TlsRead::Closed),
        };
        let read = session.read(into);
        let read = read.map_err(|fault| self.broken_by(fault))?;
        // The peer may wait for this end to change its keys.
        self.send()?;
        Ok(read)
    }

    /// How much was done to open what comes, to be compared with what it was.
    fn steps(&self) -> u64 {
        match &self.records {
            StreamRecords::Library(library) => library.steps,
            StreamRecords::Own(session) => session.records_opened(),
            StreamRecords::Lost => 0,
        }
    }

    /// Refuses to go on with what is broken. Whoever goes on is the one that the session belongs to.
    fn check_whole(&self) -> io::Result<()> {
        self.is_handed_over.set(false);
        match &self.stage {
            StreamStage::Broken(reason) => Err(fault(reason)),
            StreamStage::Shaking(_) | StreamStage::Open => Ok(()),
        }
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    /// Reads until there is nothing more, no room, or much was done for it: so fewer bytes than there is room for mean that
    /// more have not come, unless [`TlsStream::has_more`].
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.has_more = false;
        self.check_whole()?;
        let (mut filled, steps_before) = (0, self.steps());
        while filled < into.len() {
            if filled > 0 && self.steps().saturating_sub(steps_before) >= READ_STEPS_MAX {
                self.has_more = true;
                return Ok(filled);
            }
            match self.read_text(&mut into[filled..]) {
                Ok(TlsRead::Bytes(count)) => filled += count,
                // An end that TLS does not say is one too: messages of HTTP/2 have their lengths.
                Ok(TlsRead::Closed) => return self.end(filled),
                Err(_) if filled > 0 => {
                    self.has_more = true;
                    return Ok(filled);
                }
                Err(error) => return Err(error),
                Ok(TlsRead::NeedsMore) => match self.receive() {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if filled > 0 => {
                        self.has_more = error.kind() != io::ErrorKind::WouldBlock;
                        return Ok(filled);
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        Ok(filled)
    }
}

impl<S: Read + Write> TlsStream<S> {
    fn end(&mut self, filled: usize) -> io::Result<usize> {
        if self.is_shaking() {
            return Err(closed_early());
        }
        self.has_more = filled > 0;
        Ok(filled)
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Takes what there is room for, which may leave later: [`Write::flush`] says whether it has left.
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check_whole()?;
        self.send()?;
        let count = match &mut self.records {
            StreamRecords::Library(library) => library.tls.writer().write_vectored(pieces)?,
            StreamRecords::Own(session) => {
                let texts = pieces.iter().map(|piece| Piece::Private(piece));
                let sealed = BUFFERS.with_borrow_mut(|buffers| session.seal(texts, buffers));
                sealed.map_err(|fault| self.broken_by(fault))?
            }
            StreamRecords::Lost => 0,
        };
        let is_empty = pieces.iter().all(|piece| piece.is_empty());
        if count == 0 && !is_empty {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.send()?;
        Ok(count)
    }

    /// Whether everything has left, but for what waits for the end of the handshake.
    fn flush(&mut self) -> io::Result<()> {
        self.is_handed_over.set(false);
        self.send()?;
        if self.has_output() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }
}

impl<S: Read + Write + AsFd> AsFd for TlsStream<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: Read + Write + AsRawFd> AsRawFd for TlsStream<S> {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl<S: Read + Write> Drop for TlsStream<S> {
    /// Says that nothing more comes, if there is room for that, and unless another process may go on.
    fn drop(&mut self) {
        if self.is_handed_over.get() || self.check_whole().is_err() {
            return;
        }
        match &mut self.records {
            StreamRecords::Library(library) => library.tls.send_close_notify(),
            StreamRecords::Own(session) => BUFFERS.with_borrow_mut(|buffers| session.close(buffers)),
            StreamRecords::Lost => {}
        }
        let _ = self.send();
    }
}

impl<S: Read + Write> std::fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

/// Gives a socket records that wait; how many bytes it took.
fn send_own(session: &mut TlsSession, socket: &mut impl Write) -> io::Result<usize> {
    BUFFERS.with_borrow_mut(|buffers| {
        let output = session.output(buffers);
        let output = output.map_err(|fault| io::Error::new(io::ErrorKind::InvalidData, fault))?;
        let count = socket.write(output)?;
        session.sent(count, buffers);
        Ok(count)
    })
}

/// Takes some of what a socket has; how much. The end of the socket is the end of what is said.
fn receive_own(session: &mut TlsSession, socket: &mut impl Read) -> io::Result<usize> {
    session.lend_memory(SPARE.take());
    let received = socket.read(session.space());
    match &received {
        Ok(0) => session.peer_closed = true,
        Ok(count) => session.came(*count),
        Err(_) => {}
    }
    if let Some(memory) = session.take_idle_memory() {
        SPARE.set(memory);
    }
    received
}

impl LibraryRecords {
    /// Gives rustls what has come of the record that it is at; how much.
    fn take_part(&mut self, input: &mut TlsInput) -> io::Result<usize> {
        let come = &input.bytes[input.range.clone()];
        let mut part = &come[..self.limit.room().min(come.len())];
        let count = self.tls.read_tls(&mut part)?;
        self.limit.advance(&come[..count]);
        input.advance(count);
        Ok(count)
    }

    fn read_text(&mut self, into: &mut [u8]) -> io::Result<TlsRead> {
        match self.tls.reader().read(into) {
            Ok(0) => Ok(TlsRead::Closed),
            Ok(count) => Ok(TlsRead::Bytes(count)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(TlsRead::Closed),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(TlsRead::NeedsMore),
            Err(error) => Err(error),
        }
    }
}

impl RecordLimit {
    /// Bytes that may be given without those of the next record.
    fn room(&self) -> usize {
        match self.left {
            0 => HEADER_BYTES - self.header_have,
            left => left,
        }
    }

    /// Counts bytes that were given, no more than there was room for.
    fn advance(&mut self, given: &[u8]) {
        if self.left > 0 {
            self.left -= given.len();
            return;
        }
        self.header[self.header_have..][..given.len()].copy_from_slice(given);
        self.header_have += given.len();
        if self.header_have == HEADER_BYTES {
            self.header_have = 0;
            self.left = TlsHandshake::bytes_behind(self.header);
        }
    }
}

impl TlsInput {
    /// Gives what came behind the handshake to the records of our own.
    fn give_to(&mut self, session: &mut TlsSession) {
        // There is no buffer where nothing is left.
        let come = self.bytes.get(self.range.clone()).unwrap_or_default();
        session.space()[..come.len()].copy_from_slice(come);
        session.came(come.len());
        *self = TlsInput::default();
    }

    /// Reads what there is.
    fn fill(&mut self, from: &mut impl Read) -> io::Result<()> {
        let mut bytes = SPARE.take();
        bytes.resize(READ_BYTES, 0);
        let count = from.read(&mut bytes);
        self.range = 0..*count.as_ref().unwrap_or(&0);
        if self.range.is_empty() {
            SPARE.set(bytes);
        } else {
            self.bytes = bytes;
        }
        count.map(drop)
    }
}

impl Read for TlsInput {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.range.len().min(into.len());
        let from = self.range.start;
        into[..count].copy_from_slice(&self.bytes[from..from + count]);
        self.advance(count);
        Ok(count)
    }
}

impl TlsInput {
    /// So many bytes were taken.
    fn advance(&mut self, bytes: usize) {
        self.range.start += bytes;
        if self.range.is_empty() && !self.bytes.is_empty() {
            SPARE.set(std::mem::take(&mut self.bytes));
        }
    }
}

/// Whether a server can have this name: that of a host, or an IP address.
#[must_use]
pub fn is_server_name(name: &str) -> bool {
    server_name(name).is_some()
}

/// The name of a server, if it is one: that of a host, or an IP address.
fn server_name(name: &str) -> Option<ServerName<'static>> {
    let name = name.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).ok()
}

fn fault(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, StreamFault(reason.to_owned()))
}

fn closed_early() -> io::Error {
    let reason = "the peer closed the connection before the handshake was over";
    io::Error::new(io::ErrorKind::ConnectionReset, StreamFault(reason.to_owned()))
}

/// What is wrong with a stream, for whoever operates this end.
fn explain_stream(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidMessage(_) => "the peer does not speak TLS here".to_owned(),
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) | rustls::Error::NoApplicationProtocol => {
            "the peer does not speak HTTP/2 within TLS (ALPN \"h2\"), as gRPC needs it".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "the peer wants a certificate, and was given none".to_owned()
        }
        rustls::Error::AlertReceived(AlertDescription::UnknownCA) => {
            "the peer does not know the authority of this node's certificate, or of the one that its own has to come from"
                .to_owned()
        }
        rustls::Error::AlertReceived(alert) => format!("the peer ended the connection with the alert {alert:?}"),
        rustls::Error::NoCertificatesPresented => "the peer has no certificate, and is to prove who it is".to_owned(),
        _ => explain(error),
    }
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
#[cfg(test)]
#[path = "stream_textless_tests.rs"]
mod textless_tests;
