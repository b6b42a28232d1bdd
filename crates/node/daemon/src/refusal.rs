//! Why a request of an app, or a peer, was refused.

use std::error::Error;

use provost_schema::SchemaHash;
use provost_wire::Code;
use rustix::io::Errno;

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

    /// The system has not given what is needed.
    pub(crate) fn of_system(what: &str, error: &(dyn Error + 'static)) -> Refusal {
        let hint = match system_error(error).map(Errno::from_raw_os_error) {
            Some(Errno::MFILE) => {
                ": the node's service has as many descriptors as it may have (its RLIMIT_NOFILE, not the app's): raise \
                 LimitNOFILE= of its unit, or lower limits.apps and limits.connections"
            }
            Some(Errno::NFILE) => {
                ": the whole system has as many open files as it may have: raise fs.file-max"
            }
            Some(Errno::NOMEM) => {
                ": the node's service gets no more memory: raise what its unit or its host allows"
            }
            _ => "",
        };
        Refusal::new(Code::ResourceExhausted, format!("{what}: {error}{hint}"))
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

/// What the system said, of an error that came from it.
fn system_error(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        let of_io = error.downcast_ref::<std::io::Error>();
        let said = of_io.and_then(std::io::Error::raw_os_error);
        let errno = error.downcast_ref::<Errno>().copied();
        if let Some(said) = said.or_else(|| errno.map(Errno::raw_os_error)) {
            return Some(said);
        }
        next = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_limit_is_reached_is_said() {
        let of_memory = provost_shm::ShmError::Kernel {
            operation: "dup of a memfd",
            source: Errno::MFILE,
        };
        let of_io = std::io::Error::from(Errno::MFILE);
        for error in [&of_memory as &(dyn Error + 'static), &of_io] {
            let refusal = Refusal::of_system("rings", error);
            assert_eq!(refusal.code, Code::ResourceExhausted);
            let said = refusal.message;
            assert!(
                said.starts_with("rings: ") && said.contains("LimitNOFILE="),
                "{said}"
            );
        }
        let other = Refusal::of_system("rings", &std::io::Error::from(Errno::PERM));
        assert!(!other.message.contains("raise"), "{}", other.message);
    }
}
