//! The packets on the wire (`docs/datagram.md`): a header of 16 bytes, for message data a prefix of 8, and the payload.
//!
//! ```text
//!  0      1      2             4                    8                    12            14            16
//!  ├──────┼──────┼─────────────┼────────────────────┼────────────────────┼─────────────┼─────────────┤
//!  │flags │ slot │ receiver's  │ receiver's session │ call number        │ packet      │ check       │
//!  │ kind │      │ session     │ token              │ in its slot        │ number      │             │
//!  ├──────┴──────┴─────────────┼─────────┬──────────┼────────────────────┴─────────────┴─────────────┘
//!  │ bytes of the message      │ method  │ held     │   prefix of requests and responses
//!  │                           │ /status │          │
//!  └───────────────────────────┴─────────┴──────────┘
//! ```
//!
//! All integers are little-endian.

use crate::checksum::{CRC_BYTES, CRC_FOLLOWS, Checking, check_of, crc_of, verify};
use crate::seal::LOSS_PROOF_BYTES;

/// Bytes of the header that every packet begins with.
pub const HEADER_BYTES: usize = 16;
/// Bytes of the header and the prefix of a packet with message data.
pub const DATA_HEADER_BYTES: usize = HEADER_BYTES + PREFIX_BYTES;
/// Bytes of the prefix of requests and responses.
pub const PREFIX_BYTES: usize = 8;
/// Bytes of the bitmap that a credit return may carry.
pub const BITMAP_BYTES: usize = 8;
/// Packets of one message: what the packet number can name.
pub const MESSAGE_PACKETS_MAX: u32 = 1 << 16;
/// Response packets that one request-for-response can ask for.
pub const RANGE_PACKETS_MAX: u8 = 16;
/// Bytes of the packets that are left when larger ones vanish on the way: what nearly every path of the Internet carries (RFC 8899
/// section 5.1.2 has it as the base size).
pub const SMALL_PACKET_BYTES: usize = 1200;
/// Where in a header the check is.
const CHECK_AT: std::ops::Range<usize> = 14..HEADER_BYTES;
/// Where behind a header the CRC is.
const CRC_AT: std::ops::Range<usize> = HEADER_BYTES..HEADER_BYTES + CRC_BYTES;
/// One unit of [`Prefix::held`], in nanoseconds.
pub const HELD_UNIT_NS: u64 = 64;

/// The session number of a packet that belongs to no session of its receiver yet.
pub const NO_SESSION: u16 = u16::MAX;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Client to server: a piece of a request.
    Request = 1,
    /// Server to client: all request packets below this number are here, and those in the bitmap.
    CreditReturn = 2,
    /// Client to server: send these packets of the response.
    RequestForResponse = 3,
    /// Server to client: a piece of a response.
    Response = 4,
    /// Client to server: begin a session.
    Open = 5,
    /// Server to client: repeat that with this cookie, so that I know that you are where you say.
    Challenge = 6,
    /// Server to client: the session has begun.
    Accept = 7,
    /// Server to client: no session, for this reason.
    Refuse = 8,
    /// Client to server: the session is over.
    Close = 9,
    /// Server to client: so it is here.
    Closed = 10,
    /// Either way: the session has ended abruptly.
    Reset = 11,
    /// Server to client, outside any session: nobody here knows the session and token that this repeats.
    Unknown = 12,
    /// Client to server: are you there?
    Ping = 13,
    /// Server to client: yes.
    Pong = 14,
}

impl Kind {
    fn parse(value: u8) -> Option<Kind> {
        const KINDS: [Kind; 14] = [
            Kind::Request,
            Kind::CreditReturn,
            Kind::RequestForResponse,
            Kind::Response,
            Kind::Open,
            Kind::Challenge,
            Kind::Accept,
            Kind::Refuse,
            Kind::Close,
            Kind::Closed,
            Kind::Reset,
            Kind::Unknown,
            Kind::Ping,
            Kind::Pong,
        ];
        KINDS.get(usize::from(value).wrapping_sub(1)).copied()
    }
}

