//! From records to OTLP spans, by OpenTelemetry's conventions for remote procedure calls
//! (<https://opentelemetry.io/docs/specs/semconv/rpc/rpc-spans/>).

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, Status};
use provost_engine::{Code, DatapathContext, Nanos, Side, WallClock};

use crate::tracing::SpanRole;
use crate::tracing::filter::SpanRecord;
use crate::tracing::sampling::Ids;

/// Span flags (<https://github.com/open-telemetry/opentelemetry-proto>): sampled; it is known whether the parent is
/// remote; it is.
const FLAG_SAMPLED: u32 = 1;
const FLAG_REMOTE_KNOWN: u32 = 0x100;
const FLAG_REMOTE: u32 = 0x200;

/// What all spans of a datapath have in common.
#[derive(Debug)]
pub(crate) struct SpanContextPart {
    pub(crate) app: Arc<str>,
    side: Side,
    role: SpanRole,
    /// Such as `kv.Kv/Get`.
    methods: Vec<String>,
    attributes: Vec<KeyValue>,
}

impl SpanContextPart {
    pub(crate) fn new(datapath_context: &DatapathContext, role: SpanRole) -> SpanContextPart {
        let mut attributes = vec![
            text("rpc.system.name", "provost"),
            text("provost.side", datapath_context.side.name()),
            text("provost.transport", datapath_context.peer.transport),
            number("provost.connection.id", datapath_context.connection as i64),
        ];
        attributes.extend(peer_address(datapath_context));
        if !datapath_context.peer.identity.is_empty() {
            attributes.push(text("provost.peer.identity", &datapath_context.peer.identity));
        }
        attributes.extend(peer_app(datapath_context));
        SpanContextPart {
            app: Arc::clone(&datapath_context.app.name),
            side: datapath_context.side,
            role,
            methods: datapath_context
                .methods
                .iter()
                .map(|method| method.path.trim_start_matches('/').to_owned())
                .collect(),
            attributes,
        }
    }

    fn kind(&self) -> SpanKind {
        match (self.role, self.side) {
            (SpanRole::Call, Side::Client) => SpanKind::Client,
            (SpanRole::Call, Side::Server) => SpanKind::Server,
            (SpanRole::Hop, _) => SpanKind::Internal,
        }
    }
}

/// The app at the other end and its node, as far as they are known.
fn peer_app(datapath_context: &DatapathContext) -> Vec<KeyValue> {
    let Some(app) = datapath_context.peer.known_app() else {
        return Vec::new();
    };
    let node = datapath_context.peer_node().map_or("", |node| &**node);
    let named = [
        ("provost.peer.app", &**app.name),
        ("provost.peer.node", node),
        ("provost.peer.user", app.user),
        ("provost.peer.workload", app.workload),
    ];
    let known = named.into_iter().filter(|(_, value)| !value.is_empty());
    known.map(|(key, value)| text(key, value)).collect()
}

fn peer_address(datapath_context: &DatapathContext) -> Vec<KeyValue> {
    let Some((host, port)) = datapath_context.peer.address.rsplit_once(':') else {
        return Vec::new();
    };
    let port = port.parse().unwrap_or_default();
    let (address_key, port_key) = match datapath_context.side {
        Side::Client => ("server.address", "server.port"),
        Side::Server => ("client.address", "client.port"),
    };
    vec![text(address_key, host), number(port_key, port)]
}

/// The spans of a call: its own, and those of its phases.
pub(crate) fn spans(
    record: &SpanRecord,
    wall: &WallClock,
    phases: bool,
    ids: &mut Ids,
) -> impl Iterator<Item = Span> {
    let own = own_span(record, wall);
    let [queueing, phase] = if phases {
        [queueing_span(record, wall, ids), phase_span(record, wall, ids)]
    } else {
        [None, None]
    };
    [Some(own), queueing, phase].into_iter().flatten()
}

fn own_span(record: &SpanRecord, wall: &WallClock) -> Span {
    let (call, datapath_context, code) = (&record.call, &record.datapath_context, record.ended.code);
    let method = datapath_context
        .methods
        .get(usize::from(call.method))
        .map_or("", String::as_str);
    let mut attributes = datapath_context.attributes.clone();
    attributes.extend([
        text("rpc.method", method),
        text("rpc.response.status_code", code.name()),
        number("provost.call.id", call.call as i64),
        number("provost.request.bytes", call.bytes[0] as i64),
        number("provost.response.bytes", call.bytes[1] as i64),
        number("provost.request.messages", i64::from(call.messages[0])),
        number("provost.response.messages", i64::from(call.messages[1])),
    ]);
    let is_error = is_error(code, datapath_context.side);
    if is_error {
        attributes.push(text("error.type", code.name()));
    }
    let name = match datapath_context.role {
        SpanRole::Call => method.to_owned(),
        SpanRole::Hop => format!("hop {method}"),
    };
    // The span that a call has on this side was made elsewhere, unless there is another engine here before.
    let is_remote = datapath_context.role == SpanRole::Call && datapath_context.side == Side::Server;
    Span {
        span_id: call.span_id.to_be_bytes().to_vec(),
        parent_span_id: parent(call.parent_id),
        flags: FLAG_SAMPLED | FLAG_REMOTE_KNOWN | if is_remote { FLAG_REMOTE } else { 0 },
        name,
        kind: datapath_context.kind() as i32,
        attributes,
        status: is_error.then(|| Status {
            message: String::new(),
            code: StatusCode::Error as i32,
        }),
        ..timed(record, wall, call.began_at, record.ended.at)
    }
}

