//! Services that the node answers itself, such as health and reflection: their calls enter no datapath.
//!
//! ```text
//! a message ─► NodeEvent::Asked ─► control plane ─► NodeAnswer ─► its messages, then
//!                  the next message is asked about (Next), more comes by itself (More), or the call ends (Ends)
//! ```

use std::collections::HashMap;
use std::sync::Arc;

use provost_datapath::Nanos;
use provost_grpc::{GrpcStatus, MessageForm};
use provost_wire::Code;

use crate::calls::{PortReply, REPLY_COST_BYTES, ReplyBytes, ReplyMessage};
use crate::port::GrpcPort;
use crate::requests::plain;

/// Questions of one client that the control plane has at a time.
const QUESTIONS_MAX: usize = 16;
/// The longest message that is asked about.
const QUESTION_BYTES_MAX: usize = 64 << 10;

/// Methods that the node answers itself, by path (`package.Service/Method`).
pub type NodeMethods = Arc<HashMap<String, NodeMethod>>;

/// A method that the node answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeMethod {
    /// The control plane's own number of it.
    pub number: u32,
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
}

/// What the control plane is told of calls that it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// A message has come; nothing else is asked about the call before it is answered ([`GrpcPort::answer_node`]).
    Asked(NodeQuestion),
    /// A call has ended whose answers were to come by themselves.
    Ended {
        /// The number of the call at its port.
        stream: u32,
    },
}

/// A message of a call that the node answers itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeQuestion {
    /// The number of the call at its port.
    pub stream: u32,
    /// The number of the method ([`NodeMethod::number`]).
    pub method: u32,
    /// The message, as protobuf.
    pub message: Vec<u8>,
}

/// What the control plane answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAnswer {
    /// The number of the call at its port.
    pub stream: u32,
    /// Messages for the client, as protobuf.
    pub messages: Vec<Vec<u8>>,
    /// Whether the answer to the question was given before, and this comes by itself.
    pub is_further: bool,
    /// What follows these messages.
    pub then: NodeAnswerEnd,
}

/// What follows an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAnswerEnd {
    /// The next message of the client.
    Next,
    /// More answers, when there is something new. What the client has not read of older ones is not sent any more.
    More,
    /// The end of the call.
    Ends(GrpcStatus),
}

/// How far a call is that the node answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeCall {
    method: NodeMethod,
    phase: NodeCallPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeCallPhase {
    /// No message has come yet.
    Fresh,
    /// The next message is asked about when it comes.
    Listens,
    /// The control plane was asked.
    Asked,
    /// Answers come by themselves.
    Watches,
}

impl NodeCall {
    /// A call of which nothing has come yet.
    pub(crate) fn new(method: NodeMethod) -> NodeCall {
        let phase = NodeCallPhase::Fresh;
        NodeCall { method, phase }
    }

    /// A call that another process has brought so far.
    pub(crate) fn going_on(method: NodeMethod, phase: NodeCallPhase) -> NodeCall {
        NodeCall { method, phase }
    }

    /// How far it is.
    pub(crate) fn phase(self) -> NodeCallPhase {
        self.phase
    }

    /// The control plane's number of its method.
    pub(crate) fn method_number(self) -> u32 {
        self.method.number
    }

    /// The status of a call whose client sends no more, and which nothing was asked about that was not answered.
    fn end_of_requests(self) -> GrpcStatus {
        if self.phase == NodeCallPhase::Fresh && !self.method.client_streaming {
            let message = "the request has no message, and the method takes one";
            return GrpcStatus::new(Code::Unimplemented, message);
        }
        GrpcStatus::new(Code::Ok, "")
    }

    /// Whether the control plane was asked, or is about to be.
    pub(crate) fn is_asked(self) -> bool {
        self.phase == NodeCallPhase::Asked
    }

