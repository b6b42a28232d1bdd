//! `provost load`: a method called again and again, and how fast it answers.

mod body;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use prost_reflect::DynamicMessage;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use crate::admin::{Node, Target};
use crate::call::{
    CallObserver, CallPlace, DynamicCall, DynamicCodec, MetadataEntry, RequestSource, metadata_map, path_of,
};
use crate::failure::Failure;
use crate::interface::{SchemaFiles, ServiceInterface, ServiceName};
use crate::table::Canvas;
use crate::watch::{Shown, json_document, print};

use body::LoadBody;
use tally::{CallResult, LoadReport, LoadTally};

pub(crate) const EXAMPLES: &str = "\
Without --rate, so many calls are in flight all the time (a closed loop). With it, calls begin at that rate whether or not
earlier ones have ended (an open loop), and a call's time counts from when it was to begin: what waits because the service is
slow is not left out. Calls that fail are counted by status, and their times apart from the others'.

In the message, {{number}} is the number of the call, and {{random}} a random number, the same ones for the same --seed.

Examples:
  provost load KvStore/Get '{\"key\": \"a\"}'
  provost load KvStore/Get '{\"key\": \"k{{random}}\"}' --rate 5000 --duration 30
  provost load KvStore/Get @get.json --in-flight 64 --connections 4
  provost load KvStore/Get '{}' --json | jq .latency_us.p99
  provost load KvStore/Get '{}' --csv > seconds.csv";

/// Calls that may be in flight.
const IN_FLIGHT_MAX: u32 = 65_536;
/// Results that wait to be counted.
const RESULTS_WAITING: usize = 4_096;
/// Most calls that are begun without a look at what has ended.
const BURST_CALLS: u32 = 64;

/// Options of `provost load`.
#[derive(Args, Debug)]
pub(crate) struct LoadOptions {
    /// Which method; the last part of the service's name is enough where only one ends so
    #[arg(value_name = "SERVICE/METHOD", value_parser = ServiceName::parse)]
    name: ServiceName,
    /// What each call sends: JSON, @FILE, or - for standard input [default: an empty message, or an empty stream]
    #[arg(value_name = "MESSAGE", value_parser = RequestSource::parse)]
    message: Option<RequestSource>,
    /// Begin so many calls a second, whatever becomes of earlier ones
    #[arg(long, value_name = "CALLS", value_parser = rate)]
    rate: Option<f64>,
    /// Calls in flight; with --rate, most of them [default: 8, or with --rate 1024]
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u32).range(1..=i64::from(IN_FLIGHT_MAX)))]
    in_flight: Option<u32>,
    /// How long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = crate::admin::seconds)]
    duration: f64,
    /// Stop after so many calls, if that is sooner
    #[arg(long, value_name = "CALLS", value_parser = clap::value_parser!(u64).range(1..))]
    calls: Option<u64>,
    /// Connections that calls take in turn
    #[arg(long, value_name = "CONNECTIONS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Metadata to send; of a key that ends in -bin, the value in base64. May be given several times
    #[arg(long = "metadata", short = 'H', value_name = "KEY: VALUE", value_parser = MetadataEntry::parse)]
    metadata: Vec<MetadataEntry>,
    /// What random numbers begin with
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print a line for each second, with commas
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    place: CallPlace,
    #[command(flatten)]
    files: SchemaFiles,
    #[command(flatten)]
    target: Target,
}

/// Reads calls a second.
fn rate(text: &str) -> Result<f64, String> {
    const RATE_MAX: f64 = 1e6;
    let rate: f64 = text
        .parse()
        .map_err(|_| "write calls a second, such as 100 or 0.5".to_owned())?;
    if rate > 0.0 && rate <= RATE_MAX {
        Ok(rate)
    } else {
        Err("give more than 0 calls a second, and at most a million".to_owned())
    }
}

/// Makes the calls, and reports.
pub(crate) async fn run(asked: LoadOptions) -> Result<(), Failure> {
    let Some(method) = &asked.name.method else {
        return Err(Failure::usage(format!("write {}/METHOD", asked.name.service)));
    };
    let node = async || Node::connect(&asked.target).await;
    let interface = ServiceInterface::find(&asked.name, &asked.files, node).await?;
    let method = interface.method(method)?;
    let source = asked.message.clone().unwrap_or_default();
    let body = LoadBody::read(&source, &method, asked.seed)?;
    let timeout = Duration::from_secs_f64(asked.target.timeout);
    let mut channels = Vec::new();
    for _ in 0..asked.connections {
        channels.push(asked.place.connect(timeout, node).await?);
    }
    let call = DynamicCall {
        path: path_of(&method)?,
        codec: DynamicCodec::new(method.output()),
        metadata: metadata_map(&asked.metadata)?,
        timeout,
    };
    let generator = LoadGenerator {
        call: Arc::new(call),
        channels,
        body,
        pace: LoadPace::of(&asked),
    };
    let report = generator.run(&asked).await?;
    if asked.csv {
        return Ok(());
    }
    print(&if asked.target.json {
        json_document(&report)?
    } else {
        report.draw(Canvas::of_stdout())
    })
}

