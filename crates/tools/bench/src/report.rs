//! What passes between the bench and its client processes: the load to make. (What it came to is a `Report`.)

pub(crate) use provost_figures::Report;
use serde::{Deserialize, Serialize};

/// The load that a client makes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Load {
    /// Payload of a request, in bytes.
    pub(crate) size_bytes: usize,
    /// Calls in flight on each connection.
    pub(crate) calls_in_flight: usize,
    /// A caller begins its calls so far apart at least, in microseconds. Only one caller of a client can, as its thread
    /// sleeps.
    #[serde(default)]
    pub(crate) interval_us: u64,
    /// Connections, each with a client thread of its own.
    pub(crate) connections: usize,
    /// How long load runs before it is measured.
    pub(crate) warmup_seconds: f64,
    /// How long it is measured.
    pub(crate) seconds: f64,
    /// Processes whose CPU time counts, besides the client itself.
    pub(crate) watched: Vec<Watched>,
    /// Cores that everything runs on.
    pub(crate) cores: Vec<usize>,
    #[serde(default)]
    pub(crate) traffic: Traffic,
}

/// What a client calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Traffic {
    /// `Call`: a payload and nothing else.
    #[default]
    Plain,
    /// `Guarded`: a user and a payload. One call in [`BLOCKED_EVERY`] is of a blocked user.
    Guarded(BlockedUser),
    /// As [`Traffic::Plain`], of a service of its own.
    Bulk,
    /// Of that service, small requests whose answers have the payload.
    BulkAnswers,
}

/// What becomes of a blocked user's calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum BlockedUser {
    Passes,
    /// `PERMISSION_DENIED`.
    IsDenied,
}

/// 99 % of the calls are valid, as in mRPC's figure 6.
pub(crate) const BLOCKED_EVERY: u64 = 100;
/// The user whose calls are blocked, and the one whose calls are not; of the same length.
pub(crate) const USER_BLOCKED: &str = "user-blocked-000";
pub(crate) const USER_ALLOWED: &str = "user-allowed-000";

impl Traffic {
    /// The user of the n-th call, and whether it is expected to be denied.
    pub(crate) fn user(self, call: u64) -> (&'static str, Expected) {
        match self {
            Traffic::Guarded(blocked) if call % BLOCKED_EVERY == BLOCKED_EVERY - 1 => {
                let expected = match blocked {
                    BlockedUser::IsDenied => Expected::Denied,
                    BlockedUser::Passes => Expected::Answered,
                };
                (USER_BLOCKED, expected)
            }
            _ => (USER_ALLOWED, Expected::Answered),
        }
    }
}

/// How a call shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Answered,
    /// With `PERMISSION_DENIED`.
    Denied,
}

/// A process of the setup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) pid: u32,
}
