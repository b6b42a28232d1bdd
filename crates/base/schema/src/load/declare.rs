//! First pass: every type of every file under its full name.

use std::collections::{BTreeSet, HashMap, HashSet};

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, ServiceDescriptorProto};
use provost_wire::limits::SCHEMA_TYPES_MAX;

use super::place::{FilePlace, SourceFile, is_identifier};
use crate::bounds::too_many;
use crate::{EnumId, MessageId, SchemaError, SchemaErrorKind};

/// The file by which others declare options of their own, whether any imports it or not.
const DESCRIPTOR_PROTO: &str = "google/protobuf/descriptor.proto";

/// Field numbers of `descriptor.proto`, of which paths consist.
pub(super) mod number {
    pub(in super::super) const FILE_PACKAGE: i32 = 2;
    pub(in super::super) const FILE_MESSAGE: i32 = 4;
    pub(in super::super) const FILE_ENUM: i32 = 5;
    pub(in super::super) const FILE_SERVICE: i32 = 6;
    pub(in super::super) const FILE_SYNTAX: i32 = 12;
    pub(in super::super) const MESSAGE_FIELD: i32 = 2;
    pub(in super::super) const MESSAGE_NESTED: i32 = 3;
    pub(in super::super) const MESSAGE_ENUM: i32 = 4;
    pub(in super::super) const MESSAGE_ONEOF: i32 = 8;
    pub(in super::super) const FIELD_NUMBER: i32 = 3;
    pub(in super::super) const FIELD_LABEL: i32 = 4;
    pub(in super::super) const FIELD_TYPE: i32 = 5;
    pub(in super::super) const FIELD_TYPE_NAME: i32 = 6;
    pub(in super::super) const ENUM_VALUE: i32 = 2;
    pub(in super::super) const VALUE_NUMBER: i32 = 2;
    pub(in super::super) const SERVICE_METHOD: i32 = 2;
    pub(in super::super) const METHOD_INPUT: i32 = 2;
    pub(in super::super) const METHOD_OUTPUT: i32 = 3;
}

/// A type and where it stands.
pub(super) struct Declared<'a, P> {
    pub(super) place: FilePlace<'a>,
    pub(super) proto: &'a P,
}

/// A map entry, which is no message of the schema.
pub(super) struct DeclaredEntry<'a> {
    pub(super) declared: Declared<'a, DescriptorProto>,
    /// Full name of the message that it is nested in.
    pub(super) parent: String,
}

/// What a full name means.
#[derive(Clone, Copy)]
pub(super) enum DeclaredSymbol {
    Message(MessageId),
    /// Index in [`Declarations::entries`].
    Entry(usize),
    Enum(EnumId),
    Service,
}

/// All that the files declare.
#[derive(Default)]
pub(super) struct Declarations<'a> {
    pub(super) messages: Vec<Declared<'a, DescriptorProto>>,
    pub(super) entries: Vec<DeclaredEntry<'a>>,
    pub(super) enums: Vec<Declared<'a, EnumDescriptorProto>>,
    pub(super) services: Vec<Declared<'a, ServiceDescriptorProto>>,
    pub(super) symbols: HashMap<String, DeclaredSymbol>,
    /// Files that are there for options alone, so that an unknown name may be one of theirs.
    set_aside: Vec<&'a FileDescriptorProto>,
}

/// The files of a set: what declarations borrow.
pub(super) struct Files<'a>(Vec<SourceFile<'a>>);

impl<'a> Files<'a> {
    pub(super) fn of(files: &'a [FileDescriptorProto]) -> Self {
        Files(files.iter().map(SourceFile::new).collect())
    }
}

impl<'a> Declarations<'a> {
    pub(super) fn of(files: &'a Files<'a>) -> Result<Self, SchemaError> {
        let mut declarations = Declarations::default();
        let set_aside = files_for_options(files.0.iter().map(|file| file.proto));
        let mut names = BTreeSet::new();
        for file in &files.0 {
            let place = FilePlace::of_file(file);
            if !names.insert(file.proto.name()) {
                return Err(place.error(SchemaErrorKind::DuplicateName(file.proto.name().to_owned())));
            }
            if set_aside.contains(file.proto.name()) {
                declarations.set_aside.push(file.proto);
            } else {
                declarations.declare_file(&place)?;
            }
        }
        Ok(declarations)
    }

    /// Whether a file that is there for options alone declares the type, or what it is nested in.
    pub(super) fn is_for_options(&self, full_name: &str) -> bool {
        self.set_aside.iter().any(|file| {
            let within = match file.package() {
                "" => Some(full_name),
                package => full_name
                    .strip_prefix(package)
                    .and_then(|rest| rest.strip_prefix('.')),
            };
            let first = within.and_then(|within| within.split('.').next());
            let mut messages = file.message_type.iter().map(DescriptorProto::name);
            let mut enums = file.enum_type.iter().map(EnumDescriptorProto::name);
            first.is_some_and(|first| messages.any(|name| name == first) || enums.any(|name| name == first))
        })
    }

