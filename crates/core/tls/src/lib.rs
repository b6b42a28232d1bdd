//! TLS 1.3 between nodes: configuration from PEM files, who a certificate names; the handshake, the record layer, its saved state.
//! And TLS 1.2 and 1.3 beside HTTP/2, for programs that are no nodes ([`TlsStream`]).
#![forbid(unsafe_code)]

mod der;
pub mod fuzzing;
mod handshake;
mod keys;
mod saved;
mod server_identity;
mod session;
mod stream;
mod stream_files;
#[cfg(test)]
mod tests;
mod textless;
mod validity;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use provost_wiping::wipe_stack;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, ClientConfig, OtherError, RootCertStore, ServerConfig};
use server_identity::{CountedNames, IdentityVerifier};
use workload::CertificateDemand;

// Tests here and in other crates share what makes certificates.
#[cfg(test)]
extern crate self as provost_tls;

pub use handshake::{KEY_BYTES, Purpose, TlsHandshake};
pub use session::{TlsFault, TlsRead, TlsSession};
pub use stream::{StreamFault, TlsStream, is_server_name};
pub use stream_files::{
    ClientDemand, LoadedStreamTls, OwnCertificate, ServerTrust, SourceVersion, StreamClientFiles,
    StreamServerFiles, TlsSource, TrustAnchors,
};
pub use validity::CertificateValidity;
pub use workload::{WorkloadFault, WorkloadIdentity, WorkloadParts};

/// What the two ends name in TLS ([`Purpose`]), so that a TLS port of something else is recognized.
const ALPN: &[u8] = b"provost/1";
/// TLS 1.3 alone: a connection that a successor can go on with keeps its own records, and those are of TLS 1.3.
const VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// How a SPIFFE id begins.
const SPIFFE: &str = "spiffe://";
/// What is said of a certificate that can name nobody.
const VERSION_1: &str = "an X.509 certificate of version 1, which can name neither a SPIFFE id nor a host: make one of version 3, with a \
                         subjectAltName (docs/configuration.md, \"Making certificates\", has the commands)";

/// Who a peer has proved to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerIdentity {
    /// The transport proves nothing.
    Anonymous,
    /// The SPIFFE id in the peer's certificate.
    Spiffe(String),
    /// The first DNS name in the peer's certificate.
    Dns(String),
}

impl PeerIdentity {
    /// The name; empty for a peer that has proved nothing.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            PeerIdentity::Anonymous => "",
            PeerIdentity::Spiffe(name) | PeerIdentity::Dns(name) => name,
        }
    }
}

/// The files that mutual TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// Certificates (PEM) of the authorities that peers' certificates must come from.
    pub ca: PathBuf,
    /// This node's certificate chain (PEM), its own first.
    pub cert: PathBuf,
    /// This node's private key (PEM).
    pub key: PathBuf,
    /// Lists of certificates that were taken back (PEM). A peer's certificate of an authority that has no list is not looked
    /// up.
    pub crls: Vec<PathBuf>,
}

/// What the files come to.
#[derive(Clone, Debug)]
pub struct LoadedTls {
    /// What connections are made with, to servers that their hosts' names are enough for ([`LoadedTls::client_for`]).
    pub client: Arc<ClientConfig>,
    authorities: Arc<dyn ServerCertVerifier>,
    counted: CountedNames,
    /// What connections are accepted with.
    pub server: Arc<ServerConfig>,
    /// When this node's certificate is valid; none if its times cannot be read.
    pub validity: Option<CertificateValidity>,
    /// Who this node's certificate says it is.
    pub identity: PeerIdentity,
}

/// Why a TLS configuration was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// No certificate of an authority was found where the system keeps them.
    #[error(
        "the system's certificates of authorities: {reason}: install them (the package ca-certificates), or name a file"
    )]
    System {
        /// What was found in their place.
        reason: String,
    },
    /// A file cannot be read or has none of what it should have.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    /// What the SPIFFE Workload API gives cannot be used.
    #[error("the SPIFFE Workload API's answer: {0}")]
    Workload(String),
    /// The files do not fit each other.
    #[error("certificate {} and key {}: {reason}", cert.display(), key.display())]
    Mismatch {
        cert: PathBuf,
        key: PathBuf,
        reason: String,
    },
}

