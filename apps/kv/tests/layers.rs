//! Layers of tower around the calls of a channel and the handlers of a server.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use provost::blocking::block_on;
use provost::codegen::{Methods, Service, ServiceDescriptor};
use provost::layer::{AnswerBody, CallBody, LayeredService};
use provost::{CallHead, Channel, Code, Received, Request, Response, Server, Status};
use provost_kv::proto::kv_client::{KvClient, SERVICE};
use provost_kv::proto::kv_server::KvServer;
use provost_kv::proto::*;
use provost_kv::service::KvService;
use tower::ServiceBuilder;
use tower_layer::{Layer, layer_fn};

type Outcomes = Arc<Mutex<Vec<String>>>;

/// Notes what each call comes to, and marks requests and responses.
#[derive(Clone)]
struct NotingService<S> {
    name: &'static str,
    outcomes: Outcomes,
    inner: S,
}

/// The layers that an answer has come through at this end, innermost first.
#[derive(Clone, Debug, Default, PartialEq)]
struct PassedLayers(Vec<&'static str>);

impl<S> tower_service::Service<Request<CallBody>> for NotingService<S>
where
    S: tower_service::Service<Request<CallBody>, Response = Response<AnswerBody>>,
    S::Error: std::fmt::Display,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, mut request: Request<CallBody>) -> Self::Future {
        let (name, outcomes) = (self.name, self.outcomes.clone());
        let path = request.get_ref().path();
        request.metadata_mut().append("passed", name).unwrap();
        request.extensions_mut().insert(PassedLayers(vec![name]));
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut result = answer.await;
            let outcome = match &mut result {
                Ok(response) => {
                    response.metadata_mut().append("passed", name).unwrap();
                    let mut layers = response
                        .extensions_mut()
                        .remove::<PassedLayers>()
                        .unwrap_or_default();
                    layers.0.push(name);
                    response
                        .metadata_mut()
                        .append("layers", &layers.0.join(" "))
                        .unwrap();
                    response.extensions_mut().insert(layers);
                    "OK".to_owned()
                }
                Err(error) => error.to_string(),
            };
            outcomes.lock().unwrap().push(format!("{name} {path} {outcome}"));
            result
        })
    }
}

fn noting(
    name: &'static str,
    outcomes: &Outcomes,
) -> impl Layer<LayeredService, Service = NotingService<LayeredService>> + Clone + use<> {
    let outcomes = outcomes.clone();
    layer_fn(move |inner| NotingService {
        name,
        outcomes: outcomes.clone(),
        inner,
    })
}

fn get(key: &str) -> GetRequest {
    GetRequest { key: key.into() }
}

/// Makes a call of each kind, and reads what it comes to.
async fn calls_of_all_kinds(client: &KvClient) -> Result<(), Status> {
    let loaded = |key: &str| Entry {
        key: key.into(),
        ..Entry::default()
    };
    let (mut sender, entries) = provost::stream(2);
    sender.send(loaded("a")).await.unwrap();
    sender.send(loaded("b")).await.unwrap();
    drop(sender);
    assert_eq!(client.load(entries).await?.get_ref().entries, 2);
    assert!(client.get(get("a")).await.is_ok());
    let mut scanned = client.scan(ScanRequest::default()).await?.into_inner();
    let mut count = 0;
    while scanned.message().await?.is_some() {
        count += 1;
    }
    assert_eq!(count, 2);
    let (mut actions, requests) = provost::stream(1);
    let action = sync_request::Action::Delete("a".into());
    actions.send(SyncRequest { id: 1, action }).await.unwrap();
    drop(actions);
    let mut replies = client.sync(requests).await?.into_inner();
    assert_eq!(replies.message().await?.unwrap().id, 1);
    Ok(())
}

