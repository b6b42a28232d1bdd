//! What generated code says of a service and its methods.

use std::any::TypeId;

use crate::message::Message;

/// A service of a schema.
///
/// Only generated code makes one: what it says of the messages' types is trusted when they are received.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServiceDescriptor {
    /// Full name, such as `kv.Kv`.
    pub name: &'static str,
    /// Content hash of the schema, as `provost-schema` computes it.
    pub schema_hash: &'static [u8],
    /// The schema: a serialized `FileDescriptorSet`.
    pub file_descriptor_set: &'static [u8],
    /// The methods in schema order; a method's index is its number on the wire.
    pub methods: &'static [MethodDescriptor],
}

/// A method of a service.
#[derive(Debug)]
#[non_exhaustive]
pub struct MethodDescriptor {
    /// Name as in the schema, such as `Get`.
    pub name: &'static str,
    /// How many messages flow in each direction.
    pub kind: MethodKind,
    /// The types of request and response. A function, because a `TypeId` is not a constant yet.
    types: fn() -> [TypeId; 2],
}

impl ServiceDescriptor {
    /// A service.
    ///
    /// # Safety
    ///
    /// All parts must be of the same schema, and the methods in its order.
    #[must_use]
    pub const unsafe fn new(
        name: &'static str,
        schema_hash: &'static [u8],
        file_descriptor_set: &'static [u8],
        methods: &'static [MethodDescriptor],
    ) -> ServiceDescriptor {
        ServiceDescriptor {
            name,
            schema_hash,
            file_descriptor_set,
            methods,
        }
    }

    /// Whether a method has these types of messages, and flows in this way.
    pub(crate) fn has_method<Req: Message, Resp: Message>(&self, method: u16, kind: MethodKind) -> bool {
        self.methods
            .get(usize::from(method))
            .is_some_and(|method| method.kind == kind && (method.types)() == types::<Req, Resp>())
    }
}

impl MethodDescriptor {
    /// The types of request and response.
    pub(crate) fn message_types(&self) -> [TypeId; 2] {
        (self.types)()
    }

    /// A method.
    ///
    /// # Safety
    ///
    /// The types must be those of the method's request and response in the schema of its service.
    #[must_use]
    pub const unsafe fn new<Req: Message, Resp: Message>(
        name: &'static str,
        kind: MethodKind,
    ) -> MethodDescriptor {
        MethodDescriptor {
            name,
            kind,
            types: types::<Req, Resp>,
        }
    }
}

fn types<Req: Message, Resp: Message>() -> [TypeId; 2] {
    [TypeId::of::<Req>(), TypeId::of::<Resp>()]
}

/// How many messages flow in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodKind {
    /// One request, one response.
    Unary,
    /// One request, any number of responses.
    ServerStreaming,
    /// Any number of requests, one response.
    ClientStreaming,
    /// Any number of both.
    Bidirectional,
}
