//! What codecs know of a message type: a table of its fields, and access to each by its number.
//!
//! Generated code implements [`ReflectMessage`] for messages, [`OneofFields`] for oneofs and [`EnumNames`] for enums, by the
//! macros of this crate. Everything else about formats is written once, over these traits, and not generated.

use crate::shared::{Box, Bytes, HeapFull, List, Map, Optional, String};

/// A message as the codecs see it.
pub trait ReflectMessage: Send + Sync + 'static {
    /// Its type.
    fn info(&self) -> &'static MessageInfo;
    /// The field of this number; absent for a number that the type does not have.
    fn field(&self, number: u32) -> FieldRef<'_>;
    /// The field of this number, to be written: what was absent is made with its default first.
    ///
    /// # Errors
    /// If the send heap is full.
    fn open(&mut self, number: u32) -> Result<FieldMut<'_>, HeapFull>;
}

/// What is known of a message type.
#[derive(Debug)]
pub struct MessageInfo {
    /// Full name, such as `kv.Entry`.
    pub full_name: &'static str,
    /// Its fields, members of oneofs among them, by ascending number.
    pub fields: &'static [FieldInfo],
}

/// What is known of a field.
#[derive(Debug)]
pub struct FieldInfo {
    /// Field number.
    pub number: u32,
    /// Name as in the source.
    pub name: &'static str,
    /// Name in JSON.
    pub json_name: &'static str,
    /// The type of its values; for a map, of the pairs' values.
    pub kind: FieldKind,
    /// How often it occurs.
    pub shape: FieldShape,
}

/// The type of one value.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum FieldKind {
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
    String,
    Bytes,
    Enum(&'static EnumInfo),
    /// A message of this full name.
    Message(&'static str),
}

/// How often a field occurs.
#[derive(Clone, Copy, Debug)]
pub enum FieldShape {
    /// Once; absent when it has its default.
    Implicit,
    /// Once or not at all.
    Optional,
    /// As a member of the oneof of this name.
    Member(&'static str),
    /// Any number of times; protobuf has them one after the other, each with its tag.
    Repeated,
    /// Any number of times; protobuf packs them.
    Packed,
    /// As pairs with keys of this kind.
    Map(FieldKind),
}

/// What is known of an enum.
#[derive(Debug)]
pub struct EnumInfo {
    /// Full name, such as `kv.Color`.
    pub full_name: &'static str,
    /// Names and numbers, in the order of the source.
    pub values: &'static [(&'static str, i32)],
}

impl EnumInfo {
    /// The first name of a number.
    pub(super) fn name_of(&self, number: i32) -> Option<&'static str> {
        let mut values = self.values.iter();
        values.find(|value| value.1 == number).map(|value| value.0)
    }

    /// The number of a name.
    pub(super) fn number_of(&self, name: &str) -> Option<i32> {
        let mut values = self.values.iter();
        values.find(|value| value.0 == name).map(|value| value.1)
    }
}

impl MessageInfo {
    pub(super) fn numbered(&self, number: u32) -> Option<&'static FieldInfo> {
        let found = self.fields.binary_search_by_key(&number, |field| field.number);
        found.ok().map(|index| &self.fields[index])
    }
}

/// A generated enum.
pub trait EnumNames {
    /// What is known of it.
    const INFO: &'static EnumInfo;
}

