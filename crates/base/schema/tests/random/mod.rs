//! Random schemas as descriptor sets.

use proptest::prelude::*;
use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type as ProtoType};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FieldOptions,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto, OneofDescriptorProto,
    ServiceDescriptorProto,
};

pub(crate) const SERVICE: &str = "random.Random";

const SCALARS: [ProtoType; 15] = [
    ProtoType::Double,
    ProtoType::Float,
    ProtoType::Int64,
    ProtoType::Uint64,
    ProtoType::Int32,
    ProtoType::Fixed64,
    ProtoType::Fixed32,
    ProtoType::Bool,
    ProtoType::String,
    ProtoType::Bytes,
    ProtoType::Uint32,
    ProtoType::Sfixed32,
    ProtoType::Sfixed64,
    ProtoType::Sint32,
    ProtoType::Sint64,
];

const KEYS: [ProtoType; 6] = [
    ProtoType::Bool,
    ProtoType::Int32,
    ProtoType::Uint64,
    ProtoType::Sfixed32,
    ProtoType::Sint64,
    ProtoType::String,
];

/// What a field is made of; indices are taken modulo what there is.
#[derive(Clone, Debug)]
pub(crate) struct RandomField {
    kind: Kind,
    ty: RandomType,
}

#[derive(Clone, Debug)]
enum Kind {
    Implicit,
    Optional,
    Repeated(Option<bool>),
    Map(usize),
    /// In the oneof of this number.
    Oneof(usize),
}

#[derive(Clone, Debug)]
enum RandomType {
    Scalar(usize),
    Message(usize),
    Enum(usize),
}

pub(crate) fn messages() -> impl Strategy<Value = Vec<Vec<RandomField>>> {
    let kind = prop_oneof![
        3 => Just(Kind::Implicit),
        1 => Just(Kind::Optional),
        1 => proptest::option::of(any::<bool>()).prop_map(Kind::Repeated),
        1 => (0..KEYS.len()).prop_map(Kind::Map),
        2 => (0..2_usize).prop_map(Kind::Oneof),
    ];
    let ty = prop_oneof![
        4 => (0..SCALARS.len()).prop_map(RandomType::Scalar),
        1 => any::<usize>().prop_map(RandomType::Message),
        1 => (0..2_usize).prop_map(RandomType::Enum),
    ];
    let field = (kind, ty).prop_map(|(kind, ty)| RandomField { kind, ty });
    proptest::collection::vec(proptest::collection::vec(field, 0..12), 1..6)
}

/// The messages as one file each, an enum file, and a file with a service that reaches all of them.
pub(crate) fn descriptor_set(messages: &[Vec<RandomField>]) -> FileDescriptorSet {
    let mut files: Vec<FileDescriptorProto> = Vec::new();
    for (index, fields) in messages.iter().enumerate() {
        let mut file = self::file(&format!("m{index}.proto"));
        file.message_type.push(message(index, fields, messages.len()));
        files.push(file);
    }
    let mut enums = file("enums.proto");
    enums.enum_type.extend((0..2).map(enumeration));
    files.push(enums);
    let mut service = file("service.proto");
    service.service.push(ServiceDescriptorProto {
        name: Some("Random".into()),
        method: (0..messages.len())
            .map(|index| method(index, messages.len()))
            .collect(),
        options: None,
    });
    files.push(service);
    FileDescriptorSet { file: files }
}

pub(crate) fn encoded(set: &FileDescriptorSet) -> Vec<u8> {
    set.encode_to_vec()
}

fn file(name: &str) -> FileDescriptorProto {
    FileDescriptorProto {
        name: Some(name.into()),
        package: Some("random".into()),
        syntax: Some("proto3".into()),
        ..FileDescriptorProto::default()
    }
}

fn method(index: usize, count: usize) -> MethodDescriptorProto {
    MethodDescriptorProto {
        name: Some(format!("Method{index}")),
        input_type: Some(format!(".random.M{index}")),
        output_type: Some(format!(".random.M{}", (index + 1) % count)),
        client_streaming: Some(index & 1 == 1),
        server_streaming: Some(index & 2 == 2),
        options: None,
    }
}

