//! What stands in for a policy that has failed and whose attachment says `on_fault = "deny"`: the calls that it would
//! judge end with UNAVAILABLE.

use std::sync::Arc;

use provost_datapath::EngineStart;
use provost_engine::{
    CallState, Code, DatapathContext, Denial, Engine, Filter, FilterEngine, FilterEngineParts, FilterState,
    RestoreError, SavedState, StepView, Verdict, Watch,
};

/// What it is called among engines.
const KIND: &str = "closed";

/// Starts the engine in the place of one that has failed.
pub(crate) fn start(policy: &Arc<str>, datapath_context: &Arc<DatapathContext>) -> EngineStart {
    let (policy, datapath_context) = (Arc::clone(policy), Arc::clone(datapath_context));
    Box::new(move |predecessor| Ok(engine(&policy, &datapath_context, predecessor.saved)))
}

/// The engine. It knows the calls that the failed engine knew, as far as their saved form tells, and ends them too.
fn engine(
    policy: &Arc<str>,
    datapath_context: &Arc<DatapathContext>,
    failed: Option<&SavedState>,
) -> Box<dyn Engine> {
    let parts = || FilterEngineParts {
        kind: KIND,
        version: 1,
        datapath_context: (**datapath_context).clone(),
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
    let filter_engine =
        FilterEngine::start(parts(), failed.as_ref()).unwrap_or_else(|_| FilterEngine::new(parts()));
    Box::new(filter_engine)
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
