//! Files of entries, as a user has them: one entry a line (or CSV record), read whole, with errors that name the line.
//!
//! | format | an entry | chosen when |
//! |---|---|---|
//! | [`Format::Csv`] | `key,value`, quoted as RFC 4180 has it; further fields are an error | the name ends in `.csv` |
//! | [`Format::Tsv`] | `key<TAB>value`; the value is the rest of the line | the name ends in `.tsv`, or the first line has a tab |
//! | [`Format::Lines`] | the line; its key is its number, as nine digits | otherwise |
//!
//! Empty lines are skipped. When a key occurs twice, the later entry counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Longest key that the store takes, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value that the store takes, in bytes.
pub const VALUE_BYTES_MAX: usize = 16 << 20;
/// Largest file that is read, in bytes: it is held in memory.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// The data that ships with the project: names of the Unicode characters (see `apps/kv/data/README.md`).
pub const SAMPLE: &[u8] = include_bytes!("../data/unicode-names.tsv");
/// What [`SAMPLE`] is called in messages.
pub const SAMPLE_NAME: &str = "unicode-names.tsv";

/// An entry of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub key: String,
    pub value: Vec<u8>,
}

/// How a file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `key,value` records.
    Csv,
    /// `key<TAB>value` lines.
    Tsv,
    Lines,
}

/// Why a file was refused.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is too large.
    #[error("{} has {bytes} bytes, more than the {FILE_BYTES_MAX} that are read at once: split it", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    /// A line of the file is wrong.
    #[error("{name}:{line}: {problem}")]
    Line {
        name: String,
        /// The line, counted from 1.
        line: usize,
        problem: LineProblem,
    },
    /// The file has no entry.
    #[error("{name} has no entries")]
    Empty { name: String },
}

/// What is wrong with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    #[error("no tab; a line of this file is a key, a tab, and a value")]
    NoTab,
    /// A CSV record that has not two fields.
    #[error("the record has {0} field(s); give it a key and a value")]
    Fields(usize),
    /// A quoted field that never ends.
    #[error("the quoted field that begins here is never closed")]
    OpenQuote,
    /// Something follows a quoted field's closing quote.
    #[error("after a closing quote, a comma or the end of the line is expected")]
    AfterQuote,
    #[error("the key is empty")]
    EmptyKey,
    #[error("the key has {0} bytes; {KEY_BYTES_MAX} are allowed")]
    LongKey(usize),
    /// A key with bytes that are no text.
    #[error("the key is not UTF-8 text")]
    KeyNotText,
    #[error("the value has {0} bytes; {VALUE_BYTES_MAX} are allowed")]
    LongValue(usize),
}

/// Reads the file at `path`; its name and first line say how it is laid out.
pub fn read_file(path: &Path) -> Result<Vec<FileEntry>, DataError> {
    let read_error = |source| DataError::Read {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::metadata(path).map_err(read_error)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(DataError::TooLarge {
            path: path.to_owned(),
            bytes,
        });
    }
    let contents = std::fs::read(path).map_err(read_error)?;
    let name = path.display().to_string();
    parse(&name, &contents, Format::detect(&name, &contents))
}

/// The entries of [`SAMPLE`].
pub fn sample() -> Result<Vec<FileEntry>, DataError> {
    parse(SAMPLE_NAME, SAMPLE, Format::Tsv)
}

/// Reads `contents`; `name` is for the errors.
pub fn parse(name: &str, contents: &[u8], format: Format) -> Result<Vec<FileEntry>, DataError> {
    let pairs = match format {
        Format::Csv => csv_pairs(contents),
        Format::Tsv => line_pairs(contents, tsv_pair),
        Format::Lines => line_pairs(contents, numbered_pair),
    };
    let pairs = pairs.map_err(|BadLine { line, problem }| DataError::Line {
        name: name.to_owned(),
        line,
        problem,
    })?;
    if pairs.is_empty() {
        return Err(DataError::Empty {
            name: name.to_owned(),
        });
    }
    Ok(last_of_each_key(pairs))
}

impl Format {
    /// How a file with this name and these contents is laid out.
    #[must_use]
    pub fn detect(name: &str, contents: &[u8]) -> Format {
        let lower = name.to_ascii_lowercase();
        let first_line = contents.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if lower.ends_with(".csv") {
            Format::Csv
        } else if lower.ends_with(".tsv") || first_line.contains(&b'\t') {
            Format::Tsv
        } else {
            Format::Lines
        }
    }
}

