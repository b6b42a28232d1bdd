//! A kind of policy for tests: it counts, and fails as it is told.

use std::sync::Arc;

use provost_datapath::BodyForm;
use provost_engine::{
    AttachError, Code, ConfigError, DatapathContext, Direction, Environment, Parts, Policy, PolicyKind,
    Sample, SampledStep, SharedState, Side, Start,
};

use super::schema_context::context_of_schema;
use crate::schemas::compile;

/// A service that has methods.
const SCHEMA: &[u8] = include_bytes!("../grpc/node_services/proto/health_and_reflection.binpb");

/// A call with an empty request, as a tap has sampled it under this number.
pub(crate) fn sample(number: u64) -> Sample {
    let schemas = compile(SCHEMA).unwrap();
    Sample {
        number,
        policy: "tap".into(),
        datapath_context: Arc::new(context_of_schema(&schemas[0], Side::Client)),
        call: number,
        method: 0,
        began_unix_ns: 0,
        duration_ns: 0,
        status: Code::Ok,
        steps: vec![SampledStep {
            direction: Direction::Request,
            parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
            status: Code::Ok,
            at_ns: 0,
            timeout_ns: 0,
            metadata: Vec::new(),
            message: Vec::new(),
            form: BodyForm::Protobuf,
            message_bytes: 0,
            window_at: 0,
        }],
        messages_left_out: 0,
        json: String::new(),
    }
}

/// The kind, in a version of the test's choice.
pub(crate) struct Probe {
    version: u32,
}

impl Probe {
    pub(crate) fn of_version(version: u32) -> Probe {
        Probe { version }
    }
}

impl PolicyKind for Probe {
    fn name(&self) -> &'static str {
        "probe"
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn summary(&self) -> &'static str {
        "for tests"
    }

    fn example(&self) -> &'static str {
        ""
    }

    fn configure(
        &self,
        config: &toml::Table,
        _environment: &Environment,
        shared: Option<&SharedState>,
    ) -> Result<Arc<dyn Policy>, ConfigError> {
        if config.contains_key("refuse") {
            return Err(ConfigError::new("refuse", "as asked"));
        }
        let inherited = shared.map_or(0, |shared| shared.version);
        Ok(Arc::new(Probed {
            generation: inherited + 1,
        }))
    }
}

struct Probed {
    generation: u32,
}

impl Policy for Probed {
    fn prepare(&self, _site: &DatapathContext) -> Result<Start, AttachError> {
        Err(AttachError::new("for tests of the table alone"))
    }

    fn save(&self) -> SharedState {
        SharedState {
            version: self.generation,
            bytes: Vec::new(),
        }
    }
}
