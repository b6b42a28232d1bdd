//! What services look like: their schemas, from a node or from files, as descriptors that one can call by.

mod source;
mod template;

pub(crate) use source::{signature, source_of};
pub(crate) use template::template;

use std::path::PathBuf;

use clap::Args;
use prost_reflect::{DescriptorPool, MethodDescriptor, ServiceDescriptor};
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{GetSchemaRequest, ListSchemasRequest, Schema};

use provost_terminal::admin::Node;
use provost_terminal::failure::{Exit, Failure};

/// Files that say what a service looks like, where no node is to be asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct SchemaFiles {
    /// Take the schema from this file instead of from the node: .proto, or a serialized FileDescriptorSet (any other name);
    /// may be given several times
    #[arg(long = "proto", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Directories in which imports are looked for [default: each file's own]
    #[arg(long = "include", short = 'I', value_name = "DIRECTORY")]
    pub(crate) includes: Vec<PathBuf>,
}

/// What somebody named: `kv.KvStore`, `KvStore` where only one service ends so, `kv.KvStore/Get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServiceName {
    pub(crate) service: String,
    pub(crate) method: Option<String>,
}

impl ServiceName {
    /// Why it cannot be called: no method is named.
    pub(crate) fn lacks_method(&self) -> Failure {
        let name = &self.service;
        let dotted = name.rsplit_once('.').filter(|(service, _)| service.contains('.'));
        let meant = dotted.map_or_else(String::new, |(service, method)| {
            format!(", or {service}/{method}")
        });
        let message =
            format!("which method of {name}? Write {name}/METHOD{meant}; provost describe {name} lists them");
        Failure::usage(message)
    }

    /// Reads `[/]SERVICE[/METHOD]`, as typed or as gRPC has it.
    pub(crate) fn parse(text: &str) -> Result<ServiceName, String> {
        let path = text.strip_prefix('/').unwrap_or(text);
        let (service, method) = match path.split_once('/') {
            None => (path, None),
            Some((service, method)) => (service, Some(method.to_owned())),
        };
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', ' ']);
        if is_name(service) && method.as_deref().is_none_or(is_name) {
            return Ok(ServiceName {
                service: service.to_owned(),
                method,
            });
        }
        Err("write SERVICE or SERVICE/METHOD, such as kv.KvStore/Get".to_owned())
    }

    /// The full name of the service among those that are known: the same, or the only one that ends so.
    fn among(&self, known: &[&str]) -> Result<Option<String>, Failure> {
        let name = self.service.as_str();
        if known.contains(&name) {
            return Ok(Some(name.to_owned()));
        }
        let ends_so = |full: &&&str| full.strip_suffix(name).is_some_and(|rest| rest.ends_with('.'));
        let mut found: Vec<_> = known.iter().filter(ends_so).collect();
        found.dedup();
        match found[..] {
            [] => Ok(None),
            [only] => Ok(Some((*only).to_string())),
            _ => {
                let all: Vec<_> = found.iter().map(|full| **full).collect();
                let message = format!("{name} may be {}: write the full name", all.join(" or "));
                Err(Failure::usage(message))
            }
        }
    }
}

/// A service, and which of its schemas this is.
#[derive(Clone, Debug)]
pub(crate) struct ServiceInterface {
    pub(crate) service: ServiceDescriptor,
    /// What the node says of it; `None` if it comes from files.
    pub(crate) schema: Option<Schema>,
}

impl ServiceInterface {
    /// From files, if there are any, or else from the node.
    pub(crate) async fn find(
        name: &ServiceName,
        files: &SchemaFiles,
        node: impl AsyncFnOnce() -> Result<Node, Failure>,
    ) -> Result<ServiceInterface, Failure> {
        if files.files.is_empty() {
            return ServiceInterface::of_node(&mut node().await?, name).await;
        }
        let set = crate::schema::read(&files.files, &files.includes)?;
        ServiceInterface::of_set(&set, name, None)
    }

    /// As a node knows it.
    pub(crate) async fn of_node(node: &mut Node, name: &ServiceName) -> Result<ServiceInterface, Failure> {
        let listed = node
            .call(ListSchemasRequest {}, AdminClient::list_schemas)
            .await?
            .schemas;
        let service = full_name(name, &listed)?;
        let asked = GetSchemaRequest {
            service: service.clone(),
            hash: String::new(),
        };
        let found = node
            .call(asked, AdminClient::get_schema)
            .await
            .map_err(|failure| {
                if listed.iter().any(has_schema) {
                    failure
                } else {
                    Failure::new(failure.exit, format!("{}; {GIVE_SCHEMA}", failure.message))
                }
            })?;
        let name = ServiceName {
            service,
            method: None,
        };
        ServiceInterface::of_set(&found.descriptor_set, &name, found.schema)
    }

    fn of_set(set: &[u8], name: &ServiceName, schema: Option<Schema>) -> Result<ServiceInterface, Failure> {
        let pool = DescriptorPool::decode(set)
            .map_err(|error| Failure::new(Exit::Refused, format!("the schema cannot be read: {error}")))?;
        let known: Vec<_> = pool
            .services()
            .map(|service| service.full_name().to_owned())
            .collect();
        let known: Vec<_> = known.iter().map(String::as_str).collect();
        let full = name.among(&known)?;
        let service = full.and_then(|full| pool.get_service_by_name(&full));
        let service = service.ok_or_else(|| {
            let known = if known.is_empty() {
                "none at all".to_owned()
            } else {
                known.join(", ")
            };
            let message = format!("the schema has no service {}: it has {known}", name.service);
            Failure::new(Exit::Refused, message)
        })?;
        Ok(ServiceInterface { service, schema })
    }

