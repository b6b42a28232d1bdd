//! What TLS beside HTTP/2 is configured with: files, and what they come to.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use provost_wiping::wipe_stack;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::CertificateRevocationListDer;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::server_identity::{CountedNames, IdentityVerifier};
use crate::stream::ALPN_HTTP2;
use crate::workload::{CertificateDemand, WorkloadIdentity};
use crate::{
    CertificateValidity, TlsConfigError, VERSION_1, authorities_in, certificates, file_error, is_version_1,
    key_in, mismatch, provider, revocations_in, without_resumption,
};

/// RFC 9113, section 9.2: 1.2 or higher. The suites of 1.2 that rustls has are none of those that section 9.2.2 prohibits.
pub(crate) const STREAM_VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// Where an end's own certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OwnCertificate {
    Files {
        /// The certificate chain, its own first.
        cert: PathBuf,
        /// The private key of that certificate.
        key: PathBuf,
    },
    /// From the SPIFFE Workload API.
    Workload,
}

/// What an end has to do with a certificate of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamServerFiles {
    /// What clients are shown.
    pub own: OwnCertificate,
    /// What clients have to prove.
    pub clients: ClientDemand,
}

/// What clients have to prove.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientDemand {
    /// Nothing; a certificate is not asked for.
    Nothing,
    /// A client that has a certificate proves that it comes from one of these authorities.
    IfAny(ServerTrust),
    /// Every client proves it.
    Everyone(ServerTrust),
}

/// Whose certificates are good.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerTrust {
    /// Where the authorities come from.
    pub anchors: TrustAnchors,
    /// Lists of certificates that were taken back (PEM). A certificate of an authority that has no list is not looked up.
    pub crls: Vec<PathBuf>,
}

/// Where authorities come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrustAnchors {
    /// Those that the system has.
    #[default]
    System,
    /// Certificates (PEM) of a file.
    File(PathBuf),
    /// The bundles of the SPIFFE Workload API, each for its own trust domain.
    Workload,
}

/// What an end has that connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamClientFiles {
    /// Whose certificates are good.
    pub trust: ServerTrust,
    /// What servers are shown that ask for it.
    pub own: Option<OwnCertificate>,
    /// Of which a server has to prove one, as [`crate::LoadedTls::client_for`] has them; empty: the name counts by which it is
    /// called.
    pub identities: Vec<String>,
}

/// What files come to.
#[derive(Clone, Debug)]
pub struct LoadedStreamTls<C> {
    /// What connections are made or accepted with.
    pub config: Arc<C>,
    /// When this end's certificate is valid; none if it has none, or its times cannot be read.
    pub validity: Option<CertificateValidity>,
}

/// What connections are made or accepted with, by whoever makes them from another thread: it may be replaced meanwhile.
#[derive(Debug)]
pub struct TlsSource<C>(Arc<Mutex<SourceContent<C>>>);

#[derive(Debug)]
struct SourceContent<C> {
    config: Arc<C>,
    version: SourceVersion,
}

/// Tells what a [`TlsSource`] gives out at one time from what it gives out later, and from what others do. The process has each
/// once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceVersion(u64);

impl SourceVersion {
    fn next() -> SourceVersion {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SourceVersion(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl<C> Clone for TlsSource<C> {
    fn clone(&self) -> TlsSource<C> {
        TlsSource(Arc::clone(&self.0))
    }
}

impl<C> TlsSource<C> {
    /// That gives this one out at first.
    #[must_use]
    pub fn new(config: Arc<C>) -> TlsSource<C> {
        TlsSource(Arc::new(Mutex::new(SourceContent::of(config))))
    }

    /// The one that is in use now.
    #[must_use]
    pub fn current(&self) -> Arc<C> {
        Arc::clone(&self.lock().config)
    }

    /// What tells it from others.
    #[must_use]
    pub fn version(&self) -> SourceVersion {
        self.lock().version
    }

    /// Puts another one into use, for connections to come.
    pub fn replace(&self, config: Arc<C>) {
        *self.lock() = SourceContent::of(config);
    }

    fn lock(&self) -> MutexGuard<'_, SourceContent<C>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> SourceContent<C> {
    fn of(config: Arc<C>) -> SourceContent<C> {
        SourceContent {
            config,
            version: SourceVersion::next(),
        }
    }
}

impl OwnCertificate {
    /// The file with the certificate, if it is in one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            OwnCertificate::Files { cert, .. } => Some(cert),
            OwnCertificate::Workload => None,
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            OwnCertificate::Files { cert, key } => vec![cert.clone(), key.clone()],
            OwnCertificate::Workload => Vec::new(),
        }
    }
}

impl StreamServerFiles {
    /// Reads all of its files anew, without the SPIFFE Workload API.
    ///
    /// # Errors
    /// One is missing or no good.
    pub fn load(&self) -> Result<LoadedStreamTls<ServerConfig>, TlsConfigError> {
        self.load_with(&WorkloadIdentity::default())
    }

