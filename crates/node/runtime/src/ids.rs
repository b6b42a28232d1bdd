//! By what a runtime knows apps and connections, and how it waits for them.

/// Number of an attachment.
pub type AppId = u64;

/// Number of a connection that the control plane gives it, unlike all others of the node.
pub type ConnectionId = u64;

/// How a runtime waits for an app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// It polls for the configured time, then sleeps.
    Sleeps,
    /// It polls for ever.
    BusyPolls,
}
