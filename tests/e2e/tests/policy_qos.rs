//! Small and large calls of several apps under `qos`, attached and taken away while they go on. (How much faster the
//! small ones are, `cargo xtask bench qos` shows.)

use provost_e2e::script::{Answer, Ask, Echo};
use provost_e2e::{NodeOptions, Setting, built, watched};

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
