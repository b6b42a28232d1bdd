//! From a schema back to a `FileDescriptorSet`, for those who only know protobuf.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type as ProtoType};
use prost_types::{
    DescriptorProto, EnumDescriptorProto, EnumOptions, EnumValueDescriptorProto, FieldDescriptorProto,
    FieldOptions, FileDescriptorProto, FileDescriptorSet, MessageOptions, MethodDescriptorProto,
    OneofDescriptorProto, ServiceDescriptorProto,
};

use crate::{Cardinality, Enum, Field, Message, MessageId, Oneof, Pair, Schema, Service, Slot, Type};

impl Schema {
    /// A serialized `google.protobuf.FileDescriptorSet` of which [`Schema::from_descriptor_set`] makes the same schema,
    /// but for comments and the order of types. It has one file for each package, which imports those whose types it names;
    /// types stand in their outer messages as far as the schema has these.
    #[must_use]
    pub fn to_descriptor_set(&self) -> Vec<u8> {
        let scopes = Scopes::of(self);
        let mut files: BTreeMap<&str, FileDescriptorProto> = BTreeMap::new();
        let inhabited = scopes.messages.keys().chain(scopes.enums.keys()).copied();
        for package in inhabited.filter(|scope| !scopes.is_message(scope)) {
            let file = file(&mut files, package);
            file.message_type = scopes.messages_in(package);
            file.enum_type = scopes.enums_in(package);
        }
        for service in &self.services {
            let proto = scopes.service(service);
            file(&mut files, outer(&service.full_name)).service.push(proto);
        }
        for (package, imported) in scopes.imports() {
            file(&mut files, package).dependency.push(file_name(imported));
        }
        let file = files.into_values().collect();
        FileDescriptorSet { file }.encode_to_vec()
    }
}

fn file<'f, 's>(
    files: &'f mut BTreeMap<&'s str, FileDescriptorProto>,
    package: &'s str,
) -> &'f mut FileDescriptorProto {
    files.entry(package).or_insert_with(|| FileDescriptorProto {
        name: Some(file_name(package)),
        package: (!package.is_empty()).then(|| package.to_owned()),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    })
}

fn file_name(package: &str) -> String {
    // No package is called so, as that is no name.
    let name = if package.is_empty() { "no-package" } else { package };
    format!("{name}.proto")
}

/// Types by what they stand in: a package or an outer message.
struct Scopes<'s> {
    schema: &'s Schema,
    messages: BTreeMap<&'s str, Vec<&'s Message>>,
    enums: BTreeMap<&'s str, Vec<&'s Enum>>,
    names: HashSet<&'s str>,
}

