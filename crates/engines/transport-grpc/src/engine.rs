//! The engine: its links, its calls, and how a connection ends.

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;

use provost_datapath::{
    CallHash, CallMap, ConnectionEnd, ConnectionSignals, Context, Engine, Interest, Nanos, Ports, Progress,
    SavedState, Saver, SocketHint, Step, TransportEngine,
};
use provost_grpc::{EncodingSet, RequestHead};
use provost_wire::Code;
use provost_wire::descriptor::Parts;

use crate::call::{CallEnd, CallPlace, GrpcCall, StreamPlace};
use crate::carrier::ByteCarrier;
use crate::config::{
    CONNECTIONS_MAX, DIALS_MAX, GROW_PAUSE_NS, GrpcMethod, GrpcTransportConfig, IDLE_LINK_NS, LOOK_NS,
    LOOK_NS_MAX, POLL_BYTES_MAX, READ_BYTES,
};
use crate::link::{GrpcLink, LinkLife};
use crate::link_list::LinkList;
use crate::link_watch::LinkWatch;
use crate::replies::status_block;
use crate::saved::PAIR_PLACES;

/// Links at a time, of any engine.
pub(crate) const LINKS_MAX: usize = 2 * CONNECTIONS_MAX;

thread_local! {
    /// What links read into.
    static READ: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Begins to connect to the server once more, without waiting.
pub type LinkDialer = Box<dyn FnMut(LinkPurpose) -> io::Result<Box<dyn ByteCarrier>> + Send>;

/// What another link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// It takes the place of one that takes no more calls.
    Replacement,
    /// It stands beside others that take calls, and may lead to another address of the server's name.
    Beside,
}

/// What an engine is made of.
pub struct GrpcTransportParts {
    /// The connection to the server.
    pub link: GrpcLink,
    pub dialer: LinkDialer,
    /// What a successor needs to connect to the server once more, in the form of whoever made the dialer.
    pub server: Vec<u8>,
    /// What the server is called (`:authority`).
    pub authority: String,
    /// The methods of the service, by index.
    pub methods: Arc<[GrpcMethod]>,
    pub config: GrpcTransportConfig,
    /// Where others see its links and what is counted on them.
    pub list: Arc<LinkList>,
    /// What is not a step.
    pub signals: Arc<ConnectionSignals>,
}

/// The last engine of a datapath whose peer is a gRPC server.
pub struct GrpcTransport {
    pub(crate) signals: Arc<ConnectionSignals>,
    pub(crate) config: GrpcTransportConfig,
    /// Of the call that is begun: one list of fields serves all.
    pub(crate) head: RequestHead,
    pub(crate) methods: Arc<[GrpcMethod]>,
    /// Encodings that the server takes, once it has said so.
    pub(crate) server_accepts: Option<EncodingSet>,
    pub(crate) list: Arc<LinkList>,
    /// What a successor needs to connect to the server once more.
    pub(crate) server: Vec<u8>,
    pub(crate) dialer: LinkDialer,
    pub(crate) dials_left: u32,
    /// As many places as [`GrpcTransportConfig::link_places`] says.
    pub(crate) links: Vec<Option<GrpcLink>>,
    /// What watches all of them, where there may be several.
    pub(crate) watch: Option<LinkWatch>,
    /// From when on another link may be opened beside those that take calls.
    grows_at: Nanos,
    pub(crate) calls: CallMap<GrpcCall>,
    pub(crate) streams: HashMap<StreamPlace, u64, CallHash>,
    /// Calls without a stream, in their order.
    pub(crate) waiting: VecDeque<u64>,
    pub(crate) waiting_deadlines: BTreeSet<(Nanos, u64)>,
    /// Calls of which the app is to be told something.
    pub(crate) ready: VecDeque<u64>,
    /// Ends of calls that never began.
    pub(crate) refusals: VecDeque<Step>,
    pub(crate) held_cost: usize,
    pub(crate) replay_cost: usize,
    pub(crate) stage: TransportStage,
    /// When no more calls are to begin on it; none if that is said already, or never is.
    pub(crate) old_at: Option<Nanos>,
    /// Why the last link ended.
    pub(crate) last_end: String,
    /// Whether reading waits for room towards the app.
    is_stopped: bool,
    pub(crate) looked_at: Nanos,
    /// After how long the link that is not watched is looked at again.
    look_gap: Nanos,
    pub(crate) now: Nanos,
}

