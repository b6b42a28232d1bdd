//! What one app or one peer can make the engine hold and copy.

use provost_datapath::{ATTACHMENT_PRIVATE_BYTES_MAX, Body, Engine, Progress, Step, Untrusted};
use provost_wire::Code;
use provost_wire::descriptor::Parts;
use provost_wire::limits::SEND_WINDOW;

use crate::AppRole;
use crate::engine::{FAILED_STEPS_MAX, PENDING_STEPS_MAX};
use crate::gather::POLL_COPY_BYTES_MAX;
use crate::tests::{Bench, schema, step};

/// Where notes are built, in bytes from the begin of the send heap.
const NOTE_AT: u64 = 8 << 10;
const LIST_AT: u64 = 12 << 10;
const TEXT_AT: u64 = 64 << 10;
/// A text of so many bytes is copied; there is one of them, however often it is named.
const TEXT_BYTES: u32 = 4000;

/// What is wrong with a note.
#[derive(Clone, Copy, PartialEq)]
enum NoteContent {
    Good,
    /// Its last text is no UTF-8, as is found out when the others have been copied.
    BadAtItsEnd,
}

fn off8(at: u64) -> [u8; 4] {
    (SEND_WINDOW + (at / 8) as u32).to_le_bytes()
}

/// Builds a note that names one text so many times; its root.
fn note_of_one_text(bench: &Bench, times: u32, note: NoteContent) -> u32 {
    let schema = schema();
    let message = schema.message(schema.services[0].methods[0].input);
    let list = message.fields().find(|field| field.name == "list").unwrap();
    let reference = |at, count: u32| [off8(at), count.to_le_bytes()].concat();
    let mut texts = reference(TEXT_AT, TEXT_BYTES).repeat(times as usize);
    if note == NoteContent::BadAtItsEnd {
        texts.extend(reference(TEXT_AT - 8, 1));
    }
    let count = (texts.len() / 8) as u32;
    let write = |at, bytes: &[u8]| bench.send_heap.write_at(at, bytes).unwrap();
    write(TEXT_AT - 8, &[0xff]);
    write(TEXT_AT, &[b'x'; TEXT_BYTES as usize]);
    write(LIST_AT, &texts);
    write(NOTE_AT + u64::from(list.offset), &reference(LIST_AT, count));
    SEND_WINDOW + (NOTE_AT / 8) as u32
}

/// A call with that note.
fn call_with(call: u64, root: u32) -> Step {
    let mut begin = step(call, Parts::BEGIN | Parts::MESSAGE | Parts::END);
    if let Body::Untrusted(untrusted) = &mut begin.body {
        *untrusted = Untrusted { root, ..*untrusted };
    }
    begin
}

fn fill(bench: &mut Bench, calls: std::ops::RangeInclusive<u64>, root: u32) {
    for call in calls {
        bench.tx_in.push(call_with(call, root)).unwrap();
    }
}

#[test]
fn a_peer_that_reads_no_refusals_is_read_no_more() {
    let mut bench = Bench::new(AppRole::Server);
    // Past the quota, each call is refused; its peer cancels it, so that no other bound counts it.
    let mut begun = 0;
    while begun < 2_000 && bench.rx_in.is_empty() {
        begun += 1;
        bench.rx_in.push(Step::new(begun, Parts::BEGIN)).unwrap();
        if begun > 20 {
            bench.rx_in.push(Step::cancel(begun, Code::Cancelled)).unwrap();
        }
        bench.poll();
        while let Some(step) = bench.rx_out.pop() {
            bench.discard(step);
        }
    }
    let pending = bench.frontend.pending.len();
    assert!(pending <= PENDING_STEPS_MAX, "{pending} refusals wait");
    assert!(begun < 2_000, "the peer was read on");
    // It is carried on as it is, and nothing is lost once the peer reads again.
    bench.succeed();
    let mut refusals = 0;
    loop {
        bench.poll();
        let Some(step) = bench.tx_out.pop() else { break };
        refusals += 1;
        bench.discard(step);
    }
    assert_eq!(refusals, begun - 20);
    assert!(bench.rx_in.is_empty());
}