struct BadLine {
    line: usize,
    problem: LineProblem,
}

fn line_pairs(
    contents: &[u8],
    pair_of: impl Fn(usize, &[u8]) -> Result<FileEntry, LineProblem>,
) -> Result<Vec<FileEntry>, BadLine> {
    let mut pairs = Vec::new();
    for (index, text) in contents.split(|byte| *byte == b'\n').enumerate() {
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.is_empty() {
            continue;
        }
        let line = index + 1;
        pairs.push(pair_of(line, text).map_err(|problem| BadLine { line, problem })?);
    }
    Ok(pairs)
}

fn tsv_pair(_line: usize, text: &[u8]) -> Result<FileEntry, LineProblem> {
    let tab = text
        .iter()
        .position(|byte| *byte == b'\t')
        .ok_or(LineProblem::NoTab)?;
    checked(&text[..tab], &text[tab + 1..])
}

fn numbered_pair(line: usize, text: &[u8]) -> Result<FileEntry, LineProblem> {
    checked(format!("{line:09}").as_bytes(), text)
}

fn checked(key: &[u8], value: &[u8]) -> Result<FileEntry, LineProblem> {
    let text = std::str::from_utf8(key).map_err(|_| LineProblem::KeyNotText)?;
    match (key.len(), value.len()) {
        (0, _) => Err(LineProblem::EmptyKey),
        (bytes, _) if bytes > KEY_BYTES_MAX => Err(LineProblem::LongKey(bytes)),
        (_, bytes) if bytes > VALUE_BYTES_MAX => Err(LineProblem::LongValue(bytes)),
        _ => Ok(FileEntry {
            key: text.to_owned(),
            value: value.to_owned(),
        }),
    }
}

fn csv_pairs(contents: &[u8]) -> Result<Vec<FileEntry>, BadLine> {
    let mut reader = CsvReader {
        rest: contents,
        line: 1,
    };
    let mut pairs = Vec::new();
    while !reader.rest.is_empty() {
        let line = reader.line;
        let fields = reader.record()?;
        let pair = match fields.as_slice() {
            [only] if only.is_empty() => continue,
            [key, value] => checked(key, value),
            other => Err(LineProblem::Fields(other.len())),
        };
        pairs.push(pair.map_err(|problem| BadLine { line, problem })?);
    }
    Ok(pairs)
}

struct CsvReader<'a> {
    rest: &'a [u8],
    line: usize,
}

/// What followed a field.
enum FieldEnd {
    Comma,
    Record,
}

impl CsvReader<'_> {
    fn record(&mut self) -> Result<Vec<Vec<u8>>, BadLine> {
        let mut fields = Vec::new();
        loop {
            let field = match self.rest.first() {
                Some(b'"') => self.quoted_field()?,
                _ => self.plain_field(),
            };
            fields.push(field);
            if let FieldEnd::Record = self.field_end()? {
                return Ok(fields);
            }
        }
    }

    fn plain_field(&mut self) -> Vec<u8> {
        let ends = |byte: &u8| matches!(byte, b',' | b'\n');
        let length = self.rest.iter().position(ends).unwrap_or(self.rest.len());
        let (field, rest) = self.rest.split_at(length);
        let at_line_end = rest.first() != Some(&b',');
        self.rest = rest;
        let trimmed = if at_line_end {
            field.strip_suffix(b"\r")
        } else {
            None
        };
        trimmed.unwrap_or(field).to_owned()
    }

    fn quoted_field(&mut self) -> Result<Vec<u8>, BadLine> {
        let begin = self.line;
        let mut field = Vec::new();
        let mut at = 1;
        loop {
            match (self.rest.get(at), self.rest.get(at + 1)) {
                (None, _) => {
                    return Err(BadLine {
                        line: begin,
                        problem: LineProblem::OpenQuote,
                    });
                }
                (Some(b'"'), Some(b'"')) => {
                    field.push(b'"');
                    at += 2;
                }
                (Some(b'"'), _) => break,
                (Some(byte), _) => {
                    self.line += usize::from(*byte == b'\n');
                    field.push(*byte);
                    at += 1;
                }
            }
        }
        self.rest = &self.rest[at + 1..];
        Ok(field)
    }

    fn field_end(&mut self) -> Result<FieldEnd, BadLine> {
        if let Some(rest) = self.rest.strip_prefix(b",") {
            self.rest = rest;
            return Ok(FieldEnd::Comma);
        }
        let rest = self.rest.strip_prefix(b"\r").unwrap_or(self.rest);
        let Some(rest) = rest.strip_prefix(b"\n").or(rest.is_empty().then_some(rest)) else {
            return Err(BadLine {
                line: self.line,
                problem: LineProblem::AfterQuote,
            });
        };
        self.rest = rest;
        self.line += 1;
        Ok(FieldEnd::Record)
    }
}

