//! What is too large, too deep or too many: the caller gets the right status, the rest goes on, and memory comes back.

use std::time::Duration;

use provost::Code;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Answer, Ask, Echo, Fill, Hold, Pour, Reading};
use provost_e2e::{Agent, NodeOptions, Setting, eventually, resident_peak_of, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

fn limited(limits: &str) -> NodeOptions {
    NodeOptions {
        limits: limits.to_owned(),
        ..NodeOptions::default()
    }
}

fn echo(bytes: usize) -> Ask {
    Ask::Echo(Echo {
        bytes,
        ..Echo::default()
    })
}

#[test]
fn a_message_over_the_limit_of_the_senders_node() {
    watched(|| {
        let mut setting = Setting::with(ROLE, &limited("message_bytes = 1048576"), &NodeOptions::default());
        setting.agent.succeeds(echo(1_000_000));
        let failure = setting.agent.fails(echo(2_000_000));
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure:?}");
        setting.agent.calls_well();
        setting.others_are_served();
    });
}

#[test]
fn a_message_over_the_limit_of_the_receivers_node() {
    watched(|| {
        let mut setting = Setting::with(ROLE, &NodeOptions::default(), &limited("message_bytes = 1048576"));
        setting.agent.succeeds(echo(1_000_000));
        let failure = setting.agent.fails(echo(2_000_000));
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure:?}");
        setting.agent.calls_well();
        setting.others_are_served();
    });
}

#[test]
fn a_message_that_nests_too_deep() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        assert_eq!(setting.agent.succeeds(Ask::Dig { levels: 90 }).count, 90);
        for levels in [102, 1_000, 3_000] {
            let failure = setting.agent.fails(Ask::Dig { levels });
            let refused = [Code::InvalidArgument, Code::ResourceExhausted, Code::Internal];
            assert!(refused.contains(&failure.code), "{failure:?}");
        }
        setting.agent.calls_well();
        setting.others_are_served();
    });
}

#[test]
fn a_client_that_holds_on_to_messages_until_its_heap_is_full() {
    watched(|| {
        let mut setting = Setting::with(
            ROLE,
            &limited("receive_heap_bytes = 16777216\nmessage_bytes = 4194304"),
            &NodeOptions::default(),
        );
        let failure = setting.agent.fails(Ask::Keep {
            calls: 100,
            bytes: 1 << 20,
        });
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure:?}");
        setting.others_are_served();
        setting.agent.succeeds(Ask::LetGo);
        eventually("the heap has room again", WAIT_MAX, || {
            let ticket = setting.agent.begin(echo(1 << 20));
            matches!(setting.agent.answer(ticket), Answer::Done(_))
        });
    });
}

#[test]
fn memory_comes_back_after_large_messages() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let before = setting.a.program.usage();
        setting.agent.succeeds(Ask::Keep {
            calls: 40,
            bytes: 1 << 20,
        });
        let full = setting.a.program.usage();
        assert!(
            full.shared_bytes >= before.shared_bytes + (32 << 20),
            "{before:?} then {full:?}"
        );
        setting.agent.succeeds(Ask::LetGo);
        eventually("the receive heap has shrunk", WAIT_MAX, || {
            // Reclaims travel with the next calls.
            setting.agent.calls_well();
            setting.a.program.usage().shared_bytes <= before.shared_bytes + (8 << 20)
        });
    });
}

#[test]
fn more_calls_than_the_rings_have_slots() {
    watched(|| {
        let mut setting = Setting::with(ROLE, &limited("ring_slots = 16"), &limited("ring_slots = 16"));
        setting.agent.succeeds(Ask::Echo(Echo {
            calls: 2_000,
            in_flight: 500,
            ..Echo::default()
        }));
        setting.others_are_served();
    });
}

/// All of them are at their handlers at once, and cost the nodes no more than so much each.
#[test]
fn ten_thousand_calls_in_flight() {
    const CALLS: u64 = 10_000;
    const BYTES_PER_CALL: u64 = 2 << 10;
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let mut other = setting.world.agent(&setting.a);
        other.calls_well();
        let peaks = |setting: &Setting| {
            [&setting.a, &setting.b].map(|node| resident_peak_of(node.process()).expect("a node that runs"))
        };
        let before = peaks(&setting);
        let hold = Hold {
            key: "many".to_owned(),
            // None is answered before one more has come.
            until_begun: CALLS + 1,
            ..Hold::default()
        };
        let ticket = setting.agent.begin(Ask::HoldMany {
            calls: CALLS as usize,
            hold: hold.clone(),
        });
        let many = || Ask::Counts {
            key: "many".to_owned(),
        };
        eventually("all calls are at their handlers", WAIT_MAX, || {
            other.succeeds(many()).begun == CALLS
        });
        assert_eq!(other.succeeds(many()).finished, 0);
        other.succeeds(Ask::Hold(hold));
        match setting.agent.answer(ticket) {
            Answer::Done(done) => assert_eq!(done.count, CALLS),
            failed => panic!("{failed:?}"),
        }
        assert_eq!(other.succeeds(many()).finished, CALLS + 1);
        let after = peaks(&setting);
        for (before, after) in before.into_iter().zip(after) {
            println!("{} bytes of a node for each call", (after - before) / CALLS);
            assert!(
                after - before <= CALLS * BYTES_PER_CALL,
                "{before} became {after}"
            );
        }
    });
}

