//! A server's half of a stream: it answers, now or later.

use super::*;

impl ResumableStream {
    pub(super) fn requested(
        &mut self,
        now_ns: u64,
        handle: RequestHandle,
        method: u16,
        payload: Payload<'_>,
    ) -> Result<(), Lost> {
        if method == METHOD_ATTACH {
            let attach = Attach::read(&payload);
            if let Payload::Owned(buffer) = payload {
                self.endpoint.recycle(buffer);
            }
            return self.attach_client(now_ns, handle, attach);
        }
        let Some(head) = Head::read(&payload).filter(|_| self.session() == Some(handle.session())) else {
            if let Payload::Owned(buffer) = payload {
                self.endpoint.recycle(buffer);
            }
            return Ok(());
        };
        let carries_segment = payload.len() > HEAD_BYTES;
        self.held.push_back(HeldRequest {
            handle,
            carries_segment,
        });
        if carries_segment {
            self.rest_later(now_ns);
        }
        let is_last = head.flags & FINISHED != 0;
        let segment = match payload {
            Payload::Owned(buffer) => Segment {
                buffer,
                is_lent: true,
                is_last,
            },
            Payload::Borrowed(bytes) => {
                let mut buffer = pool::take(bytes.len());
                // The pool's buffers have room for any segment, and this one was asked for by its length.
                let _ = buffer.fill(bytes);
                Segment {
                    buffer,
                    is_lent: false,
                    is_last,
                }
            }
        };
        self.arrived(head, segment)
    }

    /// A client takes its stream up, in a session of which nothing else was heard.
    pub(super) fn attach_client(
        &mut self,
        now_ns: u64,
        handle: RequestHandle,
        attach: Option<Attach>,
    ) -> Result<(), Lost> {
        let is_fresh = self.id == ResumableStreamId::default() && self.outgoing.last == 0;
        let Some(attach) = attach.filter(|attach| {
            if is_fresh {
                attach.received == 0
            } else {
                attach.id == self.id
            }
        }) else {
            // Whoever it is has no business here.
            let head = [0; HEAD_BYTES];
            let _ = self
                .endpoint
                .respond_inline(now_ns, handle, STATUS_UNKNOWN, &head);
            return if is_fresh {
                Err(Lost(
                    "the client goes on with a connection that is not known here".to_owned(),
                ))
            } else {
                Ok(())
            };
        };
        self.id = attach.id;
        (self.peer_busy, self.peer_changes) = (attach.flags & BUSY != 0, attach.changes);
        self.acknowledged(attach.received)?;
        if let Some(session) = self.session().filter(|session| *session != handle.session()) {
            self.attachment = Attachment::Detached { since_ns: None };
            self.endpoint.reset(now_ns, session);
            // Its responses come back, and what the client does not have of them goes again.
            while let Some(event) = self.endpoint.poll_event() {
                self.handle(now_ns, event)?;
            }
        }
        self.forget_acknowledged();
        self.held.clear();
        self.inherited = None;
        self.attachment = Attachment::Attached {
            session: handle.session(),
        };
        for session in self
            .asked_for
            .drain(..)
            .filter(|session| *session != handle.session())
        {
            self.endpoint.reset(now_ns, session);
        }
        self.asked_for.push(handle.session());
        self.answer_empty(now_ns, handle);
        Ok(())
    }

    /// Answers held requests: the newest with segments, so that round trips are those of the network, the oldest because
    /// there are more of them than are needed.
    pub(super) fn answer(&mut self, now_ns: u64) {
        while !self.held.is_empty()
            && let Some(mut segment) = self.next_segment()
            && let Some(HeldRequest { handle, .. }) = self.held.pop_back()
        {
            self.rest_later(now_ns);
            let more = if self.held.is_empty() { MORE } else { 0 };
            let present = self.present_head();
            let flags = present.flags | more;
            Head::renew(&mut segment, Head { flags, ..present });
            if let Err(refused) = self.endpoint.respond(now_ns, handle, STATUS_OK, segment) {
                self.send_again(refused.response);
            }
        }
        let has_news = self.told_busy && !self.is_busy();
        while (self.held.len() > HELD_MAX && !self.is_busy()) || (has_news && self.told_busy) {
            let Some(HeldRequest { handle, .. }) = self.held.pop_front() else {
                return;
            };
            self.answer_empty(now_ns, handle);
        }
    }

    /// Answers a request with no segment.
    fn answer_empty(&mut self, now_ns: u64, handle: RequestHandle) {
        let mut head = [0; HEAD_BYTES];
        self.present_head().write(&mut head);
        // A session that has ended meanwhile is told of by an event of its own.
        let _ = self.endpoint.respond_inline(now_ns, handle, STATUS_OK, &head);
    }

    /// A segment has come or goes.
    fn rest_later(&mut self, now_ns: u64) {
        self.rest = RestTime::At { ns: now_ns + REST_NS };
    }

    /// Gives back memory that segments have left, once no more of them come: the client's, which it keeps for requests that wait here,
    /// and this end's, of responses that the client has.
    pub(super) fn rest(&mut self, now_ns: u64) {
        let is_time = match self.rest {
            RestTime::Done => false,
            RestTime::At { ns } => now_ns >= ns,
            RestTime::Acknowledged => self.is_acknowledged(),
        };
        if !is_time {
            return;
        }
        self.rest = if self.is_acknowledged() {
            RestTime::Done
        } else {
            RestTime::Acknowledged
        };
        let (carriers, bare) = self
            .held
            .drain(..)
            .partition::<VecDeque<_>, _>(|held| held.carries_segment);
        self.held = bare;
        for HeldRequest { handle, .. } in carriers {
            self.answer_empty(now_ns, handle);
        }
        if let Some(session) = self.session() {
            let acknowledged = self.outgoing.acknowledged;
            let is_known =
                |response: &[u8]| Head::read(response).is_some_and(|head| head.number <= acknowledged);
            self.endpoint.return_responses(session, is_known);
        }
        self.endpoint.shrink_queues();
        self.returned.shrink_to_fit();
        self.held.shrink_to_fit();
        self.outgoing.unsent.shrink_to_fit();
        self.incoming.ready.shrink_to_fit();
        if self.incoming.ahead.is_empty() {
            // A tree from which all has been taken keeps its root.
            self.incoming.ahead.clear();
        }
    }
}
