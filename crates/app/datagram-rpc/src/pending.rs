//! Continuations of the calls that are on their way.

use provost_datagram::{MsgBuf, SessionId};

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
pub(crate) struct Pending<A, S> {
    places: Vec<Option<Waiting<A, S>>>,
    free: Vec<u32>,
}

pub(crate) struct Waiting<A, S> {
    /// What the caller called the call.
    pub(crate) tag: u64,
    pub(crate) continuation: Continuation<A, S>,
}

impl<A, S> Default for Pending<A, S> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<A, S> Pending<A, S> {
    /// Keeps a continuation. Sessions bound their calls, so there are no more places than all of them allow.
    #[inline]
    pub(crate) fn insert(&mut self, waiting: Waiting<A, S>) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(waiting);
        place.into()
    }

    /// Gives a continuation up, once.
    #[inline]
    pub(crate) fn remove(&mut self, place: u64) -> Option<Waiting<A, S>> {
        let waiting = self.places.get_mut(usize::try_from(place).ok()?)?.take()?;
        self.free.push(place as u32);
        Some(waiting)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
