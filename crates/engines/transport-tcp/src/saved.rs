//! What a TCP transport leaves behind when another version takes its place: what the connection is. Its socket is
//! passed beside. Form, version 1, little-endian: see [`Parameters::save`].

use std::net::{SocketAddr, TcpStream};

use provost_datapath::{RestoreError, SavedState};
use provost_session::Role;
use provost_session::handshake::{Agreement, Encoding, Limits, MethodKind};

use crate::{Established, Handover, PeerIdentity, TcpTransport, TcpVersion, TransportConfig};

pub(crate) const KIND: &str = "transport-tcp";
const VERSION: u32 = 1;

/// What a connection is, beside its calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) role: Role,
    pub(crate) config: TransportConfig,
    pub(crate) agreement: Agreement,
    pub(crate) limits: Limits,
    pub(crate) service: String,
    pub(crate) peer: PeerIdentity,
    pub(crate) peer_address: SocketAddr,
    pub(crate) security: Security,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Security {
    Plain,
    /// A session's keys are not saved: such a connection ends with its process.
    Tls,
}

impl Parameters {
    pub(crate) fn new(established: &Established, role: Role, config: TransportConfig) -> Parameters {
        Parameters {
            role,
            config,
            agreement: established.agreement.clone(),
            limits: established.limits,
            service: established.service.clone(),
            peer: established.peer.clone(),
            peer_address: established.peer_address,
            security: if established.tls.is_some() {
                Security::Tls
            } else {
                Security::Plain
            },
        }
    }

    pub(crate) fn save(&self) -> SavedState {
        let mut out = vec![
            u8::from(self.role == Role::Server),
            u8::from(self.agreement.encoding == Encoding::Protobuf),
            u8::from(self.security == Security::Tls),
        ];
        let config = [
            self.config.keepalive_interval_ns,
            self.config.keepalive_timeout_ns,
            self.config.linger_ns,
        ];
        config
            .iter()
            .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        for limits in [self.limits, self.agreement.peer_limits] {
            let limits = [
                limits.message_bytes_max,
                limits.stream_window_bytes,
                limits.calls_in_flight_max,
            ];
            limits
                .iter()
                .for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
        }
        put_text(&mut out, &self.service);
        let (kind, name) = match &self.peer {
            PeerIdentity::Anonymous => (0, ""),
            PeerIdentity::Spiffe(name) => (1, name.as_str()),
            PeerIdentity::Dns(name) => (2, name.as_str()),
        };
        out.push(kind);
        put_text(&mut out, name);
        put_text(&mut out, &self.peer_address.to_string());
        out.extend_from_slice(&(self.agreement.methods.len() as u32).to_le_bytes());
        for method in &self.agreement.methods {
            let (known, at, kind) = method.map_or((0, 0, MethodKind::default()), |(at, kind)| (4, at, kind));
            out.push(known | u8::from(kind.client_streaming) | u8::from(kind.server_streaming) << 1);
            out.extend_from_slice(&at.to_le_bytes());
        }
        SavedState {
            kind: KIND.to_owned(),
            version: VERSION,
            bytes: out,
        }
    }

    fn restore(state: &SavedState) -> Result<Parameters, RestoreError> {
        if state.kind != KIND {
            return Err(RestoreError::Kind {
                expected: KIND,
                found: state.kind.clone(),
            });
        }
        if state.version != VERSION {
            return Err(RestoreError::Version {
                kind: KIND,
                found: state.version,
                newest: VERSION,
            });
        }
        let mut fields = Fields(&state.bytes);
        let parameters = fields
            .parameters()
            .ok_or_else(|| damaged("a field is missing or out of range"))?;
        match fields.0 {
            [] => Ok(parameters),
            _ => Err(damaged("more bytes than fields")),
        }
    }
}

