//! By which schema a client calls that brings none: the one that this node has of the service, else one that says no more than
//! which methods were called. Of such an opaque service messages pass as the bytes that they are.

use std::collections::BTreeSet;
use std::sync::Arc;

use provost_frontend_grpc::WantedService;
use provost_schema::OpaqueMethod;
use provost_wire::Code;

use crate::app_registry::AttachedApp;
use crate::config::RouteConfig;
use crate::connect::{ConnectionRoute, Connector};
use crate::connections::OpenConnection;
use crate::log;
use crate::policies::attachment::Attachment;
use crate::refusal::Refusal;
use crate::runtime::{AppId, ConnectionId};
use crate::schemas::{BoundSchema, opaque_schema};

/// Methods as a policy may mean them, of a service of which none is known.
fn meant_methods(attachment: &Attachment) -> impl Iterator<Item = String> {
    let patterns = attachment.methods.iter();
    let names = patterns.map(|pattern| {
        let name = pattern.rsplit('/').next().unwrap_or_default();
        name.replace('*', "Any")
    });
    let names: BTreeSet<String> = names.collect();
    let any = names.is_empty().then(|| "Any".to_owned());
    names.into_iter().chain(any)
}

impl Connector {
    /// The schema of a service that leads somewhere, for a client that brings none.
    pub(crate) async fn schema_of_client(
        &self,
        app: &AttachedApp,
        wanted: &WantedService,
    ) -> Result<Arc<BoundSchema>, Refusal> {
        let service = &wanted.service;
        let known = self.services.schema_to_call(service);
        if let Some(schema) = &known
            && self.services.is_meant(schema)
        {
            return Ok(Arc::clone(schema));
        }
        // Where it leads nowhere, that is the better reason, and what a gRPC server says of a service that it has not. (An app
        // is told that it is not there now: it brings a schema, and so knows that there is such a service.)
        let route = self.route_of(app, service).map_err(|refusal| Refusal {
            code: Code::Unimplemented,
            ..refusal
        })?;
        if let Some(schema) = known {
            return Ok(schema);
        }
        match route {
            ConnectionRoute::Remote(route) if route.has_reflection => {
                let identity = &app.endpoint.identity;
                let _attempt = self.attempts.begin(identity.id, identity.uid)?;
                match app.unless_gone(self.learn_schema(service, &route)).await?? {
                    Some(schema) => Ok(schema),
                    None => self.opaque(wanted),
                }
            }
            ConnectionRoute::Remote(_) => self.opaque(wanted),
            ConnectionRoute::Local => Err(Refusal::new(
                Code::Unavailable,
                format!(
                    "no schema of {service} is known on this node, and no app has bound it: name its file in \
                     schemas.prefetch, or attach an app that serves it"
                ),
            )),
        }
    }

    fn opaque(&self, wanted: &WantedService) -> Result<Arc<BoundSchema>, Refusal> {
        let schema = self.services.opaque.schema_with(&wanted.service, &wanted.method);
        schema.map_err(|error| {
            let name = format!("/{}/{}", wanted.service, wanted.method);
            let name = log::cut(&name);
            let message = format!("there is no method {name}: {error}");
            Refusal::new(Code::Unimplemented, message)
        })
    }

    /// The schemas that a policy is tried on: those that are known, and of opaque services the methods that were called, or that
    /// the policy means.
    pub(crate) fn schemas_for(&self, attachment: &Attachment) -> Vec<Arc<BoundSchema>> {
        let known = self.services.schemas().into_iter().map(|(schema, _)| schema);
        let mut schemas: Vec<_> = known.chain(self.services.opaque.list()).collect();
        let live = self.config.live();
        let leads_away = |route: &&RouteConfig| route.service != "*" && !route.endpoints.is_empty();
        for route in live.routes.iter().filter(leads_away) {
            if schemas.iter().all(|schema| schema.service != route.service) {
                let methods = meant_methods(attachment).map(|name| OpaqueMethod::of_any_kind(&name));
                // A policy may mean what no method can be called.
                schemas.extend(opaque_schema(&route.service, methods));
            }
        }
        schemas
    }

    /// Has calls leave those connections of a client by which an opaque service was called before this one: they had fewer
    /// methods. Calls that are under way end where they are.
    pub(crate) fn leave_opaque(&self, app: AppId, service: &str, latest: ConnectionId) {
        self.connections.each_of_app(app, |open| {
            if open.spec.id != latest && calls_opaque(open, service) {
                open.drain();
            }
        });
    }

    /// Has all clients call services by the schemas that are known of them now.
    pub(crate) fn follow_schemas<'a>(&self, known: impl IntoIterator<Item = &'a Arc<BoundSchema>>) {
        for schema in known {
            self.services.opaque.forget(&schema.service);
            let open = self.connections.all();
            let left = open.values().filter(|open| calls_opaque(open, &schema.service));
            left.for_each(OpenConnection::drain);
        }
    }
}

/// Whether it is a connection to this service by a schema that has nothing but names of methods.
fn calls_opaque(open: &OpenConnection, service: &str) -> bool {
    let schema = &open.spec.schema;
    schema.service == service && schema.schema.is_opaque()
}
