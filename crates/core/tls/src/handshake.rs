//! The handshake, by rustls, and what is taken over from it.
//!
//! rustls is given one record at a time, so that it never holds bytes of a record that is not its own to read.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use provost_session::Role;
use provost_wiping::wipe_stack;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Connection, ConnectionTrafficSecrets, KeyLog, ServerConfig};
use zeroize::Zeroizing;

use super::keys::{Keys, Suite};
use super::session::{HEADER_BYTES, TlsSession};

/// Bytes of a record behind its header, at most, before and after its keys are known.
const RECORD_BYTES_MAX: usize = super::session::SEALED_BYTES_MAX;

/// What is said by records before there are records of our own, in bytes at most.
const TOLD_BYTES_MAX: usize = 256;
/// Bytes of a key that both ends of a handshake can have.
pub const KEY_BYTES: usize = 32;
/// What that key is for (RFC 8446 section 7.5), so that keys for something else are others.
const KEY_LABEL: &[u8] = b"EXPORTER-provost-datagram";

/// What a handshake is made for. Each end names it in ALPN, so that none is taken for one of the other kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Records,
    /// A key follows from it, for something that is no TLS.
    Key,
}

/// What stands behind the name of a purpose where an end takes callers ([`TlsHandshake::takes_callers`]).
const CALLERS: &[u8] = b"+callers";

impl Purpose {
    /// What an end offers, the one it would rather have first: one of before callers were told takes the second.
    fn alpn(self) -> Vec<Vec<u8>> {
        let plain = match self {
            Purpose::Records => super::ALPN,
            Purpose::Key => b"provost-datagram/1",
        };
        vec![[plain, CALLERS].concat(), plain.to_vec()]
    }
}

pub struct TlsHandshake {
    connection: Box<Connection>,
    secrets: Arc<Secrets>,
}

/// The first traffic secrets. rustls hands out keys, from which the keys after them do not follow; the secrets, from
/// which both do, it tells to a key log alone.
#[derive(Default)]
pub(super) struct Secrets {
    client: Mutex<Zeroizing<Vec<u8>>>,
    server: Mutex<Zeroizing<Vec<u8>>>,
}

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secrets")
    }
}

impl KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let place = match label {
            "CLIENT_TRAFFIC_SECRET_0" => &self.client,
            "SERVER_TRAFFIC_SECRET_0" => &self.server,
            _ => return,
        };
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Zeroizing::new(secret.to_vec());
    }
}

