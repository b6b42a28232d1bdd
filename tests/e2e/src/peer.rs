//! Peers that are no node: they shake hands as the protocol has it, or do not, and then misbehave as a test likes.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use provost::codegen::{MethodKind as Kind, ServiceDescriptor};
use provost_session::handshake::{
    ClientEvent, ClientHandshake, HandshakeError, Hello, Limits, Method, MethodKind, SCHEMA_HASH_BYTES,
};

/// How long a peer waits for the node to say something, or to hang up.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// What became of a handshake.
#[derive(Debug)]
pub enum Handshake {
    /// The node welcomed us.
    Open(TcpStream),
    Refused(HandshakeError),
    /// The node hung up without a word.
    HungUp,
}

/// What a peer says of itself.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The service that it wants.
    pub service: String,
    /// The hash that it gives of its schema.
    pub schema_hash: [u8; SCHEMA_HASH_BYTES],
    /// The schema that it sends when it is asked for it.
    pub schema: Vec<u8>,
    /// The methods that it names.
    pub methods: Vec<Method>,
}

impl Claim {
    /// What an honest client of this service says.
    #[must_use]
    pub fn honest(descriptor: &ServiceDescriptor) -> Claim {
        let mut schema_hash = [0; SCHEMA_HASH_BYTES];
        schema_hash.copy_from_slice(descriptor.schema_hash);
        let method = |method: &provost::codegen::MethodDescriptor| Method {
            name: method.name.to_owned(),
            kind: MethodKind {
                client_streaming: matches!(method.kind, Kind::ClientStreaming | Kind::Bidirectional),
                server_streaming: matches!(method.kind, Kind::ServerStreaming | Kind::Bidirectional),
            },
        };
        Claim {
            service: descriptor.name.to_owned(),
            schema_hash,
            schema: descriptor.file_descriptor_set.to_owned(),
            methods: descriptor.methods.iter().map(method).collect(),
        }
    }

    /// Shakes hands with a node.
    ///
    /// # Panics
    ///
    /// When the node cannot be reached, or says nothing for a long time.
    #[must_use]
    pub fn shake_hands(&self, address: SocketAddr) -> Handshake {
        self.try_shake_hands(connect(address))
            .expect("the node says something")
    }

    /// The bytes that a peer says first.
    #[must_use]
    pub fn opening(&self) -> Vec<u8> {
        self.handshake().output()
    }

    fn handshake(&self) -> ClientHandshake {
        let hello = Hello {
            service: self.service.clone(),
            schema_hash: self.schema_hash,
            methods: self.methods.clone(),
            limits: Limits::default(),
            caller: None,
        };
        ClientHandshake::new(&hello, self.schema.clone())
    }

    /// Shakes hands with a node to which there is a connection.
    ///
    /// # Errors
    /// The connection ends badly, or the node says nothing for as long as the stream waits.
    pub fn try_shake_hands(&self, mut stream: TcpStream) -> std::io::Result<Handshake> {
        let mut handshake = self.handshake();
        let mut bytes = [0; 4096];
        loop {
            // When the node has hung up, reading says so.
            let _ = stream.write_all(&handshake.output());
            let count = stream.read(&mut bytes)?;
            if count == 0 {
                return Ok(Handshake::HungUp);
            }
            match handshake.input(&bytes[..count]) {
                Ok(ClientEvent::Pending) => {}
                Ok(ClientEvent::Done { .. }) => return Ok(Handshake::Open(stream)),
                Err(error) => return Ok(Handshake::Refused(error)),
            }
        }
    }
}

/// A bare connection to a node.
///
/// # Panics
///
/// When the node cannot be reached.
#[must_use]
pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("the node listens");
    stream.set_read_timeout(Some(WAIT_MAX)).expect("a limit of time");
    stream.set_write_timeout(Some(WAIT_MAX)).expect("a limit of time");
    stream
}

/// Reads until the node hangs up, and returns all that it said.
///
/// # Panics
///
/// When it does not hang up for a long time.
pub fn until_hung_up(stream: &mut TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => said,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => said,
        Err(error) => panic!("the node does not hang up: {error}"),
    }
}
