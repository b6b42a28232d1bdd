//! A connection as bytes: everything about it but its socket. Another version of this code, in this process or in
//! another, goes on with it as if nothing had happened; the peer and the app notice nothing.
//!
//! The form has a version of its own in front, which grows when the form changes; older ones stay readable
//! (`tests/fixtures` has one of each).

use provost_datapath::{
    Body, FieldReader, FieldWriter, MissingMethods, RestoreError, Restorer, SavedField, Saver, Step,
};
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, SERVICE_METHODS_MAX};

use super::{Config, Connection, EndingConnection, KeepaliveTimer};
use crate::Role;
use crate::calls::OpenCalls;
use crate::handshake::{Agreement, Encoding, Limits};
use crate::receive::FrameParser;
use crate::send::SendHalf;

/// Version of the form: the first with the names of methods that the server lacks.
const VERSION: u32 = 3;
/// The version without such names, which earlier programs read: what is saved while there are none.
const NAMELESS_VERSION: u32 = 2;
/// The version without compressed messages either.
const PLAIN_VERSION: u32 = 1;
/// Steps that can wait for the app: those of one read, and an end for each call.
const INBOX_STEPS_MAX: usize = 4 * CALLS_IN_FLIGHT_MAX;

impl Connection {
    /// Appends the connection to a saved state. It stays as it is.
    pub fn save(&self, saver: &mut dyn Saver, out: &mut FieldWriter) {
        out.u32(self.saved_version());
        self.save_terms(out);
        self.keepalive.save(out);
        out.flag(self.draining);
        out.flag(self.peer_drains);
        self.ending.save(out);
        match &self.ending {
            Some(_) => self.parser.at_the_end().save(out),
            None => self.parser.save(out),
        }
        self.calls.save(saver, out);
        self.outgoing.save(&self.calls, saver, out);
        Step::save_all(self.inbox.iter(), saver, out);
    }

    /// Goes on with the connection that [`Connection::save`] appended.
    pub fn restore(
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<Connection, RestoreError> {
        let version = fields.u32()?;
        if !(PLAIN_VERSION..=VERSION).contains(&version) {
            return Err(fields.unknown_version(version, VERSION));
        }
        let config = restore_terms(version, fields)?;
        let role = config.role;
        let keepalive = KeepaliveTimer::restore(fields)?;
        let (draining, peer_drains) = (fields.flag()?, fields.flag()?);
        let ending: Option<EndingConnection> = SavedField::restore(fields)?;
        let mut parser = FrameParser::restore(fields)?;
        let mut calls = OpenCalls::restore(fields, restorer, role, parser.highest())?;
        parser.join(&mut calls, fields)?;
        let ended_slots = ending.as_ref().map_or(0, |ending| ending.next_slot);
        if (0..ended_slots.min(calls.slots())).any(|slot| calls.get(slot).is_some()) {
            return Err(fields.damaged("a call is there whose end the app was told of"));
        }
        let outgoing = SendHalf::restore(fields, restorer, role, &mut calls)?;
        let inbox = Step::restore_all(fields, restorer, INBOX_STEPS_MAX)?;
        Ok(Connection {
            keepalive,
            draining,
            peer_drains,
            ending,
            parser,
            calls,
            outgoing,
            inbox: inbox.into(),
            ..Connection::new(config, 0)
        })
    }

    /// The oldest version that can say what there is.
    fn saved_version(&self) -> u32 {
        if !self.missing.is_empty() {
            VERSION
        } else if self.has_compressed() {
            NAMELESS_VERSION
        } else {
            PLAIN_VERSION
        }
    }

    fn has_compressed(&self) -> bool {
        let is_compressed =
            |step: &Step| matches!(&step.body, Body::Encoded(body) if body.compression.is_some());
        self.calls.has_compressed() || self.outgoing.has_compressed() || self.inbox.iter().any(is_compressed)
    }

    /// What the two ends agreed on.
    fn save_terms(&self, out: &mut FieldWriter) {
        self.role.save(out);
        self.encoding.save(out);
        self.limits.save(out);
        self.peer_limits.save(out);
        out.list(self.methods.iter());
        if !self.missing.is_empty() {
            self.missing.save(out);
        }
    }
}

fn restore_terms(version: u32, fields: &mut FieldReader<'_>) -> Result<Config, RestoreError> {
    let (role, encoding) = (Role::restore(fields)?, Encoding::restore(fields)?);
    let (limits, peer_limits) = (Limits::restore(fields)?, Limits::restore(fields)?);
    let methods = fields.list(SERVICE_METHODS_MAX)?;
    let missing = if version > NAMELESS_VERSION {
        SavedField::restore(fields)?
    } else {
        MissingMethods::default()
    };
    Ok(Config {
        role,
        agreement: Agreement {
            encoding,
            peer_limits,
            methods,
            missing,
        },
        limits,
        keepalive_interval_ns: 0,
        keepalive_timeout_ns: 0,
    })
}

impl SavedField for Role {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(*self == Role::Server);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<Role, RestoreError> {
        Ok(if fields.flag()? {
            Role::Server
        } else {
            Role::Client
        })
    }
}

impl SavedField for Encoding {
    fn save(&self, out: &mut FieldWriter) {
        out.flag(*self == Encoding::Protobuf);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<Encoding, RestoreError> {
        Ok(if fields.flag()? {
            Encoding::Protobuf
        } else {
            Encoding::Native
        })
    }
}

impl SavedField for Limits {
    fn save(&self, out: &mut FieldWriter) {
        out.u32(self.message_bytes_max);
        out.u32(self.stream_window_bytes);
        out.u32(self.calls_in_flight_max);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<Limits, RestoreError> {
        Ok(Limits {
            message_bytes_max: fields.u32()?,
            stream_window_bytes: fields.u32()?,
            calls_in_flight_max: fields.u32()?,
        })
    }
}

impl SavedField for KeepaliveTimer {
    fn save(&self, out: &mut FieldWriter) {
        out.u64(self.interval_ns);
        out.u64(self.timeout_ns);
        out.u64(self.heard_at);
        out.flag(self.asked_at.is_some());
        out.u64(self.asked_at.unwrap_or(0));
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<KeepaliveTimer, RestoreError> {
        let (interval_ns, timeout_ns, heard_at) = (fields.u64()?, fields.u64()?, fields.u64()?);
        let (asked, asked_at) = (fields.flag()?, fields.u64()?);
        Ok(KeepaliveTimer {
            interval_ns,
            timeout_ns,
            heard_at,
            asked_at: asked.then_some(asked_at),
        })
    }
}

impl SavedField for EndingConnection {
    fn save(&self, out: &mut FieldWriter) {
        out.code(self.code);
        out.text(&self.reason);
        out.u32(self.next_slot);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<EndingConnection, RestoreError> {
        Ok(EndingConnection {
            code: fields.code()?,
            reason: fields.text()?.to_owned(),
            next_slot: fields.u32()?,
        })
    }
}
