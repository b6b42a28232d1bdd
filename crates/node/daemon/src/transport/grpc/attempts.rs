//! When a server that was not reached may be tried again: gRPC's connection back-off protocol.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use provost_tls::SourceVersion;

use crate::transport::PeerAddress;

/// After the first failure, counted from when the attempt began.
const BACKOFF_INITIAL: Duration = Duration::from_secs(1);
/// Each further one multiplies that, in tenths.
const BACKOFF_FACTOR_TENTHS: u32 = 16;
const BACKOFF_MAX: Duration = Duration::from_secs(120);
/// By how much a back-off, or the age of a connection, differs from others at random, in hundredths up and down.
const JITTER_HUNDREDTHS: u64 = 20;
/// Addresses that are remembered; past it the one that may be tried first is forgotten.
const ADDRESSES_MAX: usize = 4_096;
/// Bytes of a reason that are kept.
const REASON_BYTES_MAX: usize = 200;

/// Servers that were not reached.
#[derive(Debug)]
pub(super) struct DialAttempts(Mutex<BTreeMap<DialTarget, FailedAttempts>>);

/// A server that was to be reached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct DialTarget {
    pub(super) address: PeerAddress,
    /// How it is met within TLS.
    pub(super) tls: Option<TlsTarget>,
}

/// Where one of these is wrong, other routes may reach the server, and so may the same one when its files are mended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TlsTarget {
    /// What it has to prove to be called.
    pub(super) name: String,
    /// What it is met with.
    pub(super) source: SourceVersion,
}

#[derive(Clone, Debug)]
struct FailedAttempts {
    backoff: Duration,
    not_before: Instant,
    reason: String,
}

impl DialAttempts {
    pub(super) const fn new() -> DialAttempts {
        DialAttempts(Mutex::new(BTreeMap::new()))
    }

    /// The addresses that may be tried now.
    ///
    /// # Errors
    /// None may: when the first one may, and why it failed.
    pub(super) fn allowed(&self, targets: &[DialTarget], now: Instant) -> io::Result<Vec<DialTarget>> {
        let failed = self.lock();
        let waits = |target: &&DialTarget| failed.get(*target).filter(|failed| failed.not_before > now);
        let allowed = targets.iter().filter(|target| waits(target).is_none());
        let allowed: Vec<DialTarget> = allowed.cloned().collect();
        let waiting = targets.iter().filter_map(|target| waits(&target));
        let first = waiting.min_by_key(|failed| failed.not_before);
        match first.filter(|_| allowed.is_empty()) {
            None => Ok(allowed),
            Some(failed) => Err(io::Error::other(format!(
                "it was not reached ({}) and is tried again in {} ms",
                failed.reason,
                failed.not_before.duration_since(now).as_millis()
            ))),
        }
    }

    /// Attempts that began at a time have failed.
    pub(super) fn failed(&self, targets: &[DialTarget], began: Instant, reason: &dyn Display) {
        let mut failed = self.lock();
        let reason = cut(reason.to_string());
        for target in targets {
            let backoff = match failed.get(target) {
                // Attempts that go on at the same time fail as one.
                Some(before) if began < before.not_before => continue,
                Some(before) => (before.backoff * BACKOFF_FACTOR_TENTHS / 10).min(BACKOFF_MAX),
                None => BACKOFF_INITIAL,
            };
            let entry = FailedAttempts {
                backoff,
                not_before: began + jittered(backoff),
                reason: reason.clone(),
            };
            failed.insert(target.clone(), entry);
        }
        while failed.len() > ADDRESSES_MAX {
            let first = failed.iter().min_by_key(|(_, failed)| failed.not_before);
            let Some(target) = first.map(|(target, _)| target.clone()) else {
                break;
            };
            failed.remove(&target);
        }
    }

