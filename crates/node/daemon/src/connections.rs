//! The open connections of the node: which there are, how many there may be, and how one comes to be.
//!
//! ```text
//! ConnectionSpec ──► ConnectionOpening ──enter──► EnteredConnection ──open──► its runtime polls it
//!                    (signals, waker)    (its datapath is built, and it is among the open connections:
//!                                         drains and live changes reach it from here on)
//! ```

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use provost_datapath::{ConnectionSignals, EngineStart, Packets, RestoreError};
use provost_engine::DatapathContext;
use provost_wire::Code;
use tokio::sync::{Notify, oneshot};

use crate::compose::{self, ConnectionSpec, SavedConnection};
use crate::counts::PacketsGone;
use crate::log;
use crate::peer_shares::{PeerParty, PeerShares};
use crate::permits::Permits;
use crate::policies::Instance;
use crate::policies::chain::Chain;
use crate::refusal::Refusal;
use crate::runtime::{self, AppId, ConnectionId, DatapathWaker, EngineTag, NewConnection, RuntimeCommand};
use crate::runtimes::Runtimes;

pub(crate) struct ConnectionRegistry {
    open: RefCell<HashMap<ConnectionId, OpenConnection>>,
    by_app: RefCell<ConnectionsByApp>,
    next_id: Cell<ConnectionId>,
    /// How many there may be.
    pub(crate) permits: Permits,
    /// What peers hold of messages in part.
    peer_shares: PeerShares,
    /// Packets of connections that have ended.
    pub(crate) packets_gone: PacketsGone,
    /// Told when a connection has ended.
    ended: Notify,
    /// Told when one has begun or ended.
    changed: Notify,
    /// Nothing new is taken, and what is open finishes.
    draining: Cell<bool>,
}

pub(crate) struct OpenConnection {
    pub(crate) spec: Arc<ConnectionSpec>,
    /// The same, as its policies are told of it.
    pub(crate) context: Arc<DatapathContext>,
    /// Whose it is at the other end, if it is served here for another node.
    served_party: Option<PeerParty>,
    pub(crate) signals: Arc<ConnectionSignals>,
    waker: Arc<DatapathWaker>,
    /// How often its engines were changed: its runtime counts, this is the last that was heard of.
    pub(crate) revision: u64,
    /// Its policies, in order.
    pub(crate) chain: Vec<Arc<Instance>>,
    /// Policies that apply to it and that it goes without, as they failed or did not fit.
    pub(crate) without: Vec<EngineTag>,
    /// Why it has not migrated to the transport that its route names, if it should have.
    pub(crate) stays_because: Option<String>,
}

/// Which connections an app has, of thousands that others have.
#[derive(Default)]
struct ConnectionsByApp(BTreeSet<(AppId, ConnectionId)>);

impl ConnectionsByApp {
    fn add(&mut self, app: AppId, connection: ConnectionId) {
        self.0.insert((app, connection));
    }

    fn remove(&mut self, app: AppId, connection: ConnectionId) {
        self.0.remove(&(app, connection));
    }

    fn of(&self, app: AppId) -> impl Iterator<Item = ConnectionId> {
        let own = self.0.range((app, ConnectionId::MIN)..=(app, ConnectionId::MAX));
        own.map(|(_, id)| *id)
    }
}

impl OpenConnection {
    /// The app whose end it is.
    pub(crate) fn app(&self) -> AppId {
        self.spec.app.identity.id
    }

    /// Whether it is served here for this party.
    pub(crate) fn serves_party(&self, party: &PeerParty) -> bool {
        self.served_party.as_ref() == Some(party)
    }

    /// The user whose app that is.
    fn user(&self) -> u32 {
        self.spec.app.identity.uid
    }

    /// Logs that it is open, as the app's connection of this number, or that it goes on after a hot restart. (Both ends of a
    /// connection within the node do, each with its own number.)
    fn report(&self, what: &str) {
        if !log::may_log_of(self.app(), self.user()) {
            return;
        }
        tracing::info!(
            connection = self.spec.id,
            app = self.app(),
            service = %self.context.service,
            side = self.context.side.name(),
            transport = self.spec.transport.name(),
            peer = %self.spec.peer.address,
            policies = self.chain.len(),
            "{what}"
        );
    }

    /// Asks the connection to finish its calls and end.
    pub(crate) fn drain(&self) {
        self.signals.drain();
        self.waker.wake();
    }
}

