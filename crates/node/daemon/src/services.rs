//! Which services are bound on this node, and whether a peer's schema fits one of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::transport::{Decision, Encoding, Hello, Limits, Method, MethodKind};
use provost_frontend::CallQuota;
use provost_schema::{Compatibility, Schema, SchemaHash, compatibility};
use provost_wire::Code;

use crate::runtime::AppId;
use crate::schemas::{BoundSchema, SchemaStore};

/// Apps that may offer the same service.
const OFFERS_MAX: usize = 1024;

/// A service that an app offers.
#[derive(Debug)]
pub(crate) struct Offer {
    /// Whose it is.
    pub(crate) app: AppId,
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

/// Why no offer was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoMatch {
    pub(crate) code: Code,
    pub(crate) reason: String,
}

/// The services that are bound on this node, and all schemas. Shared by the control plane and the threads on which
/// handshakes run.
pub(crate) struct Services {
    state: Mutex<State>,
    limits: Limits,
}

struct State {
    offers: HashMap<String, Vec<Arc<Offer>>>,
    /// Rotates over the offers of a service.
    turn: usize,
    schemas: SchemaStore,
    accepting: bool,
}

impl Services {
    pub(crate) fn new(schemas: SchemaStore, limits: Limits) -> Services {
        Services {
            state: Mutex::new(State {
                offers: HashMap::new(),
                turn: 0,
                schemas,
                accepting: true,
            }),
            limits,
        }
    }

    /// What this node is ready to receive on a connection.
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The schema of a service with this hash, if it is known.
    pub(crate) fn schema(&self, service: &str, hash: SchemaHash) -> Option<Arc<BoundSchema>> {
        self.lock().schemas.find(service, hash)
    }

    /// Takes a schema.
    pub(crate) fn add_schema(
        &self,
        descriptor_set: &[u8],
        announced: Option<SchemaHash>,
    ) -> Result<(), crate::schemas::StoreError> {
        self.lock().schemas.add(descriptor_set, announced).map(drop)
    }

    /// Takes a schema before an app brings it, and says which services it has.
    pub(crate) fn prefetch_schema(
        &self,
        descriptor_set: &[u8],
    ) -> Result<Vec<Arc<BoundSchema>>, crate::schemas::StoreError> {
        self.lock().schemas.add(descriptor_set, None)
    }

    /// The schemas in memory, each with how many apps have bound its service with it.
    pub(crate) fn schemas(&self) -> Vec<(Arc<BoundSchema>, u32)> {
        let state = self.lock();
        let bound_by = |schema: &BoundSchema| {
            let offers = state.offers.get(&schema.service);
            let offers = offers.map(Vec::as_slice).unwrap_or_default();
            offers
                .iter()
                .filter(|offer| offer.schema.hash == schema.hash)
                .count() as u32
        };
        let known = state.schemas.list();
        known
            .into_iter()
            .map(|schema| {
                let apps = bound_by(&schema);
                (schema, apps)
            })
            .collect()
    }

    /// The services that an app has bound.
    pub(crate) fn served_by(&self, app: AppId) -> Vec<String> {
        let state = self.lock();
        let serves = |offers: &Vec<Arc<Offer>>| offers.iter().any(|offer| offer.app == app);
        let mut services: Vec<_> = state
            .offers
            .iter()
            .filter(|(_, offers)| serves(offers))
            .map(|(service, _)| service.clone())
            .collect();
        services.sort();
        services
    }

    /// Offers a service to callers.
    pub(crate) fn bind(&self, offer: Offer) -> Result<(), NoMatch> {
        let mut state = self.lock();
        let service = offer.schema.service.clone();
        let offers = state.offers.entry(service.clone()).or_default();
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
        offers.push(Arc::new(offer));
        Ok(())
    }

    /// What an app offers.
    pub(crate) fn offers_of(&self, app: AppId) -> Vec<Arc<Offer>> {
        let state = self.lock();
        let all = state.offers.values().flatten();
        all.filter(|offer| offer.app == app).cloned().collect()
    }

    /// Takes a service back, and says whether it was bound.
    pub(crate) fn unbind(&self, app: AppId, service: &str) -> bool {
        let mut state = self.lock();
        let Some(offers) = state.offers.get_mut(service) else {
            return false;
        };
        let before = offers.len();
        offers.retain(|offer| offer.app != app);
        let unbound = offers.len() < before;
        if offers.is_empty() {
            state.offers.remove(service);
        }
        unbound
    }

