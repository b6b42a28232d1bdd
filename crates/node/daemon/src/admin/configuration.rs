//! The configuration: what a reload would change, doing it, and writing back.

use provost_admin::v1;
use tonic::Status;

use crate::config::{ConfigChange, TakesEffect};
use crate::log;
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
    let waiting = |change: &&ConfigChange| change.takes_effect == TakesEffect::Restarted;
    let summary = format!(
        "read the configuration again: {}",
        differing(
            reloaded.changes.len(),
            reloaded.changes.iter().filter(waiting).count()
        )
    );
    let (before, after) = (lines(|change| &change.before), lines(|change| &change.after));
    Ok(v1::Change {
        summary,
        before,
        after,
        warnings: reloaded.warnings,
        ..changes::answer(reloaded.policies)
    })
}

/// How many keys differ, and how many of them wait for a restart.
fn differing(keys: usize, waiting: usize) -> String {
    let differ = match keys {
        1 => "1 key differs".to_owned(),
        keys => format!("{keys} keys differ"),
    };
    match waiting {
        0 => differ,
        1 => format!("{differ}, of which 1 waits for a restart"),
        waiting => format!("{differ}, of which {waiting} wait for a restart"),
    }
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
