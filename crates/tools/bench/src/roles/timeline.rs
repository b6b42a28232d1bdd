//! A client that keeps every completion, for what is done to its node meanwhile.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use provost::Code;
use provost_shm::now_ns;
use tokio::task::{LocalSet, spawn_local};

use super::payload;
use super::provost::{Client, Pace, runtime};
use crate::failure::Failure;
use crate::process::say_ready;
use crate::report::{Expected, Load, Traffic};
use crate::timeline::{COMPLETIONS_MAX, Completion, Outline, write};

/// How long a client waits after a call that a limit has refused.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// Failed calls that are shown.
const SHOWN_MAX: u64 = 3;

#[derive(Default)]
struct Record {
    completions: Vec<Completion>,
    errors: u64,
    denied: u64,
}

impl Record {
    fn complete(&mut self, began_ns: u64) {
        let at_ns = now_ns();
        let latency_ns = at_ns - began_ns;
        self.completions.push(Completion { at_ns, latency_ns });
    }
}

/// Makes load for the time of `load`, then writes the completions to `path` and says what they came to.
pub(crate) fn run(load: &Load, path: &Path) -> Result<Outline, Failure> {
    let runtime = runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let client = Client::connect(load.traffic).await?;
        let payload: Rc<[u8]> = payload(load.size_bytes).into();
        let record = Rc::new(RefCell::new(Record::default()));
        let began_ns = now_ns();
        let end = Instant::now() + Duration::from_secs_f64(load.seconds);
        let caller = || {
            let pace = Pace::new(load.interval_us);
            let (client, payload) = (client.clone(), payload.clone());
            caller(client, payload, load.traffic, pace, record.clone(), end)
        };
        let callers: Vec<_> = (0..load.calls_in_flight).map(|_| spawn_local(caller())).collect();
        say_ready("");
        for caller in callers {
            caller
                .await
                .map_err(|error| Failure::role("client", error.to_string()))?;
        }
        let record = record.borrow();
        write(path, began_ns, &record.completions)?;
        Ok(Outline {
            began_ns,
            errors: record.errors,
            denied: record.denied,
            count: record.completions.len() as u64,
        })
    })
}

async fn caller(
    client: Client,
    payload: Rc<[u8]>,
    traffic: Traffic,
    mut pace: Pace,
    record: Rc<RefCell<Record>>,
    end: Instant,
) {
    let is_going_on = || Instant::now() < end && record.borrow().completions.len() < COMPLETIONS_MAX;
    for number in (0..).take_while(|_| is_going_on()) {
        pace.wait();
        let began_ns = now_ns();
        let (answered, expected) = client.call(&payload, traffic, number).await;
        match answered {
            Ok(()) => record.borrow_mut().complete(began_ns),
            // What a policy decides is an answer as well.
            Err(status) if status.code() == Code::PermissionDenied && expected == Expected::Denied => {
                let mut record = record.borrow_mut();
                record.denied += 1;
                record.complete(began_ns);
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                record.borrow_mut().denied += 1;
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
            Err(status) => {
                let mut record = record.borrow_mut();
                record.errors += 1;
                if record.errors <= SHOWN_MAX {
                    eprintln!("call failed: {status}");
                }
            }
        }
    }
}
