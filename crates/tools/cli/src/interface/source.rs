//! A schema as people write it: the text of `.proto` files.

use std::collections::BTreeSet;
use std::fmt::Write;

use prost_reflect::{
    Cardinality, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, MethodDescriptor,
    OneofDescriptor, ServiceDescriptor, Syntax,
};

/// Types of this package are everybody's, and not shown.
const WELL_KNOWN: &str = "google.protobuf";

/// A type that a message may be made of.
#[derive(Clone, Debug)]
enum NamedType {
    Message(MessageDescriptor),
    Enum(EnumDescriptor),
}

/// The text of a service, or of one of its methods, and of all that its messages are made of.
pub(crate) fn source_of(service: &ServiceDescriptor, methods: &[MethodDescriptor]) -> String {
    let package = service.package_name();
    let mut out = format!("service {} {{\n", service.name());
    for method in methods {
        let _ = writeln!(out, "  {};", signature(method, package));
    }
    out += "}\n";
    for one in types_of(methods) {
        out.push('\n');
        match &one {
            NamedType::Message(message) => write_message(&mut out, message, package, 0),
            NamedType::Enum(enumeration) => write_enum(&mut out, enumeration, 0),
        }
    }
    out
}

/// `rpc Get(GetRequest) returns (stream GetResponse)`, with the names of this package short.
pub(crate) fn signature(method: &MethodDescriptor, package: &str) -> String {
    let side = |message: &MessageDescriptor, is_stream: bool| {
        let stream = if is_stream { "stream " } else { "" };
        format!("({stream}{})", short(message.full_name(), package))
    };
    let request = side(&method.input(), method.is_client_streaming());
    let response = side(&method.output(), method.is_server_streaming());
    format!("rpc {}{request} returns {response}", method.name())
}

/// All that the messages of these methods are made of, but for what stands within another; each once, in the order in which
/// one meets them.
fn types_of(methods: &[MethodDescriptor]) -> Vec<NamedType> {
    let mut seen = BTreeSet::new();
    let mut types = Vec::new();
    let mut left: Vec<_> = methods
        .iter()
        .rev()
        .flat_map(|method| [method.output(), method.input()])
        .map(NamedType::Message)
        .collect();
    while let Some(met) = left.pop() {
        let outermost = met.outermost();
        if !seen.insert(outermost.full_name().to_owned()) {
            continue;
        }
        let mut inner = Vec::new();
        if let NamedType::Message(message) = &outermost {
            collect_fields(message, &mut inner);
        }
        left.extend(inner.into_iter().rev());
        if outermost.file().package_name() != WELL_KNOWN {
            types.push(outermost);
        }
    }
    types
}

/// The types of a message's fields, and of those of the messages within it.
fn collect_fields(message: &MessageDescriptor, types: &mut Vec<NamedType>) {
    for field in message.fields() {
        match field.kind() {
            Kind::Message(message) => types.push(NamedType::Message(message)),
            Kind::Enum(enumeration) => types.push(NamedType::Enum(enumeration)),
            _ => {}
        }
    }
    for inner in message.child_messages() {
        collect_fields(&inner, types);
    }
}

impl NamedType {
    fn full_name(&self) -> &str {
        match self {
            NamedType::Message(message) => message.full_name(),
            NamedType::Enum(enumeration) => enumeration.full_name(),
        }
    }

    fn file(&self) -> FileDescriptor {
        match self {
            NamedType::Message(message) => message.parent_file(),
            NamedType::Enum(enumeration) => enumeration.parent_file(),
        }
    }

    /// The type that it stands within, or it.
    fn outermost(self) -> NamedType {
        let parent = match &self {
            NamedType::Message(message) => message.parent_message(),
            NamedType::Enum(enumeration) => enumeration.parent_message(),
        };
        match parent {
            Some(parent) => NamedType::Message(parent).outermost(),
            None => self,
        }
    }
}

