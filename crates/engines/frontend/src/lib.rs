//! Between an app and its datapaths: the app's port (rings and receive heap), and the engine that turns what the app
//! claims into checked private copies and what peers send into the app's completions.
//!
//! ```text
//! submission ring ─► AppPort::next_request ─► Frontend (tx) ─► policies, marshalling, transport
//! completion ring ◄─ AppPort::push_step ◄─ Frontend (rx) ◄─
//! ```
//!
//! The app is the adversary here. A step that its call does not allow fails that call ([`Frontend`]); what only a
//! broken or hostile library does ([`AppFault`]) detaches the app.

mod calls;
mod engine;
mod gather;
mod inherited;
mod legal;
mod port;
mod receive;
mod saved;
mod send;
#[cfg(test)]
mod shares;
mod state_transfer;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use engine::{AppRole, CallQuota, Frontend, FrontendParts, KIND, MethodShape};
pub use port::{AppFault, AppPort, AppRequest, NotPushed, Notice, PortLoad};
pub use receive::{AppReceiveHeap, NewSegment, ReceiveLimits, SegmentMemory, SegmentSource};
pub use send::SendHeap;
pub use state_transfer::{PortRestoreError, PortSource, SavedBlocks};
