//! From checked sources to Rust: one text for each package, in the order of the sources.

mod code;
mod enums;
mod messages;
mod oneofs;
mod scope;
mod services;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};
use provost_schema::{Enum, Field, Message, Service, Type};

use crate::error::Error;
use crate::names::{camel, package_modules, snake};
use crate::options::Options;
use crate::source::Sources;
use crate::{Services, file_name};
use code::Code;
use scope::Scope;

/// Generates the code of each package, by package.
pub(crate) fn generate(
    sources: &Sources,
    services: Services,
    options: &Options,
) -> Result<BTreeMap<String, String>, Error> {
    let here = |file: &&FileDescriptorProto| !options.is_extern_package(file.package());
    check_packages(sources, sources.files.iter().filter(here))?;
    let generator = Generator::new(sources, services, options);
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for file in sources.files.iter().filter(here) {
        let package = packages
            .entry(file.package().to_owned())
            .or_insert_with(|| generator.package(file.package()));
        generator.file(file, package)?;
    }
    for package in packages.values_mut() {
        generator.assert_externs(package);
    }
    Ok(packages
        .into_iter()
        .map(|(name, package)| (name, package.code.finish()))
        .collect())
}

/// Sees to it that no two packages are the same module.
fn check_packages<'a>(
    sources: &Sources,
    files: impl Iterator<Item = &'a FileDescriptorProto>,
) -> Result<(), Error> {
    let mut taken: HashMap<Vec<String>, &str> = HashMap::new();
    for file in files {
        let (package, modules) = (file.package(), package_modules(file.package()));
        let path = modules.join("::");
        let other = *taken.entry(modules).or_insert(package);
        if other != package {
            let message = format!(
                "the packages `{package}` and `{other}` would both be the module `{path}` in Rust; rename one of the two"
            );
            return Err(sources.problem_with_package(file, message).into());
        }
    }
    Ok(())
}

/// A file that includes the files of the packages, in modules that nest as the packages do.
pub(crate) fn includes<'a>(packages: impl Iterator<Item = &'a str>) -> String {
    let mut root = Nest::default();
    for package in packages {
        let modules = package_modules(package);
        let nest = modules
            .into_iter()
            .fold(&mut root, |nest, module| nest.inside.entry(module).or_default());
        nest.include = Some(file_name(package));
    }
    let mut code = Code::new();
    root.write(&mut code);
    code.finish()
}

#[derive(Default)]
struct Nest {
    include: Option<String>,
    inside: BTreeMap<String, Nest>,
}

impl Nest {
    fn write(&self, code: &mut Code) {
        if let Some(file) = &self.include {
            code.line(format_args!("include!(concat!(env!(\"OUT_DIR\"), \"/{file}\"));"));
        }
        for (module, nest) in &self.inside {
            code.block(format_args!("pub mod {module} {{"), |code| nest.write(code));
        }
    }
}

/// A package while it is generated.
struct Package {
    code: Code,
    modules: Vec<String>,
    scope: Scope,
    /// Messages that the program says are elsewhere, and that its code refers to.
    externs: BTreeSet<String>,
}

/// What generated code refers to by paths.
struct Generator<'a> {
    sources: &'a Sources,
    services: Services,
    options: &'a Options,
    messages: HashMap<&'a str, &'a Message>,
    enums: HashMap<&'a str, &'a Enum>,
    /// Where each message and enum is defined, by full name.
    homes: HashMap<String, Home>,
    /// The name of each field in JSON, by message and number.
    json_names: HashMap<(String, i32), &'a str>,
}

/// Where a type is defined.
struct Home {
    modules: Vec<String>,
    ident: String,
}

/// Which of a message's types code is generated from: its descriptor, and where.
struct Context<'a> {
    full_name: &'a str,
    /// The modules that the type's code stands in.
    modules: &'a [String],
}

impl<'a> Generator<'a> {
    fn new(sources: &'a Sources, services: Services, options: &'a Options) -> Self {
        let schema = &sources.schema;
        let mut generator = Generator {
            sources,
            services,
            options,
            messages: schema
                .messages
                .iter()
                .map(|message| (message.full_name.as_str(), message))
                .collect(),
            enums: schema
                .enums
                .iter()
                .map(|item| (item.full_name.as_str(), item))
                .collect(),
            homes: HashMap::new(),
            json_names: HashMap::new(),
        };
        for file in &sources.files {
            let modules = package_modules(file.package());
            generator.settle(file.package(), &modules, &file.message_type, &file.enum_type);
        }
        generator
    }

    /// Notes where the types of a package or a message are defined.
    fn settle(
        &mut self,
        outer: &str,
        modules: &[String],
        messages: &'a [DescriptorProto],
        enums: &[EnumDescriptorProto],
    ) {
        let names = enums
            .iter()
            .map(|item| item.name())
            .chain(messages.iter().map(|message| message.name()));
        for name in names {
            let home = Home {
                modules: modules.to_vec(),
                ident: camel(name),
            };
            self.homes.insert(qualified(outer, name), home);
        }
        for message in messages {
            let inside = [modules, &[snake(message.name())]].concat();
            let outer = qualified(outer, message.name());
            for field in &message.field {
                let place = (outer.clone(), field.number());
                self.json_names.insert(place, field.json_name());
            }
            self.settle(&outer, &inside, &message.nested_type, &message.enum_type);
        }
    }

    fn package(&self, name: &str) -> Package {
        let modules = package_modules(name);
        let mut scope = Scope::new();
        // Packages nested in this one are modules beside those of its messages.
        for file in &self.sources.files {
            let other = package_modules(file.package());
            if let Some(child) = other
                .strip_prefix(modules.as_slice())
                .and_then(|rest| rest.first())
            {
                scope.package(child, file.package());
            }
        }
        let mut code = Code::new();
        code.line("// @generated by provost-build. Changes are lost when it runs again.");
        Package {
            code,
            modules,
            scope,
            externs: BTreeSet::new(),
        }
    }

