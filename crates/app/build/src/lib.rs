//! Compiles `.proto` files into Provost clients, servers and message types, in a `build.rs`:
//!
//! ```no_run
//! fn main() -> Result<(), provost_build::Error> {
//!     provost_build::compile_protos(&["proto/kv.proto"], &["proto"])
//! }
//! ```
//!
//! and in the program, in the module in which the packages are to be (`package kv;` becomes `pub mod kv`):
//!
//! ```ignore
//! provost::include_protos!();
//! ```
//!
//! Nothing else needs to be installed: files are parsed by a library, and Google's well-known types come with it.
//! proto3 is supported whole; proto2 and editions are refused, with the place, but for proto2 files that are imported for their
//! options alone.
//!
//! Each package becomes one file. Packages refer to each other by `super::`, so the modules that include them must
//! nest as the packages do. `include_protos!` includes a file that has all of them nested; who includes a
//! package by itself, by `provost::include_proto!("kv")`, nests by hand. Google's well-known types are those of
//! `provost::well_known`; [`Config::extern_path`] says where the code of other packages is that is not to be generated.
//! What the code expects of the `provost` crate is written in this crate's `CODEGEN.md`.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod error;
mod generate;
mod names;
mod options;
mod source;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

pub use error::{Error, Problem};
use options::{Attribute, ExternPath, Options, WellKnown};

/// The file that `provost::include_protos!` includes.
const INCLUDE_FILE: &str = "_includes.rs";

/// Compiles `.proto` files, and all that they import, with the default [`Config`]. `includes` are the directories
/// that paths in `import` are relative to.
pub fn compile_protos(protos: &[impl AsRef<Path>], includes: &[impl AsRef<Path>]) -> Result<(), Error> {
    configure().compile_protos(protos, includes)
}

/// A [`Config`] to be changed.
#[must_use]
pub fn configure() -> Config {
    Config::default()
}

/// What is generated, and where to.
#[derive(Clone, Debug)]
pub struct Config {
    out_dir: Option<PathBuf>,
    include_file: Option<PathBuf>,
    services: Services,
    options: Options,
    cargo: Cargo,
}

/// Which halves of services are generated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Services {
    pub(crate) client: bool,
    pub(crate) server: bool,
}

/// Whether cargo is told which files to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cargo {
    RerunIfChanged,
    NotTold,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            out_dir: None,
            include_file: None,
            services: Services {
                client: true,
                server: true,
            },
            options: Options::default(),
            cargo: Cargo::RerunIfChanged,
        }
    }
}

impl Config {
    /// Writes to this directory; without it, to cargo's `OUT_DIR`.
    #[must_use]
    pub fn out_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(directory.into());
        self
    }

    /// Names the file that includes every package, in modules that nest as the packages do. Without this it is written for
    /// `provost::include_protos!`, to cargo's `OUT_DIR` alone.
    #[must_use]
    pub fn include_file(mut self, name: impl Into<PathBuf>) -> Self {
        self.include_file = Some(name.into());
        self
    }

    /// Whether clients are generated; they are by default.
    #[must_use]
    pub fn build_client(mut self, enable: bool) -> Self {
        self.services.client = enable;
        self
    }

    /// Whether servers are generated; they are by default.
    #[must_use]
    pub fn build_server(mut self, enable: bool) -> Self {
        self.services.server = enable;
        self
    }

    /// Says that the code of a package or a type is elsewhere: it is not generated, and others refer to it by the Rust path.
    /// That of a package is a module as this crate would have generated it, from the same sources. (The compiler checks a
    /// message's name, size and alignment.)
    ///
    /// ```
    /// let config = provost_build::configure()
    ///     .extern_path(".shop.money", "::shop_money")
    ///     .extern_path(".shop.Address", "crate::address::Address");
    /// ```
    #[must_use]
    pub fn extern_path(mut self, proto: impl Into<String>, rust: impl Into<String>) -> Self {
        let proto = proto.into();
        let proto = format!(".{}", proto.trim_start_matches('.'));
        self.options.extern_paths.push(ExternPath {
            proto,
            rust: rust.into(),
        });
        self
    }

    /// Puts an attribute before the messages, enums and oneofs of a path: `.` for all, `.kv.Entry` for one and what is in
    /// it, `Entry` for all that are called so.
    ///
    /// ```
    /// let config = provost_build::configure()
    ///     .type_attribute("kv.Entry", "#[derive(Eq, Hash)]")
    ///     .field_attribute("kv.Entry.value", "#[doc(alias = \"content\")]");
    /// ```
    #[must_use]
    pub fn type_attribute(mut self, path: impl Into<String>, attribute: impl Into<String>) -> Self {
        self.options.type_attributes.push(Attribute {
            path: path.into(),
            attribute: attribute.into(),
        });
        self
    }

    /// Puts an attribute before the fields, members of oneofs and values of enums of a path, as
    /// [`type_attribute`](Config::type_attribute) has them. A member of a oneof is below it: `kv.Request.action.get`.
    #[must_use]
    pub fn field_attribute(mut self, path: impl Into<String>, attribute: impl Into<String>) -> Self {
        self.options.field_attributes.push(Attribute {
            path: path.into(),
            attribute: attribute.into(),
        });
        self
    }

    /// Generates Google's well-known types too, instead of using those of `provost::well_known`.
    #[must_use]
    pub fn compile_well_known_types(mut self) -> Self {
        self.options.well_known = WellKnown::Generated;
        self
    }

    /// Whether cargo is told to run the build script again when a `.proto` file changes; it is by default.
    #[must_use]
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.cargo = if enable {
            Cargo::RerunIfChanged
        } else {
            Cargo::NotTold
        };
        self
    }

    /// Compiles `.proto` files and all that they import; see [`compile_protos`].
    pub fn compile_protos(
        &self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<(), Error> {
        if self.cargo == Cargo::RerunIfChanged {
            for path in protos
                .iter()
                .map(AsRef::as_ref)
                .chain(includes.iter().map(AsRef::as_ref))
            {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
        let out_dir = match &self.out_dir {
            Some(directory) => directory.clone(),
            None => env::var_os("OUT_DIR").map(PathBuf::from).ok_or(Error::NoOutDir)?,
        };
        let sources = source::Sources::parse(protos, includes)?;
        let packages = generate::generate(&sources, self.services, &self.options)?;
        for (package, code) in &packages {
            write(&out_dir.join(file_name(package)), code)?;
        }
        let default = self.out_dir.is_none().then(|| PathBuf::from(INCLUDE_FILE));
        match self.include_file.clone().or(default) {
            Some(name) => write(
                &out_dir.join(name),
                &generate::includes(packages.keys().map(String::as_str)),
            ),
            None => Ok(()),
        }
    }

    /// Compiles and returns the code of each package, by package, instead of writing it.
    pub fn generate(
        &self,
        protos: &[impl AsRef<Path>],
        includes: &[impl AsRef<Path>],
    ) -> Result<BTreeMap<String, String>, Error> {
        generate::generate(
            &source::Sources::parse(protos, includes)?,
            self.services,
            &self.options,
        )
    }
}

/// The file of a package, in the output directory.
pub(crate) fn file_name(package: &str) -> String {
    match package {
        "" => "_.rs".to_owned(),
        package => format!("{package}.rs"),
    }
}

/// Writes a file unless it says the same already, so that cargo does not compile it anew.
fn write(path: &Path, code: &str) -> Result<(), Error> {
    if fs::read_to_string(path).is_ok_and(|present| present == code) {
        return Ok(());
    }
    fs::write(path, code).map_err(|error| Error::Write {
        path: path.to_owned(),
        error,
    })
}
