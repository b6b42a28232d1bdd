//! A simulated app as its process sees its service: two rings, a send heap, segments that it reads, and a doorbell.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_conformance::Random;
use provost_datapath::Nanos;
use provost_frontend::{NewSegment, SegmentMemory, SegmentSource};
use provost_ring::Slot;
use provost_runtime::AppId;
use provost_shm::{Access, AppRings, Doorbell, Mapping, Memfd, Ringer, SEALS_READ_ONLY_FOR_OTHERS};
use provost_wire::Code;
use provost_wire::descriptor::{
    BATCH_MAX, Batch, Completion, Parts, Submission, completion_kind, submission_kind,
};
use provost_wire::limits::BLOCK_ALIGN_BYTES;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::client::{ClientTotals, SimulatedClient};
use crate::memory::SimSendHeap;
use crate::note::{self, NOTE_BYTES, Service};
use crate::outcome::{CallFate, ConnectionCourse, OutgoingStep, ReceivedStep};
use crate::plan::Plan;
use crate::policy::CallLedger;
use crate::sabotage::{Sabotage, TamperedRing};
use crate::server::Server;
use crate::trace::TraceDigest;

/// How often an app's library looks after its link though it was not woken.
const TICK_NS: Nanos = 4_000_000;
/// Completions that an app reads, and steps that it submits, in one turn.
const BATCH_STEPS: usize = 32;

/// What a service tells an app on its control socket.
pub(crate) enum AppMail {
    /// A segment of the receive heap.
    Segment(NewSegment, Memfd),
    /// Completions are published in this region from now on.
    Region(u64, Memfd),
    /// A connection that the app asked for has this number.
    Opened(u32, usize),
}

/// An app's control socket. It outlives the processes of the service.
#[derive(Clone, Default)]
pub(crate) struct ControlMailbox(Arc<Mutex<VecDeque<AppMail>>>);

impl ControlMailbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<AppMail>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, mail: AppMail) {
        self.lock().push_back(mail);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}

/// Makes segments for one app, and tells it of them: at once, or, for a successor of its service, once that goes on.
pub(crate) struct SimSegments {
    mailbox: ControlMailbox,
    held: Option<Vec<AppMail>>,
}

impl SimSegments {
    pub(crate) fn new(mailbox: &ControlMailbox) -> SimSegments {
        SimSegments {
            mailbox: mailbox.clone(),
            held: None,
        }
    }

    pub(crate) fn of_successor(mailbox: &ControlMailbox) -> SimSegments {
        SimSegments {
            mailbox: mailbox.clone(),
            held: Some(Vec::new()),
        }
    }
}

impl SegmentSource for SimSegments {
    fn make(&mut self, segment: NewSegment) -> Option<SegmentMemory> {
        let memfd = Memfd::create("sim-received", segment.bytes).ok()?;
        let mapping = Mapping::new(&memfd, Access::ReadWrite).ok()?;
        memfd.seal(SEALS_READ_ONLY_FOR_OTHERS).ok()?;
        let mail = AppMail::Segment(segment, memfd.try_clone().ok()?);
        match &mut self.held {
            Some(held) => held.push(mail),
            None => self.mailbox.post(mail),
        }
        Some(SegmentMemory { memfd, mapping })
    }

    fn show_region(&mut self, generation: u64, region: &Memfd) -> bool {
        let Ok(region) = region.try_clone() else {
            return false;
        };
        let held = self.held.take().into_iter().flatten();
        held.for_each(|mail| self.mailbox.post(mail));
        self.mailbox.post(AppMail::Region(generation, region));
        true
    }
}

/// What an app's process is made of.
pub(crate) struct AppParts {
    pub(crate) id: AppId,
    pub(crate) rings: AppRings,
    pub(crate) service: Ringer,
    pub(crate) doorbell: Doorbell,
    pub(crate) send: SimSendHeap,
    pub(crate) mailbox: ControlMailbox,
    pub(crate) completions: TamperedRing,
}

