//! What a successor is given: whom it has to tell that the connection is over.
//!
//! A link of gRPC saves no state yet. So the calls that are under way end at the successor, as UNAVAILABLE and with the reason, and the
//! app connects anew. All numbers are little-endian.

use std::sync::Arc;

use provost_datapath::{ConnectionEnd, ConnectionSignals, FieldWriter, RestoreError, SavedState, Saver};
use provost_wire::Code;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::KIND;
use crate::call::GrpcCall;
use crate::config::REFUSALS_MAX;
use crate::engine::GrpcTransport;

/// The newest form of the saved state.
const FORM: u32 = 1;
/// What calls are told.
const REASON: &str =
    "the node's service was replaced, and connections to gRPC servers do not go over: call again";

impl GrpcTransport {
    pub(crate) fn saved(&self, _saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        let refused = self.refusals.iter().map(|step| step.call);
        let mut calls: Vec<u64> = self.calls.keys().copied().chain(refused).collect();
        calls.sort_unstable();
        out.count(calls.len());
        calls.into_iter().for_each(|call| out.u64(call));
        SavedState::new(KIND, FORM, out)
    }

    /// The engine in the place of one that was saved: it ends the calls that were under way.
    ///
    /// # Errors
    /// The state is not one of this engine.
    pub fn restore(
        state: &SavedState,
        signals: Arc<ConnectionSignals>,
    ) -> Result<GrpcTransport, RestoreError> {
        let mut fields = state.open(KIND, FORM)?;
        let count = fields.count(CALLS_IN_FLIGHT_MAX + REFUSALS_MAX)?;
        let calls: Result<Vec<u64>, RestoreError> = (0..count).map(|_| fields.u64()).collect();
        fields.end()?;
        signals.set_ended(ConnectionEnd {
            code: Code::Unavailable,
            reason: REASON.to_owned(),
        });
        let mut transport = GrpcTransport::ended(signals);
        for call in calls? {
            transport.calls.insert(call, GrpcCall::new(0, false, false));
            transport.end_call(call, Code::Unavailable, REASON);
        }
        Ok(transport)
    }
}
