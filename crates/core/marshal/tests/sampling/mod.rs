//! Random schemas, random messages of them, and app heaps that hold those messages scattered.
#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod app_heap;
pub(crate) mod entropy;
pub(crate) mod messages;
pub(crate) mod schemas;

use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, MessageDescriptor};
use provost_marshal::{Tables, Value};
use provost_schema::{MessageId, Schema};

/// A schema in the forms that the tests need: for prost-reflect, and for the crate under test.
pub(crate) struct Subject {
    pub(crate) pool: DescriptorPool,
    pub(crate) schema: Schema,
    pub(crate) tables: Tables,
}

impl Subject {
    pub(crate) fn new(files: &prost_types::FileDescriptorSet) -> Subject {
        let bytes = files.encode_to_vec();
        let schema = Schema::from_descriptor_set(&bytes).expect("the schema is one that Provost takes");
        Subject {
            pool: DescriptorPool::decode(&*bytes).expect("the schema is valid protobuf"),
            tables: Tables::compile(&schema).expect("what the schema crate lays out compiles"),
            schema,
        }
    }

    pub(crate) fn from_source(proto: &str) -> Subject {
        let file = protox::file::File::from_source("test.proto", proto).expect("the source parses");
        struct One(protox::file::File);
        impl protox::file::FileResolver for One {
            fn open_file(&self, _name: &str) -> Result<protox::file::File, protox::Error> {
                Ok(self.0.clone())
            }
        }
        let mut compiler = protox::Compiler::with_file_resolver(One(file));
        compiler.open_file("test.proto").expect("the source compiles");
        Subject::new(&compiler.file_descriptor_set())
    }

    pub(crate) fn id(&self, full_name: &str) -> MessageId {
        let place = self
            .schema
            .messages
            .iter()
            .position(|message| message.full_name == full_name);
        MessageId(place.expect("the message is in the schema") as u32)
    }

    pub(crate) fn descriptor(&self, id: MessageId) -> MessageDescriptor {
        let name = &self.schema.messages[id.0 as usize].full_name;
        self.pool
            .get_message_by_name(name)
            .expect("the message is in the pool")
    }
}

/// Whether a value that was read is the one that the message has. Of lists and maps it has their lengths.
pub(crate) fn is_same(read: Value<'_>, expected: &prost_reflect::Value) -> bool {
    use prost_reflect::Value as Expected;
    match (read, expected) {
        (Value::Bool(a), Expected::Bool(b)) => a == *b,
        (Value::Int(a), Expected::I32(b)) => a == i64::from(*b),
        (Value::Int(a), Expected::I64(b)) => a == *b,
        (Value::Uint(a), Expected::U32(b)) => a == u64::from(*b),
        (Value::Uint(a), Expected::U64(b)) => a == *b,
        (Value::Float(a), Expected::F32(b)) => a == *b,
        (Value::Double(a), Expected::F64(b)) => a == *b,
        (Value::Enum(a), Expected::EnumNumber(b)) => a == *b,
        (Value::String(a), Expected::String(b)) => a == b,
        (Value::Bytes(a), Expected::Bytes(b)) => a == &b[..],
        (Value::List(a), Expected::List(b)) => a as usize == b.len(),
        (Value::List(a), Expected::Map(b)) => a as usize == b.len(),
        _ => false,
    }
}
