//! Provost: client and server as an application writes them, on one current-thread runtime each, as the ones of tonic.
//! Where their node's service listens stands in `PROVOST_SOCKET`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost::{Code, Received, Request, Response, Status};
use tokio::task::{LocalSet, spawn_local};

use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run, measure};
use crate::process::say_ready;
use crate::proto::echo_client::EchoClient;
use crate::proto::echo_server::{Echo, EchoServer};
use crate::proto::{EchoRequest, EchoResponse, GuardedRequest};
use crate::report::{Expected, Load, Report, Traffic};
use crate::roles::{RESPONSE, payload};

/// Calls that an idle client has made before it is idle.
const CALLS_BEFORE_IDLE: usize = 100;

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

/// Answers what the node's service brings.
pub(crate) fn serve() -> Result<(), Failure> {
    runtime()?.block_on(async {
        // A client that comes too early tries again.
        say_ready("");
        let served = provost::Server::builder()
            .add_service(EchoServer::new(Answer))
            .serve()
            .await;
        served.map_err(|status| Failure::role("server", status.to_string()))
    })
}

/// Makes load through the node's service.
pub(crate) fn load(load: &Load) -> Result<Report, Failure> {
    measure(load, |run| {
        let runtime = runtime()?;
        LocalSet::new().block_on(&runtime, async {
            let client = connect().await?;
            let payload: Rc<[u8]> = payload(load.size_bytes).into();
            let latencies = Rc::new(RefCell::new(Latencies::new()?));
            let caller = || {
                let (client, payload) = (client.clone(), payload.clone());
                caller(client, payload, run.clone(), latencies.clone(), load.traffic)
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

/// One call after the other. Each writes its payload into the shared heap, as an application's would be.
async fn caller(
    client: EchoClient,
    payload: Rc<[u8]>,
    run: Arc<Run>,
    latencies: Rc<RefCell<Latencies>>,
    traffic: Traffic,
) {
    for number in 0.. {
        if run.is_stopped() {
            return;
        }
        let began = Instant::now();
        let (answered, expected) = call(&client, &payload, traffic, number).await;
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

async fn call(
    client: &EchoClient,
    payload: &[u8],
    traffic: Traffic,
    number: u64,
) -> (Result<(), Status>, Expected) {
    if traffic == Traffic::Plain {
        let payload = payload.into();
        let answered = client.call(EchoRequest { payload }).await;
        return (answered.map(drop), Expected::Answered);
    }
    let (user, expected) = traffic.user(number);
    let request = GuardedRequest {
        user: user.into(),
        payload: payload.into(),
    };
    (client.guarded(request).await.map(drop), expected)
}

/// Connects, and tries again while the server has not bound its service yet.
pub(super) async fn connect() -> Result<EchoClient, Failure> {
    let began = Instant::now();
    loop {
        match EchoClient::connect("bench.Echo").await {
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
