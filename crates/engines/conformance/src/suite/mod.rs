//! The cases, and what they have in common.

mod calls;
mod flow;
mod trouble;

use provost_engine::Step;
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::harness::{Bench, Event};
use crate::{Content, Pair, content_bytes};

/// One case of the suite.
#[derive(Clone, Copy)]
pub struct Case {
    /// What it shows.
    pub name: &'static str,
    run: fn(&dyn Fn() -> Pair),
}

/// All cases.
pub const CASES: &[Case] = &[
    Case {
        name: "a unary call with metadata and a deadline",
        run: calls::unary,
    },
    Case {
        name: "streams in each direction and in both",
        run: calls::streams,
    },
    Case {
        name: "every status code, with and without a message",
        run: calls::statuses,
    },
    Case {
        name: "messages of every size at the edges",
        run: calls::sizes,
    },
    Case {
        name: "messages of 8 MB both ways",
        run: calls::large,
    },
    Case {
        name: "the order of steps within a call",
        run: calls::order,
    },
    Case {
        name: "ten thousand calls in flight",
        run: calls::ten_thousand,
    },
    Case {
        name: "small calls beside a large one",
        run: flow::fairness,
    },
    Case {
        name: "a stream obeys its window",
        run: flow::window,
    },
    Case {
        name: "a window that is not heeded holds the stream, not the others",
        run: flow::held,
    },
    Case {
        name: "an app that does not read stops its peer, and nothing is lost",
        run: flow::back_pressure,
    },
    Case {
        name: "cancelled at every moment by the client",
        run: trouble::cancelled_by_client,
    },
    Case {
        name: "cancelled at every moment by the server",
        run: trouble::cancelled_by_server,
    },
    Case {
        name: "a full receive heap fails the call, not the connection",
        run: trouble::heap_full,
    },
    Case {
        name: "the server's node is gone",
        run: trouble::server_gone,
    },
    Case {
        name: "the client's node is gone",
        run: trouble::client_gone,
    },
    Case {
        name: "the server drains",
        run: trouble::server_drains,
    },
    Case {
        name: "a node closes its end",
        run: trouble::closed,
    },
    Case {
        name: "a step that makes no sense ends its call alone",
        run: trouble::senseless_step,
    },
    Case {
        name: "a message over the limit ends its call alone",
        run: trouble::over_the_limit,
    },
];

/// Puts a transport through all cases.
pub fn run(make_pair: impl Fn() -> Pair) {
    for case in CASES {
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
        assert_eq!(request.message, content_bytes(call, 100));
        self.server.send(
            status(request.call, RESPONSE, Code::Ok),
            &crate::content(call + 1, 50),
        );
        let response = self.client_next();
        assert_eq!(
            (response.call, response.parts, response.status),
            (call, RESPONSE, Code::Ok)
        );
        assert_eq!(response.message, content_bytes(call + 1, 50));
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
