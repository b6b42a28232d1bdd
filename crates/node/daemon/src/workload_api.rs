//! The SPIFFE Workload API as a source of this node's certificates (SPIFFE Workload API, section 5.2.1): one stream of answers, of
//! which each says everything. What it says last stays in use while the agent is away or says what is no good. A refusal says that
//! nothing is this node's any more, and what it had is used no longer (section 5.2.1: the client SHOULD cease using it).
//!
//! The buffers of a connection keep what came by it, an older private key for instance, until they are filled again. So a connection by
//! which an answer has come in place of another one is ended, and a fresh one has the last answer alone.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use provost_tls::{TlsSource, WorkloadIdentity, WorkloadParts};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use zeroize::{Zeroize, Zeroizing};

use crate::config::{Config, SpiffeTable, WorkloadEndpoint};

/// How long a start waits for the first answer. Afterwards the node serves its own apps, and other nodes once it has come.
const FIRST_ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long a connection to the agent may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Pauses before the agent is asked again, from the first to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// Between two answers of a stream: an agent that sends them without end takes little of the control plane's time.
const ANSWER_PAUSE: Duration = Duration::from_millis(100);
/// Bytes of an answer, at most.
const ANSWER_BYTES_MAX: usize = 4 << 20;
const METHOD: &str = "/SpiffeWorkloadAPI/FetchX509SVID";
/// Every request has to have it, so that nobody is made to send one by accident (SPIFFE Workload Endpoint, section 3).
const HEADER: &str = "workload.spiffe.io";

/// Who this node is, for whoever makes or accepts connections.
pub(crate) type WorkloadSource = TlsSource<WorkloadIdentity>;

/// What tells two answers apart.
type AnswerDigest = [u8; 32];

/// Why a stream of answers is not listened to any more.
enum StreamEnd {
    /// By this connection an answer came in place of another one.
    Renewed,
    Problem(String),
}

/// The agent's answers, and what is done with them.
pub(crate) struct WorkloadApi {
    endpoint: WorkloadEndpoint,
    /// The SPIFFE id that this node takes, where it is given several.
    id: Option<String>,
    source: WorkloadSource,
    answers: watch::Sender<u64>,
    /// Of the answer that is in use.
    taken: Cell<Option<AnswerDigest>>,
    /// Why there is no newer answer, if something is wrong.
    problem: RefCell<Option<String>>,
}

impl WorkloadApi {
    /// Follows the agent of a configuration, if certificates come from there.
    pub(crate) async fn of(config: &Config) -> Result<Option<Rc<WorkloadApi>>, String> {
        match config.tls.as_ref().and_then(|tls| tls.spiffe.as_ref()) {
            Some(table) => WorkloadApi::begin(table).await.map(Some),
            None => Ok(None),
        }
    }

    /// Whether a process can take over from one that has certificates.
    pub(crate) fn check_answered(api: Option<&WorkloadApi>) -> Result<(), String> {
        if api.is_none_or(WorkloadApi::has_answered) {
            return Ok(());
        }
        Err(
            "the SPIFFE Workload API has not answered this process: look at the agent, and try again"
                .to_owned(),
        )
    }

    /// Begins to follow what the agent says, and waits a little for its first answer.
    async fn begin(table: &SpiffeTable) -> Result<Rc<WorkloadApi>, String> {
        let api = Rc::new(WorkloadApi {
            endpoint: table.endpoint()?,
            id: table.id.clone(),
            source: TlsSource::new(Arc::default()),
            answers: watch::Sender::new(0),
            taken: Cell::default(),
            problem: RefCell::default(),
        });
        tokio::task::spawn_local(Rc::clone(&api).follow());
        let mut answers = api.answers.subscribe();
        let first = tokio::time::timeout(FIRST_ANSWER_WAIT, answers.wait_for(|count| *count > 0));
        if first.await.is_err() {
            tracing::warn!(
                endpoint = %api.endpoint,
                "the SPIFFE Workload API has not answered yet: connections between nodes fail until it has"
            );
        }
        Ok(api)
    }

