//! What the SPIFFE Workload API gives a workload (SPIFFE Workload API, section 5): an X.509-SVID with its key, and for each trust
//! domain the authorities that vouch for who is in it.
//!
//! A peer's certificate is checked against the authorities of the trust domain that it names, and no others (section 4.6): an
//! authority of one domain cannot make members of another.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use provost_wiping::wipe_stack;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ResolvesServerCert, ResolvesServerCertUsingSni, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};

use crate::der::DerReader;
use crate::{CertificateValidity, PeerIdentity, SPIFFE, provider};

/// Certificates of a chain, at most.
const CHAIN_CERTIFICATES_MAX: usize = 16;
/// Authorities of a trust domain, at most.
const BUNDLE_CERTIFICATES_MAX: usize = 256;
/// Trust domains, at most.
const TRUST_DOMAINS_MAX: usize = 256;
/// Lists of certificates that were taken back, at most.
const REVOCATION_LISTS_MAX: usize = 64;
/// Bytes of a SPIFFE id, and of the name of a trust domain, at most (SPIFFE-ID, section 2.3).
const SPIFFE_ID_BYTES_MAX: usize = 2048;
const TRUST_DOMAIN_BYTES_MAX: usize = 255;

/// What the Workload API has said, as it came: DER throughout.
#[derive(Clone, Copy)]
pub struct WorkloadParts<'a> {
    /// The SPIFFE id of the workload.
    pub id: &'a str,
    /// Its certificate, and behind it the others of the chain.
    pub chain: &'a [u8],
    /// The certificate's private key, in PKCS #8.
    pub key: &'a [u8],
    /// The authorities of the workload's own trust domain, behind each other.
    pub bundle: &'a [u8],
    /// The authorities of other trust domains, by the name of each.
    pub federated: &'a [(&'a str, &'a [u8])],
    /// Lists of certificates that were taken back.
    pub crls: &'a [&'a [u8]],
}

/// Who a workload is, and whom it believes. By default it is nobody and believes nobody, as before the first answer.
#[derive(Clone, Debug, Default)]
pub struct WorkloadIdentity {
    own: Option<OwnSvid>,
    domains: Arc<TrustDomains>,
}

/// An X.509-SVID and its key, ready to be shown.
#[derive(Clone)]
struct OwnSvid {
    id: String,
    key: Arc<SingleCertAndKey>,
    validity: Option<CertificateValidity>,
}

/// What verifies the members of each trust domain, by its name.
#[derive(Debug, Default)]
struct TrustDomains {
    /// That of the workload itself; empty before the first answer.
    own: String,
    verifiers: BTreeMap<String, DomainVerifiers>,
}

#[derive(Debug)]
struct DomainVerifiers {
    servers: Arc<WebPkiServerVerifier>,
    clients: Arc<dyn ClientCertVerifier>,
}

