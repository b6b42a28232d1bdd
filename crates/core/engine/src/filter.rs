//! Filters: policies that judge one step of a call at a time.

use std::borrow::Cow;

use crate::{Code, EgressEvents, Nanos, Parts, RestoreError, StepView};

/// A policy that looks at the steps of calls and says which may pass. [`crate::FilterEngine`] makes an engine of it.
///
/// A filter sees each step at most once on its way, but that a step which was held, or which a successor of the
/// filter found in the queue, is judged again.
pub trait Filter: Send {
    /// What the filter keeps of each call in flight; `()` for nothing.
    type Call: CallState;

    /// Which steps it wants to see. Others pass without a call of the filter.
    fn watch(&self) -> Watch;

    /// Judges a step before it passes. (A step that gives its call up, [`Parts::CANCEL`], is shown so that it can be
    /// counted; whatever the verdict, it passes, but for [`Verdict::Fault`].)
    fn judge(&mut self, call: &mut Self::Call, step: &mut StepView<'_>) -> Verdict;

    /// A call whose beginning this filter let pass, or held, is over: by its status, because someone gave it up, or by a
    /// denial of a later step. A call whose beginning the filter itself denied is over without another word.
    fn ended(&mut self, _call: Self::Call, _end: &Ended) {}

    /// Steps have left the service, of all calls of the datapath, to whatever methods: how long each was in it, with all
    /// engines. (Only those that are built in are told.)
    fn on_egress(&mut self, _events: &EgressEvents<'_>) {}

    /// Takes back what it kept of a call that ended without another word. For a filter that keeps it elsewhere.
    fn forget(&mut self, _call: Self::Call) {}

    /// Appends the saved form of what it keeps of a call.
    fn save_call(&self, call: &Self::Call, out: &mut Vec<u8>) {
        call.save(out);
    }

    /// Reads what [`Filter::save_call`] appended in this version or another; `None` if it makes no sense. Called after
    /// [`Filter::restore`]. Nothing at all is what a filter leaves that could not be asked any more.
    fn load_call(&mut self, saved: &[u8]) -> Option<Self::Call> {
        Self::Call::load(saved)
    }

    /// What a successor of the filter on this datapath continues from, beside what it keeps of each call.
    fn save(&self) -> FilterState {
        FilterState::default()
    }

    /// Continues from what another version of the filter saved. The default accepts only nothing. (Not called for an
    /// empty state of version 0, [`FilterState::default`]: that is what a filter leaves that had nothing to save, or
    /// that failed and could not be asked.)
    fn restore(&mut self, state: &FilterState) -> Result<(), RestoreError> {
        if state.bytes.is_empty() {
            Ok(())
        } else {
            Err(RestoreError::Damaged {
                kind: "filter",
                reason: format!("{} bytes where none belong", state.bytes.len()),
            })
        }
    }
}

/// What a filter keeps of a call in flight.
pub trait CallState: Default + Send + 'static {
    /// Appends its saved form.
    fn save(&self, _out: &mut Vec<u8>) {}

    /// Reads what any version up to this one has saved; `None` if it makes no sense.
    fn load(saved: &[u8]) -> Option<Self> {
        saved.is_empty().then(Self::default)
    }
}

impl CallState for () {}

/// Saved state of a filter on one datapath. Version and form are each kind's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterState {
    /// Version of the form of `bytes`.
    pub version: u32,
    /// The state.
    pub bytes: Vec<u8>,
}

/// Which steps a filter wants to judge: those with any of these parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Of those from the client to the server.
    pub requests: Parts,
    /// Of those from the server to the client.
    pub responses: Parts,
    /// Whether [`Filter::ended`] is to be called, and calls to be kept in mind at all.
    pub calls: bool,
}

impl Watch {
    /// The beginnings of calls alone; nothing is kept of them. The cheapest.
    pub const BEGINNINGS: Watch = Watch {
        requests: Parts::BEGIN,
        responses: Parts::NONE,
        calls: false,
    };
    /// Everything.
    pub const ALL: Watch = Watch {
        requests: Parts::ALL,
        responses: Parts::ALL,
        calls: true,
    };
}

/// Which way a step goes, whichever side the app is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    Request,
    /// From the server to the client.
    Response,
}

/// What a filter says of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It goes on.
    Pass,
    /// Its call ends here: both ends learn of it as far as they know the call.
    Deny(Denial),
    /// It waits, and all later steps of its call behind it, and is judged again at this time. Its call may end before:
    /// by its deadline, or because someone gives it up.
    Hold {
        /// When, on the clock of [`StepView::now`].
        until: Nanos,
    },
    /// The filter itself has failed. The step is not judged: it stays for the engine that takes this one's place.
    Fault(Cow<'static, str>),
}

/// Why a call is not let through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The call's status.
    pub code: Code,
    /// Its message, for people at the client.
    pub reason: Cow<'static, str>,
    /// What the client is told about trying again (gRPC A6, `grpc-retry-pushback-ms`): after so many milliseconds, or,
    /// negative, not at all.
    pub retry_pushback_ms: Option<i64>,
}

impl Denial {
    /// A denial that says nothing of trying again.
    #[must_use]
    pub fn new(code: Code, reason: impl Into<Cow<'static, str>>) -> Denial {
        Denial {
            code,
            reason: reason.into(),
            retry_pushback_ms: None,
        }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its status.
    pub code: Code,
    /// When.
    pub at: Nanos,
    /// Whether the step that ended it was a cancellation, by whichever side or service.
    pub cancelled: bool,
    /// Which way that step went.
    pub direction: Direction,
}
