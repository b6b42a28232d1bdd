//! Transport migration under way: a second connection to the same server, over a carrier of its own, on which the calls begin
//! that a client begins from then on.

use provost_datapath::EngineStart;
use provost_frontend::AppRole;
use provost_runtime::{ConnectionId, EngineTag, PlannedEngine};

use super::changes::{ChangeKind, PlannedShape, replaced};
use super::connect::NewTransport;
use super::{NodesWorld, PairState};
use crate::compose::{self, TransportHandle};
use crate::outcome::ConnectionCourse;

impl NodesWorld {
    /// Opens a second connection to the server of a client's end, and says what the end's engines are with it; none if
    /// the end is a server's, does not leave its node, or the server cannot be reached now.
    pub(super) fn migration(
        &mut self,
        node: usize,
        id: ConnectionId,
    ) -> Result<Option<PlannedShape>, String> {
        let now = self.clock.now();
        let Some(end) = self.nodes[node].ends.get(&id) else {
            return Ok(None);
        };
        let (first, link, tags) = (end.pair, end.link.clone(), end.tags.clone());
        let PairState { server, nodes, .. } = self.pairs[first];
        let Some((_, setup)) = self.pairs[first].carrier else {
            return Ok(None);
        };
        let is_there = self.apps[server].process.is_some() && self.restarts[nodes[1]].is_none();
        if end.spec.role != AppRole::Client || !is_there {
            return Ok(None);
        }
        let spec = end.spec.clone();
        let (pipe, course) = self.faults.other_carrier(nodes, now);
        let server_end = self.new_end(server)?;
        let transports = self.socket_transports([&link, &server_end.link], &pipe, setup);
        let [at_client, at_server] = transports;
        let pair = PairState {
            server,
            nodes,
            carrier: Some((pipe, setup)),
            migrated_from: Some(first),
        };
        let pair = self.add_pair(pair, self.fates[first]);
        if course != ConnectionCourse::Fair {
            self.worsen(pair);
        }
        self.trace.note(&[10, now, id, pair as u64]);
        let transport = NewTransport {
            engine: Box::new(at_server),
            handle: TransportHandle::Network(self.network.clone()),
        };
        let encoding = compose::encoding(&setup);
        self.open_end(pair, AppRole::Server, encoding, server_end, transport)?;
        let network = self.network.clone();
        let new: EngineStart = Box::new(|_| Ok(Box::new(at_client)));
        let beside = provost_transport_migration::beside(new, 1, move |kind, _| {
            Some(compose::restoring(&network, kind))
        });
        let mut engines: Vec<PlannedEngine> = tags.into_iter().map(PlannedEngine::Keep).collect();
        engines.pop();
        engines.push(replaced(EngineTag::TRANSPORT, beside, &spec));
        Ok(Some(PlannedShape {
            engines,
            kind: ChangeKind::Migrates,
        }))
    }
}
