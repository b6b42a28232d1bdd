//! Calls that are right step by step and wrong as a whole: cycles, aliases, floods, steps out of turn.

use provost_schema::{Cardinality, Slot};
use provost_wire::descriptor::{Parts, Submission};
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, NESTING_MAX};

use crate::random::{AwkwardNumbers, Random};
use crate::raw::{Gone, RawApp, window_offset};
use crate::scene::{Client, MESSAGE_AT, OK, Outcome, Scene};
use crate::schema::{TAKE, TALK, TARGETS};

/// Steps of a flood.
const FLOOD_STEPS: u64 = 2000;

/// One way to be wrong. What must come of it is in the function itself.
type Shape = fn(&Scene, &mut Client, &mut Random) -> Result<Outcome, Gone>;

const SHAPES: &[(&str, Shape)] = &[
    ("a message that contains itself", cycle),
    ("nesting at and past the limit", nesting),
    ("one long string a hundred thousand times", aliases),
    ("messages of one list inside of each other", overlapping_parts),
    ("a second message", second_message),
    ("a message after the end", after_the_end),
    ("an end without a message", end_without_message),
    ("the same call twice", same_call_twice),
    ("window that was not used", window_flood),
    ("more than the window allows", window_overrun),
    ("more calls than there may be", call_flood),
    ("cancellations of everything", cancel_flood),
    ("connections closed in mid-call", close_in_mid_call),
];

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("shapes", &TARGETS, random) {
        while !scene.stop.is_set() {
            let (name, shape) = random.pick(SHAPES);
            scene.report.count(&format!("shapes: {name}"));
            match shape(scene, &mut client, random).and_then(|_| client.is_served(random)) {
                Ok(OK) => {}
                Ok(code) => {
                    scene.report.finding(format!(
                        "shapes: after {name}, a valid call ended with code {code}"
                    ));
                }
                Err(gone) => {
                    scene.report.ended(&format!("shapes: {name}"), &gone);
                    break;
                }
            }
        }
        scene.dismiss("shapes", &client);
    }
}

fn expect_failure(scene: &Scene, what: &str, outcome: Outcome) {
    if outcome == OK {
        scene.report.finding(format!("shapes: {what} was accepted"));
    }
}

/// Where a field's words are in `target.Everything`: its own, and its value's if it has a presence word.
pub(crate) fn offsets(scene: &Scene, name: &str) -> (u64, u64) {
    let message = scene.schema.schema.message(scene.schema.everything);
    let field = message
        .slots
        .iter()
        .flat_map(Slot::fields)
        .find(|field| field.name == name);
    let Some(field) = field else { return (0, 0) };
    match field.cardinality {
        Cardinality::Optional { value_offset } => (field.offset.into(), value_offset.into()),
        _ => (field.offset.into(), field.offset.into()),
    }
}

/// Writes a chain of messages, one in another, each empty otherwise. The innermost points at `end`.
fn write_chain(scene: &Scene, client: &Client, levels: u64, end: Option<u32>) -> u32 {
    let size = u64::from(scene.schema.schema.message(scene.schema.everything).size).next_multiple_of(8);
    let (presence, value) = offsets(scene, "inner");
    for level in 0..levels {
        let at = MESSAGE_AT + level * size;
        let next = if level + 1 < levels {
            Some(window_offset(at + size))
        } else {
            end
        };
        let mut bytes = vec![0; size as usize];
        if let Some(next) = next {
            bytes[presence as usize] = 1;
            bytes[value as usize..][..4].copy_from_slice(&next.to_le_bytes());
        }
        client.app.write(at, &bytes);
    }
    window_offset(MESSAGE_AT)
}

fn cycle(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let root = window_offset(MESSAGE_AT);
    write_chain(scene, client, 1 + random.below(4), Some(root));
    let step = client.unary(root);
    let outcome = client.outcome_of(&step)?;
    expect_failure(scene, "a cycle", outcome);
    Ok(outcome)
}

fn nesting(scene: &Scene, client: &mut Client, _: &mut Random) -> Result<Outcome, Gone> {
    let root = write_chain(scene, client, u64::from(NESTING_MAX) - 1, None);
    let step = client.unary(root);
    if client.outcome_of(&step)? != OK {
        scene
            .report
            .finding("shapes: nesting below the limit was refused".to_owned());
    }
    let root = write_chain(scene, client, u64::from(NESTING_MAX) + 3, None);
    let step = client.unary(root);
    let outcome = client.outcome_of(&step)?;
    expect_failure(scene, "nesting past the limit", outcome);
    Ok(outcome)
}