/// Why an answer of the Workload API was not taken.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadFault {
    /// The name of a workload or a trust domain is not one.
    #[error("{0:?} is no SPIFFE id (spiffe://TRUST-DOMAIN/PATH)")]
    SpiffeId(String),
    /// Something is not what it should be.
    #[error("{what} of {of}: {problem}")]
    Part {
        /// A certificate, a key, a bundle.
        what: &'static str,
        /// The SPIFFE id, or the trust domain.
        of: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl WorkloadIdentity {
    /// What an answer of the Workload API comes to.
    ///
    /// # Errors
    /// Something in it is not what it should be.
    pub fn new(parts: &WorkloadParts<'_>) -> Result<WorkloadIdentity, WorkloadFault> {
        let read = WorkloadIdentity::read(parts);
        wipe_stack();
        read
    }

    fn read(parts: &WorkloadParts<'_>) -> Result<WorkloadIdentity, WorkloadFault> {
        let domain = trust_domain(parts.id)?;
        let lists = AnswerPart::new("the revocation lists", domain);
        lists.bounded(parts.crls.len(), REVOCATION_LISTS_MAX)?;
        let crls: Vec<_> = parts
            .crls
            .iter()
            .map(|list| CertificateRevocationListDer::from(list.to_vec()))
            .collect();
        AnswerPart::new("the federated bundles", domain).bounded(parts.federated.len(), TRUST_DOMAINS_MAX)?;
        let mut verifiers = BTreeMap::new();
        for (name, bundle) in parts.federated {
            let name = trust_domain(name)?;
            // A domain whose authorities are all gone has no members any more.
            if !bundle.is_empty() {
                verifiers.insert(name.to_owned(), DomainVerifiers::new(name, bundle, &crls)?);
            }
        }
        // Nobody else says who is in the workload's own domain.
        verifiers.insert(
            domain.to_owned(),
            DomainVerifiers::new(domain, parts.bundle, &crls)?,
        );
        Ok(WorkloadIdentity {
            own: Some(OwnSvid::new(parts)?),
            domains: Arc::new(TrustDomains {
                own: domain.to_owned(),
                verifiers,
            }),
        })
    }

    /// Who the workload is.
    #[must_use]
    pub fn identity(&self) -> PeerIdentity {
        let own = self.own.as_ref();
        own.map_or(PeerIdentity::Anonymous, |own| {
            PeerIdentity::Spiffe(own.id.clone())
        })
    }

    /// When its certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Option<CertificateValidity> {
        self.own.as_ref().and_then(|own| own.validity)
    }

    /// The trust domains whose members it believes to be who they say.
    pub fn trust_domains(&self) -> impl Iterator<Item = &str> {
        self.domains.verifiers.keys().map(String::as_str)
    }

    /// Whether the Workload API has not answered yet.
    #[must_use]
    pub fn is_nobody(&self) -> bool {
        self.own.is_none()
    }

    /// What proves it to clients.
    pub(crate) fn server_certificate(&self) -> Arc<dyn ResolvesServerCert> {
        match &self.own {
            Some(own) => Arc::clone(&own.key) as Arc<dyn ResolvesServerCert>,
            None => Arc::new(ResolvesServerCertUsingSni::new()),
        }
    }

    /// What proves it to servers.
    pub(crate) fn client_certificate(&self) -> Arc<dyn ResolvesClientCert> {
        match &self.own {
            Some(own) => Arc::clone(&own.key) as Arc<dyn ResolvesClientCert>,
            None => Arc::new(NoClientCertificate),
        }
    }

    /// What verifies servers by the trust domain that each names.
    pub(crate) fn server_verifier(&self) -> Arc<dyn ServerCertVerifier> {
        Arc::clone(&self.domains) as Arc<dyn ServerCertVerifier>
    }

    /// What verifies clients, each or those that have a certificate.
    pub(crate) fn client_verifier(&self, demand: CertificateDemand) -> Arc<dyn ClientCertVerifier> {
        Arc::new(MemberVerifier {
            domains: Arc::clone(&self.domains),
            demand,
        })
    }
}

/// Whether a client has to have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateDemand {
    IfAny,
    Everyone,
}

impl OwnSvid {
    fn new(parts: &WorkloadParts<'_>) -> Result<OwnSvid, WorkloadFault> {
        let part = AnswerPart::new("the certificate", parts.id);
        let chain = part.certificates(parts.chain, CHAIN_CERTIFICATES_MAX)?;
        let leaf = &chain[0];
        let named = uri_names(leaf).map_err(|error| part.fault(&error))?;
        if named != [parts.id] {
            let named = named.join(", ");
            return Err(part.fault(&format!(
                "it names \"{named}\" instead, and has to name that alone"
            )));
        }
        let validity = CertificateValidity::of(leaf);
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(parts.key.to_vec()));
        let key = CertifiedKey::from_der(chain, key, &provider());
        let key = key.map_err(|error| AnswerPart::new("the key", parts.id).fault(&error))?;
        Ok(OwnSvid {
            id: parts.id.to_owned(),
            key: Arc::new(SingleCertAndKey::from(key)),
            validity,
        })
    }
}

impl fmt::Debug for OwnSvid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnSvid")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl DomainVerifiers {
    fn new(
        domain: &str,
        bundle: &[u8],
        crls: &[CertificateRevocationListDer<'static>],
    ) -> Result<DomainVerifiers, WorkloadFault> {
        let part = AnswerPart::new("the bundle", domain);
        let mut authorities = RootCertStore::empty();
        for certificate in part.certificates(bundle, BUNDLE_CERTIFICATES_MAX)? {
            authorities.add(certificate).map_err(|error| part.fault(&error))?;
        }
        let authorities = Arc::new(authorities);
        let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&authorities), provider())
            .with_crls(crls.iter().cloned())
            .allow_unknown_revocation_status()
            .build();
        let clients = WebPkiClientVerifier::builder_with_provider(authorities, provider())
            .with_crls(crls.iter().cloned())
            .allow_unknown_revocation_status()
            .build();
        Ok(DomainVerifiers {
            servers: servers.map_err(|error| part.fault(&error))?,
            clients: clients.map_err(|error| part.fault(&error))?,
        })
    }
}

impl TrustDomains {
    /// What verifies the members of the domain that a certificate names, and the domain's name.
    fn of(&self, certificate: &CertificateDer<'_>) -> Result<(&str, &DomainVerifiers), Error> {
        if self.verifiers.is_empty() {
            return Err(not_taken(NotTaken::NobodyYet));
        }
        let names = uri_names(certificate).map_err(|_| Error::from(CertificateError::BadEncoding))?;
        let [id] = names.as_slice() else {
            return Err(not_taken(NotTaken::Names(names.len())));
        };
        let domain = trust_domain(id).map_err(|_| not_taken(NotTaken::NoSpiffeId(id.clone())))?;
        let known = self.verifiers.get_key_value(domain);
        known
            .map(|(domain, verifiers)| (domain.as_str(), verifiers))
            .ok_or_else(|| {
                not_taken(NotTaken::Domain {
                    id: id.clone(),
                    known: self
                        .verifiers
                        .keys()
                        .map(String::as_str)
                        .collect::<Vec<_>>()
                        .join(", "),
                })
            })
    }
}