    /// What connections are made and accepted with.
    pub(crate) fn source(&self) -> WorkloadSource {
        self.source.clone()
    }

    /// Whether an answer has come.
    fn has_answered(&self) -> bool {
        !self.source.current().is_nobody()
    }

    /// Where the agent is asked for answers.
    pub(crate) fn endpoint(&self) -> &WorkloadEndpoint {
        &self.endpoint
    }

    /// How many answers were taken.
    pub(crate) fn answers(&self) -> u64 {
        *self.answers.borrow()
    }

    /// What an operator should look at.
    pub(crate) fn warning(&self) -> Option<String> {
        let problem = self.problem.borrow().clone();
        let what = self.consequence();
        let unanswered = || (!self.has_answered()).then(|| "there is no answer yet".to_owned());
        let problem = problem.or_else(unanswered)?;
        Some(format!(
            "certificates: the SPIFFE Workload API at {}: {problem}: {what}",
            self.endpoint
        ))
    }

    /// Asks the agent, and takes what it says, for ever.
    async fn follow(self: Rc<Self>) {
        let mut pause = PAUSE_MIN;
        loop {
            let began = Instant::now();
            let before = self.answers();
            let StreamEnd::Problem(problem) = self.listen().await else {
                continue;
            };
            if self.answers() > before && began.elapsed() > PAUSE_MAX {
                // It was well for a while: it is asked again at once (section 4.2).
                pause = PAUSE_MIN;
            }
            self.note(problem);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn note(&self, problem: String) {
        let is_news = self.problem.borrow().as_ref() != Some(&problem);
        if is_news {
            let what = self.consequence();
            tracing::warn!(endpoint = %self.endpoint, problem, "no answer of the SPIFFE Workload API: {what}");
            *self.problem.borrow_mut() = Some(problem);
        }
    }

    /// What it means that there is no newer answer.
    fn consequence(&self) -> &'static str {
        if self.has_answered() {
            "its last good answer stays in use"
        } else {
            "connections between nodes fail until it has answered"
        }
    }

    /// Takes answers until a second one has come, or there are no more.
    async fn listen(&self) -> StreamEnd {
        let mut answers = match self.ask().await {
            Ok(answers) => answers,
            Err(problem) => return StreamEnd::Problem(problem),
        };
        for _ in 0..2 {
            match answers.message().await {
                Ok(Some(answer)) => self.take(&answer),
                Ok(None) => {
                    return StreamEnd::Problem("the agent has ended the stream of its answers".to_owned());
                }
                Err(status) => return StreamEnd::Problem(self.refused(&status)),
            }
            tokio::time::sleep(ANSWER_PAUSE).await;
        }
        StreamEnd::Renewed
    }

    async fn ask(&self) -> Result<Streaming<SvidResponse>, String> {
        let channel = connect(&self.endpoint).await?;
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
        client.ready().await.map_err(|error| error.to_string())?;
        let mut request = tonic::Request::new(SvidRequest {});
        request
            .metadata_mut()
            .insert(HEADER, MetadataValue::from_static("true"));
        let method = PathAndQuery::from_static(METHOD);
        let codec: ProstCodec<SvidRequest, SvidResponse> = ProstCodec::default();
        let answers = client.server_streaming(request, method, codec).await;
        Ok(answers.map_err(|status| self.refused(&status))?.into_inner())
    }

    /// What a status of the agent means. One that says that this process has no identity takes away what it had.
    fn refused(&self, status: &tonic::Status) -> String {
        if status.code() == tonic::Code::PermissionDenied && self.has_answered() {
            tracing::warn!(endpoint = %self.endpoint, "the SPIFFE Workload API has taken this node's identity back");
            self.source.replace(Arc::default());
            self.taken.set(None);
        }
        told(status)
    }

    /// Puts an answer into use, if it is good, and not in use already.
    fn take(&self, answer: &SvidResponse) {
        let digest = answer.digest();
        if self.taken.get() == Some(digest) {
            self.note_taken();
            return;
        }
        match identity_in(answer, self.id.as_deref()) {
            Ok(identity) => {
                tracing::info!(
                    identity = identity.identity().name(),
                    ends_unix_s = identity.validity().map(|validity| validity.ends_unix_s),
                    trust_domains = identity.trust_domains().count(),
                    "the SPIFFE Workload API has given certificates"
                );
                self.source.replace(Arc::new(identity));
                self.taken.set(Some(digest));
                self.note_taken();
            }
            Err(problem) => self.note(format!("its answer was not taken: {problem}")),
        }
    }

    fn note_taken(&self) {
        *self.problem.borrow_mut() = None;
        self.answers.send_modify(|answers| *answers += 1);
    }
}

async fn connect(endpoint: &WorkloadEndpoint) -> Result<Channel, String> {
    let uri = match endpoint {
        WorkloadEndpoint::Unix(path) => format!("unix:{path}"),
        WorkloadEndpoint::Tcp(address) => format!("http://{address}"),
    };
    let endpoint = Endpoint::from_shared(uri).map_err(|error| error.to_string())?;
    let connected = endpoint.connect_timeout(CONNECT_WITHIN).connect().await;
    connected.map_err(|error| format!("it cannot be reached: {}", causes(&error)))
}

/// An error with what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// What a status of the agent means, and what to do.
fn told(status: &tonic::Status) -> String {
    let hint = match status.code() {
        tonic::Code::PermissionDenied => {
            " (it has no identity for this process: register the node's service with it)"
        }
        _ => "",
    };
    format!("{}: {}{hint}", status.code(), status.message())
}

/// What an answer comes to.
fn identity_in(answer: &SvidResponse, id: Option<&str>) -> Result<WorkloadIdentity, String> {
    let is_wanted = |svid: &&SvidMessage| id.is_none_or(|id| svid.spiffe_id == id);
    let Some(svid) = answer.svids.iter().find(is_wanted) else {
        let given: Vec<_> = answer.svids.iter().map(|svid| svid.spiffe_id.as_str()).collect();
        return Err(match id {
            Some(id) => format!(
                "it has no {id}, which tls.spiffe.id names (it has {})",
                given.join(", ")
            ),
            None => "it has no X.509-SVID".to_owned(),
        });
    };
    let federated: Vec<_> = answer
        .federated_bundles
        .iter()
        .map(|(domain, bundle)| (domain.as_str(), bundle.as_slice()))
        .collect();
    let crls: Vec<_> = answer.crl.iter().map(Vec::as_slice).collect();
    let parts = WorkloadParts {
        id: &svid.spiffe_id,
        chain: &svid.x509_svid,
        key: &svid.x509_svid_key,
        bundle: &svid.bundle,
        federated: &federated,
        crls: &crls,
    };
    WorkloadIdentity::new(&parts).map_err(|fault| fault.to_string())
}

/// The message `X509SVIDRequest` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
struct SvidRequest {}

/// The message `X509SVIDResponse` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
struct SvidResponse {
    #[prost(message, repeated, tag = "1")]
    svids: Vec<SvidMessage>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    crl: Vec<Vec<u8>>,
    // In an order of its own, so that the same answer has the same digest.
    #[prost(btree_map = "string, bytes", tag = "3")]
    federated_bundles: BTreeMap<String, Vec<u8>>,
}

impl SvidResponse {
    fn digest(&self) -> AnswerDigest {
        Sha256::digest(&*Zeroizing::new(self.encode_to_vec())).into()
    }
}

/// The message `X509SVID` of the Workload API.
#[derive(Clone, PartialEq, prost::Message)]
struct SvidMessage {
    #[prost(string, tag = "1")]
    spiffe_id: String,
    #[prost(bytes = "vec", tag = "2")]
    x509_svid: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    x509_svid_key: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    bundle: Vec<u8>,
}

impl Drop for SvidMessage {
    fn drop(&mut self) {
        self.x509_svid_key.zeroize();
    }
}
