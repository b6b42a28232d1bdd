//! What two processes of a service say to each other while one takes over from the other: packets on a socket pair, each
//! a [`Letter`], documents in sealed memfds beside them, descriptors in batches.
//!
//! ```text
//! old                                        new
//!   Hello (format, versions)       ─────►      checks the format, gets ready
//!   Documents                      ─────►      compiles schemas
//!                                  ◄─────    Ready (or Failed)
//!   [ freezes ]
//!   Rest, Descriptors…             ─────►      opens what the node has beside its apps
//!   Parties, Descriptors…          ─────►      restores them while the old one saves others; as often as there are batches
//!   Complete                       ─────►      restores what waited for others
//!                                  ◄─────    Restored (or Failed)
//!   Commit                         ─────►
//!                                  ◄─────    Committed: from here on it goes on, and the old one does not
//! ```
//!
//! A process of a version that does not say that it takes parties last gets State in the place of Rest, Parties and Complete: all of it at
//! once, or gRPC clients as Parties before it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use prost::{Message, Oneof};
use provost_shm::{
    DESCRIPTORS_BATCH_MAX, Interest, Memfd, MemfdLimits, Packet, PacketSocket, SEALS_FIXED_SIZE, ShmError,
    Wait, wait_for,
};

/// Longest letter, in bytes; what is longer goes in a document.
const LETTER_BYTES_MAX: usize = 64 << 10;
/// Longest document, in bytes.
const DOCUMENT_BYTES_MAX: u64 = 8 << 30;
/// Descriptors beside one state, at most.
pub(super) const DESCRIPTORS_MAX: usize = 1 << 20;
/// Letters that are read of a process that has ended.
const LETTERS_MAX: usize = 64;
/// Between two attempts to send descriptors while too many are on their way.
const CROWDED_PAUSE: Duration = Duration::from_millis(1);

#[derive(Clone, PartialEq, Message)]
pub(super) struct Letter {
    #[prost(oneof = "Body", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12")]
    pub(super) body: Option<Body>,
}

/// What a packet says.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Body {
    /// The old process presents itself.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// The new one is ready for the state.
    #[prost(message, tag = "2")]
    Ready(Ready),
    /// The new one cannot go on, and ends.
    #[prost(message, tag = "3")]
    Failed(Failed),
    /// A document that the next letters are about, in the memfd beside this one.
    #[prost(message, tag = "4")]
    Document(Document),
    /// The state, or what did not come before it, and nothing comes after it; the document came before, the descriptors come next.
    #[prost(message, tag = "5")]
    State(State),
    /// The next descriptors, beside this one.
    #[prost(message, tag = "6")]
    Descriptors(Descriptors),
    /// Everything is restored, and nothing has been touched.
    #[prost(message, tag = "7")]
    Restored(Restored),
    /// The old process has ended its part.
    #[prost(message, tag = "8")]
    Commit(Commit),
    /// The new one goes on from here.
    #[prost(message, tag = "9")]
    Committed(Committed),
    /// Some of the apps and callers of the state; the document came before, the descriptors come next. To a process that says that it
    /// reads them.
    #[prost(message, tag = "10")]
    Parties(PartiesFollow),
    /// The state but for apps and callers, which come next; the document came before, the descriptors come next. To a process that says
    /// that it takes those last.
    #[prost(message, tag = "11")]
    Rest(State),
    /// All of the state has come.
    #[prost(message, tag = "12")]
    Complete(CompleteState),
}

/// See [`Body::Hello`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Hello {
    /// The format of the state that it will send.
    #[prost(uint32, tag = "1")]
    pub(super) format: u32,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

/// See [`Body::Ready`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ready {
    #[prost(string, tag = "1")]
    pub(super) version: String,
    /// The format that it expects.
    #[prost(uint32, tag = "2")]
    pub(super) format: u32,
    /// The newest version of the state of gRPC clients that it reads; 0 if it goes on with none.
    #[prost(uint32, tag = "3")]
    pub(super) grpc_clients: u32,
    /// The newest forms of the states of engines that it reads; the first of kinds that are not named.
    #[prost(message, repeated, tag = "4")]
    pub(super) engine_forms: Vec<EngineForm>,
    /// The newest version of the state of calls of other nodes that it reads; 0 if it goes on with none.
    #[prost(uint32, tag = "5")]
    pub(super) relays: u32,
    /// Whether it takes gRPC clients before the rest of the state.
    #[prost(bool, tag = "6")]
    pub(super) takes_callers_first: bool,
    /// Whether it takes apps and callers behind the rest of the state, in batches.
    #[prost(bool, tag = "7")]
    pub(super) takes_parties_last: bool,
}

