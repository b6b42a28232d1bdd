//! What a node tells stays whole while its files are rotated, its policies changed and its process replaced: not a line
//! is lost, no counter goes backwards, and whoever asks for health gets an answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::scrape::{get_unix, metrics, value};
use provost_e2e::script::{Answer, Ask, Echo, Metadatum};
use provost_e2e::{NodeOptions, Setting, built, eventually, watched};

const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// Replacements of the daemon in one test.
const REPLACEMENTS: usize = 5;

fn echo(calls: usize) -> Ask {
    Ask::Echo(Echo {
        calls,
        ..Echo::default()
    })
}

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pchg-").tempdir().unwrap()
}

/// A node that listens there, with these policies.
fn observed(socket: &Path, policies: &str) -> NodeOptions {
    NodeOptions {
        tables: format!("[observe]\nlisten = \"unix:{}\"\n{policies}", socket.display()),
        ..NodeOptions::default()
    }
}

/// Lines of some files that were written to their end. (The last one may be on its way.)
fn lines(files: &[PathBuf]) -> usize {
    let text = |file: &PathBuf| std::fs::read_to_string(file).unwrap_or_default();
    files.iter().map(|file| text(file).matches('\n').count()).sum()
}

fn assert_whole(files: &[PathBuf]) {
    for file in files {
        for line in std::fs::read_to_string(file).unwrap_or_default().lines() {
            let parsed = serde_json::from_str::<serde_json::Value>(line);
            assert!(parsed.is_ok(), "{}: {line}", file.display());
        }
    }
}

#[test]
fn each_call_has_one_line_over_rotations_changes_and_a_replacement() {
    built::program("provost", "provost-cli", ROLE);
    watched(|| {
        const CALLS: usize = 6000;
        const ROTATIONS: usize = 20;
        let place = directory();
        let log = place.path().join("access.log");
        let options = NodeOptions {
            tables: format!(
                "[[policy]]\nname = \"log\"\nkind = \"access-log\"\n[policy.config]\npath = \"{}\"\nflush_interval_ms = 2\n",
                log.display()
            ),
            ..NodeOptions::default()
        };
        let mut setting = Setting::with(ROLE, &options, &NodeOptions::default());
        let load = setting.agent.begin(Ask::Echo(Echo {
            calls: CALLS,
            in_flight: 4,
            ..Echo::default()
        }));
        let rotated = |at: usize| place.path().join(format!("access.log.{at}"));
        for at in 0..ROTATIONS {
            // Not there: nothing was written since the last rotation.
            let _ = std::fs::rename(&log, rotated(at));
            match at {
                5 => drop(setting.a.replace()),
                10 => drop(
                    setting
                        .a
                        .operate(&["policy", "set", "log", "--set", "flush_interval_ms=3"]),
                ),
                _ => std::thread::sleep(std::time::Duration::from_millis(10)),
            }
        }
        match setting.agent.answer(load) {
            Answer::Done(done) => assert_eq!(done.count, CALLS as u64),
            other => panic!("{other:?}"),
        }
        let files: Vec<PathBuf> = (0..ROTATIONS).map(rotated).chain([log.clone()]).collect();
        eventually("every call has a line", WAIT_MAX, || lines(&files) >= CALLS);
        assert_eq!(lines(&files), CALLS);
        assert_whole(&files);
    });
}

