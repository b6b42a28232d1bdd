//! Foreign files, cut, spliced and scribbled over: every reader returns, and what it accepts is valid.

use proptest::prelude::*;
use provost_insight::acg::{AnnotatedGraph, CallGraph, draw_text};
use provost_insight::fit::fit;
use provost_insight::profile::Profile;
use provost_insight::synthetic::{SyntheticProxy, synthetic_alibaba_rows, synthetic_profile};
use provost_insight::traces::{MergeOptions, TraceFormat, assemble, merge, read};

const JAEGER: &str = r#"{"data":[{"traceID":"t","spans":[
{"traceID":"t","spanID":"1","operationName":"op","references":[],"startTime":1000,"duration":90,"processID":"p","tags":[{"key":"span.kind","value":"server"}]},
{"traceID":"t","spanID":"2","operationName":"op","references":[{"refType":"CHILD_OF","traceID":"t","spanID":"1"}],"startTime":1010,"duration":50,"processID":"p","tags":[{"key":"span.kind","value":"client"}]},
{"traceID":"t","spanID":"3","operationName":"op","references":[{"refType":"CHILD_OF","traceID":"t","spanID":"2"}],"startTime":1020,"duration":30,"processID":"q","tags":[{"key":"request_size","value":9}]}],
"processes":{"p":{"serviceName":"a"},"q":{"serviceName":"b"}}}]}"#;
const OTLP: &str = r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"a"}}]},"scopeSpans":[{"spans":[
{"traceId":"aa","spanId":"01","name":"op","kind":2,"startTimeUnixNano":"1700000000000000000","endTimeUnixNano":"1700000000000900000"},
{"traceId":"aa","spanId":"02","parentSpanId":"01","name":"op","kind":3,"startTimeUnixNano":"1700000000000100000","endTimeUnixNano":"1700000000000200000","attributes":[{"key":"peer.service","value":{"stringValue":"b"}}]}]}]}]}"#;
const NEZHA: &str = "\
TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano,Duration
t,1,root,gateway-6f6cfc45b-d9pnv,/*,1675078742856000000,1675078742887000000,31000
t,2,1,gateway-6f6cfc45b-d9pnv,HTTP GET,1675078742858000000,1675078742886000000,28000
t,3,2,orders-774f544d9-tmwcv,/api,1675078742860000000,1675078742885000000,25000
";
const GRAPH: &str = "\
format: provost-insight-acg
version: 1
services: [{name: a, filters: [lua]}, {name: b, node: n, meshed: false}]
requests:
  - name: page
    rate_per_s: 100
    calls:
      - {id: x, to: a, protocol: http1, request_bytes: 200, app_us: {p10: 1, p50: 2, p90: 5, p99: 9}}
      - {id: y, from: x, to: b, probability: 0.5, repeats: 2}
      - {id: z, from: x, to: b, after: [y], detached: true}
";

/// One thing that happens to a text.
#[derive(Clone, Debug)]
enum Damage {
    Cut(prop::sample::Index),
    Replace(prop::sample::Index, u8),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
    Number(prop::sample::Index, &'static str),
}

fn damage() -> impl Strategy<Value = Damage> {
    let place = || any::<prop::sample::Index>();
    prop_oneof![
        1 => place().prop_map(Damage::Cut),
        3 => (place(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        3 => (place(), 1..40usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        3 => (place(), 1..200usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
        3 => (place(), prop::sample::select(vec!["-1", "1e308", "99999999999999999999", "NaN", "null", "[[", "\"\"", "\0"]))
            .prop_map(|(at, text)| Damage::Number(at, text)),
    ]
}

fn damaged(text: &str, damages: &[Damage]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for one in damages {
        if bytes.is_empty() {
            break;
        }
        let size = bytes.len();
        match one {
            Damage::Cut(at) => bytes.truncate(at.index(size)),
            Damage::Replace(at, byte) => bytes[at.index(size)] = *byte,
            Damage::Remove(at, length) => {
                let at = at.index(size);
                bytes.drain(at..(at + length).min(size));
            }
            Damage::Repeat(at, length) => {
                let at = at.index(size);
                let part = bytes[at..(at + length).min(size)].to_vec();
                bytes.splice(at..at, part);
            }
            Damage::Number(at, text) => {
                let from = at.index(size);
                let digits = bytes[from..]
                    .iter()
                    .position(u8::is_ascii_digit)
                    .map_or(from, |skip| from + skip);
                let count = bytes[digits..]
                    .iter()
                    .take_while(|byte| byte.is_ascii_digit())
                    .count();
                bytes.splice(digits..digits + count, text.bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn derive(text: &str, format: TraceFormat) -> Result<(), TestCaseError> {
    let Ok(spans) = read(text, format) else {
        return Ok(());
    };
    let mut forest = assemble(spans);
    if let Ok(graph) = merge(&mut forest, &MergeOptions::default()) {
        let checked = CallGraph::new(graph);
        prop_assert!(checked.is_ok(), "{:?}", checked.err());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_traces_give_a_valid_graph_or_an_error(damages in prop::collection::vec(damage(), 0..6)) {
        derive(&damaged(JAEGER, &damages), TraceFormat::Jaeger)?;
        derive(&damaged(OTLP, &damages), TraceFormat::Otlp)?;
        derive(&damaged(NEZHA, &damages), TraceFormat::Nezha)?;
        derive(&damaged(&synthetic_alibaba_rows(3, 4.0, 1), &damages), TraceFormat::Alibaba)?;
    }

    #[test]
    fn damaged_graphs_are_valid_or_refused(damages in prop::collection::vec(damage(), 0..6)) {
        let text = damaged(GRAPH, &damages);
        if let Ok(graph) = AnnotatedGraph::parse(&text).and_then(CallGraph::new) {
            prop_assert!(!draw_text(&graph).is_empty());
            let written = graph.source.to_yaml().unwrap();
            let again = AnnotatedGraph::parse(&written);
            prop_assert_eq!(again.as_ref(), Ok(&graph.source), "{}", written);
        }
    }

    #[test]
    fn damaged_profiles_can_be_fitted_or_are_refused(damages in prop::collection::vec(damage(), 0..6)) {
        let mut proxy = SyntheticProxy::example();
        proxy.components.truncate(2);
        proxy.protocols.truncate(1);
        let mut profile = synthetic_profile(&proxy, 2, 1);
        profile.totals.truncate(2);
        profile.observations.truncate(12);
        profile.fit = fit(&profile).ok();
        if let Ok(mut profile) = Profile::parse(&damaged(&profile.to_json(), &damages))
            && let Ok(fitted) = fit(&profile)
        {
            profile.fit = Some(fitted);
            prop_assert_eq!(profile.check(), Ok(()));
        }
    }
}

#[test]
fn a_million_spans_become_one_graph_and_none_is_lost() {
    const SPANS: usize = 1_000_000;
    let rows = synthetic_alibaba_rows(SPANS / 10, 11.0, 1);
    let read_spans = read(&rows, TraceFormat::Alibaba).unwrap();
    let spans = rows.lines().count() - 1;
    assert!(spans > SPANS, "{spans}");
    let mut forest = assemble(read_spans);
    let used: usize = forest.trees.iter().map(|tree| tree.calls.len()).sum();
    assert_eq!(used, spans);
    let merged = merge(&mut forest, &MergeOptions::default()).map_err(|error| error.to_string());
    let graph = merged.and_then(|graph| CallGraph::new(graph).map_err(|error| error.to_string()));
    // So many calls that are all different are more than a graph has; that is said, and nothing is cut off.
    let error = graph.map(|graph| graph.requests.len()).unwrap_err();
    assert!(error.contains("at most"), "{error}");
    println!("{error}");
}
