//! Sizes and rates from the metrics of `provostd`, as its Prometheus endpoint shows them (policy `metrics`).

use std::collections::HashMap;

use crate::acg::{Amount, AnnotatedGraph};

/// A text of metrics has at most so many bytes.
pub const METRICS_BYTES_MAX: usize = 64 << 20;
/// At most so many methods are looked at.
const METHODS_MAX: usize = 100_000;

/// Why metrics cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetricsError {
    /// The text is too long.
    #[error("the metrics have {0} bytes, at most {METRICS_BYTES_MAX} are read")]
    TooLong(usize),
    /// A line is not one of the exposition format.
    #[error("line {line}: \"{text}\" is no sample of the Prometheus text format")]
    Malformed {
        /// From 1.
        line: usize,
        text: String,
    },
    /// The earlier reading is not of the same counters, or not the earlier one.
    #[error(
        "{method} has fewer calls than in the earlier reading: was the node started anew between them, or are the two the wrong way \
         round? take both again"
    )]
    WentBack { method: String },
    /// Nothing that the policy `metrics` counts is in it.
    #[error("no calls in it: is a policy of the kind metrics attached on the node?")]
    Empty,
}

/// What is counted of a method.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct MethodCounts {
    started: f64,
    request_bytes: f64,
    response_bytes: f64,
    ended: f64,
}

/// Puts mean sizes, and with two readings some seconds apart the rates of requests, into a graph; the number of calls whose
/// operation the metrics know.
///
/// # Errors
/// If a text is not of the format, or has no calls.
pub fn apply_metrics(
    graph: &mut AnnotatedGraph,
    text: &str,
    earlier: Option<(&str, f64)>,
) -> Result<usize, MetricsError> {
    let now = read(text)?;
    let before = earlier
        .map(|(text, _)| read(text))
        .transpose()?
        .unwrap_or_default();
    if now.is_empty() {
        return Err(MetricsError::Empty);
    }
    // A method that is gone has not been called since its node was started anew.
    let went_back = |(method, before): &(&String, &MethodCounts)| {
        let counts = now.get(*method).copied().unwrap_or_default();
        counts.started < before.started || counts.ended < before.ended
    };
    if let Some((method, _)) = before.iter().find(went_back) {
        let method = method.chars().take(200).collect();
        return Err(MetricsError::WentBack { method });
    }
    let since = |method: &str| {
        let (now, before) = (now.get(method)?, before.get(method).copied().unwrap_or_default());
        Some(MethodCounts {
            started: now.started - before.started,
            request_bytes: now.request_bytes - before.request_bytes,
            response_bytes: now.response_bytes - before.response_bytes,
            ended: now.ended - before.ended,
        })
    };
    let mut known = 0;
    for request in &mut graph.requests {
        for (at, call) in request.calls.iter_mut().enumerate() {
            let Some(counts) = since(call.operation.trim_start_matches('/')) else {
                continue;
            };
            known += 1;
            if counts.ended > 0.0 {
                call.request_bytes = Amount::Fixed((counts.request_bytes / counts.ended).max(0.0));
                call.response_bytes = Amount::Fixed((counts.response_bytes / counts.ended).max(0.0));
            }
            match earlier {
                Some((_, seconds)) if at == 0 && seconds > 0.0 => {
                    request.rate_per_s = (counts.started / seconds).max(0.0)
                }
                _ => {}
            }
        }
    }
    Ok(known)
}

fn read(text: &str) -> Result<HashMap<String, MethodCounts>, MetricsError> {
    if text.len() > METRICS_BYTES_MAX {
        return Err(MetricsError::TooLong(text.len()));
    }
    let mut methods: HashMap<String, MethodCounts> = HashMap::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let malformed = || MetricsError::Malformed {
            line: at + 1,
            text: line.chars().take(80).collect(),
        };
        // A label's value may hold spaces and braces, so the value of the sample is looked for behind the last brace.
        let (series, value) = match line.rfind('}') {
            Some(end) => line.split_at(end + 1),
            None => line.split_once(char::is_whitespace).ok_or_else(malformed)?,
        };
        let value = value.split_whitespace().next().ok_or_else(malformed)?;
        let value: f64 = value.parse().map_err(|_| malformed())?;
        let Some(method) = label(series, "grpc_method") else {
            continue;
        };
        if !methods.contains_key(&method) && methods.len() >= METHODS_MAX {
            continue;
        }
        let name = series.split('{').next().unwrap_or_default();
        count(methods.entry(method).or_default(), name, value);
    }
    methods.retain(|_, counts| counts.started > 0.0 || counts.ended > 0.0);
    Ok(methods)
}

