//! What carries the bytes of a connection.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use provost_datapath::{
    ConnectionSignals, Context, FieldReader, FieldWriter, Nanos, RestoreError, SavedField, SocketHint,
};
use provost_session::{Connection, ProtocolError};

/// Moves the bytes of one connection between this node and its peer, in order and exactly once. It never blocks.
pub trait Carrier: Send + Sized {
    /// The kind of the engine that this makes of a connection.
    const KIND: &'static str;
    /// The newest form of the saved state.
    const FORM: u32;
    /// Bytes that one poll hands on at most before other datapaths get their turn.
    const READ_BYTES_MAX: usize;
    /// What is known of the peer, as the saved state has it.
    type Peer: SavedField;
    /// What a successor needs beside the saved state and the descriptors.
    type Resume;

    /// The version of the code ([`provost_datapath::Engine::version`]).
    fn version(&self) -> u32 {
        1
    }

    /// Gives the carrier the signals of its connection, once.
    fn attach(&mut self, _signals: &Arc<ConnectionSignals>) {}

    /// Sends what the connection has to send, as far as the context's turn and the wire allow; says whether anything moved.
    /// A carrier that cannot send any more says so when everything that has come was read. `reading` says whether packets
    /// may be taken from the socket by the way.
    fn write(&mut self, connection: &mut Connection, reading: SocketHint, context: &mut Context<'_>) -> bool;

    /// Whether the wire takes nothing any more. What is to be sent is forgotten then.
    fn is_lost(&self) -> bool {
        false
    }

    /// Whether [`Carrier::read`] may find something, when the socket was found ready or not.
    fn may_have_input(&self, reading: SocketHint) -> bool;

    /// Whether something is left that makes the socket readable no more.
    fn has_input_left(&self) -> bool {
        false
    }

    /// Gives the connection some of what has come.
    ///
    /// # Errors
    /// Nothing more comes, or what came breaks the protocol.
    fn read(
        &mut self,
        connection: &mut Connection,
        context: &mut Context<'_>,
    ) -> Result<CarrierRead, CarrierEnd>;

    /// Whether the carrier still has bytes that the connection has given it, and that the wire has not taken.
    fn holds_output(&self) -> bool {
        false
    }

    /// Tells the peer that nothing more is sent. Nothing is written afterwards.
    fn close(&mut self, context: &mut Context<'_>);

    /// Goes on sending what was written before the close, while the app learns of the end; says whether anything moved.
    fn flush(&mut self, _context: &mut Context<'_>) -> bool {
        false
    }

    /// Waits until the peer has everything and has closed, too. What still comes is dropped.
    fn linger(&mut self, context: &mut Context<'_>) -> LingerProgress;

    /// When it wants to be polled though nothing arrives.
    fn wake_at(&self) -> Option<Nanos> {
        None
    }

    /// The socket, if there is one.
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// Whether the socket shall be watched for room to write.
    fn waits_for_room(&self, _connection: &Connection) -> bool {
        false
    }

    /// What is known of the peer.
    fn peer(&self) -> Self::Peer;

    /// Appends the bytes under way to a saved state.
    fn save(&self, out: &mut FieldWriter);

    /// Reads what [`Carrier::save`] has written, in a state of this form.
    ///
    /// # Errors
    /// It makes no sense, or the descriptors are not what it needs ([`crate::take_socket`]).
    fn restore(
        resume: Self::Resume,
        peer: Self::Peer,
        descriptors: Vec<OwnedFd>,
        fields: &mut FieldReader<'_>,
        form: u32,
    ) -> Result<Self, RestoreError>;
}

/// What a carrier has read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarrierRead {
    /// So many bytes, or as much work as with so many; there may be more.
    Bytes(usize),
    /// Nothing is there now.
    Nothing,
}

/// Why a carrier reads no more.
#[derive(Debug)]
pub enum CarrierEnd {
    /// The peer has closed.
    Closed,
    /// The wire is broken.
    Lost(String),
    /// The peer broke the protocol.
    Protocol(ProtocolError),
}

impl From<ProtocolError> for CarrierEnd {
    fn from(error: ProtocolError) -> CarrierEnd {
        CarrierEnd::Protocol(error)
    }
}

/// How far an orderly end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LingerProgress {
    /// The peer has not closed yet.
    Waiting,
    /// The same, and something moved.
    Moved,
    /// The peer has everything and has closed, or is gone.
    Done,
}
