//! Descriptors and messages that are valid but for one thing.

use provost_wire::descriptor::{Parts, Submission, submission_kind};
use provost_wire::limits::{METADATA_BYTES_MAX, METADATA_ENTRIES_MAX, SEND_WINDOW};
use provost_wire::metadata;

use crate::message::{Built, MessagePlace, PlaceKind};
use crate::random::{AwkwardNumbers, Random};
use crate::raw::{Gone, RECEIVE_WINDOW, SEND_HEAP_BYTES, window_offset};
use crate::scene::{Client, OK, Outcome, Scene};
use crate::schema::TARGETS;

/// Where metadata lies in the send heap, in bytes.
const METADATA_AT: u64 = 4 << 20;
const UNITS: u32 = (SEND_HEAP_BYTES / 8) as u32;

/// What must come of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    /// The call fails, or the app is thrown out.
    Refusal,
    Success,
}

/// Something wrong with a unary call whose message is valid.
struct Case {
    name: &'static str,
    expect: Expect,
    spoil: fn(&mut Client, &mut Submission, &mut Random),
}

const fn refused(name: &'static str, spoil: fn(&mut Client, &mut Submission, &mut Random)) -> Case {
    Case {
        name,
        expect: Expect::Refusal,
        spoil,
    }
}

const fn works(name: &'static str, spoil: fn(&mut Client, &mut Submission, &mut Random)) -> Case {
    Case {
        name,
        expect: Expect::Success,
        spoil,
    }
}

/// The cases of descriptors.
const CASES: &[Case] = &[
    works("nothing wrong", |_, _, _| {}),
    works("any token", |_, step, random| step.token = random.number() | 1),
    works("a far deadline", |_, step, _| step.deadline_ns = u64::MAX),
    works("a call number far ahead", |client, step, random| {
        client.call += random.below(1 << 40);
        step.call = client.call;
    }),
    works("metadata", |client, step, _| {
        let mut block = Vec::new();
        let _ = metadata::append(&mut block, "x-user", b"mallory");
        with_metadata(client, step, &block);
    }),
    refused("a deadline that has passed", |_, step, _| step.deadline_ns = 1),
    refused("no kind", |_, step, _| step.kind = 0),
    refused("an unknown kind", |_, step, random| {
        step.kind = 4 + (random.number() as u8).min(250)
    }),
    refused("an unknown method", |_, step, random| {
        step.method = 2 + random.below(60_000) as u16
    }),
    refused("the root is null", |_, step, _| step.root = 0),
    refused("the root is before the heap", |_, step, _| {
        step.root = SEND_WINDOW - 1
    }),
    refused("the root is the heap's end", |_, step, _| {
        step.root = SEND_WINDOW + UNITS
    }),
    refused("the root does not fit", |_, step, _| {
        step.root = SEND_WINDOW + UNITS - 1
    }),
    refused("the root wraps", |_, step, _| step.root = u32::MAX),
    refused("the root is in the receive heap", |_, step, _| {
        step.root = RECEIVE_WINDOW + 512
    }),
    refused("metadata out of range", |_, step, _| {
        (step.metadata, step.metadata_bytes) = (SEND_WINDOW + UNITS, 8);
    }),
    refused("metadata past the end", |_, step, _| {
        (step.metadata, step.metadata_bytes) = (SEND_WINDOW + UNITS - 1, 16);
    }),
    refused("metadata too long", |_, step, _| {
        (step.metadata, step.metadata_bytes) = (window_offset(METADATA_AT), METADATA_BYTES_MAX + 1);
    }),
    refused("metadata of four gigabytes", |_, step, _| {
        (step.metadata, step.metadata_bytes) = (window_offset(METADATA_AT), u32::MAX);
    }),
    refused("metadata cut short", |client, step, _| {
        with_metadata(client, step, &[3, 0, 9, 0, 0, 0, b'k'])
    }),
    refused("metadata with a key in capitals", |client, step, _| {
        with_entry(client, step, b"X-User", b"")
    }),
    refused("metadata with a control character", |client, step, _| {
        with_entry(client, step, b"x", b"\n")
    }),
    refused("metadata with a reserved key", |client, step, _| {
        with_entry(client, step, b":message", b"x")
    }),
    refused("too many entries of metadata", |client, step, _| {
        let block = [1, 0, 0, 0, 0, 0, b'k'].repeat(METADATA_ENTRIES_MAX + 1);
        with_metadata(client, step, &block);
    }),
    refused("no parts", |_, step, _| step.parts = Parts::NONE),
    refused("all parts", |_, step, _| step.parts = Parts::ALL),
    refused("an unknown part", |_, step, _| {
        step.parts = step.parts | Parts(128)
    }),
    refused("a server's part", |_, step, random| {
        step.parts = step.parts | *random.pick(&[Parts::HEADERS, Parts::STATUS]);
    }),
    refused("a cancellation with more", |_, step, _| {
        step.parts = step.parts | Parts::CANCEL
    }),
    refused("a window with more", |_, step, _| {
        step.parts = step.parts | Parts::WINDOW
    }),
    refused("a step of a call that never was", |_, step, _| {
        step.parts = Parts::MESSAGE | Parts::END
    }),
];

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("guided", &TARGETS, random) {
        let ended = attack(scene, &mut client, random);
        scene.dismiss("guided", &client);
        if let Err(gone) = ended {
            scene.report.ended("guided", &gone);
        }
    }
}

/// Case after case, until one has the client thrown out.
fn attack(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    while !scene.stop.is_set() {
        match random.below(16) {
            0..=4 => descriptor_case(scene, client, random)?,
            5 => unanswered(client, random)?,
            _ => message_case(scene, client, random)?,
        };
        match client.is_served(random)? {
            OK => {}
            code => {
                let finding = format!(
                    "guided: a valid call after a case ended with code {code} {:?}",
                    client.app.last_message
                );
                scene.report.finding(finding);
            }
        }
    }
    Ok(())
}

