//! Writes the synthetic files that the documentation and the tests use: `cargo run -p provost-insight --example
//! write-examples -- docs/insight`.

use std::fs;
use std::path::PathBuf;

use provost_insight::fit::fit;
use provost_insight::profile::{Component, Protocol};
use provost_insight::synthetic::{SyntheticComponent, SyntheticProxy, synthetic_profile};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("say into which folder")?);
    fs::create_dir_all(&folder)?;
    let mut proxy = SyntheticProxy::example();
    proxy.protocols = vec![Protocol::Tcp, Protocol::Http1, Protocol::Grpc];
    for (proxy, name) in [
        (proxy, "profile-proxy.json"),
        (node_service(), "profile-provost.json"),
    ] {
        let mut profile = synthetic_profile(&proxy, 4, 1);
        // One rate keeps the files short.
        profile.observations.retain(|one| one.load.rate_per_s == 1000.0);
        profile.totals.retain(|one| one.load.rate_per_s == 1000.0);
        profile.fit = Some(fit(&profile)?);
        fs::write(folder.join(name), serde_json::to_string(&profile)? + "\n")?;
    }
    fs::write(folder.join("traces.json"), traces())?;
    Ok(())
}

/// A service on the node that does not parse: made up as well.
fn node_service() -> SyntheticProxy {
    let component = |component, constant, per_byte_us| SyntheticComponent {
        component,
        constant_us: [constant; 5],
        per_byte_us,
        per_large_byte_us: 0.0,
    };
    SyntheticProxy {
        name: "example-node-service".to_owned(),
        protocols: vec![Protocol::Provost],
        components: vec![
            component(Component::Ipc, 2.0, 0.0001),
            component(Component::Wakeup, 3.0, 0.0),
            component(Component::OtherUser, 1.5, 0.0),
            component(Component::Write, 1.0, 0.0003),
            component(Component::Filter("lua".to_owned()), 1.0, 0.0),
        ],
        noise: 0.05,
        repetition_noise: 0.03,
    }
}

/// Forty requests for a page of a shop, in Jaeger's layout: stock and price at once, then now and then reviews.
fn traces() -> String {
    let mut traces = Vec::new();
    for number in 0..40_i64 {
        let at = 1_700_000_000_000_000 + number * 50_000;
        let late = number % 7 * 20;
        let mut spans = vec![span(
            number,
            "1",
            "",
            "shop",
            "GET /page",
            "server",
            at,
            2400 + late,
            [320, 18_000],
        )];
        spans.extend(call(
            number,
            "2",
            "stock",
            "stock.Stock/Get",
            at + 200,
            700 + late,
            [90, 600],
        ));
        spans.extend(call(
            number,
            "4",
            "price",
            "price.Price/Get",
            at + 210,
            500,
            [60, 120],
        ));
        if number % 4 == 0 {
            spans.extend(call(
                number,
                "6",
                "reviews",
                "reviews.Reviews/List",
                at + 1000 + late,
                900,
                [70, 5_200],
            ));
        }
        traces.push(format!(
            "{{\"traceID\":\"{number:x}\",\"spans\":[\n{}],\n\"processes\":{{{}}}}}",
            spans.join(",\n"),
            ["shop", "stock", "price", "reviews"]
                .map(|name| format!("\"{name}\":{{\"serviceName\":\"{name}\"}}"))
                .join(",")
        ));
    }
    format!(
        "{{\"comment\":\"SYNTHETIC: made up for the documentation\",\"data\":[{}]}}\n",
        traces.join(",\n")
    )
}

/// The spans of a call by `shop`: its own, and the callee's within.
fn call(
    trace: i64,
    id: &str,
    service: &str,
    operation: &str,
    at: i64,
    took: i64,
    bytes: [u64; 2],
) -> [String; 2] {
    let inner = format!("{id}s");
    [
        span(trace, id, "1", "shop", operation, "client", at, took, bytes),
        span(
            trace,
            &inner,
            id,
            service,
            operation,
            "server",
            at + 40,
            took - 80,
            bytes,
        ),
    ]
}

#[expect(clippy::too_many_arguments, reason = "a span has so many fields")]
fn span(
    trace: i64,
    id: &str,
    parent: &str,
    service: &str,
    operation: &str,
    kind: &str,
    at: i64,
    took: i64,
    [request, response]: [u64; 2],
) -> String {
    let references = match parent {
        "" => String::new(),
        parent => format!("{{\"refType\":\"CHILD_OF\",\"traceID\":\"{trace:x}\",\"spanID\":\"{parent}\"}}"),
    };
    let protocol = if operation.starts_with("GET") {
        "{\"key\":\"http.request.method\",\"value\":\"GET\"}"
    } else {
        "{\"key\":\"rpc.system\",\"value\":\"grpc\"}"
    };
    format!(
        "{{\"traceID\":\"{trace:x}\",\"spanID\":\"{id}\",\"references\":[{references}],\"operationName\":\"{operation}\",\
         \"startTime\":{at},\"duration\":{took},\"processID\":\"{service}\",\"tags\":[{{\"key\":\"span.kind\",\"value\":\"{kind}\"}},\
         {protocol},{{\"key\":\"request_size\",\"value\":{request}}},{{\"key\":\"response_size\",\"value\":{response}}}]}}"
    )
}
