//! Segments of an app's receive heap: made on the runtime's thread when the heap grows, and announced on the app's
//! control socket before any completion can name them.

use std::os::fd::{AsFd, OwnedFd};

use prost::Message;
use provost_frontend::{NewSegment, SegmentSource};
use provost_shm::{Access, Mapping, Memfd, PacketSocket, SEALS_READ_ONLY_FOR_OTHERS, ShmError};
use provost_wire::control::{Reply, SegmentAdded, reply};

/// Makes segments for one app.
pub(crate) struct AnnouncedSegments {
    socket: PacketSocket,
}

impl AnnouncedSegments {
    /// For the app at the other end of this socket.
    pub(crate) fn new(socket: OwnedFd) -> AnnouncedSegments {
        AnnouncedSegments {
            socket: socket.into(),
        }
    }

    fn make_sealed(segment: NewSegment) -> Result<(Memfd, Mapping), ShmError> {
        let memfd = Memfd::create("provost-received", segment.bytes)?;
        let mapping = Mapping::new(&memfd, Access::ReadWrite)?;
        memfd.seal(SEALS_READ_ONLY_FOR_OTHERS)?;
        Ok((memfd, mapping))
    }
}

impl SegmentSource for AnnouncedSegments {
    fn make(&mut self, segment: NewSegment) -> Option<Mapping> {
        let (memfd, mapping) = Self::make_sealed(segment).ok()?;
        let announcement = Reply {
            id: 0,
            body: Some(reply::Body::SegmentAdded(SegmentAdded {
                segment: segment.id,
                at: segment.at,
                bytes: segment.bytes,
            })),
        };
        // A packet on a socket is ahead of a completion that is published after it. An app that does not read its
        // socket until it is full has no new segment.
        self.socket
            .send(&announcement.encode_to_vec(), &[memfd.as_fd()])
            .ok()?;
        Some(mapping)
    }
}
