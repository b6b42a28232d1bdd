//! Stopping a runtime between two rounds, so that another process of the service can go on with its apps; and going on
//! with the apps of another process.
//!
//! ```text
//! running ──Freeze──► frozen ──save──► frozen ──leave──► ended: the other process goes on
//!    ▲                   │                │
//!    └──────thaw─────────┴────────────────┘     also when whoever holds the frozen runtime is gone
//! ```
//!
//! Nothing is taken apart: what is saved are copies and duplicates of descriptors, so that a thawed runtime goes on as if
//! nothing had happened. While it is frozen it reads and writes nothing that it shares with anybody.

use std::collections::HashMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::mpsc;
use std::sync::mpsc::TryRecvError;

use provost_datapath::{BlockContent, FieldWriter, ForeignBytes, Nanos, ReceivedBlock, Saver, Stage};
use provost_frontend::{AppPort, SavedBlocks};
use provost_marshal::copy_foreign;

use crate::call_port::{NamedBlocks, SavedPort};
use crate::caller_port::CallerPort;
use crate::command::NewConnection;
use crate::engines::{EngineTag, FittedEngine};
use crate::frozen::{
    AdoptedApp, AdoptedConnection, AdoptedPort, ConnectionPhase, FrozenOrder, FrozenRuntime, SavedApp,
    SavedApps, SavedAround, SavedBatches, SavedConnection, SavedEngineTag, SavedRange,
};
use crate::ids::AppId;
use crate::mutation::Mutation;
use crate::platform::RuntimePlatform;
use crate::poll_token::{KIND_APP, token};
use crate::polled_app::{ConnectionPlace, PolledApp};
use crate::polled_datapath::{PolledDatapath, submit_blocked};
use crate::reply::Reply;
use crate::timers::add_timer;
use crate::worker::{NextStep, RuntimeWorker, WorkerState};

/// Orders that wait for a runtime that rests: it carries them out as they come.
const ORDERS_MAX: usize = 4;
/// How long the control plane may take to hear the last events of a runtime that freezes.
const EVENTS_WAIT_NS: Nanos = 500_000_000;
/// Apps and callers, with their connections, that are saved before somebody else can go on with what was saved.
const BATCH_WEIGHT: usize = 128;

impl<P: RuntimePlatform> RuntimeWorker<P> {
    /// Rests until it is told what next.
    pub(crate) fn freeze(&mut self, frozen: Reply<FrozenRuntime>) {
        self.settle_apps();
        let until = self.platform.now_ns() + EVENTS_WAIT_NS;
        while !self.events.is_empty() && self.platform.now_ns() < until {
            self.events.flush();
            self.platform.yield_core();
        }
        let (orders, orders_in) = mpsc::sync_channel(ORDERS_MAX);
        self.state = WorkerState::Frozen(orders_in);
        frozen.send(FrozenRuntime { orders });
    }

    /// Carries an order out if one has come.
    pub(crate) fn take_order(&mut self) -> NextStep {
        let WorkerState::Frozen(orders) = &self.state else {
            return NextStep::Poll;
        };
        match orders.try_recv() {
            Ok(order) => self.obey(Some(order)),
            Err(TryRecvError::Disconnected) => self.obey(None),
            Err(TryRecvError::Empty) => {}
        }
        match self.state {
            WorkerState::Running => NextStep::Poll,
            WorkerState::Frozen(_) => NextStep::AwaitOrder,
            WorkerState::Stopped => NextStep::Stop,
        }
    }

    /// Sleeps until an order comes, and carries it out.
    pub(crate) fn await_order(&mut self) {
        if let WorkerState::Frozen(orders) = &self.state {
            let order = orders.recv().ok();
            self.obey(order);
        }
    }

    /// Without an order, whoever held the frozen runtime is gone, or does not want it any more.
    fn obey(&mut self, order: Option<FrozenOrder>) {
        match order {
            Some(FrozenOrder::Save {
                around,
                batches,
                saved,
            }) => saved.send(self.save_apps(&around, batches)),
            Some(FrozenOrder::Leave) => self.state = WorkerState::Stopped,
            None => self.thaw(),
        }
    }

    /// What was read is released, what was pushed is published, and engines hold no steps that they can give back.
    fn settle_apps(&mut self) {
        for number in 0..self.apps.bound() {
            let Some(app) = self.apps.get_mut(number) else {
                continue;
            };
            if app.leaving.is_some() {
                continue;
            }
            for connection in app.blocked.connections() {
                submit_blocked(app, &mut self.paths, connection);
            }
            let settled = app.port.app().map_or(Ok(()), AppPort::settle);
            if let Err(fault) = settled {
                self.fault(number, fault);
            }
        }
        for number in 0..self.paths.bound() {
            if let Some(path) = self.paths.get_mut(number) {
                path.datapath.release_all(self.now);
            }
        }
    }

