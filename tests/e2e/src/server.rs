//! The server that tests call: its handlers do what the caller says.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use provost::codegen::{Service, ServiceDescriptor, Stream};
use provost::{Code, Peer, Received, Request, Response, Server, ServerBuilder, Status, Streaming};
use tokio::time::{Sleep, sleep};

use crate::probe::probe_server::{Probe, ProbeServer};
use crate::probe::{
    CountsReply, CountsRequest, Depth, Drop as Drip, EchoMessage, FailRequest, FillReply, HoldReply,
    HoldRequest, Nest, Nothing, PourRequest,
};

/// How often a handler looks whether enough others have begun.
const GATHERING: Duration = Duration::from_millis(500);
/// Under this key `Mirror` is asked who calls, and tells it.
const WHO_CALLS: &str = "who-calls-bin";

/// Under this key `Counts` is asked which server answers, and tells its process as metadata.
pub(crate) const WHICH_SERVER: &str = "which-server";

/// Adds the process of this server, if that is what `Counts` is asked.
pub(crate) fn name_server<T>(key: &str, response: &mut Response<T>) {
    if key == WHICH_SERVER {
        let process = std::process::id().to_string();
        let inserted = response.metadata_mut().insert(WHICH_SERVER, &process);
        inserted.expect("a number is a value of metadata");
    }
}

/// What a handler knows of its caller, in one line.
fn who_calls(peer: Option<Peer>) -> String {
    let Some(peer) = peer else {
        return "nothing is known".to_owned();
    };
    let app = peer.app().map_or_else(
        || "unknown app".to_owned(),
        |app| format!("{} {} {} {}", app.name, app.user, app.uid, app.workload),
    );
    format!("{app} @ {} {}", peer.node(), peer.identity())
}

/// Handlers of `probe.Probe`.
#[derive(Clone, Debug, Default)]
pub struct ProbeService {
    counts: Arc<Mutex<HashMap<String, Counts>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    begun: u64,
    cancelled: u64,
    finished: u64,
}

impl ProbeService {
    fn counted(&self, key: &str, change: impl FnOnce(&mut Counts)) -> Counts {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let of_key = counts.entry(key.to_owned()).or_default();
        change(of_key);
        *of_key
    }

    /// Counts a handler as begun now, and as finished or cancelled when what is returned is dropped.
    fn begin(&self, key: &str) -> Handling {
        self.counted(key, |counts| counts.begun += 1);
        Handling {
            service: self.clone(),
            key: key.to_owned(),
            is_finished: false,
        }
    }
}

/// A handler that has begun.
#[derive(Debug)]
struct Handling {
    service: ProbeService,
    key: String,
    is_finished: bool,
}

impl Drop for Handling {
    fn drop(&mut self) {
        let is_finished = self.is_finished;
        self.service.counted(&self.key, |counts| {
            if is_finished {
                counts.finished += 1
            } else {
                counts.cancelled += 1
            }
        });
    }
}

impl Probe for ProbeService {
    async fn echo(&self, request: Request<Received<EchoMessage>>) -> Result<Response<EchoMessage>, Status> {
        let message = request.get_ref();
        Ok(Response::new(EchoMessage {
            text: message.text.clone(),
            payload: message.payload.as_slice().into(),
            numbers: message.numbers.clone(),
            labels: message.labels.clone(),
        }))
    }

    async fn hold(&self, request: Request<Received<HoldRequest>>) -> Result<Response<HoldReply>, Status> {
        let time_left = request.time_left().unwrap_or_default();
        let mut handling = self.begin(&request.get_ref().key);
        while self.counted(&request.get_ref().key, |_| ()).begun < request.get_ref().until_begun {
            sleep(GATHERING).await;
        }
        sleep(Duration::from_millis(request.get_ref().milliseconds.into())).await;
        handling.is_finished = true;
        Ok(Response::new(HoldReply {
            deadline_milliseconds: time_left.as_millis() as u64,
        }))
    }

    async fn fail(&self, request: Request<Received<FailRequest>>) -> Result<Response<Nothing>, Status> {
        let asked = request.get_ref();
        let code = Code::from_number(asked.code);
        if code == Code::Ok {
            return Ok(Response::new(Nothing::default()));
        }
        Err(Status::with_details(
            code,
            asked.message.as_str(),
            asked.details.to_vec(),
        ))
    }

    async fn mirror(&self, request: Request<Received<Nothing>>) -> Result<Response<Nothing>, Status> {
        let mut response = Response::new(Nothing::default());
        *response.metadata_mut() = request.metadata().clone();
        *response.trailers_mut() = request.metadata().clone();
        if request.metadata().get_bin(WHO_CALLS).is_some() {
            let told = who_calls(request.peer());
            let inserted = response.trailers_mut().insert_bin(WHO_CALLS, told.as_bytes());
            inserted.map_err(|error| Status::internal(error.to_string()))?;
        }
        Ok(response)
    }

    async fn counts(
        &self,
        request: Request<Received<CountsRequest>>,
    ) -> Result<Response<CountsReply>, Status> {
        let counts = self.counted(&request.get_ref().key, |_| ());
        let mut response = Response::new(CountsReply {
            begun: counts.begun,
            cancelled: counts.cancelled,
            finished: counts.finished,
        });
        name_server(&request.get_ref().key, &mut response);
        Ok(response)
    }

