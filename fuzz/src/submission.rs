//! The target of `provost-frontend`: what an app writes into its submission ring and its send heap.

use std::sync::Arc;

use provost_datapath::{
    Body, BufferPool, ConnectionSignals, Context, Engine, FlowHints, Nanos, Ports, Progress, Queue,
    SocketHint, Step,
};
use provost_frontend::{
    AppPort, AppReceiveHeap, AppRequest, AppRole, CallQuota, Frontend, FrontendParts, MethodShape,
    NewSegment, NotPushed, ReceiveLimits, SegmentMemory, SegmentSource, SendHeap,
};
use provost_shm::{Access, AppRings, Doorbell, Mapping, Memfd, SEALS_READ_ONLY_FOR_OTHERS, ServiceRings};
use provost_wire::descriptor::{Parts, Submission, submission_kind};
use provost_wire::limits::{RING_SLOTS_MIN, SEND_WINDOW};
use provost_wire::region::SLOT_BYTES;
use zerocopy::{FromBytes, IntoBytes};

use crate::subject::Subject;

/// Bytes of the send heap.
const HEAP_BYTES: u64 = 64 << 10;
/// Where the receive window begins, in units of 8 bytes.
const RECEIVE_WINDOW: u32 = SEND_WINDOW + (HEAP_BYTES as u32) / 8;
/// Descriptors at the start of an input; the rest of it goes into the send heap.
const SUBMISSIONS_MAX: usize = RING_SLOTS_MIN as usize;
/// Polls that the engine gets for one input; it needs far fewer.
const POLLS: usize = 64;
/// Steps that the queues around the engine hold.
const QUEUE_STEPS: usize = 64;

/// The first byte says how many descriptors follow and on which side of its calls the app is. Whatever they claim,
/// nothing that was only claimed goes towards the wire, and what goes there is well-formed.
pub(crate) fn submissions(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    let count = usize::from(*first) % SUBMISSIONS_MAX;
    let (slots, heap) = rest.split_at(rest.len().min(count * SLOT_BYTES));
    let role = if *first < 128 {
        AppRole::Client
    } else {
        AppRole::Server
    };
    // Without memory or descriptors there is nothing to try.
    let Ok(mut node) = Node::new(role, heap) else {
        return;
    };
    for slot in slots.chunks_exact(SLOT_BYTES) {
        let Ok(slot) = <[u64; 8]>::read_from_bytes(slot) else {
            return;
        };
        if node.app.submissions.push(&slot).is_err() {
            break;
        }
    }
    node.app.submissions.publish();
    node.poll();
}

/// Well-formed calls, unary and streamed, over messages in the heap.
pub(crate) fn submissions_seeds() -> Vec<Vec<u8>> {
    let subject = Subject::get();
    let relocated = |mut native: Vec<u8>| {
        subject
            .tables
            .validate_and_relocate(subject.everything(), &mut native, SEND_WINDOW)
            .ok()?;
        Some(native)
    };
    let mut seeds: Vec<Vec<u8>> = subject
        .native_seeds()
        .into_iter()
        .filter_map(relocated)
        .map(calls)
        .collect();
    seeds.push(vec![0]);
    seeds
}

fn calls(heap: Vec<u8>) -> Vec<u8> {
    let step = |call, method, parts| Submission {
        kind: submission_kind::STEP,
        parts,
        method,
        call,
        root: SEND_WINDOW,
        token: call,
        ..Submission::default()
    };
    let submissions = [
        step(1, 0, Parts::BEGIN | Parts::MESSAGE | Parts::END),
        step(2, 3, Parts::BEGIN),
        step(2, 0, Parts::MESSAGE),
        step(2, 0, Parts::MESSAGE | Parts::END),
        step(3, 2, Parts::BEGIN | Parts::MESSAGE | Parts::END),
        step(3, 0, Parts::WINDOW),
        step(1, 0, Parts::CANCEL),
    ];
    let slots = submissions
        .iter()
        .flat_map(|submission| submission.as_bytes())
        .copied();
    std::iter::once(submissions.len() as u8)
        .chain(slots)
        .chain(heap)
        .collect()
}

/// An app's ends of the rings, and what the service has for it.
struct Node {
    app: AppRings,
    port: AppPort,
    frontend: Box<Frontend>,
    queues: Queues,
    buffers: BufferPool,
}

struct Queues {
    tx_in: Queue<Step>,
    tx_out: Queue<Step>,
    rx_in: Queue<Step>,
    rx_out: Queue<Step>,
}

impl Node {
    fn new(role: AppRole, heap: &[u8]) -> Result<Node, Box<dyn std::error::Error>> {
        let (rings, [submission, completion]) = ServiceRings::create(RING_SLOTS_MIN, RING_SLOTS_MIN)?;
        let app = AppRings::map(submission, RING_SLOTS_MIN, completion, RING_SLOTS_MIN)?;
        let (ringer, _) = Doorbell::create()?;
        let limits = ReceiveLimits {
            window_at: RECEIVE_WINDOW,
            window_bytes: 4 << 20,
            bytes_max: 4 << 20,
        };
        let send_heap = send_heap(heap)?;
        let queue = || Queue::with_bound(QUEUE_STEPS);
        Ok(Node {
            app,
            port: AppPort::new(rings, ringer, AppReceiveHeap::new(Box::new(HeapSegments), limits)),
            frontend: Box::new(Frontend::new(frontend_parts(role, send_heap))),
            queues: Queues {
                tx_in: queue(),
                tx_out: queue(),
                rx_in: queue(),
                rx_out: queue(),
            },
            buffers: BufferPool::new(),
        })
    }

