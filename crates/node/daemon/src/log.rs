//! Structured logs to standard error. The data path never logs; what happens to apps and connections does.
//!
//! What apps and peers cause to be written is bounded: each of them has so many events a second ([`may_log`]), all apps of
//! a user together as many as a few of them ([`may_log_of`]), and what it names is cut ([`cut`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
pub(crate) use crate::foreign_text::cut;
use crate::runtime::AppId;

/// Environment variable whose filter goes before the configuration's.
pub const FILTER_VARIABLE: &str = "PROVOSTD_LOG";

/// Whose doing an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EventSubject {
    App(AppId),
    /// All apps of a user together: whoever attaches anew for each of them has no more events.
    AppsOf(u32),
    /// Processes that attach, or want to.
    User(u32),
    /// A network, as [`crate::places::network_of`] has it.
    Peer(IpAddr),
    /// Records of the audit log of what an app was refused.
    RefusedApp(AppId),
    /// The same of all apps of a user.
    RefusedUser(u32),
}

impl EventSubject {
    /// Events that may come at once.
    fn burst(self) -> f64 {
        BURST * self.shares()
    }

    /// Events in a second, in the long run.
    fn events_per_second(self) -> f64 {
        EVENTS_PER_SECOND * self.shares()
    }

    /// How often it is told at most how many events were withheld. A record of a refusal has the number with it; for other
    /// events it is a line more.
    fn told_every(self) -> Duration {
        match self {
            EventSubject::RefusedApp(_) | EventSubject::RefusedUser(_) => Duration::ZERO,
            _ => TOLD_EVERY,
        }
    }

    /// Shares of one app that it has.
    fn shares(self) -> f64 {
        match self {
            EventSubject::RefusedUser(_) | EventSubject::AppsOf(_) => APPS_OF_USER,
            _ => 1.0,
        }
    }
}

/// Events of one subject that may come at once.
const BURST: f64 = 100.0;
/// Events of one subject in a second, in the long run.
const EVENTS_PER_SECOND: f64 = 20.0;
/// A user has the events, and the refusals, of so many apps.
const APPS_OF_USER: f64 = 4.0;
/// How often the log says at most that events of one subject were left out.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// Subjects that are told apart; the rest share their bounds with each other.
const SUBJECTS_MAX: usize = 4096;

/// The events of one subject.
struct EventShare {
    left: f64,
    at: Instant,
    withheld: u64,
    told_at: Option<Instant>,
}

static SHARES: LazyLock<Mutex<HashMap<Option<EventSubject>, EventShare>>> = LazyLock::new(Mutex::default);

/// Whether an event that this subject has caused may be written. When events were withheld, it is told how many before the
/// next one that may be written, and that once in a second at most.
pub(crate) fn may_log(subject: EventSubject) -> bool {
    let mut shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    let withheld = spend(&mut shares, subject, Instant::now());
    drop(shares);
    if let Some(withheld @ 1..) = withheld {
        tracing::warn!(?subject, withheld, "events were left out: there were too many");
    }
    withheld.is_some()
}

/// Whether an event that an app of a user has caused may be written.
pub(crate) fn may_log_of(app: AppId, user: u32) -> bool {
    may_log(EventSubject::App(app)) && may_log(EventSubject::AppsOf(user))
}

/// Whether a refusal of an app, or of a process that has not attached, may go into the audit log: then how many were left
/// out before.
pub(crate) fn may_record_refusal(user: u32, app: Option<AppId>) -> Option<u64> {
    let mut shares = SHARES.lock().unwrap_or_else(PoisonError::into_inner);
    spend_refusal(&mut shares, user, app, Instant::now())
}

fn spend_refusal(
    shares: &mut HashMap<Option<EventSubject>, EventShare>,
    user: u32,
    app: Option<AppId>,
    now: Instant,
) -> Option<u64> {
    let of_app = match app {
        Some(app) => spend(shares, EventSubject::RefusedApp(app), now)?,
        None => 0,
    };
    let user = EventSubject::RefusedUser(user);
    let of_user = spend(shares, user, now);
    if of_user.is_none()
        && let Some(share) = shares.get_mut(&Some(user))
    {
        share.withheld += of_app;
    }
    Some(of_user? + of_app)
}

/// How many events were withheld before this one, if it may be written and that is to be told.
fn spend(
    shares: &mut HashMap<Option<EventSubject>, EventShare>,
    subject: EventSubject,
    now: Instant,
) -> Option<u64> {
    let key = Some(subject);
    if !shares.contains_key(&key) && shares.len() >= SUBJECTS_MAX {
        // Those who are back at their full burst need not be remembered.
        shares.retain(|of, share| share.withheld > 0 || !share.is_full(*of, now));
    }
    let key = key.filter(|_| shares.contains_key(&key) || shares.len() < SUBJECTS_MAX);
    let share = shares.entry(key).or_insert(EventShare {
        left: subject.burst(),
        at: now,
        withheld: 0,
        told_at: None,
    });
    share.left = share.refilled(subject, now);
    share.at = now;
    if share.left < 1.0 {
        share.withheld += 1;
        return None;
    }
    share.left -= 1.0;
    let since = share.told_at.map(|told| now.saturating_duration_since(told));
    if share.withheld == 0 || since.is_some_and(|since| since < subject.told_every()) {
        return Some(0);
    }
    share.told_at = Some(now);
    Some(std::mem::take(&mut share.withheld))
}