/// From when the service took the request's first message until that passes here, if it had to wait. What is before a hop is
/// no part of it, but of the call that it belongs to.
fn queueing_span(record: &SpanRecord, wall: &WallClock, ids: &mut Ids) -> Option<Span> {
    let call = &record.call;
    if call.taken_at == 0 || call.asked_at <= call.taken_at {
        return None;
    }
    let parent_id = match record.datapath_context.role {
        SpanRole::Hop if call.parent_id != 0 => call.parent_id,
        SpanRole::Hop | SpanRole::Call => call.span_id,
    };
    Some(Span {
        parent_span_id: parent(parent_id),
        ..phase_of("queueing", record, wall, call.taken_at, call.asked_at, ids)
    })
}

/// From the request's first message until the response begins, if it begins after that: on the client's side the wire and what is
/// behind it, on the server's the handler.
fn phase_span(record: &SpanRecord, wall: &WallClock, ids: &mut Ids) -> Option<Span> {
    let (call, datapath_context) = (&record.call, &record.datapath_context);
    if call.asked_at == 0 || call.answered_at < call.asked_at {
        return None;
    }
    let name = match datapath_context.side {
        Side::Client => "wire",
        Side::Server => "handler",
    };
    Some(phase_of(name, record, wall, call.asked_at, call.answered_at, ids))
}

fn phase_of(
    name: &str,
    record: &SpanRecord,
    wall: &WallClock,
    from: Nanos,
    to: Nanos,
    ids: &mut Ids,
) -> Span {
    Span {
        span_id: ids.next().to_be_bytes().to_vec(),
        parent_span_id: parent(record.call.span_id),
        flags: FLAG_SAMPLED | FLAG_REMOTE_KNOWN,
        name: name.to_owned(),
        kind: SpanKind::Internal as i32,
        ..timed(record, wall, from, to)
    }
}

fn timed(record: &SpanRecord, wall: &WallClock, from: Nanos, to: Nanos) -> Span {
    Span {
        trace_id: record.call.trace_id.to_be_bytes().to_vec(),
        start_time_unix_nano: wall.unix_ns(from),
        end_time_unix_nano: wall.unix_ns(to.max(from)),
        ..Span::default()
    }
}

fn parent(id: u64) -> Vec<u8> {
    match id {
        0 => Vec::new(),
        id => id.to_be_bytes().to_vec(),
    }
}

/// Whether a status is an error of the side that the span is of: what a client did wrong is not the server's.
fn is_error(code: Code, side: Side) -> bool {
    match side {
        Side::Client => code != Code::Ok,
        Side::Server => matches!(
            code,
            Code::Unknown
                | Code::DeadlineExceeded
                | Code::Unimplemented
                | Code::Internal
                | Code::Unavailable
                | Code::DataLoss
        ),
    }
}

pub(crate) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: i64) -> KeyValue {
    attribute(key, Value::IntValue(value))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use provost_engine::AttestedApp;
    use provost_engine::rig::Service;

    use super::*;

    #[test]
    fn spans_tell_of_the_app_that_calls_what_is_known() {
        let service = Service::from_source(
            "syntax = \"proto3\"; package t; message M {} service S { rpc Call(M) returns (M); }",
        );
        let mut context = service.datapath_context(Side::Server);
        context.peer.attested = Some(Arc::new(AttestedApp {
            node: "b".into(),
            name: "till".into(),
            user: "cashier".into(),
            uid: 7,
            workload: "".into(),
        }));
        let part = SpanContextPart::new(&context, SpanRole::Call);
        let told = part.attributes.iter().filter(|attribute| {
            let key = attribute.key.strip_prefix("provost.peer.");
            key.is_some_and(|key| key != "identity")
        });
        let told: Vec<KeyValue> = told.cloned().collect();
        let expected = [("app", "till"), ("node", "b"), ("user", "cashier")];
        assert_eq!(
            told,
            expected.map(|(key, value)| text(&format!("provost.peer.{key}"), value))
        );
    }
}
