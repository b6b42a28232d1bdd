//! Reading the elements of a list and the pairs of a map, in place.

use std::cmp::Ordering;

use provost_schema::Type;

use crate::native;
use crate::path::{StructPlace, Value, View, scalar};
use crate::tables::{FieldForm, TableField, scalar_bytes};
use crate::{ReadError, Tables};

/// A list or a map of a message, to be read by index or by key without a copy.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    message: View<'a>,
    /// Type of an element, or of a map's values.
    ty: Type,
    /// Type of a map's keys, which are at the begin of its pairs.
    key: Option<Type>,
    first: u32,
    count: u32,
    stride: u32,
    /// Where the value is in a pair; 0 in a list.
    value_at: u32,
}

impl Tables {
    /// What the field of the struct at `base` refers to; nothing if there is no such struct.
    pub(crate) fn elements_of<'a>(
        &self,
        field: &TableField,
        base: Option<u32>,
        message: View<'a>,
    ) -> Result<Elements<'a>, ReadError> {
        let (stride, key, value_at) = match field.shape {
            FieldForm::List { .. } => (self.element_bytes(field.ty), None, 0),
            FieldForm::Map { pair } => {
                let pair = self.of(pair);
                let value_at = self.pair_value_at(pair).ok_or(ReadError)?;
                (pair.size, pair.key, value_at)
            }
            _ => return Err(ReadError),
        };
        let reference = base.map(|base| native::reference(message.bytes, base + field.at).ok_or(ReadError));
        let (off8, count) = reference.transpose()?.unwrap_or_default();
        let first = match count {
            0 => 0,
            _ => native::place(off8, message.window_at).ok_or(ReadError)?,
        };
        Ok(Elements {
            message,
            ty: field.ty,
            key,
            first,
            count,
            stride,
            value_at,
        })
    }

    fn element_bytes(&self, ty: Type) -> u32 {
        match (scalar_bytes(ty), ty) {
            (Some(bytes), _) => bytes,
            (None, Type::Message(message)) => self.message(message).map_or(1, |index| self.of(index).size),
            (None, _) => 1,
        }
    }
}

impl<'a> Elements<'a> {
    /// How many there are. (What a message that is not whole has elsewhere is counted too.)
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The element, or the value of the pair, with this index; `None` past the end. A message is
    /// [`Value::Message`], and [`Elements::place`] says where it is.
    pub fn get(&self, index: u32) -> Result<Option<Value<'a>>, ReadError> {
        match self.at(index)? {
            Some(at) => scalar(self.ty, at + self.value_at, self.message).map(Some),
            None => Ok(None),
        }
    }

    /// Where the message with this index is; `None` past the end.
    pub fn place(&self, index: u32) -> Result<Option<StructPlace>, ReadError> {
        Ok(self.at(index)?.map(|at| StructPlace(at + self.value_at)))
    }

    /// The key with this index; `None` past the end and of a list.
    pub fn key(&self, index: u32) -> Result<Option<Value<'a>>, ReadError> {
        match (self.key, self.at(index)?) {
            (Some(key), Some(at)) => scalar(key, at, self.message).map(Some),
            _ => Ok(None),
        }
    }

    /// Index of the pair with this key, if a map has one: a search by halves, as keys are sorted. A key of another type
    /// than the map's is in none.
    pub fn find(&self, key: &Value<'_>) -> Result<Option<u32>, ReadError> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let Some(order) = self.key(middle)?.and_then(|found| order(&found, key)) else {
                return Ok(None);
            };
            match order {
                Ordering::Equal => return Ok(Some(middle)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    /// Where an element begins, all of which is in the message.
    fn at(&self, index: u32) -> Result<Option<u32>, ReadError> {
        if index >= self.count {
            return Ok(None);
        }
        let at = u64::from(self.first) + u64::from(index) * u64::from(self.stride);
        if at + u64::from(self.stride) <= self.message.bytes.len() as u64 {
            Ok(Some(at as u32))
        } else {
            Err(ReadError)
        }
    }
}

/// How two keys of one type are ordered.
fn order(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    Some(match (a, b) {
        (Value::String(a), Value::String(b)) => a.as_bytes().cmp(b.as_bytes()),
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Uint(a), Value::Uint(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        _ => return None,
    })
}
