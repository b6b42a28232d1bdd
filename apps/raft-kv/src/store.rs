//! The state that all members have: keys with their values, and what each session was last answered. The same entries
//! in the same order make the same state on every member.

use std::collections::BTreeMap;

use crate::codec::{PutBytes, RecordReader};
use crate::operation::{Operation, Request, RequestAnswer};

/// Sessions that are remembered. When there are more, the one that was not used for longest is forgotten.
pub const SESSIONS_MAX: usize = 4096;
/// Bytes of all keys and values, with [`KEY_COST_BYTES`] for each key. A snapshot of them must be a message that the transport takes.
pub const STORE_BYTES_MAX: usize = 48 << 20;
/// What a key takes of a snapshot beside its bytes and those of its value.
const KEY_COST_BYTES: usize = 8;

/// Keys, values and sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicatedStore {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    sessions: BTreeMap<u64, StoreSession>,
    /// The sessions by the entry that used them last.
    by_use: BTreeMap<u64, u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct StoreSession {
    used: u64,
    sequence: u64,
    answer: RequestAnswer,
}

impl ReplicatedStore {
    /// What a key has.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.values.get(key).map(Vec::as_slice)
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Executes what the entry of this index says, unless its session says that it was executed already.
    pub fn apply(&mut self, index: u64, request: &Request) -> RequestAnswer {
        if request.operation == Operation::OpenSession {
            return self.open_session(index);
        }
        let Some(session) = self.sessions.get_mut(&request.session) else {
            return RequestAnswer::SessionExpired;
        };
        self.by_use.remove(&session.used);
        self.by_use.insert(index, request.session);
        session.used = index;
        if request.sequence <= session.sequence {
            return if request.sequence == session.sequence {
                session.answer.clone()
            } else {
                RequestAnswer::Superseded
            };
        }
        let answer = self.execute(&request.operation);
        if let Some(session) = self.sessions.get_mut(&request.session) {
            session.sequence = request.sequence;
            session.answer = answer.clone();
        }
        answer
    }

    fn open_session(&mut self, index: u64) -> RequestAnswer {
        if self.sessions.len() >= SESSIONS_MAX
            && let Some((_, longest_unused)) = self.by_use.pop_first()
        {
            self.sessions.remove(&longest_unused);
        }
        let session = StoreSession {
            used: index,
            sequence: 0,
            answer: RequestAnswer::SessionOpened(index),
        };
        self.sessions.insert(index, session);
        self.by_use.insert(index, index);
        RequestAnswer::SessionOpened(index)
    }

    fn execute(&mut self, operation: &Operation) -> RequestAnswer {
        match operation {
            Operation::Get { key } => RequestAnswer::Value(self.values.get(key).cloned()),
            Operation::Put { key, value } => self.set(key, value),
            Operation::CompareAndSet { key, expected, value } => {
                if self.values.get(key) == expected.as_ref() {
                    self.set(key, value)
                } else {
                    RequestAnswer::Differs
                }
            }
            Operation::OpenSession => RequestAnswer::Invalid,
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8]) -> RequestAnswer {
        let freed = self.values.get(key).map_or(0, |old| cost(key, old));
        let bytes = self.bytes - freed + cost(key, value);
        // What an earlier version took may be more.
        if bytes > STORE_BYTES_MAX.max(self.bytes) {
            return RequestAnswer::Full;
        }
        self.bytes = bytes;
        self.values.insert(key.to_vec(), value.to_vec());
        RequestAnswer::Done
    }

    /// Everything, for a member that is behind, and for after a restart.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.bytes + 64);
        bytes.put_u64(self.values.len() as u64);
        for (key, value) in &self.values {
            bytes.put_bytes(key);
            bytes.put_bytes(value);
        }
        for (id, session) in &self.sessions {
            bytes.put_u64(*id);
            bytes.put_u64(session.used);
            bytes.put_u64(session.sequence);
            bytes.put_bytes(&session.answer.encode());
        }
        bytes
    }

    /// What was encoded; `None` if it is something else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<ReplicatedStore> {
        let mut reader = RecordReader::new(bytes);
        let mut store = ReplicatedStore::default();
        for _ in 0..reader.u64()? {
            let (key, value) = (reader.bytes()?, reader.bytes()?);
            store.bytes += cost(key, value);
            store.values.insert(key.to_vec(), value.to_vec());
        }
        while !reader.is_empty() {
            let id = reader.u64()?;
            let session = StoreSession {
                used: reader.u64()?,
                sequence: reader.u64()?,
                answer: RequestAnswer::decode(reader.bytes()?)?,
            };
            store.by_use.insert(session.used, id);
            store.sessions.insert(id, session);
        }
        Some(store)
    }
}