/// The upper four bits of a packet's first byte. What they mean depends on the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u8);

impl Flags {
    /// Nothing said.
    pub const NONE: Flags = Flags(0);
    /// Of a request: return credits at once.
    pub const RETURN: Flags = Flags(1);
    /// Of a credit return or response: the network marked a packet of the request as having met congestion.
    pub const MARKED: Flags = Flags(2);
    /// Of a credit return or response: the sender cannot say how long it held the call, so nothing is to be learnt
    /// about the network from when this arrives.
    pub const UNTIMED: Flags = Flags(4);
    /// Of a credit return or response that is UNTIMED too: the sender was kept from polling until just now. The silence before
    /// was the sender's, and not the network's.
    pub const AWAY: Flags = Flags(8);

    /// Of a request: this call's messages are in small packets ([`SMALL_PACKET_BYTES`]), both ways.
    pub const SMALL_REQUEST: Flags = Flags(2);
    /// Of a credit return or response: packets are counted, and cut, as small ones.
    pub const SMALL_ANSWER: Flags = Flags(1);

    /// The flags of a request-for-response for so many packets: 1 to [`RANGE_PACKETS_MAX`].
    #[must_use]
    pub const fn range(packets: u8) -> Flags {
        Flags(packets.wrapping_sub(1) & 15)
    }

    /// How many packets a request-for-response asks for.
    #[must_use]
    pub const fn range_packets(self) -> u8 {
        self.0 + 1
    }

    /// Where they are in a packet's first word.
    #[inline(always)]
    pub(crate) fn first_word(self) -> u64 {
        u64::from(self.0) << 4
    }

    /// Whether all of `other` is set.
    #[must_use]
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These and those.
    #[must_use]
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// In which packets a call's messages are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PacketSize {
    /// As large as was agreed.
    #[default]
    Full,
    /// No larger than [`SMALL_PACKET_BYTES`], because larger ones vanish on the way.
    Small,
}

impl PacketSize {
    pub(crate) fn of_request(flags: Flags) -> PacketSize {
        PacketSize::flagged(flags.has(Flags::SMALL_REQUEST))
    }

    pub(crate) fn of_answer(flags: Flags) -> PacketSize {
        PacketSize::flagged(flags.has(Flags::SMALL_ANSWER))
    }

    fn flagged(is_small: bool) -> PacketSize {
        if is_small {
            PacketSize::Small
        } else {
            PacketSize::Full
        }
    }

    /// What requests in such packets say.
    pub(crate) fn request_flags(self) -> Flags {
        match self {
            PacketSize::Full => Flags::NONE,
            PacketSize::Small => Flags::SMALL_REQUEST,
        }
    }

    /// What credit returns and responses say.
    pub(crate) fn answer_flags(self) -> Flags {
        match self {
            PacketSize::Full => Flags::NONE,
            PacketSize::Small => Flags::SMALL_ANSWER,
        }
    }
}

/// Bytes of a message in a packet of either size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PayloadSizes {
    pub(crate) full: u32,
    /// The same as `full` where the ends have not agreed to fall back.
    pub(crate) small: u32,
}

impl PayloadSizes {
    /// Before anything is agreed.
    pub(crate) const NONE: PayloadSizes = PayloadSizes { full: 0, small: 0 };

    #[inline(always)]
    pub(crate) fn of(self, size: PacketSize) -> u32 {
        match size {
            PacketSize::Full => self.full,
            PacketSize::Small => self.small,
        }
    }

    /// Whether messages can be put into smaller packets than was agreed.
    pub(crate) fn can_fall_back(self) -> bool {
        self.small < self.full
    }

    /// Bytes of a message that packet numbers can count in either size.
    pub(crate) fn message_bytes_max(self) -> u64 {
        u64::from(self.small) * u64::from(MESSAGE_PACKETS_MAX)
    }

    /// Bytes after the header of a packet that is as large as was agreed.
    pub(crate) fn probe_bytes(self) -> usize {
        self.full as usize + PREFIX_BYTES
    }
}

