//! The schema that attackers bring.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_schema::{MessageId, Schema, SchemaHash};

use crate::Failure;

/// Services that answer as they should: on another node, and on the attackers' own.
pub const TARGETS: [&str; 2] = ["target.Target", "target.NearTarget"];
/// Services of apps that break every rule: on another node, and on the attackers' own.
pub const VANDALS: [&str; 2] = ["target.Vandal", "target.NearVandal"];
/// Services that answer as they should, behind an access policy: on another node, on the attackers' own, and there with
/// the policy on the server's side.
pub const GUARDED: [&str; 3] = ["target.Guarded", "target.NearGuarded", "target.InnerGuarded"];
/// Index of the unary method in all of them.
pub const TAKE: u16 = 0;
/// Index of the streaming method in all of them.
pub const TALK: u16 = 1;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto/target.proto");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");

/// A descriptor set whose services each reach all of its fields: it is small, and what is made of each service is not.
#[must_use]
pub fn bomb(services: usize, messages: usize, fields: i32) -> Vec<u8> {
    bomb_of("bomb.S", services, messages, fields)
}

/// The same. This is the name of its first service, and the others' begin with it.
#[must_use]
pub fn bomb_of(service: &str, services: usize, messages: usize, fields: i32) -> Vec<u8> {
    let (package, service) = service.rsplit_once('.').unwrap_or_default();
    let chain = (0..messages).map(|at| {
        let mut all: Vec<_> = (1..fields).map(|number| field(number, Type::Bool)).collect();
        all.push(FieldDescriptorProto {
            type_name: Some(format!(".{package}.M{}", (at + 1) % messages)),
            ..field(fields, Type::Message)
        });
        DescriptorProto {
            name: Some(format!("M{at}")),
            field: all,
            ..DescriptorProto::default()
        }
    });
    let nth = |at| {
        if at == 0 {
            service.to_owned()
        } else {
            format!("{service}{at}")
        }
    };
    let services = (0..services).map(|at| ServiceDescriptorProto {
        name: Some(nth(at)),
        method: vec![MethodDescriptorProto {
            name: Some("Call".to_owned()),
            input_type: Some(format!(".{package}.M0")),
            output_type: Some(format!(".{package}.M0")),
            ..MethodDescriptorProto::default()
        }],
        ..ServiceDescriptorProto::default()
    });
    let file = FileDescriptorProto {
        name: Some("bomb.proto".to_owned()),
        package: Some(package.to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: chain.collect(),
        service: services.collect(),
        ..FileDescriptorProto::default()
    };
    prost::Message::encode_to_vec(&FileDescriptorSet { file: vec![file] })
}

/// A descriptor set that is refused for a type of so long a name.
#[must_use]
pub fn of_a_long_name(bytes: usize) -> Vec<u8> {
    let unknown = || Some(format!(".long.{}", "x".repeat(bytes)));
    let service = ServiceDescriptorProto {
        name: Some("S".to_owned()),
        method: vec![MethodDescriptorProto {
            name: Some("Call".to_owned()),
            input_type: unknown(),
            output_type: unknown(),
            ..MethodDescriptorProto::default()
        }],
        ..ServiceDescriptorProto::default()
    };
    let file = FileDescriptorProto {
        name: Some("long.proto".to_owned()),
        package: Some("long".to_owned()),
        syntax: Some("proto3".to_owned()),
        service: vec![service],
        ..FileDescriptorProto::default()
    };
    prost::Message::encode_to_vec(&FileDescriptorSet { file: vec![file] })
}

fn field(number: i32, ty: Type) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(format!("f{number}")),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(ty.into()),
        ..FieldDescriptorProto::default()
    }
}

/// What is needed of `target.proto`.
#[derive(Clone, Debug)]
pub struct TargetSchema {
    /// The serialized `FileDescriptorSet`.
    pub descriptor_set: Vec<u8>,
    /// The same, checked and laid out.
    pub schema: Schema,
    /// `target.Everything`.
    pub everything: MessageId,
}

impl TargetSchema {
    /// Compiles `target.proto`.
    pub fn load() -> Result<TargetSchema, Failure> {
        let set = protox::compile([SOURCE], [ROOT]).map_err(|error| Failure::new(format!("{error:?}")))?;
        let descriptor_set = prost::Message::encode_to_vec(&set);
        let schema =
            Schema::from_descriptor_set(&descriptor_set).map_err(|error| Failure::new(error.to_string()))?;
        let everything = schema
            .messages
            .iter()
            .position(|message| message.full_name == "target.Everything");
        let everything = MessageId(everything.ok_or_else(|| Failure::new("no target.Everything"))? as u32);
        Ok(TargetSchema {
            descriptor_set,
            schema,
            everything,
        })
    }

    /// The hash of a service.
    #[must_use]
    pub fn hash(&self, service: &str) -> SchemaHash {
        self.schema.service_hash(service).unwrap_or(SchemaHash([0; 32]))
    }
}
