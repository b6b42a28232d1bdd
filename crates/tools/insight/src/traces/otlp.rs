//! OpenTelemetry's JSON: `{"resourceSpans": […]}`, one document, or one on each line as the collector's file exporter writes
//! them.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::jaeger::ScalarText;
use super::{SpanFacts, SpanSet, TraceError, TraceSpan, identity, is_sane_us, kind_of};

const NS_PER_US: f64 = 1000.0;

#[derive(Deserialize)]
struct OtlpDocument {
    #[serde(rename = "resourceSpans", alias = "resource_spans", default)]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Deserialize)]
struct ResourceSpans {
    #[serde(default)]
    resource: OtlpResource,
    #[serde(
        rename = "scopeSpans",
        alias = "scope_spans",
        alias = "instrumentationLibrarySpans",
        default
    )]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Default, Deserialize)]
struct OtlpResource {
    #[serde(default)]
    attributes: WantedAttributes,
}

#[derive(Deserialize)]
struct ScopeSpans {
    #[serde(default)]
    spans: Vec<OtlpSpan>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OtlpSpan {
    #[serde(alias = "trace_id", default)]
    trace_id: String,
    #[serde(alias = "span_id", default)]
    span_id: String,
    #[serde(alias = "parent_span_id", default)]
    parent_span_id: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    kind: ScalarText,
    #[serde(alias = "start_time_unix_nano", default)]
    start_time_unix_nano: ScalarText,
    #[serde(alias = "end_time_unix_nano", default)]
    end_time_unix_nano: ScalarText,
    #[serde(default)]
    attributes: WantedAttributes,
}

/// The attributes that a graph needs.
#[derive(Default)]
struct WantedAttributes {
    service: String,
    facts: SpanFacts,
}

impl<'de> Deserialize<'de> for WantedAttributes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WantedAttributes, D::Error> {
        struct Attributes;
        impl<'de> Visitor<'de> for Attributes {
            type Value = WantedAttributes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of attributes")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WantedAttributes, A::Error> {
                let mut wanted = WantedAttributes::default();
                while let Some(attribute) = list.next_element::<KeyValue>()? {
                    let value = attribute.value.text();
                    match attribute.key.as_str() {
                        "service.name" => wanted.service = value.to_owned(),
                        key if SpanFacts::wants(key) => wanted.facts.take(key, value),
                        _ => {}
                    }
                }
                Ok(wanted)
            }
        }
        deserializer.deserialize_seq(Attributes)
    }
}

#[derive(Deserialize)]
struct KeyValue {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: AnyValue,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnyValue {
    #[serde(alias = "string_value", default)]
    string_value: Option<ScalarText>,
    #[serde(alias = "int_value", default)]
    int_value: Option<ScalarText>,
    #[serde(alias = "double_value", default)]
    double_value: Option<ScalarText>,
}

impl AnyValue {
    fn text(&self) -> &str {
        let any = self
            .string_value
            .as_ref()
            .or(self.int_value.as_ref())
            .or(self.double_value.as_ref());
        any.map_or("", |value| value.0.as_str())
    }
}

pub(super) fn read(text: &str, spans: &mut SpanSet) -> Result<(), TraceError> {
    for document in serde_json::Deserializer::from_str(text).into_iter::<OtlpDocument>() {
        let document = document.map_err(|error| TraceError::Malformed {
            line: error.line() as u64,
            problem: error.to_string(),
        })?;
        for resource in document.resource_spans {
            let service = resource.resource.attributes.service;
            for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
                take_span(&span, &service, spans)?;
            }
        }
    }
    Ok(())
}

fn take_span(span: &OtlpSpan, service: &str, spans: &mut SpanSet) -> Result<(), TraceError> {
    if service.is_empty() {
        spans.report.unused("spans without a service");
        return Ok(());
    }
    if span.span_id.is_empty() || span.trace_id.is_empty() {
        spans.report.unused("spans without an id");
        return Ok(());
    }
    let Some((start_us, duration_us)) = times(&span.start_time_unix_nano.0, &span.end_time_unix_nano.0)
    else {
        spans.report.unused("spans without times");
        return Ok(());
    };
    if duration_us < 0.0 {
        spans.report.unused("spans of negative duration");
        return Ok(());
    }
    let facts = &span.attributes.facts;
    let taken = TraceSpan {
        trace: spans.trace(&span.trace_id),
        id: identity(&span.span_id),
        parent: (!span.parent_span_id.is_empty()).then(|| identity(&span.parent_span_id)),
        service: spans.name(service)?,
        operation: spans.name(&span.name)?,
        kind: kind_of(&span.kind.0),
        start_us,
        duration_us,
        request_bytes: facts.request_bytes,
        response_bytes: facts.response_bytes,
        protocol: facts.protocol,
        peer: facts.peer.as_deref().map(|peer| spans.name(peer)).transpose()?,
    };
    spans.push(taken)
}

/// Start and duration. Nanoseconds since 1970 do not fit a double, so the difference is taken first.
pub(super) fn times(start: &str, end: &str) -> Option<(f64, f64)> {
    let (start, end): (i64, i64) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
    let duration_us = end.checked_sub(start)? as f64 / NS_PER_US;
    let start_us = start.div_euclid(1000) as f64 + start.rem_euclid(1000) as f64 / NS_PER_US;
    (is_sane_us(start_us) && is_sane_us(duration_us)).then_some((start_us, duration_us))
}
