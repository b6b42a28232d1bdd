//! Who may do what: the kernel's word about a process (`SO_PEERCRED`, `SO_PEERGROUPS`) against `[admin]`.

use std::fmt;

use crate::access::Credentials;

use crate::config::{AdminConfig, GroupAccount, UserAccount};

/// What somebody may do. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    None,
    View,
    /// Change policies, versions of engines, configuration, schemas.
    Operate,
    /// Load code, replace the daemon.
    Admin,
}

impl Role {
    /// As configurations and the audit log name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Role::None => "none",
            Role::View => "view",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }

    /// The role of a process, at a service that runs as `own_uid`.
    #[must_use]
    pub fn of(config: &AdminConfig, own_uid: u32, peer: &Credentials) -> Role {
        let listed = |users: &[UserAccount], groups: &[GroupAccount]| peer.is_listed(users, groups);
        if peer.uid == 0 || peer.uid == own_uid || listed(&config.admin_uids, &config.admin_gids) {
            Role::Admin
        } else if listed(&config.operate_uids, &config.operate_gids) {
            Role::Operate
        } else if listed(&config.view_uids, &config.view_gids) {
            Role::View
        } else {
            Role::None
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call needs a role that the caller does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{method} needs the role \"{needed}\"; process {pid} of user {uid}, group {gid} has \"{has}\": add the user to \
     admin.{needed}_uids or the group to admin.{needed}_gids in the node's configuration",
    pid = peer.pid, uid = peer.uid, gid = peer.gid
)]
pub struct Denied {
    pub method: &'static str,
    pub needed: Role,
    /// What the caller has.
    pub has: Role,
    /// Who the caller is.
    pub peer: Credentials,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32) -> Credentials {
        Credentials {
            pid: 7,
            uid,
            gid,
            groups: [70].into(),
        }
    }

    fn role(config: &AdminConfig, uid: u32, gid: u32) -> Role {
        Role::of(config, 990, &peer(uid, gid))
    }

    #[test]
    fn root_and_the_services_own_user_may_everything_and_others_nothing() {
        let config = AdminConfig::default();
        assert_eq!(role(&config, 0, 0), Role::Admin);
        assert_eq!(role(&config, 990, 5), Role::Admin);
        assert_eq!(role(&config, 1000, 990), Role::None);
    }

    #[test]
    fn lists_give_roles_and_the_highest_counts() {
        let config = AdminConfig {
            view_gids: vec![7.into()],
            operate_uids: vec![1000.into()],
            admin_gids: vec![8.into(), 70.into()],
            ..AdminConfig::default()
        };
        assert_eq!(role(&config, 1001, 9), Role::Admin);
        let config = AdminConfig {
            admin_gids: vec![8.into()],
            view_gids: vec![7.into()],
            operate_uids: vec![1000.into()],
            ..AdminConfig::default()
        };
        assert_eq!(role(&config, 1001, 7), Role::View);
        assert_eq!(role(&config, 1000, 7), Role::Operate);
        assert_eq!(role(&config, 1000, 8), Role::Admin);
        assert_eq!(role(&config, 7, 1000), Role::None);
        assert!(Role::View < Role::Operate && Role::Operate < Role::Admin);
    }

    #[test]
    fn a_denial_says_which_role_and_which_key() {
        let denied = Denied {
            method: "AttachPolicy",
            needed: Role::Operate,
            has: Role::View,
            peer: peer(1001, 8),
        };
        let text = denied.to_string();
        for word in [
            "AttachPolicy",
            "\"operate\"",
            "user 1001",
            "admin.operate_uids",
            "\"view\"",
        ] {
            assert!(text.contains(word), "{text}");
        }
    }
}
