//! The thread's loop.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use provost_datapath::{BufferPool, Nanos, Step};
use provost_frontend::{AppFault, AppRequest, NotPushed, Notice};
use provost_ring::{AdaptiveSpin, ContentionBackoff, TURN_NS, YieldPace};
use provost_shm::{Doorbell, Interest, Wait};

use crate::blocked_steps::BlockedSteps;
use crate::caller_port::CallerPort;
use crate::command::{NewApp, NewConnection, RuntimeCommand};
use crate::events::{EventQueue, EventSink, RuntimeEvent};
use crate::frozen::FrozenOrder;
use crate::ids::{AppId, ConnectionId, WaitMode};
use crate::inbox::CommandInbox;
use crate::mutation::Mutation;
use crate::numbered_slots::NumberedSlots;
use crate::orders::ReconfigureOrder;
use crate::platform::{RuntimePlatform, WatchedSource};
use crate::poll_token::{KIND_APP, KIND_INBOX, KIND_PATH, KIND_SHIFT, token};
use crate::polled_app::PolledApp;
use crate::polled_datapath::{PolledDatapath, submit, submit_blocked, sync_watch};
use crate::time_spent::RoundOutcome;
use crate::timers::{BLOCKED_RETRY_NS, TimerQueue, add_timer};
use crate::{RuntimeCounters, RuntimeOptions};

/// Submissions of one app that a round takes, at most.
pub(crate) const BATCH_SUBMISSIONS: usize = 64;
/// While at most so many polled datapaths have sockets, each round tries each of them; past it, the poller says which.
const SOCKETS_TRIED_MAX: usize = 4;
/// Rounds between two looks at the poller while something is polled.
const ROUNDS_PER_POLL: u32 = 16;
/// How often an app's port is looked after while the app is active.
const MAINTENANCE_NS: Nanos = 1_000_000_000;
/// Polls in which a datapath whose transport has ended comes to its own end, unless the app's ring is full.
const POLLS_TO_END_MAX: usize = 6;

/// What polls the apps and datapaths of one runtime. Its thread, or a simulator, drives it from step to step.
pub struct RuntimeWorker<P: RuntimePlatform> {
    pub(crate) inbox: Arc<CommandInbox>,
    doorbell: Doorbell,
    pub(crate) options: RuntimeOptions,
    pub(crate) events: EventQueue,
    pub(crate) platform: P,
    pub(crate) buffers: BufferPool,
    pub(crate) apps: NumberedSlots<PolledApp>,
    pub(crate) app_numbers: HashMap<AppId, u32>,
    pub(crate) paths: NumberedSlots<PolledDatapath>,
    pub(crate) path_numbers: HashMap<ConnectionId, u32>,
    /// Datapaths that are to be changed; as many as the inbox holds are taken from it at a time.
    pub(crate) reconfigurations: VecDeque<ReconfigureOrder>,
    /// Apps and datapaths that every round polls.
    pub(crate) hot_apps: Vec<u32>,
    pub(crate) hot_paths: Vec<u32>,
    /// The last round has copied as much of messages as a round may.
    is_copying_much: bool,
    /// Apps whose ports were written to in this round.
    pub(crate) touched: Vec<u32>,
    pub(crate) timers: TimerQueue,
    pub(crate) now: Nanos,
    rounds_to_poll: u32,
    /// Whether nothing is polled without work for now, as others want the core.
    contention_backoff: ContentionBackoff,
    yield_pace: YieldPace,
    /// When this worker slept or gave its core away last.
    turn_began: Nanos,
    counters: RuntimeCounters,
    /// How the last round went.
    round: RoundOutcome,
    /// When the last sleep began.
    slept_from: Nanos,
    /// Sleep in this round.
    slept_ns: Nanos,
    pub(crate) state: WorkerState,
}

