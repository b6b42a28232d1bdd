//! What the control plane does about engines that have failed.

use std::rc::Rc;

use crate::node::Shared;
use crate::runtime::EngineFailed;

/// Puts down what a runtime has done about an engine that has failed, and takes the change back that brought it.
pub(crate) fn engine_failed(_shared: &Rc<Shared>, failed: EngineFailed) {
    tracing::error!(connection = failed.connection, reason = failed.reason, remedy = ?failed.remedy, "an engine failed");
}
