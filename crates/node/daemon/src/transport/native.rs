//! What the transports of the native protocol have in common: each connection is a [`SessionTransport`], and they differ in
//! the carrier of its bytes alone.

use provost_datapath::{Engine, EngineStart, Predecessor, RestoreError, SavedState};
use provost_shm::now_ns;
use provost_transport::{
    Carrier, ConnectError, ConnectParams, Established, SessionTransport, StateTransfer, TransportConfig,
};

use super::{ConnectFailure, ConnectRequest, EstablishedPeer, TransportKind, TransportOptions, damaged};

impl ConnectRequest {
    /// What the handshake of the native protocol has to know of it.
    pub(super) fn into_params(self) -> ConnectParams {
        ConnectParams {
            address: self.address,
            hello: self.hello,
            descriptor_set: self.descriptor_set,
            tls: self.tls,
            deadline: self.deadline,
        }
    }
}

impl From<ConnectError> for ConnectFailure {
    fn from(error: ConnectError) -> ConnectFailure {
        ConnectFailure {
            code: error.code,
            message: error.message,
        }
    }
}

/// A peer of a transport whose code has one version.
pub(super) fn peer<C: Carrier + 'static>(
    kind: TransportKind,
    established: Established<C>,
) -> EstablishedPeer {
    peer_by_version(kind, established, |carrier, _| carrier)
}

/// A peer whose carrier `with_version` has it use the code of a version.
pub(super) fn peer_by_version<C: Carrier + 'static>(
    kind: TransportKind,
    established: Established<C>,
    with_version: fn(C, u32) -> C,
) -> EstablishedPeer {
    EstablishedPeer {
        kind,
        identity: established.peer.name().to_owned(),
        address: established.peer_address.into(),
        claimed: None,
        encoding: established.agreement.encoding,
        peer_limits: established.agreement.peer_limits,
        engine: Box::new(move |version, options, signals| {
            let established = Established {
                carrier: with_version(established.carrier, version),
                ..established
            };
            let config = transport_config(options);
            Box::new(SessionTransport::new(established, config, signals, now_ns()))
        }),
    }
}

fn transport_config(options: TransportOptions) -> TransportConfig {
    TransportConfig {
        keepalive_interval_ns: options.keepalive_interval_ns,
        keepalive_timeout_ns: options.keepalive_timeout_ns,
        ..TransportConfig::default()
    }
}

/// Goes on from what an engine of this carrier has saved, where that and its descriptors are all that is needed.
pub(super) fn restore<C: Carrier<Resume = ()> + 'static>(_version: u32) -> EngineStart {
    Box::new(|predecessor| {
        restore_by(predecessor, |saved, state_transfer| {
            SessionTransport::<C>::restore((), saved, state_transfer)
        })
    })
}

/// Goes on from what a predecessor has saved, in the way of `restore`.
pub(super) fn restore_by<C: Carrier + 'static>(
    predecessor: Predecessor<'_>,
    restore: impl FnOnce(&SavedState, StateTransfer<'_>) -> Result<SessionTransport<C>, RestoreError>,
) -> Result<Box<dyn Engine>, RestoreError> {
    let saved = predecessor
        .saved
        .ok_or_else(|| damaged(C::KIND, "nothing was saved"))?;
    let state_transfer = StateTransfer {
        descriptors: predecessor.descriptors,
        link: predecessor.link,
        restorer: predecessor.restorer,
    };
    Ok(Box::new(restore(saved, state_transfer)?))
}
