//! A call as a line of JSON. `docs/policies/access-log.md` has the fields.

use std::fmt::Write;
use std::sync::Arc;

use provost_engine::{DatapathContext, Nanos, Side, WallClock, rfc3339};

use crate::access_log::filter::LogRecord;

/// What all lines of a datapath have in common, as JSON.
#[derive(Debug)]
pub(crate) struct ContextPart {
    methods: Vec<String>,
    fields: String,
}

impl ContextPart {
    pub(crate) fn new(node: &Arc<str>, datapath_context: &DatapathContext) -> ContextPart {
        let mut fields = String::new();
        text(&mut fields, "node", node);
        text(&mut fields, "app", &datapath_context.app.name);
        text(&mut fields, "side", datapath_context.side.name());
        text(&mut fields, "transport", datapath_context.peer.transport);
        let (address, identity) = match datapath_context.side {
            Side::Client => ("upstream_host", "upstream_peer_identity"),
            Side::Server => ("downstream_remote_address", "downstream_peer_identity"),
        };
        text(&mut fields, address, &datapath_context.peer.address);
        text(&mut fields, identity, &datapath_context.peer.identity);
        if let Some(node) = datapath_context.peer_node() {
            text(&mut fields, "peer_node", node);
        }
        if let Some(app) = datapath_context.peer.known_app() {
            text(&mut fields, "peer_app", app.name);
            text(&mut fields, "peer_user", app.user);
            text(&mut fields, "peer_workload", app.workload);
        }
        let _ = write!(fields, ",\"connection_id\":{}", datapath_context.connection);
        ContextPart {
            methods: datapath_context
                .methods
                .iter()
                .map(|method| quoted(&method.path))
                .collect(),
            fields,
        }
    }
}

/// Adds a field, if it has a value.
fn text(out: &mut String, key: &str, value: &str) {
    if !value.is_empty() {
        let _ = write!(out, ",\"{key}\":{}", quoted(value));
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Appends the line of a call. (Writing to a `String` does not fail.)
pub(crate) fn write_line(record: &LogRecord, wall: &WallClock, out: &mut String) {
    let (call, ended) = (&record.call, &record.ended);
    let _ = write!(
        out,
        "{{\"start_time\":\"{}\"",
        rfc3339(wall.unix_ns(call.began_at))
    );
    if let Some(path) = record.datapath_context.methods.get(usize::from(call.method)) {
        let _ = write!(out, ",\"path\":{path}");
    }
    let _ = write!(
        out,
        ",\"grpc_status\":\"{}\",\"grpc_status_number\":{}",
        ended.code.name(),
        ended.code as u8
    );
    milliseconds(out, "duration_ms", ended.at.saturating_sub(call.began_at));
    if call.answered_at != 0 {
        milliseconds(
            out,
            "response_duration_ms",
            call.answered_at.saturating_sub(call.began_at),
        );
    }
    if call.deadline != 0 {
        milliseconds(out, "timeout_ms", call.deadline.saturating_sub(call.began_at));
    }
    let _ = write!(
        out,
        ",\"bytes_received\":{},\"bytes_sent\":{},\"messages_received\":{},\"messages_sent\":{}",
        call.bytes[0], call.bytes[1], call.messages[0], call.messages[1]
    );
    if ended.cancelled {
        out.push_str(",\"cancelled\":true");
    }
    if call.trace_id != 0 {
        let _ = write!(
            out,
            ",\"trace_id\":\"{:032x}\",\"span_id\":\"{:016x}\"",
            call.trace_id, call.span_id
        );
    }
    out.push_str(&record.datapath_context.fields);
    let _ = writeln!(out, ",\"call_id\":{}}}", call.call);
}

fn milliseconds(out: &mut String, key: &str, duration: Nanos) {
    let microseconds = duration / 1000;
    let _ = write!(
        out,
        ",\"{key}\":{}.{:03}",
        microseconds / 1000,
        microseconds % 1000
    );
}
