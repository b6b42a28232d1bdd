//! Which policies read fields of schemas that a node forgets when it stops.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{AttachedPolicy, GetConfigRequest, ListPoliciesRequest, ListSchemasRequest, Schema};
use wildmatch::WildMatch;

use provost_terminal::admin::Node;
use provost_terminal::failure::Failure;

/// What to tell of this node's policies and schemas.
pub(super) async fn warnings(node: &mut Node) -> Result<Vec<String>, Failure> {
    let policies = node
        .call(ListPoliciesRequest {}, AdminClient::list_policies)
        .await?
        .policies;
    let schemas = node
        .call(ListSchemasRequest {}, AdminClient::list_schemas)
        .await?
        .schemas;
    let config = node.call(GetConfigRequest {}, AdminClient::get_config).await?;
    // Where a file cannot be read from here it may have any service.
    let kept = services_at_start(&config.toml);
    Ok(kept.map_or_else(Vec::new, |kept| judge(&policies, &schemas, &kept)))
}

/// The services whose schemas the node loads when it starts; `None` where that cannot be seen.
fn services_at_start(toml: &str) -> Option<BTreeSet<String>> {
    let config: toml::Table = toml.parse().ok()?;
    let prefetch = config.get("schemas").and_then(|schemas| schemas.get("prefetch"));
    let paths = prefetch.and_then(toml::Value::as_array).into_iter().flatten();
    let mut services = BTreeSet::new();
    for path in paths {
        for file in files_of(Path::new(path.as_str()?))? {
            let set = std::fs::read(file).ok()?;
            let schema = provost_schema::Schema::from_descriptor_set(&set).ok()?;
            services.extend(schema.services.into_iter().map(|service| service.full_name));
        }
    }
    Some(services)
}

/// A file, or those of a directory that a node reads there.
fn files_of(path: &Path) -> Option<Vec<PathBuf>> {
    if !path.is_dir() {
        return Some(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).ok()?;
    let entries = entries.collect::<Result<Vec<_>, _>>().ok()?;
    let files = entries.into_iter().map(|entry| entry.path());
    Some(
        files
            .filter(|path| path.extension().is_some_and(|extension| extension == "pb"))
            .collect(),
    )
}

fn judge(policies: &[AttachedPolicy], schemas: &[Schema], kept: &BTreeSet<String>) -> Vec<String> {
    let is_forgotten =
        |schema: &&Schema| schema.source == "given" && schema.apps == 0 && !kept.contains(&schema.service);
    let services: BTreeSet<_> = schemas
        .iter()
        .filter(is_forgotten)
        .map(|schema| schema.service.as_str())
        .collect();
    let policies = policies.iter().filter_map(|attached| attached.policy.as_ref());
    let warning = |policy: &provost_admin::v1::Policy| {
        let is_for =
            |service: &&&str| policy.service.is_empty() || WildMatch::new(&policy.service).matches(service);
        let read: Vec<_> = services.iter().filter(is_for).copied().collect();
        (reads_fields(&policy.config) && !read.is_empty()).then(|| {
            format!(
                "policy {:?} reads fields of {}, whose schema the node knows by `provost schema prefetch` alone and forgets when it stops: \
                 calls of it would end with FAILED_PRECONDITION then; name what `provost schema compile` makes of it in \
                 schemas.prefetch",
                policy.name,
                read.join(", ")
            )
        })
    };
    policies.filter_map(warning).collect()
}

/// Whether a policy's configuration has an expression over `request.FIELD` or `response.FIELD`, or a limit's `message:FIELD`.
fn reads_fields(config: &str) -> bool {
    let begins_there = |at: usize| !config[..at].ends_with(|c: char| c.is_alphanumeric() || "._".contains(c));
    ["request.", "response.", "message:"]
        .iter()
        .any(|word| config.match_indices(word).any(|(at, _)| begins_there(at)))
}

#[cfg(test)]
mod tests {
    use provost_admin::v1::Policy;

    use super::*;

    const PROTO: &str =
        "syntax = \"proto3\"; package t; message M { string a = 1; } service S { rpc Call(M) returns (M); }";

    fn policy(name: &str, service: &str, config: &str) -> AttachedPolicy {
        AttachedPolicy {
            policy: Some(Policy {
                name: name.into(),
                kind: "access".into(),
                service: service.into(),
                config: config.into(),
                ..Policy::default()
            }),
            ..AttachedPolicy::default()
        }
    }

    fn schema(service: &str, source: &str, apps: u32) -> Schema {
        Schema {
            service: service.into(),
            source: source.into(),
            apps,
            ..Schema::default()
        }
    }

    const RULE: &str = "[[rule]]\nwhen = \"request.a == 'x'\"\n";

    #[test]
    fn a_policy_on_fields_of_a_schema_that_was_only_given_is_warned_of() {
        let policies = [
            policy("fields", "t.*", RULE),
            policy("everything", "", RULE),
            policy("identity", "t.S", "[[rule]]\nwhen = \"app == 'x'\"\n"),
            policy("other", "u.U", RULE),
        ];
        let schemas = [
            schema("t.S", "given", 0),
            schema("a.A", "app", 1),
            schema("v.V", "none: methods that were called", 0),
        ];
        let warned = judge(&policies, &schemas, &BTreeSet::new());
        assert_eq!(warned.len(), 2, "{warned:#?}");
        assert!(warned[0].starts_with("policy \"fields\" reads fields of t.S, whose schema"));
        assert!(warned[1].starts_with("policy \"everything\" reads fields of t.S, whose schema"));
        for said in ["FAILED_PRECONDITION", "schema compile", "schemas.prefetch"] {
            assert!(warned[0].contains(said), "{said}: {}", warned[0]);
        }
        let kept = BTreeSet::from(["t.S".to_owned()]);
        assert_eq!(judge(&policies, &schemas, &kept), [""; 0]);
        let bound = [schema("t.S", "given", 1)];
        assert_eq!(judge(&policies, &bound, &BTreeSet::new()), [""; 0]);
    }

    #[test]
    fn fields_are_told_from_names_that_only_look_so() {
        for config in [RULE, "when = '!(response.b > 1)'", "per = [\"message:user\"]"] {
            assert!(reads_fields(config), "{config}");
        }
        for config in [
            "",
            "requests_per_second = 1.5",
            "attribute = \"rpc.response.status_code\"",
        ] {
            assert!(!reads_fields(config), "{config}");
        }
    }

    #[test]
    fn what_is_loaded_at_start_is_read_from_files_and_directories() {
        let directory = tempfile::tempdir().unwrap();
        let proto = directory.path().join("t.proto");
        std::fs::write(&proto, PROTO).unwrap();
        let set = crate::schema::read(&[proto], &[]).unwrap();
        let file = directory.path().join("t.pb");
        std::fs::write(&file, set).unwrap();
        for path in [file.as_path(), directory.path()] {
            let services = services_at_start(&format!("[schemas]\nprefetch = [{path:?}]\n"));
            assert_eq!(services.unwrap().into_iter().collect::<Vec<_>>(), ["t.S"]);
        }
        assert_eq!(services_at_start(""), Some(BTreeSet::new()));
        assert_eq!(
            services_at_start("[schemas]\nprefetch = [\"/nowhere/a.pb\"]\n"),
            None
        );
    }
}
