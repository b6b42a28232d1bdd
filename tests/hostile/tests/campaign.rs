//! A short campaign with a fixed seed, as continuous integration runs it.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use provost_hostile::campaign::{self, Plan};

/// Campaigns run one after the other, as each judges how long calls take.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn services_and_good_apps_survive_hostile_ones() {
    let plan = Plan {
        seed: 1,
        attack_for: Duration::from_secs(10),
        only: Vec::new(),
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let report = campaign::run(Path::new(env!("CARGO_BIN_EXE_provost-hostile")), &plan).expect("a campaign");
    println!("{report}");
    let attacks_made = [
        "messages received by servers",
        "random: slots",
        "race: refused",
        "guided: attached",
        "control: answered",
        "rings: a lie was found out",
        "time-of-check: allowed",
        "time-of-check: denied",
        "messages received behind a policy",
        "values received that are denied elsewhere",
        "vandal's client: connection closed",
    ];
    for attack in attacks_made {
        assert!(
            report.counted(attack) > 0,
            "nothing was tested: {attack}\n{report}"
        );
    }
    let (findings, more) = report.findings();
    assert!(
        findings.is_empty(),
        "seed {}: {findings:#?} and {more} more",
        plan.seed
    );
}

/// The seed is in the first line of what it prints; `--seed` of the program replays it.
#[test]
fn a_fresh_seed_is_survived_too() {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let plan = Plan {
        seed: since_1970.as_nanos() as u64,
        attack_for: Duration::from_secs(5),
        only: Vec::new(),
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let report = campaign::run(Path::new(env!("CARGO_BIN_EXE_provost-hostile")), &plan).expect("a campaign");
    let (findings, more) = report.findings();
    assert!(
        findings.is_empty(),
        "seed {}: {findings:#?} and {more} more",
        plan.seed
    );
}

/// Messages that are short where the app has them and long where they are copied take a bounded amount of memory and of
/// time: the good client goes on beside them.
#[test]
fn no_app_takes_the_memory_and_the_time_of_others_by_copies() {
    let plan = Plan {
        seed: 2,
        attack_for: Duration::from_secs(5),
        only: vec!["copies".to_owned()],
    };
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let report = campaign::run(Path::new(env!("CARGO_BIN_EXE_provost-hostile")), &plan).expect("a campaign");
    println!("{report}");
    let submitted = report.counted("copies: messages submitted");
    assert!(submitted > 0, "nothing was tested\n{report}");
    let (findings, more) = report.findings();
    assert!(findings.is_empty(), "{findings:#?} and {more} more");
}
