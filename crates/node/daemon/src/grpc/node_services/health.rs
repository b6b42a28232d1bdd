//! `grpc.health.v1.Health` (gRPC's health checking protocol): whether calls of a service lead anywhere.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use provost_frontend_grpc::{NodeAnswer, NodeAnswerEnd, NodeQuestion};
use provost_grpc::GrpcStatus;
use provost_wire::Code;

use super::malformed;
use crate::app_registry::AttachedApp;
use crate::connect::ServiceReach;
use crate::grpc::GrpcAccess;
use crate::grpc::carried::CarriedWatch;
use crate::grpc::clients::GrpcClient;
use crate::runtime::AppId;

/// How often what is watched is looked at, as long as something is.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Watches of one client, at most: client libraries have one for each connection.
const CLIENT_WATCHES_MAX: usize = 64;

/// What a client asks about: a service, or the node if it is empty.
#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, PartialEq, Message)]
struct HealthListResponse {
    #[prost(map = "string, message", tag = "1")]
    statuses: HashMap<String, HealthCheckResponse>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn response(self) -> HealthCheckResponse {
        HealthCheckResponse { status: self.into() }
    }
}

/// What clients watch, by client and number of the call.
#[derive(Default)]
pub(crate) struct HealthWatches {
    by_call: RefCell<BTreeMap<(AppId, u32), HealthWatch>>,
    is_looking: Cell<bool>,
}

struct HealthWatch {
    service: String,
    told: ServingStatus,
}

impl HealthWatches {
    pub(super) fn forget(&self, client: AppId, stream: u32) {
        self.by_call.borrow_mut().remove(&(client, stream));
    }

    /// Forgets what a client watched.
    pub(in crate::grpc) fn forget_client(&self, client: AppId) {
        self.by_call.borrow_mut().retain(|(of, _), _| *of != client);
    }

    /// What a client watches, for another process.
    pub(in crate::grpc) fn of(&self, client: AppId) -> Vec<CarriedWatch> {
        let watches = self.by_call.borrow();
        let own = watches.range((client, 0)..=(client, u32::MAX));
        own.map(|((_, stream), watch)| CarriedWatch {
            stream: *stream,
            service: watch.service.clone(),
            told: watch.told.into(),
        })
        .collect()
    }

    /// Goes on with what a client of another process watches.
    pub(in crate::grpc) fn resume(&self, client: AppId, watches: impl Iterator<Item = CarriedWatch>) {
        for watch in watches.take(CLIENT_WATCHES_MAX) {
            let (stream, service) = (watch.stream, watch.service);
            // What is not known is told anew.
            let told = ServingStatus::try_from(watch.told).unwrap_or(ServingStatus::Unknown);
            let watch = HealthWatch { service, told };
            self.by_call.borrow_mut().insert((client, stream), watch);
        }
    }

    fn of_client(&self, client: AppId) -> usize {
        let watches = self.by_call.borrow();
        watches.range((client, 0)..=(client, u32::MAX)).count()
    }
}

impl GrpcAccess {
    pub(super) fn check_health(&self, app: &AttachedApp, request: &[u8]) -> Result<Vec<u8>, GrpcStatus> {
        let asked = HealthCheckRequest::decode(request).map_err(|error| malformed(&error))?;
        match self.health_of(app, &asked.service) {
            ServingStatus::ServiceUnknown => {
                let message = self.connector.unknown_service(app, &asked.service);
                Err(GrpcStatus::new(Code::NotFound, message))
            }
            status => Ok(status.response().encode_to_vec()),
        }
    }

    /// All that the client may be told of.
    pub(super) fn list_health(&self, app: &AttachedApp) -> Vec<u8> {
        let services = self.connector.known_to(app);
        let statuses = std::iter::once(String::new()).chain(services).map(|service| {
            let status = self.health_of(app, &service).response();
            (service, status)
        });
        let statuses = statuses.collect();
        HealthListResponse { statuses }.encode_to_vec()
    }

    /// Tells the state of a service, and from now on each other that it has.
    pub(super) fn watch_health(
        self: &Rc<Self>,
        client: &GrpcClient,
        app: &AttachedApp,
        question: &NodeQuestion,
    ) -> Result<Vec<u8>, GrpcStatus> {
        let asked = HealthCheckRequest::decode(&*question.message).map_err(|error| malformed(&error))?;
        if self.watches.of_client(client.id) >= CLIENT_WATCHES_MAX {
            let message = format!(
                "this connection watches the health of {CLIENT_WATCHES_MAX} services, which is its limit"
            );
            return Err(GrpcStatus::new(Code::ResourceExhausted, message));
        }
        let told = self.health_of(app, &asked.service);
        let service = asked.service;
        let watch = HealthWatch { service, told };
        self.watches
            .by_call
            .borrow_mut()
            .insert((client.id, question.stream), watch);
        self.look_at_watched_if_any();
        Ok(told.response().encode_to_vec())
    }

    /// Looks at what is watched from now on, if anything is.
    pub(in crate::grpc) fn look_at_watched_if_any(self: &Rc<Self>) {
        let is_watching = !self.watches.by_call.borrow().is_empty();
        if is_watching && !self.watches.is_looking.replace(true) {
            tokio::task::spawn_local(Rc::clone(self).look_at_watched());
        }
    }

    /// Runs as long as anything is watched.
    async fn look_at_watched(self: Rc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            for (client, answer) in self.changed_health() {
                self.send_answer(&client, answer).await;
            }
            if self.watches.by_call.borrow().is_empty() {
                self.watches.is_looking.set(false);
                return;
            }
        }
    }

    fn changed_health(&self) -> Vec<(Rc<GrpcClient>, NodeAnswer)> {
        let mut changed = Vec::new();
        for ((id, stream), watch) in self.watches.by_call.borrow_mut().iter_mut() {
            let Some(client) = self.clients.find(*id) else {
                continue;
            };
            let Ok(app) = self.admitted(&client) else {
                continue;
            };
            let status = self.health_of(&app, &watch.service);
            if status == watch.told {
                continue;
            }
            watch.told = status;
            let answer = NodeAnswer {
                stream: *stream,
                messages: vec![status.response().encode_to_vec()],
                is_further: true,
                then: NodeAnswerEnd::More,
            };
            changed.push((client, answer));
        }
        changed
    }

    fn health_of(&self, app: &AttachedApp, service: &str) -> ServingStatus {
        if service.is_empty() {
            return if self.connector.connections.is_draining() {
                ServingStatus::NotServing
            } else {
                ServingStatus::Serving
            };
        }
        match self.connector.reach_of(app, service) {
            ServiceReach::Leads => ServingStatus::Serving,
            ServiceReach::Fails => ServingStatus::NotServing,
            ServiceReach::Unknown => ServingStatus::ServiceUnknown,
        }
    }
}
