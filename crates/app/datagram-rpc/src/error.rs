//! What may go wrong with a call or a session.

use provost_datagram::{CallError, ConnectError};

/// Why a call has no answer, or a session could not be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The protocol could not do it.
    #[error(transparent)]
    Call(#[from] CallError),
    /// No session could be asked for.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The server has no handler for requests of this type.
    #[error("the server has no handler for requests of this type")]
    NoHandler,
    /// As many requests wait for the server's workers as may.
    #[error("too many requests wait for the server's workers; try again later")]
    Overloaded,
    /// The handler panicked in a worker.
    #[error("the server's handler panicked")]
    HandlerPanicked,
    /// This end is shut down.
    #[error("this end of the transport is shut down")]
    ShutDown,
    /// As much waits for the thread of the transport as may.
    #[error("too much waits for the thread of the transport; try again later")]
    MailboxFull,
}

/// Statuses from here on are the library's. Programs have those below.
pub(crate) const STATUS_RESERVED: u16 = 0xfff0;
pub(crate) const STATUS_NO_HANDLER: u16 = 0xffff;
pub(crate) const STATUS_OVERLOADED: u16 = 0xfffe;
pub(crate) const STATUS_PANICKED: u16 = 0xfffd;

/// What a response's status says: the handler's own word, or why none of it was heard.
pub(crate) fn outcome_of(outcome: Result<u16, CallError>) -> Result<u16, RpcError> {
    match outcome? {
        STATUS_NO_HANDLER => Err(RpcError::NoHandler),
        STATUS_OVERLOADED => Err(RpcError::Overloaded),
        STATUS_PANICKED => Err(RpcError::HandlerPanicked),
        status => Ok(status),
    }
}