/// How far the engine has come.
///
/// ```text
/// Open ──► Ending (the app is told of the end of each of its calls) ──► Ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportStage {
    Open,
    Ending,
    Ended,
}

impl GrpcTransport {
    /// The engine of a connection without calls.
    #[must_use]
    pub fn new(parts: GrpcTransportParts, now: Nanos) -> GrpcTransport {
        let link = parts.link;
        let mut transport = GrpcTransport {
            signals: parts.signals,
            config: parts.config,
            head: RequestHead {
                authority: Some(parts.authority),
                ..RequestHead::new("")
            },
            methods: parts.methods,
            server_accepts: None,
            list: parts.list,
            server: parts.server,
            dialer: parts.dialer,
            dials_left: DIALS_MAX,
            links: empty_places(&parts.config),
            watch: LinkWatch::of(&parts.config),
            grows_at: 0,
            calls: CallMap::default(),
            streams: HashMap::default(),
            waiting: VecDeque::new(),
            waiting_deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
            held_cost: 0,
            replay_cost: 0,
            stage: TransportStage::Open,
            old_at: parts.config.old_at(now),
            last_end: String::new(),
            is_stopped: false,
            looked_at: now,
            look_gap: LOOK_NS,
            now,
        };
        transport.put_link(0, link);
        transport
    }

    /// Puts a link in its place, and has it listed and watched.
    pub(crate) fn put_link(&mut self, at: usize, mut link: GrpcLink) {
        link.grpc.count_in(self.list.add(at, link.carrier.socket()));
        if let Some(watch) = &self.watch {
            watch.add(at, &link);
        }
        self.links[at] = Some(link);
    }

    fn forget_link(&mut self, at: usize) {
        self.list.remove(at);
        self.links[at] = None;
    }

    /// An engine without a link, whose calls have ended.
    pub(crate) fn ended(signals: Arc<ConnectionSignals>) -> GrpcTransport {
        GrpcTransport {
            signals,
            config: GrpcTransportConfig::default(),
            head: RequestHead::new(""),
            methods: Arc::from([]),
            server_accepts: None,
            list: Arc::default(),
            server: Vec::new(),
            dialer: Box::new(|_| Err(io::ErrorKind::Unsupported.into())),
            dials_left: 0,
            links: Vec::new(),
            watch: None,
            grows_at: 0,
            calls: CallMap::default(),
            streams: HashMap::default(),
            waiting: VecDeque::new(),
            waiting_deadlines: BTreeSet::new(),
            ready: VecDeque::new(),
            refusals: VecDeque::new(),
            held_cost: 0,
            replay_cost: 0,
            stage: TransportStage::Ending,
            old_at: None,
            last_end: String::new(),
            is_stopped: false,
            looked_at: 0,
            look_gap: LOOK_NS,
            now: 0,
        }
    }

    fn work_open(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut moved = self.keep_time();
        moved |= self.deliver(ports, context);
        moved |= self.take_steps(ports, context);
        moved |= self.open_waiting();
        moved |= self.move_bytes(ports, context);
        if ports.rx_out.is_full() {
            // It is the app that is behind: what servers have answered is not read.
            let links = self.links.iter_mut().flatten();
            links.for_each(|link| link.grpc.note_unread(context.now));
        }
        moved |= self.judge_servers();
        moved |= self.open_waiting();
        moved |= self.deliver(ports, context);
        moved |= self.end_links();
        if context.flow.is_limited() {
            context.flow.unsent_bytes = self.unsent_bytes();
        }
        self.conclude(ports, context);
        progress(moved || self.stage != TransportStage::Open)
    }

