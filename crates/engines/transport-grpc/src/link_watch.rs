//! Watching several links by one descriptor: an epoll instance is readable while one of its own descriptors is.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

use provost_datapath::Interest;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::config::GrpcTransportConfig;
use crate::engine::LINKS_MAX;
use crate::link::GrpcLink;

/// Places of links that need none: the runtime watches one of the two, and the engine looks at the other now and then.
const UNWATCHED_PLACES: usize = 2;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// See the module's documentation.
pub(crate) struct LinkWatch(OwnedFd);

impl LinkWatch {
    /// One for an engine that may have several links for new calls. Where the system has no descriptor for it, the engine looks at its
    /// links now and then.
    pub(crate) fn of(config: &GrpcTransportConfig) -> Option<LinkWatch> {
        LinkWatch::of_places(config.link_places())
    }

    pub(crate) fn of_places(places: usize) -> Option<LinkWatch> {
        if places <= UNWATCHED_PLACES {
            return None;
        }
        epoll::create(CreateFlags::CLOEXEC).ok().map(LinkWatch)
    }

    /// Watches a link for as long as its socket is open.
    pub(crate) fn add(&self, at: usize, link: &GrpcLink) {
        // By its edges: what is ready and left alone says so once.
        let flags = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(
            &self.0,
            link.carrier.socket(),
            EventData::new_u64(at as u64),
            flags,
        );
        debug_assert!(added.is_ok(), "{added:?}");
    }

    /// Has links look at their sockets at which something has happened.
    pub(crate) fn note_ready(&self, links: &mut [Option<GrpcLink>]) {
        let mut room = [const { MaybeUninit::<Event>::uninit() }; LINKS_MAX];
        let Ok((events, _)) = epoll::wait(&self.0, &mut room, Some(&NOW)) else {
            // What was not told may be anything.
            return links.iter_mut().flatten().for_each(GrpcLink::look);
        };
        for event in events {
            let at = usize::try_from(event.data.u64()).ok();
            if let Some(link) = at.and_then(|at| links.get_mut(at)?.as_mut()) {
                link.look();
            }
        }
    }

    /// What the runtime is to watch.
    pub(crate) fn interest(&self) -> Interest {
        Interest {
            socket: self.0.as_raw_fd(),
            write: false,
        }
    }
}
