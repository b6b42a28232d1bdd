//! Programs, their node and the services that they call start in any order, and channels say whether they are connected.

mod support;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use provost::blocking::block_on;
use provost::{App, CallDefaults, Channel, ChannelState, Code, Readiness, Server, Status};
use support::fake::{BLACK_HOLE, FakeService};
use support::{NOTES, Note, Notes, NotesClient, World, eventually};

/// How long a test waits for what must come.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn lazy_app(socket: &PathBuf) -> App {
    App::builder().socket(socket).attach_lazily().unwrap()
}

/// A channel whose calls wait until it is connected.
fn lazy_channel(app: &App) -> Channel {
    let waiting = CallDefaults::new().readiness(Readiness::Wait).timeout(WAIT_MAX);
    let builder = Channel::builder(&NOTES).app(app).defaults(waiting);
    builder.connect_lazily("").unwrap()
}

async fn echoes(channel: &Channel, number: u64) -> Result<(), Status> {
    let client = NotesClient {
        channel: channel.clone(),
    };
    let response = client.echo(Note::new(number, "hello")).await?;
    assert_eq!(response.get_ref().number, number);
    Ok(())
}

/// A server whose app attaches when it can, until the test ends.
struct LazyServer {
    stop: Arc<AtomicBool>,
    times_ready: Arc<AtomicUsize>,
    thread: Option<JoinHandle<Result<(), Status>>>,
}

impl LazyServer {
    fn start(app: &App) -> LazyServer {
        let (stop, times_ready) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, ready) = (stop.clone(), times_ready.clone());
        let server = Server::builder()
            .app(app)
            .add_service(Notes::default())
            .on_ready(move || {
                ready.fetch_add(1, Ordering::SeqCst);
            });
        let thread = std::thread::spawn(move || {
            server.serve_blocking_with_shutdown(std::future::poll_fn(move |context| {
                if stopped.load(Ordering::SeqCst) {
                    return Poll::Ready(());
                }
                let waker = context.waker().clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    waker.wake();
                });
                Poll::Pending
            }))
        });
        LazyServer {
            stop,
            times_ready,
            thread: Some(thread),
        }
    }

    fn times_ready(&self) -> usize {
        self.times_ready.load(Ordering::SeqCst)
    }
}

impl Drop for LazyServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn a_client_that_starts_first_is_ready_once_node_and_server_are() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let channel = lazy_channel(&lazy_app(&socket));
    assert_ne!(channel.state(), ChannelState::Ready);
    let waiting = {
        let channel = channel.clone();
        std::thread::spawn(move || block_on(channel.on_ready()))
    };
    let calling = {
        let channel = channel.clone();
        std::thread::spawn(move || block_on(echoes(&channel, 1)))
    };
    eventually("the missing node is told", || {
        let why = channel.why_not_ready().map(|status| status.message().to_owned());
        channel.state() == ChannelState::TransientFailure && why.is_some_and(|why| why.contains("socket"))
    });

    let _service = FakeService::start(&socket);
    eventually("the missing server is told", || {
        channel
            .why_not_ready()
            .is_some_and(|why| !why.message().contains("socket"))
    });
    assert!(!waiting.is_finished() && !calling.is_finished());

    let server = LazyServer::start(&lazy_app(&socket));
    waiting.join().unwrap().unwrap();
    calling.join().unwrap().unwrap();
    assert_eq!(
        (channel.state(), channel.why_not_ready()),
        (ChannelState::Ready, None)
    );
    eventually("the server is told", || server.times_ready() == 1);
}

#[test]
fn a_client_that_starts_last_is_ready_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    // The server starts before its node does.
    let server = LazyServer::start(&lazy_app(&socket));
    let _service = FakeService::start(&socket);
    eventually("the server is ready", || server.times_ready() == 1);
    let channel = lazy_channel(&lazy_app(&socket));
    block_on(channel.on_ready()).unwrap();
    assert_eq!(channel.state(), ChannelState::Ready);
    block_on(echoes(&channel, 2)).unwrap();
}

#[test]
fn a_change_of_state_wakes_who_waits_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let service = FakeService::start(&socket);
    let server = LazyServer::start(&lazy_app(&socket));
    eventually("the server is ready", || server.times_ready() == 1);
    let channel = lazy_channel(&lazy_app(&socket));
    block_on(channel.on_ready()).unwrap();
    let watching = {
        let channel = channel.clone();
        std::thread::spawn(move || block_on(channel.state_changed(ChannelState::Ready)))
    };
    drop(service);
    assert_ne!(watching.join().unwrap(), ChannelState::Ready);
    // The channel and the server come back with the node's service.
    let _service = FakeService::start(&socket);
    block_on(channel.on_ready()).unwrap();
    block_on(echoes(&channel, 3)).unwrap();
    eventually("the server is told again", || server.times_ready() == 2);
}

