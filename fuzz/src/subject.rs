//! The schema that the targets over messages run on, and messages of it to start from.

use std::sync::{Arc, OnceLock};

use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value,
};
use provost_marshal::{Scratch, Tables};
use provost_schema::{MessageId, Schema};

/// How deep seeds nest.
const DEPTH: u32 = 2;
/// Seeds in native form are far shorter.
const BYTES_MAX: u32 = 1 << 20;

/// A schema with its tables.
pub(crate) struct Subject {
    pub(crate) descriptor_set: Vec<u8>,
    pub(crate) schema: Schema,
    pub(crate) tables: Arc<Tables>,
    everything: MessageDescriptor,
}

impl Subject {
    /// The subject, compiled once.
    ///
    /// # Panics
    /// If the schema that ships with this crate does not compile.
    pub(crate) fn get() -> &'static Subject {
        static SUBJECT: OnceLock<Subject> = OnceLock::new();
        SUBJECT.get_or_init(|| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
            let set = protox::compile(["everything.proto"], [folder]).expect("the schema is well-formed");
            let descriptor_set = set.encode_to_vec();
            let schema = Schema::from_descriptor_set(&descriptor_set).expect("the schema loads");
            let tables = Arc::new(Tables::compile(&schema).expect("the schema has tables"));
            let pool = DescriptorPool::from_file_descriptor_set(set).expect("the schema is well-formed");
            let everything = pool
                .get_message_by_name("fuzz.Everything")
                .expect("the message is there");
            Subject {
                descriptor_set,
                schema,
                tables,
                everything,
            }
        })
    }

    /// The message with one of everything.
    ///
    /// # Panics
    /// As [`Subject::get`].
    pub(crate) fn everything(&self) -> MessageId {
        let at = self
            .schema
            .messages
            .iter()
            .position(|message| message.full_name == "fuzz.Everything");
        MessageId(at.expect("the message is there") as u32)
    }

    /// Messages in protobuf form: an empty one, and full ones of growing depth.
    pub(crate) fn protobuf_seeds(&self) -> Vec<Vec<u8>> {
        (0..=DEPTH)
            .map(|depth| full(&self.everything, depth).encode_to_vec())
            .chain([Vec::new()])
            .collect()
    }

    /// The same in native form.
    pub(crate) fn native_seeds(&self) -> Vec<Vec<u8>> {
        let native = |protobuf: Vec<u8>| {
            let (mut native, mut scratch) = (Vec::new(), Scratch::default());
            self.tables
                .decode(self.everything(), &protobuf, &mut native, BYTES_MAX, &mut scratch)
                .ok()?;
            Some(native)
        };
        self.protobuf_seeds().into_iter().filter_map(native).collect()
    }
}

/// A message with every field set; of a oneof, the last member stays.
fn full(descriptor: &MessageDescriptor, depth: u32) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    for field in descriptor.fields() {
        let recursive = matches!(field.kind(), Kind::Message(of) if of == *descriptor);
        if !recursive || depth > 0 {
            message.set_field(&field, value(&field, depth.saturating_sub(1)));
        }
    }
    message
}

fn value(field: &FieldDescriptor, depth: u32) -> Value {
    if let (true, Kind::Message(pair)) = (field.is_map(), field.kind()) {
        let of = single(&pair.map_entry_value_field().kind(), depth);
        let keys = match pair.map_entry_key_field().kind() {
            Kind::Bool => vec![MapKey::Bool(false), MapKey::Bool(true)],
            Kind::String => ["", "a", "b"].map(|key| MapKey::String(key.into())).into(),
            _ => [-1, 0, 5].map(MapKey::I32).into(),
        };
        return Value::Map(keys.into_iter().map(|key| (key, of.clone())).collect());
    }
    if field.is_list() {
        Value::List(vec![single(&field.kind(), depth); 3])
    } else {
        single(&field.kind(), depth)
    }
}

fn single(kind: &Kind, depth: u32) -> Value {
    match kind {
        Kind::Bool => Value::Bool(true),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(-5),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(i64::MIN),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(7),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(u64::MAX),
        Kind::Float => Value::F32(1.5),
        Kind::Double => Value::F64(f64::MIN),
        Kind::String => Value::String("grüße".into()),
        Kind::Bytes => Value::Bytes(vec![0, 255].into()),
        Kind::Enum(_) => Value::EnumNumber(1),
        Kind::Message(of) => Value::Message(full(of, depth)),
    }
}
