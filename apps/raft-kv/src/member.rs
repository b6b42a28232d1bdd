//! One of the members: the Raft library, its log and the store. It does no I/O but to its journal: messages and requests
//! go in, messages and answers come out.

use std::collections::{BTreeMap, VecDeque};

use raft::prelude::{Config, Entry, Message, RawNode};
use raft::{INVALID_ID, SnapshotStatus, StateRole};

use crate::journal::{JournalError, JournalMedium};
use crate::log::RaftLog;
use crate::operation::{OperationView, Request, RequestAnswer, RequestView};
use crate::store::ReplicatedStore;
use provost_random::SeededRandom;

/// Requests of clients that a member has taken and not answered.
pub const REQUESTS_MAX: usize = 4096;
/// Bytes of entries that the leader has taken and that are not committed.
const UNCOMMITTED_BYTES_MAX: u64 = 16 << 20;
/// Bytes of entries in one message, but for a single larger entry.
const APPEND_BYTES_MAX: u64 = 256 << 10;
/// Messages with entries on their way to one member.
const APPENDS_MAX: usize = 64;
/// Bytes of entries after which a snapshot takes their place, however few they are: a little more than the largest snapshot has.
const LOG_BYTES_MAX: usize = 64 << 20;
/// Ticks without a word of the leader after which a member wants to lead; each time it is drawn from here to twice this.
const ELECTION_TICKS: usize = 10;
const HEARTBEAT_TICKS: usize = 2;

/// Who may answer a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadRule {
    /// The leader, once most members have confirmed that it still is: what is read is what was written last.
    Linearizable,
    /// Every member from what it has. It costs no message, and may be old: histories with such reads are not
    /// linearizable.
    Stale,
}

/// What a member is told when it starts.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// Its number, not zero.
    pub id: u64,
    /// The numbers of all members.
    pub members: Vec<u64>,
    /// Who may answer a read.
    pub reads: ReadRule,
    /// Applied entries after which a snapshot takes the place of the log.
    pub snapshot_entries: u64,
    /// What its election time-outs are drawn from. Members must have different ones.
    pub seed: u64,
}

/// Why a member cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The Raft library refuses something that is of this member's own making.
    #[error("the Raft library refuses to go on: {0}")]
    Raft(#[from] raft::Error),
    /// What was committed, or kept, is no state or request of this version.
    #[error("entry {index} of the log, or the snapshot there, is of no form that this version knows")]
    Unknown { index: u64 },
}

/// What is to be sent.
#[derive(Debug, Default)]
pub struct MemberOutbox {
    pub messages: Vec<Message>,
    /// To clients, by what [`Member::submit`] was told.
    pub answers: Vec<(u64, RequestAnswer)>,
}

pub struct Member<M: JournalMedium> {
    node: RawNode<RaftLog<M>>,
    store: ReplicatedStore,
    config: MemberConfig,
    applied: u64,
    /// Entries that clients wait for: by index, with the term they were proposed in.
    proposed: BTreeMap<u64, (u64, u64)>,
    reads: PendingReads,
    answers: Vec<(u64, RequestAnswer)>,
    unsynced: Option<UnsyncedWrite>,
    random: SeededRandom,
    election_ticks: usize,
    /// For what the election time-out was drawn.
    drawn_for: (u64, StateRole),
}

/// What the member has written to its journal, and what it may say once that is sure to survive.
#[derive(Debug)]
struct UnsyncedWrite {
    /// The library's number of what was written.
    number: u64,
    messages: Vec<Message>,
}

/// Reads on their way from being asked to being answered.
#[derive(Debug, Default)]
struct PendingReads {
    /// Taken since the last round of confirmations began.
    fresh: Vec<PendingRead>,
    /// Whose round is under way, by the round's number.
    rounds: VecDeque<(u64, Vec<PendingRead>)>,
    /// Confirmed, for when the entry of this index has been applied.
    confirmed: VecDeque<(u64, Vec<PendingRead>)>,
    round: u64,
    count: usize,
}

#[derive(Debug)]
struct PendingRead {
    ticket: u64,
    key: Vec<u8>,
}