impl ConnectionRegistry {
    pub(crate) fn new(permits: Permits) -> ConnectionRegistry {
        ConnectionRegistry {
            open: RefCell::default(),
            by_app: RefCell::default(),
            next_id: Cell::new(1),
            permits,
            peer_shares: PeerShares::default(),
            packets_gone: PacketsGone::default(),
            ended: Notify::new(),
            changed: Notify::new(),
            draining: Cell::new(false),
        }
    }

    /// A number for a connection that no other has had.
    pub(crate) fn new_id(&self) -> ConnectionId {
        self.next_id.replace(self.next_id.get() + 1)
    }

    /// The number that the next connection gets.
    pub(crate) fn next_id(&self) -> ConnectionId {
        self.next_id.get()
    }

    /// Goes on numbering from here.
    pub(crate) fn number_from(&self, next: ConnectionId) {
        self.next_id.set(next);
    }

    pub(crate) fn all(&self) -> Ref<'_, HashMap<ConnectionId, OpenConnection>> {
        self.open.borrow()
    }

    /// All of them, to be changed.
    pub(crate) fn all_mut(&self) -> RefMut<'_, HashMap<ConnectionId, OpenConnection>> {
        self.open.borrow_mut()
    }

    /// One of them, if it is open.
    pub(crate) fn find(&self, id: ConnectionId) -> Option<Ref<'_, OpenConnection>> {
        Ref::filter_map(self.open.borrow(), |open| open.get(&id)).ok()
    }

    /// One of them, to be changed.
    pub(crate) fn find_mut(&self, id: ConnectionId) -> Option<RefMut<'_, OpenConnection>> {
        RefMut::filter_map(self.open.borrow_mut(), |open| open.get_mut(&id)).ok()
    }

    /// Looks at those of one app, whatever others have.
    pub(crate) fn each_of_app(&self, app: AppId, mut look: impl FnMut(&OpenConnection)) {
        let open = self.open.borrow();
        let by_app = self.by_app.borrow();
        by_app.of(app).filter_map(|id| open.get(&id)).for_each(&mut look);
    }

    /// How many of those that an app serves are of one party.
    pub(crate) fn count_of_peer(&self, app: AppId, party: &PeerParty) -> usize {
        let mut count = 0;
        self.each_of_app(app, |open| {
            count += usize::from(open.serves_party(party));
        });
        count
    }

    /// Logs each of them as one that goes on after a hot restart.
    pub(crate) fn report_restored(&self) {
        let open = self.open.borrow();
        open.values()
            .for_each(|connection| connection.report("connection restored"));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.open.borrow().len()
    }

    /// Packets of all connections so far, where transports make them themselves.
    pub(crate) fn packets(&self) -> Packets {
        let mut packets = self.packets_gone.read();
        for connection in self.open.borrow().values() {
            packets += connection.signals.packets().read();
        }
        packets
    }

    /// Forgets a connection that has ended, but for what it has counted.
    pub(crate) fn forget(&self, id: ConnectionId) -> Option<Arc<ConnectionSpec>> {
        let gone = self.open.borrow_mut().remove(&id);
        if let Some(connection) = &gone {
            self.by_app.borrow_mut().remove(connection.app(), id);
            self.packets_gone.add(connection.signals.packets().read());
        }
        self.ended.notify_one();
        self.changed.notify_one();
        gone.map(|connection| connection.spec)
    }

    /// Forgets the connections of an app that is gone.
    pub(crate) fn forget_app(&self, app: AppId) {
        let own: Vec<ConnectionId> = self.by_app.borrow().of(app).collect();
        for id in own {
            let Some(spec) = self.forget(id) else {
                continue;
            };
            if log::may_log_of(app, spec.app.identity.uid) {
                tracing::info!(
                    connection = id,
                    app,
                    reason = "its app is gone",
                    "connection closed"
                );
            }
        }
    }

    /// Takes no new connection for longer than its calls need, and lets those that are open finish.
    pub(crate) fn drain(&self) {
        self.draining.set(true);
        self.open.borrow().values().for_each(OpenConnection::drain);
    }

    pub(crate) fn stop_accepting(&self) {
        self.draining.set(true);
    }

    /// Whether nothing new is taken.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits until one has begun or ended since this was waited for last.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Waits until none is left.
    pub(crate) async fn all_ended(&self) {
        while self.count() > 0 {
            self.ended.notified().await;
        }
    }
}

/// A connection that is about to open.
pub(crate) struct ConnectionOpening {
    pub(crate) spec: Arc<ConnectionSpec>,
    pub(crate) context: Arc<DatapathContext>,
    pub(crate) signals: Arc<ConnectionSignals>,
    pub(crate) waker: Arc<DatapathWaker>,
}