/// An app of the simulation: its rings, its heap and its calls.
pub(crate) struct SimApp {
    pub(crate) parts: AppParts,
    random: Random,
    segments: BTreeMap<u64, (NewSegment, Memfd)>,
    pub(crate) connections: BTreeMap<u32, AppConnection>,
    reclaims: Vec<u64>,
    pub(crate) due: Nanos,
    pub(crate) is_asleep: bool,
    /// Since when it sleeps though something waits for it.
    overslept_since: Option<Nanos>,
    /// Of connections that are gone.
    totals: ClientTotals,
}

/// One connection as its app sees it.
pub(crate) struct AppConnection {
    /// Which of the world's connections.
    pub(crate) pair: usize,
    pub(crate) mind: AppMind,
    is_going_away: bool,
    is_closing: bool,
}

/// What an app does on a connection.
pub(crate) enum AppMind {
    Client(Box<SimulatedClient>),
    Server(Box<Server>),
}

/// What all apps share in their turns.
pub(crate) struct AppTurn<'a> {
    pub(crate) now: Nanos,
    pub(crate) service: &'a Service,
    pub(crate) fates: &'a [CallFate],
    pub(crate) ledger: &'a CallLedger,
    pub(crate) trace: &'a mut TraceDigest,
    pub(crate) begun: &'a mut u64,
    pub(crate) calls_max: u64,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What came of a turn.
#[derive(Debug, Default)]
pub(crate) struct TurnReport {
    /// It mapped the completion region of this generation.
    pub(crate) mapped: Option<u64>,
    /// How many connections have ended so far.
    pub(crate) closed: Vec<usize>,
    /// It rang its service's doorbell.
    pub(crate) rang: bool,
}

