//! Servers that end in the middle of calls: all of them are answered, also when a handler panics as it is dropped.

mod support;

use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use provost::blocking::block_on;
use provost::codegen::{Methods, Service, ServiceDescriptor, Stream};
use provost::{App, Code, Received, Request, Response, Server, ServerBuilder, Status, StreamSender};
use support::fake::Stats;
use support::{NOTES, Note, Notes, NotesClient, World, eventually};

/// Handlers that never answer. One of the text `panic` panics when it is dropped.
#[derive(Clone, Default)]
struct HangingService {
    started: Arc<AtomicU64>,
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("as the test wants it");
    }
}

impl HangingService {
    async fn echo(self, request: Request<Received<Note>>) -> Result<Response<Note>, Status> {
        self.started.fetch_add(1, Ordering::SeqCst);
        let _panics = (&*request.get_ref().text == "panic").then(|| PanicsWhenDropped);
        pending().await
    }

    fn started(&self) -> u64 {
        self.started.load(Ordering::SeqCst)
    }
}

impl Service for HangingService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &NOTES
    }

    fn register(&self, methods: &mut Methods) {
        let hanging = self.clone();
        methods.unary(0, move |request| hanging.clone().echo(request));
    }
}

/// A server on a thread of its own, which drops it as it is when the sender is dropped.
fn serve_until_dropped(builder: ServerBuilder) -> (StreamSender<()>, JoinHandle<()>) {
    let (sender, mut stop) = provost::stream(1);
    let thread = std::thread::spawn(move || {
        let mut serving = pin!(builder.serve());
        block_on(poll_fn(|context| {
            assert!(serving.as_mut().poll(context).is_pending());
            Pin::new(&mut stop).poll_next(context).map(drop)
        }));
    });
    (sender, thread)
}

fn client_of(app: &App) -> NotesClient {
    let mut client = None;
    eventually("the server is there", || {
        client = block_on(NotesClient::connect(app)).ok();
        client.is_some()
    });
    client.unwrap()
}

/// What a call comes to.
fn call(client: &NotesClient, text: &'static str) -> JoinHandle<Status> {
    let client = client.clone();
    std::thread::spawn(move || {
        let mut request = Request::new(Note::new(0, text));
        request.set_timeout(Duration::from_secs(60));
        block_on(client.echo(request)).unwrap_err()
    })
}

#[test]
fn a_server_that_is_dropped_ends_the_calls_that_wait_for_their_turn() {
    const WAITING: usize = 8;
    let world = World::empty();
    // It stays attached: what it has submitted last is carried.
    let (server, app) = (world.app(), world.app());
    let hanging = HangingService::default();
    let builder = Server::builder().app(&server).concurrency_limit(1);
    let (stop, thread) = serve_until_dropped(builder.add_service(hanging.clone()));
    let client = client_of(&app);
    let first = call(&client, "hang");
    eventually("the handler has begun", || hanging.started() == 1);
    let steps = || world.service.stats.steps.load(Ordering::SeqCst);
    let before = steps();
    let waiting: Vec<_> = (0..WAITING).map(|_| call(&client, "hang")).collect();
    eventually("the others are on their way", || steps() >= before + WAITING);
    drop(stop);
    thread.join().unwrap();
    for call in waiting.into_iter().chain([first]) {
        let status = call.join().unwrap();
        assert_eq!(status.code(), Code::Unavailable);
        // One that comes in when nobody takes calls any more is told no reason.
        assert!(["the server stopped", ""].contains(&status.message()), "{status}");
    }
    assert_eq!(hanging.started(), 1);
}

#[test]
fn a_server_that_is_told_to_stop_while_it_binds_stops() {
    let world = World::empty();
    let (server, app) = (world.app(), world.app());
    let stats = &world.service.stats;
    stats.is_deaf.store(true, Ordering::SeqCst);
    let builder = Server::builder()
        .app(&server)
        .add_service(HangingService::default());
    assert!(
        builder
            .serve_blocking_with_shutdown(std::future::ready(()))
            .is_ok()
    );
    stats.is_deaf.store(false, Ordering::SeqCst);
    assert!(block_on(NotesClient::connect(&app)).is_err());
}

