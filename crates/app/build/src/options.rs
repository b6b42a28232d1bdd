//! What a program says of single types and fields: where else they are, and which attributes they get.

use crate::names::{camel, snake};

/// Options of code that is generated.
#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub(crate) extern_paths: Vec<ExternPath>,
    pub(crate) type_attributes: Vec<Attribute>,
    pub(crate) field_attributes: Vec<Attribute>,
    pub(crate) well_known: WellKnown,
}

/// Where the code of Google's well-known types comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WellKnown {
    /// The library has them.
    #[default]
    Library,
    /// They are generated as other types are.
    Generated,
}

/// A package or a type whose code is elsewhere.
#[derive(Clone, Debug)]
pub(crate) struct ExternPath {
    /// Full name with a leading dot.
    pub(crate) proto: String,
    pub(crate) rust: String,
}

/// An attribute for all types or fields of a path.
#[derive(Clone, Debug)]
pub(crate) struct Attribute {
    pub(crate) path: String,
    pub(crate) attribute: String,
}

/// What the library has: all of `google.protobuf`, and the messages of `google.rpc` that travel in statuses.
const LIBRARY: [(&str, &str); 12] = [
    (".google.protobuf", "::provost::well_known"),
    (".google.rpc.Status", "::provost::error_details::Status"),
    (".google.rpc.BadRequest", "::provost::error_details::BadRequest"),
    (".google.rpc.DebugInfo", "::provost::error_details::DebugInfo"),
    (".google.rpc.ErrorInfo", "::provost::error_details::ErrorInfo"),
    (".google.rpc.Help", "::provost::error_details::Help"),
    (
        ".google.rpc.LocalizedMessage",
        "::provost::error_details::LocalizedMessage",
    ),
    (
        ".google.rpc.PreconditionFailure",
        "::provost::error_details::PreconditionFailure",
    ),
    (
        ".google.rpc.QuotaFailure",
        "::provost::error_details::QuotaFailure",
    ),
    (".google.rpc.RequestInfo", "::provost::error_details::RequestInfo"),
    (
        ".google.rpc.ResourceInfo",
        "::provost::error_details::ResourceInfo",
    ),
    (".google.rpc.RetryInfo", "::provost::error_details::RetryInfo"),
];

impl Options {
    /// The Rust path of a type whose code is elsewhere.
    pub(crate) fn extern_path(&self, full_name: &str) -> Option<String> {
        let own = self
            .extern_paths
            .iter()
            .map(|path| (path.proto.as_str(), path.rust.as_str()));
        let library = LIBRARY
            .into_iter()
            .filter(|_| self.well_known == WellKnown::Library);
        let full_name = format!(".{full_name}");
        // The longest path counts, and of two of one length the program's own.
        let candidates = library
            .chain(own)
            .filter(|(proto, _)| is_within(&full_name, proto));
        let (proto, rust) = candidates.max_by_key(|(proto, _)| proto.len())?;
        Some(path_below(rust, full_name[proto.len()..].trim_start_matches('.')))
    }

    /// Whether it is the program that says that a type is elsewhere, and not the library.
    pub(crate) fn is_extern_of_program(&self, full_name: &str) -> bool {
        let library = Options {
            extern_paths: Vec::new(),
            ..self.clone()
        };
        let path = self.extern_path(full_name);
        path.is_some() && path != library.extern_path(full_name)
    }

    /// Whether a whole package's code is elsewhere.
    pub(crate) fn is_extern_package(&self, package: &str) -> bool {
        !package.is_empty() && self.extern_path(package).is_some()
    }

    pub(crate) fn type_attributes(&self, full_name: &str) -> Vec<&str> {
        matching(&self.type_attributes, full_name)
    }

    pub(crate) fn field_attributes(&self, full_name: &str) -> Vec<&str> {
        matching(&self.field_attributes, full_name)
    }
}

/// The path of what is below a module or a type: of messages on the way their modules, at the end the type.
fn path_below(rust: &str, below: &str) -> String {
    let Some((outer, name)) = below
        .rsplit_once('.')
        .or((!below.is_empty()).then_some(("", below)))
    else {
        return rust.to_owned();
    };
    // A type that something is below of is meant by its module.
    let (front, last) = rust.rsplit_once("::").unwrap_or(("", rust));
    let base = if last.starts_with(|first: char| first.is_ascii_uppercase()) {
        format!("{front}::{}", snake(last))
    } else {
        rust.to_owned()
    };
    let modules = outer.split('.').filter(|module| !module.is_empty()).map(snake);
    [base]
        .into_iter()
        .chain(modules)
        .chain([camel(name)])
        .collect::<Vec<_>>()
        .join("::")
}

fn is_within(full_name: &str, path: &str) -> bool {
    let rest = full_name.strip_prefix(path);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The attributes whose paths match: `.` is everything; a path that begins with a dot is a full name, and what is in it; any
/// other is the end of a name.
fn matching<'a>(attributes: &'a [Attribute], full_name: &str) -> Vec<&'a str> {
    let full_name = format!(".{full_name}");
    let matches = |path: &str| match path.strip_prefix('.') {
        Some("") => true,
        Some(_) => is_within(&full_name, path),
        None => full_name.ends_with(&format!(".{path}")),
    };
    let matching = attributes.iter().filter(|attribute| matches(&attribute.path));
    matching.map(|attribute| attribute.attribute.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(paths: &[(&str, &str)]) -> Options {
        let path = |(proto, rust): &(&str, &str)| ExternPath {
            proto: (*proto).to_owned(),
            rust: (*rust).to_owned(),
        };
        Options {
            extern_paths: paths.iter().map(path).collect(),
            ..Options::default()
        }
    }

    #[test]
    fn the_longest_extern_path_counts() {
        let options = options(&[
            (".a", "::a"),
            (".a.b.C", "::other::Thing"),
            (".google.protobuf.Any", "::mine::Any"),
        ]);
        let path = |name| options.extern_path(name);
        assert_eq!(path("a.b.D").as_deref(), Some("::a::b::D"));
        assert_eq!(path("a.b.C").as_deref(), Some("::other::Thing"));
        assert_eq!(path("a.b.C.Inner").as_deref(), Some("::other::thing::Inner"));
        assert_eq!(path("ab.C"), None);
        assert_eq!(path("google.protobuf.Any").as_deref(), Some("::mine::Any"));
        assert_eq!(
            path("google.protobuf.Timestamp").as_deref(),
            Some("::provost::well_known::Timestamp")
        );
        assert_eq!(
            path("google.rpc.BadRequest.FieldViolation").as_deref(),
            Some("::provost::error_details::bad_request::FieldViolation")
        );
        assert_eq!(path("google.rpc.Other"), None);
        assert!(options.is_extern_package("google.protobuf") && !options.is_extern_package("google.rpc"));
    }

    #[test]
    fn attributes_match_by_the_whole_name_or_its_end() {
        let attribute = |path: &str| Attribute {
            path: path.to_owned(),
            attribute: path.to_owned(),
        };
        let attributes = [".", ".a.B", "B", "B.c", ".a"].map(attribute);
        assert_eq!(matching(&attributes, "a.B"), [".", ".a.B", "B", ".a"]);
        assert_eq!(matching(&attributes, "a.B.c"), [".", ".a.B", "B.c", ".a"]);
        assert_eq!(matching(&attributes, "x.B"), [".", "B"]);
        assert_eq!(matching(&attributes, "x.AB"), ["."]);
    }
}
