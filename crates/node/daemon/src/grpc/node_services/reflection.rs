//! `grpc.reflection.v1.ServerReflection`, and the same as `v1alpha`: the files of the schemas of services that a client may
//! call.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};
use provost_grpc::GrpcStatus;
use provost_wire::Code;
use tokio::sync::Semaphore;

use super::{descriptors, malformed};
use crate::app_registry::AttachedApp;
use crate::grpc::GrpcAccess;
use crate::reflection_messages::{
    ErrorResponse, ExtensionNumbersResponse, FilesResponse, ReflectionAnswer, ReflectionQuestion,
    ReflectionRequest, ReflectionResponse, ServiceResponse, ServicesResponse,
};

/// Questions that are looked up at a time, of all clients: the files of a schema may take milliseconds to read.
const LOOK_UPS_MAX: usize = 2;

/// A `FileDescriptorSet` whose files stay as they are: a message is encoded as bytes are, and what this node does not know of
/// a file, such as options of the user's own, is passed on.
#[derive(Clone, PartialEq, Message)]
struct RawDescriptorSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

/// A `FileDescriptorSet`, and the services of it that a client is told of: with the files that declare them, whole, and what
/// these import.
struct ToldSet {
    descriptors: Arc<[u8]>,
    services: Vec<String>,
}

/// Bounds what clients may look up at a time.
pub(crate) struct ReflectionTurns(Arc<Semaphore>);

impl Default for ReflectionTurns {
    fn default() -> ReflectionTurns {
        ReflectionTurns(Arc::new(Semaphore::new(LOOK_UPS_MAX)))
    }
}

impl GrpcAccess {
    /// Answers one question of a client; `own` are the services of the node at its listener.
    pub(super) async fn reflect(
        &self,
        app: &AttachedApp,
        own: Vec<String>,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, GrpcStatus> {
        let request = ReflectionRequest::decode(&*request).map_err(|error| malformed(&error))?;
        let services = self.connector.reachable_services(app);
        let of_client: HashSet<&String> = services.iter().collect();
        let mut sets = vec![ToldSet {
            descriptors: descriptors::own_set(),
            services: own.clone(),
        }];
        for (schema, _) in self.connector.services.schemas() {
            if !of_client.contains(&schema.service) {
                continue;
            }
            let service = schema.service.clone();
            match sets
                .iter_mut()
                .find(|set| Arc::ptr_eq(&set.descriptors, &schema.descriptor_set))
            {
                Some(set) => set.services.push(service),
                None => sets.push(ToldSet {
                    descriptors: Arc::clone(&schema.descriptor_set),
                    services: vec![service],
                }),
            }
        }
        // Never closed, so that this waits for a permit. The thread keeps it, also when the client has gone.
        let turn = Arc::clone(&self.reflection_turns.0).acquire_owned().await;
        let names = own.into_iter().chain(services).collect();
        let answering = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            answer(request, names, &sets)
        });
        answering
            .await
            .map_err(|_| GrpcStatus::new(Code::Internal, "the schemas could not be read"))
    }
}

fn answer(request: ReflectionRequest, services: Vec<String>, sets: &[ToldSet]) -> Vec<u8> {
    let told = match &request.asked {
        Some(ReflectionQuestion::ListServices(_)) => {
            let service = services
                .into_iter()
                .map(|name| ServiceResponse { name })
                .collect();
            ReflectionAnswer::Services(ServicesResponse { service })
        }
        Some(ReflectionQuestion::FileByFilename(name)) => {
            find(sets, |file| file.name() == name).unwrap_or_else(|| not_found("file", name))
        }
        Some(ReflectionQuestion::FileContainingSymbol(symbol)) => {
            let wanted = symbol.trim_start_matches('.');
            find(sets, |file| declares(file, wanted)).unwrap_or_else(|| not_found("symbol", symbol))
        }
        Some(ReflectionQuestion::FileContainingExtension(asked)) => {
            let is_meant = |file: &FileDescriptorProto| {
                let extends = extensions_of(file, &asked.containing_type);
                extends.contains(&asked.extension_number)
            };
            find(sets, is_meant).unwrap_or_else(|| not_found("extension of", &asked.containing_type))
        }
        Some(ReflectionQuestion::AllExtensionNumbersOfType(name)) => extension_numbers(sets, name),
        None => error(Code::InvalidArgument, "the request asks nothing".to_owned()),
    };
    let response = ReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        told: Some(told),
    };
    response.encode_to_vec()
}

