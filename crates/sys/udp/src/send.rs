//! Sending in batches: packets are put one after the other, so that those of one size to one destination are one
//! message, and all messages are one system call.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::address::Name;
use crate::is_lasting;
use crate::options::{UdpStatistics, Use};
use crate::stable::Stable;

/// Packets that one turn sends at most.
pub(crate) const SEND_PACKETS_MAX: usize = 64;
/// Packets of one message at most: what kernels before 6.2 take (UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: usize = 64;
/// Bytes of one message at most: what IPv4 can say of a datagram before it is cut.
const MESSAGE_BYTES_MAX: usize = 65_507;

/// The one control message: how large each packet of a message is.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct SegmentSize {
    header: libc::cmsghdr,
    bytes: u16,
}

/// What `CMSG_SPACE` is for it.
const SEGMENT_SIZE_BYTES: usize = size_of::<SegmentSize>();

/// Packets of one size, but for the last, to one destination, one after the other.
#[derive(Clone, Copy, Debug)]
struct Run {
    to: SocketAddr,
    begin: usize,
    bytes: usize,
    segment_bytes: usize,
    packets: usize,
}

impl Run {
    /// Whether a packet can become the last of this run: all before it must be of full size, and it no larger.
    fn takes(&self, to: SocketAddr, bytes: usize) -> bool {
        self.to == to
            && bytes > 0
            && bytes <= self.segment_bytes
            && self.bytes == self.segment_bytes * self.packets
            && self.packets < SEGMENTS_MAX
            && self.bytes + bytes <= MESSAGE_BYTES_MAX
    }
}

/// Packets that wait to be sent, in the order in which they came.
pub(crate) struct SendBatch {
    packet_bytes_max: usize,
    segmentation: Use,
    bytes: Stable<u8>,
    runs: Vec<Run>,
    /// Runs that the kernel has taken.
    runs_sent: usize,
    packets: usize,
    bytes_used: usize,
    names: Stable<Name>,
    controls: Stable<SegmentSize>,
    pieces: Stable<libc::iovec>,
    headers: Stable<libc::mmsghdr>,
}

// SAFETY: the pointers within point to memory that the batch owns and that does not move.
unsafe impl Send for SendBatch {}

impl fmt::Debug for SendBatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("SendBatch")
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

impl SendBatch {
    pub(crate) fn new(packet_bytes_max: usize, segmentation: Use) -> SendBatch {
        let control = SegmentSize {
            header: libc::cmsghdr {
                // What `CMSG_LEN` is for it.
                cmsg_len: (size_of::<libc::cmsghdr>() + size_of::<u16>()) as _,
                cmsg_level: libc::SOL_UDP,
                cmsg_type: libc::UDP_SEGMENT,
            },
            bytes: 0,
        };
        let nothing = libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        let names = Stable::filled_with(Name::EMPTY, SEND_PACKETS_MAX);
        let controls = Stable::filled_with(control, SEND_PACKETS_MAX);
        let pieces = Stable::filled_with(nothing, SEND_PACKETS_MAX);
        // SAFETY: zeros are a valid value of it: null pointers, and lengths of nothing.
        let empty: libc::mmsghdr = unsafe { std::mem::zeroed() };
        let mut headers = Stable::filled_with(empty, SEND_PACKETS_MAX);
        for (at, header) in headers.items_mut().iter_mut().enumerate() {
            header.msg_hdr.msg_name = names.place(at).cast();
            header.msg_hdr.msg_iov = pieces.place(at);
            header.msg_hdr.msg_iovlen = 1;
        }
        SendBatch {
            packet_bytes_max,
            segmentation,
            bytes: Stable::filled_with(0, packet_bytes_max * SEND_PACKETS_MAX),
            runs: Vec::with_capacity(SEND_PACKETS_MAX),
            runs_sent: 0,
            packets: 0,
            bytes_used: 0,
            names,
            controls,
            pieces,
            headers,
        }
    }

