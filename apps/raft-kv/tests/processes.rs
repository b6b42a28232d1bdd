//! Three processes on the loopback interface, over UDP, of which the one that leads is killed.

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use provost_raft_kv::client::ReadRoute;
use provost_raft_kv::local::{JournalPlace, LocalCluster};
use provost_raft_kv::operation::{Operation, RequestAnswer};
use provost_raft_kv::process::{BlockingClient, ProcessError, WaitManner};
use support::history::CallHistory;

/// An answer takes this long only if the machine is stuck.
const WAIT_MAX: Duration = Duration::from_secs(50);
const CLIENTS: usize = 3;
/// What each client asks before the leader is killed, and after.
const OPERATIONS: usize = 20;

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_raft-kv"))
}

type SharedHistory = Arc<Mutex<CallHistory>>;

fn lock(history: &SharedHistory) -> std::sync::MutexGuard<'_, CallHistory> {
    history.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A client that writes, compares and reads until it is told to stop, and has done enough by then.
fn worker(
    local: &LocalCluster,
    number: usize,
    history: &SharedHistory,
    stop: &Arc<AtomicBool>,
) -> JoinHandle<u64> {
    let mut client =
        BlockingClient::connect(local.members(), 1, ReadRoute::Leader, WaitManner::Sleep).unwrap();
    let (history, stop) = (Arc::clone(history), Arc::clone(stop));
    std::thread::spawn(move || {
        let (mut done, mut after) = (0, 0);
        let mut seen = None;
        while after < OPERATIONS {
            let key = vec![b'a' + (done % 5) as u8];
            let value = format!("{number}-{done}").into_bytes();
            let operation = match done % 3 {
                0 => Operation::Put { key, value },
                1 => Operation::Get { key },
                _ => Operation::CompareAndSet {
                    key,
                    expected: std::mem::take(&mut seen),
                    value,
                },
            };
            lock(&history).ask(number, &operation);
            let answer = client.call(operation, WAIT_MAX).expect("two members go on");
            lock(&history).answer(number, &answer);
            if let RequestAnswer::Value(value) = answer {
                seen = value;
            }
            done += 1;
            after += usize::from(stop.load(Ordering::Relaxed));
            // The checker's work grows with the length of the history.
            std::thread::sleep(Duration::from_millis(10));
        }
        client.leader()
    })
}

#[test]
fn the_leader_is_killed_and_nobody_sees_anything_old_or_lost() {
    let mut local = LocalCluster::start(program(), 3, &JournalPlace::Memory, &[]).unwrap();
    let history = SharedHistory::default();
    let stop = Arc::new(AtomicBool::new(false));
    let mut first =
        BlockingClient::connect(local.members(), 1, ReadRoute::Leader, WaitManner::Sleep).unwrap();
    let key = b"first".to_vec();
    let put = Operation::Put {
        key: key.clone(),
        value: b"value".to_vec(),
    };
    assert_eq!(first.call(put, WAIT_MAX).unwrap(), RequestAnswer::Done);
    let leader = first.leader();
    let workers: Vec<_> = (0..CLIENTS)
        .map(|number| worker(&local, number, &history, &stop))
        .collect();
    while lock(&history).answered() < CLIENTS * OPERATIONS / 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
    local.kill(leader).unwrap();
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        assert_ne!(
            worker.join().unwrap(),
            leader,
            "a dead member was taken for the leader"
        );
    }
    let value = first.call(Operation::Get { key }, WAIT_MAX).unwrap();
    assert_eq!(value, RequestAnswer::Value(Some(b"value".to_vec())));
    assert_eq!(lock(&history).not_linearizable(), Vec::<Vec<u8>>::new());
}

#[test]
fn a_call_is_not_answered_with_what_an_earlier_one_was_not_in_time() {
    let local = LocalCluster::start(program(), 3, &JournalPlace::Memory, &[]).unwrap();
    let mut client =
        BlockingClient::connect(local.members(), 1, ReadRoute::Leader, WaitManner::Sleep).unwrap();
    let put = |key: &[u8]| Operation::Put {
        key: key.to_vec(),
        value: key.to_vec(),
    };
    // It is asked for, and not waited for: not even a packet leaves in this time.
    client.submit(0, put(b"first"));
    assert!(matches!(
        client.call(put(b"unanswered"), Duration::ZERO),
        Err(ProcessError::Unanswered)
    ));
    for key in [&b"second"[..], b"third"] {
        assert_eq!(client.call(put(key), WAIT_MAX).unwrap(), RequestAnswer::Done);
    }
    for (key, is_there) in [
        (&b"first"[..], true),
        (b"unanswered", false),
        (b"second", true),
        (b"third", true),
    ] {
        let value = client
            .call(Operation::Get { key: key.to_vec() }, WAIT_MAX)
            .unwrap();
        let expected = is_there.then(|| key.to_vec());
        assert_eq!(value, RequestAnswer::Value(expected));
    }
}

#[test]
fn all_members_are_killed_and_come_back_with_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let keep = JournalPlace::Folder(folder.path().to_owned());
    let start = || LocalCluster::start(program(), 3, &keep, &["--snapshot-entries", "20"]).unwrap();
    let key = |at: usize| at.to_string().into_bytes();
    {
        let local = start();
        let mut client =
            BlockingClient::connect(local.members(), 1, ReadRoute::Leader, WaitManner::Sleep).unwrap();
        for at in 0..50 {
            let put = Operation::Put {
                key: key(at),
                value: key(at),
            };
            assert_eq!(client.call(put, WAIT_MAX).unwrap(), RequestAnswer::Done);
        }
    }
    let local = start();
    let mut client =
        BlockingClient::connect(local.members(), 1, ReadRoute::Leader, WaitManner::Sleep).unwrap();
    for at in 0..50 {
        let value = client.call(Operation::Get { key: key(at) }, WAIT_MAX).unwrap();
        assert_eq!(value, RequestAnswer::Value(Some(key(at))));
    }
}

#[test]
fn the_benchmark_writes_what_it_measured() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let mut bench = std::process::Command::new(program());
    bench
        .args(["bench", "--quick", "--wait", "sleep", "--json"])
        .arg(&json);
    assert!(bench.status().unwrap().success());
    let figures = std::fs::read_to_string(json).unwrap();
    for setup in ["bare udp", "transport udp", "raft-kv udp, memory"] {
        assert!(figures.contains(setup), "no figures of {setup}");
    }
}
