//! Services of which this node has no schema, and which are called all the same: the methods that clients have called, and the
//! schemas that follow from them.
//!
//! A method is learnt when it is called. So that a client's next connection has the methods that others have called before, they
//! are kept for the whole node. What is kept is bounded: of services and of methods those go that were not called for longest, and
//! are learnt again when somebody calls them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_schema::{OpaqueMethod, opaque_descriptor_set};

use super::{BoundSchema, StoreError, compile};

/// Services whose methods are kept.
const SERVICES_MAX: usize = 256;
/// Methods of a service that are kept.
const METHODS_MAX: usize = 128;
/// Methods of a service that another node may name.
const PEER_METHODS_MAX: usize = 4_096;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct OpaqueServices {
    called: Mutex<HashMap<String, CalledService>>,
}

#[derive(Debug)]
struct CalledService {
    /// The method that was learnt, or asked for, last is the last one.
    methods: Vec<String>,
    schema: Arc<BoundSchema>,
    /// When it was asked for: the highest is the last.
    asked: u64,
}

impl OpaqueServices {
    /// The schema by which a method of a service is called. It has all methods that are kept of the service.
    pub(crate) fn schema_with(&self, service: &str, method: &str) -> Result<Arc<BoundSchema>, StoreError> {
        let mut called = self.lock();
        let asked = called.values().map(|known| known.asked + 1).max().unwrap_or(0);
        let mut methods = match called.get_mut(service) {
            Some(known) => {
                known.asked = asked;
                if let Some(at) = known.methods.iter().position(|known| known == method) {
                    let method = known.methods.remove(at);
                    known.methods.push(method);
                    return Ok(Arc::clone(&known.schema));
                }
                known.methods.clone()
            }
            None => Vec::new(),
        };
        if methods.len() >= METHODS_MAX {
            methods.remove(0);
        }
        methods.push(method.to_owned());
        // What cannot be a name is found out here.
        let schema = schema_of(service, &methods)?;
        if called.len() >= SERVICES_MAX && !called.contains_key(service) {
            let oldest = called.iter().min_by_key(|(_, known)| known.asked);
            let oldest = oldest.map(|(service, _)| service.clone());
            oldest.map(|service| called.remove(&service));
        }
        let known = CalledService {
            methods,
            schema: Arc::clone(&schema),
            asked,
        };
        called.insert(service.to_owned(), known);
        Ok(schema)
    }

    /// Keeps the methods that the process before has learnt.
    pub(crate) fn restore(&self, schema: &BoundSchema) {
        let service = schema.schema.service(&schema.service);
        for method in service.iter().flat_map(|service| &service.methods) {
            if let Err(error) = self.schema_with(&schema.service, &method.name) {
                // It was a schema there.
                tracing::warn!(service = schema.service, %error, "a method is not known any more");
            }
        }
    }

    /// The schemas by which services are called now.
    pub(crate) fn list(&self) -> Vec<Arc<BoundSchema>> {
        let called = self.lock();
        let mut schemas: Vec<_> = called.values().map(|known| Arc::clone(&known.schema)).collect();
        schemas.sort_by(|one, other| one.service.cmp(&other.service));
        schemas
    }

    /// Forgets a service, of which there is a schema now.
    pub(crate) fn forget(&self, service: &str) {
        self.lock().remove(service);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, CalledService>> {
        // What it protects is whole between any two statements.
        self.called.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same methods make the same schema, in whichever order they were called.
fn schema_of(service: &str, methods: &[String]) -> Result<Arc<BoundSchema>, StoreError> {
    let mut methods: Vec<&str> = methods.iter().map(String::as_str).collect();
    methods.sort_unstable();
    opaque_schema(service, methods.into_iter().map(OpaqueMethod::of_any_kind))
}

/// The schema of a service with these methods, of whose messages nothing is known.
pub(crate) fn opaque_schema(
    service: &str,
    methods: impl IntoIterator<Item = OpaqueMethod>,
) -> Result<Arc<BoundSchema>, StoreError> {
    let set = opaque_descriptor_set(service, methods.into_iter().take(PEER_METHODS_MAX));
    let schema = compile(&set)?.into_iter().next().ok_or(StoreError::NoService)?;
    Ok(Arc::new(schema))
}

#[cfg(test)]
mod tests {
    use super::super::{SchemaBounds, SchemaOwner, SchemaStore};
    use super::*;

    fn methods(schema: &BoundSchema) -> Vec<&str> {
        let service = schema.schema.service(&schema.service).unwrap();
        service.methods.iter().map(|method| &*method.name).collect()
    }

    #[test]
    fn methods_are_learnt_when_they_are_called_and_kept() {
        let services = OpaqueServices::default();
        let first = services.schema_with("a.B", "Put").unwrap();
        assert_eq!(methods(&first), ["Put"]);
        let both = services.schema_with("a.B", "Get").unwrap();
        assert_eq!(methods(&both), ["Get", "Put"]);
        assert!(Arc::ptr_eq(&both, &services.schema_with("a.B", "Put").unwrap()));
        let other = OpaqueServices::default();
        other.schema_with("a.B", "Get").unwrap();
        assert_eq!(other.schema_with("a.B", "Put").unwrap().hash, both.hash);
        let successor = OpaqueServices::default();
        successor.restore(&both);
        assert_eq!(successor.list()[0].hash, both.hash);
        services.forget("a.B");
        assert!(services.list().is_empty());
    }

    #[test]
    fn methods_and_services_that_were_not_called_for_longest_make_room() {
        let services = OpaqueServices::default();
        for number in 0..METHODS_MAX {
            services.schema_with("a.B", &format!("M{number}")).unwrap();
        }
        services.schema_with("a.B", "M0").unwrap();
        let full = services.schema_with("a.B", "Last").unwrap();
        let kept = methods(&full);
        assert_eq!(kept.len(), METHODS_MAX);
        assert!(kept.contains(&"M0") && kept.contains(&"Last") && !kept.contains(&"M1"));
        for number in 1..SERVICES_MAX {
            services.schema_with(&format!("a.S{number}"), "Get").unwrap();
        }
        services.schema_with("a.B", "Get").unwrap();
        services.schema_with("a.Last", "Get").unwrap();
        let names: Vec<_> = services
            .list()
            .iter()
            .map(|known| known.service.clone())
            .collect();
        assert_eq!(names.len(), SERVICES_MAX);
        let has = |name: &str| names.iter().any(|known| known == name);
        assert!(has("a.B") && has("a.Last") && !has("a.S1"));
    }

    #[test]
    fn no_app_brings_a_schema_that_says_that_nothing_is_known() {
        let bounds = SchemaBounds { node: 4, per_user: 4 };
        let store = SchemaStore::new(bounds, None);
        let set = opaque_descriptor_set("a.B", [OpaqueMethod::of_any_kind("Get")]);
        let refused = store.add(&set, None, SchemaOwner::User(7));
        assert!(matches!(refused, Err(StoreError::Opaque)), "{refused:?}");
        assert!(store.add(&set, None, SchemaOwner::Predecessor).is_ok());
    }

    #[test]
    fn what_is_no_name_is_refused_and_changes_nothing() {
        let services = OpaqueServices::default();
        services.schema_with("a.B", "Get").unwrap();
        assert!(services.schema_with("a.B", "no name").is_err());
        assert!(services.schema_with("a..B", "Get").is_err());
        assert_eq!(methods(&services.list()[0]), ["Get"]);
        assert_eq!(services.list().len(), 1);
    }
}
