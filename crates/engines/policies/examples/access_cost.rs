//! What access control costs: whole calls through it beside calls through a rule that is always true, expressions
//! alone beside the library's own interpreter, and value lists of a million entries. All in one run.
//!
//!     cargo run --profile dist -p provost-policies --example access_cost
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use cel::objects::{Key, Map};
use cel::{Context, Program};
use provost_datapath::Body;
use provost_engine::cost::{Candidate, is_one_alone, print_calls};
use provost_engine::rig::{Service, policy, with_metadata};
use provost_engine::{Side, Step};
use provost_marshal::View;
use provost_policies::access::expression::{Inputs, STEPS_MAX, Scope, Source, Val};
use provost_policies::access::{ListType, ValueList};

const PROTO: &str = "syntax = 'proto3'; package kv; service Kv { rpc Get(GetRequest) returns (GetReply); } \
    message GetRequest { string key = 1; int64 version = 2; repeated string tags = 3; } message GetReply { bytes value = 1; }";
const KEY: &str = "user/4711/profile";
/// Evaluations of which the average counts, and how often; the quickest of these counts.
const EVALUATIONS: u32 = 20_000;
const ROUNDS: usize = 50;
const EXPRESSIONS: [&str; 6] = [
    "request.key == 'secret'",
    "request.key.startsWith('secret/') || request.version < 0",
    "request.key in ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h']",
    "metadata['x-user'] == 'bob' && request.version > 3",
    "request.key.matches('^secret/[0-9]+$')",
    "request.tags.exists(t, t == 'secret')",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = Service::from_source(PROTO);
    let request = |step: Step| {
        with_metadata(
            step,
            &[("x-user", "ada"), ("traceparent", "00-4bf92f35-00f067aa-01")],
        )
    };
    calls(&service, &request)?;
    if is_one_alone() {
        return Ok(());
    }
    expressions(&service)?;
    lists();
    Ok(())
}

fn calls(service: &Service, request: &dyn Fn(Step) -> Step) -> Result<(), Box<dyn std::error::Error>> {
    let kind = provost_policies::kind("access").ok_or("the kind is built in")?;
    let rule = |when: &str| {
        let values = "[lists.blocked]\nvalues = [\"a\", \"b\"]";
        let text = format!(
            "default = \"allow\"\n[[rule]]\nname = \"r\"\naction = \"deny\"\nwhen = {when:?}\n{values}"
        );
        policy(&*kind, &text, None)
    };
    let mut candidates = vec![
        ("no rule reads anything of a call", rule("app.uid == 7")?),
        (
            "request.key in lists.blocked",
            rule("request.key in lists.blocked")?,
        ),
    ];
    for text in EXPRESSIONS {
        candidates.push((text, rule(text)?));
    }
    let candidates: Vec<Candidate<'_>> = candidates
        .iter()
        .map(|(name, policy)| Candidate {
            name,
            policy: &**policy,
        })
        .collect();
    println!("an access policy, ns for each call (request and response)");
    print_calls(service, request, &candidates);
    Ok(())
}