    fn declare_file(&mut self, place: &FilePlace<'a>) -> Result<(), SchemaError> {
        let file = place.file.proto;
        check_syntax(place)?;
        check_package(place)?;
        for (index, message) in file.message_type.iter().enumerate() {
            self.declare_message(
                place,
                place.element(number::FILE_MESSAGE, index, message.name())?,
                message,
            )?;
        }
        for (index, proto) in file.enum_type.iter().enumerate() {
            self.declare_enum(place.element(number::FILE_ENUM, index, proto.name())?, proto)?;
        }
        for (index, proto) in file.service.iter().enumerate() {
            let place = place.element(number::FILE_SERVICE, index, proto.name())?;
            check_count(&place, self.services.len(), "services")?;
            self.declare(&place, DeclaredSymbol::Service)?;
            self.services.push(Declared { place, proto });
        }
        Ok(())
    }

    /// Declares a message and what is nested in it. The decoder bounds how deep messages nest.
    fn declare_message(
        &mut self,
        parent: &FilePlace<'a>,
        place: FilePlace<'a>,
        proto: &'a DescriptorProto,
    ) -> Result<(), SchemaError> {
        if proto.options.as_ref().is_some_and(|options| options.map_entry()) {
            return self.declare_entry(parent, place, proto);
        }
        check_count(&place, self.messages.len(), "messages")?;
        self.declare(
            &place,
            DeclaredSymbol::Message(MessageId(self.messages.len() as u32)),
        )?;
        self.messages.push(Declared {
            place: place.clone(),
            proto,
        });
        for (index, nested) in proto.nested_type.iter().enumerate() {
            self.declare_message(
                &place,
                place.element(number::MESSAGE_NESTED, index, nested.name())?,
                nested,
            )?;
        }
        for (index, nested) in proto.enum_type.iter().enumerate() {
            self.declare_enum(place.element(number::MESSAGE_ENUM, index, nested.name())?, nested)?;
        }
        Ok(())
    }

    fn declare_entry(
        &mut self,
        parent: &FilePlace<'a>,
        place: FilePlace<'a>,
        proto: &'a DescriptorProto,
    ) -> Result<(), SchemaError> {
        if !proto.nested_type.is_empty() || !proto.enum_type.is_empty() {
            return Err(place.error(SchemaErrorKind::Map("its entry has nested types")));
        }
        self.declare(&place, DeclaredSymbol::Entry(self.entries.len()))?;
        let parent = parent.full_name.clone();
        self.entries.push(DeclaredEntry {
            declared: Declared { place, proto },
            parent,
        });
        Ok(())
    }

    fn declare_enum(
        &mut self,
        place: FilePlace<'a>,
        proto: &'a EnumDescriptorProto,
    ) -> Result<(), SchemaError> {
        check_count(&place, self.enums.len(), "enums")?;
        self.declare(&place, DeclaredSymbol::Enum(EnumId(self.enums.len() as u32)))?;
        self.enums.push(Declared { place, proto });
        Ok(())
    }

    fn declare(&mut self, place: &FilePlace<'a>, symbol: DeclaredSymbol) -> Result<(), SchemaError> {
        match self.symbols.insert(place.full_name.clone(), symbol) {
            None => Ok(()),
            Some(_) => Err(place.error(SchemaErrorKind::DuplicateName(place.full_name.clone()))),
        }
    }
}

/// The names of files that others import and that are not proto3, but for those with services: they declare options, of which a schema has
/// none. Their types cannot be used.
pub fn files_for_options<'a>(
    files: impl Iterator<Item = &'a FileDescriptorProto> + Clone,
) -> HashSet<&'a str> {
    let imported = files.clone().flat_map(|file| &file.dependency);
    let imported: HashSet<&str> = imported.map(String::as_str).chain([DESCRIPTOR_PROTO]).collect();
    let for_options = |file: &&FileDescriptorProto| {
        file.syntax() != "proto3" && file.service.is_empty() && imported.contains(file.name())
    };
    files.filter(for_options).map(FileDescriptorProto::name).collect()
}

fn check_count(place: &FilePlace<'_>, count: usize, what: &'static str) -> Result<(), SchemaError> {
    if count < SCHEMA_TYPES_MAX {
        Ok(())
    } else {
        Err(place.error(too_many(what, SCHEMA_TYPES_MAX)))
    }
}

fn check_syntax(place: &FilePlace<'_>) -> Result<(), SchemaError> {
    let syntax = match place.file.proto.syntax() {
        "proto3" => return Ok(()),
        "" => "proto2",
        other => other,
    };
    let syntax = syntax.chars().take(64).collect();
    Err(place.error_in(number::FILE_SYNTAX, SchemaErrorKind::Syntax { syntax }))
}

fn check_package(place: &FilePlace<'_>) -> Result<(), SchemaError> {
    let package = place.file.proto.package();
    if package.is_empty() || package.split('.').all(is_identifier) {
        return Ok(());
    }
    let kind = SchemaErrorKind::Name {
        name: package.chars().take(64).collect(),
        max: provost_wire::limits::NAME_BYTES_MAX,
    };
    Err(place.error_in(number::FILE_PACKAGE, kind))
}
