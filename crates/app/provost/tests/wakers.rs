//! What waits holds the waker of its last poll, and none of those before: executors may bring another one each time.

mod support;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{Thread, ThreadId};
use std::time::Duration;

use provost::blocking::block_on;
use provost::codegen::Stream;
use provost::{App, Channel, Code, Request, Server, StreamSender};
use support::{Note, Notes, NotesClient, World, eventually};

/// Wakers that may be alive at a time: a server's own places keep the last that they were polled with.
const ALIVE_MAX: usize = 8;

struct UnparkThread(Thread);

impl Wake for UnparkThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future with a new waker each time until `is_over`; the most wakers that were alive after a poll, and how often it polled.
fn poll_with_new_wakers(future: impl Future, is_over: impl Fn() -> bool) -> (usize, usize) {
    let mut future = pin!(future);
    let (mut wakers, mut alive_max, mut polls) = (Vec::<Weak<UnparkThread>>::new(), 0, 0);
    while !is_over() {
        let waker = Arc::new(UnparkThread(std::thread::current()));
        wakers.push(Arc::downgrade(&waker));
        let polled = future
            .as_mut()
            .poll(&mut Context::from_waker(&Waker::from(waker)));
        assert!(polled.is_pending(), "it ended");
        wakers.retain(|waker| waker.strong_count() > 0);
        alive_max = alive_max.max(wakers.len());
        polls += 1;
        std::thread::park_timeout(Duration::from_micros(200));
    }
    (alive_max, polls)
}

#[test]
fn a_server_keeps_no_wakers_of_earlier_polls() {
    let world = World::empty();
    let app = world.app();
    let is_over = AtomicBool::new(false);
    let (alive, polls) = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let serving = Server::builder().app(&app).add_service(Notes::default()).serve();
            poll_with_new_wakers(serving, || is_over.load(Ordering::Relaxed))
        });
        let client = connected(&world.app());
        for number in 0..300 {
            block_on(client.echo(Note::new(number, ""))).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        server.join().unwrap()
    });
    assert!(
        polls > 100 && alive <= ALIVE_MAX,
        "{alive} wakers after {polls} polls"
    );
}

#[test]
fn a_channel_keeps_no_wakers_of_who_asks_for_its_state() {
    let world = World::new();
    let client = connected(&world.app());
    let channel = &client.channel;
    let polls = std::cell::Cell::new(0);
    let enough = || {
        polls.set(polls.get() + 1);
        polls.get() > 100
    };
    let (alive, _) = poll_with_new_wakers(channel.state_changed(channel.state()), enough);
    assert_eq!(alive, 1);
}

/// A waker that is the owner of its task, and so of what that has, as those of executors are that keep a waiting task nowhere else.
struct OwnerOfTask {
    _task: Mutex<StreamSender<u32>>,
}

impl Wake for OwnerOfTask {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_may_be_the_last_owner_of_the_other_end() {
    let (sender, mut stream) = provost::stream(1);
    let mut poll = |waker: Waker| Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker));
    let owner = OwnerOfTask {
        _task: Mutex::new(sender),
    };
    assert_eq!(poll(Arc::new(owner).into()), Poll::Pending);
    // The stream has gone to another task, and the first one with its waker.
    assert_eq!(poll(Waker::noop().clone()), Poll::Pending);
    assert_eq!(poll(Waker::noop().clone()), Poll::Ready(None));
}

/// A waker that is the owner of a task which looks at a channel when it is dropped.
struct LooksWhenDropped(Channel);

impl Wake for LooksWhenDropped {
    fn wake(self: Arc<Self>) {}
}

impl Drop for LooksWhenDropped {
    fn drop(&mut self) {
        let _ = self.0.state();
    }
}

#[test]
fn a_waker_may_look_at_the_channel_when_it_is_dropped() {
    let world = World::new();
    let channel = connected(&world.app()).channel;
    let mut changed = pin!(channel.state_changed(channel.state()));
    let looks = Waker::from(Arc::new(LooksWhenDropped(channel.clone())));
    for waker in [looks, Waker::noop().clone()] {
        assert!(
            changed
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
}

/// A waker that panics, but where the task is polled.
struct PanicsElsewhere {
    polled_by: ThreadId,
    panics: AtomicBool,
}

impl Wake for PanicsElsewhere {
    fn wake(self: Arc<Self>) {
        if std::thread::current().id() != self.polled_by {
            self.panics.store(true, Ordering::SeqCst);
            panic!("as the test wants it");
        }
    }
}

#[test]
fn a_waker_that_panics_ends_no_thread_of_the_library() {
    let world = World::new();
    let client = connected(&world.app());
    let hanging = |timeout| {
        let mut request = Request::new(Note::new(0, "hang"));
        request.set_timeout(timeout);
        client.echo(request)
    };
    let waker = Arc::new(PanicsElsewhere {
        polled_by: std::thread::current().id(),
        panics: AtomicBool::new(false),
    });
    let mut call = pin!(hanging(Duration::from_millis(200)));
    let polled = call
        .as_mut()
        .poll(&mut Context::from_waker(&Waker::from(waker.clone())));
    assert!(polled.is_pending());
    eventually("the waker is woken", || waker.panics.load(Ordering::SeqCst));
    let status = block_on(hanging(Duration::from_millis(50))).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(block_on(call).unwrap_err().code(), Code::DeadlineExceeded);
}

fn connected(app: &App) -> NotesClient {
    let mut client = None;
    eventually("a client connects", || {
        client = block_on(NotesClient::connect(app)).ok();
        client.is_some()
    });
    client.unwrap()
}
