//! The thread's loop.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use provost_datapath::{BufferPool, Nanos};
use provost_frontend::{AppFault, AppRequest, NotPushed, Notice};
use provost_ring::{Crowding, Patience};
use provost_shm::{Doorbell, Poller, Wait, now_ns, yield_now};
use tokio::sync::mpsc;

use super::app::App;
use super::command::{AppId, Command, ConnectionId, NewApp, NewConnection, RuntimeEvent, Waiting};
use super::events::Events;
use super::path::{Path, submit, sync_watch};
use super::reshape::Reshape;
use super::slots::Slots;
use super::spent::Round;
use super::timers::{Timers, add_timer};
use super::wake::Inbox;
use super::{RuntimeOptions, Told};

/// Submissions of one app that a round takes, at most.
const BATCH_SUBMISSIONS: usize = 64;
/// While at most so many polled datapaths have sockets, each round tries each of them; past it, the poller says which.
const SOCKETS_TRIED_MAX: usize = 4;
/// Rounds between two looks at the poller while something is polled.
const ROUNDS_PER_POLL: u32 = 16;
/// How often a full completion ring, or a stuck queue behind it, is tried again.
pub(super) const BLOCKED_RETRY_NS: Nanos = 1_000_000;
/// How often an app's port is looked after while the app is active.
const MAINTENANCE_NS: Nanos = 1_000_000_000;
/// How long the connections of an app that is gone may take to end.
const DETACH_LINGER_NS: Nanos = 3_000_000_000;
/// Polls in which a datapath whose transport has ended comes to its own end, unless the app's ring is full.
const POLLS_TO_END_MAX: usize = 6;

/// What an event of the poller, or a timer, is about: the kind in the high bits, a number in the low ones.
const KIND_SHIFT: u32 = 32;
const KIND_INBOX: u64 = 0;
pub(super) const KIND_APP: u64 = 1;
pub(super) const KIND_PATH: u64 = 2;

pub(super) fn token(kind: u64, number: u32) -> u64 {
    kind << KIND_SHIFT | u64::from(number)
}

/// A runtime thread's state.
pub(super) struct Worker {
    inbox: Arc<Inbox>,
    doorbell: Doorbell,
    pub(super) options: RuntimeOptions,
    pub(super) events: Events,
    pub(super) poller: Poller,
    buffers: BufferPool,
    pub(super) apps: Slots<App>,
    pub(super) app_numbers: HashMap<AppId, u32>,
    pub(super) paths: Slots<Path>,
    pub(super) path_numbers: HashMap<ConnectionId, u32>,
    /// Datapaths that are to be changed; as many as the inbox holds are taken from it at a time.
    pub(super) reshapes: VecDeque<Reshape>,
    /// Apps and datapaths that every round polls.
    pub(super) hot_apps: Vec<u32>,
    pub(super) hot_paths: Vec<u32>,
    /// Apps whose ports were written to in this round.
    pub(super) touched: Vec<u32>,
    pub(super) timers: Timers,
    pub(super) now: Nanos,
    rounds_to_poll: u32,
    /// Whether nothing is polled without work for now, as others want the core.
    crowding: Crowding,
    told: Told,
    /// Sleep in this round.
    slept_ns: Nanos,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Stopped,
}

impl Worker {
    pub(super) fn new(
        inbox: Arc<Inbox>,
        doorbell: Doorbell,
        options: RuntimeOptions,
        events: mpsc::Sender<RuntimeEvent>,
        told: Told,
    ) -> io::Result<Worker> {
        let poller = Poller::create()?;
        poller.add(&doorbell, token(KIND_INBOX, 0), provost_shm::Interest::Readable)?;
        Ok(Worker {
            inbox,
            doorbell,
            options,
            events: Events {
                to: events,
                unsent: VecDeque::new(),
            },
            poller,
            buffers: BufferPool::new(),
            apps: Slots::new(),
            app_numbers: HashMap::new(),
            paths: Slots::new(),
            path_numbers: HashMap::new(),
            reshapes: VecDeque::new(),
            hot_apps: Vec::new(),
            hot_paths: Vec::new(),
            touched: Vec::new(),
            timers: Timers::new(),
            now: now_ns(),
            rounds_to_poll: ROUNDS_PER_POLL,
            crowding: Crowding::default(),
            told,
            slept_ns: 0,
            state: State::Running,
        })
    }

