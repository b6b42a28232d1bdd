//! Modules of a crate that need each other, directly or by others, have to be read together. So the largest such circle of each
//! crate is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::copies::TextFile;
use crate::Complaints;
use crate::source::code_only;

/// Modules of the largest circle of a crate.
const CIRCLE_MAX: usize = 5;
/// Crates with another bound, which only falls. The daemon's modules depend on each other one way only, but for two: connecting asks
/// for the schemas that servers tell, and those are asked over connections.
const OTHER_BOUNDS: [(&str, usize); 6] = [
    ("crates/app/provost", 2),
    ("crates/core/datagram", 8),
    ("crates/node/daemon", 2),
    ("crates/node/runtime", 3),
    ("crates/tools/bench", 3),
    ("sim", 6),
];
/// Crate roots, which name all modules and are named by none.
const ROOTS: [&str; 2] = ["lib.rs", "main.rs"];
/// What begins the tests at the end of a file: a module of its own.
const TESTS: &str = "#[cfg(test)]\nmod ";

/// For each module of a crate, the modules of the crate that it names.
type ModuleUses = BTreeMap<String, BTreeSet<String>>;

/// The crates whose largest circle has more modules than its bound.
pub(super) fn complaints(files: &[TextFile]) -> Complaints {
    let mut crates: BTreeMap<String, ModuleUses> = BTreeMap::new();
    for TextFile { path, text } in files {
        if let Some((folder, module)) = place(path) {
            let modules = crates.entry(folder).or_default();
            modules.entry(module).or_default().extend(named(text));
        }
    }
    let circles = crates
        .iter()
        .map(|(folder, modules)| (folder, largest_circle(modules)));
    circles
        .filter_map(|(folder, circle)| complaint(folder, &circle))
        .collect()
}

fn complaint(folder: &str, circle: &[&str]) -> Option<String> {
    let other = OTHER_BOUNDS.iter().find(|(of, _)| *of == folder);
    let max = other.map_or(CIRCLE_MAX, |(_, max)| *max);
    let count = circle.len();
    (count > max).then(|| {
        format!(
            "{folder}: {count} modules need each other, over {max}: {}",
            circle.join(", ")
        )
    })
}

/// The crate and the module of it that a file belongs to.
fn place(path: &Path) -> Option<(String, String)> {
    let (folder, inside) = path.to_str()?.split_once("/src/")?;
    let module = inside.split('/').next()?;
    let is_root = ROOTS.contains(&module) || module == "bin";
    (!is_root).then(|| (folder.to_owned(), module.trim_end_matches(".rs").to_owned()))
}

/// The first names of paths in a file that begin at the crate's root.
fn named(text: &str) -> BTreeSet<String> {
    let code = code_only(text);
    let code = code.split(TESTS).next().unwrap_or_default();
    let mut named = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        match rest.strip_prefix('{') {
            Some(list) => named.extend(first_names(list)),
            None => named.extend([name_at(rest)]),
        }
    }
    named
}

/// The first names of what stands in the braces of a `use`.
fn first_names(list: &str) -> Vec<String> {
    let mut depth = 0;
    let mut names = vec![name_at(list.trim_start())];
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => names.push(name_at(list[at + 1..].trim_start())),
            _ => {}
        }
    }
    names
}

fn name_at(text: &str) -> String {
    let is_part = |character: &char| character.is_alphanumeric() || *character == '_';
    text.chars().take_while(is_part).collect()
}

/// The most modules of which each reaches each.
fn largest_circle(modules: &ModuleUses) -> Vec<&str> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = modules
        .keys()
        .map(|module| (module.as_str(), reached_from(module, modules)))
        .collect();
    let circle = |module: &&str| -> Vec<&str> {
        let others = reached[module].iter().copied();
        others.filter(|other| reached[other].contains(module)).collect()
    };
    let circles = reached.keys().map(circle);
    circles.max_by_key(Vec::len).unwrap_or_default()
}

fn reached_from<'a>(module: &'a str, modules: &'a ModuleUses) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![module];
    while let Some(next) = waiting.pop() {
        let others = modules.get(next).into_iter().flatten();
        let there = others.filter(|other| modules.contains_key(*other));
        waiting.extend(there.map(String::as_str).filter(|other| reached.insert(*other)));
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(texts: &[(&str, &str)]) -> Vec<TextFile> {
        let file = |(module, text): &(&str, &str)| TextFile {
            path: format!("crates/node/daemon/src/{module}").into(),
            text: (*text).to_owned(),
        };
        texts.iter().map(file).collect()
    }

    #[test]
    fn a_circle_is_found_through_other_modules_and_lists() {
        let one_way = [
            ("apps.rs", "use crate::{log, policies::{self, Table}};"),
            ("policies/table.rs", "use crate::log::cut; // and not crate::apps"),
            (
                "log.rs",
                "fn f() {}\n#[cfg(test)]\nmod tests { use crate::apps; }",
            ),
            ("main.rs", "use crate::apps;"),
        ];
        assert_eq!(complaints(&files(&one_way)), Complaints::new());
        let mut round = one_way;
        round[2].1 = "fn f() { crate::apps::f(); }";
        let found = complaints(&files(&round));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].ends_with("3 modules need each other, over 2: apps, log, policies"),
            "{found:?}"
        );
    }
}
