//! Which services are bound on this node, and whether a peer's schema fits one of them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::transport::{Decision, Encoding, Hello, Limits, Method, MethodKind};
use provost_engine::AppIdentity;
use provost_frontend::CallQuota;
use provost_schema::{Compatibility, OpaqueMethod, Schema, SchemaHash, compatibility};
use provost_shm::Memfd;
use provost_wire::Code;

use crate::runtime::AppId;
use crate::schemas::{
    BoundSchema, OpaqueServices, PeerWork, SMALL_BYTES_MAX, SchemaOwner, SchemaSource, SchemaStore,
    SchemaWork, StoreError, opaque_schema,
};
use crate::turns::TurnOwner;

/// Apps that may offer the same service.
const OFFERS_MAX: usize = 1024;
/// The request by which something is offered that no app has bound.
pub(crate) const EXPORTED_REQUEST: u64 = 0;
/// Schemas of one service that a client's is compared with, where none is the same: comparing takes time.
const COMPARED_MAX: usize = 8;

/// A service that an app offers.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Whose it is; none of a route that is exported.
    pub(crate) app: Option<AppId>,
    /// The request by which it was offered.
    pub(crate) request: u64,
    /// The app's schema of it.
    pub(crate) schema: Arc<BoundSchema>,
    /// How many calls the app takes.
    pub(crate) quota: Arc<CallQuota>,
}

/// How a client and an offer talk.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    pub(crate) offer: Arc<Offer>,
    pub(crate) encoding: Encoding,
    /// The server's method for each of the client's, where the schemas differ.
    pub(crate) methods: Option<Vec<Option<u16>>>,
}

/// What a client gets whose turn it is.
enum NextOffer {
    /// An offer with the client's schema.
    Equal(Arc<Offer>),
    /// Of these offers the first that fits: the turn is that of one with another schema. One with the client's schema, if there
    /// is one, is the last.
    Compare(Vec<Arc<Offer>>),
}

/// Why no offer was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoMatch {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// The services that are bound on this node, and all schemas. Shared by the control plane and the threads on which
/// handshakes run. Schemas are compiled, read and compared without its lock.
pub(crate) struct Services {
    offers: Mutex<ServiceOffers>,
    schemas: SchemaStore,
    work: SchemaWork,
    peer_work: PeerWork,
    limits: Limits,
    /// Services that are called without a schema.
    pub(crate) opaque: OpaqueServices,
}

/// The services that apps offer.
struct ServiceOffers {
    by_service: HashMap<String, Vec<Arc<Offer>>>,
    /// Services to which routes lead that are exported, and how many calls of other nodes each takes.
    exported: HashMap<String, Arc<CallQuota>>,
    /// Rotates over the offers of a service.
    turn: usize,
    accepting: bool,
}

/// Why an app's schema was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BringError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("it cannot be read: {0}")]
    Read(#[from] provost_shm::ShmError),
    #[error("it could not be compiled")]
    CutShort,
}

/// Another node in its handshake.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallingPeer<'a> {
    pub(crate) address: IpAddr,
    pub(crate) hello: &'a Hello,
    /// What it sent when it was asked.
    pub(crate) schema: Option<&'a [u8]>,
    pub(crate) deadline: Instant,
    /// Whether nobody waits for the handshake any more.
    pub(crate) is_given_up: &'a AtomicBool,
}

impl Services {
    pub(crate) fn new(schemas: SchemaStore, limits: Limits) -> Services {
        Services {
            offers: Mutex::new(ServiceOffers {
                by_service: HashMap::new(),
                exported: HashMap::new(),
                turn: 0,
                accepting: true,
            }),
            schemas,
            work: SchemaWork::new(),
            peer_work: PeerWork::default(),
            limits,
            opaque: OpaqueServices::default(),
        }
    }

    /// What this node is ready to receive on a connection.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The schema of a service with this hash, if it is in memory.
    pub(crate) fn schema(&self, service: &str, hash: SchemaHash) -> Option<Arc<BoundSchema>> {
        self.schemas.known(service, hash)
    }

    /// What the service is called whose schema has this hash, if it is in memory.
    pub(crate) fn service_of(&self, hash: SchemaHash) -> Option<String> {
        self.schemas.of_hash(hash).map(|schema| schema.service.clone())
    }

