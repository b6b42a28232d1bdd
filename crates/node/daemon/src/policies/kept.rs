//! Policies as operators have made them at run time, in a file while they are not what the configuration says. So a start after
//! a kill can tell what was lost, or go on with it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::Attachment;

/// Names under which files are set aside, at most.
const ASIDE_MAX: usize = 100;

/// What the file has.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct KeptPolicies {
    /// What the configuration said meanwhile.
    pub(crate) configured: Vec<Attachment>,
    /// What was attached, in the order in which a call meets it.
    pub(crate) policy: Vec<Attachment>,
}

impl KeptPolicies {
    /// What the process before has kept, if anything.
    pub(crate) fn read(path: &Path) -> io::Result<Option<KeptPolicies>> {
        let mut file = match opened(path, std::fs::OpenOptions::new().read(true)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        // Where others may write into the folder, what they put there is not what operators have done.
        let (owner, own) = (file.metadata()?.uid(), rustix::process::geteuid().as_raw());
        if owner != own {
            let problem = format!("it belongs to user {owner}, and not to this service's, {own}: remove it");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let damaged = |problem: String| io::Error::new(io::ErrorKind::InvalidData, problem);
        if text.trim().is_empty() {
            return Err(damaged("it is empty".to_owned()));
        }
        let kept = toml::from_str(&text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = 1 + before.unwrap_or_default().matches('\n').count();
            damaged(format!("line {line}: {}", error.message()))
        });
        kept.map(Some)
    }

    /// Writes it, whole or not at all, also where the power fails; nothing is left of what is as configured.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        if self.configured == self.policy {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
                Ok(()) => sync_folder(path),
            };
        }
        // Attachments came from TOML, or have passed through it: they can be written.
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let fresh = PathBuf::from(format!("{}.new", path.display()));
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = opened(&fresh, options)?;
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| std::fs::rename(&fresh, path));
        if let Err(error) = written {
            // Half of it is of no use to anybody.
            let _ = std::fs::remove_file(&fresh);
            return Err(error);
        }
        sync_folder(path)
    }

    /// What a configuration undoes of what was done at run time: a line for each way.
    pub(crate) fn undone_by(&self, next: &[Attachment]) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |what: &str, names: Vec<&str>, why: &str| {
            if !names.is_empty() {
                lines.push(format!("{what}: {} ({why} at run time)", names.join(", ")));
            }
        };
        let (configured, policy) = (&self.configured, &self.policy);
        let attached = policy
            .iter()
            .filter(|one| named(configured, &one.name).is_none() && named(next, &one.name).is_none());
        add("detached", names(attached), "attached");
        let detached = configured
            .iter()
            .filter(|one| named(policy, &one.name).is_none() && named(next, &one.name).is_some());
        add("attached again", names(detached), "detached");
        let changed = policy.iter().filter(|one| {
            let was_changed = named(configured, &one.name).is_none_or(|before| before != *one);
            was_changed && named(next, &one.name).is_some_and(|after| after != *one)
        });
        add("as configured again", names(changed), "changed");
        lines
    }

    /// What was done at run time, such as `attached "limit", detached "log"`; empty if nothing.
    pub(crate) fn differences(&self) -> String {
        let attached = self
            .policy
            .iter()
            .filter_map(|now| match named(&self.configured, &now.name) {
                None => Some(format!("attached \"{}\"", now.name)),
                Some(before) if before != now => Some(format!("changed \"{}\"", now.name)),
                Some(_) => None,
            });
        let is_gone = |before: &&Attachment| named(&self.policy, &before.name).is_none();
        let detached = self.configured.iter().filter(is_gone);
        let detached = detached.map(|before| format!("detached \"{}\"", before.name));
        let differences: Vec<String> = attached.chain(detached).collect();
        if differences.is_empty() && self.policy != self.configured {
            return "put in another order".to_owned();
        }
        differences.join(", ")
    }
}

fn named<'a>(list: &'a [Attachment], name: &str) -> Option<&'a Attachment> {
    list.iter().find(|one| one.name == name)
}

fn names<'a>(attachments: impl Iterator<Item = &'a Attachment>) -> Vec<&'a str> {
    attachments.map(|one| one.name.as_str()).collect()
}

/// Gives a file the name `PATH.WORD` as well, or `PATH.WORD.2` and so on where that is taken, and says which: whatever takes its place,
/// what it has is there still. Where a file has one name only, it loses the one that it had.
pub(crate) fn set_aside(path: &Path, word: &str) -> io::Result<PathBuf> {
    for number in 1..=ASIDE_MAX {
        let aside = match number {
            1 => format!("{}.{word}", path.display()),
            _ => format!("{}.{word}.{number}", path.display()),
        };
        let aside = PathBuf::from(aside);
        match std::fs::hard_link(path, &aside) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(_) => std::fs::rename(path, &aside)?,
            Ok(()) => {}
        }
        sync_folder(path)?;
        return Ok(aside);
    }
    let problem = format!(
        "it cannot be kept aside: {0}.{word} to {0}.{word}.{ASIDE_MAX} are taken; remove those that nobody needs",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::AlreadyExists, problem))
}

