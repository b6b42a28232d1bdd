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
        self.held.push_back(handle);
        let is_last = head.flags & FINISHED != 0;
        let segment = match payload {
            Payload::Owned(buffer) => Segment {
                buffer,
                is_lent: true,
                is_last,
            },
            Payload::Borrowed(bytes) => {
                let mut buffer = self.pool.take(bytes.len());
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
        self.peer_busy = attach.flags & BUSY != 0;
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
        let mut head = [0; HEAD_BYTES];
        let (received, flags) = (self.incoming.received, self.take_flags());
        (Head {
            number: 0,
            received,
            flags,
        })
        .write(&mut head);
        // A session that has ended meanwhile is told of by an event of its own.
        let _ = self.endpoint.respond_inline(now_ns, handle, STATUS_OK, &head);
        Ok(())
    }

    /// Answers held requests: the newest with segments, so that round trips are those of the network, the oldest because
    /// there are more of them than are needed.
    pub(super) fn answer(&mut self, now_ns: u64) {
        while !self.held.is_empty()
            && let Some(mut segment) = self.next_segment()
            && let Some(handle) = self.held.pop_back()
        {
            let more = if self.held.is_empty() { MORE } else { 0 };
            let (received, flags) = (self.incoming.received, self.take_flags() | more);
            Head::renew(&mut segment, received, flags);
            if let Err(refused) = self.endpoint.respond(now_ns, handle, STATUS_OK, segment) {
                self.send_again(refused.response);
            }
        }
        let has_news = self.told_busy && !self.is_busy();
        while (self.held.len() > HELD_MAX && !self.is_busy()) || (has_news && self.told_busy) {
            let Some(handle) = self.held.pop_front() else {
                return;
            };
            let mut head = [0; HEAD_BYTES];
            let (received, flags) = (self.incoming.received, self.take_flags());
            (Head {
                number: 0,
                received,
                flags,
            })
            .write(&mut head);
            // As above: a session that has ended tells so itself.
            let _ = self.endpoint.respond_inline(now_ns, handle, STATUS_OK, &head);
        }
    }
}
