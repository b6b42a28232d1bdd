//! What must hold of any bytes whatever, for fuzzers: each function panics if it does not.

use std::io::{self, Read, Write};
use std::sync::Arc;

use provost_datapath::{BufferPool, FieldReader, FieldWriter};
use provost_session::Role;

use super::LoadedTls;
use super::keys::{Keys, Suite};
use super::session::{INPUT_BYTES, TlsRead, TlsSession};
use super::stream::TlsStream;
use super::stream_files::STREAM_VERSIONS;
use super::workload::{WorkloadIdentity, WorkloadParts};

/// Bytes that a read brings at most; it varies with the input.
const READ_BYTES_MAX: usize = 1_000;

/// The two ends of a connection whose secrets are no secret.
fn ends() -> Option<(TlsSession, TlsSession)> {
    let keys = |byte: u8| Keys::new(Suite::Chacha20Poly1305Sha256, vec![byte; 32].into(), 0);
    let client = TlsSession::new(Role::Client, keys(1)?, keys(2)?);
    let server = TlsSession::new(Role::Server, keys(2)?, keys(1)?);
    Some((client, server))
}

/// Takes any bytes as what comes from a socket.
pub fn records(input: &[u8]) {
    if let Some((_, mut server)) = ends() {
        take_in(&mut server, input);
    }
}

/// Takes any bytes as what a peer seals, which knows the keys: each record is a type, a length and its text.
pub fn sealed(input: &[u8]) {
    let Some((mut client, mut server)) = ends() else {
        return;
    };
    let mut buffers = BufferPool::new();
    let mut rest = input;
    while let Some((&[content, length], after)) = rest.split_first_chunk() {
        let (text, after) = after.split_at(after.len().min(usize::from(length)));
        rest = after;
        if client.put(content, text, &mut buffers).is_err() {
            return;
        }
    }
    let sealed = client.output.clone();
    take_in(&mut server, &sealed);
    take_in(&mut client, &sealed);
}

/// Takes any bytes as the saved state of a session. One that is accepted is saved as it was.
pub fn saved(input: &[u8]) {
    let mut fields = FieldReader::new("fuzzing", input);
    let Ok(mut session) = TlsSession::restore(&mut fields) else {
        return;
    };
    if fields.is_at_end() {
        let mut again = FieldWriter::new();
        session.save(&mut again);
        assert_eq!(again.bytes, input, "a session reads as another");
    }
    take_in(&mut session, input);
}

/// A state to start from.
#[must_use]
pub fn saved_seed() -> Vec<u8> {
    let mut out = FieldWriter::new();
    if let Some((mut session, _)) = ends() {
        session.close(&mut BufferPool::new());
        session.save(&mut out);
    }
    out.bytes
}

fn take_in(session: &mut TlsSession, input: &[u8]) {
    let piece_bytes = input
        .first()
        .map_or(1, |first| 1 + usize::from(*first) * 7 % READ_BYTES_MAX);
    let mut pieces = input.chunks(piece_bytes);
    let mut text = [0; 100];
    loop {
        match session.read(&mut text) {
            Ok(TlsRead::Bytes(bytes)) => assert!((1..=text.len()).contains(&bytes)),
            Ok(TlsRead::NeedsMore) => {
                let Some(piece) = pieces.next() else { break };
                let space = session.space();
                assert!(!space.is_empty(), "there is no room for what must come");
                let bytes = piece.len().min(space.len());
                space[..bytes].copy_from_slice(&piece[..bytes]);
                session.came(bytes);
            }
            Ok(TlsRead::Closed) => break,
            Err(fault) => {
                session.complain(fault, &mut BufferPool::new());
                break;
            }
        }
        assert!(session.input.bytes.len() <= INPUT_BYTES);
    }
}

/// A socket at which any bytes come, in pieces of so many, and which forgets what it is given.
struct FuzzedSocket<'a> {
    comes: &'a [u8],
    piece_bytes: usize,
}

impl Read for FuzzedSocket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.comes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = into.len().min(self.piece_bytes);
        self.comes.read(&mut into[..room])
    }
}

