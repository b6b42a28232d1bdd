//! Calls with streams travel as frames, many in one message (`docs/datagram-library.md`): a client's in SEND requests, a
//! server's in the responses to LISTEN.

use provost::linked::{Answer, Codec, Outbound, Side, block_of};
use provost::{Code, MetadataMap, Status};
use provost_shm::now_ns;

use super::format;

/// What a frame begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    /// What the client calls the call, once in each session.
    pub(super) call: u64,
    /// Bytes of the payload, without its padding.
    pub(super) bytes: u32,
    /// Of a message what it counts as in the window, of a status and a cancellation its code, of a window how much wider
    /// it is.
    pub(super) value: u32,
    pub(super) kind: u16,
}

/// What a frame says.
pub(super) mod kind {
    /// A call begins; the payload is a [`super::BeginHead`] and metadata.
    pub(crate) const BEGIN: u16 = 1;
    /// What precedes the responses: metadata.
    pub(crate) const METADATA: u16 = 2;
    pub(crate) const MESSAGE: u16 = 3;
    /// There are no more requests.
    pub(crate) const END: u16 = 4;
    /// The call has ended, with these trailers.
    pub(crate) const STATUS: u16 = 5;
    /// The client gives the call up.
    pub(crate) const CANCEL: u16 = 6;
    /// So much more may be sent.
    pub(crate) const WINDOW: u16 = 7;
}

impl FrameHead {
    pub(super) const BYTES: usize = 24;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.call.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.value.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.kind.to_le_bytes());
        bytes
    }
}

/// The first frame, its payload, and what follows; `None` if they are not whole.
pub(super) fn split(bytes: &[u8]) -> Option<(FrameHead, &[u8], &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<{ FrameHead::BYTES }>()?;
    let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let head = FrameHead {
        call: format::long(head)?,
        bytes: word(8),
        value: word(12),
        kind: word(16) as u16,
    };
    let (payload, rest) = format::part(rest, head.bytes)?;
    Some((head, payload, rest))
}

/// What the payload of a beginning begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BeginHead {
    /// The number of the service, and the method's index.
    pub(super) service: u16,
    pub(super) method: u16,
    /// How much time is left, in nanoseconds; 0 for any.
    pub(super) timeout_ns: u64,
}

impl BeginHead {
    const BYTES: usize = 16;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..2].copy_from_slice(&self.service.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.method.to_le_bytes());
        bytes[8..].copy_from_slice(&self.timeout_ns.to_le_bytes());
        bytes
    }

    /// The head, and the metadata.
    pub(super) fn split(payload: &[u8]) -> Option<(BeginHead, &[u8])> {
        let (head, metadata) = payload.split_first_chunk::<{ Self::BYTES }>()?;
        let head = BeginHead {
            service: u16::from_le_bytes([head[0], head[1]]),
            method: u16::from_le_bytes([head[2], head[3]]),
            timeout_ns: format::long(&head[8..])?,
        };
        Some((head, metadata))
    }
}

/// What is to leave of a call.
pub(super) enum Leaving {
    Begin {
        method: u16,
        deadline_ns: u64,
        metadata: MetadataMap,
    },
    Metadata(MetadataMap),
    Message {
        message: Outbound,
        cost_bytes: u32,
    },
    EndOfRequests,
    /// All that is left: metadata and a message, if there are some, and the status.
    Answer(Answer),
    Cancel(Code),
}

/// How the messages of a call are written.
#[derive(Clone, Copy)]
pub(super) struct Writing<'c> {
    pub(super) codec: &'c Codec,
    pub(super) method: u16,
    pub(super) side: Side,
    /// The number of the service at the server.
    pub(super) service: u16,
}

impl Leaving {
    /// What it takes in a message at most, in bytes.
    pub(super) fn bytes_max(&self) -> usize {
        match self {
            Leaving::Begin { metadata, .. } => {
                FrameHead::BYTES + BeginHead::BYTES + format::padded(block_of(metadata))
            }
            Leaving::Metadata(metadata) => FrameHead::BYTES + format::padded(block_of(metadata)),
            Leaving::Message { message, .. } => FrameHead::BYTES + message_bytes(message),
            Leaving::EndOfRequests | Leaving::Cancel(_) => FrameHead::BYTES,
            Leaving::Answer(answer) => {
                let metadata = format::padded(block_of(&answer.metadata));
                let trailers = format::padded(answer.message.metadata());
                3 * FrameHead::BYTES + metadata + trailers + message_bytes(&answer.message)
            }
        }
    }
}

/// Those that are longer than any may be were refused before they came here.
fn message_bytes(message: &Outbound) -> usize {
    message.message_bytes_max().unwrap_or(0)
}

/// A message of frames as it is written.
pub(super) struct Batch<'b> {
    out: &'b mut [u8],
    at: usize,
    /// What any message may have, however much room it is given.
    bytes_max: usize,
}

impl<'b> Batch<'b> {
    pub(super) fn new(out: &'b mut [u8]) -> Self {
        Self {
            out,
            at: 0,
            bytes_max: usize::MAX,
        }
    }