    /// The schema by which a client calls a service that brings none: that of an app which has bound it here, else the one
    /// that the node was given, else the one that became known last.
    pub(crate) fn schema_to_call(&self, service: &str) -> Option<Arc<BoundSchema>> {
        let state = self.lock();
        let offers = state.by_service.get(service);
        let offered = offers.and_then(|offers| offers.last());
        let offered = offered.map(|offer| Arc::clone(&offer.schema));
        drop(state);
        let given = offered.or_else(|| self.schemas.pinned(service));
        given.or_else(|| self.schemas.newest(service))
    }

    /// Whether the node knows that a service is one that is served somewhere: an app has bound it, or an operator has given its schema.
    pub(crate) fn is_meant(&self, schema: &BoundSchema) -> bool {
        schema.was_bound() || self.schemas.pinned(&schema.service).is_some()
    }

    /// The services that apps of this node have bound.
    pub(crate) fn bound(&self) -> Vec<String> {
        self.lock().by_service.keys().cloned().collect()
    }

    /// The schema of a service with this hash, from memory or from disk, for an app.
    pub(crate) async fn find_schema(
        self: &Arc<Self>,
        service: &str,
        hash: SchemaHash,
        app: &AppIdentity,
    ) -> Option<Arc<BoundSchema>> {
        if let Some(known) = self.schemas.known(service, hash) {
            return Some(known);
        }
        let bytes = self.schemas.bytes_on_disk(hash)?;
        let (turn, user) = (self.work.turn(owner(app), bytes).await, app.uid);
        let services = Arc::clone(self);
        let load = move || {
            let _turn = turn;
            services.schemas.load(hash, SchemaOwner::User(user));
        };
        tokio::task::spawn_blocking(load).await.ok()?;
        self.schemas.known(service, hash)
    }

    /// Takes a schema that an app has brought. It is not read before it is its turn.
    pub(crate) async fn bring_schema(
        self: &Arc<Self>,
        memory: Memfd,
        announced: Option<SchemaHash>,
        app: &AppIdentity,
    ) -> Result<(), BringError> {
        let (turn, user) = (self.work.turn(owner(app), memory.bytes()).await, app.uid);
        let services = Arc::clone(self);
        let add = move || {
            let _turn = turn;
            let mut bytes = vec![0; memory.bytes() as usize];
            let length = memory.read_at(0, &mut bytes)?;
            bytes.truncate(length);
            services.schemas.add(&bytes, announced, SchemaOwner::User(user))?;
            Ok(())
        };
        let added = tokio::task::spawn_blocking(add).await;
        added.unwrap_or(Err(BringError::CutShort))
    }

    /// Takes a schema that the process before knew, whoever had brought it.
    pub(crate) fn restore_schema(&self, descriptor_set: &[u8]) -> Result<(), StoreError> {
        let added = self.schemas.add(descriptor_set, None, SchemaOwner::Predecessor)?;
        for schema in added.iter().filter(|schema| schema.schema.is_opaque()) {
            self.opaque.restore(schema);
        }
        Ok(())
    }

    /// Counts schemas that the process before had for the users whose apps go on with them.
    pub(crate) fn count_for(&self, users: impl IntoIterator<Item = (SchemaHash, u32)>) {
        self.schemas.count_for(users);
    }

