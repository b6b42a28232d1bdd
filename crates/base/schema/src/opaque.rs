//! Schemas of services of which nobody has brought one: methods by their names alone, of messages that nobody can read.
//!
//! Such a schema says where calls go and what policies may know of them. Its messages pass as the bytes that they came as.

use prost::Message as _;
use prost_types::{
    DescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto,
};

use provost_wire::limits::NAME_BYTES_MAX;

use crate::load::is_identifier;
use crate::{Message, Schema};

/// The package of the message that stands for all that cannot be read.
const PACKAGE: &str = "provost.opaque";
/// Its full name, which no schema but an opaque one has.
const MESSAGE: &str = "provost.opaque.Message";
/// The file that declares it.
const MESSAGE_FILE: &str = "provost/opaque/message.proto";

/// A method of an opaque service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpaqueMethod {
    /// Its name, which the schema checks as it checks others.
    pub name: String,
    /// Whether the client may send any number of messages.
    pub client_streaming: bool,
    /// Whether the server may send any number of messages.
    pub server_streaming: bool,
}

impl OpaqueMethod {
    /// One of which the name alone is known: as either end may send any number of messages, calls of each kind pass.
    #[must_use]
    pub fn of_any_kind(name: &str) -> OpaqueMethod {
        OpaqueMethod {
            name: name.to_owned(),
            client_streaming: true,
            server_streaming: true,
        }
    }
}

/// Whether a method of a service can have this name.
///
/// ```
/// assert!(provost_schema::is_method_name("a.B", "Get"));
/// assert!(!provost_schema::is_method_name("a.B", "Get all"));
/// ```
#[must_use]
pub fn is_method_name(service: &str, method: &str) -> bool {
    is_identifier(method) && service.len() + 1 + method.len() <= NAME_BYTES_MAX
}

/// The `FileDescriptorSet` of a service with these methods and no message that can be read. What it names is not checked:
/// [`Schema::from_descriptor_set`] does that.
#[must_use]
pub fn opaque_descriptor_set(service: &str, methods: impl IntoIterator<Item = OpaqueMethod>) -> Vec<u8> {
    let (package, name) = match service.rsplit_once('.') {
        Some((package, name)) => (Some(package.to_owned()), name),
        None => (None, service),
    };
    let message = FileDescriptorProto {
        name: Some(MESSAGE_FILE.to_owned()),
        package: Some(PACKAGE.to_owned()),
        message_type: vec![DescriptorProto {
            name: MESSAGE.rsplit('.').next().map(str::to_owned),
            ..DescriptorProto::default()
        }],
        ..proto3()
    };
    let service = FileDescriptorProto {
        name: Some(format!("provost/opaque/{service}.proto")),
        package,
        dependency: vec![MESSAGE_FILE.to_owned()],
        service: vec![ServiceDescriptorProto {
            name: Some(name.to_owned()),
            method: methods.into_iter().map(describe).collect(),
            ..ServiceDescriptorProto::default()
        }],
        ..proto3()
    };
    FileDescriptorSet {
        file: vec![message, service],
    }
    .encode_to_vec()
}

fn proto3() -> FileDescriptorProto {
    FileDescriptorProto {
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn describe(method: OpaqueMethod) -> MethodDescriptorProto {
    let message = Some(format!(".{MESSAGE}"));
    MethodDescriptorProto {
        name: Some(method.name),
        input_type: message.clone(),
        output_type: message,
        client_streaming: Some(method.client_streaming),
        server_streaming: Some(method.server_streaming),
        ..MethodDescriptorProto::default()
    }
}

impl Schema {
    /// Whether nothing is known of its messages.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.messages.iter().any(Message::is_opaque)
    }
}

impl Message {
    /// Whether it stands for messages of which nothing is known.
    #[must_use]
    pub fn is_opaque(&self) -> bool {
        self.full_name == MESSAGE
    }
}

/// Says that a message has no field of a name, and why, where the message is opaque.
#[must_use]
pub fn lacks_field(message: &str, field: &str) -> String {
    if message == MESSAGE {
        return format!(
            "there is no field {field}, as no schema of this service is known on this node: name its file in \
             schemas.prefetch, or give it with provost schema prefetch"
        );
    }
    format!("{message} has no field {field}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(service: &str, methods: &[&str]) -> Result<Schema, crate::SchemaError> {
        let methods = methods.iter().map(|name| OpaqueMethod::of_any_kind(name));
        Schema::from_descriptor_set(&opaque_descriptor_set(service, methods))
    }

    #[test]
    fn a_service_has_the_methods_that_are_named() {
        for name in ["a.b.Service", "Service"] {
            let schema = schema(name, &["Get", "Put"]).unwrap();
            assert!(schema.is_opaque());
            let service = schema.service(name).unwrap();
            let methods: Vec<_> = service.methods.iter().map(|method| &*method.name).collect();
            assert_eq!(methods, ["Get", "Put"]);
            assert!(
                service
                    .methods
                    .iter()
                    .all(|method| method.client_streaming && method.server_streaming)
            );
            let message = schema.message(service.methods[0].input);
            assert!(message.is_opaque() && message.fields().next().is_none());
        }
    }

    #[test]
    fn names_that_no_schema_could_have_are_refused() {
        for (service, method) in [
            ("a.B", "not a name"),
            ("a.B", ""),
            ("a..B", "Get"),
            ("", "Get"),
            ("a.B/C", "Get"),
        ] {
            assert!(schema(service, &[method]).is_err(), "{service} {method}");
        }
        assert!(schema("a.B", &["Get", "Get"]).is_err());
    }

    #[test]
    fn the_reason_says_what_a_message_that_cannot_be_read_lacks() {
        assert_eq!(lacks_field("a.M", "key"), "a.M has no field key");
        let why = lacks_field(MESSAGE, "key");
        assert!(why.contains("no schema of this service") && why.contains("prefetch"));
    }
}
