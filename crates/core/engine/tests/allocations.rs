//! Calls at rest allocate nothing in a filter engine, whether its filter keeps calls in mind, holds them or looks at metadata.

use std::sync::Arc;

use provost_allocations::{CountingAllocator, made_by_thread};
use provost_engine::rig::{Rig, Service, with_metadata};
use provost_engine::{
    AttachError, DatapathContext, Ended, Filter, FilterEngine, FilterEngineParts, Policy, Side, Start, Step,
    StepView, Verdict, Watch,
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PROTO: &str = "syntax = \"proto3\"; package t; message M {} service S { rpc Get(M) returns (M); }";
const CALLS: usize = 32;
const WARM_UP_ROUNDS: usize = 200;
const ROUNDS: usize = 500;

/// Looks at what comes, and lets each request wait for a while.
#[derive(Clone, Copy)]
struct Busy {
    watch: Watch,
    hold: u64,
}

impl Filter for Busy {
    type Call = ();

    fn watch(&self) -> Watch {
        self.watch
    }

    fn judge(&mut self, _call: &mut (), step: &mut StepView<'_>) -> Verdict {
        let known = step.metadata("user") == Some(b"ann");
        match step.held_since() {
            None if known && self.hold > 0 => Verdict::Hold {
                until: step.now() + self.hold,
            },
            _ => Verdict::Pass,
        }
    }

    fn ended(&mut self, _call: (), _end: &Ended) {}
}

impl Policy for Busy {
    fn prepare(&self, datapath_context: &DatapathContext) -> Result<Start, AttachError> {
        let parts = FilterEngineParts {
            kind: "busy",
            version: 1,
            datapath_context: datapath_context.clone(),
            filter: *self,
        };
        Ok(Box::new(|saved| Ok(Box::new(FilterEngine::start(parts, saved)?))))
    }
}

/// Sends the steps through and takes them back to be sent again.
fn round(rig: &mut Rig, requests: &mut Vec<Step>, responses: &mut Vec<Step>, first: u64) {
    for (at, mut step) in requests.drain(..).enumerate() {
        step.call = first + at as u64;
        rig.send(step);
    }
    for _ in 0..3 {
        rig.now += 10;
        rig.poll();
    }
    requests.extend(std::iter::from_fn(|| rig.queues.tx_out.pop()));
    for (at, mut step) in responses.drain(..).enumerate() {
        step.call = first + at as u64;
        rig.receive(step);
    }
    rig.poll();
    responses.extend(std::iter::from_fn(|| rig.queues.rx_out.pop()));
}

#[test]
fn calls_at_rest_allocate_nothing() {
    let service = Service::from_source(PROTO);
    for watch in [Watch::BEGINNINGS, Watch::ALL] {
        for hold in [0, 5] {
            let policy: Arc<dyn Policy> = Arc::new(Busy { watch, hold });
            let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
            let request = |_| with_metadata(service.request(0, 0, &[]), &[("user", "ann")]);
            let mut requests: Vec<Step> = (0..CALLS).map(request).collect();
            let mut responses: Vec<Step> = (0..CALLS).map(|_| service.response(0, 0, &[])).collect();
            let mut first = 1;
            let mut before = 0;
            for number in 0..WARM_UP_ROUNDS + ROUNDS {
                if number == WARM_UP_ROUNDS {
                    before = made_by_thread();
                }
                round(&mut rig, &mut requests, &mut responses, first);
                assert_eq!((requests.len(), responses.len()), (CALLS, CALLS));
                first += CALLS as u64;
            }
            let made = made_by_thread() - before;
            assert_eq!(made, 0, "{watch:?}, held for {hold} ns: {made} allocations");
        }
    }
}
