//! The proxies that are up while a profile is taken, each with a server behind it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use provost_insight::profile::{Component, Protocol};

use super::{ProfileOrder, ProfiledProxy};
use crate::failure::{Doing, ProbeFailure};
use crate::load::EchoServer;
use crate::proxies::{ProxyJob, ProxyVariant, RunningProxy, ServerAddress, free_address};
use crate::stacks::UserCode;

/// A proxy with the server behind it, for one protocol.
pub(super) struct ProxySetup {
    pub(super) server: EchoServer,
    pub(super) proxy: RunningProxy,
    pub(super) protocol: Protocol,
    pub(super) difference: SetupDifference,
    pub(super) code: Option<UserCode>,
    /// Where the server's Unix socket is.
    _folder: tempfile::TempDir,
}

/// What a proxy does beside passing bytes on in its usual way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SetupDifference {
    pub(super) filters: Vec<String>,
    pub(super) variant: Option<ProxyVariant>,
}

impl SetupDifference {
    pub(super) fn is_bare(&self) -> bool {
        *self == SetupDifference::default()
    }

    /// The component that costs what the proxy with the difference takes longer, if it is one component.
    pub(super) fn component(&self) -> Option<Component> {
        match (&self.filters[..], self.variant) {
            ([], Some(variant)) => Some(variant.component()),
            ([filter], None) => Some(Component::Filter(filter.clone())),
            _ => None,
        }
    }
}

/// A proxy for each protocol, and one for each filter, all filters together, and each variant.
pub(super) fn setups(order: &ProfileOrder, notes: &mut Vec<String>) -> Result<Vec<ProxySetup>, ProbeFailure> {
    let mut setups = Vec::new();
    let mut start = |protocol, difference| match ProxySetup::start(order, protocol, difference) {
        Ok(setup) => Ok(Some(setup)),
        // Another protocol may work.
        Err(ProbeFailure::Unavailable(why)) if order.protocols.len() > 1 => {
            notes.push(why);
            Ok(None)
        }
        Err(failure) => Err(failure),
    };
    for protocol in &order.protocols {
        setups.extend(start(*protocol, SetupDifference::default())?);
    }
    let mut chains: Vec<Vec<String>> = order.filters.iter().map(|name| vec![name.clone()]).collect();
    if order.filters.len() > 1 {
        chains.push(order.filters.clone());
    }
    let bare: Vec<Protocol> = setups.iter().map(|setup: &ProxySetup| setup.protocol).collect();
    for protocol in bare {
        for variant in &order.variants {
            let difference = SetupDifference {
                variant: Some(*variant),
                ..SetupDifference::default()
            };
            setups.extend(start(protocol, difference)?);
        }
        // Bytes that a proxy does not understand pass no filter.
        for chain in chains.iter().filter(|_| protocol != Protocol::Tcp) {
            let difference = SetupDifference {
                filters: chain.clone(),
                ..SetupDifference::default()
            };
            setups.extend(start(protocol, difference)?);
        }
    }
    Ok(setups)
}

impl ProxySetup {
    fn start(
        order: &ProfileOrder,
        protocol: Protocol,
        difference: SetupDifference,
    ) -> Result<ProxySetup, ProbeFailure> {
        // A proxy that root starts may work as another user, who has to reach what is within.
        let folder = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o711))
            .tempdir()
            .doing(|| "make a temporary folder".into())?;
        let port = match order.proxy {
            ProfiledProxy::Running { upstream_port, .. } => upstream_port,
            _ => 0,
        };
        let socket = folder.path().join("server");
        let (server, upstream) = if difference.variant == Some(ProxyVariant::UnixSockets) {
            let server = EchoServer::start_at_socket(protocol, &socket)?;
            (server, ServerAddress::Unix(socket))
        } else {
            let server = EchoServer::start_at(protocol, port)?;
            let address = server.address();
            (server, ServerAddress::Tcp(address))
        };
        let job = ProxyJob {
            protocol,
            listen: free_address()?,
            upstream,
            filters: difference.filters.clone(),
            variant: difference.variant,
        };
        let proxy = match &order.proxy {
            ProfiledProxy::BuiltIn(kind) => RunningProxy::start(*kind, &job)?,
            ProfiledProxy::Command(command) => RunningProxy::start_command(command, &job)?,
            ProfiledProxy::Running { process, listen, .. } => RunningProxy::adopt(*process, *listen)?,
        };
        Ok(ProxySetup {
            server,
            proxy,
            protocol,
            difference,
            code: None,
            _folder: folder,
        })
    }
}
