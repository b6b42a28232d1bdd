//! A good client beside the attackers: every call must work, and return what was sent.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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
/// How many times as long a call may take beside an attack as beside as many loops, at the 99th percentile.
const P99_RATIO_MAX: u64 = 4;
/// What 99 of 100 calls may take beside any attack, in microseconds: on an idle machine calls beside loops take so little that
/// a few time slices of the scheduler would be a large multiple of it.
const P99_ALLOWED_US: u64 = 50_000;
/// How long calls are measured beside loops.
const BESIDE_LOOPS: Duration = Duration::from_secs(3);
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
    /// What 99 of 100 calls took at most, in microseconds; of several phases, the worst.
    pub p99_us: u64,
    /// The longest call, in microseconds.
    pub slowest_us: u64,
    /// The first that went wrong.
    pub first_failure: Option<String>,
}

impl Outcome {
    /// What is wrong with these calls beside an attack, by what they were beside loops that leave the service alone.
    #[must_use]
    pub fn complaint(&self, beside_loops: &Outcome) -> Option<String> {
        let is_disturbed = self.calls == 0 || self.failed > 0 || self.corrupt > 0;
        let allowed_us = P99_ALLOWED_US.max(P99_RATIO_MAX * beside_loops.p99_us);
        let is_slow = self.p99_us > allowed_us;
        let was = format!("{self:?} beside the attack, {beside_loops:?} beside loops");
        match (is_disturbed, is_slow) {
            (true, _) => Some(format!("calls have failed: {was}")),
            (false, true) => Some(format!(
                "calls take more than {P99_RATIO_MAX} times as long: {was}"
            )),
            (false, false) => None,
        }
    }

    fn add(&mut self, other: Outcome) {
        self.calls += other.calls;
        self.failed += other.failed;
        self.corrupt += other.corrupt;
        self.p99_us = self.p99_us.max(other.p99_us);
        self.slowest_us = self.slowest_us.max(other.slowest_us);
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }
}

/// The good client's process.
#[derive(Debug)]
pub struct Victim {
    process: Child,
    output: BufReader<ChildStdout>,
    total: Outcome,
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
            total: Outcome::default(),
        };
        match victim.line()?.as_str() {
            "ready" => Ok(victim),
            other => Err(Failure::new(format!("the good client said {other:?}"))),
        }
    }

    /// What became of the calls since the last phase has ended.
    pub fn end_phase(&mut self) -> Result<Outcome, Failure> {
        let input = self.process.stdin.as_mut();
        let input = input.ok_or_else(|| Failure::new("it has ended"))?;
        input
            .write_all(b"\n")
            .map_err(|error| Failure::new(error.to_string()))?;
        self.outcome()
    }

    /// A phase beside so many loops that take the processor and leave the service alone.
    pub fn beside_loops(&mut self, loops: usize) -> Result<Outcome, Failure> {
        self.beside_loops_during(loops, || std::thread::sleep(BESIDE_LOOPS))
    }

    /// The same, for as long as something else takes.
    pub fn beside_loops_during(&mut self, loops: usize, what: impl FnOnce()) -> Result<Outcome, Failure> {
        self.end_phase()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..loops {
                scope.spawn(|| spin_until(&stop));
            }
            what();
            let outcome = self.end_phase();
            stop.store(true, Ordering::Relaxed);
            outcome
        })
    }

    /// Ends it, and says what became of all its calls.
    pub fn stop(mut self) -> Result<Outcome, Failure> {
        drop(self.process.stdin.take());
        self.outcome()?;
        Ok(std::mem::take(&mut self.total))
    }

    fn outcome(&mut self) -> Result<Outcome, Failure> {
        let line = self.line()?;
        let outcome: Outcome =
            serde_json::from_str(&line).map_err(|error| Failure::new(format!("{line:?}: {error}")))?;
        self.total.add(outcome.clone());
        Ok(outcome)
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

fn spin_until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        std::hint::spin_loop();
    }
}

/// The calls of a phase.
#[derive(Debug, Default)]
struct Phase {
    outcome: Outcome,
    took_us: Vec<u64>,
}

impl Phase {
    fn add(&mut self, outcome: Outcome) {
        self.took_us.push(outcome.slowest_us);
        self.outcome.add(outcome);
    }