/// A value that is read.
#[derive(Clone, Copy)]
pub enum ValueRef<'a> {
    /// A `bool`.
    Bool(bool),
    /// A signed number of 32 bits, or an enum.
    I32(i32),
    /// An unsigned number of 32 bits.
    U32(u32),
    /// A signed number of 64 bits.
    I64(i64),
    /// An unsigned number of 64 bits.
    U64(u64),
    /// A `float`.
    F32(f32),
    /// A `double`.
    F64(f64),
    /// A `string`.
    Text(&'a str),
    /// `bytes`.
    Bytes(&'a [u8]),
    /// A message.
    Message(&'a dyn ReflectMessage),
}

/// A field that is read.
pub enum FieldRef<'a> {
    /// A single value; `None` if it is absent.
    One(Option<ValueRef<'a>>),
    /// The elements of a list.
    Many(&'a dyn ListElements),
    /// The pairs of a map.
    MapPairs(&'a dyn MapPairs),
}

/// A field that is written.
pub enum FieldMut<'a> {
    /// A single value.
    One(&'a mut dyn FieldElement),
    /// A list.
    Many(&'a mut dyn ListElements),
    /// A map.
    MapPairs(&'a mut dyn MapPairs),
    /// The type has no field of that number.
    Unknown,
}

/// A single value: of a field, of a list, of a pair.
pub trait FieldElement {
    /// The value.
    fn value(&self) -> ValueRef<'_>;
    /// Sets the value; one of another type is not taken.
    ///
    /// # Errors
    /// If the send heap is full.
    fn set(&mut self, value: ValueRef<'_>) -> Result<(), HeapFull>;
    /// The message, if it is one.
    fn message(&mut self) -> Option<&mut dyn ReflectMessage> {
        None
    }
    /// A value that is not set yet.
    ///
    /// # Errors
    /// If the send heap is full.
    fn unset() -> Result<Self, HeapFull>
    where
        Self: Sized;
}

/// A list of any type.
pub trait ListElements {
    /// How many elements it has.
    fn count(&self) -> usize;
    /// The element of this index, which must be less than the count.
    fn element(&self, index: usize) -> ValueRef<'_>;
    /// The element of this index, to be changed.
    fn element_mut(&mut self, index: usize) -> &mut dyn FieldElement;
    /// Appends an element.
    ///
    /// # Errors
    /// If the send heap is full.
    fn append(&mut self) -> Result<&mut dyn FieldElement, HeapFull>;
}

/// A key and its value, to be written.
pub type PairMut<'a> = (&'a mut dyn FieldElement, &'a mut dyn FieldElement);

/// A map of any type.
pub trait MapPairs {
    /// How many pairs it has.
    fn count(&self) -> usize;
    /// The pair of this index, which must be less than the count.
    fn pair(&self, index: usize) -> (ValueRef<'_>, ValueRef<'_>);
    /// The value of the pair of this index, to be changed.
    fn value_mut(&mut self, index: usize) -> &mut dyn FieldElement;
    /// Appends a pair; [`MapPairs::settle`] must follow before anything else is done with the map.
    ///
    /// # Errors
    /// If the send heap is full.
    fn append(&mut self) -> Result<PairMut<'_>, HeapFull>;
    /// Sorts the pairs; of those with one key the last stays.
    fn settle(&mut self);
}

/// A oneof.
pub trait OneofFields {
    /// The member of this number; absent unless it is the one that is set.
    fn member(&self, number: u32) -> FieldRef<'_>;
    /// The member of this number, which is set to its default unless it is the one that is set.
    ///
    /// # Errors
    /// If the send heap is full.
    fn open_member(&mut self, number: u32) -> Result<FieldMut<'_>, HeapFull>;
}

/// The type of a member of a message's struct.
pub trait FieldAccess {
    /// It, to be read.
    fn read(&self) -> FieldRef<'_>;
    /// It, to be written.
    ///
    /// # Errors
    /// If the send heap is full.
    fn write(&mut self) -> Result<FieldMut<'_>, HeapFull>;
}

macro_rules! scalars {
    ($($ty:ty, $variant:ident, $value:ident => $is_default:expr;)*) => {
        $(impl FieldElement for $ty {
            fn value(&self) -> ValueRef<'_> {
                ValueRef::$variant(*self)
            }
            fn set(&mut self, value: ValueRef<'_>) -> Result<(), HeapFull> {
                if let ValueRef::$variant(value) = value {
                    *self = value;
                }
                Ok(())
            }
            fn unset() -> Result<$ty, HeapFull> {
                Ok(<$ty>::default())
            }
        }

        impl FieldAccess for $ty {
            fn read(&self) -> FieldRef<'_> {
                let $value = *self;
                FieldRef::One((!$is_default).then_some(ValueRef::$variant($value)))
            }
            fn write(&mut self) -> Result<FieldMut<'_>, HeapFull> {
                Ok(FieldMut::One(self))
            }
        })*
    };
}
// A floating-point number is the default if its bits are: -0 is not.
scalars! {
    bool, Bool, value => !value;
    i32, I32, value => value == 0;
    u32, U32, value => value == 0;
    i64, I64, value => value == 0;
    u64, U64, value => value == 0;
    f32, F32, value => (value.to_bits() == 0);
    f64, F64, value => (value.to_bits() == 0);
}

macro_rules! texts {
    ($($ty:ty, $variant:ident, $read:ident, $make:ident;)*) => {
        $(impl FieldElement for $ty {
            fn value(&self) -> ValueRef<'_> {
                ValueRef::$variant(self.$read())
            }
            fn set(&mut self, value: ValueRef<'_>) -> Result<(), HeapFull> {
                if let ValueRef::$variant(value) = value {
                    *self = <$ty>::$make(value)?;
                }
                Ok(())
            }
            fn unset() -> Result<$ty, HeapFull> {
                Ok(<$ty>::new())
            }
        }

        impl FieldAccess for $ty {
            fn read(&self) -> FieldRef<'_> {
                FieldRef::One((!self.is_empty()).then(|| self.value()))
            }
            fn write(&mut self) -> Result<FieldMut<'_>, HeapFull> {
                Ok(FieldMut::One(self))
            }
        })*
    };
}
texts! {
    String, Text, as_str, try_from_str;
    Bytes, Bytes, as_slice, try_from_slice;
}

impl<T: FieldElement> FieldElement for Box<T> {
    fn value(&self) -> ValueRef<'_> {
        T::value(self)
    }
    fn set(&mut self, value: ValueRef<'_>) -> Result<(), HeapFull> {
        T::set(self, value)
    }
    fn message(&mut self) -> Option<&mut dyn ReflectMessage> {
        T::message(self)
    }
    fn unset() -> Result<Box<T>, HeapFull> {
        Box::try_new(T::unset()?)
    }
}

