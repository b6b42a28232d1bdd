//! A socket that carries the protocol's bytes, plain or in TLS records.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;

use provost_marshal::copy_foreign;
use provost_net::{Gather, Moved};
use provost_session::{Connection, Piece};

use crate::tls::RecordIo;

/// Bytes that go into one TLS record at most.
const RECORD_BYTES_MAX: u32 = 16 << 10;

/// What came of an attempt to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// So many, and there may be more.
    Bytes(usize),
    /// Nothing is left to be moved.
    Done,
    /// The socket is full, or empty.
    NotNow,
    /// The peer has ended its direction.
    End,
}

pub(crate) struct Socket {
    stream: TcpStream,
    tls: Option<Box<rustls::Connection>>,
    leftover: Vec<u8>,
    drained: bool,
}

impl Socket {
    pub(crate) fn new(
        stream: TcpStream,
        mut tls: Option<Box<rustls::Connection>>,
        leftover: Vec<u8>,
    ) -> Socket {
        if let Some(tls) = &mut tls {
            // Records are flushed before each round, and a round is bounded; a limit below it would tear pieces.
            tls.set_buffer_limit(None);
        }
        Socket {
            stream,
            tls,
            leftover,
            drained: false,
        }
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.stream.as_raw_fd()
    }

    /// Whether records wait that the socket did not take.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    /// Sends the connection's next pieces; says how many bytes of them are taken care of.
    pub(crate) fn write(&mut self, connection: &Connection) -> io::Result<Transfer> {
        match &mut self.tls {
            Some(tls) => write_records(tls, &self.stream, connection),
            None => write_plain(&self.stream, connection),
        }
    }

    /// Reads into `direct` and then `behind`.
    pub(crate) fn read(&mut self, direct: &mut [u8], behind: &mut [u8]) -> io::Result<Transfer> {
        if !self.leftover.is_empty() {
            return Ok(Transfer::Bytes(self.read_leftover(direct, behind)));
        }
        if let Some(tls) = &mut self.tls {
            let into = if direct.is_empty() { behind } else { direct };
            return read_records(tls, &self.stream, into);
        }
        if std::mem::take(&mut self.drained) {
            return Ok(Transfer::Done);
        }
        let room = direct.len() + behind.len();
        Ok(match provost_net::read_into(&self.stream, direct, behind)? {
            Moved::Bytes(bytes) => {
                // A short read has emptied the socket; whatever comes later makes it ready anew.
                self.drained = bytes < room;
                Transfer::Bytes(bytes)
            }
            Moved::NotNow => Transfer::NotNow,
            Moved::End => Transfer::End,
        })
    }

    fn read_leftover(&mut self, direct: &mut [u8], behind: &mut [u8]) -> usize {
        let mut moved = 0;
        for into in [direct, behind] {
            let bytes = into.len().min(self.leftover.len() - moved);
            into[..bytes].copy_from_slice(&self.leftover[moved..moved + bytes]);
            moved += bytes;
        }
        self.leftover.drain(..moved);
        if self.leftover.is_empty() {
            self.leftover = Vec::new();
        }
        moved
    }

    /// Reads and forgets.
    pub(crate) fn discard(&mut self, scratch: &mut [u8]) -> io::Result<Transfer> {
        Ok(match provost_net::read_into(&self.stream, scratch, &mut [])? {
            Moved::Bytes(bytes) => Transfer::Bytes(bytes),
            Moved::NotNow => Transfer::NotNow,
            Moved::End => Transfer::End,
        })
    }

    /// Says that nothing more will be sent.
    pub(crate) fn close_write(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // The connection ends; a notice that does not fit is missed by nobody, the stream's end follows.
            let _ = flush(tls, &self.stream);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

fn write_plain(stream: &TcpStream, connection: &Connection) -> io::Result<Transfer> {
    let pieces = connection.pieces().map(|piece| match piece {
        Piece::Private(bytes) => Gather::Private(bytes),
        Piece::Foreign { range, from, length } => Gather::Foreign {
            address: range.address().saturating_add(from as usize),
            bytes: length as usize,
        },
    });
    Ok(match provost_net::write_gather(stream, pieces)? {
        Moved::Bytes(0) => Transfer::Done,
        Moved::Bytes(bytes) => Transfer::Bytes(bytes),
        Moved::NotNow | Moved::End => Transfer::NotNow,
    })
}

fn write_records(
    tls: &mut rustls::Connection,
    stream: &TcpStream,
    connection: &Connection,
) -> io::Result<Transfer> {
    if !flush(tls, stream)? {
        return Ok(Transfer::NotNow);
    }
    let mut bytes = 0;
    let mut record = Vec::new();
    for piece in connection.pieces() {
        match piece {
            Piece::Private(private) => bytes += write_whole(tls, private)?,
            Piece::Foreign { range, from, length } => {
                let end = from + length;
                for at in (from..end).step_by(RECORD_BYTES_MAX as usize) {
                    record.clear();
                    copy_foreign(&range.part(at, RECORD_BYTES_MAX.min(end - at)), &mut record);
                    bytes += write_whole(tls, &record)?;
                }
            }
        }
    }
    if bytes == 0 {
        return Ok(Transfer::Done);
    }
    flush(tls, stream)?;
    Ok(Transfer::Bytes(bytes))
}

fn write_whole(tls: &mut rustls::Connection, bytes: &[u8]) -> io::Result<usize> {
    tls.writer().write_all(bytes)?;
    Ok(bytes.len())
}

/// Sends the records that wait; says whether all of them went.
fn flush(tls: &mut rustls::Connection, stream: &TcpStream) -> io::Result<bool> {
    while tls.wants_write() {
        match tls.write_tls(&mut RecordIo(stream)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn read_records(tls: &mut rustls::Connection, stream: &TcpStream, into: &mut [u8]) -> io::Result<Transfer> {
    loop {
        match tls.reader().read(into) {
            Ok(0) => return Ok(Transfer::End),
            Ok(bytes) => return Ok(Transfer::Bytes(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The peer ended without saying so in TLS; the protocol above notices whether anything is missing.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Transfer::End),
            Err(error) => return Err(error),
        }
        match tls.read_tls(&mut RecordIo(stream)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Transfer::NotNow),
            Err(error) => return Err(error),
        }
        if let Err(error) = tls.process_new_packets() {
            let _ = flush(tls, stream);
            return Err(io::Error::other(format!("TLS: {error}")));
        }
    }
}