    /// A connection of the greatest age goes on as one whose server has said GOAWAY.
    fn grow_old(&mut self) -> bool {
        let is_old = self.old_at.is_some_and(|old_at| old_at <= self.now);
        if is_old {
            self.old_at = None;
            let links = self.links.iter_mut().flatten();
            links.for_each(|link| link.is_draining = true);
            self.signals.set_peer_drains();
        }
        is_old
    }

    /// The age of connections, and deadlines of calls.
    fn keep_time(&mut self) -> bool {
        let mut moved = self.grow_old();
        while let Some((deadline, id)) = self.waiting_deadlines.first().copied()
            && deadline <= self.now
        {
            self.waiting_deadlines.pop_first();
            moved = true;
            self.end_call(id, Code::DeadlineExceeded, "the deadline of the call has passed");
        }
        let (config, now) = (&self.config, self.now);
        let links = self.links.iter_mut().flatten();
        links.for_each(|link| link.keep_alive(config, now));
        moved |= self.close_spare_links();
        moved
    }

    /// What HTTP/2 waits for no longer. What has come is read before: it may have waited while this process did not run.
    fn judge_servers(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.links.len() {
            let Some(link) = &mut self.links[at] else { continue };
            if !link.is_due(self.now) {
                continue;
            }
            moved = true;
            if let Err(error) = link.grpc.on_time(self.now) {
                link.close(&error.to_string());
            }
            self.take_input(at, &[]);
        }
        moved
    }

    /// Writes and reads what the links can.
    fn move_bytes(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let is_due = self.now >= self.looked_at.saturating_add(self.look_gap);
        let watched = self.watched();
        let (mut moved, mut moved_unwatched) = (false, false);
        self.is_stopped = false;
        if context.socket == SocketHint::Try
            && let Some(watch) = &self.watch
        {
            watch.note_ready(&mut self.links);
        }
        for at in 0..self.links.len() {
            let Some(link) = &mut self.links[at] else { continue };
            let is_hinted = context.socket == SocketHint::Try && self.watch.is_none();
            if is_hinted || (Some(at) != watched && is_due) || link.is_due(self.now) {
                link.look();
            }
            let mut moved_here = self.write(at, context.flow.turn_bytes);
            moved_here |= self.read(at, context.flow.turn_bytes, ports, context);
            moved_here |= self.write(at, context.flow.turn_bytes);
            moved |= moved_here;
            moved_unwatched |= moved_here && Some(at) != watched;
        }
        if moved_unwatched {
            self.look_gap = LOOK_NS;
        } else if is_due {
            self.look_gap = (2 * self.look_gap).min(LOOK_NS_MAX);
        }
        if is_due || moved_unwatched {
            self.looked_at = self.now;
        }
        moved
    }

    fn write(&mut self, at: usize, turn_bytes: u32) -> bool {
        let bytes_max = POLL_BYTES_MAX.min(turn_bytes as usize);
        let mut written = 0;
        loop {
            let now = self.now;
            let Some(link) = &mut self.links[at] else { break };
            if !link.is_writable || link.ended().is_some() || written >= bytes_max {
                break;
            }
            match link.write(now) {
                0 => break,
                bytes => written += bytes,
            }
            link.has_room = true;
            // Streams that have room again are among the events.
            self.take_input(at, &[]);
        }
        if let Some(link) = &mut self.links[at]
            && link.is_open()
        {
            // What is left goes in the next round.
            link.grpc.fill(self.now);
        }
        written > 0
    }

