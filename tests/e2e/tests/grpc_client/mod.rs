//! An unmodified gRPC client (tonic) of `probe.Probe`, with messages of its own: it knows nothing of Provost.
#![allow(dead_code, reason = "each test uses what it needs of it")]

pub(crate) mod traffic;

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::{Node, NodeOptions, eventually};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NoContent {}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoMessage {
    #[prost(string, tag = "1")]
    pub(crate) text: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) numbers: Vec<u64>,
    #[prost(map = "string, string", tag = "4")]
    pub(crate) labels: std::collections::HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HoldRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(uint32, tag = "2")]
    pub(crate) milliseconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct HoldReply {
    #[prost(uint64, tag = "1")]
    pub(crate) deadline_milliseconds: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FailRequest {
    #[prost(uint32, tag = "1")]
    pub(crate) code: u32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) details: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CountsRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CountsReply {
    #[prost(uint64, tag = "1")]
    pub(crate) begun: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) cancelled: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) finished: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PourRequest {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(uint32, tag = "2")]
    pub(crate) count: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) bytes: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) pause_milliseconds: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) pause_after: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DripMessage {
    #[prost(uint32, tag = "1")]
    pub(crate) number: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) payload: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct FillReply {
    #[prost(uint64, tag = "1")]
    pub(crate) count: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) bytes: u64,
}

/// Where the clients' calls run.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    runtime.expect("an executor")
});

pub(crate) fn run<T>(calls: impl Future<Output = T>) -> T {
    RUNTIME.block_on(calls)
}

/// Makes calls beside others.
pub(crate) fn spawn<T: Send + 'static>(calls: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    RUNTIME.spawn(calls)
}

/// One channel, which connects when it is first used, and again when its connection has ended.
#[derive(Clone)]
pub(crate) struct GrpcProbe {
    channel: Channel,
    service: String,
}

impl GrpcProbe {
    /// A client of what listens at a place such as `http://127.0.0.1:1` or `unix:/path`.
    pub(crate) fn at(place: &str) -> GrpcProbe {
        GrpcProbe::of_endpoint(Endpoint::from_shared(place.to_owned()).unwrap())
    }

    /// The same, within TLS: at the port of this place.
    pub(crate) fn within_tls(place: &str, tls: ClientTlsConfig) -> GrpcProbe {
        let place = place.replace("http://", "https://");
        GrpcProbe::of_endpoint(Endpoint::from_shared(place).unwrap().tls_config(tls).unwrap())
    }

    fn of_endpoint(endpoint: Endpoint) -> GrpcProbe {
        let _entered = RUNTIME.enter();
        GrpcProbe {
            channel: endpoint.connect_lazy(),
            service: "probe.Probe".to_owned(),
        }
    }

    /// The same, of another service.
    pub(crate) fn of_service(&self, service: &str) -> GrpcProbe {
        GrpcProbe {
            channel: self.channel.clone(),
            service: service.to_owned(),
        }
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(64 << 20);
        let ready = grpc.ready().await;
        ready.map_err(|error| Status::unavailable(format!("not connected: {error}")))?;
        Ok(grpc)
    }

    fn path(&self, method: &str) -> PathAndQuery {
        PathAndQuery::try_from(format!("/{}/{method}", self.service)).unwrap()
    }

