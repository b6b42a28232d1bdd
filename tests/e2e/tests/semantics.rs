//! What a call means: statuses, metadata, deadlines, cancellation, streams, graceful ends, on every executor.

use std::collections::BTreeMap;
use std::time::Duration;

use provost::Code;
use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{
    Answer, Ask, ClientSchema, Echo, Fill, Hold, Metadatum, OtherSchema, Pause, Pour, Reading, StatusParts,
    Unconnected,
};
use provost_e2e::{NodeOptions, Setting, World, eventually, watched};
use rustix::process::Signal;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

fn hold(key: &str, milliseconds: u32) -> Hold {
    Hold {
        key: key.to_owned(),
        milliseconds,
        ..Hold::default()
    }
}

fn counts(key: &str) -> Ask {
    Ask::Counts { key: key.to_owned() }
}

#[test]
fn every_executor_makes_every_kind_of_call() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        for executor in Executor::ALL {
            let mut agent = setting.world.agent_on(&setting.a, executor);
            agent.succeeds(Ask::Echo(Echo {
                calls: 20,
                ..Echo::default()
            }));
            let poured = agent.succeeds(Ask::Pour(Pour {
                messages: 100,
                bytes: 10_000,
                ..Pour::default()
            }));
            assert_eq!((poured.count, poured.bytes), (100, 1_000_000), "{executor:?}");
            let filled = agent.succeeds(Ask::Fill(Fill {
                messages: 100,
                bytes: 10_000,
                ..Fill::default()
            }));
            assert_eq!((filled.count, filled.bytes), (100, 1_000_000), "{executor:?}");
            if executor != Executor::Blocking {
                let chatted = agent.succeeds(Ask::Chat {
                    messages: 20,
                    bytes: 10_000,
                });
                assert_eq!(chatted.count, 20, "{executor:?}");
            }
        }
    });
}

#[test]
fn messages_of_all_sizes_come_back_as_they_were() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        for bytes in [0, 1, 7, 4095, 4096, 65_535, 65_536, 1_000_003, 8 << 20] {
            setting.agent.succeeds(Ask::Echo(Echo {
                bytes,
                calls: 2,
                ..Echo::default()
            }));
        }
    });
}

#[test]
fn all_codes_travel_with_their_messages_and_details() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        for code in Code::ALL {
            let parts = StatusParts {
                code: code.number(),
                message: format!("{code}: naïve “message” with\nlines"),
                details: vec![0, 1, 254, 255],
            };
            let ask = Ask::Fail(parts.clone());
            if code == Code::Ok {
                setting.agent.succeeds(ask);
            } else {
                let failure = setting.agent.fails(ask);
                assert_eq!(failure, parts.into());
            }
        }
    });
}

#[test]
fn metadata_come_back_before_and_after_the_response() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let pair = |key: &str, value: &[u8]| Metadatum {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let sent = vec![
            pair("x-user", b"ann"),
            pair("x-user", b"bob"),
            pair("trace-bin", &[0, 10, 255]),
            pair("x-empty", b""),
            pair("x-long", &[b'v'; 4000]),
        ];
        let done = setting.agent.succeeds(Ask::Mirror(sent.clone()));
        assert_eq!(done.initial, sent);
        assert_eq!(done.trailing, sent);
    });
}

#[test]
fn a_deadline_ends_the_call_and_its_handler_and_travels() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let done = setting.agent.succeeds(Ask::Hold(Hold {
            timeout_ms: Some(20_000),
            ..hold("short", 1)
        }));
        assert!((1..=20_000).contains(&done.deadline_ms), "{done:?}");
        let failure = setting.agent.fails(Ask::Hold(Hold {
            timeout_ms: Some(200),
            ..hold("long", 600_000)
        }));
        assert_eq!(failure.code, Code::DeadlineExceeded, "{failure:?}");
        eventually("the handler has ended", WAIT_MAX, || {
            setting.agent.succeeds(counts("long")).cancelled == 1
        });
        let pour = Pour {
            key: "pour".to_owned(),
            messages: 10,
            pause: Some(Pause {
                after: 5,
                milliseconds: 600_000,
            }),
            timeout_ms: Some(200),
            ..Pour::default()
        };
        let failure = setting.agent.fails(Ask::Pour(pour));
        assert_eq!(failure.code, Code::DeadlineExceeded, "{failure:?}");
        eventually("the stream has ended", WAIT_MAX, || {
            setting.agent.succeeds(counts("pour")).cancelled == 1
        });
    });
}