    fn read(&mut self, at: usize, turn_bytes: u32, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let bytes_max = POLL_BYTES_MAX.min(turn_bytes as usize);
        let mut bytes = READ.take();
        bytes.resize(READ_BYTES, 0);
        let mut read = self.take_kept_input(at);
        while read < bytes_max {
            let now = self.now;
            self.deliver(ports, context);
            let Some(link) = self.links[at].as_mut().filter(|link| link.may_read()) else {
                break;
            };
            if ports.rx_out.is_full() {
                // It is the app that is behind.
                self.is_stopped = true;
                break;
            }
            let count = link.read(&mut bytes, now);
            read += count;
            self.take_input(at, &bytes[..count]);
            if count == 0 {
                break;
            }
        }
        READ.set(bytes);
        read > 0
    }

    /// Takes what was kept until output has left.
    fn take_kept_input(&mut self, at: usize) -> usize {
        let Some(link) = &mut self.links[at] else { return 0 };
        if link.input.is_empty() || link.grpc.is_blocked() {
            return 0;
        }
        let input = std::mem::take(&mut link.input);
        self.take_input(at, &input);
        let left = self.links[at].as_ref().map_or(0, |link| link.input.len());
        input.len() - left
    }

    /// Gives a link bytes that have come, and does what they say.
    pub(crate) fn take_input(&mut self, at: usize, input: &[u8]) {
        let mut taken = 0;
        loop {
            let now = self.now;
            let Some(link) = &mut self.links[at] else { return };
            match link.grpc.receive(&input[taken..], now) {
                Ok(received) => {
                    taken += received.consumed;
                    let Some(event) = received.event else {
                        link.input.extend_from_slice(&input[taken..]);
                        return;
                    };
                    self.on_event(at, event);
                }
                Err(error) => {
                    link.close(&format!("the server broke a rule of HTTP/2: {error}"));
                    return;
                }
            }
        }
    }

    /// The link that the runtime watches: that of new calls.
    fn watched(&self) -> Option<usize> {
        let is_new = |link: &Option<GrpcLink>| link.as_ref().is_some_and(|link| !link.is_draining);
        let newest = self.links.iter().position(is_new);
        newest.or_else(|| self.links.iter().position(Option::is_some))
    }

    /// The link on which the next call begins: of those that take calls the one with the fewest.
    fn link_with_room(&self) -> Option<usize> {
        let links = self.links.iter().enumerate();
        let takes = links.filter_map(|(at, link)| Some((at, link.as_ref().filter(|link| link.has_room)?)));
        let takes = takes.filter(|(_, link)| link.takes_calls());
        let fewest = takes.min_by_key(|(_, link)| link.grpc.open_calls());
        fewest.map(|(at, _)| at)
    }

    /// The link on which a call that waits begins, opened if need be; none if it has to wait.
    ///
    /// # Errors
    /// No link takes calls and none can be opened, and why.
    pub(crate) fn link_of_new_calls(&mut self) -> Result<Option<usize>, String> {
        if let Some(at) = self.link_with_room() {
            return Ok(Some(at));
        }
        let takes = |link: &&GrpcLink| link.takes_calls();
        match self.links.iter().flatten().filter(takes).count() {
            0 => self.open_link().map(Some),
            several => {
                self.grow(several);
                Ok(None)
            }
        }
    }

    /// Opens another link beside those that take calls and have no room, one at a time. Calls begin there once its server has said how
    /// many it takes.
    fn grow(&mut self, taking: usize) {
        let mut taking_links = self.links.iter().flatten().filter(|link| link.takes_calls());
        let are_full = taking_links.all(|link| link.is_full && !link.awaits_settings);
        let ends = self.signals.close_requested() || self.signals.peer_drains();
        if taking >= self.config.connections_max || !are_full || ends || self.now < self.grows_at {
            return;
        }
        // One that ends before it was of use has the next one wait.
        self.grows_at = self.now.saturating_add(GROW_PAUSE_NS);
        let Some(at) = self.links.iter().position(Option::is_none) else {
            return;
        };
        // Calls go on with the links that there are.
        if let Ok(mut link) = self.dial(LinkPurpose::Beside) {
            link.awaits_settings = true;
            self.put_link(at, link);
        }
    }

