//! `provost schema`: what services and messages look like, and whether a change of them is safe.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use prost::Message;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::check_schema_response::Verdict;
use provost_admin::v1::{
    CheckSchemaRequest, CheckSchemaResponse, ListSchemasRequest, ListSchemasResponse, PrefetchSchemaRequest,
    PrefetchSchemaResponse, Schema,
};
use provost_schema::{Compatibility, compatibility};

use crate::watch::{Listing, Shown, show};
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Align, Canvas, Cell, Look, Table, broken};

const CHECK_EXAMPLES: &str = "\
Compares the services of the files with those that the node knows, both ways: while a change is rolled out, old and new
clients and servers meet. Exit status 5 if one does not fit, and the field that stands in the way is named.

Examples:
  provost schema check proto/kv.proto
  provost schema check kv.proto --against released/kv.proto      without a node, as in continuous integration
  provost schema check kv.pb --json                              a serialized FileDescriptorSet";

const PREFETCH_EXAMPLES: &str = "\
The node has it until its service stops; a replacement of the daemon keeps it. To have it at each start, make a file of it by
`provost schema compile`, and name that in `schemas.prefetch` of the node's configuration. Policies that read fields of a gRPC service
need that: without the schema each call of it ends with FAILED_PRECONDITION.

Examples:
  provost schema prefetch proto/kv.proto
  provost schema prefetch -I proto proto/a.proto proto/b.proto
  provost schema compile proto/kv.proto --output /etc/provost/kv.pb     for schemas.prefetch = [\"/etc/provost/kv.pb\"]";

/// What people are told of what they have given.
const UNTIL_IT_STOPS: &str = "known until the service stops: for each start, name what `provost schema compile` makes of it in \
                              schemas.prefetch of the node's configuration";

/// `provost schema …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the schemas that the node knows
    #[command(after_help = "Examples:\n  provost schema list\n  provost schema list --json")]
    List(Listing),
    /// Give the node a schema before an app brings it
    #[command(after_help = PREFETCH_EXAMPLES)]
    Prefetch {
        #[command(flatten)]
        files: Files,
        #[command(flatten)]
        target: Target,
    },
    /// Make a file of .proto files that a node's configuration can name in schemas.prefetch
    #[command(
        after_help = "Examples:\n  provost schema compile proto/kv.proto --output kv.pb\n  provost schema compile -I proto proto/a.proto proto/b.proto --output both.pb"
    )]
    Compile {
        #[command(flatten)]
        files: Files,
        /// Where to write the serialized FileDescriptorSet; a file that is there is replaced
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
    },
    /// Say whether a schema fits those in use, and which field breaks it
    #[command(after_help = CHECK_EXAMPLES)]
    Check {
        #[command(flatten)]
        files: Files,
        /// Compare with these files instead of with what a node knows; may be given several times
        #[arg(long, value_name = "FILE")]
        against: Vec<PathBuf>,
        #[command(flatten)]
        target: Target,
    },
}

/// Schemas in files.
#[derive(Args, Debug)]
pub(crate) struct Files {
    /// .proto files, or a serialized FileDescriptorSet (any other name)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Directories in which imports are looked for [default: each file's own]
    #[arg(long = "include", short = 'I', value_name = "DIRECTORY")]
    includes: Vec<PathBuf>,
}

/// Runs one.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            show(&listing, async |node: &mut Node| {
                node.call(ListSchemasRequest {}, AdminClient::list_schemas).await
            })
            .await
        }
        Command::Prefetch { files, target } => {
            let descriptor_set = read(&files.files, &files.includes)?;
            let mut node = Node::connect(&target).await?;
            let request = PrefetchSchemaRequest { descriptor_set };
            let done = node.call(request, AdminClient::prefetch_schema).await?;
            print(&if target.json {
                json_document(&done)?
            } else {
                done.draw(Canvas::of_stdout())
            })
        }
        Command::Compile { files, output } => {
            let descriptor_set = read(&files.files, &files.includes)?;
            with_services(&descriptor_set)?;
            std::fs::write(&output, descriptor_set)
                .map_err(|error| Failure::usage(format!("{}: {error}", output.display())))
        }
        Command::Check {
            files,
            against,
            target,
        } => check(&files, &against, &target).await,
    }
}

