//! Schemas of services that are asked of the gRPC servers to which routes with `reflection = true` lead.
//!
//! A server is asked when a client calls a service of which this node has no schema; of routes that name their service also when the
//! node starts and reads its configuration anew. What it tells is kept as what an operator gives, so no app can change it. A server that
//! tells nothing leaves its service opaque. One that tells what is of no use has the calls refused, with the reason: that the operator
//! has asked for policies on fields to apply is more than one server's word.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datapath::CompressedMessages;
use provost_wire::Code;
use tokio::sync::Mutex;

use crate::config::RouteConfig;
use crate::connect::{ConnectTarget, Connector, RemoteRoute};
use crate::log::cut;
use crate::refusal::Refusal;
use crate::schemas::{BoundSchema, opaque_schema};
use crate::transport::{CallerAttestation, SchemaQuestion, ToldSchema};
use crate::turns::TurnOwner;

/// Services of which is known what their servers have said last.
const SERVICES_MAX: usize = 256;
/// For how long a server that has told nothing is not asked again.
const NOTHING_FOR: Duration = Duration::from_secs(60);
/// The same of one that has told what is of no use, or was not reached.
const FAULT_FOR: Duration = Duration::from_secs(2);
/// How often a server is asked that was not reached when the node started.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// What servers have said of services of which there is no schema.
#[derive(Default)]
pub(crate) struct SchemaLearning(RefCell<HashMap<String, Rc<Mutex<Option<LastAnswer>>>>>);

/// What a server has said last.
struct LastAnswer {
    at: Instant,
    /// Why its service cannot be called; nothing if it has told nothing.
    refusal: Option<Refusal>,
}

impl LastAnswer {
    fn holds(&self) -> bool {
        let holds_for = self.refusal.as_ref().map_or(NOTHING_FOR, |_| FAULT_FOR);
        self.at.elapsed() < holds_for
    }
}

impl SchemaLearning {
    /// The place of a service, in which one asks at a time.
    fn of(&self, service: &str) -> Rc<Mutex<Option<LastAnswer>>> {
        let mut known = self.0.borrow_mut();
        if known.len() >= SERVICES_MAX && !known.contains_key(service) {
            known.retain(|_, place| Rc::strong_count(place) > 1);
        }
        Rc::clone(known.entry(service.to_owned()).or_default())
    }
}

impl Connector {
    /// The schema of a service as the server tells it to which a route leads; none if it tells nothing.
    pub(crate) async fn learn_schema(
        &self,
        service: &str,
        route: &RemoteRoute,
    ) -> Result<Option<Arc<BoundSchema>>, Refusal> {
        let place = self.learning.of(service);
        let mut last = place.lock().await;
        if let Some(known) = self.services.schema_to_call(service) {
            return Ok(Some(known));
        }
        if let Some(last) = last.as_ref().filter(|last| last.holds()) {
            return last.refusal.clone().map_or(Ok(None), Err);
        }
        let learnt = self.ask_schema(service, route).await;
        let refusal = learnt.as_ref().err().cloned();
        *last = match &learnt {
            Ok(Some(_)) => None,
            Ok(None) | Err(_) => Some(LastAnswer {
                at: Instant::now(),
                refusal,
            }),
        };
        learnt
    }

    async fn ask_schema(
        &self,
        service: &str,
        route: &RemoteRoute,
    ) -> Result<Option<Arc<BoundSchema>>, Refusal> {
        let deadline = Instant::now() + Duration::from_millis(self.config.live().timeouts.connect_ms);
        // Of a service that cannot be, no server is asked.
        let schema = opaque_schema(service, []).map_err(|error| {
            let message = format!("there is no service {}: {error}", cut(service));
            Refusal::new(Code::Unimplemented, message)
        })?;
        let mut failure = Refusal::new(Code::Unavailable, "the route has no endpoints");
        for endpoint in &route.endpoints {
            let question = Arc::new(SchemaQuestion::about(service));
            let mut grpc = route.grpc.clone();
            grpc.question = Some(Arc::clone(&question));
            let target = ConnectTarget {
                over: route.over,
                endpoint: endpoint.clone(),
                server_identities: Vec::new(),
                grpc,
                caller: CallerAttestation::default(),
                compressed: CompressedMessages::Decompressed,
                deadline,
            };
            match self.reach(&schema, target, TurnOwner::Node).await {
                Ok(_reached) => return self.take_told(service, endpoint, question.told()).await,
                Err(refusal) => failure = refusal,
            }
        }
        Err(failure)
    }

    async fn take_told(
        &self,
        service: &str,
        endpoint: &str,
        told: Result<ToldSchema, String>,
    ) -> Result<Option<Arc<BoundSchema>>, Refusal> {
        let of_no_use = |reason: &str| {
            let message = format!(
                "the schema of {service} that the server at {endpoint} tells by reflection is of no use: {reason}; name its \
                 file in schemas.prefetch, or remove reflection = true from the route"
            );
            tracing::warn!(service, endpoint, reason, "no schema was learnt");
            Refusal::new(Code::Unavailable, message)
        };
        let files = match told {
            Ok(ToldSchema::Files(files)) => files,
            Ok(ToldSchema::Nothing(reason)) => {
                tracing::info!(service, endpoint, reason, "a server tells no schema");
                return Ok(None);
            }
            Err(reason) => return Err(of_no_use(&reason)),
        };
        let (services, from) = (Arc::clone(&self.services), endpoint.to_owned());
        let taking = move || services.take_learnt(&files, &from);
        let added = tokio::task::spawn_blocking(taking).await;
        let added = added.map_err(|_| of_no_use("it could not be compiled"))?;
        let added = added.map_err(|error| of_no_use(&error.to_string()))?;
        tracing::info!(service, endpoint, "a schema was learnt from its server");
        self.follow_schemas(&added);
        Ok(added.into_iter().find(|schema| schema.service == service))
    }

    /// Learns the schemas of services which routes name, without being waited for.
    pub(crate) fn learn_schemas_ahead(self: &Rc<Self>) {
        let live = self.config.live();
        let named = |route: &&RouteConfig| route.reflection && route.service != "*";
        for route in live.routes.iter().filter(named) {
            let learning = Rc::clone(self).learn_ahead(route.service.clone());
            tokio::task::spawn_local(learning);
        }
    }

    /// Learns the schema of a service that a route names, until its server has been asked, or the route is another.
    async fn learn_ahead(self: Rc<Self>, service: String) {
        loop {
            let route = match self.reflecting_route(&service) {
                Some(route) if self.services.schema_to_call(&service).is_none() => route,
                _ => return,
            };
            match self.learn_schema(&service, &route).await {
                Ok(_) => return,
                // A client that calls meanwhile asks as well.
                Err(_) => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    }
}
