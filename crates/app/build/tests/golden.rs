//! The generated code and the error messages are what they were when somebody last looked at them.
//!
//! `BLESS=1 cargo test -p provost-build --test golden` writes them anew; then look at what changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use provost_build::configure;

#[test]
fn generated_code_is_as_checked_in() {
    let protos = directory("golden/proto");
    let code = configure()
        .emit_rerun_if_changed(false)
        .generate(&files(&protos, "proto"), &[&protos, &directory("golden/imports")]);
    let code = code.unwrap_or_else(|error| panic!("{error}"));
    let code = code
        .into_iter()
        .map(|(package, code)| (file_name(&package), code));
    compare(&directory("golden/generated"), "rs", code.collect());
}

/// Attributes and code that is elsewhere, by configuration.
#[test]
fn configured_code_is_as_checked_in() {
    let protos = directory("golden/configured");
    let config = configure()
        .emit_rerun_if_changed(false)
        .extern_path(".golden.everything", "crate::golden::everything")
        .extern_path(".golden.configured.Elsewhere", "crate::Elsewhere")
        .type_attribute(".golden.configured.Name", "#[derive(Eq, Hash)]")
        .type_attribute("Labelled.choice", "#[derive(Eq, Hash)]")
        .field_attribute("Labelled.name", "#[doc(alias = \"title\")]")
        .field_attribute("choice.text", "#[doc(alias = \"words\")]")
        .field_attribute("Shade.SHADE_DARK", "#[doc(alias = \"black\")]");
    let includes = [&protos, &directory("golden/proto")];
    let code = config.generate(&[protos.join("configured.proto")], &includes);
    let code = code.unwrap_or_else(|error| panic!("{error}"));
    let code = code
        .into_iter()
        .map(|(package, code)| (file_name(&package), code));
    compare(&protos, "rs", code.collect());
}

/// The types that the library has, in its sources.
#[test]
fn the_librarys_types_are_as_checked_in() {
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("../provost");
    let protos = library.join("proto");
    let config = || {
        configure()
            .emit_rerun_if_changed(false)
            .compile_well_known_types()
    };
    let written = |directory: &str, package: &str, code: Result<BTreeMap<String, String>, _>| {
        let mut code = code.unwrap_or_else(|error: provost_build::Error| panic!("{error}"));
        let text = code.remove(package).expect("the package");
        let generated = BTreeMap::from([("generated.rs".to_owned(), text)]);
        compare_named(&library.join("src").join(directory), generated);
    };
    let well_known = config().generate(&[protos.join("well_known.proto")], &[&protos]);
    written("well_known", "google.protobuf", well_known);
    let rpc = ["status", "error_details"].map(|name| protos.join(format!("google/rpc/{name}.proto")));
    let rpc = config()
        .extern_path(".google.protobuf", "::provost::well_known")
        .generate(&rpc, &[&protos]);
    written("error_details", "google.rpc", rpc);
    let health = config().generate(&[protos.join("grpc/health/v1/health.proto")], &[&protos]);
    written("health", "grpc.health.v1", health);
}

#[test]
fn error_messages_are_as_checked_in() {
    let protos = directory("errors");
    let message = |path: &PathBuf| {
        let name = format!(
            "{}.txt",
            path.file_stem()
                .and_then(|stem| stem.to_str())
                .unwrap_or_default()
        );
        let result = configure()
            .emit_rerun_if_changed(false)
            .generate(&[path], &[&protos, &directory("golden/imports")]);
        let error = result
            .map(|_| ())
            .expect_err(&format!("{} compiles", path.display()));
        (name, format!("{error}\n"))
    };
    compare(
        &protos,
        "txt",
        files(&protos, "proto").iter().map(message).collect(),
    );
}

#[test]
fn a_file_of_options_is_imported_and_not_compiled() {
    let imports = directory("golden/imports");
    let protos = directory("golden/proto");
    let named = [protos.join("options.proto"), imports.join("rules/validate.proto")];
    let error = configure()
        .emit_rerun_if_changed(false)
        .generate(&named, &[&protos, &imports])
        .expect_err("proto2 is named");
    assert!(
        error
            .to_string()
            .starts_with("rules/validate.proto:1:1: proto2 cannot be compiled"),
        "{error}"
    );
}

#[test]
fn two_packages_are_not_one_module() {
    let protos = tempfile::tempdir().expect("a directory");
    let write = |name: &str, text: &str| fs::write(protos.path().join(name), text).expect("written");
    write(
        "small.proto",
        "syntax = \"proto3\";\npackage shop.v1;\nmessage A {}\n",
    );
    write(
        "large.proto",
        "syntax = \"proto3\";\npackage shop.V1;\nmessage B {}\n",
    );
    let paths = ["small.proto", "large.proto"].map(|name| protos.path().join(name));
    let error = configure()
        .emit_rerun_if_changed(false)
        .generate(&paths, &[protos.path()])
        .expect_err("two packages for one module");
    assert_eq!(
        error.to_string(),
        "large.proto:2:1: the packages `shop.V1` and `shop.v1` would both be the module `shop::v1` in Rust; \
         rename one of the two\n  |\n2 | package shop.V1;\n  | ^^^^^^^^^^^^^^^^"
    );
}

