//! The subjects of commits: `area: what`, short enough for every list of commits.

use std::process::Command;

use crate::Complaints;
use crate::workspace::{Workspace, output};

/// Characters of a subject.
const SUBJECT_CHARS_MAX: usize = 72;

/// The branch from which work begins, where a clone has one.
const MAIN: &str = "origin/main";

/// Those of the commits since `base` (by default, [`base`]) whose subjects break the rule.
pub(crate) fn complaints(workspace: &Workspace, since: Option<&str>) -> Complaints {
    let Some(base) = since.map(str::to_owned).or_else(|| base(workspace)) else {
        eprintln!("xtask: the first commit has nothing before it to compare with");
        return Vec::new();
    };
    let range = format!("{base}..HEAD");
    match git(workspace, &["log", "--no-merges", "--format=%h %s", &range]) {
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
    let mut command = Command::new("git");
    command.current_dir(&workspace.root).args(arguments);
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
}
