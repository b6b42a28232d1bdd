//! What can go wrong when a wire is made.

use std::io;

/// Why there is no wire.
#[derive(Debug, thiserror::Error)]
pub enum XdpError {
    /// There is no such interface, or it tells nothing about itself.
    #[error("interface {name}: {source}; `ip link` lists those of this network namespace")]
    Interface {
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel did not accept the program that picks packets out.
    #[error("the kernel refused the XDP program: {source}; its verifier said: {log}")]
    Program {
        /// What the kernel said.
        source: io::Error,
        /// What its verifier said.
        log: String,
    },
    /// The kernel refused an operation.
    #[error("{operation}: {source}; {remedy}")]
    Kernel {
        /// What was asked of it.
        operation: &'static str,
        remedy: &'static str,
        source: io::Error,
    },
    /// An option that cannot be.
    #[error("{option} is {value}; it must be {allowed}")]
    Option {
        option: &'static str,
        /// What it was set to.
        value: u64,
        /// What it can be.
        allowed: &'static str,
    },
}

impl XdpError {
    /// For `map_err`: names the operation that the kernel refused, and what may help.
    pub(crate) fn kernel(operation: &'static str, remedy: &'static str) -> impl Fn(io::Error) -> XdpError {
        move |source| XdpError::Kernel {
            operation,
            remedy,
            source,
        }
    }
}

impl From<XdpError> for io::Error {
    fn from(error: XdpError) -> io::Error {
        match &error {
            XdpError::Interface { source, .. }
            | XdpError::Program { source, .. }
            | XdpError::Kernel { source, .. } => io::Error::new(source.kind(), error),
            XdpError::Option { .. } => io::Error::new(io::ErrorKind::InvalidInput, error),
        }
    }
}
