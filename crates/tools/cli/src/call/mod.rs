//! `provost call`: one method, called with messages in JSON.

mod codec;
mod metadata;
mod place;
mod requests;

pub(crate) use codec::DynamicCodec;
pub(crate) use metadata::{MetadataEntry, metadata_map};
pub(crate) use place::CallPlace;
pub(crate) use requests::{RequestMessages, RequestSource, RequestStream};

use std::time::Duration;

use clap::Args;
use prost_reflect::{DynamicMessage, SerializeOptions};
use serde_json::{Map, Value, json};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::interface::{SchemaFiles, ServiceInterface, ServiceName};
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::{Exit, Failure, complain, is_expired};
use provost_terminal::output::{json_document, json_line, print};
use provost_terminal::table::clean;

pub(crate) const EXAMPLES: &str = "\
Messages are proto3 JSON. What is left out has its default; of a stream, write one value after the other. What comes back is
printed as it comes. The exit status is 0, or 64 and the number of the call's status: 69 is NOT_FOUND.

The call goes through the node's first gRPC listener, or to the gRPC server that --address names (a node that does not know its
schema needs --proto). --timeout is the call's deadline.

Examples:
  provost call KvStore/Get '{\"key\": \"a\"}'
  provost call kv.KvStore/Get -H 'authorization: Bearer x' '{}'
  provost call KvStore/Scan --timeout 600
  provost call KvStore/Load - < values.json         a stream of requests
  provost call KvStore/Get @request.json --repeat 100
  provost call KvStore/Get --json | jq .message
  provost call KvStore/Get --address 127.0.0.1:50051 --proto proto/kv.proto";

/// Options of `provost call`.
#[derive(Args, Debug)]
pub(crate) struct CallOptions {
    /// Which method; the last part of the service's name is enough where only one ends so
    #[arg(value_name = "SERVICE/METHOD", value_parser = ServiceName::parse)]
    name: ServiceName,
    /// What to send: JSON, @FILE, or - for standard input [default: an empty message, or an empty stream]
    #[arg(value_name = "MESSAGE", value_parser = RequestSource::parse)]
    message: Option<RequestSource>,
    /// Metadata to send; of a key that ends in -bin, the value in base64. May be given several times
    #[arg(long = "metadata", short = 'H', value_name = "KEY: VALUE", value_parser = MetadataEntry::parse)]
    metadata: Vec<MetadataEntry>,
    /// Call so many times, one after the other; the first call that fails is the last
    #[arg(long, value_name = "CALLS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    repeat: u64,
    /// Print metadata and the status to standard error
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    place: CallPlace,
    #[command(flatten)]
    files: SchemaFiles,
    #[command(flatten)]
    target: Target,
}

/// Makes the calls, one after the other.
pub(crate) async fn run(asked: CallOptions) -> Result<(), Failure> {
    let Some(method) = &asked.name.method else {
        return Err(asked.name.lacks_method());
    };
    let node = async || Node::connect(&asked.target).await;
    let interface = ServiceInterface::find(&asked.name, &asked.files, node).await?;
    let method = interface.method(method)?;
    let metadata = metadata_map(&asked.metadata)?;
    let source = asked.message.clone().unwrap_or_default();
    let mut requests = RequestMessages::read(&source, &method)?;
    let timeout = Duration::from_secs_f64(asked.target.timeout);
    let channel = asked.place.connect(timeout, node).await?;
    let call = DynamicCall {
        path: path_of(&method)?,
        codec: DynamicCodec::new(method.output()),
        metadata,
        timeout,
    };
    for _ in 0..asked.repeat {
        call.run(
            channel.clone(),
            requests.next_call()?,
            &mut PrintedCall::new(&asked),
        )
        .await?;
    }
    Ok(())
}

/// The HTTP/2 path of a method.
pub(crate) fn path_of(method: &prost_reflect::MethodDescriptor) -> Result<PathAndQuery, Failure> {
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    PathAndQuery::try_from(path).map_err(|error| Failure::usage(format!("{}: {error}", method.name())))
}