    pub(super) fn run(mut self) {
        let mut round = Round::Polling;
        while self.state == State::Running {
            let began = std::mem::replace(&mut self.now, now_ns());
            let awake_ns = self
                .now
                .saturating_sub(began + std::mem::take(&mut self.slept_ns));
            self.told.spent.add(round, awake_ns);
            self.told.traffic.end_round(self.now);
            let mut busy = self.inbox.take_pending() && self.take_inbox();
            if self.state == State::Stopped {
                // Not one poll more: another process may go on with what is here.
                return;
            }
            busy |= self.fire_timers();
            busy |= self.poll_apps();
            busy |= self.poll_paths();
            busy |= self.reshape_some();
            self.flush();
            self.events.flush();
            round = match busy {
                true => Round::Busy,
                false => Round::Polling,
            };
            match round {
                Round::Busy => self.glance(),
                Round::Polling => self.rest(),
            }
        }
    }

    /// Nothing moved in this round: puts aside what has been quiet for long, and waits.
    fn rest(&mut self) {
        self.demote();
        if self.hot_apps.is_empty() && self.hot_paths.is_empty() && self.may_sleep() {
            if self.inbox.prepare_sleep() {
                let wait = match self.timers.next() {
                    None if self.events.unsent.is_empty() => Wait::Forever,
                    None => Wait::AtMost(BLOCKED_RETRY_NS),
                    Some(at) => Wait::AtMost(at.saturating_sub(now_ns())),
                };
                let slept_from = now_ns();
                self.told.spent.add_sleep();
                self.poll_events(wait);
                self.slept_ns = now_ns().saturating_sub(slept_from);
                self.inbox.awake();
            }
            return;
        }
        self.glance();
        let given_away_at = now_ns();
        yield_now();
        if let Some(crowding) = self.crowding.after_yield(given_away_at, now_ns()) {
            self.crowding = crowding;
        }
    }

    fn may_sleep(&self) -> bool {
        self.options.waiting == Waiting::Sleeps
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
        // An error of epoll_wait can only be a bug of ours; the next round tries again.
        let Ok(events) = self.poller.wait(wait) else {
            return;
        };
        let woken_at = now_ns();
        for event in events {
            let number = event.token as u32;
            match event.token >> KIND_SHIFT {
                KIND_APP => {
                    if let Some(app) = apps.get_mut(number) {
                        // An app that can ring no more is detached by the end of its control socket.
                        let _ = app.doorbell.drain();
                        app.heat(number, hot_apps, woken_at);
                    }
                }
                KIND_PATH => {
                    if let Some(path) = paths.get_mut(number) {
                        path.socket_ready = true;
                        path.heat(number, hot_paths, woken_at);
                    }
                }
                _ => {
                    let _ = self.doorbell.drain();
                }
            }
        }
    }
}

// Commands and wake-ups.
impl Worker {
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
                Command::Attach(app) => self.attach(*app),
                Command::Detach(app) => self.detach(app),
                Command::Open(connection) => self.open(*connection),
                Command::Reshape(reshape) => self.reshapes.push_back(*reshape),
                Command::Describe(describe) => self.describe(*describe),
                Command::RegionMapped { app, generation } => self.region_mapped(app, generation),
                Command::Freeze(frozen) => self.freeze(frozen),
                Command::Adopt(apps) => self.adopt(*apps),
                Command::Stop => self.state = State::Stopped,
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

