//! What came of the last attempts to reach each endpoint, for operators.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::audit_log::cut;

/// Endpoints that are remembered; of more, those that were tried the longest ago are forgotten. Apps that may name addresses could
/// name any number of them.
const ENDPOINTS_MAX: usize = 1024;

/// The attempts of a node, by endpoint as it was written.
#[derive(Debug, Default)]
pub(crate) struct EndpointHealth {
    by_endpoint: RefCell<BTreeMap<String, EndpointAttempts>>,
}

/// What came of attempts at one endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EndpointAttempts {
    pub(crate) reached: u64,
    pub(crate) failed: u64,
    /// Failures since it was reached last.
    pub(crate) failed_in_a_row: u64,
    pub(crate) reached_at: Option<SystemTime>,
    pub(crate) failed_at: Option<SystemTime>,
    /// Why the last failure was one.
    pub(crate) problem: String,
    /// Of all attempts of the node, which this was.
    tried: u64,
}

impl EndpointAttempts {
    const NONE: EndpointAttempts = EndpointAttempts {
        reached: 0,
        failed: 0,
        failed_in_a_row: 0,
        reached_at: None,
        failed_at: None,
        problem: String::new(),
        tried: 0,
    };
}

impl EndpointHealth {
    /// Notes that an endpoint was reached, or why not.
    pub(crate) fn note(&self, endpoint: &str, outcome: Result<(), &str>) {
        let mut all = self.by_endpoint.borrow_mut();
        let tried = all.values().map(|attempts| attempts.tried).max().unwrap_or(0) + 1;
        if !all.contains_key(endpoint) && all.len() >= ENDPOINTS_MAX {
            let oldest = all.iter().min_by_key(|(_, attempts)| attempts.tried);
            let oldest = oldest.map(|(endpoint, _)| endpoint.clone());
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        let attempts = all.entry(endpoint.to_owned()).or_insert(EndpointAttempts::NONE);
        attempts.tried = tried;
        match outcome {
            Ok(()) => {
                attempts.reached += 1;
                attempts.failed_in_a_row = 0;
                attempts.reached_at = Some(SystemTime::now());
            }
            Err(problem) => {
                attempts.failed += 1;
                attempts.failed_in_a_row += 1;
                attempts.failed_at = Some(SystemTime::now());
                attempts.problem = cut(problem.to_owned());
            }
        }
    }

    /// What came of attempts there.
    pub(crate) fn of(&self, endpoint: &str) -> EndpointAttempts {
        let all = self.by_endpoint.borrow();
        all.get(endpoint).cloned().unwrap_or(EndpointAttempts::NONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_in_a_row_end_when_an_endpoint_is_reached() {
        let health = EndpointHealth::default();
        health.note("b:1", Err("refused"));
        health.note("b:1", Err("no route"));
        let failing = health.of("b:1");
        assert_eq!(
            (failing.reached, failing.failed, failing.failed_in_a_row),
            (0, 2, 2)
        );
        assert_eq!(failing.problem, "no route");
        health.note("b:1", Ok(()));
        let reached = health.of("b:1");
        assert_eq!(
            (reached.reached, reached.failed, reached.failed_in_a_row),
            (1, 2, 0)
        );
        assert!(reached.reached_at >= reached.failed_at);
        assert_eq!(health.of("c:1"), EndpointAttempts::NONE);
    }

    #[test]
    fn what_was_tried_the_longest_ago_is_forgotten_first() {
        let health = EndpointHealth::default();
        let name = |number: usize| format!("host-{number}:1");
        for number in 0..ENDPOINTS_MAX {
            health.note(&name(number), Err("refused"));
        }
        health.note(&name(0), Ok(()));
        health.note("new:1", Ok(()));
        assert_eq!(health.by_endpoint.borrow().len(), ENDPOINTS_MAX);
        assert_eq!(health.of(&name(1)), EndpointAttempts::NONE);
        assert_eq!(health.of(&name(0)).reached, 1);
    }
}
