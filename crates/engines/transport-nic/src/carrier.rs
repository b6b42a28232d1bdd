//! A stream over a NIC as the carrier of a connection.

use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use provost_datapath::{Context, FieldReader, FieldWriter, Nanos, RestoreError, SocketHint};
use provost_marshal::copy_foreign;
use provost_session::{Connection, Piece, SocketBacklog};
use provost_transport::{Carrier, CarrierEnd, CarrierRead, LingerProgress, take_socket};

use crate::stream::{NextSegment, NicStream};
use crate::wired::{NOT_HANDED_ON, SocketReading, WireLost};

/// The form of saved states that name a board. Those before it have nothing of the stream.
const FORM_WITH_BOARD: u32 = 2;
/// What a segment is filled from: pieces at most.
const PIECES_MAX: usize = 64;

/// One end of a stream, for a connection.
#[derive(Debug)]
pub struct NicCarrier {
    stream: NicStream,
    /// Why the stream cannot go on.
    lost: Option<WireLost>,
}

impl NicCarrier {
    pub(crate) fn new(stream: NicStream) -> NicCarrier {
        NicCarrier { stream, lost: None }
    }

    /// Puts frames into segments, as long as these can go at once.
    fn fill(&mut self, connection: &mut Connection, context: &mut Context<'_>) -> Result<bool, WireLost> {
        let mut moved = false;
        loop {
            let bytes_max = self.stream.room();
            if bytes_max == 0 {
                break;
            }
            let waiting = SocketBacklog {
                bytes_max,
                pieces_max: PIECES_MAX,
            };
            connection.fill_several(context, waiting);
            let bytes = segment_of(connection, bytes_max);
            if bytes.is_empty() {
                break;
            }
            self.stream.send(&bytes)?;
            connection.advance(bytes.len(), context);
            moved = true;
        }
        Ok(moved)
    }

    fn poll(&mut self, reading: SocketHint, now: Nanos) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let reading = if reading == SocketHint::Try {
            SocketReading::Try
        } else {
            SocketReading::Skip
        };
        self.stream.poll(now, reading).unwrap_or_else(|lost| {
            self.lost = Some(lost);
            false
        })
    }
}

/// The bytes that a connection sends next, so many at most.
fn segment_of(connection: &Connection, bytes_max: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(bytes_max);
    for piece in connection.pieces() {
        let room = bytes_max - bytes.len();
        match piece {
            Piece::Private(private) => bytes.extend_from_slice(&private[..private.len().min(room)]),
            Piece::Foreign { range, from, length } => {
                copy_foreign(&range.part(from, length.min(room as u32)), &mut bytes);
            }
        }
        if bytes.len() == bytes_max {
            break;
        }
    }
    bytes
}

impl Carrier for NicCarrier {
    const KIND: &'static str = "transport-nic";
    const FORM: u32 = FORM_WITH_BOARD;
    const READ_BYTES_MAX: usize = 64 << 10;
    type Peer = ();
    type Resume = ();

    fn write(&mut self, connection: &mut Connection, reading: SocketHint, context: &mut Context<'_>) -> bool {
        let filled = if self.lost.is_none() {
            self.fill(connection, context)
        } else {
            Ok(false)
        };
        match filled {
            Ok(filled) => self.poll(reading, context.now) || filled,
            Err(lost) => {
                self.lost = Some(lost);
                false
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn may_have_input(&self, _reading: SocketHint) -> bool {
        self.stream.has_next() || self.lost.is_some()
    }

    fn has_input_left(&self) -> bool {
        self.stream.left_some()
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Result<CarrierRead, CarrierEnd> {
        let bytes = match self.stream.next() {
            NextSegment::Bytes(came) => {
                connection.input(came, context)?;
                came.len()
            }
            NextSegment::Nothing => {
                let lost = self.lost.as_ref();
                return lost.map_or(Ok(CarrierRead::Nothing), |lost| {
                    Err(CarrierEnd::Lost(lost.to_string()))
                });
            }
            NextSegment::Finished => {
                self.stream.taken();
                return Err(CarrierEnd::Closed);
            }
        };
        self.stream.taken();
        Ok(CarrierRead::Bytes(bytes))
    }

    fn close(&mut self, context: &mut Context<'_>) {
        self.stream.finish();
        self.poll(context.socket, context.now);
    }

    fn flush(&mut self, context: &mut Context<'_>) -> bool {
        self.poll(context.socket, context.now)
    }

    fn linger(&mut self, context: &mut Context<'_>) -> LingerProgress {
        let moved = self.poll(context.socket, context.now);
        while self.stream.has_next() {
            // What still comes is of calls that have ended, or says that the peer has ended too.
            self.stream.taken();
        }
        let is_done = self.stream.is_acknowledged() && self.stream.peer_finished();
        if is_done || self.lost.is_some() {
            LingerProgress::Done
        } else if moved {
            LingerProgress::Moved
        } else {
            LingerProgress::Waiting
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        self.lost.is_none().then(|| self.stream.wake_at())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.socket().as_fd())
    }

    fn save(&self, out: &mut FieldWriter) {
        self.stream.save(out);
        out.flag(self.lost.is_some());
        out.text(self.lost.as_ref().map_or("", |WireLost(reason)| reason));
    }

    fn peer(&self) {}

    /// The successor drives the board that its predecessor drove: so it has to be of the same process.
    fn restore(
        (): (),
        (): (),
        descriptors: Vec<OwnedFd>,
        fields: &mut FieldReader<'_>,
        form: u32,
    ) -> Result<NicCarrier, RestoreError> {
        if form < FORM_WITH_BOARD {
            return Err(fields.damaged(NOT_HANDED_ON));
        }
        let socket = UdpSocket::from(take_socket(descriptors, fields)?);
        let stream = NicStream::restore(socket, fields)?;
        let is_lost = fields.flag()?;
        let reason = fields.text()?;
        let lost = is_lost.then(|| WireLost(reason.to_owned()));
        Ok(NicCarrier { stream, lost })
    }
}
