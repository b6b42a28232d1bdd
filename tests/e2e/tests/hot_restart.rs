//! The whole service is replaced by another process while apps call: not one call fails, is lost, doubled or reordered.

use provost_e2e::agent::Executor;
use provost_e2e::driver::WAIT_MAX;
mod authority;

use std::time::{Duration, Instant};

use authority::Authority;
use provost::Code;
use provost_e2e::driver::Ticket;
use provost_e2e::script::{Answer, Ask, Done, Echo, Fill, Pour};
use provost_e2e::successor::FAULTS;
use provost_e2e::{Agent, Node, NodeOptions, Replacement, Setting, Usage, World, eventually, watched};
use provost_random::SeededRandom;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Replacements of a node under load, one behind the other.
const REPLACEMENTS: usize = 8;
/// Replacements of one round of a soak, and the longest time between two of them.
const SOAK_REPLACEMENTS: usize = 20;
const SOAK_PAUSE_US_MAX: u64 = 60_000;
/// One of so many is by a process that fails.
const SOAK_FAULTS_ONE_IN: u64 = 20;
/// For one round of a soak, also on a machine that does much else.
const SOAK_WAIT_MAX: Duration = Duration::from_secs(600);
/// Rounds of a soak after which nothing grows any more.
const SOAK_ROUNDS_TO_SETTLE: u64 = 5;

/// Calls of all kinds, under way at once.
fn load() -> Vec<Ask> {
    vec![
        Ask::Echo(Echo {
            calls: 8_000,
            in_flight: 8,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            calls: 3_000,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            bytes: 300_000,
            calls: 300,
            in_flight: 3,
            ..Echo::default()
        }),
        Ask::Pour(Pour {
            key: "pour".to_owned(),
            messages: 20_000,
            bytes: 500,
            ..Pour::default()
        }),
        Ask::Pour(Pour {
            key: "large".to_owned(),
            messages: 300,
            bytes: 400_000,
            ..Pour::default()
        }),
        Ask::Fill(Fill {
            messages: 10_000,
            bytes: 2_000,
            ..Fill::default()
        }),
        Ask::Chat {
            messages: 2_000,
            bytes: 5_000,
        },
    ]
}

/// A few calls of some kinds.
fn light_load() -> Vec<Ask> {
    vec![
        Ask::Echo(Echo {
            calls: 300,
            in_flight: 4,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            bytes: 300_000,
            calls: 20,
            in_flight: 2,
            ..Echo::default()
        }),
        Ask::Pour(Pour {
            key: "pour".to_owned(),
            messages: 500,
            bytes: 500,
            ..Pour::default()
        }),
    ]
}

fn begin(agent: &mut Agent, asks: &[Ask]) -> Vec<Ticket> {
    asks.iter().map(|ask| agent.begin(ask.clone())).collect()
}

/// Everything that was begun has come to a good end.
fn end(agent: &mut Agent, tickets: Vec<Ticket>, asks: &[Ask]) -> Vec<Done> {
    end_within(agent, tickets, asks, WAIT_MAX)
}

fn end_within(agent: &mut Agent, tickets: Vec<Ticket>, asks: &[Ask], wait_max: Duration) -> Vec<Done> {
    let mut all = Vec::new();
    for (ticket, ask) in tickets.into_iter().zip(asks) {
        match agent.answer_within(ticket, wait_max) {
            Some(Answer::Done(done)) => all.push(done),
            other => panic!("{ask:?} came to {other:?}"),
        }
    }
    all
}

fn replace_under_load(agent: &mut Agent, mut replace: impl FnMut() -> Vec<Replacement>) {
    let asks = load();
    let tickets = begin(agent, &asks);
    std::thread::sleep(Duration::from_millis(100));
    for _ in 0..REPLACEMENTS {
        for replacement in replace() {
            println!("{replacement:?}");
        }
    }
    let done = end(agent, tickets, &asks);
    let slowest = done.iter().map(|done| done.slowest_us).max();
    println!("the slowest call took {} µs", slowest.unwrap_or(0));
}

#[test]
fn the_clients_node_is_replaced_again_and_again() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let (agent, a) = (&mut setting.agent, &mut setting.a);
        replace_under_load(agent, || vec![a.replace()]);
        setting.others_are_served();
    });
}

#[test]
fn the_servers_node_is_replaced_again_and_again() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let (agent, b) = (&mut setting.agent, &mut setting.b);
        replace_under_load(agent, || vec![b.replace()]);
        setting.others_are_served();
    });
}

#[test]
fn both_nodes_are_replaced_again_and_again() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let (agent, a, b) = (&mut setting.agent, &mut setting.a, &mut setting.b);
        replace_under_load(agent, || vec![a.replace(), b.replace()]);
        setting.others_are_served();
    });
}