    fn dial(&mut self, purpose: LinkPurpose) -> io::Result<GrpcLink> {
        let link = GrpcLink::new((self.dialer)(purpose)?, &self.config, self.now);
        self.look_gap = LOOK_NS;
        Ok(link)
    }

    /// A link that was opened beside others is of use.
    pub(crate) fn on_settings(&mut self, at: usize) {
        if let Some(link) = &mut self.links[at] {
            self.list.meet(at, link.carrier.socket());
            link.has_settings = true;
            link.has_room = true;
            if std::mem::take(&mut link.awaits_settings) {
                self.grows_at = self.now;
            }
        }
    }

    /// Of restored links: one that was opened beside another takes calls once its server has said how many.
    pub(crate) fn await_settings_of_further_links(&mut self) {
        let mut links = self.links.iter().flatten();
        if links.any(|link| link.takes_calls() && link.has_settings) {
            let links = self.links.iter_mut().flatten();
            links.for_each(|link| link.awaits_settings = !link.has_settings);
        }
    }

    /// Of several links on which calls begin the one that has had none for longest, and when it is closed for that; none where all have
    /// calls.
    fn spare_link(&self) -> Option<(Nanos, usize)> {
        if self.links.len() <= PAIR_PLACES {
            return None;
        }
        let links = self.links.iter().enumerate();
        let links = links.filter_map(|(at, link)| Some((at, link.as_ref()?)));
        let taking = links.filter(|(_, link)| link.takes_calls());
        if taking.clone().count() <= 1 {
            return None;
        }
        let idle = taking.filter(|(_, link)| link.grpc.open_calls() == 0);
        let due = idle.map(|(at, link)| (link.used_at.saturating_add(IDLE_LINK_NS), at));
        due.min()
    }

    /// Closes links that the calls do not need any more; the last one stays.
    fn close_spare_links(&mut self) -> bool {
        let mut moved = false;
        while let Some((due, at)) = self.spare_link()
            && due <= self.now
            && let Some(link) = &mut self.links[at]
        {
            link.is_draining = true;
            moved = true;
        }
        moved
    }

    /// Opens another link for calls that wait, if one may be had.
    ///
    /// # Errors
    /// None can, and why.
    fn open_link(&mut self) -> Result<usize, String> {
        let Some(at) = self.links.iter().position(Option::is_none) else {
            return Err("the server takes no more calls on this connection".to_owned());
        };
        if self.dials_left == 0 || self.signals.close_requested() {
            let because = match self.last_end.as_str() {
                "" => "the server takes no more calls on this connection",
                reason => reason,
            };
            return Err(because.to_owned());
        }
        self.dials_left -= 1;
        let link = self.dial(LinkPurpose::Replacement);
        let link = link.map_err(|error| format!("the server was not reached again: {error}"))?;
        self.put_link(at, link);
        Ok(at)
    }

    /// Forgets links that have ended; calls that they had are told.
    fn end_links(&mut self) -> bool {
        let mut moved = false;
        for at in 0..self.links.len() {
            let Some(link) = &mut self.links[at] else { continue };
            link.conclude(self.now);
            let Some(reason) = link.ended().map(str::to_owned) else {
                continue;
            };
            self.last_end = reason;
            self.take_input(at, &[]);
            self.forget_link(at);
            moved = true;
        }
        moved
    }

    /// Bytes of messages that were given to this engine and that no carrier has taken.
    fn unsent_bytes(&self) -> u32 {
        let pending = self.calls.values().map(|call| call.pending_cost).sum::<u64>();
        let streams = self.streams.keys().filter_map(|place| {
            let link = self.links[place.link].as_ref()?;
            link.grpc.queued_bytes(place.stream)
        });
        let links = self.links.iter().flatten().map(|link| link.grpc.output_bytes());
        let queued: usize = streams.chain(links).sum();
        u32::try_from(pending + queued as u64).unwrap_or(u32::MAX)
    }

