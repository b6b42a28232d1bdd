//! Provost: client and server as an application writes them, on one current-thread runtime each, as the ones of tonic.
//! Where their node's service listens stands in `PROVOST_SOCKET`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost::{App, Channel, Code, Received, Request, Response, Status};
use serde::{Deserialize, Serialize};
use tokio::task::{LocalSet, spawn_local};

use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run, measure};
use crate::plan::NodeWaiting;
use crate::process::say_ready;
use crate::proto::bulk_client::BulkClient;
use crate::proto::bulk_server::{Bulk, BulkServer};
use crate::proto::echo_client::{EchoClient, SERVICE};
use crate::proto::echo_server::{Echo, EchoServer};
use crate::proto::{EchoRequest, EchoResponse, FetchRequest, GuardedRequest};
use crate::report::{Expected, Load, Report, Traffic};
use crate::roles::{RESPONSE, payload};

/// Calls that an idle client has made before it is idle.
const CALLS_BEFORE_IDLE: usize = 100;

/// Bytes of an answer that a client may ask for.
const FETCHED_BYTES_MAX: u32 = 1 << 20;

/// How long a client tries to connect, and how long it waits in between.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(8);
const CONNECT_PAUSE: Duration = Duration::from_millis(20);

struct Answer;

impl Echo for Answer {
    async fn call(&self, request: Request<Received<EchoRequest>>) -> Result<Response<EchoResponse>, Status> {
        let payload = &request.get_ref().payload;
        std::hint::black_box((payload.first(), payload.last()));
        Ok(Response::new(EchoResponse {
            payload: RESPONSE.into(),
        }))
    }

    async fn guarded(
        &self,
        request: Request<Received<GuardedRequest>>,
    ) -> Result<Response<EchoResponse>, Status> {
        let payload = &request.get_ref().payload;
        std::hint::black_box((payload.first(), payload.last()));
        Ok(Response::new(EchoResponse {
            payload: RESPONSE.into(),
        }))
    }
}

impl Bulk for Answer {
    async fn call(&self, request: Request<Received<EchoRequest>>) -> Result<Response<EchoResponse>, Status> {
        Echo::call(self, request).await
    }

    async fn fetch(
        &self,
        request: Request<Received<FetchRequest>>,
    ) -> Result<Response<EchoResponse>, Status> {
        let payload = payload(request.get_ref().bytes.min(FETCHED_BYTES_MAX) as usize);
        Ok(Response::new(EchoResponse {
            payload: payload.into(),
        }))
    }
}

/// Which service a server is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Served {
    Echo,
    Bulk,
}

/// Answers what the node's service brings.
pub(crate) fn serve(served: Served, waiting: NodeWaiting) -> Result<(), Failure> {
    runtime()?.block_on(async {
        // A client that comes too early tries again.
        say_ready("");
        let builder = match app(waiting)? {
            Some(app) => provost::Server::builder().app(&app),
            None => provost::Server::builder(),
        };
        let builder = match served {
            Served::Echo => builder.add_service(EchoServer::new(Answer)),
            Served::Bulk => builder.add_service(BulkServer::new(Answer)),
        };
        let served = builder.serve().await;
        served.map_err(|status| Failure::role("server", status.to_string()))
    })
}

/// An app that waits so; the process's own waits as by default.
fn app(waiting: NodeWaiting) -> Result<Option<App>, Failure> {
    let sleeping = match waiting {
        NodeWaiting::Polling => return Ok(None),
        NodeWaiting::Sleeping => App::builder().spin(Duration::ZERO).attach(),
    };
    let attached = sleeping.map_err(|status| Failure::role("app", format!("attach: {status}")));
    attached.map(Some)
}

/// Makes load through the node's service.
pub(crate) fn load(load: &Load, waiting: NodeWaiting) -> Result<Report, Failure> {
    measure(load, |run| {
        let runtime = runtime()?;
        LocalSet::new().block_on(&runtime, async {
            let client = match app(waiting)? {
                Some(app) => Client::Echo(connect_through(&app).await?),
                None => Client::connect(load.traffic).await?,
            };
            let payload: Rc<[u8]> = payload(load.size_bytes).into();
            let latencies = Rc::new(RefCell::new(Latencies::default()));
            let caller = || {
                let (client, payload) = (client.clone(), payload.clone());
                caller(
                    client,
                    payload,
                    run.clone(),
                    latencies.clone(),
                    load.traffic,
                    load.interval_us,
                )
            };
            let callers: Vec<_> = (0..load.calls_in_flight).map(|_| spawn_local(caller())).collect();
            run.ready();
            for caller in callers {
                caller
                    .await
                    .map_err(|error| Failure::role("client", error.to_string()))?;
            }
            let latencies =
                Rc::try_unwrap(latencies).map_err(|_| Failure::role("client", "a caller lives on"))?;
            Ok(latencies.into_inner())
        })
    })
}