impl<M: JournalMedium> Member<M> {
    /// A member with what its medium has kept.
    ///
    /// # Errors
    /// If that cannot be read, or the configuration cannot be.
    pub fn new(config: MemberConfig, medium: M) -> Result<Self, MemberError> {
        let log = RaftLog::open(medium, &config.members)?;
        let applied = log.snapshot_index();
        let store = decode_store(&log.current_snapshot().data, applied)?;
        let raft_config = Config {
            id: config.id,
            election_tick: ELECTION_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            applied,
            max_size_per_msg: APPEND_BYTES_MAX,
            max_inflight_msgs: APPENDS_MAX,
            check_quorum: true,
            pre_vote: true,
            // A commit reaches the followers with the next entry or heartbeat; no client waits for it there.
            skip_bcast_commit: true,
            max_uncommitted_size: UNCOMMITTED_BYTES_MAX,
            ..Config::default()
        };
        let quiet = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&raft_config, log, &quiet)?;
        let mut member = Self {
            drawn_for: (node.raft.term, node.raft.state),
            node,
            store,
            applied,
            proposed: BTreeMap::new(),
            reads: PendingReads::default(),
            answers: Vec::new(),
            unsynced: None,
            random: SeededRandom::new(config.seed),
            election_ticks: ELECTION_TICKS,
            config,
        };
        member.draw_election_ticks();
        Ok(member)
    }

    #[must_use]
    pub fn id(&self) -> u64 {
        self.config.id
    }

    /// Who leads, as far as it knows.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        Some(self.node.raft.leader_id).filter(|leader| *leader != INVALID_ID)
    }

    /// Whether it leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// The last entry that is in its store.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The entry that its last snapshot goes to.
    #[must_use]
    pub fn snapshot_index(&self) -> u64 {
        self.node.store().snapshot_index()
    }

    #[must_use]
    pub fn store(&self) -> &ReplicatedStore {
        &self.store
    }

    /// Lets one unit of time pass.
    pub fn tick(&mut self) {
        let now = (self.node.raft.term, self.node.raft.state);
        if self.drawn_for != now {
            self.drawn_for = now;
            self.draw_election_ticks();
        }
        // The library draws from a source that no seed determines; it looks at what it drew in a tick only.
        self.node
            .raft
            .set_randomized_election_timeout(self.election_ticks);
        self.node.tick();
    }

    fn draw_election_ticks(&mut self) {
        self.election_ticks = ELECTION_TICKS + self.random.below(ELECTION_TICKS as u64) as usize;
    }

    /// Takes a message of another member.
    pub fn step(&mut self, message: Message) {
        // What the library refuses is of another time, or of a member that it does not know.
        let _ = self.node.step(message);
    }

    /// Another member could not be told something.
    pub fn report_unreachable(&mut self, member: u64) {
        self.node.report_unreachable(member);
    }

    /// A snapshot has reached another member, or has not.
    pub fn report_snapshot(&mut self, member: u64, status: SnapshotStatus) {
        self.node.report_snapshot(member, status);
    }

    /// Takes an encoded request. Its answer comes now, or with a later [`Member::advance`] or [`Member::sync`] under this ticket.
    /// What is written goes into the log as it came.
    pub fn submit(&mut self, ticket: u64, bytes: &[u8]) -> Option<RequestAnswer> {
        let Some(request) = RequestView::read(bytes) else {
            return Some(RequestAnswer::Invalid);
        };
        if let (OperationView::Get { key }, ReadRule::Stale) = (request.operation, self.config.reads) {
            return Some(RequestAnswer::Value(self.store.get(key).map(<[u8]>::to_vec)));
        }
        if !self.is_leader() {
            return Some(RequestAnswer::Redirect(self.leader()));
        }
        if self.proposed.len() + self.reads.count >= REQUESTS_MAX {
            return Some(RequestAnswer::Busy);
        }
        match request.operation {
            OperationView::Get { key } => {
                let key = key.to_vec();
                self.reads.count += 1;
                self.reads.fresh.push(PendingRead { ticket, key });
                None
            }
            _ => self.propose(ticket, bytes),
        }
    }

    fn propose(&mut self, ticket: u64, bytes: &[u8]) -> Option<RequestAnswer> {
        let last = self.node.raft.raft_log.last_index();
        let taken = self.node.propose(Vec::new(), bytes.to_vec());
        let index = self.node.raft.raft_log.last_index();
        if taken.is_err() || index == last {
            return Some(RequestAnswer::Busy);
        }
        self.proposed.insert(index, (self.node.raft.term, ticket));
        None
    }

    /// Does what messages, requests and ticks have made necessary, until something has to survive before more can be said
    /// ([`Member::is_sync_due`]). What is to be sent goes into the outbox. Send it first, then call [`Member::sync`]: a leader's
    /// entries are on their way to the others while it keeps them itself (Ongaro, *Consensus*, 2014, section 10.2.1).
    ///
    /// # Errors
    /// If the member cannot go on.
    pub fn advance(&mut self, outbox: &mut MemberOutbox) -> Result<(), MemberError> {
        self.begin_reads();
        while self.unsynced.is_none() && self.node.has_ready() {
            self.handle_ready(outbox)?;
        }
        if !self.is_leader() {
            self.abandon();
        }
        if self.unsynced.is_none() {
            self.compact()?;
        }
        outbox.answers.append(&mut self.answers);
        Ok(())
    }

    /// Whether something is written that has to survive before the member can go on.
    #[must_use]
    pub fn is_sync_due(&self) -> bool {
        self.unsynced.is_some()
    }

    /// Has what was written survive. What may be said only then goes into the outbox: that a follower has an entry, and for whom it
    /// votes.
    ///
    /// # Errors
    /// If the member cannot go on.
    pub fn sync(&mut self, outbox: &mut MemberOutbox) -> Result<(), MemberError> {
        if let Some(mut unsynced) = self.unsynced.take() {
            self.node.mut_store().sync()?;
            outbox.messages.append(&mut unsynced.messages);
            self.node.on_persist_ready(unsynced.number);
        }
        self.advance(outbox)
    }

    /// One round of confirmations serves all reads that came since the last began.
    fn begin_reads(&mut self) {
        // A leader knows what is committed only once an entry of its own term is; until then reads wait.
        if self.reads.fresh.is_empty() || !self.is_leader() || !self.node.raft.commit_to_current_term() {
            return;
        }
        self.reads.round += 1;
        let round = self.reads.round;
        self.reads
            .rounds
            .push_back((round, std::mem::take(&mut self.reads.fresh)));
        self.node.read_index(round.to_le_bytes().to_vec());
    }

    fn handle_ready(&mut self, outbox: &mut MemberOutbox) -> Result<(), MemberError> {
        let mut ready = self.node.ready();
        outbox.messages.append(&mut ready.take_messages());
        let has_snapshot = !ready.snapshot().is_empty();
        if has_snapshot {
            self.install(ready.snapshot().clone())?;
        }
        let log = self.node.mut_store();
        log.append(ready.take_entries());
        match ready.hs() {
            Some(state) if ready.must_sync() => log.set_state(state.clone()),
            Some(state) => log.set_commit(state.commit),
            None => {}
        }
        if has_snapshot {
            // Installing it has replaced the journal, which survives; what follows it is to survive with it.
            log.sync()?;
        } else {
            log.write()?;
        }
        self.apply(ready.take_committed_entries())?;
        self.confirm_reads(ready.take_read_states());
        let (number, is_sync_due) = (ready.number(), ready.must_sync() && !has_snapshot);
        let mut messages = ready.take_persisted_messages();
        self.node.advance_append_async(ready);
        if is_sync_due {
            self.unsynced = Some(UnsyncedWrite { number, messages });
        } else {
            outbox.messages.append(&mut messages);
            self.node.on_persist_ready(number);
        }
        self.node.advance_apply();
        self.answer_reads();
        Ok(())
    }

    fn install(&mut self, snapshot: raft::prelude::Snapshot) -> Result<(), MemberError> {
        let index = snapshot.get_metadata().index;
        self.store = decode_store(&snapshot.data, index)?;
        self.applied = index;
        Ok(self.node.mut_store().install(snapshot)?)
    }

    fn apply(&mut self, entries: Vec<Entry>) -> Result<(), MemberError> {
        for entry in entries {
            let index = entry.index;
            // A new leader's first entry is empty.
            let answer = if entry.data.is_empty() {
                RequestAnswer::Redirect(None)
            } else {
                let request = Request::decode(&entry.data).ok_or(MemberError::Unknown { index })?;
                self.store.apply(index, &request)
            };
            self.applied = index;
            if let Some((term, ticket)) = self.proposed.remove(&index) {
                let is_that = term == entry.term;
                let answer = if is_that {
                    answer
                } else {
                    RequestAnswer::Redirect(None)
                };
                self.answers.push((ticket, answer));
            }
        }
        Ok(())
    }

    fn confirm_reads(&mut self, states: Vec<raft::ReadState>) {
        for state in states {
            let round = state.request_ctx.try_into().map_or(0, u64::from_le_bytes);
            while self
                .reads
                .rounds
                .front()
                .is_some_and(|(first, _)| *first <= round)
            {
                if let Some((_, reads)) = self.reads.rounds.pop_front() {
                    self.reads.confirmed.push_back((state.index, reads));
                }
            }
        }
    }

    fn answer_reads(&mut self) {
        while self
            .reads
            .confirmed
            .front()
            .is_some_and(|(index, _)| *index <= self.applied)
        {
            let Some((_, reads)) = self.reads.confirmed.pop_front() else {
                break;
            };
            self.reads.count -= reads.len();
            for read in reads {
                let value = self.store.get(&read.key).map(<[u8]>::to_vec);
                self.answers.push((read.ticket, RequestAnswer::Value(value)));
            }
        }
    }

    /// A member that no longer leads does not know what becomes of requests that it has taken.
    fn abandon(&mut self) {
        let leader = self.leader();
        let reads = std::mem::take(&mut self.reads);
        self.reads.round = reads.round;
        let batches = reads.rounds.into_iter().chain(reads.confirmed);
        let read = batches.flat_map(|(_, reads)| reads).chain(reads.fresh);
        let proposed = std::mem::take(&mut self.proposed);
        let tickets = proposed.into_values().map(|(_, ticket)| ticket);
        for ticket in read.map(|read| read.ticket).chain(tickets) {
            self.answers.push((ticket, RequestAnswer::Redirect(leader)));
        }
    }

    fn compact(&mut self) -> Result<(), MemberError> {
        let log = self.node.store();
        let is_due = self.applied - log.snapshot_index() >= self.config.snapshot_entries
            || log.entries_bytes() >= LOG_BYTES_MAX;
        if (is_due || log.is_later_snapshot_wanted()) && self.applied > log.snapshot_index() {
            let state = self.store.encode();
            self.node.mut_store().compact(self.applied, state)?;
        }
        Ok(())
    }
}

