//! The macros that programs and generated code use.

/// Includes the code that `provost-build` generated for all packages, each in modules of its name (`shop.v1` in
/// `shop::v1`).
///
/// ```ignore
/// provost::include_protos!();
/// ```
#[macro_export]
macro_rules! include_protos {
    () => {
        ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/_includes.rs"));
    };
}

/// Includes the code that `provost-build` generated for one package.
///
/// ```ignore
/// pub mod kv {
///     provost::include_proto!("kv");
/// }
/// ```
///
/// Packages refer to each other by `super::`, so the modules that include them must nest as the packages do.
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        ::core::include!(::core::concat!(
            ::core::env!("OUT_DIR"),
            "/",
            $package,
            ".rs"
        ));
    };
}

/// Says that a generated struct has the native layout of a message; generated code asserts sizes and offsets beside it.
///
/// A macro, so that a program that forbids unsafe code can include generated code.
#[doc(hidden)]
#[macro_export]
macro_rules! __message {
    ($ty:ident, $full_name:literal, [$($member:ident),*]) => {
        // SAFETY: `provost-build` generates the struct from the schema: `repr(C)`, its members in layout order, made of
        // numbers and the containers of `shared` alone.
        unsafe impl $crate::codegen::Message for $ty {
            const FULL_NAME: &'static str = $full_name;

            fn measure(&self) -> usize {
                ::core::mem::size_of::<Self>().next_multiple_of(8) + $crate::codegen::Measure::referenced_bytes(self)
            }
        }

        impl $crate::codegen::Measure for $ty {
            fn referenced_bytes(&self) -> usize {
                0 $(+ $crate::codegen::Measure::referenced_bytes(&self.$member))*
            }
        }
    };
    ($ty:ident, $full_name:literal, [$($member:ident),*], {
        $($number:literal $name:literal $json_name:literal $kind:tt $shape:tt $of:ident $place:ident;)*
    }) => {
        $crate::__message! { $ty, $full_name, [$($member),*] }

        impl $crate::codegen::ReflectMessage for $ty {
            fn info(&self) -> &'static $crate::codegen::MessageInfo {
                const INFO: &$crate::codegen::MessageInfo = &$crate::codegen::MessageInfo {
                    full_name: $full_name,
                    fields: &[$($crate::codegen::FieldInfo {
                        number: $number,
                        name: $name,
                        json_name: $json_name,
                        kind: $crate::__field_kind! $kind,
                        shape: $crate::__field_shape! $shape,
                    }),*],
                };
                INFO
            }

            fn field(&self, number: u32) -> $crate::codegen::FieldRef<'_> {
                match number {
                    $($number => $crate::__field!($of, &self.$place, $number),)*
                    _ => $crate::codegen::FieldRef::One(::core::option::Option::None),
                }
            }

            fn open(
                &mut self,
                number: u32,
            ) -> ::core::result::Result<$crate::codegen::FieldMut<'_>, $crate::shared::HeapFull> {
                match number {
                    $($number => $crate::__open_field!($of, &mut self.$place, $number),)*
                    _ => ::core::result::Result::Ok($crate::codegen::FieldMut::Unknown),
                }
            }
        }

        impl $crate::codegen::FieldElement for $ty {
            fn value(&self) -> $crate::codegen::ValueRef<'_> {
                $crate::codegen::ValueRef::Message(self)
            }

            fn set(
                &mut self,
                _: $crate::codegen::ValueRef<'_>,
            ) -> ::core::result::Result<(), $crate::shared::HeapFull> {
                ::core::result::Result::Ok(())
            }

            fn message(&mut self) -> ::core::option::Option<&mut dyn $crate::codegen::ReflectMessage> {
                ::core::option::Option::Some(self)
            }

            fn unset() -> ::core::result::Result<Self, $crate::shared::HeapFull> {
                ::core::result::Result::Ok(<Self as ::core::default::Default>::default())
            }
        }

        $crate::__serde! { $ty }
    };
}

/// Has serde write and read a message as protobuf's JSON has it; only with the feature `serde` of this crate, not of the one
/// whose code is generated.
#[cfg(feature = "serde")]
#[doc(hidden)]
#[macro_export]
macro_rules! __serde {
    ($ty:ident) => {
        impl $crate::codegen::Serialize for $ty {
            fn serialize<S: $crate::codegen::Serializer>(
                &self,
                serializer: S,
            ) -> ::core::result::Result<S::Ok, S::Error> {
                $crate::codegen::serialize_message(self, serializer)
            }
        }

        impl<'de> $crate::codegen::Deserialize<'de> for $ty {
            fn deserialize<D: $crate::codegen::Deserializer<'de>>(
                deserializer: D,
            ) -> ::core::result::Result<Self, D::Error> {
                $crate::codegen::deserialize_message(deserializer)
            }
        }
    };
}

/// Nothing: the feature `serde` is off.
#[cfg(not(feature = "serde"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __serde {
    ($ty:ident) => {};
}

/// Has the compiler check that a message whose code is elsewhere is the one that is meant.
#[doc(hidden)]
#[macro_export]
macro_rules! __extern_message {
    ($ty:ty, $full_name:literal, $size:literal, $align:literal) => {
        const _: () = {
            assert!(
                $crate::codegen::is_same_name(<$ty as $crate::codegen::Message>::FULL_NAME, $full_name),
                "the type of an `extern_path` is another message"
            );
            assert!(
                ::core::mem::size_of::<$ty>() == $size && ::core::mem::align_of::<$ty>() == $align,
                "the type of an `extern_path` was generated from other sources"
            );
        };
    };
}