#[test]
fn both_nodes_are_replaced_under_tls() {
    watched(|| {
        let authority = Authority::new();
        let mut world = World::new(ROLE);
        let options = |tables, peer| NodeOptions {
            tables,
            peer,
            ..NodeOptions::default()
        };
        let tables = authority.vouch_for("b", world.directory());
        let mut b = world.node("b", &options(tables, None));
        let _server = world.server(&b);
        let tables = authority.vouch_for("a", world.directory());
        let mut a = world.node("a", &options(tables, Some(b.address)));
        let mut agent = world.agent(&a);
        replace_under_load(&mut agent, || vec![a.replace(), b.replace()]);
        world.agent(&a).calls_well();
    });
}

/// Apps attach, connect and go, and servers come and go, at any moment of a replacement.
#[test]
fn apps_come_and_go_while_nodes_are_replaced() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let asks = light_load();
        for _ in 0..6 {
            let tickets = begin(&mut setting.agent, &asks);
            let mut coming: Vec<Agent> = (0..3)
                .map(|_| setting.world.starting_agent(&setting.a, Executor::TokioCurrent))
                .collect();
            let clients = setting.agent.begin(Ask::Clients { clients: 3 });
            setting.a.replace();
            setting.b.replace();
            for agent in &mut coming {
                assert_eq!(agent.first_answer(), Answer::Ready);
                agent.calls_well();
            }
            assert!(matches!(setting.agent.answer(clients), Answer::Done(_)));
            end(&mut setting.agent, tickets, &asks);
            setting.agent.succeeds(Ask::LetGo);
        }
    });
}

#[test]
fn a_node_with_both_ends_is_replaced_again_and_again() {
    watched(|| {
        let mut world = World::new(ROLE);
        let mut node: Node = world.node("n", &NodeOptions::default());
        let _server = world.server(&node);
        let mut agent = world.agent(&node);
        replace_under_load(&mut agent, || vec![node.replace()]);
        world.agent(&node).calls_well();
    });
}

/// Whatever the new process does wrong: calls go on in the old one, and later another one takes over all the same.
#[test]
fn a_process_that_fails_to_take_over_changes_nothing() {
    watched(|| {
        let options = NodeOptions {
            tables: "[timeouts]\nhot_restart_ms = 2000".to_owned(),
            ..NodeOptions::default()
        };
        let mut setting = Setting::with(ROLE, &options, &options);
        setting.agent.calls_well();
        let before = [setting.a.usage().descriptors, setting.b.usage().descriptors];
        for fault in FAULTS {
            let asks = light_load();
            let tickets = begin(&mut setting.agent, &asks);
            // Some faults are found out by a time-out, which both nodes await at the same time.
            std::thread::scope(|scope| {
                for node in [&mut setting.a, &mut setting.b] {
                    scope.spawn(move || {
                        node.set_faulty_successor(fault);
                        let process = node.process();
                        let reason = node.try_replace().expect_err("it fails");
                        println!("{fault:?}: {reason}");
                        assert_eq!(node.process(), process);
                    });
                }
            });
            end(&mut setting.agent, tickets, &asks);
        }
        eventually("no descriptor is left behind", WAIT_MAX, || {
            let now = [setting.a.usage().descriptors, setting.b.usage().descriptors];
            now[0] <= before[0] && now[1] <= before[1]
        });
        for node in [&mut setting.a, &mut setting.b] {
            node.set_successor(None);
            node.replace();
        }
        setting.agent.calls_well();
        setting.others_are_served();
    });
}

#[test]
fn nothing_grows_when_a_node_is_replaced_many_times() {
    watched(|| {
        let mut setting = Setting::new(ROLE);
        let echo = || {
            Ask::Echo(Echo {
                bytes: 100_000,
                calls: 40,
                in_flight: 4,
                ..Echo::default()
            })
        };
        setting.agent.succeeds(echo());
        let mut settled = None;
        for round in 0..30 {
            let ticket = setting.agent.begin(echo());
            setting.a.replace();
            setting.b.replace();
            assert!(matches!(setting.agent.answer(ticket), Answer::Done(_)));
            setting.agent.succeeds(echo());
            if round == 5 {
                settled = Some(uses(&setting));
            }
        }
        let settled = settled.expect("more than five rounds");
        eventually("as much is used as after a few rounds", WAIT_MAX, || {
            has_not_grown(&uses(&setting), &settled)
        });
    });
}

