//! Deadlines where nothing was ever attached. A file of its own: in its process nothing else has started the thread that keeps time.

mod support;

use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use provost::blocking::block_on;
use provost::{App, CallDefaults, Channel, Code, Readiness, Request};
use support::{NOTES, Note, NotesClient};

#[test]
fn a_call_that_waits_for_its_turn_ends_at_its_deadline_though_there_was_never_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let app = App::builder().socket(directory.path().join("socket"));
    let app = app.attach_lazily().unwrap();
    let channel = Channel::builder(&NOTES)
        .app(&app)
        .concurrency_limit(1)
        .defaults(CallDefaults::new().readiness(Readiness::Wait))
        .connect_lazily("")
        .unwrap();
    let client = NotesClient { channel };
    // It waits for a connection, and has the one place.
    let mut first = pin!(client.echo(Note::new(1, "")));
    let polled = first.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    let mut second = Request::new(Note::new(2, ""));
    second.set_timeout(Duration::from_millis(50));
    let status = block_on(client.echo(second)).unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}
