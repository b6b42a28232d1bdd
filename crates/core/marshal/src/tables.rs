//! The tables, and how they are compiled from a schema.
//!
//! A *struct* is anything with members at fixed places: each message of the schema, then each map's pair. It has two
//! views. Its *ops* say what there is to check and to follow in native form, in layout order, which is the order of
//! blocks in a linear message. Its *fields* say how each member looks in protobuf.

use std::ops::Range;

use provost_schema::{Cardinality, Message, MessageId, Oneof, Pair, Schema, Slot, Type};
use provost_wire::limits::MESSAGE_BYTES_MAX;

use crate::TableError;

/// Bytes of a presence word, a tag, a message's reference.
pub(crate) const WORD_BYTES: u32 = 4;
/// Bytes of a reference with a length.
pub(crate) const REFERENCE_BYTES: u32 = 8;

/// The op tables of one schema: immutable, to be shared by an `Arc`.
#[derive(Debug, Default)]
pub struct Tables {
    pub(crate) structs: Vec<Struct>,
    ops: Vec<Op>,
    choices: Vec<Choice>,
    fields: Vec<TableField>,
    by_number: Vec<u32>,
    /// Name of each of `fields`.
    names: Vec<Box<str>>,
    /// Full name of each message.
    messages: Vec<Box<str>>,
}

/// Index of a struct: a message's own index, or a pair's after them.
pub(crate) type StructIndex = u32;

/// A message, or a pair of a map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Struct {
    pub(crate) size: u32,
    /// Whether a receiver has anything to check in it.
    pub(crate) checked: bool,
    /// Type of the key, which is the first member; `None` for a message.
    pub(crate) key: Option<Type>,
    ops: TableSpan,
    /// Of `Tables::fields`, in layout order.
    fields: TableSpan,
    /// Of `Tables::by_number`.
    by_number: TableSpan,
}

/// A range of one of the tables.
#[derive(Clone, Copy, Debug, Default)]
struct TableSpan {
    start: u32,
    end: u32,
}

impl TableSpan {
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// One thing to do with the native form of a struct. All places are relative to the struct.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    /// A byte that is 0 or 1.
    Bool { at: u32 },
    /// A reference to UTF-8.
    Text { at: u32 },
    /// As `Text`, and never in the tail: a map's key.
    KeyText { at: u32 },
    /// A reference to scalars of any bits (bytes among them).
    Scalars { at: u32, element_bytes: u32 },
    /// A reference to bools.
    Bools { at: u32 },
    /// A reference to references to UTF-8.
    Texts { at: u32 },
    /// A reference to references to bytes.
    Blobs { at: u32 },
    /// A reference to structs.
    Structs { at: u32, index: StructIndex },
    /// A reference to pairs with strictly increasing keys.
    Pairs { at: u32, index: StructIndex },
    /// A reference to one struct, without a length.
    Boxed { at: u32, index: StructIndex },
    /// A struct in place.
    Inline { at: u32, index: StructIndex },
    /// A word that is 0 or 1. With 0 the value is not there, and the next `skip` ops are about it.
    Presence {
        at: u32,
        value_at: u32,
        value_bytes: u16,
        skip: u16,
    },
    /// A word that is 0 or the tag of one of the choices, which say what is at `value_at`.
    Oneof {
        at: u32,
        value_at: u32,
        value_bytes: u32,
        choices: ChoiceSpan,
    },
    /// Bytes without meaning.
    Padding { at: u32, bytes: u32 },
}

/// The choices of one oneof.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChoiceSpan {
    start: u32,
    count: u16,
}

/// A member of a oneof, sorted by tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) tag: u32,
    pub(crate) value_bytes: u32,
    pub(crate) op: Option<Op>,
}

/// A member of a struct, as protobuf sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableField {
    pub(crate) number: u32,
    /// Type of the value, of an element, or of a map's values.
    pub(crate) ty: Type,
    pub(crate) shape: FieldForm,
    /// Where the value or the reference is in the struct.
    pub(crate) at: u32,
}

/// How a field occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldForm {
    /// Absent in protobuf when it is the default.
    Implicit,
    /// Always present: key and value of a pair. A message lies in place.
    Always,
    /// There if the word at `present_at` is 1.
    Optional {
        present_at: u32,
    },
    /// There if the word at `tag_at` is the field's number; the oneof's value has `value_bytes` bytes.
    Member {
        tag_at: u32,
        value_bytes: u32,
    },
    List {
        packed: bool,
    },
    /// A map with these pairs.
    Map {
        pair: StructIndex,
    },
}