async fn check(files: &Files, against: &[PathBuf], target: &Target) -> Result<(), Failure> {
    let descriptor_set = read(&files.files, &files.includes)?;
    let checked = if against.is_empty() {
        let mut node = Node::connect(target).await?;
        let request = CheckSchemaRequest { descriptor_set };
        node.call(request, AdminClient::check_schema).await?
    } else {
        compare(&descriptor_set, &read(against, &files.includes)?)?
    };
    print(&if target.json {
        json_document(&checked)?
    } else {
        checked.draw(Canvas::of_stdout())
    })?;
    let broken = checked
        .verdicts
        .iter()
        .filter(|one| one.verdict == "incompatible");
    match broken.count() {
        0 => Ok(()),
        count => {
            let message = format!("{count} of {} comparisons failed", checked.verdicts.len());
            Err(Failure::new(Exit::Refused, message))
        }
    }
}

/// The same verdicts as a node's, of two files.
fn compare(new: &[u8], old: &[u8]) -> Result<CheckSchemaResponse, Failure> {
    let (new, old) = (with_services(new)?, load(old)?);
    let verdict = |service: &provost_schema::Service| {
        let name = &service.full_name;
        let known = old.service_hash(name);
        let both_ways = || {
            compatibility(&new, &old, name)?;
            compatibility(&old, &new, name)
        };
        let (word, problem) = match known.map(|_| both_ways()) {
            None => ("new", String::new()),
            Some(Ok(Compatibility::Equal)) => ("equal", String::new()),
            Some(Ok(Compatibility::Protobuf { .. })) => ("compatible", String::new()),
            Some(Err(error)) => ("incompatible", error.to_string()),
        };
        Verdict {
            service: name.clone(),
            in_use: known.map(|hash| hash.to_string()).unwrap_or_default(),
            verdict: word.to_owned(),
            problem,
        }
    };
    Ok(CheckSchemaResponse {
        verdicts: new.services.iter().map(verdict).collect(),
    })
}

/// The schema that a node makes of a descriptor set.
fn load(descriptor_set: &[u8]) -> Result<provost_schema::Schema, Failure> {
    provost_schema::Schema::from_descriptor_set(descriptor_set)
        .map_err(|error| Failure::new(Exit::Refused, error.to_string()))
}

/// The same of one that a node takes for what it declares.
fn with_services(descriptor_set: &[u8]) -> Result<provost_schema::Schema, Failure> {
    let schema = load(descriptor_set)?;
    if schema.services.is_empty() {
        let message = "the schema has no service: name the file that declares it";
        return Err(Failure::new(Exit::Refused, message));
    }
    Ok(schema)
}

/// A descriptor set of some files.
pub(crate) fn read(files: &[PathBuf], includes: &[PathBuf]) -> Result<Vec<u8>, Failure> {
    let is_source = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "proto");
    match files {
        files if files.iter().all(is_source) => compile(files, includes),
        [file] => std::fs::read(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display()))),
        _ => Err(Failure::usage("name .proto files, or one descriptor set")),
    }
}

fn compile(files: &[PathBuf], includes: &[PathBuf]) -> Result<Vec<u8>, Failure> {
    let directories = include_directories(files, includes);
    if let Some(failure) = missing_file(files, &directories) {
        return Err(failure);
    }
    let compiled = protox::compile(files, directories)
        .map_err(|error| Failure::new(Exit::Refused, format!("{error:?}").trim_end().to_owned()))?;
    Ok(compiled.encode_to_vec())
}

/// Where imports are looked for: where somebody said, or beside each file.
pub(crate) fn include_directories(files: &[PathBuf], includes: &[PathBuf]) -> Vec<PathBuf> {
    match includes {
        [] => files.iter().map(|file| directory_of(file)).collect(),
        includes => includes.to_vec(),
    }
}

/// Names the first file that is neither there nor in one of the directories: compilers only say that it is in none of these.
pub(crate) fn missing_file(files: &[PathBuf], directories: &[PathBuf]) -> Option<Failure> {
    let is_there =
        |file: &&PathBuf| file.exists() || directories.iter().any(|folder| folder.join(file).exists());
    let missing = files.iter().find(|file| !is_there(file))?;
    let message = format!("{}: there is no such file", missing.display());
    Some(Failure::usage(message))
}

/// Where a file is, and with it what it imports.
pub(crate) fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

impl Shown for ListSchemasResponse {
    fn draw(&self, canvas: Canvas) -> String {
        if self.schemas.is_empty() {
            "no schema is known\n".to_owned()
        } else {
            draw_schemas(&self.schemas, canvas)
        }
    }
}

impl Shown for PrefetchSchemaResponse {
    fn draw(&self, canvas: Canvas) -> String {
        draw_schemas(&self.schemas, canvas) + &broken(UNTIL_IT_STOPS, 0, canvas) + "\n"
    }
}