    /// Takes a schema that an operator gives, and says which services it has. It goes before what apps bring.
    pub(crate) fn pin_schema(&self, descriptor_set: &[u8]) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        self.schemas.add_pinned(descriptor_set)
    }

    /// Takes a schema that a gRPC server has told. It goes before what apps bring.
    pub(crate) fn take_learnt(
        &self,
        descriptor_set: &[u8],
        from: &str,
    ) -> Result<Vec<Arc<BoundSchema>>, StoreError> {
        self.schemas.add_learnt(descriptor_set, from)
    }

    /// Where a schema came from.
    pub(crate) fn source_of(&self, schema: &BoundSchema) -> SchemaSource {
        self.schemas.source_of(schema)
    }

    /// The schemas in memory, each with how many apps have bound its service with it. Those of opaque services, which the process
    /// before may have had, are none.
    pub(crate) fn schemas(&self) -> Vec<(Arc<BoundSchema>, u32)> {
        let mut known = self.schemas.list();
        known.retain(|schema| !schema.schema.is_opaque());
        let state = self.lock();
        let bound_by = |schema: &BoundSchema| {
            let offers = state.by_service.get(&schema.service);
            let offers = offers.map(Vec::as_slice).unwrap_or_default();
            offers
                .iter()
                .filter(|offer| offer.schema.hash == schema.hash)
                .count() as u32
        };
        known
            .into_iter()
            .map(|schema| {
                let apps = bound_by(&schema);
                (schema, apps)
            })
            .collect()
    }

    /// How many apps have bound a service.
    pub(crate) fn bound_by(&self, service: &str) -> u32 {
        let state = self.lock();
        state
            .by_service
            .get(service)
            .map_or(0, |offers| offers.len() as u32)
    }

    /// The services that an app has bound.
    pub(crate) fn served_by(&self, app: AppId) -> Vec<String> {
        let state = self.lock();
        let serves = |offers: &Vec<Arc<Offer>>| offers.iter().any(|offer| offer.app == Some(app));
        let mut services: Vec<_> = state
            .by_service
            .iter()
            .filter(|(_, offers)| serves(offers))
            .map(|(service, _)| service.clone())
            .collect();
        services.sort();
        services
    }

    /// ServiceOffers a service to callers.
    pub(crate) fn bind(&self, offer: Offer) -> Result<(), NoMatch> {
        let mut state = self.lock();
        let service = offer.schema.service.clone();
        let offers = state.by_service.entry(service.clone()).or_default();
        if offers.iter().any(|other| other.app == offer.app) {
            return Err(NoMatch {
                code: Code::AlreadyExists,
                reason: format!("this app has bound {service} already: unbind it first"),
            });
        }
        if offers.len() >= OFFERS_MAX {
            return Err(NoMatch {
                code: Code::ResourceExhausted,
                reason: format!("{OFFERS_MAX} apps have bound {service}, which is the most"),
            });
        }
        offer.schema.note_bound();
        offers.push(Arc::new(offer));
        Ok(())
    }

    /// Takes these services, and no others, for those that other nodes reach by routes of this one.
    pub(crate) fn export(&self, services: impl IntoIterator<Item = String>) {
        let mut state = self.lock();
        let mut before = std::mem::take(&mut state.exported);
        let calls_max = self.limits.calls_in_flight_max;
        let exported = services.into_iter().map(|service| {
            let known = before.remove(&service);
            let quota = known.unwrap_or_else(|| Arc::new(CallQuota::new(calls_max)));
            (service, quota)
        });
        state.exported = exported.collect();
    }

    /// How many calls of other nodes a service takes to which an exported route leads.
    pub(crate) fn exported_quota(&self, service: &str) -> Option<Arc<CallQuota>> {
        self.lock().exported.get(service).cloned()
    }

    /// What the node itself offers of a service that no app has bound, as a route to it is exported.
    fn exported(&self, service: &str) -> Option<ExportedService> {
        let state = self.lock();
        let is_offered = state.accepting && !state.by_service.contains_key(service);
        let quota = state.exported.get(service).filter(|_| is_offered).cloned();
        drop(state);
        Some(ExportedService {
            quota: quota?,
            schema: self.schema_to_call(service),
        })
    }

    /// The schemas that apps have bound services by.
    pub(crate) fn bound_schemas(&self) -> Vec<(AppId, SchemaHash)> {
        let state = self.lock();
        let all = state.by_service.values().flatten();
        all.filter_map(|offer| Some((offer.app?, offer.schema.hash)))
            .collect()
    }

    /// What an app offers to callers.
    pub(crate) fn offers_of(&self, app: AppId) -> Vec<Arc<Offer>> {
        let state = self.lock();
        let all = state.by_service.values().flatten();
        all.filter(|offer| offer.app == Some(app)).cloned().collect()
    }

    /// Takes a service back, and says whether it was bound.
    pub(crate) fn unbind(&self, app: AppId, service: &str) -> bool {
        let mut state = self.lock();
        let Some(offers) = state.by_service.get_mut(service) else {
            return false;
        };
        let before = offers.len();
        offers.retain(|offer| offer.app != Some(app));
        let unbound = offers.len() < before;
        if offers.is_empty() {
            state.by_service.remove(service);
        }
        unbound
    }

    /// Takes all services of an app back.
    pub(crate) fn unbind_all(&self, app: AppId) {
        self.lock().by_service.retain(|_, offers| {
            offers.retain(|offer| offer.app != Some(app));
            !offers.is_empty()
        });
    }

    /// Lets no new connection in any more.
    pub(crate) fn stop_accepting(&self) {
        self.lock().accepting = false;
    }

    /// The apps that have bound a service.
    pub(crate) fn offering(&self, service: &str) -> Vec<AppId> {
        let state = self.lock();
        let offers = state
            .by_service
            .get(service)
            .map(Vec::as_slice)
            .unwrap_or_default();
        offers.iter().filter_map(|offer| offer.app).collect()
    }

    /// Whether a service is bound here.
    pub(crate) fn is_bound(&self, service: &str) -> bool {
        self.lock().by_service.contains_key(service)
    }

    /// An offer for an app on this node.
    pub(crate) async fn match_local(
        self: &Arc<Self>,
        client: &Arc<BoundSchema>,
        app: &AppIdentity,
    ) -> Result<Match, NoMatch> {
        let candidates = match self.lock().next_offer(&client.service, client.hash)? {
            NextOffer::Equal(offer) => return Ok(equal(offer)),
            NextOffer::Compare(candidates) => candidates,
        };
        let turn = self
            .work
            .turn(owner(app), client.descriptor_set.len() as u64)
            .await;
        let client = Arc::clone(client);
        let compare = move || {
            let _turn = turn;
            find_compatible(&candidates, &client.schema, (&client.service, client.hash))
        };
        let compared = tokio::task::spawn_blocking(compare).await;
        compared.unwrap_or_else(|_| {
            Err(NoMatch {
                code: Code::Internal,
                reason: "the schemas could not be compared".to_owned(),
            })
        })
    }

    /// How to answer a peer, and with which offer. It may take as long as comparing schemas does.
    pub(crate) fn decide(&self, peer: CallingPeer<'_>) -> (Decision, Option<Match>) {
        let found = match self.match_peer(peer) {
            Ok(Some(found)) => found,
            Ok(None) => return (Decision::NeedSchema, None),
            Err(NoMatch { code, reason }) => return (Decision::Refuse { code, reason }, None),
        };
        let decision = Decision::Welcome {
            encoding: found.encoding,
            methods: methods(&found.offer.schema),
            // What is exported goes on as it came.
            limits: match found.offer.app {
                Some(_) => self.limits,
                None => self.limits.taking_compressed(),
            },
        };
        (decision, Some(found))
    }

    /// `Ok(None)`: the peer's schema is needed.
    fn match_peer(&self, peer: CallingPeer<'_>) -> Result<Option<Match>, NoMatch> {
        let service = peer.hello.service.as_str();
        let hash = SchemaHash(peer.hello.schema_hash);
        let exported = self.exported(service);
        if let Some(exported) = &exported {
            match &exported.schema {
                // Its messages are not read here, so it is as well whichever schema the peer has.
                None => return exported.opaque_to(peer.hello).map(Some),
                Some(schema) if schema.hash == hash => {
                    return Ok(Some(equal(exported.offer(Arc::clone(schema)))));
                }
                Some(_) => {}
            }
        }
        let known = self.schemas.known(service, hash);
        if known.is_none() && peer.schema.is_none() {
            // Its turn is taken when it comes again with its schema.
            if exported.is_none() {
                self.lock().offers(service)?;
            }
            return Ok(None);
        }
        let candidates = match &exported {
            Some(exported) => {
                let offered = exported.schema.iter();
                offered.map(|schema| exported.offer(Arc::clone(schema))).collect()
            }
            None => match self.lock().next_offer(service, hash)? {
                NextOffer::Equal(offer) => return Ok(Some(equal(offer))),
                NextOffer::Compare(candidates) => candidates,
            },
        };
        let turn = self.peer_work.turn(peer.address, peer.deadline, peer.is_given_up);
        let _turn = match turn {
            Ok(turn) => turn,
            // Others keep the node busy with comparing: a server of the same schema needs none.
            Err(busy) => {
                return equal_of(&candidates, hash)
                    .ok_or_else(|| too_busy(&busy))
                    .map(Some);
            }
        };
        let compare = || {
            let read;
            let schema = match &known {
                Some(known) => &*known.schema,
                None => {
                    read = read_peer_schema(peer.schema.unwrap_or_default(), service, hash)?;
                    &read
                }
            };
            match &exported {
                Some(exported) if schema.is_opaque() => exported.opaque_to(peer.hello).map(Some),
                _ => find_compatible(&candidates, schema, (service, hash)).map(Some),
            }
        };
        let matched = compare();
        if peer
            .schema
            .is_some_and(|schema| schema.len() as u64 > SMALL_BYTES_MAX)
        {
            // As many handshakes as there may be would each leave behind what reading the largest schema takes.
            provost_shm::release_freed_memory();
        }
        matched
    }

    fn lock(&self) -> MutexGuard<'_, ServiceOffers> {
        // A panic while it was held was a bug; what it protects is whole between any two statements here.
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A service that no app of this node has bound, and to which an exported route leads.
struct ExportedService {
    quota: Arc<CallQuota>,
    /// Its schema, if it is known here.
    schema: Option<Arc<BoundSchema>>,
}

