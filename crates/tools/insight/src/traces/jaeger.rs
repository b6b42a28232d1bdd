//! Jaeger's JSON: `{"data": [{"traceID", "spans": […], "processes": {…}}]}`, or the list or one trace alone.

use std::collections::HashMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{SpanFacts, SpanKind, SpanSet, TraceError, TraceSpan, identity, is_sane_us};

/// Any of the three shapes that are found.
#[derive(Deserialize)]
struct JaegerDocument {
    #[serde(default)]
    data: Vec<JaegerTrace>,
    #[serde(default)]
    spans: Vec<JaegerSpan>,
    #[serde(default)]
    processes: HashMap<String, JaegerProcess>,
}

#[derive(Deserialize)]
struct JaegerTrace {
    #[serde(default)]
    spans: Vec<JaegerSpan>,
    #[serde(default)]
    processes: HashMap<String, JaegerProcess>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JaegerSpan {
    #[serde(rename = "traceID", default)]
    trace_id: String,
    #[serde(rename = "spanID", default)]
    span_id: String,
    #[serde(rename = "parentSpanID", default)]
    parent_span_id: String,
    #[serde(default)]
    operation_name: String,
    #[serde(default)]
    references: Vec<JaegerReference>,
    #[serde(default)]
    start_time: f64,
    #[serde(default)]
    duration: f64,
    #[serde(default)]
    tags: WantedTags,
    #[serde(rename = "processID", default)]
    process_id: String,
    #[serde(default)]
    process: Option<JaegerProcess>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JaegerReference {
    #[serde(default)]
    ref_type: String,
    #[serde(rename = "traceID", default)]
    trace_id: String,
    #[serde(rename = "spanID", default)]
    span_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JaegerProcess {
    #[serde(default)]
    service_name: String,
}

pub(super) fn read(text: &str, spans: &mut SpanSet) -> Result<(), TraceError> {
    let malformed = |error: serde_json::Error| TraceError::Malformed {
        line: error.line() as u64,
        problem: error.to_string(),
    };
    if text.trim_start().starts_with('[') {
        let traces: Vec<JaegerTrace> = serde_json::from_str(text).map_err(malformed)?;
        traces.into_iter().try_for_each(|trace| take_trace(trace, spans))
    } else {
        let document: JaegerDocument = serde_json::from_str(text).map_err(malformed)?;
        document
            .data
            .into_iter()
            .try_for_each(|trace| take_trace(trace, spans))?;
        let alone = JaegerTrace {
            spans: document.spans,
            processes: document.processes,
        };
        take_trace(alone, spans)
    }
}

fn take_trace(trace: JaegerTrace, spans: &mut SpanSet) -> Result<(), TraceError> {
    for span in &trace.spans {
        take_span(span, &trace.processes, spans)?;
    }
    Ok(())
}

fn take_span(
    span: &JaegerSpan,
    processes: &HashMap<String, JaegerProcess>,
    spans: &mut SpanSet,
) -> Result<(), TraceError> {
    let process = span.process.as_ref().or_else(|| processes.get(&span.process_id));
    let Some(process) = process.filter(|process| !process.service_name.is_empty()) else {
        spans.report.unused("spans without a service");
        return Ok(());
    };
    if span.span_id.is_empty() || span.trace_id.is_empty() {
        spans.report.unused("spans without an id");
        return Ok(());
    }
    if !is_sane_us(span.start_time) || !is_sane_us(span.duration) || span.duration < 0.0 {
        spans.report.unused("spans of negative duration");
        return Ok(());
    }
    let facts = &span.tags.0;
    let within = span
        .references
        .iter()
        .find(|one| one.trace_id == span.trace_id || one.trace_id.is_empty());
    let parent = match within {
        Some(reference) => Some(identity(&reference.span_id)),
        None => (!span.parent_span_id.is_empty()).then(|| identity(&span.parent_span_id)),
    };
    // What follows from a span is not waited for by it.
    let is_message = within.is_some_and(|reference| reference.ref_type == "FOLLOWS_FROM");
    let taken = TraceSpan {
        trace: spans.trace(&span.trace_id),
        id: identity(&span.span_id),
        parent,
        service: spans.name(&process.service_name)?,
        operation: spans.name(&span.operation_name)?,
        kind: if is_message {
            SpanKind::Message
        } else {
            facts.kind.unwrap_or(SpanKind::Unknown)
        },
        start_us: span.start_time,
        duration_us: span.duration,
        request_bytes: facts.request_bytes,
        response_bytes: facts.response_bytes,
        protocol: facts.protocol,
        peer: facts.peer.as_deref().map(|peer| spans.name(peer)).transpose()?,
    };
    spans.push(taken)
}

/// The tags that a graph needs; the others, which are most of a file, are not kept.
#[derive(Default)]
struct WantedTags(SpanFacts);

impl<'de> Deserialize<'de> for WantedTags {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WantedTags, D::Error> {
        struct Tags;
        impl<'de> Visitor<'de> for Tags {
            type Value = WantedTags;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tags")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut tags: A) -> Result<WantedTags, A::Error> {
                let mut facts = SpanFacts::default();
                while let Some(tag) = tags.next_element::<WantedTag>()? {
                    if SpanFacts::wants(&tag.key) {
                        facts.take(&tag.key, &tag.value.0);
                    }
                }
                Ok(WantedTags(facts))
            }

            fn visit_unit<E>(self) -> Result<WantedTags, E> {
                Ok(WantedTags::default())
            }
        }
        deserializer.deserialize_any(Tags)
    }
}

#[derive(Deserialize)]
struct WantedTag {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: ScalarText,
}

/// A scalar of any type as text; what is no scalar is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ScalarText(pub(super) String);

impl<'de> Deserialize<'de> for ScalarText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScalarText, D::Error> {
        struct Scalar;
        impl<'de> Visitor<'de> for Scalar {
            type Value = ScalarText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_str<E>(self, value: &str) -> Result<ScalarText, E> {
                Ok(ScalarText(super::cut(value).to_owned()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<ScalarText, E> {
                Ok(ScalarText(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<ScalarText, E> {
                Ok(ScalarText(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<ScalarText, E> {
                Ok(ScalarText(value.to_string()))
            }

            fn visit_bool<E>(self, value: bool) -> Result<ScalarText, E> {
                Ok(ScalarText(value.to_string()))
            }

            fn visit_unit<E>(self) -> Result<ScalarText, E> {
                Ok(ScalarText::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ScalarText, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(ScalarText::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ScalarText, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(ScalarText::default())
            }
        }
        deserializer.deserialize_any(Scalar)
    }
}
