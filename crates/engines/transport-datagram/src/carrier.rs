//! A resumable stream over the datagram transport as the carrier of a connection.

use std::cell::RefCell;
use std::net::UdpSocket;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datagram::MsgBuf;
use provost_datapath::{
    ConnectionSignals, Context, FieldReader, FieldWriter, ForeignBytes, Nanos, Packets, RestoreError,
    SocketHint,
};
use provost_marshal::{copy_foreign, copy_foreign_to};
use provost_session::{Connection, Piece, SocketBacklog};
use provost_transport::{Carrier, CarrierEnd, CarrierRead, LingerProgress, take_socket};
use provost_udp::PacketBatches;

use crate::socket::packet_batches;
use crate::stream::{Lost, Next, Reading, ResumableStream, SEGMENT_BYTES_SENT};

/// What a segment is filled from: frames of many calls, or pieces of large messages in turn.
const FILLED: SocketBacklog = SocketBacklog {
    bytes_max: SEGMENT_BYTES_SENT,
    pieces_max: 256,
};
/// Bytes that one poll takes from the connection at most.
const WRITE_BYTES_MAX: usize = 512 << 10;
/// Ranges of foreign memory that begin at a multiple of this are read straight into a segment.
const FOREIGN_ALIGN: usize = 8;

thread_local! {
    /// Where packets are put together and read. They serve all connections of a thread.
    static BATCHES: RefCell<PacketBatches> = RefCell::new(packet_batches());
}

/// One end of a stream, and what its connection is told of it.
#[derive(Debug)]
pub struct DatagramCarrier {
    stream: ResumableStream,
    signals: Option<Arc<ConnectionSignals>>,
    /// Packets of which the signals know.
    counted: Packets,
    /// Packets may have been left in the socket.
    left_some: bool,
    /// Why the stream cannot go on.
    lost: Option<Lost>,
}

impl DatagramCarrier {
    pub(crate) fn new(stream: ResumableStream) -> DatagramCarrier {
        DatagramCarrier {
            stream,
            signals: None,
            counted: Packets::default(),
            left_some: false,
            lost: None,
        }
    }

    #[cfg(test)]
    pub(crate) fn into_stream(self) -> ResumableStream {
        self.stream
    }

    /// Puts frames into segments, as long as these could go at once: frames that wait are sent together later.
    fn fill(&mut self, connection: &mut Connection, context: &mut Context<'_>) -> bool {
        let bytes_max = WRITE_BYTES_MAX.min(context.flow.turn_bytes as usize);
        let mut bytes = 0;
        while bytes < bytes_max && self.stream.has_room() {
            connection.fill_several(context, FILLED);
            let filled = self.fill_segment(connection);
            if filled == 0 {
                break;
            }
            connection.advance(filled, context);
            bytes += filled;
        }
        bytes > 0
    }

    fn fill_segment(&mut self, connection: &Connection) -> usize {
        let piece_bytes = |piece: Piece<'_>| match piece {
            Piece::Private(bytes) => bytes.len(),
            Piece::Foreign { length, .. } => length as usize,
        };
        let waiting: usize = connection.pieces().map(piece_bytes).sum();
        let bytes = waiting.min(SEGMENT_BYTES_SENT);
        if bytes == 0 {
            return 0;
        }
        let mut segment: MsgBuf = self.stream.segment(bytes);
        let mut rest = ResumableStream::content(&mut segment);
        for piece in connection.pieces() {
            if rest.is_empty() {
                break;
            }
            let take = piece_bytes(piece).min(rest.len());
            let (place, behind) = std::mem::take(&mut rest).split_at_mut(take);
            copy_piece(piece, place);
            rest = behind;
        }
        self.stream.send(segment);
        bytes
    }

    /// Sends and receives packets; says whether there were any.
    fn poll(&mut self, reading: SocketHint, now: Nanos) -> bool {
        if self.lost.is_some() {
            return false;
        }
        let reading = if reading == SocketHint::Try || self.left_some {
            Reading::Try
        } else {
            Reading::Skip
        };
        match BATCHES.with_borrow_mut(|batches| self.stream.poll(now, reading, batches)) {
            Ok(polled) => {
                if polled.moved {
                    self.count_packets();
                }
                self.left_some = polled.left_some;
                polled.moved
            }
            Err(lost) => {
                self.left_some = false;
                self.lost = Some(lost);
                false
            }
        }
    }

    fn count_packets(&mut self) {
        let Some(signals) = &self.signals else {
            return;
        };
        let packets = self.stream.packets();
        signals.packets().add(packets - self.counted);
        if let Some(round_trip_ns) = self.stream.round_trip_ns() {
            signals.packets().set_round_trip_ns(round_trip_ns);
        }
        self.counted = packets;
    }
}