impl ServerCertVerifier for TrustDomains {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let (domain, verifiers) = self.of(end_entity)?;
        let verified = verifiers
            .servers
            .verify_server_cert(end_entity, intermediates, host, ocsp, now)?;
        if domain == self.own {
            return Ok(verified);
        }
        // Another domain's authorities do not say what hosts are called here.
        Err(CertificateError::NotValidForName.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &provider().signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}

/// What verifies clients by the trust domain that each names.
#[derive(Debug)]
struct MemberVerifier {
    domains: Arc<TrustDomains>,
    demand: CertificateDemand,
}

impl ClientCertVerifier for MemberVerifier {
    fn client_auth_mandatory(&self) -> bool {
        self.demand == CertificateDemand::Everyone
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // Which authorities there are differs by trust domain, and nobody chooses a certificate by it.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let (_, verifiers) = self.domains.of(end_entity)?;
        verifiers
            .clients
            .verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.domains
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.domains
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.domains.supported_verify_schemes()
    }
}

/// What a workload without an identity shows servers that ask for a certificate.
#[derive(Debug)]
struct NoClientCertificate;

impl ResolvesClientCert for NoClientCertificate {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// Why a peer's certificate is not looked at any further.
#[derive(Debug, thiserror::Error)]
enum NotTaken {
    #[error("this node has nobody yet whom it could believe: the SPIFFE Workload API has not answered")]
    NobodyYet,
    #[error("it has {0} URI names, and an X.509-SVID has one, its SPIFFE id")]
    Names(usize),
    #[error("its URI name {0:?} is no SPIFFE id")]
    NoSpiffeId(String),
    #[error(
        "{id} is of a trust domain for which the SPIFFE Workload API gives this node no bundle (it gives {known}): \
         federate the two"
    )]
    Domain { id: String, known: String },
}

fn not_taken(why: NotTaken) -> Error {
    CertificateError::Other(OtherError(Arc::new(why))).into()
}

/// A part of an answer, for what is said of it.
struct AnswerPart<'a> {
    what: &'static str,
    of: &'a str,
}

impl<'a> AnswerPart<'a> {
    fn new(what: &'static str, of: &'a str) -> AnswerPart<'a> {
        AnswerPart { what, of }
    }

    fn fault(&self, problem: &dyn fmt::Display) -> WorkloadFault {
        WorkloadFault::Part {
            what: self.what,
            of: self.of.to_owned(),
            problem: problem.to_string(),
        }
    }

    fn bounded(&self, count: usize, max: usize) -> Result<(), WorkloadFault> {
        if count > max {
            return Err(self.fault(&format!("there are {count} of them, and {max} are taken")));
        }
        Ok(())
    }

    /// Certificates behind each other, at least one.
    fn certificates(&self, der: &[u8], max: usize) -> Result<Vec<CertificateDer<'static>>, WorkloadFault> {
        let mut reader = DerReader::new(der);
        let mut certificates = Vec::new();
        while !reader.rest().is_empty() {
            self.bounded(certificates.len() + 1, max)?;
            let certificate = reader
                .whole_sequence()
                .ok_or_else(|| self.fault(&"not certificates in DER, behind each other"))?;
            certificates.push(CertificateDer::from(certificate.to_vec()));
        }
        if certificates.is_empty() {
            return Err(self.fault(&"there is none"));
        }
        Ok(certificates)
    }
}

fn uri_names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, webpki::Error> {
    let certificate = webpki::EndEntityCert::try_from(certificate)?;
    Ok(certificate.valid_uri_names().map(str::to_owned).collect())
}

/// The trust domain of a SPIFFE id (SPIFFE-ID, section 2.1).
fn trust_domain(id: &str) -> Result<&str, WorkloadFault> {
    let refused = || {
        let shown: String = id.chars().take(TRUST_DOMAIN_BYTES_MAX).collect();
        WorkloadFault::SpiffeId(shown)
    };
    let rest = id.strip_prefix(SPIFFE).ok_or_else(refused)?;
    let domain = rest.split('/').next().unwrap_or_default();
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let fits = id.len() <= SPIFFE_ID_BYTES_MAX && (1..=TRUST_DOMAIN_BYTES_MAX).contains(&domain.len());
    if fits && domain.bytes().all(is_allowed) {
        return Ok(domain);
    }
    Err(refused())
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