/// What every packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the packet is for.
    pub kind: Kind,
    /// Particulars of the kind.
    pub flags: Flags,
    /// Which of the session's concurrent calls it belongs to.
    pub slot: u8,
    /// The session, by the number that its receiver gave it.
    pub session: u16,
    /// The secret that the receiver gave the session, which whoever is not on the path cannot know.
    pub token: u32,
    /// The number of the call in its slot; it grows by one with each call.
    pub call: u32,
    /// Which packet of its message this is, or is about.
    pub packet: u16,
}

impl Header {
    /// The header of a packet of session management, which belongs to no call.
    #[must_use]
    pub const fn of_session(kind: Kind, session: u16, token: u32) -> Header {
        Header {
            kind,
            flags: Flags::NONE,
            slot: 0,
            session,
            token,
            call: 0,
            packet: 0,
        }
    }

    /// The header of packets of a kind that belong to a slot's calls, as far as it is the same for all of them.
    pub(crate) fn of_slot(kind: Kind, slot: u8, session: u16, token: u32) -> Header {
        Header {
            slot,
            ..Header::of_session(kind, session, token)
        }
    }

    /// Its bytes, without a check.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.first_word().to_le_bytes());
        bytes[8..].copy_from_slice(&self.second_word().to_le_bytes());
        bytes
    }

    /// Its first eight bytes: kind, flags, and for whom it is.
    #[inline]
    pub(crate) fn first_word(&self) -> u64 {
        u64::from(self.kind as u8)
            | self.flags.first_word()
            | u64::from(self.slot) << 8
            | u64::from(self.session) << 16
            | u64::from(self.token) << 32
    }

    /// Its last eight bytes: call and packet, and no check.
    #[inline]
    fn second_word(&self) -> u64 {
        u64::from(self.call) | u64::from(self.packet) << 32
    }

    /// Reads and checks the header of a packet; the rest is what follows it.
    #[inline]
    pub(crate) fn read(bytes: &[u8], checking: Checking) -> Result<(Header, &[u8]), Malformed> {
        let intact = IntactPacket::read(bytes, checking)?;
        Ok((intact.header()?, intact.rest))
    }

    #[inline]
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let (low, high) = (word_at(bytes, 0), word_at(bytes, 8));
        Some(Header {
            kind: Kind::parse(low as u8 & 15)?,
            flags: Flags(low as u8 >> 4),
            slot: (low >> 8) as u8,
            session: (low >> 16) as u16,
            token: (low >> 32) as u32,
            call: high as u32,
            packet: (high >> 32) as u16,
        })
    }
}

/// A packet whose check is right. What it says has not been looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntactPacket<'p> {
    head: &'p [u8; HEADER_BYTES],
    /// What follows the header and its check.
    pub(crate) rest: &'p [u8],
}

impl<'p> IntactPacket<'p> {
    #[inline]
    pub(crate) fn read(bytes: &'p [u8], checking: Checking) -> Result<IntactPacket<'p>, Malformed> {
        let (head, rest) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
        let rest = verify(head, rest, checking)?;
        Ok(IntactPacket { head, rest })
    }

    #[inline]
    pub(crate) fn header(&self) -> Result<Header, Malformed> {
        Header::decode(self.head).ok_or(Malformed::Kind)
    }

    /// The session that the packet is for, if there is one, and the token that shows it.
    #[inline(always)]
    pub(crate) fn session_and_token(&self) -> (usize, u32) {
        let word = word_at(self.head, 0);
        (usize::from((word >> 16) as u16), (word >> 32) as u32)
    }

    /// The header without its check, as seals cover it.
    #[inline(always)]
    pub(crate) fn header_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = *self.head;
        bytes[CHECK_AT].fill(0);
        bytes
    }

