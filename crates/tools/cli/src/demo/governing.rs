//! The second act: while the client keeps calling, an operator limits it, keeps it from an entry, upgrades engines and
//! replaces both nodes' services. The client counts what fails.

use std::path::PathBuf;
use std::time::Duration;

use provost_admin::v1::Policy;
use serde::Serialize;
use tokio::sync::mpsc;

use super::operator::Operator;
use super::program::Program;
use super::progress::Progress;
use super::report::grouped;
use super::wire::{Called, Command, Event};
use super::{DemoError, unexpected};

/// How long the client calls between two reports.
const SLICE_SECONDS: f64 = 0.2;
/// How long the operator watches before the next change.
pub(crate) const WATCH: Duration = Duration::from_millis(700);
/// Calls a second that the limit lets pass.
const LIMIT: u32 = 5_000;
/// Steps of the operator that wait to be shown.
const STEPS_MAX: usize = 64;
/// The entry that the client is kept from.
pub(crate) const SECRET_KEY: &str = "provost-demo-secret";

/// What came of the second act.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Governed {
    /// Calls that ended while the operator worked.
    pub(crate) calls: u64,
    /// Those that ended otherwise than they should.
    pub(crate) failed: u64,
    /// Gets of the secret entry that were denied.
    pub(crate) denied: u64,
    /// The longest time without a completion, in milliseconds.
    pub(crate) longest_gap_ms: f64,
    /// What the operator did, and what was seen.
    pub(crate) steps: Vec<Step>,
}

/// One thing that the operator did.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) what: &'static str,
    pub(crate) seen: String,
}

/// Where the operator finds the nodes.
pub(crate) struct Nodes {
    pub(crate) client_side: PathBuf,
    pub(crate) server_side: PathBuf,
}

/// The processes that have taken the nodes' places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Successors {
    pub(crate) client_side: Option<u32>,
    pub(crate) server_side: Option<u32>,
}

/// Plays the second act.
pub(crate) async fn play(
    nodes: Nodes,
    caller: &mut Program,
    progress: &mut Progress,
) -> Result<(Governed, Successors), DemoError> {
    during(caller, progress, |stage, seen| operate(nodes, stage, seen)).await
}

/// Has a client keep calling while an operator works; what came of both.
pub(crate) async fn during<T, O: Future<Output = Result<T, DemoError>>>(
    caller: &mut Program,
    progress: &mut Progress,
    operate: impl FnOnce(Stage, Seen) -> O,
) -> Result<(Governed, T), DemoError> {
    let (stage, mut news) = mpsc::channel(STEPS_MAX);
    let (counts, seen) = tokio::sync::watch::channel(Called::default());
    let mut operating = std::pin::pin!(operate(stage, seen));
    let mut governed = Governed::default();
    let mut outcome = None;
    loop {
        let event = {
            let command = Command::CallOn {
                seconds: SLICE_SECONDS,
            };
            let mut slice = std::pin::pin!(caller.ask(command, "govern", progress));
            // What is done to the nodes goes on while the client calls, slice after slice.
            loop {
                tokio::select! {
                    event = &mut slice => break event?,
                    done = &mut operating, if outcome.is_none() => outcome = Some(done?),
                }
            }
        };
        let Event::Called(called) = event else {
            return Err(unexpected("the client", &event));
        };
        governed.take(called);
        // Whoever watches is gone only when all is over.
        let _ = counts.send(called);
        while let Ok(step) = news.try_recv() {
            progress.done(step.what, &step.seen);
            governed.steps.push(step);
        }
        progress.failures(governed.calls, governed.failed);
        if let Some(outcome) = outcome {
            return Ok((governed, outcome));
        }
    }
}

impl Governed {
    fn take(&mut self, called: Called) {
        self.calls += called.calls;
        self.failed += called.failed;
        self.denied += called.denied;
        self.longest_gap_ms = self.longest_gap_ms.max(called.longest_gap_ms);
    }

    /// In a few words.
    pub(crate) fn summary(&self) -> String {
        let further = match self.denied {
            0 => String::new(),
            denied => format!(" {denied} gets of the secret denied;"),
        };
        format!(
            "{} calls meanwhile, {} failed;{further} longest gap {:.1} ms",
            grouped(self.calls),
            self.failed,
            self.longest_gap_ms
        )
    }
}

