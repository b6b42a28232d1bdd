//! [`Context`]: what handlers and continuations can ask for.

use std::collections::{HashMap, HashSet};

use provost_datagram::{Address, Call, CallError, MsgBuf, Payload, RequestHandle, SessionId};

use crate::buffers::{Buffers, HOMECOMING_MAX, Origin};
use crate::carrier::CarrierRef;
use crate::error::{RpcError, STATUS_RESERVED};
use crate::handlers::OwnedRequest;
use crate::pending::{Completion, Pending, Waiting, take};

/// A call or a response that was not taken. Its continuation will not run.
#[derive(Debug)]
pub struct Refused<B> {
    /// Why.
    pub error: RpcError,
    /// What was to be sent, with its buffers.
    pub call: B,
}

/// What handlers and continuations can ask for: calls, answers, sessions, buffers.
pub struct Context<'c, A, S> {
    pub(crate) carrier: CarrierRef<'c, A>,
    pub(crate) tables: &'c mut Tables<A, S>,
    pub(crate) now_ns: u64,
}

pub(crate) type OnConnected<A, S> =
    Box<dyn FnOnce(&mut S, &mut Context<'_, A, S>, Result<SessionId, RpcError>) + Send>;

/// What an [`Rpc`](crate::Rpc) knows beside its endpoint.
pub(crate) struct Tables<A, S> {
    pub(crate) pending: Pending<A, S>,
    pub(crate) buffers: Buffers,
    pub(crate) sessions: HashSet<SessionId>,
    pub(crate) connecting: HashMap<SessionId, OnConnected<A, S>>,
    pub(crate) stage: Stage,
}

/// Whether new calls are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Open,
    ShutDown,
}

impl<A, S> std::fmt::Debug for Context<'_, A, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("now_ns", &self.now_ns)
            .field("calls_pending", &self.tables.pending.len())
            .finish_non_exhaustive()
    }
}

