//! What a node cannot tell just now, because where it goes does not take it: in `provost status`, and in the log when it begins,
//! again and again with longer pauses while it goes on, and when it is over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::control_plane::ControlPlane;
use crate::log;

/// How often is looked what fails.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Before a failure that goes on is logged again; twice as long each time.
const PAUSE_FIRST: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// What fails now: what it is, and why.
pub(crate) fn failures(plane: &ControlPlane) -> BTreeMap<String, String> {
    let observe = &plane.config.started.observe;
    let audit = plane.audit.failure().map(|failure| {
        let why = format!("{}: {failure}; its records go to the log", observe.audit_file);
        ("observe.audit_file".to_owned(), why)
    });
    let metrics = plane.counts.export_failure.borrow().clone().map(|failure| {
        let why = format!("{} takes no metrics: {failure}", observe.otlp_endpoint);
        ("observe.otlp_endpoint".to_owned(), why)
    });
    let kept = plane.policies.keep_failure();
    let kept = kept.map(|failure| ("admin.policies_file".to_owned(), failure));
    let policies = plane.policies.live().into_iter().filter_map(|live| {
        let failure = live.policy.failure()?;
        Some((format!("policy \"{}\"", live.name), failure))
    });
    audit
        .into_iter()
        .chain(metrics)
        .chain(kept)
        .chain(policies)
        .collect()
}

/// Logs what fails, for ever.
pub(crate) async fn follow(plane: ControlPlane) {
    let mut told = ToldFailures::default();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        for news in told.news(&failures(&plane), Instant::now()) {
            match news {
                FailureNews::Fails { what, why, since } => {
                    let (reason, first_s_ago) = (&*log::cut(&why), since.as_secs());
                    tracing::warn!(what, reason, first_s_ago, "what the node tells is not taken");
                }
                FailureNews::Over { what } => tracing::info!(what, "what the node tells is taken again"),
            }
        }
    }
}

/// What was said of failures.
#[derive(Default)]
struct ToldFailures(BTreeMap<String, ToldFailure>);

struct ToldFailure {
    since: Instant,
    /// When it is said again; until then, one that comes back is not.
    again: Instant,
    pause: Duration,
    is_over: bool,
}

/// Something that the log is to say.
#[derive(Debug, PartialEq, Eq)]
enum FailureNews {
    Fails {
        what: String,
        why: String,
        since: Duration,
    },
    Over {
        what: String,
    },
}

impl ToldFailures {
    fn news(&mut self, failing: &BTreeMap<String, String>, now: Instant) -> Vec<FailureNews> {
        let mut news = Vec::new();
        for (what, why) in failing {
            let told = self.0.entry(what.clone()).or_insert(ToldFailure {
                since: now,
                again: now,
                pause: PAUSE_FIRST,
                is_over: false,
            });
            if now >= told.again {
                news.push(FailureNews::Fails {
                    what: what.clone(),
                    why: why.clone(),
                    since: now - told.since,
                });
                told.again = now + told.pause;
                told.pause = (2 * told.pause).min(PAUSE_MAX);
                told.is_over = false;
            }
        }
        self.0.retain(|what, told| {
            let is_failing = failing.contains_key(what);
            if !is_failing && !told.is_over {
                told.is_over = true;
                news.push(FailureNews::Over { what: what.clone() });
            }
            // What fails now and then is remembered, and so not said each time.
            is_failing || now < told.again
        });
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn failing(why: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("audit".to_owned(), why.to_owned())])
    }

    fn fails(since_s: u64) -> FailureNews {
        FailureNews::Fails {
            what: "audit".into(),
            why: "full".into(),
            since: seconds(since_s),
        }
    }

    #[test]
    fn a_failure_that_goes_on_is_said_again_and_again_with_longer_pauses() {
        let (mut told, began) = (ToldFailures::default(), Instant::now());
        let mut said = Vec::new();
        for second in 0..100_000 {
            let news = told.news(&failing("full"), began + seconds(second));
            said.extend(news.iter().map(|_| second));
            assert!(news.is_empty() || news == [fails(second)]);
        }
        assert_eq!(said[..7], [0, 60, 180, 420, 900, 1860, 3780]);
        assert_eq!(said[8] - said[7], PAUSE_MAX.as_secs());
        let over = FailureNews::Over { what: "audit".into() };
        let end = began + seconds(100_000);
        assert_eq!(told.news(&BTreeMap::new(), end), [over]);
        assert_eq!(told.news(&BTreeMap::new(), end), []);
    }

    #[test]
    fn what_fails_now_and_then_is_not_said_each_time() {
        let (mut told, began) = (ToldFailures::default(), Instant::now());
        let mut lines = 0;
        for second in 0..6_000 {
            let now = match second % 2 {
                0 => failing("full"),
                _ => BTreeMap::new(),
            };
            lines += told.news(&now, began + seconds(second)).len();
        }
        assert!((4..=20).contains(&lines), "{lines}");
        // After a long time in which all was well it is news again.
        let later = began + seconds(100_000);
        assert_eq!(told.news(&BTreeMap::new(), later), []);
        assert_eq!(told.news(&failing("full"), later + seconds(1)), [fails(0)]);
    }
}