    /// The head of a packet with message data, without its check, and the payload, where the header is followed by this.
    #[inline(always)]
    pub(crate) fn data_head<'b>(&self, rest: &'b [u8]) -> Option<(DataHead, &'b [u8])> {
        let (prefix, payload) = rest.split_first_chunk()?;
        let head = DataHead {
            addressee: word_at(self.head, 0),
            call: word_at(self.head, 8) & !CHECK_MASK,
            prefix: u64::from_le_bytes(*prefix),
        };
        Some((head, payload))
    }
}

#[inline(always)]
fn word_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// What stands before the payload of a packet with message data, as three words: so is it compared with what a slot expects, and
/// put together from what a slot always says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataHead {
    /// See [`Header::first_word`].
    addressee: u64,
    /// The call, the packet, and the check.
    call: u64,
    prefix: u64,
}

/// A packet with message data, as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedData<'p, A> {
    pub(crate) from: A,
    pub(crate) head: DataHead,
    pub(crate) payload: &'p [u8],
    /// Whether the network marked it as having met congestion.
    pub(crate) marked: bool,
}

/// Where in a header's second word its check is.
const CHECK_SHIFT: u32 = 48;
const CHECK_MASK: u64 = 0xffff << CHECK_SHIFT;

/// What no packet has: its kind, as a first word, and its check, as a second, cannot be.
pub(crate) const NO_WORD: u64 = u64::MAX;

impl DataHead {
    /// Of the only packet of a message.
    #[inline(always)]
    pub(crate) fn of_whole(addressee: u64, call: u32, prefix: &Prefix) -> DataHead {
        DataHead {
            addressee,
            call: DataHead::second_word(call),
            prefix: prefix.word(),
        }
    }

    /// The second word of a call's first packet, without a check.
    #[inline(always)]
    pub(crate) fn second_word(call: u32) -> u64 {
        u64::from(call)
    }

    /// Whether these are its first words.
    #[inline(always)]
    pub(crate) fn begins_with(&self, words: &[u64; 2]) -> bool {
        self.addressee == words[0] && self.call == words[1]
    }

    /// The number of the call.
    #[inline(always)]
    pub(crate) fn call(&self) -> u32 {
        self.call as u32
    }

    /// Reads it, without a look at what it says; the rest is the payload.
    #[inline(always)]
    pub(crate) fn read(bytes: &[u8]) -> Option<(DataHead, &[u8])> {
        let (head, payload) = bytes.split_first_chunk::<DATA_HEADER_BYTES>()?;
        let head = DataHead {
            addressee: word_at(head, 0),
            call: word_at(head, 8),
            prefix: word_at(head, 16),
        };
        Some((head, payload))
    }

    #[inline(always)]
    pub(crate) fn bytes(&self) -> [u8; DATA_HEADER_BYTES] {
        let mut bytes = [0; DATA_HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.addressee.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.call.to_le_bytes());
        bytes[16..].copy_from_slice(&self.prefix.to_le_bytes());
        bytes
    }

    /// The header alone, without a check.
    #[inline(always)]
    pub(crate) fn header_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.addressee.to_le_bytes());
        bytes[8..].copy_from_slice(&self.call.to_le_bytes());
        bytes
    }

    #[inline(always)]
    pub(crate) fn prefix_bytes(&self) -> [u8; PREFIX_BYTES] {
        self.prefix.to_le_bytes()
    }

    /// Its bytes with a check of 16 bits over them and the payload.
    #[inline]
    pub(crate) fn with_check(&self, payload: &[u8]) -> [u8; DATA_HEADER_BYTES] {
        let mut bytes = self.bytes();
        let check = check_of(&bytes, payload);
        bytes[CHECK_AT].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Its bytes with a CRC over them and the payload.
    #[inline]
    pub(crate) fn with_crc(&self, payload: &[u8]) -> [u8; DATA_HEADER_BYTES + CRC_BYTES] {
        let call = self.call | u64::from(CRC_FOLLOWS) << CHECK_SHIFT;
        let head = DataHead { call, ..*self }.bytes();
        let mut bytes = [0; DATA_HEADER_BYTES + CRC_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&head[..HEADER_BYTES]);
        bytes[CRC_AT].copy_from_slice(&crc_of(&head, payload));
        bytes[CRC_AT.end..].copy_from_slice(&head[HEADER_BYTES..]);
        bytes
    }

    /// The session that it is for, if there is one.
    #[inline(always)]
    pub(crate) fn session(&self) -> usize {
        session_of(self.addressee)
    }

    /// The slot of that.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u8 {
        slot_of(self.addressee)
    }

    #[inline(always)]
    pub(crate) fn prefix(&self) -> Prefix {
        Prefix::of_word(self.prefix)
    }
}

