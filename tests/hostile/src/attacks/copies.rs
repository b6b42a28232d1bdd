//! Messages that are short where the app has them and long where they are copied: many references to one text. What they
//! take of the service's memory is judged while they do.

use std::time::{Duration, Instant};

use provost_wire::descriptor::{Parts, Submission};

use crate::random::Random;
use crate::raw::{Gone, POLL_EVERY, RawApp, window_offset};
use crate::scene::{Client, MESSAGE_AT, Scene};
use crate::schema::{TALK, TARGETS};

use super::shapes::offsets;

/// A text that is too short to be left where it is, and named so often that 32 KiB become 16 MiB. (Four times as many are
/// within the limit, but copying those in a build that is not optimized takes all time from the good client.)
const TEXT_BYTES: u32 = 4088;
const WORDS: u64 = 4_000;
/// Calls that a client has under way at once.
const CALLS: u64 = 400;
/// Messages of a stream: more than its server takes, so that most wait on the client's node for as long as the stream lives.
const STREAM_MESSAGES: usize = 4;
/// How long a client goes on before it is gone all at once, with all that it has under way.
const STAY: Duration = Duration::from_secs(3);

/// Attacks until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("copies", &TARGETS, random) {
        match flood(scene, &mut client, random) {
            Ok(()) => {}
            Err(gone) => scene.report.ended("copies", &gone),
        }
        scene.dismiss("copies", &client);
    }
}

fn flood(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<(), Gone> {
    let root = write_message(scene, client, random.one_in(4));
    let begin = Instant::now();
    let stays = || !scene.stop.is_set() && begin.elapsed() < STAY;
    while stays() {
        for _ in 0..CALLS {
            let steps = if random.one_in(3) {
                stream(client, root)
            } else {
                vec![client.unary(root)]
            };
            for step in &steps {
                if !submit_while(&mut client.app, step, stays)? {
                    // Its ring stays full for as long as what it sends waits: that is what is to happen.
                    scene.report.count("copies: held back");
                    return Ok(());
                }
            }
            scene.report.count("copies: messages submitted");
        }
        for completion in client.app.completions()? {
            client.app.reclaim(&completion)?;
        }
    }
    Ok(())
}

/// A stream that begins, and its messages.
fn stream(client: &mut Client, root: u32) -> Vec<Submission> {
    let mut steps = vec![client.begin(TALK)];
    let mut message = RawApp::step(client.connection, client.call, Parts::MESSAGE);
    message.root = root;
    steps.resize(1 + STREAM_MESSAGES, message);
    steps
}

/// Sends a slot through the ring once it has room; whether it did, for as long as the client stays.
fn submit_while(app: &mut RawApp, step: &Submission, stays: impl Fn() -> bool) -> Result<bool, Gone> {
    while !app.try_submit(step)? {
        if app.is_detached() {
            return Err(Gone::Detached);
        }
        if !stays() {
            return Ok(false);
        }
        std::thread::sleep(POLL_EVERY);
    }
    Ok(true)
}

/// The message; one that is bad is so at its very end, when all before it has been copied.
fn write_message(scene: &Scene, client: &Client, is_bad: bool) -> u32 {
    let (list_at, text_at) = (1 << 20, 3 << 20);
    let size = scene.schema.schema.message(scene.schema.everything).size as usize;
    client.app.write(MESSAGE_AT, &vec![0; size.next_multiple_of(8)]);
    client.app.write(text_at, &vec![b'x'; TEXT_BYTES as usize]);
    client.app.write(text_at + u64::from(TEXT_BYTES), &[0xff; 8]);
    let reference = |at: u64, bytes: u32| [window_offset(at).to_le_bytes(), bytes.to_le_bytes()].concat();
    let mut words = reference(text_at, TEXT_BYTES).repeat(WORDS as usize);
    if is_bad {
        words.extend(reference(text_at + u64::from(TEXT_BYTES), 1));
    }
    client.app.write(list_at, &words);
    let list = reference(list_at, (words.len() / 8) as u32);
    client.app.write(MESSAGE_AT + offsets(scene, "words").0, &list);
    window_offset(MESSAGE_AT)
}
