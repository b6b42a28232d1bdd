//! What an end of a stream leaves its successor, beside its socket: every segment of which it does not know that the peer has
//! it, and every one that nobody has taken. Sessions are not saved: the successor's client opens another, in which both
//! ends say how far they have received.
//!
//! Of a sealed stream its key goes to the successor, from which both ends' next session makes new keys; no key under which a
//! packet was sealed, and no count of them, is given to it. And what shows the client that the server's last session is lost.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use provost_datapath::{FieldReader, FieldWriter, RestoreError, SavedField};

use super::*;

/// The form that knew no sealed streams.
const FORM_UNSEALED: u32 = 1;

impl ResumableStream {
    pub(crate) fn save(&self, out: &mut FieldWriter) {
        self.socket.leave_plain();
        out.flag(self.role == Role::Server);
        out.run(&self.id);
        out.text(&self.socket.peer().to_string());
        out.u32(self.terms.packet_bytes);
        out.u64(self.terms.silence_ns);
        let last = self.last_session();
        out.u64(last.map_or(u64::MAX, |last| last.session.to_bits()));
        out.u64(self.outgoing.last);
        out.u64(self.outgoing.acknowledged);
        out.flag(self.outgoing.finished);
        let segments = self.unacknowledged();
        out.count(segments.len());
        segments.values().for_each(|segment| out.run(segment));
        out.u64(self.incoming.received);
        out.flag(self.incoming.finished);
        out.count(self.incoming.ready.len());
        for segment in &self.incoming.ready {
            segment.save(out);
        }
        out.count(self.incoming.ahead.len());
        for (number, segment) in &self.incoming.ahead {
            out.u64(*number);
            segment.save(out);
        }
        self.terms.key.as_ref().map(|key| *key.bytes()).save(out);
        last.and_then(|last| last.proof).save(out);
    }

    /// A server's session that its client may believe in.
    pub(super) fn last_session(&self) -> Option<Inherited> {
        // What was asked for since may be a repeated packet's, of which the client knows nothing.
        let current = self.session().filter(|session| self.asked_for.contains(session));
        let last = current.or_else(|| self.asked_for.last().copied());
        let own = last.map(|session| Inherited {
            session,
            proof: self.endpoint.loss_proof(session),
        });
        own.or(self.inherited)
    }

    /// Every segment that may have to be sent again, by number.
    fn unacknowledged(&self) -> BTreeMap<u64, &[u8]> {
        let under_way = match self.attachment {
            Attachment::Attached { session } => Some(self.endpoint.messages_kept(session)),
            // While a client asks for its stream, nothing else is under way.
            _ => None,
        };
        let unsent = self.outgoing.unsent.iter().map(|segment| &**segment);
        let all = under_way.into_iter().flatten().chain(unsent);
        let numbered = all.filter_map(|segment| Some((Head::read(segment)?.number, segment)));
        numbered
            .filter(|(number, _)| *number > self.outgoing.acknowledged)
            .collect()
    }

    /// Reads what was saved, in this form.
    pub(crate) fn restore(
        socket: UdpSocket,
        fields: &mut FieldReader<'_>,
        form: u32,
    ) -> Result<ResumableStream, RestoreError> {
        let role = if fields.flag()? {
            Role::Server
        } else {
            Role::Client
        };
        let id = fields.run()?.try_into();
        let id = id.map_err(|_| fields.damaged("the stream's name is not of 16 bytes"))?;
        let peer = fields.text()?;
        let peer: SocketAddr = peer
            .parse()
            .map_err(|_| fields.damaged(format!("{peer} is no address")))?;
        let (packet_bytes, silence_ns) = (fields.u32()?, fields.u64()?);
        let session = fields.u64()?;
        let (outgoing, incoming) = (Outgoing::restore(fields)?, Incoming::restore(fields)?);
        let (key, proof) = match form {
            FORM_UNSEALED => (None, None),
            _ => (
                Option::restore(fields)?.map(|key: [u8; KEY_BYTES]| ResumableStreamKey(Arc::new(key.into()))),
                Option::restore(fields)?,
            ),
        };
        let terms = Terms {
            packet_bytes,
            silence_ns,
            key,
        };
        let made = ResumableStream::new(role, id, Socket::resumed(socket, peer), terms);
        let mut stream = made.map_err(|error| fields.damaged(format!("no endpoint: {error}")))?;
        if role == Role::Server && session != u64::MAX {
            let session = SessionId::from_bits(session);
            stream.inherited = Some(Inherited { session, proof });
            stream.attachment = Attachment::Inherited;
        }
        (stream.outgoing, stream.incoming) = (outgoing, incoming);
        Ok(stream)
    }
}

impl Outgoing {
    fn restore(fields: &mut FieldReader<'_>) -> Result<Outgoing, RestoreError> {
        let mut outgoing = Outgoing {
            last: fields.u64()?,
            acknowledged: fields.u64()?,
            finished: fields.flag()?,
            unsent: VecDeque::new(),
        };
        let mut before = outgoing.acknowledged;
        for _ in 0..fields.count(INCOMING_SEGMENTS_ABSURD)? {
            let segment = fields.run()?;
            let number = Head::read(segment).map_or(0, |head| head.number);
            if number <= before || number > outgoing.last || segment.len() > HEAD_BYTES + SEGMENT_BYTES_MAX {
                return Err(fields.damaged("a segment is out of order"));
            }
            before = number;
            outgoing.unsent.push_back(MsgBuf::from_slice(segment));
        }
        Ok(outgoing)
    }
}

impl Incoming {
    fn restore(fields: &mut FieldReader<'_>) -> Result<Incoming, RestoreError> {
        let mut incoming = Incoming {
            received: fields.u64()?,
            finished: fields.flag()?,
            ..Incoming::default()
        };
        for _ in 0..fields.count(INCOMING_SEGMENTS_ABSURD)? {
            let segment = Segment::restore(fields)?;
            incoming.bytes += segment.buffer.len();
            incoming.ready.push_back(segment);
        }
        for _ in 0..fields.count(AHEAD_MAX)? {
            let (number, segment) = (fields.u64()?, Segment::restore(fields)?);
            incoming.bytes += segment.buffer.len();
            incoming.ahead.insert(number, segment);
        }
        Ok(incoming)
    }
}

impl Segment {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(self.is_last);
        out.run(&self.buffer);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<Segment, RestoreError> {
        let is_last = fields.flag()?;
        let bytes = fields.run()?;
        if bytes.len() >= HEAD_BYTES {
            Ok(Segment {
                buffer: MsgBuf::from_slice(bytes),
                is_lent: false,
                is_last,
            })
        } else {
            Err(fields.damaged("a segment is shorter than its head"))
        }
    }
}
