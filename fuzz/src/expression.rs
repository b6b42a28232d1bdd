//! Targets of the access policy: its expressions and its value lists.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use prost_reflect::Value;
use provost_datapath::Body;
use provost_engine::rig::Service;
use provost_engine::{DatapathContext, Side};
use provost_marshal::View;
use provost_policies::access::expression::{Inputs, Scope, Source, Val};
use provost_policies::access::{ListType, ValueList};

const PROTO: &str = r#"
syntax = "proto3";
package fuzz;
enum Color { NONE = 0; RED = 1; }
message Part { string name = 1; uint32 count = 2; repeated string tags = 3; Color color = 4; }
message Whole {
  string id = 1; int64 total = 2; uint64 size = 3; bool on = 4; double weight = 5; bytes token = 6; Color color = 7;
  Part first = 8; repeated Part parts = 9; repeated string tags = 10; repeated int64 numbers = 11;
  map<string, string> labels = 12; map<int64, Part> by_id = 13; optional string note = 14;
  oneof pay { string card = 15; Part voucher = 16; }
}
service Fuzz { rpc Do(Whole) returns (Part); }
"#;

struct Subject {
    datapath_context: DatapathContext,
    scope: Scope,
    native: Vec<u8>,
}

fn subject() -> &'static Subject {
    static SUBJECT: OnceLock<Subject> = OnceLock::new();
    SUBJECT.get_or_init(|| {
        let service = Service::from_source(PROTO);
        let datapath_context = service.datapath_context(Side::Client);
        let lists = ValueList::strings(["a", "b"].into_iter()).expect("a short list");
        let lists = BTreeMap::from([("l".to_owned(), Arc::new(lists))]);
        let text = |text: &str| Value::String(text.to_owned());
        let fields = [
            ("id", text("order")),
            ("total", Value::I64(-5)),
            ("tags", Value::List(vec![text("a"), text("é")])),
            ("numbers", Value::List((0..40).map(Value::I64).collect())),
        ];
        let step = service.request(1, 0, &fields);
        let Body::Gathered(body) = step.body else {
            unreachable!("the rig makes gathered bodies");
        };
        Subject {
            scope: Scope::new(&datapath_context, &datapath_context.methods[0], Arc::new(lists)),
            native: body.buffer.into_parts().bytes,
            datapath_context,
        }
    })
}

/// Any text is an expression, which then has a value or none, or an error that can be shown.
pub(crate) fn expression(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let subject = subject();
    let compiled = match Source::parse(text).and_then(|source| source.compile(&subject.scope)) {
        Ok(compiled) => compiled,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error says nothing");
            assert!(error.line >= 1 && error.column >= 1, "an error is nowhere");
            return;
        }
    };
    for native in [&subject.native[..], &[]] {
        let _ = compiled.evaluate(&Inputs {
            tables: &subject.datapath_context.tables,
            metadata: &[],
            message: Some(View::linear(native)),
            protobuf: None,
            is_compressed: false,
            unix_s: i64::from_le_bytes(input.first_chunk().copied().unwrap_or_default()),
        });
    }
}

pub(crate) fn expression_seeds() -> Vec<Vec<u8>> {
    [
        "request.id == 'order' && !(request.total > 3) || request.on ? true : false",
        "request.parts.all(p, p.tags.exists(t, t in lists.l || t.matches('^a+$')))",
        "request.labels['a'] == metadata['user'] && has(request.note) && size(request.tags) > 1",
        "request.by_id[-1].name.startsWith(\"x\\n\") || request.color in ['RED', 'NONE'] || request.color == Color.RED",
        "request.numbers.exists_one(n, n * 2 + 1 == request.total % 7 - -3) && 1.5e3 < request.weight",
        "peer.app.uid == -1 && request.token == b'\\x00' && uint(request.size) / 2u != 0x1fu // why",
        "cidr_contains(request.id, '10.0.0.0/8') || time_between('22:00', '06:00', '+02:00') && weekday() != 'sunday'",
        "cidr_contains(peer.address, '2001:db8::/32') && unix_time() % 60 == 7 && weekday('-05:30').size() > 6",
        "request.numbers.all(a, request.numbers.all(b, request.numbers.all(c, a + b + c >= 0)))",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Any bytes are a list of values, in which its lines are, or an error that can be shown.
pub(crate) fn value_list(input: &[u8]) {
    for holds in [ListType::String, ListType::Int] {
        match ValueList::parse(holds, input) {
            Ok(list) => {
                let lines = input.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
                let values = lines.filter(|line| !line.is_empty() && !line.starts_with(b"#"));
                for value in values.filter_map(|line| std::str::from_utf8(line).ok()) {
                    let is_there = match holds {
                        ListType::String => list.contains(&Val::String(value)),
                        ListType::Int => value.parse().is_ok_and(|value| list.contains(&Val::Int(value))),
                    };
                    assert!(is_there, "a line is not in the list");
                }
            }
            Err(error) => assert!(!error.to_string().is_empty(), "an error says nothing"),
        }
    }
}

pub(crate) fn value_list_seeds() -> Vec<Vec<u8>> {
    vec![
        b"# comment\nalpha\r\n beta \n\ngamma\nalpha\n".to_vec(),
        b"1\n-2\n9223372036854775807\n-9223372036854775808\n".to_vec(),
    ]
}
