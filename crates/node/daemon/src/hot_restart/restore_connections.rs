//! How the new process makes the connections of apps and callers, as these come.
//!
//! ```text
//! app ──► its offers ──► each of its connections: over a network, at once
//!                                                 within the node: once its other end has come, else alone when all has come
//! ```
//!
//! An app whose connections name memory of another one waits until that has come.

use std::collections::HashMap;
use std::sync::Arc;

use provost_datapath::{
    ConnectionSignals, EngineStart, FieldReader, ForeignBytes, NotSaved, ReceivedBlock, Restorer,
};
use provost_engine::{AttestedApp, DatapathContext};
use provost_frontend::CallQuota;
use provost_marshalling::Encoding;

use super::restore::{
    LeftOut, NotRestored, RestoringApp, RestoringConnection, RestoringParty, failed, failed_of_app,
    failed_state, schema,
};
use super::state;
use crate::compose::{
    AcceptedOffer, ConnectionLimits, ConnectionSpec, PeerEndpoint, SavedConnection, policies_among,
};
use crate::connections::ConnectionOpening;
use crate::control_plane::ControlPlane;
use crate::permits::Permit;
use crate::policies::chain::{Chain, PolicyEngine, PreparedPolicy, stand_in, started};
use crate::policies::{Instance, closed};
use crate::runtime::{AdoptedConnection, AppId, ConnectionPhase, EngineTag, FaultPlan, FittedEngine};
use crate::services::{EXPORTED_REQUEST, Offer};
use crate::transport::local::{self, LocalTransport, SavedEnd};
use crate::transport::{self, TransportKind};

/// What has been made of connections so far.
#[derive(Default)]
pub(super) struct RestoringConnections {
    places: HashMap<AppId, usize>,
    /// By app and request: connections of a service share the quota with its offer.
    quotas: HashMap<(AppId, u64), Arc<CallQuota>>,
    /// Ends of connections within the node whose other end has not come, by the number of the pair.
    waiting: HashMap<u64, EndPlace>,
    /// Apps that wait for memory of others.
    late: Vec<usize>,
    /// The connections of each app, in their order.
    made: Vec<Vec<Option<AdoptedConnection>>>,
}

impl RestoringConnections {
    /// How many have been made.
    pub(super) fn count(&self) -> usize {
        self.made.iter().flatten().flatten().count()
    }
}

/// One end of a connection within the node: which connection of which app.
#[derive(Clone, Copy)]
struct EndPlace {
    app: usize,
    connection: usize,
}

/// Makes connections, of apps that are there.
pub(super) struct ConnectionBuilder<'a> {
    pub(super) plane: &'a ControlPlane,
    pub(super) apps: &'a [RestoringApp],
    pub(super) done: &'a mut RestoringConnections,
    pub(super) left_out: &'a mut LeftOut,
}

/// Gives the engines of one app's connections what their states name.
struct AppRestorer<'a> {
    apps: &'a [RestoringApp],
    places: &'a HashMap<AppId, usize>,
    left_out: &'a LeftOut,
    app: &'a RestoringApp,
}

impl Restorer for AppRestorer<'_> {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.app.party.claim(saved)
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        let range = self.app.state.ranges.get(kept as usize);
        let heap = |range: &state::Range| {
            let heap = match self.places.get(&range.app) {
                Some(owner) => &self.apps[*owner].endpoint.send_heap,
                None => self.left_out.send_heaps.get(&range.app)?,
            };
            heap.range(range.offset, range.bytes)
        };
        range.and_then(heap).ok_or(NotSaved::Foreign { kept })
    }
}

impl<'a> ConnectionBuilder<'a> {
    /// Makes connections of the apps that have come since this was called last.
    pub(super) fn build_those_that_came(&mut self) -> Result<(), NotRestored> {
        let came = self.done.made.len()..self.apps.len();
        for (at, app) in came.clone().zip(&self.apps[came.clone()]) {
            self.done.places.insert(app.id(), at);
            let none_yet = app.parts.iter().map(|_| None);
            self.done.made.push(none_yet.collect());
        }
        for at in came {
            if self.names_what_is_there(&self.apps[at]) {
                self.begin(at)?;
            } else {
                self.done.late.push(at);
            }
        }
        Ok(())
    }

