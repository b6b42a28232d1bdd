use super::*;
use crate::acg::{Amount, AnnotatedGraph, CallGraph};

fn jaeger_span(id: &str, parent: &str, service: &str, kind: &str, start: i64, duration: i64) -> String {
    let references = match parent {
        "" => String::new(),
        parent => format!(r#"{{"refType":"CHILD_OF","traceID":"t","spanID":"{parent}"}}"#),
    };
    format!(
        r#"{{"traceID":"t","spanID":"{id}","operationName":"op-{service}","references":[{references}],"startTime":{start},
        "duration":{duration},"processID":"p-{service}","tags":[{{"key":"span.kind","type":"string","value":"{kind}"}},
        {{"key":"http.request_content_length","type":"int64","value":250}},{{"key":"blob","value":[1,{{"a":2}}]}}],"logs":[]}}"#
    )
}

fn jaeger(spans: &[String]) -> String {
    let processes: Vec<String> = ["a", "b", "c", "d"]
        .iter()
        .map(|name| format!(r#""p-{name}":{{"serviceName":"{name}","tags":[]}}"#))
        .collect();
    format!(
        r#"{{"data":[{{"traceID":"t","spans":[{}],"processes":{{{}}}}}]}}"#,
        spans.join(","),
        processes.join(",")
    )
}

fn forest(text: &str) -> TraceForest {
    assemble(read(text, TraceFormat::guess(text).unwrap()).unwrap())
}

fn graph(text: &str) -> (AnnotatedGraph, ImportReport) {
    let mut forest = forest(text);
    let graph = merge(&mut forest, &MergeOptions::default()).unwrap();
    CallGraph::new(graph.clone()).unwrap();
    (graph, forest.report)
}

/// `a` calls `b`, then `c` and `d` at once; callers and callees have spans.
fn page() -> Vec<String> {
    vec![
        jaeger_span("1", "", "a", "server", 1000, 1000),
        jaeger_span("2", "1", "a", "client", 1100, 200),
        jaeger_span("3", "2", "b", "server", 1120, 150),
        jaeger_span("4", "1", "a", "client", 1400, 300),
        jaeger_span("5", "4", "c", "server", 1410, 250),
        jaeger_span("6", "1", "a", "client", 1400, 400),
        jaeger_span("7", "6", "d", "server", 1420, 350),
    ]
}

#[test]
fn callers_and_callees_become_calls_with_their_order() {
    let (graph, report) = graph(&jaeger(&page()));
    assert_eq!((report.spans, report.traces, report.calls), (7, 1, 4));
    assert!(!report.is_partial(), "{report:?}");
    let calls = &graph.requests[0].calls;
    let names: Vec<&str> = calls.iter().map(|call| call.to.as_str()).collect();
    assert_eq!(names[0], "a");
    let of = |name: &str| calls.iter().find(|call| call.to == name).unwrap();
    assert_eq!(
        (of("b").after.len(), of("c").after.clone(), of("d").after.clone()),
        (0, vec!["b".into()], vec!["b".into()])
    );
    assert_eq!(
        (of("b").app_us, of("b").network_us),
        (Amount::Fixed(150.0), Amount::Fixed(50.0))
    );
    // The request's own time is what no call covers: 1000 - 200 - 400.
    assert_eq!(
        (of("a").app_us, of("a").request_bytes),
        (Amount::Fixed(400.0), Amount::Fixed(250.0))
    );
}

#[test]
fn orphans_cycles_and_bad_spans_are_counted_not_dropped() {
    let mut spans = page();
    spans.push(jaeger_span("8", "missing", "c", "server", 1500, 10));
    spans.push(jaeger_span("9", "8", "d", "server", 1500, 10));
    spans.push(jaeger_span("10", "11", "c", "server", 1500, 10));
    spans.push(jaeger_span("11", "10", "c", "server", 1500, 10));
    spans.push(jaeger_span("12", "1", "c", "server", 1500, -10));
    spans.push(jaeger_span("3", "1", "c", "server", 1500, 10));
    let (_, report) = graph(&jaeger(&spans));
    let unused = |reason: &str| {
        report
            .unused
            .iter()
            .find(|(key, _)| key.contains(reason))
            .map_or(0, |(_, count)| *count)
    };
    assert_eq!(unused("parent is missing"), 2, "{report:?}");
    assert_eq!(unused("lead back"), 2);
    assert_eq!(unused("negative duration"), 1);
    assert_eq!(unused("there twice"), 1);
}

#[test]
fn clocks_that_disagree_are_moved_and_counted() {
    let spans = [
        jaeger_span("1", "", "a", "server", 1_000_000, 10_000),
        jaeger_span("2", "1", "b", "server", 9_000_000, 4_000),
        jaeger_span("3", "2", "c", "server", 9_001_000, 1_000),
    ];
    let forest = forest(&jaeger(&spans));
    let calls = &forest.trees[0].calls;
    assert_eq!((calls[1].start_us, calls[2].start_us), (1_003_000.0, 1_004_000.0));
    assert_eq!(forest.report.clock_skew_us_max, 7_997_000.0);
}

#[test]
fn what_outlives_its_caller_is_not_waited_for() {
    let spans = [
        jaeger_span("1", "", "a", "server", 1000, 100),
        jaeger_span("2", "1", "b", "server", 1050, 400),
    ];
    let (graph, _) = graph(&jaeger(&spans));
    assert!(graph.requests[0].calls[1].detached);
}

#[test]
fn probability_repeats_and_rates_come_from_many_traces() {
    let trace = |number: i64, repeats: i64| {
        let mut spans = vec![jaeger_span("1", "", "a", "server", number * 100_000, 1000)];
        for repeat in 0..repeats {
            spans.push(jaeger_span(
                &format!("{}", 2 + repeat),
                "1",
                "b",
                "server",
                number * 100_000 + 100 * repeat + 10,
                50,
            ));
        }
        spans
            .iter()
            .map(|span| span.replace("\"traceID\":\"t\"", &format!("\"traceID\":\"t{number}\"")))
            .collect::<Vec<_>>()
    };
    let spans: Vec<String> = (0..21)
        .flat_map(|number| trace(number, if number % 2 == 0 { 0 } else { 3 }))
        .collect();
    let (graph, _) = graph(&jaeger(&spans));
    let request = &graph.requests[0];
    assert!((request.rate_per_s - 10.5).abs() < 1e-6, "{}", request.rate_per_s);
    assert_eq!((request.traces, request.calls[1].repeats), (21, 3.0));
    assert!((request.calls[1].probability - 10.0 / 21.0).abs() < 1e-5);
}

#[test]
fn otlp_is_read_whole_or_by_lines_with_provosts_sizes() {
    let span = |id: &str, parent: &str, kind: &str, start: u64, end: u64| {
        format!(
            r#"{{"traceId":"aa","spanId":"{id}","parentSpanId":"{parent}","name":"kv.Kv/Get","kind":{kind},"startTimeUnixNano":"{start}",
            "endTimeUnixNano":"{end}","attributes":[{{"key":"rpc.system.name","value":{{"stringValue":"provost"}}}},
            {{"key":"provost.request.bytes","value":{{"intValue":"64"}}}},{{"key":"provost.response.bytes","value":{{"intValue":"4096"}}}}]}}"#
        )
        .replace('\n', " ")
    };
    let resource = |service: &str, spans: &str| {
        format!(
            r#"{{"resourceSpans":[{{"resource":{{"attributes":[{{"key":"service.name","value":{{"stringValue":"{service}"}}}}]}},"scopeSpans":[{{"spans":[{spans}]}}]}}]}}"#
        )
    };
    let client = resource(
        "shop",
        &span(
            "01",
            "",
            "3",
            1_700_000_000_000_000_000,
            1_700_000_000_000_500_000,
        ),
    );
    let server = resource(
        "kv",
        &span(
            "02",
            "01",
            "\"SPAN_KIND_SERVER\"",
            1_700_000_000_000_100_000,
            1_700_000_000_000_400_000,
        ),
    );
    let (graph, report) = graph(&format!("{client}\n{server}\n"));
    assert_eq!(report.spans, 2);
    let call = &graph.requests[0].calls[1];
    assert_eq!((call.to.as_str(), call.protocol), ("kv", Protocol::Provost));
    assert_eq!(
        (call.request_bytes, call.response_bytes),
        (Amount::Fixed(64.0), Amount::Fixed(4096.0))
    );
    assert_eq!(
        (call.app_us, call.network_us),
        (Amount::Fixed(300.0), Amount::Fixed(200.0))
    );
}