/// A connection that drains and live changes know of, and that its runtime does not poll yet.
pub(crate) struct EnteredConnection {
    pub(crate) connection: Box<NewConnection>,
    runtime: usize,
    number: oneshot::Receiver<u32>,
}

impl ConnectionOpening {
    /// The opening of a connection with these signals: fresh ones, or those that were saved.
    pub(crate) fn new(
        spec: ConnectionSpec,
        signals: ConnectionSignals,
        connections: &ConnectionRegistry,
        runtimes: &Runtimes,
    ) -> ConnectionOpening {
        let share = connections.peer_shares.share(spec.app.identity.id, &spec.peer);
        ConnectionOpening {
            context: spec.context(),
            signals: Arc::new(signals.with_peer_share(share)),
            waker: runtimes[spec.app.runtime].new_waker(),
            spec: Arc::new(spec),
        }
    }

    /// Builds its datapath, and puts it among the open connections. Policies that were prepared for it must be those of the
    /// table of this moment.
    pub(crate) fn enter(
        self,
        connections: &ConnectionRegistry,
        chain: Chain,
        transport: EngineStart,
        saved: Option<SavedConnection<'_>>,
        permit: impl Send + 'static,
    ) -> Result<EnteredConnection, RestoreError> {
        let Chain { engines, left_out } = chain;
        let (instances, engines) = engines
            .into_iter()
            .map(|prepared| (prepared.instance, prepared.engine))
            .unzip();
        let (datapath, fitted) = compose::datapath(&self.spec, &self.signals, engines, transport, saved)?;
        let (opened, number) = runtime::reply();
        let (id, runtime) = (self.spec.id, self.spec.app.runtime);
        let connection = Box::new(NewConnection {
            id,
            app: self.spec.app.identity.id,
            datapath,
            fitted,
            waker: Arc::clone(&self.waker),
            permit: Box::new(permit),
            accepted_for: self.spec.offer.as_ref().map(|offer| offer.request),
            opened,
        });
        let is_served = self.spec.serves().is_some();
        let open = OpenConnection {
            served_party: is_served.then(|| PeerParty::of(&self.spec.peer)).flatten(),
            spec: self.spec,
            context: self.context,
            signals: self.signals,
            waker: self.waker,
            revision: 0,
            chain: instances,
            without: left_out.iter().map(|instance| instance.tag).collect(),
            stays_because: None,
        };
        if connections.is_draining() {
            open.drain();
        }
        connections.by_app.borrow_mut().add(open.app(), id);
        connections.open.borrow_mut().insert(id, open);
        connections.changed.notify_one();
        Ok(EnteredConnection {
            connection,
            runtime,
            number,
        })
    }
}

impl EnteredConnection {
    /// Gives it to its runtime, and says which number it has at its app.
    pub(crate) async fn open(
        self,
        connections: &ConnectionRegistry,
        runtimes: &Runtimes,
    ) -> Result<u32, Refusal> {
        let id = self.connection.id;
        let told = runtimes[self.runtime]
            .send(RuntimeCommand::Open(self.connection))
            .await;
        let opened = match told {
            Ok(()) => self
                .number
                .await
                .map_err(|_| Refusal::new(Code::Unavailable, "the app is going away")),
            Err(overloaded) => Err(Refusal::new(Code::ResourceExhausted, overloaded.to_string())),
        };
        match &opened {
            Ok(_number) => {
                if let Some(open) = connections.find(id) {
                    open.report("connection opened");
                }
            }
            Err(_) => drop(connections.forget(id)),
        }
        opened
    }

    /// It does not open after all.
    pub(crate) fn abandon(self, connections: &ConnectionRegistry) {
        connections.forget(self.connection.id);
    }
}

#[cfg(test)]
mod tests {
    use super::ConnectionsByApp;

    #[test]
    fn an_apps_connections_are_found_until_they_end() {
        let mut all = ConnectionsByApp::default();
        for (app, connection) in [(1, 10), (2, 11), (1, u64::MAX), (3, 0), (1, 0)] {
            all.add(app, connection);
        }
        let of = |all: &ConnectionsByApp, app| all.of(app).collect::<Vec<_>>();
        assert_eq!(of(&all, 1), [0, 10, u64::MAX]);
        assert_eq!(of(&all, 2), [11]);
        assert!(of(&all, 4).is_empty());
        all.remove(1, 10);
        all.remove(2, 10);
        assert_eq!(of(&all, 1), [0, u64::MAX]);
        assert_eq!(of(&all, 2), [11]);
    }
}
