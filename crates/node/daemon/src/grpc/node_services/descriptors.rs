//! The schemas of the node's own services, for clients that ask for them: as gRPC's health checking and server reflection
//! protocols declare them.

use std::sync::{Arc, LazyLock};

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};

/// gRPC's `grpc/channelz/v1/channelz.proto` and what it imports, as `protoc --include_imports --descriptor_set_out` writes them. What a
/// node fills of it is in [`super::channelz`].
const CHANNELZ: &[u8] = include_bytes!("channelz/channelz.binpb");

/// All of them, as a `FileDescriptorSet`.
pub(super) fn own_set() -> Arc<[u8]> {
    static OWN: LazyLock<Arc<[u8]>> = LazyLock::new(|| {
        let file = vec![health(), reflection("v1"), reflection("v1alpha")];
        let mut set = FileDescriptorSet { file }.encode_to_vec();
        // Lists that are encoded one after the other are one list.
        set.extend_from_slice(CHANNELZ);
        set.into()
    });
    Arc::clone(&OWN)
}

fn health() -> FileDescriptorProto {
    let package = "grpc.health.v1";
    let named = |name: &str| format!(".{package}.{name}");
    let mut response = message(
        "HealthCheckResponse",
        vec![field("status", 1, Type::Enum).of(&named("HealthCheckResponse.ServingStatus"))],
    );
    response.enum_type = vec![enumeration(
        "ServingStatus",
        &["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"],
    )];
    let mut entry = message(
        "StatusesEntry",
        vec![
            field("key", 1, Type::String),
            field("value", 2, Type::Message).of(&named("HealthCheckResponse")),
        ],
    );
    entry.options = Some(MessageOptions {
        map_entry: Some(true),
        ..MessageOptions::default()
    });
    let statuses = field("statuses", 1, Type::Message)
        .of(&named("HealthListResponse.StatusesEntry"))
        .repeated();
    let mut list = message("HealthListResponse", vec![statuses]);
    list.nested_type = vec![entry];
    let [request, of_check] = ["HealthCheckRequest", "HealthCheckResponse"].map(named);
    FileDescriptorProto {
        message_type: vec![
            message("HealthCheckRequest", vec![field("service", 1, Type::String)]),
            response,
            message("HealthListRequest", vec![]),
            list,
        ],
        service: vec![ServiceDescriptorProto {
            name: Some("Health".to_owned()),
            method: vec![
                method("Check", &request, &of_check, [false, false]),
                method(
                    "List",
                    &named("HealthListRequest"),
                    &named("HealthListResponse"),
                    [false, false],
                ),
                method("Watch", &request, &of_check, [false, true]),
            ],
            ..ServiceDescriptorProto::default()
        }],
        ..file("grpc/health/v1/health.proto", package)
    }
}

fn reflection(version: &str) -> FileDescriptorProto {
    let package = format!("grpc.reflection.{version}");
    let named = |name: &str| format!(".{package}.{name}");
    let asked = "message_request";
    let mut request = message(
        "ServerReflectionRequest",
        vec![
            field("host", 1, Type::String),
            field("file_by_filename", 3, Type::String).in_oneof(),
            field("file_containing_symbol", 4, Type::String).in_oneof(),
            field("file_containing_extension", 5, Type::Message)
                .of(&named("ExtensionRequest"))
                .in_oneof(),
            field("all_extension_numbers_of_type", 6, Type::String).in_oneof(),
            field("list_services", 7, Type::String).in_oneof(),
        ],
    );
    request.oneof_decl = vec![oneof(asked)];
    let part =
        |name: &str, number, kind: &str| field(name, number, Type::Message).of(&named(kind)).in_oneof();
    let mut response = message(
        "ServerReflectionResponse",
        vec![
            field("valid_host", 1, Type::String),
            field("original_request", 2, Type::Message).of(&named("ServerReflectionRequest")),
            part("file_descriptor_response", 4, "FileDescriptorResponse"),
            part("all_extension_numbers_response", 5, "ExtensionNumberResponse"),
            part("list_services_response", 6, "ListServiceResponse"),
            part("error_response", 7, "ErrorResponse"),
        ],
    );
    response.oneof_decl = vec![oneof("message_response")];
    let services = field("service", 1, Type::Message)
        .of(&named("ServiceResponse"))
        .repeated();
    let [from, to] = ["ServerReflectionRequest", "ServerReflectionResponse"].map(named);
    FileDescriptorProto {
        message_type: vec![
            request,
            message(
                "ExtensionRequest",
                vec![
                    field("containing_type", 1, Type::String),
                    field("extension_number", 2, Type::Int32),
                ],
            ),
            response,
            message(
                "FileDescriptorResponse",
                vec![field("file_descriptor_proto", 1, Type::Bytes).repeated()],
            ),
            message(
                "ExtensionNumberResponse",
                vec![
                    field("base_type_name", 1, Type::String),
                    field("extension_number", 2, Type::Int32).repeated(),
                ],
            ),
            message("ListServiceResponse", vec![services]),
            message("ServiceResponse", vec![field("name", 1, Type::String)]),
            message(
                "ErrorResponse",
                vec![
                    field("error_code", 1, Type::Int32),
                    field("error_message", 2, Type::String),
                ],
            ),
        ],
        service: vec![ServiceDescriptorProto {
            name: Some("ServerReflection".to_owned()),
            method: vec![method("ServerReflectionInfo", &from, &to, [true, true])],
            ..ServiceDescriptorProto::default()
        }],
        ..file(&format!("grpc/reflection/{version}/reflection.proto"), &package)
    }
}

