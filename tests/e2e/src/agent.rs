//! The client that tests drive: it carries out asks (see [`crate::script`]).

use std::io::{BufRead, Write};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use provost::blocking::block_on;
use provost::codegen::Stream;
use provost::{MetadataMap, Readiness, Received, Request, Status, Streaming};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::blocking_agent::BlockingAgent;
use crate::other_schemas;
use crate::probe::probe_client::ProbeClient;
use crate::probe::{
    CountsRequest, Drop as Drip, EchoMessage, FailRequest, HoldRequest, Nest, Nothing, PourRequest,
};
use crate::script::{
    Answer, AnswerLine, Ask, AskLine, ClientSchema, Done, Echo, Fill, Hold, Metadatum, Pour, Reading,
    StatusParts, Unconnected,
};
use crate::server::{WHICH_SERVER, drip, is_payload, payload};

/// Asks that wait for the runtime, at most.
const ASKS_MAX: usize = 64;

/// What an agent runs its calls on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executor {
    TokioCurrent,
    TokioMulti,
    /// The library's own `block_on`, a thread for each ask, no tokio.
    BlockOn,
    /// The blocking facade, a thread for each ask.
    Blocking,
}

impl Executor {
    pub const ALL: [Executor; 4] = [
        Executor::TokioCurrent,
        Executor::TokioMulti,
        Executor::BlockOn,
        Executor::Blocking,
    ];

    /// Its name in arguments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Executor::TokioCurrent => "tokio-current",
            Executor::TokioMulti => "tokio-multi",
            Executor::BlockOn => "block-on",
            Executor::Blocking => "blocking",
        }
    }
}

impl FromStr for Executor {
    type Err = String;

    fn from_str(name: &str) -> Result<Executor, String> {
        let found = Executor::ALL.into_iter().find(|executor| executor.name() == name);
        found.ok_or_else(|| format!("no executor is called {name}"))
    }
}

/// Runs an agent until its input ends. When it gets no connection, it says so and ends.
pub fn run(executor: Executor) -> Result<(), Status> {
    let outcome = match executor {
        Executor::TokioCurrent => run_on(Builder::new_current_thread().enable_all().build()?),
        Executor::TokioMulti => run_on(
            Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?,
        ),
        Executor::BlockOn | Executor::Blocking => run_on_threads(executor),
    };
    outcome.inspect_err(|status| send_answer(0, failed(status)))
}

fn run_on(runtime: Runtime) -> Result<(), Status> {
    let agent = Agent::new(runtime.block_on(ProbeClient::connect("probe.Probe"))?);
    let (asks, mut asked) = tokio::sync::mpsc::channel(ASKS_MAX);
    std::thread::spawn(move || each_ask(|line| asks.blocking_send(line).is_ok()));
    send_answer(0, Answer::Ready);
    runtime.block_on(async move {
        while let Some(line) = asked.recv().await {
            let agent = agent.clone();
            tokio::spawn(async move { send_answer(line.ticket, agent.answer(line).await) });
        }
    });
    // Calls that are under way are dropped with the runtime, as in any program that ends.
    runtime.shutdown_background();
    Ok(())
}

fn run_on_threads(executor: Executor) -> Result<(), Status> {
    if executor == Executor::Blocking {
        let agent = BlockingAgent::connect()?;
        serve_on_threads(move |line| agent.answer(line.ask));
    } else {
        let agent = Agent::new(block_on(ProbeClient::connect("probe.Probe"))?);
        serve_on_threads(move |line| block_on(agent.answer(line)));
    }
    Ok(())
}

fn serve_on_threads(answer: impl Fn(AskLine) -> Answer + Clone + Send + 'static) {
    send_answer(0, Answer::Ready);
    each_ask(|line| {
        let answer = answer.clone();
        std::thread::spawn(move || send_answer(line.ticket, answer(line)));
        true
    });
}

/// Reads asks until the input ends, or `take` says that it wants no more.
fn each_ask(mut take: impl FnMut(AskLine) -> bool) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let ask = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        if !take(ask) {
            return;
        }
    }
}

fn send_answer(ticket: u64, answer: Answer) {
    let line = serde_json::to_string(&AnswerLine { ticket, answer }).expect("answers can be written as JSON");
    let mut output = std::io::stdout().lock();
    // A test that does not listen any more has ended.
    let _ = writeln!(output, "{line}").and_then(|()| output.flush());
}