    pub(super) fn attach(&mut self, new: NewApp) {
        let app = App {
            id: new.app,
            port: new.port,
            doorbell: new.doorbell,
            waiting: new.waiting,
            connections: Vec::new(),
            free_places: Vec::new(),
            stuck: None,
            last_work: self.now,
            patience: Patience::new(self.options.spin_ns),
            is_hot: false,
            is_touched: false,
            timer: None,
            heap_bytes: 0,
            maintain_at: self.now,
            leaving: None,
        };
        let id = new.app;
        let number = self.apps.insert(app);
        self.app_numbers.insert(id, number);
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        let interest = provost_shm::Interest::Readable;
        if self
            .poller
            .add(&app.doorbell, token(KIND_APP, number), interest)
            .is_err()
        {
            // Without the poller nobody would hear the doorbell: poll the app for ever.
            app.waiting = Waiting::BusyPolls;
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
    pub(super) fn insert_path(&mut self, app_number: u32, number: u32, new: NewConnection) -> u32 {
        let mut path = Path {
            id: new.id,
            app: app_number,
            number,
            datapath: new.datapath,
            fitted: new.fitted,
            revision: 0,
            is_on_trial: false,
            calls_begun: 0,
            waker: new.waker,
            _permit: new.permit,
            accepted_for: new.accepted_for,
            told_going_away: false,
            last_work: self.now,
            patience: Patience::new(self.options.spin_ns),
            is_hot: false,
            is_closing: false,
            has_ended: false,
            watched: None,
            socket_ready: true,
            timer: None,
            calls_counted: 0,
        };
        path.begin_trials(self.now);
        let at = self.paths.insert(path);
        self.path_numbers.insert(new.id, at);
        if let Some(app) = self.apps.get_mut(app_number) {
            app.set_place(number, Some(at));
        }
        if let Some(path) = self.paths.get_mut(at) {
            path.waker.settle(at);
            path.heat(at, &mut self.hot_paths, self.now);
            sync_watch(&self.poller, at, path);
        }
        // Nobody waits for the answer when the app has gone away in between: then its detaching closes the connection.
        let _ = new.opened.send(number);
        at
    }

    fn detach(&mut self, app: AppId) {
        let Some(number) = self.app_numbers.get(&app).copied() else {
            return;
        };
        let capacity = provost_wire::limits::RING_SLOTS_MAX as usize;
        let rounds = capacity / BATCH_SUBMISSIONS;
        // What the app submitted before it left is carried out, as far as there is room for it now.
        for _ in 0..rounds {
            if !self.poll_app(number) {
                break;
            }
            self.poll_paths();
        }
        self.leave(number);
    }

    /// The app's connections end from now on; nothing more is read from it or told to it.
    fn leave(&mut self, number: u32) {
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        if app.leaving.is_some() {
            return;
        }
        app.leaving = Some(self.now + DETACH_LINGER_NS);
        app.stuck = None;
        self.timers
            .add(self.now + DETACH_LINGER_NS, token(KIND_APP, number));
        app.touch(number, &mut self.touched);
        for path in app.connections.iter().filter_map(|place| place.path) {
            if let Some(open) = self.paths.get_mut(path) {
                open.is_closing = true;
                open.heat(path, &mut self.hot_paths, self.now);
            }
        }
    }
}

// Apps.
impl Worker {
    fn poll_apps(&mut self) -> bool {
        let mut busy = false;
        for at in 0..self.hot_apps.len() {
            busy |= self.poll_app(self.hot_apps[at]);
        }
        busy
    }

    /// Takes submissions of an app to their datapaths.
    fn poll_app(&mut self, number: u32) -> bool {
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
        let mut taken = 0;
        if let Some((connection, step)) = app.stuck.take() {
            app.stuck = submit(
                app,
                &mut self.paths,
                &mut self.hot_paths,
                self.now,
                connection,
                step,
            );
        }
        while taken < BATCH_SUBMISSIONS && app.stuck.is_none() {
            match app.port.next_request()? {
                Some(AppRequest::Step { connection, step }) => {
                    app.stuck = submit(
                        app,
                        &mut self.paths,
                        &mut self.hot_paths,
                        self.now,
                        connection,
                        step,
                    );
                }
                Some(AppRequest::Close { connection }) => {
                    if let Some(at) = app.path(connection)
                        && let Some(path) = self.paths.get_mut(at)
                    {
                        path.is_closing = true;
                        path.heat(at, &mut self.hot_paths, self.now);
                    }
                }
                None => break,
            }
            taken += 1;
        }
        if taken > 0 {
            app.last_work = self.now;
            app.touch(number, &mut self.touched);
        }
        app.port.release();
        Ok(taken > 0)
    }

    pub(super) fn fault(&mut self, number: u32, fault: AppFault) {
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
        app.port.flush()?;
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
        self.told.load.note(&load, self.now);
        let heap_bytes = std::mem::replace(&mut app.heap_bytes, load.receive_heap_bytes);
        self.told.load.heap_resized(heap_bytes, load.receive_heap_bytes);
        let retry = app.port.is_blocked().then_some(self.now + BLOCKED_RETRY_NS);
        let wanted = [retry, app.port.wake_at()];
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
        if let Some(app) = self.apps.remove(number) {
            self.told.load.heap_resized(app.heap_bytes, 0);
            let _ = self.poller.remove(&app.doorbell);
            self.hot_apps.retain(|hot| *hot != number);
            self.app_numbers.remove(&app.id);
            self.events.send(RuntimeEvent::Detached { app: app.id });
        }
    }
}

// Datapaths.
impl Worker {
    fn poll_paths(&mut self) -> bool {
        self.order_paths();
        let few = self.hot_paths.len() <= SOCKETS_TRIED_MAX;
        let mut busy = false;
        let mut at = 0;
        while let Some(number) = self.hot_paths.get(at).copied() {
            busy |= self.poll_path(number, few);
            // A datapath that has ended is gone from the list, and another one in its place.
            if self.hot_paths.get(at) == Some(&number) {
                at += 1;
            }
        }
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
        self.told.traffic.note_poll(path);
        if path.is_on_trial {
            path.end_trials(self.now);
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
            return self.mend(number);
        } else if !path.datapath.is_blocked() {
            path.socket_ready = false;
        }
        if path.has_ended && path.datapath.to_app().is_empty() {
            return self.end_path(number) || busy;
        }
        if (!try_socket || self.hot_paths.len() > SOCKETS_TRIED_MAX)
            && let Some(path) = self.paths.get_mut(number)
        {
            sync_watch(&self.poller, number, path);
        }
        busy
    }

    /// A connection has ended and everything that the app was owed is in its ring: tells it so, and says whether that
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
            let _ = self.poller.remove_number(interest.socket);
        }
        self.told.traffic.forget(&path);
        self.hot_paths.retain(|hot| *hot != number);
        self.path_numbers.remove(&path.id);
        if let Some(app) = self.apps.get_mut(path.app) {
            app.set_place(path.number, None);
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
        let is_crowded = self.crowding.is_crowded(now);
        let quiet = |last_work: Nanos, patience: &Patience| {
            is_crowded || now.saturating_sub(last_work) >= patience.spin_ns()
        };
        let mut at = 0;
        while let Some(number) = self.hot_paths.get(at).copied() {
            let Some(path) = self.paths.get_mut(number) else {
                self.hot_paths.swap_remove(at);
                continue;
            };
            if !quiet(path.last_work, &path.patience) {
                at += 1;
                continue;
            }
            path.is_hot = false;
            sync_watch(&self.poller, number, path);
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
            let stays = app.waiting == Waiting::BusyPolls && app.leaving.is_none();
            if stays || !quiet(app.last_work, &app.patience) || !app.arm(&mut self.timers, number, self.now) {
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
