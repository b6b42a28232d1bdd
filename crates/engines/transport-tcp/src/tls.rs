//! TLS configuration from PEM files.

use std::path::PathBuf;
use std::sync::Arc;

/// The files that mutual TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates (PEM) of the authorities that peers' certificates must come from.
    pub ca: PathBuf,
    /// This node's certificate chain (PEM), its own first.
    pub cert: PathBuf,
    /// This node's private key (PEM).
    pub key: PathBuf,
}

/// Why a TLS configuration was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// A file cannot be read or has none of what it should have.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The files do not fit each other.
    #[error("certificate {} and key {}: {reason}", cert.display(), key.display())]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl TlsConfig {
    /// For connecting: proves this node to servers, and demands that they prove themselves.
    pub fn client(&self) -> Result<Arc<rustls::ClientConfig>, TlsConfigError> {
        todo!()
    }

    /// For listening: proves this node to clients, and demands that they prove themselves.
    pub fn server(&self) -> Result<Arc<rustls::ServerConfig>, TlsConfigError> {
        todo!()
    }
}