#[test]
fn counters_go_on_over_replacements() {
    watched(|| {
        let place = directory();
        let socket = place.path().join("a");
        let policies = "[[policy]]\nname = \"numbers\"\nkind = \"metrics\"\n\
             [[policy]]\nname = \"acl\"\nkind = \"access\"\n[policy.config]\ndefault = \"allow\"\n\
             [[policy.config.rule]]\nname = \"none\"\nwhen = \"'x-denied' in metadata\"\naction = \"deny\"\n";
        let mut setting = Setting::with(ROLE, &observed(&socket, policies), &NodeOptions::default());
        let denied = Ask::Mirror(vec![Metadatum {
            key: "x-denied".into(),
            value: b"1".to_vec(),
        }]);
        for round in 1..=3 {
            setting.agent.succeeds(echo(10));
            setting.agent.fails(denied.clone());
            let page = metrics(&socket);
            let verdicts = |labels: &[&str]| value(&page, "provost_policy_verdicts_total", labels);
            let acl = "policy=\"acl\"";
            assert_eq!(
                verdicts(&[acl, "verdict=\"passed\""]),
                Some(f64::from(10 * round)),
                "{page}"
            );
            assert_eq!(
                verdicts(&[acl, "verdict=\"denied\"", "grpc_status=\"PERMISSION_DENIED\""]),
                Some(f64::from(round))
            );
            let started = value(&page, "grpc_client_attempt_started_total", &["probe.Probe/Echo"]);
            assert_eq!(started, Some(f64::from(10 * round)));
            let queued = value(&page, "provost_runtime_queueing_seconds_count", &[]);
            assert!(queued.is_some_and(|queued| queued >= 1.0), "{queued:?}");
            setting.a.replace();
        }
        let page = metrics(&socket);
        assert_eq!(
            value(
                &page,
                "provost_daemon_replacements_total",
                &["outcome=\"committed\""]
            ),
            Some(3.0)
        );
    });
}

#[test]
fn calls_in_flight_are_counted_until_they_end() {
    watched(|| {
        let place = directory();
        let socket = place.path().join("a");
        let mut setting = Setting::with(ROLE, &observed(&socket, ""), &NodeOptions::default());
        let in_flight = || {
            let page = metrics(&socket);
            let runtimes = page
                .lines()
                .filter(|line| line.starts_with("provost_runtime_calls_in_flight{"));
            let counts = runtimes.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            counts.sum::<f64>()
        };
        assert_eq!(in_flight(), 0.0);
        let held = setting.agent.begin(Ask::HoldMany {
            calls: 9,
            hold: provost_e2e::script::Hold {
                key: "held".into(),
                milliseconds: 5000,
                ..Default::default()
            },
        });
        eventually("all calls are in flight", WAIT_MAX, || in_flight() == 9.0);
        setting.a.replace();
        setting.agent.answer(held);
        eventually("none is", WAIT_MAX, || in_flight() == 0.0);
    });
}

#[test]
fn whoever_asks_for_health_gets_an_answer_while_the_daemon_is_replaced() {
    watched(|| {
        let place = directory();
        let socket = place.path().join("a");
        let mut setting = Setting::with(ROLE, &observed(&socket, ""), &NodeOptions::default());
        let over = Arc::new(AtomicBool::new(false));
        let prober = {
            let (over, socket) = (Arc::clone(&over), socket.clone());
            std::thread::spawn(move || {
                let mut answers = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    answers.push(get_unix(&socket, "/readyz").map(|(status, _)| status));
                }
                answers
            })
        };
        for round in 1..=REPLACEMENTS {
            setting.a.replace();
            // The process before may still answer who came before; from then on it is the new one.
            eventually("the new process is ready", WAIT_MAX, || {
                get_unix(&socket, "/readyz").is_ok_and(|(status, _)| status == 200)
            });
            let committed = value(
                &metrics(&socket),
                "provost_daemon_replacements_total",
                &["committed"],
            );
            assert_eq!(committed, Some(round as f64));
            setting.agent.succeeds(echo(5));
        }
        over.store(true, Ordering::Relaxed);
        let answers = prober.join().unwrap();
        let is_answered = |answer: &io::Result<u16>| matches!(answer, Ok(200 | 503));
        let unanswered: Vec<_> = answers.iter().filter(|answer| !is_answered(answer)).collect();
        // Who had connected and was kept from asking until the process before was gone has to come again.
        assert!(
            unanswered.len() <= REPLACEMENTS,
            "{unanswered:?} of {}",
            answers.len()
        );
        let twice = answers.windows(2).find(|two| !two.iter().any(is_answered));
        assert!(twice.is_none(), "{twice:?} of {}", answers.len());
        assert!(answers.iter().any(|answer| matches!(answer, Ok(200))));
    });
}
