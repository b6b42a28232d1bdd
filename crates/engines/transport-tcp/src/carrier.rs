//! A TCP socket as the carrier of a connection.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{BorrowedFd, OwnedFd};

use provost_datapath::{
    Context, FieldReader, FieldWriter, FlowHints, Nanos, RestoreError, SavedField, SocketHint,
};
use provost_net::FollowUp;
use provost_session::{Connection, SocketBacklog};
use provost_transport::{Carrier, CarrierEnd, CarrierRead, LingerProgress, PeerIdentity, take_socket};

use crate::flight::FlightWindow;
use crate::socket::{CarrierSocket, Transfer};

/// Bytes read at once. One such buffer serves all connections of a thread.
const SCRATCH_BYTES: usize = 64 << 10;
/// Bytes of it that are offered behind a direct read, and by the read that follows one: room for what comes after, little enough that
/// the rest of a large message is not copied through it.
const BEHIND_DIRECT_BYTES: usize = 4 << 10;
/// Bytes that a read counts as at least in what a poll may read: within TLS each brings one record, and one with a single byte, or records
/// without any before it, take as long as one with many.
const READ_BYTES_MIN: usize = 1 << 10;
/// Bytes that one poll writes at most.
const WRITE_BYTES_MAX: usize = 512 << 10;
/// How soon a connection that has enough on its way is looked at again.
const ENOUGH_RETRY_NS: Nanos = 50_000;

/// What version 2 has waiting for one write.
const COALESCED: SocketBacklog = SocketBacklog {
    bytes_max: 256 << 10,
    pieces_max: provost_net::GATHER_PIECES_MAX / 2,
};

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// A version of the transport's code. They keep the same state and speak the same protocol, so a connection can go from
/// any to any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TcpVersion {
    /// Writes one round of frames by one system call: a small step waits for one chunk of a large message at most.
    #[default]
    One,
    /// Writes several rounds of frames by one system call: a quarter of the calls for large messages, behind more of
    /// which a small step may stand. `cargo run --release -p provost-transport-tcp --example versions` compares them.
    Two,
}

impl TcpVersion {
    /// The version with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<TcpVersion> {
        match number {
            1 => Some(TcpVersion::One),
            2 => Some(TcpVersion::Two),
            _ => None,
        }
    }

    /// Its number, as [`Engine::version`] gives it.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            TcpVersion::One => 1,
            TcpVersion::Two => 2,
        }
    }
}

/// One end of a TCP connection, plain or in TLS records.
pub struct TcpCarrier {
    socket: CarrierSocket,
    output: SocketOutput,
    input: InputTraffic,
    path: TcpPath,
    flight: FlightWindow,
    write_failed: Option<String>,
    version: TcpVersion,
    peer: TcpPeer,
}

/// Who and where the peer is, as a saved state has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpPeer {
    pub(crate) identity: PeerIdentity,
    pub(crate) address: SocketAddr,
}

/// What came last, and so what probably comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InputTraffic {
    Small,
    /// Bodies that were read to where they belong. Their reader, where it is faster than their writer, stands before the next one's header
    /// each time, of which it does not know yet where it belongs.
    Large,
}

/// What is between the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TcpPath {
    /// Nothing: both have one address. No queue is shared with other connections, so there is none to be kept short.
    WithinHost,
    Network,
}

impl TcpPath {
    fn of(stream: &TcpStream) -> TcpPath {
        match (stream.local_addr(), stream.peer_addr()) {
            (Ok(here), Ok(there)) if here.ip() == there.ip() => TcpPath::WithinHost,
            _ => TcpPath::Network,
        }
    }
}

/// Whether the socket took what it was given last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SocketOutput {
    Flows,
    /// It was full; the runtime says when it is worth another try.
    Blocked,
    /// As much is on its way as may be while others are to have their turn; nobody says when that has changed.
    Enough {
        since: Nanos,
    },
}

impl std::fmt::Debug for TcpCarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TcpCarrier { version, peer, .. } = self;
        f.debug_struct("TcpCarrier")
            .field("version", version)
            .field("peer", peer)
            .finish_non_exhaustive()
    }
}

