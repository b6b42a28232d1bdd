//! Calls that have arrived, as a transport gives them to a handler, and their answers.

use std::sync::Arc;

use provost_wire::Code;

use super::codec::{Inbound, Outbound};
use super::stream::StreamEnd;
use crate::call::{error_code, trailers_of};
use crate::metadata::MetadataMap;
use crate::peer::Peer;
use crate::status::Status;

/// A call that has arrived.
pub struct InboundCall {
    /// What the client sends.
    pub requests: Requests,
    /// The metadata that came with it.
    pub metadata: MetadataMap,
    /// When the call must end, in nanoseconds of CLOCK_MONOTONIC; 0 for never.
    pub deadline_ns: u64,
    /// Who calls, if that is known.
    pub peer: Option<Peer>,
    /// Who is told what it came to.
    pub answering: Arc<dyn Answering>,
}

/// What the client of a call sends.
pub enum Requests {
    /// One message, of a unary call.
    One(Inbound),
    /// What arrives at this end, where responses can be sent too.
    Stream(Arc<dyn StreamEnd>),
}

/// Takes the answer to a call.
pub trait Answering: Send + Sync {
    /// The answer, once.
    fn answer(&self, answer: Answer);
}

/// What a call came to. Of a stream it is what comes after all that was sent.
#[derive(Debug)]
pub struct Answer {
    /// Its code.
    pub code: Code,
    /// The metadata block that precedes the message.
    pub metadata: MetadataMap,
    /// The message, if there is one, and the block that follows it.
    pub message: Outbound,
}

impl Answer {
    /// An error.
    #[must_use]
    pub fn error(status: &Status) -> Answer {
        Answer {
            code: error_code(status),
            metadata: MetadataMap::new(),
            message: Outbound::new(trailers_of(status)),
        }
    }
}

impl std::fmt::Debug for InboundCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboundCall")
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}
