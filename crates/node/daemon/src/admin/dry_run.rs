//! A dry run: sampled calls go through an engine of a policy that is attached to nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use provost_admin::v1;
use provost_admin::v1::test_policy_response::Denied;
use provost_datapath::{
    Body, BodyForm, Buffer, BufferPool, Context, EncodedBody, Engine, FlowHints, Gathered, HeapFull, Offsets,
    Ports, Queue, ReceiveHeap, ReceivedBlock, ReceivedBody, SocketHint, Step, message_offset,
};
use provost_engine::{DatapathContext, Direction, Parts, Sample, SampleSource, SampledStep, Side};
use provost_shm::now_ns;
use provost_wire::limits::BLOCK_ALIGN_BYTES;
use provost_wire::metadata;
use tonic::Status;

use crate::policies::{Attachment, Instance, Maker};

use super::changes;
use super::desk::Desk;
use super::watching::taps;

/// Samples that a dry run uses, at most.
const SAMPLES_MAX: usize = 100_000;
/// Samples that are read at once.
const BATCH_MAX: usize = 256;
/// Polls in which an engine deals with one step, at most.
const POLLS_MAX: usize = 8;

/// Runs tapped calls through a policy, and counts what it says.
pub(crate) async fn test(
    desk: &Desk,
    asked: v1::TestPolicyRequest,
) -> Result<v1::TestPolicyResponse, Status> {
    let policy = asked
        .policy
        .ok_or_else(|| Status::invalid_argument("policy: say what is to be tested"))?;
    let attachment = changes::attachment(policy)?;
    let most = match asked.samples_max {
        0 => SAMPLES_MAX,
        asked => SAMPLES_MAX.min(asked as usize),
    };
    let samples = samples(desk, &asked.tap, most)?;
    let maker = desk.plane.policies.maker.clone();
    let run = move || try_out(&maker, &attachment, &samples);
    let ran = tokio::task::spawn_blocking(run).await;
    ran.map_err(|_| Status::internal("the dry run was cut short"))?
}

/// Runs calls through a policy of which nobody hears: none of them is denied.
fn try_out(
    maker: &Maker,
    attachment: &Attachment,
    samples: &[Arc<Sample>],
) -> Result<v1::TestPolicyResponse, Status> {
    let instance = maker.for_dry_runs().instance(attachment, None);
    let instance = instance.map_err(|error| changes::refusal(&error))?;
    dry_run(&instance, samples)
}

fn samples(desk: &Desk, tap: &str, most: usize) -> Result<Vec<Arc<Sample>>, Status> {
    let mut kept = Vec::new();
    for live in taps(desk, tap)? {
        let Some(source) = live.policy.samples() else {
            continue;
        };
        read_kept(source, &mut kept);
    }
    kept.sort_by_key(|sample| sample.began_unix_ns);
    kept.dedup_by_key(|sample| {
        (
            sample.datapath_context.connection,
            sample.call,
            sample.began_unix_ns,
        )
    });
    // The newest count.
    let surplus = kept.len().saturating_sub(most);
    kept.drain(..surplus);
    Ok(kept)
}

/// Reads what a tap has sampled by now. Calls go on, and a reader that waited for the end would never come to it.
fn read_kept(source: &dyn SampleSource, kept: &mut Vec<Arc<Sample>>) {
    let (mut from, end) = (0, source.next());
    while from < end {
        let batch = source.read(from, BATCH_MAX);
        if batch.samples.is_empty() {
            return;
        }
        from = batch.next;
        kept.extend(batch.samples.into_iter().filter(|sample| sample.number < end));
    }
}

