//! A client of the server that breaks every rule. What is delivered to it must be valid all the same, and its calls
//! must end when their deadlines say so.

use provost_shm::now_ns;
use provost_wire::descriptor::{Completion, Parts};

use crate::oracle::check;
use crate::random::Random;
use crate::raw::{Gone, RawApp};
use crate::scene::{Client, Outcome, Scene};
use crate::schema::{TALK, VANDALS};

/// Calls of one attachment.
const CALLS: usize = 50;
/// How long a call may take: the server may well never answer it.
const CALL_NS: u64 = 100_000_000;

/// Calls until the campaign is over.
pub fn run(scene: &Scene, random: &mut Random) {
    while let Some(mut client) = scene.client("vandal's client", &VANDALS, random) {
        for _ in 0..CALLS {
            if scene.stop.is_set() {
                break;
            }
            match talk(scene, &mut client, random) {
                Ok(code) => scene
                    .report
                    .count(&format!("vandal's client: calls that ended with code {code}")),
                // Its server was thrown out, and the connection with it.
                Err(Gone::Closed) => {
                    scene.report.count("vandal's client: connection closed");
                    break;
                }
                // This client has done nothing wrong.
                Err(gone) => {
                    scene.report.finding(format!("vandal's client: {gone}"));
                    break;
                }
            }
        }
        scene.dismiss("vandal's client", &client);
    }
}

fn talk(scene: &Scene, client: &mut Client, random: &mut Random) -> Result<Outcome, Gone> {
    let built = client.message(random);
    let mut step = client.begin(TALK);
    step.deadline_ns = now_ns() + CALL_NS;
    client.app.submit(&step)?;
    let (connection, call) = (client.connection, client.call);
    let mut message = RawApp::step(connection, call, Parts::MESSAGE);
    message.root = built.root();
    for _ in 0..random.below(3) {
        client.app.submit(&message)?;
    }
    client.app.submit(&RawApp::step(connection, call, Parts::END))?;
    client
        .app
        .wait_for(connection, "to a call whose deadline has passed", |app, step| {
            if step.parts.contains(Parts::MESSAGE) {
                check_message(scene, app, step);
            }
            let is_end = step.call == call && step.parts.intersects(Parts::STATUS | Parts::CANCEL);
            is_end.then_some(step.status_or_window)
        })
}

fn check_message(scene: &Scene, app: &RawApp, step: &Completion) {
    scene.report.count("messages received by the vandal's client");
    let schema = &scene.schema;
    if let Err(wrong) = check(&schema.schema, schema.everything, &app.segments, step.root) {
        scene
            .report
            .finding(format!("an invalid message was delivered to a client: {wrong}"));
    }
}
