//! What every attack starts from: an attached client with an open connection, renewed whenever it is thrown out.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use provost_wire::descriptor::{Parts, Submission};

use crate::message::{Built, build};
use crate::oracle::find_canary;
use crate::random::Random;
use crate::raw::{Gone, RawApp};
use crate::report::Report;
use crate::schema::{TAKE, TargetSchema};

/// Where clients build their messages, in bytes from the send heap's begin.
pub const MESSAGE_AT: u64 = 64 << 10;

/// Tells all threads of a campaign to come to an end.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether they were told.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What an attack needs.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The control socket of the node under attack.
    pub socket: PathBuf,
    pub schema: Arc<TargetSchema>,
    pub report: Report,
    pub stop: Stop,
}

/// The status code that a call ended with.
pub type Outcome = u32;

/// The outcome of a call that worked.
pub const OK: Outcome = 0;

/// An attached client with an open connection.
#[derive(Debug)]
pub struct Client {
    pub app: RawApp,
    pub connection: u32,
    /// The number of the last call.
    pub call: u64,
    schema: Arc<TargetSchema>,
}

impl Scene {
    /// Attaches and connects to one of the services. `None` when the campaign is over.
    pub fn client(&self, name: &str, services: &[&str], random: &mut Random) -> Option<Client> {
        while !self.stop.is_set() {
            let service = *random.pick(services);
            match Client::attach(self, name, service) {
                Ok(client) => {
                    self.report.count(&format!("{name}: attached"));
                    return Some(client);
                }
                // The server may be starting, or thrown out for the moment.
                Err(Gone::Refused { .. }) => self.report.count(&format!("{name}: not connected")),
                Err(gone) => self.report.ended(name, &gone),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }

    /// Looks for what belongs to others in a client's memory, and lets it go.
    pub fn dismiss(&self, name: &str, client: &Client) {
        if client.app.segments.iter().any(find_canary) {
            self.report
                .finding(format!("{name}: a canary was found in a client's memory"));
        }
    }
}

impl Client {
    fn attach(scene: &Scene, name: &str, service: &str) -> Result<Client, Gone> {
        Client::of(RawApp::attach(&scene.socket, name)?, scene, service)
    }

    /// Connects an app to a service.
    pub fn of(mut app: RawApp, scene: &Scene, service: &str) -> Result<Client, Gone> {
        let connection = app.connect(&scene.schema, service)?;
        Ok(Client {
            app,
            connection,
            call: 0,
            schema: Arc::clone(&scene.schema),
        })
    }

    /// Builds a valid message and writes it to the send heap.
    pub fn message(&self, random: &mut Random) -> Built {
        let built = build(&self.schema.schema, self.schema.everything, MESSAGE_AT, random);
        self.app.write(built.at, &built.bytes);
        built
    }

    /// A valid unary call of that message, not submitted yet.
    pub fn unary(&mut self, root: u32) -> Submission {
        let mut begin = self.begin(TAKE);
        begin.parts = Parts::BEGIN | Parts::MESSAGE | Parts::END;
        begin.root = root;
        begin
    }

    /// The begin of a call without a message, not submitted yet.
    pub fn begin(&mut self, method: u16) -> Submission {
        self.call += 1;
        let mut begin = RawApp::step(self.connection, self.call, Parts::BEGIN);
        begin.method = method;
        begin
    }

    /// Submits a step and waits until its call ends.
    pub fn outcome_of(&mut self, step: &Submission) -> Result<Outcome, Gone> {
        self.app.submit(step)?;
        self.outcome(step.connection, step.call)
    }

    /// Waits until a call ends.
    pub fn outcome(&mut self, connection: u32, call: u64) -> Result<Outcome, Gone> {
        self.app.wait_for(connection, "to a call", |_, step| {
            let is_end = step.call == call && step.parts.intersects(Parts::STATUS | Parts::CANCEL);
            is_end.then_some(step.status_or_window)
        })
    }

    /// A valid call must work, whatever was done before.
    pub fn is_served(&mut self, random: &mut Random) -> Result<Outcome, Gone> {
        let built = self.message(random);
        let call = self.unary(built.root());
        self.outcome_of(&call)
    }
}
