//! What clients ask, and what they are answered: the store's protocol.
//!
//! A request is `kind (1), session (8), sequence (8)`, then `key`, and of a compare-and-set `expected` after a byte that
//! says whether there is one, then `value`. Key and values have their length (4) before them. An answer is `kind (1)`
//! and what the kind carries. All integers are little-endian.

use crate::codec::{PutBytes, RecordReader};

/// Bytes of a key at most.
pub const KEY_BYTES_MAX: usize = 1 << 10;
/// Bytes of a value at most.
pub const VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of an encoded request at most: its head, a key, two values, and their lengths.
pub const REQUEST_BYTES_MAX: usize = 18 + KEY_BYTES_MAX + 2 * VALUE_BYTES_MAX + 12;
/// Bytes of an encoded answer at most.
pub const ANSWER_BYTES_MAX: usize = 2 + 8 + 4 + VALUE_BYTES_MAX;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Begins a session, within which operations are executed exactly once.
    OpenSession,
    /// Reads a key. It needs no session.
    Get {
        key: Vec<u8>,
    },
    Put {
        key: Vec<u8>,
        value: Vec<u8>,
    },
    /// Sets a key if it has an expected value.
    CompareAndSet {
        key: Vec<u8>,
        /// What it must be; `None`: it must not be there.
        expected: Option<Vec<u8>>,
        /// What it then becomes.
        value: Vec<u8>,
    },
}

/// An operation, and which one of its session it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What [`RequestAnswer::SessionOpened`] said; zero where there is none.
    pub session: u64,
    /// Its number in the session. A request that is sent again keeps it.
    pub sequence: u64,
    /// What is to be done.
    pub operation: Operation,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestAnswer {
    /// A session was begun.
    SessionOpened(u64),
    /// What the key has, if it is there.
    Value(Option<Vec<u8>>),
    /// The key was set.
    Done,
    /// The key did not have the expected value.
    Differs,
    /// The store has as many bytes as it can have.
    Full,
    /// The session is unknown: it was not used for long, and others came.
    SessionExpired,
    /// The session has gone on to a later request since.
    Superseded,
    /// Another member leads, perhaps this one. The request may or may not have been executed: send it again.
    Redirect(Option<u64>),
    /// Too much is under way. Send it again in a while.
    Busy,
    /// This is no request, or it is too large.
    Invalid,
}

impl RequestAnswer {
    /// Whether the request is to be sent again.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, RequestAnswer::Redirect(_) | RequestAnswer::Busy)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            RequestAnswer::SessionOpened(session) => {
                bytes.put_u8(0);
                bytes.put_u64(*session);
            }
            RequestAnswer::Value(value) => {
                bytes.put_u8(1);
                put_optional(&mut bytes, value.as_deref());
            }
            RequestAnswer::Done => bytes.put_u8(2),
            RequestAnswer::Differs => bytes.put_u8(3),
            RequestAnswer::Full => bytes.put_u8(4),
            RequestAnswer::SessionExpired => bytes.put_u8(5),
            RequestAnswer::Superseded => bytes.put_u8(6),
            RequestAnswer::Redirect(leader) => {
                bytes.put_u8(7);
                bytes.put_u64(leader.unwrap_or(0));
            }
            RequestAnswer::Busy => bytes.put_u8(8),
            RequestAnswer::Invalid => bytes.put_u8(9),
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<RequestAnswer> {
        let mut reader = RecordReader::new(bytes);
        let answer = match reader.u8()? {
            0 => RequestAnswer::SessionOpened(reader.u64()?),
            1 => RequestAnswer::Value(take_optional(&mut reader)?.map(<[u8]>::to_vec)),
            2 => RequestAnswer::Done,
            3 => RequestAnswer::Differs,
            4 => RequestAnswer::Full,
            5 => RequestAnswer::SessionExpired,
            6 => RequestAnswer::Superseded,
            7 => RequestAnswer::Redirect(Some(reader.u64()?).filter(|leader| *leader != 0)),
            8 => RequestAnswer::Busy,
            9 => RequestAnswer::Invalid,
            _ => return None,
        };
        reader.finish(answer)
    }
}

impl Request {
    /// As it is sent, and kept in the log.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let kind = match self.operation {
            Operation::OpenSession => 0,
            Operation::Get { .. } => 1,
            Operation::Put { .. } => 2,
            Operation::CompareAndSet { .. } => 3,
        };
        bytes.put_u8(kind);
        bytes.put_u64(self.session);
        bytes.put_u64(self.sequence);
        match &self.operation {
            Operation::OpenSession => {}
            Operation::Get { key } => bytes.put_bytes(key),
            Operation::Put { key, value } => {
                bytes.put_bytes(key);
                bytes.put_bytes(value);
            }
            Operation::CompareAndSet { key, expected, value } => {
                bytes.put_bytes(key);
                put_optional(&mut bytes, expected.as_deref());
                bytes.put_bytes(value);
            }
        }
        bytes
    }

    /// What was encoded; `None` if this is no request, or one that is too large.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        RequestView::read(bytes).map(|view| view.to_request())
    }
}