    fn end(&mut self) -> Outcome {
        let Phase {
            mut outcome,
            mut took_us,
        } = std::mem::take(self);
        took_us.sort_unstable();
        outcome.p99_us = took_us.get(took_us.len() * 99 / 100).copied().unwrap_or_default();
        outcome
    }
}

/// Calls until the standard input ends. A line of it ends a phase: the [`Outcome`] of the phase goes to the standard output,
/// as that of the last phase does at the end.
pub fn run() -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime
        .block_on(call_until_input_ends())
        .map_err(|status| status.to_string())
}

async fn call_until_input_ends() -> Result<(), Status> {
    let client = ProbeClient::connect("probe.Probe").await?;
    println!("ready");
    let stop = Arc::new(AtomicBool::new(false));
    let phase = Arc::new(Mutex::new(Phase::default()));
    let (stopper, ended) = (Arc::clone(&stop), Arc::clone(&phase));
    std::thread::spawn(move || {
        // The end, or an error: both are the end.
        for _ in std::io::stdin().lines().map_while(Result::ok) {
            print_end(&ended);
        }
        stopper.store(true, Ordering::Relaxed);
    });
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            tokio::spawn(call_in_turn(
                client.clone(),
                lane,
                Arc::clone(&stop),
                Arc::clone(&phase),
            ))
        })
        .collect();
    for lane in lanes {
        lane.await.map_err(|error| Status::internal(error.to_string()))?;
    }
    print_end(&phase);
    Ok(())
}

fn print_end(phase: &Mutex<Phase>) {
    let outcome = phase.lock().unwrap_or_else(PoisonError::into_inner).end();
    let line = serde_json::to_string(&outcome);
    println!("{}", line.unwrap_or_else(|error| error.to_string()));
}

async fn call_in_turn(client: ProbeClient, lane: u64, stop: Arc<AtomicBool>, phase: Arc<Mutex<Phase>>) {
    let mut random = random_of(lane, 77);
    let mut calls = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let bytes = *random.pick(&[0, 16, 100, 3000, 5000, 70_000, 300_000]);
        let payload: Vec<u8> = CANARY.iter().copied().cycle().take(bytes).collect();
        let text = format!("lane {lane}, call {calls}, number {}", random.number());
        calls += 1;
        let outcome = call(&client, &payload, &text).await;
        phase.lock().unwrap_or_else(PoisonError::into_inner).add(outcome);
        tokio::time::sleep(PAUSE).await;
    }
}

async fn call(client: &ProbeClient, payload: &[u8], text: &str) -> Outcome {
    let begin = Instant::now();
    let result = echo(client, payload, text).await;
    let bytes = payload.len();
    let (failed, corrupt, first_failure) = match result {
        Ok(true) => (0, 0, None),
        Ok(false) => (0, 1, Some(format!("{text} with {bytes} bytes came back changed"))),
        Err(status) => (1, 0, Some(format!("{text} with {bytes} bytes: {status}"))),
    };
    Outcome {
        calls: 1,
        failed,
        corrupt,
        p99_us: 0,
        slowest_us: begin.elapsed().as_micros() as u64,
        first_failure,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_fail_are_none_or_are_slow_are_complained_of() {
        let calls = |calls, failed, p99_us| Outcome {
            calls,
            failed,
            p99_us,
            ..Outcome::default()
        };
        let beside_loops = calls(100, 0, 40_000);
        let complaint = |outcome: Outcome| outcome.complaint(&beside_loops);
        assert_eq!(complaint(calls(100, 0, P99_RATIO_MAX * 40_000)), None);
        assert!(complaint(calls(0, 0, 0)).is_some());
        assert!(complaint(calls(100, 1, 10)).is_some());
        assert!(complaint(calls(100, 0, P99_RATIO_MAX * 40_000 + 1)).is_some());
        let beside_short_loops = calls(100, 0, 1000);
        let complaint = |outcome: Outcome| outcome.complaint(&beside_short_loops);
        assert_eq!(complaint(calls(100, 0, P99_ALLOWED_US)), None);
        assert!(complaint(calls(100, 0, P99_ALLOWED_US + 1)).is_some());
    }
}
