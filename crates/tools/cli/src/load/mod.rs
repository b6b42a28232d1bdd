//! `provost load`: a method called again and again, and how fast it answers.

mod body;
mod tally;
mod timer;

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use prost_reflect::DynamicMessage;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;

use crate::call::{
    CallObserver, CallPlace, DynamicCall, DynamicCodec, MetadataEntry, RequestSource, metadata_map, path_of,
};
use crate::interface::{SchemaFiles, ServiceInterface, ServiceName};
use crate::watch::Shown;
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::Failure;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::Canvas;

use body::LoadBody;
use tally::{CallResult, LoadReport, LoadTally};
use timer::PreciseTimer;

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
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = provost_terminal::admin::seconds)]
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
    const RATE_MIN: f64 = 1.0 / 86_400.0;
    const RATE_MAX: f64 = 1e6;
    let rate: f64 = text
        .parse()
        .map_err(|_| "write calls a second, such as 100 or 0.5".to_owned())?;
    if (RATE_MIN..=RATE_MAX).contains(&rate) {
        Ok(rate)
    } else {
        Err("give at least one call in a day, and at most a million a second".to_owned())
    }
}

/// Makes the calls, and reports.
pub(crate) async fn run(asked: LoadOptions) -> Result<(), Failure> {
    let Some(method) = &asked.name.method else {
        return Err(asked.name.lacks_method());
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
    let pace = LoadPace::of(&asked);
    let generator = LoadGenerator {
        call: Arc::new(call),
        channels,
        body,
        timer: PreciseTimer::new().map_err(unusable)?,
        room: Arc::new(Semaphore::new(pace.in_flight as usize)),
        pace,
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

    /// When this call, counted from zero, was to begin, where that does not depend on the others.
    fn due(&self, number: u64, began: Instant) -> Option<Instant> {
        let every_s = self.every?.as_secs_f64();
        Some(began + Duration::from_secs_f64(every_s * number as f64))
    }

    /// Whether there is such a call.
    fn has(&self, number: u64, began: Instant) -> bool {
        number < self.calls && self.due(number, began).unwrap_or_else(Instant::now) < self.until
    }

    /// Calls that were to begin by the rate, and had not when the time was over.
    fn not_begun(&self, begun: u64, began: Instant) -> u64 {
        let Some(every) = self.every else { return 0 };
        let time_s = self.until.duration_since(began).as_secs_f64();
        let all = (time_s / every.as_secs_f64()).ceil() as u64;
        all.min(self.calls).saturating_sub(begun)
    }
}

struct LoadGenerator {
    call: Arc<DynamicCall>,
    channels: Vec<Channel>,
    body: LoadBody,
    pace: LoadPace,
    timer: PreciseTimer,
    room: Arc<Semaphore>,
}

impl LoadGenerator {
    /// Begins calls until it is time, or Ctrl-C, and waits for those under way, unless there is a second one.
    async fn run(mut self, asked: &LoadOptions) -> Result<LoadReport, Failure> {
        let (results, mut ended) = mpsc::channel(RESULTS_WAITING);
        let mut tally = LoadTally::new(asked.csv)?;
        let began = Instant::now();
        let mut second = tokio::time::interval_at(began + Duration::from_secs(1), Duration::from_secs(1));
        let mut interrupts = signal(SignalKind::interrupt()).map_err(unusable)?;
        let is_over = tokio::time::sleep_until(self.pace.until);
        tokio::pin!(is_over);
        let mut begun = 0;
        let mut is_cut_short = false;
        while self.pace.has(begun, began) {
            let due = self.pace.due(begun, began);
            tokio::select! {
                biased;
                _ = interrupts.recv() => {
                    is_cut_short = true;
                    break;
                }
                () = &mut is_over => break,
                _ = second.tick() => tally.end_second(self.in_flight())?,
                Some(result) = ended.recv() => tally.count(&result),
                permit = self.place_at(due) => {
                    self.begin(begun, due, permit?, results.clone())?;
                    begun += 1;
                    begun += self.begin_due(begun, began, &results)?;
                }
            }
        }
        drop(results);
        let not_begun = if is_cut_short {
            0
        } else {
            self.pace.not_begun(begun, began)
        };
        loop {
            tokio::select! {
                biased;
                _ = interrupts.recv() => break,
                _ = second.tick() => tally.end_second(self.in_flight())?,
                result = ended.recv() => match result {
                    Some(result) => tally.count(&result),
                    None => break,
                },
            }
        }
        tally.end_part_of_second(self.in_flight())?;
        tally.report(begun, not_begun, began)
    }

    fn in_flight(&self) -> usize {
        self.pace.in_flight as usize - self.room.available_permits()
    }

    /// Room for a call, when it is due.
    async fn place_at(&self, due: Option<Instant>) -> Result<OwnedSemaphorePermit, Failure> {
        if let Some(due) = due {
            self.timer.sleep_until(due).await.map_err(unusable)?;
        }
        let room = Arc::clone(&self.room).acquire_owned().await;
        room.map_err(|error| Failure::failed(error.to_string()))
    }

    /// Begins more calls that are due and have room, a few of them; says how many.
    fn begin_due(
        &mut self,
        first: u64,
        began: Instant,
        results: &mpsc::Sender<CallResult>,
    ) -> Result<u64, Failure> {
        let mut more = 0;
        while more < u64::from(BURST_CALLS) && self.pace.has(first + more, began) {
            let due = self.pace.due(first + more, began);
            if due.is_some_and(|due| due > Instant::now()) {
                break;
            }
            let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
                break;
            };
            self.begin(first + more, due, permit, results.clone())?;
            more += 1;
        }
        Ok(more)
    }

    fn begin(
        &mut self,
        number: u64,
        due: Option<Instant>,
        permit: OwnedSemaphorePermit,
        results: mpsc::Sender<CallResult>,
    ) -> Result<(), Failure> {
        let call = Arc::clone(&self.call);
        let channel = self.channels[number as usize % self.channels.len()].clone();
        let requests = self.body.next_call(number)?;
        let due = due.unwrap_or_else(Instant::now);
        tokio::spawn(async move {
            let mut counted = CountedAnswers::default();
            let ended = call.run(channel, requests, &mut counted).await;
            let result = CallResult {
                took: due.elapsed(),
                messages: counted.messages,
                failure: ended.err(),
            };
            drop(permit);
            // Nobody counts any more when the load was cut short.
            let _ = results.send(result).await;
        });
        Ok(())
    }
}

fn unusable(error: std::io::Error) -> Failure {
    Failure::failed(format!("a timer or a signal cannot be waited for: {error}"))
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
