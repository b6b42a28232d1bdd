//! What TLS beside HTTP/2 is configured with: files, and what they come to.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::server_identity::IdentityVerifier;
use crate::stream::ALPN_HTTP2;
use crate::{
    CertificateValidity, TlsConfigError, VERSION_1, authorities_in, certificates, file_error, is_version_1,
    key_in, mismatch, provider, revocations_in,
};

/// RFC 9113, section 9.2: 1.2 or higher. The suites of 1.2 that rustls has are none of those that section 9.2.2 prohibits.
pub(crate) const STREAM_VERSIONS: &[&SupportedProtocolVersion] =
    &[&rustls::version::TLS13, &rustls::version::TLS12];

/// What an end has to do with a certificate of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamServerFiles {
    /// This end's certificate chain (PEM), its own first.
    pub cert: PathBuf,
    /// Its private key (PEM).
    pub key: PathBuf,
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
    /// Certificates (PEM) of authorities; none: those that the system has.
    pub ca: Option<PathBuf>,
    /// Lists of certificates that were taken back (PEM). A certificate of an authority that has no list is not looked up.
    pub crls: Vec<PathBuf>,
}

/// What an end has that connects.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamClientFiles {
    /// Whose certificates are good.
    pub trust: ServerTrust,
    /// This end's certificate chain and private key (PEM), for servers that ask for them.
    pub own: Option<(PathBuf, PathBuf)>,
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

impl StreamServerFiles {
    /// Reads all of its files anew.
    ///
    /// # Errors
    /// One is missing or no good.
    pub fn load(&self) -> Result<LoadedStreamTls<ServerConfig>, TlsConfigError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(STREAM_VERSIONS)
            .map_err(|error| mismatch(&self.cert, &self.key, &error))?;
        let builder = match &self.clients {
            ClientDemand::Nothing => builder.with_no_client_auth(),
            ClientDemand::IfAny(trust) => {
                let verifier = trust.client_verifier()?.allow_unauthenticated().build();
                builder.with_client_cert_verifier(verifier.map_err(|error| trust.refused(&error))?)
            }
            ClientDemand::Everyone(trust) => {
                let verifier = trust.client_verifier()?.build();
                builder.with_client_cert_verifier(verifier.map_err(|error| trust.refused(&error))?)
            }
        };
        let chain = certificates(&self.cert)?;
        let validity = own_validity(&self.cert)?;
        let mut config = builder
            .with_single_cert(chain, key_in(&self.key)?)
            .map_err(|error| mismatch(&self.cert, &self.key, &error))?;
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
        let mut files = vec![self.cert.clone(), self.key.clone()];
        match &self.clients {
            ClientDemand::Nothing => {}
            ClientDemand::IfAny(trust) | ClientDemand::Everyone(trust) => files.extend(trust.files()),
        }
        files
    }
}

impl StreamClientFiles {
    /// Reads all of its files anew.
    ///
    /// # Errors
    /// One is missing or no good.
    pub fn load(&self) -> Result<LoadedStreamTls<ClientConfig>, TlsConfigError> {
        let verifier = IdentityVerifier {
            authorities: self.trust.server_verifier()?,
            identities: self.identities.clone(),
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(STREAM_VERSIONS)
            .map_err(|error| self.trust.refused(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let (mut config, validity) = match &self.own {
            None => (builder.with_no_client_auth(), None),
            Some((cert, key)) => {
                let config = builder
                    .with_client_auth_cert(certificates(cert)?, key_in(key)?)
                    .map_err(|error| mismatch(cert, key, &error))?;
                (config, own_validity(cert)?)
            }
        };
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        // A server of a resumed session would not prove again who it is.
        config.resumption = Resumption::disabled();
        Ok(LoadedStreamTls {
            config: Arc::new(config),
            validity,
        })
    }

    /// Every file that it names.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        let own = self.own.iter().flat_map(|(cert, key)| [cert, key]);
        own.cloned().chain(self.trust.files()).collect()
    }
}

impl ServerTrust {
    fn authorities(&self) -> Result<Arc<RootCertStore>, TlsConfigError> {
        let store = self
            .ca
            .as_deref()
            .map_or_else(authorities_of_system, authorities_in);
        store.map(Arc::new)
    }

    fn revocations(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsConfigError> {
        revocations_in(&self.crls)
    }

    fn client_verifier(&self) -> Result<rustls::server::ClientCertVerifierBuilder, TlsConfigError> {
        let builder = WebPkiClientVerifier::builder_with_provider(self.authorities()?, provider());
        Ok(builder
            .with_crls(self.revocations()?)
            .allow_unknown_revocation_status())
    }

    fn server_verifier(&self) -> Result<Arc<WebPkiServerVerifier>, TlsConfigError> {
        WebPkiServerVerifier::builder_with_provider(self.authorities()?, provider())
            .with_crls(self.revocations()?)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &dyn std::fmt::Display) -> TlsConfigError {
        match &self.ca {
            Some(path) => file_error(path, error),
            None => TlsConfigError::System {
                reason: error.to_string(),
            },
        }
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.ca.iter().chain(&self.crls).cloned()
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
    Err(TlsConfigError::System {
        reason: reason.unwrap_or_else(|| "there are none".to_owned()),
    })
}

/// When an end's own certificate is valid. One that can name nobody is refused.
fn own_validity(cert: &Path) -> Result<Option<CertificateValidity>, TlsConfigError> {
    let own = certificates(cert)?.into_iter().next();
    if own.as_ref().is_some_and(is_version_1) {
        return Err(file_error(cert, &VERSION_1));
    }
    Ok(own.and_then(|certificate| CertificateValidity::of(&certificate)))
}