/// Which states of a kind of engine a process reads.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EngineForm {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    #[prost(uint32, tag = "2")]
    pub(super) newest: u32,
}

/// See [`Body::Failed`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Failed {
    #[prost(string, tag = "1")]
    pub(super) reason: String,
}

/// See [`Body::Document`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Document {
    /// Its length in bytes.
    #[prost(uint64, tag = "1")]
    pub(super) bytes: u64,
    /// Its [`checksum`].
    #[prost(fixed64, tag = "2")]
    pub(super) checksum: u64,
}

/// See [`Body::State`] and [`Body::Rest`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct State {
    /// How many descriptors come.
    #[prost(uint64, tag = "1")]
    pub(super) descriptors: u64,
}

/// How much comes with [`Body::Parties`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartiesFollow {
    /// How many descriptors come.
    #[prost(uint64, tag = "1")]
    pub(super) descriptors: u64,
}

/// See [`Body::Complete`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct CompleteState {}

/// See [`Body::Descriptors`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Descriptors {}

/// See [`Body::Restored`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Restored {}

/// See [`Body::Commit`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Commit {}

/// See [`Body::Committed`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Committed {}

/// Why the two do not understand each other.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    /// The other one is gone.
    #[error("the other process ended")]
    Ended,
    /// Its time is over.
    #[error("the other process was not done within {0:?}")]
    Late(Duration),
    /// It said what it should not say now.
    #[error("the other process said {said} where {expected} was expected")]
    Unexpected {
        said: String,
        /// What it should have said.
        expected: &'static str,
    },
    /// It cannot go on.
    #[error("{0}")]
    Failed(String),
    /// A document is torn.
    #[error("a document of {bytes} bytes arrived damaged")]
    Damaged { bytes: u64 },
    /// A document is too long, or its memory is not what it should be.
    #[error("a document: {0}")]
    Memory(#[from] ShmError),
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The time that something may take: one letter, or all of them up to a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    until: Instant,
    /// How long it was when it began.
    whole: Duration,
}

impl From<Duration> for TimeLimit {
    fn from(whole: Duration) -> TimeLimit {
        TimeLimit::beginning(Instant::now(), whole)
    }
}

impl TimeLimit {
    pub(super) fn beginning(began: Instant, whole: Duration) -> TimeLimit {
        let until = began + whole;
        TimeLimit { until, whole }
    }

    pub(super) fn until(self) -> Instant {
        self.until
    }

    /// As much time once more, from now on.
    pub(super) fn anew(self) -> TimeLimit {
        self.whole.into()
    }

    fn left(self) -> Result<Wait, ChannelError> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(ChannelError::Late(self.whole))
        } else {
            Ok(Wait::AtMost(left.as_nanos() as u64))
        }
    }
}

/// One end. Its operations wait, so they do not belong on the control plane's thread while that has others to serve.
#[derive(Debug)]
pub(super) struct Channel {
    socket: PacketSocket,
}