impl LoadedTls {
    /// What connections are made with to servers that have one of these identities, whatever their hosts are called: SPIFFE ids or
    /// DNS names, where `*` stands for any run of characters and `?` for one. Without any, the host's name counts.
    #[must_use]
    pub fn client_for(&self, identities: &[String]) -> Arc<ClientConfig> {
        if identities.is_empty() {
            return Arc::clone(&self.client);
        }
        let mut config = ClientConfig::clone(&self.client);
        let verifier = IdentityVerifier {
            authorities: Arc::clone(&self.authorities),
            identities: identities.to_vec(),
            counted: self.counted,
        };
        config.dangerous().set_certificate_verifier(Arc::new(verifier));
        Arc::new(config)
    }

    /// What connections between nodes are made and accepted with by a workload. One that is nobody yet makes and accepts none.
    ///
    /// # Errors
    /// None that is known of.
    pub fn of_workload(workload: &WorkloadIdentity) -> Result<LoadedTls, TlsConfigError> {
        let authorities = workload.server_verifier();
        let counted = CountedNames::SpiffeIds;
        let verifier = IdentityVerifier {
            authorities: Arc::clone(&authorities),
            identities: Vec::new(),
            counted,
        };
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| TlsConfigError::Workload(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(workload.client_certificate());
        without_resumption(&mut client);
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| TlsConfigError::Workload(error.to_string()))?
            .with_client_cert_verifier(workload.client_verifier(CertificateDemand::Everyone))
            .with_cert_resolver(workload.server_certificate());
        server.send_tls13_tickets = 0;
        Ok(LoadedTls {
            client: Arc::new(client),
            authorities,
            counted,
            server: Arc::new(server),
            validity: workload.validity(),
            identity: workload.identity(),
        })
    }
}

/// A server of a resumed session would not prove again who it is, and who it has to be may have changed.
fn without_resumption(config: &mut ClientConfig) {
    config.resumption = Resumption::disabled();
}

impl TlsConfig {
    /// Reads the files, for both directions.
    pub fn load(&self) -> Result<LoadedTls, TlsConfigError> {
        let loaded = self.read();
        wipe_stack();
        loaded
    }

    fn read(&self) -> Result<LoadedTls, TlsConfigError> {
        let own = self.chain()?.into_iter().next();
        if own.as_ref().is_some_and(is_version_1) {
            return Err(file_error(&self.cert, &VERSION_1));
        }
        let authorities = self.server_verifier()?;
        Ok(LoadedTls {
            client: self.client_with(&authorities)?,
            authorities,
            counted: CountedNames::All,
            server: self.server()?,
            identity: own.as_ref().map_or(PeerIdentity::Anonymous, identity_in),
            validity: own.and_then(|certificate| CertificateValidity::of(&certificate)),
        })
    }

    /// Every file that it names.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let own = [&self.ca, &self.cert, &self.key];
        own.into_iter().chain(&self.crls).map(PathBuf::as_path)
    }

    /// For connecting: proves this node to servers, and demands that they prove themselves.
    pub fn client(&self) -> Result<Arc<ClientConfig>, TlsConfigError> {
        self.client_with(&self.server_verifier()?)
    }

    fn server_verifier(&self) -> Result<Arc<WebPkiServerVerifier>, TlsConfigError> {
        WebPkiServerVerifier::builder_with_provider(Arc::new(self.authorities()?), provider())
            .with_crls(self.revocations()?)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| file_error(&self.ca, &error))
    }

    fn client_with(
        &self,
        authorities: &Arc<WebPkiServerVerifier>,
    ) -> Result<Arc<ClientConfig>, TlsConfigError> {
        let verifier = IdentityVerifier {
            authorities: Arc::clone(authorities) as Arc<dyn ServerCertVerifier>,
            identities: Vec::new(),
            counted: CountedNames::All,
        };
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| self.mismatch(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain()?, self.private_key()?)
            .map_err(|error| self.mismatch(&error))?;
        without_resumption(&mut config);
        Ok(Arc::new(config))
    }

    /// For listening: proves this node to clients, and demands that they prove themselves.
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsConfigError> {
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.authorities()?), provider())
            .with_crls(self.revocations()?)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| file_error(&self.ca, &error))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| self.mismatch(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.chain()?, self.private_key()?)
            .map_err(|error| self.mismatch(&error))?;
        // Connections last, and are not resumed.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    fn authorities(&self) -> Result<RootCertStore, TlsConfigError> {
        authorities_in(&self.ca)
    }

    fn revocations(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsConfigError> {
        revocations_in(&self.crls)
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
        certificates(&self.cert)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
        key_in(&self.key)
    }

    fn mismatch(&self, error: &rustls::Error) -> TlsConfigError {
        mismatch(&self.cert, &self.key, error)
    }
}

