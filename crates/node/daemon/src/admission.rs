//! Whether there is room for one more app: of the node, of its user, of its `[[app]]`. Apps come by the control socket, and as
//! clients that speak gRPC.

use crate::access::UNKNOWN_USER;
use crate::app_registry::AppRegistry;
use crate::config::AppTable;
use crate::configuration::Configuration;
use crate::plurals::counted;
use crate::refusal::Refusal;

/// Checks that there is room for an app of a user.
pub(crate) fn check_room(config: &Configuration, apps: &AppRegistry, user: u32) -> Result<(), Refusal> {
    let limits = &config.live().limits;
    let attached = apps.count();
    if attached >= limits.apps {
        let attached = counted(attached, "app is", "apps are");
        let message = format!("{attached} attached, as many as limits.apps allows");
        return Err(config.over_limit("limits.apps", message));
    }
    let of_user = apps.count_of_user(user);
    if of_user >= limits.apps_per_user {
        let attached = match user {
            UNKNOWN_USER => counted(of_user, "client over TCP is", "clients over TCP are"),
            user => counted(
                of_user,
                &format!("app of user {user} is"),
                &format!("apps of user {user} are"),
            ),
        };
        let message = format!("{attached} attached, as many as limits.apps_per_user allows");
        return Err(config.over_limit("limits.apps_per_user", message));
    }
    Ok(())
}

/// Checks that as many apps of a table may be attached.
pub(crate) fn check_attachments(
    config: &Configuration,
    apps: &AppRegistry,
    table: &AppTable,
) -> Result<(), Refusal> {
    let Some(most) = table.attachments else {
        return Ok(());
    };
    let live = config.live();
    let attached = apps.count_of_table(&live, &table.name);
    if attached < most {
        return Ok(());
    }
    let name = &table.name;
    let attached = counted(
        attached,
        &format!("app of [[app]] \"{name}\" is"),
        &format!("apps of [[app]] \"{name}\" are"),
    );
    let message = format!("{attached} attached, as many as its attachments = {most} allow");
    Err(config.over_limit(&live.key_of_app_table(table, "attachments"), message))
}
