//! [`MockService`]: a service whose answers the test writes down beforehand, for tests of what calls it.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use provost::codegen::{Message, MethodKind, Methods, Service, ServiceDescriptor, Stream};
use provost::{Channel, MetadataMap, Received, Request, Response, Status, Streaming};

/// A service within the test, without a node, whose answers the test writes down beforehand. Clients of it are the generated
/// ones.
///
/// ```ignore
/// let kv = MockService::new(&kv_client::SERVICE);
/// let get = kv.unary::<GetRequest, GetReply>("Get");
/// get.answer(Err(Status::unavailable("try again"))).answer(GetReply::default());
///
/// let client = KvClient::new(kv.channel()?);
/// let shop = Shop::new(client); // the code under test
/// shop.price("apple").await?;
///
/// assert_eq!(get.requests().len(), 2);
/// ```
///
/// A method that is not named answers `UNIMPLEMENTED`, and so does one whose answers are used up.
#[derive(Clone)]
pub struct MockService {
    service: &'static ServiceDescriptor,
    methods: Arc<Mutex<Vec<Arc<dyn MethodRegistration>>>>,
}

/// A method of a [`MockService`]: its answers, and the requests that came. Clones are the same method.
pub struct MockMethod<Req, Resp> {
    index: u16,
    name: String,
    kind: MethodKind,
    script: Arc<Mutex<MethodScript<Req, Resp>>>,
}

/// What one call is answered with: messages, and then the status that ends it. A message alone, a list of messages and a
/// result become one by `into`.
pub struct MockAnswer<Resp> {
    messages: VecDeque<Resp>,
    end: AnswerEnd,
    metadata: MetadataMap,
    trailers: MetadataMap,
}

/// How an answer ends.
enum AnswerEnd {
    Well,
    With(Status),
    Never,
}

type AnswerFunction<Req, Resp> = Arc<dyn Fn(&[Req]) -> MockAnswer<Resp> + Send + Sync>;

/// What a method answers, and what it has heard.
struct MethodScript<Req, Resp> {
    answers: VecDeque<MockAnswer<Resp>>,
    otherwise: Option<AnswerFunction<Req, Resp>>,
    requests: Vec<Req>,
    metadata: Vec<MetadataMap>,
}

trait MethodRegistration: Send + Sync {
    fn register(&self, methods: &mut Methods);
}

/// A message that a test keeps.
pub trait MockMessage: Message + Clone {}

impl<T: Message + Clone> MockMessage for T {}

impl MockService {
    /// A service of this schema that answers nothing yet. Generated modules have the description as `SERVICE`.
    #[must_use]
    pub fn new(service: &'static ServiceDescriptor) -> MockService {
        MockService {
            service,
            methods: Arc::default(),
        }
    }

    /// Has the service answer a unary method.
    ///
    /// # Panics
    /// If the service has no such method of this kind.
    pub fn unary<Req: MockMessage, Resp: MockMessage>(&self, name: &str) -> MockMethod<Req, Resp> {
        self.method(name, MethodKind::Unary)
    }

    /// Has the service answer a method that answers with a stream.
    ///
    /// # Panics
    /// If the service has no such method of this kind.
    pub fn server_streaming<Req: MockMessage, Resp: MockMessage>(&self, name: &str) -> MockMethod<Req, Resp> {
        self.method(name, MethodKind::ServerStreaming)
    }

    /// Has the service answer a method that takes a stream, once that has ended.
    ///
    /// # Panics
    /// If the service has no such method of this kind.
    pub fn client_streaming<Req: MockMessage, Resp: MockMessage>(&self, name: &str) -> MockMethod<Req, Resp> {
        self.method(name, MethodKind::ClientStreaming)
    }

    /// Has the service answer a method with streams both ways. What is written down is answered at once, and the call ends when the
    /// requests have; a function ([`MockMethod::answer_with`]) answers each request when it comes.
    ///
    /// # Panics
    /// If the service has no such method of this kind.
    pub fn bidirectional<Req: MockMessage, Resp: MockMessage>(&self, name: &str) -> MockMethod<Req, Resp> {
        self.method(name, MethodKind::Bidirectional)
    }

