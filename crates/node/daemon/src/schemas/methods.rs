//! The methods of a service, in the forms in which engines and ports of its connections have them.

use std::collections::HashMap;
use std::sync::Arc;

use provost_engine::MethodContext;
use provost_frontend::MethodShape;
use provost_frontend_grpc::MethodBinding;
use provost_marshalling::MethodTypes;
use provost_schema::{Method, Service};

/// The methods of a service. All of its connections share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceMethods {
    /// What policies are told of them.
    pub(crate) contexts: Arc<[MethodContext]>,
    /// What the frontend checks steps by.
    pub(crate) shapes: Arc<[MethodShape]>,
    /// Which messages marshalling translates for each.
    pub(crate) types: Arc<[MethodTypes]>,
    /// What gRPC clients call them, and what they are.
    pub(crate) bindings: Arc<HashMap<String, MethodBinding>>,
}

impl ServiceMethods {
    pub(super) fn of_service(service: &Service) -> ServiceMethods {
        ServiceMethods {
            contexts: MethodContext::of_service(service),
            shapes: MethodShape::of_service(service),
            types: service.methods.iter().map(types).collect(),
            bindings: Arc::new(MethodBinding::of_service(service)),
        }
    }
}

fn types(method: &Method) -> MethodTypes {
    MethodTypes {
        input: method.input,
        output: method.output,
    }
}
