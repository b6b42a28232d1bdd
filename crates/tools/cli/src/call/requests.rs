//! What a call sends: messages in JSON, all at once or as they come in.

use std::io::Read;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use provost_terminal::failure::Failure;

/// Bytes of JSON that are read before a call; a stream from standard input has no bound.
const JSON_BYTES_MAX: u64 = 256 << 20;
/// Messages of a stream that are read ahead of what has been sent.
const READ_AHEAD_MESSAGES: usize = 16;

/// Where the messages are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum RequestSource {
    /// Nothing was said: one empty message, or an empty stream.
    #[default]
    Nothing,
    Text(String),
    File(String),
    StandardInput,
}

impl RequestSource {
    /// Reads what is typed.
    pub(crate) fn parse(text: &str) -> Result<RequestSource, String> {
        Ok(match text.strip_prefix('@') {
            Some("") => return Err("@ wants the name of a file".to_owned()),
            Some(file) => RequestSource::File(file.to_owned()),
            None if text == "-" => RequestSource::StandardInput,
            None => RequestSource::Text(text.to_owned()),
        })
    }

    /// All of it, as text.
    pub(crate) fn text(&self, method: &MethodDescriptor) -> Result<String, Failure> {
        match self {
            RequestSource::Nothing if method.is_client_streaming() => Ok(String::new()),
            RequestSource::Nothing => Ok("{}".to_owned()),
            RequestSource::Text(text) => Ok(text.clone()),
            RequestSource::StandardInput => read_all(std::io::stdin(), "standard input"),
            RequestSource::File(name) => {
                let file =
                    std::fs::File::open(name).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
                read_all(file, name)
            }
        }
    }
}

/// The messages of one call after the other.
#[derive(Debug)]
pub(crate) enum RequestMessages {
    /// The same for each.
    Ready(Vec<DynamicMessage>),
    /// A stream that is read while it is sent, once.
    Reading(Option<MessageDescriptor>),
}

impl RequestMessages {
    /// For calls of this method.
    pub(crate) fn read(
        source: &RequestSource,
        method: &MethodDescriptor,
    ) -> Result<RequestMessages, Failure> {
        if *source == RequestSource::StandardInput && method.is_client_streaming() {
            return Ok(RequestMessages::Reading(Some(method.input())));
        }
        RequestMessages::of_text(&source.text(method)?, method)
    }

    /// What this text says, for each call.
    pub(crate) fn of_text(text: &str, method: &MethodDescriptor) -> Result<RequestMessages, Failure> {
        let kind = method.input();
        let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        let messages = values.enumerate().map(|(at, value)| message_of(at, value, &kind));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        if !method.is_client_streaming() && messages.len() != 1 {
            let count = messages.len();
            let message = format!("{} takes one message, and {count} are given", method.full_name());
            return Err(Failure::usage(message));
        }
        Ok(RequestMessages::Ready(messages))
    }

    /// What the next call sends.
    pub(crate) fn next_call(&mut self) -> Result<RequestStream, Failure> {
        match self {
            RequestMessages::Ready(messages) => Ok(RequestStream::ready(messages.clone())),
            RequestMessages::Reading(kind) => match kind.take() {
                Some(kind) => Ok(RequestStream::from_standard_input(kind)),
                None => Err(Failure::usage(
                    "standard input can be sent once: leave --repeat, or name a file",
                )),
            },
        }
    }
}

fn read_all(from: impl Read, name: &str) -> Result<String, Failure> {
    let mut text = String::new();
    let read = from.take(JSON_BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Err(error) => Err(Failure::usage(format!("{name}: {error}"))),
        Ok(bytes) if bytes as u64 > JSON_BYTES_MAX => Err(Failure::usage(format!(
            "{name}: more than {} MiB",
            JSON_BYTES_MAX >> 20
        ))),
        Ok(_) => Ok(text),
    }
}

/// The message that one value says, the `at`-th of all.
fn message_of(
    at: usize,
    value: Result<Value, serde_json::Error>,
    kind: &MessageDescriptor,
) -> Result<DynamicMessage, Failure> {
    let number = at + 1;
    let name = kind.full_name();
    let value = value.map_err(|error| {
        let field = kind.fields().next();
        let example = field.map_or_else(
            || "{}".to_owned(),
            |field| format!("{{\"{}\": …}}", field.json_name()),
        );
        Failure::usage(format!(
            "message {number} is no JSON: {error}; a {name} is such as {example}"
        ))
    })?;
    DynamicMessage::deserialize(kind.clone(), value)
        .map_err(|error| Failure::usage(format!("message {number} is no {name}: {error}")))
}