impl ExportedService {
    fn offer(&self, schema: Arc<BoundSchema>) -> Arc<Offer> {
        Arc::new(Offer {
            app: None,
            request: EXPORTED_REQUEST,
            schema,
            quota: Arc::clone(&self.quota),
        })
    }

    /// How a peer calls it whose messages are not read here: it has the methods that the peer names. Nothing else of the
    /// peer's schema counts, as it could say of a field that it is another, and so pass by a policy of this node.
    fn opaque_to(&self, hello: &Hello) -> Result<Match, NoMatch> {
        let methods = hello.methods.iter().map(|method| OpaqueMethod {
            name: method.name.clone(),
            client_streaming: method.kind.client_streaming,
            server_streaming: method.kind.server_streaming,
        });
        let schema = opaque_schema(&hello.service, methods).map_err(|error| NoMatch {
            code: Code::InvalidArgument,
            reason: error.to_string(),
        })?;
        Ok(equal(self.offer(schema)))
    }
}

impl ServiceOffers {
    /// The offer of a service whose turn it is for a client with a schema of this hash. So clients rotate over all offers,
    /// of whichever schema, as they are to while servers of a service are replaced by those of its next version.
    fn next_offer(&mut self, service: &str, hash: SchemaHash) -> Result<NextOffer, NoMatch> {
        self.turn = self.turn.wrapping_add(1);
        let (turn, offers) = (self.turn, self.offers(service)?);
        let in_turn = (0..offers.len()).map(|at| &offers[(at + turn) % offers.len()]);
        match in_turn.clone().next() {
            Some(first) if first.schema.hash != hash => {
                let equal = in_turn.clone().find(|offer| offer.schema.hash == hash);
                let others = first_of_each_schema(in_turn, hash);
                Ok(NextOffer::Compare(
                    others.into_iter().chain(equal.cloned()).collect(),
                ))
            }
            first => first
                .cloned()
                .map(NextOffer::Equal)
                .ok_or_else(|| not_bound(service)),
        }
    }

