//! Names of users, read again when the local user database has changed. (Users from elsewhere have their number alone:
//! asking for their names can take as long as a directory server does.)

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The local user database.
const USERS_FILE: &str = "/etc/passwd";
/// As much of it is read, in bytes.
const USERS_BYTES_MAX: u64 = 1 << 20;
/// Names that are kept, at most.
const NAMES_MAX: usize = 64;
/// For how long the database is taken for what it was: a hot restart asks for the names of a thousand clients within milliseconds.
const LOOKED_AT_FOR: Duration = Duration::from_millis(100);

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct UserNames {
    changed_at: Option<SystemTime>,
    looked_at: Option<Instant>,
    names: HashMap<u32, Arc<str>>,
}

impl UserNames {
    /// The name of a user; empty for one that the database does not have.
    pub(crate) fn name(&mut self, uid: u32) -> Arc<str> {
        self.name_now(Instant::now(), uid, file_age, read_users)
    }

    fn name_now(
        &mut self,
        now: Instant,
        uid: u32,
        age: impl Fn() -> Option<SystemTime>,
        read: impl Fn() -> String,
    ) -> Arc<str> {
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < LOOKED_AT_FOR;
        if !self.looked_at.is_some_and(is_fresh) || !self.names.contains_key(&uid) {
            let changed_at = age();
            if changed_at.is_none() || self.changed_at != changed_at || self.names.len() >= NAMES_MAX {
                self.names.clear();
                self.changed_at = changed_at;
            }
            self.looked_at = changed_at.map(|_| now);
        }
        let name = self.names.entry(uid);
        let name = name.or_insert_with(|| find_user(&read(), uid).unwrap_or_default().into());
        Arc::clone(name)
    }
}

fn file_age() -> Option<SystemTime> {
    let file = std::fs::metadata(USERS_FILE).and_then(|file| file.modified());
    file.ok()
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
    fn the_user_database_is_looked_at_now_and_then_and_read_again_when_it_has_changed() {
        let text = RefCell::new("ann:x:1000:1000::/:/bin/sh\n");
        let (looks, reads) = (Cell::new(0), Cell::new(0));
        let changed = Cell::new(Some(UNIX_EPOCH));
        let age = || {
            looks.set(looks.get() + 1);
            changed.get()
        };
        let read = || {
            reads.set(reads.get() + 1);
            text.borrow().to_string()
        };
        let mut users = UserNames::default();
        let began = Instant::now();
        let mut name = |milliseconds, uid| {
            let now = began + Duration::from_millis(milliseconds);
            users.name_now(now, uid, age, read).to_string()
        };
        for _ in 0..1_000 {
            assert_eq!(name(0, 1000), "ann");
        }
        assert_eq!((looks.get(), reads.get()), (1, 1));
        text.replace("eve:x:1000:1000::/:/bin/sh\n");
        changed.set(Some(UNIX_EPOCH + Duration::from_secs(1)));
        assert_eq!(name(99, 1000), "ann");
        assert_eq!(name(100, 1000), "eve");
        assert_eq!(name(100, 7), "");
        // It has the name of nobody else: it is looked at, and has not changed.
        assert_eq!((looks.get(), reads.get()), (3, 3));
        // A database of unknown age is not relied on.
        changed.set(None);
        for named in ["bob", "joe"] {
            let line = format!("{named}:x:1000:1000::/:/bin/sh\n");
            text.replace(line.leak());
            assert_eq!(name(200, 1000), named);
        }
    }
}
