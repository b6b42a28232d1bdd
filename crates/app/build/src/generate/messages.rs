//! Messages: structs in the native layout, which the compiler is made to check.

use prost_types::DescriptorProto;
use provost_schema::{Cardinality, Field, Message, Slot, Type};

use super::code::{ALLOW, Code, separated};
use super::scope::Scope;
use super::{Context, Generator, qualified, type_ident};
use crate::error::Error;
use crate::names::{camel, snake};

impl Generator<'_> {
    /// A message and, in a module of its own, what is nested in it.
    pub(super) fn message(
        &self,
        code: &mut Code,
        scope: &mut Scope,
        proto: &DescriptorProto,
        context: &Context<'_>,
    ) -> Result<(), Error> {
        let Some(message) = self.messages.get(context.full_name) else {
            // A map's entry: the map is a field's type.
            return Ok(());
        };
        if self.options.extern_path(context.full_name).is_some() {
            return Ok(());
        }
        scope.take(self.sources, &type_ident(context.full_name), context.full_name)?;
        self.structure(code, message, context)?;
        let nested = proto
            .nested_type
            .iter()
            .any(|nested| self.is_message(context.full_name, nested));
        let oneofs = message.slots.iter().any(|slot| matches!(slot, Slot::Oneof(_)));
        if nested || oneofs || !proto.enum_type.is_empty() {
            self.nested(code, scope, proto, message, context)
        } else {
            Ok(())
        }
    }

    fn is_message(&self, outer: &str, nested: &DescriptorProto) -> bool {
        self.messages
            .contains_key(qualified(outer, nested.name()).as_str())
    }

    fn nested(
        &self,
        code: &mut Code,
        scope: &mut Scope,
        proto: &DescriptorProto,
        message: &Message,
        context: &Context<'_>,
    ) -> Result<(), Error> {
        let module = snake(message.name());
        scope.take(self.sources, &module, context.full_name)?;
        let modules = [context.modules, std::slice::from_ref(&module)].concat();
        let mut inside = Scope::new();
        code.line("");
        code.line(format_args!(
            "/// What is nested in [`{}`].",
            type_ident(context.full_name)
        ));
        code.line(ALLOW);
        code.enter(format_args!("pub mod {module} {{"));
        for nested in &proto.nested_type {
            let full_name = qualified(context.full_name, nested.name());
            self.message(
                code,
                &mut inside,
                nested,
                &Context {
                    full_name: &full_name,
                    modules: &modules,
                },
            )?;
        }
        for nested in &proto.enum_type {
            self.enumeration(code, &mut inside, &qualified(context.full_name, nested.name()))?;
        }
        for slot in &message.slots {
            if let Slot::Oneof(oneof) = slot {
                self.oneof(
                    code,
                    &mut inside,
                    oneof,
                    &Context {
                        full_name: context.full_name,
                        modules: &modules,
                    },
                )?;
            }
        }
        code.leave("}");
        Ok(())
    }

    fn structure(&self, code: &mut Code, message: &Message, context: &Context<'_>) -> Result<(), Error> {
        let ident = type_ident(context.full_name);
        let mut idents = Scope::new();
        let mut members = Vec::with_capacity(message.slots.len());
        for slot in &message.slots {
            let member = self.member(message, slot, context);
            idents.take(
                self.sources,
                &member.ident,
                &qualified(context.full_name, member.name),
            )?;
            members.push(member);
        }
        code.line("");
        code.docs(&message.docs, format_args!("Message `{}`.", message.full_name));
        code.line(ALLOW);
        self.type_attributes(code, context.full_name);
        code.line("#[repr(C)]");
        if members.is_empty() {
            empty(code, &ident)
        } else {
            code.line("#[derive(Clone, Debug, Default, PartialEq)]");
            code.block(format_args!("pub struct {ident} {{"), |code| {
                for member in &members {
                    let attributes = self.field_attributes(context.full_name, member.name);
                    member.declare(code, &attributes);
                }
            });
        }
        self.implement(code, message, context, &members);
        assert_layout(code, message, &ident, &members);
        Ok(())
    }

    fn member<'m>(&self, message: &Message, slot: &'m Slot, context: &Context<'_>) -> Member<'m> {
        match slot {
            Slot::Field(field) => Member {
                name: &field.name,
                ident: snake(&field.name),
                ty: self.field_type(context.modules, field),
                docs: &field.docs,
                what: format!("Field `{}`, number {}.", field.name, field.number),
                offset: field.offset,
            },
            Slot::Oneof(oneof) => Member {
                name: &oneof.name,
                ident: snake(&oneof.name),
                ty: format!("{}::{}", snake(message.name()), camel(&oneof.name)),
                docs: &oneof.docs,
                what: format!("Oneof `{}`.", oneof.name),
                offset: oneof.offset,
            },
        }
    }

    /// The attributes that the program asked for before a type.
    pub(super) fn type_attributes(&self, code: &mut Code, full_name: &str) {
        let attributes = self.options.type_attributes(full_name);
        attributes.iter().for_each(|attribute| code.line(attribute));
    }

    /// The attributes that the program asked for before a field, a member of a oneof or a value of an enum.
    pub(super) fn field_attributes(&self, outer: &str, name: &str) -> Vec<&str> {
        self.options.field_attributes(&qualified(outer, name))
    }

    /// What the library implements for the message, with a line for each field.
    fn implement(&self, code: &mut Code, message: &Message, context: &Context<'_>, members: &[Member<'_>]) {
        let idents: Vec<&str> = members.iter().map(|member| member.ident.as_str()).collect();
        let head = format!(
            "::provost::__message! {{ {}, \"{}\", [{}]",
            type_ident(context.full_name),
            message.full_name,
            idents.join(", ")
        );
        let mut lines: Vec<(u32, String)> = Vec::new();
        for slot in &message.slots {
            lines.extend(
                slot.fields()
                    .iter()
                    .map(|field| (field.number, self.field_line(context, slot, field))),
            );
        }
        lines.sort_unstable();
        code.line("");
        code.enter(format_args!("{head}, {{"));
        for (_, line) in lines {
            code.line(line);
        }
        code.leave("} }");
    }

    /// Number, names, kind and shape of a field, and where it is.
    fn field_line(&self, context: &Context<'_>, slot: &Slot, field: &Field) -> String {
        let schema = &self.sources.schema;
        let kind = match field.ty {
            Type::Enum(_) => format!("Enum {}", self.value_type(context.modules, field.ty)),
            Type::Message(id) => format!("Message \"{}\"", schema.message(id).full_name),
            scalar => format!("{scalar:?}"),
        };
        let (shape, place) = match slot {
            Slot::Oneof(oneof) => (
                format!("Member \"{}\"", oneof.name),
                format!("member {}", snake(&oneof.name)),
            ),
            Slot::Field(field) => (shape_of(field), format!("field {}", snake(&field.name))),
        };
        let json_name = self.json_name(context.full_name, field);
        format!(
            "{} \"{}\" {json_name:?} [{kind}] [{shape}] {place};",
            separated(field.number.into()),
            field.name
        )
    }

    fn field_type(&self, modules: &[String], field: &Field) -> String {
        let value = |ty: Type| self.value_type(modules, ty);
        match &field.cardinality {
            Cardinality::Implicit | Cardinality::OneofMember => self.member_type(modules, field),
            Cardinality::Optional { .. } => {
                format!(
                    "::provost::shared::Optional<{}>",
                    self.member_type(modules, field)
                )
            }
            Cardinality::Repeated { .. } => format!("::provost::shared::List<{}>", value(field.ty)),
            Cardinality::Map(pair) => {
                format!("::provost::shared::Map<{}, {}>", value(pair.key), value(field.ty))
            }
        }
    }
}

