//! `provost insight profile`: drives a proxy and says where its time goes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use provost_insight::profile::{Component, Profile, Protocol};
use provost_insight::workload::{WORKLOAD_BYTES_MAX, WorkloadCell, WorkloadFile};
use provost_insight_probes::load::{LoadPace, LoadShape};
use provost_insight_probes::profile::{MethodChoice, ProfileOrder, ProfiledProxy, median, take};
use provost_insight_probes::proxies::{ProxyKind, ProxyVariant};
use provost_insight_probes::{ProbeFailure, StopSignal};

use crate::input::{check_output, read_text, refused, write_text};
use provost_terminal::failure::{Exit, Failure, complain};
use provost_terminal::output::print;
use provost_terminal::table::{Align, Canvas, Table, clean};

pub(crate) const EXAMPLES: &str = "\
Starts an echo server and a client of its own, drives the proxy between them, and takes turns with and without the proxy
and with and without tracing. The profile says of each component which part of a message's latency and of the proxy's
processor time it has, by which method, and what the method itself takes.

^C ends it early: the profile then has what was measured, says that it is partial, and the exit status is 1.

A proxy is envoy, nginx, haproxy or provostd (started with a configuration of this tool's), a command line in which {listen},
{upstream}, {listen_port}, {upstream_port} and {protocol} are put in, or the id of a process that runs already; then
--listen and --upstream-port say where.

Examples:
  provost insight profile --proxy envoy --out envoy.json
  provost insight profile --proxy envoy --workload echo-http --filter lua --filter rbac --out filters.json
  provost insight profile --proxy provostd --workload echo-grpc --filter metrics --out provostd.json
  provost insight profile --proxy envoy --workload echo-tcp --variant unix-sockets --out sockets.json
  provost insight profile --proxy envoy --workload ours.yaml --out ours.json
  provost insight profile --proxy 'mysidecar --from {listen} --to {upstream}' --workload echo-tcp
  provost insight profile --proxy 4711 --access-log /var/log/calls.log --listen 127.0.0.1:8080 --upstream-port 9090 \
    --workload echo-http
  provost insight profile --proxy 4711 --listen 127.0.0.1:8080 --upstream-port 9090 --workload echo-http";

/// What the built-in load speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BuiltInWorkload {
    /// Messages over plain TCP
    EchoTcp,
    /// HTTP/1.1
    EchoHttp,
    /// HTTP/2
    EchoHttp2,
    /// gRPC
    EchoGrpc,
}

impl BuiltInWorkload {
    fn protocol(self) -> Protocol {
        match self {
            BuiltInWorkload::EchoTcp => Protocol::Tcp,
            BuiltInWorkload::EchoHttp => Protocol::Http1,
            BuiltInWorkload::EchoHttp2 => Protocol::Http2,
            BuiltInWorkload::EchoGrpc => Protocol::Grpc,
        }
    }
}

/// A built-in load, or a file that describes one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ChosenWorkload {
    BuiltIn(BuiltInWorkload),
    File(PathBuf),
}

impl FromStr for ChosenWorkload {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<ChosenWorkload, std::convert::Infallible> {
        Ok(BuiltInWorkload::from_str(text, false)
            .map_or_else(|_| ChosenWorkload::File(text.into()), ChosenWorkload::BuiltIn))
    }
}

/// Another way of passing bytes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProfiledVariant {
    /// The server at a Unix socket: envoy, nginx, haproxy, provostd
    UnixSockets,
    /// Spliced by the kernel: haproxy over tcp
    ZeroCopy,
}

impl ProfiledVariant {
    fn variant(self) -> ProxyVariant {
        match self {
            ProfiledVariant::UnixSockets => ProxyVariant::UnixSockets,
            ProfiledVariant::ZeroCopy => ProxyVariant::ZeroCopy,
        }
    }
}

/// A slice is no longer: ten minutes.
const SLICE_MS_MAX: u64 = 600_000;

