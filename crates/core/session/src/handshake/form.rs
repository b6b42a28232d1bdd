//! The frames of the handshake as bytes: what came is kept until it is a whole frame, and never more than that.

use provost_wire::Code;
use provost_wire::frame::{FrameHeader, HEADER_BYTES, MAGIC, PROTOCOL_VERSION};
use provost_wire::limits::{NAME_BYTES_MAX, SERVICE_METHODS_MAX};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    CallerAttestation, Encoding, HandshakeError, Hello, Limits, Method, MethodKind, PREAMBLE_BYTES,
    REASON_BYTES_MAX, WORKLOAD_BYTES_MAX,
};

/// Bytes that have come and were not yet used.
#[derive(Debug)]
pub(super) struct UnreadBytes {
    pub(super) bytes: Vec<u8>,
    preamble_seen: bool,
}

impl UnreadBytes {
    pub(super) fn new() -> UnreadBytes {
        UnreadBytes {
            bytes: Vec::new(),
            preamble_seen: false,
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Checks as much of the preamble as is there, so that a stranger is recognized by its first byte.
    pub(super) fn take_preamble(&mut self) -> Result<(), HandshakeError> {
        if self.preamble_seen {
            return Ok(());
        }
        let magic = &self.bytes[..self.bytes.len().min(MAGIC.len())];
        if !MAGIC.starts_with(magic) {
            return Err(HandshakeError::NotOurs {
                found: magic.to_vec(),
            });
        }
        let Some(preamble) = self.bytes.first_chunk::<PREAMBLE_BYTES>() else {
            return Ok(());
        };
        let version = u16::from_le_bytes([preamble[4], preamble[5]]);
        if version != PROTOCOL_VERSION {
            return Err(HandshakeError::Version {
                theirs: version,
                ours: PROTOCOL_VERSION,
            });
        }
        if preamble[6..] != [0, 0] {
            return Err(malformed("the preamble's last two bytes are not zero"));
        }
        self.bytes.drain(..PREAMBLE_BYTES);
        self.preamble_seen = true;
        Ok(())
    }

    /// Takes a whole frame, if there is one. `bytes_max` says how long a frame of a kind may be, or that it is not
    /// due; it is asked as soon as the header is there, so that no more than an allowed frame is ever kept.
    pub(super) fn take_frame(
        &mut self,
        bytes_max: impl Fn(u8) -> Option<u32>,
    ) -> Result<Option<(u8, Vec<u8>)>, HandshakeError> {
        if !self.preamble_seen {
            return Ok(None);
        }
        let Ok((header, _)) = FrameHeader::read_from_prefix(&self.bytes) else {
            return Ok(None);
        };
        let bytes = header.body_bytes.get();
        match bytes_max(header.kind) {
            None => return Err(malformed("a frame of an unknown kind, or out of turn")),
            Some(bytes_max) if bytes > bytes_max => return Err(HandshakeError::TooLong { bytes, bytes_max }),
            Some(_) => {}
        }
        let plain = FrameHeader {
            body_bytes: header.body_bytes,
            kind: header.kind,
            ..FrameHeader::default()
        };
        if header.as_bytes() != plain.as_bytes() {
            return Err(malformed("a header field that has no meaning here is not zero"));
        }
        let end = HEADER_BYTES + bytes as usize;
        if self.bytes.len() < end {
            // Growing by steps would leave behind as much again, in pieces that are too short for the next step.
            self.bytes.reserve_exact(end - self.bytes.len());
            return Ok(None);
        }
        // A schema is long: what was read becomes the body, and little is left to be copied.
        let rest = self.bytes.split_off(end);
        let mut body = std::mem::replace(&mut self.bytes, rest);
        body.drain(..HEADER_BYTES);
        Ok(Some((header.kind, body)))
    }

    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

pub(super) fn malformed(what: &'static str) -> HandshakeError {
    HandshakeError::Malformed { what }
}

pub(super) fn preamble() -> [u8; PREAMBLE_BYTES] {
    let [a, b, c, d] = MAGIC;
    let [low, high] = PROTOCOL_VERSION.to_le_bytes();
    [a, b, c, d, low, high, 0, 0]
}

pub(super) fn put_frame(out: &mut Vec<u8>, kind: u8, body: &[u8]) {
    let header = FrameHeader {
        body_bytes: (body.len() as u32).into(),
        kind,
        ..FrameHeader::default()
    };
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(body);
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

fn put_limits(out: &mut Vec<u8>, limits: Limits) {
    out.extend_from_slice(&limits.message_bytes_max.to_le_bytes());
    out.extend_from_slice(&limits.stream_window_bytes.to_le_bytes());
    out.extend_from_slice(&limits.calls_in_flight_max.to_le_bytes());
}

pub(super) fn encode_hello(hello: &Hello) -> Vec<u8> {
    let mut out = Vec::new();
    put_limits(&mut out, hello.limits);
    out.extend_from_slice(&hello.schema_hash);
    put_name(&mut out, &hello.service);
    out.extend_from_slice(&(hello.methods.len() as u16).to_le_bytes());
    for method in &hello.methods {
        out.push(u8::from(method.kind.client_streaming) | u8::from(method.kind.server_streaming) << 1);
        put_name(&mut out, &method.name);
    }
    if let Some(caller) = &hello.caller {
        put_caller(&mut out, caller);
    }
    out
}

/// A text that is too long is left out: what is left of it when it is cut would be another's.
fn put_caller(out: &mut Vec<u8>, caller: &CallerAttestation) {
    out.extend_from_slice(&caller.uid.to_le_bytes());
    for (text, bytes_max) in [
        (&caller.node, NAME_BYTES_MAX),
        (&caller.app, NAME_BYTES_MAX),
        (&caller.user, NAME_BYTES_MAX),
        (&caller.workload, WORKLOAD_BYTES_MAX),
    ] {
        let fits = text.len() <= bytes_max;
        put_name(out, if fits { text } else { "" });
    }
}

pub(super) fn encode_welcome(encoding: Encoding, limits: Limits) -> Vec<u8> {
    let mut out = Vec::new();
    put_limits(&mut out, limits);
    out.push(match encoding {
        Encoding::Native => 0,
        Encoding::Protobuf => 1,
    });
    out
}

pub(super) fn encode_refusal(code: Code, reason: &str) -> Vec<u8> {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    [&code.number().to_le_bytes(), &reason.as_bytes()[..end]].concat()
}

/// Reads the fields of a handshake body one after the other.
struct HandshakeFields<'a>(&'a [u8]);

impl<'a> HandshakeFields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let (field, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(malformed("a frame is shorter than its fields"))?;
        self.0 = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, HandshakeError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn name(&mut self) -> Result<String, HandshakeError> {
        let bytes = usize::from(u16::from_le_bytes(self.take()?));
        if bytes == 0 || bytes > NAME_BYTES_MAX {
            return Err(malformed("a name is empty or too long"));
        }
        let (name, rest) = self
            .0
            .split_at_checked(bytes)
            .ok_or(malformed("a frame is shorter than its fields"))?;
        self.0 = rest;
        String::from_utf8(name.to_vec()).map_err(|_| malformed("a name is not UTF-8"))
    }

    /// A text of a caller, which may be empty.
    fn caller_text(&mut self, what: &'static str, bytes_max: usize) -> Result<String, HandshakeError> {
        let bytes = usize::from(u16::from_le_bytes(self.take()?));
        if bytes > bytes_max {
            return Err(HandshakeError::CallerTooLong {
                what,
                bytes,
                bytes_max,
            });
        }
        let (text, rest) = self
            .0
            .split_at_checked(bytes)
            .ok_or(malformed("a frame is shorter than its fields"))?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).map_err(|_| malformed("a text of the caller is not UTF-8"))
    }

    /// The caller, if the frame goes on behind the methods.
    fn caller(&mut self) -> Result<Option<CallerAttestation>, HandshakeError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        Ok(Some(CallerAttestation {
            uid: self.u32()?,
            node: self.caller_text("node", NAME_BYTES_MAX)?,
            app: self.caller_text("app", NAME_BYTES_MAX)?,
            user: self.caller_text("user", NAME_BYTES_MAX)?,
            workload: self.caller_text("workload", WORKLOAD_BYTES_MAX)?,
        }))
    }