#[test]
fn an_app_that_reads_no_failures_is_read_no_more() {
    let mut bench = Bench::new(AppRole::Client);
    // Past what a connection may have in flight, each call fails; the app cancels it, so that no other bound counts it.
    let in_flight = 30;
    let mut begun = 0;
    while begun < 2_000 && bench.tx_in.is_empty() {
        begun += 1;
        bench.tx_in.push(step(begun, Parts::BEGIN)).unwrap();
        if begun > in_flight {
            bench.tx_in.push(Step::cancel(begun, Code::Cancelled)).unwrap();
        }
        bench.poll();
        while let Some(step) = bench.tx_out.pop() {
            bench.discard(step);
        }
    }
    let held = bench.frontend.failed.len();
    assert!(held <= FAILED_STEPS_MAX, "{held} failures wait");
    assert!(begun < 2_000, "the app was read on");
    // It is carried on as it is, and nothing is lost once the app reads again.
    bench.succeed();
    let mut failures = 0;
    loop {
        bench.poll();
        let Some(step) = bench.rx_out.pop() else { break };
        failures += 1;
        bench.discard(step);
    }
    assert_eq!(failures, begun - in_flight);
    assert!(bench.tx_in.is_empty());
}

#[test]
fn a_poll_copies_a_bounded_number_of_bytes_of_good_messages_and_bad_ones() {
    let copied_by_each = u64::from(20 * TEXT_BYTES);
    let in_a_poll = POLL_COPY_BYTES_MAX.div_ceil(copied_by_each);
    for note in [NoteContent::Good, NoteContent::BadAtItsEnd] {
        let mut bench = Bench::new(AppRole::Client);
        let root = note_of_one_text(&bench, 20, note);
        fill(&mut bench, 1..=16, root);
        bench.poll();
        let left = bench.tx_in.len() as u64;
        assert_eq!(left, 16 - in_a_poll);
        bench.poll();
        assert!(bench.tx_in.is_empty());
    }
}

#[test]
fn a_round_that_has_copied_enough_copies_only_small_messages() {
    let mut bench = Bench::new(AppRole::Client);
    let root = note_of_one_text(&bench, 20, NoteContent::Good);
    let mut copied = 0;
    // All in one round, as the time says.
    let waits = loop {
        bench.submit(call_with(copied + 1, root));
        let Some(step) = bench.tx_out.pop() else {
            break bench.poll();
        };
        copied += 1;
        assert!(copied < 100, "{copied} long messages were copied in one round");
        bench.receive(Step::cancel(step.call, Code::Cancelled));
        bench.rx_out.pop();
        bench.discard(step);
    };
    // It is to be polled again at once, in another round.
    assert_eq!((waits, bench.frontend.wake_at()), (Progress::Busy, None));
    bench.now += 1;
    bench.poll();
    assert_eq!(bench.tx_out.pop().unwrap().call, copied + 1);
    // Nobody waits with a small one.
    let mut other = Bench::new(AppRole::Client);
    std::mem::swap(&mut other.buffers, &mut bench.buffers);
    other.buffers.note_copied(1 << 30, other.now);
    let root = note_of_one_text(&other, 2, NoteContent::Good);
    other.submit(call_with(1, root));
    assert_eq!(other.tx_out.pop().unwrap().call, 1);
}

#[test]
fn who_holds_its_share_waits_until_some_of_it_is_free() {
    let mut bench = Bench::new(AppRole::Client);
    // 25 texts in each message: somewhere behind the engine they wait, and their memory with them.
    let root = note_of_one_text(&bench, 24, NoteContent::Good);
    let mut held = Vec::new();
    let mut call = 0;
    while bench.frontend.wake_at().is_none() && call < 4_000 {
        call += 1;
        bench.now += 1_000;
        bench.submit(call_with(call, root));
        if let Some(step) = bench.tx_out.pop() {
            held.push(step);
            // The peer has had enough of the call, and what is on its way is not sent yet.
            bench.receive(Step::cancel(call, Code::Cancelled));
            bench.rx_out.pop();
        }
    }
    let bytes: u64 = held.iter().map(capacity).sum();
    assert!(bytes >= ATTACHMENT_PRIVATE_BYTES_MAX, "{bytes} bytes");
    assert!(bytes < ATTACHMENT_PRIVATE_BYTES_MAX + (1 << 20), "{bytes} bytes");
    assert_eq!(bench.frontend.waiting.len(), 1);
    // Its cancellations and the answers to it are carried out all the same.
    bench.submit(Step::cancel(call, Code::Cancelled));
    bench.submit(call_with(call + 1, root));
    assert!(bench.tx_out.is_empty() && bench.frontend.share.held() >= ATTACHMENT_PRIVATE_BYTES_MAX);
    for step in held {
        bench.discard(step);
    }
    bench.now = bench.frontend.wake_at().unwrap();
    bench.poll();
    let step = bench.tx_out.pop().unwrap();
    assert_eq!(step.call, call + 1);
    bench.discard(step);
    assert_eq!(bench.frontend.share.held(), 0);
}

fn capacity(step: &Step) -> u64 {
    match &step.body {
        Body::Gathered(body) => body.buffer.bytes.capacity() as u64,
        _ => 0,
    }
}