/// Whether a worker polls.
///
/// ```text
/// Running ──Freeze──► Frozen ──FrozenRuntime::leave──► Stopped
///    ▲  │                │                                ▲
///    └──│──dropped───────┘                                │
///       └──────────────────────────Stop───────────────────┘
/// ```
pub(crate) enum WorkerState {
    Running,
    /// Orders come from the [`FrozenRuntime`](crate::FrozenRuntime).
    Frozen(Receiver<FrozenOrder>),
    Stopped,
}

/// What is to be done between two polls of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    Poll,
    /// Let other threads run: nothing moved, but something may soon; or much has, one round after the other.
    Yield,
    /// Sleep ([`RuntimeWorker::sleep`]): whoever has something to do rings.
    Sleep(Wait),
    /// Wait until the [`FrozenRuntime`](crate::FrozenRuntime) orders something, or is dropped.
    AwaitOrder,
    Stop,
}

impl<P: RuntimePlatform> RuntimeWorker<P> {
    pub(crate) fn new(
        inbox: Arc<CommandInbox>,
        doorbell: Doorbell,
        mut platform: P,
        options: RuntimeOptions,
        events: Box<dyn EventSink>,
        counters: RuntimeCounters,
    ) -> io::Result<RuntimeWorker<P>> {
        platform.watch(
            WatchedSource::Doorbell(&doorbell),
            token(KIND_INBOX, 0),
            Interest::Readable,
        )?;
        let now = platform.now_ns();
        Ok(RuntimeWorker {
            inbox,
            doorbell,
            options,
            events: EventQueue::new(events),
            platform,
            buffers: BufferPool::new(),
            apps: NumberedSlots::new(),
            app_numbers: HashMap::new(),
            paths: NumberedSlots::new(),
            path_numbers: HashMap::new(),
            reconfigurations: VecDeque::new(),
            hot_apps: Vec::new(),
            hot_paths: Vec::new(),
            is_copying_much: false,
            touched: Vec::new(),
            timers: TimerQueue::new(),
            now,
            rounds_to_poll: ROUNDS_PER_POLL,
            contention_backoff: ContentionBackoff::default(),
            yield_pace: YieldPace::default(),
            turn_began: now,
            counters,
            round: RoundOutcome::Polling,
            slept_from: now,
            slept_ns: 0,
            state: WorkerState::Running,
        })
    }

    /// Does as its steps say until it has stopped: what the runtime's own thread runs.
    pub(crate) fn run(mut self) {
        loop {
            match self.poll_once() {
                NextStep::Poll => {}
                NextStep::Yield => self.yield_core(),
                NextStep::Sleep(wait) => self.sleep(wait),
                NextStep::AwaitOrder => self.await_order(),
                NextStep::Stop => return,
            }
        }
    }

    /// Polls everything that is active once, and says what is to be done before the next time.
    pub fn poll_once(&mut self) -> NextStep {
        match self.state {
            WorkerState::Running => self.poll_round(),
            WorkerState::Frozen(_) => self.take_order(),
            WorkerState::Stopped => NextStep::Stop,
        }
    }

    fn poll_round(&mut self) -> NextStep {
        let began = std::mem::replace(&mut self.now, self.platform.now_ns());
        let awake_ns = self
            .now
            .saturating_sub(began + std::mem::take(&mut self.slept_ns));
        self.counters.spent.add(self.round, awake_ns);
        self.counters.traffic.end_round(self.now);
        let mut busy = self.inbox.gate.take_pending() && self.take_inbox();
        match self.state {
            WorkerState::Running => {}
            // Not one poll more: another process may go on with what is here.
            WorkerState::Frozen(_) => return NextStep::AwaitOrder,
            WorkerState::Stopped => return NextStep::Stop,
        }
        busy |= self.fire_timers();
        busy |= self.poll_apps();
        busy |= self.poll_paths();
        busy |= self.reconfigure_some();
        self.flush();
        self.events.flush();
        if busy {
            self.round = RoundOutcome::Busy;
            self.glance();
            return if self.now.saturating_sub(self.turn_began) > TURN_NS {
                self.let_others_run()
            } else {
                NextStep::Poll
            };
        }
        self.round = RoundOutcome::Polling;
        self.rest()
    }

