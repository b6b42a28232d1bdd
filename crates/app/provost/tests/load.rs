//! What a server does with more calls than it may handle, what it counts, and how long it waits for calls when it stops.

mod support;

use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use provost::blocking::block_on;
use provost::{Code, Request, ServerBuilder, ServerCounts, Status};
use support::{Note, Notes, NotesClient, World, eventually, listed};

/// How handlers run: on the task that serves, or each by itself.
const SPAWNED: [bool; 2] = [false, true];

/// Runs each handler on a thread of its own, if it is spawned.
fn spawned(builder: ServerBuilder, is_spawned: bool) -> ServerBuilder {
    if !is_spawned {
        return builder;
    }
    builder.spawn(|handler| {
        std::thread::spawn(move || block_on(handler));
    })
}

/// A call that hangs, once its handler has begun.
fn hanging(client: &NotesClient) -> JoinHandle<Status> {
    let (client, before) = (client.clone(), support::STARTED.load(Ordering::SeqCst));
    let call = std::thread::spawn(move || block_on(client.echo(Note::new(0, "hang"))).unwrap_err());
    eventually("the handler has begun", || {
        support::STARTED.load(Ordering::SeqCst) > before
    });
    call
}

fn patient(text: &str) -> Request<Note> {
    let mut request = Request::new(Note::new(0, text));
    request.set_timeout(Duration::from_secs(60));
    request
}

/// One test after the other: they count handlers of the process.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn calls_over_the_limit_are_refused_at_once_and_counted() {
    let _alone = alone();
    for is_spawned in SPAWNED {
        let counts = ServerCounts::new();
        let mut world = World::empty();
        world.serve_with(Notes::default(), |builder| {
            spawned(builder, is_spawned)
                .concurrency_limit(2)
                .shed_load()
                .drain_timeout(Duration::from_millis(50))
                .counts(&counts)
        });
        // The service is to hold none back.
        assert_eq!(world.service.stats.calls_in_flight_max.load(Ordering::SeqCst), 0);
        let app = world.app();
        let client = block_on(NotesClient::connect(&app)).unwrap();
        let first = hanging(&client);
        assert!(block_on(client.echo(patient("well"))).is_ok());
        let second = hanging(&client);
        eventually("the call that went well has ended", || {
            (counts.running(), counts.ended()) == (2, 1)
        });
        for _ in 0..3 {
            let status = block_on(client.echo(patient("well"))).unwrap_err();
            assert_eq!(status.code(), Code::ResourceExhausted);
        }
        let status = block_on(client.sum(listed([Note::default()]))).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!((counts.shed(), counts.running(), counts.ended()), (4, 2, 1));
        drop(world);
        for call in [first, second] {
            assert_eq!(call.join().unwrap().code(), Code::Unavailable);
        }
        eventually("no call is under way", || {
            (counts.running(), counts.ended()) == (0, 3)
        });
    }
}

#[test]
fn a_place_that_is_free_again_is_used() {
    let _alone = alone();
    let mut world = World::empty();
    world.serve_with(Notes::default(), |builder| {
        builder.concurrency_limit(1).shed_load()
    });
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    for _ in 0..3 {
        let mut request = Request::new(Note::new(0, "hang"));
        request.set_timeout(Duration::from_millis(20));
        assert_eq!(
            block_on(client.echo(request)).unwrap_err().code(),
            Code::DeadlineExceeded
        );
        eventually("the server takes calls again", || {
            block_on(client.echo(patient("well"))).is_ok()
        });
    }
}

#[test]
fn a_limit_without_shedding_is_told_to_the_service() {
    let _alone = alone();
    let mut world = World::empty();
    world.serve_with(Notes::default(), |builder| builder.concurrency_limit(7));
    assert_eq!(world.service.stats.calls_in_flight_max.load(Ordering::SeqCst), 7);
}

#[test]
fn a_server_that_stops_waits_for_calls_only_so_long() {
    let _alone = alone();
    for is_spawned in SPAWNED {
        let dropped = || support::DROPPED.load(Ordering::SeqCst);
        let before = dropped();
        let mut world = World::empty();
        // It stays attached: what it has submitted last is carried.
        let server = world.app();
        world.serve_through(&server, Notes::default(), |builder| {
            spawned(builder, is_spawned)
                .concurrency_limit(1)
                .drain_timeout(Duration::from_millis(50))
        });
        let app = world.app();
        let client = block_on(NotesClient::connect(&app)).unwrap();
        let call = hanging(&client);
        // It waits for its turn, which does not come.
        let steps = world.service.stats.steps.load(Ordering::SeqCst);
        let waiting = {
            let client = client.clone();
            std::thread::spawn(move || block_on(client.echo(patient("well"))).map(drop))
        };
        eventually("the second call is on its way", || {
            world.service.stats.steps.load(Ordering::SeqCst) > steps
        });
        world.shut_down();
        assert!(world.join().is_ok());
        let status = call.join().unwrap();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "the server stopped")
        );
        assert_eq!(waiting.join().unwrap().unwrap_err().code(), Code::Unavailable);
        eventually("the handler is dropped", || dropped() == before + 1);
    }
}

#[test]
fn a_server_that_stops_finishes_what_ends_in_time() {
    let _alone = alone();
    let mut world = World::empty();
    // It stays attached: what it has submitted last is carried.
    let server = world.app();
    world.serve_through(&server, Notes::default(), |builder| {
        builder.drain_timeout(Duration::from_secs(60))
    });
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let (mut sender, requests) = provost::stream(1);
    let sum = std::thread::spawn(move || block_on(client.sum(requests)).unwrap().get_ref().number);
    block_on(sender.send(Note::new(1, ""))).unwrap();
    let steps = || world.service.stats.steps.load(Ordering::SeqCst);
    eventually("the call is on its way", || steps() > 0);
    world.shut_down();
    block_on(sender.send(Note::new(2, ""))).unwrap();
    drop(sender);
    assert_eq!(sum.join().unwrap(), 3);
    assert!(world.join().is_ok());
}