#[derive(Clone)]
struct Agent {
    client: ProbeClient,
    kept: Arc<Mutex<Vec<Received<EchoMessage>>>>,
    others: Arc<Mutex<Vec<ProbeClient>>>,
}

impl Agent {
    fn new(client: ProbeClient) -> Agent {
        Agent {
            client,
            kept: Arc::default(),
            others: Arc::default(),
        }
    }

    async fn answer(&self, line: AskLine) -> Answer {
        let begin = Instant::now();
        match self.carry_out(line.ticket, line.ask).await {
            Ok(done) => Answer::Done(Done {
                elapsed_ms: begin.elapsed().as_millis() as u64,
                ..done
            }),
            Err(status) => failed(&status),
        }
    }

    async fn carry_out(&self, ticket: u64, ask: Ask) -> Result<Done, Status> {
        match ask {
            Ask::Echo(echo) => self.echo(echo).await,
            Ask::EchoAs(schema) => other_schemas::echo_as(schema).await,
            Ask::Servers { schema, connections } => self.servers(schema, connections).await,
            Ask::EchoAt(name) => {
                let client = ProbeClient::connect(name.as_str()).await?;
                client.echo(echo_message(1)).await?;
                Ok(Done::default())
            }
            Ask::BuildOnly { bytes } => {
                let message = echo_message(bytes);
                send_answer(ticket, Answer::At("built".to_owned()));
                stay().await;
                drop(message);
                Ok(Done::default())
            }
            Ask::Hold(hold) => self.hold(hold).await,
            Ask::HoldMany { calls, hold } => self.hold_many(calls, hold).await,
            Ask::Fail(parts) => self.fail(parts).await,
            Ask::Mirror(metadata) => self.mirror(metadata).await,
            Ask::Counts { key } => self.counts(key).await,
            Ask::Pour(pour) => self.pour(ticket, pour).await,
            Ask::Fill(fill) => self.fill(ticket, fill).await,
            Ask::Chat { messages, bytes } => self.chat(messages, bytes).await,
            Ask::Dig { levels } => self.dig(levels).await,
            Ask::Keep { calls, bytes } => self.keep(calls, bytes).await,
            Ask::Clients { clients } => self.clients(clients).await,
            Ask::LetGo => {
                self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
                self.others.lock().unwrap_or_else(PoisonError::into_inner).clear();
                Ok(Done::default())
            }
        }
    }

    async fn echo(&self, echo: Echo) -> Result<Done, Status> {
        if echo.in_flight <= 1 {
            return self.echo_in_turn(&echo, echo.calls).await;
        }
        let mut tasks = JoinSet::new();
        for stream in 0..echo.in_flight {
            let (agent, echo) = (self.clone(), echo.clone());
            let calls = echo.calls / echo.in_flight + usize::from(stream < echo.calls % echo.in_flight);
            tasks.spawn(async move { agent.echo_in_turn(&echo, calls).await });
        }
        let mut done = Done::default();
        while let Some(stream) = tasks.join_next().await {
            let stream = stream.map_err(|panicked| Status::unknown(panicked.to_string()))??;
            done.count += stream.count;
            done.bytes += stream.bytes;
            done.slowest_us = done.slowest_us.max(stream.slowest_us);
        }
        Ok(done)
    }

    async fn echo_in_turn(&self, echo: &Echo, calls: usize) -> Result<Done, Status> {
        let mut done = Done::default();
        for _ in 0..calls {
            let mut request = limited(echo_message(echo.bytes), echo.timeout_ms);
            if echo.unconnected == Unconnected::Wait {
                request.set_readiness(Readiness::Wait);
            }
            let began = Instant::now();
            let reply = self.client.echo(request).await?;
            done.slowest_us = done.slowest_us.max(began.elapsed().as_micros() as u64);
            check_payload(&reply.get_ref().payload, echo.bytes)?;
            done.count += 1;
            done.bytes += echo.bytes as u64;
        }
        Ok(done)
    }

