//! Clients and servers whose every byte is known beforehand, and who complain when something is not as it must be.
//!
//! A request says what its response is to be; both are made of the call's tag. A client knows each call that it has
//! made and each buffer that it has lent; a server knows each call that it has executed.

use std::collections::{BTreeMap, BTreeSet};

use provost_datagram::{
    Call, CallError, Completion, EndReason, Endpoint, Event, MsgBuf, Payload, RequestHandle, SessionId,
};

use crate::{Application, Host};

/// Bytes of the shortest request: its tag, the length of its response, and how to answer.
pub const REQUEST_BYTES_MIN: usize = 16;
pub const STATUS: u16 = 7;

/// How a server is to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AnswerForm {
    /// At once, from the slot's own buffer if the response fits in there.
    AtOnce = 0,
    /// At once, in a buffer that is lent.
    Lent = 1,
    Later = 2,
    /// After it has asked the next server itself, if it has one.
    Nested = 3,
}

/// A call to make.
#[derive(Clone, Copy, Debug)]
pub struct CallWish {
    /// Bytes of the request.
    pub request_bytes: usize,
    /// Bytes of the response.
    pub response_bytes: usize,
    /// How the server is to answer.
    pub answer: AnswerForm,
}

/// A host's application: a client of some hosts, a server of others, or both.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Which of the hosts it is, so that tags differ.
    pub host: Host,
    /// Sessions that are there.
    pub connected: BTreeSet<SessionId>,
    /// Sessions that have ended, and why.
    pub ended: Vec<(SessionId, EndReason)>,
    /// Where nested calls go, and no others.
    pub upstream: Option<SessionId>,
    /// How long a late answer takes.
    pub later_ns: u64,
    /// Calls that were answered.
    pub answered: u64,
    /// Calls that failed, and why.
    pub failed: Vec<CallError>,
    /// Bytes of requests and responses of the calls that were answered.
    pub bytes: u64,
    /// A call to make again whenever one ends, so that there are always as many.
    pub again: Option<CallWish>,
    /// How long each answered call took.
    pub latencies_ns: Vec<u64>,
    tags: u64,
    open: BTreeMap<u64, LentBuffers>,
    executed: BTreeSet<u64>,
    responses_lent: i64,
    later: BTreeMap<(u64, u64), (RequestHandle, u64, usize)>,
    nested: BTreeMap<u64, (RequestHandle, u64, usize)>,
    spare: Vec<(MsgBuf, MsgBuf)>,
}

/// A call that is on its way, and where its buffers are.
#[derive(Debug)]
struct LentBuffers {
    request_at: *const u8,
    response_at: *const u8,
    wish: CallWish,
    since_ns: u64,
}

impl Traffic {
    /// An application of this host.
    #[must_use]
    pub fn on(host: Host) -> Self {
        Self {
            host,
            later_ns: 2_000_000,
            ..Self::default()
        }
    }

    /// The application of a host that has lost its memory: it knows of no session and no call. What was executed is still not
    /// to be executed again.
    #[must_use]
    pub fn after_restart(&self) -> Self {
        Self {
            host: self.host,
            later_ns: self.later_ns,
            tags: self.tags,
            executed: self.executed.clone(),
            answered: self.answered,
            ..Self::default()
        }
    }

    /// Calls that have not ended.
    #[must_use]
    pub fn calls_open(&self) -> usize {
        self.open.len()
    }

    /// Calls that this host executed.
    #[must_use]
    pub fn executed(&self) -> usize {
        self.executed.len()
    }

    /// Buffers of responses that have not come back.
    #[must_use]
    pub fn responses_lent(&self) -> i64 {
        self.responses_lent
    }

