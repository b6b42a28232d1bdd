//! The simulated service: its schema, and its one message as it lies in memory.

use std::sync::Arc;

use prost::Message;
use provost_frontend::MethodShape;
use provost_marshal::Tables;
use provost_marshalling::MethodTypes;
use provost_schema::Schema;
use provost_session::handshake::MethodKind;

const PROTO: &str = r#"
syntax = "proto3";
package sim;
message Note {
  uint64 seed = 1;
  bytes payload = 2;
}
service Sim {
  rpc Unary(Note) returns (Note);
  rpc Up(stream Note) returns (Note);
  rpc Down(Note) returns (stream Note);
  rpc Both(stream Note) returns (stream Note);
}
"#;

/// Size of the struct `Note`: `seed` at 0, `payload`'s offset at 8 and length at 12.
pub(crate) const NOTE_BYTES: usize = 16;

/// What datapaths need to know of the service.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) tables: Arc<Tables>,
    pub(crate) shapes: Arc<[MethodShape]>,
    pub(crate) types: Arc<[MethodTypes]>,
    pub(crate) kinds: Vec<MethodKind>,
    /// By which policies are told of it.
    pub(crate) source: Arc<provost_engine::rig::Service>,
}

struct SchemaSource(protox::file::File);

impl protox::file::FileResolver for SchemaSource {
    fn open_file(&self, _name: &str) -> Result<protox::file::File, protox::Error> {
        Ok(self.0.clone())
    }
}

impl Service {
    pub(crate) fn load() -> Service {
        let file = protox::file::File::from_source("sim.proto", PROTO).expect("the schema above parses");
        let mut compiler = protox::Compiler::with_file_resolver(SchemaSource(file));
        compiler
            .open_file("sim.proto")
            .expect("the schema above resolves");
        let set = compiler.file_descriptor_set().encode_to_vec();
        let schema = Schema::from_descriptor_set(&set).expect("the schema above loads");
        let service = &schema.services[0];
        let types = |method: &provost_schema::Method| MethodTypes {
            input: method.input,
            output: method.output,
        };
        let kind = |method: &provost_schema::Method| MethodKind {
            client_streaming: method.client_streaming,
            server_streaming: method.server_streaming,
        };
        Service {
            tables: Arc::new(Tables::compile(&schema).expect("the schema above compiles")),
            shapes: MethodShape::of_service(service),
            types: service.methods.iter().map(types).collect(),
            kinds: service.methods.iter().map(kind).collect(),
            source: Arc::new(provost_engine::rig::Service::from_source(PROTO)),
        }
    }
}

/// A `Note` whose root lies at `root` (in units of 8 bytes of the app's window) and whose payload follows it.
pub(crate) fn encode(root: u32, seed: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_le_bytes().to_vec();
    let at = if payload.is_empty() {
        0
    } else {
        root + (NOTE_BYTES / 8) as u32
    };
    bytes.extend_from_slice(&at.to_le_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The seed, and where the payload is (in units of 8 bytes of the app's window) and how long.
pub(crate) fn decode(root: &[u8]) -> Option<(u64, u32, u32)> {
    let seed = u64::from_le_bytes(root.get(..8)?.try_into().ok()?);
    let at = u32::from_le_bytes(root.get(8..12)?.try_into().ok()?);
    let length = u32::from_le_bytes(root.get(12..16)?.try_into().ok()?);
    Some((seed, at, length))
}
