//! Second pass: the insides of the types, with every name resolved.

use std::collections::{HashMap, HashSet};

use prost_types::field_descriptor_proto::{Label, Type as ProtoType};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, ServiceDescriptorProto};
use provost_wire::limits::{MESSAGE_FIELDS_MAX, SCHEMA_FIELDS_MAX, SERVICE_METHODS_MAX};

use super::declare::{Declarations, Declared, DeclaredSymbol, number};
use super::place::FilePlace;
use crate::bounds::too_many;
use crate::{
    Cardinality, Enum, EnumValue, Field, Message, MessageId, Method, Oneof, Pair, Schema, SchemaError,
    SchemaErrorKind, Service, Slot, Type,
};

/// The largest field number that protobuf has.
const FIELD_NUMBER_MAX: u32 = (1 << 29) - 1;
/// Field numbers that protobuf keeps for itself.
const FIELD_NUMBERS_RESERVED: std::ops::RangeInclusive<u32> = 19_000..=19_999;

/// Defines all that is declared; offsets are not set yet.
pub(super) fn define(declarations: &Declarations<'_>) -> Result<Schema, SchemaError> {
    let mut fields_left = SCHEMA_FIELDS_MAX;
    let mut messages = Vec::with_capacity(declarations.messages.len());
    for declared in &declarations.messages {
        let fields = declared.proto.field.len();
        fields_left = fields_left.checked_sub(fields).ok_or_else(|| {
            declared
                .place
                .error(too_many("fields in all messages", SCHEMA_FIELDS_MAX))
        })?;
        messages.push(define_message(declarations, declared)?);
    }
    Ok(Schema {
        messages,
        enums: declarations
            .enums
            .iter()
            .map(define_enum)
            .collect::<Result<_, _>>()?,
        services: declarations
            .services
            .iter()
            .map(|declared| define_service(declarations, declared))
            .collect::<Result<_, _>>()?,
    })
}

fn define_message(
    declarations: &Declarations<'_>,
    declared: &Declared<'_, DescriptorProto>,
) -> Result<Message, SchemaError> {
    let Declared { place, proto } = declared;
    if proto.field.len() > MESSAGE_FIELDS_MAX || proto.oneof_decl.len() > MESSAGE_FIELDS_MAX {
        return Err(place.error(too_many("fields", MESSAGE_FIELDS_MAX)));
    }
    let mut names = HashSet::new();
    let mut numbers = HashMap::new();
    let mut oneofs = declare_oneofs(place, proto, &mut names)?;
    let mut slots = Vec::new();
    for (index, field_proto) in proto.field.iter().enumerate() {
        let place = place.element(number::MESSAGE_FIELD, index, field_proto.name())?;
        let scope = FieldScope {
            declarations,
            place: &place,
            parent: &declared.place.full_name,
        };
        let field = scope.define(field_proto)?;
        check_unique(&place, &field, &mut names, &mut numbers)?;
        match (field_proto.oneof_index, field_proto.proto3_optional()) {
            (None, false) => slots.push(Slot::Field(field)),
            (Some(oneof), optional) => {
                let oneof = usize::try_from(oneof).ok().and_then(|at| oneofs.get_mut(at));
                let oneof = oneof.ok_or_else(|| place.error(SchemaErrorKind::Oneof("it is not declared")))?;
                oneof.add(&place, field, optional)?;
            }
            (None, true) => {
                return Err(place.error(SchemaErrorKind::Oneof("an optional field has none of its own")));
            }
        }
    }
    for oneof in oneofs {
        slots.push(oneof.finish()?);
    }
    let FilePlace { full_name, .. } = place;
    Ok(Message {
        full_name: full_name.clone(),
        docs: place.docs(),
        slots,
        size: 0,
        align: 1,
    })
}

fn check_unique(
    place: &FilePlace<'_>,
    field: &Field,
    names: &mut HashSet<String>,
    numbers: &mut HashMap<u32, String>,
) -> Result<(), SchemaError> {
    if !names.insert(field.name.clone()) {
        return Err(place.error(SchemaErrorKind::DuplicateName(field.name.clone())));
    }
    if let Some(other) = numbers.insert(field.number, field.name.clone()) {
        let kind = SchemaErrorKind::DuplicateNumber {
            number: field.number,
            other,
        };
        return Err(place.error_in(number::FIELD_NUMBER, kind));
    }
    Ok(())
}

/// A oneof while its members are collected.
struct CollectedOneof<'a> {
    place: FilePlace<'a>,
    name: String,
    members: Vec<Field>,
    /// Whether it stands for an `optional` field.
    synthetic: bool,
}

