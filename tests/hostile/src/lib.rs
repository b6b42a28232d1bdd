//! An application that attacks the service it is attached to.
//!
//! It speaks to real services as a raw app, without the app library: random bytes in all that it can write, calls
//! that are valid but for one thing, messages that change while they are read, rings that lie, floods, control
//! packets that make no sense, values that change while an access policy reads them, and a server that breaks every
//! rule. Beside it, a good client calls a good server.
//!
//! [`remote`] attacks without being an app: over TCP, within TLS, and by datagrams.
//!
//! Afterwards ([`campaign`]) the services must run, idle, and have let go of everything; the good client must not have
//! noticed; and nothing that it sent may ever have been in an attacker's memory. A failure prints the seed that
//! determines what the attackers did:
//!
//! ```text
//! cargo run -p provost-hostile -- --seed 7 --seconds 60 --only race
//! ```
#![forbid(unsafe_code)]

pub mod attacks;
pub mod campaign;
pub mod collusion;
pub mod guard;
pub mod message;
pub mod oracle;
pub mod peak;
pub mod random;
pub mod raw;
pub mod remote;
pub mod report;
pub mod scene;
pub mod schema;
pub mod server;
pub mod victim;

/// Why a campaign cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    #[must_use]
    pub fn new(reason: impl Into<String>) -> Failure {
        Failure(reason.into())
    }
}
