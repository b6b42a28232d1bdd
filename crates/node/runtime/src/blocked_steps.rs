//! Steps of one app that found their datapaths full. They wait beside the app's ring, so that calls to a peer that stands still do not
//! keep calls to others waiting behind them. The order of each connection's steps is kept.

use std::collections::{BTreeMap, VecDeque};

use provost_datapath::Step;

/// Steps of one app that wait so, at most; past it no submission of the app is read.
const BLOCKED_STEPS_MAX: usize = 4096;
/// Of how many connections, at most: each is tried again in every poll of the app.
const BLOCKED_CONNECTIONS_MAX: usize = 64;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct BlockedSteps {
    by_connection: BTreeMap<u32, VecDeque<Step>>,
    count: usize,
}

impl BlockedSteps {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count >= BLOCKED_STEPS_MAX || self.by_connection.len() >= BLOCKED_CONNECTIONS_MAX
    }

    /// Whether some of a connection wait: those that come behind them have to wait, too.
    pub(crate) fn has(&self, connection: u32) -> bool {
        self.by_connection.contains_key(&connection)
    }

    pub(crate) fn push(&mut self, connection: u32, step: Step) {
        self.by_connection.entry(connection).or_default().push_back(step);
        self.count += 1;
    }

    /// Takes out those of a connection.
    pub(crate) fn take(&mut self, connection: u32) -> VecDeque<Step> {
        let taken = self.by_connection.remove(&connection).unwrap_or_default();
        self.count -= taken.len();
        taken
    }

    /// The connections of which some wait.
    pub(crate) fn connections(&self) -> Vec<u32> {
        self.by_connection.keys().copied().collect()
    }

    /// Offers the steps of each connection, in their order, until one comes back.
    pub(crate) fn retry(&mut self, mut submit: impl FnMut(u32, Step) -> Option<Step>) {
        let count = &mut self.count;
        self.by_connection.retain(|connection, steps| {
            while let Some(step) = steps.pop_front() {
                if let Some(step) = submit(*connection, step) {
                    steps.push_front(step);
                    return true;
                }
                *count -= 1;
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use provost_wire::descriptor::Parts;

    use super::*;

    #[test]
    fn each_connection_keeps_its_order_and_one_that_is_full_holds_up_no_other() {
        let mut blocked = BlockedSteps::default();
        for call in 1..=6 {
            blocked.push(call as u32 % 2, Step::new(call, Parts::BEGIN));
        }
        let mut submitted = Vec::new();
        let mut room = 2;
        blocked.retry(|connection, step| {
            if connection == 0 || room == 0 {
                return Some(step);
            }
            room -= 1;
            submitted.push(step.call);
            None
        });
        assert_eq!(submitted, [1, 3]);
        assert!(blocked.has(0) && blocked.has(1));
        let left: Vec<u64> = blocked.take(1).iter().map(|step| step.call).collect();
        assert_eq!(
            (left, blocked.has(1), blocked.is_empty()),
            (vec![5], false, false)
        );
        let mut left = Vec::new();
        blocked.retry(|_, step| {
            left.push(step.call);
            None
        });
        assert_eq!((left, blocked.is_empty()), (vec![2, 4, 6], true));
    }
}