fn enumeration(index: usize) -> EnumDescriptorProto {
    let value = |number| EnumValueDescriptorProto {
        name: Some(format!("E{index}_{number}")),
        number: Some(number),
        options: None,
    };
    EnumDescriptorProto {
        name: Some(format!("E{index}")),
        value: (0..3).map(value).collect(),
        ..EnumDescriptorProto::default()
    }
}

fn message(index: usize, fields: &[RandomField], count: usize) -> DescriptorProto {
    let mut proto = DescriptorProto {
        name: Some(format!("M{index}")),
        ..DescriptorProto::default()
    };
    let mut oneofs = [None; 2];
    for (at, field) in fields.iter().enumerate() {
        add_field(&mut proto, index, at, field, count, &mut oneofs);
    }
    // The synthetic oneofs of optional fields come last, as compilers have them.
    for (at, field) in fields.iter().enumerate() {
        if matches!(field.kind, Kind::Optional) {
            proto.field[at].oneof_index = Some(proto.oneof_decl.len() as i32);
            proto.oneof_decl.push(OneofDescriptorProto {
                name: Some(format!("_f{at}")),
                options: None,
            });
        }
    }
    proto
}

fn add_field(
    proto: &mut DescriptorProto,
    message: usize,
    at: usize,
    field: &RandomField,
    count: usize,
    oneofs: &mut [Option<i32>; 2],
) {
    // Numbers that do not follow the order of declaration.
    let number = (at as i32 * 7) % 13 + 1;
    let mut out = typed(&format!("f{at}"), number, &field.ty, count);
    match field.kind {
        Kind::Implicit => {}
        Kind::Optional => out.proto3_optional = Some(true),
        Kind::Repeated(packed) => {
            out.label = Some(Label::Repeated as i32);
            let packable = !matches!(
                out.r#type(),
                ProtoType::String | ProtoType::Bytes | ProtoType::Message
            );
            if let (true, Some(packed)) = (packable, packed) {
                out.options = Some(FieldOptions {
                    packed: Some(packed),
                    ..FieldOptions::default()
                });
            }
        }
        Kind::Oneof(oneof) => {
            let index = *oneofs[oneof].get_or_insert_with(|| {
                proto.oneof_decl.push(OneofDescriptorProto {
                    name: Some(format!("o{oneof}")),
                    options: None,
                });
                proto.oneof_decl.len() as i32 - 1
            });
            out.oneof_index = Some(index);
        }
        Kind::Map(key) => {
            let entry = format!("F{at}Entry");
            let key = FieldDescriptorProto {
                r#type: Some(KEYS[key] as i32),
                ..plain("key", 1)
            };
            proto.nested_type.push(DescriptorProto {
                name: Some(entry.clone()),
                field: vec![key, typed("value", 2, &field.ty, count)],
                options: Some(MessageOptions {
                    map_entry: Some(true),
                    ..MessageOptions::default()
                }),
                ..DescriptorProto::default()
            });
            out.label = Some(Label::Repeated as i32);
            out.r#type = Some(ProtoType::Message as i32);
            out.type_name = Some(format!(".random.M{message}.{entry}"));
        }
    }
    proto.field.push(out);
}

fn plain(name: &str, number: i32) -> FieldDescriptorProto {
    FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        label: Some(Label::Optional as i32),
        ..FieldDescriptorProto::default()
    }
}

fn typed(name: &str, number: i32, ty: &RandomType, count: usize) -> FieldDescriptorProto {
    let (ty, type_name) = match ty {
        RandomType::Scalar(index) => (SCALARS[*index], None),
        RandomType::Message(index) => (ProtoType::Message, Some(format!(".random.M{}", index % count))),
        RandomType::Enum(index) => (ProtoType::Enum, Some(format!(".random.E{index}"))),
    };
    FieldDescriptorProto {
        r#type: Some(ty as i32),
        type_name,
        ..plain(name, number)
    }
}