/// Has what was done to the names of a file's folder outlive a power failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// The file itself, and not one that a link leads to. A pipe is not waited for.
pub(super) fn opened(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    options.custom_flags(flags.bits() as i32).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_kinds(kinds: &[&str]) -> Vec<Attachment> {
        kinds.iter().map(|kind| Attachment::of_kind(kind)).collect()
    }

    fn kept(configured: &[&str], policy: &[&str]) -> KeptPolicies {
        KeptPolicies {
            configured: of_kinds(configured),
            policy: of_kinds(policy),
        }
    }

    #[test]
    fn what_was_done_at_run_time_is_told() {
        assert_eq!(kept(&["a"], &["a"]).differences(), "");
        assert_eq!(
            kept(&["a", "b"], &["b", "c"]).differences(),
            "attached \"c\", detached \"a\""
        );
        assert_eq!(
            kept(&["a", "b"], &["b", "a"]).differences(),
            "put in another order"
        );
        let mut changed = kept(&["a"], &["a"]);
        changed.policy[0].version = Some(2);
        assert_eq!(changed.differences(), "changed \"a\"");
    }

    #[test]
    fn a_file_is_there_while_something_differs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.toml");
        assert_eq!(KeptPolicies::read(&path).unwrap(), None);
        let mut differs = kept(&["a"], &["a", "b"]);
        let config = "rate = 1\nnested = { text = \"x\" }\n";
        differs.policy[1].config = toml::from_str(config).unwrap();
        differs.write(&path).unwrap();
        assert_eq!(KeptPolicies::read(&path).unwrap(), Some(differs));
        kept(&["a"], &["a"]).write(&path).unwrap();
        kept(&["a"], &["a"]).write(&path).unwrap();
        assert!(!path.exists());
        // A link that somebody has put there leads nowhere.
        let victim = directory.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        let fresh = directory.path().join("policies.toml.new");
        std::os::unix::fs::symlink(&victim, &fresh).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        assert!(kept(&[], &["a"]).write(&path).is_err());
        assert!(KeptPolicies::read(&path).is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "policy = 7").unwrap();
        assert_eq!(
            KeptPolicies::read(&path).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }

    #[test]
    fn a_damaged_file_is_said_to_be_so_and_one_as_written_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.toml");
        for (configured, policy) in [(&[][..], &["a"][..]), (&["a"], &[]), (&["a"], &["b", "c"])] {
            let good = kept(configured, policy);
            good.write(&path).unwrap();
            assert_eq!(KeptPolicies::read(&path).unwrap(), Some(good));
        }
        let whole = std::fs::read_to_string(&path).unwrap();
        let half = &whole[..whole.find("[[policy]]").unwrap()];
        for (text, said) in [
            ("", "it is empty"),
            ("\n \n", "it is empty"),
            (half, "missing field `policy`"),
            ("configured = []\npolicy = [", "line 2"),
            ("configured = []\npolicy = 7\n", "line 2"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = KeptPolicies::read(&path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{text:?}");
            assert!(error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_beside_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.toml");
        // Nothing takes the place of a folder.
        std::fs::create_dir(&path).unwrap();
        assert!(kept(&[], &["a"]).write(&path).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_is_set_aside_beside_earlier_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policies.toml");
        for (text, name) in [("one", "policies.toml.old"), ("two", "policies.toml.old.2")] {
            std::fs::write(&path, text).unwrap();
            let aside = set_aside(&path, "old").unwrap();
            assert_eq!(aside, directory.path().join(name));
            std::fs::remove_file(&path).unwrap();
            assert_eq!(std::fs::read_to_string(aside).unwrap(), text);
        }
        assert!(set_aside(&path, "bad").is_err(), "there is nothing");
        std::fs::write(&path, "three").unwrap();
        for number in 3..=ASIDE_MAX {
            std::fs::write(directory.path().join(format!("policies.toml.old.{number}")), "").unwrap();
        }
        let full = set_aside(&path, "old").unwrap_err();
        assert!(full.to_string().contains("remove those"), "{full}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "three");
    }

    #[test]
    fn what_a_configuration_undoes_is_named() {
        let mut before = kept(&["a", "b", "c"], &["mine", "b", "c"]);
        before.policy[1].version = Some(2);
        let next = of_kinds(&["a", "b", "c"]);
        assert_eq!(
            before.undone_by(&next),
            [
                "detached: mine (attached at run time)",
                "attached again: a (detached at run time)",
                "as configured again: b (changed at run time)"
            ]
        );
        assert_eq!(before.undone_by(&before.policy), [] as [&str; 0]);
        assert_eq!(kept(&["a"], &["a"]).undone_by(&[]), [] as [&str; 0]);
    }
}
