//! What a million spans take in memory, beside the text that they are read from.

use std::fmt::Write;

use provost_allocations::{CountingAllocator, peak_bytes_during};
use provost_insight::acg::CallGraph;
use provost_insight::synthetic::synthetic_alibaba_rows;
use provost_insight::traces::{MergeOptions, SPAN_MEMORY_BYTES_MAX, TraceFormat, assemble, merge, read};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Reads spans and makes a graph of them, if they are one, and says how many bytes each takes meanwhile.
fn bytes_per_span(text: &str, format: TraceFormat, spans: usize) -> u64 {
    let mut used = 0;
    let peak = peak_bytes_during(|| {
        let mut forest = assemble(read(text, format).unwrap());
        used = forest.trees.iter().map(|tree| tree.calls.len()).sum();
        // So many calls that are all different are more than a graph has, which is said.
        let graph = merge(&mut forest, &MergeOptions::default());
        let _ = graph.map(CallGraph::new);
    });
    assert_eq!(used, spans, "no span is lost");
    let each = peak / spans as u64;
    println!("{spans} spans of {format:?}: {each} bytes each");
    each
}

#[test]
fn a_million_spans_take_no_more_memory_than_is_said() {
    const SPANS: usize = 1_000_000;
    let rows = synthetic_alibaba_rows(SPANS / 10, 11.0, 1);
    let spans = rows.lines().count() - 1;
    assert!(spans > SPANS, "{spans}");
    let each = bytes_per_span(&rows, TraceFormat::Alibaba, spans);
    assert!(each <= SPAN_MEMORY_BYTES_MAX, "{each}");
}

/// Traces of one shape become one graph; a document of JSON is not kept beside its spans.
#[test]
fn spans_in_one_document_take_no_more_either() {
    const TRACES: usize = 25_000;
    const CALLS: usize = 4;
    let mut text = String::from(r#"{"data":["#);
    for trace in 0..TRACES {
        let separator = if trace > 0 { "," } else { "" };
        let _ = write!(
            text,
            r#"{separator}{{"traceID":"trace{trace}","processes":{{"p":{{"serviceName":"a"}}}},"spans":["#
        );
        for call in 0..CALLS {
            let separator = if call > 0 { "," } else { "" };
            let references = match call {
                0 => String::new(),
                _ => format!(r#"{{"refType":"CHILD_OF","traceID":"trace{trace}","spanID":"s{trace}x0"}}"#),
            };
            let (start, duration) = (1000 + 10 * call, if call > 0 { 8 } else { 90 });
            let _ = write!(
                text,
                r#"{separator}{{"traceID":"trace{trace}","spanID":"s{trace}x{call}","operationName":"op{call}","references":[{references}],"startTime":{start},"duration":{duration},"processID":"p","tags":[{{"key":"span.kind","value":"server"}}]}}"#
            );
        }
        text += "]}";
    }
    text += "]}";
    let each = bytes_per_span(&text, TraceFormat::Jaeger, TRACES * CALLS);
    assert!(each <= SPAN_MEMORY_BYTES_MAX, "{each}");
}
