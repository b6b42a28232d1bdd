//! The Raft library's messages as bytes. It brings a protobuf codec; what comes from the network is read by this one
//! instead, which checks every length before it believes it.
//!
//! A message is `length (4)`, then `type (1), reject (1), to, from, term, log term, index, commit, commit term, request
//! snapshot, reject hint, priority (8 each)`, `context`, the number of entries (4) and the entries, and a byte that says
//! whether a snapshot follows. An entry is `term, index (8 each), data`; a snapshot is `term, index (8 each)`, the number
//! of voters (4), the voters (8 each), `data`. What has no fixed length has it (4) before it.

use raft::prelude::{Entry, Message, MessageType, Snapshot};

use crate::codec::{PutBytes, RecordReader};

/// Entries of one message at most. The leader's batches are bounded by bytes, so no real message comes near.
const ENTRIES_MAX: u32 = 1 << 20;
/// Voters of a snapshot at most.
const VOTERS_MAX: u32 = 64;

/// The kinds that members send each other, by their number. The library's others never leave a member.
const KINDS: [MessageType; 13] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTransferLeader,
    MessageType::MsgTimeoutNow,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

/// Puts a message behind others. One of a kind that does not leave a member is left out.
pub(crate) fn encode(message: &Message, bytes: &mut Vec<u8>) {
    let Some(kind) = KINDS.iter().position(|kind| *kind == message.get_msg_type()) else {
        return;
    };
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    bytes.put_u8(kind as u8);
    bytes.put_u8(message.reject.into());
    let numbers = [
        message.to,
        message.from,
        message.term,
        message.log_term,
        message.index,
        message.commit,
        message.commit_term,
        message.request_snapshot,
        message.reject_hint,
        message.priority as u64,
    ];
    numbers.into_iter().for_each(|number| bytes.put_u64(number));
    bytes.put_bytes(&message.context);
    bytes.extend_from_slice(&(message.entries.len() as u32).to_le_bytes());
    message.entries.iter().for_each(|entry| put_entry(bytes, entry));
    bytes.put_u8(message.has_snapshot().into());
    if message.has_snapshot() {
        put_snapshot(bytes, message.get_snapshot());
    }
    let length = (bytes.len() - start - 4) as u32;
    bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// All messages that were put behind each other; `None` if any part is none.
pub(crate) fn decode_all(bytes: &[u8]) -> Option<Vec<Message>> {
    let mut reader = RecordReader::new(bytes);
    let mut messages = Vec::new();
    while !reader.is_empty() {
        messages.push(decode(reader.bytes()?)?);
    }
    Some(messages)
}

fn decode(bytes: &[u8]) -> Option<Message> {
    let mut reader = RecordReader::new(bytes);
    let mut message = Message::default();
    message.set_msg_type(*KINDS.get(usize::from(reader.u8()?))?);
    message.reject = reader.u8()? != 0;
    message.to = reader.u64()?;
    message.from = reader.u64()?;
    message.term = reader.u64()?;
    message.log_term = reader.u64()?;
    message.index = reader.u64()?;
    message.commit = reader.u64()?;
    message.commit_term = reader.u64()?;
    message.request_snapshot = reader.u64()?;
    message.reject_hint = reader.u64()?;
    message.priority = reader.u64()? as i64;
    message.context = reader.bytes()?.to_vec().into();
    let entries = reader.u32().filter(|entries| *entries <= ENTRIES_MAX)?;
    for _ in 0..entries {
        message.entries.push(take_entry(&mut reader)?);
    }
    if reader.u8()? != 0 {
        message.set_snapshot(take_snapshot(&mut reader)?);
    }
    reader.finish(message)
}

pub(crate) fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    bytes.put_u64(entry.term);
    bytes.put_u64(entry.index);
    bytes.put_bytes(&entry.data);
}

pub(crate) fn take_entry(reader: &mut RecordReader<'_>) -> Option<Entry> {
    Some(Entry {
        term: reader.u64()?,
        index: reader.u64()?,
        data: reader.bytes()?.to_vec().into(),
        ..Entry::default()
    })
}

pub(crate) fn put_snapshot(bytes: &mut Vec<u8>, snapshot: &Snapshot) {
    let metadata = snapshot.get_metadata();
    bytes.put_u64(metadata.term);
    bytes.put_u64(metadata.index);
    let voters = &metadata.get_conf_state().voters;
    bytes.extend_from_slice(&(voters.len() as u32).to_le_bytes());
    voters.iter().for_each(|voter| bytes.put_u64(*voter));
    bytes.put_bytes(&snapshot.data);
}

pub(crate) fn take_snapshot(reader: &mut RecordReader<'_>) -> Option<Snapshot> {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.term = reader.u64()?;
    metadata.index = reader.u64()?;
    let voters = reader.u32().filter(|voters| *voters <= VOTERS_MAX)?;
    for _ in 0..voters {
        metadata.mut_conf_state().voters.push(reader.u64()?);
    }
    snapshot.data = reader.bytes()?.to_vec().into();
    Some(snapshot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<Message> {
        let mut append = Message::default();
        append.set_msg_type(MessageType::MsgAppend);
        (append.to, append.from, append.term, append.index) = (2, 1, 7, 40);
        append.context = b"context".to_vec().into();
        let mut entry = Entry::default();
        (entry.term, entry.index) = (7, 41);
        entry.data = b"data".to_vec().into();
        append.entries = vec![entry].into();
        let mut snapshot = Snapshot::default();
        snapshot.mut_metadata().index = 9;
        snapshot.mut_metadata().mut_conf_state().voters = vec![1, 2, 3];
        snapshot.data = b"state".to_vec().into();
        let mut install = Message::default();
        install.set_msg_type(MessageType::MsgSnapshot);
        install.set_snapshot(snapshot);
        install.priority = -1;
        install.reject = true;
        vec![append, install]
    }

    #[test]
    fn messages_come_back_as_they_were_and_no_part_of_one_is_one() {
        let mut bytes = Vec::new();
        let messages = messages();
        encode(&messages[0], &mut bytes);
        let first = bytes.len();
        encode(&messages[1], &mut bytes);
        assert_eq!(decode_all(&bytes).as_ref(), Some(&messages));
        for end in (1..bytes.len()).filter(|end| *end != first) {
            assert_eq!(decode_all(&bytes[..end]), None, "{end} bytes");
        }
    }

    #[test]
    fn a_length_that_nothing_follows_is_not_believed() {
        let mut bytes = Vec::new();
        encode(&messages()[0], &mut bytes);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] = 0xff;
            // Whatever it says then, it is read to its end without harm.
            let _ = decode_all(&damaged);
        }
    }

    #[test]
    fn what_never_leaves_a_member_is_neither_sent_nor_taken() {
        let mut hup = Message::default();
        hup.set_msg_type(MessageType::MsgHup);
        let mut bytes = Vec::new();
        encode(&hup, &mut bytes);
        assert!(bytes.is_empty());
    }
}