/// The first message of a stream that could not be read.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamProblem(Arc<NotedProblem>);

#[derive(Debug, Default)]
struct NotedProblem {
    failure: Mutex<Option<Failure>>,
    is_noted: Notify,
}

impl StreamProblem {
    fn note(&self, failure: Failure) {
        *self.0.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.0.is_noted.notify_one();
    }

    fn is_noted(&self) -> bool {
        let failure = self.0.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.is_some()
    }

    /// Waits until there is one, for ever if there is none.
    pub(crate) async fn noted(&self) -> Failure {
        loop {
            let failure = self
                .0
                .failure
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            if let Some(failure) = failure {
                return failure;
            }
            self.0.is_noted.notified().await;
        }
    }
}

/// The messages of one call.
#[derive(Debug)]
pub(crate) struct RequestStream {
    ready: std::vec::IntoIter<DynamicMessage>,
    reading: Option<mpsc::Receiver<DynamicMessage>>,
    problem: StreamProblem,
}

impl RequestStream {
    fn ready(messages: Vec<DynamicMessage>) -> RequestStream {
        RequestStream {
            ready: messages.into_iter(),
            reading: None,
            problem: StreamProblem::default(),
        }
    }

    /// Reads by a thread of its own, which ends with its input or with the call.
    fn from_standard_input(kind: MessageDescriptor) -> RequestStream {
        let (sender, receiver) = mpsc::channel(READ_AHEAD_MESSAGES);
        let problem = StreamProblem::default();
        let noted = problem.clone();
        std::thread::spawn(move || {
            let input = std::io::BufReader::new(std::io::stdin());
            let values = serde_json::Deserializer::from_reader(input).into_iter::<Value>();
            for (at, value) in values.enumerate() {
                let sent = match message_of(at, value, &kind) {
                    Ok(message) => sender.blocking_send(message),
                    Err(failure) => return noted.note(failure),
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        RequestStream {
            ready: Vec::new().into_iter(),
            reading: Some(receiver),
            problem,
        }
    }

    /// Where a message is noted that could not be read.
    pub(crate) fn problem(&self) -> StreamProblem {
        self.problem.clone()
    }
}

impl Stream for RequestStream {
    type Item = DynamicMessage;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<DynamicMessage>> {
        match self.reading.as_mut() {
            None => Poll::Ready(self.ready.next()),
            Some(reading) => match reading.poll_recv(context) {
                // The stream has not ended: it is given up, and the server is to see that.
                Poll::Ready(None) if self.problem.is_noted() => Poll::Pending,
                polled => polled,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::tests::interface;

    const PROTO: &str = "\
syntax = \"proto3\";
package t;
service S { rpc One(M) returns (M); rpc Many(stream M) returns (M); }
message M { string name = 1; uint32 count = 2; }
";

    fn read(method: &str, text: Option<&str>) -> Result<usize, Failure> {
        let method = interface(PROTO, "S").unwrap().method(method).unwrap();
        let source = text.map_or(RequestSource::Nothing, |text| RequestSource::parse(text).unwrap());
        RequestMessages::read(&source, &method).map(|requests| match requests {
            RequestMessages::Ready(messages) => messages.len(),
            RequestMessages::Reading(_) => usize::MAX,
        })
    }

    #[test]
    fn one_message_or_a_stream_of_them_is_what_the_method_takes() {
        assert_eq!(read("One", None), Ok(1));
        assert_eq!(read("One", Some("{\"name\": \"a\"}")), Ok(1));
        assert_eq!(read("Many", None), Ok(0));
        assert_eq!(read("Many", Some("{} {\"count\": 3}\n{}")), Ok(3));
        assert_eq!(read("Many", Some("-")), Ok(usize::MAX));
    }

    #[test]
    fn what_is_no_message_says_which_and_why() {
        for (method, text, words) in [
            ("One", "{} {}", "takes one message, and 2 are given"),
            ("One", "", "takes one message, and 0 are given"),
            ("One", "{\"nam\": \"a\"}", "message 1 is no t.M"),
            ("Many", "{} {\"count\": -1}", "message 2 is no t.M"),
            ("Many", "{} {", "message 2 is no JSON"),
            ("One", "@/nowhere/m.json", "/nowhere/m.json"),
        ] {
            let failure = read(method, Some(text)).unwrap_err();
            assert!(failure.message.contains(words), "{text}: {failure}");
        }
        assert!(RequestSource::parse("@").is_err());
    }
}