impl<A: Address, S> Context<'_, A, S> {
    /// The time of this turn of the event loop, in nanoseconds since its start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// An empty message buffer for at least so many bytes.
    #[must_use]
    pub fn buffer(&mut self, bytes: usize) -> MsgBuf {
        self.tables.buffers.take(bytes)
    }

    /// Gives a message buffer back for the next use.
    pub fn recycle(&mut self, buffer: MsgBuf) {
        self.tables.buffers.keep(buffer);
    }

    /// A call with buffers of its own: this request, and room for so long a response.
    #[must_use]
    pub fn call_of(&mut self, request_type: u16, request: &[u8], response_bytes_max: usize) -> Call {
        let mut buffer = self.buffer(request.len());
        let fitted = buffer.fill(request);
        debug_assert!(fitted, "the buffer was made for it");
        Call {
            method: request_type,
            tag: 0,
            request: buffer,
            response: self.buffer(response_bytes_max),
        }
    }

    /// The bytes of a request, to keep.
    pub(crate) fn own(&mut self, payload: Payload<'_>) -> OwnedRequest {
        let buffers = &mut self.tables.buffers;
        let (buffer, origin) = match payload {
            Payload::Owned(buffer) if buffers.away < HOMECOMING_MAX => {
                buffers.away += 1;
                (buffer, Origin::Endpoint)
            }
            payload => {
                let mut copy = buffers.take(payload.len());
                let fitted = copy.fill(&payload);
                debug_assert!(fitted, "the buffer was made for it");
                if let Payload::Owned(buffer) = payload {
                    self.carrier.recycle(buffer);
                }
                (copy, Origin::Buffers)
            }
        };
        OwnedRequest {
            buffer,
            origin,
            home: buffers.home.clone(),
        }
    }

    /// Asks for a session with whoever is at this address. Calls can be made on it at once; they wait for it.
    ///
    /// # Errors
    /// If this end has no room for another session, or is shut down.
    pub fn connect(&mut self, to: A) -> Result<SessionId, RpcError> {
        if self.tables.stage == Stage::ShutDown {
            return Err(RpcError::ShutDown);
        }
        let session = self.carrier.connect(self.now_ns, to)?;
        self.tables.sessions.insert(session);
        Ok(session)
    }

    /// Ends a session that this end opened, when the calls that were made on it have ended.
    pub fn disconnect(&mut self, session: SessionId) {
        self.carrier.disconnect(self.now_ns, session);
    }

    /// Ends a session at once. Continuations of its calls run with an error.
    pub fn reset(&mut self, session: SessionId) {
        self.carrier.reset(self.now_ns, session);
    }

    /// Makes a call. Its continuation runs exactly once, in the event loop, and gets both buffers.
    ///
    /// The call's tag is the program's: a continuation that captures nothing, and finds what it needs in the state by
    /// the tag, takes no memory.
    ///
    /// # Errors
    /// If it cannot be taken: the buffers come back, and the continuation does not run.
    #[inline]
    pub fn enqueue_request(
        &mut self,
        session: SessionId,
        call: Call,
        continuation: impl FnOnce(&mut S, &mut Context<'_, A, S>, Completion) + Send + 'static,
    ) -> Result<(), Box<Refused<Call>>> {
        if self.tables.stage == Stage::ShutDown {
            let error = RpcError::ShutDown;
            return Err(Box::new(Refused { error, call }));
        }
        let tag = call.tag;
        let continuation = Box::new(continuation);
        let place = self.tables.pending.insert(Waiting { tag, continuation });
        let call = Call {
            tag: place as u64,
            ..call
        };
        self.carrier
            .call(self.now_ns, session, call)
            .map_err(|refused| self.take_back(tag, *refused))
    }

    #[cold]
    fn take_back(&mut self, tag: u64, refused: provost_datagram::CallRefused) -> Box<Refused<Call>> {
        take(&mut self.tables.pending, refused.call.tag);
        Box::new(Refused {
            error: refused.error.into(),
            call: Call { tag, ..refused.call },
        })
    }

    /// Answers a request with these bytes. A status of 0xfff0 or more is the library's own; as one it is sent as 0xffef.
    ///
    /// # Errors
    /// If the request waits no longer: its session is over, or it was answered before; or if it is too large.
    #[inline]
    pub fn respond(&mut self, handle: RequestHandle, status: u16, response: &[u8]) -> Result<(), RpcError> {
        self.answer(handle, status.min(STATUS_RESERVED - 1), response)
    }

    #[inline]
    pub(crate) fn answer(
        &mut self,
        handle: RequestHandle,
        status: u16,
        response: &[u8],
    ) -> Result<(), RpcError> {
        match self.carrier.respond_inline(self.now_ns, handle, status, response) {
            Ok(()) => Ok(()),
            Err(CallError::ResponseTooLarge) => {
                let mut buffer = self.buffer(response.len());
                let fitted = buffer.fill(response);
                debug_assert!(fitted, "the buffer was made for it");
                self.respond_buffer(handle, status, buffer)
                    .map_err(|refused| refused.error)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a request with a buffer, uncopied. The buffer is recycled when the client needs it no longer.
    ///
    /// # Errors
    /// As [`Context::respond`]; the buffer comes back.
    pub fn respond_buffer(
        &mut self,
        handle: RequestHandle,
        status: u16,
        response: MsgBuf,
    ) -> Result<(), Box<Refused<MsgBuf>>> {
        self.carrier
            .respond(self.now_ns, handle, status, response)
            .map_err(|refused| {
                let error = refused.error.into();
                Box::new(Refused {
                    error,
                    call: refused.response,
                })
            })
    }

    /// Bytes of a message that one packet can carry.
    #[must_use]
    pub fn packet_payload_bytes(&self) -> usize {
        self.carrier.packet_payload_bytes()
    }

    /// Bytes of the largest request of a session that this end has opened.
    pub(crate) fn request_bytes_max(&self, session: SessionId) -> usize {
        self.carrier.request_bytes_max(session)
    }

    /// Bytes of the largest response, where there is such a bound.
    pub(crate) fn response_bytes_max(&self) -> usize {
        self.carrier.response_bytes_max()
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn calls_pending(&self) -> usize {
        self.tables.pending.len()
    }
}