/// How often a field occurs that is no member of a oneof.
fn shape_of(field: &Field) -> String {
    match &field.cardinality {
        Cardinality::Implicit | Cardinality::OneofMember => "Implicit".to_owned(),
        Cardinality::Optional { .. } => "Optional".to_owned(),
        Cardinality::Repeated { packed: true } => "Packed".to_owned(),
        Cardinality::Repeated { packed: false } => "Repeated".to_owned(),
        Cardinality::Map(pair) => format!("Map {:?}", pair.key),
    }
}

/// A member of a struct.
struct Member<'a> {
    name: &'a str,
    ident: String,
    ty: String,
    docs: &'a str,
    /// What to say of a member without a comment.
    what: String,
    offset: u32,
}

impl Member<'_> {
    fn declare(&self, code: &mut Code, attributes: &[&str]) {
        code.docs(self.docs, &self.what);
        attributes.iter().for_each(|attribute| code.line(attribute));
        code.line(format_args!("pub {}: {},", self.ident, self.ty));
    }
}

/// A message without fields has one byte, so that each has an address of its own.
fn empty(code: &mut Code, ident: &str) {
    code.line("#[derive(Clone, Default, PartialEq)]");
    code.block(format_args!("pub struct {ident} {{"), |code| {
        code.line("reserved: u8,")
    });
    code.line("");
    code.block(format_args!("impl ::core::fmt::Debug for {ident} {{"), |code| {
        let signature = "fn fmt(&self, formatter: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {";
        code.block(signature, |code| {
            code.line(format_args!("formatter.write_str(\"{ident}\")"))
        });
    });
}

fn assert_layout(code: &mut Code, message: &Message, ident: &str, members: &[Member<'_>]) {
    code.line("");
    code.enter("const _: () = {");
    code.line(format_args!(
        "assert!(::core::mem::size_of::<{ident}>() == {});",
        message.size
    ));
    code.line(format_args!(
        "assert!(::core::mem::align_of::<{ident}>() == {});",
        message.align
    ));
    for member in members {
        code.line(format_args!(
            "assert!(::core::mem::offset_of!({ident}, {}) == {});",
            member.ident, member.offset
        ));
    }
    code.leave("};");
}
