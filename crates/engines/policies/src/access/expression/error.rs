//! What is wrong with an expression, with its place.

use std::fmt;
use std::ops::Range;

/// Why an expression was refused. It shows the line and points at the place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    pub problem: String,
    /// What to do; empty where there is nothing to add.
    pub help: String,
    text: String,
    marked: usize,
}

impl ExpressionError {
    /// An error at a range of bytes of the source.
    pub(crate) fn at(
        source: &str,
        range: Range<usize>,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> ExpressionError {
        let start = floor(source, range.start);
        let end = floor(source, range.end).max(start);
        let line_start = source[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = source[start..]
            .find('\n')
            .map_or(source.len(), |newline| start + newline);
        let marked = source[start..end.min(line_end).max(start)].chars().count();
        ExpressionError {
            line: source[..start].matches('\n').count() + 1,
            column: source[line_start..start].chars().count() + 1,
            problem: problem.into(),
            help: help.into(),
            text: source[line_start..line_end].to_owned(),
            marked: marked.max(1),
        }
    }
}

/// The last boundary between characters that is not past `at`.
fn floor(source: &str, at: usize) -> usize {
    (0..=at.min(source.len()))
        .rev()
        .find(|place| source.is_char_boundary(*place))
        .unwrap_or(0)
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let margin = " ".repeat(number.len());
        // Tabs and other controls would move the mark away from its place.
        let text: String = self
            .text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        writeln!(f, "line {}, column {}: {}", self.line, self.column, self.problem)?;
        writeln!(f, "{margin} |")?;
        writeln!(f, "{}", format!("{number} | {text}").trim_end())?;
        write!(
            f,
            "{margin} | {}{}",
            " ".repeat(self.column - 1),
            "^".repeat(self.marked)
        )?;
        if !self.help.is_empty() {
            write!(f, "\n{margin} = help: {}", self.help)?;
        }
        Ok(())
    }
}

impl std::error::Error for ExpressionError {}

/// The known name that a misspelt one is most likely meant to be.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = name.chars().count().div_ceil(3).min(3);
    known
        .into_iter()
        .map(|candidate| (strsim::levenshtein(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Names for people, the first of them if they are many.
pub(crate) fn listing<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 12;
    let names: Vec<&str> = names.into_iter().collect();
    match names.len() {
        0 => "none".to_owned(),
        count if count > SHOWN => format!("{}, and {} more", names[..SHOWN].join(", "), count - SHOWN),
        _ => names.join(", "),
    }
}
