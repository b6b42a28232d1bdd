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
    count(bytes, DescriptorNode::Set, limits::NESTING_MAX, &mut left)
}

/// Counts the parts of one serialized `FileDescriptorProto`, of which there may be so many: to be asked before bytes of a stranger are
/// decoded, as what they become takes a hundred times their length.
///
/// # Errors
/// It has more, or is no such file.
pub fn file_parts(bytes: &[u8], parts_max: usize) -> Result<usize, SchemaErrorKind> {
    let mut left = parts_max;
    count(bytes, DescriptorNode::File, limits::NESTING_MAX, &mut left)?;
    Ok(parts_max - left)
}

pub(crate) fn too_many(what: &'static str, max: usize) -> SchemaErrorKind {
    SchemaErrorKind::TooMany { what, max }
}

/// The kinds of `descriptor.proto` that hold others.
#[derive(Clone, Copy)]
enum DescriptorNode {
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
fn part(node: DescriptorNode, number: u64) -> DescriptorNode {
    match (node, number) {
        (DescriptorNode::Set, 1) => DescriptorNode::File,
        (DescriptorNode::File, 4) | (DescriptorNode::Message, 3) => DescriptorNode::Message,
        (DescriptorNode::File, 5) | (DescriptorNode::Message, 4) => DescriptorNode::Enum,
        (DescriptorNode::File, 6) => DescriptorNode::Service,
        (DescriptorNode::File, 7) | (DescriptorNode::Message, 2 | 6) => DescriptorNode::Field,
        (DescriptorNode::File, 9) => DescriptorNode::SourceInfo,
        (DescriptorNode::Message, 5) => DescriptorNode::Range,
        (DescriptorNode::Message, 8) => DescriptorNode::Oneof,
        (DescriptorNode::Enum, 2) => DescriptorNode::Value,
        (DescriptorNode::Service, 2) => DescriptorNode::Method,
        (DescriptorNode::File | DescriptorNode::Field, 8)
        | (DescriptorNode::Message, 7)
        | (
            DescriptorNode::Enum | DescriptorNode::Value | DescriptorNode::Service | DescriptorNode::Range,
            3,
        )
        | (DescriptorNode::Oneof, 2)
        | (DescriptorNode::Method, 4) => DescriptorNode::Options,
        // Uninterpreted options, which hold name parts.
        (DescriptorNode::Options, 999) => DescriptorNode::Options,
        _ => DescriptorNode::Leaf,
    }
}

fn count(
    mut bytes: &[u8],
    node: DescriptorNode,
    depth: u32,
    left: &mut usize,
) -> Result<(), SchemaErrorKind> {
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
                DescriptorNode::Leaf => {}
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
