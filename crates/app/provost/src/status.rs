//! [`Status`]: how a call ended.

use std::fmt;

pub use provost_wire::Code;

use crate::metadata::MetadataMap;

/// How a call ended: a code, a message for people, details for programs, trailing metadata. The error of every call.
///
/// ```
/// use provost::{Code, Status};
///
/// let status = Status::not_found("no such key: ann");
/// assert_eq!(status.code(), Code::NotFound);
/// assert_eq!(status.to_string(), "NOT_FOUND: no such key: ann");
/// ```
#[derive(Clone, PartialEq)]
pub struct Status {
    code: Code,
    body: Option<Box<Body>>,
}

#[derive(Clone, Default, PartialEq)]
struct Body {
    message: String,
    details: Vec<u8>,
    metadata: MetadataMap,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident = $code:ident;)*) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(message: impl Into<String>) -> Status {
            Status::new(Code::$code, message)
        })*
    };
}

impl Status {
    /// A status with this code and message.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Status {
        Status::with_details(code, message, Vec::new())
    }

    /// A status with details for programs in whatever form. [`Status::with_detail`] adds typed ones, in gRPC's form.
    #[must_use]
    pub fn with_details(code: Code, message: impl Into<String>, details: Vec<u8>) -> Status {
        Status::with_details_and_metadata(code, message, details, MetadataMap::new())
    }

    /// A status with details and trailing metadata.
    #[must_use]
    pub fn with_details_and_metadata(
        code: Code,
        message: impl Into<String>,
        details: Vec<u8>,
        metadata: MetadataMap,
    ) -> Status {
        let body = Body {
            message: message.into(),
            details,
            metadata,
        };
        let is_bare = body == Body::default();
        Status {
            code,
            body: (!is_bare).then(|| Box::new(body)),
        }
    }

    /// A status with nothing but a code. Takes no memory.
    #[must_use]
    pub const fn from_code(code: Code) -> Status {
        Status { code, body: None }
    }

    constructors! {
        /// The caller gave the call up.
        cancelled = Cancelled;
        /// An error of which nothing more is known.
        unknown = Unknown;
        /// An argument is wrong whatever the state of the system.
        invalid_argument = InvalidArgument;
        /// The deadline passed.
        deadline_exceeded = DeadlineExceeded;
        /// What was asked for does not exist.
        not_found = NotFound;
        /// What was to be created exists.
        already_exists = AlreadyExists;
        /// The caller may not do this.
        permission_denied = PermissionDenied;
        /// A quota, a limit or a resource ran out.
        resource_exhausted = ResourceExhausted;
        /// The system is not in the state that the call needs.
        failed_precondition = FailedPrecondition;
        /// The call was aborted, for instance by a conflict.
        aborted = Aborted;
        /// The call went past a valid range.
        out_of_range = OutOfRange;
        /// The method is not implemented.
        unimplemented = Unimplemented;
        /// An invariant is broken.
        internal = Internal;
        /// The service cannot be reached now.
        unavailable = Unavailable;
        /// Data was lost or damaged.
        data_loss = DataLoss;
        /// The caller did not prove who it is.
        unauthenticated = Unauthenticated;
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message for people; may be empty.
    #[must_use]
    pub fn message(&self) -> &str {
        self.body.as_ref().map_or("", |body| &body.message)
    }

    /// The details for programs, as bytes; may be empty. [`Status::detail`] reads those of gRPC's form.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        self.body.as_ref().map_or(&[], |body| &body.details)
    }

    /// The same status with other details.
    pub(crate) fn with_details_replaced(mut self, details: Vec<u8>) -> Status {
        self.body.get_or_insert_default().details = details;
        self
    }

    /// The trailing metadata.
    #[must_use]
    pub fn metadata(&self) -> &MetadataMap {
        static EMPTY: MetadataMap = MetadataMap::new();
        self.body.as_ref().map_or(&EMPTY, |body| &body.metadata)
    }

    /// The trailing metadata, to be changed.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut MetadataMap {
        &mut self.body.get_or_insert_default().metadata
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            "" => self.code.fmt(f),
            message => write!(f, "{}: {message}", self.code),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Status")
            .field("code", &self.code)
            .field("message", &self.message())
            .field("details", &self.details().escape_ascii().to_string())
            .field("metadata", self.metadata())
            .finish()
    }
}

impl std::error::Error for Status {}

impl From<std::io::Error> for Status {
    fn from(error: std::io::Error) -> Status {
        use std::io::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::TimedOut => Code::DeadlineExceeded,
            ErrorKind::InvalidInput => Code::InvalidArgument,
            ErrorKind::OutOfMemory => Code::ResourceExhausted,
            ErrorKind::Unsupported => Code::Unimplemented,
            _ => Code::Unknown,
        };
        Status::new(code, error.to_string())
    }
}