/// The first file that is meant, and all that it needs.
fn find(sets: &[ToldSet], is_meant: impl Fn(&FileDescriptorProto) -> bool) -> Option<ReflectionAnswer> {
    sets.iter().find_map(|set| {
        let files = FilesByName::told(set);
        let name = files
            .order
            .iter()
            .find(|name| is_meant(&files.by_name[*name].0))?;
        let name = name.clone();
        let files = files.with_dependencies(name);
        Some(ReflectionAnswer::Files(FilesResponse { files }))
    })
}

/// The files of a set, by name and in their order.
struct FilesByName {
    by_name: HashMap<String, (FileDescriptorProto, Vec<u8>)>,
    order: Vec<String>,
}

impl FilesByName {
    fn read(set: &[u8]) -> FilesByName {
        let raw = RawDescriptorSet::decode(set).unwrap_or_default();
        let (mut by_name, mut order) = (HashMap::new(), Vec::new());
        for bytes in raw.files {
            // It was read whole when the schema was taken.
            let file = FileDescriptorProto::decode(&*bytes).unwrap_or_default();
            order.push(file.name().to_owned());
            by_name.insert(file.name().to_owned(), (file, bytes));
        }
        FilesByName { by_name, order }
    }

    /// Those that a client is told of.
    fn told(set: &ToldSet) -> FilesByName {
        let all = FilesByName::read(&set.descriptors);
        let declaring = all.order.iter().filter(|name| {
            let file = &all.by_name[*name].0;
            set.services.iter().any(|service| declares(file, service))
        });
        let mut names: Vec<String> = declaring.cloned().collect();
        let mut told = HashSet::new();
        while let Some(name) = names.pop() {
            if let Some((file, _)) = all.by_name.get(&name)
                && told.insert(name)
            {
                names.extend(file.dependency.iter().cloned());
            }
        }
        let (mut by_name, mut order) = (all.by_name, all.order);
        by_name.retain(|name, _| told.contains(name));
        order.retain(|name| told.contains(name));
        FilesByName { by_name, order }
    }

    /// A file, and after it those that it imports, each once.
    fn with_dependencies(mut self, name: String) -> Vec<Vec<u8>> {
        let mut names = vec![name];
        let mut found = Vec::new();
        while let Some(name) = names.pop() {
            if let Some((file, bytes)) = self.by_name.remove(&name) {
                found.push(bytes);
                names.extend(file.dependency);
            }
        }
        found
    }
}

/// Whether a file declares what has this full name.
fn declares(file: &FileDescriptorProto, symbol: &str) -> bool {
    let Some(name) = within(file.package(), symbol) else {
        return false;
    };
    let in_service = |service: &prost_types::ServiceDescriptorProto| {
        let mut methods = service.method.iter();
        match within(service.name(), name) {
            Some(method) => methods.any(|one| one.name() == method),
            None => service.name() == name,
        }
    };
    file.service.iter().any(in_service)
        || file
            .message_type
            .iter()
            .any(|message| message_declares(message, name))
        || file.enum_type.iter().any(|one| enum_declares(one, name))
        || file.extension.iter().any(|extension| extension.name() == name)
}

fn message_declares(message: &DescriptorProto, name: &str) -> bool {
    let Some(inner) = within(message.name(), name) else {
        return message.name() == name;
    };
    message.field.iter().any(|field| field.name() == inner)
        || message
            .extension
            .iter()
            .any(|extension| extension.name() == inner)
        || message.oneof_decl.iter().any(|oneof| oneof.name() == inner)
        || message.enum_type.iter().any(|one| enum_declares(one, inner))
        || message
            .nested_type
            .iter()
            .any(|nested| message_declares(nested, inner))
}

