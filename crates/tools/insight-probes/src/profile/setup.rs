//! The proxies that are up while a profile is taken, each with a server behind it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use provost_insight::profile::{Component, Protocol};

use super::order::NO_FILTERS_OVER_TCP;
use super::{MethodChoice, ProfileOrder, ProfiledProxy};
use crate::doctor::GrantedMethods;
use crate::failure::{Doing, ProbeFailure};
use crate::load::EchoServer;
use crate::proxies::{ProxyJob, ProxyKind, ProxyVariant, RunningProxy, ServerAddress, free_address};
use crate::stacks::UserCode;

/// A proxy with the server behind it, for one protocol.
pub(super) struct ProxySetup {
    pub(super) server: EchoServer,
    pub(super) proxy: RunningProxy,
    pub(super) protocol: Protocol,
    pub(super) difference: SetupDifference,
    pub(super) code: Option<UserCode>,
    /// Where it logs each call, if that is read.
    pub(super) access_log: Option<PathBuf>,
    /// Where the server's Unix socket is, and the log of one that this tool configures.
    _folder: tempfile::TempDir,
}

/// Whether access logs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogUse {
    Unread,
    /// That of a proxy which this tool configures: one that logs stands beside one that does not.
    Configured,
    /// That which the user's proxy writes anyway.
    Users,
}

impl LogUse {
    /// Only Envoy's log has the durations that are needed; where the kernel grants events, they tell more.
    pub(super) fn of(order: &ProfileOrder, granted: GrantedMethods) -> LogUse {
        let is_chosen = match order.methods {
            MethodChoice::AccessLog => true,
            MethodChoice::Best => !granted.tracepoints,
            MethodChoice::Differential => false,
        };
        let is_envoy = matches!(order.proxy, ProfiledProxy::BuiltIn(ProxyKind::Envoy));
        match (is_chosen, is_envoy, &order.access_log) {
            (true, _, Some(_)) => LogUse::Users,
            (true, true, None) => LogUse::Configured,
            _ => LogUse::Unread,
        }
    }
}

/// What a proxy does beside passing bytes on in its usual way.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SetupDifference {
    pub(super) filters: Vec<String>,
    pub(super) variant: Option<ProxyVariant>,
    /// It logs each call.
    pub(super) logs: bool,
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

/// A proxy for each protocol, and one that logs, for each filter, all filters together, and each variant.
pub(super) fn setups(
    order: &ProfileOrder,
    logs: LogUse,
    notes: &mut Vec<String>,
) -> Result<Vec<ProxySetup>, ProbeFailure> {
    let mut setups = Vec::new();
    if !order.filters.is_empty() && order.protocols.contains(&Protocol::Tcp) {
        notes.push(NO_FILTERS_OVER_TCP.into());
    }
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
        if logs == LogUse::Configured && protocol != Protocol::Tcp {
            let difference = SetupDifference {
                logs: true,
                ..SetupDifference::default()
            };
            setups.extend(start(protocol, difference)?);
        }
        for variant in &order.variants {
            let difference = SetupDifference {
                variant: Some(*variant),
                ..SetupDifference::default()
            };
            setups.extend(start(protocol, difference)?);
        }
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
        let own_log = difference.logs.then(|| folder.path().join("access.log"));
        let job = ProxyJob {
            protocol,
            listen: free_address()?,
            upstream,
            filters: difference.filters.clone(),
            variant: difference.variant,
            access_log: own_log.clone(),
        };
        let proxy = match &order.proxy {
            ProfiledProxy::BuiltIn(kind) => RunningProxy::start(*kind, &job, &order.stop)?,
            ProfiledProxy::Command(command) => RunningProxy::start_command(command, &job, &order.stop)?,
            ProfiledProxy::Running { process, listen, .. } => RunningProxy::adopt(*process, *listen)?,
        };
        Ok(ProxySetup {
            server,
            proxy,
            protocol,
            difference,
            code: None,
            access_log: own_log.or_else(|| order.access_log.clone()),
            _folder: folder,
        })
    }
}