/// What each packet of a request or response says about its message, so that packets can arrive in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Bytes of the whole message.
    pub message_bytes: u32,
    /// The method of a request, the status of a response.
    pub code: u16,
    /// Of a response: how long the server kept the call, in units of [`HELD_UNIT_NS`]. Zero in a request.
    pub held: u16,
}

impl Prefix {
    #[inline]
    fn encode(&self) -> [u8; PREFIX_BYTES] {
        self.word().to_le_bytes()
    }

    #[inline(always)]
    fn word(&self) -> u64 {
        u64::from(self.message_bytes) | u64::from(self.code) << 32 | u64::from(self.held) << 48
    }

    /// Reads it; the rest is the payload.
    #[inline]
    pub(crate) fn read(bytes: &[u8]) -> Result<(Prefix, &[u8]), Malformed> {
        let (prefix, payload) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
        Ok((Prefix::decode(prefix), payload))
    }

    #[inline]
    fn decode(bytes: &[u8; PREFIX_BYTES]) -> Prefix {
        Prefix::of_word(u64::from_le_bytes(*bytes))
    }

    #[inline(always)]
    fn of_word(word: u64) -> Prefix {
        Prefix {
            message_bytes: word as u32,
            code: (word >> 32) as u16,
            held: (word >> 48) as u16,
        }
    }
}

/// The session in a packet's first word.
#[inline(always)]
fn session_of(first_word: u64) -> usize {
    usize::from((first_word >> 16) as u16)
}

/// The slot in a packet's first word.
#[inline(always)]
fn slot_of(first_word: u64) -> u8 {
    (first_word >> 8) as u8
}

/// For which session, and which of its slots, a packet is that begins so.
#[inline(always)]
pub(crate) fn place_of(first: [u8; 8]) -> (usize, usize) {
    let first = u64::from_le_bytes(first);
    (session_of(first), slot_of(first).into())
}

/// A packet of a message, as it came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'p> {
    pub(crate) header: Header,
    pub(crate) prefix: Prefix,
    pub(crate) payload: &'p [u8],
    pub(crate) marked: bool,
}

/// What stands before a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    bytes: [u8; DATA_HEADER_BYTES],
    length: u8,
}

