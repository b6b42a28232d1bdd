//! An operator: what the bench asks of a node's admin API while calls go on.

use std::path::Path;
use std::time::{Duration, Instant};

use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    AttachPolicyRequest, Datapath, DetachPolicyRequest, ListDatapathsRequest, Policy, SetPolicyRequest,
    UpgradeDaemonRequest, UpgradeEngineRequest,
};
use provost_shm::now_ns;
use tonic::transport::{Channel, Endpoint};

use crate::failure::{Doing, Failure};
use crate::timeline::Window;

/// How long a node may take to answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a daemon that has just taken over may take to open its admin socket.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);

/// A connection to a node's admin API.
pub(crate) struct Operator {
    runtime: tokio::runtime::Runtime,
    client: AdminClient<Channel>,
    socket: String,
}

impl Operator {
    /// Connects to the admin API at a socket.
    pub(crate) fn connect(socket: &Path) -> Result<Operator, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .doing(|| "start a tokio runtime".into())?;
        let socket = format!("unix://{}", socket.display());
        let client = runtime.block_on(connect(&socket))?;
        Ok(Operator {
            runtime,
            client,
            socket,
        })
    }

    pub(crate) fn datapaths(&mut self) -> Result<Vec<Datapath>, Failure> {
        let listed = self.client.list_datapaths(ListDatapathsRequest::default());
        let listed = self.runtime.block_on(listed).map_err(refused)?;
        Ok(listed.into_inner().datapaths)
    }

    /// Attaches a policy to everything, and says when.
    pub(crate) fn attach(&mut self, name: &str, kind: &str, config: &str) -> Result<Window, Failure> {
        let request = AttachPolicyRequest {
            policy: Some(Policy {
                name: name.into(),
                kind: kind.into(),
                config: config.into(),
                ..Policy::default()
            }),
            ..AttachPolicyRequest::default()
        };
        let from_ns = now_ns();
        let attached = self.runtime.block_on(self.client.attach_policy(request));
        attached.map_err(refused)?;
        Ok(since(from_ns))
    }

    /// Gives a policy another configuration, and says when.
    pub(crate) fn set(&mut self, name: &str, config: &str) -> Result<Window, Failure> {
        let request = SetPolicyRequest {
            name: name.into(),
            config: config.into(),
            dry_run: false,
        };
        let from_ns = now_ns();
        self.runtime
            .block_on(self.client.set_policy(request))
            .map_err(refused)?;
        Ok(since(from_ns))
    }

    /// Takes a policy away, and says when.
    pub(crate) fn detach(&mut self, name: &str) -> Result<Window, Failure> {
        let request = DetachPolicyRequest { name: name.into() };
        let from_ns = now_ns();
        let detached = self.runtime.block_on(self.client.detach_policy(request));
        detached.map_err(refused)?;
        Ok(since(from_ns))
    }

    /// Puts another version of an engine into one connection's datapath, and says when.
    pub(crate) fn upgrade(&mut self, kind: &str, version: u32, connection: u64) -> Result<Window, Failure> {
        let request = UpgradeEngineRequest {
            kind: kind.into(),
            version,
            connection,
            ..UpgradeEngineRequest::default()
        };
        let from_ns = now_ns();
        let upgraded = self.runtime.block_on(self.client.upgrade_engine(request));
        upgraded.map_err(refused)?;
        Ok(since(from_ns))
    }

    /// Replaces the daemon, and says when and how long it says that it stood still, in microseconds.
    pub(crate) fn upgrade_daemon(&mut self) -> Result<(Window, f64), Failure> {
        let from_ns = now_ns();
        let upgraded = self.client.upgrade_daemon(UpgradeDaemonRequest::default());
        let upgraded = self.runtime.block_on(upgraded).map_err(refused)?;
        let window = since(from_ns);
        // The old process ends; what comes next is for the new one.
        self.client = self.runtime.block_on(connect(&self.socket))?;
        Ok((window, upgraded.into_inner().pause_ms * 1e3))
    }
}

async fn connect(socket: &str) -> Result<AdminClient<Channel>, Failure> {
    let refused = |error: tonic::transport::Error| Failure::role("operator", format!("{socket}: {error:?}"));
    let endpoint = Endpoint::from_shared(socket.to_owned()).map_err(refused)?;
    let began = Instant::now();
    loop {
        match endpoint.clone().timeout(ANSWER_TIME_MAX).connect().await {
            Ok(channel) => return Ok(AdminClient::new(channel)),
            Err(error) if began.elapsed() > CONNECT_TIME_MAX => return Err(refused(error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

fn since(from_ns: u64) -> Window {
    Window {
        from_ns,
        to_ns: now_ns(),
    }
}

fn refused(status: tonic::Status) -> Failure {
    Failure::role("operator", format!("{}: {}", status.code(), status.message()))
}