/// Tells a server that offers the notes through this app to stop, while nothing is answered.
fn stop_while_it_binds(server: &App, stats: &Stats) {
    stop_unanswered(server, stats);
    stats.is_deaf.store(false, Ordering::SeqCst);
}

/// The same, and from then on nothing is answered.
fn stop_unanswered(server: &App, stats: &Stats) {
    stats.is_deaf.store(true, Ordering::SeqCst);
    let builder = Server::builder().app(server).add_service(Notes::default());
    builder
        .serve_blocking_with_shutdown(std::future::ready(()))
        .unwrap();
}

#[test]
fn what_is_bound_for_a_server_that_is_gone_by_then_is_taken_back() {
    let mut world = World::empty();
    let (server, app) = (world.app(), world.app());
    // Its node knows the schema from then on, and binds at once.
    world.serve_through(&server, Notes::default(), |builder| builder);
    world.shut_down();
    world.join().unwrap();
    let stats = &world.service.stats;
    let unbinds = || stats.unbinds.load(Ordering::SeqCst);
    assert_eq!(unbinds(), 1);
    stop_while_it_binds(&server, stats);
    eventually("it is taken back", || unbinds() == 2);
    assert!(block_on(NotesClient::connect(&app)).is_err());
}

#[test]
fn a_server_is_not_refused_for_what_one_that_is_gone_has_asked_for() {
    let mut world = World::empty();
    let (server, app) = (world.app(), world.app());
    // Its node knows the schema from then on, and binds at once.
    world.serve_through(&server, Notes::default(), |builder| builder);
    world.shut_down();
    world.join().unwrap();
    let is_deaf = &world.service.stats.is_deaf;
    stop_unanswered(&server, &world.service.stats);
    let is_ready = Arc::new(AtomicBool::new(false));
    let ready = is_ready.clone();
    let builder = Server::builder().app(&server).add_service(Notes::default());
    let builder = builder.on_ready(move || ready.store(true, Ordering::SeqCst));
    let (sender, mut stop) = provost::stream::<()>(1);
    let stopped = poll_fn(move |context| Pin::new(&mut stop).poll_next(context).map(drop));
    let mut serving = Box::pin(builder.serve_with_shutdown(stopped));
    let polled = serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    is_deaf.store(false, Ordering::SeqCst);
    let thread = std::thread::spawn(move || block_on(serving));
    eventually("it serves", || {
        assert!(!thread.is_finished(), "it was refused");
        is_ready.load(Ordering::SeqCst)
    });
    block_on(client_of(&app).echo(Note::new(1, ""))).unwrap();
    drop(sender);
    thread.join().unwrap().unwrap();
}

#[test]
fn a_server_that_is_told_to_stop_while_it_binds_takes_nothing_from_another_one_of_its_app() {
    let mut world = World::empty();
    let server = world.app();
    world.serve_through(&server, Notes::default(), |builder| builder);
    stop_while_it_binds(&server, &world.service.stats);
    // Through the same socket, behind what the second has said.
    let client = block_on(NotesClient::connect(&server)).expect("the first serves on");
    block_on(client.echo(Note::new(1, ""))).unwrap();
}

#[test]
fn services_are_taken_back_also_by_who_waits_for_room_to_say_so() {
    const REQUESTS: usize = 1_000;
    for is_dropped in [true, false] {
        let world = World::empty();
        let (server, app) = (world.app(), world.app());
        let builder = Server::builder().app(&server).add_service(Notes::default());
        let (sender, mut stop) = provost::stream::<()>(1);
        let ends = Arc::new(AtomicBool::new(false));
        let is_ending = ends.clone();
        let thread = std::thread::spawn(move || {
            let told = poll_fn(|context| {
                let polled = Pin::new(&mut stop).poll_next(context);
                polled.map(|_| is_ending.store(true, Ordering::SeqCst))
            });
            if is_dropped {
                let (mut told, mut serving) = (pin!(told), pin!(builder.serve()));
                block_on(poll_fn(|context| {
                    assert!(serving.as_mut().poll(context).is_pending());
                    told.as_mut().poll(context)
                }));
            } else {
                block_on(builder.serve_with_shutdown(told)).unwrap();
            }
        });
        drop(client_of(&app));
        let is_deaf = &world.service.stats.is_deaf;
        is_deaf.store(true, Ordering::SeqCst);
        let connect = |_| Box::pin(NotesClient::connect(&server));
        let mut connecting: Vec<_> = (0..REQUESTS).map(connect).collect();
        for attempt in &mut connecting {
            let polled = attempt.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(polled.is_pending());
        }
        drop(sender);
        eventually("the server ends", || ends.load(Ordering::SeqCst));
        is_deaf.store(false, Ordering::SeqCst);
        thread.join().unwrap();
        eventually("it is taken back", || {
            block_on(NotesClient::connect(&app)).is_err()
        });
    }
}