/// A list of strings that are all the same memory: six gigabytes if it were copied.
fn aliases(scene: &Scene, client: &mut Client, _: &mut Random) -> Result<Outcome, Gone> {
    const WORDS: u64 = 100_000;
    const TEXT_BYTES: u32 = 60_000;
    let (list_at, text_at) = (1 << 20, 3 << 20);
    write_chain(scene, client, 1, None);
    client.app.write(text_at, &vec![b'x'; TEXT_BYTES as usize]);
    let element = [window_offset(text_at).to_le_bytes(), TEXT_BYTES.to_le_bytes()].concat();
    client.app.write(list_at, &element.repeat(WORDS as usize));
    let list = [window_offset(list_at).to_le_bytes(), (WORDS as u32).to_le_bytes()].concat();
    client.app.write(MESSAGE_AT + offsets(scene, "words").0, &list);
    let step = client.unary(window_offset(MESSAGE_AT));
    let outcome = client.outcome_of(&step)?;
    expect_failure(scene, "a message of gigabytes", outcome);
    Ok(outcome)
}

/// A list of parts that is its own names' memory too. Whether that is a valid message is not said; that it is
/// harmless is.
fn overlapping_parts(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    write_chain(scene, client, 1, None);
    let list_at = 1 << 20;
    let element = [window_offset(list_at).to_le_bytes(), 4u32.to_le_bytes()].concat();
    client.app.write(list_at, &element.repeat(1000));
    let count = random.below(1000) as u32;
    let list = [window_offset(list_at).to_le_bytes(), count.to_le_bytes()].concat();
    client.app.write(MESSAGE_AT + offsets(scene, "parts").0, &list);
    let step = client.unary(window_offset(MESSAGE_AT));
    client.outcome_of(&step)
}

fn second_message(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    let mut step = client.unary(built.root());
    step.parts = Parts::BEGIN | Parts::MESSAGE;
    client.app.submit(&step)?;
    step.parts = Parts::MESSAGE | Parts::END;
    let outcome = client.outcome_of(&step)?;
    expect_failure(scene, "a second message", outcome);
    Ok(outcome)
}

/// The call may have ended well before the message came.
fn after_the_end(_: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    let mut step = client.begin(TALK);
    step.parts = Parts::BEGIN | Parts::END;
    client.app.submit(&step)?;
    step.parts = Parts::MESSAGE | Parts::END;
    step.root = built.root();
    client.outcome_of(&step)
}

fn end_without_message(scene: &Scene, client: &mut Client, _: &mut Random) -> Result<Outcome, Gone> {
    let mut step = client.begin(TAKE);
    step.parts = Parts::BEGIN | Parts::END;
    let outcome = client.outcome_of(&step)?;
    expect_failure(scene, "an end without a message", outcome);
    Ok(outcome)
}

fn same_call_twice(_: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    let step = client.unary(built.root());
    client.app.submit(&step)?;
    client.outcome_of(&step)
}

fn window_flood(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let step = client.begin(TALK);
    client.app.submit(&step)?;
    let mut window = RawApp::step(client.connection, client.call, Parts::WINDOW);
    for _ in 0..random.below(FLOOD_STEPS) {
        window.status_or_window = random.awkward().max(1);
        client.app.submit(&window)?;
    }
    window.status_or_window = u32::MAX;
    let outcome = client.outcome_of(&window)?;
    expect_failure(scene, "window that nobody used", outcome);
    Ok(outcome)
}

/// Sends without looking at its window, and says that its messages cost nothing.
fn window_overrun(_: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    let begin = client.begin(TALK);
    client.app.submit(&begin)?;
    let mut step = RawApp::step(client.connection, client.call, Parts::MESSAGE);
    step.root = built.root();
    for _ in 0..FLOOD_STEPS {
        step.status_or_window = if random.one_in(8) { random.awkward() } else { 0 };
        client.app.submit(&step)?;
        drain(client)?;
    }
    step.parts = Parts::CANCEL;
    client.app.submit(&step)?;
    client.is_served(random)
}

fn call_flood(_: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    for _ in 0..CALLS_IN_FLIGHT_MAX / 8 {
        let step = client.begin(TALK);
        client.app.submit(&step)?;
        drain(client)?;
    }
    close_and_wait(client, random)
}

fn cancel_flood(_: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    for _ in 0..random.below(FLOOD_STEPS) {
        let step = client.unary(built.root());
        client.app.submit(&step)?;
        for _ in 0..random.below(3) {
            client
                .app
                .submit(&RawApp::step(client.connection, client.call, Parts::CANCEL))?;
        }
        drain(client)?;
    }
    client.is_served(random)
}

fn close_in_mid_call(_: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    for _ in 0..random.below(100) {
        let step = client.unary(built.root());
        client.app.submit(&step)?;
    }
    close_and_wait(client, random)
}

/// Closes the connection under whatever is in flight, and goes on talking to it.
fn close_and_wait(client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let close = Submission {
        kind: provost_wire::descriptor::submission_kind::CLOSE,
        connection: client.connection,
        ..Submission::default()
    };
    client.app.submit(&close)?;
    if random.one_in(2) {
        client.app.submit(&close)?;
    }
    // No call has this number: only the connection's end is waited for.
    client.outcome(client.connection, u64::MAX)
}

fn drain(client: &mut Client) -> Result<(), Gone> {
    for completion in client.app.completions()? {
        client.app.reclaim(&completion)?;
    }
    Ok(())
}
