//! A client on an endpoint: several slots, each with a session of the store and one request at a time. It finds the
//! leader, and sends a request again, with its number, until it has an answer, so that it is executed exactly once.

use std::collections::VecDeque;

use provost_datagram::{Address, Call, CallError, Completion, Endpoint, Event, MsgBuf, SessionId};

use crate::operation::{ANSWER_BYTES_MAX, Operation, Request, RequestAnswer};
use crate::replica::{STATUS_OK, method};

pub const SLOTS_MAX: usize = 1 << 12;
/// Calls to one member that are on their way.
const CALLS_MAX: usize = 2 * SLOTS_MAX;
/// Bytes of a buffer that is kept for later requests.
const SPARE_BYTES_MAX: usize = 4 << 10;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct ClientConfig<A> {
    /// Where the members are.
    pub members: Vec<(u64, A)>,
    /// Requests at a time.
    pub slots: usize,
    /// How long it waits for an answer before it asks another member, in nanoseconds.
    pub attempt_ns: u64,
    /// How long it waits before it asks again a member that could not answer now, in nanoseconds.
    pub pause_ns: u64,
    /// Whom it asks for what a key has.
    pub route: ReadRoute,
}

/// Whom a client asks for what a key has. Everything else goes to whoever leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRoute {
    Leader,
    /// This one of the members: for stale reads.
    Member(usize),
}

/// A client on an endpoint.
#[derive(Debug)]
pub struct Client<A> {
    config: ClientConfig<A>,
    links: Vec<MemberLink>,
    slots: Vec<RequestSlot>,
    /// Whom to ask first.
    target: usize,
    outcomes: VecDeque<(usize, RequestAnswer)>,
    spare: Vec<(MsgBuf, MsgBuf)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct MemberLink {
    session: Option<SessionId>,
    is_open: bool,
    calls: usize,
    retry_at_ns: u64,
}

#[derive(Debug, Default)]
struct RequestSlot {
    session: u64,
    sequence: u64,
    /// Counts operations, so that an answer to an earlier one is known as such.
    number: u64,
    /// What is to be answered.
    request: Option<Request>,
    /// What was asked for while the slot's session was being opened.
    next: Option<Operation>,
    /// When it is sent, or sent again.
    send_at_ns: u64,
    /// Which member it was sent to last.
    sent_to: Option<usize>,
}

/// The slot has a request already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the slot has a request that is not answered yet")]
pub struct SlotBusy;

impl<A: Address> Client<A> {
    /// A client of these members, with no session yet.
    #[must_use]
    pub fn new(config: ClientConfig<A>) -> Self {
        Self {
            links: vec![MemberLink::default(); config.members.len()],
            slots: (0..config.slots.min(SLOTS_MAX))
                .map(|_| RequestSlot::default())
                .collect(),
            target: 0,
            outcomes: VecDeque::new(),
            spare: Vec::new(),
            config,
        }
    }

    /// Asks for something. What is written opens a session first, where the slot has none.
    ///
    /// # Errors
    /// If the slot has something to do.
    pub fn submit(&mut self, now_ns: u64, slot: usize, operation: Operation) -> Result<(), SlotBusy> {
        let slot = self.slots.get_mut(slot).ok_or(SlotBusy)?;
        if slot.request.is_some() {
            return Err(SlotBusy);
        }
        let reads = matches!(operation, Operation::Get { .. });
        if slot.session == 0 && !reads {
            slot.next = Some(operation);
            slot.begin(now_ns, Operation::OpenSession);
        } else {
            slot.begin(now_ns, operation);
        }
        Ok(())
    }

    /// Whether a slot has a request that is not answered yet.
    #[must_use]
    pub fn is_busy(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|slot| slot.request.is_some())
    }

    /// An answer, with its slot, which can now be asked for something else.
    pub fn poll_outcome(&mut self) -> Option<(usize, RequestAnswer)> {
        self.outcomes.pop_front()
    }

