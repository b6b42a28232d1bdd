//! What a test and the agent that it drives tell each other: JSON values, one a line.
//!
//! An agent is a client process. A test gives it any number of asks, which it carries out at the same time; the answers
//! bear the ask's ticket. An [`Answer::At`] says that a call has come to the place where the test wanted it: there it
//! stays, so that the test can kill whom it likes.

use serde::{Deserialize, Serialize};

/// An ask with its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct AskLine {
    /// Chosen by the test, not 0.
    pub ticket: u64,
    pub ask: Ask,
}

/// An answer with its ask's number; 0 for [`Answer::Ready`].
#[derive(Debug, Serialize, Deserialize)]
pub struct AnswerLine {
    pub ticket: u64,
    /// What came of it.
    pub answer: Answer,
}

/// What an agent can do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Echo calls, `in_flight` at a time; the first failure ends them.
    Echo(Echo),
    /// Echo over a client built from a schema that differs from the server's.
    EchoAs(OtherSchema),
    /// The processes of the servers that so many connections of a client with this schema lead to, as initial metadata.
    Servers {
        schema: ClientSchema,
        connections: usize,
    },
    /// An echo call by a client of its own that connects under this name.
    EchoAt(String),
    /// Builds a request, and then does nothing with it: ends `At("built")`.
    BuildOnly {
        /// Size of its payload.
        bytes: usize,
    },
    /// A call whose handler waits.
    Hold(Hold),
    /// So many calls at once whose handlers wait.
    HoldMany { calls: usize, hold: Hold },
    /// A call that ends with this status.
    Fail(StatusParts),
    /// A call with metadata, which come back as initial and trailing metadata.
    Mirror(Vec<Metadatum>),
    /// What the server counted under a key.
    Counts { key: String },
    /// A stream of responses.
    Pour(Pour),
    /// A stream of requests.
    Fill(Fill),
    /// A stream in both directions; each message waits for the one before to come back.
    Chat { messages: u32, bytes: usize },
    /// A message that nests so deep.
    Dig { levels: u32 },
    /// Echo calls whose replies the agent holds on to.
    Keep { calls: usize, bytes: usize },
    /// Opens so many connections of its own, makes a call over each, and keeps them all open.
    Clients { clients: usize },
    /// Drops all that it holds on to.
    LetGo,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Echo {
    /// Size of the payload.
    pub bytes: usize,
    /// How many calls in all.
    pub calls: usize,
    /// How many at a time.
    pub in_flight: usize,
    /// Time limit of each.
    pub timeout_ms: Option<u64>,
    /// What a call does while there is no connection.
    pub unconnected: Unconnected,
}

/// What a call does while there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unconnected {
    Fail,
    Wait,
}

impl Default for Echo {
    fn default() -> Echo {
        Echo {
            bytes: 64,
            calls: 1,
            in_flight: 1,
            timeout_ms: None,
            unconnected: Unconnected::Fail,
        }
    }
}

/// A schema that is not the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OtherSchema {
    /// Fields and methods were added and moved.
    Compatible,
    /// A field has another type.
    Incompatible,
    /// There is one method more, which is called.
    Larger,
}

/// The schema by which an agent calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientSchema {
    /// That of [`Server`](crate::Server)s.
    Usual,
    /// That of servers with fields and methods that were added and moved.
    Compatible,
}

impl Ask {
    /// A call whose handler outlives every test, counted under `hold`.
    pub fn endless_hold() -> Ask {
        Ask::Hold(Hold {
            key: "hold".to_owned(),
            milliseconds: 600_000,
            ..Hold::default()
        })
    }
}

/// A call whose handler waits.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Hold {
    /// What the server counts it under.
    pub key: String,
    /// How long the handler waits.
    pub milliseconds: u32,
    /// Before that it waits until so many handlers have begun under its key.
    #[serde(default)]
    pub until_begun: u64,
    /// Time limit of the call.
    pub timeout_ms: Option<u64>,
    /// When the agent drops the call, if at all.
    pub cancel_after_ms: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusParts {
    /// Its code as a number.
    pub code: u32,
    pub message: String,
    pub details: Vec<u8>,
}

/// A pair of metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadatum {
    pub key: String,
    pub value: Vec<u8>,
}

/// A stream of responses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pour {
    /// What the server counts it under.
    pub key: String,
    pub messages: u32,
    pub bytes: u32,
    /// After so many messages the server pauses before each, if set.
    pub pause: Option<Pause>,
    /// How the agent reads.
    pub reading: Reading,
    /// Time limit of the call.
    pub timeout_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Pause {
    /// Messages without a pause.
    pub after: u32,
    /// How long each pause is.
    pub milliseconds: u32,
}

/// How an agent reads a stream.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub enum Reading {
    /// As fast as it can.
    #[default]
    Fast,
    /// So many messages; then it says `At("reading")` and goes on when the next comes.
    Telling(u32),
    /// So many messages; then it says `At("stopped")` and reads no more, but keeps the stream.
    Stopping(u32),
    /// So many messages; then it drops the stream.
    Dropping(u32),
    /// All, with a pause of so many milliseconds before each.
    Slow(u32),
}

/// A stream of requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Fill {
    pub messages: u32,
    pub bytes: usize,
    /// After so many messages the agent says `At("filling")` and sends no more, but keeps the stream.
    pub stop_after: Option<u32>,
    /// Time limit of the call.
    pub timeout_ms: Option<u64>,
}

/// What an agent tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    Ready,
    /// A call has come to this place, and stays there.
    At(String),
    Done(Done),
    /// A call failed, or the agent cannot do what was asked.
    Failed(StatusParts),
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// Calls, or messages of a stream.
    pub count: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// How long it took.
    pub elapsed_ms: u64,
    /// How long the slowest call of an [`Ask::Echo`] took.
    pub slowest_us: u64,
    /// Calls that the server began, under the key asked for.
    pub begun: u64,
    /// Calls that the server saw cancelled.
    pub cancelled: u64,
    /// Calls that the server finished.
    pub finished: u64,
    /// What was left of the deadline when the handler began.
    pub deadline_ms: u64,
    /// Initial metadata that came back.
    pub initial: Vec<Metadatum>,
    /// Trailing metadata that came back.
    pub trailing: Vec<Metadatum>,
}