/// The kind of a field's values.
#[doc(hidden)]
#[macro_export]
macro_rules! __field_kind {
    (Enum $ty:ty) => {
        $crate::codegen::FieldKind::Enum(<$ty as $crate::codegen::EnumNames>::INFO)
    };
    (Message $full_name:literal) => {
        $crate::codegen::FieldKind::Message($full_name)
    };
    ($scalar:ident) => {
        $crate::codegen::FieldKind::$scalar
    };
}

/// How often a field occurs.
#[doc(hidden)]
#[macro_export]
macro_rules! __field_shape {
    (Map $key:ident) => {
        $crate::codegen::FieldShape::Map($crate::codegen::FieldKind::$key)
    };
    (Member $oneof:literal) => {
        $crate::codegen::FieldShape::Member($oneof)
    };
    ($shape:ident) => {
        $crate::codegen::FieldShape::$shape
    };
}

/// Reads a field, or a member of a oneof.
#[doc(hidden)]
#[macro_export]
macro_rules! __field {
    (field, $place:expr, $number:literal) => {
        $crate::codegen::FieldAccess::read($place)
    };
    (member, $place:expr, $number:literal) => {
        $crate::codegen::OneofFields::member($place, $number)
    };
}

/// Writes a field, or a member of a oneof.
#[doc(hidden)]
#[macro_export]
macro_rules! __open_field {
    (field, $place:expr, $number:literal) => {
        $crate::codegen::FieldAccess::write($place)
    };
    (member, $place:expr, $number:literal) => {
        $crate::codegen::OneofFields::open_member($place, $number)
    };
}

/// Makes a generated oneof's members readable and writable by their numbers.
#[doc(hidden)]
#[macro_export]
macro_rules! __oneof {
    ($ty:ident, [$($variant:ident = $number:literal),*]) => {
        impl $crate::codegen::Measure for $ty {
            fn referenced_bytes(&self) -> usize {
                match self {
                    Self::NotSet => 0,
                    $(Self::$variant(value) => $crate::codegen::Measure::referenced_bytes(value),)*
                }
            }
        }

        impl $crate::codegen::OneofFields for $ty {
            fn member(&self, number: u32) -> $crate::codegen::FieldRef<'_> {
                $crate::codegen::FieldRef::One(match (self, number) {
                    $((Self::$variant(value), $number) => {
                        ::core::option::Option::Some($crate::codegen::FieldElement::value(value))
                    })*
                    _ => ::core::option::Option::None,
                })
            }

            fn open_member(
                &mut self,
                number: u32,
            ) -> ::core::result::Result<$crate::codegen::FieldMut<'_>, $crate::shared::HeapFull> {
                match (&*self, number) {
                    $((Self::$variant(_), $number) => {})*
                    $((_, $number) => *self = Self::$variant($crate::codegen::FieldElement::unset()?),)*
                    _ => return ::core::result::Result::Ok($crate::codegen::FieldMut::Unknown),
                }
                ::core::result::Result::Ok(match self {
                    Self::NotSet => $crate::codegen::FieldMut::Unknown,
                    $(Self::$variant(value) => $crate::codegen::FieldMut::One(value),)*
                })
            }
        }
    };
}

/// Says what the values of a generated enum are called.
#[doc(hidden)]
#[macro_export]
macro_rules! __enumeration {
    ($ty:ident, $full_name:literal, [$(($name:literal, $number:literal)),*]) => {
        impl $crate::codegen::EnumNames for $ty {
            const INFO: &'static $crate::codegen::EnumInfo = &$crate::codegen::EnumInfo {
                full_name: $full_name,
                values: &[$(($name, $number)),*],
            };
        }

        impl $crate::codegen::Measure for $ty {}

        impl $crate::codegen::FieldElement for $ty {
            fn value(&self) -> $crate::codegen::ValueRef<'_> {
                $crate::codegen::ValueRef::I32(self.0)
            }

            fn set(
                &mut self,
                value: $crate::codegen::ValueRef<'_>,
            ) -> ::core::result::Result<(), $crate::shared::HeapFull> {
                $crate::codegen::FieldElement::set(&mut self.0, value)
            }

            fn unset() -> ::core::result::Result<Self, $crate::shared::HeapFull> {
                ::core::result::Result::Ok(Self(0))
            }
        }

        impl $crate::codegen::FieldAccess for $ty {
            fn read(&self) -> $crate::codegen::FieldRef<'_> {
                $crate::codegen::FieldAccess::read(&self.0)
            }

            fn write(
                &mut self,
            ) -> ::core::result::Result<$crate::codegen::FieldMut<'_>, $crate::shared::HeapFull> {
                ::core::result::Result::Ok($crate::codegen::FieldMut::One(self))
            }
        }
    };
}

/// Describes a method of a service.
#[doc(hidden)]
#[macro_export]
macro_rules! __method {
    ($name:literal, $kind:ident, $request:ty, $response:ty) => {
        // SAFETY: `provost-build` names the types that it has generated for this method's messages.
        unsafe {
            $crate::codegen::MethodDescriptor::new::<$request, $response>(
                $name,
                $crate::codegen::MethodKind::$kind,
            )
        }
    };
}

/// Describes a service.
#[doc(hidden)]
#[macro_export]
macro_rules! __service {
    ($name:expr, $schema_hash:expr, $file_descriptor_set:expr, $methods:expr) => {
        // SAFETY: `provost-build` has taken all of these from one schema.
        unsafe {
            $crate::codegen::ServiceDescriptor::new($name, $schema_hash, $file_descriptor_set, $methods)
        }
    };
}