#[test]
fn alibabas_rows_are_nested_by_their_ids_and_counted_once() {
    let text = "\
,traceid,timestamp,rpcid,um,rpctype,dm,interface,rt
0,t1,1000,0,USER,http,front,i0,50
1,t1,1010,0.1,front,rpc,left,i1,20
2,t1,1011,0.1,front,rpc,left,i1,-18
3,t1,1012,0.1.1,left,mc,cache,i2,1
4,t1,1030,0.2,front,mq,queue,i3,5
5,t1,1035,0.3,front,rpc,(?),i4,5
6,t2,2000,0.1,front,rpc,left,i1,7
";
    let (graph, report) = graph(text);
    assert_eq!(report.traces, 2);
    assert_eq!(report.adjusted.values().sum::<u64>(), 2, "{report:?}");
    assert_eq!(report.unused.values().sum::<u64>(), 1);
    let calls = &graph
        .requests
        .iter()
        .find(|request| request.calls.len() == 4)
        .unwrap()
        .calls;
    let of = |name: &str| calls.iter().find(|call| call.to == name).unwrap();
    assert_eq!(
        (of("cache").from.as_str(), of("cache").protocol),
        ("left", Protocol::Tcp)
    );
    assert!(of("queue").detached);
    assert_eq!(of("left").app_us, Amount::Fixed(19_000.0));
}