    /// One of its methods.
    pub(crate) fn method(&self, name: &str) -> Result<MethodDescriptor, Failure> {
        let mut methods = self.service.methods();
        methods.find(|method| method.name() == name).ok_or_else(|| {
            let known: Vec<_> = self
                .service
                .methods()
                .map(|method| method.name().to_owned())
                .collect();
            let service = self.service.full_name();
            let known = known.join(", ");
            let message = format!("{service} has no method {name}: it has {known}");
            Failure::new(Exit::Refused, message)
        })
    }
}

/// What to do where the node has no schema.
const GIVE_SCHEMA: &str = "give it with --proto FILE, or the node with `provost schema prefetch FILE`";

/// Whether this says what messages look like. Of a service that gRPC clients have called and nobody has described, a node lists
/// what was called.
fn has_schema(listed: &Schema) -> bool {
    !listed.source.starts_with("none")
}

/// The full name of the service that is meant, among those that a node lists.
fn full_name(name: &ServiceName, listed: &[Schema]) -> Result<String, Failure> {
    let known: Vec<_> = listed.iter().map(|schema| schema.service.as_str()).collect();
    // The node says what else may have been meant by a name that it does not know.
    let service = name.among(&known)?.unwrap_or_else(|| name.service.clone());
    let mut same = listed.iter().filter(|schema| schema.service == service);
    let is_described = same.clone().any(has_schema);
    if same.next().is_some() && !is_described {
        let message =
            format!("{service} is called through this node, and nobody has given its schema; {GIVE_SCHEMA}");
        return Err(Failure::new(Exit::Refused, message));
    }
    Ok(service)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A service of a schema in this text.
    pub(crate) fn interface(proto: &str, name: &str) -> Result<ServiceInterface, Failure> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.proto");
        std::fs::write(&path, proto).unwrap();
        let set = crate::schema::read(&[path], &[]).unwrap();
        ServiceInterface::of_set(&set, &ServiceName::parse(name).unwrap(), None)
    }

    #[test]
    fn a_name_is_a_service_with_or_without_a_method() {
        let named = |service: &str, method: Option<&str>| {
            Ok(ServiceName {
                service: service.to_owned(),
                method: method.map(str::to_owned),
            })
        };
        assert_eq!(ServiceName::parse("kv.KvStore"), named("kv.KvStore", None));
        assert_eq!(
            ServiceName::parse("/kv.KvStore/Get"),
            named("kv.KvStore", Some("Get"))
        );
        for bad in ["", "/", "kv/", "/Get/", "a/b/c", "kv.Kv Store/Get"] {
            assert!(ServiceName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_last_part_of_a_name_is_enough_where_only_one_ends_so() {
        let known = ["a.Kv", "b.Kv", "b.c.Store"];
        let among = |name: &str| ServiceName::parse(name).unwrap().among(&known);
        assert_eq!(among("Store").unwrap().as_deref(), Some("b.c.Store"));
        assert_eq!(among("c.Store").unwrap().as_deref(), Some("b.c.Store"));
        assert_eq!(among("a.Kv").unwrap().as_deref(), Some("a.Kv"));
        assert_eq!(among("tore").unwrap(), None, "half a word is no name");
        let failure = among("Kv").unwrap_err();
        assert!(failure.message.contains("a.Kv or b.Kv"), "{failure}");
    }

    #[test]
    fn of_a_service_that_was_only_called_the_schema_is_asked_for() {
        let listed = |service: &str, source: &str| Schema {
            service: service.into(),
            source: source.into(),
            ..Schema::default()
        };
        let opaque = listed("hello.Greeter", "none: methods that were called");
        let of = |listed: &[Schema]| full_name(&ServiceName::parse("Greeter").unwrap(), listed);
        let failure = of(std::slice::from_ref(&opaque)).unwrap_err();
        assert_eq!(failure.exit, Exit::Refused);
        for said in ["hello.Greeter", "--proto FILE", "provost schema prefetch"] {
            assert!(failure.message.contains(said), "{failure}");
        }
        let given = listed("hello.Greeter", "given");
        assert_eq!(of(&[opaque, given]).unwrap(), "hello.Greeter");
        assert_eq!(of(&[]).unwrap(), "Greeter");
    }

    #[test]
    fn what_a_schema_does_not_have_is_named_with_what_it_has() {
        let proto = "syntax = \"proto3\"; package t; message M {} service S { rpc Call(M) returns (M); }";
        let failure = interface(proto, "t.R").unwrap_err();
        assert!(failure.message.contains("it has t.S"), "{failure}");
        let failure = interface("syntax = \"proto3\"; message M {}", "S").unwrap_err();
        assert!(failure.message.ends_with("it has none at all"), "{failure}");
        let failure = interface(proto, "S").unwrap().method("Cal").unwrap_err();
        assert!(
            failure.message.contains("no method Cal: it has Call"),
            "{failure}"
        );
    }
}
