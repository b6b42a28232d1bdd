//! Segments of an app's receive heap: made on the runtime's thread when the heap grows, and announced on the app's
//! control socket before any completion can name them.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use prost::Message;
use provost_frontend::{NewSegment, SegmentMemory, SegmentSource};
use provost_shm::{Access, Mapping, Memfd, PacketSocket, SEALS_READ_ONLY_FOR_OTHERS, ShmError};
use provost_wire::control::{RegionReplaced, Reply, SegmentAdded, reply};

/// Makes segments for one app.
pub(crate) struct AnnouncedSegments {
    socket: PacketSocket,
    telling: Telling,
}

/// Whether the app may be told of segments.
enum Telling {
    AtOnce,
    /// Not before this process has taken over from another one, and shows its completion region.
    Later(VecDeque<(SegmentAdded, Memfd)>),
}

impl AnnouncedSegments {
    /// For the app at the other end of this socket.
    pub(crate) fn new(socket: OwnedFd) -> AnnouncedSegments {
        AnnouncedSegments {
            socket: socket.into(),
            telling: Telling::AtOnce,
        }
    }

    /// The same, for an app that another process still serves: it is told nothing until it is shown a region.
    pub(crate) fn of_successor(socket: OwnedFd) -> AnnouncedSegments {
        AnnouncedSegments {
            socket: socket.into(),
            telling: Telling::Later(VecDeque::new()),
        }
    }

    fn make_sealed(segment: NewSegment) -> Result<SegmentMemory, ShmError> {
        let memfd = Memfd::create("provost-received", segment.bytes)?;
        let mapping = Mapping::new(&memfd, Access::ReadWrite)?;
        memfd.seal(SEALS_READ_ONLY_FOR_OTHERS)?;
        Ok(SegmentMemory { memfd, mapping })
    }

    /// A packet on a socket is ahead of a completion that is published after it. An app that does not read its socket
    /// until it is full is told nothing.
    fn send_notice(&self, body: reply::Body, memfd: &Memfd) -> bool {
        let (id, body) = (0, Some(body));
        let bytes = Reply { id, body }.encode_to_vec();
        self.socket.send(&bytes, &[memfd.as_fd()]).is_ok()
    }
}

impl SegmentSource for AnnouncedSegments {
    fn make(&mut self, segment: NewSegment) -> Option<SegmentMemory> {
        let memory = Self::make_sealed(segment).ok()?;
        let added = SegmentAdded {
            segment: segment.id,
            at: segment.at,
            bytes: segment.bytes,
        };
        let noted = match &mut self.telling {
            Telling::Later(held) => {
                held.push_back((added, memory.memfd.try_clone().ok()?));
                true
            }
            Telling::AtOnce => self.send_notice(reply::Body::SegmentAdded(added), &memory.memfd),
        };
        noted.then_some(memory)
    }

    fn show_region(&mut self, generation: u64, region: &Memfd) -> bool {
        if let Telling::Later(held) = &self.telling {
            let told = held
                .iter()
                .take_while(|(added, memfd)| {
                    self.send_notice(reply::Body::SegmentAdded(added.clone()), memfd)
                })
                .count();
            if let Telling::Later(held) = &mut self.telling {
                held.drain(..told);
                if !held.is_empty() {
                    return false;
                }
            }
        }
        let shown = self.send_notice(reply::Body::RegionReplaced(RegionReplaced { generation }), region);
        if shown {
            self.telling = Telling::AtOnce;
        }
        shown
    }
}