/// The values of an enum stand beside it.
fn enum_declares(one: &EnumDescriptorProto, name: &str) -> bool {
    one.name() == name || one.value.iter().any(|value| value.name() == name)
}

/// What is left of a name in a scope; the scope without a name has everything.
fn within<'a>(scope: &str, name: &'a str) -> Option<&'a str> {
    match scope {
        "" => Some(name),
        _ => name.strip_prefix(scope)?.strip_prefix('.'),
    }
}

/// The numbers of extensions of a message that a file declares.
fn extensions_of(file: &FileDescriptorProto, extended: &str) -> Vec<i32> {
    let nested = file.message_type.iter().flat_map(|message| &message.extension);
    let all = file.extension.iter().chain(nested);
    let extended = extended.trim_start_matches('.');
    let of_type = all.filter(|extension| extension.extendee().trim_start_matches('.') == extended);
    of_type.map(prost_types::FieldDescriptorProto::number).collect()
}

fn extension_numbers(sets: &[ToldSet], name: &str) -> ReflectionAnswer {
    let (mut is_known, mut extension_number) = (false, Vec::new());
    for set in sets {
        for (file, _) in FilesByName::told(set).by_name.values() {
            is_known |= declares(file, name.trim_start_matches('.'));
            extension_number.extend(extensions_of(file, name));
        }
    }
    if !is_known {
        return not_found("type", name);
    }
    extension_number.sort_unstable();
    extension_number.dedup();
    ReflectionAnswer::ExtensionNumbers(ExtensionNumbersResponse {
        base_type_name: name.to_owned(),
        extension_number,
    })
}

fn not_found(what: &str, name: &str) -> ReflectionAnswer {
    let name: String = name.chars().take(200).collect();
    error(
        Code::NotFound,
        format!("no schema of a service that can be called here has the {what} {name:?}"),
    )
}

