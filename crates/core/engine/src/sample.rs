//! Sampled calls: what a policy that taps shows to people, and what a dry run of another policy is fed with.

use std::sync::Arc;

use provost_datapath::BodyForm;

use crate::{Code, DatapathContext, Direction, Nanos, Parts};

/// Where sampled calls come from. All of it is for the control plane; nothing here waits for the data path.
pub trait SampleSource: Send + Sync {
    /// The calls that were sampled at or after a position, oldest first, at most `samples_max`. A reader begins at
    /// [`SampleSource::next`] for what is to come, or at 0 for what is kept, and asks again from where the last batch
    /// ended. Any number of readers may do so.
    fn read(&self, from: u64, samples_max: usize) -> SampleBatch;

    /// The position of the next sample.
    fn next(&self) -> u64;
}

/// Some sampled calls.
#[derive(Clone, Debug, Default)]
pub struct SampleBatch {
    /// Oldest first.
    pub samples: Vec<Arc<Sample>>,
    /// Where to read on.
    pub next: u64,
    /// Samples from the position asked for that are no longer kept.
    pub missed: u64,
}

/// A call that was sampled. `json` may be shown; the rest is the call as it was, and stays within the node.
#[derive(Debug)]
pub struct Sample {
    /// Its position.
    pub number: u64,
    /// The policy that sampled it, by the name under which it was attached.
    pub policy: Arc<str>,
    /// The datapath.
    pub datapath_context: Arc<DatapathContext>,
    /// Which call of the datapath.
    pub call: u64,
    /// Index of its method in the service.
    pub method: u16,
    /// When its beginning reached the policy, in nanoseconds since 1970.
    pub began_unix_ns: u64,
    /// How long it took from there to its end.
    pub duration_ns: Nanos,
    /// How it ended.
    pub status: Code,
    /// Its first steps.
    pub steps: Vec<SampledStep>,
    /// Steps with messages beyond those.
    pub messages_left_out: u64,
    /// The call as one JSON object on one line, with what is to be redacted redacted.
    pub json: String,
}

/// A step of a sampled call, as it was.
#[derive(Clone, Debug)]
pub struct SampledStep {
    /// Which way it went.
    pub direction: Direction,
    /// Its parts.
    pub parts: Parts,
    /// Its status, of one that ends the call.
    pub status: Code,
    /// When it came, after the call's beginning.
    pub at_ns: Nanos,
    /// When the call must have ended, from its beginning; 0 for never. (Of a step that begins a call.)
    pub timeout_ns: Nanos,
    /// Its metadata block.
    pub metadata: Vec<u8>,
    /// Its message in its form, as far as it was kept.
    pub message: Vec<u8>,
    /// In which form the message passed.
    pub form: BodyForm,
    /// Length of the whole message.
    pub message_bytes: u32,
    /// What the references of a native message count from: 0 for its first byte, else the place of that byte in a window.
    pub window_at: u32,
}

impl SampledStep {
    /// Whether the whole message was kept.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.message.len() == self.message_bytes as usize
    }
}
