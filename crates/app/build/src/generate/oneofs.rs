//! Oneofs: enums whose discriminants are field numbers.

use provost_schema::{Field, Oneof};

use super::code::{ALLOW, Code, separated};
use super::scope::Scope;
use super::{Context, Generator, qualified};
use crate::error::Error;
use crate::names::camel;

/// The variant of a oneof with no member set.
const NOT_SET: &str = "NotSet";

impl Generator<'_> {
    /// A oneof of the message of `context`, whose `modules` are those inside of the message.
    pub(super) fn oneof(
        &self,
        code: &mut Code,
        scope: &mut Scope,
        oneof: &Oneof,
        context: &Context<'_>,
    ) -> Result<(), Error> {
        let ident = camel(&oneof.name);
        scope.take(self.sources, &ident, &qualified(context.full_name, &oneof.name))?;
        let mut idents = Scope::new();
        let mut variants = Vec::with_capacity(oneof.members.len());
        for member in &oneof.members {
            let variant = variant_ident(member);
            idents.take(
                self.sources,
                &variant,
                &qualified(context.full_name, &member.name),
            )?;
            variants.push((variant, self.member_type(context.modules, member), member));
        }
        code.line("");
        code.docs(
            &oneof.docs,
            format_args!("Oneof `{}` of `{}`.", oneof.name, context.full_name),
        );
        code.line(ALLOW);
        self.type_attributes(code, &qualified(context.full_name, &oneof.name));
        code.line("#[repr(C, u32)]");
        code.line("#[derive(Clone, Debug, Default, PartialEq)]");
        code.block(format_args!("pub enum {ident} {{"), |code| {
            code.line("/// No member is set.");
            code.line("#[default]");
            code.line(format_args!("{NOT_SET} = 0,"));
            for (variant, ty, member) in &variants {
                code.docs(
                    &member.docs,
                    format_args!("Field `{}`, number {}.", member.name, member.number),
                );
                let attributes =
                    self.field_attributes(&qualified(context.full_name, &oneof.name), &member.name);
                attributes.iter().for_each(|attribute| code.line(attribute));
                code.line(format_args!("{variant}({ty}) = {},", member.number));
            }
        });
        let members: Vec<String> = variants
            .iter()
            .map(|(variant, _, member)| format!("{variant} = {}", separated(member.number.into())))
            .collect();
        code.line("");
        code.line(format_args!(
            "::provost::__oneof! {{ {ident}, [{}] }}",
            members.join(", ")
        ));
        code.line("");
        code.enter("const _: () = {");
        code.line(format_args!(
            "assert!(::core::mem::size_of::<{ident}>() == {});",
            oneof.size
        ));
        code.line(format_args!(
            "assert!(::core::mem::align_of::<{ident}>() == {});",
            oneof.align
        ));
        code.leave("};");
        Ok(())
    }
}

fn variant_ident(member: &Field) -> String {
    match camel(&member.name) {
        taken if taken == NOT_SET => format!("{taken}_"),
        free => free,
    }
}