fn dry_run(instance: &Arc<Instance>, samples: &[Arc<Sample>]) -> Result<v1::TestPolicyResponse, Status> {
    let clock = Clock {
        first_unix_ns: samples.first().map_or(0, |sample| sample.began_unix_ns),
        from_ns: now_ns(),
    };
    let mut stages: BTreeMap<u64, Stage> = BTreeMap::new();
    let mut outcome = v1::TestPolicyResponse::default();
    let mut denied = DeniedGroups::default();
    for sample in samples {
        let datapath_context = &sample.datapath_context;
        let method = datapath_context.methods.get(usize::from(sample.method));
        let applies = instance.attachment.applies_to(
            datapath_context.side,
            &datapath_context.app.name,
            &datapath_context.service,
        ) && method
            .is_some_and(|method| instance.attachment.applies_to_method(&method.name, &method.path))
            && !instance.judges_at_other_end(datapath_context);
        if !applies || sample.messages_left_out > 0 || !sample.steps.iter().all(SampledStep::is_whole) {
            outcome.skipped += 1;
            continue;
        }
        let stage = match stages.entry(datapath_context.connection) {
            Entry::Occupied(stage) => stage.into_mut(),
            Entry::Vacant(place) => place.insert(Stage::new(instance, datapath_context, clock)?),
        };
        outcome.samples += 1;
        match stage.judge(sample) {
            Verdict::Passed => outcome.passed += 1,
            Verdict::Held => outcome.held += 1,
            Verdict::Denied { code, reason } => {
                let path = method.map_or_else(String::new, |method| method.path.to_string());
                denied.add((path, datapath_context.app.name.to_string(), code), reason);
            }
            Verdict::Fault(reason) => {
                return Err(Status::aborted(format!("the policy's engine failed: {reason}")));
            }
        }
    }
    outcome.denied = denied.told();
    Ok(outcome)
}

/// Denied calls by method, app and code, and by what their reason is but for numbers: it may name a time, which is another for
/// each call.
#[derive(Default)]
struct DeniedGroups(BTreeMap<(DeniedCall, String), (String, u32)>);

/// Method, app and code of a denied call.
type DeniedCall = (String, String, String);

impl DeniedGroups {
    fn add(&mut self, call: DeniedCall, reason: String) {
        let alike = reason.split(|letter: char| letter.is_ascii_digit());
        let alike: Vec<_> = alike.filter(|part| !part.is_empty()).collect();
        match self.0.entry((call, alike.join("0"))) {
            Entry::Occupied(group) => {
                let (told, count) = group.into_mut();
                *told = words_of_both(told, &reason);
                *count += 1;
            }
            Entry::Vacant(place) => {
                place.insert((reason, 1));
            }
        }
    }

    fn told(self) -> Vec<Denied> {
        let groups = self.0.into_iter();
        groups
            .map(|(((method, app, code), _), (reason, count))| Denied {
                method,
                app,
                code,
                reason,
                count,
            })
            .collect()
    }
}

/// A reason of which another one differs in numbers alone, without the words that differ.
fn words_of_both(one: &str, other: &str) -> String {
    if one == other {
        return one.to_owned();
    }
    let words = one.split(' ').zip(other.split(' '));
    let words: Vec<_> = words
        .map(|(word, same)| if word == same { word } else { "…" })
        .collect();
    words.join(" ")
}

/// What a policy says of a call.
enum Verdict {
    Passed,
    Held,
    Denied { code: String, reason: String },
    Fault(String),
}

/// The clock of a dry run: the first sample begins now, on the clock that policies know, and the others as long after
/// it as they did.
#[derive(Clone, Copy)]
struct Clock {
    first_unix_ns: u64,
    from_ns: u64,
}

impl Clock {
    fn at(self, unix_ns: u64) -> u64 {
        self.from_ns + unix_ns.saturating_sub(self.first_unix_ns)
    }
}

/// An engine between four queues, on the datapath of a sample.
struct Stage {
    engine: Box<dyn Engine>,
    clock: Clock,
    side: Side,
    queues: [Queue<Step>; 4],
    buffers: BufferPool,
    heap: Heap,
    sent: Vec<u64>,
}

/// Steps that wait in a queue, at most.
const QUEUE_MAX: usize = 64;

