//! The sources: parsed, checked, and looked up again to show where something is wrong.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, SourceSpan};
use prost_types::{DescriptorProto, FileDescriptorProto};
use provost_schema::{Schema, SchemaError, SchemaErrorKind, files_for_options};

use crate::error::{Error, Place, Problem};

/// The number of a file's package in its descriptor.
const PACKAGE: i32 = 2;
/// The number of its syntax.
const SYNTAX: i32 = 12;

pub(crate) struct Sources {
    /// In an order in which a file comes after those that it imports; without those that declare options alone.
    pub(crate) files: Vec<FileDescriptorProto>,
    pub(crate) schema: Schema,
    /// Where files lie on the disk; a file that comes with the parser is not there.
    paths: Vec<(String, PathBuf)>,
}

impl Sources {
    pub(crate) fn parse(protos: &[impl AsRef<Path>], includes: &[impl AsRef<Path>]) -> Result<Self, Error> {
        let mut compiler = protox::Compiler::new(includes).map_err(|error| parse_error(&error, includes))?;
        compiler.include_imports(true).include_source_info(true);
        compiler
            .open_files(protos)
            .map_err(|error| parse_error(&error, includes))?;
        let set = compiler.file_descriptor_set();
        let on_disk =
            |file: &protox::file::FileMetadata| Some((file.name().to_owned(), file.path()?.to_owned()));
        let paths = compiler.files().filter_map(on_disk).collect();
        let mut sources = Sources {
            files: set.file,
            schema: Schema::default(),
            paths,
        };
        match Schema::from_files(&sources.files) {
            Ok(schema) => sources.schema = schema,
            Err(error) => return Err(sources.schema_problem(&error).into()),
        }
        sources.leave_out_options(&compiler)?;
        Ok(sources)
    }

    /// Leaves files out that declare options alone: no code is made of them. One that was named, and not only imported, is refused.
    fn leave_out_options(&mut self, compiler: &protox::Compiler) -> Result<(), Error> {
        let left_out = files_for_options(self.files.iter());
        let named = compiler.files().filter(|file| !file.is_import());
        if let Some(file) = named.map(|file| file.name()).find(|name| left_out.contains(name)) {
            let error = SchemaError {
                file: file.to_owned(),
                element: String::new(),
                path: vec![SYNTAX],
                kind: SchemaErrorKind::Syntax {
                    syntax: "proto2".to_owned(),
                },
            };
            return Err(self.schema_problem(&error).into());
        }
        let left_out: HashSet<String> = left_out.into_iter().map(str::to_owned).collect();
        self.files.retain(|file| !left_out.contains(file.name()));
        Ok(())
    }

    /// A problem with the message, field, enum, value or service of this full name.
    pub(crate) fn problem_at(&self, full_name: &str, message: String) -> Problem {
        let found = self
            .files
            .iter()
            .find_map(|file| Some((file, path_of(file, full_name)?)));
        match found {
            Some((file, path)) => self.problem(file, &path, message),
            None => Problem::without_place("", format!("{full_name}: {message}")),
        }
    }

    /// A problem with the package of a file.
    pub(crate) fn problem_with_package(&self, file: &FileDescriptorProto, message: String) -> Problem {
        self.problem(file, &[PACKAGE], message)
    }

    fn schema_problem(&self, error: &SchemaError) -> Problem {
        let message = match error.element.as_str() {
            "" => error.kind.to_string(),
            element => format!("{element}: {}", error.kind),
        };
        match self.files.iter().find(|file| file.name() == error.file) {
            Some(file) => self.problem(file, &error.path, message),
            None => Problem::without_place(&error.file, message),
        }
    }

    fn problem(&self, file: &FileDescriptorProto, path: &[i32], message: String) -> Problem {
        let text = self.paths.iter().find(|(name, _)| name == file.name());
        let text = text.and_then(|(_, path)| fs::read_to_string(path).ok());
        let place = text.and_then(|text| place_of_span(&text, &span_of(file, path)?));
        Problem {
            file: file.name().to_owned(),
            place,
            message,
            help: None,
        }
    }
}