    fn file(&self, file: &FileDescriptorProto, package: &mut Package) -> Result<(), Error> {
        self.note_externs(file, package);
        let Package {
            code, modules, scope, ..
        } = package;
        for message in &file.message_type {
            let full_name = qualified(file.package(), message.name());
            self.message(
                code,
                scope,
                message,
                &Context {
                    full_name: &full_name,
                    modules,
                },
            )?;
        }
        for item in &file.enum_type {
            let full_name = qualified(file.package(), item.name());
            self.enumeration(code, scope, &full_name)?;
        }
        for service in &file.service {
            let full_name = qualified(file.package(), service.name());
            let Some(service) = self.sources.schema.service(&full_name) else {
                continue;
            };
            self.service(code, scope, service, modules)?;
        }
        Ok(())
    }

    /// Notes which messages of other programs' code the messages and methods of a file refer to.
    fn note_externs(&self, file: &FileDescriptorProto, package: &mut Package) {
        let schema = &self.sources.schema;
        let names = file
            .message_type
            .iter()
            .map(|message| qualified(file.package(), message.name()));
        let inside: Vec<String> = names.collect();
        let is_here = |full_name: &str| {
            let within = |outer: &String| {
                full_name
                    .strip_prefix(outer.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            inside.iter().any(within)
        };
        let messages = schema
            .messages
            .iter()
            .filter(|message| is_here(&message.full_name));
        let in_fields = messages
            .flat_map(Message::fields)
            .filter_map(|field| match field.ty {
                Type::Message(id) => Some(id),
                _ => None,
            });
        let services = file
            .service
            .iter()
            .map(|service| qualified(file.package(), service.name()));
        let services = services.filter_map(|name| schema.service(&name));
        let in_methods = services
            .flat_map(|service| &service.methods)
            .flat_map(|method| [method.input, method.output]);
        let referred = in_fields
            .chain(in_methods)
            .map(|id| &schema.message(id).full_name);
        package.externs.extend(
            referred
                .filter(|name| self.options.is_extern_of_program(name))
                .cloned(),
        );
    }

    /// Has the compiler check that what is elsewhere is what the program says: its name and its struct.
    fn assert_externs(&self, package: &mut Package) {
        for full_name in &package.externs {
            let (Some(message), Some(path)) = (
                self.messages.get(full_name.as_str()),
                self.options.extern_path(full_name),
            ) else {
                continue;
            };
            package.code.line("");
            package.code.line(format_args!(
                "::provost::__extern_message! {{ {path}, \"{full_name}\", {}, {} }}",
                message.size, message.align
            ));
        }
    }

    /// The path to a message or an enum from within `modules`.
    fn path(&self, modules: &[String], full_name: &str) -> String {
        if let Some(path) = self.options.extern_path(full_name) {
            return path;
        }
        let Some(home) = self.homes.get(full_name) else {
            return full_name.to_owned();
        };
        let shared = modules
            .iter()
            .zip(&home.modules)
            .take_while(|(here, there)| here == there)
            .count();
        let up = std::iter::repeat_n("super", modules.len() - shared);
        let down = home.modules[shared..].iter().map(String::as_str);
        up.chain(down)
            .chain([home.ident.as_str()])
            .collect::<Vec<_>>()
            .join("::")
    }

    /// The name of a message's field in JSON.
    fn json_name<'f>(&'f self, message: &str, field: &'f Field) -> &'f str {
        let place = (message.to_owned(), field.number as i32);
        let given = self.json_names.get(&place).copied();
        given.filter(|name| !name.is_empty()).unwrap_or(&field.name)
    }

    /// The type of a value: of a field without presence, an element, a key.
    fn value_type(&self, modules: &[String], ty: Type) -> String {
        let schema = &self.sources.schema;
        match ty {
            Type::Bool => "bool".to_owned(),
            Type::Int32 | Type::Sint32 | Type::Sfixed32 => "i32".to_owned(),
            Type::Uint32 | Type::Fixed32 => "u32".to_owned(),
            Type::Int64 | Type::Sint64 | Type::Sfixed64 => "i64".to_owned(),
            Type::Uint64 | Type::Fixed64 => "u64".to_owned(),
            Type::Float => "f32".to_owned(),
            Type::Double => "f64".to_owned(),
            Type::String => "::provost::shared::String".to_owned(),
            Type::Bytes => "::provost::shared::Bytes".to_owned(),
            Type::Enum(id) => self.path(modules, &schema.enumeration(id).full_name),
            Type::Message(id) => self.path(modules, &schema.message(id).full_name),
        }
    }

    /// The type of a single value that lies in a struct: a message is in a block of its own.
    fn member_type(&self, modules: &[String], field: &Field) -> String {
        let value = self.value_type(modules, field.ty);
        match field.ty {
            Type::Message(_) => format!("::provost::shared::Box<{value}>"),
            _ => value,
        }
    }
}

/// A name in a package or a message.
fn qualified(outer: &str, name: &str) -> String {
    match outer {
        "" => name.to_owned(),
        outer => format!("{outer}.{name}"),
    }
}

/// The identifier of a type in its own module.
fn type_ident(full_name: &str) -> String {
    camel(full_name.rsplit('.').next().unwrap_or(full_name))
}

/// The name of a service without its package.
fn service_name(service: &Service) -> &str {
    service.full_name.rsplit('.').next().unwrap_or(&service.full_name)
}