    /// Looks at everything: what came meanwhile woke nobody.
    fn thaw(&mut self) {
        self.state = WorkerState::Running;
        self.now = self.platform.now_ns();
        self.inbox.gate.look_again();
        for number in 0..self.apps.bound() {
            if let Some(app) = self.apps.get_mut(number) {
                app.heat(number, &mut self.hot_apps, self.now);
            }
        }
        for number in 0..self.paths.bound() {
            if let Some(path) = self.paths.get_mut(number) {
                path.socket_ready = true;
                path.heat(number, &mut self.hot_paths, self.now);
            }
        }
    }

    fn save_apps(&self, around: &SavedAround, mut batches: SavedBatches) -> io::Result<()> {
        let mut paths: HashMap<u32, Vec<&PolledDatapath>> = HashMap::new();
        for (_, path) in self.paths.iter() {
            paths.entry(path.app).or_default().push(path);
        }
        let (mut batch, mut weight) = (SavedApps::default(), 0);
        // Whoever goes on with callers needs the apps first that serve them.
        let apps = self.apps.iter().filter(|(_, app)| !app.is_caller());
        let callers = self.apps.iter().filter(|(_, app)| app.is_caller());
        for (number, app) in apps.chain(callers) {
            if app.is_caller_that_leaves() {
                // Nobody is to go on with it.
                continue;
            }
            let own = paths.remove(&number).unwrap_or_default();
            weight += 1 + own.len();
            match save_app(app, &own, around) {
                Ok(app) => batch.apps.push(app),
                Err(error) if app.is_caller() => batch.left_out.push((app.id, error.to_string())),
                Err(error) => return Err(error),
            }
            if weight >= BATCH_WEIGHT {
                weight = 0;
                if batches(std::mem::take(&mut batch)).is_break() {
                    return Ok(());
                }
            }
        }
        // Whether more is wanted does not matter: there is no more.
        let _ = batches(batch);
        Ok(())
    }

    /// Goes on with apps of another process.
    pub(crate) fn adopt(&mut self, apps: Vec<AdoptedApp>) {
        for app in apps {
            self.adopt_app(app);
        }
    }

    fn adopt_app(&mut self, adopted: AdoptedApp) {
        let AdoptedApp {
            new,
            places,
            stuck,
            leaving,
            connections,
        } = adopted;
        let id = match &new {
            AdoptedPort::App(new) => new.app,
            AdoptedPort::Caller(new) => new.app,
        };
        match new {
            AdoptedPort::App(new) => self.attach(*new),
            AdoptedPort::Caller(new) => self.attach_caller(new),
        }
        let Some(number) = self.app_numbers.get(&id).copied() else {
            return;
        };
        if let Some(app) = self.apps.get_mut(number) {
            app.connections = places
                .into_iter()
                .map(|number| ConnectionPlace {
                    number,
                    path: None,
                    was_drained: false,
                })
                .collect();
            if let Some((connection, step)) = stuck {
                app.blocked.push(connection, step);
            }
        }
        for connection in connections {
            self.adopt_connection(number, connection);
        }
        let Some(app) = self.apps.get_mut(number) else {
            return;
        };
        app.find_free_places();
        app.touch(number, &mut self.touched);
        // The app is shown the region to look at by the first look after its port, which must not wait.
        app.maintain_at = self.now;
        if let Some(until) = leaving {
            app.leaving = Some(until);
            let token = token(KIND_APP, number);
            add_timer(&mut self.timers, &mut app.timer, until, token);
        }
    }

    fn adopt_connection(&mut self, app_number: u32, mut adopted: AdoptedConnection) {
        if Mutation::PolicyBypassedOnRestore.is_active() {
            leave_policies_out(&mut adopted.new);
        }
        let at = self.insert_path(app_number, adopted.number, adopted.new);
        if let Some(path) = self.paths.get_mut(at) {
            path.told_going_away = adopted.phase.told_going_away;
            path.is_closing = adopted.phase.is_closing;
            path.has_ended = adopted.phase.has_ended;
        }
    }

    /// An app has mapped a completion region.
    pub(crate) fn region_mapped(&mut self, app: AppId, generation: u64) {
        if let Some(number) = self.app_numbers.get(&app).copied()
            && let Some(app) = self.apps.get_mut(number)
        {
            if let Some(port) = app.port.app() {
                port.region_mapped(generation);
            }
            app.heat(number, &mut self.hot_apps, self.now);
        }
    }
}