    /// Takes all services of an app back.
    pub(crate) fn unbind_all(&self, app: AppId) {
        self.lock().offers.retain(|_, offers| {
            offers.retain(|offer| offer.app != app);
            !offers.is_empty()
        });
    }

    /// Lets no new connection in any more.
    pub(crate) fn stop_accepting(&self) {
        self.lock().accepting = false;
    }

    /// Whether a service is bound here.
    pub(crate) fn is_bound(&self, service: &str) -> bool {
        self.lock().offers.contains_key(service)
    }

    /// An offer for a client on this node.
    pub(crate) fn match_local(&self, client: &BoundSchema) -> Result<Match, NoMatch> {
        let mut state = self.lock();
        match state.find_equal(&client.service, client.hash) {
            Some(offer) => Ok(native(offer)),
            None => state.find_compatible(&client.schema, &client.service),
        }
    }

    /// How to answer a peer, and with which offer. `schema` is what the peer sent when it was asked.
    pub(crate) fn decide(&self, hello: &Hello, schema: Option<&[u8]>) -> (Decision, Option<Match>) {
        let mut state = self.lock();
        let found = match state.match_peer(hello, schema) {
            Ok(Some(found)) => found,
            Ok(None) => return (Decision::NeedSchema, None),
            Err(NoMatch { code, reason }) => return (Decision::Refuse { code, reason }, None),
        };
        let decision = Decision::Welcome {
            encoding: found.encoding,
            methods: methods(&found.offer.schema),
            limits: self.limits,
        };
        (decision, Some(found))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while it was held was a bug; what it protects is whole between any two statements here.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find_equal(&mut self, service: &str, hash: SchemaHash) -> Option<Arc<Offer>> {
        if !self.accepting {
            return None;
        }
        self.turn = self.turn.wrapping_add(1);
        let offers = self.offers.get(service)?;
        let turned = (0..offers.len()).map(|at| &offers[(at + self.turn) % offers.len()]);
        turned
            .into_iter()
            .find(|offer| offer.schema.hash == hash)
            .cloned()
    }

    fn find_compatible(&self, client: &Schema, service: &str) -> Result<Match, NoMatch> {
        if !self.accepting {
            return Err(NoMatch {
                code: Code::Unavailable,
                reason: "the service on this node is shutting down".to_owned(),
            });
        }
        let offers = self.offers.get(service).map(Vec::as_slice).unwrap_or_default();
        let mut refusal = NoMatch {
            code: Code::Unavailable,
            reason: format!("no app has bound {service} on this node"),
        };
        for offer in offers {
            match compatibility(client, &offer.schema.schema, service) {
                Ok(Compatibility::Equal) => return Ok(native(Arc::clone(offer))),
                Ok(Compatibility::Protobuf { method_map }) => {
                    return Ok(Match {
                        offer: Arc::clone(offer),
                        encoding: Encoding::Protobuf,
                        methods: Some(method_map),
                    });
                }
                Err(error) => {
                    refusal = NoMatch {
                        code: Code::FailedPrecondition,
                        reason: error.to_string(),
                    }
                }
            }
        }
        Err(refusal)
    }

    /// `Ok(None)`: the peer's schema is needed.
    fn match_peer(&mut self, hello: &Hello, schema: Option<&[u8]>) -> Result<Option<Match>, NoMatch> {
        let hash = SchemaHash(hello.schema_hash);
        if let Some(offer) = self.find_equal(&hello.service, hash) {
            return Ok(Some(native(offer)));
        }
        if !self.accepting || !self.offers.contains_key(&hello.service) {
            return self.find_compatible(&Schema::default(), &hello.service).map(Some);
        }
        if let Some(known) = self.schemas.find(&hello.service, hash) {
            return self.find_compatible(&known.schema, &hello.service).map(Some);
        }
        let Some(schema) = schema else {
            return Ok(None);
        };
        let bad_schema = |reason: String| NoMatch {
            code: Code::InvalidArgument,
            reason,
        };
        let schema = Schema::from_descriptor_set(schema).map_err(|error| bad_schema(error.to_string()))?;
        if schema.service_hash(&hello.service) != Some(hash) {
            let reason = format!("the schema that was sent does not have the hash {hash} that was announced");
            return Err(bad_schema(reason));
        }
        self.find_compatible(&schema, &hello.service).map(Some)
    }
}

fn native(offer: Arc<Offer>) -> Match {
    Match {
        offer,
        encoding: Encoding::Native,
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
