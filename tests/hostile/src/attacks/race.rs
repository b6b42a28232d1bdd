//! A message that changes while it is read: what was checked must be what is sent.

use std::sync::atomic::{AtomicBool, Ordering};

use provost_shm::Memfd;

use crate::message::{Built, MessagePlace};
use crate::random::{AwkwardNumbers, Random, random_of};
use crate::raw::Gone;
use crate::scene::{Client, OK, Scene};
use crate::schema::TARGETS;

/// Calls of one message while it changes.
const CALLS: usize = 100;
/// Messages of one attachment.
const MESSAGES: usize = 3;

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("race", &TARGETS, random) {
        for _ in 0..MESSAGES {
            if scene.stop.is_set() {
                break;
            }
            let built = client.message(random);
            if let Err(gone) = call_while_it_changes(scene, &mut client, &built, random) {
                scene.report.ended("race", &gone);
                break;
            }
        }
        scene.dismiss("race", &client);
    }
}

fn call_while_it_changes(
    scene: &Scene,
    client: &mut Client,
    built: &Built,
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
        scope.spawn(|| flip(&heap, built, &mut mutator_random, &over));
        let ended = (0..CALLS).try_for_each(|_| {
            let step = client.unary(built.root());
            match client.outcome_of(&step)? {
                OK => scene.report.count("race: accepted"),
                _ => scene.report.count("race: refused"),
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        ended
    })
}

/// Flips places of a message between what they were and what is wrong, as fast as it can.
fn flip(heap: &Memfd, built: &Built, random: &mut Random, over: &AtomicBool) {
    let original = |place: &MessagePlace| {
        let at = (place.at - built.at) as usize;
        built.bytes[at..(at + 8).min(built.bytes.len())].to_vec()
    };
    let Some(first) = built.places.first() else { return };
    let mut place = *first;
    while !over.load(Ordering::Relaxed) {
        if random.one_in(64) {
            place = *random.pick(&built.places);
        }
        let mut wrong = original(&place);
        let word = random.awkward().to_le_bytes();
        let at = if wrong.len() >= 8 && random.one_in(2) {
            4
        } else {
            0
        };
        let count = wrong.len().min(4);
        wrong[at..at + count].copy_from_slice(&word[..count]);
        // Inside of the heap, so neither fails.
        let _ = heap.write_at(place.at, &wrong);
        let _ = heap.write_at(place.at, &original(&place));
    }
}
