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
pub(crate) type Pending<A, S> = Slab<Waiting<A, S>>;

/// Things by their place, which is used again. Sessions bound their calls, so there are no more than all of them allow.
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
}

pub(crate) struct Waiting<A, S> {
    /// What the caller called the call.
    pub(crate) tag: u64,
    pub(crate) continuation: Continuation<A, S>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// Keeps something; its place.
    #[inline]
    pub(crate) fn insert(&mut self, one: T) -> u64 {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(one);
        place.into()
    }

    /// What is in this place.
    pub(crate) fn get(&self, place: u64) -> Option<&T> {
        self.places.get(usize::try_from(place).ok()?)?.as_ref()
    }

    /// Gives up what is in this place, once.
    #[inline]
    pub(crate) fn remove(&mut self, place: u64) -> Option<T> {
        let one = self.places.get_mut(usize::try_from(place).ok()?)?.take()?;
        self.free.push(place as u32);
        Some(one)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
