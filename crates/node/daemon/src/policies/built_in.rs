//! The kinds that are linked in: the one list of them.

use std::sync::Arc;

use provost_engine::PolicyKind;

/// Each of them once.
pub(super) fn kinds() -> Vec<Arc<dyn PolicyKind>> {
    [provost_policies::kinds(), provost_observers::kinds()].concat()
}