    /// Reads all of its files anew, and takes what comes from the SPIFFE Workload API from there.
    ///
    /// # Errors
    /// One is missing or no good.
    pub fn load_with(
        &self,
        workload: &WorkloadIdentity,
    ) -> Result<LoadedStreamTls<ServerConfig>, TlsConfigError> {
        let loaded = self.read(workload);
        wipe_stack();
        loaded
    }

    fn read(&self, workload: &WorkloadIdentity) -> Result<LoadedStreamTls<ServerConfig>, TlsConfigError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(STREAM_VERSIONS)
            .map_err(|error| unusable(&error))?;
        let builder = match self.clients.verifier(workload)? {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier),
        };
        let (mut config, validity) = match &self.own {
            OwnCertificate::Workload => {
                let config = builder.with_cert_resolver(workload.server_certificate());
                (config, workload.validity())
            }
            OwnCertificate::Files { cert, key } => {
                let (chain, validity) = (certificates(cert)?, own_validity(cert)?);
                let config = builder
                    .with_single_cert(chain, key_in(key)?)
                    .map_err(|error| mismatch(cert, key, &error))?;
                (config, validity)
            }
        };
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        // A client of a resumed session would not prove again who it is, and its certificate may have been taken back.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(LoadedStreamTls {
            config: Arc::new(config),
            validity,
        })
    }

    /// Every file that it names.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let mut files = self.own.files();
        files.extend(self.clients.trust().into_iter().flat_map(ServerTrust::files));
        files
    }

    /// Whether something of it comes from the SPIFFE Workload API.
    #[must_use]
    pub fn is_of_workload(&self) -> bool {
        self.own == OwnCertificate::Workload || self.clients.trust().is_some_and(ServerTrust::is_of_workload)
    }
}

impl ClientDemand {
    fn trust(&self) -> Option<&ServerTrust> {
        match self {
            ClientDemand::Nothing => None,
            ClientDemand::IfAny(trust) | ClientDemand::Everyone(trust) => Some(trust),
        }
    }

    fn verifier(
        &self,
        workload: &WorkloadIdentity,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsConfigError> {
        Ok(match self {
            ClientDemand::Nothing => None,
            ClientDemand::IfAny(trust) => Some(trust.client_verifier(workload, CertificateDemand::IfAny)?),
            ClientDemand::Everyone(trust) => {
                Some(trust.client_verifier(workload, CertificateDemand::Everyone)?)
            }
        })
    }
}

impl StreamClientFiles {
    /// Reads all of its files anew, without the SPIFFE Workload API.
    ///
    /// # Errors
    /// One is missing or no good.
    pub fn load(&self) -> Result<LoadedStreamTls<ClientConfig>, TlsConfigError> {
        self.load_with(&WorkloadIdentity::default())
    }

    /// Reads all of its files anew, and takes what comes from the SPIFFE Workload API from there.
    ///
    /// # Errors
    /// One is missing or no good.
    pub fn load_with(
        &self,
        workload: &WorkloadIdentity,
    ) -> Result<LoadedStreamTls<ClientConfig>, TlsConfigError> {
        let loaded = self.read(workload);
        wipe_stack();
        loaded
    }

    fn read(&self, workload: &WorkloadIdentity) -> Result<LoadedStreamTls<ClientConfig>, TlsConfigError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(STREAM_VERSIONS)
            .map_err(|error| unusable(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.verifier(workload)?));
        let (mut config, validity) = match &self.own {
            None => (builder.with_no_client_auth(), None),
            Some(OwnCertificate::Workload) => {
                let config = builder.with_client_cert_resolver(workload.client_certificate());
                (config, workload.validity())
            }
            Some(OwnCertificate::Files { cert, key }) => {
                let config = builder
                    .with_client_auth_cert(certificates(cert)?, key_in(key)?)
                    .map_err(|error| mismatch(cert, key, &error))?;
                (config, own_validity(cert)?)
            }
        };
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        without_resumption(&mut config);
        Ok(LoadedStreamTls {
            config: Arc::new(config),
            validity,
        })
    }