impl EventShare {
    fn refilled(&self, subject: EventSubject, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.left + passed * subject.events_per_second()).min(subject.burst())
    }

    fn is_full(&self, subject: Option<EventSubject>, now: Instant) -> bool {
        subject.is_some_and(|subject| self.refilled(subject, now) >= subject.burst())
    }
}

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{origin}: {problem}")]
pub struct FilterError {
    origin: &'static str,
    problem: String,
}

/// What a part of a filter without `=` may be.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Starts logging for the whole process. A process that logs already keeps its logs.
pub fn start(config: &LogConfig) -> Result<(), FilterError> {
    let builder = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(filter(config)?);
    // An error means that a subscriber is there: a test's, or that of the program around us.
    match config.format {
        LogFormat::Text => {
            let builder = builder.with_ansi(false).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_ok() {
                keep(move |filter| drop(handle.reload(filter)));
            }
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_filter_reloading();
            let handle = builder.reload_handle();
            if builder.try_init().is_ok() {
                keep(move |filter| drop(handle.reload(filter)));
            }
        }
    }
    Ok(())
}

/// Whether the level can be read: the configured one, and the one of the environment that goes before it.
pub fn check(config: &LogConfig) -> Result<(), FilterError> {
    read_filter("log.level", &config.level)?;
    filter(config).map(drop)
}

/// What is wrong with a configured level, if something is.
pub fn level_problem(config: &LogConfig) -> Option<String> {
    let read = read_filter("log.level", &config.level);
    read.err().map(|error| error.problem)
}

/// Logs at the configured level from now on, where the logs were started here. A level that cannot be read changes nothing.
pub fn set_level(config: &LogConfig) {
    if let (Some(set), Ok(filter)) = (SET_FILTER.get(), filter(config)) {
        set(filter);
        *chosen() = None;
    }
}

/// Logs by a filter that an operator has chosen. It does not reach the audit log: who is accounted for does not silence that.
pub(crate) fn choose_level(level: &str) -> Result<(), FilterError> {
    let filter = chosen_filter(level)?;
    if let Some(set) = SET_FILTER.get() {
        set(filter);
    }
    *chosen() = Some(level.to_owned());
    Ok(())
}

/// A filter that an operator chooses, with the audit log beside it. No part may be about some records of that: it would count before
/// what is about all of them.
fn chosen_filter(level: &str) -> Result<EnvFilter, FilterError> {
    const ORIGIN: &str = "the level";
    read_filter(ORIGIN, level)?;
    let is_of_audit = |part: &str| {
        let target = part.split_once('[').map(|(target, _)| target.trim());
        target == Some(AUDIT)
    };
    if level.split(',').any(is_of_audit) {
        let problem =
            format!("\"{level}\" has \"{AUDIT}[\": what is accounted for is always logged; leave it out");
        return Err(FilterError {
            origin: ORIGIN,
            problem,
        });
    }
    read_filter(ORIGIN, &format!("{level},{AUDIT}=info"))
}

/// The filter in effect, and the one that it goes back to.
pub(crate) fn levels(config: &LogConfig) -> (String, String) {
    let variable = std::env::var(FILTER_VARIABLE)
        .ok()
        .filter(|filter| !filter.is_empty());
    let configured = variable.unwrap_or_else(|| config.level.clone());
    (chosen().clone().unwrap_or_else(|| configured.clone()), configured)
}

/// Where the audit log has no file of its own, its records are events of this target, of the level `info`.
const AUDIT: &str = "audit";

/// What an operator has chosen, where that holds.
static CHOSEN: Mutex<Option<String>> = Mutex::new(None);

fn chosen() -> MutexGuard<'static, Option<String>> {
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes the filter of the process's logs.
static SET_FILTER: OnceLock<Box<dyn Fn(EnvFilter) + Send + Sync>> = OnceLock::new();

fn keep(set: impl Fn(EnvFilter) + Send + Sync + 'static) {
    // Logs are started once in a process.
    let _ = SET_FILTER.set(Box::new(set));
}

fn filter(config: &LogConfig) -> Result<EnvFilter, FilterError> {
    match std::env::var(FILTER_VARIABLE) {
        Ok(filter) if !filter.is_empty() => read_filter(FILTER_VARIABLE, &filter),
        _ => read_filter("log.level", &config.level),
    }
}

fn read_filter(origin: &'static str, filter: &str) -> Result<EnvFilter, FilterError> {
    let refused = |why: String| FilterError {
        origin,
        problem: format!(
            "\"{filter}\" is not a log filter ({why}); write a level ({}) or something like \"info,provostd=debug\"",
            LEVELS.join(", ")
        ),
    };
    // The library takes every word for a part of the program: a misspelt level would log nothing.
    if let Some(word) = filter.split(',').map(str::trim).find(|part| !says_a_level(part)) {
        return Err(refused(format!("\"{word}\" is no level")));
    }
    EnvFilter::try_new(filter).map_err(|error| refused(error.to_string()))
}