#[test]
fn a_channel_that_cannot_connect_keeps_no_other_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let _service = FakeService::start(&socket);
    let app = lazy_app(&socket);
    let server = LazyServer::start(&lazy_app(&socket));
    eventually("the server is ready", || server.times_ready() == 1);
    let first = Channel::builder(&NOTES)
        .app(&app)
        .connect_lazily(BLACK_HOLE)
        .unwrap();
    let second = lazy_channel(&app);
    block_on(second.on_ready()).unwrap();
    // One that comes while the first is being tried.
    let third = lazy_channel(&app);
    block_on(third.on_ready()).unwrap();
    block_on(echoes(&third, 1)).unwrap();
    assert_ne!(first.state(), ChannelState::Ready);
}

#[test]
fn calls_of_a_lazy_channel_fail_at_once_unless_they_wait() {
    let directory = tempfile::tempdir().unwrap();
    let app = lazy_app(&directory.path().join("socket"));
    let channel = Channel::builder(&NOTES).app(&app).connect_lazily("").unwrap();
    let status = block_on(echoes(&channel, 1)).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    // A connection that must be there now still needs a node.
    let connected = block_on(Channel::builder(&NOTES).app(&app).connect(""));
    assert_eq!(connected.unwrap_err().code(), Code::Unavailable);
}

#[test]
fn more_requests_than_the_socket_has_room_for_are_all_answered() {
    const CHANNELS: usize = 1_000;
    let world = World::new();
    let app = world.app();
    let is_deaf = &world.service.stats.is_deaf;
    is_deaf.store(true, Ordering::SeqCst);
    let connect = |_| Box::pin(NotesClient::connect(&app));
    let mut connecting: Vec<_> = (0..CHANNELS).map(connect).collect();
    for attempt in &mut connecting {
        let polled = attempt.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    is_deaf.store(false, Ordering::SeqCst);
    for attempt in connecting {
        block_on(attempt).unwrap();
    }
}

#[test]
fn a_connection_that_nobody_waits_for_any_more_is_closed() {
    let mut world = World::new();
    let app = world.app();
    // It brings the schema, and stays.
    let kept = block_on(NotesClient::connect(&app)).unwrap();
    let stats = world.service.stats.clone();
    let count = |words: &AtomicUsize| words.load(Ordering::SeqCst);
    // Given up before the service has answered, and after that.
    for is_answered in [false, true] {
        let (made, closed) = (count(&stats.connections), count(&stats.closed));
        stats.is_deaf.store(true, Ordering::SeqCst);
        let mut connecting = Box::pin(NotesClient::connect(&app));
        let polled = block_on(std::future::poll_fn(|context| {
            Poll::Ready(connecting.as_mut().poll(context).is_pending())
        }));
        assert!(polled);
        if !is_answered {
            drop(connecting);
            stats.is_deaf.store(false, Ordering::SeqCst);
        } else {
            stats.is_deaf.store(false, Ordering::SeqCst);
            eventually("the connection is made", || count(&stats.connections) > made);
            drop(connecting);
        }
        eventually("the connection is closed", || count(&stats.closed) > closed);
        assert_eq!(count(&stats.connections) - made, count(&stats.closed) - closed);
    }
    assert!(block_on(kept.echo(Note::new(1, "hello"))).is_ok());
    world.shut_down();
    assert!(world.join().is_ok());
}

#[test]
fn a_connection_that_closes_before_it_is_known_does_not_count_as_ready() {
    let mut world = World::new();
    let app = world.app();
    let witness = block_on(NotesClient::connect(&app)).unwrap();
    let stats = world.service.stats.clone();
    let made = stats.connections.load(Ordering::SeqCst);
    stats.is_deaf.store(true, Ordering::SeqCst);
    let mut connecting = Box::pin(NotesClient::connect(&app));
    let polled = connecting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    stats.is_deaf.store(false, Ordering::SeqCst);
    eventually("it is made", || stats.connections.load(Ordering::SeqCst) > made);
    world.shut_down();
    world.join().unwrap();
    eventually("the server's connections are closed", || {
        witness.channel.state() != ChannelState::Ready
    });
    if let Ok(client) = block_on(connecting) {
        // Or else it closes just now.
        eventually("it is lost", || client.channel.state() != ChannelState::Ready);
    }
}
