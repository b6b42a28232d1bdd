//! Receiving in batches: recvmmsg, and taking apart what the kernel has put together.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::AsRawFd;

use provost_packets::Arrival;

use crate::address::{NAME_BYTES, Name};
use crate::options::{UdpStatistics, Use};
use crate::stable::Stable;
use crate::{PACKET_BYTES_MAX, is_lasting};

/// Messages that one system call takes at most.
pub(crate) const RECEIVE_MESSAGES_MAX: usize = 32;
/// Between buffers, so that their beginnings do not share a few sets of the processor's cache.
const STAGGER_BYTES: usize = 192;
/// Room for what the kernel says of a message: its class, and the size of its packets.
const CONTROL_BYTES: usize = 64;
/// ECN's "congestion experienced" (RFC 3168), both bits of it.
const CE: u8 = 0b11;

#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Buffers for a batch of messages, and those messages that have not been handed on yet.
pub(crate) struct ReceiveBatch {
    packet_bytes_max: usize,
    /// Bytes of a message at most. One more than a packet has shows that it is too long.
    message_bytes_max: usize,
    stride: usize,
    bytes: Stable<u8>,
    names: Stable<Name>,
    controls: Stable<Control>,
    /// Each points at a part of `bytes`; each header at its piece, name and control.
    _pieces: Stable<libc::iovec>,
    headers: Stable<libc::mmsghdr>,
    filled: usize,
    next: usize,
    /// The message whose packets are being handed on.
    current: Message,
}

// SAFETY: the pointers within point to memory that the batch owns and that does not move.
unsafe impl Send for ReceiveBatch {}

impl fmt::Debug for ReceiveBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.filled - self.next;
        formatter
            .debug_struct("ReceiveBatch")
            .field("messages", &waiting)
            .finish_non_exhaustive()
    }
}

/// Packets of one message that are still to be handed on.
#[derive(Clone, Copy, Debug)]
struct Message {
    from: SocketAddr,
    congested: bool,
    /// All packets but the last have this size.
    segment_bytes: usize,
    at: usize,
    end: usize,
}

impl Message {
    const NONE: Message = Message {
        from: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0),
        congested: false,
        segment_bytes: 1,
        at: 0,
        end: 0,
    };
}

impl ReceiveBatch {
    pub(crate) fn new(packet_bytes_max: usize, coalescing: Use) -> ReceiveBatch {
        let message_bytes_max = match coalescing {
            Use::IfOffered => PACKET_BYTES_MAX + 1,
            Use::Never => packet_bytes_max + 1,
        };
        let stride = (message_bytes_max + STAGGER_BYTES).next_multiple_of(64);
        let bytes = Stable::filled_with(0, stride * RECEIVE_MESSAGES_MAX);
        let names = Stable::filled_with(Name::EMPTY, RECEIVE_MESSAGES_MAX);
        let controls = Stable::filled_with(Control([0; CONTROL_BYTES]), RECEIVE_MESSAGES_MAX);
        let nowhere = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: message_bytes_max,
        };
        let mut pieces = Stable::filled_with(nowhere, RECEIVE_MESSAGES_MAX);
        for (at, piece) in pieces.items_mut().iter_mut().enumerate() {
            piece.iov_base = bytes.place(at * stride).cast();
        }
        // SAFETY: zeros are a valid value of it: null pointers, and lengths of nothing.
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let mut headers = Stable::filled_with(empty, RECEIVE_MESSAGES_MAX);
        for (at, header) in headers.items_mut().iter_mut().enumerate() {
            header.msg_hdr.msg_name = names.place(at).cast();
            header.msg_hdr.msg_iov = pieces.place(at);
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = controls.place(at).cast();
        }
        ReceiveBatch {
            packet_bytes_max,
            message_bytes_max,
            stride,
            bytes,
            names,
            controls,
            _pieces: pieces,
            headers,
            filled: RECEIVE_MESSAGES_MAX,
            next: RECEIVE_MESSAGES_MAX,
            current: Message::NONE,
        }
    }

    /// Whether there are packets to hand on without a system call.
    pub(crate) fn holds_packets(&self) -> bool {
        self.next < self.filled || self.current.at < self.current.end
    }

    /// Forgets packets that were not handed on.
    pub(crate) fn abandon(&mut self) {
        self.next = self.filled;
        self.current = Message::NONE;
    }

    /// Takes messages from the socket, so many at most, once all of the last batch are handed on, and says whether there may
    /// be more.
    pub(crate) fn fill(
        &mut self,
        socket: &UdpSocket,
        messages_max: usize,
        statistics: &mut UdpStatistics,
    ) -> io::Result<bool> {
        let messages_max = messages_max.min(RECEIVE_MESSAGES_MAX);
        self.renew();
        statistics.receive_calls += 1;
        // SAFETY: the headers point to memory of ours, of the lengths that they say, which nobody else has a reference to.
        let taken = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                self.headers.place(0),
                messages_max as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if let Ok(taken) = usize::try_from(taken) {
            self.filled = taken.min(messages_max);
            return Ok(self.filled == messages_max);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock => Ok(false),
            // It speaks of what was sent; packets may wait behind it.
            io::ErrorKind::ConnectionRefused => {
                statistics.refused += 1;
                Ok(true)
            }
            _ if is_lasting(&error) => Err(error),
            // It speaks of one packet or one peer; the next call will do.
            _ => Ok(false),
        }
    }

    /// Lengths that the last call has overwritten are set again, in one header more than it filled.
    fn renew(&mut self) {
        let used = (self.filled + 1).min(RECEIVE_MESSAGES_MAX);
        for header in &mut self.headers.items_mut()[..used] {
            header.msg_hdr.msg_namelen = NAME_BYTES;
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
            header.msg_hdr.msg_flags = 0;
        }
        (self.filled, self.next) = (0, 0);
    }

    /// The next packet of the batch.
    #[inline]
    pub(crate) fn next(&mut self, statistics: &mut UdpStatistics) -> Option<Arrival<'_, SocketAddr>> {
        let packet = self.advance(statistics)?;
        Some(self.arrival(packet))
    }

    /// The next packet of the batch that came from there; others are passed over.
    #[inline]
    pub(crate) fn next_from(
        &mut self,
        from: SocketAddr,
        statistics: &mut UdpStatistics,
    ) -> Option<Arrival<'_, SocketAddr>> {
        let mut packet = self.advance(statistics)?;
        while self.current.from != from {
            packet = self.advance(statistics)?;
        }
        Some(self.arrival(packet))
    }

    /// A packet of the present message.
    #[inline]
    fn arrival(&self, packet: Range<usize>) -> Arrival<'_, SocketAddr> {
        Arrival {
            from: self.current.from,
            bytes: &self.bytes.items()[packet],
            congested: self.current.congested,
        }
    }

    /// Where the next packet is, which is one of the present message then.
    #[inline]
    fn advance(&mut self, statistics: &mut UdpStatistics) -> Option<Range<usize>> {
        loop {
            while self.current.at >= self.current.end {
                if self.next >= self.filled {
                    return None;
                }
                self.open(statistics);
            }
            let message = &mut self.current;
            let begin = message.at;
            message.at = message.end.min(begin + message.segment_bytes);
            if message.at - begin <= self.packet_bytes_max {
                return Some(begin..message.at);
            }
            statistics.too_long += 1;
        }
    }

    /// Makes the next message the one whose packets are handed on. An empty one has none.
    fn open(&mut self, statistics: &mut UdpStatistics) {
        let at = self.next;
        self.next += 1;
        let header = &self.headers.items()[at];
        let bytes = header.msg_len as usize;
        let flags = header.msg_hdr.msg_flags;
        if flags & libc::MSG_TRUNC != 0 || bytes > self.message_bytes_max {
            statistics.too_long += 1;
            return;
        }
        let told = Told::of(&self.controls.items()[at].0[..header.msg_hdr.msg_controllen.min(CONTROL_BYTES)]);
        let from = self.names.items()[at].address();
        let (Some(from), 0) = (from, flags & libc::MSG_CTRUNC) else {
            statistics.malformed += 1;
            return;
        };
        let begin = at * self.stride;
        self.current = Message {
            from,
            congested: told.congested,
            segment_bytes: told.segment_bytes.unwrap_or(bytes).max(1),
            at: begin,
            end: begin + bytes,
        };
    }
}