    pub(crate) async fn unary<Q, R>(&self, method: &str, message: Q) -> Result<R, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let response = self.request(method, Request::new(message)).await?;
        Ok(response.into_inner())
    }

    pub(crate) async fn request<Q, R>(&self, method: &str, request: Request<Q>) -> Result<Response<R>, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, R>::default();
        let mut grpc = self.ready().await?;
        grpc.unary(request, self.path(method), codec).await
    }

    pub(crate) async fn server_streaming<Q, R>(
        &self,
        method: &str,
        message: Q,
    ) -> Result<Streaming<R>, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let response = self.responses(method, Request::new(message)).await?;
        Ok(response.into_inner())
    }

    /// A call whose response is read as a stream, with its initial metadata.
    pub(crate) async fn responses<Q, R>(
        &self,
        method: &str,
        request: Request<Q>,
    ) -> Result<Response<Streaming<R>>, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, R>::default();
        let mut grpc = self.ready().await?;
        grpc.server_streaming(request, self.path(method), codec).await
    }

    pub(crate) async fn client_streaming<Q, R>(
        &self,
        method: &str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<R, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, R>::default();
        let mut grpc = self.ready().await?;
        let response = grpc.client_streaming(Request::new(messages), self.path(method), codec);
        Ok(response.await?.into_inner())
    }

    pub(crate) async fn streaming<Q, R>(
        &self,
        method: &str,
        messages: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<Streaming<R>, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let codec = ProstCodec::<Q, R>::default();
        let mut grpc = self.ready().await?;
        let response = grpc.streaming(Request::new(messages), self.path(method), codec);
        Ok(response.await?.into_inner())
    }

    /// Has the server echo a text.
    pub(crate) async fn echo(&self, text: &str) -> Result<String, Status> {
        let message = EchoMessage {
            text: text.to_owned(),
            ..EchoMessage::default()
        };
        let reply: EchoMessage = self.unary("Echo", message).await?;
        Ok(reply.text)
    }

    /// Calls of all kinds, with long messages, a status and a deadline.
    pub(crate) async fn calls_of_all_kinds(&self) {
        for bytes in [0, 100, 300_000, 3_000_000] {
            let message = EchoMessage {
                text: "naïve".to_owned(),
                payload: vec![7; bytes],
                numbers: vec![1, u64::MAX],
                labels: [("a".to_owned(), "b".to_owned())].into(),
            };
            let reply = self.unary::<_, EchoMessage>("Echo", message.clone()).await;
            assert!(reply.unwrap() == message, "{bytes}");
        }
        let request = PourRequest {
            count: 200,
            bytes: 10_000,
            ..PourRequest::default()
        };
        let mut pour = self
            .server_streaming::<_, DripMessage>("Pour", request)
            .await
            .unwrap();
        let mut count = 0;
        while let Some(drip) = pour.message().await.unwrap() {
            count += 1;
            assert_eq!((drip.number, drip.payload.len()), (count, 10_000));
        }
        assert_eq!(count, 200);
        let filled: FillReply = self.client_streaming("Fill", drips(100)).await.unwrap();
        assert_eq!((filled.count, filled.bytes), (100, 5_050_000));
        let mut chat = self.streaming::<_, DripMessage>("Chat", drips(50)).await.unwrap();
        let mut answered = 0;
        while let Some(drip) = chat.message().await.unwrap() {
            answered += 1;
            assert_eq!(
                (drip.number, drip.payload.len()),
                (answered, 1_000 * answered as usize)
            );
        }
        assert_eq!(answered, 50);

        let request = FailRequest {
            code: 5,
            message: "no “such” thing, 100%".to_owned(),
            ..FailRequest::default()
        };
        let failed = self.unary::<_, NoContent>("Fail", request).await.unwrap_err();
        assert_eq!(
            (failed.code(), failed.message()),
            (Code::NotFound, "no “such” thing, 100%")
        );
        let mut late = Request::new(HoldRequest {
            key: "late".to_owned(),
            milliseconds: 600_000,
        });
        late.set_timeout(Duration::from_millis(200));
        let late = self.request::<_, HoldReply>("Hold", late).await.unwrap_err();
        assert!(
            matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled),
            "{late:?}"
        );
    }

    /// What the server has counted under a key.
    pub(crate) async fn counts(&self, key: &str) -> CountsReply {
        let key = key.to_owned();
        self.unary("Counts", CountsRequest { key }).await.unwrap()
    }
}

fn drips(count: u32) -> impl Stream<Item = DripMessage> + Send + 'static {
    let drip = |number| DripMessage {
        number,
        payload: vec![number as u8; 1_000 * number as usize],
    };
    tonic::codegen::tokio_stream::iter((1..=count).map(drip))
}

/// A listener for gRPC at a free port, whose clients are this app.
pub(crate) fn tcp_listener(name: &str, app: &str) -> String {
    format!("[[grpc.listener]]\nname = \"{name}\"\naddress = \"127.0.0.1:0\"\napp = \"{app}\"\n")
}

/// A node with a listener `web` and a route of the probe's service by this transport.
pub(crate) fn routed(transport: &str, endpoint: SocketAddr, more: &str) -> NodeOptions {
    let route = format!(
        "[[route]]\nservice = \"probe.Probe\"\ntransport = \"{transport}\"\nendpoints = [\"{endpoint}\"]\n{more}"
    );
    NodeOptions {
        tables: tcp_listener("web", "web") + &route,
        ..NodeOptions::default()
    }
}

/// Where a listener of a node is, by the node's log.
pub(crate) fn place(node: &Node, name: &str) -> String {
    let mut found = None;
    eventually("the listener listens", WAIT_MAX, || {
        found = logged_address(&node.program.log(), name);
        found.is_some()
    });
    format!("http://{}", found.unwrap_or_default())
}

/// The last address that a log tells of a listener.
fn logged_address(log: &str, name: &str) -> Option<String> {
    let named = format!("name=\"{name}\"");
    let mut lines = log
        .lines()
        .filter(|line| line.contains("serving gRPC clients") && line.contains(&named));
    let words = lines.next_back()?.split(' ');
    let address = words.filter_map(|word| word.strip_prefix("address=")).next_back();
    address.map(str::to_owned)
}