    /// The member that it takes for the leader.
    #[must_use]
    pub fn leader(&self) -> u64 {
        self.config.members.get(self.target).map_or(0, |(id, _)| *id)
    }

    /// Takes what the endpoint tells.
    pub fn handle(&mut self, now_ns: u64, event: Event<'_>) {
        match event {
            Event::Connected(session) => {
                if let Some(link) = self.link_of(session) {
                    link.is_open = true;
                }
            }
            Event::Ended(session, _) => {
                let pause_ns = self.config.pause_ns;
                if let Some(link) = self.link_of(session) {
                    link.session = None;
                    link.is_open = false;
                    link.retry_at_ns = now_ns + pause_ns;
                }
            }
            Event::Completed(completion) => self.complete(now_ns, completion),
            Event::Accepted(_) | Event::Request { .. } | Event::ResponseReturned(_) => {}
        }
    }

    fn link_of(&mut self, session: SessionId) -> Option<&mut MemberLink> {
        self.links.iter_mut().find(|link| link.session == Some(session))
    }

    fn complete(&mut self, now_ns: u64, completion: Completion) {
        let tag = CallTag::of(completion.tag);
        if let Some(link) = self.links.get_mut(tag.member) {
            link.calls -= 1;
        }
        let answer = match completion.outcome {
            Ok(STATUS_OK) => RequestAnswer::decode(&completion.response),
            Err(CallError::RequestTooLarge) => Some(RequestAnswer::Invalid),
            _ => None,
        };
        if completion.request.capacity() <= SPARE_BYTES_MAX {
            self.spare.push((completion.request, completion.response));
        }
        let Some(slot) = self.slots.get_mut(tag.slot) else {
            return;
        };
        if slot.number & CallTag::NUMBER_MASK != tag.number || slot.request.is_none() {
            return;
        }
        let is_fixed = slot.fixed_member(self.config.route).is_some();
        match answer {
            Some(answer) if !answer.is_temporary() => {
                if !is_fixed {
                    self.target = tag.member;
                }
                self.finish(now_ns, tag.slot, answer);
            }
            other => self.retry(now_ns, tag, other),
        }
    }

    fn retry(&mut self, now_ns: u64, tag: CallTag, answer: Option<RequestAnswer>) {
        let pause_ns = self.config.pause_ns;
        let slot = &mut self.slots[tag.slot];
        // A late refusal of an earlier attempt says nothing about the present one.
        if slot.sent_to != Some(tag.member) {
            return;
        }
        slot.sent_to = None;
        slot.send_at_ns = now_ns + pause_ns;
        if slot.fixed_member(self.config.route).is_some() {
            return;
        }
        match answer {
            Some(RequestAnswer::Redirect(Some(leader))) => {
                let mut members = self.config.members.iter();
                if let Some(at) = members.position(|(id, _)| *id == leader)
                    && at != tag.member
                {
                    self.target = at;
                    slot.send_at_ns = now_ns;
                }
            }
            Some(RequestAnswer::Busy) => {}
            _ if self.target == tag.member => self.target = (tag.member + 1) % self.links.len(),
            _ => {}
        }
    }

    fn finish(&mut self, now_ns: u64, at: usize, answer: RequestAnswer) {
        let slot = &mut self.slots[at];
        slot.request = None;
        slot.sent_to = None;
        match answer {
            RequestAnswer::SessionOpened(session) => {
                slot.session = session;
                slot.sequence = 0;
                if let Some(operation) = slot.next.take() {
                    slot.begin(now_ns, operation);
                }
            }
            answer => {
                if answer == RequestAnswer::SessionExpired {
                    slot.session = 0;
                }
                self.outcomes.push_back((at, answer));
            }
        }
    }

    /// Sends what is to be sent. To be called when all events have been handled; says when it is to be called again at the
    /// latest.
    pub fn idle(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64) -> Option<u64> {
        self.connect(endpoint, now_ns);
        let mut wake_ns: Option<u64> = None;
        for at in 0..self.slots.len() {
            let slot = &self.slots[at];
            if slot.request.is_none() {
                continue;
            }
            if slot.send_at_ns <= now_ns {
                self.send(endpoint, now_ns, at);
            }
            let again_ns = self.slots[at].send_at_ns;
            wake_ns = Some(wake_ns.map_or(again_ns, |earlier| earlier.min(again_ns)));
        }
        wake_ns
    }