/// Where an operator tells what it does.
pub(crate) type Stage = mpsc::Sender<Step>;
/// What the client counts.
pub(crate) type Seen = tokio::sync::watch::Receiver<Called>;

async fn operate(nodes: Nodes, stage: Stage, mut seen: Seen) -> Result<Successors, DemoError> {
    let mut a = Operator::connect("a", &nodes.client_side).await?;
    let mut b = Operator::connect("b", &nodes.server_side).await?;
    let tell = |what, seen: String| {
        // Whoever listens is gone only when all is over.
        let _ = stage.try_send(Step { what, seen });
    };
    let free = rate(&mut seen).await;

    let limiting = format!("requests_per_second = {LIMIT}\nburst = 50\non_limit = \"queue\"\n");
    a.attach(limit("kv.Kv", &limiting)).await?;
    let limited = rate(&mut seen).await;
    let from_to = format!("from {} to {} calls/s", grouped(free), grouped(limited));
    tell(
        "limit",
        format!(
            "attached a limit of {} calls/s at a: {from_to}",
            grouped(LIMIT.into())
        ),
    );
    a.set(
        "limit",
        "requests_per_second = \"unlimited\"\non_limit = \"queue\"\n",
    )
    .await?;
    tell(
        "limit",
        format!("set it to unlimited: {} calls/s", grouped(rate(&mut seen).await)),
    );

    b.attach(access()).await?;
    let denied = calls(&mut seen).await.denied;
    tell(
        "access",
        format!("attached a rule on GetRequest.key at b: {denied} gets of the secret denied at once"),
    );

    let change = a.upgrade("rate-limit", 2).await?;
    let pause = change.pause_us_max;
    tell(
        "engine",
        format!("rate limit started anew with its state: its datapath stood still for {pause:.0} µs"),
    );
    for (operator, node) in [(&mut b, "b"), (&mut a, "a")] {
        let change = operator.upgrade("transport-tcp", 2).await?;
        let pause = change.pause_us_max;
        tell(
            "engine",
            format!("TCP transport of {node} to version 2: {pause:.0} µs"),
        );
    }
    b.detach("secret").await?;
    a.detach("limit").await?;
    tell(
        "detach",
        format!("both policies: {} calls/s", grouped(rate(&mut seen).await)),
    );
    let mut successors = Successors::default();
    for (operator, node, pid) in [
        (&mut b, "b", &mut successors.server_side),
        (&mut a, "a", &mut successors.client_side),
    ] {
        let replaced = operator.replace().await?;
        *pid = u32::try_from(replaced.pid).ok();
        let pause = replaced.pause_ms;
        tell(
            "replace",
            format!(
                "provostd {node} by a new process ({}): {pause:.1} ms",
                replaced.pid
            ),
        );
        tokio::time::sleep(WATCH).await;
    }
    Ok(successors)
}

/// A limit of a service's calls.
pub(crate) fn limit(service: &str, config: &str) -> Policy {
    Policy {
        name: "limit".to_owned(),
        kind: "rate-limit".to_owned(),
        config: config.to_owned(),
        service: service.to_owned(),
        ..Policy::default()
    }
}

fn access() -> Policy {
    let rule = format!(
        "default = \"allow\"\n[[rule]]\nname = \"secret\"\nmethods = [\"/kv.Kv/Get\"]\n\
         when = \"request.key == '{SECRET_KEY}'\"\naction = \"deny\"\n"
    );
    Policy {
        name: "secret".to_owned(),
        kind: "access".to_owned(),
        config: rule,
        service: "kv.Kv".to_owned(),
        ..Policy::default()
    }
}

/// What a slice counted that began after now and the time to watch.
async fn calls(seen: &mut Seen) -> Called {
    tokio::time::sleep(WATCH).await;
    // The slice that is under way may have begun before the change.
    for _ in 0..2 {
        let _ = seen.changed().await;
    }
    *seen.borrow_and_update()
}

/// Calls a second that end well or are denied, from now on.
pub(crate) async fn rate(seen: &mut Seen) -> u64 {
    let called = calls(seen).await;
    (called.calls as f64 / called.seconds.max(1e-9)) as u64
}
