//! What the patterns of `access` cost in memory: once, and not for each method of each connection.
#![cfg(not(loom))]

use provost_allocations::{CountingAllocator, live_bytes_of_process};
use provost_engine::Side;
use provost_engine::rig::{Service, policy};
use provost_policies::kind;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const PROTO: &str = "syntax = 'proto3'; package t; message M {}
    service S { rpc A(M) returns (M); rpc B(M) returns (M); rpc C(M) returns (M); rpc D(M) returns (M); }";
const CONFIG: &str = r#"
default = "deny"
[[rule]]
name = "words"
when = 'metadata["user"].matches("^\\w{6}$")'
action = "allow"
"#;

#[test]
fn another_connection_compiles_no_pattern_again() {
    let service = Service::from_source(PROTO);
    let policy = policy(&*kind("access").unwrap(), CONFIG, None).unwrap();
    let mut kept = Vec::new();
    let mut bytes = |runtime: usize| {
        let mut datapath_context = service.datapath_context(Side::Client);
        datapath_context.runtime = runtime;
        let before = live_bytes_of_process();
        kept.push(policy.prepare(&datapath_context).unwrap());
        live_bytes_of_process() - before
    };
    let first = bytes(0);
    assert!(first > 20_000, "the pattern takes {first} bytes");
    // The same runtime, and another one.
    for runtime in [0, 0, 1, 1] {
        let more = bytes(runtime);
        assert!(more < 10_000, "{more} bytes after {first}");
    }
}
