//! Policies as operators have made them at run time, in a file while they are not what the configuration says. So a start after
//! a kill can tell what was lost, or go on with it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::Attachment;

/// What the file has.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub(crate) struct KeptPolicies {
    /// What the configuration said meanwhile.
    #[serde(default)]
    pub(crate) configured: Vec<Attachment>,
    /// What was attached, in the order in which a call meets it.
    #[serde(default)]
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
        let kept = toml::from_str(&text);
        kept.map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.message().to_owned()))
    }

    /// Writes it, whole or not at all; nothing is left of what is as configured.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        if self.configured == self.policy {
            return match std::fs::remove_file(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            };
        }
        // Attachments came from TOML, or have passed through it: they can be written.
        let text = toml::to_string(self).map_err(io::Error::other)?;
        let fresh = PathBuf::from(format!("{}.new", path.display()));
        let mut options = std::fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        opened(&fresh, options)?.write_all(text.as_bytes())?;
        std::fs::rename(&fresh, path)
    }

    /// What was done at run time, such as `attached "limit", detached "log"`; empty if nothing.
    pub(crate) fn differences(&self) -> String {
        let named = |list: &[Attachment], name: &str| list.iter().find(|one| one.name == name).cloned();
        let attached = self
            .policy
            .iter()
            .filter_map(|now| match named(&self.configured, &now.name) {
                None => Some(format!("attached \"{}\"", now.name)),
                Some(before) if before != *now => Some(format!("changed \"{}\"", now.name)),
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

/// The file itself, and not one that a link leads to. A pipe is not waited for.
fn opened(path: &Path, options: &mut std::fs::OpenOptions) -> io::Result<File> {
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
}
