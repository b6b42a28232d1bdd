//! Steps of one app that found their datapaths full. They wait beside the app's ring, so that calls to a peer that stands still do not
//! keep calls to others waiting behind them. The order of each connection's steps is kept.

use std::collections::{BTreeMap, VecDeque};

use provost_datapath::Step;
use provost_wire::descriptor::Parts;

/// Steps of one app that wait so, at most; past it no submission of the app is read.
const BLOCKED_STEPS_MAX: usize = 4096;
/// Of how many connections, at most: each is tried again in every poll of the app.
const BLOCKED_CONNECTIONS_MAX: usize = 64;
/// So many of them are looked at in the time that one step takes to its datapath.
const LOOKED_AT_PER_STEP: usize = 64;

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

    /// What it takes to look for a call among those of a connection, as a number of steps that are taken to datapaths.
    pub(crate) fn search_cost(&self, connection: u32) -> usize {
        let steps = self.by_connection.get(&connection);
        steps.map_or(0, |steps| steps.len() / LOOKED_AT_PER_STEP)
    }

    /// Takes out those of a connection.
    pub(crate) fn take(&mut self, connection: u32) -> VecDeque<Step> {
        let taken = self.by_connection.remove(&connection).unwrap_or_default();
        self.count -= taken.len();
        taken
    }

    /// Takes out all that waits of a call which its app gives up, if its beginning is among that: then no engine knows of the call, and
    /// the app is not answered. Says whether that was so.
    pub(crate) fn give_up(&mut self, connection: u32, call: u64, mut taken: impl FnMut(&Step)) -> bool {
        let Some(steps) = self.by_connection.get_mut(&connection) else {
            return false;
        };
        let begins = |step: &Step| step.call == call && step.parts.contains(Parts::BEGIN);
        let Some(at) = steps.iter().position(begins) else {
            return false;
        };
        let before = steps.len();
        if steps[at].parts.contains(Parts::END) {
            // Nothing of the call follows. Whoever gives up the oldest calls first has the others not moved for each.
            steps.remove(at).iter().for_each(taken);
        } else {
            steps.retain(|step| {
                let is_of_call = step.call == call;
                if is_of_call {
                    taken(step);
                }
                !is_of_call
            });
        }
        self.count -= before - steps.len();
        if steps.is_empty() {
            self.by_connection.remove(&connection);
        }
        true
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

    #[test]
    fn a_call_that_is_given_up_before_it_has_begun_keeps_no_place() {
        let mut blocked = BlockedSteps::default();
        let unary = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
        // Of call 2 the beginning has gone on already.
        for (call, parts) in [
            (2, Parts::MESSAGE),
            (3, unary),
            (4, Parts::BEGIN),
            (5, unary),
            (4, Parts::END),
        ] {
            blocked.push(7, Step::new(call, parts));
        }
        let mut given_up = Vec::new();
        let mut give_up = |connection, call| {
            blocked.give_up(connection, call, |step| given_up.push((step.call, step.parts)))
        };
        assert!(!give_up(7, 2) && !give_up(7, 6) && !give_up(8, 3));
        assert!(give_up(7, 4) && give_up(7, 3));
        assert_eq!(given_up, [(4, Parts::BEGIN), (4, Parts::END), (3, unary)]);
        assert_eq!(blocked.count, 2);
        assert!(blocked.give_up(7, 5, |_| {}) && blocked.has(7));
        let left: Vec<u64> = blocked.take(7).iter().map(|step| step.call).collect();
        assert_eq!((left, blocked.is_empty()), (vec![2], true));
        blocked.push(7, Step::new(8, unary));
        assert!(blocked.give_up(7, 8, |_| {}));
        assert!(!blocked.has(7) && blocked.is_empty());
    }
}
