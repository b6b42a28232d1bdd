//! Continuations of the calls that are on their way.

use provost_datagram::{MsgBuf, SessionId};
use slab::Slab;

use crate::context::Context;
use crate::error::RpcError;

/// The end of a call. Both buffers are the program's again.
#[derive(Debug)]
pub struct Completion {
    /// The session it was made on.
    pub session: SessionId,
    /// What the caller called it.
    pub tag: u64,
    /// The status that the handler gave, or why there is none.
    pub outcome: Result<u16, RpcError>,
    /// The request, as it was handed in.
    pub request: MsgBuf,
    /// The response, where there is one.
    pub response: MsgBuf,
}

/// What goes on when a call has ended. Boxing one that captures nothing takes no memory.
pub(crate) type Continuation<A, S> = Box<dyn FnOnce(&mut S, &mut Context<'_, A, S>, Completion) + Send>;

/// Continuations by place. A place's number goes out as the call's tag.
pub(crate) type Pending<A, S> = Slab<Waiting<A, S>>;

pub(crate) struct Waiting<A, S> {
    /// What the caller called the call.
    pub(crate) tag: u64,
    pub(crate) continuation: Continuation<A, S>,
}

/// Gives up what is in the place that a call's tag names, once.
pub(crate) fn take<T>(slab: &mut Slab<T>, tag: u64) -> Option<T> {
    slab.try_remove(usize::try_from(tag).ok()?)
}
