//! What the tests of this library share: a message, a service, its client, and a stand-in for the node's service.
#![allow(dead_code, unreachable_pub)]

pub mod fake;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use provost::codegen::{self, MethodDescriptor, Methods, Service, ServiceDescriptor, Stream};
use provost::shared::{Bytes, String as SharedString};
use provost::{
    App, Channel, IntoRequest, IntoStreamingRequest, Received, Request, Response, Status, Streaming,
};

/// The one message of the tests.
#[derive(Clone, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Note {
    pub number: u64,
    pub text: SharedString,
    pub data: Bytes,
}

provost::__message!(Note, "test.Note", [number, text, data]);

impl Note {
    pub fn new(number: u64, text: &str) -> Note {
        Note {
            number,
            text: text.into(),
            data: Bytes::new(),
        }
    }
}

const METHODS: &[MethodDescriptor] = &[
    provost::__method!("Echo", Unary, Note, Note),
    provost::__method!("Repeat", ServerStreaming, Note, Note),
    provost::__method!("Sum", ClientStreaming, Note, Note),
    provost::__method!("Chat", Bidirectional, Note, Note),
    provost::__method!("Missing", Unary, Note, Note),
];

pub static NOTES: ServiceDescriptor = provost::__service!("test.Notes", &[7; 32], b"a schema", METHODS);

/// The same under another name.
pub static BACK: ServiceDescriptor = provost::__service!("test.Back", &[8; 32], b"a schema", METHODS);

/// A client as generated code has it.
#[derive(Clone, Debug)]
pub struct NotesClient {
    pub channel: Channel,
}

impl NotesClient {
    pub async fn connect(app: &App) -> Result<NotesClient, Status> {
        let channel = Channel::builder(&NOTES).app(app).connect("").await?;
        Ok(NotesClient { channel })
    }

    /// A client of [`BACK`].
    pub async fn connect_to_back(app: &App) -> Result<NotesClient, Status> {
        let channel = Channel::builder(&BACK).app(app).connect("").await?;
        Ok(NotesClient { channel })
    }

    pub async fn echo(&self, request: impl IntoRequest<Note>) -> Result<Response<Received<Note>>, Status> {
        codegen::unary(&self.channel, 0, request.into_request()).await
    }

    pub async fn repeat(&self, request: impl IntoRequest<Note>) -> Result<Response<Streaming<Note>>, Status> {
        codegen::server_streaming(&self.channel, 1, request.into_request()).await
    }

    pub async fn sum(
        &self,
        requests: impl IntoStreamingRequest<Message = Note>,
    ) -> Result<Response<Received<Note>>, Status> {
        codegen::client_streaming(&self.channel, 2, requests.into_streaming_request()).await
    }

    pub async fn chat(
        &self,
        requests: impl IntoStreamingRequest<Message = Note>,
    ) -> Result<Response<Streaming<Note>>, Status> {
        codegen::bidirectional(&self.channel, 3, requests.into_streaming_request()).await
    }

    pub async fn missing(&self, request: impl IntoRequest<Note>) -> Result<Response<Received<Note>>, Status> {
        codegen::unary(&self.channel, 4, request.into_request()).await
    }
}

/// A server whose behaviour is chosen by the text of the request.
#[derive(Clone, Default)]
pub struct Notes {
    /// A service that handlers of the text `nested` call.
    pub upstream: Option<NotesClient>,
    /// Whether it is the service behind another.
    pub is_back: bool,
}

