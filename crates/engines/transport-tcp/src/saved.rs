//! Parts of the saved state that are of TCP alone, and the oldest form of all of it.
//!
//! Form 2 is that of every transport ([`provost_transport::SessionTransport::restore`]). Form 1, which had no calls and no TLS, is
//! still read. All versions of the transport write and read the same.

use std::net::{SocketAddr, TcpStream};

use provost_datapath::{FieldReader, FieldWriter, MissingMethods, RestoreError, SavedField, SavedState};
use provost_session::Role;
use provost_session::handshake::{Agreement, Encoding, Limits, MethodKind};
use provost_transport::{Carrier, Established, PeerIdentity, StateTransfer, TransportConfig, take_socket};

use crate::carrier::{TcpCarrier, TcpPeer};
use crate::socket::CarrierSocket;
use crate::{TcpTransport, TcpVersion};

/// The form without calls.
const FORM_AT_REST: u32 = 1;
/// Methods of one connection.
const METHODS_MAX: usize = provost_wire::limits::SERVICE_METHODS_MAX;

/// Takes a saved connection of any form up again, with the code of this version.
///
/// # Errors
/// The state is not one to go on from.
pub fn restore(
    version: TcpVersion,
    state: &SavedState,
    state_transfer: StateTransfer<'_>,
) -> Result<TcpTransport, RestoreError> {
    if state.version != FORM_AT_REST {
        return TcpTransport::restore(version, state, state_transfer);
    }
    let mut fields = state.open(TcpCarrier::KIND, TcpCarrier::FORM)?;
    let stream = take_socket(state_transfer.descriptors, &fields)?.into();
    let (established, config) = restore_at_rest(&mut fields, stream, version)?;
    fields.end()?;
    Ok(TcpTransport::new(established, config, state_transfer.link, 0))
}

fn restore_at_rest(
    fields: &mut FieldReader<'_>,
    stream: TcpStream,
    version: TcpVersion,
) -> Result<(Established<TcpCarrier>, TransportConfig), RestoreError> {
    let (role, encoding) = (Role::restore(fields)?, Encoding::restore(fields)?);
    if fields.flag()? {
        return Err(fields.damaged("its TLS session was not saved"));
    }
    let config = TransportConfig::restore(fields)?;
    let (limits, peer_limits) = (Limits::restore(fields)?, Limits::restore(fields)?);
    let service = fields.text()?.to_owned();
    let peer = TcpPeer::restore(fields)?;
    let count = fields.count(METHODS_MAX)?;
    let methods = (0..count)
        .map(|_| restore_method(fields))
        .collect::<Result<_, _>>()?;
    let socket = CarrierSocket::new(stream, None, Vec::new());
    let established = Established {
        carrier: TcpCarrier::new(socket, peer.clone()).with_version(version),
        role,
        agreement: Agreement {
            encoding,
            peer_limits,
            methods,
            missing: MissingMethods::default(),
        },
        limits,
        service,
        peer: peer.identity,
        peer_address: peer.address,
    };
    Ok((established, config))
}

impl SavedField for TcpPeer {
    fn save(&self, out: &mut FieldWriter) {
        let (kind, name) = match &self.identity {
            PeerIdentity::Anonymous => (0, ""),
            PeerIdentity::Spiffe(name) => (1, name.as_str()),
            PeerIdentity::Dns(name) => (2, name.as_str()),
        };
        out.u8(kind);
        out.text(name);
        out.text(&self.address.to_string());
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<TcpPeer, RestoreError> {
        let identity = match (fields.u8()?, fields.text()?) {
            (0, _) => PeerIdentity::Anonymous,
            (1, name) => PeerIdentity::Spiffe(name.to_owned()),
            (2, name) => PeerIdentity::Dns(name.to_owned()),
            (kind, _) => return Err(fields.damaged(format!("a peer of the unknown kind {kind}"))),
        };
        let text = fields.text()?;
        let address: Result<SocketAddr, _> = text.parse();
        let address = address.map_err(|_| fields.damaged(format!("{text} is no address")))?;
        Ok(TcpPeer { identity, address })
    }
}

fn restore_method(fields: &mut FieldReader<'_>) -> Result<Option<(u16, MethodKind)>, RestoreError> {
    let (flags, at) = (fields.u8()?, fields.u16()?);
    let kind = MethodKind {
        client_streaming: flags & 1 != 0,
        server_streaming: flags & 2 != 0,
    };
    Ok((flags & 4 != 0).then_some((at, kind)))
}
