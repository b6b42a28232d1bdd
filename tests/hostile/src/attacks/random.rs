//! Bytes at random, everywhere that an app can write.

use provost_wire::descriptor::{Parts, Submission};
use provost_wire::region::SLOTS_OFFSET;
use zerocopy::{FromBytes, IntoBytes};

use crate::random::{AwkwardNumbers, Random};
use crate::raw::{Gone, SEND_HEAP_BYTES};
use crate::scene::{Client, Scene};
use crate::schema::TARGETS;

/// Slots that one attachment sends at most, before it is renewed.
const SLOTS_MAX: u64 = 3000;
/// Bytes of noise written to the heap at once.
const NOISE_BYTES: usize = 4096;

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("random", &TARGETS, random) {
        if let Err(gone) = attack(scene, &mut client, random) {
            scene.report.ended("random", &gone);
        }
        scene.dismiss("random", &client);
    }
}

fn attack(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    // Some attachments send only what could be meant, so that they live long enough to reach far.
    let is_plausible = !random.one_in(4);
    for _ in 0..random.below(SLOTS_MAX) {
        if scene.stop.is_set() {
            break;
        }
        if random.one_in(4) {
            noise(client, random);
        }
        let slot = if is_plausible {
            plausible(client, random)
        } else {
            any_bytes(random)
        };
        scene.report.count("random: slots");
        client.app.submit_and_reclaim(&slot)?;
    }
    Ok(())
}

/// Noise in the heap, or in the region's slots (which the rings' honest end writes over in its time).
fn noise(client: &Client, random: &mut Random) {
    let length = random.below(NOISE_BYTES as u64) as usize;
    let bytes = random.bytes(length);
    if random.one_in(3) {
        let slots_bytes = client.app.region.bytes() - SLOTS_OFFSET as u64;
        let at = SLOTS_OFFSET as u64 + random.below(slots_bytes.saturating_sub(bytes.len() as u64).max(1));
        let room = (client.app.region.bytes() - at) as usize;
        let _ = client.app.region.write_at(at, &bytes[..bytes.len().min(room)]);
    } else {
        client
            .app
            .write(random.below(SEND_HEAP_BYTES - NOISE_BYTES as u64), &bytes)
    }
}

fn any_bytes(random: &mut Random) -> Submission {
    let bytes = random.bytes(size_of::<Submission>());
    Submission::read_from_bytes(bytes.as_bytes()).unwrap_or_default()
}

/// A valid call of a valid message, with a few fields and a few bytes of the message changed.
fn plausible(client: &mut Client, random: &mut Random) -> Submission {
    let built = client.message(random);
    for _ in 0..random.below(4) {
        let at = random.below(built.bytes.len() as u64);
        client.app.write(built.at + at, &[random.number() as u8]);
    }
    let mut step = client.unary(built.root());
    for _ in 0..random.below(3) {
        match random.below(10) {
            0 => step.parts = Parts(1 << random.below(8)),
            1 => step.parts = Parts(random.number() as u8),
            2 => step.method = random.below(3) as u16,
            3 => step.call = random.below(client.call + 2),
            4 => step.root = random.awkward(),
            5 => (step.metadata, step.metadata_bytes) = (random.awkward(), random.awkward()),
            6 => step.status_or_window = random.awkward(),
            7 => step.deadline_ns = random.number() >> random.below(64),
            8 => step.token = random.number(),
            _ => step.reserved = [random.number(), random.number()],
        }
    }
    step
}
