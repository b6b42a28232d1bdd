//! Apps that say nothing wrong and take all they can get: attachments, calls that are over before they are answered, room
//! that is too small for what is sent there.

use std::time::{Duration, Instant};

use provost_wire::descriptor::{Parts, Submission};

use crate::collusion::write_message;
use crate::random::Random;
use crate::raw::{Gone, RawApp};
use crate::scene::{Client, Scene};
use crate::schema::{TALK, TARGETS};

/// The service that these apps offer and call.
pub const SERVICE: &str = TARGETS[1];
/// How long an app goes on before it is gone with all that it has under way.
const STAY: Duration = Duration::from_millis(800);
/// How long one begins calls and reads nothing.
const STAY_UNREAD: Duration = Duration::from_secs(60);
/// How long none of its steps is taken when the service has taken all that there is room for.
const HELD_BACK: Duration = Duration::from_millis(500);
/// Answers that fill all that is between a server and a client that reads none of them.
const UNREAD_ANSWERS: u64 = 1_000;
/// Calls that the service takes of such a client at most: those whose steps wait in queues on the way, of which the longest
/// has 32,768.
const UNREAD_CALLS_MAX: u64 = 36_000;
/// Between two looks of those who wait.
const PAUSE: Duration = Duration::from_millis(1);
/// Rooms for receive segments, in bytes: a page, less than a segment, one segment, and little more.
const TINY_WINDOWS: [u64; 4] = [4096, 64 << 10, 1 << 20, (1 << 20) + 4096];
/// Clients with such a room at once.
const TINY_CLIENTS: usize = 8;

/// Attaches until there is no place, lets all go, and begins anew.
pub fn attachments(scene: &Scene, _random: &mut Random) {
    let mut held = Vec::new();
    while !scene.stop.is_set() {
        match RawApp::attach(&scene.socket, "one of many") {
            Ok(app) => {
                held.push(app);
                scene.report.count("attachments: attached");
            }
            Err(Gone::Refused { .. }) => {
                held.clear();
                scene.report.count("attachments: refused");
            }
            Err(gone) => scene.report.ended("attachments", &gone),
        }
    }
}

/// Begins calls past what their server takes and reads nothing of how they end: first so many that there is no room for one
/// answer more on the way to it, and then others, each of which it cancels at once, so that no bound on calls counts them.
pub fn begin_and_cancel(scene: &Scene, random: &mut Random) {
    const NAME: &str = "begin and cancel";
    let bound = RawApp::attach(&scene.socket, "server of one call").and_then(|mut server| {
        server.bind_for(&scene.schema, SERVICE, 1)?;
        Ok(server)
    });
    let _server = match bound {
        Ok(server) => server,
        Err(gone) => return scene.report.ended(NAME, &gone),
    };
    begin_for_ever(scene, NAME, random, |client, step| {
        let cancel = RawApp::step(client.connection, client.call, Parts::CANCEL);
        let is_cancelled = client.call > UNREAD_ANSWERS;
        std::iter::once(step)
            .chain(is_cancelled.then_some(cancel))
            .collect()
    });
}

/// Begins calls past what its connection may have in flight, which the service refuses itself, and reads nothing of that.
pub fn begin_too_many(scene: &Scene, random: &mut Random) {
    let mut server = match RawApp::attach(&scene.socket, "server of many") {
        Ok(server) => server,
        Err(gone) => return scene.report.ended("begin too many", &gone),
    };
    if let Err(gone) = server.bind(&scene.schema, SERVICE) {
        return scene.report.ended("begin too many", &gone);
    }
    begin_for_ever(scene, "begin too many", random, |_, step| vec![step]);
}

/// Has one client after the other begin calls with these steps. The service must take no more from one than there is room for.
fn begin_for_ever(
    scene: &Scene,
    name: &str,
    random: &mut Random,
    steps: impl Fn(&Client, Submission) -> Vec<Submission>,
) {
    while let Some(mut client) = scene.client(name, &[SERVICE], random) {
        let taken = begin_for_a_while(scene, name, &mut client, &steps);
        scene.report.count_many(&format!("{name}: calls"), client.call);
        if client.call > UNREAD_CALLS_MAX {
            let what = format!(
                "{name}: {} calls were taken of a client that reads nothing",
                client.call
            );
            scene.report.finding(what);
        }
        if let Err(gone) = taken {
            scene.report.ended(name, &gone);
        }
    }
}

fn begin_for_a_while(
    scene: &Scene,
    name: &str,
    client: &mut Client,
    steps: impl Fn(&Client, Submission) -> Vec<Submission>,
) -> Result<(), Gone> {
    let begin = Instant::now();
    let is_over = || begin.elapsed() >= STAY_UNREAD || scene.stop.is_set();
    while !is_over() {
        let step = client.begin(TALK);
        for step in steps(client, step) {
            let mut since = Some(Instant::now());
            while !client.app.try_submit(&step)? {
                if is_over() {
                    return Ok(());
                }
                if since.take_if(|since| since.elapsed() >= HELD_BACK).is_some() {
                    scene.report.count(&format!("{name}: held back"));
                }
                std::thread::sleep(PAUSE);
            }
        }
    }
    Ok(())
}

/// Clients and a server with room for little or nothing send each other long messages.
pub fn tiny_windows(scene: &Scene, random: &mut Random) {
    while !scene.stop.is_set() {
        if let Err(gone) = talk_in_tiny_windows(scene, random) {
            scene.report.ended("tiny windows", &gone);
        }
    }
}

fn talk_in_tiny_windows(scene: &Scene, random: &mut Random) -> Result<(), Gone> {
    let mut attach =
        |name: &str| RawApp::attach_with_window(&scene.socket, name, *random.pick(&TINY_WINDOWS));
    let mut server = attach("tiny server")?;
    server.bind(&scene.schema, SERVICE)?;
    let mut clients = Vec::new();
    for _ in 0..TINY_CLIENTS {
        let app = attach("tiny client")?;
        clients.push(Client::of(app, scene, SERVICE)?);
    }
    let begin = Instant::now();
    while begin.elapsed() < STAY && !scene.stop.is_set() {
        for client in &mut clients {
            let root = write_message(scene, &client.app);
            let call = client.unary(root);
            if client.app.try_submit(&call)? {
                scene.report.count("tiny windows: calls");
            }
            take(&mut client.app)?;
        }
        take(&mut server)?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Takes what there is, and gives it back.
fn take(app: &mut RawApp) -> Result<(), Gone> {
    for completion in app.completions()? {
        app.reclaim(&completion)?;
    }
    Ok(())
}