impl Carrier for DatagramCarrier {
    const KIND: &'static str = "transport-datagram";
    const FORM: u32 = 2;
    const READ_BYTES_MAX: usize = 512 << 10;
    type Peer = ();
    type Resume = ();

    fn attach(&mut self, signals: &Arc<ConnectionSignals>) {
        self.signals = Some(Arc::clone(signals));
    }

    fn write(&mut self, connection: &mut Connection, reading: SocketHint, context: &mut Context<'_>) -> bool {
        let filled = self.lost.is_none() && self.fill(connection, context);
        self.poll(reading, context.now) || filled
    }

    fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    fn may_have_input(&self, _reading: SocketHint) -> bool {
        self.stream.has_next() || self.lost.is_some()
    }

    fn has_input_left(&self) -> bool {
        self.left_some
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Result<CarrierRead, CarrierEnd> {
        let bytes = match self.stream.next() {
            Next::Bytes(came) => {
                connection.input(came, context)?;
                came.len()
            }
            Next::Nothing => {
                let lost = self.lost.as_ref();
                return lost.map_or(Ok(CarrierRead::Nothing), |lost| {
                    Err(CarrierEnd::Lost(lost.to_string()))
                });
            }
            Next::Finished => {
                self.stream.taken();
                return Err(CarrierEnd::Closed);
            }
        };
        self.stream.taken();
        Ok(CarrierRead::Bytes(bytes))
    }

    /// The peer is told at once; should that get lost, it is told again while the connection lingers.
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
        match (is_done || self.lost.is_some(), moved) {
            (true, _) => LingerProgress::Done,
            (false, true) => LingerProgress::Moved,
            (false, false) => LingerProgress::Waiting,
        }
    }

    /// One that is lost has nothing to do any more: whoever reads learns of it.
    fn wake_at(&self) -> Option<Nanos> {
        self.stream.wake_at().filter(|_| self.lost.is_none())
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.socket().descriptor())
    }

    fn save(&self, out: &mut FieldWriter) {
        self.stream.save(out);
    }

    fn peer(&self) {}

    fn restore(
        (): (),
        (): (),
        descriptors: Vec<OwnedFd>,
        fields: &mut FieldReader<'_>,
        form: u32,
    ) -> Result<DatagramCarrier, RestoreError> {
        let socket = UdpSocket::from(take_socket(descriptors, fields)?);
        let stream = ResumableStream::restore(socket, fields, form)?;
        Ok(DatagramCarrier::new(stream))
    }
}

/// Copies the beginning of a piece, as much as there is place.
fn copy_piece(piece: Piece<'_>, place: &mut [u8]) {
    match piece {
        Piece::Private(bytes) => {
            let bytes = bytes.get(..place.len()).unwrap_or_default();
            place.copy_from_slice(bytes);
        }
        Piece::Foreign { range, from, .. } => {
            let part: ForeignBytes = range.part(from, place.len() as u32);
            if part.address().get().is_multiple_of(FOREIGN_ALIGN) {
                return copy_foreign_to(&part, place);
            }
            let mut bytes = Vec::with_capacity(place.len());
            copy_foreign(&part, &mut bytes);
            place.copy_from_slice(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::{PACKET_BYTES_ETHERNET, Socket};
    use crate::stream::Terms;

    #[test]
    fn a_stream_that_is_lost_wants_to_be_polled_no_more() {
        const AN_HOUR_NS: u64 = 3_600_000_000_000;
        // Somebody who says nothing.
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let terms = Terms {
            packet_bytes: PACKET_BYTES_ETHERNET,
            silence_ns: AN_HOUR_NS,
            key: None,
        };
        let socket = Socket::connect(peer.local_addr().unwrap()).unwrap();
        let mut carrier = DatagramCarrier::new(ResumableStream::open(socket, terms).unwrap());
        carrier.poll(SocketHint::Try, 1);
        assert!(carrier.wake_at().is_some() && carrier.lost.is_none());
        carrier.poll(SocketHint::Try, AN_HOUR_NS);
        assert!(carrier.lost.is_some(), "it was given up");
        assert_eq!(carrier.wake_at(), None);
    }
}
