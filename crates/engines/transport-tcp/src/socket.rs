//! A socket that carries the protocol's bytes, plain or in TLS records.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use provost_datapath::{BufferPool, FieldReader, FieldWriter, RestoreError};
use provost_net::{FollowUp, Gather, Moved};
use provost_session::{Connection, Piece};
use provost_tls::{TlsRead, TlsSession};

/// Bytes that were read past the handshake, at most.
const LEFTOVER_BYTES_MAX: usize = 1 << 20;

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

pub(crate) struct CarrierSocket {
    stream: TcpStream,
    tls: Option<Box<TlsSession>>,
    leftover: Vec<u8>,
    drained: bool,
}

impl CarrierSocket {
    pub(crate) fn new(stream: TcpStream, tls: Option<Box<TlsSession>>, leftover: Vec<u8>) -> CarrierSocket {
        CarrierSocket {
            stream,
            tls,
            leftover,
            drained: false,
        }
    }

    /// What a successor needs beside the stream.
    pub(crate) fn save(&self, out: &mut FieldWriter) {
        out.run(&self.leftover);
        out.flag(self.tls.is_some());
        if let Some(tls) = &self.tls {
            tls.save(out);
        }
    }

    pub(crate) fn restore(
        stream: TcpStream,
        fields: &mut FieldReader<'_>,
    ) -> Result<CarrierSocket, RestoreError> {
        let leftover = fields.run()?.to_vec();
        if leftover.len() > LEFTOVER_BYTES_MAX {
            return Err(fields.damaged("more was read behind the handshake than ever is"));
        }
        let tls = if fields.flag()? {
            Some(Box::new(TlsSession::restore(fields)?))
        } else {
            None
        };
        Ok(CarrierSocket::new(stream, tls, leftover))
    }

    pub(crate) fn stream(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(crate) fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether records wait that the socket did not take.
    pub(crate) fn wants_write(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.wants_write())
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends the connection's next pieces, so many bytes at most; says how many bytes of them are taken care of.
    pub(crate) fn write(
        &mut self,
        connection: &Connection,
        bytes_max: usize,
        following: FollowUp,
        buffers: &mut BufferPool,
    ) -> io::Result<Transfer> {
        let pieces = first(connection, bytes_max);
        match &mut self.tls {
            Some(tls) => write_records(tls, &self.stream, pieces, following, buffers),
            None => write_plain(&self.stream, pieces, following),
        }
    }

    /// Reads into `direct` and then `behind`.
    pub(crate) fn read(
        &mut self,
        direct: &mut [u8],
        behind: &mut [u8],
        buffers: &mut BufferPool,
    ) -> io::Result<Transfer> {
        if !self.leftover.is_empty() {
            return Ok(Transfer::Bytes(self.read_leftover(direct, behind)));
        }
        if let Some(tls) = &mut self.tls {
            let into = if direct.is_empty() { behind } else { direct };
            return read_records(tls, &self.stream, into, buffers);
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

    pub(crate) fn discard(&mut self, scratch: &mut [u8]) -> io::Result<Transfer> {
        Ok(match provost_net::read_into(&self.stream, scratch, &mut [])? {
            Moved::Bytes(bytes) => Transfer::Bytes(bytes),
            Moved::NotNow => Transfer::NotNow,
            Moved::End => Transfer::End,
        })
    }

    /// Says that nothing more will be sent.
    pub(crate) fn close_write(&mut self, buffers: &mut BufferPool) {
        if let Some(tls) = &mut self.tls {
            tls.close(buffers);
            // The connection ends; a notice that does not fit is missed by nobody, the stream's end follows.
            let _ = flush(tls, &self.stream, FollowUp::Later, buffers);
        }
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// The first bytes of what waits.
fn first(connection: &Connection, bytes_max: usize) -> impl Iterator<Item = Piece<'_>> {
    let mut left = bytes_max;
    connection.pieces().map_while(move |piece| {
        if left == 0 {
            return None;
        }
        let piece = match piece {
            Piece::Private(bytes) => Piece::Private(&bytes[..bytes.len().min(left)]),
            Piece::Foreign { range, from, length } => Piece::Foreign {
                range,
                from,
                length: u32::try_from(left).unwrap_or(u32::MAX).min(length),
            },
        };
        left -= match piece {
            Piece::Private(bytes) => bytes.len(),
            Piece::Foreign { length, .. } => length as usize,
        };
        Some(piece)
    })
}

fn write_plain<'a>(
    stream: &TcpStream,
    pieces: impl Iterator<Item = Piece<'a>>,
    following: FollowUp,
) -> io::Result<Transfer> {
    let pieces = pieces.map(|piece| match piece {
        Piece::Private(bytes) => Gather::Private(bytes),
        Piece::Foreign { range, from, length } => Gather::Foreign {
            address: range.address().saturating_add(from as usize),
            bytes: length as usize,
        },
    });
    Ok(match provost_net::write_gather(stream, pieces, following)? {
        Moved::Bytes(0) => Transfer::Done,
        Moved::Bytes(bytes) => Transfer::Bytes(bytes),
        Moved::NotNow | Moved::End => Transfer::NotNow,
    })
}

fn write_records<'a>(
    session: &mut TlsSession,
    stream: &TcpStream,
    pieces: impl Iterator<Item = Piece<'a>>,
    following: FollowUp,
    buffers: &mut BufferPool,
) -> io::Result<Transfer> {
    if !flush(session, stream, following, buffers)? {
        return Ok(Transfer::NotNow);
    }
    let sealed = session.seal(pieces, buffers).map_err(io::Error::other)?;
    if sealed == 0 {
        return Ok(Transfer::Done);
    }
    flush(session, stream, following, buffers)?;
    Ok(Transfer::Bytes(sealed))
}

/// Sends the records that wait; says whether all of them went.
fn flush(
    session: &mut TlsSession,
    stream: &TcpStream,
    following: FollowUp,
    buffers: &mut BufferPool,
) -> io::Result<bool> {
    loop {
        let records = session.output(buffers).map_err(io::Error::other)?;
        if records.is_empty() {
            return Ok(true);
        }
        match provost_net::write_gather(stream, std::iter::once(Gather::Private(records)), following)? {
            Moved::Bytes(bytes) => session.sent(bytes, buffers),
            Moved::NotNow | Moved::End => return Ok(false),
        }
    }
}

fn read_records(
    session: &mut TlsSession,
    stream: &TcpStream,
    into: &mut [u8],
    buffers: &mut BufferPool,
) -> io::Result<Transfer> {
    loop {
        match session.read(into) {
            Ok(TlsRead::Bytes(bytes)) => return Ok(Transfer::Bytes(bytes)),
            Ok(TlsRead::Closed) => return Ok(Transfer::End),
            Ok(TlsRead::NeedsMore) => {}
            Err(fault) => {
                session.complain(fault, buffers);
                let _ = flush(session, stream, FollowUp::Later, buffers);
                return Err(io::Error::other(fault));
            }
        }
        match provost_net::read_into(stream, session.space(), &mut [])? {
            Moved::Bytes(bytes) => session.came(bytes),
            Moved::NotNow => return Ok(Transfer::NotNow),
            // The peer ended without saying so in TLS; the protocol above notices whether anything is missing.
            Moved::End => return Ok(Transfer::End),
        }
    }
}