    /// Packets that there is room for.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        SEND_PACKETS_MAX - self.packets
    }

    /// Takes a packet, if it can.
    #[inline]
    pub(crate) fn push(&mut self, to: SocketAddr, head: &[u8], payload: &[u8]) -> bool {
        let bytes = head.len() + payload.len();
        if bytes > self.packet_bytes_max || self.packets == SEND_PACKETS_MAX {
            return false;
        }
        let begin = self.bytes_used;
        let (first, rest) = self.bytes.items_mut()[begin..begin + bytes].split_at_mut(head.len());
        first.copy_from_slice(head);
        rest.copy_from_slice(payload);
        self.bytes_used += bytes;
        self.packets += 1;
        match self.runs.last_mut() {
            Some(run) if self.segmentation == Use::IfOffered && run.takes(to, bytes) => {
                run.bytes += bytes;
                run.packets += 1;
            }
            _ => self.runs.push(Run {
                to,
                begin,
                bytes,
                segment_bytes: bytes,
                packets: 1,
            }),
        }
        true
    }

    /// Whether packets that are taken next may go many in a message.
    #[inline]
    pub(crate) fn use_segmentation(&mut self, segmentation: Use) {
        self.segmentation = segmentation;
    }

    /// Forgets what was not sent; says how many packets that were.
    #[inline]
    pub(crate) fn abandon(&mut self) -> usize {
        let waiting = self.runs.iter().skip(self.runs_sent);
        let packets = waiting.map(|run| run.packets).sum();
        self.clear();
        packets
    }

    /// Sends what was taken. What the socket has no room for stays.
    #[inline]
    pub(crate) fn send(&mut self, socket: &UdpSocket, statistics: &mut UdpStatistics) -> io::Result<()> {
        let mut refused_at = None;
        while self.runs_sent < self.runs.len() {
            match self.send_some(socket, statistics) {
                Ok(messages) => {
                    let sent = &self.runs[self.runs_sent..][..messages];
                    statistics.packets_sent += sent.iter().map(|run| run.packets as u64).sum::<u64>();
                    self.runs_sent += messages;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // It speaks of what was sent before, and nothing of this was looked at: it is tried once more.
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionRefused
                        && refused_at != Some(self.runs_sent) =>
                {
                    statistics.refused += 1;
                    refused_at = Some(self.runs_sent);
                }
                Err(error) if is_lasting(&error) => return Err(error),
                Err(error) => self.pass_over(&error, statistics),
            }
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.runs.clear();
        (self.runs_sent, self.packets, self.bytes_used) = (0, 0, 0);
    }

    /// The kernel did not take the first message. Its packets are sent one by one if that may help: a device that
    /// cannot compute checksums, or a route whose packets are smaller than ours, takes no message of many. A packet that is
    /// alone is lost, as it might be further on.
    fn pass_over(&mut self, error: &io::Error, statistics: &mut UdpStatistics) {
        let run = self.runs[self.runs_sent];
        let may_help = matches!(
            error.raw_os_error(),
            Some(libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP)
        );
        if run.packets > 1 && may_help {
            statistics.segmentation_refused += 1;
            self.segmentation = Use::Never;
            self.split_all();
        } else {
            statistics.not_sent += run.packets as u64;
            self.runs_sent += 1;
        }
    }

    /// Makes a run of every packet that waits. There are no more of them than runs can be.
    fn split_all(&mut self) {
        let waiting: Vec<Run> = self.runs.drain(self.runs_sent..).collect();
        for run in waiting {
            for packet in 0..run.packets {
                let at = packet * run.segment_bytes;
                let bytes = run.segment_bytes.min(run.bytes - at);
                self.runs.push(Run {
                    begin: run.begin + at,
                    bytes,
                    segment_bytes: bytes,
                    packets: 1,
                    ..run
                });
            }
        }
    }

    fn send_some(&mut self, socket: &UdpSocket, statistics: &mut UdpStatistics) -> io::Result<usize> {
        for at in self.runs_sent..self.runs.len() {
            self.describe(at);
        }
        statistics.send_calls += 1;
        // SAFETY: the headers point to memory of ours, of the lengths that they say.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.headers.place(self.runs_sent),
                (self.runs.len() - self.runs_sent) as libc::c_uint,
                (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
            )
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Fills in the header of run `at`.
    fn describe(&mut self, at: usize) {
        let run = self.runs[at];
        let (name, name_bytes) = Name::of(run.to);
        self.names.items_mut()[at] = name;
        self.pieces.items_mut()[at] = libc::iovec {
            // A run of one empty packet may begin where the memory ends.
            iov_base: self
                .bytes
                .place(run.begin.min(self.bytes.items().len() - 1))
                .cast(),
            iov_len: run.bytes,
        };
        let (control, control_bytes) = if run.packets > 1 {
            // A packet's size is at most 65,507.
            self.controls.items_mut()[at].bytes = run.segment_bytes as u16;
            (self.controls.place(at), SEGMENT_SIZE_BYTES)
        } else {
            (std::ptr::null_mut(), 0)
        };
        let header = &mut self.headers.items_mut()[at].msg_hdr;
        header.msg_namelen = name_bytes;
        header.msg_control = control.cast();
        header.msg_controllen = control_bytes as _;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(sizes: &[(u16, usize)]) -> Vec<(usize, usize)> {
        let mut batch = SendBatch::new(1000, Use::IfOffered);
        for (port, bytes) in sizes {
            assert!(batch.push(([127, 0, 0, 1], *port).into(), &vec![0; *bytes], b""));
        }
        batch.runs.iter().map(|run| (run.packets, run.bytes)).collect()
    }

    #[test]
    fn packets_of_one_size_to_one_destination_are_one_message() {
        assert_eq!(batch(&[(1, 100), (1, 100), (1, 100)]), [(3, 300)]);
        assert_eq!(batch(&[(1, 100), (1, 40), (1, 40)]), [(2, 140), (1, 40)]);
        assert_eq!(batch(&[(1, 100), (1, 101)]), [(1, 100), (1, 101)]);
        assert_eq!(batch(&[(1, 100), (2, 100)]), [(1, 100), (1, 100)]);
        assert_eq!(batch(&[(1, 0), (1, 0), (1, 5)]), [(1, 0), (1, 0), (1, 5)]);
        assert_eq!(batch(&[(1, 5), (1, 0)]), [(1, 5), (1, 0)]);
    }

    #[test]
    fn a_message_that_is_split_keeps_every_packet() {
        let mut batch = SendBatch::new(1000, Use::IfOffered);
        for bytes in [300, 300, 200] {
            batch.push(([127, 0, 0, 1], 9).into(), &vec![1; bytes], b"");
        }
        batch.split_all();
        let runs: Vec<_> = batch.runs.iter().map(|run| (run.begin, run.bytes)).collect();
        assert_eq!(runs, [(0, 300), (300, 300), (600, 200)]);
    }
}