    /// Ends the connection if it has been asked for, or nothing is left of it.
    fn conclude(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) {
        let left = self.held_cost + self.replay_cost + self.streams.len() + self.waiting.len();
        debug_assert!(
            !self.calls.is_empty() || left == 0,
            "what calls hold goes with them"
        );
        let drains = self.signals.drain_requested() || self.signals.peer_drains();
        // An engine before this one may hold calls that are still to be sent: for them a link can be opened.
        let awaits_calls = drains && context.flow.calls > 0 && self.dials_left > 0;
        if self.links.iter().all(Option::is_none) && self.waiting.is_empty() && !awaits_calls {
            let reason = std::mem::take(&mut self.last_end);
            let code = if drains { Code::Ok } else { Code::Unavailable };
            return self.finish(code, &reason);
        }
        if !ports.tx_in.is_empty() {
            return;
        }
        if self.signals.close_requested() {
            return self.finish(Code::Ok, "the connection was closed by this node");
        }
        if drains && self.calls.is_empty() && self.refusals.is_empty() && context.flow.calls == 0 {
            self.finish(Code::Ok, "the connection was drained");
        }
    }

    /// Ends all calls and the connection.
    fn finish(&mut self, own_code: Code, reason: &str) {
        let ids: Vec<u64> = self.calls.keys().copied().collect();
        for id in ids {
            if self.calls.get(&id).is_some_and(|call| call.end.is_none()) {
                self.end_call(id, Code::Unavailable, reason);
            }
        }
        for at in 0..self.links.len() {
            let now = self.now;
            if let Some(link) = &mut self.links[at] {
                link.grpc.drain(now);
                // What the socket does not take is missed by nobody: no call is left.
                link.write(now);
                link.life = LinkLife::Ended(reason.to_owned());
            }
            self.forget_link(at);
        }
        self.signals.set_ended(ConnectionEnd {
            code: own_code,
            reason: reason.to_owned(),
        });
        self.stage = TransportStage::Ending;
    }

    /// Tells the app of the end of each of its calls, and refuses what it still begins.
    fn work_ending(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> Progress {
        let mut moved = self.deliver(ports, context);
        while self.refusals.is_empty()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            let reason = self.signals.ended().map(|end| end.reason.clone());
            let reason = reason.unwrap_or_default();
            if self.calls.contains_key(&step.call) {
                self.take_step(step, context);
            } else {
                self.refuse(step, Code::Unavailable, &reason, context);
            }
            self.deliver(ports, context);
        }
        if self.calls.is_empty() && self.refusals.is_empty() && ports.tx_in.is_empty() {
            self.stage = TransportStage::Ended;
            return Progress::Ended;
        }
        progress(moved)
    }

    /// Ends a call at this end's initiative: the server, if it knows of it, and the app are told.
    pub(crate) fn end_call(&mut self, id: u64, code: Code, reason: &str) {
        let status = provost_grpc::GrpcStatus::new(code, reason);
        self.leave_stream(id, Code::Cancelled);
        self.drop_arrivals(id);
        self.end_with(id, Parts::CANCEL, code, status_block(&status, &[]));
    }

    /// A call is over; the app is told behind what it is to be told before.
    pub(crate) fn end_with(&mut self, id: u64, parts: Parts, status: Code, metadata: Vec<u8>) {
        self.leave_stream(id, Code::Cancelled);
        self.forget_replay(id);
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        call.place = CallPlace::Over;
        call.outgoing = VecDeque::new();
        call.pending_cost = 0;
        call.metadata = Vec::new();
        if call.end.is_none() {
            call.end = Some(CallEnd {
                parts,
                status,
                metadata,
            });
        }
        self.note_ready(id);
    }