impl TcpCarrier {
    pub(crate) fn new(socket: CarrierSocket, peer: TcpPeer) -> TcpCarrier {
        TcpCarrier {
            path: TcpPath::of(socket.tcp()),
            socket,
            output: SocketOutput::Flows,
            input: InputTraffic::Small,
            flight: FlightWindow::default(),
            write_failed: None,
            version: TcpVersion::default(),
            peer,
        }
    }

    /// The same, with this version of the code.
    #[must_use]
    pub fn with_version(self, version: TcpVersion) -> TcpCarrier {
        TcpCarrier { version, ..self }
    }

    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        self.socket.tcp()
    }

    /// Whether the connection is in TLS records.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.socket.has_tls()
    }

    fn write_some(&mut self, connection: &mut Connection, context: &mut Context<'_>) -> io::Result<bool> {
        let mut bytes = 0;
        let mut written = FollowUp::Later;
        self.output = SocketOutput::Flows;
        let turn_bytes = context.flow.turn_bytes as usize;
        let room = self.room(connection, context.flow, context.now)?;
        loop {
            if bytes >= room {
                if connection.wants_output() || self.socket.wants_write() {
                    self.output = SocketOutput::Enough { since: context.now };
                }
                break;
            }
            match self.version {
                TcpVersion::Two if turn_bytes >= COALESCED.bytes_max => {
                    connection.fill_several(context, COALESCED);
                }
                TcpVersion::One | TcpVersion::Two => connection.fill(context),
            }
            let limit = room.min(WRITE_BYTES_MAX).min(turn_bytes);
            let following = match connection.followed_bytes() {
                Some(framed) if bytes + framed < limit => FollowUp::AtOnce,
                _ => FollowUp::Later,
            };
            match self
                .socket
                .write(connection, room - bytes, following, context.buffers)?
            {
                Transfer::Bytes(sent) => {
                    connection.advance(sent, context);
                    bytes += sent;
                    written = following;
                    #[cfg(test)]
                    tests::count_written(following);
                }
                Transfer::NotNow => {
                    // What the peer acknowledges makes the kernel send what waits.
                    self.output = SocketOutput::Blocked;
                    return Ok(bytes > 0);
                }
                Transfer::Done | Transfer::End => break,
            }
            if bytes >= WRITE_BYTES_MAX.min(turn_bytes) {
                break;
            }
        }
        if written == FollowUp::AtOnce {
            // What was to follow did not, as when its calls were given up.
            provost_net::push(self.socket.tcp())?;
        }
        Ok(bytes > 0)
    }

    /// How many bytes the socket may be given.
    fn room(&mut self, connection: &Connection, flow: FlowHints, now: Nanos) -> io::Result<usize> {
        if !flow.is_limited() || self.path == TcpPath::WithinHost || !connection.wants_output() {
            return Ok(usize::MAX);
        }
        self.flight.room(self.socket.tcp(), flow.turn_bytes.into(), now)
    }

    fn read_once(
        &mut self,
        connection: &mut Connection,
        scratch: &mut [u8],
        context: &mut Context<'_>,
    ) -> Result<Transfer, CarrierEnd> {
        let lost = |error: io::Error| CarrierEnd::Lost(error.to_string());
        let Some(direct) = connection.direct(context.receive) else {
            let scratch = match self.input {
                InputTraffic::Small => scratch,
                InputTraffic::Large => &mut scratch[..BEHIND_DIRECT_BYTES],
            };
            let read = self
                .socket
                .read(&mut [], scratch, context.buffers)
                .map_err(lost)?;
            if let Transfer::Bytes(bytes) = read {
                self.input = InputTraffic::Small;
                #[cfg(test)]
                tests::count_copied(bytes);
                connection.input(&scratch[..bytes], context)?;
            }
            return Ok(read);
        };
        self.input = InputTraffic::Large;
        let room = direct.len();
        let behind = &mut scratch[..BEHIND_DIRECT_BYTES];
        let read = self.socket.read(direct, behind, context.buffers).map_err(lost)?;
        if let Transfer::Bytes(bytes) = read {
            connection.direct_came(bytes.min(room), context)?;
            let behind_bytes = bytes.saturating_sub(room);
            #[cfg(test)]
            tests::count_copied(behind_bytes);
            connection.input(&scratch[..behind_bytes], context)?;
        }
        Ok(read)
    }
}

