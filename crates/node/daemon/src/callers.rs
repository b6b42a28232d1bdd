//! Which app calls, between nodes: what this node says of its own apps, and whose word it takes. It takes that of peers
//! that have proved by mutual TLS to be one of `tls.attesting_peers`.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use provost_engine::{AppIdentity, AttestedApp, DatapathContext, rfc3339};
use provost_wire::control::{PeerApp, PeerDescription};
use serde::Serialize;

use crate::audit_log::{AuditLog, cut};
use crate::config::Config;
use crate::configuration::Configuration;
use crate::peers::PeerAccess;
use crate::policies::matches;
use crate::transport::{CallerAttestation, EstablishedPeer};

/// Peers whose word was not taken and that were reported, at most; others are not reported.
const REPORTED_MAX: usize = 1024;

/// See the module's documentation.
pub(crate) struct CallerTrust {
    pub(crate) config: Rc<Configuration>,
    pub(crate) peers: Rc<PeerAccess>,
    pub(crate) audit: Arc<AuditLog>,
    /// Identities of peers whose word was not taken. Each is reported once.
    pub(crate) reported: RefCell<HashSet<String>>,
}

/// A record of the audit log: a peer has said which app calls, and its word was not taken.
#[derive(Serialize)]
struct CallerRecord<'a> {
    time: &'a str,
    event: &'static str,
    node: &'a str,
    action: &'static str,
    peer: String,
    address: String,
    peer_node: String,
    app: String,
    rule: &'static str,
    outcome: &'static str,
    message: &'static str,
}

const RULE: &str = "tls.attesting_peers";
const NOT_TAKEN: &str = "tls.attesting_peers of the node's configuration does not have this peer, so what it says of its apps \
                         is not taken; its connections are open as before";

impl CallerTrust {
    /// The workload identity of an app of this name: that of its `[[app]]`, else the SPIFFE id of the node's certificate.
    pub(crate) fn workload(&self, live: &Config, app: &str) -> Arc<str> {
        let table = live.app_table(app);
        let own = table.and_then(|table| table.workload.clone());
        own.or_else(|| self.peers.spiffe_id())
            .map_or_else(|| "".into(), Arc::from)
    }

    /// What this node says of an app of its.
    pub(crate) fn attestation(&self, app: &AppIdentity) -> CallerAttestation {
        CallerAttestation {
            node: self.config.node_name().to_string(),
            app: app.name.to_string(),
            user: app.user.to_string(),
            uid: app.uid,
            workload: app.workload.to_string(),
        }
    }

    /// The app that calls, if the peer says and its word is taken.
    pub(crate) fn believed(&self, peer: &EstablishedPeer) -> Option<Arc<AttestedApp>> {
        let caller = peer.claimed.as_ref()?;
        if !may_attest(&self.config.live(), &peer.identity) {
            self.report(peer, caller);
            return None;
        }
        Some(Arc::new(AttestedApp {
            node: caller.node.as_str().into(),
            name: caller.app.as_str().into(),
            user: caller.user.as_str().into(),
            uid: caller.uid,
            workload: caller.workload.as_str().into(),
        }))
    }

    fn report(&self, peer: &EstablishedPeer, caller: &CallerAttestation) {
        let mut reported = self.reported.borrow_mut();
        if reported.len() >= REPORTED_MAX || !reported.insert(peer.identity.clone()) {
            return;
        }
        let identity = cut(peer.identity.clone());
        tracing::info!(
            identity,
            reason = NOT_TAKEN,
            "a peer's word of its apps was not taken"
        );
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let time = rfc3339(since.map_or(0, |since| since.as_nanos() as u64));
        let node = self.config.node_name();
        let record = CallerRecord {
            time: &time,
            event: "authority",
            node: &node,
            action: "attest",
            peer: identity,
            address: peer.address.to_string(),
            peer_node: cut(caller.node.clone()),
            app: cut(caller.app.clone()),
            rule: RULE,
            outcome: "IGNORED",
            message: NOT_TAKEN,
        };
        match serde_json::to_string(&record) {
            Ok(line) => self.audit.line(line),
            Err(error) => tracing::error!(%error, "cannot write an audit record"),
        }
    }
}

/// Whether the word of a peer with this identity is taken. One that has proved nothing has none.
fn may_attest(live: &Config, identity: &str) -> bool {
    let tls = live.tls.as_ref();
    let patterns = tls.map_or(&[][..], |tls| &tls.attesting_peers);
    !identity.is_empty() && patterns.iter().any(|pattern| matches(pattern, identity))
}

/// What the app that serves a connection is told of its other end.
pub(crate) fn peer_description(context: &DatapathContext) -> PeerDescription {
    let peer = &context.peer;
    PeerDescription {
        number: context.connection,
        identity: peer.identity.to_string(),
        address: peer.address.to_string(),
        transport: peer.transport.to_owned(),
        node: context
            .peer_node()
            .map_or_else(String::new, |node| node.to_string()),
        app: peer.known_app().map(|app| PeerApp {
            name: app.name.to_string(),
            user: app.user.to_string(),
            uid: app.uid,
            workload: app.workload.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_taken_of_peers_that_are_listed_and_have_proved_who_they_are() {
        let config = |peers: &str| {
            let text = format!(
                "[tls]\nca = \"/ca\"\ncert = \"/cert\"\nkey = \"/key\"\nattesting_peers = [{peers}]\n"
            );
            Config::parse(&text, "test").unwrap()
        };
        let identity = "spiffe://test/node/a";
        assert!(may_attest(&config("\"spiffe://test/node/*\""), identity));
        assert!(may_attest(&config("\"spiffe://test/node/a\""), identity));
        assert!(!may_attest(&config("\"spiffe://test/node/b\""), identity));
        assert!(!may_attest(&config(""), identity));
        assert!(!may_attest(&config("\"*\""), ""));
        assert!(!may_attest(&Config::default(), identity));
    }
}