fn decode_store(data: &[u8], index: u64) -> Result<ReplicatedStore, MemberError> {
    if index == 0 {
        return Ok(ReplicatedStore::default());
    }
    ReplicatedStore::decode(data).ok_or(MemberError::Unknown { index })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::MemoryOnly;
    use crate::operation::{Operation, VALUE_BYTES_MAX};

    /// A member that is all of its cluster, and leads.
    fn leader() -> Member<MemoryOnly> {
        let config = MemberConfig {
            id: 1,
            members: vec![1],
            reads: ReadRule::Linearizable,
            snapshot_entries: u64::MAX,
            seed: 1,
        };
        let mut member = Member::new(config, MemoryOnly).unwrap();
        for _ in 0..2 * ELECTION_TICKS {
            member.tick();
            settle(&mut member);
        }
        assert!(member.is_leader());
        member
    }

    /// Does all that is to be done; the answers.
    fn settle(member: &mut Member<MemoryOnly>) -> Vec<(u64, RequestAnswer)> {
        let mut outbox = MemberOutbox::default();
        member.advance(&mut outbox).unwrap();
        while member.is_sync_due() {
            member.sync(&mut outbox).unwrap();
        }
        outbox.answers
    }

    fn ask(member: &mut Member<MemoryOnly>, request: &Request) -> RequestAnswer {
        assert_eq!(member.submit(7, &request.encode()), None);
        let answers = settle(member);
        assert_eq!(answers.len(), 1);
        answers.into_iter().next().unwrap().1
    }

    #[test]
    fn a_log_of_few_large_entries_is_bounded() {
        let mut member = leader();
        let open = Request {
            session: 0,
            sequence: 0,
            operation: Operation::OpenSession,
        };
        let RequestAnswer::SessionOpened(session) = ask(&mut member, &open) else {
            panic!("no session was opened");
        };
        for sequence in 1..=(LOG_BYTES_MAX / VALUE_BYTES_MAX) as u64 + 9 {
            let operation = Operation::Put {
                key: b"key".to_vec(),
                value: vec![0; VALUE_BYTES_MAX],
            };
            let put = Request {
                session,
                sequence,
                operation,
            };
            assert_eq!(ask(&mut member, &put), RequestAnswer::Done);
            let bytes = member.node.store().entries_bytes();
            assert!(bytes <= LOG_BYTES_MAX + 2 * VALUE_BYTES_MAX, "{bytes}");
        }
        assert!(member.snapshot_index() > 0);
    }
}