    /// Nothing moved in this round: puts aside what has been quiet for long, and sleeps if nothing else is left.
    fn rest(&mut self) -> NextStep {
        self.demote();
        if !(self.hot_apps.is_empty() && self.hot_paths.is_empty() && self.may_sleep()) {
            self.glance();
            return self.let_others_run();
        }
        if !self.inbox.gate.prepare_sleep() {
            return NextStep::Poll;
        }
        self.slept_from = self.platform.now_ns();
        self.counters.spent.add_sleep();
        NextStep::Sleep(match self.timers.next() {
            None if self.events.is_empty() => Wait::Forever,
            None => Wait::AtMost(BLOCKED_RETRY_NS),
            Some(at) => Wait::AtMost(at.saturating_sub(self.slept_from)),
        })
    }

    /// Gives the core away unless a stranger would keep it: the kernel takes it away soon enough then.
    fn let_others_run(&self) -> NextStep {
        if self.contention_backoff.is_contended(self.now) {
            NextStep::Poll
        } else {
            NextStep::Yield
        }
    }

    /// Sleeps after [`NextStep::Sleep`] until something is ready, or for as long as `wait` says. Whoever lets time pass
    /// otherwise calls it with [`Wait::Now`] when the sleep is over.
    pub fn sleep(&mut self, wait: Wait) {
        self.poll_events(wait);
        self.turn_began = self.platform.now_ns();
        self.slept_ns = self.turn_began.saturating_sub(self.slept_from);
        self.inbox.gate.awake();
    }

    /// Gives the core away after [`NextStep::Yield`], unless nobody has wanted it of late.
    pub fn yield_core(&mut self) {
        if !self.yield_pace.is_due(self.now) {
            return;
        }
        self.platform.begin_polling();
        let given_away_at = self.platform.now_ns();
        self.platform.yield_core();
        let back_at = self.platform.now_ns();
        self.turn_began = back_at;
        self.yield_pace = self.yield_pace.after_yield(given_away_at, back_at);
        if let Some(contention_backoff) = self.contention_backoff.after_yield(given_away_at, back_at) {
            self.contention_backoff = contention_backoff;
            if contention_backoff.is_contended(back_at) {
                self.platform.end_polling();
            }
        }
    }

    /// The machine on which it runs.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// See [`RuntimeWorker::platform`].
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Apps of whose receive heaps blocks are live, with the app or on their way to it.
    pub fn apps_with_blocks(&self) -> impl Iterator<Item = AppId> {
        let apps = self.apps.iter().map(|(_, app)| app);
        apps.filter(|app| app.port.has_blocks()).map(|app| app.id)
    }

    fn may_sleep(&self) -> bool {
        self.options.waiting == WaitMode::Sleeps
    }

    /// Looks at the poller now and then while something is polled; always when it alone knows which sockets are ready.
    fn glance(&mut self) {
        self.rounds_to_poll -= 1;
        if self.rounds_to_poll == 0 || self.hot_paths.len() > SOCKETS_TRIED_MAX {
            self.rounds_to_poll = ROUNDS_PER_POLL;
            self.poll_events(Wait::Now);
        }
    }