#[test]
fn a_server_whose_service_another_one_of_its_app_offers_does_not_take_it_away() {
    let mut world = World::empty();
    let (server, app) = (world.app(), world.app());
    world.serve_through(&server, Notes::default(), |builder| builder);
    let second = Server::builder().app(&server).add_service(Notes::default());
    assert_eq!(second.serve_blocking().unwrap_err().code(), Code::AlreadyExists);
    let client = block_on(NotesClient::connect(&app)).expect("the first serves on");
    block_on(client.echo(Note::new(1, ""))).unwrap();
}

#[test]
fn a_server_whose_node_ends_while_it_binds_waits_for_the_next() {
    let mut world = World::empty();
    let server = world.app();
    world.service.stats.is_deaf.store(true, Ordering::SeqCst);
    let is_ready = Arc::new(AtomicBool::new(false));
    let ready = is_ready.clone();
    let builder = Server::builder()
        .app(&server)
        .add_service(Notes::default())
        .on_ready(move || ready.store(true, Ordering::SeqCst));
    let mut serving = pin!(builder.serve());
    let polled = serving.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    world.restart();
    block_on(poll_fn(|context| match serving.as_mut().poll(context) {
        Poll::Ready(ended) => panic!("it has ended: {ended:?}"),
        Poll::Pending if is_ready.load(Ordering::SeqCst) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    }));
}

#[test]
fn a_handler_that_panics_as_it_is_dropped_leaves_the_server_and_other_calls_alone() {
    let world = World::empty();
    let (server, app) = (world.app(), world.app());
    let hanging = HangingService::default();
    let builder = Server::builder().app(&server).add_service(hanging.clone());
    let (stop, thread) = serve_until_dropped(builder);
    let client = client_of(&app);
    let panics = call(&client, "panic");
    eventually("its handler has begun", || hanging.started() == 1);
    let others: Vec<_> = (0..2).map(|_| call(&client, "hang")).collect();
    eventually("all handlers have begun", || hanging.started() == 3);
    drop(stop);
    thread.join().unwrap();
    assert_eq!(panics.join().unwrap().code(), Code::Internal);
    for call in others {
        assert_eq!(call.join().unwrap().message(), "the server stopped");
    }
}

#[test]
fn a_spawned_handler_that_panics_as_it_is_dropped_is_over_for_its_server() {
    type Spawned = Pin<Box<dyn Future<Output = ()> + Send>>;
    let mut world = World::empty();
    let server = world.app();
    let hanging = HangingService::default();
    let spawned: Arc<Mutex<Vec<Spawned>>> = Arc::default();
    let kept = spawned.clone();
    world.serve_service(&server, hanging.clone(), |builder| {
        builder.spawn(move |handler| kept.lock().unwrap().push(handler))
    });
    let app = world.app();
    let client = client_of(&app);
    let call = call(&client, "panic");
    eventually("the handler is spawned", || !spawned.lock().unwrap().is_empty());
    let mut handler = spawned.lock().unwrap().pop().unwrap();
    assert!(
        handler
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    );
    assert_eq!(hanging.started(), 1);
    drop(handler);
    assert_eq!(call.join().unwrap().code(), Code::Internal);
    world.shut_down();
    eventually("the server has stopped", || world.has_stopped());
    assert!(world.join().is_ok());
}
