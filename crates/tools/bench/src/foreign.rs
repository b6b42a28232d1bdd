//! Clients of others that make load, as a check of what tonic's client says: `ghz`, and one with gRPC's C++ library. Both are built when
//! they are asked for, and left out by name where what that takes is missing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::envoy::cache_folder;
use crate::failure::{Doing, Failure};
use crate::machine::is_program;
use crate::report::{Load, Report};

/// From the proxy of Go's modules.
const GHZ: &str = "github.com/bojand/ghz/cmd/ghz@v0.93.0";
const PROTO: &str = include_str!("../proto/bench.proto");
/// What the C++ client is built of, by where `make` is to find it.
const CPP_SOURCES: [(&str, &str); 3] = [
    ("proto/bench.proto", PROTO),
    ("cpp/client.cc", include_str!("../cpp/client.cc")),
    ("cpp/Makefile", include_str!("../cpp/Makefile")),
];
const CPP_PACKAGES: &str = "make, g++, pkg-config, libgrpc++-dev, libprotobuf-dev, protobuf-compiler-grpc";

/// A client of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ForeignClient {
    Ghz,
    Cpp,
}

impl ForeignClient {
    /// Its program, which is built when it is not there.
    ///
    /// # Errors
    /// It is not to be had here.
    pub(crate) fn program(self) -> Result<PathBuf, Failure> {
        match self {
            ForeignClient::Ghz => ghz(),
            ForeignClient::Cpp => cpp_client(),
        }
    }

    /// Arguments that have it call a server for so long.
    fn arguments(self, address: &str, load: &Load, folder: &Path) -> Result<Vec<String>, Failure> {
        let seconds = load.warmup_seconds + load.seconds;
        let calls = (load.calls_in_flight * load.connections).to_string();
        let words: Vec<String> = match self {
            ForeignClient::Cpp => vec![
                address.into(),
                load.size_bytes.to_string(),
                calls,
                seconds.to_string(),
            ],
            ForeignClient::Ghz => {
                let proto = folder.join("bench.proto");
                std::fs::write(&proto, PROTO).doing(|| format!("write {}", proto.display()))?;
                let request = folder.join("request");
                std::fs::write(&request, echo_request(load.size_bytes))
                    .doing(|| format!("write {}", request.display()))?;
                let words = [
                    "--insecure",
                    "--format=json",
                    "--call=bench.Echo/Call",
                    &format!("--proto={}", proto.display()),
                    &format!("--binary-file={}", request.display()),
                    &format!("--concurrency={calls}"),
                    &format!("--connections={}", load.connections),
                    &format!("--duration={}ms", (seconds * 1e3) as u64),
                    // Calls that the end cuts short count neither as answered nor as failed.
                    "--duration-stop=ignore",
                    address,
                ];
                words.map(String::from).into()
            }
        };
        Ok(words)
    }

    /// What it says of its calls.
    fn read(self, said: &str) -> Result<ForeignCalls, Failure> {
        let wrong = |error: String| Failure::role("client", format!("said what is no report: {error}"));
        let said: Value = serde_json::from_str(said).map_err(|error| wrong(error.to_string()))?;
        match self {
            ForeignClient::Cpp => serde_json::from_value(said).map_err(|error| wrong(error.to_string())),
            ForeignClient::Ghz => ForeignCalls::of_ghz(&said).ok_or_else(|| wrong(said.to_string())),
        }
    }
}

/// What a client says of its calls: times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct ForeignCalls {
    seconds: f64,
    count: u64,
    errors: u64,
    mean: f64,
    fastest: f64,
    p50: f64,
    p90: f64,
    p99: f64,
}

impl ForeignCalls {
    /// Reads the report that ghz writes as JSON.
    fn of_ghz(said: &Value) -> Option<ForeignCalls> {
        let number = |key: &str| said.get(key)?.as_f64();
        let latencies = said.get("latencyDistribution")?.as_array()?;
        let quantile = |percent: u64| {
            let mut all = latencies.iter();
            let of = all.find(|latency| latency.get("percentage").and_then(Value::as_u64) == Some(percent));
            of?.get("latency")?.as_f64()
        };
        let statuses = said.get("statusCodeDistribution")?.as_object()?;
        let answered = statuses.get("OK").and_then(Value::as_u64).unwrap_or(0);
        Some(ForeignCalls {
            seconds: number("total")? / 1e9,
            count: answered,
            errors: statuses.values().filter_map(Value::as_u64).sum::<u64>() - answered,
            mean: number("average")?,
            fastest: number("fastest")?,
            p50: quantile(50)?,
            p90: quantile(90)?,
            p99: quantile(99)?,
        })
    }

