//! The one place where a datapath is put together, in the order in which a call meets its engines.

use std::sync::Arc;

use provost_datapath::{Datapath, Engine, Link};
use provost_frontend::{AppRole, CallQuota, Frontend, FrontendParts, MethodShape, SendHeap};
use provost_marshalling::{Binding, Encoding, Marshalling, MethodTypes, Side};
use provost_policy_null::NullPolicy;
use provost_schema::Service;

use crate::schemas::BoundSchema;

/// What a datapath is made of.
pub(crate) struct Plan<'a> {
    /// Which side of its calls the app is on.
    pub(crate) role: AppRole,
    /// The app's own schema of the service.
    pub(crate) schema: &'a BoundSchema,
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
    /// Names of the policies, the first that an outgoing call meets first.
    pub(crate) policies: &'a [String],
    /// The transport.
    pub(crate) transport: Box<dyn Engine>,
    /// The link that transport and frontend share.
    pub(crate) link: Arc<Link>,
}

/// Puts a datapath together.
pub(crate) fn datapath(plan: Plan<'_>) -> Datapath {
    // A bound schema has its one service (see `schemas`).
    let service = plan.schema.schema.service(&plan.schema.service);
    let frontend = Frontend::new(FrontendParts {
        role: plan.role,
        tables: Arc::clone(&plan.schema.tables),
        methods: service.map_or_else(|| Arc::from([]), MethodShape::of_service),
        send_heap: plan.send_heap,
        message_bytes_max: plan.message_bytes_max,
        calls_max: plan.calls_max,
        quota: plan.quota,
        link: Arc::clone(&plan.link),
    });
    let marshalling = Marshalling::new(Binding {
        tables: Arc::clone(&plan.schema.tables),
        methods: service.map_or_else(|| Arc::from([]), method_types),
        side: match plan.role {
            AppRole::Client => Side::Client,
            AppRole::Server => Side::Server,
        },
        encoding: plan.encoding,
        message_bytes_max: plan.message_bytes_max,
    });
    let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(frontend)];
    engines.extend(plan.policies.iter().filter_map(|name| policy(name)));
    engines.push(Box::new(marshalling));
    engines.push(plan.transport);
    Datapath::new(engines, plan.link)
}

/// The policy of this name. The configuration was checked: there are no others.
fn policy(name: &str) -> Option<Box<dyn Engine>> {
    match name {
        "null" => Some(Box::new(NullPolicy)),
        _ => None,
    }
}

fn method_types(service: &Service) -> Arc<[MethodTypes]> {
    let types = |method: &provost_schema::Method| MethodTypes {
        input: method.input,
        output: method.output,
    };
    service.methods.iter().map(types).collect()
}
