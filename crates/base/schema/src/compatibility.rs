//! Whether a client's and a server's schema of a service may be connected.
//!
//! The rules are those that protobuf documents for updating a message type
//! (<https://protobuf.dev/programming-guides/proto3/#updating>), read conservatively: what may lose or change a
//! value that both sides know of is refused. Fields are compared by number, along the way that data takes, from the
//! side that writes to the side that reads.
//!
//! | written → read | |
//! |---|---|
//! | a field that the other side lacks | allowed: skipped, or its default |
//! | another name of a message, field, enum or oneof | allowed |
//! | `int32`, `uint32`, `int64`, `uint64`, `bool`, enums among each other | allowed: truncated as in C |
//! | `sint32`, `sint64` among each other; `fixed32`, `sfixed32`; `fixed64`, `sfixed64` | allowed |
//! | `string` → `bytes` | allowed |
//! | `bytes` → `string` | refused: bytes need not be UTF-8 |
//! | message → message | allowed if their fields are; any other type ↔ message is refused |
//! | with presence ↔ without (`optional`, a member of a oneof) | allowed |
//! | packed ↔ not packed | allowed |
//! | single ↔ repeated of `string`, `bytes`, messages | allowed: the last one counts, messages are merged |
//! | single ↔ repeated of numbers, `bool`, enums | refused |
//! | fields that can be set together → members of one oneof | refused: all but the last would be lost |
//! | map → map | allowed if the keys' types are the same and the values' are compatible |
//! | map ↔ anything else | refused |
//! | values of an enum that the other side lacks | allowed: enums are open |

use std::collections::{HashMap, HashSet};

use crate::{Cardinality, Field, Message, MessageId, Schema, Slot, Type};

/// How a client and a server whose schemas may be connected talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compatibility {
    /// The schemas are the same: messages travel in native layout, method indices are the same.
    Equal,
    /// They differ in ways that protobuf permits: messages travel in protobuf encoding.
    Protobuf {
        /// For each method of the client, the server's index of the method of that name. `None`: the server lacks
        /// it, so its calls end with UNIMPLEMENTED.
        method_map: Vec<Option<u16>>,
    },
}

/// Why a client's and a server's schema must not be connected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Incompatibility {
    /// A side does not have the service at all.
    #[error(
        "the {side}'s schema has no service `{service}`; check the service's name and the {side}'s version"
    )]
    NoService {
        /// `client` or `server`.
        side: &'static str,
        /// The service asked for.
        service: String,
    },
    /// A method streams differently.
    #[error(
        "method {service}/{method}: the client has it as {client}, the server as {server}; \
         give the changed method a new name"
    )]
    Streaming {
        /// Full name of the service.
        service: String,
        /// Name of the method.
        method: String,
        /// What the client's schema says.
        client: &'static str,
        /// What the server's schema says.
        server: &'static str,
    },
    /// A field changed in a way that the other side would misread.
    #[error(
        "field number {number}: `{client}` is `{client_type}` at the client, `{server}` is `{server_type}` at the server: \
         {reason}; give the changed field a new number, or bring both sides to the same schema"
    )]
    Field {
        number: u32,
        /// `message.field` in the client's schema.
        client: String,
        /// Its type in the client's schema.
        client_type: String,
        /// `message.field` in the server's schema.
        server: String,
        /// Its type in the server's schema.
        server_type: String,
        /// Which rule is broken.
        reason: &'static str,
    },
    /// Fields that can be set together have become members of one oneof.
    #[error(
        "`{first}` (number {first_number}) and `{second}` (number {second_number}) of the {writer} can be set \
         together, but are members of one oneof, `{oneof}`, at the other side, which would lose one of them; \
         give the members of the oneof new numbers, or bring both sides to the same schema"
    )]
    Oneof {
        /// `client` or `server`: the side that writes.
        writer: &'static str,
        /// `message.field` at that side.
        first: String,
        first_number: u32,
        /// `message.field` at that side.
        second: String,
        second_number: u32,
        /// `message.oneof` at the side that reads.
        oneof: String,
    },
    /// The comparison was given up.
    #[error(
        "the two schemas differ so much that comparing them takes too long; bring both sides to the same schema"
    )]
    TooDifferent,
}

/// Fields that one comparison looks at, at most: a hostile pair of schemas could make it look at many times more
/// than they hold.
const COMPARED_FIELDS_MAX: usize = 1 << 20;

