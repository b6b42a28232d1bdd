//! Interceptors of channels, servers and services, and what a channel has for all of its calls.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use provost::blocking::block_on;
use provost::codegen::MethodKind;
use provost::shared::Bytes;
use provost::{
    CallDefaults, CallHead, CallInterceptor, Channel, Code, InterceptedService, MetadataMap, Readiness,
    Request, Status,
};
use support::{Note, NoteMark, Notes, NotesClient, World, listed};

/// An interceptor that notes who was asked.
fn noting(seen: &Arc<Mutex<Vec<String>>>, name: &'static str) -> impl CallInterceptor + use<> {
    let seen = seen.clone();
    move |call: &mut CallHead<'_>| {
        seen.lock().unwrap().push(format!("{name} {}", call.path()));
        Ok(())
    }
}

fn refusing(call: &mut CallHead<'_>) -> Result<(), Status> {
    match call.metadata().get("let-me-in") {
        Some(_) => Ok(()),
        None => Err(Status::unauthenticated(format!(
            "not to {}",
            call.path().method()
        ))),
    }
}

async fn header(client: &NotesClient, key: &str) -> String {
    let response = client.echo(Note::new(0, &format!("header {key}"))).await.unwrap();
    response.get_ref().text.to_string()
}

fn metadata(pairs: &[(&str, &str)]) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    for (key, value) in pairs {
        metadata.insert(key, value).unwrap();
    }
    metadata
}

/// How calls of all four kinds end.
async fn codes_of_all_kinds(client: &NotesClient) -> [Code; 4] {
    fn code<T>(result: Result<T, Status>) -> Code {
        result.err().map_or(Code::Ok, |status| status.code())
    }
    [
        code(client.echo(Note::new(0, "well")).await),
        code(client.repeat(Note::new(3, "")).await),
        code(client.sum(listed([Note::new(1, "")])).await),
        code(client.chat(listed([Note::new(1, "")])).await),
    ]
}

#[test]
fn a_channels_interceptors_see_and_change_calls_in_order() {
    let world = World::new();
    let app = world.app();
    let seen = Arc::default();
    let stamp = |call: &mut CallHead<'_>| {
        assert_eq!(
            (call.path().service(), call.kind()),
            ("test.Notes", MethodKind::Unary)
        );
        assert_eq!(call.metadata().get("own"), Some("of the call"));
        assert!(call.peer().is_none());
        assert!(
            call.time_left()
                .is_some_and(|left| left <= Duration::from_secs(30))
        );
        let both = format!("{} and the first", call.metadata().get("own").unwrap_or(""));
        call.metadata_mut()
            .insert("stamp", &both)
            .map_err(|error| Status::internal(error.to_string()))
    };
    let more = |call: &mut CallHead<'_>| {
        let all = format!("{} and the second", call.metadata().get("stamp").unwrap_or(""));
        call.metadata_mut().insert("stamp", &all).unwrap();
        call.extensions_mut().insert(NoteMark("stays here".to_owned()));
        Ok(())
    };
    block_on(async {
        let builder = Channel::builder(&support::NOTES).app(&app).intercept(stamp);
        let channel = builder.connect("").await.unwrap();
        let first = channel.clone();
        let client = NotesClient {
            channel: channel.intercept(more).intercept(noting(&seen, "client")),
        };
        let request = || {
            let mut request = Request::new(Note::new(0, "header stamp"));
            request.metadata_mut().insert("own", "of the call").unwrap();
            request.set_timeout(Duration::from_secs(30));
            request
        };
        let response = client.echo(request()).await.unwrap();
        assert_eq!(
            &*response.get_ref().text,
            "of the call and the first and the second"
        );
        assert_eq!(*seen.lock().unwrap(), ["client /test.Notes/Echo"]);
        // The clone that was made before has the first alone.
        let response = NotesClient { channel: first }.echo(request()).await.unwrap();
        assert_eq!(&*response.get_ref().text, "of the call and the first");
        // Extensions do not travel.
        let mut mark = request();
        mark.get_mut().text = "mark".into();
        assert_eq!(&*client.echo(mark).await.unwrap().get_ref().text, "");
    });
}