/// What is called, and how.
#[derive(Clone, Debug)]
pub(crate) struct DynamicCall {
    pub(crate) path: PathAndQuery,
    pub(crate) codec: DynamicCodec,
    pub(crate) metadata: MetadataMap,
    pub(crate) timeout: Duration,
}

/// Hears what comes back of a call.
pub(crate) trait CallObserver {
    fn on_headers(&mut self, metadata: &MetadataMap) -> Result<(), Failure>;
    fn on_message(&mut self, message: &DynamicMessage) -> Result<(), Failure>;
    fn on_end(&mut self, status: &Status, trailers: &MetadataMap) -> Result<(), Failure>;
}

impl DynamicCall {
    /// Calls once; `Err` also if the call ended otherwise than with OK.
    pub(crate) async fn run(
        &self,
        channel: Channel,
        requests: RequestStream,
        observer: &mut impl CallObserver,
    ) -> Result<(), Failure> {
        let ended = tokio::time::timeout(self.timeout, self.exchange(channel, requests, observer)).await;
        let status = match ended {
            Ok(status) => status?,
            Err(_) => {
                let status = self.late();
                observer.on_end(&status, &MetadataMap::new())?;
                status
            }
        };
        if status.code() == Code::Ok {
            return Ok(());
        }
        let name = name_of(status.code()).to_owned();
        let message = match status.message() {
            "" => name,
            said => name + ": " + said,
        };
        Err(Failure::new(Exit::Ended(status.code()), message))
    }

    fn late(&self) -> Status {
        Status::deadline_exceeded(format!("no end within {:.1} s", self.timeout.as_secs_f64()))
    }

    /// The status with which the call ended. A request that is no message gives it up.
    async fn exchange(
        &self,
        channel: Channel,
        requests: RequestStream,
        observer: &mut impl CallObserver,
    ) -> Result<Status, Failure> {
        let problem = requests.problem();
        tokio::select! {
            biased;
            failure = problem.noted() => Err(failure),
            ended = self.talk(channel, requests, observer) => ended,
        }
    }

    async fn talk(
        &self,
        channel: Channel,
        requests: RequestStream,
        observer: &mut impl CallObserver,
    ) -> Result<Status, Failure> {
        let mut request = Request::new(requests);
        *request.metadata_mut() = self.metadata.clone();
        request.set_timeout(self.timeout);
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
        client.ready().await.map_err(place::unreachable)?;
        match client
            .streaming(request, self.path.clone(), self.codec.clone())
            .await
        {
            Err(status) => {
                let status = if is_expired(&status) {
                    self.late()
                } else {
                    place::with_hint(status)
                };
                observer.on_end(&status, status.metadata())?;
                Ok(status)
            }
            Ok(response) => {
                observer.on_headers(response.metadata())?;
                receive(response.into_inner(), observer).await
            }
        }
    }
}

async fn receive(
    mut responses: tonic::Streaming<DynamicMessage>,
    observer: &mut impl CallObserver,
) -> Result<Status, Failure> {
    loop {
        match responses.message().await {
            Ok(Some(message)) => observer.on_message(&message)?,
            Ok(None) => {
                let trailers = responses.trailers().await.ok().flatten().unwrap_or_default();
                let status = Status::ok("");
                observer.on_end(&status, &trailers)?;
                return Ok(status);
            }
            Err(status) => {
                observer.on_end(&status, status.metadata())?;
                return Ok(status);
            }
        }
    }
}

/// Prints what comes back: messages alone, or with all else.
struct PrintedCall {
    json: bool,
    verbose: bool,
}

impl PrintedCall {
    fn new(asked: &CallOptions) -> PrintedCall {
        PrintedCall {
            json: asked.target.json,
            verbose: asked.verbose,
        }
    }

