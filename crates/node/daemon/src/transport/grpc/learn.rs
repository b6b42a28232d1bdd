//! Schemas that gRPC servers tell of themselves, by gRPC's server reflection (`v1`, else `v1alpha`).
//!
//! A server is asked for the file that declares a service, then for each file that one imports and the server did not send along.
//! Whatever it answers: questions, files, bytes and time are bounded, and of what it tells only the service that it was asked for
//! counts, so that no server can say what a service of another one is.

use std::collections::{BTreeMap, VecDeque};

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use provost_schema::{SchemaErrorKind, file_parts};
use provost_transport_grpc::AskFault;
use provost_wire::Code;
use provost_wire::limits::{SCHEMA_BYTES_MAX, SCHEMA_PARTS_MAX};

use crate::foreign_text::cut;
use crate::reflection_messages::{
    ReflectionAnswer, ReflectionQuestion, ReflectionRequest, ReflectionResponse,
};

/// Versions of the protocol, in the order in which they are tried.
const VERSIONS: [&str; 2] = ["v1", "v1alpha"];
/// Files of a schema that a server tells.
pub(crate) const FILES_MAX: usize = 1_024;
/// Bytes of one answer.
pub(super) const ANSWER_BYTES_MAX: u32 = SCHEMA_BYTES_MAX as u32 + (64 << 10);

/// What a server tells of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToldSchema {
    /// The files that declare it, as a `FileDescriptorSet`.
    Files(Vec<u8>),
    /// Nothing, and why: it answers no such questions, or does not know the service.
    Nothing(String),
}

/// Why what a server tells is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LearnFault {
    #[error("it was not asked to the end: {0}")]
    Ask(#[from] AskFault),
    #[error("it answers {question} with what is no answer: {problem}")]
    Malformed { question: String, problem: String },
    #[error("it says of {question}: {code} {message}")]
    Refused {
        question: String,
        code: Code,
        message: String,
    },
    #[error("its files have more than {SCHEMA_BYTES_MAX} bytes, the most of a schema")]
    Bytes,
    #[error("it tells more than {FILES_MAX} files")]
    Files,
    #[error("its files have more than {SCHEMA_PARTS_MAX} parts, the most of a schema")]
    Parts,
    #[error("it tells two files that are called {0}, and are not the same")]
    Contradiction(String),
    #[error("it was asked for the file {0}, and sent others")]
    Evasion(String),
    #[error("none of the files that it tells declares {0}")]
    Missing(String),
}

/// Asks a server for the schema of a service. `ask` makes one call of a method with one message, and returns the answer.
pub(crate) fn learn(
    service: &str,
    mut ask: impl FnMut(&str, &[u8]) -> Result<Vec<u8>, AskFault>,
) -> Result<ToldSchema, LearnFault> {
    for version in VERSIONS {
        let path = format!("/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo");
        let mut learning = ServerFiles::default();
        let first = ReflectionQuestion::FileContainingSymbol(service.to_owned());
        match learning.ask(&path, first, &mut ask) {
            Ok(_) => {}
            Err(LearnFault::Ask(AskFault::Status(status))) if status.code == Code::Unimplemented => continue,
            Err(LearnFault::Refused {
                code: Code::NotFound,
                message,
                ..
            }) => {
                return Ok(ToldSchema::Nothing(format!(
                    "it does not know the service: {message}"
                )));
            }
            Err(fault) => return Err(fault),
        }
        while let Some(name) = learning.missing() {
            let question = ReflectionQuestion::FileByFilename(name.clone());
            learning.ask(&path, question, &mut ask)?;
            if !learning.by_name.contains_key(&name) {
                return Err(LearnFault::Evasion(cut(&name).to_string()));
            }
        }
        return learning.declaring(service);
    }
    Ok(ToldSchema::Nothing(
        "it has no server reflection (grpc.reflection.v1, v1alpha)".to_owned(),
    ))
}

/// The files that a server has told.
#[derive(Default)]
struct ServerFiles {
    by_name: BTreeMap<String, FileDescriptorProto>,
    bytes: usize,
    /// Parts of all files, and of those that came twice.
    parts: usize,
    /// Names that files import, and that were not looked at.
    imported: VecDeque<String>,
}