    /// In a window of so many seconds.
    fn report(&self, seconds: f64) -> Report {
        let rps = self.count as f64 / self.seconds;
        Report {
            seconds,
            count: (rps * seconds) as u64,
            errors: self.errors,
            rps,
            mean_us: self.mean / 1e3,
            min_us: self.fastest / 1e3,
            p50_us: self.p50 / 1e3,
            p90_us: self.p90 / 1e3,
            p99_us: self.p99 / 1e3,
            ..Report::default()
        }
    }
}

/// Has a client make load on a server. Its rate is that of all its time; what the other processes take is measured behind the warm-up.
pub(crate) fn load(
    client: ForeignClient,
    program: &Path,
    address: &str,
    load: &Load,
) -> Result<Report, Failure> {
    let folder = tempfile::tempdir().doing(|| "make a temporary folder".into())?;
    let arguments = client.arguments(address, load, folder.path())?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .doing(|| format!("start {}", program.display()))?;
    let window = crate::load::watch(load, child.id(), |_| {});
    let output = child
        .wait_with_output()
        .doing(|| format!("wait for {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let calls = client.read(&said)?;
    let report = calls.report(window.seconds());
    Ok(window.beside(load, report))
}

/// `message EchoRequest { bytes payload = 1; }`
fn echo_request(payload_bytes: usize) -> Vec<u8> {
    let mut message = vec![0x0a];
    let mut length = payload_bytes;
    while length >= 0x80 {
        message.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    message.resize(message.len() + payload_bytes, b'x');
    message
}

fn ghz() -> Result<PathBuf, Failure> {
    let folder = absolute(&cache_folder().join("ghz"))?;
    let program = folder.join("ghz");
    if !is_program(&program) {
        eprintln!("building {GHZ} into {}", folder.display());
        let mut go = Command::new("go");
        go.args(["install", GHZ]).env("GOBIN", &folder);
        built(&mut go, GHZ, "Go")?;
    }
    Ok(program)
}

fn cpp_client() -> Result<PathBuf, Failure> {
    let folder = absolute(&cache_folder().join("cpp"))?;
    for (path, text) in CPP_SOURCES {
        let path = folder.join(path);
        // What is the same stays as old as it is, so that it is built once.
        if std::fs::read_to_string(&path).ok().as_deref() != Some(text) {
            let parent = path.parent().unwrap_or(&folder);
            std::fs::create_dir_all(parent).doing(|| format!("make {}", parent.display()))?;
            std::fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
        }
    }
    let mut make = Command::new("make");
    make.arg("--silent").arg("-C").arg(folder.join("cpp"));
    built(&mut make, "the client with gRPC's C++ library", CPP_PACKAGES)?;
    Ok(folder.join("cpp/build/client"))
}

pub(crate) fn absolute(folder: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(folder).doing(|| format!("find {}", folder.display()))
}

/// Runs what builds a program of others.
pub(crate) fn built(command: &mut Command, what: &str, needs: &str) -> Result<(), Failure> {
    let unavailable = |why: &dyn std::fmt::Display| {
        Failure::Unavailable(format!("{what} was not built, which needs {needs}: {why}"))
    };
    let output = match command.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(unavailable(&error)),
        output => output.doing(|| format!("build {what}"))?,
    };
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(unavailable(&said.lines().next().unwrap_or("it says nothing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_say_is_read() {
        let ghz = r#"{"count": 1010, "total": 500000000, "average": 2000, "fastest": 1000, "slowest": 9, "rps": 2020,
            "statusCodeDistribution": {"OK": 1000, "Unavailable": 10}, "latencyDistribution": [
            {"percentage": 10, "latency": 1}, {"percentage": 50, "latency": 1500},
            {"percentage": 90, "latency": 3000}, {"percentage": 99, "latency": 4000}]}"#;
        let cpp = r#"{"seconds": 0.5, "count": 1000, "errors": 10, "mean": 2000, "fastest": 1000, "p50": 1500, "p90": 3000,
            "p99": 4000}"#;
        let calls = ForeignClient::Ghz.read(ghz).unwrap();
        assert_eq!(ForeignClient::Cpp.read(cpp).unwrap(), calls);
        let report = calls.report(0.25);
        assert_eq!((report.count, report.errors, report.rps), (500, 10, 2_000.0));
        assert_eq!((report.p50_us, report.p99_us), (1.5, 4.0));
        for wrong in ["", "{}", "no answer"] {
            assert!(ForeignClient::Ghz.read(wrong).is_err(), "{wrong}");
            assert!(ForeignClient::Cpp.read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_request_has_the_payload_that_is_asked_for() {
        for bytes in [0, 64, 127, 128, 70_000] {
            let message = echo_request(bytes);
            let read: TestRequest = prost::Message::decode(&*message).unwrap();
            assert_eq!(read.payload, vec![b'x'; bytes]);
        }
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct TestRequest {
        #[prost(bytes = "vec", tag = "1")]
        payload: Vec<u8>,
    }
}
