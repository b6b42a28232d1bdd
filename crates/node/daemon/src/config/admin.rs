//! `[admin]`: the socket of the admin API, and who may do what there.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{GroupAccount, UserAccount};

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// Whether there is an admin API at all.
    pub enabled: bool,
    /// Path of its Unix socket; none: beside the control socket (see [`AdminConfig::socket_beside`]).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Its permissions, in octal.
    pub mode: String,
    /// Users who may look. Root and the service's own user may do everything.
    pub view_uids: Vec<UserAccount>,
    /// Groups whose members may look.
    pub view_gids: Vec<GroupAccount>,
    /// Users who may also change policies, engines and configuration.
    pub operate_uids: Vec<UserAccount>,
    /// Groups whose members may.
    pub operate_gids: Vec<GroupAccount>,
    /// Users who may also load code and replace the daemon.
    pub admin_uids: Vec<UserAccount>,
    /// Groups whose members may.
    pub admin_gids: Vec<GroupAccount>,
    /// File for policies that are not what the configuration says; none: beside the control socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policies_file: Option<PathBuf>,
    /// Whether a start goes on with what that file has; else it says what was lost.
    pub persist: bool,
}

impl Default for AdminConfig {
    fn default() -> AdminConfig {
        AdminConfig {
            enabled: true,
            socket: None,
            mode: "0660".into(),
            view_uids: Vec::new(),
            view_gids: Vec::new(),
            operate_uids: Vec::new(),
            operate_gids: Vec::new(),
            admin_uids: Vec::new(),
            admin_gids: Vec::new(),
            policies_file: None,
            persist: false,
        }
    }
}

impl AdminConfig {
    /// Where policies are kept that operators have changed: as configured, else `NAME.policies.toml` beside the control
    /// socket `NAME.sock`.
    #[must_use]
    pub fn policies_file_beside(&self, control: &Path) -> PathBuf {
        let beside = || control.with_extension("policies.toml");
        self.policies_file.clone().unwrap_or_else(beside)
    }

    /// Where the socket is: as configured, else in the control socket's directory, `admin.sock` beside
    /// `provostd.sock` and `NAME.admin.sock` beside any other `NAME.sock`, so that nodes that share a directory do not
    /// meet.
    #[must_use]
    pub fn socket_beside(&self, control_socket: &Path) -> PathBuf {
        if let Some(socket) = &self.socket {
            return socket.clone();
        }
        let stem = control_socket.file_stem().unwrap_or_default();
        let mut name = std::ffi::OsString::new();
        if stem != "provostd" {
            name.push(stem);
            name.push(".");
        }
        name.push("admin.sock");
        control_socket.with_file_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_beside_the_control_socket_unless_it_is_named() {
        let default = AdminConfig::default();
        for (control, expected) in [
            ("/run/provost/provostd.sock", "/run/provost/admin.sock"),
            ("/tmp/a.sock", "/tmp/a.admin.sock"),
            ("b", "b.admin.sock"),
        ] {
            assert_eq!(default.socket_beside(Path::new(control)), Path::new(expected));
        }
        let named = AdminConfig {
            socket: Some("/tmp/x".into()),
            ..default
        };
        assert_eq!(named.socket_beside(Path::new("/tmp/a.sock")), Path::new("/tmp/x"));
    }
}
