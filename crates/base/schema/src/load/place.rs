//! Where in a descriptor set the loader is: for errors, and to find the comments there.

use std::collections::HashMap;

use prost_types::FileDescriptorProto;
use prost_types::source_code_info::Location;
use provost_wire::limits::NAME_BYTES_MAX;

use crate::{SchemaError, SchemaErrorKind};

/// A file with the comments in it, by path.
pub(super) struct SourceFile<'a> {
    pub(super) proto: &'a FileDescriptorProto,
    comments: HashMap<&'a [i32], &'a Location>,
}

impl<'a> SourceFile<'a> {
    pub(super) fn new(proto: &'a FileDescriptorProto) -> Self {
        let locations = proto.source_code_info.iter().flat_map(|info| &info.location);
        let commented =
            locations.filter(|at| at.leading_comments.is_some() || at.trailing_comments.is_some());
        SourceFile {
            proto,
            comments: commented.map(|at| (at.path.as_slice(), at)).collect(),
        }
    }
}

/// An element of a file.
#[derive(Clone)]
pub(super) struct FilePlace<'a> {
    pub(super) file: &'a SourceFile<'a>,
    pub(super) path: Vec<i32>,
    pub(super) full_name: String,
}

impl<'a> FilePlace<'a> {
    /// The file as a whole; its elements' names begin with the package.
    pub(super) fn of_file(file: &'a SourceFile<'a>) -> Self {
        FilePlace {
            file,
            path: Vec::new(),
            full_name: file.proto.package().to_owned(),
        }
    }

    /// The `index`th element of the field `number` of the descriptor here, whose name is checked.
    pub(super) fn element(&self, number: i32, index: usize, name: &str) -> Result<Self, SchemaError> {
        let mut place = self.clone();
        place
            .path
            .extend([number, i32::try_from(index).unwrap_or(i32::MAX)]);
        if !place.full_name.is_empty() {
            place.full_name.push('.');
        }
        place.full_name.push_str(name);
        if is_identifier(name) && place.full_name.len() <= NAME_BYTES_MAX {
            return Ok(place);
        }
        let name = name.chars().take(64).collect();
        place.full_name.clone_from(&self.full_name);
        Err(place.error(SchemaErrorKind::Name {
            name,
            max: NAME_BYTES_MAX,
        }))
    }

    /// The error `kind`, here.
    pub(super) fn error(&self, kind: SchemaErrorKind) -> SchemaError {
        let element = if self.path.is_empty() {
            String::new()
        } else {
            self.full_name.clone()
        };
        SchemaError {
            file: self.file.proto.name().to_owned(),
            element,
            path: self.path.clone(),
            kind,
        }
    }

    /// The error `kind` in a part of the descriptor here, which has the field number `part`.
    pub(super) fn error_in(&self, part: i32, kind: SchemaErrorKind) -> SchemaError {
        let mut error = self.error(kind);
        error.path.push(part);
        error
    }

    /// The comment above the element, and the one behind it.
    pub(super) fn docs(&self) -> String {
        let Some(location) = self.file.comments.get(self.path.as_slice()) else {
            return String::new();
        };
        let comments = [&location.leading_comments, &location.trailing_comments];
        let texts = comments.into_iter().flatten().map(|comment| tidy(comment));
        texts
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join("\n\n")
    }
}

/// A comment without the space that follows `//` and without blank lines around it.
fn tidy(comment: &str) -> String {
    let lines = comment
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end());
    lines.collect::<Vec<_>>().join("\n").trim_matches('\n').to_owned()
}

pub(crate) fn is_identifier(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(word) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}
