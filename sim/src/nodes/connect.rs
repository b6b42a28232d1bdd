//! Connections: who wants one, and what its two ends are made of.

use std::sync::Arc;

use provost_conformance::simulated::{PipeHandle, Setup};
use provost_datapath::{ConnectionSignals, Engine, Nanos};
use provost_frontend::AppRole;
use provost_marshalling::Encoding;
use provost_runtime::{AppId, ConnectionId, DatapathWaker, Reply};
use provost_session::Role;

use super::faults::NodeRoute;
use super::{NodesWorld, PairState, PlacedApp};
use crate::app::AppMail;
use crate::carrier::SocketTransport;
use crate::compose::{self, EndSpec, LocalPeer, TransportHandle};
use crate::node::NodeEnd;
use crate::outcome::{CallFate, ConnectionCourse};

/// How long one waits for a resting node before it asks again, in simulated nanoseconds.
pub(super) const ASK_AGAIN_NS: Nanos = 100_000;
/// The two ends of every connection, in this order.
const ROLES: [AppRole; 2] = [AppRole::Client, AppRole::Server];

/// One end of a connection, before it has engines.
pub(super) struct NewEnd {
    node: usize,
    app: AppId,
    pub(super) link: Arc<ConnectionSignals>,
    waker: Arc<DatapathWaker>,
}

/// The transport of one end, and by what its successors find what it carries.
pub(super) struct NewTransport {
    pub(super) engine: Box<dyn Engine>,
    pub(super) handle: TransportHandle,
}

impl NodesWorld {
    /// Connects every client to every server to which it has no connection, after a pause.
    pub(super) fn connect(&mut self) -> Result<(), String> {
        let now = self.clock.now();
        for client in 0..self.apps.len() {
            for server in 0..self.apps.len() {
                if self.wants(client, server, now) {
                    self.connect_pair(client, server)?;
                }
            }
        }
        Ok(())
    }

    fn wants(&mut self, client: usize, server: usize, now: Nanos) -> bool {
        let is = |app: &PlacedApp, role| app.role == role && app.process.is_some();
        if !is(&self.apps[client], AppRole::Client) || !is(&self.apps[server], AppRole::Server) {
            return false;
        }
        let rests = |at: usize| self.restarts[self.apps[at].node].is_some();
        let (one_rests, is_connected) = (
            rests(client) || rests(server),
            self.apps[client].connected.contains_key(&server),
        );
        let retry_at = self.apps[client].retry_at.entry(server).or_insert(now);
        if *retry_at > now || is_connected {
            return false;
        }
        if one_rests {
            *retry_at = now + ASK_AGAIN_NS;
            return false;
        }
        true
    }

    fn connect_pair(&mut self, client: usize, server: usize) -> Result<(), String> {
        let now = self.clock.now();
        let pair = self.pairs.len();
        let nodes = [self.apps[client].node, self.apps[server].node];
        let (route, mut fate) = self.faults.new_route(nodes, now);
        if self.apps[client].is_hostile {
            // What it says of its calls is its own affair.
            fate.course = ConnectionCourse::Damaged;
        }
        self.report.connections += 1;
        self.trace.note(&[7, now, pair as u64]);
        let ends = [self.new_end(client)?, self.new_end(server)?];
        let (carrier, encoding, transports) = match route {
            NodeRoute::WithinNode => (None, Encoding::Native, local_transports(&ends)),
            NodeRoute::Network(pipe, setup) => {
                let transports = self.socket_transports([&ends[0].link, &ends[1].link], &pipe, setup);
                let encoding = compose::encoding(&setup);
                let transports = transports.map(|transport| NewTransport {
                    handle: TransportHandle::Network(self.network.clone()),
                    engine: Box::new(transport),
                });
                (Some((pipe, setup)), encoding, transports)
            }
        };
        self.add_pair(
            PairState {
                server,
                nodes,
                carrier,
                migrated_from: None,
            },
            fate,
        );
        self.apps[client].connected.insert(server, pair);
        for ((role, end), transport) in ROLES.into_iter().zip(ends).zip(transports) {
            self.open_end(pair, role, encoding, end, transport)?;
        }
        Ok(())
    }

    /// Adds a connection, and what may befall it; says its number.
    pub(super) fn add_pair(&mut self, pair: PairState, fate: CallFate) -> usize {
        self.pairs.push(pair);
        self.fates.push(fate);
        self.pairs.len() - 1
    }

    pub(super) fn new_end(&self, at: usize) -> Result<NewEnd, String> {
        let (node, app) = (self.apps[at].node, at as AppId + 1);
        let waker = self.nodes[node].new_waker(app);
        Ok(NewEnd {
            node,
            app,
            link: Arc::new(ConnectionSignals::new()),
            waker: waker.ok_or_else(|| format!("app {app} is not attached"))?,
        })
    }

    /// The transports of the client and of the server over a carrier.
    pub(super) fn socket_transports(
        &self,
        links: [&Arc<ConnectionSignals>; 2],
        pipe: &PipeHandle,
        setup: Setup,
    ) -> [SocketTransport; 2] {
        let now = self.clock.now();
        let transport = |role: Role, link: &Arc<ConnectionSignals>| {
            let socket = self.network.open(pipe, role);
            compose::socket_end(&self.service, &self.network, socket, setup, link, now)
        };
        [
            transport(Role::Client, links[0]),
            transport(Role::Server, links[1]),
        ]
    }

    pub(super) fn open_end(
        &mut self,
        pair: usize,
        role: AppRole,
        encoding: Encoding,
        new: NewEnd,
        transport: NewTransport,
    ) -> Result<(), String> {
        let now = self.clock.now();
        let known = self.nodes[new.node].apps.get(&new.app);
        let known = known.ok_or("an app is not attached")?;
        let mailbox = known.mailbox.clone();
        let spec = EndSpec {
            role,
            service: self.service.clone(),
            encoding,
            send_heap: known.send_heap.clone(),
            quota: Arc::clone(&known.quota),
            ledger: self.ledger.clone(),
        };
        let datapath = spec.datapath(transport.engine, &new.link);
        let tags = datapath.1.iter().map(|fitted| fitted.tag).collect();
        let end = NodeEnd {
            pair,
            app: new.app,
            spec,
            link: new.link,
            waker: new.waker,
            transport: transport.handle,
            tags,
        };
        let (which, accepted_for, opened) = match role {
            AppRole::Server => (1, Some(pair as u64), Reply::ignored()),
            AppRole::Client => {
                let opened = Reply::new(move |number| mailbox.post(AppMail::Opened(number, pair)));
                (0, None, opened)
            }
        };
        let id = 2 * pair as ConnectionId + which;
        self.nodes[new.node].open(id, end, datapath, accepted_for, opened, now)
    }
}

fn local_transports(ends: &[NewEnd; 2]) -> [NewTransport; 2] {
    let end = |end: &NewEnd| provost_transport_local::End {
        link: Arc::clone(&end.link),
        wake: Arc::new(LocalPeer(Arc::clone(&end.waker))),
    };
    let (client, server) = provost_transport_local::connect(end(&ends[0]), end(&ends[1]), None);
    [client, server].map(|transport| NewTransport {
        handle: TransportHandle::Local(transport.handle()),
        engine: Box::new(transport),
    })
}
