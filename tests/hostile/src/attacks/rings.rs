//! Words of the rings that lie, and doorbells that never stop.

use std::time::{Duration, Instant};

use provost_shm::AsFd;
use provost_wire::region::{HEAD_OFFSET, TAIL_OFFSET, WAKE_OFFSET};

use crate::random::Random;
use crate::raw::{Gone, WAIT_MAX};
use crate::scene::{Client, Scene};
use crate::schema::TARGETS;

/// How long a flood lasts.
const FLOOD: Duration = Duration::from_millis(100);

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("rings", &TARGETS, random) {
        let ended = match random.below(7) {
            0 => lie(scene, &mut client, TAIL_OFFSET, random),
            1 => lie(scene, &mut client, HEAD_OFFSET, random),
            2 => wake_word_storm(&mut client, random),
            3 => doorbell_flood(&mut client, random),
            4 => blocking_doorbell(&mut client, random),
            5 => never_reads(&mut client, random),
            _ => vanish(&mut client, random),
        };
        if let Err(gone) = ended {
            scene.report.ended("rings", &gone);
        }
        scene.dismiss("rings", &client);
    }
}

/// An index that no honest app writes: it is thrown out, and soon.
fn lie(scene: &Scene, client: &mut Client, word: usize, random: &mut Random) -> Result<(), Gone> {
    client.is_served(random)?;
    let capacity = client.app.rings.submissions.capacity();
    let (tail, head) = (
        client.app.rings.submissions.tail(),
        client.app.rings.completions.head(),
    );
    let truth = if word == TAIL_OFFSET { tail } else { head };
    let lie =
        truth.wrapping_add(*random.pick(&[capacity + 1, capacity * 2, 1 << 31, u32::MAX - 1, u32::MAX / 2]));
    write_word(client, word, lie);
    client.app.ringer.ring()?;
    let begin = Instant::now();
    while begin.elapsed() < WAIT_MAX {
        if client.app.is_detached() {
            scene.report.count("rings: a lie was found out");
            return Ok(());
        }
        write_word(client, word, lie);
        // The head is looked at when a completion is written.
        let _ = client.app.ringer.ring();
        std::thread::sleep(Duration::from_millis(1));
    }
    // A head that lies harms nobody while nothing is sent to it.
    match word {
        HEAD_OFFSET => Ok(()),
        _ => Err(Gone::Silent("a tail lies and nobody minds")),
    }
}

fn wake_word_storm(client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    let begin = Instant::now();
    while begin.elapsed() < FLOOD {
        write_word(client, WAKE_OFFSET, random.number() as u32);
        let built = client.message(random);
        let step = client.unary(built.root());
        client.app.submit(&step)?;
        write_word(client, WAKE_OFFSET, random.number() as u32 | 1);
        for completion in client.app.completions()? {
            client.app.reclaim(&completion)?;
        }
    }
    Ok(())
}

fn doorbell_flood(client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    let begin = Instant::now();
    while begin.elapsed() < FLOOD {
        client.app.ringer.ring()?;
    }
    client.is_served(random).map(drop)
}

/// Makes the description that it shares with the service blocking, and fills it.
fn blocking_doorbell(client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    for _ in 0..100_000 {
        client.app.ringer.ring()?;
    }
    let _ = rustix::fs::fcntl_setfl(client.app.ringer.as_fd(), rustix::fs::OFlags::empty());
    client.is_served(random).map(drop)
}

/// Fills its completion ring and never reads it, for a while or for good.
fn never_reads(client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    let built = client.message(random);
    let count = client.app.rings.completions.capacity() * 4;
    for _ in 0..count {
        let step = client.unary(built.root());
        client.app.submit(&step)?;
        if client.app.rings.submissions.room() == Ok(0) {
            break;
        }
    }
    std::thread::sleep(Duration::from_millis(random.below(300)));
    if random.one_in(2) {
        client.is_served(random).map(drop)
    } else {
        Ok(())
    }
}

/// Goes away with calls in flight.
fn vanish(client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    let built = client.message(random);
    for _ in 0..random.below(60) {
        let step = client.unary(built.root());
        client.app.submit(&step)?;
    }
    Ok(())
}

fn write_word(client: &Client, offset: usize, word: u32) {
    // Inside of the region, so it does not fail.
    let _ = client.app.region.write_at(offset as u64, &word.to_le_bytes());
}
