//! The cases, and what they have in common.

mod calls;
mod flow;
mod trouble;

use provost_datapath::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::harness::{Bench, Event};
use crate::{Content, HotRestarts, Pair, Sides, content_bytes};

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// Which transports must pass it.
    pub reach: Reach,
    run: fn(&dyn Fn() -> Pair),
}

/// Which transports must pass a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    Any,
    /// Those whose peer is another node: it may do anything, so they keep the rules of calls themselves. Between two
    /// datapaths of one node both frontends do that.
    OtherNode,
}

const fn case(name: &'static str, reach: Reach, run: fn(&dyn Fn() -> Pair)) -> Case {
    Case { name, reach, run }
}

pub const CASES: &[Case] = &[
    case(
        "a unary call with metadata and a deadline",
        Reach::Any,
        calls::unary,
    ),
    case(
        "streams in each direction and in both",
        Reach::Any,
        calls::streams,
    ),
    case(
        "every status code, with and without a message",
        Reach::Any,
        calls::statuses,
    ),
    case("messages of every size at the edges", Reach::Any, calls::sizes),
    case("messages of 8 MB both ways", Reach::Any, calls::large),
    case("the order of steps within a call", Reach::Any, calls::order),
    case("ten thousand calls in flight", Reach::Any, calls::ten_thousand),
    case("small calls beside a large one", Reach::Any, flow::fairness),
    case("a stream obeys its window", Reach::Any, flow::window),
    case(
        "a window that is not heeded holds the stream, not the others",
        Reach::OtherNode,
        flow::held,
    ),
    case(
        "a stream's status waits behind messages that wait for its window",
        Reach::OtherNode,
        flow::held_status,
    ),
    case(
        "an app that does not read stops its peer, and nothing is lost",
        Reach::Any,
        flow::back_pressure,
    ),
    case(
        "cancelled at every moment by the client",
        Reach::Any,
        trouble::cancelled_by_client,
    ),
    case(
        "cancelled at every moment by the server",
        Reach::OtherNode,
        trouble::cancelled_by_server,
    ),
    case(
        "a full receive heap fails the call, not the connection",
        Reach::OtherNode,
        trouble::heap_full,
    ),
    case(
        "the server's node is gone",
        Reach::OtherNode,
        trouble::server_gone,
    ),
    case(
        "the client's node is gone",
        Reach::OtherNode,
        trouble::client_gone,
    ),
    case("the server drains", Reach::OtherNode, trouble::server_drains),
    case("a node closes its end", Reach::OtherNode, trouble::closed),
    case(
        "a step that makes no sense ends its call alone",
        Reach::OtherNode,
        trouble::senseless_step,
    ),
    case(
        "a message over the limit ends its call alone",
        Reach::OtherNode,
        trouble::over_the_limit,
    ),
];

/// Puts a transport to another node through all cases.
pub fn run(make_pair: impl Fn() -> Pair) {
    for case in CASES {
        run_case(case, &make_pair);
    }
}

/// The sides that are replaced, one set after the other.
const SIDES: [Sides; 4] = [Sides::Client, Sides::Server, Sides::Either, Sides::Both];

/// Puts a transport to another node through all cases while its engines are replaced again and again, in their own
/// process and in others, and while hot restarts fail.
pub fn run_with_hot_restarts(seed: u64, make_pair: impl Fn() -> Pair) {
    for case in CASES {
        run_case_with_hot_restarts(case, seed, &make_pair);
    }
}

/// The same for a transport within one node.
pub fn run_within_node_with_hot_restarts(seed: u64, make_pair: impl Fn() -> Pair) {
    for case in CASES.iter().filter(|case| case.reach == Reach::Any) {
        run_case_with_hot_restarts(case, seed, &make_pair);
    }
}

fn run_case_with_hot_restarts(case: &Case, seed: u64, make_pair: &dyn Fn() -> Pair) {
    for (at, sides) in SIDES.into_iter().enumerate() {
        println!("with hot restarts of {sides:?}, seed {seed}");
        run_case(case, &|| Pair {
            hot_restarts: Some(HotRestarts::new(seed + at as u64, sides)),
            ..make_pair()
        });
    }
}

/// Puts a transport within one node through the cases that it must pass.
pub fn run_within_node(make_pair: impl Fn() -> Pair) {
    for case in CASES.iter().filter(|case| case.reach == Reach::Any) {
        run_case(case, &make_pair);
    }
}

/// Puts a transport through one case.
pub fn run_case(case: &Case, make_pair: &dyn Fn() -> Pair) {
    println!("conformance: {}", case.name);
    (case.run)(make_pair);
}

/// The whole request of a unary call.
pub(crate) const REQUEST: Parts = Parts(Parts::BEGIN.0 | Parts::MESSAGE.0 | Parts::END.0);
/// The whole response of a unary call.
pub(crate) const RESPONSE: Parts = Parts(Parts::MESSAGE.0 | Parts::STATUS.0);

pub(crate) fn begin(call: u64, method: u16, parts: Parts) -> Step {
    Step {
        method,
        ..Step::new(call, parts)
    }
}

pub(crate) fn status(call: u64, parts: Parts, status: Code) -> Step {
    Step {
        status,
        ..Step::new(call, parts)
    }
}

pub(crate) fn window(call: u64, window_bytes: u32) -> Step {
    Step {
        window_bytes,
        ..Step::new(call, Parts::WINDOW)
    }
}

pub(crate) fn none() -> Content {
    Content::default()
}

impl Bench {
    /// Waits until the server has a step, and takes it.
    pub(crate) fn server_next(&mut self) -> Event {
        self.until("the server gets a step", |bench| !bench.server.events.is_empty());
        self.server.events.remove(0)
    }

    /// Waits until the client has a step, and takes it.
    pub(crate) fn client_next(&mut self) -> Event {
        self.until("the client gets a step", |bench| !bench.client.events.is_empty());
        self.client.events.remove(0)
    }

    /// A small unary call from end to end: the connection works.
    pub(crate) fn works(&mut self, call: u64) {
        self.client
            .send(begin(call, crate::UNARY, REQUEST), &crate::content(call, 100));
        let request = self.server_next();
        assert!(
            request.message == content_bytes(call, 100),
            "{:?} of call {}",
            request.parts,
            request.call
        );
        self.server.send(
            status(request.call, RESPONSE, Code::Ok),
            &crate::content(call + 1, 50),
        );
        let response = self.client_next();
        assert_eq!(
            (response.call, response.parts, response.status),
            (call, RESPONSE, Code::Ok)
        );
        assert!(response.message == content_bytes(call + 1, 50));
    }

    /// Waits until nothing moves and checks that nothing was leaked: every block is free, every token is back.
    pub(crate) fn check_nothing_is_left(mut self) {
        self.client.release();
        self.server.release();
        self.until("all tokens come back", |bench| {
            let back = |node: &crate::Node| node.sent.len() as u64 == node.tokens();
            back(&bench.client) && back(&bench.server)
        });
        self.rounds(50);
        assert_eq!(
            (self.client.heap.live_blocks(), self.server.heap.live_blocks()),
            (0, 0),
            "blocks are leaked"
        );
        for (name, node) in [("client", &mut self.client), ("server", &mut self.server)] {
            assert_eq!(node.events, [], "the {name} got steps that nobody expects");
            let mut tokens = std::mem::take(&mut node.sent);
            tokens.sort_unstable();
            let given: Vec<u64> = (1..=node.tokens()).collect();
            assert_eq!(tokens, given, "each token comes back once to the {name}");
        }
    }
}
