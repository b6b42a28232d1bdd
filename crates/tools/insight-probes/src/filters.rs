//! Filters that can be profiled by name, Envoy's and a node's policies: each does its work on every call and lets it pass.

use serde_json::{Value, json};

use crate::failure::ProbeFailure;
use crate::proxy_configuration::ENVOY_TYPE;

/// Envoy's: four that are C++, one of Lua, one of WebAssembly.
pub const NAMES: [&str; 6] = ["fault", "rate-limit", "rbac", "header-mutation", "lua", "wasm"];

/// Policies of a node.
pub const POLICIES: [&str; 5] = ["null", "metrics", "fault", "rate-limit", "access"];

/// A WebAssembly module that looks at nothing, as that of MeshInsight's table 3, in base64:
///
/// ```text
/// (module
///   (memory (export "memory") 1)
///   (func (export "proxy_abi_version_0_2_1"))
///   (func (export "proxy_on_memory_allocate") (param i32) (result i32) i32.const 1024)
///   (func (export "proxy_on_context_create") (param i32 i32))
///   (func (export "proxy_on_vm_start") (export "proxy_on_configure") (param i32 i32) (result i32) i32.const 1)
///   (func (export "proxy_on_request_headers") (export "proxy_on_response_headers")
///     (param i32 i32 i32) (result i32) i32.const 0))
/// ```
const IDLE_MODULE: &str = "AGFzbQEAAAABGwVgAABgAX8Bf2ACf38AYAJ/fwF/YAN/f38BfwMGBQABAgMEBQMBAAEHuQEIBm1lbW9yeQIAF3Byb3h5X2FiaV92\
ZXJzaW9uXzBfMl8xAAAYcHJveHlfb25fbWVtb3J5X2FsbG9jYXRlAAEXcHJveHlfb25fY29udGV4dF9jcmVhdGUAAhFwcm94eV9vbl92bV9zdGFydAADEnBy\
b3h5X29uX2NvbmZpZ3VyZQADGHByb3h5X29uX3JlcXVlc3RfaGVhZGVycwAEGXByb3h5X29uX3Jlc3BvbnNlX2hlYWRlcnMABAoXBQIACwUAQYAICwIACwQA\
QQELBABBAAs=";

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
        "wasm" => {
            let machine = json!({
                "vm_id": "idle", "runtime": "envoy.wasm.runtime.v8", "code": { "local": { "inline_bytes": IDLE_MODULE } },
            });
            let config = json!({ "name": "idle", "root_id": "idle", "vm_config": machine });
            ("wasm", "wasm.v3.Wasm", json!({ "config": config }))
        }
        other => return Err(unknown(other, &NAMES)),
    };
    let mut config = config;
    config["@type"] = format!("{ENVOY_TYPE}filters.http.{package}").into();
    Ok(json!({ "name": format!("envoy.filters.http.{kind}"), "typed_config": config }))
}

/// A policy's table, as provostd's configuration has it.
pub(crate) fn provost(name: &str) -> Result<String, ProbeFailure> {
    let config = match name {
        "null" | "metrics" => "",
        // It has to decide for every call, and decides against it.
        "fault" => "[policy.config.abort]\npercentage = 0.0\ngrpc_status = \"UNAVAILABLE\"\n",
        // The bucket is never empty.
        "rate-limit" => "[policy.config]\nrequests_per_second = 1e9\n",
        "access" => {
            "[policy.config]\ndefault = \"allow\"\n[[policy.config.rule]]\nname = \"blocked\"\n\
             when = '\"x-user\" in metadata && metadata[\"x-user\"] == \"blocked\"'\naction = \"deny\"\n"
        }
        other => return Err(unknown(other, &POLICIES)),
    };
    Ok(format!(
        "[[policy]]\nname = \"{name}\"\nkind = \"{name}\"\n{config}"
    ))
}

fn unknown(name: &str, known: &[&str]) -> ProbeFailure {
    ProbeFailure::Invalid(format!("there is no filter '{name}': take {}", known.join(", ")))
}
