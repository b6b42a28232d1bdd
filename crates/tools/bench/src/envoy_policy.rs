//! Envoy's policies: its rate limit, and three ways to deny calls by a field of their message.

use std::path::Path;

use serde_json::{Value, json};

use crate::envoy::filter;
use crate::failure::{Doing, Failure};
use crate::plan::EnvoyPolicy;
use crate::report::USER_BLOCKED;

/// What a full bucket holds and gets back each second: more than any bench asks for.
const TOKENS: u32 = u32::MAX;

/// The HTTP filters of a policy; files go into `folder`.
pub(crate) fn filters(policy: EnvoyPolicy, folder: &Path) -> Result<Vec<Value>, Failure> {
    Ok(match policy {
        EnvoyPolicy::RateLimit => vec![rate_limit()],
        EnvoyPolicy::Rbac => vec![field_extraction(), rbac()],
        EnvoyPolicy::Lua => vec![lua()],
        EnvoyPolicy::Wasm => vec![wasm(folder)?],
    })
}

fn rate_limit() -> Value {
    let always =
        |key| json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" }, "runtime_key": key });
    let config = json!({
        "stat_prefix": "limit",
        "token_bucket": { "max_tokens": TOKENS, "tokens_per_fill": TOKENS, "fill_interval": "1s" },
        "filter_enabled": always("limit_enabled"),
        "filter_enforced": always("limit_enforced"),
    });
    filter(
        "local_ratelimit",
        "filters.http.local_ratelimit.v3.LocalRateLimit",
        config,
    )
}

fn field_extraction() -> Value {
    let schema = crate::proto::echo_client::DESCRIPTOR_SET;
    let config = json!({
        "descriptor_set": { "inline_bytes": base64(schema) },
        "extractions_by_method": { "bench.Echo.Guarded": { "request_field_extractions": { "user": {} } } },
    });
    let kind = "filters.http.grpc_field_extraction.v3.GrpcFieldExtractionConfig";
    filter("grpc_field_extraction", kind, config)
}

fn rbac() -> Value {
    let user = json!({
        "filter": "envoy.filters.http.grpc_field_extraction",
        "path": [{ "key": "user" }],
        "value": { "list_match": { "one_of": { "string_match": { "exact": USER_BLOCKED } } } },
    });
    let blocked = json!({ "permissions": [{ "metadata": user }], "principals": [{ "any": true }] });
    let config = json!({ "rules": { "action": "DENY", "policies": { "blocked": blocked } } });
    filter("rbac", "filters.http.rbac.v3.RBAC", config)
}

/// Byte 6 of a gRPC body is the tag of field 1, byte 7 its length, as long as that is below 128.
fn lua() -> Value {
    let script = format!(
        r#"
local blocked = {{ ["{USER_BLOCKED}"] = true }}
function envoy_on_request(handle)
  local body = handle:body()
  if body == nil or body:length() < 8 then return end
  local head = body:getBytes(0, math.min(body:length(), 64))
  if string.byte(head, 6) ~= 0x0a then return end
  local user = string.sub(head, 8, 7 + string.byte(head, 7))
  if blocked[user] then
    local headers = {{ [":status"] = "200", ["content-type"] = "application/grpc",
                      ["grpc-status"] = "7", ["grpc-message"] = "blocked" }}
    handle:respond(headers, "")
  end
end
"#
    );
    let config = json!({ "default_source_code": { "inline_string": script } });
    filter("lua", "filters.http.lua.v3.Lua", config)
}

fn wasm(folder: &Path) -> Result<Value, Failure> {
    let path = folder.join("access.wasm");
    let module = wat::parse_str(include_str!("access.wat"))
        .map_err(|error| Failure::role("access.wat", error.to_string()))?;
    std::fs::write(&path, module).doing(|| format!("write {}", path.display()))?;
    let config = json!({ "config": {
        "name": "access",
        "root_id": "access",
        "vm_config": { "runtime": "envoy.wasm.runtime.v8", "code": { "local": { "filename": path } } },
        // Else a module that holds the headers back never sees the body.
        "allow_on_headers_stop_iteration": true,
    } });
    Ok(filter("wasm", "filters.http.wasm.v3.Wasm", config))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encode = |three: &[u8]| {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let digit = |place: usize| {
            if place <= three.len() {
                DIGITS[(bits >> (18 - 6 * place) & 63) as usize] as char
            } else {
                '='
            }
        };
        [digit(0), digit(1), digit(2), digit(3)]
    };
    bytes.chunks(3).flat_map(encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_rfc_4648() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ];
        for (plain, encoded) in cases {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }

    #[test]
    fn the_module_has_what_the_host_calls() {
        let module = wat::parse_str(include_str!("access.wat")).unwrap();
        assert_eq!(&module[..4], b"\0asm");
    }
}