fn count(counts: &mut MethodCounts, name: &str, value: f64) {
    match name {
        "grpc_server_call_started_total" => counts.started += value,
        "grpc_server_call_rcvd_total_compressed_message_size_bytes_sum" => counts.request_bytes += value,
        "grpc_server_call_rcvd_total_compressed_message_size_bytes_count" => counts.ended += value,
        "grpc_server_call_sent_total_compressed_message_size_bytes_sum" => counts.response_bytes += value,
        _ => {}
    }
}

/// The value of a label, with its escapes undone.
fn label(series: &str, name: &str) -> Option<String> {
    let start = series.find(&format!("{name}=\""))? + name.len() + 2;
    let mut value = String::new();
    let mut characters = series.get(start..)?.chars();
    loop {
        match characters.next()? {
            '"' => return Some(value.trim_start_matches('/').to_owned()),
            '\\' => value.push(characters.next()?),
            other => value.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "\
# HELP grpc_server_call_started_total Calls.
grpc_server_call_started_total{app=\"kv\",grpc_method=\"kv.Kv/Get\"} 300
grpc_server_call_rcvd_total_compressed_message_size_bytes_sum{app=\"kv\",grpc_method=\"kv.Kv/Get\",grpc_status=\"OK\"} 6000
grpc_server_call_rcvd_total_compressed_message_size_bytes_count{app=\"kv\",grpc_method=\"kv.Kv/Get\",grpc_status=\"OK\"} 300
grpc_server_call_sent_total_compressed_message_size_bytes_sum{app=\"kv\",grpc_method=\"kv.Kv/Get\",grpc_status=\"OK\"} 90000
provost_ready 1
";

    fn graph() -> AnnotatedGraph {
        let text = "\
format: provost-insight-acg
version: 1
services: [{name: kv}]
requests: [{name: r, rate_per_s: 1, calls: [{id: x, to: kv, operation: kv.Kv/Get}]}]
";
        AnnotatedGraph::parse(text).unwrap()
    }

    #[test]
    fn sizes_come_from_one_reading_and_rates_from_two() {
        let mut graph = graph();
        assert_eq!(apply_metrics(&mut graph, METRICS, None), Ok(1));
        assert_eq!(graph.requests[0].calls[0].request_bytes, Amount::Fixed(20.0));
        assert_eq!(graph.requests[0].calls[0].response_bytes, Amount::Fixed(300.0));
        let earlier = METRICS.replace(" 300\n", " 100\n");
        apply_metrics(&mut graph, METRICS, Some((&earlier, 10.0))).unwrap();
        assert_eq!(graph.requests[0].rate_per_s, 20.0);
    }

    #[test]
    fn counters_that_went_back_are_refused() {
        let before = graph();
        let mut graph = before.clone();
        let earlier = METRICS.replace(" 300\n", " 500\n");
        let refused = apply_metrics(&mut graph, METRICS, Some((&earlier, 10.0)));
        let method = "kv.Kv/Get".to_owned();
        assert_eq!(refused, Err(MetricsError::WentBack { method }));
        // Since its node was started anew nobody has called it.
        let earlier = METRICS.replace("kv.Kv/Get", "kv.Kv/List");
        let refused = apply_metrics(&mut graph, METRICS, Some((&earlier, 10.0)));
        let method = "kv.Kv/List".to_owned();
        assert_eq!(refused, Err(MetricsError::WentBack { method }));
        assert_eq!(graph, before);
    }

    #[test]
    fn other_texts_are_refused_with_their_line() {
        assert_eq!(
            apply_metrics(&mut graph(), "provost_ready 1\n", None),
            Err(MetricsError::Empty)
        );
        let error = apply_metrics(&mut graph(), "provost_ready 1\nwhat\n", None).unwrap_err();
        assert!(error.to_string().starts_with("line 2"), "{error}");
    }
}
