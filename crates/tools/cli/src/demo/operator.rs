//! The operator of the demonstration: asks a node's admin API for changes while calls go on.

use std::path::Path;
use std::time::Duration;

use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    AttachPolicyRequest, Change, DetachPolicyRequest, Policy, SetPolicyRequest, UpgradeDaemonRequest,
    UpgradeDaemonResponse, UpgradeEngineRequest,
};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::DemoError;

/// How long a node may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// How often and in what intervals a daemon that has just taken over is tried.
const TRIES_MAX: usize = 200;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// A connection to a node's admin API.
pub(crate) struct Operator {
    node: &'static str,
    socket: String,
    client: AdminClient<Channel>,
}

impl Operator {
    /// Connects to the node whose admin API is at this socket.
    pub(crate) async fn connect(node: &'static str, socket: &Path) -> Result<Operator, DemoError> {
        let socket = format!("unix://{}", socket.display());
        let client = connect(node, &socket).await?;
        Ok(Operator { node, socket, client })
    }

    /// Attaches a policy; an empty `side` is both.
    pub(crate) async fn attach(&mut self, policy: Policy) -> Result<Change, DemoError> {
        let request = AttachPolicyRequest {
            policy: Some(policy),
            ..AttachPolicyRequest::default()
        };
        let changed = self.client.attach_policy(request).await;
        changed
            .map(tonic::Response::into_inner)
            .map_err(|status| self.refused(&status))
    }

    /// Gives a policy another configuration.
    pub(crate) async fn set(&mut self, name: &str, config: &str) -> Result<Change, DemoError> {
        let request = SetPolicyRequest {
            name: name.to_owned(),
            config: config.to_owned(),
            ..SetPolicyRequest::default()
        };
        let changed = self.client.set_policy(request).await;
        changed
            .map(tonic::Response::into_inner)
            .map_err(|status| self.refused(&status))
    }

    /// Takes a policy away.
    pub(crate) async fn detach(&mut self, name: &str) -> Result<Change, DemoError> {
        let request = DetachPolicyRequest {
            name: name.to_owned(),
        };
        let changed = self.client.detach_policy(request).await;
        changed
            .map(tonic::Response::into_inner)
            .map_err(|status| self.refused(&status))
    }

    /// Puts a version of an engine into all datapaths of the node.
    pub(crate) async fn upgrade(&mut self, kind: &str, version: u32) -> Result<Change, DemoError> {
        let request = UpgradeEngineRequest {
            kind: kind.to_owned(),
            version,
            ..UpgradeEngineRequest::default()
        };
        let changed = self.client.upgrade_engine(request).await;
        changed
            .map(tonic::Response::into_inner)
            .map_err(|status| self.refused(&status))
    }

    /// Replaces the node's whole service by a new process.
    pub(crate) async fn replace(&mut self) -> Result<UpgradeDaemonResponse, DemoError> {
        let replaced = self.client.upgrade_daemon(UpgradeDaemonRequest::default()).await;
        let replaced = replaced.map_err(|status| self.refused(&status))?.into_inner();
        self.client = connect(self.node, &self.socket).await?;
        Ok(replaced)
    }

    fn refused(&self, status: &Status) -> DemoError {
        DemoError::Refused {
            node: self.node,
            message: status.message().to_owned(),
        }
    }
}

async fn connect(node: &'static str, socket: &str) -> Result<AdminClient<Channel>, DemoError> {
    let refused = |error: tonic::transport::Error| DemoError::Refused {
        node,
        message: format!("{socket}: {error}"),
    };
    let endpoint = Endpoint::from_shared(socket.to_owned()).map_err(refused)?;
    let mut tries = 1;
    loop {
        match endpoint.clone().timeout(ANSWER_WITHIN).connect().await {
            Ok(channel) => return Ok(AdminClient::new(channel)),
            Err(error) if tries >= TRIES_MAX => return Err(refused(error)),
            Err(_) => tokio::time::sleep(BETWEEN_TRIES).await,
        }
        tries += 1;
    }
}
