//! Text and its syntax tree.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cel::common::ast::{EntryExpr, Expr, SourceInfo};
use cel::parser::{Expression as Tree, Parser};
use regex::{Regex, RegexBuilder};

use super::error::ExpressionError;
use super::{Expression, Scope, check};

/// Bytes of an expression's text, at most.
pub const EXPRESSION_BYTES_MAX: usize = 4096;
/// Levels to which an expression nests, at most (`a && b && c && d` are two, `a + b + c + d` are three).
pub const EXPRESSION_DEPTH_MAX: usize = 64;
/// Stack of the thread that parses: the parser recurses, up to as often as a text of the allowed length can make it.
const PARSER_STACK_BYTES: usize = 64 << 20;
/// Open brackets and prefix operators in a text, at most: what makes the parser recurse.
const OPEN_MAX: usize = 64;
/// Memory that a compiled pattern may take, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// An expression's text, whose syntax is right. It can be compiled for many methods.
#[derive(Debug)]
pub struct Source {
    pub(crate) text: String,
    pub(crate) tree: Tree,
    places: SourceInfo,
    /// Patterns in it that were compiled, each with the runtime whose thread matches with it.
    patterns: Mutex<BTreeMap<(String, usize), Arc<Regex>>>,
}

impl Source {
    pub fn parse(text: &str) -> Result<Source, ExpressionError> {
        if text.len() > EXPRESSION_BYTES_MAX {
            let problem = format!("an expression has at most {EXPRESSION_BYTES_MAX} bytes");
            let help = "split it into several rules, or put values into a list";
            let place = EXPRESSION_BYTES_MAX..EXPRESSION_BYTES_MAX + 1;
            return Err(ExpressionError::at(text, place, problem, help));
        }
        check_nesting(text)?;
        // On a thread of its own, with a stack that is large enough, and so that a panic in the library is an error.
        std::thread::scope(|scope| {
            let parser = std::thread::Builder::new()
                .name("parser".to_owned())
                .stack_size(PARSER_STACK_BYTES)
                .spawn_scoped(scope, || parse(text));
            let outcome = parser.ok().and_then(|thread| thread.join().ok());
            outcome.unwrap_or_else(|| {
                let problem = "this expression cannot be parsed";
                Err(ExpressionError::at(
                    text,
                    0..text.len(),
                    problem,
                    "write it in another way",
                ))
            })
        })
    }

    /// Checks it against what its names mean, and compiles it.
    pub fn compile(&self, scope: &Scope) -> Result<Expression, ExpressionError> {
        check::compile(self, scope)
    }

    /// A pattern in it, compiled once for however many methods and datapaths of a runtime. Those of another runtime share the program,
    /// and not the memory in which one thread at a time matches.
    pub(crate) fn pattern(&self, pattern: &str, runtime: usize) -> Result<Arc<Regex>, regex::Error> {
        let mut patterns = self.patterns.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (pattern.to_owned(), runtime);
        if let Some(known) = patterns.get(&key) {
            return Ok(Arc::clone(known));
        }
        let elsewhere = patterns.iter().find(|((known, _), _)| known == pattern);
        let compiled = match elsewhere {
            Some((_, known)) => Regex::clone(known),
            None => RegexBuilder::new(pattern)
                .size_limit(PATTERN_BYTES_MAX)
                .dfa_size_limit(PATTERN_BYTES_MAX)
                .build()?,
        };
        let compiled = Arc::new(compiled);
        patterns.insert(key, Arc::clone(&compiled));
        Ok(compiled)
    }

    /// Where a node of the tree is in the text.
    pub(crate) fn range(&self, id: u64) -> Range<usize> {
        let (start, stop) = self.places.offset_for(id).unwrap_or_default();
        refine(&self.text, start as usize, stop as usize + 1)
    }

    pub(crate) fn error(
        &self,
        id: u64,
        problem: impl Into<String>,
        help: impl Into<String>,
    ) -> ExpressionError {
        ExpressionError::at(&self.text, self.range(id), problem, help)
    }
}

fn parse(text: &str) -> Result<Source, ExpressionError> {
    let (tree, places) = Parser::new().parse_with_source_info(text).map_err(|errors| {
        let Some(first) = errors.errors.first() else {
            return ExpressionError::at(text, 0..0, "this is not an expression", "");
        };
        let at = offset(text, first.pos);
        let (problem, help) = plain(&first.msg);
        ExpressionError::at(text, at..at + 1, problem, help)
    })?;
    let source = Source {
        text: text.to_owned(),
        tree,
        places,
        patterns: Mutex::default(),
    };
    match deepest(&source.tree, EXPRESSION_DEPTH_MAX) {
        None => Ok(source),
        Some(id) => {
            let problem = format!("the expression nests deeper than {EXPRESSION_DEPTH_MAX} levels");
            Err(source.error(id, problem, "split it into several rules"))
        }
    }
}