/// What [`Mutation::PolicyBypassedOnRestore`] does.
fn leave_policies_out(connection: &mut NewConnection) {
    let is_policy = |fitted: &FittedEngine| fitted.tag >= EngineTag::FIRST_POLICY;
    let engines = connection.fitted.iter().enumerate();
    let stages = engines
        .filter(|(_, fitted)| !is_policy(fitted))
        .map(|(was, _)| Stage::Keep { was });
    if connection
        .datapath
        .reconfigure(stages.collect(), copy_foreign)
        .is_ok()
    {
        connection.fitted.retain(|fitted| !is_policy(fitted));
    }
}

fn save_app(app: &PolledApp, connections: &[&PolledDatapath], around: &SavedAround) -> io::Result<SavedApp> {
    let mut saver = AppSaver {
        blocks: Vec::new(),
        ranges: Vec::new(),
        around,
    };
    let connections = connections.iter().map(|path| save_connection(path, &mut saver));
    let connections = connections.collect::<io::Result<Vec<_>>>()?;
    let (port, doorbell) = save_port(&app.port, &saver.blocks)?;
    Ok(SavedApp {
        app: app.id,
        waiting: app.waiting,
        port: port.state,
        port_descriptors: port.descriptors,
        doorbell,
        places: app.connections.iter().map(|place| place.number).collect(),
        leaving: app.leaving,
        connections,
        ranges: saver.ranges,
    })
}

/// The state of a port with its descriptors, and both ends of the doorbell of an app.
fn save_port(port: &CallerPort, blocks: &NamedBlocks) -> io::Result<(SavedPort, Option<[OwnedFd; 2]>)> {
    let (port, doorbell) = match port {
        CallerPort::App { port, doorbell } => (port, doorbell),
        CallerPort::Calls(caller) => return Ok((caller.port.save(blocks)?, None)),
    };
    let mut named = SavedBlocks::default();
    blocks
        .iter()
        .for_each(|(block, content)| named.note(block, *content));
    let mut state = FieldWriter::new();
    port.save(&named, &mut state);
    let ends = doorbell.ends();
    let [read, write] = ends.ok_or_else(|| io::Error::other("the doorbell of an app is not whole"))?;
    let port = SavedPort {
        state: state.bytes,
        descriptors: duplicates(port.descriptors())?,
    };
    Ok((
        port,
        Some([read.try_clone_to_owned()?, write.try_clone_to_owned()?]),
    ))
}

fn save_connection(path: &PolledDatapath, saver: &mut AppSaver<'_>) -> io::Result<SavedConnection> {
    let mut link = FieldWriter::new();
    path.datapath.link().save(&mut link);
    let tags = path.fitted.iter().map(|fitted| SavedEngineTag {
        tag: fitted.tag,
        stands_in: fitted.stands_in(),
    });
    Ok(SavedConnection {
        id: path.id,
        number: path.number,
        accepted_for: path.accepted_for,
        phase: ConnectionPhase {
            told_going_away: path.told_going_away,
            is_closing: path.is_closing,
            has_ended: path.has_ended,
        },
        link: link.bytes,
        datapath: path.datapath.save(saver)?,
        tags: tags.collect(),
    })
}

fn duplicates(descriptors: Vec<BorrowedFd<'_>>) -> io::Result<Vec<OwnedFd>> {
    descriptors
        .into_iter()
        .map(|descriptor| descriptor.try_clone_to_owned())
        .collect()
}

/// Notes what the states of an app's connections name.
struct AppSaver<'a> {
    blocks: NamedBlocks,
    ranges: Vec<SavedRange>,
    around: &'a SavedAround,
}

impl Saver for AppSaver<'_> {
    fn newest_form(&self, kind: &str) -> u32 {
        let mut forms = self.around.newest_forms.iter();
        forms
            .find(|(known, _)| known == kind)
            .map_or(1, |(_, form)| *form)
    }

    fn foreign(&mut self, bytes: &ForeignBytes, out: &mut Vec<u8>) {
        copy_foreign(bytes, out);
    }

    /// The successor maps the same heaps.
    fn keep_foreign(&mut self, bytes: &ForeignBytes) -> Option<u32> {
        let number = u32::try_from(self.ranges.len()).ok()?;
        let mut heaps = self.around.heaps.iter();
        let (app, offset) = heaps.find_map(|(app, heap)| Some((*app, heap.offset_of(bytes)?)))?;
        let bytes = bytes.len();
        self.ranges.push(SavedRange { app, offset, bytes });
        Some(number)
    }

    fn block(&mut self, block: &ReceivedBlock, content: BlockContent) {
        let (at, bytes) = (block.at, block.bytes);
        self.blocks.push((ReceivedBlock { at, bytes }, content));
    }
}
