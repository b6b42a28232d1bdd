//! The audit log of the admin API: one record for each change and each denial, as a JSON object on a line.
//!
//! `docs/admin-api.md` has the shape. Records go where the node's audit log goes (`crate::audit_log`).

use serde::Serialize;
use serde_json::{Map, Value};

use crate::access::Credentials;
use crate::audit_log::{AuditLog, TEXT_BYTES_MAX, cut_to};
use crate::user_names::UserNames;

use super::roles::Role;

/// How much is recorded of a request, and of what came of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordBounds {
    /// Texts are cut after so many bytes.
    pub(crate) text_bytes: usize,
    /// Lists and maps in arguments are shown up to so many entries.
    entries: usize,
    /// Arguments are shown up to so many bytes as JSON.
    arguments_bytes: usize,
}

impl RecordBounds {
    /// Of a call that is denied: whoever can open the socket makes such.
    pub(crate) const DENIED: RecordBounds = RecordBounds {
        text_bytes: TEXT_BYTES_MAX,
        entries: 64,
        arguments_bytes: 256 << 10,
    };
    /// Of a change by one who may make it: what was done can be read, whatever policy it is.
    const PERMITTED: RecordBounds = RecordBounds {
        text_bytes: 64 << 10,
        entries: 1024,
        arguments_bytes: 1 << 20,
    };
    /// Likewise, where records are lines of the log: journald cuts those of more than 48 KiB in pieces.
    const PERMITTED_IN_LOG: RecordBounds = RecordBounds {
        text_bytes: 8 << 10,
        ..RecordBounds::PERMITTED
    };

    /// Of a change by one who may make it.
    pub(crate) fn permitted(log: &AuditLog) -> RecordBounds {
        if log.has_file() {
            RecordBounds::PERMITTED
        } else {
            RecordBounds::PERMITTED_IN_LOG
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    /// When the request came (RFC 3339, UTC).
    pub(crate) time: String,
    /// Always `admin`: other records in the same log are of policies.
    pub(crate) event: &'static str,
    pub(crate) node: String,
    /// Number of the change on this node; 0 for one that was not made.
    pub(crate) number: u64,
    pub(crate) who: Who,
    /// What, as the admin API names it, such as `AttachPolicy`.
    pub(crate) method: &'static str,
    /// With which arguments: long ones are cut.
    pub(crate) arguments: Value,
    pub(crate) before: String,
    /// What is there now.
    pub(crate) after: String,
    /// `OK`, or the status of the refusal.
    pub(crate) outcome: &'static str,
    /// What was done, or why not.
    pub(crate) message: String,
    /// How long it took.
    pub(crate) duration_ms: f64,
    /// Refusals of this user before this one that were left out: a user has so many in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) withheld: Option<u64>,
}

/// Who asked for a change.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Who {
    pub(crate) uid: u32,
    /// Primary group by number.
    pub(crate) gid: u32,
    pub(crate) pid: i32,
    /// The user's name, where the local user database has one.
    pub(crate) user: String,
    /// What it may do.
    pub(crate) role: &'static str,
}

impl Who {
    pub(crate) fn new(peer: &Credentials, role: Role, users: &mut UserNames) -> Who {
        Who {
            uid: peer.uid,
            gid: peer.gid,
            pid: peer.pid,
            user: users.name(peer.uid).to_string(),
            role: role.name(),
        }
    }
}

pub(crate) fn write(record: &Record, log: &AuditLog) {
    match serde_json::to_string(record) {
        Ok(line) => log.line(line),
        Err(error) => tracing::error!(%error, method = record.method, "cannot write an audit record"),
    }
}

/// The arguments of a request as the audit log shows them: what is at its default is left out, what is long is cut. Whoever may do
/// nothing can send a request of megabytes too, so what would take many times as much as values is not made into any.
pub(crate) fn arguments(request: &impl Serialize, bounds: RecordBounds) -> Value {
    let mut json = vec![0; bounds.arguments_bytes];
    let mut room = &mut json[..];
    if serde_json::to_writer(&mut room, request).is_err() {
        let mut first = first_fields(&json, bounds);
        let rest = format!("more than {} bytes", bounds.arguments_bytes);
        first.insert("…".to_owned(), Value::String(rest));
        return Value::Object(first);
    }
    let written = bounds.arguments_bytes - room.len();
    match serde_json::from_slice(&json[..written]) {
        Ok(value) => shown(value, bounds).unwrap_or_else(|| Value::Object(Map::new())),
        Err(error) => Value::String(format!("not shown: {error}")),
    }
}

/// What is in front in arguments that are cut: the fields before the one that is too long, as a policy's name is.
fn first_fields(json: &[u8], bounds: RecordBounds) -> Map<String, Value> {
    let (mut open, mut is_text, mut is_escaped) = (Vec::new(), false, false);
    // Where the last field ends that is whole and in no list, and what is open there.
    let mut whole = (0, 0);
    for (at, byte) in json.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'{' | b'[' => open.push(*byte),
            b'}' | b']' => drop(open.pop()),
            b',' if !open.contains(&b'[') => whole = (at, open.len()),
            _ => {}
        }
    }
    let mut first = json[..whole.0].to_vec();
    first.extend(std::iter::repeat_n(b'}', whole.1));
    match serde_json::from_slice(&first).map(|value| shown(value, bounds)) {
        Ok(Some(Value::Object(fields))) => fields,
        _ => Map::new(),
    }
}