/// Options of `profile`.
#[derive(Args, Debug)]
pub(crate) struct Options {
    /// The proxy: a name, a command line, or the id of a process
    #[arg(long, value_name = "NAME|COMMAND|PID")]
    proxy: String,
    /// What the load speaks (echo-tcp, echo-http, echo-http2, echo-grpc), or a file that describes one
    /// [default: echo-tcp, echo-http and echo-grpc]
    #[arg(long, value_name = "WORKLOAD|FILE")]
    workload: Vec<ChosenWorkload>,
    /// Where the profile goes [default: standard output]
    #[arg(long, short = 'o', value_name = "FILE")]
    out: Option<PathBuf>,
    /// Sizes of requests, and of their responses, in bytes
    #[arg(long, value_delimiter = ',', value_name = "BYTES")]
    sizes: Vec<usize>,
    /// Rates in calls per second, beside as fast as possible
    #[arg(long, value_delimiter = ',', value_name = "RATE")]
    rates: Vec<f64>,
    /// Calls in flight, beside one
    #[arg(long, value_delimiter = ',', value_name = "COUNT")]
    in_flight: Vec<usize>,
    /// A filter to measure, of Envoy (fault, rate-limit, rbac, header-mutation, lua, wasm) or a policy of provostd (null,
    /// metrics, fault, rate-limit, access)
    #[arg(long, value_name = "FILTER")]
    filter: Vec<String>,
    /// Another way of passing bytes on, measured beside the usual one
    #[arg(long, value_enum, value_name = "VARIANT")]
    variant: Vec<ProfiledVariant>,
    /// How often everything is measured
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: Option<u32>,
    /// Length of each slice of a measurement, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..=SLICE_MS_MAX))]
    slice: Option<u64>,
    /// Measure only sums, by runs with and without the proxy
    #[arg(long)]
    differential: bool,
    /// Measure by Envoy's access log, as is done without privileges; of an Envoy that is not started by name, the file in which
    /// it logs each call, in the form that docs/insight-measuring.md has
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "differential")]
    access_log: Option<Option<PathBuf>>,
    /// One small size, and few repetitions: under a minute
    #[arg(long)]
    quick: bool,
    /// Where a proxy that runs already listens
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// The port of the loopback device to which it passes calls on
    #[arg(long, value_name = "PORT")]
    upstream_port: Option<u16>,
}

/// Runs it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    check_output(options.out.as_deref())?;
    let order = ProfileOrder {
        stop: stop_signal()?,
        ..order(options)?
    };
    let profile = take(&order, &mut complain).map_err(failure)?;
    let text = profile.to_json();
    write_text(options.out.as_deref(), &text)?;
    if options.out.is_some() {
        print(&draw(&profile, Canvas::of_stdout()))?;
    }
    // What was measured is kept, and scripts learn that it is not all.
    match (&profile.partial, profile.lost_remark()) {
        (Some(why), _) => Err(Failure::failed(format!("the profile is partial: {why}"))),
        (None, Some(lost)) => Err(Failure::failed(lost)),
        (None, None) => Ok(()),
    }
}

/// By what an operator ends a measurement early.
pub(crate) fn stop_signal() -> Result<StopSignal, Failure> {
    StopSignal::of_operator(complain).map_err(failure)
}

/// The exit status that tells scripts whether another machine, or another command line, would help.
pub(crate) fn failure(failure: ProbeFailure) -> Failure {
    let exit = match failure {
        ProbeFailure::Invalid(_) => Exit::Usage,
        ProbeFailure::Refused { .. } => Exit::Denied,
        ProbeFailure::Unavailable(_) => Exit::Refused,
        _ => Exit::Failed,
    };
    let told = match failure {
        ProbeFailure::Stopped(_) => format!("{failure} before anything was measured"),
        _ => failure.to_string(),
    };
    Failure::new(exit, told)
}

fn order(options: &Options) -> Result<ProfileOrder, Failure> {
    let (protocols, loads) = workload(&options.workload)?;
    let mut order = ProfileOrder::of(proxy(options)?, protocols);
    order.loads = loads;
    let has_lists = !(options.sizes.is_empty() && options.rates.is_empty() && options.in_flight.is_empty());
    if has_lists && !order.loads.is_empty() {
        return Err(Failure::usage(
            "a file describes all of the load: leave out --sizes, --rates and --in-flight, or write them into the file",
        ));
    }
    if options.quick {
        order.sizes_bytes = vec![100, 4096];
        order.rates_per_s.clear();
        order.in_flight.clear();
        order.repetitions = 3;
    }
    replace(&mut order.sizes_bytes, &options.sizes);
    replace(&mut order.rates_per_s, &options.rates);
    replace(&mut order.in_flight, &options.in_flight);
    order.filters.clone_from(&options.filter);
    order.variants = options.variant.iter().map(|variant| variant.variant()).collect();
    order.repetitions = options.repetitions.unwrap_or(order.repetitions);
    order.slice = options.slice.map_or(order.slice, Duration::from_millis);
    if options.differential {
        order.methods = MethodChoice::Differential;
    }
    if let Some(log) = &options.access_log {
        order.methods = MethodChoice::AccessLog;
        order.access_log.clone_from(log);
        // Over plain TCP a log has connections and no calls.
        if options.workload.is_empty() {
            order.protocols.retain(|protocol| *protocol != Protocol::Tcp);
        }
    }
    Ok(order)
}

