//! Macros for generated code and for including it.

/// Includes the code that `provost-build` generated for a package of a schema.
///
/// ```ignore
/// pub mod kv {
///     provost::include_proto!("kv");
/// }
/// ```
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}

/// Makes a generated struct a message.
#[doc(hidden)]
#[macro_export]
macro_rules! __message {
    ($message:ident, $full_name:literal, [$($field:ident),* $(,)?]) => {
        // SAFETY: `provost-build` has generated the struct from the same schema as the service's descriptor, and
        // asserts its layout next to it.
        unsafe impl $crate::codegen::Message for $message {
            const FULL_NAME: &'static ::core::primitive::str = $full_name;

            fn measure(&self) -> ::core::primitive::usize {
                ::core::mem::size_of::<Self>() + $crate::codegen::Measure::referenced_bytes(self)
            }
        }

        impl $crate::codegen::Measure for $message {
            fn referenced_bytes(&self) -> ::core::primitive::usize {
                0 $(+ $crate::codegen::Measure::referenced_bytes(&self.$field))*
            }
        }
    };
}
