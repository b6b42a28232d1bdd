//! The glossary of ARCHITECTURE.md has one word for an idea; names use no other.
//!
//! Its rows are `| term | meaning | not |`. The last column has the words that names do without, with commas between them. A
//! word that begins with a capital letter is one that types do without; `**word**` stands in no comment either; `word…` is
//! refused where a name begins with it; `word (crates/core)` is meant for that folder.

use std::path::Path;

use crate::Complaints;
use crate::source::{code_only, has_word};

const HEADING: &str = "## Glossary";

/// A word that names do without, and the term to use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BannedWord {
    /// Its segments, in lower case.
    segments: Vec<String>,
    term: String,
    folder: String,
    types_only: bool,
    in_comments: bool,
    /// Only names that begin with it do without it.
    at_begin: bool,
}

/// The words of the glossary; none while there is no glossary.
pub(super) fn banned(architecture: &str) -> Vec<BannedWord> {
    let lines = architecture
        .lines()
        .skip_while(|line| line.trim() != HEADING)
        .skip(1);
    let rows = lines
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.trim_start().starts_with('|'));
    // The first two are the table's head.
    rows.skip(2).flat_map(of_row).collect()
}

fn of_row(row: &str) -> Vec<BannedWord> {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [term, _, not] = cells[..] else {
        return Vec::new();
    };
    not.split(',')
        .filter_map(|word| of_word(term, word.trim()))
        .collect()
}

fn of_word(term: &str, word: &str) -> Option<BannedWord> {
    let (word, folder) = match word.split_once('(') {
        Some((word, folder)) => (word.trim(), folder.trim_end_matches(')').trim()),
        None => (word, ""),
    };
    let in_comments = word.starts_with("**");
    let word = word.trim_matches(['*', '`']);
    let at_begin = word.ends_with('…');
    let segments: Vec<String> = word.split_whitespace().flat_map(segments).collect();
    (!segments.is_empty()).then(|| BannedWord {
        segments,
        term: term.replace(['*', '`'], ""),
        folder: folder.trim_matches('`').to_owned(),
        types_only: word.starts_with(|first: char| first.is_uppercase()),
        in_comments,
        at_begin,
    })
}

/// The names in a file, and its own, that the glossary has another word for.
pub(super) fn complaints(path: &Path, text: &str, banned: &[BannedWord]) -> Complaints {
    let here: Vec<&BannedWord> = banned
        .iter()
        .filter(|banned| path.starts_with(&banned.folder))
        .collect();
    if here.is_empty() {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    let stem = path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    complaints.extend(complaint(
        &path.display().to_string(),
        stem,
        NameSort::Other,
        &here,
    ));
    let code = code_only(text);
    for (number, (code, line)) in code.lines().zip(text.lines()).enumerate() {
        let place = format!("{}:{}", path.display(), number + 1);
        if let Some((sort, name)) = declared(code) {
            complaints.extend(complaint(&place, name, sort, &here));
        }
        complaints.extend(comment_complaint(&place, comment(code, line), &here));
    }
    complaints
}

/// What a name is of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameSort {
    /// A struct, enum, trait, union or alias.
    Type,
    Other,
}

/// What a line of code declares, if anything.
pub(super) fn declared(code: &str) -> Option<(NameSort, &str)> {
    let of_names = |character: char| character.is_alphanumeric() || character == '_';
    let mut words = code
        .split(|character| !of_names(character))
        .filter(|word| !word.is_empty());
    let known = [
        "pub", "crate", "super", "in", "self", "const", "async", "unsafe", "extern", "default",
    ];
    let keyword = words.by_ref().find(|word| !known.contains(word))?;
    let sort = match keyword {
        "struct" | "enum" | "trait" | "union" | "type" => NameSort::Type,
        "fn" | "mod" => NameSort::Other,
        _ => return None,
    };
    Some((sort, words.next()?))
}

