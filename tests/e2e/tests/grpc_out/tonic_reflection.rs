//! gRPC's server reflection as a tonic server has it, and as servers could have it that lie. It knows nothing of Provost.

use std::convert::Infallible;
use std::task::{Context, Poll};

use prost::Message;
use prost_types::{FileDescriptorProto, FileDescriptorSet};
use tokio::sync::mpsc;
use tonic::codegen::http;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body as HttpBody, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// How a server answers questions about its schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReflectionManners {
    Honest,
    /// It takes questions and never answers.
    Silent,
    /// Each file imports another one.
    Endless,
    /// It sends what is no file.
    Garbage,
    /// Its files are larger than any schema.
    Huge,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionAsked {
    #[prost(string, tag = "3")]
    file: String,
    #[prost(string, tag = "4")]
    symbol: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReflectionTold {
    #[prost(message, optional, tag = "4")]
    files: Option<ToldFiles>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ToldFiles {
    #[prost(bytes = "vec", repeated, tag = "1")]
    files: Vec<Vec<u8>>,
}

fn answer(manners: ReflectionManners, asked: &ReflectionAsked) -> ReflectionTold {
    let own = FileDescriptorSet::decode(provost_e2e::probe::probe_server::DESCRIPTOR_SET).unwrap();
    let files = match manners {
        ReflectionManners::Silent => Vec::new(),
        ReflectionManners::Honest => own.file.iter().map(Message::encode_to_vec).collect(),
        ReflectionManners::Garbage => vec![vec![0xff; 100]],
        ReflectionManners::Endless => {
            let number = asked.file.trim_start_matches('f').parse().unwrap_or(0_u32);
            let file = FileDescriptorProto {
                name: Some(format!("f{number}")),
                dependency: vec![format!("f{}", number + 1)],
                ..FileDescriptorProto::default()
            };
            vec![file.encode_to_vec()]
        }
        ReflectionManners::Huge => {
            let file = |number: usize| FileDescriptorProto {
                name: Some(format!("f{number}")),
                package: Some("p".repeat(1 << 20)),
                ..FileDescriptorProto::default()
            };
            (0..5).map(|number| file(number).encode_to_vec()).collect()
        }
    };
    ReflectionTold {
        files: Some(ToldFiles { files }),
    }
}

/// The service of one version.
#[derive(Clone)]
pub(crate) struct TonicReflection<const ALPHA: bool>(pub(crate) ReflectionManners);

impl NamedService for TonicReflection<false> {
    const NAME: &'static str = "grpc.reflection.v1.ServerReflection";
}

impl NamedService for TonicReflection<true> {
    const NAME: &'static str = "grpc.reflection.v1alpha.ServerReflection";
}

type AnswerStream = ReceiverStream<Result<ReflectionTold, Status>>;

struct ReflectionHandler(ReflectionManners);

impl StreamingService<ReflectionAsked> for ReflectionHandler {
    type Response = ReflectionTold;
    type ResponseStream = AnswerStream;
    type Future = BoxFuture<Response<AnswerStream>, Status>;

    fn call(&mut self, request: Request<Streaming<ReflectionAsked>>) -> Self::Future {
        let manners = self.0;
        Box::pin(async move {
            let mut questions = request.into_inner();
            let (answers, stream) = mpsc::channel(4);
            tokio::spawn(async move {
                while let Ok(Some(asked)) = questions.message().await {
                    if manners == ReflectionManners::Silent {
                        answers.closed().await;
                    }
                    if answers.send(Ok(answer(manners, &asked))).await.is_err() {
                        return;
                    }
                }
            });
            Ok(Response::new(ReceiverStream::new(stream)))
        })
    }
}

impl<B, const ALPHA: bool> Service<http::Request<B>> for TonicReflection<ALPHA>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let handler = ReflectionHandler(self.0);
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<ReflectionTold, ReflectionAsked>::default())
                .max_encoding_message_size(64 << 20);
            Ok(grpc.streaming(handler, request).await)
        })
    }
}