    /// Takes a call from where it is: from the queue, or from its stream, whose server is told this code.
    pub(crate) fn leave_stream(&mut self, id: u64, code: Code) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        match std::mem::replace(&mut call.place, CallPlace::Over) {
            CallPlace::Waiting => {
                self.waiting_deadlines.remove(&(call.deadline, id));
                if self.waiting.front() == Some(&id) {
                    self.waiting.pop_front();
                } else {
                    self.waiting.retain(|waiting| *waiting != id);
                }
            }
            CallPlace::Open(place) => {
                self.streams.remove(&place);
                if let Some(link) = &mut self.links[place.link] {
                    link.has_room = true;
                    // It may have ended by itself.
                    let _ = link.grpc.cancel(place.stream, code, self.now);
                }
            }
            CallPlace::Over => {}
        }
    }

    pub(crate) fn drop_arrivals(&mut self, id: u64) {
        if let Some(call) = self.calls.get_mut(&id) {
            self.held_cost -= call.drop_arrivals();
        }
    }

    pub(crate) fn forget_replay(&mut self, id: u64) {
        if let Some(call) = self.calls.get_mut(&id) {
            self.replay_cost -= std::mem::take(&mut call.replay_cost);
            call.replay = None;
        }
    }

    pub(crate) fn note_ready(&mut self, id: u64) {
        if let Some(call) = self.calls.get_mut(&id)
            && !call.is_ready
        {
            call.is_ready = true;
            self.ready.push_back(id);
        }
    }
}

pub(crate) fn empty_places(config: &GrpcTransportConfig) -> Vec<Option<GrpcLink>> {
    std::iter::repeat_with(|| None)
        .take(config.link_places())
        .collect()
}

fn progress(moved: bool) -> Progress {
    if moved { Progress::Busy } else { Progress::Idle }
}

impl Engine for GrpcTransport {
    fn kind(&self) -> &'static str {
        crate::KIND
    }

    fn do_work(&mut self, mut ports: Ports<'_>, context: &mut Context<'_>) -> Progress {
        self.now = context.now;
        match self.stage {
            TransportStage::Open => self.work_open(&mut ports, context),
            TransportStage::Ending => self.work_ending(&mut ports, context),
            TransportStage::Ended => Progress::Ended,
        }
    }

    fn wake_at(&self) -> Option<Nanos> {
        if self.stage != TransportStage::Open {
            return None;
        }
        let links = self.links.iter().flatten();
        let due = links.clone().filter_map(|link| link.grpc.next_timeout()).min();
        let waiting = self.waiting_deadlines.first().map(|(deadline, _)| *deadline);
        let looks = links.count() > 1 && self.watch.is_none();
        let look = looks.then(|| self.looked_at.saturating_add(self.look_gap));
        let grows = (!self.waiting.is_empty() && self.grows_at > self.now).then_some(self.grows_at);
        let spare = self.spare_link().map(|(due, _)| due);
        [due, waiting, look, grows, spare, self.old_at]
            .into_iter()
            .flatten()
            .min()
    }

    fn save(&self, saver: &mut dyn Saver) -> SavedState {
        self.saved(saver)
    }

    fn as_transport(&self) -> Option<&dyn TransportEngine> {
        Some(self)
    }
}

impl TransportEngine for GrpcTransport {
    fn interest(&self) -> Option<Interest> {
        if let Some(watch) = &self.watch {
            return (!self.is_stopped).then(|| watch.interest());
        }
        let link = self.links[self.watched()?].as_ref()?;
        let write = link.waits_for_room();
        // While the app is behind, what the socket has does not matter.
        let read = !self.is_stopped && link.input.is_empty();
        (read || write).then(|| Interest {
            socket: link.carrier.socket().as_raw_fd(),
            write,
        })
    }

    /// Those of the links, if a successor can go on with them. One that cannot by its version closes them.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.carried_sockets().unwrap_or_default()
    }
}
