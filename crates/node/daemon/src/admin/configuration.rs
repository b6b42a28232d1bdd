//! The configuration: what a reload would change, doing it, and writing back.

use provost_admin::v1;
use tonic::Status;

use crate::config::{ConfigChange, TakesEffect};
use crate::log;
use crate::plurals::counted;
use crate::reload::{self, ReloadError};

use super::changes;
use super::desk::Desk;

/// What a reload would change.
pub(crate) async fn diff(
    desk: &Desk,
    asked: v1::DiffConfigRequest,
) -> Result<v1::DiffConfigResponse, Status> {
    let files = (!asked.files.is_empty()).then(|| asked.files.into_iter().collect());
    let changes = reload::preview(&desk.plane, files).await;
    let changes = changes.map_err(|error| refusal(&error))?;
    let change = |change: ConfigChange| v1::ConfigChange {
        key: change.key,
        before: change.before,
        after: change.after,
        live: change.takes_effect == TakesEffect::Live,
    };
    Ok(v1::DiffConfigResponse {
        changes: changes.into_iter().map(change).collect(),
    })
}

/// Reads the configuration again.
pub(crate) async fn reload(desk: &Desk) -> Result<v1::Change, Status> {
    let reloaded = reload::reload(&desk.plane).await;
    let reloaded = reloaded.map_err(|error| refusal(&error))?;
    let lines = |value: fn(&ConfigChange) -> &str| -> String {
        let set = reloaded.changes.iter().filter(|change| !value(change).is_empty());
        set.map(|change| format!("{} = {}\n", change.key, value(change)))
            .collect()
    };
    let is_waiting = |change: &&ConfigChange| change.takes_effect == TakesEffect::Restarted;
    let waiting = reloaded.changes.iter().filter(is_waiting);
    let waiting: Vec<&str> = waiting.map(|change| change.key.as_str()).collect();
    let differ = differing(reloaded.changes.len(), &waiting);
    let summary = format!("read the configuration again: {differ}");
    let (before, after) = (lines(|change| &change.before), lines(|change| &change.after));
    Ok(v1::Change {
        summary,
        before,
        after,
        warnings: reloaded.warnings,
        ..changes::answer(reloaded.policies)
    })
}

/// Keys that wait for a restart and are named, at most; the log has all.
const WAITING_NAMED_MAX: usize = 8;

/// How many keys differ, and which of them wait for a restart.
fn differing(keys: usize, waiting: &[&str]) -> String {
    let differ = counted(keys, "key differs", "keys differ");
    if waiting.is_empty() {
        return differ;
    }
    let wait = counted(waiting.len(), "waits", "wait");
    let mut named = waiting[..waiting.len().min(WAITING_NAMED_MAX)].join(", ");
    if waiting.len() > WAITING_NAMED_MAX {
        named += ", …";
    }
    format!("{differ}, of which {wait} for a restart: {named}")
}

/// The configuration in effect.
pub(crate) fn show(desk: &Desk) -> v1::GetConfigResponse {
    v1::GetConfigResponse {
        toml: reload::effective_toml(&desk.plane),
    }
}

/// Writes what was changed at run time back.
pub(crate) async fn write(desk: &Desk) -> Result<v1::WriteConfigResponse, Status> {
    let path = reload::write_back(&desk.plane).await;
    let path = path.map_err(|error| refusal(&error))?;
    Ok(v1::WriteConfigResponse {
        path: path.display().to_string(),
    })
}

/// What the node writes to its log.
pub(crate) fn show_log(desk: &Desk) -> v1::Log {
    let (level, configured) = log::levels(&desk.plane.config.live().log);
    v1::Log { level, configured }
}

/// Has the node log by another filter, or by the configured one.
pub(crate) fn set_log(desk: &Desk, asked: &v1::SetLogRequest) -> Result<v1::Change, Status> {
    let before = show_log(desk).level;
    if asked.level.is_empty() {
        log::set_level(&desk.plane.config.live().log);
    } else {
        log::choose_level(&asked.level).map_err(|error| Status::invalid_argument(error.to_string()))?;
    }
    let after = show_log(desk).level;
    Ok(v1::Change {
        summary: format!("logs \"{after}\" instead of \"{before}\""),
        before,
        after,
        ..v1::Change::default()
    })
}

fn refusal(error: &ReloadError) -> Status {
    let message = error.to_string();
    match error {
        ReloadError::Config(_) => Status::invalid_argument(message),
        ReloadError::Policy(error) => changes::refusal(error),
        ReloadError::Grpc(_) | ReloadError::GrpcTls(_) | ReloadError::NoFiles | ReloadError::Write { .. } => {
            Status::failed_precondition(message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_wait_for_a_restart_are_named() {
        assert_eq!(differing(0, &[]), "0 keys differ");
        assert_eq!(differing(1, &[]), "1 key differs");
        let some = differing(3, &["admin.mode", "listener"]);
        assert_eq!(
            some,
            "3 keys differ, of which 2 wait for a restart: admin.mode, listener"
        );
        let many = differing(9, &["a"; 9]);
        assert!(
            many.ends_with("9 wait for a restart: a, a, a, a, a, a, a, a, …"),
            "{many}"
        );
    }
}
