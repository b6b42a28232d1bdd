//! What a transport leaves its successor, beside its socket.
//!
//! A state is what the connection is (times, service, peer), how far it has come, the carrier's bytes under way, and the
//! protocol's connection. All numbers are little-endian.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use provost_datapath::{
    ConnectionSignals, FieldReader, FieldWriter, RestoreError, Restorer, SavedField, SavedState, Saver,
};
use provost_session::{Connection, Stage};

use crate::lifecycle::InputState;
use crate::{Carrier, SessionTransport, TransportConfig};

/// What a successor is given beside the saved state.
pub struct StateTransfer<'a> {
    /// Its predecessor's descriptors ([`provost_datapath::TransportEngine::descriptors`]), duplicated.
    pub descriptors: Vec<OwnedFd>,
    /// The connection's signals: the same ones, or some of the same state.
    pub link: Arc<ConnectionSignals>,
    /// Where blocks and foreign memory come from.
    pub restorer: &'a mut dyn Restorer,
}

/// The one descriptor that a carrier with a socket needs.
///
/// # Errors
/// There is none, or there are more.
pub fn take_socket(descriptors: Vec<OwnedFd>, fields: &FieldReader<'_>) -> Result<OwnedFd, RestoreError> {
    let [socket] = <[OwnedFd; 1]>::try_from(descriptors)
        .map_err(|_| fields.damaged("it needs one descriptor, its socket"))?;
    Ok(socket)
}

impl<C: Carrier> SessionTransport<C> {
    /// Takes a saved connection up again.
    ///
    /// # Errors
    /// The state is not one to go on from.
    pub fn restore(
        resume: C::Resume,
        state: &SavedState,
        state_transfer: StateTransfer<'_>,
    ) -> Result<SessionTransport<C>, RestoreError> {
        let mut fields = state.open(C::KIND, C::FORM)?;
        let config = TransportConfig::restore(&mut fields)?;
        let service = fields.text()?.to_owned();
        let peer = C::Peer::restore(&mut fields)?;
        let stage = Stage::restore(&mut fields)?;
        let mut carrier = C::restore(
            resume,
            peer,
            state_transfer.descriptors,
            &mut fields,
            state.version,
        )?;
        let connection = Connection::restore(&mut fields, state_transfer.restorer)?;
        fields.end()?;
        carrier.attach(&state_transfer.link);
        Ok(SessionTransport {
            signals: state_transfer.link,
            connection,
            carrier,
            stage,
            // What happened meanwhile is found by trying.
            input: InputState::LeftOver,
            config,
            service,
        })
    }

    pub(crate) fn saved(&self, saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        self.config.save(&mut out);
        out.text(&self.service);
        self.carrier.peer().save(&mut out);
        self.stage.save(&mut out);
        self.carrier.save(&mut out);
        self.connection.save(saver, &mut out);
        SavedState::new(C::KIND, C::FORM, out)
    }
}

impl SavedField for TransportConfig {
    fn save(&self, out: &mut FieldWriter) {
        out.u64(self.keepalive_interval_ns);
        out.u64(self.keepalive_timeout_ns);
        out.u64(self.linger_ns);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<TransportConfig, RestoreError> {
        Ok(TransportConfig {
            keepalive_interval_ns: fields.u64()?,
            keepalive_timeout_ns: fields.u64()?,
            linger_ns: fields.u64()?,
        })
    }
}