/// Compares the schemas that a client and a server have of `service`.
pub fn compatibility(
    client: &Schema,
    server: &Schema,
    service: &str,
) -> Result<Compatibility, Incompatibility> {
    let missing = |side| Incompatibility::NoService {
        side,
        service: service.to_owned(),
    };
    let client_hash = client.service_hash(service).ok_or_else(|| missing("client"))?;
    let server_hash = server.service_hash(service).ok_or_else(|| missing("server"))?;
    if client_hash == server_hash {
        return Ok(Compatibility::Equal);
    }
    let mut comparison = SchemaComparison {
        client,
        server,
        seen: HashSet::new(),
        left: COMPARED_FIELDS_MAX,
    };
    Ok(Compatibility::Protobuf {
        method_map: comparison.methods(service)?,
    })
}

/// Which way data goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum WriteDirection {
    /// Requests: the client writes, the server reads.
    ToServer,
    /// Responses: the server writes, the client reads.
    ToClient,
}

/// Messages of the two sides that meet, and who writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct MessageMeeting {
    client: MessageId,
    server: MessageId,
    direction: WriteDirection,
}

struct SchemaComparison<'a> {
    client: &'a Schema,
    server: &'a Schema,
    seen: HashSet<MessageMeeting>,
    left: usize,
}

impl SchemaComparison<'_> {
    fn methods(&mut self, service: &str) -> Result<Vec<Option<u16>>, Incompatibility> {
        let (Some(client), Some(server)) = (self.client.service(service), self.server.service(service))
        else {
            return Ok(Vec::new());
        };
        let by_name: HashMap<&str, usize> = server
            .methods
            .iter()
            .enumerate()
            .map(|(index, method)| (method.name.as_str(), index))
            .collect();
        let mut map = Vec::with_capacity(client.methods.len());
        for ours in &client.methods {
            let Some(&index) = by_name.get(ours.name.as_str()) else {
                map.push(None);
                continue;
            };
            let theirs = &server.methods[index];
            let kinds = [ours, theirs].map(|method| kind(method.client_streaming, method.server_streaming));
            if kinds[0] != kinds[1] {
                let (service, method) = (service.to_owned(), ours.name.clone());
                return Err(Incompatibility::Streaming {
                    service,
                    method,
                    client: kinds[0],
                    server: kinds[1],
                });
            }
            self.messages(MessageMeeting {
                client: ours.input,
                server: theirs.input,
                direction: WriteDirection::ToServer,
            })?;
            self.messages(MessageMeeting {
                client: ours.output,
                server: theirs.output,
                direction: WriteDirection::ToClient,
            })?;
            map.push(u16::try_from(index).ok());
        }
        Ok(map)
    }

    /// Compares two messages and all that meet inside them; each pair once, so recursive types end.
    fn messages(&mut self, root: MessageMeeting) -> Result<(), Incompatibility> {
        let mut stack = vec![root];
        while let Some(meeting) = stack.pop() {
            if self.seen.insert(meeting) {
                self.fields(meeting, &mut stack)?;
            }
        }
        Ok(())
    }

    fn fields(
        &mut self,
        meeting: MessageMeeting,
        inside: &mut Vec<MessageMeeting>,
    ) -> Result<(), Incompatibility> {
        let client = self.client.message(meeting.client);
        let server = self.server.message(meeting.server);
        let cost = client.fields().count() + server.fields().count() + 1;
        self.left = self.left.checked_sub(cost).ok_or(Incompatibility::TooDifferent)?;
        let theirs: HashMap<u32, &Field> = server.fields().map(|field| (field.number, field)).collect();
        let mut shared: Vec<(&Field, &Field)> = client
            .fields()
            .filter_map(|ours| Some((ours, *theirs.get(&ours.number)?)))
            .collect();
        shared.sort_by_key(|(ours, _)| ours.number);
        for (ours, theirs) in shared {
            let (writer, reader) = match meeting.direction {
                WriteDirection::ToServer => (ours, theirs),
                WriteDirection::ToClient => (theirs, ours),
            };
            check(writer, reader).map_err(|reason| Incompatibility::Field {
                number: ours.number,
                client: format!("{}.{}", client.full_name, ours.name),
                client_type: describe(self.client, ours),
                server: format!("{}.{}", server.full_name, theirs.name),
                server_type: describe(self.server, theirs),
                reason,
            })?;
            if let (Type::Message(client), Type::Message(server)) = (ours.ty, theirs.ty) {
                inside.push(MessageMeeting {
                    client,
                    server,
                    direction: meeting.direction,
                });
            }
        }
        match meeting.direction {
            WriteDirection::ToServer => check_oneofs("client", client, server),
            WriteDirection::ToClient => check_oneofs("server", server, client),
        }
    }
}