#[test]
fn a_channels_interceptor_ends_calls_of_all_kinds_before_they_are_sent() {
    let world = World::new();
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let refused = NotesClient {
            channel: client.channel.clone().intercept(refusing),
        };
        let steps = world.service.stats.steps.load(Ordering::SeqCst);
        assert_eq!(codes_of_all_kinds(&refused).await, [Code::Unauthenticated; 4]);
        let status = refused.echo(Note::default()).await.unwrap_err();
        assert_eq!(status.message(), "not to Echo");
        assert_eq!(world.service.stats.steps.load(Ordering::SeqCst), steps);
        let let_in = refused
            .channel
            .with_defaults(CallDefaults::new().metadata(metadata(&[("let-me-in", "")])));
        assert_eq!(
            codes_of_all_kinds(&NotesClient { channel: let_in }).await,
            [Code::Ok; 4]
        );
    });
}

/// A service that refuses calls by its own interceptor, on a server with others.
fn guarded(seen: &Arc<Mutex<Vec<String>>>) -> World {
    let mut world = World::empty();
    let first = noting(seen, "server's first");
    let service = InterceptedService::new(Notes::default(), refusing);
    let service = InterceptedService::new(service, noting(seen, "service's"));
    let server = world.app();
    let mark = |call: &mut CallHead<'_>| {
        let text = format!(
            "{:?} {}",
            call.kind(),
            call.metadata().get("let-me-in").unwrap_or("")
        );
        call.extensions_mut().insert(NoteMark(text));
        call.metadata_mut().remove("let-me-in-not");
        Ok(())
    };
    world.serve_service(&server, service, |builder| {
        builder
            .intercept(first)
            .intercept(mark)
            .intercept(noting(seen, "server's last"))
    });
    world
}

#[test]
fn a_servers_interceptors_see_calls_before_their_handlers() {
    let seen = Arc::default();
    let world = guarded(&seen);
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        assert_eq!(codes_of_all_kinds(&client).await, [Code::Unauthenticated; 4]);
        assert_eq!(
            seen.lock().unwrap()[..3],
            [
                "server's first /test.Notes/Echo",
                "server's last /test.Notes/Echo",
                "service's /test.Notes/Echo"
            ]
        );
        // A handler that had begun would hang.
        let status = client.echo(Note::new(0, "hang")).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unauthenticated, "not to Echo")
        );
        let defaults = CallDefaults::new().metadata(metadata(&[("let-me-in", "please")]));
        let client = NotesClient {
            channel: client.channel.with_defaults(defaults),
        };
        assert_eq!(codes_of_all_kinds(&client).await, [Code::Ok; 4]);
        let response = client.echo(Note::new(0, "mark")).await.unwrap();
        assert_eq!(&*response.get_ref().text, "Unary please");
    });
}

#[test]
fn an_interceptor_bounds_the_time_of_calls() {
    let world = World::new();
    let app = world.app();
    let hurry = |call: &mut CallHead<'_>| {
        call.limit_time(Duration::from_millis(50));
        call.limit_time(Duration::from_secs(100));
        Ok(())
    };
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let hurried = NotesClient {
            channel: client.channel.intercept(hurry),
        };
        let status = hurried.echo(Note::new(0, "hang")).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
    });
}

#[test]
fn a_servers_interceptor_bounds_what_is_left_to_handlers() {
    let mut world = World::empty();
    world.serve_with(Notes::default(), |builder| {
        builder.intercept(|call: &mut CallHead<'_>| {
            call.limit_time(Duration::from_secs(10));
            Ok(())
        })
    });
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        let left = async |timeout| {
            let mut request = Request::new(Note::new(0, "time left"));
            if let Some(timeout) = timeout {
                request.set_timeout(Duration::from_secs(timeout));
            }
            client.echo(request).await.unwrap().get_ref().number / 1_000_000_000
        };
        let (of_none, of_much, of_little) = (left(None).await, left(Some(100)).await, left(Some(5)).await);
        assert!(of_none > 1 && of_none <= 10, "{of_none}");
        assert!(of_much > 1 && of_much <= 10, "{of_much}");
        assert!(of_little <= 5, "{of_little}");
    });
}

#[test]
fn calls_have_what_their_channel_has_unless_they_say_otherwise() {
    let world = World::new();
    let app = world.app();
    block_on(async {
        let defaults = CallDefaults::new()
            .timeout(Duration::from_millis(50))
            .metadata(metadata(&[("from", "the channel"), ("other", "too")]));
        let builder = Channel::builder(&support::NOTES).app(&app).defaults(defaults);
        let client = NotesClient {
            channel: builder.connect("").await.unwrap(),
        };
        let status = client.echo(Note::new(0, "hang")).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        let mut request = Request::new(Note::new(0, "time left"));
        request.set_timeout(Duration::from_secs(100));
        let left = client.echo(request).await.unwrap().get_ref().number;
        assert!(left > 1_000_000_000, "{left}");
        assert_eq!(header(&client, "from").await, "the channel");
        let mut request = Request::new(Note::new(0, "header from"));
        request.metadata_mut().insert("from", "the call").unwrap();
        assert_eq!(&*client.echo(request).await.unwrap().get_ref().text, "the call");
        let mut request = Request::new(Note::new(0, "header other"));
        request.metadata_mut().insert("from", "the call").unwrap();
        assert_eq!(&*client.echo(request).await.unwrap().get_ref().text, "too");
    });
}

