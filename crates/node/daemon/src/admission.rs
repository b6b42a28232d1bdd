//! Whether there is room for one more app: of the node, of its user, of its `[[app]]`. Apps come by the control socket, and as
//! clients that speak gRPC.

use provost_wire::Code;

use crate::access::UNKNOWN_USER;
use crate::app_registry::AppRegistry;
use crate::config::{AppTable, Config, LimitsConfig};
use crate::refusal::Refusal;

/// Checks that there is room for an app of a user.
pub(crate) fn check_room(limits: &LimitsConfig, apps: &AppRegistry, user: u32) -> Result<(), Refusal> {
    let attached = apps.count();
    if attached >= limits.apps {
        let message = format!("{attached} apps are attached, as many as limits.apps allows");
        return Err(Refusal::new(Code::ResourceExhausted, message));
    }
    let of_user = apps.count_of_user(user);
    if of_user >= limits.apps_per_user {
        let whose = match user {
            UNKNOWN_USER => "clients over TCP".to_owned(),
            user => format!("apps of user {user}"),
        };
        let message = format!("{of_user} {whose} are attached, as many as limits.apps_per_user allows");
        return Err(Refusal::new(Code::ResourceExhausted, message));
    }
    Ok(())
}

/// Checks that as many apps of a table may be attached.
pub(crate) fn check_attachments(live: &Config, apps: &AppRegistry, table: &AppTable) -> Result<(), Refusal> {
    let Some(most) = table.attachments else {
        return Ok(());
    };
    let of_table = |name: &str| live.app_table(name).is_some_and(|other| other.name == table.name);
    let apps = apps.all();
    let attached = apps.values().filter(|app| of_table(app.name())).count();
    if attached < most {
        return Ok(());
    }
    let message = format!(
        "{attached} apps of [[app]] \"{}\" are attached, as many as its attachments = {most} allow",
        table.name
    );
    Err(Refusal::new(Code::ResourceExhausted, message))
}
