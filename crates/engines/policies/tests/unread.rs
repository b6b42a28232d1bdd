//! Policies that read no field look into no message: behind them a compressed one has no plain copy, and what is no message of the
//! schema passes.
#![cfg(not(loom))]

use provost_datapath::PrivateBytes;
use provost_engine::rig::{Rig, Service, policy, protobuf_of, with_compressed, with_metadata, with_protobuf};
use provost_engine::{Side, Step};
use provost_policies::kind;

const PROTO: &str = "syntax = 'proto3'; package test;
    service Shop { rpc Buy(Order) returns (Order); }
    message Order { string user = 1; uint64 item = 2; }";
/// A user and an item.
const ORDER: &[u8] = &[0x0a, 3, b'a', b'n', b'n', 0x10, 7];
/// The length of the only field is longer than what follows.
const MALFORMED: &[u8] = &[0x0a, 9, b'a'];
const PLAIN_BYTES_MAX: u32 = 1 << 10;

/// Each kind, configured so that it looks at every call.
const UNREAD: [(&str, &str); 6] = [
    ("null", ""),
    ("qos", ""),
    ("rate-limit", "requests_per_second = 100\nburst = 10"),
    (
        "access",
        "default = \"deny\"\n[[rule]]\nname = \"known\"\naction = \"allow\"\nwhen = \"'user' in metadata && size(method) > 0\"",
    ),
    ("fault", "[abort]\npercentage = 0"),
    ("fault", "[match]\nuser = 'bob'\n[abort]\npercentage = 100"),
];

fn request(service: &Service) -> Step {
    with_metadata(service.request(1, 0, &[]), &[("user", "ann")])
}

/// What comes out of a policy of what goes in, in either direction.
fn passed(service: &Service, name: &str, text: &str, request: Step, response: Step) -> [Step; 2] {
    let policy = policy(&*kind(name).unwrap(), text, None).unwrap();
    let mut rig = Rig::new(service.datapath_context(Side::Client), &*policy);
    rig.send(request);
    rig.poll();
    let sent = rig.to_wire().pop();
    rig.receive(response);
    rig.poll();
    let received = rig.to_app().pop();
    let what = format!("{name}: {text}");
    [sent.expect(&what), received.expect(&what)]
}

#[test]
fn policies_that_read_no_field_make_no_plain_copies() {
    let service = Service::from_source(PROTO);
    let share = PrivateBytes::of_attachment(&PrivateBytes::of_node());
    let compressed = |step| with_compressed(step, ORDER, PLAIN_BYTES_MAX, &share);
    for (name, text) in UNREAD {
        let (request, response) = (
            compressed(request(&service)),
            compressed(service.response(1, 0, &[])),
        );
        let held = share.held();
        let steps = passed(&service, name, text, request, response);
        for step in &steps {
            assert_eq!(protobuf_of(step), None, "{name}: {text}");
        }
        assert_eq!(share.held(), held, "{name}: {text}");
    }
    // One that reads a field has to.
    let by_field = "default = \"deny\"\n[[rule]]\nname = \"known\"\naction = \"allow\"\nwhen = \"request.user == 'ann'\"";
    let (request, response) = (
        compressed(request(&service)),
        compressed(service.response(1, 0, &[])),
    );
    let [sent, _] = passed(&service, "access", by_field, request, response);
    assert_eq!(protobuf_of(&sent), Some(ORDER));
}

#[test]
fn what_is_no_message_passes_policies_that_read_no_field() {
    let service = Service::from_source(PROTO);
    for (name, text) in UNREAD {
        let malformed = |step| with_protobuf(step, MALFORMED);
        let (request, response) = (
            malformed(request(&service)),
            malformed(service.response(1, 0, &[])),
        );
        for step in passed(&service, name, text, request, response) {
            assert_eq!(protobuf_of(&step), Some(MALFORMED), "{name}: {text}");
        }
    }
}