impl<'s> Scopes<'s> {
    fn of(schema: &'s Schema) -> Scopes<'s> {
        let names = schema.messages.iter().map(|message| message.full_name.as_str());
        Scopes {
            schema,
            messages: by_scope(&schema.messages, |message| &message.full_name),
            enums: by_scope(&schema.enums, |enumeration| &enumeration.full_name),
            names: names.collect(),
        }
    }

    fn is_message(&self, scope: &str) -> bool {
        self.names.contains(scope)
    }

    /// Each package whose types or services name types of another one, and that one.
    fn imports(&self) -> BTreeSet<(&'s str, &'s str)> {
        let schema = self.schema;
        let of_fields = schema.messages.iter().flat_map(|message| {
            let package = self.package_of(&message.full_name);
            message.fields().map(move |field| (package, field.ty))
        });
        let of_methods = schema.services.iter().flat_map(|service| {
            let messages = service
                .methods
                .iter()
                .flat_map(|method| [method.input, method.output]);
            messages.map(|id| (outer(&service.full_name), Type::Message(id)))
        });
        let imports = of_fields.chain(of_methods).filter_map(|(package, ty)| {
            let full_name = match ty {
                Type::Message(id) => &schema.message(id).full_name,
                Type::Enum(id) => &schema.enumeration(id).full_name,
                _ => return None,
            };
            Some((package, self.package_of(full_name)))
        });
        imports
            .filter(|(package, imported)| package != imported)
            .collect()
    }

    /// What a type stands in with all its outer messages.
    fn package_of(&self, full_name: &'s str) -> &'s str {
        let mut scope = outer(full_name);
        while self.is_message(scope) {
            scope = outer(scope);
        }
        scope
    }

    fn messages_in(&self, scope: &str) -> Vec<DescriptorProto> {
        let messages = self.messages.get(scope).into_iter().flatten();
        messages.map(|message| self.message(message)).collect()
    }

    fn enums_in(&self, scope: &str) -> Vec<EnumDescriptorProto> {
        let enums = self.enums.get(scope).into_iter().flatten();
        enums.map(|enumeration| enum_proto(enumeration)).collect()
    }

    /// (Messages nest no deeper than the names of those that were loaded.)
    fn message(&self, message: &Message) -> DescriptorProto {
        let mut proto = DescriptorProto {
            name: Some(message.name().to_owned()),
            nested_type: self.messages_in(&message.full_name),
            enum_type: self.enums_in(&message.full_name),
            ..DescriptorProto::default()
        };
        let mut names: HashSet<String> = message.fields().map(|field| field.name.clone()).collect();
        for slot in &message.slots {
            match slot {
                Slot::Field(field) => self.add_field(message, field, &mut names, &mut proto),
                Slot::Oneof(oneof) => self.add_oneof(message, oneof, &mut proto),
            }
        }
        proto
    }

    fn add_oneof(&self, message: &Message, oneof: &Oneof, proto: &mut DescriptorProto) {
        let index = proto.oneof_decl.len() as i32;
        proto.oneof_decl.push(oneof_proto(&oneof.name));
        for member in &oneof.members {
            proto.field.push(FieldDescriptorProto {
                oneof_index: Some(index),
                ..self.field(message, member)
            });
        }
    }

    fn add_field(
        &self,
        message: &Message,
        field: &Field,
        names: &mut HashSet<String>,
        proto: &mut DescriptorProto,
    ) {
        let mut field_proto = self.field(message, field);
        match &field.cardinality {
            Cardinality::Optional { .. } if !matches!(field.ty, Type::Message(_)) => {
                let mut name = format!("_{}", field.name);
                while !names.insert(name.clone()) {
                    name.insert(0, '_');
                }
                field_proto.proto3_optional = Some(true);
                field_proto.oneof_index = Some(proto.oneof_decl.len() as i32);
                proto.oneof_decl.push(oneof_proto(&name));
            }
            Cardinality::Map(pair) => proto.nested_type.push(self.entry(field, pair)),
            _ => {}
        }
        proto.field.push(field_proto);
    }

    fn field(&self, message: &Message, field: &Field) -> FieldDescriptorProto {
        let mut proto = self.typed(&field.name, field.number, field.ty);
        match &field.cardinality {
            Cardinality::Repeated { packed } => {
                proto.label = Some(Label::Repeated as i32);
                let is_packable = !matches!(field.ty, Type::String | Type::Bytes | Type::Message(_));
                proto.options = is_packable.then(|| FieldOptions {
                    packed: Some(*packed),
                    ..FieldOptions::default()
                });
            }
            Cardinality::Map(_) => {
                proto.label = Some(Label::Repeated as i32);
                proto.r#type = Some(ProtoType::Message as i32);
                proto.type_name = Some(format!(".{}.{}", message.full_name, entry_name(field)));
            }
            Cardinality::Implicit | Cardinality::Optional { .. } | Cardinality::OneofMember => {}
        }
        proto
    }

    fn entry(&self, field: &Field, pair: &Pair) -> DescriptorProto {
        DescriptorProto {
            name: Some(entry_name(field)),
            field: vec![self.typed("key", 1, pair.key), self.typed("value", 2, field.ty)],
            options: Some(MessageOptions {
                map_entry: Some(true),
                ..MessageOptions::default()
            }),
            ..DescriptorProto::default()
        }
    }

    fn typed(&self, name: &str, number: u32, ty: Type) -> FieldDescriptorProto {
        FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: i32::try_from(number).ok(),
            label: Some(Label::Optional as i32),
            r#type: Some(proto_type(ty) as i32),
            type_name: match ty {
                Type::Message(id) => Some(self.message_name(id)),
                Type::Enum(id) => Some(format!(".{}", self.schema.enumeration(id).full_name)),
                _ => None,
            },
            ..FieldDescriptorProto::default()
        }
    }

    fn service(&self, service: &Service) -> ServiceDescriptorProto {
        let methods = service.methods.iter().map(|method| MethodDescriptorProto {
            name: Some(method.name.clone()),
            input_type: Some(self.message_name(method.input)),
            output_type: Some(self.message_name(method.output)),
            client_streaming: Some(method.client_streaming),
            server_streaming: Some(method.server_streaming),
            options: None,
        });
        let name = service.full_name.rsplit('.').next().unwrap_or_default();
        ServiceDescriptorProto {
            name: Some(name.to_owned()),
            method: methods.collect(),
            options: None,
        }
    }

    fn message_name(&self, id: MessageId) -> String {
        format!(".{}", self.schema.message(id).full_name)
    }
}

fn by_scope<T>(types: &[T], full_name: fn(&T) -> &str) -> BTreeMap<&str, Vec<&T>> {
    let mut scopes: BTreeMap<&str, Vec<&T>> = BTreeMap::new();
    for ty in types {
        scopes.entry(outer(full_name(ty))).or_default().push(ty);
    }
    scopes
}

/// What a full name stands in.
fn outer(full_name: &str) -> &str {
    full_name.rsplit_once('.').map_or("", |(outer, _)| outer)
}

/// As protoc names the entry of a map.
fn entry_name(field: &Field) -> String {
    let words = field.name.split('_');
    let capitalized = words.map(|word| {
        let mut characters = word.chars();
        let first = characters.next().map(|first| first.to_ascii_uppercase());
        first.into_iter().chain(characters).collect::<String>()
    });
    format!("{}Entry", capitalized.collect::<String>())
}

fn oneof_proto(name: &str) -> OneofDescriptorProto {
    OneofDescriptorProto {
        name: Some(name.to_owned()),
        options: None,
    }
}

fn enum_proto(enumeration: &Enum) -> EnumDescriptorProto {
    let value = |value: &crate::EnumValue| EnumValueDescriptorProto {
        name: Some(value.name.clone()),
        number: Some(value.number),
        options: None,
    };
    let mut numbers = HashSet::new();
    let has_alias = enumeration
        .values
        .iter()
        .any(|value| !numbers.insert(value.number));
    let name = enumeration.full_name.rsplit('.').next().unwrap_or_default();
    EnumDescriptorProto {
        name: Some(name.to_owned()),
        value: enumeration.values.iter().map(value).collect(),
        options: has_alias.then(|| EnumOptions {
            allow_alias: Some(true),
            ..EnumOptions::default()
        }),
        ..EnumDescriptorProto::default()
    }
}

fn proto_type(ty: Type) -> ProtoType {
    match ty {
        Type::Bool => ProtoType::Bool,
        Type::Int32 => ProtoType::Int32,
        Type::Sint32 => ProtoType::Sint32,
        Type::Uint32 => ProtoType::Uint32,
        Type::Fixed32 => ProtoType::Fixed32,
        Type::Sfixed32 => ProtoType::Sfixed32,
        Type::Int64 => ProtoType::Int64,
        Type::Sint64 => ProtoType::Sint64,
        Type::Uint64 => ProtoType::Uint64,
        Type::Fixed64 => ProtoType::Fixed64,
        Type::Sfixed64 => ProtoType::Sfixed64,
        Type::Float => ProtoType::Float,
        Type::Double => ProtoType::Double,
        Type::String => ProtoType::String,
        Type::Bytes => ProtoType::Bytes,
        Type::Enum(_) => ProtoType::Enum,
        Type::Message(_) => ProtoType::Message,
    }
}
