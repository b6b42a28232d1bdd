//! The types of a schema. All cross-references are indices, so that a schema is one flat value.

/// A checked schema: every index in it is in range, every offset is final.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// Messages, map entries not among them.
    pub messages: Vec<Message>,
    pub enums: Vec<Enum>,
    pub services: Vec<Service>,
}

impl Schema {
    /// The message of this index, which must be of this schema.
    pub fn message(&self, id: MessageId) -> &Message {
        &self.messages[id.0 as usize]
    }

    /// The enum of this index, which must be of this schema.
    pub fn enumeration(&self, id: EnumId) -> &Enum {
        &self.enums[id.0 as usize]
    }
}

/// Index of a message in [`Schema::messages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(pub u32);

/// Index of an enum in [`Schema::enums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EnumId(pub u32);

/// A message type and its native struct.
#[derive(Clone, Debug)]
pub struct Message {
    /// Full name with its package, such as `kv.Entry`; nested types as `kv.Outer.Inner`.
    pub full_name: String,
    /// The comment above it in the source.
    pub docs: String,
    /// The members of the native struct, in layout order: descending alignment, then ascending field number.
    pub slots: Vec<Slot>,
    /// Size of the native struct in bytes, a multiple of `align`, at least 1.
    pub size: u32,
    /// Alignment of the native struct: 1, 4 or 8.
    pub align: u32,
}

impl Message {
    /// All its fields, those of oneofs among them, in layout order.
    pub fn fields(&self) -> impl Iterator<Item = &Field> {
        self.slots.iter().flat_map(Slot::fields)
    }

    /// The name without package and outer messages.
    pub fn name(&self) -> &str {
        self.full_name.rsplit('.').next().unwrap_or_default()
    }
}

/// A member of a native struct.
#[derive(Clone, Debug)]
pub enum Slot {
    /// A field of its own.
    Field(Field),
    /// A oneof: a tag and room for the largest of its members.
    Oneof(Oneof),
}

impl Slot {
    /// The field, or the members of the oneof.
    pub fn fields(&self) -> &[Field] {
        match self {
            Slot::Field(field) => std::slice::from_ref(field),
            Slot::Oneof(oneof) => &oneof.members,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Field {
    /// Name as in the source.
    pub name: String,
    pub number: u32,
    /// The comment above it in the source.
    pub docs: String,
    /// Its type; for a map, see [`Cardinality::Map`].
    pub ty: Type,
    /// How often it occurs.
    pub cardinality: Cardinality,
    /// Where it is in the native struct, in bytes. For [`Cardinality::Optional`] this is the presence word. For a
    /// member of a oneof it is the value, not the tag.
    pub offset: u32,
}

/// How often a field occurs, and so how it is represented.
#[derive(Clone, Debug)]
pub enum Cardinality {
    /// A proto3 scalar, string, bytes or enum without `optional`: the value alone, default when absent.
    Implicit,
    /// `optional`, or a singular message: a presence word `u32` (0 or 1), then the value at `value_offset` from the
    /// start of the struct. A message's value is a `u32` offset in units of 8 bytes.
    Optional {
        /// Where the value is in the native struct.
        value_offset: u32,
    },
    /// A list: `{offset: u32 in units of 8 bytes, length: u32 in elements}`.
    Repeated {
        /// Whether protobuf packs it.
        packed: bool,
    },
    /// A map: a list of pairs, sorted by strictly increasing key.
    Map(Pair),
    /// A member of a oneof: the value lies at the oneof's value offset. A message is a `u32` offset, as above.
    OneofMember,
}

/// A pair of a map: `key` first, `value` after it, as in a C struct. A message value lies in the pair itself.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Type of the key (an integer, bool or string); the field's `ty` is the value's.
    pub key: Type,
    /// Where the value is in the pair.
    pub value_offset: u32,
    /// Size of a pair.
    pub size: u32,
    /// Alignment of a pair.
    pub align: u32,
}

/// A oneof: `{tag: u32, value}`. The tag is the field number of the member that is set, 0 when none is.
#[derive(Clone, Debug)]
pub struct Oneof {
    /// Name as in the source.
    pub name: String,
    /// The comment above it in the source.
    pub docs: String,
    /// Its members by ascending number; all have [`Cardinality::OneofMember`].
    pub members: Vec<Field>,
    /// Where the tag is in the native struct.
    pub offset: u32,
    /// Where the value is in the native struct: the tag's end, aligned for the most aligned member.
    pub value_offset: u32,
    /// Size of tag and value together, a multiple of `align`.
    pub size: u32,
    /// Alignment: the largest of 4 and the members'.
    pub align: u32,
}

/// The type of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Type {
    Bool,
    Int32,
    Sint32,
    Uint32,
    Fixed32,
    Sfixed32,
    Int64,
    Sint64,
    Uint64,
    Fixed64,
    Sfixed64,
    Float,
    Double,
    /// `{offset: u32 in units of 8 bytes, length: u32 in bytes}`, UTF-8.
    String,
    /// As a string, any bytes.
    Bytes,
    /// An `i32`; open.
    Enum(EnumId),
    /// In a list or a map's value: the native struct itself. As a field: see [`Cardinality`].
    Message(MessageId),
}

/// An enum. Open: a number without a name is a value too.
#[derive(Clone, Debug)]
pub struct Enum {
    /// Full name with its package.
    pub full_name: String,
    /// The comment above it in the source.
    pub docs: String,
    /// Its values in source order.
    pub values: Vec<EnumValue>,
}

/// A named value of an enum.
#[derive(Clone, Debug)]
pub struct EnumValue {
    /// Name as in the source.
    pub name: String,
    pub number: i32,
    /// The comment above it in the source.
    pub docs: String,
}

#[derive(Clone, Debug)]
pub struct Service {
    /// Full name with its package.
    pub full_name: String,
    /// The comment above it in the source.
    pub docs: String,
    /// Its methods in source order; a method's index is what descriptors and frames carry.
    pub methods: Vec<Method>,
}

#[derive(Clone, Debug)]
pub struct Method {
    /// Name as in the source.
    pub name: String,
    /// The comment above it in the source.
    pub docs: String,
    pub input: MessageId,
    pub output: MessageId,
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
    /// Whether the server sends any number of messages.
    pub server_streaming: bool,
}