    fn verifier(&self, workload: &WorkloadIdentity) -> Result<IdentityVerifier, TlsConfigError> {
        let counted = if self.trust.is_of_workload() {
            CountedNames::SpiffeIds
        } else {
            CountedNames::All
        };
        Ok(IdentityVerifier {
            authorities: self.trust.server_verifier(workload)?,
            identities: self.identities.clone(),
            counted,
        })
    }

    /// Every file that it names.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let own = self.own.iter().flat_map(OwnCertificate::files);
        own.chain(self.trust.files()).collect()
    }

    /// Whether something of it comes from the SPIFFE Workload API.
    #[must_use]
    pub fn is_of_workload(&self) -> bool {
        self.own == Some(OwnCertificate::Workload) || self.trust.is_of_workload()
    }
}

impl ServerTrust {
    /// The authorities, where they are not those of the Workload API.
    fn authorities(&self) -> Result<Arc<RootCertStore>, TlsConfigError> {
        let store = match &self.anchors {
            TrustAnchors::File(ca) => authorities_in(ca),
            TrustAnchors::System | TrustAnchors::Workload => authorities_of_system(),
        };
        store.map(Arc::new)
    }

    fn is_of_workload(&self) -> bool {
        self.anchors == TrustAnchors::Workload
    }

    fn revocations(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsConfigError> {
        revocations_in(&self.crls)
    }

    fn client_verifier(
        &self,
        workload: &WorkloadIdentity,
        demand: CertificateDemand,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsConfigError> {
        if self.is_of_workload() {
            return Ok(workload.client_verifier(demand));
        }
        let builder = WebPkiClientVerifier::builder_with_provider(self.authorities()?, provider())
            .with_crls(self.revocations()?)
            .allow_unknown_revocation_status();
        let builder = match demand {
            CertificateDemand::IfAny => builder.allow_unauthenticated(),
            CertificateDemand::Everyone => builder,
        };
        builder.build().map_err(|error| self.refused(&error))
    }

    fn server_verifier(
        &self,
        workload: &WorkloadIdentity,
    ) -> Result<Arc<dyn ServerCertVerifier>, TlsConfigError> {
        if self.is_of_workload() {
            return Ok(workload.server_verifier());
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(self.authorities()?, provider())
            .with_crls(self.revocations()?)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| self.refused(&error))?;
        Ok(verifier)
    }

    fn refused(&self, error: &dyn std::fmt::Display) -> TlsConfigError {
        match &self.anchors {
            TrustAnchors::File(path) => file_error(path, error),
            TrustAnchors::System | TrustAnchors::Workload => TlsConfigError::System {
                reason: error.to_string(),
            },
        }
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> + use<'_> {
        let ca = match &self.anchors {
            TrustAnchors::File(ca) => Some(ca),
            TrustAnchors::System | TrustAnchors::Workload => None,
        };
        ca.into_iter().chain(&self.crls).cloned()
    }
}

/// rustls offers nothing of what is wanted of it.
fn unusable(error: &rustls::Error) -> TlsConfigError {
    TlsConfigError::System {
        reason: error.to_string(),
    }
}

/// What the system trusts; `SSL_CERT_FILE` and `SSL_CERT_DIR` say where else it is, as for OpenSSL.
fn authorities_of_system() -> Result<RootCertStore, TlsConfigError> {
    let found = rustls_native_certs::load_native_certs();
    let mut store = RootCertStore::empty();
    // Some systems have certificates that nobody can read.
    let (taken, _) = store.add_parsable_certificates(found.certs);
    if taken > 0 {
        return Ok(store);
    }
    let reason = found.errors.first().map(ToString::to_string);
    let reason = reason.unwrap_or_else(|| "there are none".to_owned());
    Err(TlsConfigError::System {
        reason: reason + &places_of_authorities(),
    })
}

/// Which variables say where the system's authorities are, and what they say; empty if none does.
fn places_of_authorities() -> String {
    let named = ["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().filter_map(|variable| {
        let place = std::env::var_os(variable)?;
        Some(format!("{variable}={}", place.display()))
    });
    let named: Vec<String> = named.collect();
    match named.as_slice() {
        [] => String::new(),
        named => format!(" (looked for by {})", named.join(" and ")),
    }
}

/// When an end's own certificate is valid. One that can name nobody is refused.
fn own_validity(cert: &Path) -> Result<Option<CertificateValidity>, TlsConfigError> {
    let own = certificates(cert)?.into_iter().next();
    if own.as_ref().is_some_and(is_version_1) {
        return Err(file_error(cert, &VERSION_1));
    }
    Ok(own.and_then(|certificate| CertificateValidity::of(&certificate)))
}