/// Replacements at seeded moments under calls of all kinds, now and then by a process that fails, for as long as
/// `PROVOST_SOAK_MINUTES` says: `cargo xtask soak hot_restart`.
#[test]
#[ignore = "for an hour"]
fn soak() {
    let minutes = std::env::var("PROVOST_SOAK_MINUTES").ok();
    let minutes: f64 = minutes.and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let end_at = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let options = NodeOptions {
        tables: "[timeouts]\nhot_restart_ms = 2000\n\
                 [[policy]]\nname = \"counts\"\nkind = \"metrics\"\n\
                 [[policy]]\nname = \"limit\"\nkind = \"rate-limit\"\n\
                 [policy.config]\nrequests_per_second = 1000000000\nburst = 1000000000\n"
            .to_owned(),
        ..NodeOptions::default()
    };
    let mut setting = Setting::with(ROLE, &options, &options);
    let mut settled = None;
    let (mut made, mut undone) = (0, 0);
    for seed in 1.. {
        let mut random = SeededRandom::new(seed);
        let asks = load();
        let tickets = begin(&mut setting.agent, &asks);
        for _ in 0..SOAK_REPLACEMENTS {
            std::thread::sleep(Duration::from_micros(random.below(SOAK_PAUSE_US_MAX)));
            let node = match random.below(2) {
                0 => &mut setting.a,
                _ => &mut setting.b,
            };
            if random.below(SOAK_FAULTS_ONE_IN) == 0 {
                node.set_faulty_successor(FAULTS[random.below(FAULTS.len() as u64) as usize]);
                let outcome = node.try_replace();
                assert!(outcome.is_err(), "seed {seed}: {outcome:?}");
                node.set_successor(None);
                undone += 1;
            } else {
                node.replace();
                made += 1;
            }
        }
        let done = end_within(&mut setting.agent, tickets, &asks, SOAK_WAIT_MAX);
        let slowest_us = done.iter().map(|done| done.slowest_us).max().unwrap_or(0);
        let now = uses(&setting);
        println!(
            "seed {seed}: {made} replacements so far, {undone} failed as asked; the slowest call took {slowest_us} us"
        );
        println!("  {now:?}");
        if Instant::now() >= end_at {
            break;
        }
        match &settled {
            None if seed > SOAK_ROUNDS_TO_SETTLE => settled = Some(now),
            None => {}
            Some(settled) => eventually("as much is used as after a few rounds", WAIT_MAX, || {
                has_not_grown(&uses(&setting), settled)
            }),
        }
    }
    setting.others_are_served();
}

/// Whether everybody uses as much as before, but for what an allocator keeps.
fn has_not_grown(now: &[Usage; 4], before: &[Usage; 4]) -> bool {
    now.iter().zip(before).all(|(now, then)| {
        now.descriptors <= then.descriptors
            && now.threads <= then.threads
            && now.shared_bytes <= then.shared_bytes + (4 << 20)
            && now.resident_bytes <= then.resident_bytes + (16 << 20)
    })
}

/// What the nodes, the server and the client use.
fn uses(setting: &Setting) -> [Usage; 4] {
    [
        setting.a.usage(),
        setting.b.usage(),
        setting.server.program.usage(),
        setting.agent.program.usage(),
    ]
}

/// Policies with state that is shared (what is left in a bucket) and state of each call go on; a configuration that says
/// something else takes effect in the process that read it.
#[test]
fn policies_go_on_in_the_new_process() {
    watched(|| {
        let policies = "[[policy]]\nname = \"counts\"\nkind = \"metrics\"\n\
                        [[policy]]\nname = \"limit\"\nkind = \"rate-limit\"\nmethods = [\"Mirror\"]\n\
                        [policy.config]\nrequests_per_second = 0.001\nburst = 3\n";
        let options = NodeOptions {
            tables: policies.to_owned(),
            ..NodeOptions::default()
        };
        let mut setting = Setting::with(ROLE, &options, &options);
        let asks = light_load();
        let mirror = || Ask::Mirror(Vec::new());
        setting.agent.succeeds(mirror());
        let tickets = begin(&mut setting.agent, &asks);
        for _ in 0..3 {
            setting.a.replace();
            setting.b.replace();
        }
        end(&mut setting.agent, tickets, &asks);
        setting.agent.succeeds(mirror());
        setting.agent.succeeds(mirror());
        let refused = setting.agent.fails(mirror());
        assert_eq!(
            refused.code,
            Code::ResourceExhausted,
            "the bucket is empty: {refused:?}"
        );

        setting.a.reconfigure(&NodeOptions {
            peer: Some(setting.b.address),
            ..NodeOptions::default()
        });
        setting.b.reconfigure(&NodeOptions::default());
        setting.a.replace();
        setting.b.replace();
        eventually("nothing is limited any more", WAIT_MAX, || {
            let ticket = setting.agent.begin(mirror());
            matches!(setting.agent.answer(ticket), Answer::Done(_))
        });
    });
}
