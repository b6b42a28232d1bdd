//! Why a request of an app, or a peer, was refused.

use provost_schema::SchemaHash;
use provost_wire::Code;

use crate::policies::ChangeError;
use crate::services::NoMatch;
use crate::transport::ConnectFailure;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Refusal {
        let message = message.into();
        Refusal { code, message }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::InvalidArgument, message)
    }
}

impl From<NoMatch> for Refusal {
    fn from(error: NoMatch) -> Refusal {
        Refusal::new(error.code, error.reason)
    }
}

impl From<ChangeError> for Refusal {
    fn from(error: ChangeError) -> Refusal {
        Refusal::new(Code::FailedPrecondition, error.to_string())
    }
}

impl From<ConnectFailure> for Refusal {
    fn from(failure: ConnectFailure) -> Refusal {
        Refusal::new(failure.code, failure.message)
    }
}

/// The hash of a schema that an app names.
pub(crate) fn schema_hash(bytes: &[u8]) -> Result<SchemaHash, Refusal> {
    SchemaHash::try_from(bytes).map_err(|error| Refusal::invalid(error.to_string()))
}