fn expressions(service: &Service) -> Result<(), Box<dyn std::error::Error>> {
    use prost_reflect::Value;
    let datapath_context = service.datapath_context(Side::Client);
    let fields = [
        ("key", Value::String(KEY.into())),
        ("version", Value::I64(7)),
        (
            "tags",
            Value::List(vec![Value::String("red".into()), Value::String("green".into())]),
        ),
    ];
    let step = with_metadata(service.request(1, 0, &fields), &[("x-user", "ada")]);
    let Body::Gathered(body) = &step.body else {
        return Err("the rig makes gathered bodies".into());
    };
    let (metadata, rest) = body.buffer.bytes.split_at(body.metadata_bytes as usize);
    let inputs = Inputs {
        tables: &datapath_context.tables,
        metadata,
        message: Some(View::linear(
            &rest[metadata.len().next_multiple_of(8) - metadata.len()..],
        )),
        protobuf: None,
        is_compressed: false,
        unix_s: 0,
    };
    let mut context = Context::default();
    context.add_variable_from_value("request", boxed());
    context.add_variable_from_value("metadata", HashMap::from([("x-user", "ada")]));
    let scope = Scope::new(
        &datapath_context,
        &datapath_context.methods[0],
        Arc::new(BTreeMap::new()),
    );
    println!(
        "\nan expression alone, ns (the library's interpreter has its values boxed before, which is not counted)"
    );
    println!("{:64} {:>9} {:>9}", "", "here", "library");
    for text in EXPRESSIONS {
        let compiled = Source::parse(text)?.compile(&scope)?;
        let program = Program::compile(text)?;
        let here = best(|| {
            black_box(compiled.evaluate(black_box(&inputs))).ok();
        });
        let library = best(|| {
            black_box(program.execute(black_box(&context))).ok();
        });
        println!("{text:64} {here:9.1} {library:9.1}");
    }
    let worst = "[1, 2, 3, 4].all(a, [1, 2, 3, 4, 5, 6, 7, 8].all(b, request.tags.all(t, a + b > 0 && t != request.key)))";
    let compiled = Source::parse(worst)?.compile(&scope)?;
    let steps = 4 + 4 * 8 + 4 * 8 * 2;
    let ns = best(|| {
        black_box(compiled.evaluate(black_box(&inputs))).ok();
    });
    let step_ns = ns / f64::from(steps);
    println!(
        "a step of a quantifier: {step_ns:.1}; {STEPS_MAX} of them: {:.0} us",
        step_ns * f64::from(STEPS_MAX) / 1e3
    );
    Ok(())
}

fn boxed() -> cel::Value {
    let text = |text: &str| cel::Value::String(Arc::new(text.to_owned()));
    let key = |name: &str| Key::String(Arc::new(name.to_owned()));
    let map = HashMap::from([
        (key("key"), text(KEY)),
        (key("version"), cel::Value::Int(7)),
        (
            key("tags"),
            cel::Value::List(Arc::new(vec![text("red"), text("green")])),
        ),
    ]);
    cel::Value::Map(Map { map: Arc::new(map) })
}

fn lists() {
    const VALUES: usize = 1_000_000;
    println!("\na list of a million values");
    let keys: Vec<String> = (0..VALUES)
        .map(|at| format!("user/{:08}/p", at * 7919 % 100_000_000))
        .collect();
    let text = keys.join("\n");
    let began = Instant::now();
    let Ok(strings) = ValueList::parse(ListType::String, text.as_bytes()) else {
        return;
    };
    println!(
        "strings of {} bytes: read in {:.0?}",
        keys[0].len(),
        began.elapsed()
    );
    report(
        &strings,
        &keys.iter().map(|key| Val::String(key)).collect::<Vec<_>>(),
    );
    let strangers: Vec<String> = (0..VALUES).map(|at| format!("user/{at:08}/q")).collect();
    report(
        &strings,
        &strangers.iter().map(|key| Val::String(key)).collect::<Vec<_>>(),
    );
    let numbers: Vec<i64> = (0..VALUES as i64).map(|at| at * 7919).collect();
    let Ok(ints) = ValueList::ints(VALUES, numbers.iter().copied().map(Ok)) else {
        return;
    };
    println!("ints");
    report(
        &ints,
        &numbers.iter().map(|number| Val::Int(*number)).collect::<Vec<_>>(),
    );
    report(
        &ints,
        &numbers
            .iter()
            .map(|number| Val::Int(number + 1))
            .collect::<Vec<_>>(),
    );
}

fn report(list: &ValueList, vals: &[Val<'_>]) {
    let mut at = 0_usize;
    let mut found = 0_u64;
    let began = Instant::now();
    for _ in 0..vals.len() {
        // In no order that a cache would like.
        at = (at + 611_953) % vals.len();
        found += u64::from(list.contains(black_box(&vals[at])));
    }
    let ns = began.elapsed().as_nanos() as f64 / vals.len() as f64;
    println!(
        "    {found:7} of {} found, {ns:5.0} ns each, {:.1} bytes for each value",
        vals.len(),
        list.memory_bytes() as f64 / list.len() as f64
    );
}

fn best(mut run: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..EVALUATIONS {
            run();
        }
        best = best.min(began.elapsed().as_nanos() as f64 / f64::from(EVALUATIONS));
    }
    best
}