    /// Makes a call.
    ///
    /// # Errors
    /// If the endpoint does not take it.
    pub fn call(
        &mut self,
        endpoint: &mut Endpoint<Host>,
        now_ns: u64,
        session: SessionId,
        wish: CallWish,
    ) -> Result<u64, CallError> {
        self.tags += 1;
        let tag = u64::from(self.host) << 40 | self.tags;
        let (mut request, mut response) = self.spare.pop().unwrap_or_default();
        let request_bytes = wish.request_bytes.max(REQUEST_BYTES_MIN);
        if request.capacity() < request_bytes || response.capacity() < wish.response_bytes {
            request = MsgBuf::with_capacity(request_bytes);
            response = MsgBuf::with_capacity(wish.response_bytes);
        }
        request.set_length(request_bytes);
        write_request(&mut request, tag, &wish);
        let lent = LentBuffers {
            request_at: request.as_ptr(),
            response_at: response.as_ptr(),
            wish,
            since_ns: now_ns,
        };
        let call = Call {
            method: (tag % 1000) as u16,
            tag,
            request,
            response,
        };
        endpoint.call(now_ns, session, call).map_err(|refused| {
            assert_eq!(
                refused.call.request.as_ptr(),
                lent.request_at,
                "another buffer came back"
            );
            refused.error
        })?;
        self.open.insert(tag, lent);
        Ok(tag)
    }

    fn completed(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64, mut completion: Completion) {
        let tag = completion.tag;
        let lent = self.open.remove(&tag);
        let lent = lent.expect("a call is completed once, and was made");
        assert_eq!(
            completion.request.as_ptr(),
            lent.request_at,
            "another request came back"
        );
        assert_eq!(
            completion.response.as_ptr(),
            lent.response_at,
            "another response came back"
        );
        assert_pattern(
            &completion.request[REQUEST_BYTES_MIN..],
            tag,
            "request that came back",
        );
        match completion.outcome {
            Ok(status) => {
                assert_eq!(status, STATUS);
                assert_eq!(completion.response.len(), lent.wish.response_bytes);
                assert_pattern(&completion.response, tag, "response");
                self.answered += 1;
                self.bytes += (completion.request.len() + completion.response.len()) as u64;
                self.latencies_ns.push(now_ns - lent.since_ns);
            }
            Err(error) => self.failed.push(error),
        }
        // Nothing may refer to the buffers any more: whatever is written here must show nowhere.
        completion.request.fill_with_noise();
        completion.response.fill_with_noise();
        self.spare.push((completion.request, completion.response));
        if let Some((handle, tag, bytes)) = self.nested.remove(&completion.tag) {
            self.answer(endpoint, now_ns, handle, tag, bytes, AnswerForm::AtOnce);
        }
        if let (Some(wish), Ok(_)) = (self.again, completion.outcome) {
            let _ = self.call(endpoint, now_ns, completion.session, wish);
        }
    }

    fn execute(
        &mut self,
        endpoint: &mut Endpoint<Host>,
        now_ns: u64,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
    ) {
        let (tag, bytes, answer) = read_request(&payload);
        assert_eq!(u64::from(method), tag % 1000);
        assert_pattern(&payload[REQUEST_BYTES_MIN..], tag, "request");
        assert!(self.executed.insert(tag), "call {tag:x} is executed twice");
        if let Payload::Owned(buffer) = payload {
            endpoint.recycle(buffer);
        }
        match (answer, self.upstream) {
            (AnswerForm::Later, _) => {
                let at = (now_ns + self.later_ns, tag);
                self.later.insert(at, (handle, tag, bytes));
            }
            (AnswerForm::Nested, Some(upstream)) => {
                let wish = CallWish {
                    request_bytes: 64,
                    response_bytes: 64,
                    answer: AnswerForm::AtOnce,
                };
                match self.call(endpoint, now_ns, upstream, wish) {
                    Ok(inner) => {
                        self.nested.insert(inner, (handle, tag, bytes));
                    }
                    Err(_) => self.answer(endpoint, now_ns, handle, tag, bytes, AnswerForm::AtOnce),
                }
            }
            _ => self.answer(endpoint, now_ns, handle, tag, bytes, answer),
        }
    }