/// The span that the parser noted for a path, or for the closest element around it; the first line for a file.
fn span_of(file: &FileDescriptorProto, path: &[i32]) -> Option<Vec<i32>> {
    let locations = &file.source_code_info.as_ref()?.location;
    let around = (1..=path.len()).rev().map(|length| &path[..length]);
    let exact = around.filter_map(|path| locations.iter().find(|location| location.path == path));
    Some(
        exact
            .map(|location| location.span.clone())
            .next()
            .unwrap_or_else(|| vec![0, 0, 1]),
    )
}

/// A span of `SourceCodeInfo`: line, column, (last line,) last column, from 0, columns in bytes.
fn place_of_span(text: &str, span: &[i32]) -> Option<Place> {
    let line = usize::try_from(*span.first()?).ok()?;
    let begin = usize::try_from(*span.get(1)?).ok()?;
    let line_text = text.lines().nth(line).unwrap_or_default();
    let end = match span {
        [_, _, end] => usize::try_from(*end).ok()?,
        _ => line_text.trim_end().len(),
    };
    Some(place_in_line(line, line_text, begin, end))
}

/// A place from byte offsets in a line.
fn place_in_line(line: usize, text: &str, begin: usize, end: usize) -> Place {
    let column = text.char_indices().take_while(|(at, _)| *at < begin).count();
    let inside = text
        .char_indices()
        .filter(|(at, _)| (begin..end).contains(at))
        .count();
    Place {
        line: line + 1,
        column: column + 1,
        width: inside.max(1),
        text: text.to_owned(),
    }
}

/// The path of an element of a file by its full name.
fn path_of(file: &FileDescriptorProto, full_name: &str) -> Option<Vec<i32>> {
    let rest = match file.package() {
        "" => full_name,
        package => full_name.strip_prefix(package)?.strip_prefix('.')?,
    };
    let (first, inside) = rest
        .split_once('.')
        .map_or((rest, None), |(first, inside)| (first, Some(inside)));
    let message = file
        .message_type
        .iter()
        .position(|message| message.name() == first);
    if let Some(index) = message {
        return path_in_message(&file.message_type[index], vec![4, index as i32], inside);
    }
    if let Some(index) = file.enum_type.iter().position(|item| item.name() == first) {
        let values = file.enum_type[index].value.iter().map(|value| value.name());
        return with_part(vec![5, index as i32], 2, values, inside);
    }
    let index = file.service.iter().position(|item| item.name() == first)?;
    let methods = file.service[index].method.iter().map(|method| method.name());
    with_part(vec![6, index as i32], 2, methods, inside)
}

fn path_in_message(message: &DescriptorProto, mut path: Vec<i32>, rest: Option<&str>) -> Option<Vec<i32>> {
    let Some(rest) = rest else { return Some(path) };
    let (first, inside) = rest
        .split_once('.')
        .map_or((rest, None), |(first, inside)| (first, Some(inside)));
    if let Some(index) = message
        .nested_type
        .iter()
        .position(|nested| nested.name() == first)
    {
        path.extend([3, index as i32]);
        return path_in_message(&message.nested_type[index], path, inside);
    }
    if let Some(index) = message.enum_type.iter().position(|nested| nested.name() == first) {
        path.extend([4, index as i32]);
        return with_part(
            path,
            2,
            message.enum_type[index].value.iter().map(|value| value.name()),
            inside,
        );
    }
    let fields = message.field.iter().map(|field| field.name());
    with_part(path.clone(), 2, fields, Some(first)).or_else(|| {
        with_part(
            path,
            8,
            message.oneof_decl.iter().map(|oneof| oneof.name()),
            Some(first),
        )
    })
}

fn with_part<'a>(
    mut path: Vec<i32>,
    number: i32,
    mut names: impl Iterator<Item = &'a str>,
    name: Option<&str>,
) -> Option<Vec<i32>> {
    if let Some(name) = name {
        path.extend([number, names.position(|each| each == name)? as i32]);
    }
    Some(path)
}