    /// A channel to the service, with the methods that are named so far, for the generated client's `new`.
    ///
    /// # Errors
    /// If there is no memory for messages.
    ///
    /// # Panics
    /// If a method was named with other types of messages than it has.
    pub fn channel(&self) -> Result<Channel, Status> {
        Channel::in_process(self.clone())
    }

    fn method<Req: MockMessage, Resp: MockMessage>(
        &self,
        name: &str,
        kind: MethodKind,
    ) -> MockMethod<Req, Resp> {
        let mut described = self.service.methods.iter();
        let index = described.position(|method| method.name == name && method.kind == kind);
        let index = index.and_then(|index| u16::try_from(index).ok());
        let index = index.unwrap_or_else(|| panic!("{}", self.no_such_method(name, kind)));
        let method = MockMethod {
            index,
            name: format!("{}/{name}", self.service.name),
            kind,
            script: Arc::default(),
        };
        lock(&self.methods).push(Arc::new(method.clone()));
        method
    }

    fn no_such_method(&self, name: &str, kind: MethodKind) -> String {
        let known: Vec<String> = self
            .service
            .methods
            .iter()
            .map(|method| format!("{} ({:?})", method.name, method.kind))
            .collect();
        format!(
            "{} has no method {name} ({kind:?}); it has {}",
            self.service.name,
            known.join(", ")
        )
    }
}

impl Service for MockService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.service
    }

    fn register(&self, methods: &mut Methods) {
        for method in lock(&self.methods).iter() {
            method.register(methods);
        }
    }
}

impl<Req: MockMessage, Resp: MockMessage> MockMethod<Req, Resp> {
    /// Answers the next call that has no answer yet, and only that.
    pub fn answer(&self, answer: impl Into<MockAnswer<Resp>>) -> &Self {
        lock(&self.script).answers.push_back(answer.into());
        self
    }

    /// Answers all calls for which nothing is written down. The function gets the requests of the call; of a bidirectional one,
    /// each request alone, when it comes.
    pub fn answer_with<A: Into<MockAnswer<Resp>>>(
        &self,
        answer: impl Fn(&[Req]) -> A + Send + Sync + 'static,
    ) -> &Self {
        let function: AnswerFunction<Req, Resp> = Arc::new(move |requests| answer(requests).into());
        lock(&self.script).otherwise = Some(function);
        self
    }

    /// All requests that have come, in their order.
    #[must_use]
    pub fn requests(&self) -> Vec<Req> {
        lock(&self.script).requests.clone()
    }

    /// The metadata of each call that has come.
    #[must_use]
    pub fn metadata(&self) -> Vec<MetadataMap> {
        lock(&self.script).metadata.clone()
    }

    /// How many calls have come.
    #[must_use]
    pub fn calls(&self) -> usize {
        lock(&self.script).metadata.len()
    }

    /// Notes a call that begins.
    fn begin(&self, metadata: &MetadataMap) {
        lock(&self.script).metadata.push(metadata.clone());
    }

    fn heard(&self, request: &Req) {
        lock(&self.script).requests.push(request.clone());
    }

    /// The answer to a call with these requests.
    fn next(&self, requests: &[Req]) -> MockAnswer<Resp> {
        let written = lock(&self.script).answers.pop_front();
        written.unwrap_or_else(|| self.computed(requests))
    }

    /// What the function answers, if there is one. It runs without the lock: it may ask the method what came.
    fn computed(&self, requests: &[Req]) -> MockAnswer<Resp> {
        let function = lock(&self.script).otherwise.clone();
        match function {
            Some(function) => function(requests),
            None => Err(Status::unimplemented(format!(
                "{} has no answer to its call {}: write one down by `answer` or `answer_with`",
                self.name,
                self.calls()
            )))
            .into(),
        }
    }

    async fn one(self, request: Request<Received<Req>>) -> MockAnswer<Resp> {
        self.begin(request.metadata());
        let request = request.into_inner().to_owned();
        self.heard(&request);
        self.next(&[request])
    }