impl Carrier for TcpCarrier {
    const KIND: &'static str = "transport-tcp";
    const FORM: u32 = 2;
    const READ_BYTES_MAX: usize = 256 << 10;
    type Peer = TcpPeer;
    type Resume = TcpVersion;

    fn version(&self) -> u32 {
        self.version.number()
    }

    fn write(
        &mut self,
        connection: &mut Connection,
        _reading: SocketHint,
        context: &mut Context<'_>,
    ) -> bool {
        let must_wait = self.output == SocketOutput::Blocked && context.socket == SocketHint::Skip;
        if must_wait || self.write_failed.is_some() {
            return false;
        }
        self.write_some(connection, context).unwrap_or_else(|error| {
            self.write_failed = Some(error.to_string());
            false
        })
    }

    fn is_lost(&self) -> bool {
        self.write_failed.is_some()
    }

    fn may_have_input(&self, reading: SocketHint) -> bool {
        reading == SocketHint::Try
    }

    fn read(
        &mut self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Result<CarrierRead, CarrierEnd> {
        match SCRATCH.with_borrow_mut(|scratch| self.read_once(connection, scratch, context))? {
            Transfer::Bytes(bytes) => Ok(CarrierRead::Bytes(bytes.max(READ_BYTES_MIN))),
            // Before the connection is given up, all that has come is read.
            Transfer::Done if self.write_failed.is_some() => Ok(CarrierRead::Bytes(0)),
            Transfer::Done => Ok(CarrierRead::Nothing),
            Transfer::NotNow => match self.write_failed.take() {
                Some(error) => Err(CarrierEnd::Lost(error)),
                None => Ok(CarrierRead::Nothing),
            },
            Transfer::End => Err(CarrierEnd::Closed),
        }
    }

    fn holds_output(&self) -> bool {
        self.socket.wants_write()
    }

    fn close(&mut self, context: &mut Context<'_>) {
        self.socket.close_write(context.buffers);
        self.output = SocketOutput::Flows;
    }

    /// Reads until the peer has closed too, so that what it has not read yet is not destroyed by a reset.
    fn linger(&mut self, context: &mut Context<'_>) -> LingerProgress {
        if context.socket == SocketHint::Skip {
            return LingerProgress::Waiting;
        }
        match SCRATCH.with_borrow_mut(|scratch| self.socket.discard(scratch)) {
            Ok(Transfer::Bytes(_) | Transfer::NotNow | Transfer::Done) => LingerProgress::Waiting,
            Ok(Transfer::End) | Err(_) => LingerProgress::Done,
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        match self.output {
            SocketOutput::Enough { since } => Some(since + ENOUGH_RETRY_NS),
            SocketOutput::Flows | SocketOutput::Blocked => None,
        }
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.stream())
    }

    fn waits_for_room(&self, connection: &Connection) -> bool {
        // The socket has room while enough is on its way, and is ready for ever once it takes nothing.
        let is_enough = matches!(self.output, SocketOutput::Enough { .. });
        !is_enough && !self.is_lost() && (connection.wants_output() || self.socket.wants_write())
    }

    fn peer(&self) -> TcpPeer {
        self.peer.clone()
    }

    fn save(&self, out: &mut FieldWriter) {
        self.write_failed.save(out);
        self.socket.save(out);
    }

    fn restore(
        version: TcpVersion,
        peer: TcpPeer,
        descriptors: Vec<OwnedFd>,
        fields: &mut FieldReader<'_>,
        _form: u32,
    ) -> Result<TcpCarrier, RestoreError> {
        let stream = TcpStream::from(take_socket(descriptors, fields)?);
        let write_failed = SavedField::restore(fields)?;
        let socket = CarrierSocket::restore(stream, fields)?;
        Ok(TcpCarrier {
            write_failed,
            version,
            ..TcpCarrier::new(socket, peer)
        })
    }
}

#[cfg(test)]
mod tests;