#[test]
fn layers_see_calls_of_all_kinds_and_what_they_come_to() {
    let outcomes = Outcomes::default();
    let server = Server::builder().add_service(KvServer::new(KvService::default()));
    let server = server
        .layer(noting("inner", &outcomes))
        .layer(noting("outer", &outcomes));
    let channel = server.in_process().unwrap().channel(&SERVICE).unwrap();
    let client = KvClient::new(channel.layer(noting("client", &outcomes)));
    block_on(async {
        calls_of_all_kinds(&client).await.unwrap();
        let seen: Vec<_> = std::mem::take(&mut *outcomes.lock().unwrap());
        for method in ["Load", "Get", "Scan", "Sync"] {
            let of_method = seen.iter().filter(|line| line.contains(&format!("/{method} ")));
            let expected = ["inner", "outer", "client"].map(|name| format!("{name} /kv.Kv/{method} OK"));
            assert_eq!(of_method.cloned().collect::<Vec<_>>(), expected);
        }
        let response = client.get(get("b")).await.unwrap();
        let passed: Vec<_> = response.metadata().get_all("passed").collect();
        assert_eq!(passed, [&b"inner"[..], b"outer", b"client"]);
        // Extensions are what an end says to itself.
        let told: Vec<_> = response.metadata().get_all("layers").collect();
        assert_eq!(told, [&b"inner"[..], b"inner outer", b"client"]);
        let own = response.extensions().get::<PassedLayers>();
        assert_eq!(own, Some(&PassedLayers(vec!["client"])));
        let status = client.get(get("none")).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        let last = outcomes.lock().unwrap().last().cloned().unwrap();
        assert_eq!(last, format!("client /kv.Kv/Get {status}"));
    });
}

/// Has `Get` alone, which says what metadata it got, or hangs.
struct OddService;

impl Service for OddService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn register(&self, methods: &mut Methods) {
        methods.unary(0, |request: Request<Received<GetRequest>>| async move {
            if request.get_ref().key == "hang" {
                std::future::pending::<()>().await;
            }
            if request.get_ref().key == "layered" {
                // What the server's layer has left there comes as far as the handler.
                let layers = request.extensions().get::<PassedLayers>();
                assert_eq!(layers, Some(&PassedLayers(vec!["server"])));
            }
            let passed: Vec<_> = request.metadata().get_all("passed").collect();
            let entry = Entry {
                key: String::from_utf8_lossy(&passed.join(&b' ')).as_ref().into(),
                ..Entry::default()
            };
            Ok(Response::new(GetReply { entry: entry.into() }))
        });
    }
}

#[test]
fn interceptors_come_first_and_layers_add_to_requests() {
    let outcomes = Outcomes::default();
    let stamp = |call: &mut CallHead<'_>| {
        call.metadata_mut().append("passed", "interceptor").unwrap();
        Ok(())
    };
    let server = Server::builder()
        .add_service(OddService)
        .layer(noting("server", &outcomes));
    let channel = server
        .intercept(stamp)
        .in_process()
        .unwrap()
        .channel(&SERVICE)
        .unwrap();
    let client = KvClient::new(channel.layer(noting("client", &outcomes)).intercept(stamp));
    let response = block_on(client.get(get("layered"))).unwrap();
    let entry = response.get_ref().entry.as_deref().unwrap();
    assert_eq!(entry.key, "interceptor client interceptor server");
}

#[test]
fn towers_own_layers_end_calls() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let shed = ServiceBuilder::new()
            .map_err(|_| Status::resource_exhausted("shed"))
            .load_shed()
            .concurrency_limit(1)
            .into_inner();
        let channel = Channel::in_process(OddService).unwrap().layer(shed);
        let client = KvClient::new(channel.clone());
        let hanging = client.get(get("hang"));
        let mut hanging = std::pin::pin!(hanging);
        let polled = std::future::poll_fn(|task| Poll::Ready(hanging.as_mut().poll(task))).await;
        assert!(polled.is_pending());
        assert_eq!(
            client.get(get("say")).await.unwrap_err().code(),
            Code::ResourceExhausted
        );
        let timeout = ServiceBuilder::new()
            .timeout(Duration::from_millis(20))
            .into_inner();
        let client = KvClient::new(Channel::in_process(OddService).unwrap().layer(timeout));
        assert!(client.get(get("say")).await.is_ok());
        let status = client.get(get("hang")).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unknown, "request timed out")
        );
    });
}

#[test]
fn a_call_that_waits_for_a_layer_ends_at_its_deadline() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let one_at_a_time = ServiceBuilder::new().concurrency_limit(1).into_inner();
        let client = KvClient::new(Channel::in_process(OddService).unwrap().layer(one_at_a_time));
        let mut hanging = std::pin::pin!(client.get(get("hang")));
        let polled = std::future::poll_fn(|task| Poll::Ready(hanging.as_mut().poll(task))).await;
        assert!(polled.is_pending());
        let mut late = Request::new(get("say"));
        late.set_timeout(Duration::from_millis(20));
        let ended = tokio::time::timeout(Duration::from_secs(60), client.get(late)).await;
        let status = ended.expect("it ends by itself").unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
    });
}