impl Tables {
    /// Compiles the tables of a schema.
    pub fn compile(schema: &Schema) -> Result<Tables, TableError> {
        let mut compiler = Compiler {
            schema,
            tables: Tables::default(),
            pairs: Vec::new(),
        };
        compiler.tables.messages = schema
            .messages
            .iter()
            .map(|m| m.full_name.as_str().into())
            .collect();
        for message in &schema.messages {
            compiler.check_struct(message)?;
        }
        for message in &schema.messages {
            compiler.message(message)?;
        }
        let mut done = 0;
        while let Some(pending) = compiler.pairs.get(done).cloned() {
            compiler.pair(&pending)?;
            done += 1;
        }
        Ok(compiler.tables)
    }

    pub(crate) fn message(&self, message: MessageId) -> Option<StructIndex> {
        ((message.0 as usize) < self.messages.len()).then_some(message.0)
    }

    pub(crate) fn message_name(&self, message: MessageId) -> &str {
        self.messages.get(message.0 as usize).map_or("", |name| name)
    }

    pub(crate) fn of(&self, index: StructIndex) -> Struct {
        self.structs[index as usize]
    }

    pub(crate) fn ops(&self, of: Struct) -> &[Op] {
        &self.ops[of.ops.range()]
    }

    pub(crate) fn choice(&self, span: ChoiceSpan, tag: u32) -> Option<&Choice> {
        let choices = &self.choices[span.start as usize..][..usize::from(span.count)];
        let place = choices.binary_search_by_key(&tag, |choice| choice.tag).ok()?;
        choices.get(place)
    }

    /// Indices of a struct's fields, by ascending number.
    pub(crate) fn fields_by_number(&self, of: Struct) -> &[u32] {
        &self.by_number[of.by_number.range()]
    }

    pub(crate) fn field(&self, field: u32) -> &TableField {
        &self.fields[field as usize]
    }

    /// Index of the field with this number.
    pub(crate) fn field_numbered(&self, of: Struct, number: u32) -> Option<u32> {
        let fields = self.fields_by_number(of);
        // Numbers mostly count up from 1 without gaps.
        let guess = fields.get((number as usize).wrapping_sub(1));
        if let Some(&field) = guess.filter(|&&field| self.field(field).number == number) {
            return Some(field);
        }
        let place = fields
            .binary_search_by_key(&number, |&field| self.field(field).number)
            .ok()?;
        fields.get(place).copied()
    }

    /// Where the value is in a map's pair.
    pub(crate) fn pair_value_at(&self, pair: Struct) -> Option<u32> {
        let value = self.field_numbered(pair, 2)?;
        Some(self.field(value).at)
    }

    /// The paths of a message's fields, of so many names at most.
    pub(crate) fn path_names(
        &self,
        message: MessageId,
        fields_max: usize,
        prefix: &str,
        names: &mut Vec<String>,
    ) {
        let fields = self.message(message).map(|index| self.of(index).fields.range());
        for field in fields.into_iter().flatten() {
            let name = format!("{prefix}{}", self.names[field]);
            let is_singular = !matches!(
                self.fields[field].shape,
                FieldForm::List { .. } | FieldForm::Map { .. }
            );
            if let (Type::Message(inner), true) = (self.fields[field].ty, is_singular && fields_max > 1) {
                self.path_names(inner, fields_max - 1, &format!("{name}."), names);
            }
            names.push(name);
        }
    }

    pub(crate) fn field_named(&self, of: Struct, name: &str) -> Option<&TableField> {
        let place = of.fields.range().find(|&field| &*self.names[field] == name)?;
        Some(&self.fields[place])
    }
}

/// Bytes that a value of a list or of a field without messages takes. `None` for a message.
pub(crate) fn scalar_bytes(ty: Type) -> Option<u32> {
    match ty {
        Type::Bool => Some(1),
        Type::Int32 | Type::Sint32 | Type::Uint32 | Type::Fixed32 | Type::Sfixed32 => Some(4),
        Type::Float | Type::Enum(_) => Some(4),
        Type::Int64 | Type::Sint64 | Type::Uint64 | Type::Fixed64 | Type::Sfixed64 | Type::Double => Some(8),
        Type::String | Type::Bytes => Some(REFERENCE_BYTES),
        Type::Message(_) => None,
    }
}

struct Compiler<'a> {
    schema: &'a Schema,
    tables: Tables,
    pairs: Vec<PendingPair<'a>>,
}

