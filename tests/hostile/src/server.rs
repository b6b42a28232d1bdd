//! Servers without the app library: one that answers as it should, one that breaks every rule.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use provost_wire::Code;
use provost_wire::descriptor::{Completion, Parts, Submission, completion_kind, submission_kind};

use crate::guard;
use crate::message::build;
use crate::oracle::{check, find_canary};
use crate::random::{AwkwardNumbers, Random};
use crate::raw::{Gone, RawApp, window_offset};
use crate::report::Report;
use crate::scene::Stop;
use crate::schema::{GUARDED, TAKE, TALK, TargetSchema};

/// Where the empty answer lies in the send heap, in bytes.
const TAKEN_AT: u64 = 0;
/// Where a vandal builds its messages.
const MESSAGE_AT: u64 = 4096;
/// How often a server looks for canaries in its segments.
const CANARY_EVERY: Duration = Duration::from_secs(2);

/// How a server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    Honest,
    Vandal,
}

/// Where and how a server serves.
#[derive(Clone, Copy, Debug)]
pub struct Post<'a> {
    /// The node's control socket.
    pub socket: &'a Path,
    pub schema: &'a TargetSchema,
    /// How the server behaves.
    pub manner: Manner,
    pub service: &'a str,
    pub report: &'a Report,
}