fn last_of_each_key(pairs: Vec<FileEntry>) -> Vec<FileEntry> {
    let last: HashMap<String, usize> = pairs
        .iter()
        .enumerate()
        .map(|(at, pair)| (pair.key.clone(), at))
        .collect();
    let kept = pairs.into_iter().enumerate();
    kept.filter(|(at, pair)| last.get(&pair.key) == Some(at))
        .map(|(_, pair)| pair)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<FileEntry> {
        let pair = |(key, value): &(&str, &str)| FileEntry {
            key: (*key).to_owned(),
            value: value.as_bytes().to_owned(),
        };
        list.iter().map(pair).collect()
    }

    fn error(contents: &str, format: Format) -> String {
        parse("f", contents.as_bytes(), format).unwrap_err().to_string()
    }

    #[test]
    fn the_sample_has_thousands_of_entries_with_distinct_keys() {
        let sample = sample().unwrap();
        assert_eq!(sample.len(), 34_924);
        let letter = sample.iter().find(|pair| pair.key == "U+0041").unwrap();
        assert_eq!(letter.value, b"LATIN CAPITAL LETTER A");
    }

    #[test]
    fn the_name_and_the_first_line_tell_the_format() {
        assert_eq!(Format::detect("a.CSV", b"k\tv"), Format::Csv);
        assert_eq!(Format::detect("a.tsv", b"kv"), Format::Tsv);
        assert_eq!(Format::detect("a", b"k\tv\n"), Format::Tsv);
        assert_eq!(Format::detect("a", b"word\nk\tv\n"), Format::Lines);
    }

    #[test]
    fn tabs_separate_keys_from_values_and_the_last_of_a_key_counts() {
        let got = parse("f", b"a\t1\r\n\nb\tx\ty\na\t2", Format::Tsv).unwrap();
        assert_eq!(got, pairs(&[("b", "x\ty"), ("a", "2")]));
    }

    #[test]
    fn lines_are_numbered() {
        let got = parse("f", b"one\n\nthree\n", Format::Lines).unwrap();
        assert_eq!(got, pairs(&[("000000001", "one"), ("000000003", "three")]));
    }

    #[test]
    fn csv_quotes_hold_commas_quotes_and_lines() {
        let got = parse(
            "f",
            b"a,1\r\n\"b,c\",\"say \"\"x\"\"\nand y\"\n\nd,\n",
            Format::Csv,
        )
        .unwrap();
        assert_eq!(got, pairs(&[("a", "1"), ("b,c", "say \"x\"\nand y"), ("d", "")]));
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(
            error("a\t1\nb 2\n", Format::Tsv),
            "f:2: no tab; a line of this file is a key, a tab, and a value"
        );
        assert_eq!(error("a\t1\n\t2", Format::Tsv), "f:2: the key is empty");
        assert_eq!(
            error("\"a\nb\",1\nc,2,3\n", Format::Csv),
            "f:3: the record has 3 field(s); give it a key and a value"
        );
        assert_eq!(
            error("a,1\nb,\"x\ny\n", Format::Csv),
            "f:2: the quoted field that begins here is never closed"
        );
        assert_eq!(
            error("\"a\"b,1", Format::Csv),
            "f:1: after a closing quote, a comma or the end of the line is expected"
        );
        assert_eq!(
            error(&format!("{}\tv", "k".repeat(1025)), Format::Tsv),
            "f:1: the key has 1025 bytes; 1024 are allowed"
        );
        assert_eq!(error("\n", Format::Lines), "f has no entries");
        let not_text = parse("f", b"\xff\tv", Format::Tsv).unwrap_err().to_string();
        assert_eq!(not_text, "f:1: the key is not UTF-8 text");
    }
}