    async fn many(self, request: Request<Streaming<Req>>) -> Result<MockAnswer<Resp>, Status> {
        self.begin(request.metadata());
        let mut stream = request.into_inner();
        let mut requests = Vec::new();
        while let Some(request) = stream.message().await? {
            self.heard(&request);
            requests.push(request.to_owned());
        }
        Ok(self.next(&requests))
    }

    fn both_ways(&self, request: Request<Streaming<Req>>) -> Response<AnswerStream<Req, Resp>> {
        self.begin(request.metadata());
        let written = lock(&self.script).answers.pop_front();
        let is_each = written.is_none() && lock(&self.script).otherwise.is_some();
        let answer = match written {
            Some(answer) => answer,
            None if is_each => Vec::new().into(),
            None => self.computed(&[]),
        };
        answer.stream(Some(IncomingRequests {
            stream: Box::pin(request.into_inner()),
            method: self.clone(),
            is_each,
        }))
    }
}

impl<Req: MockMessage, Resp: MockMessage> MethodRegistration for MockMethod<Req, Resp> {
    fn register(&self, methods: &mut Methods) {
        let method = self.clone();
        match self.kind {
            MethodKind::Unary => methods.unary(self.index, move |request: Request<Received<Req>>| {
                let method = method.clone();
                async move { method.one(request).await.single().await }
            }),
            MethodKind::ServerStreaming => {
                methods.server_streaming(self.index, move |request: Request<Received<Req>>| {
                    let method = method.clone();
                    async move { Ok(method.one(request).await.stream::<Req>(None)) }
                });
            }
            MethodKind::ClientStreaming => {
                methods.client_streaming(self.index, move |request: Request<Streaming<Req>>| {
                    let method = method.clone();
                    async move { method.many(request).await?.single().await }
                });
            }
            MethodKind::Bidirectional => {
                methods.bidirectional(self.index, move |request: Request<Streaming<Req>>| {
                    let response = method.both_ways(request);
                    async move { Ok(response) }
                });
            }
        }
    }
}

impl<Resp> MockAnswer<Resp> {
    /// These messages, and then this status.
    #[must_use]
    pub fn broken_off(messages: impl IntoIterator<Item = Resp>, status: Status) -> MockAnswer<Resp> {
        MockAnswer {
            messages: messages.into_iter().collect(),
            end: AnswerEnd::With(status),
            metadata: MetadataMap::new(),
            trailers: MetadataMap::new(),
        }
    }

    /// None until the caller's deadline, or until the call is cancelled.
    #[must_use]
    pub fn never() -> MockAnswer<Resp> {
        MockAnswer {
            end: AnswerEnd::Never,
            ..MockAnswer::from(Vec::new())
        }
    }

    /// The same with metadata before the first message.
    #[must_use]
    pub fn with_metadata(mut self, metadata: MetadataMap) -> MockAnswer<Resp> {
        self.metadata = metadata;
        self
    }

    /// The same with metadata after the last message.
    #[must_use]
    pub fn with_trailers(mut self, trailers: MetadataMap) -> MockAnswer<Resp> {
        self.trailers = trailers;
        self
    }

    /// As the answer of a method that answers with one message.
    async fn single(mut self) -> Result<Response<Resp>, Status> {
        match self.end {
            AnswerEnd::With(status) => return Err(status),
            AnswerEnd::Never => std::future::pending().await,
            AnswerEnd::Well => {}
        }
        let message = self.messages.pop_front();
        let message = message.ok_or_else(|| Status::internal("the mock's answer has no message"))?;
        let mut response = Response::new(message);
        *response.metadata_mut() = self.metadata;
        *response.trailers_mut() = self.trailers;
        Ok(response)
    }

    /// As the answer of a method that answers with a stream.
    fn stream<Req>(self, requests: Option<IncomingRequests<Req, Resp>>) -> Response<AnswerStream<Req, Resp>> {
        let (metadata, trailers) = (self.metadata, self.trailers);
        let stream = AnswerStream {
            messages: self.messages,
            end: Some(self.end),
            requests,
        };
        let mut response = Response::new(stream);
        *response.metadata_mut() = metadata;
        *response.trailers_mut() = trailers;
        response
    }
}