    /// Makes those that waited. The connections of each app; none for an app that is left out.
    pub(super) fn finish(mut self) -> Result<Vec<Option<Vec<AdoptedConnection>>>, NotRestored> {
        for at in std::mem::take(&mut self.done.late) {
            self.begin(at)?;
        }
        for alone in std::mem::take(&mut self.done.waiting).into_values() {
            let made = self.local_alone(alone);
            self.unless_left_out(alone.app, made)?;
        }
        let mut all = Vec::with_capacity(self.apps.len());
        for (app, made) in self.apps.iter().zip(std::mem::take(&mut self.done.made)) {
            all.push(if self.is_left_out(app) {
                None
            } else {
                let made: Option<Vec<_>> = made.into_iter().collect();
                let what = format!("app {}", app.id());
                Some(made.ok_or_else(|| failed(&what, &"a connection of it was not made"))?)
            });
        }
        let none_is_kept = all.iter().all(Option::is_none);
        if none_is_kept && self.left_out.apps.len() > 1 {
            return Err(failed(&"the apps", &"none of them can be gone on with"));
        }
        Ok(all)
    }

    /// Whether all heaps have come that states of an app's connections name ranges of.
    fn names_what_is_there(&self, app: &RestoringApp) -> bool {
        let mut ranges = app.state.ranges.iter();
        ranges.all(|range| {
            self.done.places.contains_key(&range.app) || self.left_out.send_heaps.contains_key(&range.app)
        })
    }

    fn is_left_out(&self, app: &RestoringApp) -> bool {
        self.left_out.apps.contains(&app.id())
    }

