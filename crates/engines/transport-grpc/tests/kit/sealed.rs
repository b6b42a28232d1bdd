//! A link within TLS, as a node has them: the client's end carries the engine's bytes, and the server's end is worked by the carrier
//! itself whenever the engine uses it.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_tls::TlsStream;
use provost_transport_grpc::ByteCarrier;
use rcgen::CertifiedKey;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// How a node says in a state that a link is within TLS; the session follows.
pub(crate) const SEALED_CARRIER: u8 = 1;
const SERVER_NAME: &str = "greeter.test";

/// The client's end, which carries what the engine says.
pub(crate) struct SealedCarrier {
    stream: TlsStream<UnixStream>,
    server: Option<SealedServer>,
}

/// The server's end, and the socket to a server that knows nothing of TLS.
struct SealedServer {
    stream: TlsStream<UnixStream>,
    plain: UnixStream,
}

fn configurations() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).unwrap();
    let mut trusted = RootCertStore::empty();
    trusted.add(cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap();
    let mut client = client.with_root_certificates(trusted).with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let key = PrivatePkcs8KeyDer::from(signing_key.serialize_der()).into();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap();
    let mut server = server
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    (Arc::new(client), Arc::new(server))
}

impl SealedCarrier {
    /// In front of the socket of a server; hands are shaken.
    pub(crate) fn over(plain: UnixStream) -> Box<dyn ByteCarrier> {
        let (client, server) = UnixStream::pair().unwrap();
        for end in [&client, &server] {
            end.set_nonblocking(true).unwrap();
        }
        let (of_client, of_server) = configurations();
        let mut stream = TlsStream::client(client, of_client, SERVER_NAME).unwrap();
        let mut server = TlsStream::server(server, of_server).unwrap();
        while !(stream.shake_hands().unwrap() & server.shake_hands().unwrap()) {}
        let server = Some(SealedServer {
            stream: server,
            plain,
        });
        Box::new(SealedCarrier { stream, server })
    }

    /// What a state has, without its server.
    pub(crate) fn restored(
        socket: UnixStream,
        fields: &mut FieldReader<'_>,
    ) -> Result<Box<dyn ByteCarrier>, RestoreError> {
        let stream = TlsStream::restore(socket, fields)?;
        Ok(Box::new(SealedCarrier { stream, server: None }))
    }

    fn work(&mut self) {
        if let Some(server) = &mut self.server {
            pass(&mut server.stream, &mut server.plain);
            pass(&mut server.plain, &mut server.stream);
        }
    }
}

/// Passes on what there is. There is room for it: tests say little.
fn pass(from: &mut impl Read, to: &mut impl Write) {
    let mut bytes = [0; 4 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        to.write_all(&bytes[..count]).unwrap();
        to.flush().unwrap();
    }
}

impl ByteCarrier for SealedCarrier {
    fn read_ready(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.work();
        self.stream.read(into)
    }

    fn write_ready(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = self.stream.write_vectored(pieces);
        self.work();
        written
    }

    fn flush_ready(&mut self) -> io::Result<()> {
        self.stream.flush()?;
        self.work();
        Ok(())
    }

    fn has_more(&self) -> bool {
        self.stream.has_more()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn carried_socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.can_be_saved().then(|| self.stream.as_fd())
    }

    fn save(&self, out: &mut FieldWriter) {
        out.u8(SEALED_CARRIER);
        self.stream.save(out);
    }
}
