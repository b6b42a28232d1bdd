//! Names of users, read again when the local user database has changed. (Users from elsewhere have their number alone:
//! asking for their names can take as long as a directory server does.)

use std::collections::HashMap;
use std::time::SystemTime;

/// The local user database.
const USERS_FILE: &str = "/etc/passwd";
/// As much of it is read, in bytes.
const USERS_BYTES_MAX: u64 = 1 << 20;
/// Names that are kept, at most.
const NAMES_MAX: usize = 64;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct UserNames {
    changed_at: Option<SystemTime>,
    names: HashMap<u32, String>,
}

impl UserNames {
    /// The name of a user; empty for one that the database does not have.
    pub(crate) fn name(&mut self, uid: u32) -> String {
        let changed_at = std::fs::metadata(USERS_FILE).and_then(|file| file.modified());
        self.name_at(changed_at.ok(), uid, read_users)
    }

    fn name_at(&mut self, changed_at: Option<SystemTime>, uid: u32, read: impl Fn() -> String) -> String {
        if changed_at.is_none() || self.changed_at != changed_at || self.names.len() >= NAMES_MAX {
            self.names.clear();
            self.changed_at = changed_at;
        }
        let name = self
            .names
            .entry(uid)
            .or_insert_with(|| find_user(&read(), uid).unwrap_or_default());
        name.clone()
    }
}

fn read_users() -> String {
    use std::io::Read;
    let mut users = String::new();
    if let Ok(file) = std::fs::File::open(USERS_FILE) {
        // What cannot be read has no names.
        let _ = file.take(USERS_BYTES_MAX).read_to_string(&mut users);
    }
    users
}

fn find_user(users: &str, uid: u32) -> Option<String> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let number: u32 = fields.nth(1)?.parse().ok()?;
        (number == uid).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn users_are_found_by_number() {
        let users = "root:x:0:0:root:/:/bin/sh\nbroken\nann:x:1000:1000::/:/bin/sh\n";
        assert_eq!(find_user(users, 1000).as_deref(), Some("ann"));
        assert_eq!(find_user(users, 1), None);
    }

    #[test]
    fn the_user_database_is_read_again_when_it_has_changed() {
        let text = RefCell::new("ann:x:1000:1000::/:/bin/sh\n");
        let reads = Cell::new(0);
        let read = || {
            reads.set(reads.get() + 1);
            text.borrow().to_string()
        };
        let mut users = UserNames::default();
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(users.name_at(at(1), 1000, read), "ann");
        text.replace("eve:x:1000:1000::/:/bin/sh\n");
        assert_eq!(users.name_at(at(1), 1000, read), "ann");
        assert_eq!(reads.get(), 1);
        assert_eq!(users.name_at(at(2), 1000, read), "eve");
        assert_eq!(users.name_at(at(2), 7, read), "");
        // A database of unknown age is not relied on.
        text.replace("bob:x:1000:1000::/:/bin/sh\n");
        assert_eq!(users.name_at(None, 1000, read), "bob");
    }
}