    fn poll_events(&mut self, wait: Wait) {
        let (apps, paths) = (&mut self.apps, &mut self.paths);
        let (hot_apps, hot_paths) = (&mut self.hot_apps, &mut self.hot_paths);
        let doorbell = &self.doorbell;
        self.platform.wait(wait, |token, woken_at| {
            let number = token as u32;
            match token >> KIND_SHIFT {
                KIND_APP => {
                    if let Some(app) = apps.get_mut(number) {
                        app.port.note_ready();
                        // A socket's event may be stale, as below.
                        if !app.is_hot || app.port.app().is_some() {
                            app.heat(number, hot_apps, woken_at);
                        }
                    }
                }
                KIND_PATH => {
                    if let Some(path) = paths.get_mut(number) {
                        path.socket_ready = true;
                        // What is watched for one that is polled may be stale, and ready for ever: that is no work.
                        if !path.is_hot || Mutation::EndlessPolling.is_active() {
                            path.heat(number, hot_paths, woken_at);
                        }
                    }
                }
                _ => {
                    let _ = doorbell.drain();
                }
            }
        });
    }
}

// Commands and wake-ups.
impl<P: RuntimePlatform> RuntimeWorker<P> {
    fn take_inbox(&mut self) -> bool {
        while let Some(number) = self.inbox.pop_woken() {
            self.wake_path(number);
        }
        if self.inbox.take_all_woken() {
            for number in 0..self.paths.bound() {
                self.wake_path(number);
            }
        }
        while let Some(command) = self.inbox.pop_command() {
            match command {
                RuntimeCommand::Attach(app) => self.attach(*app),
                RuntimeCommand::AttachCaller(caller) => self.attach_caller(*caller),
                RuntimeCommand::AnswerService(answer) => self.answer_service(*answer),
                RuntimeCommand::AnswerNodeCall(answer) => self.answer_node_call(*answer),
                RuntimeCommand::DrainCaller(app) => self.drain_caller(app),
                RuntimeCommand::EndCaller(ending) => self.end_caller(&ending),
                RuntimeCommand::Detach(app) => self.detach(app),
                RuntimeCommand::Open(connection) => self.open(*connection),
                RuntimeCommand::Reconfigure(reconfigure) => self.reconfigurations.push_back(*reconfigure),
                RuntimeCommand::Describe(describe) => self.describe(*describe),
                RuntimeCommand::RegionMapped { app, generation } => self.region_mapped(app, generation),
                RuntimeCommand::Freeze(frozen) => {
                    self.freeze(frozen);
                    // What else there is waits until it goes on.
                    return true;
                }
                RuntimeCommand::Adopt(apps) => self.adopt(*apps),
                RuntimeCommand::Stop => self.state = WorkerState::Stopped,
            }
        }
        true
    }

    fn wake_path(&mut self, number: u32) {
        if let Some(path) = self.paths.get_mut(number) {
            path.waker.take();
            path.heat(number, &mut self.hot_paths, self.now);
        }
    }

    pub(crate) fn attach(&mut self, new: NewApp) {
        let port = CallerPort::of_app(new.port, new.doorbell);
        self.attach_port(new.app, port, new.waiting);
    }

    pub(crate) fn attach_port(&mut self, id: AppId, port: CallerPort, waiting: WaitMode) {
        let app = PolledApp {
            id,
            port,
            waiting,
            connections: Vec::new(),
            free_places: Vec::new(),
            blocked: BlockedSteps::default(),
            last_work: self.now,
            adaptive_spin: AdaptiveSpin::new(self.options.spin_ns),
            is_hot: false,
            is_touched: false,
            timer: None,
            heap_bytes: 0,
            maintain_at: self.now,
            leaving: None,
        };
        let number = self.apps.insert(app);
        self.app_numbers.insert(id, number);
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        if !app.port.watch(&mut self.platform, number) {
            // Without the poller nobody would hear the doorbell: poll the app for ever.
            app.waiting = WaitMode::BusyPolls;
        }
        app.heat(number, &mut self.hot_apps, self.now);
    }

    fn open(&mut self, new: NewConnection) {
        let app_number = self.app_numbers.get(&new.app).copied();
        let found = app_number.and_then(|number| Some((number, self.apps.get_mut(number)?)));
        let Some((app_number, app)) = found.filter(|(_, app)| app.leaving.is_none()) else {
            // Dropping the datapath closes it, dropping `opened` says that the app is gone.
            return;
        };
        let number = app.take_place();
        self.insert_path(app_number, number, new);
    }