    /// What apps offer of a service: something.
    fn offers(&self, service: &str) -> Result<&[Arc<Offer>], NoMatch> {
        if !self.accepting {
            return Err(NoMatch {
                code: Code::Unavailable,
                reason: "the service on this node is shutting down".to_owned(),
            });
        }
        let offers = self.by_service.get(service);
        offers.map(Vec::as_slice).ok_or_else(|| not_bound(service))
    }
}

/// The first offer of each schema but this one, as many as are compared.
fn first_of_each_schema<'a>(
    offers: impl Iterator<Item = &'a Arc<Offer>>,
    but: SchemaHash,
) -> Vec<Arc<Offer>> {
    let mut first: Vec<Arc<Offer>> = Vec::new();
    for offer in offers {
        let is_known = |other: &Arc<Offer>| other.schema.hash == offer.schema.hash;
        if offer.schema.hash != but && first.len() < COMPARED_MAX && !first.iter().any(is_known) {
            first.push(Arc::clone(offer));
        }
    }
    first
}

/// The offer among these whose schema is the client's.
fn equal_of(offers: &[Arc<Offer>], hash: SchemaHash) -> Option<Match> {
    let found = offers.iter().find(|offer| offer.schema.hash == hash);
    found.cloned().map(equal)
}

/// The first of these offers whose schema fits the client's (a service and its hash) and has all of its methods; if none has,
/// the first that fits.
fn find_compatible(
    offers: &[Arc<Offer>],
    client: &Schema,
    (service, hash): (&str, SchemaHash),
) -> Result<Match, NoMatch> {
    if client.is_opaque() {
        return Err(NoMatch {
            code: Code::FailedPrecondition,
            reason: format!(
                "the calling node has no schema of {service}, and an app that has bound it needs typed messages: name its \
                 file in schemas.prefetch of the calling node"
            ),
        });
    }
    let mut refusal = NoMatch {
        code: Code::Unavailable,
        reason: format!("no app has bound {service} on the node that was called"),
    };
    let mut in_part = None;
    for offer in offers {
        if offer.schema.hash == hash {
            return Ok(equal(Arc::clone(offer)));
        }
        match compatibility(client, &offer.schema.schema, service) {
            Ok(Compatibility::Equal) => return Ok(equal(Arc::clone(offer))),
            Ok(Compatibility::Protobuf { method_map }) => {
                let is_whole = method_map.iter().all(Option::is_some);
                let fits = Match {
                    offer: Arc::clone(offer),
                    encoding: Encoding::Protobuf,
                    methods: Some(method_map),
                };
                if is_whole {
                    return Ok(fits);
                }
                in_part.get_or_insert(fits);
            }
            Err(error) => {
                refusal = NoMatch {
                    code: Code::FailedPrecondition,
                    reason: error.to_string(),
                }
            }
        }
    }
    in_part.ok_or(refusal)
}

