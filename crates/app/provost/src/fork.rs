//! Children of `fork`: they have what was attached in their memory, and may not use it.

use provost_wire::Code;

use crate::status::Status;

/// What a child is told.
pub(crate) const REFUSAL: &str = "this process was forked from one that uses the node's service: it has that one's messages and \
                                  connections, and none of its threads; run a program by exec, or fork before the first use";

/// Refuses what a child of `fork` cannot do.
pub(crate) fn refuse_child() -> Result<(), Status> {
    if provost_shm::is_forked_child() {
        return Err(Status::new(Code::FailedPrecondition, REFUSAL));
    }
    Ok(())
}
