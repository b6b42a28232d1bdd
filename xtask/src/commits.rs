//! The subjects of commits: `area: what`, short enough for every list of commits.

use std::path::Path;
use std::process::Command;

use crate::Complaints;
use crate::workspace::{Workspace, output};

/// Characters of a subject.
const SUBJECT_CHARS_MAX: usize = 72;

/// The branch from which work begins, where a clone has one.
const MAIN: &str = "origin/main";

/// The newest commit whose subject was written before the rule: all after it are held to it. A clone has it, or began after it.
const RULE_START: &str = "a87b6fade1908d8cb1e18a63c9a8f0efee0a8e6f";

/// Those of the commits after `since` (by default, [`RULE_START`]) whose subjects break the rule.
pub(crate) fn complaints(workspace: &Workspace, since: Option<&str>) -> Complaints {
    complaints_after(&workspace.root, since.unwrap_or(RULE_START))
}

/// Those of the commits that `HEAD` reaches and `start` does not whose subjects break the rule. In a shallow clone `start` may be
/// missing: then these are all commits that the clone has.
fn complaints_after(repository: &Path, start: &str) -> Complaints {
    let mut arguments = vec!["log", "--no-merges", "--format=%h %s", "HEAD"];
    let before_start = format!("^{start}");
    let start_commit = format!("{start}^{{commit}}");
    if git_in(repository, &["rev-parse", "--verify", "--quiet", &start_commit]).is_ok() {
        arguments.push(&before_start);
    }
    match git_in(repository, &arguments) {
        Ok(listed) => listed.lines().filter_map(listed_complaint).collect(),
        Err(complaint) => vec![complaint],
    }
}

/// Where this work began: the newest commit that it shares with [`MAIN`]; the one before the last when all of it is there.
pub(crate) fn base(workspace: &Workspace) -> Option<String> {
    let head = git(workspace, &["rev-parse", "HEAD"]).ok();
    let has_main = git(workspace, &["rev-parse", "--verify", "--quiet", MAIN]).is_ok();
    let shared = has_main
        .then(|| git(workspace, &["merge-base", "HEAD", MAIN]).ok())
        .flatten();
    let before = || git(workspace, &["rev-parse", "--verify", "--quiet", "HEAD~1"]).ok();
    shared
        .filter(|shared| Some(shared) != head.as_ref())
        .or_else(before)
}

/// What git prints, without the line's end.
pub(crate) fn git(workspace: &Workspace, arguments: &[&str]) -> Result<String, String> {
    git_in(&workspace.root, arguments)
}

fn git_in(repository: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("git");
    command.current_dir(repository).args(arguments);
    let printed = output(&mut command).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&printed).trim_end().to_owned())
}

fn listed_complaint(line: &str) -> Option<String> {
    let (commit, subject) = line.split_once(' ')?;
    fault(subject).map(|fault| format!("{commit}: '{subject}': {fault}"))
}

fn fault(subject: &str) -> Option<String> {
    let chars = subject.chars().count();
    if chars > SUBJECT_CHARS_MAX {
        return Some(format!("{chars} characters, over {SUBJECT_CHARS_MAX}"));
    }
    let is_area = |area: &str| {
        let of_names = |character: char| character.is_ascii_alphanumeric() || "-_/., ".contains(character);
        area.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '.')
            && area.chars().all(of_names)
            && area.split_whitespace().count() <= 2
    };
    let said = subject
        .split_once(": ")
        .filter(|(area, what)| is_area(area) && !what.trim().is_empty());
    if said.is_none() {
        return Some("write 'area: what'".into());
    }
    subject.ends_with('.').then(|| "no full stop at the end".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_a_colon_and_what_it_does() {
        for good in [
            "datagram: do not retransmit packets the pacer still holds",
            "xtask: lint and build in one pass",
            "crates/base/ring: name the model",
            ".ci: fail when a tool is missing",
        ] {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in [
            "Have the audit log's test also find its writer idle",
            "datagram:",
            "datagram: ",
            "datagram:no space",
            "take nothing for lost: that waits",
            "ring: ends with a full stop.",
            &format!("ring: {}", "a".repeat(67)),
        ] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }
    /// A repository with a commit from before the rule, `start`, a good one and one that breaks the rule.
    struct SampleRepository {
        folder: tempfile::TempDir,
        start: String,
    }

    impl SampleRepository {
        fn new() -> SampleRepository {
            let folder = tempfile::tempdir().unwrap();
            git_in(folder.path(), &["init", "--quiet", "--initial-branch=main"]).unwrap();
            let repository = SampleRepository {
                folder,
                start: String::new(),
            };
            repository.commit("From before the rule");
            let start = repository.commit("The newest from before the rule");
            repository.commit("ring: name the model");
            repository.commit(&format!("ring: {}", "a".repeat(70)));
            SampleRepository { start, ..repository }
        }

        fn commit(&self, subject: &str) -> String {
            let author = ["-c", "user.name=Test", "-c", "user.email=test@localhost"];
            let commit = ["commit", "--quiet", "--allow-empty", "--message", subject];
            git_in(self.folder.path(), &[&author[..], &commit[..]].concat()).unwrap();
            git_in(self.folder.path(), &["rev-parse", "HEAD"]).unwrap()
        }

        /// A clone, whose `origin/main` is its own `HEAD`, of the newest `depth` commits.
        fn clone_of(&self, depth: usize) -> tempfile::TempDir {
            let folder = tempfile::tempdir().unwrap();
            let source = format!("file://{}", self.folder.path().display());
            let depth = format!("--depth={depth}");
            git_in(folder.path(), &["clone", "--quiet", &depth, &source, "."]).unwrap();
            folder
        }
    }

    #[test]
    fn commits_after_the_start_are_held_to_the_rule_in_every_clone() {
        let repository = SampleRepository::new();
        let start = &repository.start;
        assert_eq!(complaints_after(repository.folder.path(), start).len(), 1);
        for depth in 1..=4 {
            let clone = repository.clone_of(depth);
            assert_eq!(complaints_after(clone.path(), start).len(), 1, "of depth {depth}");
        }
        repository.commit("ring: say why");
        assert_eq!(complaints_after(repository.folder.path(), "HEAD~1"), [""; 0]);
    }

    #[test]
    fn a_clone_that_does_not_have_the_start_is_checked_whole() {
        let repository = SampleRepository::new();
        let start = "0123456789abcdef0123456789abcdef01234567";
        assert_eq!(complaints_after(repository.folder.path(), start).len(), 3);
        let nowhere = tempfile::tempdir().unwrap();
        assert_eq!(complaints_after(nowhere.path(), start).len(), 1);
    }

    #[test]
    fn this_history_holds_to_the_rule() {
        let workspace = Workspace::load().unwrap();
        assert_eq!(complaints(&workspace, None), [""; 0]);
    }
}
