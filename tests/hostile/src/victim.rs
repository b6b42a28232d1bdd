//! A good client beside the attackers: every call must work, and return what was sent.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use provost::{Request, Status};
use provost_e2e::Node;
use provost_e2e::probe::EchoMessage;
use provost_e2e::probe::probe_client::ProbeClient;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::oracle::CANARY;
use crate::random::random_of;

const LANES: u64 = 4;
/// How long a call may take: long, as its node has much to do.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause between calls of a lane, so that the attackers get some of the processor.
const PAUSE: Duration = Duration::from_micros(500);

/// What became of the calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Outcome {
    pub calls: u64,
    /// Calls that ended with another status than OK.
    pub failed: u64,
    /// Calls that returned something else than was sent.
    pub corrupt: u64,
    /// The longest call, in microseconds.
    pub slowest_us: u64,
    /// The first that went wrong.
    pub first_failure: Option<String>,
}

impl Outcome {
    fn add(&mut self, other: Outcome) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.corrupt += other.corrupt;
        self.slowest_us = self.slowest_us.max(other.slowest_us);
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

/// The good client's process.
#[derive(Debug)]
pub struct Victim {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Victim {
    /// Starts it on a node, where it connects to `probe.Probe`.
    pub fn start(role: &Path, node: &Node) -> Result<Victim, Failure> {
        let mut process = Command::new(role)
            .arg("victim")
            .env("PROVOST_SOCKET", &node.socket)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::new(format!("{}: {error}", role.display())))?;
        let output = process.stdout.take().ok_or_else(|| Failure::new("no output"))?;
        let mut victim = Victim {
            process,
            output: BufReader::new(output),
        };
        match victim.line()?.as_str() {
            "ready" => Ok(victim),
            other => Err(Failure::new(format!("the good client said {other:?}"))),
        }
    }

    /// Ends it, and says what became of its calls.
    pub fn stop(mut self) -> Result<Outcome, Failure> {
        drop(self.process.stdin.take());
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| Failure::new(format!("{line:?}: {error}")))
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .map_err(|error| Failure::new(error.to_string()))?;
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Calls until the standard input ends, then writes its [`Outcome`] to the standard output.
pub fn run() -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let outcome = runtime
        .block_on(call_until_input_ends())
        .map_err(|status| status.to_string())?;
    println!(
        "{}",
        serde_json::to_string(&outcome).map_err(|error| error.to_string())?
    );
    Ok(())
}

async fn call_until_input_ends() -> Result<Outcome, Status> {
    let client = ProbeClient::connect("probe.Probe").await?;
    println!("ready");
    let stop = Arc::new(AtomicBool::new(false));
    let stopper = Arc::clone(&stop);
    std::thread::spawn(move || {
        // The end, or an error: both are the end.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.store(true, Ordering::Relaxed);
    });
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| tokio::spawn(call_in_turn(client.clone(), lane, Arc::clone(&stop))))
        .collect();
    let mut total = Outcome::default();
    for lane in lanes {
        total.add(lane.await.map_err(|error| Status::internal(error.to_string()))?);
    }
    Ok(total)
}

async fn call_in_turn(client: ProbeClient, lane: u64, stop: Arc<AtomicBool>) -> Outcome {
    let mut random = random_of(lane, 77);
    let mut outcome = Outcome::default();
    while !stop.load(Ordering::Relaxed) {
        let bytes = *random.pick(&[0, 16, 100, 3000, 5000, 70_000, 300_000]);
        let payload: Vec<u8> = CANARY.iter().copied().cycle().take(bytes).collect();
        let text = format!("lane {lane}, call {}, number {}", outcome.calls, random.number());
        let begin = Instant::now();
        let result = echo(&client, &payload, &text).await;
        outcome.calls += 1;
        outcome.slowest_us = outcome.slowest_us.max(begin.elapsed().as_micros() as u64);
        let wrong = match result {
            Ok(true) => None,
            Ok(false) => {
                outcome.corrupt += 1;
                Some(format!("{text} with {bytes} bytes came back changed"))
            }
            Err(status) => {
                outcome.failed += 1;
                Some(format!("{text} with {bytes} bytes: {status}"))
            }
        };
        outcome.first_failure = outcome.first_failure.take().or(wrong);
        tokio::time::sleep(PAUSE).await;
    }
    outcome
}

/// Whether what was sent came back.
async fn echo(client: &ProbeClient, payload: &[u8], text: &str) -> Result<bool, Status> {
    let message = EchoMessage {
        text: text.into(),
        payload: payload.iter().copied().collect(),
        ..EchoMessage::default()
    };
    let mut request = Request::new(message);
    request.set_timeout(CALL_TIMEOUT);
    let reply = client.echo(request).await?;
    let reply = reply.get_ref();
    Ok(reply.payload.as_slice() == payload && reply.text.as_str() == text)
}