    pub(super) fn succeeded(&self, target: &DialTarget) {
        self.lock().remove(target);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DialTarget, FailedAttempts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reason of bounded length.
fn cut(mut reason: String) -> String {
    let bytes = REASON_BYTES_MAX.min(reason.len());
    let end = (0..=bytes).rev().find(|at| reason.is_char_boundary(*at));
    reason.truncate(end.unwrap_or(0));
    reason
}

/// A time that differs at random from one of which many may be the same.
pub(super) fn jittered(time: Duration) -> Duration {
    // Each state has keys of its own.
    let random = RandomState::new().hash_one(());
    let percent = 100 - JITTER_HUNDREDTHS + random % (2 * JITTER_HUNDREDTHS + 1);
    time * percent as u32 / 100
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use provost_tls::TlsSource;

    use super::*;

    fn address(port: u16) -> DialTarget {
        DialTarget {
            address: std::net::SocketAddr::from(([127, 0, 0, 1], port)).into(),
            tls: None,
        }
    }

    /// How long after an attempt the next one may begin.
    fn wait_after(attempts: &DialAttempts, began: Instant) -> Duration {
        let longest = BACKOFF_MAX * 2;
        let wait = (0..=longest.as_millis() as u64)
            .step_by(50)
            .map(Duration::from_millis);
        let mut free = wait.filter(|wait| attempts.allowed(&[address(1)], began + *wait).is_ok());
        free.next().expect("it is free at some time")
    }

    #[test]
    fn the_wait_grows_up_to_its_maximum_and_a_success_ends_it() {
        let (attempts, mut began) = (DialAttempts::new(), Instant::now());
        assert!(attempts.allowed(&[address(1)], began).is_ok());
        let mut expected = BACKOFF_INITIAL;
        for _ in 0..15 {
            attempts.failed(&[address(1)], began, &"refused");
            let wait = wait_after(&attempts, began);
            let slack = Duration::from_millis(50);
            assert!(
                wait >= expected * 8 / 10 && wait <= expected * 12 / 10 + slack,
                "{wait:?} of {expected:?}"
            );
            expected = (expected * 16 / 10).min(BACKOFF_MAX);
            began += wait;
        }
        assert_eq!(expected, BACKOFF_MAX);
        attempts.failed(&[address(1)], began, &"refused");
        let error = attempts.allowed(&[address(1)], began).unwrap_err().to_string();
        assert!(error.contains("refused") && error.contains("again in"), "{error}");
        attempts.succeeded(&address(1));
        assert!(attempts.allowed(&[address(1)], began).is_ok());
        attempts.failed(&[address(1)], began, &"refused");
        assert!(wait_after(&attempts, began) < BACKOFF_INITIAL * 13 / 10);
    }

    #[test]
    fn attempts_that_go_on_at_the_same_time_fail_as_one() {
        let (attempts, began) = (DialAttempts::new(), Instant::now());
        for after_ms in 0..12 {
            let began = began + Duration::from_millis(after_ms);
            attempts.failed(&[address(1)], began, &"refused");
        }
        assert!(wait_after(&attempts, began) < BACKOFF_INITIAL * 13 / 10);
        let next = began + BACKOFF_INITIAL * 2;
        attempts.failed(&[address(1)], next, &"refused");
        assert!(wait_after(&attempts, next) > BACKOFF_INITIAL * 12 / 10);
    }

    #[test]
    fn a_reason_is_kept_up_to_its_bound() {
        let (attempts, began) = (DialAttempts::new(), Instant::now());
        let reason = provost_transport_grpc::EstablishFault::Deadline;
        attempts.failed(&[address(1)], began, &reason);
        let error = attempts.allowed(&[address(1)], began).unwrap_err().to_string();
        assert!(error.contains(&reason.to_string()), "{error}");
        let long = format!("a{}", "é".repeat(REASON_BYTES_MAX));
        assert_eq!(cut(long).len(), REASON_BYTES_MAX - 1);
    }

    #[test]
    fn addresses_that_are_free_are_tried() {
        let (attempts, began) = (DialAttempts::new(), Instant::now());
        attempts.failed(&[address(1), address(3)], began, &"refused");
        let all = [address(1), address(2), address(3)];
        assert_eq!(attempts.allowed(&all, began).unwrap(), [address(2)]);
    }

    #[test]
    fn a_failure_is_of_one_name_and_one_set_of_files() {
        let (attempts, began) = (DialAttempts::new(), Instant::now());
        let (source, other) = (TlsSource::new(Arc::new(())), TlsSource::new(Arc::new(())));
        let within_tls = |name: &str, source: &TlsSource<()>| DialTarget {
            tls: Some(TlsTarget {
                name: name.to_owned(),
                source: source.version(),
            }),
            ..address(1)
        };
        let is_free = |target| attempts.allowed(&[target], began).is_ok();
        attempts.failed(&[within_tls("a.test", &source)], began, &"not of this authority");
        assert!(!is_free(within_tls("a.test", &source)));
        assert!(!is_free(within_tls("a.test", &source.clone())));
        assert!(is_free(address(1)));
        assert!(is_free(within_tls("b.test", &source)));
        assert!(is_free(within_tls("a.test", &other)));
        // The files were mended.
        source.replace(Arc::new(()));
        assert!(is_free(within_tls("a.test", &source)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (attempts, began) = (DialAttempts::new(), Instant::now());
        for port in 0..ADDRESSES_MAX as u16 + 50 {
            attempts.failed(&[address(port)], began, &"refused");
        }
        assert_eq!(attempts.lock().len(), ADDRESSES_MAX);
    }
}