impl Secrets {
    fn of(&self, role: Role) -> Zeroizing<Vec<u8>> {
        let place = match role {
            Role::Client => &self.client,
            Role::Server => &self.server,
        };
        std::mem::take(&mut *place.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TlsHandshake {
    /// As the end that connects to the server at this address, `host:port`, whose certificate must be of that host.
    ///
    /// # Errors
    /// The address names no host.
    pub fn client(
        config: &ClientConfig,
        address: &str,
        purpose: Purpose,
    ) -> Result<TlsHandshake, rustls::Error> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host);
        let name = name.map_err(|error| rustls::Error::General(format!("{address}: {error}")))?;
        let secrets = Arc::new(Secrets::default());
        let mut config = config.clone();
        config.key_log = secrets.clone();
        config.enable_secret_extraction = true;
        config.alpn_protocols = purpose.alpn();
        let connection = rustls::ClientConnection::new(Arc::new(config), name)?;
        Ok(TlsHandshake::new(connection.into(), secrets))
    }

    /// As the end that was connected to.
    ///
    /// # Errors
    /// The configuration is of no use.
    pub fn server(config: &ServerConfig, purpose: Purpose) -> Result<TlsHandshake, rustls::Error> {
        let secrets = Arc::new(Secrets::default());
        let mut config = config.clone();
        config.key_log = secrets.clone();
        config.enable_secret_extraction = true;
        config.alpn_protocols = purpose.alpn();
        let connection = rustls::ServerConnection::new(Arc::new(config))?;
        Ok(TlsHandshake::new(connection.into(), secrets))
    }

    fn new(connection: Connection, secrets: Arc<Secrets>) -> TlsHandshake {
        TlsHandshake {
            connection: Box::new(connection),
            secrets,
        }
    }

    /// Whether both ends have proved what they must.
    pub fn is_done(&self) -> bool {
        !self.connection.is_handshaking()
    }

    /// Whether the client may say which app calls. Known when the handshake is done.
    pub fn takes_callers(&self) -> bool {
        let protocol = self.connection.alpn_protocol();
        protocol.is_some_and(|protocol| protocol.ends_with(CALLERS))
    }

    /// What is to be sent now.
    ///
    /// # Errors
    /// None that is known of.
    pub fn output(&mut self) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut out)?;
        }
        Ok(out)
    }

    /// Takes what has come. Who wants to go on with records of its own gives one record at a time: its header and as many
    /// bytes as [`TlsHandshake::bytes_behind`] said.
    ///
    /// # Errors
    /// The peer does not prove what it must, or does not speak TLS. What is to be sent then tells it.
    pub fn input(&mut self, record: &[u8]) -> Result<(), rustls::Error> {
        let taken = self.take(record);
        wipe_stack();
        taken
    }

    fn take(&mut self, mut record: &[u8]) -> Result<(), rustls::Error> {
        while !record.is_empty() {
            let read = self.connection.read_tls(&mut record);
            if !matches!(read, Ok(1..)) {
                return Err(rustls::Error::General("a record was not taken".into()));
            }
            self.connection.process_new_packets()?;
        }
        Ok(())
    }

    /// Says something to the peer by a record, once the handshake is done.
    ///
    /// # Errors
    /// None that is known of.
    pub fn send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.connection.writer().write_all(bytes)
    }

    /// What the peer has said so; nothing if it has said nothing more.
    pub fn told(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; TOLD_BYTES_MAX];
        // That there is nothing is an error, which says nothing else.
        let read = self.connection.reader().read(&mut bytes).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// A key that the two ends of this handshake have, and nobody else; another for each context.
    ///
    /// # Errors
    /// The handshake is not done.
    pub fn export_key(&self, context: &[u8]) -> Result<Arc<Zeroizing<[u8; KEY_BYTES]>>, rustls::Error> {
        // Where it is put first it stays: what is moved leaves a copy behind.
        let mut key = Arc::new(Zeroizing::new([0; KEY_BYTES]));
        let place = &mut Arc::make_mut(&mut key)[..];
        let exported = self
            .connection
            .export_keying_material(place, KEY_LABEL, Some(context));
        let exported = exported.map(|_| ());
        wipe_stack();
        exported.map(|()| key)
    }

    /// How many bytes follow a record's header; none if rustls will refuse it anyway.
    pub fn bytes_behind(header: [u8; HEADER_BYTES]) -> usize {
        let [content, major, _, high, low] = header;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let is_record = (20..=23).contains(&content) && major == 3;
        if is_record && length <= RECORD_BYTES_MAX {
            length
        } else {
            0
        }
    }

    /// The handshake's connection, for what it knows of the peer.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Goes over to records of our own. Everything of the handshake must have been sent.
    ///
    /// # Errors
    /// The handshake is not done, or its secrets are of no use.
    pub fn into_session(self) -> Result<TlsSession, rustls::Error> {
        session_of(*self.connection, &self.secrets)
    }
}

/// The records of our own that follow a handshake, of which everything was sent.
pub(super) fn session_of(connection: Connection, secrets: &Secrets) -> Result<TlsSession, rustls::Error> {
    let session = session_with(connection, secrets);
    wipe_stack();
    session
}

fn session_with(connection: Connection, secrets: &Secrets) -> Result<TlsSession, rustls::Error> {
    let refused = |reason: &str| rustls::Error::General(reason.into());
    let role = match connection {
        Connection::Client(_) => Role::Client,
        Connection::Server(_) => Role::Server,
    };
    let suite = connection.negotiated_cipher_suite();
    let suite = suite.and_then(|suite| Suite::of(suite.suite()));
    let suite = suite.ok_or_else(|| refused("the connection is not of TLS 1.3"))?;
    let extracted = connection.dangerous_extract_secrets()?;
    let direction = |of: Role, (sequence, used): (u64, ConnectionTrafficSecrets)| {
        Keys::new(suite, secrets.of(of), sequence).filter(|keys| are_used(keys, &used))
    };
    let tx = direction(role, extracted.tx);
    let rx = direction(role.peer(), extracted.rx);
    match (tx, rx) {
        (Some(tx), Some(rx)) => Ok(TlsSession::new(role, tx, rx)),
        _ => Err(refused("the secrets of the handshake are not those in use")),
    }
}

fn are_used(keys: &Keys, used: &ConnectionTrafficSecrets) -> bool {
    match used {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => keys.are(key.as_ref(), iv.as_ref()),
        _ => false,
    }
}
