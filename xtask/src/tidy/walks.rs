//! The walks at the end of the map: each file that one names is there, and there are no more of them than its bound.

use std::path::Path;

use crate::Complaints;

/// What begins the walks.
const HEADING: &str = "## Walks";

/// How each walk begins, and how many files it may take to follow it.
const WALKS: [(&str, usize); 3] = [
    ("A call", 15),
    ("A policy attached live", 12),
    ("A hot restart", 14),
];

/// What is wrong with the walks of the map, whose files are in `root`.
pub(super) fn complaints(map: &str, root: &Path) -> Complaints {
    let walks = map.split_once(HEADING).map_or("", |(_, walks)| walks);
    let mut complaints = Vec::new();
    for (name, files_max) in WALKS {
        let begins = format!("\n**{name}**");
        let Some((_, rest)) = walks.split_once(&begins) else {
            complaints.push(format!("{}: the walk '{name}' is missing", super::MAP));
            continue;
        };
        let walk = rest.split_once("\n**").map_or(rest, |(walk, _)| walk);
        complaints.extend(walk_complaints(name, walk, files_max, root));
    }
    complaints
}

fn walk_complaints(name: &str, walk: &str, files_max: usize, root: &Path) -> Complaints {
    let files: Vec<&str> = walk.lines().filter_map(file_of).collect();
    let missing = files.iter().filter(|file| !root.join(file).is_file());
    let mut complaints: Complaints = missing
        .map(|file| format!("{}: '{name}' names {file}, which is not there", super::MAP))
        .collect();
    if files.is_empty() || files.len() > files_max {
        let count = files.len();
        complaints.push(format!(
            "{}: '{name}' names {count} files, and may name 1 to {files_max}",
            super::MAP
        ));
    }
    complaints
}

/// The file of a numbered line: where its link leads, or what stands in its first code span.
fn file_of(line: &str) -> Option<&str> {
    let (number, rest) = line.split_once(". ")?;
    number.parse::<u32>().ok()?;
    match rest.split_once("](") {
        Some((_, target)) => target.split(')').next(),
        None => rest.split('`').nth(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_is_too_long_or_names_what_is_not_there_is_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let map = |call: &str| {
            format!(
                "## Walks\n\n**A call**, to its answer.\n\n{call}\n\n**A policy attached live**:\n\n\
                 1. `src/main.rs`: it\n\n**A hot restart** (a signal):\n\n1. `src/ci.rs`: it\n"
            )
        };
        let good = "1. [`main.rs`](src/main.rs): first,\n   and more.\n2. `src/ci.rs`: second";
        assert_eq!(complaints(&map(good), root), Complaints::new());
        assert_eq!(complaints(&map("1. `src/gone.rs`: it"), root).len(), 1);
        let long = "1. `src/main.rs`: it\n".repeat(16);
        assert_eq!(complaints(&map(&long), root).len(), 1);
        assert_eq!(complaints(&map("nothing"), root).len(), 1);
        assert_eq!(complaints("", root).len(), WALKS.len());
    }
}