fn declare_oneofs<'a>(
    place: &FilePlace<'a>,
    proto: &DescriptorProto,
    names: &mut HashSet<String>,
) -> Result<Vec<CollectedOneof<'a>>, SchemaError> {
    let declare = |(index, oneof): (usize, &prost_types::OneofDescriptorProto)| {
        let place = place.element(number::MESSAGE_ONEOF, index, oneof.name())?;
        if names.insert(oneof.name().to_owned()) {
            Ok(CollectedOneof {
                place,
                name: oneof.name().to_owned(),
                members: Vec::new(),
                synthetic: false,
            })
        } else {
            Err(place.error(SchemaErrorKind::DuplicateName(oneof.name().to_owned())))
        }
    };
    proto.oneof_decl.iter().enumerate().map(declare).collect()
}

impl CollectedOneof<'_> {
    fn add(&mut self, place: &FilePlace<'_>, mut field: Field, optional: bool) -> Result<(), SchemaError> {
        if matches!(
            field.cardinality,
            Cardinality::Repeated { .. } | Cardinality::Map(_)
        ) {
            return Err(place.error(SchemaErrorKind::Oneof("a repeated field or a map is in it")));
        }
        let alone = self.members.is_empty();
        if (optional || self.synthetic) && !alone {
            return Err(place.error(SchemaErrorKind::Oneof("an optional field shares it")));
        }
        self.synthetic |= optional;
        field.cardinality = if optional {
            Cardinality::Optional { value_offset: 0 }
        } else {
            Cardinality::OneofMember
        };
        self.members.push(field);
        Ok(())
    }

    fn finish(mut self) -> Result<Slot, SchemaError> {
        self.members.sort_by_key(|member| member.number);
        match self.members.pop() {
            None => Err(self.place.error(SchemaErrorKind::Oneof("it has no members"))),
            Some(field) if self.synthetic => Ok(Slot::Field(field)),
            Some(last) => {
                self.members.push(last);
                let docs = self.place.docs();
                let (name, members) = (self.name, self.members);
                Ok(Slot::Oneof(Oneof {
                    name,
                    docs,
                    members,
                    offset: 0,
                    value_offset: 0,
                    size: 0,
                    align: 4,
                }))
            }
        }
    }
}

/// What the definition of a field needs to know.
struct FieldScope<'a> {
    declarations: &'a Declarations<'a>,
    place: &'a FilePlace<'a>,
    /// Full name of the message that it is in.
    parent: &'a str,
}