fn complaint(place: &str, name: &str, sort: NameSort, banned: &[&BannedWord]) -> Option<String> {
    let segments = segments(name);
    let meant = |banned: &&&BannedWord| !banned.types_only || sort == NameSort::Type;
    let inside = |banned: &&&BannedWord| {
        let words = &banned.segments;
        if banned.at_begin {
            segments.starts_with(words)
        } else {
            segments.windows(words.len()).any(|window| window == &words[..])
        }
    };
    let banned = banned.iter().filter(meant).find(inside)?;
    let (word, term) = (banned.segments.join(" "), &banned.term);
    Some(format!(
        "{place}: '{name}': the glossary says '{term}', not '{word}'"
    ))
}

fn comment_complaint(place: &str, comment: &str, banned: &[&BannedWord]) -> Option<String> {
    let comment = comment.to_lowercase();
    let found = banned
        .iter()
        .filter(|banned| banned.in_comments)
        .find(|banned| has_word(&comment, &banned.segments.join(" ")))?;
    let (word, term) = (found.segments.join(" "), &found.term);
    Some(format!("{place}: the glossary says '{term}', not '{word}'"))
}

/// The comment at the end of a line: what [`code_only`] has blanked from two slashes on.
fn comment<'a>(code: &str, line: &'a str) -> &'a str {
    let begins = line.match_indices("//").map(|(at, _)| at);
    let blank = |at: &usize| code.get(*at..).is_some_and(|rest| rest.trim().is_empty());
    begins.into_iter().find(blank).map_or("", |at| &line[at..])
}

/// The words of a name in snake or camel case, in lower case.
pub(super) fn segments(name: &str) -> Vec<String> {
    let mut segments = Vec::new();
    for part in name.split(|character: char| !character.is_alphanumeric()) {
        let characters: Vec<char> = part.chars().collect();
        let mut word = String::new();
        for (at, character) in characters.iter().enumerate() {
            let after_lower = at > 0 && !characters[at - 1].is_uppercase();
            let before_lower = characters.get(at + 1).is_some_and(|next| next.is_lowercase());
            if character.is_uppercase() && (after_lower || before_lower) && !word.is_empty() {
                segments.push(std::mem::take(&mut word));
            }
            word.extend(character.to_lowercase());
        }
        if !word.is_empty() {
            segments.push(word);
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    const GLOSSARY: &str = "# Map\n\n## Glossary\n\n| term | meaning | not |\n|---|---|---|\n\
        | hot restart | a process replaces another | **takeover**, hand over, `seat` |\n\
        | connection | one peer | Link |\n\
        | direction | tx or rx | lane (crates/core/datapath) |\n\
        | send | gives something away | tell… |\n\n## Next\n\n| a | b | gone |\n";

    fn found(path: &str, text: &str) -> usize {
        complaints(Path::new(path), text, &banned(GLOSSARY)).len()
    }

    #[test]
    fn names_hold_to_the_table_and_without_one_anything_goes() {
        assert_eq!(banned("# Map\n"), []);
        assert_eq!(banned(GLOSSARY).len(), 6);
        assert_eq!(found("a.rs", "pub(crate) struct TakeoverState;"), 1);
        assert_eq!(found("a.rs", "async fn hand_over_all() {}"), 1);
        assert_eq!(found("a/seat.rs", ""), 1);
        assert_eq!(found("a.rs", "fn seating() {}\nfn gone() {}\nlet seat = 1;"), 0);
        assert_eq!(found("a.rs", "struct Link;\nfn link() {}"), 1);
        assert_eq!(found("crates/core/datapath/src/a.rs", "enum Lane {}"), 1);
        assert_eq!(found("crates/core/datagram/src/a.rs", "enum Lane {}"), 0);
        assert_eq!(found("a.rs", "fn tell() {}\nfn tell_peer() {}"), 2);
        assert_eq!(found("a.rs", "fn a_name_may_tell_it() {}\nfn retell() {}"), 0);
    }

    #[test]
    fn comments_hold_to_the_words_in_bold() {
        assert_eq!(found("a.rs", "/// During a takeover.\nfn a() {} // its seat"), 1);
        assert_eq!(found("a.rs", "let a = \"// takeover\";"), 0);
    }

    #[test]
    fn segments_are_words() {
        assert_eq!(segments("HTTPServer2_of"), ["http", "server2", "of"]);
        assert_eq!(segments("UdpWire"), ["udp", "wire"]);
        assert_eq!(segments("tx"), ["tx"]);
    }
}
