//! On which line of a file each key stands, for errors.

use std::collections::BTreeMap;
use std::ops::Bound;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// The lines of a file's keys, by key with dots; entries of lists as `policy[0]`.
#[derive(Clone, Default)]
pub(super) struct KeyLines(BTreeMap<String, usize>);

impl KeyLines {
    /// Those of a text; none of one that is not TOML.
    pub(super) fn of(text: &str) -> KeyLines {
        let mut lines = KeyLines::default();
        if let Ok(table) = DeTable::parse(text) {
            lines.add_table(&LineEnds::of(text), "", table.get_ref());
        }
        lines
    }

    /// The line of a key, or of what it stands in if it does not stand there itself.
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        enclosing(key).find_map(|key| self.0.get(key).copied())
    }

    /// The line of a key as `""`, and those of the keys of its table as `.name`.
    pub(super) fn right_below(&self, key: &str) -> impl Iterator<Item = (&str, usize)> {
        let from_key = self.0.range::<str, _>((Bound::Included(key), Bound::Unbounded));
        let beginning_so = from_key.map_while(move |(other, line)| Some((other.strip_prefix(key)?, *line)));
        beginning_so.filter(|(below, _)| {
            let is_own = below.is_empty();
            let is_below = below.starts_with('.') && !below[1..].contains(['.', '[']);
            is_own || is_below
        })
    }

    fn add_table(&mut self, ends: &LineEnds, prefix: &str, table: &DeTable<'_>) {
        for (name, value) in table.iter() {
            let key = match prefix {
                "" => name.get_ref().to_string(),
                prefix => format!("{prefix}.{}", name.get_ref()),
            };
            self.0.insert(key.clone(), ends.line_at(name.span().start));
            self.add_value(ends, &key, value);
        }
    }

    fn add_value(&mut self, ends: &LineEnds, key: &str, value: &Spanned<DeValue<'_>>) {
        match value.get_ref() {
            DeValue::Table(table) => self.add_table(ends, key, table),
            DeValue::Array(values) => self.add_array(ends, key, values),
            _ => {}
        }
    }

    fn add_array(&mut self, ends: &LineEnds, key: &str, values: &DeArray<'_>) {
        for (at, value) in values.iter().enumerate() {
            let key = format!("{key}[{at}]");
            self.0.insert(key.clone(), ends.line_at(value.span().start));
            self.add_value(ends, &key, value);
        }
    }
}

/// A key, and what it stands in: `policy[0].config.burst`, `policy[0].config`, `policy[0]`.
pub(super) fn enclosing(key: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(key), |key| key.rsplit_once('.').map(|(outer, _)| outer))
}

/// Where the lines of a text end, in bytes.
struct LineEnds(Vec<usize>);

impl LineEnds {
    fn of(text: &str) -> LineEnds {
        LineEnds(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    fn line_at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_line_and_one_that_is_not_there_that_of_its_table() {
        let text = "engines = [\n  \"a.so\",\n  \"b.so\",\n]\n[log]\nlevel = \"info\"\n[[policy]]\nname = \"a\"\n\
                    [policy.config]\nburst = 1\n[[policy]]\nname = \"b\"\n";
        let lines = KeyLines::of(text);
        let table = [
            ("engines[1]", Some(3)),
            ("log.level", Some(6)),
            ("policy[0].name", Some(8)),
            ("policy[0].config.burst", Some(10)),
            ("policy[0].config.brust", Some(9)),
            ("policy[1].name", Some(12)),
            ("policy[1].service", Some(11)),
            ("node.name", None),
        ];
        for (key, line) in table {
            assert_eq!(lines.find(key), line, "{key}");
        }
    }
}
