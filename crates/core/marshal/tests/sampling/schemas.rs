//! Random schemas with every kind of field.

use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto, FieldOptions,
    FileDescriptorProto, FileDescriptorSet, MessageOptions, OneofDescriptorProto,
};

use super::entropy::Entropy;

const MESSAGES_MAX: usize = 5;
const FIELDS_MAX: usize = 9;
const SCALARS: [Type; 15] = [
    Type::Bool,
    Type::Int32,
    Type::Sint32,
    Type::Uint32,
    Type::Fixed32,
    Type::Sfixed32,
    Type::Int64,
    Type::Sint64,
    Type::Uint64,
    Type::Fixed64,
    Type::Sfixed64,
    Type::Float,
    Type::Double,
    Type::String,
    Type::Bytes,
];
const KEYS: [Type; 12] = [
    Type::String,
    Type::Bool,
    Type::Int32,
    Type::Sint32,
    Type::Uint32,
    Type::Fixed32,
    Type::Sfixed32,
    Type::Int64,
    Type::Sint64,
    Type::Uint64,
    Type::Fixed64,
    Type::Sfixed64,
];

pub(crate) fn sample(entropy: &mut Entropy<'_>) -> FileDescriptorSet {
    let count = 1 + entropy.below(MESSAGES_MAX);
    let messages = (0..count).map(|index| message(entropy, index, count)).collect();
    FileDescriptorSet {
        file: vec![FileDescriptorProto {
            name: Some("random.proto".into()),
            package: Some("random".into()),
            syntax: Some("proto3".into()),
            message_type: messages,
            enum_type: vec![EnumDescriptorProto {
                name: Some("Color".into()),
                value: [("NONE", 0), ("RED", 1), ("NEGATIVE", -7)].map(value).into(),
                ..Default::default()
            }],
            ..Default::default()
        }],
    }
}

fn value((name, number): (&str, i32)) -> EnumValueDescriptorProto {
    EnumValueDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        ..Default::default()
    }
}

fn message(entropy: &mut Entropy<'_>, index: usize, count: usize) -> DescriptorProto {
    let mut message = DescriptorProto {
        name: Some(format!("M{index}")),
        ..Default::default()
    };
    let mut synthetic = Vec::new();
    let mut number = 0;
    let mut next_number = |entropy: &mut Entropy<'_>| {
        number += 1 + match entropy.below(16) {
            15 => 5000 + entropy.below(200) as i32,
            14 => 18 + entropy.below(100) as i32,
            small => (small % 3) as i32,
        };
        number
    };
    for place in 0..entropy.below(FIELDS_MAX + 1) {
        match entropy.below(12) {
            0..4 => {
                let number = next_number(entropy);
                let mut field = singular(entropy, &format!("f{place}"), number, count);
                if entropy.chance(2) && field.r#type() != Type::Message {
                    field.proto3_optional = Some(true);
                    synthetic.push(field);
                } else {
                    message.field.push(field);
                }
            }
            4..8 => {
                let number = next_number(entropy);
                let mut field = singular(entropy, &format!("f{place}"), number, count);
                field.set_label(Label::Repeated);
                if entropy.chance(3) && !matches!(field.r#type(), Type::String | Type::Bytes | Type::Message)
                {
                    field.options = Some(FieldOptions {
                        packed: Some(false),
                        ..Default::default()
                    });
                }
                message.field.push(field);
            }
            8..10 => {
                let number = next_number(entropy);
                let (field, entry) = map(entropy, index, place, number, count);
                message.field.push(field);
                message.nested_type.push(entry);
            }
            _ => {
                let oneof_index = message.oneof_decl.len() as i32;
                message.oneof_decl.push(oneof(format!("o{place}")));
                for member in 0..=entropy.below(5) {
                    let name = format!("f{place}_{member}");
                    let number = next_number(entropy);
                    let mut field = singular(entropy, &name, number, count);
                    field.oneof_index = Some(oneof_index);
                    message.field.push(field);
                }
            }
        }
    }
    // Synthetic oneofs come after the real ones.
    for mut field in synthetic {
        field.oneof_index = Some(message.oneof_decl.len() as i32);
        message.oneof_decl.push(oneof(format!("_{}", field.name())));
        message.field.push(field);
    }
    message
}

fn oneof(name: String) -> OneofDescriptorProto {
    OneofDescriptorProto {
        name: Some(name),
        ..Default::default()
    }
}

fn singular(entropy: &mut Entropy<'_>, name: &str, number: i32, messages: usize) -> FieldDescriptorProto {
    let mut field = FieldDescriptorProto {
        name: Some(name.into()),
        number: Some(number),
        ..Default::default()
    };
    field.set_label(Label::Optional);
    match entropy.below(SCALARS.len() + 6) {
        scalar if scalar < SCALARS.len() => field.set_type(SCALARS[scalar]),
        kind if kind == SCALARS.len() => {
            field.set_type(Type::Enum);
            field.type_name = Some(".random.Color".into());
        }
        _ => {
            field.set_type(Type::Message);
            field.type_name = Some(format!(".random.M{}", entropy.below(messages)));
        }
    }
    field
}

fn map(
    entropy: &mut Entropy<'_>,
    index: usize,
    place: usize,
    number: i32,
    messages: usize,
) -> (FieldDescriptorProto, DescriptorProto) {
    let mut key = FieldDescriptorProto {
        name: Some("key".into()),
        number: Some(1),
        ..Default::default()
    };
    key.set_label(Label::Optional);
    key.set_type(KEYS[entropy.below(KEYS.len())]);
    let value = singular(entropy, "value", 2, messages);
    let entry = DescriptorProto {
        name: Some(format!("F{place}Entry")),
        field: vec![key, value],
        options: Some(MessageOptions {
            map_entry: Some(true),
            ..Default::default()
        }),
        ..Default::default()
    };
    let mut field = FieldDescriptorProto {
        name: Some(format!("f{place}")),
        number: Some(number),
        type_name: Some(format!(".random.M{index}.F{place}Entry")),
        ..Default::default()
    };
    field.set_type(Type::Message);
    field.set_label(Label::Repeated);
    (field, entry)
}
