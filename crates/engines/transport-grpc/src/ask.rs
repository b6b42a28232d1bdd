//! Questions to a server over a link that no datapath has: blocking, one at a time, each a call with one message and one answer.

use std::time::Instant;

use provost_datapath::Nanos;
use provost_grpc::{GrpcEvent, GrpcMessage, GrpcStatus, MessageEncoding, MessageForm, RequestHead};
use provost_http2::DataChunk;
use provost_wire::Code;

use crate::chunk::MessageChunk;
use crate::link::{EstablishFault, GrpcLink, wait_or_fail};

/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;

/// A question to a server.
#[derive(Clone, Copy, Debug)]
pub struct ServerQuestion<'a> {
    /// The method, as `/package.Service/Method`.
    pub path: &'a str,
    /// What the server is called.
    pub authority: &'a str,
    /// The one message of the call.
    pub message: &'a [u8],
}

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub enum AskFault {
    /// The server ended the call without an answer.
    #[error("the server said {}: {}", .0.code, .0.message)]
    Status(GrpcStatus),
    /// The answer is not what the protocol allows.
    #[error("{0}")]
    Answer(String),
    /// It has not answered before the deadline.
    #[error("it did not answer in time")]
    Deadline,
    /// The connection is of no use any more.
    #[error(transparent)]
    Connection(#[from] EstablishFault),
}

/// What has come of a question.
#[derive(Default)]
struct AnswerState {
    encoding: MessageEncoding,
    answer: Option<GrpcMessage>,
    status: Option<GrpcStatus>,
}

impl GrpcLink {
    /// Asks a server, and waits for its answer, which has so many bytes at most when it is decompressed.
    ///
    /// # Errors
    /// It does not answer, or not in time, or too much.
    pub fn ask(
        &mut self,
        question: ServerQuestion<'_>,
        answer_bytes_max: u32,
        deadline: Instant,
        now: impl Fn() -> Nanos,
    ) -> Result<Vec<u8>, AskFault> {
        let call = self.begin_question(question, now())?;
        let mut asked = AnswerState::default();
        let mut bytes = vec![0; READ_BYTES];
        while asked.answer.is_none() && asked.status.is_none() {
            self.send_greeting(now())?;
            match self.carrier.read_ready(&mut bytes) {
                Ok(0) => return Err(EstablishFault::Closed.into()),
                Ok(count) => self.take_answer(call, &bytes[..count], &mut asked, now())?,
                Err(error) => wait_or_fail(error, self, deadline).map_err(of_waiting)?,
            }
            if Instant::now() >= deadline {
                return Err(AskFault::Deadline);
            }
        }
        let AnswerState {
            encoding,
            answer,
            status,
        } = asked;
        let Some(answer) = answer else {
            return Err(status.map_or(EstablishFault::Closed.into(), AskFault::Status));
        };
        self.grpc.consume(call, answer.bytes.len());
        if status.is_none() {
            // Nothing more is wanted of it. A call that has ended meanwhile is not there to be given up.
            let _ = self.grpc.cancel(call, Code::Cancelled, now());
        }
        let plain = answer.into_plain(encoding, answer_bytes_max);
        plain.map_err(|fault| AskFault::Answer(fault.to_string()))
    }

    fn begin_question(&mut self, question: ServerQuestion<'_>, now: Nanos) -> Result<u32, AskFault> {
        let head = RequestHead {
            authority: Some(question.authority.to_owned()),
            ..RequestHead::new(question.path)
        };
        let not_asked =
            |fault: &dyn std::fmt::Display| AskFault::Answer(format!("it takes no calls: {fault}"));
        let call = self.grpc.call(&head, now).map_err(|fault| not_asked(&fault))?;
        let message = MessageChunk::from_saved(question.message.to_vec());
        let sent = self.grpc.send_message(call, MessageForm::Plain, message, now);
        sent.map_err(|(fault, _)| not_asked(&fault))?;
        self.grpc
            .half_close(call, now)
            .map_err(|fault| not_asked(&fault))?;
        Ok(call)
    }

    fn take_answer(
        &mut self,
        call: u32,
        input: &[u8],
        asked: &mut AnswerState,
        now: Nanos,
    ) -> Result<(), AskFault> {
        let mut taken = 0;
        loop {
            let received = self.grpc.receive(&input[taken..], now);
            let received = received.map_err(|error| EstablishFault::Protocol(error.to_string()))?;
            taken += received.consumed;
            match received.event {
                None if taken == input.len() => return Ok(()),
                None => {
                    return Err(EstablishFault::Protocol("it asks more than it reads".to_owned()).into());
                }
                Some(GrpcEvent::Response { call: of, head }) if of == call => asked.encoding = head.encoding,
                Some(GrpcEvent::Message { call: of, message }) if of == call && asked.answer.is_none() => {
                    asked.answer = Some(message);
                }
                Some(GrpcEvent::Message { call: of, message }) => {
                    self.grpc.consume(of, message.bytes.len());
                }
                Some(GrpcEvent::Ended { call: of, status, .. }) if of == call => asked.status = Some(status),
                Some(_) => {}
            }
        }
    }
}

fn of_waiting(fault: EstablishFault) -> AskFault {
    match fault {
        EstablishFault::Deadline => AskFault::Deadline,
        fault => AskFault::Connection(fault),
    }
}