/// Calls a few times and then does nothing.
pub(crate) fn idle() -> Result<(), Failure> {
    runtime()?.block_on(async {
        let client = connect().await?;
        for _ in 0..CALLS_BEFORE_IDLE {
            let answered = client
                .call(EchoRequest {
                    payload: RESPONSE.into(),
                })
                .await;
            answered.map_err(|status| Failure::role("client", status.to_string()))?;
        }
        say_ready("");
        std::future::pending().await
    })
}

/// What load is made with.
#[derive(Clone)]
pub(super) enum Client {
    Echo(EchoClient),
    Bulk(BulkClient),
}

impl Client {
    pub(super) async fn connect(traffic: Traffic) -> Result<Client, Failure> {
        match traffic {
            Traffic::Bulk | Traffic::BulkAnswers => {
                patiently(async || BulkClient::connect("bench.Bulk").await)
                    .await
                    .map(Client::Bulk)
            }
            Traffic::Plain | Traffic::Guarded(_) => connect().await.map(Client::Echo),
        }
    }

    pub(super) async fn call(
        &self,
        payload: &[u8],
        traffic: Traffic,
        number: u64,
    ) -> (Result<(), Status>, Expected) {
        let (client, user, expected) = match self {
            Client::Bulk(client) if traffic == Traffic::BulkAnswers => {
                let bytes = payload.len() as u32;
                let answered = client.fetch(FetchRequest { bytes }).await;
                return (answered.map(drop), Expected::Answered);
            }
            Client::Bulk(client) => {
                let payload = payload.into();
                let answered = client.call(EchoRequest { payload }).await;
                return (answered.map(drop), Expected::Answered);
            }
            Client::Echo(client) if traffic == Traffic::Plain => {
                let payload = payload.into();
                let answered = client.call(EchoRequest { payload }).await;
                return (answered.map(drop), Expected::Answered);
            }
            Client::Echo(client) => {
                let (user, expected) = traffic.user(number);
                (client, user, expected)
            }
        };
        let request = GuardedRequest {
            user: user.into(),
            payload: payload.into(),
        };
        (client.guarded(request).await.map(drop), expected)
    }
}

/// One call after the other. Each writes its payload into the shared heap, as an application's would be.
async fn caller(
    client: Client,
    payload: Rc<[u8]>,
    run: Arc<Run>,
    latencies: Rc<RefCell<Latencies>>,
    traffic: Traffic,
    interval_us: u64,
) {
    let mut pace = Pace::new(interval_us);
    for number in 0.. {
        if run.is_stopped() {
            return;
        }
        pace.wait();
        let began = Instant::now();
        let (answered, expected) = client.call(&payload, traffic, number).await;
        match (answered, expected) {
            (Ok(()), Expected::Answered) => run.record(&mut latencies.borrow_mut(), began),
            (Err(status), Expected::Denied) if status.code() == Code::PermissionDenied => {
                run.record(&mut latencies.borrow_mut(), began);
            }
            (Ok(()), Expected::Denied) => run.error(&"a blocked user's call was answered"),
            (Err(status), _) => run.error(&status),
        }
    }
}

pub(super) struct Pace {
    interval: Duration,
    next: Instant,
}

impl Pace {
    pub(super) fn new(interval_us: u64) -> Pace {
        Pace {
            interval: Duration::from_micros(interval_us),
            next: Instant::now(),
        }
    }

    /// Returns when the next call is due.
    pub(super) fn wait(&mut self) {
        if self.interval.is_zero() {
            return;
        }
        // The async runtime's own timer counts in milliseconds, and nothing else waits for this thread.
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
        self.next = self.next.max(Instant::now() - self.interval) + self.interval;
    }
}

/// Connects, and tries again while the server has not bound its service yet.
pub(super) async fn connect() -> Result<EchoClient, Failure> {
    patiently(async || EchoClient::connect("bench.Echo").await).await
}

async fn connect_through(app: &App) -> Result<EchoClient, Failure> {
    patiently(async || {
        let channel = Channel::builder(&SERVICE).app(app).connect("bench.Echo").await;
        channel.map(EchoClient::new)
    })
    .await
}

async fn patiently<C>(connect: impl AsyncFn() -> Result<C, Status>) -> Result<C, Failure> {
    let began = Instant::now();
    loop {
        match connect().await {
            Ok(client) => return Ok(client),
            Err(_) if began.elapsed() < CONNECT_TIME_MAX => tokio::time::sleep(CONNECT_PAUSE).await,
            Err(status) => return Err(Failure::role("client", format!("connect: {status}"))),
        }
    }
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .doing(|| "start a tokio runtime".into())
}
