//! Compares the versions of the transport in one run, over loopback, on one thread: large messages a second, and how
//! long a small call takes beside them.
//!
//! `cargo run --release -p provost-transport-tcp --example versions`

use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_conformance::{Bench, End, LeftState, Pair, Successors, content, methods};
use provost_datapath::{ConnectionSignals, Engine, RestoreError, Restorer, Step};
use provost_transport_tcp::{
    ConnectParams, Decision, Encoding, Established, Greeting, Hello, Limits, Role, TcpTransport, TcpVersion,
    TransportConfig, accept, connect,
};
use provost_wire::descriptor::Parts;

const REQUEST: Parts = Parts::BEGIN.with(Parts::MESSAGE).with(Parts::END);
/// A call ends without a response: what is measured is the way there.
const GIVEN_UP: Parts = Parts::CANCEL;
const LARGE_BYTES: u32 = 4 << 20;
const LARGE_CALLS: u64 = 200;
const LARGE_IN_FLIGHT: u64 = 4;
const RUNS: usize = 3;

struct NoSuccessors;

impl Successors for NoSuccessors {
    fn one(&mut self, _: Role, _: LeftState, _: &mut dyn Restorer) -> Result<Box<dyn Engine>, RestoreError> {
        unreachable!("nothing is replaced here")
    }
}

fn pair(version: TcpVersion) -> std::io::Result<Pair> {
    let listener = provost_net::listen(([127, 0, 0, 1], 0).into())?;
    listener.set_nonblocking(false)?;
    let deadline = Instant::now() + Duration::from_secs(10);
    let params = ConnectParams {
        address: listener.local_addr()?.to_string(),
        hello: Hello {
            service: "test.Test".into(),
            schema_hash: [1; 32],
            methods: methods(),
            limits: Limits::default(),
            caller: None,
        },
        descriptor_set: Arc::from([]),
        tls: None,
        deadline,
    };
    let client = std::thread::spawn(move || connect(&params));
    let welcome = |_: Greeting<'_>| Decision::Welcome {
        encoding: Encoding::Native,
        methods: methods(),
        limits: Limits::default(),
    };
    let server = accept(listener.accept()?.0, None, deadline, welcome).map_err(std::io::Error::other)?;
    let client = client
        .join()
        .map_err(|_| std::io::Error::other("the client panicked"))?;
    let client = client.map_err(std::io::Error::other)?;
    let end = |established: Established| {
        let link = Arc::new(ConnectionSignals::new());
        let established = Established {
            carrier: established.carrier.with_version(version),
            ..established
        };
        let config = TransportConfig::default();
        End {
            engine: Box::new(TcpTransport::new(established, config, link.clone(), 0)),
            link,
        }
    };
    Ok(Pair {
        client: end(client),
        server: end(server),
        between: Box::new(|_| None),
        successors: Box::new(NoSuccessors),
        hot_restarts: None,
        turn_bytes: None,
    })
}

/// Gigabytes a second, and the median time of a small call, in microseconds.
fn measure(version: TcpVersion) -> std::io::Result<(f64, f64)> {
    let mut bench = Bench::new(pair(version)?);
    let (mut begun, mut done, mut call) = (0, 0, 0);
    let mut small: Option<(u64, Instant)> = None;
    let mut times = Vec::new();
    let start = Instant::now();
    while done < LARGE_CALLS {
        while begun < LARGE_CALLS && begun - done < LARGE_IN_FLIGHT {
            (begun, call) = (begun + 1, call + 1);
            bench
                .client
                .send(Step::new(call, REQUEST), &content(1, LARGE_BYTES));
        }
        if small.is_none() {
            call += 1;
            small = Some((call, Instant::now()));
            bench.client.send(Step::new(call, REQUEST), &content(1, 64));
        }
        bench.round();
        for event in std::mem::take(&mut bench.server.events) {
            match event.message.len() {
                64 => times.extend(small.take().map(|(_, since)| since.elapsed())),
                _ => done += 1,
            }
            bench.server.send_bare(Step::new(event.call, GIVEN_UP));
        }
        bench.client.events.clear();
    }
    let seconds = start.elapsed().as_secs_f64();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    let bytes = (LARGE_CALLS * u64::from(LARGE_BYTES)) as f64;
    Ok((bytes / seconds / 1e9, median.as_secs_f64() * 1e6))
}

fn main() -> std::io::Result<()> {
    for run in 1..=RUNS {
        for version in [TcpVersion::One, TcpVersion::Two] {
            let (rate, small) = measure(version)?;
            println!(
                "run {run}, version {}: {rate:.2} GB/s, small calls beside it {small:.0} us",
                version.number()
            );
        }
    }
    Ok(())
}