#[test]
fn nezhas_rows_name_pods() {
    let text = "\
TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano,Duration
t,1,root,gateway-6f6cfc45b-d9pnv,/*,1675078742856000000,1675078742887000000,31000
t,2,1,gateway-6f6cfc45b-d9pnv,HTTP GET,1675078742858000000,1675078742886000000,28000
t,3,2,orders-774f544d9-tmwcv,/api,1675078742860000000,1675078742885000000,25000
";
    let (graph, _) = graph(text);
    let calls = &graph.requests[0].calls;
    assert_eq!(
        (calls[0].to.as_str(), calls[1].to.as_str()),
        ("gateway", "orders")
    );
    assert_eq!(
        (calls[1].app_us, calls[1].network_us),
        (Amount::Fixed(25_000.0), Amount::Fixed(3_000.0))
    );
}

#[test]
fn other_texts_are_refused_with_their_place() {
    assert_eq!(TraceFormat::guess("hello"), None);
    let error = |text: &str, format| read(text, format).unwrap_err().to_string();
    assert!(error("{\"data\": [1", TraceFormat::Jaeger).starts_with("line 1"));
    assert!(error("traceid,rpcid\n", TraceFormat::Alibaba).contains("no column \"timestamp\""));
    assert!(error("{}\n{\"resourceSpans\": 1}", TraceFormat::Otlp).starts_with("line 2"));
    let mut empty = assemble(read("{}", TraceFormat::Otlp).unwrap());
    assert_eq!(
        merge(&mut empty, &MergeOptions::default()),
        Err(MergeError::Empty)
    );
}

#[test]
fn a_span_that_takes_years_has_a_wrong_time() {
    let mut spans = page();
    spans.push(jaeger_span("8", "1", "c", "server", 1500, 1_000_000_000_000_000));
    let (_, report) = graph(&jaeger(&spans));
    assert!(
        report.unused.contains_key("spans that take longer than a day"),
        "{report:?}"
    );
}

#[test]
fn a_chain_of_spans_without_end_does_not_overflow_the_stack() {
    let mut text = String::from(
        "TraceID,SpanID,ParentID,PodName,OperationName,StartTimeUnixNano,EndTimeUnixNano,Duration\n",
    );
    for at in 0..20_000 {
        let parent = if at == 0 {
            "root".to_owned()
        } else {
            (at - 1).to_string()
        };
        text += &format!("t,{at},{parent},s{},op,1000,9000,8\n", at % 3);
    }
    let (graph, report) = graph(&text);
    assert!(
        report.unused.keys().any(|reason| reason.contains("too deep")),
        "{report:?}"
    );
    assert_eq!(graph.requests.len(), 1);
}