    /// Whether the control plane has to be told of its end.
    pub(crate) fn is_watching(self) -> bool {
        self.phase == NodeCallPhase::Watches
    }
}

impl GrpcPort {
    /// What the control plane is to be told of calls that it answers, as long as it has few questions to answer.
    pub fn take_node_event(&mut self) -> Option<NodeEvent> {
        if let NodeEvent::Asked(_) = self.node_events.front()? {
            if self.questions >= QUESTIONS_MAX {
                return None;
            }
            self.questions += 1;
        }
        self.node_events.pop_front()
    }

    /// Takes what the control plane answers: once for each question, and what comes by itself after that.
    pub fn answer_node(&mut self, answer: NodeAnswer, now: Nanos) {
        self.now = now;
        if !answer.is_further {
            self.questions = self.questions.saturating_sub(1);
        }
        let stream = answer.stream;
        let bytes: usize = answer.messages.iter().map(Vec::len).sum();
        let has_room = self.share.message_bytes_now() > bytes as u64 + REPLY_COST_BYTES;
        let Some((call, mut node)) = self
            .calls
            .get_mut(stream)
            .and_then(|call| call.node.map(|node| (call, node)))
        else {
            // The client has given it up meanwhile.
            if answer.then == NodeAnswerEnd::More {
                self.node_events.push_back(NodeEvent::Ended { stream });
            }
            return;
        };
        if node.is_watching() {
            call.replies.clear();
        }
        node.phase = match answer.then {
            NodeAnswerEnd::More => NodeCallPhase::Watches,
            NodeAnswerEnd::Next | NodeAnswerEnd::Ends(_) => NodeCallPhase::Listens,
        };
        call.node = Some(node);
        call.question = None;
        if !has_room {
            let message = "the replies that this client has not read fill its share of memory";
            return self.answer(stream, &GrpcStatus::new(Code::ResourceExhausted, message));
        }
        for bytes in answer.messages {
            call.replies.push_back(PortReply::Message {
                form: MessageForm::Plain,
                bytes: ReplyBytes::counted_in(&self.share, ReplyMessage::of(bytes)),
                window_bytes: 0,
            });
        }
        if let NodeAnswerEnd::Ends(status) = answer.then {
            let metadata = Vec::new();
            call.replies.push_back(PortReply::End { status, metadata });
        }
        self.pump(stream);
    }

    /// Asks about the next message of a call that the node answers, once the one before was answered and read.
    pub(crate) fn ask_node(&mut self, stream: u32) {
        let Some((call, node)) = self
            .calls
            .get_mut(stream)
            .and_then(|call| call.node.map(|node| (call, node)))
        else {
            return;
        };
        let listens = matches!(node.phase, NodeCallPhase::Fresh | NodeCallPhase::Listens);
        if !listens || !call.replies.is_empty() {
            return;
        }
        let Some(message) = call.incoming.pop_front() else {
            if call.is_half_closed {
                self.answer(stream, &node.end_of_requests());
            }
            return;
        };
        let came_bytes = message.bytes.len();
        self.incoming.subtract(&message);
        self.grpc.consume(stream, came_bytes);
        let question = match came_bytes {
            0..=QUESTION_BYTES_MAX => plain(message, call, QUESTION_BYTES_MAX as u32),
            _ => Err(too_large(came_bytes)),
        };
        match question {
            Ok(message) => {
                let phase = NodeCallPhase::Asked;
                call.node = Some(NodeCall { phase, ..node });
                call.question = Some(message.clone());
                self.node_events.push_back(NodeEvent::Asked(NodeQuestion {
                    stream,
                    method: node.method.number,
                    message,
                }));
            }
            Err(status) => self.answer(stream, &status),
        }
    }
}

fn too_large(bytes: usize) -> GrpcStatus {
    let message = format!("a message of {bytes} bytes: services of the node take {QUESTION_BYTES_MAX}");
    GrpcStatus::new(Code::ResourceExhausted, message)
}
