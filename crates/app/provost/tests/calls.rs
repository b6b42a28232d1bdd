//! Calls of all kinds, from end to end through a stand-in for the node's service.

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use provost::blocking::block_on;
use provost::shared::Prepared;
use provost::{Code, Readiness, Request, Status};
use support::{Note, NotesClient, World, eventually, listed};

fn with<R>(test: impl AsyncFnOnce(NotesClient) -> R) -> R {
    let world = World::new();
    let app = world.app();
    let result = block_on(async { test(NotesClient::connect(&app).await.unwrap()).await });
    drop(app);
    result
}

#[test]
fn unary_calls_carry_the_message_both_ways() {
    with(async |client| {
        for number in 0..200 {
            let text = format!("note {number}");
            let response = client.echo(Note::new(number, &text)).await.unwrap();
            assert_eq!(
                (response.get_ref().number, &*response.get_ref().text),
                (number, &*text)
            );
        }
    });
}

#[test]
fn a_prepared_message_is_sent_again_and_again() {
    with(async |client| {
        let prepared = Prepared::new(Note::new(5, "again"));
        for _ in 0..50 {
            let response = client.echo(prepared.clone()).await.unwrap();
            assert_eq!(*response.get_ref(), *prepared);
        }
    });
}

#[test]
fn metadata_goes_with_requests_and_around_responses() {
    with(async |client| {
        let mut request = Request::new(Note::new(0, "metadata"));
        request
            .metadata_mut()
            .insert("ask", "and you shall receive")
            .unwrap();
        let response = client.echo(request).await.unwrap();
        assert_eq!(response.metadata().get("before"), Some("and you shall receive"));
        assert_eq!(response.trailers().get("after"), Some("done"));
    });
}

#[test]
fn a_status_comes_whole() {
    with(async |client| {
        let status = client.echo(Note::new(9, "fail")).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::NotFound, "no 9"));
        assert_eq!(status.details(), b"details");
        assert_eq!(status.metadata().get("why"), Some("because"));
    });
}

#[test]
fn a_method_that_is_not_there_is_unimplemented() {
    with(async |client| {
        let status = client.missing(Note::default()).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented);
    });
}

#[test]
fn a_panic_ends_its_own_call_alone() {
    with(async |client| {
        let status = client.echo(Note::new(0, "panic")).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert!(client.echo(Note::new(0, "well")).await.is_ok());
    });
}

#[test]
fn responses_stream_past_the_window() {
    with(async |client| {
        let mut request = Note::new(300, "");
        request.data = provost::shared::Bytes::zeroed(20_000);
        let mut notes = client.repeat(request).await.unwrap().into_inner();
        let mut count = 0;
        while let Some(note) = notes.message().await.unwrap() {
            count += 1;
            assert_eq!((note.number, note.data.len()), (count, 20_000));
        }
        assert_eq!(count, 300);
        assert!(notes.trailers().is_some());
    });
}

#[test]
fn a_stream_that_fails_says_so_at_once_or_at_its_end() {
    with(async |client| {
        let status = client.repeat(Note::new(3, "fail")).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
        let mut notes = client
            .repeat(Note::new(3, "fail at end"))
            .await
            .unwrap()
            .into_inner();
        for _ in 0..3 {
            assert!(notes.message().await.unwrap().is_some());
        }
        assert_eq!(notes.message().await.unwrap_err().code(), Code::DataLoss);
        assert!(notes.message().await.unwrap().is_none());
    });
}

#[test]
fn requests_stream_past_the_window() {
    with(async |client| {
        let notes = (1..=3000).map(|number| {
            let mut note = Note::new(number, "x");
            note.data = provost::shared::Bytes::zeroed(2_000);
            note
        });
        // Made one at a time as the window opens, not all before.
        let requests = provost::blocking::IntoIteratorRequest::into_streaming_request(notes);
        let response = client.sum(requests).await.unwrap();
        assert_eq!(response.get_ref().number, 3000 * 3001 / 2);
    });
}

#[test]
fn both_directions_stream_at_once() {
    with(async |client| {
        let requests = listed((0..500).map(|number| Note::new(number, "twice")));
        let mut responses = client.chat(requests).await.unwrap().into_inner();
        for number in 0..500 {
            assert_eq!(responses.message().await.unwrap().unwrap().number, number * 2);
        }
        assert!(responses.message().await.unwrap().is_none());
    });
}

