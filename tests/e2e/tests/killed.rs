//! Programs killed with SIGKILL at every step of a call: who called gets the right status in time, the services give
//! back what the dead held, and serve others.

use std::time::Duration;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Ask, Echo, Fill, Pause, Pour, Reading, Unconnected};
use provost_e2e::{Agent, Setting, Usage, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

/// A stream that the server pauses in for longer than any test.
fn endless_pour(reading: Reading) -> Pour {
    Pour {
        key: "pour".to_owned(),
        messages: 1_000,
        bytes: 1_000,
        pause: Some(Pause {
            after: 5,
            milliseconds: 600_000,
        }),
        reading,
        ..Pour::default()
    }
}

/// What both nodes hold for their apps.
fn held(setting: &Setting) -> [(usize, u64); 2] {
    let held = |usage: Usage| (usage.descriptors, usage.shared_bytes);
    [held(setting.a.program.usage()), held(setting.b.program.usage())]
}

fn given_back(setting: &Setting, before: [(usize, u64); 2]) {
    let mut now = before;
    eventually("the services hold what they held before", WAIT_MAX, || {
        now = held(setting);
        now.iter()
            .zip(before)
            .all(|(now, before)| now.0 <= before.0 && now.1 <= before.1)
    });
}

/// Kills a second client of the setting once `stop` has it where it shall be; then nothing of it is left.
fn client_is_killed(stop: impl FnOnce(&mut Setting, &mut Agent) + Send + 'static) {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let before = held(&setting);
        let mut victim = setting.world.agent(&setting.a);
        stop(&mut setting, &mut victim);
        victim.program.kill();
        given_back(&setting, before);
        setting.agent.calls_well();
        setting.others_are_served();
    });
}

fn begun(setting: &mut Setting, key: &str) {
    let counts = Ask::Counts { key: key.to_owned() };
    eventually("the handler has begun", WAIT_MAX, || {
        setting.agent.succeeds(counts.clone()).begun > 0
    });
}

fn cancelled(setting: &mut Setting, key: &str) {
    let counts = Ask::Counts { key: key.to_owned() };
    eventually("the handler was cancelled", WAIT_MAX, || {
        setting.agent.succeeds(counts.clone()).cancelled > 0
    });
}

#[test]
fn client_before_it_sends() {
    client_is_killed(|_, victim| {
        victim.stops_at("built", Ask::BuildOnly { bytes: 1 << 20 });
    });
}

#[test]
fn client_in_the_middle_of_a_request_stream() {
    client_is_killed(|setting, victim| {
        victim.stops_at(
            "filling",
            Ask::Fill(Fill {
                messages: 10,
                bytes: 100_000,
                stop_after: Some(5),
                ..Fill::default()
            }),
        );
        begun(setting, "fill");
    });
}

#[test]
fn client_while_the_handler_runs() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let mut victim = setting.world.agent(&setting.a);
        victim.begin(Ask::endless_hold());
        begun(&mut setting, "hold");
        victim.program.kill();
        cancelled(&mut setting, "hold");
        setting.others_are_served();
    });
}

#[test]
fn client_in_the_middle_of_a_response_stream() {
    client_is_killed(|_, victim| {
        victim.stops_at("reading", Ask::Pour(endless_pour(Reading::Telling(5))));
    });
}

#[test]
fn client_before_it_reclaims() {
    client_is_killed(|_, victim| {
        victim.succeeds(Ask::Keep {
            calls: 50,
            bytes: 100_000,
        });
    });
}

#[test]
fn clients_at_any_moment() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let before = held(&setting);
        for milliseconds in [0, 1, 3, 7, 15, 31, 63, 127] {
            let mut victims = [setting.world.agent(&setting.a), setting.world.agent(&setting.a)];
            victims[0].begin(Ask::Echo(Echo {
                bytes: 20_000,
                calls: 1_000_000,
                in_flight: 50,
                ..Echo::default()
            }));
            victims[1].begin(Ask::Pour(Pour {
                messages: 1_000_000,
                bytes: 5_000,
                ..Pour::default()
            }));
            std::thread::sleep(Duration::from_millis(milliseconds));
            drop(victims);
            setting.agent.calls_well();
        }
        given_back(&setting, before);
        setting.others_are_served();
    });
}

/// Kills the server once the agent's call is where it shall be; the call fails as unavailable, and with a new server
/// calls work again without a word to the client.
fn server_is_killed(stop: impl FnOnce(&mut Setting) -> provost_e2e::driver::Ticket + Send + 'static) {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let ticket = stop(&mut setting);
        setting.server.program.kill();
        let failure = setting.agent.failure(ticket);
        assert_eq!(failure.code, provost::Code::Unavailable, "{failure:?}");
        setting.server = setting.world.server(&setting.b);
        works_again(&mut setting.agent);
        setting.others_are_served();
    });
}

/// A call that waits for a connection succeeds.
fn works_again(agent: &mut Agent) {
    agent.succeeds(Ask::Echo(Echo {
        unconnected: Unconnected::Wait,
        timeout_ms: Some(20_000),
        ..Echo::default()
    }));
}

#[test]
fn server_in_its_handler() {
    server_is_killed(|setting| {
        let ticket = setting.agent.begin(Ask::endless_hold());
        begun(setting, "hold");
        ticket
    });
}

#[test]
fn server_in_the_middle_of_a_request_stream() {
    server_is_killed(|setting| {
        let ticket = setting.agent.stops_at(
            "filling",
            Ask::Fill(Fill {
                messages: 10,
                bytes: 1_000,
                stop_after: Some(5),
                ..Fill::default()
            }),
        );
        begun(setting, "fill");
        ticket
    });
}

#[test]
fn server_in_the_middle_of_a_response_stream() {
    server_is_killed(|setting| {
        setting
            .agent
            .stops_at("reading", Ask::Pour(endless_pour(Reading::Telling(5))))
    });
}

/// Kills a node's service while a call is in its handler.
fn service_is_killed(which: fn(&mut Setting) -> &mut provost_e2e::Node) {
    watched(move || {
        let mut setting = Setting::new(ROLE);
        let ticket = setting.agent.begin(Ask::endless_hold());
        begun(&mut setting, "hold");
        which(&mut setting).program.kill();
        let failure = setting.agent.failure(ticket);
        assert_eq!(failure.code, provost::Code::Unavailable, "{failure:?}");
        let refused = setting.agent.fails(Ask::Echo(Echo::default()));
        assert_eq!(refused.code, provost::Code::Unavailable, "{refused:?}");
        which(&mut setting).restart();
        works_again(&mut setting.agent);
        setting.others_are_served();
    });
}

#[test]
fn service_of_the_client_and_started_again() {
    service_is_killed(|setting| &mut setting.a);
}

#[test]
fn service_of_the_server_and_started_again() {
    service_is_killed(|setting| &mut setting.b);
}

#[test]
fn service_of_a_server_that_is_shutting_down() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let ticket = setting.agent.begin(Ask::endless_hold());
        begun(&mut setting, "hold");
        drop(setting.server.input.take());
        assert_eq!(
            setting.server.program.ends_within(Duration::from_millis(200)),
            None
        );
        setting.b.program.kill();
        assert_eq!(setting.agent.failure(ticket).code, provost::Code::Unavailable);
        let status = setting
            .server
            .program
            .ends_within(WAIT_MAX)
            .expect("the server ends");
        assert!(status.success(), "{status}");
    });
}