#[test]
fn comments_count_nothing_and_what_describes_a_service_does() {
    let protos = tempfile::tempdir().expect("a directory");
    let generate = |text: &str| {
        let path = protos.path().join("large.proto");
        fs::write(&path, format!("syntax = \"proto3\";\n{text}")).expect("written");
        let config = configure().emit_rerun_if_changed(false);
        config.generate(&[path], &[protos.path()]).map(|_| ())
    };
    let lines =
        "// A line of a comment that goes on and on, and says nothing that one could not do without.\n";
    let service = "service S { rpc Get(M0) returns (M0); }\n";
    let comments = lines.repeat((8 << 20) / lines.len());
    generate(&format!("{comments}message M0 {{}}\n{service}")).expect("comments are left out");

    let long = "n".repeat(200);
    let field = |number: usize| format!("bool {long}{number} = {number};\n");
    let fields: String = (1..2000).map(field).collect();
    let messages: String = (0..6)
        .map(|at| format!("message M{at} {{\n{fields}}}\n"))
        .collect();
    let error = generate(&format!("{messages}{service}")).expect_err("no node takes it");
    assert!(
        error
            .to_string()
            .contains("more than 4194304 bytes of descriptor set"),
        "{error}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let protos = directory("errors");
    let error = configure()
        .generate(&[protos.join("absent.proto")], &[&protos])
        .map(|_| ());
    assert!(
        error
            .as_ref()
            .is_err_and(|error| error.to_string().contains("absent.proto")),
        "{error:?}"
    );
}

#[test]
fn the_code_of_a_package_is_one_file_and_the_includes_nest() {
    let protos = directory("golden/proto");
    let out = tempfile::tempdir().expect("a directory");
    let config = configure()
        .emit_rerun_if_changed(false)
        .out_dir(out.path())
        .include_file("all.rs");
    config
        .compile_protos(&files(&protos, "proto"), &[&protos, &directory("golden/imports")])
        .unwrap_or_else(|error| panic!("{error}"));
    let written: Vec<String> = files(out.path(), "rs").iter().map(|path| file_of(path)).collect();
    assert_eq!(
        written,
        [
            "_.rs",
            "all.rs",
            "golden.everything.rs",
            "golden.known.rs",
            "golden.names.rs",
            "golden.nesting.rs",
            "golden.options.rs",
            "golden.type.rs"
        ]
    );
    let includes = fs::read_to_string(out.path().join("all.rs")).expect("the includes");
    compare(
        &directory("golden"),
        "rs",
        BTreeMap::from([("all.rs".to_owned(), includes)]),
    );
}

#[test]
fn halves_of_services_can_be_left_out() {
    let protos = directory("golden/proto");
    let generate = |client, server| {
        let config = configure()
            .emit_rerun_if_changed(false)
            .build_client(client)
            .build_server(server);
        let code = config.generate(&[protos.join("service.proto")], &[&protos]);
        code.unwrap_or_else(|error| panic!("{error}"))
            .remove("")
            .expect("the package")
    };
    assert!(!generate(false, true).contains("mod four_client"));
    assert!(!generate(true, false).contains("mod four_server"));
    assert!(generate(false, false).contains("mod four_service"));
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn file_name(package: &str) -> String {
    format!("{}.rs", if package.is_empty() { "_" } else { package })
}

fn file_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory)
        .expect("the directory")
        .map(|entry| entry.expect("an entry").path());
    let mut files: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|it| it == extension))
        .collect();
    files.sort();
    files
}

/// Compares texts with all files of `directory`, or writes them when BLESS is set.
fn compare(directory: &Path, extension: &str, actual: BTreeMap<String, String>) {
    for path in files(directory, extension) {
        assert!(
            actual.contains_key(&file_of(&path)),
            "{} is stale; remove it",
            path.display()
        );
    }
    compare_named(directory, actual);
}

/// Compares texts with the files of their names, or writes them when BLESS is set.
fn compare_named(directory: &Path, actual: BTreeMap<String, String>) {
    if env::var_os("BLESS").is_some() {
        for (name, text) in &actual {
            fs::write(directory.join(name), text).expect("written");
        }
    }
    for (name, text) in actual {
        let expected = fs::read_to_string(directory.join(&name)).unwrap_or_default();
        assert!(
            expected == text,
            "{name} is stale; run with BLESS=1.\n{}",
            difference(&expected, &text)
        );
    }
}

/// The first lines that differ.
fn difference(expected: &str, actual: &str) -> String {
    let (mut expected, mut actual) = (expected.lines(), actual.lines());
    for number in 1.. {
        match (expected.next(), actual.next()) {
            (None, None) => break,
            (before, now) if before != now => {
                let show = |line: Option<&str>| line.unwrap_or("(end of file)").to_owned();
                return format!("line {number}:\n- {}\n+ {}", show(before), show(now));
            }
            _ => {}
        }
    }
    "only the ends of lines differ".to_owned()
}