#[derive(Clone)]
struct PendingPair<'a> {
    message: &'a Message,
    field: &'a str,
    value: Type,
    pair: &'a Pair,
}

/// What is known of a struct while its members are added.
struct StructDraft<'a> {
    message: &'a Message,
    size: u32,
    ops: Vec<Op>,
    fields: Vec<TableField>,
    names: Vec<Box<str>>,
    /// Bytes with a meaning: start and end.
    used: Vec<(u32, u32)>,
}

impl<'a> StructDraft<'a> {
    fn new(message: &'a Message, size: u32) -> StructDraft<'a> {
        StructDraft {
            message,
            size,
            ops: Vec::new(),
            fields: Vec::new(),
            names: Vec::new(),
            used: Vec::new(),
        }
    }

    /// Claims a member's bytes.
    fn claim(&mut self, field: &str, at: u32, bytes: u32, align: u32) -> Result<(), TableError> {
        let end = at
            .checked_add(bytes)
            .filter(|end| *end <= self.size && at.is_multiple_of(align));
        let end = end.ok_or_else(|| self.layout_error(field))?;
        self.used.push((at, end));
        Ok(())
    }

    fn claim_value(&mut self, field: &str, at: u32, ty: Type) -> Result<(), TableError> {
        let (bytes, align) = value_layout(ty);
        self.claim(field, at, bytes, align)
    }

    fn field(&mut self, name: &str, field: TableField) {
        self.fields.push(field);
        self.names.push(name.into());
    }

    fn layout_error(&self, field: &str) -> TableError {
        TableError::Layout {
            message: self.message.full_name.clone(),
            field: field.to_owned(),
            size: self.size,
        }
    }

    fn type_error(&self, field: &str, reason: &'static str) -> TableError {
        TableError::Type {
            message: self.message.full_name.clone(),
            field: field.to_owned(),
            reason,
        }
    }
}

impl<'a> Compiler<'a> {
    fn check_struct(&self, message: &Message) -> Result<(), TableError> {
        let (size, align) = (message.size, message.align);
        let fits = (1..=MESSAGE_BYTES_MAX).contains(&size) && matches!(align, 1 | 4 | 8);
        if fits && size.is_multiple_of(align) {
            return Ok(());
        }
        Err(TableError::Struct {
            message: message.full_name.clone(),
            size,
            align,
        })
    }

    fn message(&mut self, message: &'a Message) -> Result<(), TableError> {
        let mut draft = StructDraft::new(message, message.size);
        for slot in &message.slots {
            match slot {
                Slot::Field(field) => self.slot(&mut draft, field)?,
                Slot::Oneof(oneof) => self.oneof(&mut draft, oneof)?,
            }
        }
        self.finish(draft, None)
    }

    fn slot(
        &mut self,
        draft: &mut StructDraft<'a>,
        field: &'a provost_schema::Field,
    ) -> Result<(), TableError> {
        let (name, at) = (field.name.as_str(), field.offset);
        let mut value_at = at;
        let shape = match &field.cardinality {
            Cardinality::Implicit => {
                if matches!(field.ty, Type::Message(_)) {
                    return Err(draft.type_error(name, "a singular message has a presence word"));
                }
                draft.claim_value(name, at, field.ty)?;
                draft.ops.extend(self.value_op(draft, name, field.ty, at)?);
                FieldForm::Implicit
            }
            Cardinality::Optional { value_offset } => {
                value_at = *value_offset;
                self.optional(draft, field, value_at)?;
                FieldForm::Optional { present_at: at }
            }
            Cardinality::Repeated { packed } => {
                draft.claim(name, at, REFERENCE_BYTES, WORD_BYTES)?;
                draft.ops.push(self.list_op(draft, name, field.ty, at)?);
                FieldForm::List {
                    packed: *packed && is_packable(field.ty),
                }
            }
            Cardinality::Map(pair) => {
                draft.claim(name, at, REFERENCE_BYTES, WORD_BYTES)?;
                let index = self.add_pair(draft, name, field.ty, pair)?;
                draft.ops.push(Op::Pairs { at, index });
                FieldForm::Map { pair: index }
            }
            Cardinality::OneofMember => {
                return Err(draft.type_error(name, "a member of a oneof outside of one"));
            }
        };
        let (number, ty) = (field.number, field.ty);
        draft.field(
            name,
            TableField {
                number,
                ty,
                shape,
                at: value_at,
            },
        );
        Ok(())
    }