impl Head {
    /// A header alone.
    #[must_use]
    #[inline]
    pub fn bare(header: &Header) -> Head {
        let mut bytes = [0; DATA_HEADER_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        Head {
            bytes,
            length: HEADER_BYTES as u8,
        }
    }

    /// A header and the prefix of message data.
    #[must_use]
    #[inline]
    pub fn of_data(header: &Header, prefix: &Prefix) -> Head {
        let mut head = Head::bare(header);
        head.bytes[HEADER_BYTES..].copy_from_slice(&prefix.encode());
        head.length = DATA_HEADER_BYTES as u8;
        head
    }

    /// A header and the bitmap of a credit return; no bitmap is sent for an empty one.
    #[must_use]
    pub fn of_credit_return(header: &Header, bitmap: u64) -> Head {
        let mut head = Head::bare(header);
        if bitmap != 0 {
            head.bytes[HEADER_BYTES..].copy_from_slice(&bitmap.to_le_bytes());
            head.length = DATA_HEADER_BYTES as u8;
        }
        head
    }

    /// Its bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }

    /// The header of a packet whose rest is sealed.
    pub(crate) fn of_sealed(header: [u8; HEADER_BYTES]) -> Head {
        let mut bytes = [0; DATA_HEADER_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&header);
        Head {
            bytes,
            length: HEADER_BYTES as u8,
        }
    }

    pub(crate) fn header_alone(mut self) -> Head {
        self.length = HEADER_BYTES as u8;
        self
    }

    /// This head with the check over it and the payload that follows, where the wire has none of its own.
    #[inline(never)]
    pub fn seal(mut self, payload: &[u8], checking: Checking) -> CheckedHead {
        let check = match checking {
            Checking::Wire => return self.with_room_for_crc(0),
            Checking::Packets => check_of(self.bytes(), payload),
            Checking::Crc32c => CRC_FOLLOWS,
        };
        self.bytes[CHECK_AT].copy_from_slice(&check.to_le_bytes());
        let mut head = self.with_room_for_crc(checking.bytes());
        if checking == Checking::Crc32c {
            head.bytes[CRC_AT].copy_from_slice(&crc_of(self.bytes(), payload));
        }
        head
    }

    /// The same with so many bytes between header and prefix.
    #[inline]
    fn with_room_for_crc(&self, crc_bytes: usize) -> CheckedHead {
        let mut bytes = [0; DATA_HEADER_BYTES + CRC_BYTES];
        bytes[..HEADER_BYTES].copy_from_slice(&self.bytes[..HEADER_BYTES]);
        bytes[HEADER_BYTES + crc_bytes..][..PREFIX_BYTES].copy_from_slice(&self.bytes[HEADER_BYTES..]);
        CheckedHead {
            bytes,
            length: self.length + crc_bytes as u8,
        }
    }
}

/// What stands before a packet's payload, with its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedHead {
    bytes: [u8; DATA_HEADER_BYTES + CRC_BYTES],
    length: u8,
}

impl CheckedHead {
    /// The bytes that go before the payload.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

/// A packet that has been checked as far as it can be without knowing its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'p> {
    /// What every packet begins with.
    pub header: Header,
    /// What follows, by kind.
    pub body: Body<'p>,
}

/// What follows a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'p> {
    /// A piece of a message: of requests and responses.
    Data(Prefix, &'p [u8]),
    /// Which packets beyond the next one that is missing are here: of credit returns.
    Bitmap(u64),
    /// Session management.
    Control(&'p [u8]),
    /// Nothing.
    Empty,
}

/// Why a packet is none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It ends within its header.
    #[error("a packet shorter than its header")]
    Short,
    /// Its check does not match.
    #[error("a packet whose check does not match its bytes")]
    Check,
    /// No such kind.
    #[error("a packet of a kind that this version does not know")]
    Kind,
    /// Its length cannot be that of its kind.
    #[error("a packet with a length that its kind cannot have")]
    Length,
}

