//! A runtime that rests, and its apps as one process of the service gives them to the next.

use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};

use provost_datapath::{Nanos, SavedDatapath, Step};
use provost_frontend::SendHeap;

use crate::command::{NewApp, NewCaller, NewConnection};
use crate::engines::EngineTag;
use crate::ids::{AppId, ConnectionId, WaitMode};
use crate::reply::Reply;

/// A runtime that rests. Dropping this lets it go on.
pub struct FrozenRuntime {
    pub(crate) orders: mpsc::SyncSender<FrozenOrder>,
}

pub(crate) enum FrozenOrder {
    Save {
        around: SavedAround,
        batches: SavedBatches,
        saved: Reply<io::Result<()>>,
    },
    Leave,
}

/// What the states of apps refer to, and who is to read them.
#[derive(Clone)]
pub struct SavedAround {
    /// The send heaps of all apps of the node.
    pub heaps: Arc<[(AppId, SendHeap)]>,
    /// The newest forms of the states of engines that the successor reads, by kind, where that is not the first.
    pub newest_forms: Arc<[(String, u32)]>,
}

/// Takes what a runtime saves, on the runtime's thread, a batch at a time, and says whether it wants the next one. It may wait for those
/// who take batches, and must not panic.
pub type SavedBatches = Box<dyn FnMut(SavedApps) -> ControlFlow<()> + Send>;

/// Some of the apps of a runtime as another process needs them.
#[derive(Default)]
pub struct SavedApps {
    /// Those that it can go on with.
    pub apps: Vec<SavedApp>,
    /// Callers that are no apps and that no other process can go on with, and why.
    pub left_out: Vec<(AppId, String)>,
}

/// An app, or a caller that is none, as another process needs it.
pub struct SavedApp {
    pub app: AppId,
    /// How its runtime waits for it.
    pub waiting: WaitMode,
    /// State of its port.
    pub port: Vec<u8>,
    /// Descriptors of its port.
    pub port_descriptors: Vec<OwnedFd>,
    /// What it rings to wake its runtime: both ends. A gRPC client has none.
    pub doorbell: Option<[OwnedFd; 2]>,
    /// Numbers that its connections have or had, by place.
    pub places: Vec<u32>,
    /// When its connections must have ended, if it is gone.
    pub leaving: Option<Nanos>,
    pub connections: Vec<SavedConnection>,
    /// Ranges of send heaps that states of its connections name, by number.
    pub ranges: Vec<SavedRange>,
}

/// A range of an app's send heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedRange {
    pub app: AppId,
    /// Where it begins, in bytes.
    pub offset: u64,
    pub bytes: u32,
}

/// A connection as another process needs it.
pub struct SavedConnection {
    /// Its number at the control plane.
    pub id: ConnectionId,
    /// Its number at the app.
    pub number: u32,
    /// For a server's connection that the app was not told of yet: the request by which it offered the service.
    pub accepted_for: Option<u64>,
    /// How far its end is.
    pub phase: ConnectionPhase,
    /// State of its link.
    pub link: Vec<u8>,
    /// Its engines, and the steps between them.
    pub datapath: SavedDatapath,
    /// Which engine each of them is.
    pub tags: Vec<SavedEngineTag>,
}

/// Which engine one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedEngineTag {
    /// See [`EngineTag`].
    pub tag: EngineTag,
    /// It took the place of one that failed.
    pub stands_in: bool,
}

/// How far a connection's end is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionPhase {
    /// The app knows that no new calls are taken.
    pub told_going_away: bool,
    /// It is closed once it is flushed.
    pub is_closing: bool,
    /// Its engines have ended.
    pub has_ended: bool,
}

/// An app of another process, to go on with.
pub struct AdoptedApp {
    /// What a new one has.
    pub new: AdoptedPort,
    /// See [`SavedApp::places`].
    pub places: Vec<u32>,
    /// A step that found its datapath full, and on which connection, as earlier versions saved one.
    pub stuck: Option<(u32, Step)>,
    /// See [`SavedApp::leaving`].
    pub leaving: Option<Nanos>,
    pub connections: Vec<AdoptedConnection>,
}

/// Who goes on making calls.
pub enum AdoptedPort {
    /// An app, with its rings.
    App(Box<NewApp>),
    /// A gRPC client, with its connection.
    Caller(NewCaller),
}

/// A connection of another process, to go on with.
pub struct AdoptedConnection {
    /// Its number at the app.
    pub number: u32,
    /// See [`SavedConnection::phase`].
    pub phase: ConnectionPhase,
    /// What a new connection has.
    pub new: NewConnection,
}

impl FrozenRuntime {
    /// Has all apps saved, in batches, of which the last is followed by the reply. The reply is dropped if the runtime has ended.
    pub fn save(&self, around: SavedAround, batches: SavedBatches, saved: Reply<io::Result<()>>) {
        let order = FrozenOrder::Save {
            around,
            batches,
            saved,
        };
        // What comes back when nobody takes orders is dropped, and the reply with it.
        let _ = self.orders.send(order);
    }

    /// Lets it go on.
    pub fn thaw(self) {}

    /// Ends it: another process goes on. Nothing that is shared is touched any more.
    pub fn leave(self) {
        // A thread that has ended already needs not be told.
        let _ = self.orders.send(FrozenOrder::Leave);
    }
}