    fn answer(
        &mut self,
        endpoint: &mut Endpoint<Host>,
        now_ns: u64,
        handle: RequestHandle,
        tag: u64,
        bytes: usize,
        answer: AnswerForm,
    ) {
        let mut response = MsgBuf::with_capacity(bytes);
        response.set_length(bytes);
        write_pattern(&mut response, tag);
        // Where the session is over by now, nobody waits.
        if answer != AnswerForm::Lent
            && endpoint.respond_inline(now_ns, handle, STATUS, &response) != Err(CallError::ResponseTooLarge)
        {
            return;
        }
        if endpoint.respond(now_ns, handle, STATUS, response).is_ok() {
            self.responses_lent += 1;
        }
    }
}

impl Application for Traffic {
    fn handle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64, event: Event<'_>) {
        match event {
            Event::Connected(session) => {
                self.connected.insert(session);
                // It is for nested calls alone: if they waited for slots behind calls that wait for nested ones in
                // turn, a circle of hosts would wait for ever.
                self.upstream.inspect(|upstream| {
                    self.connected.remove(upstream);
                });
            }
            Event::Accepted(_) => {}
            Event::Request {
                handle,
                method,
                payload,
            } => {
                self.execute(endpoint, now_ns, handle, method, payload);
            }
            Event::Completed(completion) => self.completed(endpoint, now_ns, completion),
            Event::ResponseReturned(buffer) => {
                assert!(!buffer.is_empty() || buffer.capacity() == 0);
                self.responses_lent -= 1;
            }
            Event::Ended(session, reason) => {
                self.connected.remove(&session);
                self.ended.push((session, reason));
            }
        }
    }

    fn idle(&mut self, endpoint: &mut Endpoint<Host>, now_ns: u64) -> Option<u64> {
        while let Some(((at_ns, _), _)) = self.later.first_key_value() {
            if *at_ns > now_ns {
                return Some(*at_ns);
            }
            if let Some((_, (handle, tag, bytes))) = self.later.pop_first() {
                self.answer(endpoint, now_ns, handle, tag, bytes, AnswerForm::Lent);
            }
        }
        None
    }
}

trait Noise {
    fn fill_with_noise(&mut self);
}

impl Noise for MsgBuf {
    fn fill_with_noise(&mut self) {
        self.iter_mut().for_each(|byte| *byte = 0xa5);
    }
}

fn write_request(request: &mut [u8], tag: u64, wish: &CallWish) {
    request[..8].copy_from_slice(&tag.to_le_bytes());
    request[8..12].copy_from_slice(&(wish.response_bytes as u32).to_le_bytes());
    request[12..16].copy_from_slice(&(wish.answer as u32).to_le_bytes());
    write_pattern(&mut request[REQUEST_BYTES_MIN..], tag);
}

fn read_request(request: &[u8]) -> (u64, usize, AnswerForm) {
    let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("four bytes"));
    let tag = u64::from(word(0)) | u64::from(word(4)) << 32;
    let answer = match word(12) {
        0 => AnswerForm::AtOnce,
        1 => AnswerForm::Lent,
        2 => AnswerForm::Later,
        3 => AnswerForm::Nested,
        other => panic!("no client asks for answer {other}"),
    };
    (tag, word(8) as usize, answer)
}

fn pattern(tag: u64, at: usize) -> u8 {
    (tag as usize ^ (at >> 8))
        .wrapping_mul(31)
        .wrapping_add(at.wrapping_mul(7)) as u8
}

fn write_pattern(bytes: &mut [u8], tag: u64) {
    bytes
        .iter_mut()
        .enumerate()
        .for_each(|(at, byte)| *byte = pattern(tag, at));
}

fn assert_pattern(bytes: &[u8], tag: u64, what: &str) {
    let wrong = bytes
        .iter()
        .enumerate()
        .find(|(at, byte)| **byte != pattern(tag, *at));
    assert_eq!(wrong, None, "a wrong byte in the {what} of call {tag:x}");
}
