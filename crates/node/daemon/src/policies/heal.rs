//! What the control plane does about engines that have failed.

use std::rc::Rc;
use std::sync::Arc;

use super::carry_out::take_back;
use crate::node::Shared;
use crate::runtime::{ConnectionId, EngineFailed, Remedy};

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
    if matches!(failed.remedy, Remedy::WentBack | Remedy::Withdrawn) {
        policies.note_failure(failed.tag, &failed.reason);
        tokio::task::spawn_local(take_back(Rc::clone(shared), failed.tag));
    }
}

/// Deals with the failures on a connection that were told before a change that was made before them.
pub(crate) fn heard_of_change(shared: &Rc<Shared>, connection: ConnectionId) {
    let mut early = shared.policies.early.borrow_mut();
    if early.is_empty() {
        return;
    }
    let all = std::mem::take(&mut *early);
    let (now, later): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|failed| failed.connection == connection);
    *early = later;
    drop(early);
    now.into_iter().for_each(|failed| engine_failed(shared, failed));
}