    /// Polls a connection from now on, under this number of its app's; its place among all datapaths.
    pub(crate) fn insert_path(&mut self, app_number: u32, number: u32, new: NewConnection) -> u32 {
        let mut path = PolledDatapath {
            id: new.id,
            app: app_number,
            number,
            datapath: new.datapath,
            fitted: new.fitted,
            revision: 0,
            is_on_probation: false,
            calls_begun: 0,
            waker: new.waker,
            _permit: new.permit,
            accepted_for: new.accepted_for,
            told_going_away: false,
            last_work: self.now,
            adaptive_spin: AdaptiveSpin::new(self.options.spin_ns),
            is_hot: false,
            is_closing: false,
            has_ended: false,
            watched: None,
            socket_ready: true,
            timer: None,
            calls_counted: 0,
        };
        path.begin_probations(self.now);
        let at = self.paths.insert(path);
        self.path_numbers.insert(new.id, at);
        if let Some(app) = self.apps.get_mut(app_number) {
            app.set_place(number, Some(at));
        }
        if let Some(path) = self.paths.get_mut(at) {
            path.waker.settle(at);
            path.heat(at, &mut self.hot_paths, self.now);
            sync_watch(&mut self.platform, at, path);
        }
        // Nobody waits for the answer when the app has gone away in between: then its detaching closes the connection.
        new.opened.send(number);
        at
    }
}

// Apps.
impl<P: RuntimePlatform> RuntimeWorker<P> {
    fn poll_apps(&mut self) -> bool {
        let mut busy = false;
        for at in 0..self.hot_apps.len() {
            busy |= self.poll_app(self.hot_apps[at]);
        }
        busy
    }

    /// Takes submissions of an app to their datapaths.
    pub(crate) fn poll_app(&mut self, number: u32) -> bool {
        match self.take_submissions(number) {
            Ok(busy) => busy,
            Err(fault) => {
                self.fault(number, fault);
                true
            }
        }
    }

    fn take_submissions(&mut self, number: u32) -> Result<bool, AppFault> {
        let Some(app) = self.apps.get_mut(number) else {
            return Ok(false);
        };
        if app.leaving.is_some() {
            return Ok(false);
        }
        let try_socket = self.hot_apps.len() <= SOCKETS_TRIED_MAX;
        let came = app.port.poll(self.now, try_socket);
        let mut taken = 0;
        let (paths, hot_paths, now) = (&mut self.paths, &mut self.hot_paths, self.now);
        if !app.blocked.is_empty() {
            let mut blocked = std::mem::take(&mut app.blocked);
            blocked.retry(|connection, step| submit(app, paths, hot_paths, now, connection, step));
            app.blocked = blocked;
        }
        while taken < BATCH_SUBMISSIONS && !app.blocked.is_full() {
            match app.port.next_request(&mut self.buffers)? {
                Some(AppRequest::Step { connection, step }) => {
                    let left = if app.blocked.has(connection) {
                        Some(Step {
                            taken_at: now,
                            ..step
                        })
                    } else {
                        submit(app, paths, hot_paths, now, connection, step)
                    };
                    if let Some(step) = left {
                        app.blocked.push(connection, step);
                    }
                }
                Some(AppRequest::Close { connection }) => {
                    submit_blocked(app, paths, connection);
                    if let Some(at) = app.path(connection)
                        && let Some(path) = paths.get_mut(at)
                    {
                        path.is_closing = true;
                        path.heat(at, hot_paths, now);
                    }
                }
                None => break,
            }
            taken += 1;
        }
        let busy = came || taken > 0;
        if busy {
            app.last_work = self.now;
            app.touch(number, &mut self.touched);
            if app.port.calls().is_some() {
                app.heat(number, &mut self.hot_apps, self.now);
            }
        }
        app.port.release();
        self.send_caller_events(number);
        Ok(busy)
    }

