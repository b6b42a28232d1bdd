//! What must hold of whatever a gRPC server tells of a service by its reflection, for fuzzers: each function panics if it does not.

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto,
    ServiceDescriptorProto,
};
use provost_grpc::GrpcStatus;
use provost_wire::Code;

use crate::reflection_messages::{ErrorResponse, FilesResponse, ReflectionAnswer, ReflectionResponse};
use crate::schemas::compile;
use crate::transport::{AskFault, TOLD_FILES_MAX, ToldSchema, learn_schema};

/// The service that is asked for.
const SERVICE: &str = "a.S";
/// Questions that are asked of one server: for the service in both versions of the protocol, and for each file.
const QUESTIONS_MAX: usize = TOLD_FILES_MAX + 2;
/// The length that stands for an answer which says that the method is not there.
const UNIMPLEMENTED: u16 = u16::MAX;

/// The answers of one server, each behind its length in two bytes, little-endian. What the server tells becomes the schema of the
/// service that was asked for, and of no other, or is refused.
///
/// # Panics
/// If it does not.
pub fn told_schema(input: &[u8]) {
    let (mut answers, mut questions) = (input, 0);
    let told = learn_schema(SERVICE, |_, _| {
        questions += 1;
        next_answer(&mut answers)
    });
    assert!(questions <= QUESTIONS_MAX, "{questions} questions");
    let Ok(ToldSchema::Files(set)) = told else {
        return;
    };
    let files = FileDescriptorSet::decode(&*set)
        .expect("it was encoded here")
        .file;
    let declared = files.iter().flat_map(|file| {
        let name = |service: &ServiceDescriptorProto| match file.package() {
            "" => service.name().to_owned(),
            package => format!("{package}.{}", service.name()),
        };
        file.service.iter().map(name)
    });
    declared.for_each(|name| assert_eq!(name, SERVICE));
    if let Ok(schemas) = compile(&set) {
        schemas
            .iter()
            .for_each(|schema| assert_eq!(schema.service, SERVICE));
    }
}

/// The next answer of the server; none has come in time where there is none.
fn next_answer(answers: &mut &[u8]) -> Result<Vec<u8>, AskFault> {
    let (length, rest) = answers.split_first_chunk().ok_or(AskFault::Deadline)?;
    let length = u16::from_le_bytes(*length);
    if length == UNIMPLEMENTED {
        *answers = rest;
        return Err(AskFault::Status(GrpcStatus::new(Code::Unimplemented, "no")));
    }
    let (answer, rest) = rest.split_at(rest.len().min(usize::from(length)));
    *answers = rest;
    Ok(answer.to_vec())
}

/// Servers to start from: one that tells a file and, asked for it, the file that this imports, in either version of the protocol; one
/// that tells both at once, and other services with them; one that does not know the service.
#[must_use]
pub fn told_schema_seeds() -> Vec<Vec<u8>> {
    let (declaring, imported) = (declaring_file(), imported_file());
    let one_by_one = [files(&[&declaring]), files(&[&imported])].concat();
    let at_once = files(&[&declaring, &imported]);
    let unknown = answer(ReflectionAnswer::Error(ErrorResponse {
        error_code: 5,
        error_message: "who?".to_owned(),
    }));
    let older = [&UNIMPLEMENTED.to_le_bytes()[..], &one_by_one].concat();
    vec![one_by_one, at_once, unknown, older]
}

fn files(files: &[&FileDescriptorProto]) -> Vec<u8> {
    let files = files.iter().map(|file| file.encode_to_vec()).collect();
    answer(ReflectionAnswer::Files(FilesResponse { files }))
}

fn answer(told: ReflectionAnswer) -> Vec<u8> {
    let response = ReflectionResponse {
        told: Some(told),
        ..ReflectionResponse::default()
    };
    let answer = response.encode_to_vec();
    let length = answer.len() as u16;
    [&length.to_le_bytes()[..], &answer].concat()
}

fn declaring_file() -> FileDescriptorProto {
    let method = MethodDescriptorProto {
        name: Some("Get".to_owned()),
        input_type: Some(".a.M".to_owned()),
        output_type: Some(".a.M".to_owned()),
        ..MethodDescriptorProto::default()
    };
    let service = |name: &str| ServiceDescriptorProto {
        name: Some(name.to_owned()),
        method: vec![method.clone()],
        ..ServiceDescriptorProto::default()
    };
    FileDescriptorProto {
        name: Some("s.proto".to_owned()),
        package: Some("a".to_owned()),
        syntax: Some("proto3".to_owned()),
        dependency: vec!["m.proto".to_owned()],
        service: vec![service("S"), service("Other")],
        ..FileDescriptorProto::default()
    }
}

fn imported_file() -> FileDescriptorProto {
    let field = |(number, kind): (i32, Type)| FieldDescriptorProto {
        name: Some(format!("f{number}")),
        number: Some(number),
        label: Some(Label::Optional.into()),
        r#type: Some(kind.into()),
        ..FieldDescriptorProto::default()
    };
    let kinds = [(1, Type::String), (2, Type::Int64), (3, Type::Bytes)];
    FileDescriptorProto {
        name: Some("m.proto".to_owned()),
        package: Some("a".to_owned()),
        syntax: Some("proto3".to_owned()),
        message_type: vec![DescriptorProto {
            name: Some("M".to_owned()),
            field: kinds.into_iter().map(field).collect(),
            ..DescriptorProto::default()
        }],
        ..FileDescriptorProto::default()
    }
}