    /// The same, where no message may have more bytes than this.
    pub(super) fn up_to(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    /// Whether so many bytes fit into a message alone.
    ///
    /// # Errors
    /// If they do not.
    pub(super) fn check(&self, bytes: usize) -> Result<(), Status> {
        if bytes > self.bytes_max {
            return Err(format::too_large("message", bytes, self.bytes_max));
        }
        Ok(())
    }

    /// Bytes written.
    pub(super) fn length(&self) -> usize {
        self.at
    }

    /// Bytes that can still be written.
    pub(super) fn room(&self) -> usize {
        self.out.len() - self.at
    }

    pub(super) fn window(&mut self, call: u64, bytes: u32) -> Result<(), Status> {
        self.frame(call, (kind::WINDOW, bytes), &[])
    }

    /// Writes what leaves; there is room for its [`Leaving::bytes_max`].
    pub(super) fn write(&mut self, call: u64, leaving: &Leaving, by: Writing<'_>) -> Result<(), Status> {
        match leaving {
            Leaving::Begin {
                method,
                deadline_ns,
                metadata,
            } => {
                let head = BeginHead {
                    service: by.service,
                    method: *method,
                    timeout_ns: match deadline_ns {
                        0 => 0,
                        deadline_ns => deadline_ns.saturating_sub(now_ns()).max(1),
                    },
                };
                self.frame(call, (kind::BEGIN, 0), &[&head.encode(), block_of(metadata)])
            }
            Leaving::Metadata(metadata) => self.frame(call, (kind::METADATA, 0), &[block_of(metadata)]),
            Leaving::Message { message, cost_bytes } => self.message(call, *cost_bytes, message, by),
            Leaving::EndOfRequests => self.frame(call, (kind::END, 0), &[]),
            Leaving::Cancel(code) => self.frame(call, (kind::CANCEL, code.number()), &[]),
            Leaving::Answer(answer) => self.answer(call, answer, by),
        }
    }

    fn answer(&mut self, call: u64, answer: &Answer, by: Writing<'_>) -> Result<(), Status> {
        let before = self.at;
        if !answer.metadata.is_empty() {
            self.frame(call, (kind::METADATA, 0), &[block_of(&answer.metadata)])?;
        }
        if answer.message.has_message()
            && let Err(unwritten) = self.message(call, 0, &answer.message, by)
        {
            self.at = before;
            return Err(unwritten);
        }
        let status = (kind::STATUS, answer.code.number());
        self.frame(call, status, &[answer.message.metadata()])
    }

    fn message(
        &mut self,
        call: u64,
        cost_bytes: u32,
        message: &Outbound,
        by: Writing<'_>,
    ) -> Result<(), Status> {
        let begin = self.at;
        self.frame(call, (kind::MESSAGE, cost_bytes), &[])?;
        let written = by
            .codec
            .write(by.method, by.side, message, &mut self.out[self.at..]);
        let Ok(bytes) = written else {
            self.at = begin;
            return written.map(drop);
        };
        self.out[begin + 8..begin + 12].copy_from_slice(&(bytes as u32).to_le_bytes());
        let end = self.at + bytes;
        self.at = end.next_multiple_of(8).min(self.out.len());
        self.out[end..self.at].fill(0);
        Ok(())
    }

    fn frame(&mut self, call: u64, (kind, value): (u16, u32), parts: &[&[u8]]) -> Result<(), Status> {
        let head = FrameHead {
            call,
            bytes: parts.iter().map(|part| part.len()).sum::<usize>() as u32,
            value,
            kind,
        };
        let room = &mut self.out[self.at..];
        let mut at = format::write_parts(room, &[&head.encode()])?;
        for part in parts {
            at += format::write_parts(&mut room[at..], &[part])?;
        }
        self.at += at;
        Ok(())
    }
}

/// A message of two frames for fuzzers to start from: a call that begins, and one whose window grows.
pub(super) fn seed() -> Vec<u8> {
    let mut out = [0; 256];
    let mut batch = Batch::new(&mut out);
    let begin = BeginHead {
        service: 1,
        method: 2,
        timeout_ns: 3,
    };
    let whole = batch
        .frame(7, (kind::BEGIN, 0), &[&begin.encode(), b"metadata"])
        .and_then(|()| batch.window(8, 1 << 20));
    debug_assert!(whole.is_ok(), "two frames fit");
    let length = batch.length();
    out[..length].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_split_where_they_were_joined() {
        let mut out = [0xee; 256];
        let mut batch = Batch::new(&mut out);
        let begin = BeginHead {
            service: 3,
            method: 4,
            timeout_ns: 5,
        };
        batch
            .frame(7, (kind::BEGIN, 0), &[&begin.encode(), b"metas"])
            .unwrap();
        batch.window(8, 1 << 20).unwrap();
        let length = batch.length();
        let bytes = &out[..length];
        let (first, payload, rest) = split(bytes).unwrap();
        assert_eq!((first.call, first.kind), (7, kind::BEGIN));
        assert_eq!(BeginHead::split(payload), Some((begin, &b"metas"[..])));
        let (second, payload, rest) = split(rest).unwrap();
        assert_eq!(
            (second.call, second.kind, second.value),
            (8, kind::WINDOW, 1 << 20)
        );
        assert_eq!((payload.len(), rest.len()), (0, 0));
        for cut in 0..length - FrameHead::BYTES {
            assert_eq!(split(&bytes[..cut]), None, "{cut} bytes");
        }
    }

    #[test]
    fn a_frame_that_says_it_is_longer_is_none() {
        let mut out = [0; 64];
        let mut batch = Batch::new(&mut out);
        batch.window(1, 1).unwrap();
        out[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(split(&out), None);
    }
}