    pub(crate) fn fault(&mut self, number: u32, fault: AppFault) {
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        if app.leaving.is_none() {
            self.events.send(RuntimeEvent::Faulted { app: app.id, fault });
            self.leave(number);
        }
    }

    /// Shows each app what it was given in this round, and looks after the ports of those that are active.
    fn flush(&mut self) {
        while let Some(number) = self.touched.pop() {
            if let Err(fault) = self.flush_app(number) {
                self.fault(number, fault);
            }
        }
    }

    fn flush_app(&mut self, number: u32) -> Result<(), AppFault> {
        let Some(app) = self.apps.get_mut(number) else {
            return Ok(());
        };
        app.is_touched = false;
        if app.leaving.is_some() {
            self.remove_if_done(number);
            return Ok(());
        }
        app.port.flush(self.now)?;
        app.watch_again(&mut self.platform, number);
        if app.port.is_blocked() || app.maintain_at <= self.now {
            self.maintain(number)?;
        }
        Ok(())
    }

    fn maintain(&mut self, number: u32) -> Result<(), AppFault> {
        let Some(app) = self.apps.get_mut(number) else {
            return Ok(());
        };
        app.port.maintain(self.now, self.options.completion_stall_ns)?;
        app.maintain_at = self.now + MAINTENANCE_NS;
        let load = app.port.take_load();
        self.counters.load.note(&load, self.now);
        let heap_bytes = std::mem::replace(&mut app.heap_bytes, load.receive_heap_bytes);
        self.counters
            .load
            .heap_resized(heap_bytes, load.receive_heap_bytes);
        let retry = app.port.is_blocked().then_some(self.now + BLOCKED_RETRY_NS);
        let wanted = [retry, app.port.wake_at(self.now)];
        if let Some(at) = wanted.into_iter().flatten().min() {
            add_timer(
                &mut self.timers,
                &mut app.timer,
                at.max(self.now + 1),
                token(KIND_APP, number),
            );
        }
        Ok(())
    }

    /// Forgets an app that is gone once its connections have ended, or have had their time.
    fn remove_if_done(&mut self, number: u32) {
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        let expired = app.leaving.is_some_and(|until| until <= self.now);
        let open: Vec<u32> = app.connections.iter().filter_map(|place| place.path).collect();
        if !open.is_empty() && !expired {
            return;
        }
        for path in open {
            self.remove_path(path);
        }
        if let Some(mut app) = self.apps.remove(number) {
            self.counters.load.heap_resized(app.heap_bytes, 0);
            app.port.unwatch(&mut self.platform);
            self.hot_apps.retain(|hot| *hot != number);
            self.app_numbers.remove(&app.id);
            self.events.send(RuntimeEvent::Detached { app: app.id });
        }
    }
}

// Datapaths.
impl<P: RuntimePlatform> RuntimeWorker<P> {
    pub(crate) fn poll_paths(&mut self) -> bool {
        if self.is_copying_much && !self.hot_paths.is_empty() {
            // Another one is the first to copy in this round.
            self.hot_paths.rotate_left(1);
        }
        self.order_paths();
        // One that sleeps as soon as nothing moves learns from the poller which sockets are ready.
        let few =
            self.hot_paths.len() <= SOCKETS_TRIED_MAX && !self.contention_backoff.is_contended(self.now);
        let mut busy = false;
        let mut at = 0;
        while let Some(number) = self.hot_paths.get(at).copied() {
            busy |= self.poll_path(number, few);
            // A datapath that has ended is gone from the list, and another one in its place.
            if self.hot_paths.get(at) == Some(&number) {
                at += 1;
            }
        }
        self.is_copying_much = self.buffers.has_copied_enough(self.now);
        busy
    }

