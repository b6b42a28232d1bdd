//! Runs of lines that stand in more than one place.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::Complaints;

/// Lines of a run, counted without those that every file has.
const RUN_LINES_MIN: usize = 12;
/// Places of a run that are one too many.
const PLACES_MAX: usize = 2;

/// A file with its text.
pub(super) struct TextFile {
    /// Where it lies, from the root.
    pub(super) path: PathBuf,
    /// What is in it.
    pub(super) text: String,
}

/// Files that may have a run in common, and why.
#[derive(Deserialize)]
pub(super) struct AllowedCopies {
    files: Vec<PathBuf>,
    reason: String,
}

/// A run of lines and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CopiedRun {
    lines: usize,
    places: Vec<LinePlace>,
}

/// A file and the number of a line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LinePlace {
    path: PathBuf,
    line: usize,
}

impl CopiedRun {
    /// One line that says where it stands.
    pub(super) fn shown(&self) -> String {
        let places = self.places.iter();
        let places: Vec<String> = places
            .map(|place| format!("{}:{}", place.path.display(), place.line))
            .collect();
        format!("{} lines in {}", self.lines, places.join(", "))
    }

    /// Why it may stand in these places, where that is listed.
    pub(super) fn reason<'a>(&self, allowed: &'a [AllowedCopies]) -> Option<&'a str> {
        let listed =
            |entry: &&AllowedCopies| self.places.iter().all(|place| entry.files.contains(&place.path));
        allowed.iter().find(listed).map(|entry| entry.reason.as_str())
    }
}

/// The runs that stand too often.
pub(super) fn complaints(texts: &[TextFile]) -> Complaints {
    runs(texts)
        .iter()
        .filter(|run| run.places.len() > PLACES_MAX)
        .map(|run| format!("{}: the same too often: make one of them", run.shown()))
        .collect()
}

/// Every run that stands more than once, the longest first.
pub(super) fn runs(texts: &[TextFile]) -> Vec<CopiedRun> {
    let mut numbers = HashMap::new();
    let mut lines: Vec<ComparedLine> = Vec::new();
    for (file, text) in texts.iter().enumerate() {
        for (number, folded) in compared(&text.text) {
            let next = numbers.len();
            let text = *numbers.entry(folded).or_insert(next);
            lines.push(ComparedLine { file, number, text });
        }
    }
    let places = |start: usize| LinePlace {
        path: texts[lines[start].file].path.clone(),
        line: lines[start].number,
    };
    let mut runs: Vec<CopiedRun> = starts(&lines)
        .into_iter()
        .map(|(starts, lines)| CopiedRun {
            lines,
            places: starts.into_iter().map(places).collect(),
        })
        .collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.lines));
    runs
}

/// A line that is compared: its file, its number there, and the number of its text.
struct ComparedLine {
    file: usize,
    number: usize,
    text: usize,
}

/// Where runs begin, each with its length; a run is as long as all its places are the same.
fn starts(lines: &[ComparedLine]) -> Vec<(Vec<usize>, usize)> {
    let same = windows(lines);
    let at = |start: usize| same.get(&key(lines, start)?).filter(|starts| starts.len() > 1);
    let mut found = Vec::new();
    for start in 0..lines.len() {
        let Some(all) = at(start).filter(|all| all[0] == start) else {
            continue;
        };
        let shifted = |by: usize| -> Vec<usize> { all.iter().map(|start| start + by).collect() };
        let before = start.checked_sub(1).and_then(at);
        if before.is_some_and(|before| before.iter().map(|start| start + 1).eq(all.iter().copied())) {
            continue;
        }
        let more = (1..).take_while(|by| at(start + by).is_some_and(|next| *next == shifted(*by)));
        found.push((all.clone(), RUN_LINES_MIN + more.count()));
    }
    found
}

/// Where each run of the least length stands; places that overlap count once.
fn windows(lines: &[ComparedLine]) -> HashMap<Vec<usize>, Vec<usize>> {
    let mut windows: HashMap<Vec<usize>, Vec<usize>> = HashMap::new();
    for start in 0..lines.len() {
        let Some(key) = key(lines, start) else { continue };
        let starts = windows.entry(key).or_default();
        if starts.last().is_none_or(|last| last + RUN_LINES_MIN <= start) {
            starts.push(start);
        }
    }
    windows
}

/// The texts of the lines from here on, where that many follow in one file.
fn key(lines: &[ComparedLine], start: usize) -> Option<Vec<usize>> {
    let run = lines.get(start..start + RUN_LINES_MIN)?;
    let of_one_file = run.iter().all(|line| line.file == run[0].file);
    of_one_file.then(|| run.iter().map(|line| line.text).collect())
}

/// The lines that are compared, with their numbers: no comments, no imports, none without a letter or a digit.
fn compared(text: &str) -> Vec<(usize, String)> {
    let mut compared = Vec::new();
    let mut importing = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        importing |= line.starts_with("use ") || line.starts_with("pub use ");
        let imported = importing;
        importing &= !line.ends_with(';');
        let says_nothing = !line.contains(|character: char| character.is_alphanumeric());
        if imported || says_nothing || line.starts_with("//") {
            continue;
        }
        let folded = line.split_whitespace().collect::<Vec<_>>().join(" ");
        compared.push((number + 1, folded));
    }
    compared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, parts: &[&str]) -> TextFile {
        TextFile {
            path: path.into(),
            text: parts.concat(),
        }
    }

    fn block(name: &str, lines: usize) -> String {
        (0..lines)
            .map(|line| format!("    let {name}_{line} = {line};\n\n    // why\n    }}\n"))
            .collect()
    }

    #[test]
    fn a_run_in_three_places_is_too_often_and_two_are_listed() {
        let (run, short) = (block("a", 13), block("b", 11));
        let two = [
            file("one.rs", &[&run, &short]),
            file("two.rs", &["x\n", &run, "y\n", &short]),
        ];
        assert_eq!(complaints(&two), Complaints::new());
        let found = runs(&two);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].shown(), "13 lines in one.rs:1, two.rs:2");
        let mut three = Vec::from(two);
        three.push(file("three.rs", &[&run.replace("    let", "let")]));
        assert_eq!(complaints(&three).len(), 1);
    }

    #[test]
    fn imports_do_not_count_and_a_list_gives_the_reason() {
        let imports = format!("use a::{{\n{}}};\n", "    some::name,\n".repeat(20));
        assert_eq!(
            runs(&[file("one.rs", &[&imports]), file("two.rs", &[&imports])]),
            []
        );
        let run = block("a", 12);
        let found = runs(&[file("one.rs", &[&run]), file("two.rs", &[&run])]);
        let allowed = |files: &[&str]| AllowedCopies {
            files: files.iter().map(PathBuf::from).collect(),
            reason: "for a reason".into(),
        };
        assert_eq!(
            found[0].reason(&[allowed(&["one.rs", "two.rs"])]),
            Some("for a reason")
        );
        assert_eq!(found[0].reason(&[allowed(&["one.rs"])]), None);
    }
}