impl<Resp: Message> From<Resp> for MockAnswer<Resp> {
    fn from(message: Resp) -> MockAnswer<Resp> {
        MockAnswer::from(vec![message])
    }
}

impl<Resp> From<Vec<Resp>> for MockAnswer<Resp> {
    fn from(messages: Vec<Resp>) -> MockAnswer<Resp> {
        MockAnswer {
            messages: messages.into(),
            end: AnswerEnd::Well,
            metadata: MetadataMap::new(),
            trailers: MetadataMap::new(),
        }
    }
}

impl<Resp: Message> From<Result<Resp, Status>> for MockAnswer<Resp> {
    fn from(result: Result<Resp, Status>) -> MockAnswer<Resp> {
        match result {
            Ok(message) => message.into(),
            Err(status) => MockAnswer::broken_off([], status),
        }
    }
}

/// The requests of a bidirectional call.
struct IncomingRequests<Req, Resp> {
    stream: Pin<Box<Streaming<Req>>>,
    method: MockMethod<Req, Resp>,
    /// Whether the method's function answers each.
    is_each: bool,
}

/// The responses of a call.
struct AnswerStream<Req, Resp> {
    messages: VecDeque<Resp>,
    end: Option<AnswerEnd>,
    requests: Option<IncomingRequests<Req, Resp>>,
}

impl<Req: MockMessage, Resp: MockMessage> AnswerStream<Req, Resp> {
    /// Hears the requests until one of them is answered, or they have ended.
    fn poll_requests(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        while let Some(requests) = &mut self.requests {
            match ready!(requests.stream.as_mut().poll_next(context)) {
                Some(Ok(request)) => {
                    requests.method.heard(&request);
                    if requests.is_each {
                        let answer = requests.method.computed(&[request.to_owned()]);
                        self.messages.extend(answer.messages);
                        if !matches!(answer.end, AnswerEnd::Well) {
                            self.end = Some(answer.end);
                            self.requests = None;
                        }
                        return Poll::Ready(Ok(()));
                    }
                }
                Some(Err(status)) => return Poll::Ready(Err(status)),
                None => self.requests = None,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<Req: MockMessage, Resp: MockMessage> Stream for AnswerStream<Req, Resp> {
    type Item = Result<Resp, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(message) = this.messages.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            // A failure does not wait for the client to end its requests.
            let is_well = matches!(this.end, Some(AnswerEnd::Well));
            if this.requests.is_none() || !is_well {
                break;
            }
            if let Err(status) = ready!(this.poll_requests(context)) {
                return Poll::Ready(Some(Err(status)));
            }
        }
        match this.end.take() {
            Some(AnswerEnd::With(status)) => Poll::Ready(Some(Err(status))),
            Some(AnswerEnd::Never) => {
                this.end = Some(AnswerEnd::Never);
                Poll::Pending
            }
            Some(AnswerEnd::Well) | None => Poll::Ready(None),
        }
    }
}

// The stream is polled through `get_mut`: nothing in it is pinned in its place.
impl<Req, Resp> Unpin for AnswerStream<Req, Resp> {}

impl<Req, Resp> Clone for MockMethod<Req, Resp> {
    fn clone(&self) -> MockMethod<Req, Resp> {
        MockMethod {
            index: self.index,
            name: self.name.clone(),
            kind: self.kind,
            script: self.script.clone(),
        }
    }
}

impl<Req, Resp> Default for MethodScript<Req, Resp> {
    fn default() -> MethodScript<Req, Resp> {
        MethodScript {
            answers: VecDeque::new(),
            otherwise: None,
            requests: Vec::new(),
            metadata: Vec::new(),
        }
    }
}

impl std::fmt::Debug for MockService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MockService").field(&self.service.name).finish()
    }
}

impl<Req, Resp> std::fmt::Debug for MockMethod<Req, Resp> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MockMethod").field(&self.name).finish()
    }
}

impl<Resp> std::fmt::Debug for MockAnswer<Resp> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MockAnswer")
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