impl FieldScope<'_> {
    fn define(&self, proto: &FieldDescriptorProto) -> Result<Field, SchemaError> {
        let number = self.field_number(proto)?;
        let label = self.label(proto)?;
        let (ty, cardinality) = match self.resolve(proto)? {
            ResolvedType::Type(ty) => (ty, cardinality(ty, label, proto)),
            ResolvedType::Entry(_) if label != Label::Repeated => {
                return Err(self
                    .place
                    .error(SchemaErrorKind::Map("its field is not repeated")));
            }
            ResolvedType::Entry(entry) => {
                let (pair, value) = self.pair(entry)?;
                (value, Cardinality::Map(pair))
            }
        };
        let docs = self.place.docs();
        Ok(Field {
            name: proto.name().to_owned(),
            number,
            docs,
            ty,
            cardinality,
            offset: 0,
        })
    }

    fn field_number(&self, proto: &FieldDescriptorProto) -> Result<u32, SchemaError> {
        let usable = |number: &u32| {
            (1..=FIELD_NUMBER_MAX).contains(number) && !FIELD_NUMBERS_RESERVED.contains(number)
        };
        let number = proto.number();
        u32::try_from(number).ok().filter(usable).ok_or_else(|| {
            self.place.error_in(
                number::FIELD_NUMBER,
                SchemaErrorKind::FieldNumber(i64::from(number)),
            )
        })
    }

    fn label(&self, proto: &FieldDescriptorProto) -> Result<Label, SchemaError> {
        match Label::try_from(proto.label.unwrap_or(Label::Optional as i32)) {
            Ok(Label::Required) => Err(self.place.error_in(
                number::FIELD_LABEL,
                SchemaErrorKind::NotProto3("a required field", "remove `required`"),
            )),
            Ok(label) => Ok(label),
            Err(_) => Err(self.place.error(SchemaErrorKind::Encoding)),
        }
    }

    fn resolve(&self, proto: &FieldDescriptorProto) -> Result<ResolvedType, SchemaError> {
        let ty = ProtoType::try_from(proto.r#type.unwrap_or(0))
            .map_err(|_| self.place.error_in(number::FIELD_TYPE, SchemaErrorKind::Encoding))?;
        let scalar = match ty {
            ProtoType::Message | ProtoType::Enum => return self.named(ty, proto.type_name()),
            ProtoType::Group => {
                let kind = SchemaErrorKind::NotProto3("a group", "use a field of a nested message type");
                return Err(self.place.error_in(number::FIELD_TYPE, kind));
            }
            ProtoType::Bool => Type::Bool,
            ProtoType::Int32 => Type::Int32,
            ProtoType::Sint32 => Type::Sint32,
            ProtoType::Uint32 => Type::Uint32,
            ProtoType::Fixed32 => Type::Fixed32,
            ProtoType::Sfixed32 => Type::Sfixed32,
            ProtoType::Int64 => Type::Int64,
            ProtoType::Sint64 => Type::Sint64,
            ProtoType::Uint64 => Type::Uint64,
            ProtoType::Fixed64 => Type::Fixed64,
            ProtoType::Sfixed64 => Type::Sfixed64,
            ProtoType::Float => Type::Float,
            ProtoType::Double => Type::Double,
            ProtoType::String => Type::String,
            ProtoType::Bytes => Type::Bytes,
        };
        Ok(ResolvedType::Type(scalar))
    }

    fn named(&self, ty: ProtoType, type_name: &str) -> Result<ResolvedType, SchemaError> {
        let wrong = |expected| {
            let kind = SchemaErrorKind::WrongType {
                name: shown(type_name),
                expected,
            };
            Err(self.place.error_in(number::FIELD_TYPE_NAME, kind))
        };
        match (
            lookup(self.declarations, self.place, number::FIELD_TYPE_NAME, type_name)?,
            ty,
        ) {
            (DeclaredSymbol::Message(id), ProtoType::Message) => Ok(ResolvedType::Type(Type::Message(id))),
            (DeclaredSymbol::Entry(entry), ProtoType::Message) => Ok(ResolvedType::Entry(entry)),
            (DeclaredSymbol::Enum(id), ProtoType::Enum) => Ok(ResolvedType::Type(Type::Enum(id))),
            (_, ProtoType::Enum) => wrong("an enum"),
            _ => wrong("a message"),
        }
    }

    /// The pair of a map, its offsets not set yet, and the type of its values.
    fn pair(&self, entry: usize) -> Result<(Pair, Type), SchemaError> {
        let entry = &self.declarations.entries[entry];
        let malformed = |what| self.place.error(SchemaErrorKind::Map(what));
        let [key, value] = entry.declared.proto.field.as_slice() else {
            return Err(malformed("its entry has not two fields"));
        };
        if entry.parent != self.parent {
            return Err(malformed("its entry belongs to another message"));
        }
        let shape = |field: &FieldDescriptorProto| {
            (
                field.name().to_owned(),
                field.number(),
                field.oneof_index,
                self.label(field).ok(),
            )
        };
        if shape(key) != ("key".into(), 1, None, Some(Label::Optional))
            || shape(value) != ("value".into(), 2, None, Some(Label::Optional))
        {
            return Err(malformed("its entry's fields are not `key = 1` and `value = 2`"));
        }
        match (self.resolve(key)?, self.resolve(value)?) {
            (ResolvedType::Type(key), _) if !is_key(key) => {
                Err(malformed("its key is no integer, bool or string"))
            }
            (ResolvedType::Type(key), ResolvedType::Type(value)) => Ok((
                Pair {
                    key,
                    value_offset: 0,
                    size: 0,
                    align: 1,
                },
                value,
            )),
            _ => Err(malformed("its key or value is a map")),
        }
    }
}

/// What a field's type is.
enum ResolvedType {
    Type(Type),
    Entry(usize),
}

fn cardinality(ty: Type, label: Label, proto: &FieldDescriptorProto) -> Cardinality {
    match (label, ty) {
        (Label::Repeated, Type::String | Type::Bytes | Type::Message(_)) => {
            Cardinality::Repeated { packed: false }
        }
        (Label::Repeated, _) => {
            let packed = proto.options.as_ref().and_then(|options| options.packed);
            Cardinality::Repeated {
                packed: packed.unwrap_or(true),
            }
        }
        (_, Type::Message(_)) => Cardinality::Optional { value_offset: 0 },
        _ => Cardinality::Implicit,
    }
}

