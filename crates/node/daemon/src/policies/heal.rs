//! What the control plane does about engines that have failed.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use super::carry_out::take_back;
use crate::node::Shared;
use crate::runtime::{ConnectionId, EngineFailed, Remedy};

/// Failures that are kept for operators, at most.
const KEPT_MAX: usize = 64;

/// An engine that has failed, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// When.
    pub(crate) at: SystemTime,
    /// The attachment's name.
    pub(crate) policy: String,
    /// The version of its code.
    pub(crate) version: u32,
    /// On which connection.
    pub(crate) connection: ConnectionId,
    /// What it said.
    pub(crate) reason: String,
    /// What was done.
    pub(crate) remedy: Remedy,
}

/// Deals with the failures on a connection that were told before a change that was made before them.
pub(crate) fn heard_of_change(shared: &Rc<Shared>, connection: ConnectionId) {
    let mut early = shared.policies.early.borrow_mut();
    if early.is_empty() {
        return;
    }
    let (now, later) = std::mem::take(&mut *early)
        .into_iter()
        .partition(|failed| failed.connection == connection);
    *early = later;
    drop(early);
    let now: Vec<EngineFailed> = now;
    now.into_iter().for_each(|failed| engine_failed(shared, failed));
}

/// The last failures.
#[derive(Default)]
pub(crate) struct Failures(VecDeque<Failure>);

impl Failures {
    fn add(&mut self, failure: Failure) {
        if self.0.len() == KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(failure);
    }

    /// They, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Failure> {
        self.0.iter()
    }
}

/// Puts down what a runtime has done about an engine that has failed, and takes the change back that brought it.
pub(crate) fn engine_failed(shared: &Rc<Shared>, failed: EngineFailed) {
    let policies = &shared.policies;
    let is_early = match shared.connections.borrow().get(&failed.connection) {
        Some(connection) => failed.revision != connection.revision + 1,
        None => return,
    };
    if is_early {
        // A change was made before, and has not been heard of yet.
        let mut early = policies.early.borrow_mut();
        early.retain(|other| shared.connections.borrow().contains_key(&other.connection));
        early.push(failed);
        return;
    }
    let mut name = (String::new(), 0);
    if let Some(connection) = shared.connections.borrow_mut().get_mut(&failed.connection) {
        connection.revision = failed.revision;
        let at = connection
            .chain
            .iter()
            .position(|instance| instance.tag == failed.tag);
        if let Some(at) = at {
            let instance = Arc::clone(&connection.chain[at]);
            name = (instance.name.to_string(), instance.kind.version());
            match (failed.remedy, failed.before) {
                (Remedy::Denies, _) => {}
                (_, Some(before)) => {
                    connection.chain[at] = before;
                    connection.without.push(failed.tag);
                }
                _ => {
                    connection.chain.remove(at);
                    connection.without.push(failed.tag);
                }
            }
        }
    }
    tracing::error!(
        policy = name.0,
        version = name.1,
        connection = failed.connection,
        app = failed.app,
        reason = failed.reason,
        remedy = ?failed.remedy,
        "an engine has failed"
    );
    policies.failures.borrow_mut().add(Failure {
        at: SystemTime::now(),
        policy: name.0,
        version: name.1,
        connection: failed.connection,
        reason: failed.reason.clone(),
        remedy: failed.remedy,
    });
    if matches!(failed.remedy, Remedy::WentBack | Remedy::Withdrawn) {
        policies.note_failure(failed.tag, &failed.reason);
        tokio::task::spawn_local(take_back(Rc::clone(shared), failed.tag));
    }
}