impl<'p> Packet<'p> {
    /// Reads a packet.
    #[inline]
    pub fn parse(bytes: &'p [u8], checking: Checking) -> Result<Packet<'p>, Malformed> {
        let (header, rest) = Header::read(bytes, checking)?;
        let body = Body::read(header.kind, rest)?;
        Ok(Packet { header, body })
    }
}

impl<'p> Body<'p> {
    /// What follows a header of this kind.
    #[inline]
    pub(crate) fn read(kind: Kind, rest: &'p [u8]) -> Result<Body<'p>, Malformed> {
        Ok(match kind {
            Kind::Request | Kind::Response => {
                let (prefix, payload) = Prefix::read(rest)?;
                Body::Data(prefix, payload)
            }
            Kind::CreditReturn if rest.is_empty() => Body::Bitmap(0),
            Kind::CreditReturn => {
                let bitmap = <[u8; BITMAP_BYTES]>::try_from(rest).map_err(|_| Malformed::Length)?;
                Body::Bitmap(u64::from_le_bytes(bitmap))
            }
            Kind::Open | Kind::Challenge | Kind::Accept | Kind::Refuse => Body::Control(rest),
            // Of a sealed session it shows that it may say so.
            Kind::Unknown if rest.len() == LOSS_PROOF_BYTES => Body::Control(rest),
            // As large as packets can be, to find out whether such arrive.
            Kind::Ping | Kind::Pong if !rest.is_empty() => Body::Control(rest),
            _ if rest.is_empty() => Body::Empty,
            _ => return Err(Malformed::Length),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(kind: Kind) -> Header {
        Header {
            kind,
            flags: Flags::RETURN,
            slot: 7,
            session: 0x0201,
            token: 0x0605_0403,
            call: 0x0a09_0807,
            packet: 0x0c0b,
        }
    }

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        let written = header(Kind::RequestForResponse);
        let head = Head::bare(&written);
        let read = Packet::parse(head.bytes(), Checking::Wire).unwrap();
        assert_eq!((read.header, read.body), (written, Body::Empty));
    }

    #[test]
    fn a_range_of_one_and_of_the_most_read_back() {
        for packets in [1, 2, RANGE_PACKETS_MAX] {
            assert_eq!(Flags::range(packets).range_packets(), packets);
        }
    }

    #[test]
    fn what_the_kind_cannot_have_is_refused() {
        let close = [Head::bare(&header(Kind::Close)).bytes(), &[1]].concat();
        assert_eq!(Packet::parse(&close, Checking::Wire), Err(Malformed::Length));
        let credit_return = [Head::bare(&header(Kind::CreditReturn)).bytes(), &[1; 7]].concat();
        assert_eq!(
            Packet::parse(&credit_return, Checking::Wire),
            Err(Malformed::Length)
        );
        let request = Head::bare(&header(Kind::Request));
        assert_eq!(
            Packet::parse(request.bytes(), Checking::Wire),
            Err(Malformed::Short)
        );
        assert_eq!(Packet::parse(&[0; 16], Checking::Wire), Err(Malformed::Kind));
        assert_eq!(Packet::parse(&[1; 15], Checking::Wire), Err(Malformed::Short));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            for checking in [Checking::Wire, Checking::Packets, Checking::Crc32c] {
                if let Ok(packet) = Packet::parse(&bytes, checking) {
                    let again = match packet.body {
                        Body::Data(prefix, _) => Head::of_data(&packet.header, &prefix),
                        Body::Bitmap(bitmap) => Head::of_credit_return(&packet.header, bitmap),
                        _ => Head::bare(&packet.header),
                    };
                    prop_assert_eq!(&again.bytes()[..14], &bytes[..14]);
                }
            }
        }

        #[test]
        fn a_flipped_byte_is_noticed(
            payload in prop::collection::vec(any::<u8>(), 0..100),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let prefix = Prefix { message_bytes: payload.len() as u32, code: 3, held: 0 };
            for checking in [Checking::Packets, Checking::Crc32c] {
                let head = Head::of_data(&header(Kind::Request), &prefix).seal(&payload, checking);
                let mut bytes = [head.bytes(), &payload].concat();
                let read = Packet::parse(&bytes, checking).map(|packet| packet.body);
                prop_assert_eq!(read, Ok(Body::Data(prefix, &payload[..])));
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
                prop_assert!(Packet::parse(&bytes, checking).is_err());
            }
        }

        #[test]
        fn a_crc_notices_words_that_changed_places_and_damage_that_cancels_itself_out(
            payload in prop::collection::vec(any::<u8>(), 4..2000),
            (one, other) in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let prefix = Prefix { message_bytes: payload.len() as u32, code: 3, held: 0 };
            let words = payload.len() / 2;
            let (one, other) = (one.index(words) * 2, other.index(words) * 2);
            let mut swapped = payload.clone();
            swapped.swap(one, other);
            swapped.swap(one + 1, other + 1);
            for checking in [Checking::Packets, Checking::Crc32c] {
                let head = Head::of_data(&header(Kind::Request), &prefix).seal(&payload, checking);
                let bytes = [head.bytes(), &swapped].concat();
                let noticed = Packet::parse(&bytes, checking).is_err();
                prop_assert_eq!(noticed, checking == Checking::Crc32c && swapped != payload);
            }
        }
    }
}