    fn optional(
        &self,
        draft: &mut StructDraft<'a>,
        field: &'a provost_schema::Field,
        value_at: u32,
    ) -> Result<(), TableError> {
        let (value_bytes, _) = value_layout(field.ty);
        draft.claim(&field.name, field.offset, WORD_BYTES, WORD_BYTES)?;
        draft.claim_value(&field.name, value_at, field.ty)?;
        let value_op = self.value_op(draft, &field.name, field.ty, value_at)?;
        draft.ops.push(Op::Presence {
            at: field.offset,
            value_at,
            value_bytes: value_bytes as u16,
            skip: value_op.iter().count() as u16,
        });
        draft.ops.extend(value_op);
        Ok(())
    }

    fn oneof(&mut self, draft: &mut StructDraft<'a>, oneof: &'a Oneof) -> Result<(), TableError> {
        let (at, value_at) = (oneof.offset, oneof.value_offset);
        let room = at
            .checked_add(oneof.size)
            .and_then(|end| end.checked_sub(value_at));
        let value_bytes = room.ok_or_else(|| draft.layout_error(&oneof.name))?;
        draft.claim(&oneof.name, at, WORD_BYTES, WORD_BYTES)?;
        draft.claim(&oneof.name, value_at, value_bytes, WORD_BYTES)?;
        let start = self.tables.choices.len();
        for member in &oneof.members {
            let (bytes, align) = value_layout(member.ty);
            if !matches!(member.cardinality, Cardinality::OneofMember) || member.offset != value_at {
                return Err(draft.type_error(&member.name, "not a member of its oneof"));
            }
            if bytes > value_bytes || !value_at.is_multiple_of(align) {
                return Err(draft.layout_error(&member.name));
            }
            let op = self.value_op(draft, &member.name, member.ty, value_at)?;
            self.tables.choices.push(Choice {
                tag: member.number,
                value_bytes: bytes,
                op,
            });
            let shape = FieldForm::Member {
                tag_at: at,
                value_bytes,
            };
            draft.field(
                &member.name,
                TableField {
                    number: member.number,
                    ty: member.ty,
                    shape,
                    at: value_at,
                },
            );
        }
        let choices = &mut self.tables.choices[start..];
        choices.sort_unstable_by_key(|choice| choice.tag);
        let count = u16::try_from(choices.len()).map_err(|_| TableError::TooLarge)?;
        let choices = ChoiceSpan {
            start: start as u32,
            count,
        };
        draft.ops.push(Op::Oneof {
            at,
            value_at,
            value_bytes,
            choices,
        });
        Ok(())
    }

    fn add_pair(
        &mut self,
        draft: &StructDraft<'a>,
        field: &'a str,
        value: Type,
        pair: &'a Pair,
    ) -> Result<StructIndex, TableError> {
        let index = self.schema.messages.len() + self.pairs.len();
        self.pairs.push(PendingPair {
            message: draft.message,
            field,
            value,
            pair,
        });
        u32::try_from(index).map_err(|_| TableError::TooLarge)
    }

    fn pair(&mut self, pending: &PendingPair<'a>) -> Result<(), TableError> {
        let (pair, name) = (pending.pair, pending.field);
        let mut draft = StructDraft::new(pending.message, pair.size);
        if pair.size == 0 || pair.size > MESSAGE_BYTES_MAX {
            return Err(draft.layout_error(name));
        }
        if matches!(
            pair.key,
            Type::Float | Type::Double | Type::Bytes | Type::Enum(_) | Type::Message(_)
        ) {
            return Err(draft.type_error(name, "not a type for a map's key"));
        }
        draft.claim_value(name, 0, pair.key)?;
        draft.ops.extend(match pair.key {
            Type::String => Some(Op::KeyText { at: 0 }),
            key => self.value_op(&draft, name, key, 0)?,
        });
        let at = pair.value_offset;
        let value_op = match pending.value {
            Type::Message(message) => {
                let of = self.known(&draft, name, message)?;
                draft.claim(name, at, of.size, of.align)?;
                Some(Op::Inline { at, index: message.0 })
            }
            value => {
                draft.claim_value(name, at, value)?;
                self.value_op(&draft, name, value, at)?
            }
        };
        draft.ops.extend(value_op);
        draft.field(
            "key",
            TableField {
                number: 1,
                ty: pair.key,
                shape: FieldForm::Always,
                at: 0,
            },
        );
        draft.field(
            "value",
            TableField {
                number: 2,
                ty: pending.value,
                shape: FieldForm::Always,
                at,
            },
        );
        self.finish(draft, Some(pair.key))
    }