impl TcpTransport {
    /// Takes a saved connection up again, with the code of this version.
    pub fn restore(
        _version: TcpVersion,
        state: &SavedState,
        handover: Handover<'_>,
    ) -> Result<TcpTransport, RestoreError> {
        let Handover {
            descriptors, link, ..
        } = handover;
        let mut descriptors = descriptors.into_iter();
        let (Some(socket), None) = (descriptors.next(), descriptors.next()) else {
            return Err(damaged("it needs one descriptor, its socket"));
        };
        let (socket, now) = (TcpStream::from(socket), 0);
        let parameters = Parameters::restore(state)?;
        if parameters.security == Security::Tls {
            return Err(damaged("a TLS session cannot be taken up by another process"));
        }
        let (role, config) = (parameters.role, parameters.config);
        let established = Established {
            socket,
            tls: None,
            leftover: Vec::new(),
            agreement: parameters.agreement,
            limits: parameters.limits,
            service: parameters.service,
            peer: parameters.peer,
            peer_address: parameters.peer_address,
        };
        Ok(TcpTransport::new(established, role, config, link, now))
    }
}

fn damaged(reason: &str) -> RestoreError {
    RestoreError::Damaged {
        kind: KIND,
        reason: reason.to_owned(),
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn parameters(&mut self) -> Option<Parameters> {
        let [server, protobuf, tls] = self.take()?;
        let config = TransportConfig {
            keepalive_interval_ns: u64::from_le_bytes(self.take()?),
            keepalive_timeout_ns: u64::from_le_bytes(self.take()?),
            linger_ns: u64::from_le_bytes(self.take()?),
        };
        let (limits, peer_limits) = (self.limits()?, self.limits()?);
        let service = self.text()?;
        let [kind] = self.take()?;
        let peer = match (kind, self.text()?) {
            (0, _) => PeerIdentity::Anonymous,
            (1, name) => PeerIdentity::Spiffe(name),
            (2, name) => PeerIdentity::Dns(name),
            _ => return None,
        };
        let peer_address = self.text()?.parse().ok()?;
        let count = self.u32()?;
        let methods = (0..count).map(|_| self.method()).collect::<Option<Vec<_>>>()?;
        let encoding = if protobuf == 1 {
            Encoding::Protobuf
        } else {
            Encoding::Native
        };
        Some(Parameters {
            role: if server == 1 { Role::Server } else { Role::Client },
            config,
            agreement: Agreement {
                encoding,
                peer_limits,
                methods,
            },
            limits,
            service,
            peer,
            peer_address,
            security: if tls == 1 { Security::Tls } else { Security::Plain },
        })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn limits(&mut self) -> Option<Limits> {
        Some(Limits {
            message_bytes_max: self.u32()?,
            stream_window_bytes: self.u32()?,
            calls_in_flight_max: self.u32()?,
        })
    }

    fn text(&mut self) -> Option<String> {
        let bytes = self.u32()? as usize;
        let (text, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    #[allow(clippy::option_option)]
    fn method(&mut self) -> Option<Option<(u16, MethodKind)>> {
        let [flags] = self.take()?;
        let at = u16::from_le_bytes(self.take()?);
        let kind = MethodKind {
            client_streaming: flags & 1 != 0,
            server_streaming: flags & 2 != 0,
        };
        Some((flags & 4 != 0).then_some((at, kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_restored_and_damage_is_noticed() {
        let kind = MethodKind {
            client_streaming: true,
            server_streaming: false,
        };
        let parameters = Parameters {
            role: Role::Server,
            config: TransportConfig::default(),
            agreement: Agreement {
                encoding: Encoding::Protobuf,
                peer_limits: Limits {
                    stream_window_bytes: 77,
                    ..Limits::default()
                },
                methods: vec![Some((3, kind)), None],
            },
            limits: Limits::default(),
            service: "kv.Kv".into(),
            peer: PeerIdentity::Spiffe("spiffe://a/b".into()),
            peer_address: "127.0.0.1:9".parse().unwrap(),
            security: Security::Plain,
        };
        let saved = parameters.save();
        assert_eq!(Parameters::restore(&saved), Ok(parameters));
        for cut in 0..saved.bytes.len() {
            let bytes = saved.bytes[..cut].to_vec();
            let state = SavedState {
                bytes,
                ..saved.clone()
            };
            assert!(matches!(
                Parameters::restore(&state),
                Err(RestoreError::Damaged { .. })
            ));
        }
        let newer = SavedState { version: 2, ..saved };
        assert!(matches!(
            Parameters::restore(&newer),
            Err(RestoreError::Version { found: 2, .. })
        ));
    }
}