impl ServerFiles {
    /// Asks, and takes the files of the answer.
    fn ask(
        &mut self,
        path: &str,
        question: ReflectionQuestion,
        ask: &mut impl FnMut(&str, &[u8]) -> Result<Vec<u8>, AskFault>,
    ) -> Result<(), LearnFault> {
        let about = match &question {
            ReflectionQuestion::FileByFilename(name) | ReflectionQuestion::FileContainingSymbol(name) => {
                cut(name).to_string()
            }
            _ => String::new(),
        };
        let request = ReflectionRequest {
            host: String::new(),
            asked: Some(question),
        };
        let answer = ask(path, &request.encode_to_vec())?;
        let malformed = |problem: String| LearnFault::Malformed {
            question: about.clone(),
            problem,
        };
        let response = ReflectionResponse::decode(&*answer).map_err(|error| malformed(error.to_string()))?;
        match response.told {
            Some(ReflectionAnswer::Files(told)) if !told.files.is_empty() => {
                for bytes in &told.files {
                    self.keep(bytes, &malformed)?;
                }
                Ok(())
            }
            Some(ReflectionAnswer::Error(error)) => Err(LearnFault::Refused {
                question: about,
                code: u32::try_from(error.error_code).map_or(Code::Unknown, Code::from_number),
                message: cut(&error.error_message).to_string(),
            }),
            _ => Err(malformed("it has no files".to_owned())),
        }
    }

    /// Keeps a file. Its bytes are counted before they are decoded: a file of two bytes for each message would become gigabytes.
    fn keep(&mut self, bytes: &[u8], malformed: &impl Fn(String) -> LearnFault) -> Result<(), LearnFault> {
        let parts = file_parts(bytes, SCHEMA_PARTS_MAX - self.parts);
        self.parts += parts.map_err(|error| match error {
            SchemaErrorKind::TooMany { .. } => LearnFault::Parts,
            error => malformed(error.to_string()),
        })?;
        let file = FileDescriptorProto::decode(bytes).map_err(|error| malformed(error.to_string()))?;
        match self.by_name.get(file.name()) {
            Some(known) if *known == file => return Ok(()),
            Some(_) => return Err(LearnFault::Contradiction(cut(file.name()).to_string())),
            None => {}
        }
        self.bytes += bytes.len();
        if self.bytes > SCHEMA_BYTES_MAX {
            return Err(LearnFault::Bytes);
        }
        if self.by_name.len() >= FILES_MAX {
            return Err(LearnFault::Files);
        }
        self.imported.extend(file.dependency.iter().cloned());
        self.by_name.insert(file.name().to_owned(), file);
        Ok(())
    }

    /// A file that one of them imports, and that was not told.
    fn missing(&mut self) -> Option<String> {
        std::iter::from_fn(|| self.imported.pop_front()).find(|name| !self.by_name.contains_key(name))
    }