impl Write for FuzzedSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes any bytes as what comes before either end of a stream beside HTTP/2 has proved anything: nothing is let in. The first byte says in
/// which pieces they come.
pub fn stream(input: &[u8]) {
    let Some((&first, comes)) = input.split_first() else {
        return;
    };
    let socket = || FuzzedSocket {
        comes,
        piece_bytes: 1 + usize::from(first) * 16,
    };
    let (Some(client), Some(server)) = (client_config(), server_config()) else {
        return;
    };
    let client = TlsStream::client(socket(), client, "server.test");
    let server = TlsStream::server(socket(), server);
    for mut end in [client, server].into_iter().flatten() {
        assert!(
            !matches!(end.shake_hands(), Ok(true)),
            "an end is let in that has proved nothing"
        );
        let read = end.read(&mut [0; 64]);
        assert!(!matches!(read, Ok(1..)), "bytes are read that nobody has sealed");
    }
}

/// What a client says first, to start from.
#[must_use]
pub fn stream_seed() -> Vec<u8> {
    let name = "server.test".try_into();
    let connection = name
        .ok()
        .zip(client_config())
        .map(|(name, config)| rustls::ClientConnection::new(config, name));
    let mut said = vec![0xff];
    if let Some(Ok(mut connection)) = connection {
        // A vector takes all of it.
        let _ = connection.write_tls(&mut said);
    }
    said
}

/// A client that believes nobody.
fn client_config() -> Option<Arc<rustls::ClientConfig>> {
    let builder = rustls::ClientConfig::builder_with_provider(super::provider());
    let builder = builder.with_protocol_versions(STREAM_VERSIONS).ok()?;
    let roots = rustls::RootCertStore::empty();
    Some(Arc::new(
        builder.with_root_certificates(roots).with_no_client_auth(),
    ))
}

/// A server without a certificate.
fn server_config() -> Option<Arc<rustls::ServerConfig>> {
    let builder = rustls::ServerConfig::builder_with_provider(super::provider());
    let builder = builder.with_protocol_versions(STREAM_VERSIONS).ok()?;
    let nobody = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
    Some(Arc::new(builder.with_no_client_auth().with_cert_resolver(nobody)))
}

/// Takes any bytes as an answer of the SPIFFE Workload API: parts with their lengths, of which it has five.
pub fn svid(input: &[u8]) {
    let mut rest = input;
    let [chain, key, bundle, federated, list] = std::array::from_fn(|_| part(&mut rest));
    let federated: &[(&str, &[u8])] = if federated.is_empty() {
        &[]
    } else {
        &[("spiffe://other.test", federated)]
    };
    let lists: &[&[u8]] = if list.is_empty() { &[] } else { &[list] };
    let parts = WorkloadParts {
        id: SVID_ID,
        chain,
        key,
        bundle,
        federated,
        crls: lists,
    };
    let Ok(identity) = WorkloadIdentity::new(&parts) else {
        return;
    };
    assert_eq!(identity.identity().name(), SVID_ID);
    assert!(identity.trust_domains().count() <= 2);
    assert!(LoadedTls::of_workload(&identity).is_ok());
}

const SVID_ID: &str = "spiffe://fuzz.test/node";

/// A part behind its length in two bytes.
fn part<'a>(rest: &mut &'a [u8]) -> &'a [u8] {
    let Some((length, behind)) = rest.split_first_chunk() else {
        return &[];
    };
    let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
    let (part, behind) = behind.split_at(length);
    *rest = behind;
    part
}

/// A good answer to start from.
#[must_use]
pub fn svid_seed() -> Vec<u8> {
    let bundle = include_bytes!("fixtures/svid-bundle.der");
    let parts: [&[u8]; 5] = [
        include_bytes!("fixtures/svid.der"),
        include_bytes!("fixtures/svid-key.der"),
        bundle,
        bundle,
        &[],
    ];
    let with_length = |part: &&[u8]| [&(part.len() as u16).to_le_bytes(), *part].concat();
    parts.iter().flat_map(with_length).collect()
}
