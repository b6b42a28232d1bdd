//! gRPC's status codes (<https://grpc.io/docs/guides/status-codes/>).

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// The outcome of a call: one of gRPC's 17 status codes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
        #[repr(u8)]
        pub enum Code {
            $($(#[$doc])* $variant = $number,)*
        }

        impl Code {
            /// All codes, in numeric order.
            pub const ALL: [Code; 17] = [$(Code::$variant,)*];

            /// The code's upper-case name as gRPC writes it, such as `DEADLINE_EXCEEDED`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)* }
            }
        }
    };
}

codes! {
    #[default]
    Ok = 0, "OK";
    /// The caller gave the call up.
    Cancelled = 1, "CANCELLED";
    /// An error of which nothing more is known.
    Unknown = 2, "UNKNOWN";
    /// The caller gave an argument that is wrong whatever the state of the system.
    InvalidArgument = 3, "INVALID_ARGUMENT";
    /// The deadline passed before the call completed.
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    /// What was asked for does not exist.
    NotFound = 5, "NOT_FOUND";
    /// What was to be created exists.
    AlreadyExists = 6, "ALREADY_EXISTS";
    /// The caller may not do this.
    PermissionDenied = 7, "PERMISSION_DENIED";
    /// A quota, a limit or a resource ran out.
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    /// The system is not in the state that the call needs.
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    /// The call was aborted, for instance by a conflict.
    Aborted = 10, "ABORTED";
    /// The call went past a valid range.
    OutOfRange = 11, "OUT_OF_RANGE";
    /// The method is not implemented.
    Unimplemented = 12, "UNIMPLEMENTED";
    /// An invariant of the system is broken.
    Internal = 13, "INTERNAL";
    /// The service cannot be reached now; trying again may help.
    Unavailable = 14, "UNAVAILABLE";
    /// Data was lost or damaged beyond repair.
    DataLoss = 15, "DATA_LOSS";
    /// The caller did not prove who it is.
    Unauthenticated = 16, "UNAUTHENTICATED";
}

impl Code {
    /// The code with this number; a number that gRPC does not define is [`Code::Unknown`], as gRPC has it.
    #[must_use]
    pub fn from_number(number: u32) -> Code {
        usize::try_from(number)
            .ok()
            .and_then(|at| Self::ALL.get(at).copied())
            .unwrap_or(Code::Unknown)
    }

    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn numbers_round_trip_and_undefined_ones_are_unknown() {
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(Code::from_number(number as u32), *code);
            assert_eq!(code.number() as usize, number);
        }
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(u32::MAX), Code::Unknown);
    }
}
