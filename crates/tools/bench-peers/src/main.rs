//! Calls between two processes by what carries them without a node: a server, and a client that makes load on it for `bench call`.
//!
//! ```text
//! provost-bench-peers serve TRANSPORT NAME READY_FILE
//! provost-bench-peers call TRANSPORT NAME REQUEST_BYTES CALLS_IN_FLIGHT
//! ```
//!
//! The server makes the file when clients may come. A client says `ready` once it calls; it is told `measure` and `stop` on its
//! standard input, and then prints a report of the time in between.

mod iceoryx2_calls;
mod run;
mod shmipc_calls;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use crate::run::LoadRun;

type PeerResult<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Bytes of every response.
const RESPONSE: &[u8; 8] = b"8 bytes.";
/// How long whoever polls before it sleeps does, as the bench's floor.
const SPIN: Duration = Duration::from_micros(50);
const USAGE: &str = "usage: provost-bench-peers serve TRANSPORT NAME READY_FILE
       provost-bench-peers call TRANSPORT NAME REQUEST_BYTES CALLS_IN_FLIGHT
TRANSPORT: iceoryx2 | iceoryx2-sleeping | shmipc";

/// What carries calls, and how it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerTransport {
    /// Polls for so long, yielding its core, and sleeps after that.
    Iceoryx2(Duration),
    Shmipc,
}

/// What a client calls with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PeerLoad {
    request_bytes: usize,
    calls_in_flight: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PeerCommand {
    Serve { ready_file: String },
    Call(PeerLoad),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let Some((command, transport, name)) = read(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match play(&command, transport, name) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn read<'a>(words: &[&'a str]) -> Option<(PeerCommand, PeerTransport, &'a str)> {
    let (command, transport, name) = match *words {
        ["serve", transport, name, ready_file] => {
            let ready_file = ready_file.into();
            (PeerCommand::Serve { ready_file }, transport, name)
        }
        ["call", transport, name, request_bytes, calls_in_flight] => {
            let load = PeerLoad {
                request_bytes: request_bytes.parse().ok()?,
                calls_in_flight: calls_in_flight.parse().ok()?,
            };
            (PeerCommand::Call(load), transport, name)
        }
        _ => return None,
    };
    let transport = match transport {
        "iceoryx2" => PeerTransport::Iceoryx2(SPIN),
        "iceoryx2-sleeping" => PeerTransport::Iceoryx2(Duration::ZERO),
        "shmipc" => PeerTransport::Shmipc,
        _ => return None,
    };
    Some((command, transport, name))
}

fn play(command: &PeerCommand, transport: PeerTransport, name: &str) -> PeerResult<()> {
    match command {
        PeerCommand::Serve { ready_file } => {
            let ready = || std::fs::write(ready_file, "");
            match transport {
                PeerTransport::Iceoryx2(spin) => iceoryx2_calls::serve(name, spin, ready),
                PeerTransport::Shmipc => shmipc_calls::serve(name, ready),
            }
        }
        PeerCommand::Call(load) => run::report(|run: &LoadRun| match transport {
            PeerTransport::Iceoryx2(spin) => iceoryx2_calls::call(name, spin, *load, run),
            PeerTransport::Shmipc => shmipc_calls::call(name, *load, run),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_and_anything_else_is_not() {
        let load = PeerLoad {
            request_bytes: 32,
            calls_in_flight: 64,
        };
        let call = ["call", "iceoryx2-sleeping", "here", "32", "64"];
        let sleeping = PeerTransport::Iceoryx2(Duration::ZERO);
        assert_eq!(read(&call), Some((PeerCommand::Call(load), sleeping, "here")));
        let ready_file = "ready".into();
        let serve = Some((PeerCommand::Serve { ready_file }, PeerTransport::Shmipc, "here"));
        assert_eq!(read(&["serve", "shmipc", "here", "ready"]), serve);
        for wrong in [
            &["serve", "shmipc", "here"][..],
            &["serve", "tcp", "here", "ready"],
            &["call", "shmipc", "here", "32", "many"],
            &[],
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }
}
