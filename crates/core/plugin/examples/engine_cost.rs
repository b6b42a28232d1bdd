//! What an engine costs, built in and loaded: calls through it beside calls past none, in one run.
//!
//!     cargo build --release -p example-api-key
//!     cargo run --release -p provost-plugin --example engine_cost -- target/release
#![forbid(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use provost_engine::cost::{Candidate, print_calls};
use provost_engine::rig::{Service, policy, with_metadata};
use provost_engine::{
    AttachError, DatapathContext, Ended, Filter, FilterEngine, FilterEngineParts, Policy, Start, Step,
    StepView, Verdict, Watch,
};

const PROTO: &str = "syntax = \"proto3\"; package t; message M {} service S { rpc Get(M) returns (M); }";

#[derive(Clone, Copy)]
struct Trivial(Watch);

impl Filter for Trivial {
    type Call = ();

    fn watch(&self) -> Watch {
        self.0
    }

    fn judge(&mut self, _call: &mut (), _step: &mut StepView<'_>) -> Verdict {
        Verdict::Pass
    }

    fn ended(&mut self, _call: (), _end: &Ended) {}
}

impl Policy for Trivial {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let parts = FilterEngineParts {
            kind: "trivial",
            version: 1,
            datapath_context: datapath_context.clone(),
            filter: *self,
        };
        Ok(Box::new(|saved| Ok(Box::new(FilterEngine::start(parts, saved)?))))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args()
        .nth(1)
        .ok_or("give the folder that the libraries are in")?;
    let loaded = |name: &str, config: &str| -> Result<Arc<dyn Policy>, Box<dyn std::error::Error>> {
        let kind = provost_plugin::load(&Path::new(&folder).join(name))?;
        Ok(policy(&*kind, config, None)?)
    };
    let api_key = loaded("libexample_api_key.so", "keys = ['secret']")?;
    let service = Service::from_source(PROTO);
    let request = |step: Step| with_metadata(step, &[("x-api-key", "secret")]);
    let candidates = [
        Candidate {
            name: "beginnings",
            policy: &Trivial(Watch::BEGINNINGS),
        },
        Candidate {
            name: "every step and call",
            policy: &Trivial(Watch::ALL),
        },
        Candidate {
            name: "loaded: api-key",
            policy: &*api_key,
        },
    ];
    print_calls(&service, &request, &candidates);
    Ok(())
}