#[test]
fn a_deadline_is_met_though_the_handler_hangs() {
    with(async |client| {
        let mut request = Request::new(Note::new(0, "hang"));
        request.set_timeout(Duration::from_millis(50));
        let began = Instant::now();
        let status = client.echo(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert!(began.elapsed() >= Duration::from_millis(50) && began.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_pair_that_cannot_be_metadata_is_refused_by_its_key_and_without_its_value() {
    let mut metadata = provost::MetadataMap::new();
    let cases = [
        (
            metadata.insert("X-User", "secret"),
            "metadata \"X-User\": a key has lower-case letters",
        ),
        (
            metadata.insert("x-user", "sécret"),
            "metadata \"x-user\": its value is not printable ASCII",
        ),
        (
            metadata.insert_bin("x-bytes", b"\0secret"),
            "metadata \"x-bytes\": ",
        ),
    ];
    for (refused, message) in cases {
        let text = refused.expect_err(message).to_string();
        assert!(text.starts_with(message) && !text.contains("cret"), "{text}");
    }
    assert!(metadata.is_empty());
}

#[test]
fn a_deadline_is_met_though_the_service_is_stuck() {
    let world = World::new();
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        world.service.stats.is_stuck.store(true, Ordering::SeqCst);
        let mut request = Request::new(Note::new(0, "well"));
        request.set_timeout(Duration::from_millis(50));
        let status = client.echo(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        world.service.stats.is_stuck.store(false, Ordering::SeqCst);
        assert!(client.echo(Note::new(0, "well")).await.is_ok());
    });
}

#[test]
fn deadlines_travel_to_handlers_and_the_calls_that_they_make() {
    let mut first = World::empty();
    first.serve(support::Notes::default());
    let app = first.app();
    let upstream = block_on(NotesClient::connect(&app)).unwrap();
    let mut second = World::empty();
    second.serve(support::Notes {
        upstream: Some(upstream),
        ..support::Notes::default()
    });
    let app = second.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let mut request = Request::new(Note::new(0, "nested"));
        request.set_timeout(Duration::from_secs(100));
        let left = client.echo(request).await.unwrap().get_ref().number;
        assert!(
            left > 50_000_000_000 && left <= 100_000_000_000,
            "{left} ns are left"
        );
        let left = client
            .echo(Note::new(0, "nested"))
            .await
            .unwrap()
            .get_ref()
            .number;
        assert_eq!(left, 0);
    });
}

/// A service behind another on the same node, which the other calls over the link that it serves on.
#[test]
fn handlers_call_over_the_link_that_they_serve_on() {
    let mut world = World::empty();
    let back = world.app();
    let notes = support::Notes {
        is_back: true,
        ..support::Notes::default()
    };
    std::thread::spawn(move || {
        provost::Server::builder()
            .app(&back)
            .add_service(notes)
            .serve_blocking()
    });
    let middle = world.app();
    let mut upstream = None;
    eventually("the service behind is there", || {
        upstream = block_on(NotesClient::connect_to_back(&middle)).ok();
        upstream.is_some()
    });
    let notes = support::Notes {
        upstream,
        ..support::Notes::default()
    };
    world.serve_through(&middle, notes, |builder| builder);
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    for number in 0..100 {
        let response = block_on(client.echo(Note::new(number, "nested, blocking"))).unwrap();
        assert_eq!(
            (response.get_ref().number, &*response.get_ref().text),
            (number, "behind")
        );
        assert!(block_on(client.echo(Note::new(number, "nested"))).is_ok());
    }
}

#[test]
fn a_stream_that_nobody_reads_stops_at_its_window() {
    let world = World::new();
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let mut request = Note::new(1000, "");
        request.data = provost::shared::Bytes::zeroed(20_000);
        let before = world.service.stats.steps.load(Ordering::SeqCst);
        let mut notes = client.repeat(request).await.unwrap().into_inner();
        std::thread::sleep(Duration::from_millis(200));
        let sent = world.service.stats.steps.load(Ordering::SeqCst) - before;
        assert!((2..=60).contains(&sent), "{sent} steps for a window of 1 MiB");
        let mut count = 0;
        while notes.message().await.unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 1000);
    });
}