    async fn hold(&self, hold: Hold) -> Result<Done, Status> {
        let request = HoldRequest {
            key: hold.key.as_str().into(),
            milliseconds: hold.milliseconds,
            until_begun: hold.until_begun,
        };
        let call = self.client.hold(limited(request, hold.timeout_ms));
        let reply = match hold.cancel_after_ms {
            None => call.await?,
            Some(milliseconds) => tokio::time::timeout(Duration::from_millis(milliseconds), call)
                .await
                .map_err(|_| Status::cancelled("the agent dropped the call"))??,
        };
        Ok(Done {
            count: 1,
            deadline_ms: reply.get_ref().deadline_milliseconds,
            ..Done::default()
        })
    }

    async fn hold_many(&self, calls: usize, hold: Hold) -> Result<Done, Status> {
        let mut tasks = JoinSet::new();
        for _ in 0..calls {
            let (agent, hold) = (self.clone(), hold.clone());
            tasks.spawn(async move { agent.hold(hold).await });
        }
        let mut done = Done::default();
        while let Some(call) = tasks.join_next().await {
            done.count += call
                .map_err(|panicked| Status::unknown(panicked.to_string()))??
                .count;
        }
        Ok(done)
    }

    async fn fail(&self, parts: StatusParts) -> Result<Done, Status> {
        let request = FailRequest {
            code: parts.code,
            message: parts.message.as_str().into(),
            details: parts.details.as_slice().into(),
        };
        self.client.fail(request).await?;
        Ok(Done::default())
    }

    async fn mirror(&self, metadata: Vec<Metadatum>) -> Result<Done, Status> {
        let mut request = Request::new(Nothing::default());
        for pair in metadata {
            let appended = request.metadata_mut().append_bin(&pair.key, &pair.value);
            appended.map_err(|error| Status::invalid_argument(error.to_string()))?;
        }
        let response = self.client.mirror(request).await?;
        Ok(Done {
            initial: pairs(response.metadata()),
            trailing: pairs(response.trailers()),
            ..Done::default()
        })
    }

    async fn counts(&self, key: String) -> Result<Done, Status> {
        let request = CountsRequest {
            key: key.as_str().into(),
        };
        let reply = self.client.counts(request).await?;
        Ok(Done {
            begun: reply.get_ref().begun,
            cancelled: reply.get_ref().cancelled,
            finished: reply.get_ref().finished,
            ..Done::default()
        })
    }

    async fn pour(&self, ticket: u64, pour: Pour) -> Result<Done, Status> {
        let pause = pour
            .pause
            .map_or((0, 0), |pause| (pause.after, pause.milliseconds));
        let request = PourRequest {
            key: pour.key.as_str().into(),
            count: pour.messages,
            bytes: pour.bytes,
            pause_after: pause.0,
            pause_milliseconds: pause.1,
        };
        let mut stream = self
            .client
            .pour(limited(request, pour.timeout_ms))
            .await?
            .into_inner();
        let mut done = Done::default();
        loop {
            match pour.reading {
                Reading::Telling(after) if done.count == u64::from(after) => {
                    send_answer(ticket, Answer::At("reading".to_owned()));
                }
                Reading::Stopping(after) if done.count == u64::from(after) => {
                    send_answer(ticket, Answer::At("stopped".to_owned()));
                    stay().await;
                }
                Reading::Dropping(after) if done.count == u64::from(after) => return Ok(done),
                Reading::Slow(milliseconds) => sleep(Duration::from_millis(milliseconds.into())).await,
                _ => {}
            }
            let Some(drip) = stream.message().await? else {
                return Ok(done);
            };
            count_drip(&mut done, &drip, pour.bytes as usize)?;
        }
    }

    async fn fill(&self, ticket: u64, fill: Fill) -> Result<Done, Status> {
        let drips = Filling {
            ticket,
            sent: 0,
            is_told: false,
            fill: fill.clone(),
        };
        let mut request = Request::new(drips);
        if let Some(milliseconds) = fill.timeout_ms {
            request.set_timeout(Duration::from_millis(milliseconds));
        }
        let reply = self.client.fill(request).await?;
        Ok(Done {
            count: reply.get_ref().count,
            bytes: reply.get_ref().bytes,
            ..Done::default()
        })
    }

    async fn chat(&self, messages: u32, bytes: usize) -> Result<Done, Status> {
        let (mut sender, requests) = provost::stream(1);
        let mut stream: Streaming<Drip> = self.client.chat(requests).await?.into_inner();
        let mut done = Done::default();
        for number in 1..=messages {
            let gone = sender.send(drip(number, bytes)).await.is_err();
            let Some(back) = stream.message().await? else {
                return Err(Status::unknown(format!(
                    "the stream ended after {} messages (gone: {gone})",
                    done.count
                )));
            };
            count_drip(&mut done, &back, bytes)?;
        }
        drop(sender);
        match stream.message().await? {
            None => Ok(done),
            Some(_) => Err(Status::unknown("the server sent more messages than it got")),
        }
    }

