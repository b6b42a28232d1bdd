//! What a null policy costs: a datapath with it beside one without, in one run.
//!
//!     cargo run --release -p provost-policy-null --example cost
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use provost_datapath::{
    BufferPool, Context, Datapath, Engine, HeapFull, Link, Ports, Progress, QUEUE_STEPS_MAX, ReceiveHeap,
    ReceivedBlock, SavedState, Saver, SocketHint, Step,
};
use provost_policy_null::NullPolicy;
use provost_wire::descriptor::Parts;

/// Polls of each datapath in a round; the best of the rounds counts, as what disturbs only ever adds.
const POLLS: u32 = 200_000;
const ROUNDS: usize = 20;

fn main() {
    println!("null policy, ns for each step that goes out and comes back");
    for steps in [1, 8, QUEUE_STEPS_MAX] {
        let (mut without, mut with) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            without = without.min(step_ns(Vec::new(), steps));
            with = with.min(step_ns(vec![Box::new(NullPolicy)], steps));
        }
        println!(
            "{steps:3} steps a poll: without {without:6.1}, with {with:6.1}: {:6.1}",
            with - without
        );
    }
}

/// The time of one step through the policies, a wire that is a mirror, and back.
fn step_ns(mut engines: Vec<Box<dyn Engine>>, steps: usize) -> f64 {
    engines.push(Box::new(Mirror));
    let mut datapath = Datapath::new(engines, Arc::new(Link::new()));
    let (mut buffers, mut sent) = (BufferPool::new(), Vec::new());
    let mut context = Context {
        socket: SocketHint::Skip,
        now: 0,
        buffers: &mut buffers,
        receive: &mut NoHeap,
        sent: &mut sent,
    };
    let began = Instant::now();
    for poll in 0..POLLS {
        for _ in 0..steps {
            let _ = datapath.from_app().push(Step::new(u64::from(poll), Parts::BEGIN));
        }
        black_box(datapath.poll(&mut context));
        while let Some(step) = datapath.to_app().pop() {
            black_box(step);
        }
    }
    began.elapsed().as_nanos() as f64 / f64::from(POLLS) / steps as f64
}

struct Mirror;

impl Engine for Mirror {
    fn kind(&self) -> &'static str {
        "mirror"
    }

    fn do_work(&mut self, ports: Ports<'_>, _context: &mut Context<'_>) -> Progress {
        while let Some(step) = ports.tx_in.pop() {
            // There is room: what comes back is as much as went out.
            let _ = ports.rx_out.push(step);
        }
        Progress::Idle
    }

    fn save(&self, _saver: &mut dyn Saver) -> SavedState {
        SavedState {
            kind: "mirror".to_owned(),
            version: 1,
            bytes: Vec::new(),
        }
    }
}

struct NoHeap;

impl ReceiveHeap for NoHeap {
    fn allocate(&mut self, _bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        Err(HeapFull)
    }

    fn bytes_mut(&mut self, _block: &mut ReceivedBlock) -> &mut [u8] {
        &mut []
    }

    fn free(&mut self, _block: ReceivedBlock) {}
}
