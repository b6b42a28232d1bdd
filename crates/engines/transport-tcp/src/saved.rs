//! What a TCP transport leaves its successor, beside its socket. All versions of the transport write and read the same.
//!
//! Form 2: what the connection is, how far it has come, the socket's bytes under way and its TLS session, and the
//! protocol's connection. Form 1, which had no calls and no TLS, is still read. All numbers are little-endian.

use std::net::{SocketAddr, TcpStream};

use provost_datapath::{FieldReader, FieldWriter, RestoreError, SavedState, Saver};
use provost_session::handshake::{Agreement, Encoding, Limits, MethodKind};
use provost_session::{Connection, Role, Stage};

use crate::engine::{Output, Pending};
use crate::flight::Flight;
use crate::socket::Socket;
use crate::{Established, Handover, PeerIdentity, TcpTransport, TcpVersion, TransportConfig};

pub(crate) const KIND: &str = "transport-tcp";
/// The newest form.
const FORM: u32 = 2;
/// Methods of one connection.
const METHODS_MAX: usize = provost_wire::limits::SERVICE_METHODS_MAX;

/// What a connection is, beside its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) config: TransportConfig,
    pub(crate) service: String,
    pub(crate) peer: PeerIdentity,
    pub(crate) peer_address: SocketAddr,
}

impl TcpTransport {
    /// Takes a saved connection up again, with the code of this version.
    pub fn restore(
        version: TcpVersion,
        state: &SavedState,
        handover: Handover<'_>,
    ) -> Result<TcpTransport, RestoreError> {
        let mut fields = state.open(KIND, FORM)?;
        let mut descriptors = handover.descriptors.into_iter();
        let (Some(socket), None) = (descriptors.next(), descriptors.next()) else {
            return Err(fields.damaged("it needs one descriptor, its socket"));
        };
        let stream = TcpStream::from(socket);
        if state.version == 1 {
            let (role, established, config) = restore_form_1(&mut fields, stream, version)?;
            fields.end()?;
            return Ok(TcpTransport::new(established, role, config, handover.link, 0));
        }
        let about = About::restore(&mut fields, version)?;
        let stage = Stage::restore(&mut fields)?;
        let write_failed = match fields.flag()? {
            true => Some(fields.text()?.to_owned()),
            false => None,
        };
        let socket = Socket::restore(stream, &mut fields)?;
        let connection = Connection::restore(&mut fields, handover.restorer)?;
        fields.end()?;
        Ok(TcpTransport {
            link: handover.link,
            connection,
            socket,
            stage,
            // What happened meanwhile is found by trying.
            input: Pending::Yes,
            output: Output::Flows,
            flight: Flight::default(),
            write_failed,
            about,
        })
    }

    pub(crate) fn save_all(&self, saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        self.about.save(&mut out);
        self.stage.save(&mut out);
        out.flag(self.write_failed.is_some());
        if let Some(reason) = &self.write_failed {
            out.text(reason);
        }
        self.socket.save(&mut out);
        self.connection.save(saver, &mut out);
        SavedState {
            kind: KIND.to_owned(),
            version: FORM,
            bytes: out.bytes,
        }
    }
}

impl About {
    fn save(&self, out: &mut FieldWriter) {
        out.u64(self.config.keepalive_interval_ns);
        out.u64(self.config.keepalive_timeout_ns);
        out.u64(self.config.linger_ns);
        out.text(&self.service);
        let (kind, name) = match &self.peer {
            PeerIdentity::Anonymous => (0, ""),
            PeerIdentity::Spiffe(name) => (1, name.as_str()),
            PeerIdentity::Dns(name) => (2, name.as_str()),
        };
        out.u8(kind);
        out.text(name);
        out.text(&self.peer_address.to_string());
    }

    fn restore(fields: &mut FieldReader<'_>, version: TcpVersion) -> Result<About, RestoreError> {
        Ok(About {
            config: restore_config(fields, version)?,
            service: fields.text()?.to_owned(),
            peer: restore_peer(fields)?,
            peer_address: restore_address(fields)?,
        })
    }
}

fn restore_config(
    fields: &mut FieldReader<'_>,
    version: TcpVersion,
) -> Result<TransportConfig, RestoreError> {
    Ok(TransportConfig {
        keepalive_interval_ns: fields.u64()?,
        keepalive_timeout_ns: fields.u64()?,
        linger_ns: fields.u64()?,
        version,
    })
}

fn restore_peer(fields: &mut FieldReader<'_>) -> Result<PeerIdentity, RestoreError> {
    match (fields.u8()?, fields.text()?) {
        (0, _) => Ok(PeerIdentity::Anonymous),
        (1, name) => Ok(PeerIdentity::Spiffe(name.to_owned())),
        (2, name) => Ok(PeerIdentity::Dns(name.to_owned())),
        (kind, _) => Err(fields.damaged(format!("a peer of the unknown kind {kind}"))),
    }
}

fn restore_address(fields: &mut FieldReader<'_>) -> Result<SocketAddr, RestoreError> {
    let text = fields.text()?;
    text.parse()
        .map_err(|_| fields.damaged(format!("{text} is no address")))
}

fn restore_form_1(
    fields: &mut FieldReader<'_>,
    socket: TcpStream,
    version: TcpVersion,
) -> Result<(Role, Established, TransportConfig), RestoreError> {
    let role = match fields.flag()? {
        true => Role::Server,
        false => Role::Client,
    };
    let encoding = match fields.flag()? {
        true => Encoding::Protobuf,
        false => Encoding::Native,
    };
    if fields.flag()? {
        return Err(fields.damaged("its TLS session was not saved"));
    }
    let config = restore_config(fields, version)?;
    let (limits, peer_limits) = (restore_limits(fields)?, restore_limits(fields)?);
    let service = fields.text()?.to_owned();
    let peer = restore_peer(fields)?;
    let peer_address = restore_address(fields)?;
    let count = fields.count(METHODS_MAX)?;
    let methods = (0..count)
        .map(|_| restore_method(fields))
        .collect::<Result<_, _>>()?;
    let established = Established {
        socket,
        tls: None,
        leftover: Vec::new(),
        agreement: Agreement {
            encoding,
            peer_limits,
            methods,
        },
        limits,
        service,
        peer,
        peer_address,
    };
    Ok((role, established, config))
}

fn restore_limits(fields: &mut FieldReader<'_>) -> Result<Limits, RestoreError> {
    Ok(Limits {
        message_bytes_max: fields.u32()?,
        stream_window_bytes: fields.u32()?,
        calls_in_flight_max: fields.u32()?,
    })
}

fn restore_method(fields: &mut FieldReader<'_>) -> Result<Option<(u16, MethodKind)>, RestoreError> {
    let (flags, at) = (fields.u8()?, fields.u16()?);
    let kind = MethodKind {
        client_streaming: flags & 1 != 0,
        server_streaming: flags & 2 != 0,
    };
    Ok((flags & 4 != 0).then_some((at, kind)))
}