    async fn dig(&self, levels: u32) -> Result<Done, Status> {
        let mut nest = Nest::default();
        for _ in 1..levels {
            nest = Nest { inner: nest.into() };
        }
        let reply = self.client.dig(nest).await?;
        Ok(Done {
            count: reply.get_ref().levels.into(),
            ..Done::default()
        })
    }

    async fn keep(&self, calls: usize, bytes: usize) -> Result<Done, Status> {
        for _ in 0..calls {
            let reply = self.client.echo(echo_message(bytes)).await?.into_inner();
            self.kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(reply);
        }
        Ok(Done {
            count: calls as u64,
            ..Done::default()
        })
    }

    async fn servers(&self, schema: ClientSchema, connections: usize) -> Result<Done, Status> {
        let mut done = Done::default();
        for _ in 0..connections {
            let metadata = match schema {
                ClientSchema::Compatible => other_schemas::which_server().await?,
                ClientSchema::Usual => {
                    let client = ProbeClient::connect("probe.Probe").await?;
                    let request = CountsRequest {
                        key: WHICH_SERVER.into(),
                    };
                    client.counts(request).await?.metadata().clone()
                }
            };
            done.initial.extend(pairs(&metadata));
        }
        Ok(done)
    }

    async fn clients(&self, clients: usize) -> Result<Done, Status> {
        for _ in 0..clients {
            let client = ProbeClient::connect("probe.Probe").await?;
            client.echo(echo_message(100)).await?;
            self.others
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(client);
        }
        Ok(Done {
            count: clients as u64,
            ..Done::default()
        })
    }
}

/// The requests of `Fill`.
struct Filling {
    ticket: u64,
    sent: u32,
    is_told: bool,
    fill: Fill,
}

impl Stream for Filling {
    type Item = Drip;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Drip>> {
        if self.sent == self.fill.messages {
            return Poll::Ready(None);
        }
        if self.fill.stop_after == Some(self.sent) {
            if !std::mem::replace(&mut self.is_told, true) {
                send_answer(self.ticket, Answer::At("filling".to_owned()));
            }
            return Poll::Pending;
        }
        self.sent += 1;
        Poll::Ready(Some(drip(self.sent, self.fill.bytes)))
    }
}

/// Waits for ever: the test ends the agent, or the call's deadline does.
async fn stay() {
    std::future::pending::<()>().await;
}

fn limited<T>(message: T, timeout_ms: Option<u64>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(milliseconds) = timeout_ms {
        request.set_timeout(Duration::from_millis(milliseconds));
    }
    request
}

pub(crate) fn echo_message(bytes: usize) -> EchoMessage {
    EchoMessage {
        text: "text".into(),
        payload: payload(bytes),
        numbers: [1, 2, 3].into(),
        labels: [("key".into(), "value".into())].into(),
    }
}

pub(crate) fn check_payload(got: &[u8], bytes: usize) -> Result<(), Status> {
    if is_payload(got, bytes) {
        Ok(())
    } else {
        Err(Status::data_loss(format!(
            "a payload of {bytes} bytes came back changed"
        )))
    }
}

pub(crate) fn count_drip(done: &mut Done, drip: &Drip, bytes: usize) -> Result<(), Status> {
    done.count += 1;
    done.bytes += drip.payload.len() as u64;
    if u64::from(drip.number) != done.count {
        return Err(Status::data_loss(format!(
            "message {} came as number {}",
            drip.number, done.count
        )));
    }
    check_payload(&drip.payload, bytes)
}

fn pairs(metadata: &MetadataMap) -> Vec<Metadatum> {
    let pair = |(key, value): (&str, &[u8])| Metadatum {
        key: key.to_owned(),
        value: value.to_owned(),
    };
    metadata.iter().map(pair).collect()
}

pub(crate) fn failed(status: &Status) -> Answer {
    Answer::Failed(StatusParts {
        code: status.code().number(),
        message: status.message().to_owned(),
        details: status.details().to_owned(),
    })
}
