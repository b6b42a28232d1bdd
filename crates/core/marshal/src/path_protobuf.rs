//! Reading single fields of protobuf bytes, without decoding the message: by the same paths as of the native layout.
//!
//! The bytes are walked once. Records that the path does not touch are skipped by their lengths, and nothing in them is judged: a
//! message that [`Tables::decode`] refuses may be read all the same. What is read is what decoding would have made of it.

use provost_schema::Type;
use provost_wire::limits::MESSAGE_BYTES_MAX;

use crate::path::number_value;
use crate::protobuf::{WireType, native_bits};
use crate::records::{ProtobufRecord, RecordContent, Records, varint_at};
use crate::tables::{FieldForm, StructIndex, TableField, scalar_bytes};
use crate::{DecodeError, FieldPath, Scratch, Tables, Value};

/// Bytes of packed varints, of a group or of a map's pair that take as long to walk as a record does.
const SPENT_RECORD_BYTES: u32 = 4;

impl Tables {
    /// Reads a field of a message in protobuf, as [`Tables::read`] reads it of the same message once decoded: the last value
    /// wins, messages that come in pieces merge, lists are packed or not, a field that is missing has its default or is absent.
    ///
    /// # Errors
    /// What the path touches is malformed.
    pub fn read_protobuf<'a>(
        &self,
        path: &FieldPath,
        protobuf: &'a [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<Value<'a>>, DecodeError> {
        self.read_protobuf_within(u32::MAX, path, protobuf, scratch)
    }

    /// As [`Tables::read_protobuf`], of a message in which no more records are walked than these. For who reads many fields
    /// it is cheaper to decode one that has more.
    ///
    /// # Errors
    /// What the path touches is malformed, or there are more records ([`DecodeError::TooFragmented`]).
    pub fn read_protobuf_within<'a>(
        &self,
        records_max: u32,
        path: &FieldPath,
        protobuf: &'a [u8],
        scratch: &mut Scratch,
    ) -> Result<Option<Value<'a>>, DecodeError> {
        if protobuf.len() > MESSAGE_BYTES_MAX as usize {
            return Err(DecodeError::TooLong {
                max: MESSAGE_BYTES_MAX,
            });
        }
        scratch.forget_pairs();
        let mut walk = PathWalk {
            tables: self,
            path,
            input: protobuf,
            scratch,
            present: 0,
            found: None,
            count: 0,
            records_left: Some(records_max),
            error: None,
        };
        let whole = RecordContent {
            start: 0,
            end: protobuf.len() as u32,
        };
        walk.message(0, path.root, whole);
        if walk.records_left.is_none() {
            return Err(DecodeError::TooFragmented);
        }
        walk.value()
    }
}

/// What was found on the way of a path so far.
struct PathWalk<'a, 'b> {
    tables: &'b Tables,
    path: &'b FieldPath,
    input: &'a [u8],
    scratch: &'b mut Scratch,
    /// How many of the messages on the way are there.
    present: usize,
    /// The last record of a field that is no list.
    found: Option<ProtobufRecord>,
    /// Elements of a list.
    count: u32,
    /// Records that may still be walked; none, once there were more.
    records_left: Option<u32>,
    /// What is malformed, unless another member of a oneof takes its place.
    error: Option<DecodeError>,
}