impl Stage {
    fn new(instance: &Instance, datapath_context: &DatapathContext, clock: Clock) -> Result<Stage, Status> {
        let unfit = |problem: String| Status::failed_precondition(problem);
        let start = instance
            .prepare(datapath_context)
            .map_err(|error| unfit(error.to_string()))?;
        Ok(Stage {
            engine: start(None).map_err(|error| unfit(error.to_string()))?,
            clock,
            side: datapath_context.side,
            queues: std::array::from_fn(|_| Queue::with_bound(QUEUE_MAX)),
            buffers: BufferPool::new(),
            heap: Heap::default(),
            sent: Vec::new(),
        })
    }

    /// Gives the engine the steps of a call, one after the other, until it says no or waits.
    fn judge(&mut self, sample: &Sample) -> Verdict {
        for step in &sample.steps {
            let outward = (self.side == Side::Client) == (step.direction == Direction::Request);
            let now = self.clock.at(sample.began_unix_ns) + step.at_ns;
            let given = self.step(sample, step, outward);
            let verdict = self.give(given, outward, now);
            if !matches!(verdict, Verdict::Passed) {
                self.forget(sample.call, now);
                return verdict;
            }
        }
        Verdict::Passed
    }

    fn step(&mut self, sample: &Sample, sampled: &SampledStep, outward: bool) -> Step {
        let metadata_bytes = sampled.metadata.len() as u32;
        let offset = message_offset(metadata_bytes);
        let mut bytes = sampled.metadata.clone();
        bytes.resize(offset, 0);
        bytes.extend_from_slice(&sampled.message);
        let message_bytes = sampled.message_bytes;
        let body = match (bytes.is_empty(), outward) {
            (true, _) => Body::Empty,
            _ if sampled.form == BodyForm::Protobuf => {
                let buffer = Buffer::with_capacity(bytes.len());
                Body::Encoded(EncodedBody::of(&sampled.metadata, &sampled.message, buffer))
            }
            (false, true) => Body::Gathered(Gathered {
                buffer: Buffer::from(bytes),
                metadata_bytes,
                message_bytes,
                token: 0,
            }),
            (false, false) => {
                // Where the message's references say that it is.
                let units = (offset / BLOCK_ALIGN_BYTES) as u32;
                let block = self.heap.put(sampled.window_at.saturating_sub(units), bytes);
                Body::Received(ReceivedBody {
                    added: None,
                    block,
                    metadata_bytes,
                    message_bytes,
                    offsets: Offsets::Window,
                })
            }
        };
        let began = self.clock.at(sample.began_unix_ns);
        let timeout = |ns: u64| if ns == 0 { 0 } else { began + ns };
        Step {
            method: sample.method,
            status: sampled.status,
            deadline: timeout(sampled.timeout_ns),
            body,
            ..Step::new(sample.call, sampled.parts)
        }
    }

    fn give(&mut self, step: Step, outward: bool, now: u64) -> Verdict {
        let call = step.call;
        let ends = step.parts.contains(Parts::CANCEL);
        let entrance = if outward { 0 } else { 2 };
        // The queue is empty: each step is dealt with before the next one comes.
        let _ = self.queues[entrance].push(step);
        for _ in 0..POLLS_MAX {
            self.poll(now);
            if let Some(reason) = self.engine.fault() {
                return Verdict::Fault(reason.to_owned());
            }
        }
        let mut verdict = Verdict::Held;
        for (at, exit) in [(1, true), (3, false)] {
            while let Some(out) = self.queues[at].pop() {
                if out.call == call {
                    let is_verdict = out.parts.contains(Parts::CANCEL) && !ends;
                    match verdict {
                        // Of two ends of a call that are told, the client's says why.
                        _ if is_verdict => verdict = better(verdict, denial(&out)),
                        Verdict::Held if exit == outward => verdict = Verdict::Passed,
                        _ => {}
                    }
                }
                self.discard(out);
            }
        }
        verdict
    }