    fn limits(&mut self) -> Result<Limits, HandshakeError> {
        let limits = Limits {
            message_bytes_max: self.u32()?,
            stream_window_bytes: self.u32()?,
            calls_in_flight_max: self.u32()?,
        };
        match limits {
            Limits {
                stream_window_bytes: 0,
                ..
            } => Err(malformed("a stream window of 0 bytes")),
            Limits {
                stream_window_bytes, ..
            } if stream_window_bytes > i32::MAX as u32 => {
                Err(malformed("a stream window over 2^31 - 1 bytes"))
            }
            _ => Ok(limits),
        }
    }

    fn end(self) -> Result<(), HandshakeError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(malformed("a frame is longer than its fields")),
        }
    }
}

pub(super) fn decode_hello(body: &[u8]) -> Result<Hello, HandshakeError> {
    let mut fields = HandshakeFields(body);
    let limits = fields.limits()?;
    let schema_hash = fields.take()?;
    let service = fields.name()?;
    let count = usize::from(u16::from_le_bytes(fields.take()?));
    if count > SERVICE_METHODS_MAX {
        return Err(malformed("a service with too many methods"));
    }
    let methods = (0..count)
        .map(|_| decode_method(&mut fields))
        .collect::<Result<_, _>>()?;
    let caller = fields.caller()?;
    fields.end()?;
    Ok(Hello {
        service,
        schema_hash,
        methods,
        limits,
        caller,
    })
}

fn decode_method(fields: &mut HandshakeFields<'_>) -> Result<Method, HandshakeError> {
    let [kind] = fields.take()?;
    if kind > 3 {
        return Err(malformed("a method of an unknown kind"));
    }
    let kind = MethodKind {
        client_streaming: kind & 1 != 0,
        server_streaming: kind & 2 != 0,
    };
    Ok(Method {
        name: fields.name()?,
        kind,
    })
}

pub(super) fn decode_welcome(body: &[u8]) -> Result<(Encoding, Limits), HandshakeError> {
    let mut fields = HandshakeFields(body);
    let limits = fields.limits()?;
    let encoding = match fields.take()? {
        [0] => Encoding::Native,
        [1] => Encoding::Protobuf,
        _ => return Err(malformed("a welcome to an unknown encoding")),
    };
    fields.end()?;
    Ok((encoding, limits))
}

pub(super) fn decode_refusal(body: &[u8]) -> HandshakeError {
    let mut fields = HandshakeFields(body);
    match fields.u32() {
        Ok(code) => HandshakeError::Refused {
            code: Code::from_number(code),
            reason: String::from_utf8_lossy(fields.0).into_owned(),
        },
        Err(error) => error,
    }
}