    /// What there is to do for one value; a message is a reference without a length.
    fn value_op(
        &self,
        draft: &StructDraft<'_>,
        field: &str,
        ty: Type,
        at: u32,
    ) -> Result<Option<Op>, TableError> {
        Ok(match ty {
            Type::Bool => Some(Op::Bool { at }),
            Type::String => Some(Op::Text { at }),
            Type::Bytes => Some(Op::Scalars { at, element_bytes: 1 }),
            Type::Message(message) => {
                self.known(draft, field, message)?;
                Some(Op::Boxed { at, index: message.0 })
            }
            _ => None,
        })
    }

    fn list_op(&self, draft: &StructDraft<'_>, field: &str, ty: Type, at: u32) -> Result<Op, TableError> {
        Ok(match ty {
            Type::Bool => Op::Bools { at },
            Type::String => Op::Texts { at },
            Type::Bytes => Op::Blobs { at },
            Type::Message(message) => {
                self.known(draft, field, message)?;
                Op::Structs { at, index: message.0 }
            }
            scalar => Op::Scalars {
                at,
                element_bytes: scalar_bytes(scalar).unwrap_or(1),
            },
        })
    }

    fn known(
        &self,
        draft: &StructDraft<'_>,
        field: &str,
        message: MessageId,
    ) -> Result<&'a Message, TableError> {
        let of = self.schema.messages.get(message.0 as usize);
        of.ok_or_else(|| draft.type_error(field, "its message is not in the schema"))
    }

    /// Adds the finished struct and its padding.
    fn finish(&mut self, mut draft: StructDraft<'a>, key: Option<Type>) -> Result<(), TableError> {
        let checked = !draft.ops.is_empty();
        let gaps = gaps(&mut draft.used, draft.size).ok_or_else(|| draft.type_error("", "fields overlap"))?;
        draft
            .ops
            .extend(gaps.into_iter().map(|(at, bytes)| Op::Padding { at, bytes }));
        let first = self.tables.fields.len() as u32;
        let mut by_number: Vec<u32> = (first..first + draft.fields.len() as u32).collect();
        by_number.sort_by_key(|&field| draft.fields[(field - first) as usize].number);
        let numbers = by_number
            .iter()
            .map(|&field| draft.fields[(field - first) as usize].number);
        if !numbers.clone().is_sorted_by(|a, b| a < b) || numbers.clone().any(|n| n == 0 || n >= 1 << 29) {
            return Err(draft.type_error("", "field numbers are from 1 to 2^29 - 1, each once"));
        }
        let tables = &mut self.tables;
        let new = Struct {
            size: draft.size,
            checked,
            key,
            ops: append(&mut tables.ops, draft.ops)?,
            fields: append(&mut tables.fields, draft.fields)?,
            by_number: append(&mut tables.by_number, by_number)?,
        };
        append(&mut tables.names, draft.names)?;
        tables.structs.push(new);
        Ok(())
    }
}

fn append<T>(table: &mut Vec<T>, items: Vec<T>) -> Result<TableSpan, TableError> {
    let start = table.len();
    table.extend(items);
    let end = u32::try_from(table.len()).map_err(|_| TableError::TooLarge)?;
    Ok(TableSpan {
        start: start as u32,
        end,
    })
}

/// The stretches of a struct that no member uses; `None` if members overlap.
fn gaps(used: &mut [(u32, u32)], size: u32) -> Option<Vec<(u32, u32)>> {
    used.sort_unstable();
    let mut gaps = Vec::new();
    let mut end = 0;
    for &mut (start, next) in used {
        if start < end {
            return None;
        }
        if start > end {
            gaps.push((end, start - end));
        }
        end = next;
    }
    if size > end {
        gaps.push((end, size - end));
    }
    Some(gaps)
}

/// Bytes and alignment of a value in a field: a message is a word that refers to it.
fn value_layout(ty: Type) -> (u32, u32) {
    match (ty, scalar_bytes(ty)) {
        (Type::String | Type::Bytes, _) => (REFERENCE_BYTES, WORD_BYTES),
        (_, Some(bytes)) => (bytes, bytes),
        (_, None) => (WORD_BYTES, WORD_BYTES),
    }
}

fn is_packable(ty: Type) -> bool {
    !matches!(ty, Type::String | Type::Bytes | Type::Message(_))
}