/// `None` for what is at its default.
fn shown(value: Value, bounds: RecordBounds) -> Option<Value> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Number(number) if number.as_f64() == Some(0.0) => None,
        Value::String(text) if text.is_empty() => None,
        Value::String(text) => Some(Value::String(cut_to(bounds.text_bytes, text))),
        Value::Array(entries) if entries.is_empty() => None,
        // Bytes, or a list that says more by its length.
        Value::Array(entries) if entries.len() > bounds.entries => {
            Some(Value::String(format!("{} entries", entries.len())))
        }
        Value::Array(entries) => Some(Value::Array(
            entries
                .into_iter()
                .map(|entry| shown(entry, bounds).unwrap_or(Value::Null))
                .collect(),
        )),
        Value::Object(fields) if fields.len() > bounds.entries => {
            Some(Value::String(format!("{} entries", fields.len())))
        }
        Value::Object(fields) => {
            let fields: Map<_, _> = fields
                .into_iter()
                .filter_map(|(key, value)| Some((cut_to(bounds.text_bytes, key), shown(value, bounds)?)))
                .collect();
            (!fields.is_empty()).then_some(Value::Object(fields))
        }
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRIES_MAX: usize = RecordBounds::DENIED.entries;

    fn arguments(request: &impl Serialize) -> Value {
        super::arguments(request, RecordBounds::DENIED)
    }

    #[test]
    fn arguments_leave_defaults_out_and_cut_what_is_long() {
        let request = provost_admin::v1::AttachPolicyRequest {
            policy: Some(provost_admin::v1::Policy {
                name: "limit".into(),
                config: "ä".repeat(TEXT_BYTES_MAX),
                ..Default::default()
            }),
            position: Some(2),
            dry_run: false,
        };
        let shown = arguments(&request);
        assert_eq!(shown["policy"]["name"], "limit");
        assert_eq!(shown["position"], 2);
        assert!(shown.get("dry_run").is_none() && shown["policy"].get("kind").is_none());
        let config = shown["policy"]["config"].as_str().unwrap();
        assert!(config.ends_with("… (1024 bytes more)"), "{config}");
        let schema = provost_admin::v1::PrefetchSchemaRequest {
            descriptor_set: vec![7; 5000],
        };
        assert_eq!(arguments(&schema)["descriptor_set"], "5000 entries");
    }

    #[test]
    fn a_change_that_may_be_made_is_recorded_whole() {
        let config = "x".repeat(20 * TEXT_BYTES_MAX);
        let names: Vec<String> = (0..4 * ENTRIES_MAX)
            .map(|number| format!("policy-{number}"))
            .collect();
        let set = provost_admin::v1::SetPolicyRequest {
            name: "limit".into(),
            config: config.clone(),
            dry_run: false,
        };
        let order = provost_admin::v1::OrderPoliciesRequest { names: names.clone() };
        assert_eq!(super::arguments(&set, RecordBounds::PERMITTED)["config"], config);
        assert_eq!(
            super::arguments(&order, RecordBounds::PERMITTED)["names"],
            serde_json::json!(names)
        );
        assert_ne!(arguments(&set)["config"], config);
    }

    #[test]
    fn of_arguments_that_are_too_long_the_first_are_recorded() {
        let attach = provost_admin::v1::AttachPolicyRequest {
            policy: Some(provost_admin::v1::Policy {
                name: "a \\ \"name\", {".into(),
                kind: "access".into(),
                config: "x".repeat(RecordBounds::PERMITTED.arguments_bytes),
                ..Default::default()
            }),
            ..Default::default()
        };
        let shown = super::arguments(&attach, RecordBounds::PERMITTED);
        let policy = serde_json::json!({"name": "a \\ \"name\", {", "kind": "access"});
        assert_eq!(shown["policy"], policy, "{shown}");
        assert_eq!(shown["…"], "more than 1048576 bytes");
    }

    #[test]
    fn arguments_of_any_size_make_a_record_of_a_bounded_one() {
        use provost_admin::v1::{DiffConfigRequest, PrefetchSchemaRequest};
        let files = |count: usize, name: &str, text: &str| DiffConfigRequest {
            files: (0..count)
                .map(|number| (format!("{number}{name}"), text.to_owned()))
                .collect(),
        };
        let long = "x".repeat(2 * TEXT_BYTES_MAX);
        let largest = [
            arguments(&files(ENTRIES_MAX, &long, "y")),
            arguments(&files(ENTRIES_MAX, "", &long)),
            arguments(&files(1, &"x".repeat(4 << 20), "")),
            arguments(&files(10_000, "", "")),
            arguments(&files(400_000, "", "")),
            arguments(&PrefetchSchemaRequest {
                descriptor_set: vec![255; 4 << 20],
            }),
        ];
        for arguments in largest {
            let bytes = arguments.to_string().len();
            assert!(bytes <= 2 * ENTRIES_MAX * TEXT_BYTES_MAX, "{bytes}");
        }
        assert_eq!(arguments(&files(10_000, "", "y"))["files"], "10000 entries");
    }
}
