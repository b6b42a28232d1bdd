//! Enums: open, so a struct around the number with a constant for each name.

use std::collections::HashSet;

use provost_schema::{Enum, EnumValue};

use super::code::{ALLOW, Code, separated};
use super::scope::Scope;
use super::{Generator, qualified, type_ident};
use crate::error::Error;
use crate::names::upper_snake;

impl Generator<'_> {
    /// The enum of this full name.
    pub(super) fn enumeration(
        &self,
        code: &mut Code,
        scope: &mut Scope,
        full_name: &str,
    ) -> Result<(), Error> {
        let Some(item) = self.enums.get(full_name) else {
            return Ok(());
        };
        if self.options.extern_path(full_name).is_some() {
            return Ok(());
        }
        let ident = type_ident(full_name);
        scope.take(self.sources, &ident, full_name)?;
        let constants = constants(item, &ident);
        let mut taken = Scope::new();
        for (constant, value) in &constants {
            taken.take(self.sources, constant, &qualified(full_name, &value.name))?;
        }
        code.line("");
        code.docs(&item.docs, format_args!("Enum `{full_name}`."));
        code.line("///");
        code.line("/// Any number is a value; those with a name are constants.");
        code.line(ALLOW);
        self.type_attributes(code, full_name);
        code.line("#[repr(transparent)]");
        code.line("#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]");
        code.line(format_args!("pub struct {ident}(pub i32);"));
        code.line("");
        code.line(ALLOW);
        code.block(format_args!("impl {ident} {{"), |code| {
            for (constant, value) in &constants {
                code.docs(&value.docs, format_args!("`{}` = {}.", value.name, value.number));
                let attributes = self.field_attributes(full_name, &value.name);
                attributes.iter().for_each(|attribute| code.line(attribute));
                code.line(format_args!(
                    "pub const {constant}: Self = Self({});",
                    value.number
                ));
            }
            names(code, item);
        });
        traits(code, &ident);
        let values: Vec<String> = item
            .values
            .iter()
            .map(|value| format!("(\"{}\", {})", value.name, separated(value.number.into())))
            .collect();
        code.line("");
        code.line(format_args!(
            "::provost::__enumeration! {{ {ident}, \"{full_name}\", [{}] }}",
            values.join(", ")
        ));
        Ok(())
    }
}

/// The constant of each value. The enum's name in front of all of them is dropped, unless names would collide. Names of one number
/// that are one name in Rust (`MOO` and `moo`) have one constant.
fn constants<'a>(item: &'a Enum, ident: &str) -> Vec<(String, &'a EnumValue)> {
    let prefix = format!("{}_", upper_snake(ident.trim_end_matches('_')));
    let full = |value: &EnumValue| upper_snake(&value.name);
    let stripped = |value: &EnumValue| {
        let full = full(value);
        let usable = |rest: &&str| rest.starts_with(|first: char| first.is_ascii_alphabetic());
        full.strip_prefix(&prefix)
            .filter(usable)
            .map(str::to_owned)
            .unwrap_or(full)
    };
    let distinct = |name: &dyn Fn(&EnumValue) -> String| {
        let names: HashSet<String> = item.values.iter().map(name).collect();
        names.len()
    };
    let keeps_prefix = distinct(&stripped) < distinct(&full);
    let name = |value| {
        if keeps_prefix {
            full(value)
        } else {
            stripped(value)
        }
    };
    let mut seen = HashSet::new();
    let constants = item.values.iter().map(|value| (name(value), value));
    constants
        .filter(|(constant, value)| seen.insert((constant.clone(), value.number)))
        .collect()
}

/// From number to name and back.
fn names(code: &mut Code, item: &Enum) {
    code.line("");
    code.line("/// The name in the schema, if the number has one.");
    code.block(
        "pub const fn as_str_name(self) -> ::core::option::Option<&'static str> {",
        |code| {
            code.block("match self.0 {", |code| {
                let mut numbers = HashSet::new();
                for value in item.values.iter().filter(|value| numbers.insert(value.number)) {
                    code.line(format_args!(
                        "{} => ::core::option::Option::Some(\"{}\"),",
                        value.number, value.name
                    ));
                }
                code.line("_ => ::core::option::Option::None,");
            });
        },
    );
    code.line("");
    code.line("/// The value of this name in the schema.");
    code.block(
        "pub fn from_str_name(name: &str) -> ::core::option::Option<Self> {",
        |code| {
            code.block("match name {", |code| {
                for value in &item.values {
                    code.line(format_args!(
                        "\"{}\" => ::core::option::Option::Some(Self({})),",
                        value.name, value.number
                    ));
                }
                code.line("_ => ::core::option::Option::None,");
            });
        },
    );
}

fn traits(code: &mut Code, ident: &str) {
    code.line("");
    code.block(format_args!("impl ::core::fmt::Debug for {ident} {{"), |code| {
        let signature = "fn fmt(&self, formatter: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {";
        code.block(signature, |code| {
            code.block("match self.as_str_name() {", |code| {
                code.line("::core::option::Option::Some(name) => formatter.write_str(name),");
                code.line("::core::option::Option::None => ::core::fmt::Display::fmt(&self.0, formatter),");
            });
        });
    });
    code.line("");
    code.block(
        format_args!("impl ::core::convert::From<i32> for {ident} {{"),
        |code| {
            code.block("fn from(number: i32) -> Self {", |code| code.line("Self(number)"));
        },
    );
    code.line("");
    code.block(
        format_args!("impl ::core::convert::From<{ident}> for i32 {{"),
        |code| {
            code.block(format_args!("fn from(value: {ident}) -> i32 {{"), |code| {
                code.line("value.0")
            });
        },
    );
}