#[test]
fn a_dropped_call_cancels_its_handler() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let failure = setting.agent.fails(Ask::Hold(Hold {
            cancel_after_ms: Some(100),
            ..hold("dropped", 600_000)
        }));
        assert_eq!(failure.code, Code::Cancelled);
        eventually("the handler was cancelled", WAIT_MAX, || {
            setting.agent.succeeds(counts("dropped")).cancelled == 1
        });
        setting.agent.succeeds(Ask::Pour(Pour {
            key: "stream".to_owned(),
            messages: 1_000_000,
            bytes: 1_000,
            reading: Reading::Dropping(3),
            ..Pour::default()
        }));
        eventually("the stream was cancelled", WAIT_MAX, || {
            setting.agent.succeeds(counts("stream")).cancelled == 1
        });
        setting.others_are_served();
    });
}

#[test]
fn schemas_that_are_compatible_connect_and_others_are_refused_with_the_field() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.succeeds(Ask::EchoAs(OtherSchema::Compatible));
        let failure = setting.agent.fails(Ask::EchoAs(OtherSchema::Incompatible));
        assert_eq!(failure.code, Code::FailedPrecondition, "{failure:?}");
        assert!(failure.message.contains("payload"), "{failure:?}");
        setting.agent.calls_well();
        setting.others_are_served();
    });
}

#[test]
fn a_method_that_the_server_lacks_is_refused_by_its_name_on_one_node_and_on_two() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let mut beside = setting.world.agent(&setting.b);
        for agent in [&mut setting.agent, &mut beside] {
            let failure = agent.fails(Ask::EchoAs(OtherSchema::Larger));
            let told = (failure.code, failure.message.as_str());
            assert_eq!(
                told,
                (Code::Unimplemented, "the service probe.Probe has no method Later")
            );
            agent.calls_well();
        }
    });
}

/// How many connections lead to each server, by its process.
fn servers(setting: &mut Setting, schema: ClientSchema, connections: usize) -> BTreeMap<u32, usize> {
    let done = setting.agent.succeeds(Ask::Servers { schema, connections });
    let mut servers = BTreeMap::new();
    for process in done
        .initial
        .iter()
        .map(|pair| String::from_utf8_lossy(&pair.value))
    {
        *servers.entry(process.parse().unwrap()).or_default() += 1;
    }
    servers
}

#[test]
fn connections_rotate_over_all_servers_whose_schema_fits() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let usual = setting.world.server(&setting.b);
        let later = setting.world.compatible_server(&setting.b);
        let (first, second) = (setting.server.program.id(), usual.program.id());
        // Two of the three have another schema than this client, with all that it calls.
        let all = servers(&mut setting, ClientSchema::Compatible, 12);
        for server in [first, second, later.program.id()] {
            assert!(
                all.get(&server).is_some_and(|connections| *connections >= 3),
                "{all:?}"
            );
        }
        // The later version lacks methods of this client.
        let all = servers(&mut setting, ClientSchema::Usual, 12);
        assert!(all[&first] >= 3 && all[&second] >= 3 && all.len() == 2, "{all:?}");
        setting.others_are_served();
    });
}

#[test]
fn a_misspelt_service_is_refused_at_once_with_what_is_known() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.agent.calls_well();
        let failure = setting.agent.fails(Ask::EchoAt("probe.Prob".to_owned()));
        assert_eq!(failure.code, Code::NotFound, "{failure:?}");
        for part in ["there is no service probe.Prob:", "did you mean probe.Probe?"] {
            assert!(failure.message.contains(part), "{failure:?}");
        }
        eventually("the refusal is logged", WAIT_MAX, || {
            let log = setting.a.program.log();
            let mut refusals = log.lines().filter(|line| line.contains("connection refused"));
            refusals.any(|line| line.contains("probe.Prob:"))
        });
        setting.agent.calls_well();
    });
}

