//! What stands in for a policy that has failed and whose attachment says `on_fault = "deny"`: the calls that it would
//! judge end with UNAVAILABLE.

use std::sync::Arc;

use provost_engine::{
    CallState, Code, Denial, Engine, Filter, FilterState, RestoreError, SavedState, Sieve, SieveParts, Site,
    StepView, Verdict, Watch,
};

/// What it is called among engines.
const KIND: &str = "closed";

/// The engine. It knows the calls that the failed engine knew, as far as their saved form tells, and ends them too.
pub(crate) fn engine(policy: &Arc<str>, site: &Arc<Site>, failed: Option<&SavedState>) -> Box<dyn Engine> {
    let parts = || SieveParts {
        kind: KIND,
        version: 1,
        site: (**site).clone(),
        filter: Closed {
            reason: format!(
                "policy \"{policy}\" has failed on this connection: calls that it judges are refused until it is \
                 set or upgraded"
            ),
        },
    };
    let failed = failed.map(|failed| SavedState {
        kind: KIND.to_owned(),
        ..failed.clone()
    });
    // A state of another form, or a damaged one: then it knows of no call in flight, and ends those to come.
    let sieve = Sieve::start(parts(), failed.as_ref()).unwrap_or_else(|_| Sieve::new(parts()));
    Box::new(sieve)
}

struct Closed {
    reason: String,
}

/// Whatever the failed filter kept of a call.
#[derive(Default)]
struct Whatever;

impl CallState for Whatever {
    fn load(_saved: &[u8]) -> Option<Whatever> {
        Some(Whatever)
    }
}

impl Filter for Closed {
    type Call = Whatever;

    fn watch(&self) -> Watch {
        Watch::ALL
    }

    fn judge(&mut self, _call: &mut Whatever, _step: &mut StepView<'_>) -> Verdict {
        Verdict::Deny(Denial::new(Code::Unavailable, self.reason.clone()))
    }

    fn restore(&mut self, _state: &FilterState) -> Result<(), RestoreError> {
        Ok(())
    }
}