fn descriptor_case(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let case = random.pick(CASES);
    let built = client.message(random);
    let mut step = client.unary(built.root());
    (case.spoil)(client, &mut step, random);
    scene.report.count(&format!("guided: {}", case.name));
    let outcome = client.outcome_of(&step);
    judge(scene, client, case.name, case.expect, outcome)
}

fn judge(
    scene: &Scene,
    client: &Client,
    name: &str,
    expect: Expect,
    outcome: Result<Outcome, Gone>,
) -> Result<Outcome, Gone> {
    match (&outcome, expect) {
        (Ok(OK), Expect::Success) | (Err(Gone::Closed | Gone::Detached), Expect::Refusal) => {}
        (Ok(code), Expect::Refusal) if *code != OK => {}
        // The server may be thrown out under an innocent call by what others do to its node.
        (Err(Gone::Closed), Expect::Success) => {}
        (outcome, _) => {
            let message = &client.app.last_message;
            scene.report.finding(format!(
                "guided: {name}: expected {expect:?}, got {outcome:?} {message:?}"
            ));
        }
    }
    outcome
}

/// A message with one place spoiled.
fn message_case(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    let Some(place) = (!built.places.is_empty()).then(|| *random.pick(&built.places)) else {
        return client.is_served(random);
    };
    let name = spoil(client, &built, place, random);
    scene.report.count(&format!("guided: {name}"));
    let step = client.unary(built.root());
    let outcome = client.outcome_of(&step);
    judge(scene, client, name, Expect::Refusal, outcome)
}

/// Makes the message at a place invalid, and says how.
fn spoil(client: &Client, built: &Built, place: MessagePlace, random: &mut Random) -> &'static str {
    let word = |at: u64, word: u32| client.app.write(at, &word.to_le_bytes());
    match place.kind {
        PlaceKind::Reference => {
            let (name, offset, length) = *random.pick(&[
                ("a null offset with a length", Some(0), None),
                ("an offset before the heap", Some(SEND_WINDOW - 1), None),
                ("an offset past the heap", Some(SEND_WINDOW + UNITS), None),
                ("an offset that wraps", Some(u32::MAX), None),
                ("an offset into the receive heap", Some(RECEIVE_WINDOW + 8), None),
                ("a length past the heap", None, Some(SEND_HEAP_BYTES as u32)),
                ("a length of four gigabytes", None, Some(u32::MAX)),
                ("a length that wraps when it is multiplied", None, Some(1 << 29)),
                ("both at their maximum", Some(u32::MAX), Some(u32::MAX)),
            ]);
            offset.into_iter().for_each(|offset| word(place.at, offset));
            length.into_iter().for_each(|length| word(place.at + 4, length));
            name
        }
        PlaceKind::Pointer => {
            let (name, offset) = *random.pick(&[
                ("a null message that is present", 0),
                ("a message past the heap", SEND_WINDOW + UNITS),
                ("a message before the heap", SEND_WINDOW - 1),
                ("a message at the end of all", u32::MAX),
            ]);
            word(place.at, offset);
            name
        }
        PlaceKind::Presence => {
            word(place.at, 2 + random.awkward() / 2);
            "a presence that is neither 0 nor 1"
        }
        PlaceKind::Tag => {
            word(place.at, 23 + random.awkward() / 2);
            "an unknown tag"
        }
        PlaceKind::Bool => {
            client.app.write(place.at, &[2 + random.below(254) as u8]);
            "a bool that is neither 0 nor 1"
        }
        PlaceKind::Text => {
            client.app.write(place.at, &[0xFF]);
            "invalid UTF-8"
        }
        PlaceKind::SecondKey { bytes, stride } => {
            let first = (place.at - built.at) as usize - stride as usize;
            client
                .app
                .write(place.at, &built.bytes[first..first + bytes as usize]);
            "the same key twice"
        }
    }
}

/// Reclaims, closes and uses what is not the app's. Nothing answers: only what comes after counts.
fn unanswered(client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let mut batch = crate::raw::reclaim_batch(&[]);
    match random.below(7) {
        6 => {
            let mut step = client.unary(0);
            step.connection ^= 1 + random.awkward() / 2;
            client.app.submit(&step)?;
        }
        0 => batch.count = random.below(6) as u8,
        1 => (batch.count, batch.items[0]) = (1, random.awkward().into()),
        2 => (batch.count, batch.items[0]) = (1, u64::from(RECEIVE_WINDOW) + 512 + random.below(1000)),
        3 => batch.count = 7 + random.below(249) as u8,
        4 => (batch.count, batch.items[0]) = (1, random.number()),
        _ => {
            let close = Submission {
                kind: submission_kind::CLOSE,
                connection: random.awkward().max(client.connection + 1),
                ..Submission::default()
            };
            client.app.submit(&close)?;
        }
    }
    client.app.submit(&batch)?;
    client.is_served(random)
}

fn with_metadata(client: &mut Client, step: &mut Submission, block: &[u8]) {
    client.app.write(METADATA_AT, block);
    (step.metadata, step.metadata_bytes) = (window_offset(METADATA_AT), block.len() as u32);
}

/// One entry, whatever is in it.
fn with_entry(client: &mut Client, step: &mut Submission, key: &[u8], value: &[u8]) {
    let mut block = (key.len() as u16).to_le_bytes().to_vec();
    block.extend((value.len() as u32).to_le_bytes());
    block.extend([key, value].concat());
    with_metadata(client, step, &block);
}