/// When each call begins.
#[derive(Clone, Copy, Debug)]
struct LoadPace {
    /// Between the beginnings of two calls; `None`: when there is room.
    every: Option<Duration>,
    in_flight: u32,
    calls: u64,
    until: Instant,
}

impl LoadPace {
    fn of(asked: &LoadOptions) -> LoadPace {
        const CLOSED: u32 = 8;
        const OPEN: u32 = 1_024;
        let in_flight_default = if asked.rate.is_some() { OPEN } else { CLOSED };
        LoadPace {
            every: asked.rate.map(|rate| Duration::from_secs_f64(1.0 / rate)),
            in_flight: asked.in_flight.unwrap_or(in_flight_default),
            calls: asked.calls.unwrap_or(u64::MAX),
            until: Instant::now() + Duration::from_secs_f64(asked.duration),
        }
    }

    /// When this call, counted from zero, was to begin; `None` after the last one.
    fn due(&self, number: u64, began: Instant) -> Option<Instant> {
        let due = match self.every {
            None => Instant::now(),
            Some(every) => began + Duration::from_secs_f64(every.as_secs_f64() * number as f64),
        };
        (number < self.calls && due < self.until).then_some(due)
    }
}

struct LoadGenerator {
    call: Arc<DynamicCall>,
    channels: Vec<Channel>,
    body: LoadBody,
    pace: LoadPace,
}

impl LoadGenerator {
    /// Begins calls until it is time, or Ctrl-C, and waits for those under way.
    async fn run(mut self, asked: &LoadOptions) -> Result<LoadReport, Failure> {
        let (results, mut ended) = mpsc::channel(RESULTS_WAITING);
        let mut tally = LoadTally::new(asked.csv)?;
        let room = Arc::new(Semaphore::new(self.pace.in_flight as usize));
        let began = Instant::now();
        let mut second = tokio::time::interval_at(began + Duration::from_secs(1), Duration::from_secs(1));
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        let mut number = 0;
        while let Some(due) = self.pace.due(number, began) {
            tokio::select! {
                biased;
                _ = &mut interrupted => break,
                _ = second.tick() => tally.end_second(self.pace.in_flight as usize - room.available_permits())?,
                Some(result) = ended.recv() => tally.count(&result),
                permit = place_at(due, &room) => {
                    self.begin(number, due, permit, results.clone())?;
                    number += 1;
                    number += self.begin_due(number, began, &room, &results)?;
                }
            }
        }
        drop(results);
        loop {
            tokio::select! {
                biased;
                _ = second.tick() => tally.end_second(self.pace.in_flight as usize - room.available_permits())?,
                result = ended.recv() => match result {
                    Some(result) => tally.count(&result),
                    None => break,
                },
            }
        }
        tally.report(number, began.elapsed())
    }

    /// Begins more calls that are due and have room, a few of them; says how many.
    fn begin_due(
        &mut self,
        first: u64,
        began: Instant,
        room: &Arc<Semaphore>,
        results: &mpsc::Sender<CallResult>,
    ) -> Result<u64, Failure> {
        let mut more = 0;
        while more < u64::from(BURST_CALLS)
            && let Some(due) = self.pace.due(first + more, began)
            && due <= Instant::now()
            && let Ok(permit) = Arc::clone(room).try_acquire_owned()
        {
            self.begin(first + more, due, permit, results.clone())?;
            more += 1;
        }
        Ok(more)
    }

    fn begin(
        &mut self,
        number: u64,
        due: Instant,
        permit: OwnedSemaphorePermit,
        results: mpsc::Sender<CallResult>,
    ) -> Result<(), Failure> {
        let call = Arc::clone(&self.call);
        let channel = self.channels[number as usize % self.channels.len()].clone();
        let requests = self.body.next_call(number)?;
        tokio::spawn(async move {
            let mut counted = CountedAnswers::default();
            let ended = call.run(channel, requests, &mut counted).await;
            let result = CallResult {
                took: due.elapsed(),
                messages: counted.messages,
                failure: ended.err(),
            };
            drop(permit);
            // Whoever counts is there until all calls have ended.
            let _ = results.send(result).await;
        });
        Ok(())
    }
}

/// Room for a call, when it is due.
async fn place_at(due: Instant, room: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    tokio::time::sleep_until(due).await;
    match Arc::clone(room).acquire_owned().await {
        Ok(permit) => permit,
        // Nobody closes it.
        Err(_) => std::future::pending().await,
    }
}

/// Counts answers, and looks at nothing in them.
#[derive(Debug, Default)]
struct CountedAnswers {
    messages: u64,
}

impl CallObserver for CountedAnswers {
    fn on_headers(&mut self, _: &MetadataMap) -> Result<(), Failure> {
        Ok(())
    }

    fn on_message(&mut self, _: &DynamicMessage) -> Result<(), Failure> {
        self.messages += 1;
        Ok(())
    }

    fn on_end(&mut self, _: &Status, _: &MetadataMap) -> Result<(), Failure> {
        Ok(())
    }
}
