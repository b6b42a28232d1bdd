//! A node that ends gives back what it took: counted over nodes that start, carry calls under policies of all kinds, are
//! changed, and end, one after the other in one process.
//!
//! What is counted is what was allocated and not freed. The resident memory of such a process grows all the same, from 37
//! to 62 MB over 60 nodes: glibc gives every few threads an arena of their own and keeps what is freed in it. With
//! `MALLOC_ARENA_MAX=1` it stays at 30 MB.

mod support;

use std::time::{Duration, Instant};

use provost_allocations::{CountingAllocator, live_bytes_of_process};
use provostd::policies::{Attachment, Change, Mode, Position, Registry, Upgrade};
use support::*;

/// Nodes before the count begins: what is made once for the process is there then.
const WARM_UP: usize = 4;
/// Nodes over which it is counted.
const NODES: usize = 8;
const CALLS: u64 = 100;
/// What each may leave behind, in bytes: far below anything that a node has one of, such as a runtime, an app, a connection.
const LEFT_BYTES_MAX: i64 = 4 << 10;
/// How long what there is is looked at before it counts.
const SETTLING: Duration = Duration::from_secs(3);
/// Kinds whose configuration has a default.
const KINDS: [&str; 7] = ["null", "metrics", "rate-limit", "tap", "qos", "fault", "tracing"];

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn lives_and_ends() {
    let node = TestNode::start_with_kinds(|_| {}, Registry::with_built_ins());
    let (mut server, mut client) = (TestApp::attach(&node), TestApp::attach(&node));
    server.bind();
    let connection = client.connect();
    for kind in KINDS {
        let attachment = Attachment {
            name: kind.to_owned(),
            ..Attachment::of_kind(kind)
        };
        let change = Change::Attach {
            attachment,
            at: Position::Last,
        };
        node.node.change(change, Mode::Apply).unwrap();
    }
    carry(&mut server, &mut client, connection);
    for _ in 0..2 {
        let upgrade = Upgrade {
            kind: "rate-limit".into(),
            version: Some(2),
            policy: None,
            reach: provostd::policies::Reach::All,
        };
        node.node.change(Change::Upgrade(upgrade), Mode::Apply).unwrap();
    }
    carry(&mut server, &mut client, connection);
}

fn carry(server: &mut TestApp, client: &mut TestApp, connection: u32) {
    let request = client.write_note(0, 1, "request", &[7; 3000]);
    let answer = server.write_note(0, 2, "answer", &[8; 5000]);
    for _ in 0..CALLS {
        client.begin(connection, request);
        let call = server.next_step();
        server.reclaim(call.block);
        server.answer(&call, answer);
        let end = client.next_step();
        client.reclaim(end.block);
    }
}

/// What the process has of what a node takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    bytes: i64,
    descriptors: usize,
    /// Mappings of memory that is shared with apps.
    mappings: usize,
}

impl Held {
    fn now() -> Held {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        Held {
            bytes: live_bytes_of_process(),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            mappings: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        }
    }

    /// The least that there is for some time: threads of exporters end on their own.
    fn settled() -> Held {
        let until = Instant::now() + SETTLING;
        let mut least = Held::now();
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            let now = Held::now();
            if now.bytes < least.bytes {
                least = now;
            }
        }
        least
    }
}

#[test]
fn a_node_that_ends_gives_back_what_it_took() {
    (0..WARM_UP).for_each(|_| lives_and_ends());
    let before = Held::settled();
    (0..NODES).for_each(|_| lives_and_ends());
    let bytes_max = before.bytes + NODES as i64 * LEFT_BYTES_MAX;
    let mut after = Held::now();
    let until = Instant::now() + WAIT_MAX;
    while (after.bytes > bytes_max || after.descriptors > before.descriptors) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        after = Held::now();
    }
    println!("{before:?}; {NODES} nodes later {after:?}");
    assert!(
        after.bytes <= bytes_max,
        "{before:?}; {NODES} nodes later {after:?}"
    );
    assert!(
        after.descriptors <= before.descriptors && after.mappings <= before.mappings,
        "{before:?}; {NODES} nodes later {after:?}"
    );
}