fn is_version_fault(other: &OtherError) -> bool {
    let fault = other.0.downcast_ref::<webpki::Error>();
    matches!(fault, Some(webpki::Error::UnsupportedCertVersion))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| file_error(path, &error))?;
    let certificates: Vec<_> = certificates
        .collect::<Result<_, _>>()
        .map_err(|error| file_error(path, &error))?;
    if certificates.is_empty() {
        Err(file_error(
            path,
            &"no certificate in it (want PEM, -----BEGIN CERTIFICATE-----)",
        ))
    } else {
        Ok(certificates)
    }
}

fn authorities_in(path: &Path) -> Result<RootCertStore, TlsConfigError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        store.add(certificate).map_err(|error| file_error(path, &error))?;
    }
    Ok(store)
}

fn revocations_in(paths: &[PathBuf]) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsConfigError> {
    let mut lists = Vec::new();
    for path in paths {
        let before = lists.len();
        let read =
            CertificateRevocationListDer::pem_file_iter(path).map_err(|error| file_error(path, &error))?;
        for list in read {
            lists.push(list.map_err(|error| file_error(path, &error))?);
        }
        if lists.len() == before {
            return Err(file_error(
                path,
                &"no list in it (want PEM, -----BEGIN X509 CRL-----)",
            ));
        }
    }
    Ok(lists)
}

fn key_in(path: &Path) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        pem::Error::NoItemsFound => file_error(
            path,
            &"no private key in it (want PEM, -----BEGIN PRIVATE KEY-----)",
        ),
        error => file_error(path, &error),
    })
}

fn mismatch(cert: &Path, key: &Path, error: &rustls::Error) -> TlsConfigError {
    TlsConfigError::Mismatch {
        cert: cert.to_owned(),
        key: key.to_owned(),
        reason: match error {
            rustls::Error::InconsistentKeys(_) => "the key is not the certificate's".to_owned(),
            error => error.to_string(),
        },
    }
}

fn file_error(path: &Path, reason: &dyn std::fmt::Display) -> TlsConfigError {
    TlsConfigError::File {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Who the peer of a TLS session has proved to be: its SPIFFE id if its certificate has one, else its first DNS name.
#[must_use]
pub fn identity(tls: &rustls::Connection) -> PeerIdentity {
    let certificate = tls.peer_certificates().and_then(<[_]>::first);
    certificate.map_or(PeerIdentity::Anonymous, identity_in)
}

/// A certificate of X.509's first version, which `openssl x509 -req` makes without a file of extensions.
fn is_version_1(certificate: &CertificateDer<'_>) -> bool {
    let read = webpki::EndEntityCert::try_from(certificate);
    matches!(read, Err(webpki::Error::UnsupportedCertVersion))
}

/// Who the first certificate of a file names: SPIFFE ids, then DNS names.
pub fn identities_of(path: &Path) -> Result<Vec<String>, TlsConfigError> {
    let chain = certificates(path)?;
    Ok(chain.first().map(identities_in).unwrap_or_default())
}

/// Every identity in a certificate: SPIFFE ids, then DNS names.
fn identities_in(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let spiffe = certificate
        .valid_uri_names()
        .filter(|name| name.starts_with(SPIFFE));
    spiffe
        .chain(certificate.valid_dns_names())
        .map(str::to_owned)
        .collect()
}

fn identity_in(certificate: &CertificateDer<'_>) -> PeerIdentity {
    match identities_in(certificate).into_iter().next() {
        Some(name) if name.starts_with(SPIFFE) => PeerIdentity::Spiffe(name),
        Some(name) => PeerIdentity::Dns(name),
        None => PeerIdentity::Anonymous,
    }
}

/// What is wrong with a handshake, and with which end.
#[must_use]
pub fn explain(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) if is_version_fault(other) => {
            format!("the peer's certificate is {VERSION_1}")
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(other)) => {
            format!("the peer's certificate is not taken: {other}")
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            format!("{error}; no authority of this node has issued it")
        }
        rustls::Error::InvalidCertificate(CertificateError::BadSignature) => {
            format!(
                "{error}; no authority of this node has issued it: one bears the issuer's name, with another key"
            )
        }
        rustls::Error::InvalidMessage(_) => {
            format!("{error}; the peer does not speak TLS: one end has TLS configured, the other has not")
        }
        rustls::Error::AlertReceived(_) => {
            format!("{error}; the peer did not accept this node's certificate")
        }
        _ => error.to_string(),
    }
}