    /// Puts the datapaths that let others go first behind those.
    fn order_paths(&mut self) {
        let paths = &mut self.paths;
        let mut yields = |number: &u32| paths.get_mut(*number).is_some_and(|path| path.datapath.yields());
        if !self.hot_paths.is_sorted_by_key(&mut yields) {
            self.hot_paths
                .sort_unstable_by_key(|number| (yields(number), *number));
        }
    }

    fn poll_path(&mut self, number: u32, try_socket: bool) -> bool {
        let draining = self.paths.get_mut(number).filter(|path| path.drains());
        if let Some(app) = draining.map(|path| path.app) {
            // It may end now, but not before it knows of the calls that its app has submitted.
            self.poll_app(app);
        }
        let (apps, paths) = (&mut self.apps, &mut self.paths);
        let Some(path) = paths.get_mut(number) else {
            return false;
        };
        let Some(app) = apps.get_mut(path.app) else {
            return false;
        };
        let app_number = path.app;
        let try_socket = try_socket || path.socket_ready || path.watched.is_none();
        let mut busy = path.poll(app, self.now, try_socket, &mut self.buffers);
        self.counters.traffic.note_poll(path);
        if path.is_on_probation {
            path.end_probations(self.now);
        }
        if path.datapath.link().ended().is_some() {
            // The ends of its calls and its own reach the app together, so that the app begins no call in between.
            for _ in 0..POLLS_TO_END_MAX {
                busy |= path.poll(app, self.now, try_socket, &mut self.buffers);
            }
        }
        match path.deliver(app, self.now, &mut self.buffers) {
            Ok(delivered) => busy |= delivered,
            Err(fault) => {
                self.fault(app_number, fault);
                return true;
            }
        }
        if busy {
            path.last_work = self.now;
            app.touch(app_number, &mut self.touched);
            app.heat(app_number, &mut self.hot_apps, self.now);
        } else if path.datapath.fault().is_some() {
            // A failed engine lets nothing through, so that its datapath is soon idle, and found here.
            return self.recover(number);
        } else if !path.datapath.is_blocked() {
            path.socket_ready = false;
        }
        if path.has_ended && path.datapath.to_app().is_empty() {
            return self.end_path(number) || busy;
        }
        if (!try_socket || self.hot_paths.len() > SOCKETS_TRIED_MAX)
            && let Some(path) = self.paths.get_mut(number)
        {
            sync_watch(&mut self.platform, number, path);
        }
        busy
    }

    /// A connection has ended and everything that the app is still to be told is in its ring: tells it so, and says whether that
    /// could be done.
    fn end_path(&mut self, number: u32) -> bool {
        let Some(path) = self.paths.get_mut(number) else {
            return false;
        };
        let (app_number, connection) = (path.app, path.number);
        let end = path.end();
        if let Some(app) = self.apps.get_mut(app_number)
            && app.leaving.is_none()
        {
            let notice = Notice::Closed {
                connection,
                status: end.code,
            };
            app.touch(app_number, &mut self.touched);
            match app.port.push_notice(notice) {
                Ok(()) => {}
                // Tried again later.
                Err(NotPushed::Full(_)) => return false,
                Err(NotPushed::Fault(fault)) => {
                    self.fault(app_number, fault);
                    return true;
                }
            }
        }
        self.remove_path(number);
        true
    }

    fn remove_path(&mut self, number: u32) {
        let Some(mut path) = self.paths.remove(number) else {
            return;
        };
        if let Some(interest) = path.watched.take() {
            self.platform.unwatch(WatchedSource::Socket(interest.socket));
        }
        self.counters.traffic.forget(&path);
        self.hot_paths.retain(|hot| *hot != number);
        self.path_numbers.remove(&path.id);
        if let Some(app) = self.apps.get_mut(path.app) {
            app.set_place(path.number, None);
            if path.datapath.link().drain_requested() {
                app.note_drained(path.number);
            }
            app.touch(path.app, &mut self.touched);
            self.events.send(RuntimeEvent::Closed {
                id: path.id,
                app: app.id,
                connection: path.number,
                end: path.end(),
            });
            // Blocks and tokens of steps that were under way go back before the engines are gone.
            path.discard_all(app, self.now, &mut self.buffers);
        }
    }