/// What the kernel says of a message beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    congested: bool,
    segment_bytes: Option<usize>,
}

/// A control message's header: its length with the header, its level, and its type.
const CONTROL_HEADER_BYTES: usize = size_of::<libc::cmsghdr>();

impl Told {
    /// Reads control messages (`cmsg(3)`); what is not well-formed ends them.
    fn of(mut control: &[u8]) -> Told {
        let mut told = Told::default();
        while let Some((header, _)) = control.split_first_chunk::<CONTROL_HEADER_BYTES>() {
            let (length, rest) = header.split_at(size_of::<usize>());
            let length = usize::from_ne_bytes(length.try_into().unwrap_or_default());
            let word = |at| {
                rest.get(at..at + 4)
                    .and_then(|word| word.try_into().ok())
                    .map(i32::from_ne_bytes)
            };
            let Some(content) = control.get(CONTROL_HEADER_BYTES..length) else {
                break;
            };
            if let (Some(level), Some(kind)) = (word(0), word(4)) {
                told.note(level, kind, content);
            }
            control = control
                .get(length.next_multiple_of(align_of::<libc::cmsghdr>())..)
                .unwrap_or_default();
        }
        told
    }

    fn note(&mut self, level: i32, kind: i32, content: &[u8]) {
        let integer = || content.first_chunk().copied().map(i32::from_ne_bytes);
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                self.congested |= content.first().is_some_and(|class| class & CE == CE);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.congested |= integer().is_some_and(|class| class as u8 & CE == CE);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let bytes = integer().and_then(|bytes| usize::try_from(bytes).ok());
                self.segment_bytes = bytes.filter(|bytes| *bytes > 0);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn control(level: i32, kind: i32, content: &[u8]) -> Vec<u8> {
        let length = CONTROL_HEADER_BYTES + content.len();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(length.next_multiple_of(8), 0);
        bytes
    }

    #[test]
    fn what_the_kernel_tells_is_understood() {
        let mark = control(libc::IPPROTO_IP, libc::IP_TOS, &[3]);
        let size = control(libc::SOL_UDP, libc::UDP_GRO, &1472_i32.to_ne_bytes());
        let told = Told::of(&[mark, size].concat());
        assert_eq!(
            told,
            Told {
                congested: true,
                segment_bytes: Some(1472)
            }
        );
        let capable = control(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &2_i32.to_ne_bytes());
        assert_eq!(Told::of(&capable), Told::default());
        let none = control(libc::SOL_UDP, libc::UDP_GRO, &0_i32.to_ne_bytes());
        assert_eq!(Told::of(&none).segment_bytes, None);
    }

    proptest! {
        #[test]
        fn any_control_bytes_are_read_to_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..CONTROL_BYTES)) {
            let told = Told::of(&bytes);
            prop_assert!(told.segment_bytes != Some(0));
        }

        #[test]
        fn lengths_that_lie_are_survived(length in any::<usize>(), rest in proptest::collection::vec(any::<u8>(), 0..40)) {
            let bytes = [&length.to_ne_bytes()[..], &rest].concat();
            Told::of(&bytes);
        }
    }
}