/// What the parser says, in words for people who do not know its grammar.
fn plain(message: &str) -> (String, &'static str) {
    let message = message.strip_prefix("Syntax error: ").unwrap_or(message);
    let found = |text: &str| {
        text.split(" expecting ")
            .next()
            .unwrap_or(text)
            .replace("'<EOF>'", "the end")
    };
    if let Some(rest) = message.strip_prefix("mismatched input ") {
        return (format!("a value is expected here, not {}", found(rest)), "");
    }
    if let Some(rest) = message.strip_prefix("extraneous input ") {
        return (
            format!("{} is too much here", found(rest)),
            "is an operator missing?",
        );
    }
    if let Some(rest) = message.strip_prefix("token recognition error at: ") {
        let text = rest
            .strip_prefix('\'')
            .and_then(|rest| rest.strip_suffix('\''))
            .unwrap_or(rest)
            .trim();
        let help = match text.chars().next() {
            Some('=') => "== compares",
            Some('\'' | '"') => "a text ends with the quote that it begins with, and \\\\ in it is a \\",
            _ => "",
        };
        return (format!("this is not understood: {text}"), help);
    }
    if message.contains("invalid argument to has()") {
        return (
            "has() takes a field".to_owned(),
            "write has(request.field) or has(metadata.key)",
        );
    }
    if message.starts_with("Incomplete") {
        return ("something is missing in this expression".to_owned(), "");
    }
    (message.replace("'<EOF>'", "the end"), "")
}

/// Refuses what would make the parser recurse too often, before it does.
fn check_nesting(text: &str) -> Result<(), ExpressionError> {
    let (mut open, mut prefixes) = (0_usize, 0_usize);
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), '\\') => {
                escaped = !escaped;
                continue;
            }
            (Some(q), c) if q == c && !escaped => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(' | '[' | '{') => open += 1,
            (None, ')' | ']' | '}') => open = open.saturating_sub(1),
            (None, '!' | '-' | '?') => prefixes += 1,
            (None, _) => {}
        }
        escaped = false;
        if open > OPEN_MAX || prefixes > 4 * OPEN_MAX {
            let problem = format!("the expression nests deeper than {OPEN_MAX} levels");
            return Err(ExpressionError::at(
                text,
                at..at + 1,
                problem,
                "split it into several rules",
            ));
        }
    }
    Ok(())
}

/// A node that is deeper than so many levels.
fn deepest(tree: &Tree, levels: usize) -> Option<u64> {
    let Some(levels) = levels.checked_sub(1) else {
        return Some(tree.id);
    };
    let below = |tree: &Tree| deepest(tree, levels);
    match &tree.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => None,
        Expr::Select(select) => below(&select.operand),
        Expr::List(list) => list.elements.iter().find_map(below),
        Expr::Call(call) => {
            let target = call.target.as_deref().and_then(below);
            target.or_else(|| call.args.iter().find_map(below))
        }
        Expr::Comprehension(of) => [
            &of.iter_range,
            &of.accu_init,
            &of.loop_cond,
            &of.loop_step,
            &of.result,
        ]
        .into_iter()
        .find_map(below),
        Expr::Map(map) => map
            .entries
            .iter()
            .find_map(|entry| entry_below(&entry.expr, levels)),
        Expr::Struct(of) => of
            .entries
            .iter()
            .find_map(|entry| entry_below(&entry.expr, levels)),
    }
}

fn entry_below(entry: &EntryExpr, levels: usize) -> Option<u64> {
    match entry {
        EntryExpr::StructField(field) => deepest(&field.value, levels),
        EntryExpr::MapEntry(entry) => deepest(&entry.key, levels).or_else(|| deepest(&entry.value, levels)),
    }
}

/// The offset of a line (from 1) and a column (from 1).
fn offset(text: &str, (line, column): (isize, isize)) -> usize {
    let line = usize::try_from(line - 1).unwrap_or(0);
    let start: usize = text.split_inclusive('\n').take(line).map(str::len).sum();
    let within = &text[start.min(text.len())..];
    let column = usize::try_from(column - 1).unwrap_or(0);
    start
        + within
            .char_indices()
            .nth(column)
            .map_or(within.len(), |(at, _)| at)
}

/// The library gives the place of a dot or a bracket where people look at the name beside it.
fn refine(text: &str, start: usize, end: usize) -> Range<usize> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let bytes = text.as_bytes();
    let mut start = start.min(bytes.len());
    match bytes.get(start) {
        Some(b'.') => {
            start += 1;
            while bytes.get(start).is_some_and(u8::is_ascii_whitespace) {
                start += 1;
            }
        }
        Some(b'(') => {
            while start > 0 && is_name(&bytes[start - 1]) {
                start -= 1;
            }
        }
        _ => return start..end.min(bytes.len()).max(start),
    }
    let name = bytes[start..].iter().take_while(|byte| is_name(byte)).count();
    start..start + name.max(1)
}