impl Notes {
    async fn echo(&self, request: Request<Received<Note>>) -> Result<Response<Note>, Status> {
        match &*request.get_ref().text {
            "panic" => panic!("as the test wants it"),
            "fail" => Err(failure(&request)),
            "hang" => {
                STARTED.fetch_add(1, Ordering::SeqCst);
                let _dropped = CountDrops;
                std::future::pending().await
            }
            "time left" => {
                let left = request.time_left().map_or(0, |left| left.as_nanos() as u64);
                Ok(Note::new(left, "").into())
            }
            "count" => Ok(Note::new(COUNT.get().map_or(0, |count| count()), "").into()),
            "nested" => {
                let upstream = self.upstream.as_ref().expect("an upstream service");
                let response = upstream
                    .echo(Note::new(request.get_ref().number, "time left"))
                    .await?;
                Ok(response.into_inner().to_owned().into())
            }
            "nested, blocking" => {
                let upstream = self.upstream.as_ref().expect("an upstream service");
                let note = Note::new(request.get_ref().number, "behind");
                let response = provost::blocking::block_on(upstream.echo(note))?;
                Ok(response.into_inner().to_owned().into())
            }
            "metadata" => {
                let mut response = Response::new(Note::new(1, "with metadata"));
                let got = request.metadata().get("ask").unwrap_or("").to_owned();
                response.metadata_mut().insert("before", &got).unwrap();
                response.trailers_mut().insert("after", "done").unwrap();
                Ok(response)
            }
            "long" => {
                let mut note = Note::new(0, "");
                note.data = Bytes::zeroed(10_000);
                Ok(note.into())
            }
            "mark" => {
                let mark = request.extensions().get::<NoteMark>();
                Ok(Note::new(0, mark.map_or("", |mark| &mark.0)).into())
            }
            text => match text.strip_prefix("header ") {
                Some(key) => Ok(Note::new(0, request.metadata().get(key).unwrap_or("")).into()),
                None => Ok(request.get_ref().to_owned().into()),
            },
        }
    }
}

/// What interceptors leave for a handler, which answers a request of the text `mark` with it.
#[derive(Clone, Debug)]
pub struct NoteMark(pub String);

fn failure(request: &Request<Received<Note>>) -> Status {
    let mut status = Status::with_details(
        provost::Code::NotFound,
        format!("no {}", request.get_ref().number),
        b"details".to_vec(),
    );
    status.metadata_mut().insert("why", "because").unwrap();
    status
}

/// What a request of the text `count` is answered with, on the thread that serves.
pub static COUNT: std::sync::OnceLock<fn() -> u64> = std::sync::OnceLock::new();

/// Handlers that hang.
pub static STARTED: AtomicU64 = AtomicU64::new(0);

/// Handlers that were dropped before their end.
pub static DROPPED: AtomicU64 = AtomicU64::new(0);

struct CountDrops;

impl Drop for CountDrops {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, Ordering::SeqCst);
    }
}

impl Service for Notes {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        if self.is_back { &BACK } else { &NOTES }
    }

    fn register(&self, methods: &mut Methods) {
        let notes = self.clone();
        methods.unary(0, move |request| {
            let notes = notes.clone();
            async move { notes.echo(request).await }
        });
        methods.server_streaming(1, |request: Request<Received<Note>>| async move {
            let note = request.into_inner();
            if &*note.text == "fail" {
                return Err(Status::out_of_range("too far"));
            }
            let (count, data) = match &*note.text {
                "long" => (1, note.number as usize),
                _ => (note.number, note.data.len()),
            };
            Ok(Response::new(Counter {
                next: 0,
                count,
                data,
                fails: &*note.text == "fail at end",
            }))
        });
        methods.client_streaming(2, |requests: Request<Streaming<Note>>| async move {
            let mut requests = requests.into_inner();
            let mut sum = 0;
            while let Some(note) = requests.message().await? {
                sum += note.number;
            }
            Ok(Response::new(Note::new(sum, "sum")))
        });
        methods.bidirectional(3, |requests: Request<Streaming<Note>>| async move {
            Ok(Response::new(Doubled(requests.into_inner())))
        });
    }
}

pub struct Counter {
    next: u64,
    count: u64,
    data: usize,
    fails: bool,
}

impl Stream for Counter {
    type Item = Result<Note, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        if self.next == self.count {
            let failure = self.fails.then(|| Err(Status::data_loss("the end is missing")));
            self.fails = false;
            return std::task::Poll::Ready(failure);
        }
        self.next += 1;
        let mut note = Note::new(self.next, "counted");
        note.data = Bytes::zeroed(self.data);
        std::task::Poll::Ready(Some(Ok(note)))
    }
}

/// Answers each note with twice its number.
pub struct Doubled(Streaming<Note>);

impl Stream for Doubled {
    type Item = Result<Note, Status>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        let next = std::pin::Pin::new(&mut self.0).poll_next(context);
        next.map(|next| next.map(|note| note.map(|note| Note::new(note.number * 2, &note.text))))
    }
}