#[test]
fn a_call_over_the_limit_of_calls_in_flight_fails_alone() {
    watched(|| {
        let mut setting = Setting::with(ROLE, &limited("calls_in_flight = 64"), &NodeOptions::default());
        let hold = Hold {
            key: "held".to_owned(),
            milliseconds: 600_000,
            timeout_ms: Some(3_000),
            ..Hold::default()
        };
        let holds = setting.agent.begin(Ask::HoldMany { calls: 64, hold });
        let mut other = setting.world.agent(&setting.a);
        eventually("the handlers have begun", WAIT_MAX, || {
            other
                .succeeds(Ask::Counts {
                    key: "held".to_owned(),
                })
                .begun
                >= 64
        });
        let failure = setting.agent.fails(echo(10));
        assert_eq!(failure.code, Code::ResourceExhausted, "{failure:?}");
        assert_eq!(setting.agent.failure(holds).code, Code::DeadlineExceeded);
        setting.agent.calls_well();
    });
}

#[test]
fn a_slow_reader_of_a_stream_holds_up_nobody_and_bounds_what_is_kept() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let pour = Pour {
            key: "slow".to_owned(),
            messages: 2_000,
            bytes: 64_000,
            reading: Reading::Stopping(3),
            ..Pour::default()
        };
        let before = setting.a.program.usage().shared_bytes;
        setting.agent.stops_at("stopped", Ask::Pour(pour));
        setting.others_are_served();
        setting.agent.succeeds(Ask::Echo(Echo {
            calls: 200,
            ..Echo::default()
        }));
        // 128 MB were to come; the window lets through about one.
        let kept = setting.a.program.usage().shared_bytes - before;
        assert!(
            kept < 32 << 20,
            "{kept} bytes are kept for a reader that does not read"
        );
        let slow = Pour {
            messages: 100,
            bytes: 50_000,
            reading: Reading::Slow(5),
            ..Pour::default()
        };
        assert_eq!(setting.agent.succeeds(Ask::Pour(slow)).count, 100);
    });
}

#[test]
fn a_slow_server_holds_back_the_client_that_streams_to_it() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let filled = setting.agent.succeeds(Ask::Fill(Fill {
            messages: 5_000,
            bytes: 10_000,
            ..Fill::default()
        }));
        assert_eq!(filled.count, 5_000);
        setting.others_are_served();
    });
}

#[test]
fn a_thousand_clients_of_one_server() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let clients = Ask::Clients { clients: 100 };
        let mut agents: Vec<Agent> = (0..10).map(|_| setting.world.agent(&setting.a)).collect();
        let tickets: Vec<_> = agents
            .iter_mut()
            .map(|agent| agent.begin(clients.clone()))
            .collect();
        for (agent, ticket) in agents.iter_mut().zip(tickets) {
            match agent.answer(ticket) {
                Answer::Done(done) => assert_eq!(done.count, 100),
                failed => panic!("{failed:?}"),
            }
        }
        setting.others_are_served();
        let before = setting.b.program.usage().descriptors;
        drop(agents);
        eventually("their connections are gone", WAIT_MAX, || {
            setting.b.program.usage().descriptors + 500 < before
        });
        setting.others_are_served();
    });
}

#[test]
fn a_service_without_descriptors_refuses_and_goes_on() {
    watched(|| {
        let few = NodeOptions {
            descriptors_max: Some(64),
            ..NodeOptions::default()
        };
        let mut setting = Setting::with(ROLE, &few, &NodeOptions::default());
        let mut agents = Vec::new();
        let refused = (0..30).any(|_| {
            let mut agent = setting
                .world
                .starting_agent(&setting.a, provost_e2e::agent::Executor::TokioCurrent);
            let is_refused = agent.first_answer() != Answer::Ready;
            agents.push(agent);
            is_refused
        });
        assert!(refused, "64 descriptors are enough for 30 apps");
        setting.agent.calls_well();
        drop(agents);
        eventually("an app can attach again", WAIT_MAX, || {
            let mut agent = setting
                .world
                .starting_agent(&setting.a, provost_e2e::agent::Executor::TokioCurrent);
            agent.first_answer() == Answer::Ready
        });
    });
}

#[test]
fn idle_processes_use_no_processor_time() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        std::thread::sleep(Duration::from_millis(200));
        let programs = [
            &setting.a.program,
            &setting.b.program,
            &setting.server.program,
            &setting.agent.program,
        ];
        let before = programs.map(provost_e2e::Program::processor_time);
        std::thread::sleep(Duration::from_secs(2));
        for (program, before) in programs.iter().zip(before) {
            let used = program.processor_time() - before;
            assert!(
                used < Duration::from_millis(40),
                "{} used {used:?} in two idle seconds",
                program.name()
            );
        }
    });
}
