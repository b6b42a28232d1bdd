//! The connections to gRPC servers, for those who ask what has become of their calls (gRPC's channelz).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use provost_datapath::ConnectionSignals;
use provost_grpc::{CallCounts, CountedCalls};

use crate::connection_ends::ConnectionEnds;

/// What is known of a connection beside its specification.
struct ServerChannel {
    /// By which it is told apart from others.
    signals: Weak<ConnectionSignals>,
    counts: Arc<CallCounts>,
    ends: ConnectionEnds,
}

static CHANNELS: Mutex<Vec<ServerChannel>> = Mutex::new(Vec::new());

/// Notes a connection whose engine begins. Those that are gone are forgotten.
pub(super) fn note(signals: &Arc<ConnectionSignals>, counts: &Arc<CallCounts>, ends: ConnectionEnds) {
    let mut channels = channels();
    // Looked through when it would grow otherwise.
    if channels.len() == channels.capacity() {
        channels.retain(|channel| channel.signals.strong_count() > 0);
    }
    channels.push(ServerChannel {
        signals: Arc::downgrade(signals),
        counts: Arc::clone(counts),
        ends,
    });
}

/// What was counted on a connection, and between which addresses it is.
pub(crate) fn find(signals: &Arc<ConnectionSignals>) -> Option<(CountedCalls, ConnectionEnds)> {
    let channels = channels();
    let is_it = |channel: &&ServerChannel| std::ptr::eq(channel.signals.as_ptr(), Arc::as_ptr(signals));
    let channel = channels.iter().find(is_it)?;
    Some((channel.counts.now(), channel.ends.clone()))
}

fn channels() -> MutexGuard<'static, Vec<ServerChannel>> {
    CHANNELS.lock().unwrap_or_else(PoisonError::into_inner)
}
