//! The connections to gRPC servers, for those who ask what has become of their calls (gRPC's channelz).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use provost_datapath::ConnectionSignals;
use provost_grpc::CountedCalls;
use provost_transport_grpc::{LinkList, LinkSnapshot};

use crate::connection_ends::ConnectionEnds;

/// What is known of a connection of the node beside its specification.
struct ServerChannel {
    /// By which it is told apart from others.
    signals: Weak<ConnectionSignals>,
    /// The connections of HTTP/2 that it has.
    links: Arc<LinkList>,
}

/// A connection of HTTP/2 to a gRPC server.
pub(crate) struct ServerLink {
    /// No other one of the process has it.
    pub(crate) number: u64,
    pub(crate) counted: CountedCalls,
    pub(crate) ends: ConnectionEnds,
}

static CHANNELS: Mutex<Vec<ServerChannel>> = Mutex::new(Vec::new());

/// Notes a connection whose engine begins. Those that are gone are forgotten.
pub(super) fn note(signals: &Arc<ConnectionSignals>, links: &Arc<LinkList>) {
    let mut channels = channels();
    // Looked through when it would grow otherwise.
    if channels.len() == channels.capacity() {
        channels.retain(|channel| channel.signals.strong_count() > 0);
    }
    channels.push(ServerChannel {
        signals: Arc::downgrade(signals),
        links: Arc::clone(links),
    });
}

/// What was counted on all connections of HTTP/2 of one of the node's, and those that there are.
pub(crate) fn find(signals: &Arc<ConnectionSignals>) -> Option<(CountedCalls, Vec<ServerLink>)> {
    let channels = channels();
    let is_it = |channel: &&ServerChannel| std::ptr::eq(channel.signals.as_ptr(), Arc::as_ptr(signals));
    let channel = channels.iter().find(is_it)?;
    let now = channel.links.now();
    Some((now.counted, now.links.into_iter().map(ServerLink::of).collect()))
}

impl ServerLink {
    fn of(link: LinkSnapshot) -> ServerLink {
        ServerLink {
            number: link.number,
            counted: link.counted,
            ends: ConnectionEnds::told(link.local, link.remote),
        }
    }
}

fn channels() -> MutexGuard<'static, Vec<ServerChannel>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}
