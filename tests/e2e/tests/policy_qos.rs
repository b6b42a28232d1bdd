//! Small and large calls of several apps under `qos`, attached and taken away while they go on; and who goes first of those
//! that wait. (How much faster the small ones are, `cargo xtask bench qos` shows.)

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::scrape::{metrics, value};
use provost_e2e::script::{Answer, Ask, Echo};
use provost_e2e::{NodeOptions, Setting, built, eventually, watched};
use rustix::process::Signal;

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");

#[test]
fn calls_of_all_sizes_go_on_while_it_comes_and_goes() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        let mut setting = Setting::with(ROLE, &NodeOptions::default(), &NodeOptions::default());
        let mut bulk = setting.world.agent(&setting.a);
        let large = bulk.begin(Ask::Echo(Echo {
            bytes: 300_000,
            calls: 1500,
            in_flight: 16,
            ..Echo::default()
        }));
        let small = setting.agent.begin(Ask::Echo(Echo {
            calls: 4000,
            in_flight: 2,
            ..Echo::default()
        }));
        for node in [&setting.a, &setting.b] {
            node.operate(&["policy", "attach", "--kind", "qos", "--name", "qos"]);
        }
        for bound in ["1", "100000", "1000"] {
            let set = format!("starvation_bound_us={bound}");
            for node in [&setting.a, &setting.b] {
                node.operate(&["policy", "set", "qos", "--set", &set, "--set", "bulk_bytes=16384"]);
            }
        }
        setting.a.operate(&["policy", "detach", "qos"]);
        for (agent, ticket, count) in [(&mut bulk, large, 1500), (&mut setting.agent, small, 4000)] {
            match agent.answer(ticket) {
                Answer::Done(done) => assert_eq!(done.count, count),
                other => panic!("{other:?}"),
            }
        }
    });
}

/// While the server's node is stopped, large calls without a deadline wait in the client's, and at last one with a deadline.
/// Whatever the machine does meanwhile, that one goes before all that wait when the other node goes on.
#[test]
fn of_large_calls_that_wait_the_one_with_a_deadline_goes_first() {
    const BULK_CALLS: usize = 24;
    const BYTES: usize = 600_000;
    watched(|| {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("metrics.sock");
        // Those that wait do so until there is room, and small calls count as there for all of the test.
        let tables = format!(
            "[observe]\nlisten = \"unix:{}\"\n\
             [timeouts]\nkeepalive_interval_ms = 60000\nkeepalive_timeout_ms = 60000\n\
             [[policy]]\nname = \"qos\"\nkind = \"qos\"\n[policy.config]\n\
             bulk_bytes = 16384\nstarvation_bound_us = 10000000\nlinger_us = 10000000\n",
            socket.display()
        );
        let options = NodeOptions {
            tables,
            ..NodeOptions::default()
        };
        let mut setting = Setting::with(ROLE, &options, &NodeOptions::default());
        let mut bulk = setting.world.agent(&setting.a);
        let large = |timeout_ms| {
            Ask::Echo(Echo {
                bytes: BYTES,
                timeout_ms,
                ..Echo::default()
            })
        };
        // The policy has seen what both send.
        bulk.succeeds(large(None));
        setting.agent.calls_well();
        let held = || value(&metrics(&socket), "provost_qos_held", &[]).unwrap_or_default() as usize;

        setting.b.program.signal(Signal::STOP);
        let waiting: Vec<_> = (0..BULK_CALLS).map(|_| bulk.begin(large(None))).collect();
        let mut before = 0;
        eventually("large calls wait, and no more come", WAIT_MAX, || {
            let last = std::mem::replace(&mut before, held());
            before == last && before >= BULK_CALLS / 2
        });
        let urgent = bulk.begin(large(Some(50_000)));
        eventually("the one with a deadline waits as well", WAIT_MAX, || {
            held() > before
        });
        let held = held();
        setting.b.program.signal(Signal::CONT);

        let answer = bulk.answer(urgent);
        assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
        let earlier = bulk.answered_before(&waiting);
        println!(
            "{held} of {} waited, {earlier} were answered before",
            BULK_CALLS + 1
        );
        // Those that had left the node, and few of those that came behind it and were answered at the same time.
        assert!(earlier <= BULK_CALLS + 1 - held + held / 3, "{earlier} of {held}");
        for ticket in waiting {
            assert!(matches!(bulk.answer(ticket), Answer::Done(_)));
        }
    });
}
