//! The data path allocates nothing: counted over every thread of two nodes while calls go through them.

mod support;

use std::time::Instant;

use provost_allocations::{CountingAllocator, made_by_process};
use provost_wire::descriptor::{Completion, Parts, Submission, completion_kind, submission_kind};
use support::*;

/// Calls before counting begins: tables and pools have grown to what the traffic needs.
const WARM_UP_CALLS: u64 = 4000;
/// Calls that are counted at a time.
const CALLS: u64 = 10_000;
/// How often they are counted, at most.
const ROUNDS_MAX: usize = 5;
/// Calls in flight while they are counted, and before: what bursts take is taken by then.
const IN_FLIGHT: u64 = 16;
/// See [`IN_FLIGHT`].
const WARM_UP_IN_FLIGHT: u64 = 60;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

struct Traffic {
    server: TestApp,
    client: TestApp,
    connection: u32,
    request: u32,
    answer: u32,
    requests: Vec<Completion>,
}

impl Traffic {
    fn new(mut server: TestApp, mut client: TestApp, data: &[u8]) -> Traffic {
        server.bind();
        let connection = client.connect();
        let request = client.write_note(0, 1, "request", data);
        let answer = server.write_note(0, 2, "answer", data);
        Traffic {
            server,
            client,
            connection,
            request,
            answer,
            requests: Vec::with_capacity(64),
        }
    }

    /// Carries out calls, with deadlines, so many at a time.
    fn run(&mut self, calls: u64, in_flight: u64) {
        let until = Instant::now() + 4 * WAIT_MAX;
        let (mut begun, mut ended) = (0, 0);
        while ended < calls {
            assert!(Instant::now() < until, "{ended} of {begun} calls ended");
            while begun < calls && begun - ended < in_flight {
                self.begin();
                begun += 1;
            }
            self.serve();
            while let Some(completion) = self.client.poll() {
                if completion.kind == completion_kind::STEP {
                    assert_eq!(completion.parts, Parts::MESSAGE | Parts::STATUS);
                    self.client.reclaim(completion.block);
                    ended += 1;
                }
            }
            std::thread::yield_now();
        }
    }

    fn begin(&mut self) {
        let call = self.client.new_call();
        self.client.submit(Submission {
            kind: submission_kind::STEP,
            parts: Parts::BEGIN | Parts::MESSAGE | Parts::END,
            connection: self.connection,
            call,
            root: self.request,
            token: call,
            deadline_ns: deadline_in(WAIT_MAX),
            ..Submission::default()
        });
    }

    fn serve(&mut self) {
        while let Some(completion) = self.server.poll() {
            if completion.kind == completion_kind::STEP {
                self.server.reclaim(completion.block);
                self.requests.push(completion);
            }
        }
        while let Some(request) = self.requests.pop() {
            self.server.answer(&request, self.answer);
        }
    }

    /// The least of some rounds: on a machine that is busy with other work a round takes long enough for what nodes do now and then,
    /// such as giving freed memory back. What calls allocate, they allocate in each.
    fn allocations_of_warm_calls(mut self) -> u64 {
        self.run(WARM_UP_CALLS, WARM_UP_IN_FLIGHT);
        let mut of_round = || {
            let before = made_by_process();
            self.run(CALLS, IN_FLIGHT);
            made_by_process() - before
        };
        let mut least = of_round();
        for _ in 1..ROUNDS_MAX {
            if least == 0 {
                break;
            }
            least = least.min(of_round());
        }
        least
    }
}

/// One test, so that no other's allocations are counted.
#[test]
fn warm_calls_allocate_nothing() {
    for data in [&[1; 32][..], &[1; 20_000]] {
        let far = TestNode::start_with(|config| config.policies = vec!["null".into()]);
        let near = TestNode::start_routed_to(&far);
        let traffic = Traffic::new(TestApp::attach(&far), TestApp::attach(&near), data);
        let counted = traffic.allocations_of_warm_calls();
        assert_eq!(counted, 0, "over TCP, {} bytes, {CALLS} calls", data.len());

        let node = TestNode::start_with(|config| config.runtime.threads = 2);
        let traffic = Traffic::new(TestApp::attach(&node), TestApp::attach(&node), data);
        let counted = traffic.allocations_of_warm_calls();
        assert_eq!(counted, 0, "on one node, {} bytes, {CALLS} calls", data.len());
    }
}