fn is_key(ty: Type) -> bool {
    !matches!(
        ty,
        Type::Float | Type::Double | Type::Bytes | Type::Enum(_) | Type::Message(_)
    )
}

fn lookup(
    declarations: &Declarations<'_>,
    place: &FilePlace<'_>,
    part: i32,
    type_name: &str,
) -> Result<DeclaredSymbol, SchemaError> {
    let full_name = type_name.strip_prefix('.');
    if let Some(symbol) = full_name.and_then(|name| declarations.symbols.get(name)) {
        return Ok(*symbol);
    }
    let kind = if full_name.is_some_and(|name| declarations.is_for_options(name)) {
        SchemaErrorKind::NotProto3(
            "a type of a file that is not proto3",
            "such a file is for options alone; declare a message of your own",
        )
    } else {
        SchemaErrorKind::UnknownType(shown(type_name))
    };
    Err(place.error_in(part, kind))
}

/// A type's name for an error: without the leading dot, and not endless.
fn shown(type_name: &str) -> String {
    type_name
        .strip_prefix('.')
        .unwrap_or(type_name)
        .chars()
        .take(256)
        .collect()
}

fn define_enum(declared: &Declared<'_, EnumDescriptorProto>) -> Result<Enum, SchemaError> {
    let Declared { place, proto } = declared;
    let wrong = |what| Err(place.error(SchemaErrorKind::Enum(what)));
    let allow_alias = proto
        .options
        .as_ref()
        .is_some_and(|options| options.allow_alias());
    let (mut names, mut numbers) = (HashSet::new(), HashSet::new());
    let mut values = Vec::with_capacity(proto.value.len());
    match proto.value.first() {
        None => return wrong("an enum has at least one value; add one that is 0"),
        Some(first) if first.number() != 0 => return wrong("the first value of an enum is 0; add one"),
        Some(_) if proto.value.len() > MESSAGE_FIELDS_MAX => {
            return Err(place.error(too_many("values", MESSAGE_FIELDS_MAX)));
        }
        Some(_) => {}
    }
    for (index, value) in proto.value.iter().enumerate() {
        let place = place.element(number::ENUM_VALUE, index, value.name())?;
        if !names.insert(value.name()) {
            return Err(place.error(SchemaErrorKind::DuplicateName(value.name().to_owned())));
        }
        if !numbers.insert(value.number()) && !allow_alias {
            let kind = SchemaErrorKind::Enum("two values have this number; set `option allow_alias = true;`");
            return Err(place.error_in(number::VALUE_NUMBER, kind));
        }
        values.push(EnumValue {
            name: value.name().to_owned(),
            number: value.number(),
            docs: place.docs(),
        });
    }
    Ok(Enum {
        full_name: place.full_name.clone(),
        docs: place.docs(),
        values,
    })
}

fn define_service(
    declarations: &Declarations<'_>,
    declared: &Declared<'_, ServiceDescriptorProto>,
) -> Result<Service, SchemaError> {
    let Declared { place, proto } = declared;
    if proto.method.len() > SERVICE_METHODS_MAX {
        return Err(place.error(too_many("methods", SERVICE_METHODS_MAX)));
    }
    let mut names = HashSet::new();
    let mut methods = Vec::with_capacity(proto.method.len());
    for (index, method) in proto.method.iter().enumerate() {
        let place = place.element(number::SERVICE_METHOD, index, method.name())?;
        if !names.insert(method.name()) {
            return Err(place.error(SchemaErrorKind::DuplicateName(method.name().to_owned())));
        }
        methods.push(Method {
            name: method.name().to_owned(),
            docs: place.docs(),
            input: method_message(declarations, &place, number::METHOD_INPUT, method.input_type())?,
            output: method_message(declarations, &place, number::METHOD_OUTPUT, method.output_type())?,
            client_streaming: method.client_streaming(),
            server_streaming: method.server_streaming(),
        });
    }
    Ok(Service {
        full_name: place.full_name.clone(),
        docs: place.docs(),
        methods,
    })
}

fn method_message(
    declarations: &Declarations<'_>,
    place: &FilePlace<'_>,
    part: i32,
    type_name: &str,
) -> Result<MessageId, SchemaError> {
    match lookup(declarations, place, part, type_name)? {
        DeclaredSymbol::Message(id) => Ok(id),
        _ => {
            let kind = SchemaErrorKind::WrongType {
                name: shown(type_name),
                expected: "a message",
            };
            Err(place.error_in(part, kind))
        }
    }
}
