//! Faults that a build with the feature `mutations` has on purpose, where a test asks for one: the simulator must find
//! each. Any other build has none of them.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// Whoever wakes a datapath again believes that somebody else has.
    LostWakeup,
    /// A step that finds an app's ring full is delivered twice later on.
    DoubleDelivery,
    /// The successor of a transport is not watched, so that its datapath sleeps through what comes for it.
    ForgottenDescriptor,
    /// What another process saved goes on without its policies.
    PolicyBypassedOnRestore,
    /// A datapath is polled for as long as its socket is ready, though what it waits for is something else.
    EndlessPolling,
}

#[cfg(feature = "mutations")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

impl Mutation {
    /// Has the workers that this thread drives make this mistake from now on.
    #[cfg(feature = "mutations")]
    pub fn activate(self) {
        ACTIVE.set(Some(self));
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn is_active(self) -> bool {
        ACTIVE.get() == Some(self)
    }

    #[cfg(not(feature = "mutations"))]
    pub(crate) const fn is_active(self) -> bool {
        false
    }
}
