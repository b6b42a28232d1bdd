//! A client's half of a stream: it asks.

use super::*;

impl ResumableStream {
    pub(super) fn ask_to_attach(&mut self, now_ns: u64, since_ns: u64) -> Result<(), Lost> {
        let peer = self.socket.peer();
        let session = self.endpoint.connect(now_ns, peer);
        let session = session.map_err(|error| Lost(error.to_string()))?;
        let present = self.present_head();
        let attach = Attach {
            id: self.id,
            received: present.received,
            flags: present.flags,
            changes: present.changes,
        };
        self.attachment = Attachment::Attaching { session, since_ns };
        let mut request = pool::take(ATTACH_BYTES);
        request.set_length(ATTACH_BYTES);
        attach.write(&mut request);
        self.asked = 0;
        self.call(now_ns, session, METHOD_ATTACH, request)
    }

    pub(super) fn call(
        &mut self,
        now_ns: u64,
        session: SessionId,
        method: u16,
        request: MsgBuf,
    ) -> Result<(), Lost> {
        let call = Call {
            method,
            tag: if method == METHOD_ATTACH {
                TAG_ATTACH
            } else {
                TAG_CARRY
            },
            request,
            // The endpoint lends one when the response comes.
            response: MsgBuf::default(),
        };
        match self.endpoint.call(now_ns, session, call) {
            Ok(()) => {
                self.asked += u32::from(method == METHOD_CARRY);
                Ok(())
            }
            Err(refused) => {
                match method {
                    METHOD_CARRY => self.send_again(refused.call.request),
                    _ => pool::give(refused.call.request),
                }
                // The session's end is told by an event of its own.
                match refused.error {
                    CallError::NoSession | CallError::BacklogFull => Ok(()),
                    error => Err(Lost(error.to_string())),
                }
            }
        }
    }

    /// Sends segments, and leaves requests with the server for what it has to say.
    pub(super) fn ask(&mut self, now_ns: u64) {
        let Attachment::Attached { session } = self.attachment else {
            return;
        };
        while self.asked < u32::from(SLOTS)
            && let Some(segment) = self.next_segment()
        {
            if self.carry(now_ns, session, segment).is_err() {
                return;
            }
        }
        let has_news = self.told_busy && !self.is_busy();
        while self.asked < u32::from(SLOTS) && (self.asked < self.polls || (has_news && self.told_busy)) {
            let mut segment = pool::take(HEAD_BYTES);
            segment.set_length(HEAD_BYTES);
            Head::default().write(&mut segment);
            if self.carry(now_ns, session, segment).is_err() {
                return;
            }
        }
    }

    pub(super) fn carry(&mut self, now_ns: u64, session: SessionId, mut segment: MsgBuf) -> Result<(), Lost> {
        Head::renew(&mut segment, self.present_head());
        let asked = self.asked;
        self.call(now_ns, session, METHOD_CARRY, segment)?;
        if self.asked > asked {
            Ok(())
        } else {
            Err(Lost("the session has ended".to_owned()))
        }
    }

    pub(super) fn completed(&mut self, completion: Completion) -> Result<(), Lost> {
        let Completion {
            session,
            tag,
            outcome,
            request,
            response,
        } = completion;
        let is_current = self.session() == Some(session);
        if tag == TAG_ATTACH {
            pool::give(request);
            return match outcome {
                Ok(status) if is_current => self.attached(session, status, response),
                Ok(_) | Err(CallError::Ended(_)) => {
                    self.endpoint.recycle(response);
                    Ok(())
                }
                Err(error) => Err(Lost(error.to_string())),
            };
        }
        if is_current {
            self.asked = self.asked.saturating_sub(1);
        }
        match outcome {
            Ok(STATUS_OK) => {
                pool::give(request);
                let head = Head::read(&response);
                let head = head.ok_or_else(|| Lost("the peer sent a segment without a head".to_owned()))?;
                self.apply_head(head);
                self.arrived(
                    head,
                    Segment {
                        buffer: response,
                        is_lent: true,
                        is_last: head.flags & FINISHED != 0,
                    },
                )
            }
            Ok(_) => Err(Lost("the peer refused a segment".to_owned())),
            Err(CallError::Ended(_)) => {
                self.endpoint.recycle(response);
                self.send_again(request);
                Ok(())
            }
            Err(error) => Err(Lost(error.to_string())),
        }
    }

    /// Leaves more requests with a server that has more to say, fewer with one that gives them back empty.
    pub(super) fn apply_head(&mut self, head: Head) {
        self.polls = match (head.flags & MORE != 0, head.number) {
            (true, _) => (self.polls * 2).min(POLLS_MAX),
            (false, 0) => self.polls.saturating_sub(1).max(1),
            (false, _) => self.polls,
        };
    }

    pub(super) fn attached(&mut self, session: SessionId, status: u16, response: MsgBuf) -> Result<(), Lost> {
        let head = Head::read(&response);
        self.endpoint.recycle(response);
        let head = match (status, head) {
            (STATUS_OK, Some(head)) => head,
            _ => return Err(Lost("the peer does not know this connection any more".to_owned())),
        };
        self.acknowledged(head.received)?;
        self.forget_acknowledged();
        (self.peer_busy, self.peer_changes) = (head.flags & BUSY != 0, head.changes);
        self.attachment = Attachment::Attached { session };
        Ok(())
    }

    pub(super) fn forget_acknowledged(&mut self) {
        let acknowledged = self.outgoing.acknowledged;
        let has = |segment: &MsgBuf| Head::read(segment).is_none_or(|head| head.number <= acknowledged);
        while self.outgoing.unsent.front().is_some_and(has) {
            if let Some(segment) = self.outgoing.unsent.pop_front() {
                pool::give(segment);
            }
        }
    }
}
