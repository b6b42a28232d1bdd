//! The one place where a datapath is put together, in the order in which a call meets its engines.

use std::sync::Arc;

use provost_datapath::{Datapath, Engine, Link};
use provost_engine::{AppIdentity, MethodSite, PeerIdentity, Site};
use provost_frontend::{AppRole, CallQuota, Frontend, FrontendParts, MethodShape, SendHeap};
use provost_marshalling::{Binding, Encoding, Marshalling, MethodTypes, Side};
use provost_schema::{Method, Service};

use crate::policies::chain::FittedEngine;
use crate::runtime::{ConnectionId, Fitted, Guard, Tag};
use crate::schemas::BoundSchema;

/// What a datapath is made of.
pub(crate) struct Plan<'a> {
    /// Which side of its calls the app is on.
    pub(crate) role: AppRole,
    /// The app's own schema of the service.
    pub(crate) schema: &'a Arc<BoundSchema>,
    /// The app's send heap.
    pub(crate) send_heap: SendHeap,
    /// In which form messages go over the transport.
    pub(crate) encoding: Encoding,
    /// Largest message, in bytes.
    pub(crate) message_bytes_max: u32,
    /// Calls in flight on the connection.
    pub(crate) calls_max: u32,
    /// A server's bound over all its connections.
    pub(crate) quota: Option<Arc<CallQuota>>,
    /// The policies, the first that an outgoing call meets first.
    pub(crate) policies: Vec<FittedEngine>,
    /// The transport.
    pub(crate) transport: Box<dyn Engine>,
    /// The link that transport and frontend share.
    pub(crate) link: Arc<Link>,
}

/// What the engines at the app's end of a datapath are made of.
pub(crate) struct AppEnd<'a> {
    /// See [`Plan`].
    pub(crate) role: AppRole,
    /// See [`Plan`].
    pub(crate) schema: &'a BoundSchema,
    /// See [`Plan`].
    pub(crate) send_heap: SendHeap,
    /// See [`Plan`].
    pub(crate) encoding: Encoding,
    /// See [`Plan`].
    pub(crate) message_bytes_max: u32,
    /// See [`Plan`].
    pub(crate) calls_max: u32,
    /// See [`Plan`].
    pub(crate) quota: Option<Arc<CallQuota>>,
    /// See [`Plan`].
    pub(crate) link: Arc<Link>,
}

impl AppEnd<'_> {
    /// For the first engine.
    pub(crate) fn frontend(&self) -> FrontendParts {
        FrontendParts {
            role: self.role,
            tables: Arc::clone(&self.schema.tables),
            methods: self
                .service()
                .map_or_else(|| Arc::from([]), MethodShape::of_service),
            send_heap: self.send_heap.clone(),
            message_bytes_max: self.message_bytes_max,
            calls_max: self.calls_max,
            quota: self.quota.clone(),
            link: Arc::clone(&self.link),
        }
    }

    /// For the last engine but one.
    pub(crate) fn marshalling(&self) -> Binding {
        Binding {
            tables: Arc::clone(&self.schema.tables),
            methods: self.service().map_or_else(|| Arc::from([]), method_types),
            side: match self.role {
                AppRole::Client => Side::Client,
                AppRole::Server => Side::Server,
            },
            encoding: self.encoding,
            message_bytes_max: self.message_bytes_max,
        }
    }

    /// A bound schema has its one service (see `schemas`).
    fn service(&self) -> Option<&Service> {
        self.schema.schema.service(&self.schema.service)
    }
}

/// Puts a datapath together. Beside it comes what is known of each of its engines.
pub(crate) fn datapath(plan: Plan<'_>) -> (Datapath, Vec<Fitted>) {
    let end = AppEnd {
        role: plan.role,
        schema: plan.schema,
        send_heap: plan.send_heap,
        encoding: plan.encoding,
        message_bytes_max: plan.message_bytes_max,
        calls_max: plan.calls_max,
        quota: plan.quota,
        link: Arc::clone(&plan.link),
    };
    let frontend = Frontend::new(end.frontend());
    let marshalling = Marshalling::new(end.marshalling());
    let fixed = |engine, tag| FittedEngine {
        engine,
        fitted: Fitted::new(tag, Guard::default()),
    };
    let mut engines = vec![fixed(Box::new(frontend), Tag::FRONTEND)];
    engines.extend(plan.policies);
    engines.push(fixed(Box::new(marshalling), Tag::MARSHALLING));
    engines.push(fixed(plan.transport, Tag::TRANSPORT));
    let (engines, fitted) = engines
        .into_iter()
        .map(|fitted| (fitted.engine, fitted.fitted))
        .unzip();
    (Datapath::new(engines, plan.link), fitted)
}

/// Where a datapath is, as its policies are told.
pub(crate) struct Whereabouts<'a> {
    /// The node's name.
    pub(crate) node: &'a str,
    /// The app whose datapath it is.
    pub(crate) app: Arc<AppIdentity>,
    /// Which side of its calls the app is on.
    pub(crate) role: AppRole,
    /// The app's own schema of the service.
    pub(crate) schema: &'a BoundSchema,
    /// Who is at the other end.
    pub(crate) peer: PeerIdentity,
    /// The connection's number.
    pub(crate) connection: ConnectionId,
    /// The runtime that polls it.
    pub(crate) runtime: usize,
}

/// The datapath's site, of which each policy gets its own with the methods that it is for.
pub(crate) fn site(at: Whereabouts<'_>) -> Arc<Site> {
    let service = at.schema.schema.service(&at.schema.service);
    Arc::new(Site {
        node: at.node.into(),
        app: at.app,
        side: match at.role {
            AppRole::Client => provost_engine::Side::Client,
            AppRole::Server => provost_engine::Side::Server,
        },
        service: at.schema.service.as_str().into(),
        methods: service.map_or_else(|| Arc::from([]), method_sites),
        scope: Arc::from([]),
        schema: Arc::clone(&at.schema.schema),
        tables: Arc::clone(&at.schema.tables),
        peer: at.peer,
        connection: at.connection,
        runtime: at.runtime,
        verdicts: Arc::default(),
    })
}

fn method_sites(service: &Service) -> Arc<[MethodSite]> {
    let site = |method: &Method| MethodSite {
        name: method.name.as_str().into(),
        path: format!("/{}/{}", service.full_name, method.name).into(),
        input: method.input,
        output: method.output,
        client_streaming: method.client_streaming,
        server_streaming: method.server_streaming,
    };
    service.methods.iter().map(site).collect()
}

fn method_types(service: &Service) -> Arc<[MethodTypes]> {
    let types = |method: &Method| MethodTypes {
        input: method.input,
        output: method.output,
    };
    service.methods.iter().map(types).collect()
}
