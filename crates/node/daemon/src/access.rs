//! Who may attach: the kernel's word about a process (`SO_PEERCRED`, `SO_PEERGROUPS`) against the configuration.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::config::{ControlConfig, GroupAccount, UserAccount};

/// The user of a client that comes over TCP, of which the kernel says nothing: no process has it.
pub const UNKNOWN_USER: u32 = u32::MAX;

/// What the kernel says of a process at the other end of a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
    /// Its supplementary groups, by number.
    pub groups: Arc<[u32]>,
}

impl Credentials {
    /// Those of a process, with the supplementary groups that the kernel noted when it connected.
    pub(crate) fn at_socket(socket: impl AsFd, pid: i32, uid: u32, gid: u32) -> io::Result<Credentials> {
        let groups = provost_processes::peer_groups(socket)?.into();
        Ok(Credentials {
            pid,
            uid,
            gid,
            groups,
        })
    }

    /// Those of a client of which the kernel says nothing.
    pub(crate) fn unknown() -> Credentials {
        Credentials {
            pid: 0,
            uid: UNKNOWN_USER,
            gid: UNKNOWN_USER,
            groups: Arc::from([]),
        }
    }

    /// Whether it is one of these users, or a member of one of these groups.
    #[must_use]
    pub fn is_listed(&self, users: &[UserAccount], groups: &[GroupAccount]) -> bool {
        let is_member = |group: &GroupAccount| {
            group.is(self.gid) || self.groups.iter().any(|member_of| group.is(*member_of))
        };
        users.iter().any(|user| user.is(self.uid)) || groups.iter().any(is_member)
    }
}

/// The process may not attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "process {pid} of user {uid}, group {gid} may not attach: add the user to control.allow_uids or the group to \
     control.allow_gids"
)]
pub struct Denied {
    pid: i32,
    uid: u32,
    gid: u32,
}

/// The user that this process runs as.
#[must_use]
pub fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a process may attach to a service that runs as `own_uid`.
pub fn check(config: &ControlConfig, own_uid: u32, peer: &Credentials) -> Result<(), Denied> {
    let &Credentials { pid, uid, gid, .. } = peer;
    let allowed = config.allow_any_user
        || uid == 0
        || uid == own_uid
        || peer.is_listed(&config.allow_uids, &config.allow_gids);
    if allowed {
        Ok(())
    } else {
        Err(Denied { pid, uid, gid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32) -> Credentials {
        Credentials {
            pid: 1,
            uid,
            gid,
            groups: [70, 71].into(),
        }
    }

    #[test]
    fn root_and_the_own_user_always_may() {
        let config = ControlConfig::default();
        assert!(check(&config, 990, &peer(0, 0)).is_ok());
        assert!(check(&config, 990, &peer(990, 1)).is_ok());
        assert!(check(&config, 990, &peer(1000, 1000)).is_err());
    }

    #[test]
    fn others_may_by_user_group_or_wholesale() {
        let by_user = ControlConfig {
            allow_uids: vec![1000.into()],
            ..Default::default()
        };
        assert!(check(&by_user, 990, &peer(1000, 5)).is_ok());
        assert!(check(&by_user, 990, &peer(1001, 1000)).is_err());
        let by_group = ControlConfig {
            allow_gids: vec![7.into()],
            ..Default::default()
        };
        assert!(check(&by_group, 990, &peer(1001, 7)).is_ok());
        let by_supplementary_group = ControlConfig {
            allow_gids: vec![71.into()],
            ..Default::default()
        };
        assert!(check(&by_supplementary_group, 990, &peer(1001, 8)).is_ok());
        let any = ControlConfig {
            allow_any_user: true,
            ..Default::default()
        };
        assert!(check(&any, 990, &peer(1001, 8)).is_ok());
    }

    #[test]
    fn a_denial_says_who_and_what_to_do() {
        let denied = check(&ControlConfig::default(), 990, &peer(1001, 8))
            .unwrap_err()
            .to_string();
        assert!(
            denied.contains("user 1001") && denied.contains("control.allow_uids"),
            "{denied}"
        );
    }
}
