//! A sampled call as JSON. `docs/policies/tap.md` has the fields.

use provost_datapath::BodyForm;
use provost_engine::{DatapathContext, Direction, Nanos, Parts, Sample, SampledStep, rfc3339};
use provost_marshal::Scratch;
use provost_wire::limits::MESSAGE_BYTES_MAX;
use provost_wire::metadata::{self, STATUS_DETAILS, STATUS_MESSAGE};
use serde_json::{Map, Value, json};

use crate::tap::filter::TapContext;
use crate::tap::message::{Printer, REDACTED, shown_bytes};
use crate::tap::redaction::CompiledRedaction;
use crate::tap::repeated::RedactedValues;

/// The call on one line.
pub(crate) fn of_sample(sample: &Sample, tap: &TapContext) -> String {
    let datapath_context = &*sample.datapath_context;
    let method = datapath_context.methods.get(usize::from(sample.method));
    let redacted = RedactedValues::default();
    let steps = sample
        .steps
        .iter()
        .map(|step| of_step(step, sample.method, tap, &redacted));
    let mut out = json!({
        "number": sample.number,
        "policy": *sample.policy,
        "start_time": rfc3339(sample.began_unix_ns),
        "duration_ms": milliseconds(sample.duration_ns),
        "node": *datapath_context.node,
        "app": *datapath_context.app.name,
        "side": datapath_context.side.name(),
        "path": method.map_or("", |method| &*method.path),
        "peer": of_peer(datapath_context),
        "connection_id": datapath_context.connection,
        "call_id": sample.call,
        "grpc_status": sample.status.name(),
        "steps": steps.collect::<Vec<_>>(),
    });
    if sample.messages_left_out > 0 {
        out["messages_left_out"] = sample.messages_left_out.into();
    }
    let warnings = redacted.warnings(&out["steps"]);
    if !warnings.is_empty() {
        out["warnings"] = warnings.into();
    }
    out.to_string()
}

fn of_peer(datapath_context: &DatapathContext) -> Value {
    let peer = &datapath_context.peer;
    let mut out = json!({ "transport": peer.transport });
    for (key, value) in [("address", &peer.address), ("identity", &peer.identity)] {
        if !value.is_empty() {
            out[key] = Value::from(&**value);
        }
    }
    if let Some(node) = datapath_context.peer_node() {
        out["node"] = Value::from(&**node);
    }
    if let Some(app) = peer.known_app() {
        out["app"] = Value::from(&**app.name);
    }
    out
}

fn of_step(step: &SampledStep, method: u16, tap: &TapContext, redacted: &RedactedValues) -> Value {
    let direction = match step.direction {
        Direction::Request => "request",
        Direction::Response => "response",
    };
    let mut out = json!({
        "at_ms": milliseconds(step.at_ns),
        "direction": direction,
        "parts": format!("{:?}", step.parts),
    });
    if step.timeout_ns > 0 {
        out["timeout_ms"] = milliseconds(step.timeout_ns);
    }
    if step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
        out["grpc_status"] = step.status.name().into();
    }
    of_metadata(&step.metadata, (&tap.redaction, redacted), &mut out);
    if step.parts.contains(Parts::MESSAGE) {
        out["message_bytes"] = step.message_bytes.into();
        match of_message(step, method, tap, redacted) {
            Some(message) => out["message"] = message,
            None => out["message_left_out"] = true.into(),
        }
    }
    out
}

fn of_message(step: &SampledStep, method: u16, tap: &TapContext, redacted: &RedactedValues) -> Option<Value> {
    let message = tap.datapath_context.message(method, step.direction)?;
    if !step.is_whole() {
        return None;
    }
    let mut decoded = Vec::new();
    let (bytes, window_at) = match step.form {
        BodyForm::Native => (&step.message, step.window_at),
        BodyForm::Protobuf => {
            let (tables, bytes_max) = (&tap.datapath_context.tables, MESSAGE_BYTES_MAX);
            let decoding = Scratch::of_thread(|scratch| {
                tables.decode(message, &step.message, &mut decoded, bytes_max, scratch)
            });
            // One that is malformed cannot be shown, nor what is to be hidden of it be found.
            decoding.ok()?;
            (&decoded, 0)
        }
    };
    let printer = Printer {
        schema: &tap.datapath_context.schema,
        redaction: &tap.redaction,
        redacted,
        bytes,
        window_at,
    };
    printer.print(message)
}

/// A key that occurs several times has a list.
fn of_metadata(block: &[u8], (redaction, redacted): (&CompiledRedaction, &RedactedValues), out: &mut Value) {
    let mut fields = Map::new();
    for (key, value) in metadata::entries(block) {
        let shown = match key {
            STATUS_MESSAGE => {
                out["status_message"] = String::from_utf8_lossy(value).into();
                continue;
            }
            _ if redaction.metadata.contains(key) => {
                redacted.note_text(key, &String::from_utf8_lossy(value));
                REDACTED.to_owned()
            }
            _ if key.ends_with("-bin") || key == STATUS_DETAILS => shown_bytes(value, redaction.bytes),
            _ => String::from_utf8_lossy(value).into_owned(),
        };
        let shown = Value::String(shown);
        match fields.get_mut(key) {
            None => {
                fields.insert(key.to_owned(), shown);
            }
            Some(Value::Array(list)) => list.push(shown),
            Some(one) => *one = Value::Array(vec![one.take(), shown]),
        }
    }
    if !fields.is_empty() {
        out["metadata"] = Value::Object(fields);
    }
}

/// With microseconds.
fn milliseconds(duration: Nanos) -> Value {
    ((duration / 1000) as f64 / 1000.0).into()
}
