//! TLS for connections that carry HTTP/2 to and from programs that are no nodes (RFC 9113, sections 3.2 and 9.2): a stream over
//! another stream, with rustls' own records. No successor goes on with one.
//!
//! The stream below does not block. The handshake goes on as bytes come and room for them is there, so whoever reads and writes
//! needs not know of it; what is written before its end waits.

use std::cell::Cell;
use std::io::{self, IoSlice, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, Connection, ServerConfig};

use crate::{PeerIdentity, explain, identity};

/// What both ends have to agree on (RFC 9113, section 3.1).
pub(crate) const ALPN_HTTP2: &[u8] = b"h2";
/// Bytes that are read from the stream below at a time.
const READ_BYTES: usize = 32 << 10;
/// Bytes that a peer may send before it has proved what it must: a chain of certificates takes a tenth of them.
const HANDSHAKE_BYTES_MAX: usize = 48 << 10;

/// A stream within TLS.
pub struct TlsStream<S: Read + Write> {
    socket: S,
    tls: Box<Connection>,
    input: TlsInput,
    stage: StreamStage,
    /// The last read stopped before the end or an error.
    has_more: bool,
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
        let connection = rustls::ClientConnection::new(config, server);
        let connection = connection.map_err(|error| StreamFault(error.to_string()))?;
        Ok(TlsStream::new(socket, connection.into()))
    }

    /// As the end that was connected to.
    ///
    /// # Errors
    /// The configuration is of no use.
    pub fn server(socket: S, config: Arc<ServerConfig>) -> Result<TlsStream<S>, StreamFault> {
        let connection = rustls::ServerConnection::new(config);
        let connection = connection.map_err(|error| StreamFault(error.to_string()))?;
        Ok(TlsStream::new(socket, connection.into()))
    }

    fn new(socket: S, tls: Connection) -> TlsStream<S> {
        TlsStream {
            socket,
            tls: Box::new(tls),
            input: TlsInput::default(),
            stage: StreamStage::Shaking(0),
            has_more: false,
        }
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
        self.tls.wants_write()
    }

    /// Whether what cannot be written now can be only when the peer has gone on with the handshake, whatever room there is in the
    /// stream below.
    pub fn waits_for_peer(&self) -> bool {
        self.is_shaking() && !self.has_output()
    }

    /// Whether the last read, though it had room, stopped before the end or an error, which the next one tells. The stream below
    /// may have nothing more to say then.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Who the peer has proved to be, once the handshake is over.
    pub fn identity(&self) -> PeerIdentity {
        identity(&self.tls)
    }

    fn is_shaking(&self) -> bool {
        matches!(self.stage, StreamStage::Shaking(_))
    }

    /// Gives the stream below what it has room for.
    fn send(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes some of what the stream below has; how much of it.
    fn receive(&mut self) -> io::Result<usize> {
        if self.input.range.is_empty() {
            self.input.fill(&mut self.socket)?;
        }
        let count = self.tls.read_tls(&mut self.input)?;
        let processed = self.tls.process_new_packets();
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
        if self.tls.is_handshaking() {
            if come > HANDSHAKE_BYTES_MAX {
                return Err(self.broken(format!("a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")));
            }
            self.stage = StreamStage::Shaking(come);
            return Ok(());
        }
        if self.tls.alpn_protocol() != Some(ALPN_HTTP2) {
            return Err(self.broken(match *self.tls {
                Connection::Client(_) => {
                    "the server does not agree on HTTP/2 (ALPN \"h2\"), as gRPC needs it".to_owned()
                }
                Connection::Server(_) => {
                    "the client does not offer HTTP/2 (ALPN \"h2\"), as gRPC needs it".to_owned()
                }
            }));
        }
        self.stage = StreamStage::Open;
        Ok(())
    }

    /// Nothing is read or written any more. The peer is told, if there is room.
    fn broken(&mut self, reason: String) -> io::Error {
        // What was written meanwhile is not for a peer that does not agree on HTTP/2.
        if !self.is_shaking() || self.tls.is_handshaking() {
            let _ = self.send();
        }
        let error = fault(&reason);
        self.stage = StreamStage::Broken(reason);
        error
    }

    fn check_whole(&self) -> io::Result<()> {
        match &self.stage {
            StreamStage::Broken(reason) => Err(fault(reason)),
            StreamStage::Shaking(_) | StreamStage::Open => Ok(()),
        }
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    /// Reads until there is nothing more, or no room: so fewer bytes than there is room for mean that more have not come, unless
    /// [`TlsStream::has_more`].
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.has_more = false;
        self.check_whole()?;
        let mut filled = 0;
        loop {
            match self.tls.reader().read(&mut into[filled..]) {
                // An end that TLS does not say is one too: messages of HTTP/2 have their lengths.
                Ok(0) => {
                    self.has_more = filled > 0;
                    return Ok(filled);
                }
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return self.end(filled),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match self.receive() {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if filled > 0 => {
                        self.has_more = error.kind() != io::ErrorKind::WouldBlock;
                        return Ok(filled);
                    }
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
            if filled == into.len() {
                return Ok(filled);
            }
        }
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
        let count = self.tls.writer().write_vectored(pieces)?;
        let is_empty = pieces.iter().all(|piece| piece.is_empty());
        if count == 0 && !is_empty {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.send()?;
        Ok(count)
    }

    /// Whether everything has left, but for what waits for the end of the handshake.
    fn flush(&mut self) -> io::Result<()> {
        self.send()?;
        if self.tls.wants_write() {
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
    /// Says that nothing more comes, if there is room for that.
    fn drop(&mut self) {
        if self.check_whole().is_ok() {
            self.tls.send_close_notify();
            let _ = self.send();
        }
    }
}

impl<S: Read + Write> std::fmt::Debug for TlsStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream")
            .field("stage", &self.stage)
            .finish_non_exhaustive()
    }
}

impl TlsInput {
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
        self.range.start += count;
        if self.range.is_empty() {
            SPARE.set(std::mem::take(&mut self.bytes));
        }
        Ok(count)
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