    type PourStream = Pouring;

    async fn pour(&self, request: Request<Received<PourRequest>>) -> Result<Response<Pouring>, Status> {
        let request = request.get_ref();
        Ok(Response::new(Pouring {
            handling: self.begin(&request.key),
            sent: 0,
            count: request.count,
            bytes: request.bytes as usize,
            pause: Duration::from_millis(request.pause_milliseconds.into()),
            pause_after: request.pause_after,
            sleeping: None,
        }))
    }

    async fn fill(&self, request: Request<Streaming<Drip>>) -> Result<Response<FillReply>, Status> {
        let mut handling = self.begin("fill");
        let mut drips = request.into_inner();
        let mut reply = FillReply::default();
        while let Some(drip) = drips.message().await? {
            reply.count += 1;
            reply.bytes += drip.payload.len() as u64;
        }
        handling.is_finished = true;
        Ok(Response::new(reply))
    }

    type ChatStream = Chatting;

    async fn chat(&self, request: Request<Streaming<Drip>>) -> Result<Response<Chatting>, Status> {
        Ok(Response::new(Chatting {
            handling: self.begin("chat"),
            drips: request.into_inner(),
        }))
    }

    async fn dig(&self, request: Request<Received<Nest>>) -> Result<Response<Depth>, Status> {
        let mut levels = 1;
        let mut nest: &Nest = request.get_ref();
        while let Some(inner) = nest.inner.as_deref() {
            levels += 1;
            nest = inner;
        }
        Ok(Response::new(Depth { levels }))
    }
}

/// The messages of `Pour`.
#[derive(Debug)]
pub struct Pouring {
    handling: Handling,
    sent: u32,
    count: u32,
    bytes: usize,
    pause: Duration,
    pause_after: u32,
    sleeping: Option<Pin<Box<Sleep>>>,
}

impl Pouring {
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.pause.is_zero() || self.sent < self.pause_after {
            return Poll::Ready(());
        }
        let pause = self.pause;
        let sleeping = self.sleeping.get_or_insert_with(|| Box::pin(sleep(pause)));
        ready!(sleeping.as_mut().poll(context));
        self.sleeping = None;
        Poll::Ready(())
    }
}

impl Stream for Pouring {
    type Item = Result<Drip, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.sent == self.count {
            self.handling.is_finished = true;
            return Poll::Ready(None);
        }
        ready!(self.poll_pause(context));
        self.sent += 1;
        Poll::Ready(Some(Ok(drip(self.sent, self.bytes))))
    }
}

/// The messages of `Chat`.
pub struct Chatting {
    handling: Handling,
    drips: Streaming<Drip>,
}

impl Stream for Chatting {
    type Item = Result<Drip, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.drips).poll_next(context));
        self.handling.is_finished = next.is_none();
        Poll::Ready(next.map(|drip| Ok(Drip::clone(&*drip?))))
    }
}

/// Serves `probe.Probe` by its usual schema.
pub fn run() -> Result<(), Status> {
    serve(ProbeServer::new(ProbeService::default()))
}

/// Serves one service until the input ends.
pub(crate) fn serve(service: impl Service) -> Result<(), Status> {
    serve_all(Server::builder().add_service(service))
}

/// Serves until the input ends; then lets the calls in flight finish. Says `ready` when it serves.
pub(crate) fn serve_all(services: ServerBuilder) -> Result<(), Status> {
    let (input_open, input) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        // An error on the input means as much as its end.
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        drop(input_open);
    });
    let mut input = std::pin::pin!(input);
    let shutdown = std::future::poll_fn(move |context| input.as_mut().poll(context).map(|_| ()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let is_announced = AtomicBool::new(false);
    runtime.block_on(
        services
            .on_ready(move || {
                if !is_announced.swap(true, Ordering::Relaxed) {
                    println!("ready");
                }
            })
            .serve_with_shutdown(shutdown),
    )
}

/// What the service is: its name, schema and methods.
#[must_use]
pub fn descriptor() -> &'static ServiceDescriptor {
    &crate::probe::probe_service::SERVICE
}

/// A message of a stream.
pub(crate) fn drip(number: u32, bytes: usize) -> Drip {
    Drip {
        number,
        payload: payload(bytes),
    }
}

/// Bytes that differ from their neighbours, so that a shift shows. Whole runs at a time: unoptimized builds are slow
/// enough.
pub(crate) fn payload(bytes: usize) -> provost::shared::Bytes {
    let run: Vec<u8> = (0..=250).collect();
    let mut payload = provost::shared::Bytes::with_capacity(bytes);
    while payload.len() < bytes {
        let left = bytes - payload.len();
        payload.extend_from_slice(&run[..left.min(run.len())]);
    }
    payload
}

/// Whether these are the bytes of [`payload`].
pub(crate) fn is_payload(got: &[u8], bytes: usize) -> bool {
    let run: Vec<u8> = (0..=250).collect();
    got.len() == bytes && got.chunks(run.len()).all(|chunk| chunk == &run[..chunk.len()])
}