fn write_message(out: &mut String, message: &MessageDescriptor, package: &str, depth: usize) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}message {} {{", message.name());
    let mut shown = BTreeSet::new();
    for field in message.fields() {
        let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
        match oneof {
            Some(oneof) if shown.insert(oneof.name().to_owned()) => {
                write_oneof(out, &oneof, package, depth + 1);
            }
            Some(_) => {}
            None => write_field(out, &field, package, depth + 1),
        }
    }
    for inner in message.child_messages().filter(|inner| !inner.is_map_entry()) {
        write_message(out, &inner, package, depth + 1);
    }
    for inner in message.child_enums() {
        write_enum(out, &inner, depth + 1);
    }
    let _ = writeln!(out, "{indent}}}");
}

fn write_oneof(out: &mut String, oneof: &OneofDescriptor, package: &str, depth: usize) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}oneof {} {{", oneof.name());
    for field in oneof.fields() {
        write_field(out, &field, package, depth + 1);
    }
    let _ = writeln!(out, "{indent}}}");
}

fn write_field(out: &mut String, field: &FieldDescriptor, package: &str, depth: usize) {
    let indent = "  ".repeat(depth);
    let kind = match field.kind() {
        Kind::Message(entry) if field.is_map() => {
            let part = |field: &FieldDescriptor| type_name(&field.kind(), package);
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            format!("map<{}, {}>", part(&key), part(&value))
        }
        kind => format!("{}{}", label(field), type_name(&kind, package)),
    };
    let _ = writeln!(out, "{indent}{kind} {} = {};", field.name(), field.number());
}

/// What stands before the type of a field.
fn label(field: &FieldDescriptor) -> &'static str {
    let is_proto2 = field.parent_file().syntax() == Syntax::Proto2;
    let is_synthetic = field.containing_oneof().is_some_and(|oneof| oneof.is_synthetic());
    match field.cardinality() {
        Cardinality::Repeated => "repeated ",
        Cardinality::Required => "required ",
        Cardinality::Optional if is_synthetic => "optional ",
        Cardinality::Optional if is_proto2 && field.containing_oneof().is_none() => "optional ",
        Cardinality::Optional => "",
    }
}

fn write_enum(out: &mut String, enumeration: &EnumDescriptor, depth: usize) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(out, "{indent}enum {} {{", enumeration.name());
    for value in enumeration.values() {
        let _ = writeln!(out, "{indent}  {} = {};", value.name(), value.number());
    }
    let _ = writeln!(out, "{indent}}}");
}

fn type_name(kind: &Kind, package: &str) -> String {
    let name = match kind {
        Kind::Double => "double",
        Kind::Float => "float",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Uint32 => "uint32",
        Kind::Uint64 => "uint64",
        Kind::Sint32 => "sint32",
        Kind::Sint64 => "sint64",
        Kind::Fixed32 => "fixed32",
        Kind::Fixed64 => "fixed64",
        Kind::Sfixed32 => "sfixed32",
        Kind::Sfixed64 => "sfixed64",
        Kind::Bool => "bool",
        Kind::String => "string",
        Kind::Bytes => "bytes",
        Kind::Message(message) => return short(message.full_name(), package),
        Kind::Enum(enumeration) => return short(enumeration.full_name(), package),
    };
    name.to_owned()
}

/// A full name without the package in which it is read.
fn short(full_name: &str, package: &str) -> String {
    let rest = full_name
        .strip_prefix(package)
        .and_then(|rest| rest.strip_prefix('.'));
    rest.unwrap_or(full_name).to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::interface;
    use super::*;

    const PROTO: &str = "\
syntax = \"proto3\";
package shop.v1;
import \"google/protobuf/timestamp.proto\";
service Shop {
  rpc Order(OrderRequest) returns (OrderReply);
  rpc Follow(stream OrderRequest) returns (stream Event);
}
message OrderRequest {
  string customer = 1;
  repeated Line lines = 2;
  map<string, Line.Size> sizes = 3;
  optional uint32 floor = 4;
  oneof how {
    string street = 5;
    bool pick_up = 6;
  }
  google.protobuf.Timestamp at = 7;
}
message Line {
  string name = 1;
  Size size = 2;
  enum Size {
    SMALL = 0;
    LARGE = 1;
  }
}
message OrderReply {
  OrderReply before = 1;
}
message Event {
  int64 number = 1;
}
message Unused {
}
";

    #[test]
    fn what_is_shown_is_a_schema_that_says_the_same() {
        let shop = interface(PROTO, "Shop").unwrap();
        let methods: Vec<_> = shop.service.methods().collect();
        let source = source_of(&shop.service, &methods);
        assert!(
            !source.contains("Unused") && !source.contains("message Timestamp"),
            "{source}"
        );
        let again = format!(
            "syntax = \"proto3\"; package shop.v1; import \"google/protobuf/timestamp.proto\";\n{source}"
        );
        let again = interface(&again, "Shop").unwrap();
        let messages = |of: &ServiceDescriptor| {
            let pool = of.parent_pool();
            let mut messages: Vec<_> = pool
                .all_messages()
                .filter(|message| message.name() != "Unused")
                .map(|message| (message.full_name().to_owned(), message.descriptor_proto().clone()))
                .collect();
            messages.sort_by(|one, other| one.0.cmp(&other.0));
            messages
        };
        assert_eq!(messages(&again.service), messages(&shop.service));
    }

    #[test]
    fn a_method_brings_only_what_it_needs() {
        let shop = interface(PROTO, "Shop").unwrap();
        let order = shop.method("Order").unwrap();
        let source = source_of(&shop.service, &[order]);
        assert!(source.starts_with("service Shop {\n  rpc Order(OrderRequest) returns (OrderReply);\n}\n"));
        assert!(
            source.contains("message Line") && !source.contains("Event"),
            "{source}"
        );
    }
}
