//! A service that has nothing to do uses no processor time, whatever its apps have left undone.

mod support;

use std::time::{Duration, Instant};

use provost_wire::descriptor::completion_kind;
use support::*;

/// How long processor time is counted.
const WATCH: Duration = Duration::from_millis(400);
/// What share of that may be used: a thread that spins uses all of it.
const SHARE_MAX: f64 = 0.25;

/// Processor time of this process and all its threads.
fn used() -> Duration {
    let clock = rustix::time::ClockId::ProcessCPUTime;
    let time = rustix::time::clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn share_while_watching() -> f64 {
    let (begun, before) = (Instant::now(), used());
    std::thread::sleep(WATCH);
    (used() - before).as_secs_f64() / begun.elapsed().as_secs_f64()
}

/// One test, so that no other's processor time is counted.
#[test]
fn nothing_to_do_costs_nothing() {
    let far = TestNode::start();
    let near = TestNode::start_routed_to(&far);
    let mut server = TestApp::attach(&far);
    server.bind();
    let mut client = TestApp::attach(&near);
    let connection = client.connect();
    let root = client.write_note(0, 1, "x", &[1; 1000]);
    client.begin(connection, root);
    let request = server.next_step();
    let answer = server.write_note(1, 2, "", &[]);
    server.answer(&request, answer);
    client.next_step();
    std::thread::sleep(Duration::from_millis(50));
    let idle = share_while_watching();
    assert!(idle < SHARE_MAX, "connected and idle: {idle}");

    // The server reads its 64 completions no more: the client's calls pile up on both nodes.
    for _ in 0..1000 {
        client.begin(connection, root);
    }
    std::thread::sleep(Duration::from_millis(50));
    let stalled = share_while_watching();
    assert!(stalled < SHARE_MAX, "its app's ring is full: {stalled}");

    // The connection ends, and the server still does not take notice.
    drop(client);
    std::thread::sleep(Duration::from_millis(50));
    let ended = share_while_watching();
    assert!(
        ended < SHARE_MAX,
        "its app's ring is full and the connection is gone: {ended}"
    );
    assert!(server.next_of(completion_kind::CLOSED).connection == request.connection);
}
