//! A TLS session as bytes. They hold its secrets: who has them can read and forge what the connection carries. They go
//! to a successor and nowhere else.

use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_session::Role;
use zeroize::Zeroizing;

use super::keys::{Keys, Suite};
use super::session::{INPUT_BYTES, Input, MESSAGE_BYTES_MAX, TlsSession};
use super::textless::TextlessRecords;

impl TlsSession {
    /// Writes what a successor goes on with: its secrets among it, so it goes to the successor and nowhere else.
    pub fn save(&self, out: &mut FieldWriter) {
        out.flag(self.role == Role::Server);
        for keys in [&self.tx, &self.rx] {
            out.u16(keys.suite().number());
            out.run(keys.secret());
            out.u64(keys.sequence());
        }
        out.run(&self.input.bytes[self.input.text_at..self.input.text_end]);
        out.run(&self.input.bytes[self.input.sealed_at..self.input.end]);
        out.run(&self.message);
        out.u8(self.textless.count());
        out.run(self.output.get(self.output_sent..).unwrap_or_default());
        out.flag(self.key_update_due);
        out.flag(self.peer_closed);
        out.flag(self.closed);
    }

    /// Reads what was saved.
    ///
    /// # Errors
    /// It is not what [`TlsSession::save`] writes.
    pub fn restore(fields: &mut FieldReader<'_>) -> Result<TlsSession, RestoreError> {
        let role = if fields.flag()? {
            Role::Server
        } else {
            Role::Client
        };
        let (tx, rx) = (restore_keys(fields)?, restore_keys(fields)?);
        let mut session = TlsSession::new(role, tx, rx);
        session.input = Input::holding(fields.run()?, fields.run()?)
            .ok_or_else(|| fields.damaged("more has come than could be read"))?;
        session.message = fields.run()?.to_vec();
        if session.message.len() > MESSAGE_BYTES_MAX {
            return Err(fields.damaged("a TLS message is too long"));
        }
        session.textless = TextlessRecords::counted(fields.u8()?)
            .ok_or_else(|| fields.damaged("more records without text came than may come"))?;
        session.output = fields.run()?.to_vec();
        session.key_update_due = fields.flag()?;
        session.peer_closed = fields.flag()?;
        session.closed = fields.flag()?;
        Ok(session)
    }
}

fn restore_keys(fields: &mut FieldReader<'_>) -> Result<Keys, RestoreError> {
    let number = fields.u16()?;
    let suite = Suite::from_number(number)
        .ok_or_else(|| fields.damaged(format!("the cipher suite {number:#06x} is not known")))?;
    let secret = Zeroizing::new(fields.run()?.to_vec());
    let sequence = fields.u64()?;
    Keys::new(suite, secret, sequence).ok_or_else(|| fields.damaged("a secret is not one of its suite"))
}

impl Input {
    /// Text that was not read, and then sealed bytes.
    fn holding(text: &[u8], sealed: &[u8]) -> Option<Input> {
        if text.is_empty() && sealed.is_empty() {
            return Some(Input::default());
        }
        let mut bytes = vec![0; INPUT_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        let end = text.len() + sealed.len();
        bytes.get_mut(text.len()..end)?.copy_from_slice(sealed);
        Some(Input {
            bytes,
            text_at: 0,
            text_end: text.len(),
            sealed_at: text.len(),
            end,
        })
    }
}
