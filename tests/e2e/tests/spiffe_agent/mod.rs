//! A SPIFFE agent: it serves the Workload API at a Unix socket, written from the specification alone, and says what its test wants.

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tonic::body::Body;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// The authority of a trust domain.
pub(crate) struct TrustDomain {
    pub(crate) name: &'static str,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl TrustDomain {
    pub(crate) fn new(name: &'static str) -> TrustDomain {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        TrustDomain { name, issuer }
    }

    pub(crate) fn bundle(&self) -> Vec<u8> {
        self.issuer.der().to_vec()
    }

    /// A fresh X.509-SVID for a workload, as an agent of this domain says it.
    pub(crate) fn answer(&self, path: &str) -> SvidResponse {
        self.answer_for(path, Vec::new())
    }

    /// The same for a workload that can be called by the host's name too.
    pub(crate) fn host_answer(&self, path: &str) -> SvidResponse {
        self.answer_for(path, vec![SanType::DnsName("localhost".try_into().unwrap())])
    }

    fn answer_for(&self, path: &str, hosts: Vec<SanType>) -> SvidResponse {
        let id = format!("spiffe://{}/{path}", self.name);
        let mut params = CertificateParams::default();
        params.subject_alt_names = hosts;
        let id_name = SanType::URI(id.as_str().try_into().unwrap());
        params.subject_alt_names.push(id_name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        SvidResponse {
            svids: vec![SvidMessage {
                spiffe_id: id,
                x509_svid: certificate.der().to_vec(),
                x509_svid_key: key.serialize_der(),
                bundle: self.bundle(),
            }],
            ..SvidResponse::default()
        }
    }
}

impl SvidResponse {
    /// The same, federated with another domain.
    pub(crate) fn with(mut self, other: &TrustDomain) -> SvidResponse {
        let id = format!("spiffe://{}", other.name);
        self.federated_bundles.insert(id, other.bundle());
        self
    }
}

/// What an agent says to whoever listens.
type AgentSays = Result<SvidResponse, Status>;

/// A running agent. It is gone with all of its streams when it is dropped.
pub(crate) struct SpiffeAgent {
    says: watch::Sender<AgentSays>,
    socket: PathBuf,
    _runtime: Runtime,
}

impl SpiffeAgent {
    /// One with an answer for whoever asks.
    pub(crate) fn begin(socket: &Path, answer: SvidResponse) -> SpiffeAgent {
        // One of before may have left it.
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let says = watch::Sender::new(Ok(answer));
        let api = WorkloadApi(says.clone());
        runtime.spawn(async move {
            let listener = tokio::net::UnixListener::from_std(listener).unwrap();
            tonic::transport::Server::builder()
                .add_service(api)
                .serve_with_incoming(UnixListenerStream::new(listener))
                .await
        });
        SpiffeAgent {
            says,
            socket: socket.to_owned(),
            _runtime: runtime,
        }
    }

    /// Has it say something else, to whoever listens and whoever asks.
    pub(crate) fn say(&self, answer: SvidResponse) {
        let _before = self.says.send_replace(Ok(answer));
    }

    /// Has it end all streams, and refuse whoever asks.
    pub(crate) fn refuse(&self, status: Status) {
        let _before = self.says.send_replace(Err(status));
    }
}

impl Drop for SpiffeAgent {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
    }
}

#[derive(Clone)]
struct WorkloadApi(watch::Sender<AgentSays>);

impl NamedService for WorkloadApi {
    const NAME: &'static str = "SpiffeWorkloadAPI";
}

impl Service<http::Request<Body>> for WorkloadApi {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = FetchX509Svid(self.0.clone());
        Box::pin(async move {
            if request.uri().path() != "/SpiffeWorkloadAPI/FetchX509SVID" {
                return Ok(Status::unimplemented("another method").into_http());
            }
            let codec: ProstCodec<SvidResponse, SvidRequest> = ProstCodec::default();
            Ok(Grpc::new(codec).server_streaming(method, request).await)
        })
    }
}

struct FetchX509Svid(watch::Sender<AgentSays>);

impl ServerStreamingService<SvidRequest> for FetchX509Svid {
    type Response = SvidResponse;
    type ResponseStream = AnswerStream;
    type Future = BoxFuture<Response<AnswerStream>, Status>;

    fn call(&mut self, request: Request<SvidRequest>) -> Self::Future {
        let header = request.metadata().get("workload.spiffe.io").cloned();
        let mut says = self.0.subscribe();
        Box::pin(async move {
            if header.is_none_or(|header| header != "true") {
                return Err(Status::invalid_argument("the security header is missing"));
            }
            says.borrow_and_update().clone()?;
            let (sender, answers) = mpsc::channel(1);
            tokio::spawn(async move {
                loop {
                    let said = says.borrow_and_update().clone();
                    let is_over = said.is_err();
                    if sender.send(said).await.is_err() || is_over || says.changed().await.is_err() {
                        return;
                    }
                }
            });
            Ok(Response::new(AnswerStream(answers)))
        })
    }
}

/// The answers of one stream.
struct AnswerStream(mpsc::Receiver<AgentSays>);

impl Stream for AnswerStream {
    type Item = AgentSays;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<AgentSays>> {
        self.0.poll_recv(context)
    }
}

/// No identity for whoever asks.
pub(crate) fn no_identity() -> Status {
    Status::new(Code::PermissionDenied, "no identity issued")
}

/// The message `X509SVIDRequest` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
struct SvidRequest {}

/// The message `X509SVIDResponse` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SvidResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) svids: Vec<SvidMessage>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) crl: Vec<Vec<u8>>,
    #[prost(map = "string, bytes", tag = "3")]
    pub(crate) federated_bundles: HashMap<String, Vec<u8>>,
}

/// The message `X509SVID` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SvidMessage {
    #[prost(string, tag = "1")]
    pub(crate) spiffe_id: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) x509_svid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) x509_svid_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) bundle: Vec<u8>,
}