impl<T: FieldElement> FieldAccess for Optional<T> {
    fn read(&self) -> FieldRef<'_> {
        FieldRef::One(self.as_ref().map(T::value))
    }
    fn write(&mut self) -> Result<FieldMut<'_>, HeapFull> {
        let element = match self {
            Optional::Some(present) => present,
            absent => absent.insert(T::unset()?),
        };
        Ok(FieldMut::One(element))
    }
}

impl<T: FieldElement> ListElements for List<T> {
    fn count(&self) -> usize {
        self.len()
    }
    fn element(&self, index: usize) -> ValueRef<'_> {
        self[index].value()
    }
    fn element_mut(&mut self, index: usize) -> &mut dyn FieldElement {
        &mut self[index]
    }
    fn append(&mut self) -> Result<&mut dyn FieldElement, HeapFull> {
        let index = self.len();
        self.try_push(T::unset()?)?;
        Ok(&mut self[index])
    }
}

impl<T: FieldElement> FieldAccess for List<T> {
    fn read(&self) -> FieldRef<'_> {
        FieldRef::Many(self)
    }
    fn write(&mut self) -> Result<FieldMut<'_>, HeapFull> {
        Ok(FieldMut::Many(self))
    }
}

impl<K: FieldElement + Ord, V: FieldElement> MapPairs for Map<K, V> {
    fn count(&self) -> usize {
        self.len()
    }
    fn pair(&self, index: usize) -> (ValueRef<'_>, ValueRef<'_>) {
        let (key, value) = self.at(index);
        (key.value(), value.value())
    }
    fn value_mut(&mut self, index: usize) -> &mut dyn FieldElement {
        self.value_at_mut(index)
    }
    fn append(&mut self) -> Result<PairMut<'_>, HeapFull> {
        let (key, value) = self.push_unsorted(K::unset()?, V::unset()?)?;
        Ok((key, value))
    }
    fn settle(&mut self) {
        self.sort();
    }
}

impl<K: FieldElement + Ord, V: FieldElement> FieldAccess for Map<K, V> {
    fn read(&self) -> FieldRef<'_> {
        FieldRef::MapPairs(self)
    }
    fn write(&mut self) -> Result<FieldMut<'_>, HeapFull> {
        Ok(FieldMut::MapPairs(self))
    }
}