fn kind(client_streaming: bool, server_streaming: bool) -> &'static str {
    match (client_streaming, server_streaming) {
        (false, false) => "unary",
        (false, true) => "server-streaming",
        (true, false) => "client-streaming",
        (true, true) => "bidirectional",
    }
}

/// Whether what `writer` writes is what `reader` reads; messages inside are compared elsewhere.
fn check(writer: &Field, reader: &Field) -> Result<(), &'static str> {
    match (&writer.cardinality, &reader.cardinality) {
        (Cardinality::Map(written), Cardinality::Map(read)) if written.key != read.key => {
            return Err("the keys of a map must keep their type");
        }
        (Cardinality::Map(_), Cardinality::Map(_)) => {}
        (Cardinality::Map(_), _) | (_, Cardinality::Map(_)) => {
            return Err("a map cannot become another kind of field");
        }
        (Cardinality::Repeated { .. }, Cardinality::Repeated { .. }) => {}
        (Cardinality::Repeated { .. }, _) | (_, Cardinality::Repeated { .. }) => {
            let delimited = |ty| matches!(ty, Type::String | Type::Bytes | Type::Message(_));
            if !delimited(writer.ty) {
                return Err("a single and a repeated number are encoded differently");
            }
        }
        _ => {}
    }
    match (wire_group(writer.ty), wire_group(reader.ty)) {
        (WireGroup::Bytes, WireGroup::String) => Err("bytes need not be UTF-8, as a string must be"),
        (WireGroup::String, WireGroup::Bytes) => Ok(()),
        (written, read) if written == read => Ok(()),
        _ => Err("the two types are encoded differently"),
    }
}

/// Types that protobuf encodes alike.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WireGroup {
    Varint,
    ZigZag,
    Fixed32,
    Fixed64,
    Float,
    Double,
    String,
    Bytes,
    Message,
}

fn wire_group(ty: Type) -> WireGroup {
    match ty {
        Type::Int32 | Type::Uint32 | Type::Int64 | Type::Uint64 | Type::Bool | Type::Enum(_) => {
            WireGroup::Varint
        }
        Type::Sint32 | Type::Sint64 => WireGroup::ZigZag,
        Type::Fixed32 | Type::Sfixed32 => WireGroup::Fixed32,
        Type::Fixed64 | Type::Sfixed64 => WireGroup::Fixed64,
        Type::Float => WireGroup::Float,
        Type::Double => WireGroup::Double,
        Type::String => WireGroup::String,
        Type::Bytes => WireGroup::Bytes,
        Type::Message(_) => WireGroup::Message,
    }
}

/// Of the fields that a oneof of the reader has as members, the writer must be able to set only one at a time.
fn check_oneofs(side: &'static str, writer: &Message, reader: &Message) -> Result<(), Incompatibility> {
    let oneofs = reader.slots.iter().filter_map(|slot| match slot {
        Slot::Oneof(oneof) => Some(oneof),
        Slot::Field(_) => None,
    });
    let written: HashMap<u32, (usize, &Field)> = writer
        .slots
        .iter()
        .enumerate()
        .flat_map(|(index, slot)| {
            slot.fields()
                .iter()
                .map(move |field| (field.number, (index, field)))
        })
        .collect();
    for oneof in oneofs {
        let mut sources = oneof
            .members
            .iter()
            .filter_map(|member| written.get(&member.number));
        let Some((first_slot, first)) = sources.next() else {
            continue;
        };
        if let Some((_, second)) = sources.find(|(slot, _)| slot != first_slot) {
            return Err(Incompatibility::Oneof {
                writer: side,
                first: format!("{}.{}", writer.full_name, first.name),
                first_number: first.number,
                second: format!("{}.{}", writer.full_name, second.name),
                second_number: second.number,
                oneof: format!("{}.{}", reader.full_name, oneof.name),
            });
        }
    }
    Ok(())
}

/// A field's type as a schema would write it.
fn describe(schema: &Schema, field: &Field) -> String {
    let name = |ty: Type| match ty {
        Type::Message(id) => schema.message(id).full_name.clone(),
        Type::Enum(id) => schema.enumeration(id).full_name.clone(),
        scalar => format!("{scalar:?}").to_lowercase(),
    };
    match &field.cardinality {
        Cardinality::Repeated { .. } => format!("repeated {}", name(field.ty)),
        Cardinality::Map(pair) => format!("map<{}, {}>", name(pair.key), name(field.ty)),
        Cardinality::Optional { .. } if !matches!(field.ty, Type::Message(_)) => {
            format!("optional {}", name(field.ty))
        }
        _ => name(field.ty),
    }
}
