//! A call ends by its deadline whatever has become of those who would answer it: killed, stopped, or out of reach.

use std::time::{Duration, Instant};

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Answer, Ask, Hold};
use provost_e2e::{Setting, eventually, watched};
use provost_namespaces::Namespace;
use rustix::process::Signal;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// The time that a call has.
const TIMEOUT: Duration = Duration::from_secs(2);
/// When its caller has been told that the time is over, at the latest. What waits for anybody else (a keepalive, a
/// connection, the end of a drain) takes far longer.
const TOLD_WITHIN: Duration = Duration::from_secs(3);

/// A call is at its handler when this happens to somebody; its caller is told in time all the same.
fn ends_in_time(setting: &mut Setting, disturb: impl FnOnce(&mut Setting)) {
    let hold = Hold {
        key: "hold".to_owned(),
        milliseconds: 600_000,
        timeout_ms: Some(TIMEOUT.as_millis() as u64),
        ..Hold::default()
    };
    let counts = || Ask::Counts {
        key: "hold".to_owned(),
    };
    let begin = Instant::now();
    let ticket = setting.agent.begin(Ask::Hold(hold));
    eventually("the handler has begun", WAIT_MAX, || {
        setting.agent.succeeds(counts()).begun > 0
    });
    disturb(setting);
    let answer = setting.agent.answer_within(ticket, WAIT_MAX);
    let took = begin.elapsed();
    println!("{answer:?} after {took:?} of {TIMEOUT:?}");
    assert!(matches!(answer, Some(Answer::Failed(_))), "{answer:?}");
    assert!(
        took < TOLD_WITHIN,
        "a call of {TIMEOUT:?} took {took:?}: {answer:?}"
    );
}

fn each(disturb: impl Fn(&mut Setting, Signal) + Copy + Send + 'static) {
    for signal in [Signal::KILL, Signal::STOP] {
        watched(move || {
            let mut setting = Setting::new(ROLE);
            ends_in_time(&mut setting, |setting| disturb(setting, signal));
        });
    }
}

#[test]
fn the_server_is_killed_or_stopped() {
    each(|setting, signal| setting.server.program.signal(signal));
}

#[test]
fn the_clients_service_is_killed_or_stopped() {
    each(|setting, signal| setting.a.program.signal(signal));
}

#[test]
fn the_servers_service_is_killed_or_stopped() {
    each(|setting, signal| setting.b.program.signal(signal));
}

#[test]
fn every_packet_is_dropped() {
    let network = match Namespace::new() {
        Ok(network) => network,
        Err(error) => return provost_skip::error(&error),
    };
    watched(move || {
        let ran = network.run(|| {
            let mut setting = Setting::new(ROLE);
            network.command("nft add table inet gone")?;
            ends_in_time(&mut setting, |_| {
                let hook = "type filter hook input priority 0 ; policy drop ;";
                network
                    .command(&format!("nft add chain inet gone input {{ {hook} }}"))
                    .expect("packets are dropped");
            });
            Ok(())
        });
        ran.unwrap();
    });
}