#[test]
fn a_limit_of_a_server_holds_calls_back() {
    let mut world = World::empty();
    world.serve_with(support::Notes::default(), |builder| builder.concurrency_limit(1));
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let hanging = {
        let client = client.clone();
        std::thread::spawn(move || {
            let mut request = Request::new(Note::new(0, "hang"));
            request.set_timeout(Duration::from_millis(300));
            block_on(client.echo(request)).unwrap_err().code()
        })
    };
    eventually("the first call is on its way", || {
        world.service.stats.steps.load(Ordering::SeqCst) > 0
    });
    let began = Instant::now();
    assert!(block_on(client.echo(Note::new(1, "next"))).is_ok());
    assert_eq!(hanging.join().unwrap(), Code::DeadlineExceeded);
    assert!(began.elapsed() > Duration::from_millis(100));
}

#[test]
fn a_stream_is_fed_by_a_sender() {
    with(async |client| {
        let (mut sender, requests) = provost::stream(2);
        let feeding = std::thread::spawn(move || {
            block_on(async {
                for number in 1..=100 {
                    sender.send(Note::new(number, "fed")).await.unwrap();
                }
            });
        });
        let response = client.sum(requests).await.unwrap();
        assert_eq!(response.get_ref().number, 5050);
        feeding.join().unwrap();
    });
}

#[test]
fn a_stream_goes_on_when_its_client_is_dropped() {
    const MESSAGES: u64 = 3_000;
    let world = World::new();
    let app = world.app();
    let closed = || world.service.stats.closed.load(Ordering::SeqCst);
    let before = block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let response = client.repeat(Note::new(MESSAGES, "")).await.unwrap();
        let mut stream = response.into_inner();
        drop(client);
        let mut received = 0;
        while let Some(note) = stream.message().await.unwrap() {
            received += 1;
            assert_eq!(note.number, received);
        }
        assert_eq!(received, MESSAGES);
        closed()
    });
    eventually("the connection is closed with the stream", || closed() > before);
}

#[test]
fn dropping_a_call_cancels_it_and_its_handler() {
    let world = World::new();
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    // Once as soon as it was sent, once when its handler has begun.
    for waits in [false, true] {
        let (started, dropped) = (&support::STARTED, &support::DROPPED);
        let (started_before, dropped_before) =
            (started.load(Ordering::SeqCst), dropped.load(Ordering::SeqCst));
        let cancels_before = world.service.stats.cancels.load(Ordering::SeqCst);
        let mut call = Box::pin(client.echo(Note::new(0, "hang")));
        let poll = std::future::poll_fn(|context| std::task::Poll::Ready(call.as_mut().poll(context)));
        assert!(block_on(poll).is_pending());
        if waits {
            eventually("the handler begins", || {
                started.load(Ordering::SeqCst) > started_before
            });
        }
        drop(call);
        let is_cancelled = || world.service.stats.cancels.load(Ordering::SeqCst) > cancels_before;
        eventually("the call is cancelled", is_cancelled);
        if waits {
            eventually("the handler is dropped", || {
                dropped.load(Ordering::SeqCst) > dropped_before
            });
        }
        assert!(block_on(client.echo(Note::new(0, "next"))).is_ok());
    }
}