impl Channel {
    pub(super) fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = PacketSocket::pair()?;
        Ok((Channel { socket: one }, Channel { socket: other }))
    }

    /// The end that was given to this process.
    pub(super) fn of_descriptor(descriptor: OwnedFd) -> Channel {
        let socket = PacketSocket::from(descriptor);
        Channel { socket }
    }

    /// Gives its socket away.
    pub(super) fn try_clone_descriptor(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Ends it: whoever waits for the other process learns that nothing comes.
    pub(super) fn shut_down(&self) {
        // It fails only when the other process has closed its end.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    pub(super) fn send(&self, body: Body, limit: impl Into<TimeLimit>) -> Result<(), ChannelError> {
        self.send_with(body, &[], limit.into())
    }

    /// Sends a document. It belongs to the next letter.
    pub(super) fn send_document(
        &self,
        document: &[u8],
        limit: impl Into<TimeLimit>,
    ) -> Result<(), ChannelError> {
        let memory = Memfd::of_bytes("provost-state", document)?;
        let body = Body::Document(Document {
            bytes: document.len() as u64,
            checksum: checksum(document),
        });
        self.send_with(body, &[memory.as_fd()], limit.into())
    }

    /// Sends descriptors, in their order.
    pub(super) fn send_descriptors(
        &self,
        descriptors: &[OwnedFd],
        limit: impl Into<TimeLimit>,
    ) -> Result<(), ChannelError> {
        let limit = limit.into();
        for batch in descriptors.chunks(DESCRIPTORS_BATCH_MAX) {
            let batch: Vec<_> = batch.iter().map(AsFd::as_fd).collect();
            self.send_with(Body::Descriptors(Descriptors {}), &batch, limit)?;
        }
        Ok(())
    }

    /// The next letter, and the descriptors beside it.
    pub(super) fn receive(&self, limit: impl Into<TimeLimit>) -> Result<(Body, Vec<OwnedFd>), ChannelError> {
        let packet = self.receive_packet(limit.into())?;
        let letter = Letter::decode(packet.bytes.as_slice())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        match letter.body {
            Some(Body::Failed(failed)) => Err(ChannelError::Failed(failed.reason)),
            Some(body) => Ok((body, packet.descriptors)),
            None => Err(ChannelError::Unexpected {
                said: "nothing that this version knows".to_owned(),
                expected: "a letter",
            }),
        }
    }

    /// The document that comes next.
    pub(super) fn receive_document(&self, limit: Duration) -> Result<Vec<u8>, ChannelError> {
        let (body, descriptors) = self.receive(limit)?;
        document_of(&body, descriptors)
    }

    /// The next document of the state, unless all of it has come.
    pub(super) fn receive_of_state(&self, limit: Duration) -> Result<Option<Vec<u8>>, ChannelError> {
        match self.receive(limit)? {
            (Body::Complete(_), _) => Ok(None),
            (body, descriptors) => document_of(&body, descriptors).map(Some),
        }
    }

    /// What the other process had said before it ended, in order.
    pub(super) fn rest(&self) -> Vec<Result<Body, ChannelError>> {
        const SHORT: Duration = Duration::from_millis(1);
        let mut said = Vec::new();
        // An end with letters that it has not read is told first, once.
        let mut ends = 0;
        while ends < 2 && said.len() < LETTERS_MAX {
            match self.receive(SHORT) {
                Ok((body, _)) => said.push(Ok(body)),
                Err(ChannelError::Failed(reason)) => said.push(Err(ChannelError::Failed(reason))),
                Err(_) => ends += 1,
            }
        }
        said
    }

    pub(super) fn receive_descriptors(
        &self,
        count: u64,
        limit: Duration,
    ) -> Result<Vec<OwnedFd>, ChannelError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > DESCRIPTORS_MAX {
            let said = format!("{count} descriptors");
            let expected = "fewer";
            return Err(ChannelError::Unexpected { said, expected });
        }
        let mut all = Vec::with_capacity(count);
        while all.len() < count {
            let (body, descriptors) = self.receive(limit)?;
            if !matches!(body, Body::Descriptors(_)) || descriptors.is_empty() {
                return Err(unexpected(&body, "descriptors"));
            }
            all.extend(descriptors);
        }
        Ok(all)
    }

    fn send_with(
        &self,
        body: Body,
        descriptors: &[BorrowedFd<'_>],
        limit: TimeLimit,
    ) -> Result<(), ChannelError> {
        let bytes = Letter { body: Some(body) }.encode_to_vec();
        loop {
            // Also where the other process takes each letter at once: what is between them takes time as well.
            let left = limit.left()?;
            match self.socket.send_batch(&bytes, descriptors) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&self.socket, Interest::Writable, left)?;
                }
                // The kernel bounds how many descriptors are on their way.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error()) => {
                    std::thread::sleep(CROWDED_PAUSE);
                }
                Err(error) if is_end(&error) => return Err(ChannelError::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive_packet(&self, limit: TimeLimit) -> Result<Packet, ChannelError> {
        loop {
            match self.socket.receive_batch(LETTER_BYTES_MAX) {
                Ok(Some(packet)) => return Ok(packet),
                Ok(None) => return Err(ChannelError::Ended),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_for(&self.socket, Interest::Readable, limit.left()?)?;
                }
                Err(error) if is_end(&error) => return Err(ChannelError::Ended),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Whether an error only says that the other process has closed its end. What it had said before can still be read.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
    )
}

/// The document beside a letter.
fn document_of(body: &Body, descriptors: Vec<OwnedFd>) -> Result<Vec<u8>, ChannelError> {
    let (Body::Document(document), Ok([memory])) = (body, <[OwnedFd; 1]>::try_from(descriptors)) else {
        return Err(unexpected(body, "a document"));
    };
    let bytes = document.bytes;
    if bytes == 0 {
        return Ok(Vec::new());
    }
    let limits = MemfdLimits {
        bytes_min: bytes,
        bytes_max: bytes.min(DOCUMENT_BYTES_MAX),
        seals: SEALS_FIXED_SIZE,
    };
    let memory = Memfd::verify_foreign(memory, limits)?;
    let mut content = vec![0; bytes as usize];
    let mut at = 0;
    while at < content.len() {
        match memory.read_at(at as u64, &mut content[at..])? {
            0 => return Err(ChannelError::Damaged { bytes }),
            read => at += read,
        }
    }
    if checksum(&content) == document.checksum {
        Ok(content)
    } else {
        Err(ChannelError::Damaged { bytes })
    }
}

/// What to answer to a letter that was not expected.
pub(super) fn unexpected(body: &Body, expected: &'static str) -> ChannelError {
    let said = match body {
        Body::Hello(_) => "hello",
        Body::Ready(_) => "that it is ready",
        Body::Failed(_) => "that it failed",
        Body::Document(_) => "a document",
        Body::State(_) => "a state",
        Body::Descriptors(_) => "descriptors",
        Body::Restored(_) => "that it has restored",
        Body::Commit(_) => "to commit",
        Body::Committed(_) => "that it has committed",
        Body::Parties(_) => "some apps or callers",
        Body::Rest(_) => "the rest of a state",
        Body::Complete(_) => "that all has come",
    };
    let said = said.to_owned();
    ChannelError::Unexpected { said, expected }
}

/// Tells a torn document from a whole one. (Both processes are the service's own: nobody forges it.)
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut words = bytes.chunks_exact(8);
    let mut sum = bytes.len() as u64;
    for word in words.by_ref() {
        let word = word
            .first_chunk::<8>()
            .map_or(0, |word| u64::from_le_bytes(*word));
        sum = (sum.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    }
    for byte in words.remainder() {
        sum = (sum.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(FACTOR);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn documents_and_descriptors_arrive_in_order_and_the_end_is_told() {
        let (old, new) = Channel::pair().unwrap();
        let document: Vec<u8> = (0..1_000_003_u32).map(|at| (at * 7) as u8).collect();
        let sent = document.clone();
        let descriptors: Vec<OwnedFd> = (0..600).map(|_| new.try_clone_descriptor().unwrap()).collect();
        let sender = std::thread::spawn(move || {
            old.send_document(&sent, LIMIT).unwrap();
            old.send_document(&[], LIMIT).unwrap();
            let count = descriptors.len() as u64;
            old.send(Body::State(State { descriptors: count }), LIMIT)
                .unwrap();
            old.send_descriptors(&descriptors, LIMIT).unwrap();
        });
        assert_eq!(new.receive_document(LIMIT).unwrap(), document);
        assert!(new.receive_document(LIMIT).unwrap().is_empty());
        let (body, _) = new.receive(LIMIT).unwrap();
        let Body::State(state) = body else {
            panic!("{body:?}");
        };
        assert_eq!(
            new.receive_descriptors(state.descriptors, LIMIT).unwrap().len(),
            600
        );
        sender.join().unwrap();
        assert!(matches!(new.receive(LIMIT), Err(ChannelError::Ended)));
    }

    #[test]
    fn silence_failure_and_nonsense_are_told_apart() {
        let (old, new) = Channel::pair().unwrap();
        let short = Duration::from_millis(10);
        assert!(matches!(old.receive(short), Err(ChannelError::Late(_))));
        let reason = "no room".to_owned();
        new.send(Body::Failed(Failed { reason }), LIMIT).unwrap();
        assert!(matches!(old.receive(LIMIT), Err(ChannelError::Failed(reason)) if reason == "no room"));
        new.send(Body::Commit(Commit {}), LIMIT).unwrap();
        assert!(matches!(
            old.receive_document(LIMIT),
            Err(ChannelError::Unexpected { .. })
        ));
    }

    #[test]
    fn a_limit_of_several_letters_is_over_for_the_next_one_however_fast_each_is() {
        let (old, new) = Channel::pair().unwrap();
        let limit = TimeLimit::from(LIMIT);
        for _ in 0..3 {
            old.send(Body::Restored(Restored {}), limit).unwrap();
            new.receive(limit).unwrap();
        }
        let over = TimeLimit::beginning(Instant::now(), Duration::ZERO);
        let late = old.send(Body::Restored(Restored {}), over);
        assert!(
            matches!(late, Err(ChannelError::Late(Duration::ZERO))),
            "{late:?}"
        );
        let late = old.send_descriptors(&[new.try_clone_descriptor().unwrap()], over);
        assert!(matches!(late, Err(ChannelError::Late(_))), "{late:?}");
        assert!(matches!(new.receive(over), Err(ChannelError::Late(_))));
    }

    #[test]
    fn a_changed_byte_changes_the_sum() {
        let mut bytes = vec![1; 100];
        let before = checksum(&bytes);
        for at in 0..bytes.len() {
            bytes[at] = 2;
            assert_ne!(checksum(&bytes), before);
            bytes[at] = 1;
        }
        assert_ne!(checksum(&bytes[..99]), before);
    }
}
