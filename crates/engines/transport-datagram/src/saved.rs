//! What a datagram transport leaves its successor, beside its socket.
//!
//! Form 2: what the connection is, how far it has come, its lane, and the protocol's connection. Form 1, in which lanes were
//! not sealed, is still read. All numbers are little-endian.

use std::net::UdpSocket;

use provost_datapath::{FieldReader, FieldWriter, Packets, RestoreError, SavedState, Saver};
use provost_session::{Connection, Stage};

use crate::engine::Pending;
use crate::lane::Lane;
use crate::{DatagramTransport, Handover, TransportConfig};

/// What kind of engine it is.
pub const KIND: &str = "transport-datagram";
/// The newest form.
const FORM: u32 = 2;

/// What a connection is, beside its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) config: TransportConfig,
    pub(crate) service: String,
}

impl DatagramTransport {
    /// Takes a saved connection up again.
    ///
    /// # Errors
    /// The state is not one to go on from.
    pub fn restore(state: &SavedState, handover: Handover<'_>) -> Result<DatagramTransport, RestoreError> {
        let mut fields = state.open(KIND, FORM)?;
        let mut descriptors = handover.descriptors.into_iter();
        let (Some(socket), None) = (descriptors.next(), descriptors.next()) else {
            return Err(fields.damaged("it needs one descriptor, its socket"));
        };
        let about = About::restore(&mut fields)?;
        let stage = Stage::restore(&mut fields)?;
        let lane = Lane::restore(UdpSocket::from(socket), &mut fields, state.version)?;
        let connection = Connection::restore(&mut fields, handover.restorer)?;
        fields.end()?;
        Ok(DatagramTransport {
            link: handover.link,
            connection,
            lane,
            stage,
            // What happened meanwhile is found by trying.
            input: Pending::Yes,
            about,
            counted: Packets::default(),
        })
    }

    pub(crate) fn save_all(&self, saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        self.about.save(&mut out);
        self.stage.save(&mut out);
        self.lane.save(&mut out);
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
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<About, RestoreError> {
        Ok(About {
            config: TransportConfig {
                keepalive_interval_ns: fields.u64()?,
                keepalive_timeout_ns: fields.u64()?,
                linger_ns: fields.u64()?,
            },
            service: fields.text()?.to_owned(),
        })
    }
}
