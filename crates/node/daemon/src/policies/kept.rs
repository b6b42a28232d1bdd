//! Policies as operators have made them at run time, in a file while they are not what the configuration says. So a start after
//! a kill can tell what was lost, or go on with it.

use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

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
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
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
        options.open(&fresh)?.write_all(text.as_bytes())?;
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
        std::fs::write(&path, "policy = 7").unwrap();
        assert_eq!(
            KeptPolicies::read(&path).unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
