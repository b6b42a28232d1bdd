//! Predicts many traces one by one, and says how long it took: `cargo run --release -p provost-insight --example many-traces
//! -- [TRACES] [CALLS]`. The traces are made up in the layout of Alibaba's; reading them counts.

use std::time::Instant;

use provost_insight::forest::{ForestOptions, predict_forest};
use provost_insight::model::{MachineMatch, ProfileModel};
use provost_insight::predict::{MeshSetup, ProxyPlacement};
use provost_insight::profile::Protocol;
use provost_insight::synthetic::{SyntheticProxy, synthetic_alibaba_rows, synthetic_profile};
use provost_insight::traces::{TraceFormat, assemble, read};

const DRAWS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let traces: usize = arguments.next().map_or(Ok(50_000), |text| text.parse())?;
    let calls: f64 = arguments.next().map_or(Ok(12.0), |text| text.parse())?;
    let text = synthetic_alibaba_rows(traces, calls, 1);
    let profile = synthetic_profile(&SyntheticProxy::example(), 5, 1);
    let begin = Instant::now();
    let forest = assemble(read(&text, TraceFormat::Alibaba)?);
    let read_s = begin.elapsed().as_secs_f64();
    let model = ProfileModel::new(&profile, MachineMatch::Same, DRAWS, 1)?;
    let options = ForestOptions {
        request_bytes: 100.0,
        response_bytes: 100.0,
        protocol: Protocol::Grpc,
        rate_per_s: 1000.0,
    };
    let setup = MeshSetup::new("sidecars", ProxyPlacement::Sidecars);
    let predicted = predict_forest(&forest, &model, &setup, &options)?;
    let whole_s = begin.elapsed().as_secs_f64();
    println!(
        "{} traces, {} calls, {} bytes: read in {read_s:.2} s, predicted with {DRAWS} draws in {:.2} s, {whole_s:.2} s in all on one thread",
        predicted.traces,
        predicted.calls,
        text.len(),
        whole_s - read_s
    );
    for one in &predicted.added_us {
        let figure = one.figure;
        println!(
            "{:>4.0} % of traces: up to {:.0} µs added ({:.0} to {:.0})",
            one.share * 100.0,
            figure.value,
            figure.low,
            figure.high
        );
    }
    Ok(())
}
