//! Apps that say nothing wrong and take all they can get: attachments, calls that are over before they are answered, room
//! that is too small for what is sent there.

use std::time::{Duration, Instant};

use provost_wire::descriptor::Parts;

use crate::collusion::write_message;
use crate::random::Random;
use crate::raw::{Gone, RawApp};
use crate::scene::{Client, Scene};
use crate::schema::{TALK, TARGETS};

/// The service that these apps offer and call.
pub const SERVICE: &str = TARGETS[1];
/// How long an app goes on before it is gone with all that it has under way.
const STAY: Duration = Duration::from_millis(800);
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

/// Begins calls past what their server takes, cancels each at once, and never reads how they ended.
pub fn begin_and_cancel(scene: &Scene, random: &mut Random) {
    let bound = RawApp::attach(&scene.socket, "server of one call").and_then(|mut server| {
        server.bind_for(&scene.schema, SERVICE, 1)?;
        Ok(server)
    });
    let _server = match bound {
        Ok(server) => server,
        Err(gone) => return scene.report.ended("begin and cancel", &gone),
    };
    while let Some(mut client) = scene.client("begin and cancel", &[SERVICE], random) {
        if let Err(gone) = cancel_everything(scene, &mut client) {
            scene.report.ended("begin and cancel", &gone);
        }
    }
}

fn cancel_everything(scene: &Scene, client: &mut Client) -> Result<(), Gone> {
    let begin = Instant::now();
    while begin.elapsed() < STAY && !scene.stop.is_set() {
        let step = client.begin(TALK);
        let cancel = RawApp::step(client.connection, client.call, Parts::CANCEL);
        for step in [step, cancel] {
            while !client.app.try_submit(&step)? && begin.elapsed() < STAY {
                scene.report.count("begin and cancel: held back");
                std::thread::sleep(PAUSE);
            }
        }
        scene.report.count("begin and cancel: calls");
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