#[test]
fn all_received_blocks_come_back() {
    let world = World::new();
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let mut kept = Vec::new();
        for number in 0..100 {
            kept.push(client.echo(Note::new(number, "kept")).await.unwrap().into_inner());
        }
        assert!(kept.iter().enumerate().all(|(at, note)| note.number == at as u64));
        let stream = client.repeat(Note::new(50, "")).await.unwrap().into_inner();
        drop(stream);
    });
    eventually("no block is live", || {
        world.service.stats.blocks_live.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn many_calls_in_flight_share_a_small_ring() {
    let world = World::new();
    let app = provost::App::builder()
        .socket(world.socket())
        .rings(16, 16)
        .attach()
        .unwrap();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let mut calls: Vec<_> = (0..2000)
            .map(|number| Box::pin(client.echo(Note::new(number, "many"))))
            .collect();
        let mut left = calls.len();
        std::future::poll_fn(|context| {
            calls.retain_mut(|call| match call.as_mut().poll(context) {
                std::task::Poll::Ready(result) => {
                    assert!(result.is_ok(), "{result:?}");
                    left -= 1;
                    false
                }
                std::task::Poll::Pending => true,
            });
            if left == 0 {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        })
        .await;
    });
}

#[test]
fn the_app_comes_back_after_the_service_restarts() {
    let mut world = World::new();
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let hanging = {
        let client = client.clone();
        std::thread::spawn(move || block_on(client.echo(Note::new(0, "hang"))).unwrap_err())
    };
    eventually("the call is on its way", || {
        world.service.stats.steps.load(Ordering::SeqCst) > 0
    });
    world.restart();
    assert_eq!(hanging.join().unwrap().code(), Code::Unavailable);
    let mut request = Request::new(Note::new(1, "again"));
    request
        .set_readiness(Readiness::Wait)
        .set_timeout(Duration::from_secs(30));
    let response = block_on(client.echo(request)).unwrap();
    assert_eq!(response.get_ref().number, 1);
}

#[test]
fn without_a_service_calls_fail_at_once_unless_they_wait() {
    let world = World::new();
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let kept = block_on(client.echo(Note::new(3, "kept"))).unwrap();
    let World { service, .. } = &world;
    service.stats.is_stuck.store(false, Ordering::SeqCst);
    let mut world = world;
    world.service = support::fake::FakeService::start(&world.directory.path().join("elsewhere"));
    eventually("calls fail", || {
        block_on(client.echo(Note::default())).is_err_and(|status| status.code() == Code::Unavailable)
    });
    let mut request = Request::new(Note::new(1, "late"));
    request
        .set_readiness(Readiness::Wait)
        .set_timeout(Duration::from_millis(100));
    assert_eq!(
        block_on(client.echo(request)).unwrap_err().code(),
        Code::DeadlineExceeded
    );
    // What was received before can still be read.
    assert_eq!((kept.get_ref().number, &*kept.get_ref().text), (3, "kept"));
}

#[test]
fn a_server_finishes_its_calls_before_it_stops() {
    let mut world = World::new();
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let slow = {
        let client = client.clone();
        std::thread::spawn(move || {
            let mut request = Request::new(Note::new(0, "hang"));
            request.set_timeout(Duration::from_millis(300));
            block_on(client.echo(request)).unwrap_err().code()
        })
    };
    eventually("the call is on its way", || {
        world.service.stats.steps.load(Ordering::SeqCst) > 0
    });
    world.shut_down();
    assert!(world.join().is_ok());
    assert_eq!(slow.join().unwrap(), Code::DeadlineExceeded);
    let refused: Result<NotesClient, Status> = block_on(NotesClient::connect(&app));
    assert_eq!(refused.unwrap_err().code(), Code::NotFound);
}

#[test]
fn a_limit_of_a_channel_holds_calls_back() {
    let world = World::new();
    let app = world.app();
    block_on(async {
        let channel = provost::Channel::builder(&support::NOTES)
            .app(&app)
            .concurrency_limit(1)
            .connect("")
            .await
            .unwrap();
        let client = NotesClient { channel };
        let mut hanging = Box::pin(client.echo(Note::new(0, "hang")));
        let polled =
            std::future::poll_fn(|context| std::task::Poll::Ready(hanging.as_mut().poll(context))).await;
        assert!(polled.is_pending());
        let mut request = Request::new(Note::new(0, "held back"));
        request.set_timeout(Duration::from_millis(30));
        assert_eq!(
            client.echo(request).await.unwrap_err().code(),
            Code::DeadlineExceeded
        );
        drop(hanging);
        assert!(client.echo(Note::new(0, "next")).await.is_ok());
    });
}

#[test]
fn a_schema_is_brought_only_where_it_is_not_known() {
    let world = World::new();
    let app = world.app();
    // The server and the first client may both have found it unknown.
    let schemas = world.service.stats.schemas.load(Ordering::SeqCst);
    assert!((1..=2).contains(&schemas));
    for _ in 0..3 {
        block_on(NotesClient::connect(&app)).unwrap();
    }
    assert_eq!(world.service.stats.schemas.load(Ordering::SeqCst), schemas);
}

#[test]
fn a_call_with_the_wrong_types_is_refused() {
    with(async |client| {
        let request = Request::new(Note::default());
        let result = provost::codegen::unary::<Note, Other>(&client.channel, 0, request).await;
        assert_eq!(result.unwrap_err().code(), Code::Internal);
        let request = Request::new(Note::default());
        let result = provost::codegen::unary::<Note, Note>(&client.channel, 1, request).await;
        assert_eq!(result.unwrap_err().code(), Code::Internal);
    });
}

/// A message that no method has, though it says that it is one that they have.
#[derive(Debug)]
#[repr(C)]
struct Other {
    number: u64,
}

provost::__message!(Other, "test.Note", [number]);
