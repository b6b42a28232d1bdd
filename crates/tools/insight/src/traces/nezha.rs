//! Nezha's layout: a row for each span, with nanoseconds, the parent `root` for none, and the pod instead of the service.

use super::otlp::times;
use super::{Columns, SpanKind, SpanSet, TraceError, TraceSpan, csv_error, csv_reader, identity};

pub(super) fn read(text: &str, spans: &mut SpanSet) -> Result<(), TraceError> {
    let mut reader = csv_reader(text);
    let columns = Columns::read(&mut reader)?;
    let [trace, span, parent, pod, operation, start, end] = [
        "traceid",
        "spanid",
        "parentid",
        "podname",
        "operationname",
        "starttimeunixnano",
        "endtimeunixnano",
    ]
    .map(|name| columns.find(name));
    let (trace, span, parent, pod) = (trace?, span?, parent?, pod?);
    let (operation, start, end) = (operation?, start?, end?);
    let mut row = csv::StringRecord::new();
    while reader.read_record(&mut row).map_err(csv_error)? {
        let cell = |at: usize| row.get(at).unwrap_or_default().trim();
        if cell(span).is_empty() || cell(trace).is_empty() || cell(pod).is_empty() {
            spans.report.unused("rows without an id or a pod");
            continue;
        }
        let Some((start_us, duration_us)) = times(cell(start), cell(end)) else {
            spans.report.unused("rows without times");
            continue;
        };
        if duration_us < 0.0 {
            spans.report.unused("spans of negative duration");
            continue;
        }
        let taken = TraceSpan {
            trace: spans.trace(cell(trace)),
            id: identity(cell(span)),
            parent: (!matches!(cell(parent), "" | "root")).then(|| identity(cell(parent))),
            service: spans.name(service_of_pod(cell(pod)))?,
            operation: spans.name(cell(operation))?,
            kind: SpanKind::Unknown,
            start_us,
            duration_us,
            request_bytes: None,
            response_bytes: None,
            protocol: None,
            peer: None,
        };
        spans.push(taken)?;
    }
    Ok(())
}

/// A pod of a deployment is named `service-<hash of the template>-<five letters>`.
fn service_of_pod(pod: &str) -> &str {
    let is_hash = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    let Some((rest, _)) = pod.rsplit_once('-').filter(|(_, unique)| is_hash(unique, 5..=5)) else {
        return pod;
    };
    match rest.rsplit_once('-') {
        Some((service, template))
            if is_hash(template, 6..=10) && template.bytes().any(|byte| byte.is_ascii_digit()) =>
        {
            service
        }
        _ => pod,
    }
}

#[cfg(test)]
mod tests {
    use super::service_of_pod;

    #[test]
    fn pods_have_the_names_of_their_services() {
        for (pod, service) in [
            ("ts-order-service-5b67c48447-fj8b7", "ts-order-service"),
            ("cartservice-579f59597d-wc2lz", "cartservice"),
            ("redis-cart-0", "redis-cart-0"),
            ("plain", "plain"),
        ] {
            assert_eq!(service_of_pod(pod), service);
        }
    }
}