/// Serves until `stop`, attaching again whenever it is thrown out.
pub fn serve(post: &Post<'_>, mut random: Random, stop: &Stop) {
    let report = post.report;
    while !stop.is_set() {
        let served = Server::attach(post).and_then(|mut server| {
            report.count(&format!("{:?} server: attached", post.manner));
            server.run(&mut random, report, stop)
        });
        match (served, post.manner) {
            (Ok(()), _) => {}
            (Err(gone), Manner::Vandal) => report.ended("vandal server", &gone),
            (Err(gone), Manner::Honest) => report.finding(format!("honest server: {gone}")),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

struct Server<'a> {
    app: RawApp,
    schema: &'a TargetSchema,
    manner: Manner,
    /// Which calls stream: later steps do not say.
    streaming: HashMap<(u32, u64), bool>,
    /// Whether a policy denies some values.
    is_guarded: bool,
    looked_for_canary: Instant,
}

impl<'a> Server<'a> {
    fn attach(post: &Post<'a>) -> Result<Server<'a>, Gone> {
        let mut app = RawApp::attach(post.socket, &format!("{:?}", post.manner).to_lowercase())?;
        app.bind(post.schema, post.service)?;
        Ok(Server {
            app,
            schema: post.schema,
            manner: post.manner,
            streaming: HashMap::new(),
            is_guarded: GUARDED.contains(&post.service),
            looked_for_canary: Instant::now(),
        })
    }

    fn run(&mut self, random: &mut Random, report: &Report, stop: &Stop) -> Result<(), Gone> {
        while !stop.is_set() {
            let completions = self.app.completions()?;
            if completions.is_empty() {
                self.look_for_canary(report);
                std::thread::sleep(Duration::from_micros(300));
            }
            for completion in &completions {
                self.check(completion, report);
                self.react(completion, random)?;
                self.app.reclaim(completion)?;
            }
        }
        self.look_for_canary_now(report);
        Ok(())
    }

    fn check(&self, completion: &Completion, report: &Report) {
        if completion.kind != completion_kind::STEP || !completion.parts.contains(Parts::MESSAGE) {
            return;
        }
        report.count("messages received by servers");
        let schema = &self.schema.schema;
        if let Err(wrong) = check(
            schema,
            self.schema.everything,
            &self.app.segments,
            completion.root,
        ) {
            report.finding(format!("an invalid message was delivered: {wrong}"));
        }
        match guard::denied_value(self.schema, &self.app.segments, completion.root) {
            Some(value) if self.is_guarded => {
                report.finding(format!("a value that is denied was delivered: {value}"));
            }
            Some(_) => report.count("values received that are denied elsewhere"),
            None if self.is_guarded => report.count("messages received behind a policy"),
            None => {}
        }
    }

    fn look_for_canary(&mut self, report: &Report) {
        if self.looked_for_canary.elapsed() > CANARY_EVERY {
            self.look_for_canary_now(report);
        }
    }

    fn look_for_canary_now(&mut self, report: &Report) {
        self.looked_for_canary = Instant::now();
        if self.app.segments.iter().any(find_canary) {
            report.finding(format!(
                "a canary was found in the memory of the {:?} server",
                self.manner
            ));
        }
    }

    fn react(&mut self, step: &Completion, random: &mut Random) -> Result<(), Gone> {
        if step.kind == completion_kind::SEGMENT_RETIRED {
            self.app.segments.retain(|segment| segment.id != step.call);
        }
        if step.kind != completion_kind::STEP {
            return Ok(());
        }
        let call = (step.connection, step.call);
        if step.parts.contains(Parts::BEGIN) {
            self.streaming.insert(call, step.method == TALK);
        }
        let is_streaming = self.streaming.get(&call).copied().unwrap_or(false);
        if step.parts.intersects(Parts::CANCEL) {
            self.streaming.remove(&call);
            return Ok(());
        }
        if self.manner == Manner::Vandal && !random.one_in(3) {
            return self.vandalize(step, random);
        }
        if is_streaming && step.parts.contains(Parts::MESSAGE) {
            let mut window = RawApp::step(step.connection, step.call, Parts::WINDOW);
            window.status_or_window = step.window_cost;
            self.app.submit(&window)?;
        }
        if step.parts.contains(Parts::END) {
            self.streaming.remove(&call);
            self.app.submit(&answer(step, is_streaming))?;
        }
        Ok(())
    }

    /// A few steps that mostly make no sense.
    fn vandalize(&mut self, step: &Completion, random: &mut Random) -> Result<(), Gone> {
        let everything = self.schema.everything;
        let built = build(&self.schema.schema, everything, MESSAGE_AT, random);
        self.app.write(built.at, &built.bytes);
        if random.one_in(2) {
            let place = *random.pick(&built.places);
            self.app.write(place.at, &random.awkward().to_le_bytes());
        }
        for _ in 0..random.below(4) {
            self.app.submit(&nonsense(step, built.root(), random))?;
        }
        if random.one_in(50) {
            let close = Submission {
                kind: submission_kind::CLOSE,
                connection: step.connection,
                ..Submission::default()
            };
            self.app.submit(&close)
        } else {
            Ok(())
        }
    }
}

/// A step with some of its fields wrong.
fn nonsense(step: &Completion, root: u32, random: &mut Random) -> Submission {
    let any = Parts(random.number() as u8);
    let parts = *random.pick(&[
        Parts::HEADERS,
        Parts::MESSAGE,
        Parts::STATUS,
        Parts::CANCEL,
        Parts::WINDOW,
        Parts::BEGIN,
        Parts::END,
        Parts::MESSAGE | Parts::STATUS,
        Parts::HEADERS | Parts::STATUS,
        Parts::ALL,
        any,
    ]);
    let mut reply = RawApp::step(step.connection, step.call, parts);
    reply.root = if random.one_in(4) { random.awkward() } else { root };
    reply.status_or_window = random.awkward();
    reply.method = TAKE;
    if random.one_in(3) {
        reply.metadata = if random.one_in(2) { random.awkward() } else { root };
        reply.metadata_bytes = random.awkward() % 40_000;
    }
    if random.one_in(5) {
        reply.call = random.awkward().into();
    }
    if random.one_in(20) {
        reply.connection = random.awkward();
    }
    if random.one_in(200) {
        reply.kind = random.number() as u8;
    }
    reply
}

/// The honest answer to the end of a call's requests.
fn answer(step: &Completion, is_streaming: bool) -> Submission {
    let parts = if is_streaming {
        Parts::STATUS
    } else {
        Parts::MESSAGE | Parts::STATUS
    };
    let mut answer = RawApp::step(step.connection, step.call, parts);
    answer.root = if is_streaming { 0 } else { window_offset(TAKEN_AT) };
    answer.status_or_window = Code::Ok.number();
    answer
}