fn parse_error(error: &protox::Error, includes: &[impl AsRef<Path>]) -> Error {
    let name = error.file().unwrap_or_default();
    let text = includes
        .iter()
        .find_map(|include| fs::read_to_string(include.as_ref().join(name)).ok());
    let known = |text| byte_order_mark_problem(name, text).or_else(|| editions_problem(name, text));
    if let Some(problem) = text.as_deref().and_then(known) {
        return problem.into();
    }
    let mut problems = vec![diagnostic_problem(name, error, text.as_deref())];
    let related = error.related().into_iter().flatten();
    problems.extend(related.map(|related| diagnostic_problem(name, related, text.as_deref())));
    problems.dedup();
    Error::Source(problems)
}

/// The mark in front of a file, which some editors write, is shown nowhere; the parser takes it for a token.
fn byte_order_mark_problem(name: &str, text: &str) -> Option<Problem> {
    let rest = text.strip_prefix('\u{feff}')?;
    Some(Problem {
        file: name.to_owned(),
        place: Some(place_in_line(0, rest.lines().next().unwrap_or_default(), 0, 1)),
        message: "the file begins with a byte order mark; save it as UTF-8 without one".to_owned(),
        help: None,
    })
}

/// Parsers of proto3 do not understand the first statement of a file with an edition; say why.
fn editions_problem(name: &str, text: &str) -> Option<Problem> {
    let begin = first_token(text);
    let word: String = text[begin..]
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric())
        .collect();
    if word != "edition" {
        return None;
    }
    let (line, at) = line_and_column(&text[..begin]);
    let line_text = text.lines().nth(line).unwrap_or_default();
    Some(Problem {
        file: name.to_owned(),
        place: Some(place_in_line(line, line_text, at, line_text.trim_end().len())),
        message: SchemaErrorKind::Syntax {
            syntax: "editions".to_owned(),
        }
        .to_string(),
        help: None,
    })
}

/// Where the first statement of a file begins, behind space and comments.
fn first_token(text: &str) -> usize {
    let mut rest = text.trim_start();
    loop {
        let skipped = match rest {
            _ if rest.starts_with("//") => rest.find('\n'),
            _ if rest.starts_with("/*") => rest.find("*/").map(|end| end + 2),
            _ => return text.len() - rest.len(),
        };
        match skipped {
            Some(end) => rest = rest[end..].trim_start(),
            None => return text.len(),
        }
    }
}

/// The line and the column in bytes, from 0, at the end of a text.
fn line_and_column(before: &str) -> (usize, usize) {
    let line_begin = before.rfind('\n').map_or(0, |end| end + 1);
    (before.matches('\n').count(), before.len() - line_begin)
}

fn diagnostic_problem(file: &str, error: &dyn Diagnostic, text: Option<&str>) -> Problem {
    let label = error.labels().and_then(|labels| main_label(labels.collect()));
    Problem {
        file: file.to_owned(),
        place: match (label, text) {
            (Some(label), Some(text)) => place_of_label(text, label.inner()),
            (None, Some(text)) if error.to_string().ends_with("end of file") => Some(end_of(text)),
            _ => None,
        },
        message: error.to_string(),
        help: error.help().map(|help| help.to_string()),
    }
}

/// Of several labels, the one that says where the fault is, not with what it conflicts.
fn main_label(labels: Vec<LabeledSpan>) -> Option<LabeledSpan> {
    let elsewhere = |label: &LabeledSpan| {
        label
            .label()
            .is_some_and(|text| text.starts_with("first") || text.contains("defined here"))
    };
    labels
        .iter()
        .find(|label| !elsewhere(label))
        .or(labels.first())
        .cloned()
}

/// A place from byte offsets in a file; of several lines, the first is shown.
fn place_of_label(text: &str, span: &SourceSpan) -> Option<Place> {
    let (line, begin) = line_and_column(text.get(..span.offset())?);
    let line_text = text.lines().nth(line).unwrap_or_default();
    let end = (begin + span.len()).min(line_text.trim_end().len());
    Some(place_in_line(line, line_text, begin, end))
}

/// Behind the last character that is not space.
fn end_of(text: &str) -> Place {
    let text = text.trim_end();
    let (line, column) = line_and_column(text);
    place_in_line(
        line,
        text.lines().nth(line).unwrap_or_default(),
        column,
        column + 1,
    )
}
