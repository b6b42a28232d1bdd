//! A message that changes between what an access policy allows and what it denies, while the policy reads it: what was
//! allowed must be what is sent. The servers look for what is denied in all that they receive.

use std::sync::atomic::{AtomicBool, Ordering};

use provost_shm::Memfd;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::guard::{self, Change};
use crate::random::{Random, random_of};
use crate::raw::{Gone, RawApp, window_offset};
use crate::scene::{Client, MESSAGE_AT, OK, Outcome, Scene};
use crate::schema::{GUARDED, TALK, TARGETS};

/// Calls of one attachment.
const CALLS: usize = 300;
/// Messages of a stream.
const STREAM_MESSAGES: usize = 4;
/// Between two writes the mutator waits for so many turns of a loop, at most.
const TURNS_MAX: u64 = 4000;

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    // The same against a service without a policy shows that denied values do arrive where nobody stops them. One
    // after the other, so that a slow machine gets to each of them too.
    let mut services = [
        GUARDED[0], TARGETS[0], GUARDED[1], GUARDED[2], GUARDED[0], GUARDED[1],
    ]
    .into_iter()
    .cycle();
    while let Some(service) = services.next()
        && let Some(mut client) = scene.client("time-of-check", &[service], random)
    {
        let (bytes, changes) = guard::message(&scene.schema, MESSAGE_AT);
        client.app.write(MESSAGE_AT, &bytes);
        if let Err(gone) = call_while_it_changes(scene, &mut client, &changes, random) {
            scene.report.ended("time-of-check", &gone);
        }
        scene.dismiss("time-of-check", &client);
    }
}

fn call_while_it_changes(
    scene: &Scene,
    client: &mut Client,
    changes: &[Change],
    random: &mut Random,
) -> Result<(), Gone> {
    let heap = client
        .app
        .heap
        .try_clone()
        .map_err(|error| Gone::ServiceFault(error.to_string()))?;
    let over = AtomicBool::new(false);
    let mut mutator_random = random_of(random.number(), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| alternate(&heap, changes, &mut mutator_random, &over));
        let ended = (0..CALLS).take_while(|_| !scene.stop.is_set()).try_for_each(|_| {
            let outcome = (if random.one_in(3) {
                stream(client)
            } else {
                unary(client)
            })?;
            if outcome == OK {
                scene.report.count("time-of-check: allowed");
            } else if outcome == Code::PermissionDenied.number() {
                scene.report.count("time-of-check: denied");
            } else {
                let message = &client.app.last_message;
                scene.report.finding(format!(
                    "time-of-check: a call ended with code {outcome}: {message}"
                ));
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        ended
    })
}

fn unary(client: &mut Client) -> Result<Outcome, Gone> {
    let step = client.unary(window_offset(MESSAGE_AT));
    client.outcome_of(&step)
}

fn stream(client: &mut Client) -> Result<Outcome, Gone> {
    let begin = client.begin(TALK);
    let (connection, call) = (begin.connection, begin.call);
    client.app.submit(&begin)?;
    for _ in 0..STREAM_MESSAGES {
        let mut message = RawApp::step(connection, call, Parts::MESSAGE);
        message.root = window_offset(MESSAGE_AT);
        client.app.submit(&message)?;
    }
    client.app.submit(&RawApp::step(connection, call, Parts::END))?;
    client.outcome(connection, call)
}

/// Makes the message one that is denied, and unmakes it, in one place after the other, for times of all lengths.
fn alternate(heap: &Memfd, changes: &[Change], random: &mut Random, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let change = random.pick(changes);
        for _ in 0..random.below(64) {
            // Inside of the heap, so neither fails.
            let _ = heap.write_at(change.at, &change.forbidden);
            wait(random);
            let _ = heap.write_at(change.at, &change.permitted);
            wait(random);
        }
    }
}

fn wait(random: &mut Random) {
    let turns_max = if random.one_in(4) { TURNS_MAX } else { 50 };
    for _ in 0..random.below(turns_max) {
        std::hint::spin_loop();
    }
}