    /// All files, with no service but this one.
    fn declaring(self, service: &str) -> Result<ToldSchema, LearnFault> {
        let mut file: Vec<FileDescriptorProto> = self.by_name.into_values().collect();
        for file in &mut file {
            let package = file.package().to_owned();
            file.service.retain(|declared| {
                let name = declared.name();
                match package.as_str() {
                    "" => name == service,
                    package => service.strip_prefix(package) == Some(&format!(".{name}")),
                }
            });
        }
        if file.iter().all(|file| file.service.is_empty()) {
            return Err(LearnFault::Missing(cut(service).to_string()));
        }
        Ok(ToldSchema::Files(FileDescriptorSet { file }.encode_to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use prost_types::ServiceDescriptorProto;
    use provost_grpc::GrpcStatus;

    use super::*;
    use crate::reflection_messages::{ErrorResponse, FilesResponse};

    type AskResult = Result<Vec<u8>, AskFault>;

    fn file(name: &str, services: &[&str], dependency: &[&str]) -> FileDescriptorProto {
        let service = |name: &&str| ServiceDescriptorProto {
            name: Some((*name).to_owned()),
            ..ServiceDescriptorProto::default()
        };
        FileDescriptorProto {
            name: Some(name.to_owned()),
            package: Some("a".to_owned()),
            dependency: dependency.iter().map(|name| (*name).to_owned()).collect(),
            service: services.iter().map(service).collect(),
            ..FileDescriptorProto::default()
        }
    }

    fn files(told: &[FileDescriptorProto]) -> AskResult {
        let files = told.iter().map(Message::encode_to_vec).collect();
        said(ReflectionAnswer::Files(FilesResponse { files }))
    }

    fn said(told: ReflectionAnswer) -> AskResult {
        let response = ReflectionResponse {
            valid_host: String::new(),
            original_request: None,
            told: Some(told),
        };
        Ok(response.encode_to_vec())
    }

    fn unimplemented() -> AskResult {
        Err(AskFault::Status(GrpcStatus::new(Code::Unimplemented, "no")))
    }

    /// What a server is asked for: a name.
    fn asked(message: &[u8]) -> String {
        match ReflectionRequest::decode(message).unwrap().asked.unwrap() {
            ReflectionQuestion::FileByFilename(name) | ReflectionQuestion::FileContainingSymbol(name) => name,
            other => panic!("{other:?}"),
        }
    }

    fn problem(answer: impl FnMut(&str, &[u8]) -> AskResult) -> String {
        learn("a.S", answer).unwrap_err().to_string()
    }

    #[test]
    fn files_are_asked_for_until_none_is_missing_and_others_services_are_left_out() {
        let mut questions = Vec::new();
        let told = learn("a.S", |path, message| {
            assert_eq!(path, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
            questions.push(asked(message));
            match questions.last().map(String::as_str) {
                Some("a.S") => files(&[file("s", &["S", "Other"], &["t", "u"]), file("t", &["T"], &[])]),
                Some("u") => files(&[file("u", &["S2"], &["t"])]),
                other => panic!("{other:?}"),
            }
        });
        assert_eq!(questions, ["a.S", "u"]);
        let ToldSchema::Files(set) = told.unwrap() else {
            panic!("nothing was told");
        };
        let set = FileDescriptorSet::decode(&*set).unwrap();
        let services: Vec<_> = set.file.iter().flat_map(|file| &file.service).collect();
        assert_eq!((set.file.len(), services.len(), services[0].name()), (3, 1, "S"));
    }

    #[test]
    fn the_older_version_is_asked_where_the_newer_one_is_not_there() {
        let mut paths = Vec::new();
        let told = learn("a.S", |path, _| {
            paths.push(path.to_owned());
            if path.contains(".v1.") {
                return unimplemented();
            }
            files(&[file("s", &["S"], &[])])
        });
        assert!(matches!(told, Ok(ToldSchema::Files(_))));
        assert!(paths.len() == 2 && paths[1].contains(".v1alpha."));
        let told = learn("a.S", |_, _| unimplemented()).unwrap();
        assert!(matches!(told, ToldSchema::Nothing(why) if why.contains("no server reflection")));
        let told = learn("a.S", |_, _| {
            said(ReflectionAnswer::Error(ErrorResponse {
                error_code: 5,
                error_message: "who?".to_owned(),
            }))
        });
        assert!(matches!(told.unwrap(), ToldSchema::Nothing(why) if why.contains("who?")));
    }

    #[test]
    fn servers_that_lie_are_refused_with_the_reason() {
        assert!(problem(|_, _| Ok(vec![0xff; 9])).contains("no answer"));
        assert!(problem(|_, _| files(&[])).contains("no files"));
        let evades = |_: &str, message: &[u8]| match asked(message).as_str() {
            "a.S" => files(&[file("s", &["S"], &["t"])]),
            _ => files(&[file("s", &["S"], &["t"])]),
        };
        assert!(problem(evades).contains("asked for the file t"));
        let contradicts = |_: &str, message: &[u8]| match asked(message).as_str() {
            "a.S" => files(&[file("s", &["S"], &["t"])]),
            _ => files(&[file("s", &["S"], &[]), file("t", &[], &[])]),
        };
        assert!(problem(contradicts).contains("called s, and are not the same"));
        assert!(problem(|_, _| files(&[file("s", &["Other"], &[])])).contains("declares a.S"));
        let refuses = |_: &str, _: &[u8]| {
            said(ReflectionAnswer::Error(ErrorResponse {
                error_code: 7,
                error_message: "not you".to_owned(),
            }))
        };
        assert!(problem(refuses).contains("not you"));
    }

    #[test]
    fn files_that_are_small_and_become_large_are_refused_before_they_are_decoded() {
        // Field 4, a message of no bytes: 250 bytes each when it is decoded.
        let name = file("s", &["S"], &[]).encode_to_vec();
        let messages = [0x22, 0].repeat(SCHEMA_PARTS_MAX);
        let answer = said(ReflectionAnswer::Files(FilesResponse {
            files: vec![[name, messages].concat()],
        }));
        let answer = answer.unwrap();
        assert!(answer.len() < ANSWER_BYTES_MAX as usize);
        let told = learn("a.S", |_, _| Ok(answer.clone()));
        assert!(matches!(told, Err(LearnFault::Parts)), "{told:?}");
    }

    #[test]
    fn what_never_ends_is_bounded_in_files_and_bytes() {
        let mut count = 0;
        let endless = |_: &str, message: &[u8]| {
            count += 1;
            let name = asked(message);
            files(&[file(&name, &["S"], &[&format!("f{count}")[..]])])
        };
        assert!(problem(endless).contains("more than 1024 files"));
        assert!(count <= FILES_MAX + 1);
        let mut count = 0;
        let heavy = |_: &str, message: &[u8]| {
            count += 1;
            let long = "l".repeat(1 << 20);
            let mut told = file(&asked(message), &["S"], &[&format!("f{count}")[..]]);
            told.message_type = vec![prost_types::DescriptorProto {
                name: Some(long),
                ..Default::default()
            }];
            files(&[told])
        };
        assert!(problem(heavy).contains("bytes, the most of a schema"));
        assert!(count <= 5);
    }

    /// Files that import each other in any way, cycles too; the first one declares the service.
    fn any_files() -> impl Strategy<Value = Vec<Vec<usize>>> {
        (1_usize..12).prop_flat_map(|files| vec(vec(0..files, 0..4), files))
    }

    fn told_files(imports: &[Vec<usize>]) -> Vec<FileDescriptorProto> {
        let described = |(number, imports): (usize, &Vec<usize>)| {
            let imports: Vec<String> = imports.iter().map(|import| format!("f{import}")).collect();
            let imports: Vec<&str> = imports.iter().map(String::as_str).collect();
            let services: &[&str] = if number == 0 { &["S", "Other"] } else { &["T"] };
            file(&format!("f{number}"), services, &imports)
        };
        imports.iter().enumerate().map(described).collect()
    }

    /// A file, and those that it needs.
    fn reached(imports: &[Vec<usize>], first: usize) -> BTreeSet<usize> {
        let (mut reached, mut left) = (BTreeSet::new(), vec![first]);
        while let Some(file) = left.pop() {
            if reached.insert(file) {
                left.extend(&imports[file]);
            }
        }
        reached
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// A server that answers each question with the file that is asked for, and with others, tells exactly what the service
        /// needs and what it sent along, in one question for each file at most.
        #[test]
        fn what_a_service_needs_is_told_whole(imports in any_files(), along in any::<prop::sample::Index>()) {
            let described = told_files(&imports);
            let mut questions = Vec::new();
            let mut sent = BTreeSet::new();
            let told = learn("a.S", |_, message| {
                let name = asked(message);
                questions.push(name.clone());
                let number = name.strip_prefix('f').map_or(0, |number| number.parse().unwrap());
                let beside = along.index(described.len());
                sent.extend([number, beside]);
                files(&[described[number].clone(), described[beside].clone()])
            });
            let ToldSchema::Files(set) = told.unwrap() else {
                panic!("nothing was told");
            };
            let set = FileDescriptorSet::decode(&*set).unwrap();
            let names: BTreeSet<usize> = set.file.iter().map(|file| file.name()[1..].parse().unwrap()).collect();
            // What was sent along is asked for whole too.
            let needed: BTreeSet<usize> = sent.iter().flat_map(|file| reached(&imports, *file)).collect();
            prop_assert_eq!(&names, &needed);
            prop_assert_eq!(set.file.len(), names.len());
            prop_assert!(questions.len() <= names.len());
            let services: Vec<&str> = set.file.iter().flat_map(|file| &file.service).map(|one| one.name()).collect();
            prop_assert_eq!(services, ["S"]);
        }

        /// Of a server that leaves one of the needed files out, or sends another in its place, nothing is taken.
        #[test]
        fn a_server_that_keeps_a_file_back_is_refused(imports in any_files(), kept in any::<prop::sample::Index>()) {
            let described = told_files(&imports);
            let needed: Vec<usize> = reached(&imports, 0).into_iter().filter(|file| *file != 0).collect();
            prop_assume!(!needed.is_empty());
            let kept = *kept.get(&needed);
            let told = learn("a.S", |_, message| {
                let name = asked(message);
                let number = name.strip_prefix('f').map_or(0, |number| number.parse().unwrap());
                files(&[described[if number == kept { 0 } else { number }].clone()])
            });
            let evaded = match told {
                Err(LearnFault::Evasion(name)) => name,
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(evaded, format!("f{}", kept));
        }
    }
}
