//! A process that had no room for the thread of the library, and has some later. A file of its own: in its process nothing else has started it.

use std::time::Duration;

use provost::blocking::block_on;
use provost::health::{HealthCheckRequest, HealthClient, HealthReporter};
use provost::{Channel, Code, Request};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the process may add to its memory: less than the stack of a thread, which is of 2 MiB unless the environment says otherwise.
fn more_bytes() -> u64 {
    let stack = std::env::var("RUST_MIN_STACK").ok();
    stack.and_then(|bytes| bytes.parse().ok()).unwrap_or(2 << 20) / 4
}

/// Memory of the process that the limit counts, in bytes.
fn bytes_used() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib: u64 = line.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

#[test]
fn the_thread_is_started_when_there_is_room_again() {
    let reporter = HealthReporter::new();
    let client = HealthClient::new(Channel::in_process(reporter.service()).unwrap());
    let watch = || {
        let mut request = Request::new(HealthCheckRequest::default());
        request.set_timeout(Duration::from_millis(50));
        client.watch(request)
    };
    let before = getrlimit(Resource::As);
    let current = Some(bytes_used() + more_bytes());
    setrlimit(Resource::As, Rlimit { current, ..before }).unwrap();
    let watched = block_on(watch());
    setrlimit(Resource::As, before).unwrap();
    assert!(watched.is_err(), "there was room for a thread");
    let mut states = block_on(watch()).unwrap().into_inner();
    assert!(block_on(states.message()).unwrap().is_some());
    let status = block_on(states.message()).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}