/// What the load speaks, and the loads of a file.
fn workload(chosen: &[ChosenWorkload]) -> Result<(Vec<Protocol>, Vec<LoadShape>), Failure> {
    let mut protocols = Vec::new();
    for one in chosen {
        match (one, chosen.len()) {
            (ChosenWorkload::BuiltIn(built_in), _) if protocols.contains(&built_in.protocol()) => {}
            (ChosenWorkload::BuiltIn(built_in), _) => protocols.push(built_in.protocol()),
            (ChosenWorkload::File(path), 1) => {
                let text = read_text(path, WORKLOAD_BYTES_MAX).map_err(|failure| no_file(path, failure))?;
                let workload = WorkloadFile::parse(&text).map_err(|error| refused(path, error))?;
                let loads = workload.loads.iter().map(load_shape).collect();
                return Ok((workload.protocols(), loads));
            }
            (ChosenWorkload::File(path), _) => {
                let problem = "a file describes all of the load: name it alone";
                return Err(refused(path, problem));
            }
        }
    }
    if protocols.is_empty() {
        protocols = vec![Protocol::Tcp, Protocol::Http1, Protocol::Grpc];
    }
    Ok((protocols, Vec::new()))
}

/// A name that is none of a built-in load is taken for a file's.
fn no_file(path: &Path, failure: Failure) -> Failure {
    if path.exists() {
        return failure;
    }
    refused(
        path,
        "neither a file nor a built-in load: take echo-tcp, echo-http, echo-http2 or echo-grpc",
    )
}

fn load_shape(cell: &WorkloadCell) -> LoadShape {
    LoadShape {
        protocol: cell.protocol,
        size_bytes: cell.size_bytes,
        in_flight: cell.in_flight,
        pace: cell.rate_per_s.map_or(LoadPace::Saturating, LoadPace::PerSecond),
    }
}

fn replace<T: Clone>(usual: &mut Vec<T>, asked: &[T]) {
    if !asked.is_empty() {
        *usual = asked.to_vec();
    }
}

fn proxy(options: &Options) -> Result<ProfiledProxy, Failure> {
    if let Ok(process) = options.proxy.parse() {
        let (Some(listen), Some(upstream_port)) = (options.listen, options.upstream_port) else {
            return Err(Failure::usage(
                "of a proxy that runs already, --listen and --upstream-port must say where",
            ));
        };
        return Ok(ProfiledProxy::Running {
            process,
            listen,
            upstream_port,
        });
    }
    if options.listen.is_some() || options.upstream_port.is_some() {
        return Err(Failure::usage(
            "--listen and --upstream-port are for a proxy that runs already: name it by the id of its process",
        ));
    }
    Ok(ProxyKind::named(&options.proxy).map_or_else(
        || ProfiledProxy::Command(options.proxy.clone()),
        ProfiledProxy::BuiltIn,
    ))
}

fn draw(profile: &Profile, canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("PROTOCOL", Align::Left),
        ("BYTES", Align::Right),
        ("COMPONENT", Align::Left),
        ("LATENCY µs", Align::Right),
        ("CPU µs", Align::Right),
    ]);
    let mut cells: Vec<(Protocol, f64)> = Vec::new();
    for seen in &profile.observations {
        let cell = (seen.load.protocol, seen.load.size_bytes);
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    let of_cell = |load: &provost_insight::profile::LoadCell, cell: &(Protocol, f64)| {
        (load.protocol, load.size_bytes) == *cell && load.in_flight == 1
    };
    let figure = |values: Vec<f64>| median(values).map_or("-".into(), |value| format!("{value:.2}"));
    for cell in &cells {
        let seen = || {
            profile
                .observations
                .iter()
                .filter(|seen| of_cell(&seen.load, cell))
        };
        let mut components: Vec<&Component> = seen().map(|seen| &seen.component).collect();
        components.sort();
        components.dedup();
        for component in components {
            let own = || seen().filter(|seen| seen.component == *component);
            table.row([
                cell.0.name().into(),
                cell.1.to_string().into(),
                component.to_string().into(),
                figure(own().map(|seen| seen.latency_us).collect()).into(),
                figure(own().map(|seen| seen.cpu_us).collect()).into(),
            ]);
        }
        let totals = || {
            let totals = profile.totals.iter();
            totals.filter(|total| of_cell(&total.load, cell) && total.filters.is_empty())
        };
        table.row([
            cell.0.name().into(),
            cell.1.to_string().into(),
            "added, as the client measures it".into(),
            figure(totals().map(|total| total.added_latency_us).collect()).into(),
            figure(totals().map(|total| total.added_cpu_us).collect()).into(),
        ]);
    }
    let notes: String = profile
        .notes
        .iter()
        .map(|note| format!("{}\n", clean(note)))
        .collect();
    format!("{}\n{notes}", table.draw(canvas))
}
