//! What the control plane tells a runtime.

use std::sync::Arc;

use provost_datapath::Datapath;
use provost_frontend::AppPort;
use provost_frontend_grpc::{NodeAnswer, ServiceBinding, ServiceRefusal};
use provost_shm::Doorbell;

use crate::call_port::CallPort;
use crate::engines::FittedEngine;
use crate::frozen::{AdoptedApp, FrozenRuntime};
use crate::ids::{AppId, ConnectionId, WaitMode};
use crate::inbox::DatapathWaker;
use crate::orders::{DescribeOrder, ReconfigureOrder};
use crate::reply::Reply;

/// What a runtime is told.
pub enum RuntimeCommand {
    /// An app is there.
    Attach(Box<NewApp>),
    /// A gRPC client is there.
    AttachCaller(Box<NewCaller>),
    /// What was found of a service that a gRPC client calls.
    AnswerService(Box<ServiceAnswer>),
    /// What a service of the node's own says to a gRPC client.
    AnswerNodeCall(Box<CallerAnswer>),
    /// A gRPC client is to end its calls, and to begin no others.
    DrainCaller(AppId),
    /// The calls of a gRPC client end now.
    EndCaller(Box<CallerEnding>),
    /// An app is gone: what it submitted before still goes out, then its connections end.
    Detach(AppId),
    /// A connection of an app is there.
    Open(Box<NewConnection>),
    /// Change the engines of a datapath.
    Reconfigure(Box<ReconfigureOrder>),
    /// Say what the datapaths are made of.
    Describe(Box<DescribeOrder>),
    /// An app has mapped a completion region.
    RegionMapped { app: AppId, generation: u64 },
    /// Rest, because another process is to go on.
    Freeze(Reply<FrozenRuntime>),
    /// Go on with apps of another process.
    Adopt(Box<Vec<AdoptedApp>>),
    /// End the thread, whatever is in flight.
    Stop,
}

/// An app that is to be polled.
pub struct NewApp {
    pub app: AppId,
    /// Its rings and receive heap.
    pub port: AppPort,
    /// What it rings to wake the runtime.
    pub doorbell: Doorbell,
    /// How long the runtime polls for it after its last work.
    pub waiting: WaitMode,
}

/// A gRPC client, or calls that another node passes on, to be polled. What holds of apps holds of it, under its number.
pub struct NewCaller {
    /// Its number, unlike that of every app.
    pub app: AppId,
    /// What is polled of it.
    pub port: Box<dyn CallPort>,
}

/// What was found of a service that a gRPC client calls.
pub struct ServiceAnswer {
    /// Which client, by its number.
    pub app: AppId,
    /// The name of the service.
    pub service: String,
    /// Where calls go, or why they do not.
    pub found: Result<ServiceBinding, ServiceRefusal>,
}

/// What is said to a gRPC client of a service of the node's own.
pub struct CallerAnswer {
    /// Which client, by its number.
    pub app: AppId,
    /// What the control plane answers.
    pub answer: NodeAnswer,
}

/// How the calls of a gRPC client end before their time.
pub struct CallerEnding {
    /// Which client, by its number.
    pub app: AppId,
    /// The status of its calls.
    pub refusal: ServiceRefusal,
}

/// A connection that is to be polled.
pub struct NewConnection {
    /// Its number at the control plane.
    pub id: ConnectionId,
    pub app: AppId,
    /// Its engines: frontend, policies, marshalling, transport.
    pub datapath: Datapath,
    /// What is known of each of them.
    pub fitted: Vec<FittedEngine>,
    /// Makes the datapath be polled.
    pub waker: Arc<DatapathWaker>,
    /// Whatever counts the connection for as long as it lives.
    pub permit: Box<dyn Send>,
    /// For a server's connection: the request by which the app offered the service; the app is told.
    pub accepted_for: Option<u64>,
    /// Gets the connection's number, when the runtime polls it. It is dropped if the app is gone.
    pub opened: Reply<u32>,
}
