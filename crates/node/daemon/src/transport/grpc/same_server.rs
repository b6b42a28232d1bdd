//! A further connection within TLS, which has to be to the server that the first one was to: policies on its calls are told of that one.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use provost_datapath::FieldWriter;
use provost_tls::TlsStream;
use provost_transport_grpc::ByteCarrier;

use crate::transport::TlsCarrier;

/// See the module's documentation.
pub(super) struct SameServerCarrier<S: Read + Write> {
    carrier: TlsCarrier<S>,
    /// Who the server has to prove to be; none once it has.
    expected: Option<String>,
}

impl<S: Read + Write> SameServerCarrier<S> {
    /// Of a server that is to be this one; whoever the route's files let in, where nobody is named.
    pub(super) fn new(stream: TlsStream<S>, expected: &str) -> SameServerCarrier<S> {
        SameServerCarrier {
            carrier: TlsCarrier(stream),
            expected: Some(expected.to_owned()).filter(|expected| !expected.is_empty()),
        }
    }

    /// Judges who the server has proved to be, once hands are shaken: a certificate may name nobody.
    fn judge(&mut self) -> io::Result<()> {
        if self.expected.is_none() || self.carrier.0.is_shaking() {
            return Ok(());
        }
        let identity = self.carrier.0.identity();
        let name = identity.name();
        let Some(expected) = self.expected.take_if(|expected| expected.as_str() != name) else {
            self.expected = None;
            return Ok(());
        };
        let proved = if name.is_empty() {
            "nobody by its certificate"
        } else {
            name
        };
        let refused = format!("the server here is {proved}, and the connection's is {expected}");
        self.expected = Some(expected);
        Err(io::Error::new(io::ErrorKind::InvalidData, refused))
    }
}

impl<S: Read + Write + AsFd + Send> ByteCarrier for SameServerCarrier<S> {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.carrier.read_ready(into);
        self.judge()?;
        read
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        // What is written within the handshake would be sent as soon as that is over, to whoever it was with.
        if self.expected.is_some() {
            if !self.carrier.0.shake_hands()? {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.judge()?;
        }
        self.carrier.write_ready(pieces)
    }

    fn flush_ready(&mut self) -> io::Result<()> {
        let flushed = self.carrier.flush_ready();
        self.judge()?;
        flushed
    }

    fn waits_for_peer(&self) -> bool {
        self.carrier.waits_for_peer()
    }

    fn has_more(&self) -> bool {
        self.carrier.has_more()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.carrier.socket()
    }

    /// A successor knows of nobody whom the server has to prove to be.
    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        self.carrier.carried_socket().filter(|_| self.expected.is_none())
    }

    fn save(&self, out: &mut FieldWriter) {
        ByteCarrier::save(&self.carrier, out);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use provost_tls::{
        ClientDemand, OwnCertificate, ServerTrust, StreamClientFiles, StreamServerFiles, TrustAnchors,
    };

    use super::*;

    const NAME: &str = "server.test";

    /// Both ends of a connection whose server is called so; neither blocks.
    fn ends(called: &str) -> (TlsStream<UnixStream>, TlsStream<UnixStream>) {
        let folder = tempfile::tempdir().unwrap();
        let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        let made = rcgen::generate_simple_self_signed([called.to_owned()]).unwrap();
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let client = StreamClientFiles {
            trust: ServerTrust {
                anchors: TrustAnchors::File(cert.clone()),
                crls: Vec::new(),
            },
            ..StreamClientFiles::default()
        };
        let server = StreamServerFiles {
            own: OwnCertificate::Files { cert, key },
            clients: ClientDemand::Nothing,
        };
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        (
            TlsStream::client(near, client.load().unwrap().config, called).unwrap(),
            TlsStream::server(far, server.load().unwrap().config).unwrap(),
        )
    }

    /// Writes to a server until that is taken or refused; what came of it, and what the server has read.
    fn written(called: &str, expected: &str) -> (io::Result<usize>, Vec<u8>) {
        let (client, mut server) = ends(called);
        let mut carrier = SameServerCarrier::new(client, expected);
        let wrote = loop {
            match carrier.write_ready(&[IoSlice::new(b"secret")]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                wrote => break wrote,
            }
            server.shake_hands().unwrap();
        };
        let _ = carrier.flush_ready();
        server.shake_hands().unwrap();
        let mut read = [0; 16];
        let came = Read::read(&mut server, &mut read).unwrap_or_default();
        (wrote, read[..came].to_vec())
    }

    #[test]
    fn a_server_that_proves_to_be_another_is_sent_nothing() {
        let (wrote, read) = written(NAME, NAME);
        assert_eq!((wrote.unwrap(), &read[..]), (6, &b"secret"[..]));
        // The certificate of an address names nobody.
        for (called, proved) in [(NAME, NAME), ("127.0.0.1", "nobody")] {
            let (wrote, read) = written(called, "another.test");
            let error = wrote.unwrap_err().to_string();
            assert!(
                error.contains(proved) && error.contains("another.test"),
                "{error}"
            );
            assert!(read.is_empty(), "{read:?}");
        }
    }

    /// Nobody would judge it in the process of a successor.
    #[test]
    fn a_server_is_judged_before_a_successor_goes_on_with_the_connection() {
        for (called, expected, is_same) in [
            (NAME, NAME, true),
            (NAME, "another.test", false),
            ("127.0.0.1", "another.test", false),
        ] {
            let (client, mut server) = ends(called);
            let mut carrier = SameServerCarrier::new(client, expected);
            while carrier.carrier.0.is_shaking() {
                assert!(carrier.carried_socket().is_none());
                let _ = carrier.flush_ready();
                let _ = carrier.read_ready(&mut [0; 16]);
                server.shake_hands().unwrap();
            }
            assert_eq!(carrier.carried_socket().is_some(), is_same, "{called} {expected}");
            assert_eq!(carrier.expected.is_none(), is_same, "{called} {expected}");
        }
    }
}