    /// Makes dormant what has had no work for the configured time.
    fn demote(&mut self) {
        if !self.may_sleep() {
            return;
        }
        let now = self.now;
        let is_contended = self.contention_backoff.is_contended(now);
        let quiet = |last_work: Nanos, adaptive_spin: &AdaptiveSpin| {
            is_contended || now.saturating_sub(last_work) >= adaptive_spin.spin_ns()
        };
        let mut at = 0;
        while let Some(number) = self.hot_paths.get(at).copied() {
            let Some(path) = self.paths.get_mut(number) else {
                self.hot_paths.swap_remove(at);
                continue;
            };
            if !quiet(path.last_work, &path.adaptive_spin) {
                at += 1;
                continue;
            }
            path.is_hot = false;
            sync_watch(&mut self.platform, number, path);
            let retry = path.is_stuck().then_some(self.now + BLOCKED_RETRY_NS);
            if let Some(wake_at) = [retry, path.datapath.wake_at()].into_iter().flatten().min() {
                add_timer(
                    &mut self.timers,
                    &mut path.timer,
                    wake_at,
                    token(KIND_PATH, number),
                );
            }
            self.hot_paths.swap_remove(at);
        }
        let mut at = 0;
        while let Some(number) = self.hot_apps.get(at).copied() {
            let Some(app) = self.apps.get_mut(number) else {
                self.hot_apps.swap_remove(at);
                continue;
            };
            let stays = app.waiting == WaitMode::BusyPolls && app.leaving.is_none();
            if stays
                || !quiet(app.last_work, &app.adaptive_spin)
                || !app.arm(&mut self.timers, number, self.now)
            {
                at += 1;
                continue;
            }
            app.is_hot = false;
            self.hot_apps.swap_remove(at);
        }
    }

    fn fire_timers(&mut self) -> bool {
        let mut busy = false;
        while let Some((at, token)) = self.timers.pop_due(self.now) {
            let number = token as u32;
            match token >> KIND_SHIFT {
                KIND_APP => busy |= self.fire_app(number, at),
                _ => busy |= self.fire_path(number, at),
            }
        }
        busy
    }

    fn fire_app(&mut self, number: u32, at: Nanos) -> bool {
        let Some(app) = self.apps.get_mut(number) else {
            return false;
        };
        if app.timer == Some(at) {
            app.timer = None;
        }
        if app.leaving.is_some() {
            app.touch(number, &mut self.touched);
            return false;
        }
        if let Err(fault) = self.maintain(number) {
            self.fault(number, fault);
        } else if let Some(app) = self.apps.get_mut(number) {
            app.touch(number, &mut self.touched);
        }
        self.poll_app(number)
    }

    /// Polls a dormant datapath once; it becomes hot only if there is work.
    fn fire_path(&mut self, number: u32, at: Nanos) -> bool {
        let Some(path) = self.paths.get_mut(number) else {
            return false;
        };
        if path.timer == Some(at) {
            path.timer = None;
        }
        if path.is_hot {
            return false;
        }
        let busy = self.poll_path(number, true);
        if let Some(path) = self.paths.get_mut(number) {
            if busy {
                path.heat(number, &mut self.hot_paths, self.now);
                return true;
            }
            let retry = path.is_stuck().then_some(self.now + BLOCKED_RETRY_NS);
            if let Some(wake_at) = [retry, path.datapath.wake_at()].into_iter().flatten().min() {
                let wake_at = wake_at.max(self.now + 1);
                add_timer(
                    &mut self.timers,
                    &mut path.timer,
                    wake_at,
                    token(KIND_PATH, number),
                );
            }
        }
        busy
    }
}
