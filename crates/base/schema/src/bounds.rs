//! A count of a descriptor set's nodes before it is decoded.
//!
//! A two-byte empty submessage becomes a struct of hundreds of bytes when it is decoded, so a hostile set of a few
//! megabytes would become gigabytes. This walk allocates nothing and refuses such a set.

use crate::SchemaErrorKind;
use provost_wire::limits;

/// Checks the size of a serialized `FileDescriptorSet` and the number of its nodes.
pub(crate) fn check(bytes: &[u8]) -> Result<(), SchemaErrorKind> {
    if bytes.len() > limits::SCHEMA_BYTES_MAX {
        return Err(too_many("bytes of descriptor set", limits::SCHEMA_BYTES_MAX));
    }
    let mut left = limits::SCHEMA_PARTS_MAX;
    count(bytes, Node::Set, limits::NESTING_MAX, &mut left)
}

pub(crate) fn too_many(what: &'static str, max: usize) -> SchemaErrorKind {
    SchemaErrorKind::TooMany { what, max }
}

/// The kinds of `descriptor.proto` that hold others.
#[derive(Clone, Copy)]
enum Node {
    Set,
    File,
    Message,
    Field,
    Oneof,
    Enum,
    Value,
    Service,
    Method,
    Range,
    Options,
    SourceInfo,
    /// Something without parts that repeat: its inside is not looked at.
    Leaf,
}

/// What a length-delimited field of a node holds; numbers are those of `descriptor.proto`.
fn part(node: Node, number: u64) -> Node {
    match (node, number) {
        (Node::Set, 1) => Node::File,
        (Node::File, 4) | (Node::Message, 3) => Node::Message,
        (Node::File, 5) | (Node::Message, 4) => Node::Enum,
        (Node::File, 6) => Node::Service,
        (Node::File, 7) | (Node::Message, 2 | 6) => Node::Field,
        (Node::File, 9) => Node::SourceInfo,
        (Node::Message, 5) => Node::Range,
        (Node::Message, 8) => Node::Oneof,
        (Node::Enum, 2) => Node::Value,
        (Node::Service, 2) => Node::Method,
        (Node::File | Node::Field, 8)
        | (Node::Message, 7)
        | (Node::Enum | Node::Value | Node::Service | Node::Range, 3)
        | (Node::Oneof, 2)
        | (Node::Method, 4) => Node::Options,
        // Uninterpreted options, which hold name parts.
        (Node::Options, 999) => Node::Options,
        _ => Node::Leaf,
    }
}

fn count(mut bytes: &[u8], node: Node, depth: u32, left: &mut usize) -> Result<(), SchemaErrorKind> {
    let depth = depth.checked_sub(1).ok_or(SchemaErrorKind::Encoding)?;
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let length = match key & 7 {
            0 => {
                varint(&mut bytes)?;
                continue;
            }
            1 => 8,
            2 => varint(&mut bytes)?,
            5 => 4,
            // Groups are in no descriptor.
            _ => return Err(SchemaErrorKind::Encoding),
        };
        let length = usize::try_from(length).map_err(|_| SchemaErrorKind::Encoding)?;
        let (inside, rest) = bytes.split_at_checked(length).ok_or(SchemaErrorKind::Encoding)?;
        bytes = rest;
        if key & 7 == 2 {
            *left = left
                .checked_sub(1)
                .ok_or(too_many("parts of descriptor set", limits::SCHEMA_PARTS_MAX))?;
            match part(node, key >> 3) {
                Node::Leaf => {}
                node => count(inside, node, depth, left)?,
            }
        }
    }
    Ok(())
}

fn varint(bytes: &mut &[u8]) -> Result<u64, SchemaErrorKind> {
    let mut value = 0u64;
    for place in 0..10 {
        let (byte, rest) = bytes.split_first().ok_or(SchemaErrorKind::Encoding)?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(SchemaErrorKind::Encoding)
}
