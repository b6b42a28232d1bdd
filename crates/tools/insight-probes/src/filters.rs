//! Envoy's filters that can be profiled by name: each does its work on every call and lets it pass.

use serde_json::{Value, json};

use crate::failure::ProbeFailure;
use crate::proxy_configuration::ENVOY_TYPE;

pub const NAMES: [&str; 5] = ["fault", "rate-limit", "rbac", "lua", "header-mutation"];

/// A filter's configuration, as Envoy wants it.
pub(crate) fn envoy(name: &str) -> Result<Value, ProbeFailure> {
    let (kind, package, config) = match name {
        // It has to decide for every call, and decides against it.
        "fault" => {
            let never =
                json!({ "http_status": 503, "percentage": { "numerator": 0, "denominator": "HUNDRED" } });
            ("fault", "fault.v3.HTTPFault", json!({ "abort": never }))
        }
        // The bucket is never empty.
        "rate-limit" => {
            let always = |key: &str| json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" }, "runtime_key": key });
            let bucket =
                json!({ "max_tokens": u32::MAX, "tokens_per_fill": u32::MAX, "fill_interval": "1s" });
            let config = json!({
                "stat_prefix": "limit", "token_bucket": bucket,
                "filter_enabled": always("limit_on"), "filter_enforced": always("limit_hard"),
            });
            ("local_ratelimit", "local_ratelimit.v3.LocalRateLimit", config)
        }
        "rbac" => {
            let blocked = json!({ "header": { "name": "x-user", "string_match": { "exact": "blocked" } } });
            let policy = json!({ "permissions": [{ "any": true }], "principals": [blocked] });
            let rules = json!({ "action": "DENY", "policies": { "blocked": policy } });
            ("rbac", "rbac.v3.RBAC", json!({ "rules": rules }))
        }
        "lua" => {
            let code =
                "function envoy_on_request(handle)\n  handle:headers():add(\"x-seen\", \"yes\")\nend\n";
            (
                "lua",
                "lua.v3.Lua",
                json!({ "default_source_code": { "inline_string": code } }),
            )
        }
        "header-mutation" => {
            let added = json!({ "append": { "header": { "key": "x-seen", "value": "yes" } } });
            let config = json!({ "mutations": { "request_mutations": [added] } });
            ("header_mutation", "header_mutation.v3.HeaderMutation", config)
        }
        other => {
            let known = NAMES.join(", ");
            return Err(ProbeFailure::Invalid(format!(
                "there is no filter '{other}': take {known}"
            )));
        }
    };
    let mut config = config;
    config["@type"] = format!("{ENVOY_TYPE}filters.http.{package}").into();
    Ok(json!({ "name": format!("envoy.filters.http.{kind}"), "typed_config": config }))
}