impl SimApp {
    pub(crate) fn new(parts: AppParts, seed: u64, now: Nanos) -> SimApp {
        SimApp {
            parts,
            random: Random::new(seed),
            segments: BTreeMap::new(),
            connections: BTreeMap::new(),
            reclaims: Vec::new(),
            due: now,
            is_asleep: false,
            overslept_since: None,
            totals: ClientTotals::default(),
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        self.connections
            .values()
            .map(|connection| connection.mind.open_calls())
            .sum()
    }

    /// Has the app close its connections, whatever is in flight.
    pub(crate) fn close_all(&mut self, now: Nanos) {
        for connection in self.connections.values_mut() {
            connection.is_closing = true;
        }
        self.wake(now);
    }

    /// Wakes it if its doorbell was rung, or a message came on its control socket.
    pub(crate) fn look_at_doorbell(&mut self, now: Nanos, latency_ns: Nanos) {
        if !self.is_asleep {
            return;
        }
        let (has_completions, has_news) = self.waiting_completions();
        if !has_news {
            self.overslept_since = None;
        }
        let is_rung = has_completions && self.parts.doorbell.drain().unwrap_or(false);
        if is_rung || !self.parts.mailbox.is_empty() {
            self.wake(now + latency_ns);
        } else if has_news {
            self.overslept_since.get_or_insert(now);
        } else if has_completions {
            // The service does not ring for tokens alone: a library finds them when it looks after its link.
            self.due = self.due.min(now + TICK_NS);
        }
    }

    /// Whether completions wait for it, and whether there are others than tokens among them.
    fn waiting_completions(&mut self) -> (bool, bool) {
        let Ok(waiting) = self.parts.rings.completions.waiting() else {
            return (true, true);
        };
        let is_news = |slot| of_slot::<Completion>(&slot).kind != completion_kind::SENT;
        waiting
            .map(is_news)
            .fold((false, false), |(_, has_news), is_news| {
                (true, has_news || is_news)
            })
    }

    /// How long it has slept though completions wait for it.
    pub(crate) fn overslept_ns(&self, now: Nanos) -> Nanos {
        self.overslept_since.map_or(0, |since| now.saturating_sub(since))
    }

    fn wake(&mut self, at: Nanos) {
        self.due = if self.is_asleep { at } else { self.due.min(at) };
        self.is_asleep = false;
        self.overslept_since = None;
    }

    /// Lets it read, think and submit once.
    pub(crate) fn take_turn(&mut self, turn: &mut AppTurn<'_>) -> Result<TurnReport, String> {
        let mut report = TurnReport::default();
        self.is_asleep = false;
        self.overslept_since = None;
        self.parts.rings.sleeper.disarm();
        let mut busy = self.read_mail(turn, &mut report)?;
        busy |= self.read_completions(turn, &mut report)?;
        busy |= self.submit(turn)?;
        if self.parts.rings.submissions.publish() && self.parts.rings.service.needed() {
            report.rang = true;
            let _ = self.parts.service.ring();
        }
        self.due = turn.now + 500 + self.random.below(3_000);
        if !busy {
            self.fall_asleep(turn)?;
        }
        Ok(report)
    }

    fn fall_asleep(&mut self, turn: &AppTurn<'_>) -> Result<(), String> {
        let rings = &mut self.parts.rings;
        rings.sleeper.arm();
        let is_empty = rings.completions.is_empty().map_err(|fault| fault.to_string())?;
        if !is_empty || !self.parts.mailbox.is_empty() {
            rings.sleeper.disarm();
            return Ok(());
        }
        self.is_asleep = true;
        let begins = *turn.begun < turn.calls_max;
        let wakes = self
            .connections
            .values()
            .filter_map(|connection| connection.wake_at(begins, turn.now));
        self.due = wakes.min().map_or(Nanos::MAX, |at| at.max(turn.now + 1));
        Ok(())
    }

    fn read_mail(&mut self, turn: &mut AppTurn<'_>, report: &mut TurnReport) -> Result<bool, String> {
        let mail: Vec<AppMail> = self.parts.mailbox.lock().drain(..).collect();
        let busy = !mail.is_empty();
        for mail in mail {
            match mail {
                AppMail::Segment(segment, memfd) => {
                    self.segments.insert(segment.id, (segment, memfd));
                }
                AppMail::Region(generation, region) => {
                    let mapped = self.parts.rings.completion_region().replace(&region);
                    mapped.map_err(|error| format!("a completion region cannot be mapped: {error}"))?;
                    report.mapped = Some(generation);
                }
                AppMail::Opened(number, pair) => {
                    let kinds = turn.service.kinds.clone();
                    let mind = SimulatedClient::new(self.random.number(), kinds, turn.now);
                    self.insert(number, pair, AppMind::Client(Box::new(mind)));
                }
            }
        }
        Ok(busy)
    }

    fn insert(&mut self, number: u32, pair: usize, mind: AppMind) {
        let connection = AppConnection {
            pair,
            mind,
            is_going_away: false,
            is_closing: false,
        };
        self.connections.insert(number, connection);
    }

    fn read_completions(&mut self, turn: &mut AppTurn<'_>, report: &mut TurnReport) -> Result<bool, String> {
        let mut busy = false;
        for _ in 0..BATCH_STEPS {
            let popped = self.parts.rings.completions.pop();
            let Some(slot) = popped.map_err(|fault| fault.to_string())? else {
                break;
            };
            busy = true;
            for slot in self.parts.completions.deliver(slot).into_iter().flatten() {
                self.take_completion(&slot, turn, report)?;
            }
        }
        self.parts.rings.completions.release();
        Ok(busy)
    }

    fn take_completion(
        &mut self,
        slot: &Slot,
        turn: &mut AppTurn<'_>,
        report: &mut TurnReport,
    ) -> Result<(), String> {
        let completion: Completion = of_slot(slot);
        match completion.kind {
            completion_kind::SENT => self.take_tokens(&of_slot(slot))?,
            completion_kind::SEGMENT_RETIRED => {
                self.segments.remove(&completion.call);
            }
            completion_kind::ACCEPTED => {
                let mind = Server::new(turn.service.kinds.clone(), turn.sabotage);
                let pair = completion.call as usize;
                self.insert(completion.connection, pair, AppMind::Server(Box::new(mind)));
            }
            completion_kind::GOING_AWAY => {
                if let Some(connection) = self.connections.get_mut(&completion.connection) {
                    connection.is_going_away = true;
                }
            }
            completion_kind::CLOSED => self.end(completion.connection, turn, report)?,
            completion_kind::STEP => self.take_step(&completion, turn)?,
            other => return Err(format!("a completion of the unknown kind {other}")),
        }
        Ok(())
    }

    fn take_tokens(&mut self, batch: &Batch) -> Result<(), String> {
        for token in &batch.items[..usize::from(batch.count).min(BATCH_MAX)] {
            if !self.parts.send.take_back(*token) {
                return Err(format!("token {token} came back twice"));
            }
        }
        Ok(())
    }

    /// A connection has ended: its calls must have, too.
    fn end(&mut self, number: u32, turn: &mut AppTurn<'_>, report: &mut TurnReport) -> Result<(), String> {
        let Some(mut connection) = self.connections.remove(&number) else {
            return Err(format!("connection {number} ended, and was not there"));
        };
        turn.trace.note(&[3, turn.now, connection.pair as u64]);
        report.closed.push(connection.pair);
        if let AppMind::Client(client) = &mut connection.mind {
            client.forget_unread(turn.now);
            self.totals.add(&client.totals);
        }
        match connection.mind.open_calls() {
            0 => Ok(()),
            open => Err(format!(
                "{open} calls are open on a connection that has ended: {}",
                connection.mind.describe()
            )),
        }
    }

    fn take_step(&mut self, completion: &Completion, turn: &mut AppTurn<'_>) -> Result<(), String> {
        let got = self.read(completion)?;
        if completion.block != 0 && !self.parts.completions.keeps_block() {
            self.reclaims.push(u64::from(completion.block));
        }
        let Some(connection) = self.connections.get_mut(&completion.connection) else {
            return Err(format!(
                "a step on connection {}, which is not there",
                completion.connection
            ));
        };
        let fate = turn.fates[connection.pair];
        let length = got
            .message
            .as_ref()
            .map_or(0, |(_, payload)| payload.len() as u64);
        let status = u64::from(got.status.number());
        let (pair, parts) = (connection.pair as u64, u64::from(got.parts.0));
        turn.trace
            .note(&[2, turn.now, pair, got.call, parts, status, length]);
        match &mut connection.mind {
            AppMind::Client(client) => {
                if got.parts.contains(Parts::STATUS)
                    && fate.course != ConnectionCourse::Damaged
                    && let Some(nonce) = client.nonce(got.call)
                {
                    turn.ledger.check_ended_well(nonce)?;
                }
                client.receive(&got, fate, turn.now)
            }
            AppMind::Server(server) => {
                if got.parts.contains(Parts::BEGIN)
                    && fate.course != ConnectionCourse::Damaged
                    && let Some(plan) = Plan::from_metadata(&got.metadata)
                {
                    turn.ledger.note_execution(plan.nonce);
                }
                server.receive(&got, fate, turn.now)
            }
        }
    }

    fn read(&self, completion: &Completion) -> Result<ReceivedStep, String> {
        let metadata = match completion.metadata_bytes {
            0 => Vec::new(),
            bytes => self.bytes(completion.metadata, bytes as usize)?,
        };
        let message = if completion.parts.contains(Parts::MESSAGE) {
            Some(self.read_note(completion.root)?)
        } else {
            None
        };
        let is_window = completion.parts.contains(Parts::WINDOW);
        Ok(ReceivedStep {
            call: completion.call,
            parts: completion.parts,
            method: completion.method,
            status: if is_window {
                Code::Ok
            } else {
                Code::from_number(completion.status_or_window)
            },
            window_bytes: if is_window {
                completion.status_or_window
            } else {
                completion.window_cost
            },
            metadata,
            message,
        })
    }

    fn read_note(&self, root: u32) -> Result<(u64, Vec<u8>), String> {
        let bytes = self.bytes(root, NOTE_BYTES)?;
        let (seed, at, length) = note::decode(&bytes).ok_or("a message that is cut short")?;
        let payload = match length {
            0 => Vec::new(),
            _ => self.bytes(at, length as usize)?,
        };
        Ok((seed, payload))
    }

    /// Bytes at a place of the app's window, in units of 8 bytes.
    fn bytes(&self, at: u32, count: usize) -> Result<Vec<u8>, String> {
        let unit = BLOCK_ALIGN_BYTES as u64;
        let from = u64::from(at) * unit;
        let holds = |segment: &NewSegment| {
            let begin = u64::from(segment.at) * unit;
            (begin..begin + segment.bytes).contains(&from)
        };
        let found = self.segments.values().rfind(|(segment, _)| holds(segment));
        let (segment, memfd) = found.ok_or_else(|| format!("nothing is at {at} of the receive window"))?;
        let mut bytes = vec![0; count];
        let read = memfd.read_at(from - u64::from(segment.at) * unit, &mut bytes);
        match read {
            Ok(read) if read == count => Ok(bytes),
            _ => Err(format!(
                "{count} bytes at {at} of the receive window cannot be read"
            )),
        }
    }

    fn submit(&mut self, turn: &mut AppTurn<'_>) -> Result<bool, String> {
        let mut busy = self.reclaim()?;
        let numbers: Vec<u32> = self.connections.keys().copied().collect();
        for number in numbers {
            busy |= self.act(number, turn)?;
        }
        Ok(busy)
    }

    fn reclaim(&mut self) -> Result<bool, String> {
        let mut busy = false;
        while !self.reclaims.is_empty() && self.has_room()? {
            let count = self.reclaims.len().min(BATCH_MAX);
            let mut batch = Batch {
                kind: submission_kind::RECLAIM,
                count: count as u8,
                ..Batch::default()
            };
            let items = self.reclaims.drain(..count);
            batch
                .items
                .iter_mut()
                .zip(items)
                .for_each(|(to, item)| *to = item);
            self.push(&batch)?;
            busy = true;
        }
        Ok(busy)
    }

    fn act(&mut self, number: u32, turn: &mut AppTurn<'_>) -> Result<bool, String> {
        let mut busy = false;
        if let Some(connection) = self.connections.get_mut(&number) {
            let fate = turn.fates[connection.pair];
            if let AppMind::Client(client) = &mut connection.mind
                && *turn.begun < turn.calls_max
                && !connection.is_closing
                && !connection.is_going_away
                && client.begin(*turn.begun, fate, turn.now)
            {
                *turn.begun += 1;
                busy = true;
            }
        }
        for _ in 0..BATCH_STEPS {
            if !self.has_room()? {
                break;
            }
            let Some(connection) = self.connections.get_mut(&number) else {
                break;
            };
            let Some(out) = connection.mind.next_step(turn.now) else {
                break;
            };
            let (pair, parts) = (connection.pair as u64, u64::from(out.step.parts.0));
            turn.trace.note(&[1, turn.now, pair, out.step.call, parts]);
            let submission = self.write(number, out)?;
            self.push(&submission)?;
            busy = true;
        }
        busy |= self.close(number)?;
        Ok(busy)
    }

    /// Closes a connection that is to be closed, or that carries no call and takes none any more.
    fn close(&mut self, number: u32) -> Result<bool, String> {
        let wants = self.connections.get(&number).is_some_and(|connection| {
            let is_client = matches!(connection.mind, AppMind::Client(_));
            let is_done = connection.is_going_away && connection.mind.open_calls() == 0;
            connection.is_closing || is_client && is_done
        });
        if !wants || !self.has_room()? {
            return Ok(false);
        }
        if let Some(connection) = self.connections.get_mut(&number) {
            // Said once.
            (connection.is_closing, connection.is_going_away) = (false, false);
            if let AppMind::Client(client) = &mut connection.mind {
                client.begin_no_more();
            }
        }
        self.push(&Submission {
            kind: submission_kind::CLOSE,
            connection: number,
            ..Submission::default()
        })?;
        Ok(true)
    }

    /// Writes metadata and message into the send heap, as an app library does.
    fn write(&mut self, connection: u32, out: OutgoingStep) -> Result<Submission, String> {
        let step = &out.step;
        let gives_status = step.parts.intersects(Parts::STATUS | Parts::CANCEL);
        let mut submission = Submission {
            kind: submission_kind::STEP,
            parts: step.parts,
            method: step.method,
            connection,
            call: step.call,
            status_or_window: if gives_status {
                step.status.number()
            } else {
                step.window_bytes
            },
            deadline_ns: step.deadline,
            metadata_bytes: out.metadata.len() as u32,
            ..Submission::default()
        };
        let payload = out.message.as_ref().map(|(_, payload)| payload.len());
        let message_bytes = payload.map_or(0, |bytes| NOTE_BYTES + bytes);
        if message_bytes == 0 && out.metadata.is_empty() {
            return Ok(submission);
        }
        let metadata_at = message_bytes.next_multiple_of(8);
        let block = self.parts.send.prepare(metadata_at + out.metadata.len());
        let block = block.ok_or("the send heap is full: tokens do not come back")?;
        let mut bytes = Vec::new();
        if let Some((seed, payload)) = &out.message {
            bytes = note::encode(block.at, *seed, payload);
            submission.root = block.at;
        }
        bytes.resize(metadata_at, 0);
        bytes.extend_from_slice(&out.metadata);
        if !out.metadata.is_empty() {
            submission.metadata = block.at + (metadata_at / 8) as u32;
        }
        self.parts.send.write(&block, &bytes);
        submission.token = self.parts.send.lend(block);
        Ok(submission)
    }

    fn has_room(&mut self) -> Result<bool, String> {
        let room = self.parts.rings.submissions.room();
        Ok(room.map_err(|fault| fault.to_string())? > 0)
    }

    fn push<T: IntoBytes + Immutable>(&mut self, descriptor: &T) -> Result<(), String> {
        let slot = Slot::read_from_bytes(descriptor.as_bytes()).unwrap_or_default();
        let pushed = self.parts.rings.submissions.push(&slot);
        pushed.map_err(|error| format!("a submission finds no room: {error:?}"))
    }

    /// Submits a descriptor of any bytes, as only a hostile app does.
    pub(crate) fn submit_garbage(&mut self) {
        let mut slot = [0; 8];
        slot.iter_mut().for_each(|word| *word = self.random.number());
        // A kind that exists, more often than not.
        slot[0] = (slot[0] & !0xff) | self.random.below(5);
        if self.has_room() == Ok(true) {
            let _ = self.push(&slot);
            self.parts.rings.submissions.publish();
            let _ = self.parts.service.ring();
        }
    }

    /// Whether all its memory has come back.
    pub(crate) fn check_empty(&self) -> Result<(), String> {
        match (self.parts.send.lent_blocks(), self.reclaims.len()) {
            (0, 0) => Ok(()),
            (tokens, blocks) => Err(format!("{tokens} tokens and {blocks} blocks are left")),
        }
    }

    pub(crate) fn check_deadlines(&self, now: Nanos, rested_until: Nanos) -> Result<(), String> {
        self.connections
            .values()
            .try_for_each(|connection| match &connection.mind {
                AppMind::Client(client) => client.check_deadlines(now, rested_until),
                AppMind::Server(_) => Ok(()),
            })
    }

    pub(crate) fn totals(&self) -> ClientTotals {
        let mut totals = self.totals;
        for connection in self.connections.values() {
            if let AppMind::Client(client) = &connection.mind {
                totals.add(&client.totals);
            }
        }
        totals
    }

    pub(crate) fn describe(&self) -> String {
        let describe = |(number, connection): (&u32, &AppConnection)| {
            format!(
                "connection {number} ({}): {}",
                connection.pair,
                connection.mind.describe()
            )
        };
        let all: Vec<_> = self.connections.iter().map(describe).collect();
        let state = if self.is_asleep { "asleep" } else { "awake" };
        format!("app {} is {state}: {}", self.parts.id, all.join("; "))
    }
}

impl AppConnection {
    fn wake_at(&self, begins: bool, now: Nanos) -> Option<Nanos> {
        match &self.mind {
            AppMind::Client(client) => client.wake_at(begins && !self.is_closing && !self.is_going_away),
            AppMind::Server(server) => server.wake_at(now),
        }
    }
}

impl AppMind {
    fn next_step(&mut self, now: Nanos) -> Option<OutgoingStep> {
        match self {
            AppMind::Client(client) => client.next_step(now),
            AppMind::Server(server) => server.next_step(now),
        }
    }

    pub(crate) fn open_calls(&self) -> usize {
        match self {
            AppMind::Client(client) => client.open_calls(),
            AppMind::Server(server) => server.open_calls(),
        }
    }

    fn describe(&self) -> String {
        match self {
            AppMind::Client(client) => client.describe(),
            AppMind::Server(server) => server.describe(),
        }
    }
}

fn of_slot<T: FromBytes + Default>(slot: &Slot) -> T {
    T::read_from_bytes(slot.as_bytes()).unwrap_or_default()
}