fn not_bound(service: &str) -> NoMatch {
    NoMatch {
        code: Code::Unavailable,
        reason: format!(
            "no app has bound {service} on the node that was called, and no exported [[route]] leads to it"
        ),
    }
}

fn too_busy(busy: &impl std::fmt::Display) -> NoMatch {
    NoMatch {
        code: Code::Unavailable,
        reason: busy.to_string(),
    }
}

/// The schema that a peer has sent, which must be what it has announced.
fn read_peer_schema(schema: &[u8], service: &str, announced: SchemaHash) -> Result<Schema, NoMatch> {
    let bad_schema = |reason: String| NoMatch {
        code: Code::InvalidArgument,
        reason,
    };
    let schema = Schema::from_descriptor_set(schema).map_err(|error| bad_schema(error.to_string()))?;
    if schema.service_hash(service) != Some(announced) {
        let reason =
            format!("the schema that was sent does not have the hash {announced} that was announced");
        return Err(bad_schema(reason));
    }
    Ok(schema)
}

fn owner(app: &AppIdentity) -> TurnOwner {
    TurnOwner::App {
        app: app.id,
        user: app.uid,
    }
}

/// How a client of the same schema talks. What is exported goes on to a gRPC server, which takes protobuf: so nobody makes another
/// form of it on its way there.
fn equal(offer: Arc<Offer>) -> Match {
    let encoding = if offer.app.is_some() {
        Encoding::Native
    } else {
        Encoding::Protobuf
    };
    Match {
        offer,
        encoding,
        methods: None,
    }
}

/// A service's methods as an end names them to the other.
pub(crate) fn methods(schema: &BoundSchema) -> Vec<Method> {
    let service = schema.schema.service(&schema.service);
    let methods = service
        .map(|service| service.methods.as_slice())
        .unwrap_or_default();
    methods
        .iter()
        .map(|method| Method {
            name: method.name.clone(),
            kind: MethodKind {
                client_streaming: method.client_streaming,
                server_streaming: method.server_streaming,
            },
        })
        .collect()
}