#[test]
fn a_service_told_to_stop_finishes_the_calls_in_flight() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let ticket = setting.agent.begin(Ask::Hold(hold("finishes", 1_000)));
        eventually("the handler has begun", WAIT_MAX, || {
            setting.agent.succeeds(counts("finishes")).begun == 1
        });
        setting.b.program.signal(Signal::TERM);
        assert!(matches!(setting.agent.answer(ticket), Answer::Done(_)));
        let status = setting.b.program.ends_within(WAIT_MAX).expect("the service ends");
        assert!(status.success(), "{status}");
        let failure = setting.agent.fails(Ask::Echo(Echo::default()));
        assert_eq!(failure.code, Code::Unavailable, "{failure:?}");
    });
}

#[test]
fn a_clients_service_told_to_stop_finishes_the_calls_in_flight() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let ticket = setting.agent.begin(Ask::Hold(hold("finishes", 1_000)));
        eventually("the handler has begun", WAIT_MAX, || {
            setting.agent.succeeds(counts("finishes")).begun == 1
        });
        setting.a.program.signal(Signal::TERM);
        assert!(matches!(setting.agent.answer(ticket), Answer::Done(_)));
        let status = setting.a.program.ends_within(WAIT_MAX).expect("the service ends");
        assert!(status.success(), "{status}");
    });
}

#[test]
fn a_server_that_shuts_down_gracefully_finishes_and_another_takes_over() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let ticket = setting.agent.begin(Ask::Hold(hold("finishes", 1_000)));
        eventually("the handler has begun", WAIT_MAX, || {
            setting.agent.succeeds(counts("finishes")).begun == 1
        });
        drop(setting.server.input.take());
        assert!(matches!(setting.agent.answer(ticket), Answer::Done(_)));
        let status = setting
            .server
            .program
            .ends_within(WAIT_MAX)
            .expect("the server ends");
        assert!(status.success(), "{status}");
        let failure = setting.agent.fails(Ask::Echo(Echo::default()));
        assert_eq!(failure.code, Code::Unavailable, "{failure:?}");
        setting.server = setting.world.server(&setting.b);
        setting.agent.succeeds(Ask::Echo(Echo {
            unconnected: Unconnected::Wait,
            timeout_ms: Some(20_000),
            ..Echo::default()
        }));
    });
}

#[test]
fn both_ends_on_one_node_need_no_socket() {
    watched(|| {
        let mut world = World::new(ROLE);
        let node = world.node(
            "n",
            &NodeOptions {
                tables: "[[route]]\nservice = \"probe.Probe\"\ntransport = \"local\"\n".to_owned(),
                ..NodeOptions::default()
            },
        );
        let server = world.server(&node);
        let mut agent = world.agent(&node);
        for bytes in [0, 1_000, 100_000, 8 << 20] {
            agent.succeeds(Ask::Echo(Echo {
                bytes,
                calls: 3,
                ..Echo::default()
            }));
        }
        agent.succeeds(Ask::Chat {
            messages: 50,
            bytes: 5_000,
        });
        agent.succeeds(Ask::Echo(Echo {
            calls: 2_000,
            in_flight: 100,
            ..Echo::default()
        }));
        let ticket = agent.begin(Ask::Hold(hold("local", 600_000)));
        eventually("the handler has begun", WAIT_MAX, || {
            agent.succeeds(counts("local")).begun == 1
        });
        drop(server);
        assert_eq!(agent.failure(ticket).code, Code::Unavailable);
    });
}

#[test]
fn a_call_waits_for_a_service_that_is_not_there_yet() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        setting.server.program.kill();
        eventually("calls fail", WAIT_MAX, || {
            let ticket = setting.agent.begin(Ask::Echo(Echo::default()));
            matches!(setting.agent.answer(ticket), Answer::Failed(_))
        });
        let mut waiting = None;
        eventually("a call waits", WAIT_MAX, || {
            let ticket = setting.agent.begin(Ask::Echo(Echo {
                unconnected: Unconnected::Wait,
                timeout_ms: Some(25_000),
                ..Echo::default()
            }));
            // One that still began on the connection of before ends with it.
            let answer = setting.agent.answer_within(ticket, Duration::from_millis(200));
            assert!(matches!(answer, None | Some(Answer::Failed(_))), "{answer:?}");
            waiting = answer.is_none().then_some(ticket);
            waiting.is_some()
        });
        let ticket = waiting.expect("a call waits");
        setting.server = setting.world.server(&setting.b);
        assert!(matches!(setting.agent.answer(ticket), Answer::Done(_)));
    });
}
