//! What the demonstration and the programs that it starts tell each other: JSON values, one a line, commands on the
//! program's standard input, events on its standard output.

use serde::{Deserialize, Serialize};

/// What a worker shall do now. It answers with any number of [`Event::Progress`] and then one other event.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    /// Stream the whole data file to the server.
    Load,
    /// Get every entry of the file and compare it with the file.
    Check,
    /// Stream all entries back and compare them with the file.
    Scan,
    /// Keep calling for a while, whatever comes of it, and count.
    CallOn { seconds: f64 },
    /// Call for a while. Figures of the same activity add up from one command to the next.
    Measure(Measure),
}

/// A slice of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measure {
    pub(crate) activity: Activity,
    pub(crate) in_flight: usize,
    pub(crate) seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Activity {
    /// `kv.Kv/Get`.
    Get,
    /// `kv.Kv/Put`.
    Put,
    /// A message to and fro on a bare TCP connection.
    Ping,
}

/// What a program tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Event {
    /// It is ready; at this address, if it listens.
    Ready { address: Option<String> },
    /// So much of the current command is done.
    Progress { done: u64, total: u64 },
    /// Load, check or scan is done.
    Moved(Moved),
    /// The calls of a while.
    Called(Called),
    /// A slice is done.
    Measured(Figures),
    /// It cannot go on.
    Failed { message: String },
}

/// What came of calling for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Called {
    pub(crate) calls: u64,
    /// Calls that ended otherwise than they should.
    pub(crate) failed: u64,
    /// Gets of the secret entry that were denied.
    pub(crate) denied: u64,
    pub(crate) longest_gap_ms: f64,
    pub(crate) seconds: f64,
}

/// What load, check and scan moved.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Moved {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

impl Moved {
    pub(crate) fn entries_per_second(&self) -> f64 {
        self.entries as f64 / self.seconds.max(1e-9)
    }
}

/// All slices of one measurement so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) calls: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) rps: f64,
}