impl<'a> PathWalk<'a, '_> {
    /// Walks a piece of the message that is so many steps down the path.
    fn message(&mut self, level: usize, index: StructIndex, piece: RecordContent) {
        let path = self.path;
        let field = path.through.get(level).unwrap_or(&path.last);
        for record in Records::new(self.input, piece) {
            if !self.spend(1) {
                return;
            }
            let record = match record {
                Ok(record) => record,
                Err(error) => return self.fail(error),
            };
            if record.wire == WireType::GroupStart {
                self.spend(record.content.len() / SPENT_RECORD_BYTES);
            }
            if record.number != field.number {
                self.other(level, index, field, &record);
            } else if let (true, Type::Message(inner)) = (level < path.through.len(), field.ty) {
                if record.wire == WireType::Len {
                    self.present = self.present.max(level + 1);
                    self.message(level + 1, inner.0, record.content);
                }
            } else if let Err(error) = self.last(&record) {
                self.fail(error);
            }
        }
    }

    /// Another field than that of the path. A member of the same oneof takes the place of all that was found.
    fn other(&mut self, level: usize, index: StructIndex, field: &TableField, record: &ProtobufRecord) {
        let FieldForm::Member { tag_at, .. } = field.shape else {
            return;
        };
        let tables = self.tables;
        let Some(other) = tables.field_numbered(tables.of(index), record.number) else {
            return;
        };
        let other = tables.field(other);
        let is_member = matches!(other.shape, FieldForm::Member { tag_at: at, .. } if at == tag_at);
        if is_member && record.wire == WireType::of(other.ty) {
            self.present = self.present.min(level);
            self.found = None;
            self.count = 0;
            self.error = None;
            self.scratch.forget_pairs();
        }
    }

    /// A record of the field at the path's end. One of another type than the schema's is an unknown field.
    fn last(&mut self, record: &ProtobufRecord) -> Result<(), DecodeError> {
        let field = &self.path.last;
        let single = WireType::of(field.ty);
        match field.shape {
            FieldForm::Map { pair } if record.wire == WireType::Len => {
                let key = self.tables.of(pair).key.unwrap_or(Type::Bool);
                self.spend(record.content.len() / SPENT_RECORD_BYTES);
                self.scratch.note_pair(self.input, key, record.content)?;
            }
            FieldForm::List { .. } if record.wire == single => self.count += 1,
            FieldForm::List { .. } if record.wire == WireType::Len => {
                self.count += self.packed(single, record)?
            }
            FieldForm::List { .. } | FieldForm::Map { .. } => {}
            _ if record.wire == single => self.found = Some(*record),
            _ => {}
        }
        Ok(())
    }

    /// How many numbers there are in a packed list.
    fn packed(&mut self, single: WireType, record: &ProtobufRecord) -> Result<u32, DecodeError> {
        let RecordContent { start, end } = record.content;
        if single != WireType::Varint {
            let element_bytes = scalar_bytes(self.path.last.ty).unwrap_or(1);
            let is_whole = record.content.len().is_multiple_of(element_bytes);
            let truncated = DecodeError::Truncated { at: record.start };
            return is_whole
                .then(|| record.content.len() / element_bytes)
                .ok_or(truncated);
        }
        if !self.spend(record.content.len() / SPENT_RECORD_BYTES) {
            return Ok(0);
        }
        let (mut at, mut count) = (start, 0);
        while at < end {
            (_, at) = varint_at(self.input, at, end)?;
            count += 1;
        }
        Ok(count)
    }

    /// Accounts for records that are walked; whether so many are left.
    fn spend(&mut self, records: u32) -> bool {
        let left = self.records_left.and_then(|left| left.checked_sub(records));
        self.records_left = left;
        left.is_some()
    }

    fn fail(&mut self, error: DecodeError) {
        self.error.get_or_insert(error);
    }

    fn value(self) -> Result<Option<Value<'a>>, DecodeError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self.present < self.path.through.len() {
            return Ok(None);
        }
        let TableField { ty, shape, .. } = self.path.last;
        match (shape, self.found) {
            (FieldForm::List { .. }, _) => Ok(Some(Value::List(self.count))),
            (FieldForm::Map { pair }, _) => {
                let key = self.tables.of(pair).key.unwrap_or(Type::Bool);
                Ok(Some(Value::List(self.scratch.count_pairs(self.input, key))))
            }
            (FieldForm::Optional { .. } | FieldForm::Member { .. }, None) => Ok(None),
            (_, found) => single_value(ty, found, self.input).map(Some),
        }
    }
}

/// The value of a record, or the default of its type.
fn single_value<'a>(
    ty: Type,
    found: Option<ProtobufRecord>,
    input: &'a [u8],
) -> Result<Value<'a>, DecodeError> {
    let bytes = || found.map_or(&[][..], |record| &input[record.content.range()]);
    Ok(match ty {
        Type::Message(_) => Value::Message,
        Type::Bytes => Value::Bytes(bytes()),
        Type::String => {
            let at = found.map_or(0, |record| record.content.start);
            Value::String(std::str::from_utf8(bytes()).map_err(|_| DecodeError::Utf8 { at })?)
        }
        number => number_value(
            number,
            found.map_or(0, |record| native_bits(number, record.value)),
        ),
    })
}