    fn connect(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64) {
        let pause_ns = self.config.pause_ns;
        for (link, (_, address)) in self.links.iter_mut().zip(&self.config.members) {
            if link.session.is_none() && link.retry_at_ns <= now_ns {
                link.session = endpoint.connect(now_ns, *address).ok();
                link.retry_at_ns = now_ns + pause_ns;
            }
        }
    }

    fn send(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, at: usize) {
        let (attempt_ns, pause_ns) = (self.config.attempt_ns, self.config.pause_ns);
        let fixed = self.slots[at].fixed_member(self.config.route);
        // An attempt that was not answered in time was with a member that is gone, or is no longer the leader.
        if fixed.is_none() && self.slots[at].sent_to == Some(self.target) {
            self.target = (self.target + 1) % self.links.len();
        }
        let member = fixed.unwrap_or(self.target);
        let slot = &mut self.slots[at];
        slot.sent_to = None;
        slot.send_at_ns = now_ns + pause_ns;
        let Some(link) = self.links.get_mut(member) else {
            return;
        };
        let (Some(session), Some(request)) = (link.session, &slot.request) else {
            return;
        };
        if !link.is_open || link.calls >= CALLS_MAX {
            if fixed.is_none() {
                self.target = (member + 1) % self.links.len();
            }
            return;
        }
        let bytes = request.encode();
        let spare = (bytes.len() <= SPARE_BYTES_MAX)
            .then(|| self.spare.pop())
            .flatten();
        let (mut buffer, response) = spare.unwrap_or_else(|| {
            let request = MsgBuf::with_capacity(bytes.len().max(256));
            (request, MsgBuf::with_capacity(ANSWER_BYTES_MAX))
        });
        // A kept buffer may be too small for this request.
        if !buffer.fill(&bytes) {
            buffer = MsgBuf::from_slice(&bytes);
        }
        let tag = CallTag {
            slot: at,
            member,
            number: slot.number & CallTag::NUMBER_MASK,
        };
        let call = Call {
            method: method::CLIENT,
            tag: tag.bits(),
            request: buffer,
            response,
        };
        if endpoint.call(now_ns, session, call).is_ok() {
            link.calls += 1;
            slot.sent_to = Some(member);
            slot.send_at_ns = now_ns + attempt_ns;
        }
    }
}

impl RequestSlot {
    /// The only member that may be asked, where there is one.
    fn fixed_member(&self, route: ReadRoute) -> Option<usize> {
        let reads =
            matches!(&self.request, Some(request) if matches!(request.operation, Operation::Get { .. }));
        match route {
            ReadRoute::Member(at) if reads => Some(at),
            _ => None,
        }
    }

    fn begin(&mut self, now_ns: u64, operation: Operation) {
        let counts = !matches!(operation, Operation::Get { .. } | Operation::OpenSession);
        self.sequence += u64::from(counts);
        self.number += 1;
        self.send_at_ns = now_ns;
        self.sent_to = None;
        self.request = Some(Request {
            session: self.session,
            sequence: self.sequence,
            operation,
        });
    }
}

/// What a call's tag says: which request of which slot, and whom it was sent to.
#[derive(Clone, Copy, Debug)]
struct CallTag {
    slot: usize,
    member: usize,
    number: u64,
}

impl CallTag {
    const NUMBER_MASK: u64 = (1 << 40) - 1;

    fn of(bits: u64) -> CallTag {
        CallTag {
            slot: (bits >> 48) as usize,
            member: (bits >> 40 & 0xff) as usize,
            number: bits & CallTag::NUMBER_MASK,
        }
    }

    fn bits(self) -> u64 {
        (self.slot as u64) << 48 | (self.member as u64) << 40 | self.number
    }
}