/// Whether a part of a filter is a level, or says one for a part of the program or a span.
fn says_a_level(part: &str) -> bool {
    let is_level = LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
    is_level || part.contains(['=', '[', ']', '{', '}'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_subject_may_write_so_much_and_the_next_may_too() {
        let mut shares = HashMap::new();
        let now = Instant::now();
        let written = (0..10_000)
            .filter_map(|_| spend(&mut shares, EventSubject::App(1), now))
            .count();
        assert_eq!(written, BURST as usize);
        assert_eq!(spend(&mut shares, EventSubject::App(2), now), Some(0));
        let later = now + Duration::from_secs(1);
        assert_eq!(
            spend(&mut shares, EventSubject::App(1), later),
            Some(10_000 - written as u64)
        );
        for app in 0..3 * SUBJECTS_MAX as u64 {
            spend(&mut shares, EventSubject::App(app), later);
        }
        assert!(shares.len() <= SUBJECTS_MAX + 1);
    }

    #[test]
    fn that_events_were_left_out_is_told_once_in_a_second_and_none_is_forgotten() {
        let (mut shares, begin) = (HashMap::new(), Instant::now());
        let (mut tried, mut written, mut told, mut lines) = (0, 0, 0, 0);
        for ms in 0..=10_000 {
            let now = begin + Duration::from_millis(ms);
            tried += 1;
            let Some(withheld) = spend(&mut shares, EventSubject::App(1), now) else {
                continue;
            };
            written += 1;
            told += withheld;
            lines += u32::from(withheld > 0);
        }
        assert!((9..=11).contains(&lines), "{lines}");
        let untold = shares[&Some(EventSubject::App(1))].withheld;
        assert_eq!(written + told + untold, tried);
    }

    #[test]
    fn whoever_attaches_anew_for_each_event_has_no_more_of_them() {
        const APPS: u64 = 1000;
        let written = (0..APPS).filter(|app| may_log_of(u64::MAX - app, 4_000_000_001));
        let written = written.count() as f64;
        let burst = EventSubject::AppsOf(0).burst();
        assert!(written >= burst && written < APPS as f64, "{written} of {APPS}");
    }

    #[test]
    fn refusals_of_an_app_are_bounded_and_so_are_those_of_all_apps_of_a_user() {
        let mut shares = HashMap::new();
        let now = Instant::now();
        let one = (0..1000)
            .filter_map(|_| spend_refusal(&mut shares, 7, Some(1), now))
            .count();
        assert_eq!(one, BURST as usize);
        // Whoever attaches anew each time is another app each time, and the same user.
        let many = (2..1000)
            .filter_map(|app| spend_refusal(&mut shares, 7, Some(app), now))
            .count();
        assert_eq!(one + many, (BURST * APPS_OF_USER) as usize);
        assert_eq!(spend_refusal(&mut shares, 8, None, now), Some(0));
        // None is forgotten: the next record says how many were left out.
        let later = now + Duration::from_secs(3600);
        let told: u64 = [Some(1), Some(2)]
            .into_iter()
            .filter_map(|app| spend_refusal(&mut shares, 7, app, later))
            .sum();
        assert_eq!(told as usize, 1000 + 998 - one - many);
    }

    /// What an event of the audit log is with such a filter: whether it is written.
    fn is_audited(filter: EnvFilter) -> bool {
        #[derive(Clone, Default)]
        struct WrittenLog(std::sync::Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for WrittenLog {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let written = WrittenLog::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || tracing::info!(target: "audit", "{}", "a record"));
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        text.contains("a record")
    }

    #[test]
    fn no_filter_that_an_operator_chooses_silences_the_audit_log() {
        for level in [
            "off",
            "error,provostd=debug",
            "[{message}]=off",
            "aud[{message}]=off",
            "audit::log=off",
            "info,audit=off",
        ] {
            let filter = chosen_filter(level).unwrap();
            assert!(is_audited(filter), "{level}");
        }
        for level in ["info,audit[{message}]=off", "info, audit[{message,a}]=off"] {
            let taken = chosen_filter(level);
            assert!(taken.is_err() || taken.is_ok_and(is_audited), "{level}");
        }
        let error = chosen_filter("audit[{message}]=off").unwrap_err().to_string();
        assert!(error.contains("leave it out"), "{error}");
    }

    #[test]
    fn levels_and_filters_are_taken_and_nonsense_is_named() {
        for level in ["warn", "info,provostd=debug"] {
            filter(&LogConfig {
                level: level.into(),
                format: LogFormat::Text,
            })
            .unwrap();
        }
        for level in ["info,=,=", "inof", "info,debgu", "info,provostd=debgu", ""] {
            let error = filter(&LogConfig {
                level: level.into(),
                format: LogFormat::Text,
            })
            .unwrap_err();
            assert!(error.to_string().contains("log.level"), "{error}");
        }
    }
}
