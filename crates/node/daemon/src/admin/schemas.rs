//! Schemas: which are known, what a new one would mean for those in use.

use std::sync::Arc;

use provost_admin::v1::check_schema_response::Verdict;
use provost_admin::v1::{
    CheckSchemaRequest, CheckSchemaResponse, GetSchemaRequest, GetSchemaResponse, ListSchemasResponse,
    PrefetchSchemaRequest, PrefetchSchemaResponse, Schema,
};
use provost_schema::{Compatibility, Incompatibility, compatibility};
use tonic::Status;

use crate::audit_log::cut;
use crate::schemas::{BoundSchema, StoreError, compile};
use crate::suggestion::what_is_known;

use super::desk::Desk;

/// All that are in memory, by service, and what is known of services that are called without one.
pub(crate) fn list(desk: &Desk) -> ListSchemasResponse {
    let mut known = desk.plane.services.schemas();
    let opaque = desk.plane.services.opaque.list();
    known.extend(opaque.into_iter().map(|schema| (schema, 0)));
    known.sort_by(|(one, _), (other, _)| one.service.cmp(&other.service));
    ListSchemasResponse {
        schemas: known
            .iter()
            .map(|(bound, apps)| describe(desk, bound, *apps))
            .collect(),
    }
}

/// The schema of a service: of several, the one that was asked for by its hash, or the one that most apps have bound it with.
pub(crate) fn get(desk: &Desk, asked: &GetSchemaRequest) -> Result<GetSchemaResponse, Status> {
    let mut known = desk.plane.services.schemas();
    known.sort_by(|(one, _), (other, _)| one.service.cmp(&other.service));
    let of_service = || known.iter().filter(|(bound, _)| bound.service == asked.service);
    let with_hash = of_service().filter(|(bound, _)| bound.hash.to_string().starts_with(&asked.hash));
    if let Some((bound, apps)) = with_hash.max_by_key(|(_, apps)| *apps) {
        return Ok(GetSchemaResponse {
            schema: Some(describe(desk, bound, *apps)),
            descriptor_set: bound.descriptor_set.to_vec(),
        });
    }
    let hashes: Vec<_> = of_service().map(|(bound, _)| bound.hash.to_string()).collect();
    let (service, hash) = (cut(asked.service.clone()), cut(asked.hash.clone()));
    Err(Status::not_found(if hashes.is_empty() {
        let mut services: Vec<_> = known.iter().map(|(bound, _)| bound.service.clone()).collect();
        services.dedup();
        let known = what_is_known(&asked.service, "service", &services);
        format!("the node knows no service {service}: {known}")
    } else {
        let hashes = hashes.join(", ");
        format!("the node knows no schema of {service} with the hash {hash}: known are {hashes}")
    }))
}

/// Takes a schema before an app brings it.
pub(crate) async fn prefetch(
    desk: &Desk,
    asked: PrefetchSchemaRequest,
) -> Result<PrefetchSchemaResponse, Status> {
    let services = Arc::clone(&desk.plane.services);
    // Compiling a large schema takes milliseconds, which other requests need not wait for.
    let added = tokio::task::spawn_blocking(move || services.pin_schema(&asked.descriptor_set))
        .await
        .map_err(|_| Status::internal("the schema could not be compiled"))?
        .map_err(|error| refusal(&error))?;
    desk.plane.connector.follow_schemas(&added);
    Ok(PrefetchSchemaResponse {
        schemas: added.iter().map(|bound| describe(desk, bound, 0)).collect(),
    })
}

/// Compares each service of a schema with those of that name that are in use or known.
pub(crate) async fn check(desk: &Desk, asked: CheckSchemaRequest) -> Result<CheckSchemaResponse, Status> {
    let known = desk.plane.services.schemas();
    let compare = move || {
        let new = compile(&asked.descriptor_set)?;
        let verdicts = new.iter().flat_map(|new| verdicts(new, &known)).collect();
        Ok(CheckSchemaResponse { verdicts })
    };
    tokio::task::spawn_blocking(compare)
        .await
        .map_err(|_| Status::internal("the schemas could not be compared"))?
        .map_err(|error: StoreError| refusal(&error))
}

fn verdicts(new: &BoundSchema, known: &[(Arc<BoundSchema>, u32)]) -> Vec<Verdict> {
    let of_service = known.iter().filter(|(old, _)| old.service == new.service);
    let mut verdicts: Vec<_> = of_service.map(|(old, _)| verdict(new, old)).collect();
    if verdicts.is_empty() {
        verdicts.push(Verdict {
            service: new.service.clone(),
            verdict: "new".to_owned(),
            ..Verdict::default()
        });
    }
    verdicts
}

/// Whether clients and servers of the old schema can talk to those of the new one, in both directions: while the new one
/// is rolled out, both are there.
fn verdict(new: &BoundSchema, old: &BoundSchema) -> Verdict {
    let (word, problem) = match both_ways(new, old) {
        Ok(Compatibility::Equal) => ("equal", String::new()),
        Ok(Compatibility::Protobuf { .. }) => ("compatible", String::new()),
        Err(problem) => ("incompatible", problem.to_string()),
    };
    Verdict {
        service: new.service.clone(),
        in_use: old.hash.to_string(),
        verdict: word.to_owned(),
        problem,
    }
}

fn both_ways(new: &BoundSchema, old: &BoundSchema) -> Result<Compatibility, Incompatibility> {
    compatibility(&new.schema, &old.schema, &new.service)?;
    compatibility(&old.schema, &new.schema, &new.service)
}

fn describe(desk: &Desk, bound: &BoundSchema, apps: u32) -> Schema {
    let service = bound.schema.service(&bound.service);
    let methods = service.map_or(&[][..], |service| &service.methods);
    Schema {
        service: bound.service.clone(),
        hash: bound.hash.to_string(),
        methods: methods.iter().map(|method| method.name.clone()).collect(),
        apps,
        source: desk.plane.services.source_of(bound).to_string(),
    }
}

fn refusal(error: &StoreError) -> Status {
    match error {
        StoreError::Full { .. } => Status::resource_exhausted(error.to_string()),
        _ => Status::invalid_argument(error.to_string()),
    }
}
