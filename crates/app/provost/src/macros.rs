//! The macros that programs and generated code use.

/// Includes the code that `provost-build` generated for a package.
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
