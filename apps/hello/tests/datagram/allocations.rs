//! What a unary call of generated stubs allocates once everything is warm: by the task that makes it, the client's event
//! loop, and the server's with its handler.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use provost::{Received, Request, Response, Status};
use provost_datagram_rpc::RpcThread;
use provost_hello::hello::greeter_client::{GreeterClient, SERVICE};
use provost_hello::hello::greeter_server::{Greeter, GreeterServer};
use provost_hello::hello::{GreetReply, GreetRequest};
use provost_packets::InProcess;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread takes part in the calls of the test; other tests run beside it.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: everything is left to the system's allocator; counting touches no memory that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps to the contract of this very function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract of this very function.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Wakes the test's thread, and counts what the thread that wakes it allocates from then on: it is the client's loop.
struct Counted(Thread);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        IS_COUNTED.set(true);
        self.0.unpark();
    }
}

struct Countable;

impl Greeter for Countable {
    async fn greet(&self, request: Request<Received<GreetRequest>>) -> Result<Response<GreetReply>, Status> {
        // Handlers run in the server's loop.
        IS_COUNTED.set(true);
        Ok(Response::new(GreetReply {
            text: request.get_ref().name.as_str().into(),
        }))
    }
}

fn run<F: Future>(waker: &Waker, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

const WARM_UP_CALLS: u64 = 2_000;
/// Calls are counted in so many runs of so many. An endpoint that was off its core for long makes good what it took for
/// lost, with memory of its own; there is a run without that.
const RUNS: u64 = 250;
/// More than the queues in use would take to need another block.
const RUN_CALLS: u64 = 40;

#[test]
fn a_unary_call_allocates_nothing_once_everything_is_warm() {
    IS_COUNTED.set(true);
    let waker = Waker::from(Arc::new(Counted(std::thread::current())));
    let (near, far) = InProcess::pair(1500, 1024);
    let near = RpcThread::builder().start(near).unwrap();
    let server = RpcThread::builder().add_service(GreeterServer::new(Countable));
    let _far = server.start(far).unwrap();
    let client = GreeterClient::new(run(&waker, near.channel(&SERVICE, 1)).unwrap());
    let call = || {
        let reply = run(&waker, client.greet(GreetRequest { name: "Ann".into() })).unwrap();
        assert_eq!(reply.get_ref().text, "Ann");
    };
    (0..WARM_UP_CALLS).for_each(|_| call());
    assert!(
        ALLOCATIONS.load(Ordering::SeqCst) > 0,
        "all that there is was allocated, and counted"
    );
    let runs = (0..RUNS).map(|_| {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (0..RUN_CALLS).for_each(|_| call());
        ALLOCATIONS.load(Ordering::SeqCst) - before
    });
    let mut runs: Vec<u64> = runs.collect();
    runs.sort_unstable();
    println!("allocations in {RUN_CALLS} calls: {runs:?}");
    assert_eq!(runs[0], 0, "allocations in the least of the runs");
}