/// A request where it lies: it is checked, and nothing is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestView<'b> {
    session: u64,
    sequence: u64,
    pub(crate) operation: OperationView<'b>,
}

/// An [`Operation`] of a [`RequestView`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperationView<'b> {
    OpenSession,
    Get {
        key: &'b [u8],
    },
    Put {
        key: &'b [u8],
        value: &'b [u8],
    },
    CompareAndSet {
        key: &'b [u8],
        expected: Option<&'b [u8]>,
        value: &'b [u8],
    },
}

impl<'b> RequestView<'b> {
    /// What was encoded; `None` if this is no request, or one that is too large.
    pub(crate) fn read(bytes: &'b [u8]) -> Option<RequestView<'b>> {
        let mut reader = RecordReader::new(bytes);
        let kind = reader.u8()?;
        let (session, sequence) = (reader.u64()?, reader.u64()?);
        let operation = match kind {
            0 => OperationView::OpenSession,
            1 => OperationView::Get {
                key: take_key(&mut reader)?,
            },
            2 => OperationView::Put {
                key: take_key(&mut reader)?,
                value: take_value(&mut reader)?,
            },
            3 => OperationView::CompareAndSet {
                key: take_key(&mut reader)?,
                expected: take_optional(&mut reader)?,
                value: take_value(&mut reader)?,
            },
            _ => return None,
        };
        reader.finish(RequestView {
            session,
            sequence,
            operation,
        })
    }

    fn to_request(self) -> Request {
        let operation = match self.operation {
            OperationView::OpenSession => Operation::OpenSession,
            OperationView::Get { key } => Operation::Get { key: key.to_vec() },
            OperationView::Put { key, value } => Operation::Put {
                key: key.to_vec(),
                value: value.to_vec(),
            },
            OperationView::CompareAndSet { key, expected, value } => Operation::CompareAndSet {
                key: key.to_vec(),
                expected: expected.map(<[u8]>::to_vec),
                value: value.to_vec(),
            },
        };
        Request {
            session: self.session,
            sequence: self.sequence,
            operation,
        }
    }
}

fn take_key<'b>(reader: &mut RecordReader<'b>) -> Option<&'b [u8]> {
    reader.bytes_within(KEY_BYTES_MAX)
}

fn take_value<'b>(reader: &mut RecordReader<'b>) -> Option<&'b [u8]> {
    reader.bytes_within(VALUE_BYTES_MAX)
}

fn put_optional(bytes: &mut Vec<u8>, value: Option<&[u8]>) {
    bytes.put_u8(value.is_some().into());
    if let Some(value) = value {
        bytes.put_bytes(value);
    }
}

fn take_optional<'b>(reader: &mut RecordReader<'b>) -> Option<Option<&'b [u8]>> {
    match reader.u8()? {
        0 => Some(None),
        1 => Some(Some(take_value(reader)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        let key = || b"key".to_vec();
        let operations = [
            Operation::OpenSession,
            Operation::Get { key: key() },
            Operation::Put {
                key: key(),
                value: b"value".to_vec(),
            },
            Operation::CompareAndSet {
                key: key(),
                expected: None,
                value: Vec::new(),
            },
            Operation::CompareAndSet {
                key: key(),
                expected: Some(b"old".to_vec()),
                value: b"new".to_vec(),
            },
        ];
        let number = |(at, operation)| Request {
            session: 7,
            sequence: at as u64,
            operation,
        };
        operations.into_iter().enumerate().map(number).collect()
    }

    #[test]
    fn requests_come_back_as_they_were_and_no_part_of_one_is_one() {
        for request in requests() {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes).as_ref(), Some(&request));
            for end in 0..bytes.len() {
                assert_eq!(Request::decode(&bytes[..end]), None, "{end} bytes of {request:?}");
            }
            assert_eq!(Request::decode(&[&bytes[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let answers = [
            RequestAnswer::SessionOpened(3),
            RequestAnswer::Value(None),
            RequestAnswer::Value(Some(b"value".to_vec())),
            RequestAnswer::Done,
            RequestAnswer::Differs,
            RequestAnswer::Full,
            RequestAnswer::SessionExpired,
            RequestAnswer::Superseded,
            RequestAnswer::Redirect(None),
            RequestAnswer::Redirect(Some(2)),
            RequestAnswer::Busy,
            RequestAnswer::Invalid,
        ];
        for answer in answers {
            assert_eq!(RequestAnswer::decode(&answer.encode()), Some(answer));
        }
        assert_eq!(RequestAnswer::decode(&[10]), None);
    }

    #[test]
    fn a_key_or_value_over_its_limit_is_no_request() {
        let put = |key: usize, value: usize| {
            let operation = Operation::Put {
                key: vec![0; key],
                value: vec![0; value],
            };
            let request = Request {
                session: 1,
                sequence: 1,
                operation,
            };
            Request::decode(&request.encode()).is_some()
        };
        assert!(put(KEY_BYTES_MAX, VALUE_BYTES_MAX));
        assert!(!put(KEY_BYTES_MAX + 1, 0));
        assert!(!put(0, VALUE_BYTES_MAX + 1));
    }
}