#[test]
fn calls_wait_for_a_connection_where_their_channel_does() {
    let mut world = World::new();
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        world.service = support::fake::FakeService::start(&world.directory.path().join("elsewhere"));
        support::eventually("calls fail", || block_on(client.echo(Note::default())).is_err());
        let defaults = CallDefaults::new()
            .readiness(Readiness::Wait)
            .timeout(Duration::from_millis(100));
        let waiting = NotesClient {
            channel: client.channel.with_defaults(defaults),
        };
        let code = waiting.echo(Note::default()).await.unwrap_err().code();
        assert_eq!(code, Code::DeadlineExceeded);
        let mut request = Request::new(Note::default());
        request.set_readiness(Readiness::FailFast);
        assert_eq!(waiting.echo(request).await.unwrap_err().code(), Code::Unavailable);
    });
}

fn long(number: u64, text: &str) -> Note {
    let mut note = Note::new(number, text);
    note.data = Bytes::zeroed(10_000);
    note
}

/// How calls of all kinds end whose requests are long, and how those end whose responses are.
async fn codes_of_long(client: &NotesClient) -> ([Code; 4], [Code; 2]) {
    fn code<T>(result: Result<T, Status>) -> Code {
        result.err().map_or(Code::Ok, |status| status.code())
    }
    async fn read(stream: Result<provost::Response<provost::Streaming<Note>>, Status>) -> Result<(), Status> {
        let mut stream = stream?.into_inner();
        while stream.message().await?.is_some() {}
        Ok(())
    }
    let requests = [
        code(client.echo(long(0, "count")).await),
        code(read(client.repeat(long(0, "")).await).await),
        code(client.sum(listed([Note::default(), long(1, "")])).await),
        code(read(client.chat(listed([Note::default(), long(1, "")])).await).await),
    ];
    let responses = [
        code(client.echo(Note::new(0, "long")).await),
        code(read(client.repeat(Note::new(10_000, "long")).await).await),
    ];
    (requests, responses)
}

#[test]
fn messages_over_a_channels_or_a_servers_bound_are_refused() {
    let full = Code::ResourceExhausted;
    let plain = World::new();
    let cases = [
        (CallDefaults::new(), [Code::Ok; 4], [Code::Ok; 2]),
        (
            CallDefaults::new().request_bytes_max(5_000),
            [full; 4],
            [Code::Ok; 2],
        ),
        (
            CallDefaults::new().response_bytes_max(5_000),
            [Code::Ok; 4],
            [full; 2],
        ),
    ];
    let app = plain.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    for (defaults, requests, responses) in cases {
        let client = NotesClient {
            channel: client.channel.clone().with_defaults(defaults.clone()),
        };
        assert_eq!(
            block_on(codes_of_long(&client)),
            (requests, responses),
            "{defaults:?}"
        );
    }
    let mut world = World::empty();
    world.serve_with(Notes::default(), |builder| builder.request_bytes_max(5_000));
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    assert_eq!(block_on(codes_of_long(&client)), ([full; 4], [Code::Ok; 2]));
    let mut world = World::empty();
    world.serve_with(Notes::default(), |builder| builder.response_bytes_max(5_000));
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    assert_eq!(block_on(codes_of_long(&client)), ([Code::Ok; 4], [full; 2]));
}

#[test]
fn interceptors_are_asked_once_for_each_call() {
    let counted = Arc::new(AtomicU64::new(0));
    let mut world = World::empty();
    let count = {
        let counted = counted.clone();
        move |_: &mut CallHead<'_>| {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    };
    world.serve_with(Notes::default(), |builder| builder.intercept(count.clone()));
    let app = world.app();
    block_on(async {
        let client = NotesClient::connect(&app).await.unwrap();
        assert_eq!(codes_of_all_kinds(&client).await, [Code::Ok; 4]);
    });
    assert_eq!(counted.load(Ordering::SeqCst), 4);
}
