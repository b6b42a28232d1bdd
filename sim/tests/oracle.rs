//! The oracle finds what is wrong: every kind of sabotage, within a few seeds, and the program prints how to replay it.

use std::process::{Command, Output};

use provost_sim::{NodesOptions, Sabotage, run_twice};

/// Seeds within which every sabotage is found.
const SEEDS_MAX: u64 = 20;

fn find(sabotage: Sabotage) -> Option<(u64, String)> {
    (1..=SEEDS_MAX).find_map(|seed| {
        let options = NodesOptions {
            sabotage: Some(sabotage),
            ..NodesOptions::of_seed(seed)
        };
        let violation = run_twice(options).err()?;
        Some((seed, violation.what))
    })
}

#[test]
fn every_sabotage_is_found() {
    for (name, sabotage) in Sabotage::ALL {
        let (seed, what) =
            find(sabotage).unwrap_or_else(|| panic!("{name} is not found by {SEEDS_MAX} seeds"));
        println!("{name} is found by seed {seed}: {what:.200}");
        let words = words_of(sabotage);
        assert!(
            words.iter().any(|words| what.contains(words)),
            "{name} is taken for something else: {what}"
        );
    }
}

/// What is said of a sabotage.
fn words_of(sabotage: Sabotage) -> &'static [&'static str] {
    match sabotage {
        Sabotage::LostEnd => &["after its deadline", "are open"],
        Sabotage::RepeatedStep => &[
            "after its end",
            "began before",
            "is not what was sent",
            "too many",
            "grew to",
        ],
        Sabotage::LostMessage | Sabotage::SwappedMessages => {
            &["is not what was sent", "requests of", "responses of"]
        }
        Sabotage::LostToken => &["tokens and", "send heap is full"],
        Sabotage::KeptBlock => &["blocks of its receive heap are left"],
        Sabotage::SecondVerdict => &["verdicts: 2", "judged 2 times"],
        Sabotage::UnseenFault => &["small, and waited", "for no reason"],
        Sabotage::Starvation => &["small, and waited"],
        Sabotage::TimeOfDay => &["the same seed gave"],
        Sabotage::Panic => &["a panic: as it was made to"],
    }
}

fn run(arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_provost-sim");
    let output = Command::new(program).args(arguments).output();
    output.expect("the program starts")
}

#[test]
fn a_seed_that_fails_prints_its_trace_and_what_replays_it() {
    let seeds = SEEDS_MAX.to_string();
    let output = run(&["--seeds", &seeds, "--sabotage", "lost-end"]);
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        told.lines()
            .filter(|line| line.contains(" ns received ("))
            .count()
            > 10,
        "{told}"
    );

    let replay = told
        .lines()
        .find_map(|line| line.split_once("replay: cargo run -p provost-sim -- "));
    let arguments: Vec<&str> = replay.expect("it says what to run").1.split(' ').collect();
    let again = run(&arguments);
    assert!(!again.status.success());
    assert_eq!(told, String::from_utf8_lossy(&again.stderr));
}