/// A list as a stream.
pub struct Listed<T>(pub std::collections::VecDeque<T>);

impl<T> Unpin for Listed<T> {}

impl<T> Stream for Listed<T> {
    type Item = T;
    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<T>> {
        std::task::Poll::Ready(self.0.pop_front())
    }
}

pub fn listed<T>(items: impl IntoIterator<Item = T>) -> Listed<T> {
    Listed(items.into_iter().collect())
}

/// A place for a socket, a service at it, and a server that runs in a thread of its own.
pub struct World {
    pub directory: tempfile::TempDir,
    pub service: fake::FakeService,
    stop: Option<std::sync::mpsc::Sender<()>>,
    shutdown: std::sync::Arc<Shutdown>,
    server: Option<std::thread::JoinHandle<Result<(), Status>>>,
}

#[derive(Default)]
struct Shutdown {
    is_set: std::sync::atomic::AtomicBool,
    waker: std::sync::Mutex<Option<std::task::Waker>>,
}

impl World {
    /// Without a server.
    pub fn empty() -> World {
        let directory = tempfile::tempdir().unwrap();
        let service = fake::FakeService::start(&directory.path().join("socket"));
        World {
            directory,
            service,
            stop: None,
            shutdown: Default::default(),
            server: None,
        }
    }

    pub fn new() -> World {
        let mut world = World::empty();
        world.serve(Notes::default());
        world
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn app(&self) -> App {
        App::builder().socket(self.socket()).attach().unwrap()
    }

    /// Serves in a thread, and waits until clients can connect.
    pub fn serve(&mut self, notes: Notes) {
        self.serve_with(notes, |builder| builder);
    }

    pub fn serve_with(
        &mut self,
        notes: Notes,
        build: impl FnOnce(provost::ServerBuilder) -> provost::ServerBuilder,
    ) {
        let app = self.app();
        self.serve_through(&app, notes, build);
    }

    /// Serves through this app.
    pub fn serve_through(
        &mut self,
        app: &App,
        notes: Notes,
        build: impl FnOnce(provost::ServerBuilder) -> provost::ServerBuilder,
    ) {
        self.serve_service(app, notes, build);
    }

    /// Serves any service of the notes.
    pub fn serve_service(
        &mut self,
        app: &App,
        service: impl Service,
        build: impl FnOnce(provost::ServerBuilder) -> provost::ServerBuilder,
    ) {
        let builder = build(provost::Server::builder().app(app).add_service(service));
        let shutdown = self.shutdown.clone();
        let stopped = std::future::poll_fn(move |context| {
            *shutdown.waker.lock().unwrap() = Some(context.waker().clone());
            if shutdown.is_set.load(Ordering::SeqCst) {
                std::task::Poll::Ready(())
            } else {
                std::task::Poll::Pending
            }
        });
        self.server = Some(std::thread::spawn(move || {
            builder.serve_blocking_with_shutdown(stopped)
        }));
        let app = self.app();
        for _ in 0..1000 {
            if provost::blocking::block_on(NotesClient::connect(&app)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("the server does not come up");
    }

    /// Asks the server to stop.
    pub fn shut_down(&self) {
        self.shutdown.is_set.store(true, Ordering::SeqCst);
        if let Some(waker) = &*self.shutdown.waker.lock().unwrap() {
            waker.wake_by_ref();
        }
    }

    /// Whether the server has returned.
    pub fn has_stopped(&self) -> bool {
        self.server
            .as_ref()
            .is_none_or(std::thread::JoinHandle::is_finished)
    }

    /// Waits for the server to return.
    pub fn join(&mut self) -> Result<(), Status> {
        self.server.take().unwrap().join().unwrap()
    }

    /// Ends the service as a kill would, and starts another at the same place.
    pub fn restart(&mut self) {
        let path = self.socket();
        let nowhere = self.directory.path().join("nowhere");
        self.service = fake::FakeService::start(&nowhere);
        self.service = fake::FakeService::start(&path);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shut_down();
        // A test that has failed may have left it as it does not end.
        if let Some(server) = self.server.take().filter(|_| !std::thread::panicking()) {
            let _ = server.join();
        }
    }
}

/// Waits until something holds, for a generous time.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..5000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("never: {what}");
}