    /// What was done for an app; if it failed for a reason of the app's own, everything of the app is taken back.
    fn unless_left_out<T>(
        &mut self,
        app: usize,
        done: Result<T, NotRestored>,
    ) -> Result<Option<T>, NotRestored> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) => {
                let id = self.apps[app].id();
                self.left_out.add(id, None, error)?;
                self.plane.services.unbind_all(id);
                self.plane.connections.forget_app(id);
                Ok(None)
            }
        }
    }

    /// What an app offers, and its connections.
    fn begin(&mut self, at: usize) -> Result<(), NotRestored> {
        let app = &self.apps[at];
        let offered = self.offers(app);
        self.unless_left_out(at, offered)?;
        for (number, connection) in app.parts.iter().enumerate() {
            if self.is_left_out(app) {
                break;
            }
            if connection.is_within_node() {
                self.local(at, number)?;
            } else {
                let made = self.over_network(at, number);
                self.unless_left_out(at, made)?;
            }
        }
        Ok(())
    }

    fn offers(&mut self, app: &RestoringApp) -> Result<(), NotRestored> {
        // What is exported takes so many calls of all nodes.
        if let RestoringParty::Relay(relay) = &app.party
            && let Some(quota) = self.plane.services.exported_quota(relay.service())
        {
            self.done.quotas.insert((app.id(), EXPORTED_REQUEST), quota);
        }
        for offer in &app.state.offers {
            let what = format!("app {} offers {}", app.id(), offer.service);
            let quota = self.quota(app.id(), offer.request, offer.calls_max);
            let bound = self.plane.services.bind(Offer {
                app: Some(app.id()),
                request: offer.request,
                schema: schema(self.plane, &offer.service, &offer.schema_hash, &what)?,
                quota,
            });
            bound.map_err(|error| failed_of_app(&what, &error.reason))?;
        }
        Ok(())
    }

    fn quota(&mut self, app: AppId, request: u64, calls_max: u32) -> Arc<CallQuota> {
        let fresh = || Arc::new(CallQuota::new(calls_max));
        Arc::clone(self.done.quotas.entry((app, request)).or_insert_with(fresh))
    }

    /// The opening of a connection with the specification and the signals that were saved.
    fn opening(
        &mut self,
        app: &RestoringApp,
        connection: &RestoringConnection,
    ) -> Result<ConnectionOpening, NotRestored> {
        let (state, what) = (&connection.state, connection.what());
        let transport = TransportKind::parse(&state.transport);
        let transport = transport.ok_or_else(|| {
            let reason = format!("this version has no transport {}", state.transport);
            failed(&what, &reason)
        })?;
        let offer = state.serves.then(|| AcceptedOffer {
            request: state.offer_request,
            quota: self.quota(app.id(), state.offer_request, state.offer_calls_max),
        });
        let peer_app = self.done.places.get(&state.peer_app);
        let spec = ConnectionSpec {
            id: state.id,
            node: self.plane.config.node_name(),
            app: app.endpoint.clone(),
            schema: Arc::clone(&connection.schema),
            offer,
            peer: PeerEndpoint {
                identity: state.peer_identity.as_str().into(),
                address: state.peer_address.as_str().into(),
                app: peer_app.map(|at| Arc::clone(&self.apps[*at].endpoint.identity)),
                attested: state.attested.as_ref().map(attested),
            },
            transport,
            transport_version: state
                .engines
                .last()
                .map_or(transport.first_version(), |engine| engine.version),
            encoding: if state.is_protobuf {
                Encoding::Protobuf
            } else {
                Encoding::Native
            },
            limits: ConnectionLimits {
                message_bytes_max: state.message_bytes_max,
                calls_max: state.calls_max,
                compressed: state.compressed(),
            },
        };
        let mut fields = FieldReader::new("link", &state.link);
        let signals = ConnectionSignals::restore(&mut fields).map_err(|error| failed_state(&what, &error))?;
        let plane = self.plane;
        Ok(ConnectionOpening::new(
            spec,
            signals,
            &plane.connections,
            &plane.runtimes,
        ))
    }

    fn over_network(&mut self, app: usize, number: usize) -> Result<(), NotRestored> {
        let (party, connection) = self.place(app, number);
        let opening = self.opening(party, connection)?;
        let start = self.network_transport(connection, &opening.spec);
        let start = start.map_err(|reason| failed(&connection.what(), &reason))?;
        let permit = self.plane.connections.permits.count(&party.connections);
        self.make(app, number, opening, start, permit)
    }

    fn place(&self, app: usize, number: usize) -> (&'a RestoringApp, &'a RestoringConnection) {
        let app = &self.apps[app];
        (app, &app.parts[number])
    }

    /// Both ends of a connection within the node are made together, once the second one has come.
    fn local(&mut self, app: usize, number: usize) -> Result<(), NotRestored> {
        let (_, connection) = self.place(app, number);
        let pair = connection.saved_pair();
        let Some((pair, is_client)) = self.unless_left_out(app, pair)? else {
            return Ok(());
        };
        let this = EndPlace {
            app,
            connection: number,
        };
        let others = self.done.waiting.remove(&pair);
        let Some(other) = others.filter(|other| !self.is_left_out(&self.apps[other.app])) else {
            self.done.waiting.insert(pair, this);
            return Ok(());
        };
        // Where one cannot be made, the other is alone.
        let Some(of_this) = self.opened(this)? else {
            self.done.waiting.insert(pair, other);
            return Ok(());
        };
        let Some(of_other) = self.opened(other)? else {
            self.done.waiting.insert(pair, this);
            return Ok(());
        };
        let ends = if is_client {
            [(this, of_this), (other, of_other)]
        } else {
            [(other, of_other), (this, of_this)]
        };
        match self.paired(&ends) {
            Ok(transports) => {
                for ((end, opening), (transport, permit)) in ends.into_iter().zip(transports) {
                    let start = transport::ready(transport);
                    let made = self.make(end.app, end.connection, opening, start, permit);
                    self.unless_left_out(end.app, made)?;
                }
            }
            Err(error) => {
                // Which of the two cannot be gone on with is not known.
                let (_, connection) = self.place(other.app, other.connection);
                let of_other = failed_of_app(&connection.what(), &error.reason);
                self.unless_left_out::<()>(app, Err(error))?;
                self.unless_left_out::<()>(other.app, Err(of_other))?;
            }
        }
        Ok(())
    }

    fn opened(&mut self, end: EndPlace) -> Result<Option<ConnectionOpening>, NotRestored> {
        let (app, connection) = self.place(end.app, end.connection);
        let opening = self.opening(app, connection);
        self.unless_left_out(end.app, opening)
    }

    /// The transports of the client's end and the server's, and what counts them.
    fn paired(
        &self,
        [(client, of_client), (server, of_server)]: &[(EndPlace, ConnectionOpening); 2],
    ) -> Result<[(LocalTransport, Arc<Permit>); 2], NotRestored> {
        let (client_app, client) = self.place(client.app, client.connection);
        let (server_app, server) = self.place(server.app, server.connection);
        let what = || format!("connections {} and {}", client.state.id, server.state.id);
        let [client_state, server_state] = [client, server].map(RestoringConnection::saved_transport);
        let (Some(client_state), Some(server_state)) = (client_state, server_state) else {
            return Err(failed(&what(), &"one of them has no engines"));
        };
        let pair = local::restore_pair(
            SavedEnd {
                state: &client_state,
                end: local::end(&of_client.signals, &of_client.waker),
                restorer: &mut self.restorer(client_app),
            },
            SavedEnd {
                state: &server_state,
                end: local::end(&of_server.signals, &of_server.waker),
                restorer: &mut self.restorer(server_app),
            },
        );
        let (at_client, at_server) = pair.map_err(|error| failed_state(&what(), &error))?;
        // It counts once, for the app that asked for it.
        let permit = Arc::new(self.plane.connections.permits.count(&client_app.connections));
        Ok([(at_client, Arc::clone(&permit)), (at_server, permit)])
    }

    fn local_alone(&mut self, alone: EndPlace) -> Result<(), NotRestored> {
        let (app, connection) = self.place(alone.app, alone.connection);
        if self.is_left_out(app) {
            return Ok(());
        }
        let opening = self.opening(app, connection)?;
        let state = connection.saved_transport();
        let state = state.ok_or_else(|| failed(&connection.what(), &"it has no engines"))?;
        let restored = local::restore_alone(SavedEnd {
            state: &state,
            end: local::end(&opening.signals, &opening.waker),
            restorer: &mut self.restorer(app),
        });
        let restored = restored.map_err(|error| failed_state(&connection.what(), &error))?;
        let permit = Arc::new(self.plane.connections.permits.count(&app.connections));
        self.make(
            alone.app,
            alone.connection,
            opening,
            transport::ready(restored),
            permit,
        )
    }

    fn restorer(&self, app: &'a RestoringApp) -> AppRestorer<'_> {
        AppRestorer {
            apps: self.apps,
            places: &self.done.places,
            left_out: self.left_out,
            app,
        }
    }

    /// Makes a connection whose transport is known.
    fn make(
        &mut self,
        at: usize,
        number: usize,
        opening: ConnectionOpening,
        transport: EngineStart,
        permit: impl Send + 'static,
    ) -> Result<(), NotRestored> {
        let (app, connection) = self.place(at, number);
        let (state, what) = (&connection.state, connection.what());
        let chain = self
            .chain(connection, &opening.context)
            .map_err(|reason| failed(&what, &reason))?;
        let mut restorer = self.restorer(app);
        let saved = SavedConnection {
            datapath: connection.saved_datapath(),
            restorer: &mut restorer,
        };
        let entered = opening.enter(&self.plane.connections, chain, transport, Some(saved), permit);
        let mut new = entered.map_err(|error| failed_state(&what, &error))?.connection;
        new.accepted_for = state.is_unannounced.then_some(state.offer_request);
        self.done.made[at][number] = Some(AdoptedConnection {
            number: state.number,
            phase: ConnectionPhase {
                told_going_away: state.told_going_away,
                is_closing: state.is_closing,
                has_ended: state.has_ended,
            },
            new: *new,
        });
        Ok(())
    }

    fn network_transport(
        &self,
        connection: &RestoringConnection,
        spec: &ConnectionSpec,
    ) -> Result<EngineStart, String> {
        let engine = connection.state.engines.last().ok_or("it has no engines")?;
        let (connector, schema) = (&self.plane.connector, &connection.schema);
        let server = || connector.restored_server(&spec.app, schema, spec.limits);
        let start = transport::restoring_connection(&engine.kind, engine.version, server);
        start.ok_or_else(|| format!("this version has no transport {}", engine.kind))
    }

    /// The policies of a connection, in the order in which their engines were saved.
    fn chain(
        &self,
        connection: &RestoringConnection,
        context: &Arc<DatapathContext>,
    ) -> Result<Chain, String> {
        let engines = &connection.state.engines;
        let tags: Vec<EngineTag> = engines.iter().map(|engine| EngineTag(engine.tag)).collect();
        let policies =
            policies_among(&tags).ok_or("its engines are in an order that this version does not know")?;
        let mut attached = self.plane.policies.table().chain(context);
        let mut chain = Chain {
            engines: Vec::with_capacity(policies.len()),
            left_out: Vec::new(),
        };
        for engine in &engines[policies] {
            let at = attached
                .iter()
                .position(|instance| *instance.name == *engine.policy);
            let at = at.ok_or_else(|| format!("policy \"{}\" is not attached here", engine.policy))?;
            chain.engines.push(policy(engine, attached.remove(at), context)?);
        }
        chain.left_out = attached;
        Ok(chain)
    }
}

/// How a policy's engine is made of its state.
fn policy(
    engine: &state::Engine,
    instance: Arc<Instance>,
    context: &Arc<DatapathContext>,
) -> Result<PreparedPolicy, String> {
    let guard = FaultPlan {
        probation: None,
        stand_in: stand_in(&instance, context),
    };
    let engine = if engine.stands_in {
        PolicyEngine {
            start: closed::start(&instance.name, &Arc::new(instance.datapath_context(context))),
            fitted: FittedEngine::standing_in(instance.tag, guard),
        }
    } else {
        let prepared = instance.prepare(context);
        let prepared = prepared.map_err(|error| format!("policy \"{}\": {error}", instance.name))?;
        PolicyEngine {
            start: started(prepared),
            fitted: FittedEngine::new(instance.tag, guard),
        }
    };
    Ok(PreparedPolicy { instance, engine })
}

fn attested(state: &state::AttestedApp) -> Arc<AttestedApp> {
    Arc::new(AttestedApp {
        node: state.node.as_str().into(),
        name: state.name.as_str().into(),
        user: state.user.as_str().into(),
        uid: state.uid,
        workload: state.workload.as_str().into(),
    })
}