    fn poll(&mut self, now: u64) {
        let [tx_in, tx_out, rx_in, rx_out] = &mut self.queues;
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        };
        self.engine.do_work(
            Ports {
                tx_in,
                tx_out,
                rx_in,
                rx_out,
            },
            &mut context,
        );
    }

    /// Ends a call that the engine may remember, so that it does not count as one in flight.
    fn forget(&mut self, call: u64, now: u64) {
        let entrance = if self.side == Side::Client { 0 } else { 2 };
        let _ = self.queues[entrance].push(Step::cancel(call, provost_engine::Code::Cancelled));
        self.poll(now);
        for at in 0..self.queues.len() {
            while let Some(step) = self.queues[at].pop() {
                self.discard(step);
            }
        }
    }

    fn discard(&mut self, step: Step) {
        let mut context = Context {
            socket: SocketHint::Skip,
            flow: FlowHints::default(),
            now: 0,
            buffers: &mut self.buffers,
            receive: &mut self.heap,
            sent: &mut self.sent,
        };
        step.body.discard(&mut context);
    }
}

fn denial(step: &Step) -> Verdict {
    let mut reason = String::new();
    if let Body::Encoded(body) = &step.body {
        let block = &body.buffer.bytes[..(body.metadata_bytes as usize).min(body.buffer.bytes.len())];
        if let Some(place) = metadata::find(block, metadata::STATUS_MESSAGE) {
            reason = String::from_utf8_lossy(&block[place]).into_owned();
        }
    }
    let code = step.status.name().to_owned();
    Verdict::Denied { code, reason }
}

fn better(one: Verdict, other: Verdict) -> Verdict {
    match (&one, &other) {
        (Verdict::Denied { reason, .. }, Verdict::Denied { reason: new, .. })
            if new.len() <= reason.len() =>
        {
            one
        }
        _ => other,
    }
}

/// A receive heap whose blocks are where they are said to be.
#[derive(Default)]
struct Heap(BTreeMap<u32, Vec<u8>>);

impl Heap {
    fn put(&mut self, at: u32, bytes: Vec<u8>) -> ReceivedBlock {
        let length = bytes.len() as u32;
        self.0.insert(at, bytes);
        ReceivedBlock { at, bytes: length }
    }
}

impl ReceiveHeap for Heap {
    fn allocate(&mut self, bytes: u32) -> Result<ReceivedBlock, HeapFull> {
        let at = self
            .0
            .last_key_value()
            .map_or(1, |(at, bytes)| at + bytes.len() as u32);
        Ok(self.put(at.max(1), vec![0; bytes as usize]))
    }

    fn bytes_mut(&mut self, block: &mut ReceivedBlock) -> &mut [u8] {
        self.0
            .get_mut(&block.at)
            .map_or(&mut [], |bytes| bytes.as_mut_slice())
    }

    fn free(&mut self, block: ReceivedBlock) {
        self.0.remove(&block.at);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use provost_engine::{AuditEvent, EventSink};

    use super::*;
    use crate::policies::Registry;
    use crate::policies::testing::sample;

    #[derive(Default)]
    struct CountedEvents(AtomicUsize);

    impl EventSink for CountedEvents {
        fn audit(&self, _event: AuditEvent) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn what_a_dry_run_denies_is_accounted_for_nowhere() {
        let events = Arc::new(CountedEvents::default());
        let heard = Arc::clone(&events) as Arc<dyn EventSink>;
        let maker = Maker::new(Arc::new(Registry::with_built_ins()), "node".into(), heard);
        let mut attachment = Attachment::of_kind("access");
        attachment.config.insert("default".into(), "deny".into());
        let samples = [sample(1), sample(2)].map(Arc::new);
        let outcome = try_out(&maker, &attachment, &samples).unwrap();
        let denied: u32 = outcome.denied.iter().map(|group| group.count).sum();
        assert_eq!((outcome.samples, denied), (2, 2));
        assert_eq!(events.0.load(Ordering::Relaxed), 0);
    }
}
