//! Who is there, and a key for what is said from then on: a TLS handshake on a stream that is not sealed.
//!
//! ```text
//!   client                                                                  server
//!     a stream, not sealed     ◄── TLS 1.3 handshake, certificates both ways ──►
//!                            ◄────────────── "sealed from here", by a record ──
//!     key = TLS exporter(the stream's name)                                     the same
//!     another stream, sealed   ── asks for a session, and shows the key ──────►   another stream, sealed
//! ```
//!
//! The record says that the server has let the client in. Until the client asks for the sealed stream the server keeps the
//! other one, so that a record that was lost comes again. Of the stream that was not sealed nothing is taken over.

use provost_tls::{PeerIdentity, Purpose, TlsHandshake, identity};
use provost_transport::{EstablishError, HandshakeChannel};
use rustls::{ClientConfig, ServerConfig};

use super::Channel;
use crate::stream::{ResumableStream, ResumableStreamKey};

/// What a server says when it has let a client in.
const SEALED_FROM_HERE: &[u8] = b"sealed from here";

impl Channel {
    /// Proves this end to the server at this address, has the server prove itself, and goes on with a sealed stream.
    pub(super) fn secure_as_client(
        &mut self,
        config: &ClientConfig,
        address: &str,
    ) -> Result<PeerIdentity, EstablishError> {
        let mut tls = TlsHandshake::client(config, address, Purpose::Key)?;
        loop {
            self.write_tls(&mut tls)?;
            if tls.is_done() && tls.told() == SEALED_FROM_HERE {
                break;
            }
            self.read_tls(&mut tls)?;
        }
        let (key, peer) = self.agreed(&tls)?;
        self.stream = self.stream.sealed(key)?;
        self.takes_callers = tls.takes_callers();
        Ok(peer)
    }

    /// The same, to a client.
    pub(super) fn secure_as_server(&mut self, config: &ServerConfig) -> Result<PeerIdentity, EstablishError> {
        let mut tls = TlsHandshake::server(config, Purpose::Key)?;
        while !tls.is_done() {
            self.read_tls(&mut tls)?;
            if tls.is_done() {
                tls.send(SEALED_FROM_HERE)?;
            }
            self.write_tls(&mut tls)?;
        }
        let (key, peer) = self.agreed(&tls)?;
        let sealed = self.stream.sealed(key)?;
        self.await_sealed(sealed)?;
        Ok(peer)
    }

    fn agreed(&self, tls: &TlsHandshake) -> Result<(ResumableStreamKey, PeerIdentity), EstablishError> {
        let key = tls.export_key(&self.stream.id())?;
        Ok((ResumableStreamKey(key), identity(tls.connection())))
    }

    fn read_tls(&mut self, tls: &mut TlsHandshake) -> Result<(), EstablishError> {
        let bytes = self.read()?;
        let Err(error) = tls.input(&bytes) else {
            return Ok(());
        };
        // The alert tells the peer why; that it may not arrive changes nothing.
        let _ = self.write_tls(tls);
        Err(error.into())
    }

    fn write_tls(&mut self, tls: &mut TlsHandshake) -> Result<(), EstablishError> {
        let bytes = tls.output()?;
        self.write(&bytes)
    }

    /// Waits until the client goes on with the sealed stream, and does so too.
    fn await_sealed(&mut self, mut sealed: ResumableStream) -> Result<(), EstablishError> {
        loop {
            let now_ns = self.now_ns();
            let batches = &mut self.batches;
            if self.stream.poll_until_asked_for(&mut sealed, now_ns, batches)? {
                self.stream = sealed;
                return Ok(());
            }
            self.pause()?;
        }
    }
}

#[cfg(test)]
mod tests;
