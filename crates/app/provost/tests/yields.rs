//! Handlers that give their turn away: the executor's other tasks run meanwhile, and so do other calls.

mod support;

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use provost::blocking::block_on;
use provost::codegen::{Methods, Service, ServiceDescriptor};
use provost::{Received, Request, Response, Server, Status};
use support::{NOTES, Note, NotesClient, World, eventually};

/// How often a handler looks before it gives up: far more often than others need for their turn.
const LOOKS_MAX: u64 = 20_000_000;

/// A handler of the text `wait` waits until one of the text `open` has come.
#[derive(Clone, Default)]
struct HeldService {
    has_waiting: Arc<AtomicBool>,
    is_open: Arc<AtomicBool>,
}

impl HeldService {
    async fn echo(self, request: Request<Received<Note>>) -> Result<Response<Note>, Status> {
        if &*request.get_ref().text == "open" {
            self.is_open.store(true, Ordering::SeqCst);
            return Ok(Note::default().into());
        }
        self.has_waiting.store(true, Ordering::SeqCst);
        for _ in 0..LOOKS_MAX {
            if self.is_open.load(Ordering::SeqCst) {
                return Ok(Note::default().into());
            }
            give_turn_away().await;
        }
        Err(Status::aborted("nobody else had a turn"))
    }
}

/// Lets whatever else is ready run first.
async fn give_turn_away() {
    let mut has_waited = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl Service for HeldService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &NOTES
    }

    fn register(&self, methods: &mut Methods) {
        let held = self.clone();
        methods.unary(0, move |request| held.clone().echo(request));
    }
}

async fn connected(app: &provost::App) -> NotesClient {
    loop {
        match NotesClient::connect(app).await {
            Ok(client) => return client,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

#[test]
fn other_tasks_of_the_executor_run_while_a_handler_waits_for_them() {
    let world = World::empty();
    let (server, app) = (world.app(), world.app());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let held = HeldService::default();
    runtime.block_on(async {
        let builder = Server::builder().app(&server).add_service(held.clone());
        tokio::spawn(builder.serve());
        tokio::spawn(async move {
            while !held.has_waiting.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
            held.is_open.store(true, Ordering::SeqCst);
        });
        let client = connected(&app).await;
        client.echo(Note::new(0, "wait")).await.unwrap();
    });
}

#[test]
fn other_calls_are_answered_while_a_handler_waits_for_them() {
    let mut world = World::empty();
    let server = world.app();
    let held = HeldService::default();
    world.serve_service(&server, held.clone(), |builder| builder);
    let app = world.app();
    let client = block_on(NotesClient::connect(&app)).unwrap();
    let waiting = {
        let client = client.clone();
        std::thread::spawn(move || block_on(client.echo(Note::new(0, "wait"))).map(drop))
    };
    eventually("the handler waits", || held.has_waiting.load(Ordering::SeqCst));
    block_on(client.echo(Note::new(0, "open"))).unwrap();
    waiting.join().unwrap().unwrap();
}