/// What a key with this value takes of a snapshot.
fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + KEY_COST_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(session: u64, sequence: u64, value: &[u8]) -> Request {
        let operation = Operation::Put {
            key: b"key".to_vec(),
            value: value.to_vec(),
        };
        Request {
            session,
            sequence,
            operation,
        }
    }

    fn open() -> Request {
        Request {
            session: 0,
            sequence: 0,
            operation: Operation::OpenSession,
        }
    }

    #[test]
    fn a_request_that_comes_again_is_answered_again_and_not_executed_again() {
        let mut store = ReplicatedStore::default();
        assert_eq!(store.apply(5, &open()), RequestAnswer::SessionOpened(5));
        let swap = Request {
            session: 5,
            sequence: 1,
            operation: Operation::CompareAndSet {
                key: b"key".to_vec(),
                expected: None,
                value: b"one".to_vec(),
            },
        };
        assert_eq!(store.apply(6, &swap), RequestAnswer::Done);
        assert_eq!(
            store.apply(7, &swap),
            RequestAnswer::Done,
            "executed again, it would differ"
        );
        assert_eq!(store.apply(8, &put(5, 2, b"two")), RequestAnswer::Done);
        assert_eq!(store.apply(9, &swap), RequestAnswer::Superseded);
        assert_eq!(store.get(b"key"), Some(b"two".as_slice()));
        assert_eq!(
            store.apply(10, &put(4, 1, b"three")),
            RequestAnswer::SessionExpired
        );
    }

    #[test]
    fn the_session_that_was_not_used_for_longest_makes_room() {
        let mut store = ReplicatedStore::default();
        for index in 1..=SESSIONS_MAX as u64 {
            store.apply(index, &open());
        }
        store.apply(10_000, &put(1, 1, b"used"));
        store.apply(10_001, &open());
        assert_eq!(store.sessions.len(), SESSIONS_MAX);
        assert_eq!(
            store.apply(10_002, &put(1, 2, b"still there")),
            RequestAnswer::Done
        );
        assert_eq!(
            store.apply(10_003, &put(2, 1, b"gone")),
            RequestAnswer::SessionExpired
        );
    }

    #[test]
    fn it_comes_back_from_a_snapshot_whole_and_from_no_part_of_one() {
        let mut store = ReplicatedStore::default();
        store.apply(1, &open());
        store.apply(2, &put(1, 1, b"value"));
        let bytes = store.encode();
        assert_eq!(ReplicatedStore::decode(&bytes), Some(store));
        assert_eq!(ReplicatedStore::decode(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn it_holds_no_more_bytes_than_it_may() {
        let mut store = ReplicatedStore::default();
        store.apply(1, &open());
        let large = vec![0; crate::operation::VALUE_BYTES_MAX];
        let mut put = |at: usize| {
            let operation = Operation::Put {
                key: at.to_le_bytes().to_vec(),
                value: large.clone(),
            };
            store.execute(&operation)
        };
        let fitting = STORE_BYTES_MAX / cost(&[0; 8], &large);
        assert!((0..fitting).all(|at| put(at) == RequestAnswer::Done));
        assert_eq!(put(fitting), RequestAnswer::Full);
        assert_eq!(
            put(0),
            RequestAnswer::Done,
            "a value in the place of another needs no room"
        );
    }

    /// A member that is behind gets the whole store in one message, however small what it has is.
    #[test]
    fn a_snapshot_of_small_values_has_as_many_bytes_as_are_counted() {
        let mut store = ReplicatedStore::default();
        let empty = store.encode().len();
        for at in 0..1_000_u16 {
            assert_eq!(store.set(&at.to_le_bytes(), b""), RequestAnswer::Done);
        }
        assert_eq!(store.encode().len(), empty + store.bytes);
        assert_eq!(store.set(&[0; 2], b"longer"), RequestAnswer::Done);
        assert_eq!(store.encode().len(), empty + store.bytes);
        for index in 1..=SESSIONS_MAX as u64 {
            store.apply(index, &open());
        }
        let sessions = store.encode().len() - empty - store.bytes;
        let most = STORE_BYTES_MAX + empty + sessions;
        let taken = provost_datagram::Config::default().message_bytes_max as usize;
        assert!(most < taken - (1 << 20), "{most} bytes, and {taken} are taken");
    }
}