    fn note(&self, what: &str, metadata: &MetadataMap) {
        for (key, value) in metadata_of(metadata).iter().filter(|_| self.verbose) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            complain(&format!("{what} {}: {}", clean(key), clean(&value)));
        }
    }
}

impl CallObserver for PrintedCall {
    fn on_headers(&mut self, metadata: &MetadataMap) -> Result<(), Failure> {
        if self.json {
            return print(&json_line(&json!({ "metadata": metadata_of(metadata) }))?);
        }
        self.note("<", metadata);
        Ok(())
    }

    fn on_message(&mut self, message: &DynamicMessage) -> Result<(), Failure> {
        let value = json_of(message)?;
        print(&if self.json {
            json_line(&json!({ "message": value }))?
        } else {
            json_document(&value)?
        })
    }

    fn on_end(&mut self, status: &Status, trailers: &MetadataMap) -> Result<(), Failure> {
        if self.json {
            let end = json!({ "status": name_of(status.code()), "code": status.code() as i32,
                "text": status.message(), "trailers": metadata_of(trailers) });
            return print(&json_line(&end)?);
        }
        self.note("<<", trailers);
        if self.verbose {
            complain(&format!("<< {}", name_of(status.code())));
        }
        Ok(())
    }
}

/// A message as proto3 JSON. Fields that hold their default are there as well, so that one sees all that a message says.
fn json_of(message: &DynamicMessage) -> Result<Value, Failure> {
    let options = SerializeOptions::new().skip_default_fields(false);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| Failure::failed(format!("an answer cannot be written as JSON: {error}")))
}

/// Metadata for programs: a value, or a list of those that one key has.
fn metadata_of(metadata: &MetadataMap) -> Map<String, Value> {
    let mut object = Map::new();
    for entry in metadata.iter() {
        let (key, value) = metadata::text_of(&entry);
        match object.get_mut(&key) {
            None => {
                object.insert(key, value.into());
            }
            Some(Value::Array(all)) => all.push(value.into()),
            Some(one) => *one = json!([one.take(), value]),
        }
    }
    object
}

/// A status as gRPC writes it: `NOT_FOUND`.
pub(crate) fn name_of(code: Code) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.get(code as usize).copied().unwrap_or("UNKNOWN")
}

#[cfg(test)]
mod tests {
    use tonic::transport::Endpoint;

    use super::*;
    use crate::interface::tests::interface;

    const PROTO: &str = "syntax = \"proto3\"; package t; message M {} service S { rpc Call(M) returns (M); }";

    /// Keeps the status with which a call ended.
    struct EndedWith(Option<Code>);

    impl CallObserver for EndedWith {
        fn on_headers(&mut self, _: &MetadataMap) -> Result<(), Failure> {
            Ok(())
        }

        fn on_message(&mut self, _: &DynamicMessage) -> Result<(), Failure> {
            Ok(())
        }

        fn on_end(&mut self, status: &Status, _: &MetadataMap) -> Result<(), Failure> {
            self.0 = Some(status.code());
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_call_that_nobody_answers_ends_with_its_deadline() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = format!("http://{}", silent.local_addr().unwrap());
        let channel = Endpoint::from_shared(place).unwrap().connect().await.unwrap();
        let method = interface(PROTO, "S").unwrap().method("Call").unwrap();
        let mut requests = RequestMessages::read(&RequestSource::Nothing, &method).unwrap();
        let call = DynamicCall {
            path: path_of(&method).unwrap(),
            codec: DynamicCodec::new(method.output()),
            metadata: MetadataMap::new(),
            timeout: Duration::from_millis(50),
        };
        let mut ended = EndedWith(None);
        let failure = call.run(channel, requests.next_call().unwrap(), &mut ended).await;
        let failure = failure.unwrap_err();
        assert_eq!(failure.exit, Exit::Ended(Code::DeadlineExceeded), "{failure}");
        assert_eq!(ended.0, Some(Code::DeadlineExceeded));
    }
}
