//! What policies are told of a service, by its schema alone.

use std::sync::Arc;

use provost_engine::{AppIdentity, DatapathContext, MethodContext, PeerIdentity, Side};

use crate::schemas::BoundSchema;
use crate::transport::TransportKind;

/// The methods of the service of a schema.
pub(crate) fn methods_of(schema: &BoundSchema) -> Vec<MethodContext> {
    let service = schema.schema.service(&schema.service);
    service.map_or_else(Vec::new, |service| MethodContext::of_service(service).to_vec())
}

/// A datapath as there could be one for a schema, to try policies on.
pub(crate) fn context_of_schema(schema: &BoundSchema, side: Side) -> DatapathContext {
    DatapathContext {
        node: "".into(),
        app: Arc::new(AppIdentity {
            id: 0,
            name: "".into(),
            pid: 0,
            uid: 0,
            gid: 0,
            user: "".into(),
            workload: "".into(),
        }),
        side,
        service: schema.service.as_str().into(),
        methods: methods_of(schema).into(),
        scope: Arc::from([]),
        schema: Arc::clone(&schema.schema),
        tables: Arc::clone(&schema.tables),
        peer: PeerIdentity {
            identity: "".into(),
            address: "".into(),
            transport: TransportKind::default().name(),
            app: None,
            attested: None,
        },
        connection: 0,
        runtime: 0,
        verdicts: Arc::default(),
    }
}