fn draw_schemas(schemas: &[Schema], canvas: Canvas) -> String {
    let mut table = Table::new(&[
        ("SERVICE", Align::Left),
        ("HASH", Align::Left),
        ("SERVED BY", Align::Right),
        ("FROM", Align::Left),
        ("METHODS", Align::Left),
    ]);
    for schema in schemas {
        table.row([
            (&schema.service).into(),
            short(&schema.hash).into(),
            schema.apps.into(),
            (&schema.source).into(),
            schema.methods.join(", ").into(),
        ]);
    }
    table.draw(canvas)
}

/// As much of a hash as people need to tell two apart.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

impl Shown for CheckSchemaResponse {
    fn draw(&self, canvas: Canvas) -> String {
        let mut table = Table::new(&[
            ("SERVICE", Align::Left),
            ("AGAINST", Align::Left),
            ("VERDICT", Align::Left),
        ]);
        for one in &self.verdicts {
            let look = match one.verdict.as_str() {
                "incompatible" => Look::Bad,
                _ => Look::Good,
            };
            let against = if one.in_use.is_empty() {
                "-".to_owned()
            } else {
                short(&one.in_use)
            };
            table.row([
                (&one.service).into(),
                against.into(),
                Cell::new(&one.verdict, look),
            ]);
        }
        let mut out = table.draw(canvas);
        for one in self.verdicts.iter().filter(|one| !one.problem.is_empty()) {
            out += &format!(
                "{}: {}\n",
                one.service,
                provost_terminal::table::clean(&one.problem)
            );
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(proto: &str) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.proto");
        std::fs::write(&path, proto).unwrap();
        read(&[path], &[]).unwrap()
    }

    fn proto(field: &str) -> String {
        format!(
            "syntax = \"proto3\"; package t; message M {{ {field} }} service S {{ rpc Call(M) returns (M); }}"
        )
    }

    #[test]
    fn a_comparison_of_files_names_the_field_that_breaks() {
        let verdict = |new: &str, old: &str| {
            let checked = compare(&set_of(&proto(new)), &set_of(&proto(old))).unwrap();
            (
                checked.verdicts[0].verdict.clone(),
                checked.verdicts[0].problem.clone(),
            )
        };
        assert_eq!(verdict("string a = 1;", "string a = 1;").0, "equal");
        assert_eq!(
            verdict("string a = 1; int32 b = 2;", "string a = 1;").0,
            "compatible"
        );
        let (word, problem) = verdict("fixed64 a = 1;", "string a = 1;");
        assert_eq!(word, "incompatible");
        assert!(problem.contains("t.M.a"), "{problem}");
    }

    #[test]
    fn what_was_given_is_said_to_last_until_the_service_stops() {
        let given = PrefetchSchemaResponse {
            schemas: vec![Schema {
                service: "kv.Kv".into(),
                source: "given".into(),
                ..Schema::default()
            }],
        };
        let drawn = given.draw(Canvas::plain());
        for said in [
            "kv.Kv",
            "until the service stops",
            "schema compile",
            "schemas.prefetch",
        ] {
            assert!(drawn.contains(said), "{said}: {drawn}");
        }
    }

    #[tokio::test]
    async fn nothing_is_compiled_that_a_node_would_refuse() {
        let directory = tempfile::tempdir().unwrap();
        let compiled = async |proto: &str| {
            let path = directory.path().join("t.proto");
            std::fs::write(&path, proto).unwrap();
            let files = Files {
                files: vec![path],
                includes: Vec::new(),
            };
            let output = directory.path().join("t.pb");
            run(Command::Compile { files, output })
                .await
                .map_err(|failure| failure.message)
        };
        let refused = compiled(&proto("").replace("proto3", "proto2"))
            .await
            .unwrap_err();
        assert!(refused.contains("only proto3"), "{refused}");
        let refused = compiled("syntax = \"proto3\"; message M {}").await.unwrap_err();
        assert!(refused.contains("no service"), "{refused}");
        assert!(!directory.path().join("t.pb").exists());
        compiled(&proto("")).await.unwrap();
        assert!(directory.path().join("t.pb").exists());
    }

    #[test]
    fn a_file_that_is_wrong_is_refused_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bad.proto");
        std::fs::write(&path, "syntax = \"proto3\";\nmessage A {\n  Strin a = 1;\n}\n").unwrap();
        let failure = read(&[path], &[]).unwrap_err();
        assert!(failure.message.contains("Strin"), "{failure}");
        assert_eq!(failure.exit, Exit::Refused);
    }
}