fn error(code: Code, error_message: String) -> ReflectionAnswer {
    ReflectionAnswer::Error(ErrorResponse {
        error_code: code as i32,
        error_message,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(asked: ReflectionQuestion) -> ReflectionAnswer {
        let request = ReflectionRequest {
            host: "h".to_owned(),
            asked: Some(asked),
        };
        let services = vec!["grpc.health.v1.Health".to_owned()];
        let set = ToldSet {
            descriptors: descriptors::own_set(),
            services: services.clone(),
        };
        let said = answer(request.clone(), services, &[set]);
        let response = ReflectionResponse::decode(&*said).unwrap();
        assert_eq!(response.original_request, Some(request));
        response.told.unwrap()
    }

    fn files(told: ReflectionAnswer) -> Vec<String> {
        let ReflectionAnswer::Files(response) = told else {
            panic!("{told:?} has no files");
        };
        let name = |bytes: &Vec<u8>| FileDescriptorProto::decode(&**bytes).unwrap().name().to_owned();
        response.files.iter().map(name).collect()
    }

    #[test]
    fn files_are_found_by_their_name_and_by_what_they_declare() {
        let health = ["grpc/health/v1/health.proto"];
        assert_eq!(
            files(asked(ReflectionQuestion::FileByFilename(health[0].to_owned()))),
            health
        );
        for symbol in [
            "grpc.health.v1.Health",
            ".grpc.health.v1.Health.Watch",
            "grpc.health.v1.HealthCheckResponse",
            "grpc.health.v1.HealthCheckResponse.status",
            "grpc.health.v1.HealthCheckResponse.ServingStatus",
            "grpc.health.v1.HealthCheckResponse.SERVING",
        ] {
            assert_eq!(
                files(asked(ReflectionQuestion::FileContainingSymbol(symbol.to_owned()))),
                health,
                "{symbol}"
            );
        }
        for symbol in [
            "grpc.health.v1.Healt",
            "grpc.health.v1",
            "Health",
            "",
            "grpc.health.v1.Health.No",
        ] {
            let told = asked(ReflectionQuestion::FileContainingSymbol(symbol.to_owned()));
            assert!(
                matches!(&told, ReflectionAnswer::Error(error) if error.error_code == 5),
                "{symbol}: {told:?}"
            );
        }
    }

    #[test]
    fn types_without_extensions_are_known_and_others_are_not() {
        let known = asked(ReflectionQuestion::AllExtensionNumbersOfType(
            "grpc.health.v1.HealthCheckRequest".to_owned(),
        ));
        assert!(
            matches!(known, ReflectionAnswer::ExtensionNumbers(numbers) if numbers.extension_number.is_empty())
        );
        let unknown = asked(ReflectionQuestion::AllExtensionNumbersOfType("a.B".to_owned()));
        assert!(matches!(unknown, ReflectionAnswer::Error(error) if error.error_message.contains("a.B")));
    }

    #[test]
    fn files_of_services_that_a_client_may_not_call_are_not_told() {
        let file = |name: &str, service: &str, dependency: &[&str]| FileDescriptorProto {
            name: Some(name.to_owned()),
            dependency: dependency.iter().map(|name| (*name).to_owned()).collect(),
            service: vec![prost_types::ServiceDescriptorProto {
                name: Some(service.to_owned()),
                ..prost_types::ServiceDescriptorProto::default()
            }],
            ..FileDescriptorProto::default()
        };
        let set = prost_types::FileDescriptorSet {
            file: vec![
                file("base", "Base", &[]),
                file("told", "Told", &["base"]),
                file("secret", "Secret", &["base"]),
            ],
        };
        let sets = [ToldSet {
            descriptors: set.encode_to_vec().into(),
            services: vec!["Told".to_owned()],
        }];
        let has = |symbol: &str| find(&sets, |file| declares(file, symbol)).is_some();
        assert!(has("Told") && has("Base") && !has("Secret"));
        assert!(find(&sets, |file| file.name() == "secret").is_none());
    }

    /// Whoever asks for a file, by its name or by what it declares, is answered by what that imports too, from the first file to the
    /// last, and by nothing else.
    #[test]
    fn imported_files_come_along_once() {
        let file = |name: &str, dependency: &[&str]| FileDescriptorProto {
            name: Some(name.to_owned()),
            dependency: dependency.iter().map(|name| (*name).to_owned()).collect(),
            ..FileDescriptorProto::default()
        };
        let top = FileDescriptorProto {
            service: vec![prost_types::ServiceDescriptorProto {
                name: Some("Top".to_owned()),
                ..prost_types::ServiceDescriptorProto::default()
            }],
            ..file("top", &["one", "two"])
        };
        let set = prost_types::FileDescriptorSet {
            file: vec![
                file("base", &[]),
                file("one", &["base"]),
                file("two", &["base"]),
                top,
                file("other", &[]),
            ],
        };
        let found = |asked: ReflectionQuestion| {
            let set = ToldSet {
                descriptors: set.encode_to_vec().into(),
                services: vec!["Top".to_owned()],
            };
            let host = String::new();
            let request = ReflectionRequest {
                host,
                asked: Some(asked),
            };
            let said = answer(request, vec!["Top".to_owned()], &[set]);
            ReflectionResponse::decode(&*said).unwrap().told.unwrap()
        };
        for question in [
            ReflectionQuestion::FileByFilename("top".to_owned()),
            ReflectionQuestion::FileContainingSymbol("Top".to_owned()),
        ] {
            let mut names = files(found(question));
            assert_eq!(names[0], "top");
            names.sort();
            assert_eq!(names, ["base", "one", "top", "two"]);
        }
        let of_one = files(found(ReflectionQuestion::FileByFilename("one".to_owned())));
        assert_eq!(of_one, ["one", "base"]);
    }
}