fn file(name: &str, package: &str) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    }
}

fn message(name: &str, fields: Vec<FieldOf>) -> DescriptorProto {
    DescriptorProto {
        name: Some(name.to_owned()),
        field: fields.into_iter().map(|field| field.0).collect(),
        ..DescriptorProto::default()
    }
}

/// A field that is being described.
struct FieldOf(FieldDescriptorProto);

fn field(name: &str, number: i32, kind: Type) -> FieldOf {
    FieldOf(FieldDescriptorProto {
        name: Some(name.to_owned()),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        ..FieldDescriptorProto::default()
    })
}

impl FieldOf {
    fn of(mut self, type_name: &str) -> FieldOf {
        self.0.type_name = Some(type_name.to_owned());
        self
    }

    fn repeated(mut self) -> FieldOf {
        self.0.label = Some(Label::Repeated.into());
        self
    }

    /// In the only one of its message.
    fn in_oneof(mut self) -> FieldOf {
        self.0.oneof_index = Some(0);
        self
    }
}

fn oneof(name: &str) -> OneofDescriptorProto {
    OneofDescriptorProto {
        name: Some(name.to_owned()),
        ..OneofDescriptorProto::default()
    }
}

fn enumeration(name: &str, values: &[&str]) -> EnumDescriptorProto {
    let value = |(number, name): (i32, &&str)| EnumValueDescriptorProto {
        name: Some((*name).to_owned()),
        number: Some(number),
        ..EnumValueDescriptorProto::default()
    };
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: (0..).zip(values).map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

/// Whether client and server send any number of messages, in this order.
fn method(name: &str, input: &str, output: &str, streaming: [bool; 2]) -> MethodDescriptorProto {
    MethodDescriptorProto {
        name: Some(name.to_owned()),
        input_type: Some(input.to_owned()),
        output_type: Some(output.to_owned()),
        client_streaming: Some(streaming[0]),
        server_streaming: Some(streaming[1]),
        ..MethodDescriptorProto::default()
    }
}

#[cfg(test)]
mod tests {
    use provost_schema::Schema;

    use super::*;

    #[test]
    fn they_are_schemas_as_others_are() {
        let schema = Schema::from_descriptor_set(&own_set()).unwrap();
        let health = schema.service("grpc.health.v1.Health").unwrap();
        let watch = health
            .methods
            .iter()
            .find(|method| method.name == "Watch")
            .unwrap();
        assert!(watch.server_streaming && !watch.client_streaming);
        for version in ["v1", "v1alpha"] {
            let name = format!("grpc.reflection.{version}.ServerReflection");
            let reflection = schema.service(&name).unwrap();
            assert!(reflection.methods[0].server_streaming && reflection.methods[0].client_streaming);
        }
        let channelz = schema.service("grpc.channelz.v1.Channelz").unwrap();
        let methods = channelz.methods.iter().map(|method| method.name.as_str());
        let mut methods: Vec<_> = methods.collect();
        methods.sort_unstable();
        let answered = super::super::METHODS.iter().filter_map(|(_, path, _)| {
            let (_, method) = path.split_once("grpc.channelz.v1.Channelz/")?;
            Some(method)
        });
        let mut answered: Vec<_> = answered.collect();
        answered.sort_unstable();
        assert_eq!(methods, answered);
    }
}
