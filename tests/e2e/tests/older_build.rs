//! A node of an older build is replaced by one of today's while apps call, and by the older one again: `cargo xtask older-build`
//! builds an earlier commit and runs this.

use std::path::{Path, PathBuf};
use std::time::Duration;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Answer, Ask, Echo, Fill, Pour};
use provost_e2e::{Agent, NodeOptions, World, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// The environment variable with the path of the older build of the same program.
const OLDER_ROLE: &str = "PROVOST_OLDER_ROLE";

/// A path at which either build can be: a node is replaced by what is there then.
struct ProgramOnDisk {
    path: PathBuf,
}

impl ProgramOnDisk {
    fn put(&self, program: &Path) {
        let fresh = self.path.with_extension("fresh");
        std::fs::copy(program, &fresh).expect("a copy of the program");
        std::fs::rename(&fresh, &self.path).expect("the program in its place");
    }
}

fn calls() -> Vec<Ask> {
    vec![
        Ask::Echo(Echo {
            calls: 4_000,
            in_flight: 8,
            ..Echo::default()
        }),
        Ask::Echo(Echo {
            bytes: 300_000,
            calls: 150,
            in_flight: 3,
            ..Echo::default()
        }),
        Ask::Pour(Pour {
            key: "pour".to_owned(),
            messages: 10_000,
            bytes: 500,
            ..Pour::default()
        }),
        Ask::Fill(Fill {
            messages: 5_000,
            bytes: 2_000,
            ..Fill::default()
        }),
        Ask::Chat {
            messages: 1_000,
            bytes: 5_000,
        },
    ]
}

/// Runs calls of all kinds while `change` goes on; none of them may fail.
fn during_calls(agent: &mut Agent, change: impl FnOnce()) {
    let asks = calls();
    let tickets: Vec<_> = asks.iter().map(|ask| agent.begin(ask.clone())).collect();
    std::thread::sleep(Duration::from_millis(100));
    change();
    for (ticket, ask) in tickets.into_iter().zip(&asks) {
        let answer = agent.answer_within(ticket, WAIT_MAX);
        assert!(
            matches!(answer, Some(Answer::Done(_))),
            "{ask:?} came to {answer:?}"
        );
    }
}

#[test]
fn an_older_build_is_replaced_by_todays_and_todays_by_the_older_one_or_not_at_all() {
    let Some(older) = std::env::var_os(OLDER_ROLE).map(PathBuf::from) else {
        println!(
            "skipped: {OLDER_ROLE} names no older build; `cargo xtask older-build` makes one and sets it"
        );
        return;
    };
    watched(move || {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = ProgramOnDisk {
            path: folder.path().join("e2e-role"),
        };
        program.put(&older);
        let mut world = World::new(program.path.to_str().expect("a path of UTF-8"));
        let mut b = world.node("b", &NodeOptions::default());
        let mut a = world.node(
            "a",
            &NodeOptions {
                peer: Some(b.address),
                ..NodeOptions::default()
            },
        );
        // Apps are of today's build from the beginning.
        program.put(ROLE.as_ref());
        let _server = world.server(&b);
        let mut agent = world.agent(&a);
        during_calls(&mut agent, || {
            println!("{:?}", a.replace());
            println!("{:?}", b.replace());
        });
        program.put(&older);
        during_calls(&mut agent, || match a.try_replace() {
            Ok(replacement) => println!("back: {replacement:?}"),
            Err(reason) => println!("refused: {reason}"),
        });
        world.agent(&a).calls_well();
    });
}