    fn poll(&mut self) {
        for round in 0..POLLS {
            while !self.queues.tx_in.is_full() {
                match self.port.next_request() {
                    Ok(Some(AppRequest::Step { step, .. })) => drop(self.queues.tx_in.push(step)),
                    Ok(Some(AppRequest::Close { .. })) => {}
                    Ok(None) => break,
                    // The app is detached.
                    Err(_) => return,
                }
            }
            self.port.release();
            let progress = self.work(round as Nanos);
            while let Some(step) = self.queues.tx_out.pop() {
                check(&step);
                self.answer(&step);
            }
            while let Some(step) = self.queues.rx_out.pop() {
                if let Err(NotPushed::Fault(_) | NotPushed::Full(_)) = self.port.push_step(0, step) {
                    return;
                }
            }
            if progress != Progress::Busy && self.queues.rx_in.is_empty() {
                return;
            }
        }
    }

    fn work(&mut self, now: Nanos) -> Progress {
        let (receive, sent) = self.port.lend();
        let context = &mut Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now,
            buffers: &mut self.buffers,
            receive,
            sent,
        };
        let Queues {
            tx_in,
            tx_out,
            rx_in,
            rx_out,
        } = &mut self.queues;
        self.frontend.do_work(
            Ports {
                tx_in,
                tx_out,
                rx_in,
                rx_out,
            },
            context,
        )
    }

    /// A peer that ends every second call at once.
    fn answer(&mut self, step: &Step) {
        if step.parts.contains(Parts::BEGIN) && step.call % 2 == 1 {
            // A full queue only means that this call stays open.
            let _ = self.queues.rx_in.push(Step::new(step.call, Parts::STATUS));
        }
    }
}

/// An app's memory, which begins with these bytes.
pub(crate) fn send_heap(bytes: &[u8]) -> Result<SendHeap, Box<dyn std::error::Error>> {
    let memory = Memfd::create("fuzz-send-heap", HEAP_BYTES)?;
    memory.write_at(0, &bytes[..bytes.len().min(HEAP_BYTES as usize)])?;
    Ok(SendHeap::new(Mapping::new(&memory, Access::ReadOnly)?).ok_or("mapped at address 0")?)
}

pub(crate) fn frontend_parts(role: AppRole, send_heap: SendHeap) -> FrontendParts {
    let subject = Subject::get();
    let service = &subject.schema.services[0];
    FrontendParts {
        role,
        form: provost_datapath::BodyForm::Native,
        tables: subject.tables.clone(),
        methods: MethodShape::of_service(service),
        send_heap,
        message_bytes_max: HEAP_BYTES as u32,
        calls_max: 8,
        quota: Some(Arc::new(CallQuota::new(4))),
        link: Arc::new(ConnectionSignals::new()),
    }
}

fn check(step: &Step) {
    match &step.body {
        Body::Untrusted(untrusted) => panic!("{untrusted:?} went out unchecked"),
        Body::Gathered(body) => {
            let foreign: u64 = body
                .buffer
                .foreign
                .iter()
                .map(|range| u64::from(range.len()).next_multiple_of(8))
                .sum();
            let carried = body.buffer.bytes.len() as u64 + foreign;
            assert!(
                u64::from(body.message_bytes) <= carried,
                "a message is longer than what carries it"
            );
            let metadata = &body.buffer.bytes[..body.metadata_bytes as usize];
            assert_eq!(
                provost_wire::metadata::check(metadata),
                Ok(()),
                "metadata went out unchecked"
            );
        }
        Body::Empty | Body::Received(_) | Body::Encoded(_) => {}
    }
}

/// Makes segments that no app hears of.
pub(crate) struct HeapSegments;

impl SegmentSource for HeapSegments {
    fn make(&mut self, segment: NewSegment) -> Option<SegmentMemory> {
        let memfd = Memfd::create("fuzz-segment", segment.bytes).ok()?;
        let mapping = Mapping::new(&memfd, Access::ReadWrite).ok()?;
        memfd.seal(SEALS_READ_ONLY_FOR_OTHERS).ok()?;
        Some(SegmentMemory { memfd, mapping })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_calls_go_out() {
        let seed = submissions_seeds().swap_remove(2);
        let mut out = 0;
        let (slots, heap) = seed[1..].split_at(usize::from(seed[0]) * SLOT_BYTES);
        let mut node = Node::new(AppRole::Client, heap).unwrap();
        for slot in slots.chunks_exact(SLOT_BYTES) {
            node.app
                .submissions
                .push(&<[u64; 8]>::read_from_bytes(slot).unwrap())
                .unwrap();
        }
        node.app.submissions.publish();
        while let Some(AppRequest::Step { step, .. }) = node.port.next_request().unwrap() {
            node.queues.tx_in.push(step).unwrap();
        }
        for now in 0..4 {
            node.work(now);
            while let Some(step) = node.queues.tx_out.pop() {
                check(&step);
                out += usize::from(matches!(step.body, Body::Gathered(_)));
            }
        }
        assert!(out >= 2, "{out} messages went out");
    }
}
