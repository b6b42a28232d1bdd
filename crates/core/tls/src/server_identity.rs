//! Which servers are the ones that were meant: by the host's name, as anywhere in TLS, or by the identities that are configured,
//! for certificates that name a workload and no host (SPIFFE's X.509-SVID, section 5).

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use wildmatch::WildMatch;

use crate::{SPIFFE, identities_in};

/// Identities that a server may have: `*` stands for any run of characters, `?` for one. Without any, its certificate has to be
/// of the host that is connected to.
#[derive(Debug)]
pub(crate) struct IdentityVerifier {
    pub(crate) authorities: Arc<dyn ServerCertVerifier>,
    pub(crate) identities: Vec<String>,
    pub(crate) counted: CountedNames,
}

/// Which names of a certificate are compared with the identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CountedNames {
    All,
    /// Authorities of several trust domains are believed, each on the SPIFFE ids of its own; what hosts are called they could all say.
    SpiffeIds,
}

impl CountedNames {
    fn of(self, certificate: &CertificateDer<'_>) -> Vec<String> {
        let mut names = identities_in(certificate);
        if self == CountedNames::SpiffeIds {
            names.retain(|name| name.starts_with(SPIFFE));
        }
        names
    }
}

/// A server whose certificate is good, and who is not the one that was meant.
#[derive(Debug, thiserror::Error)]
#[error("the server proves to be {proved}, which is none of server_identities ({wanted})")]
struct AnotherServer {
    proved: String,
    wanted: String,
}

/// A server that was to be known by its host's name, and whose certificate does not have that.
#[derive(Debug, thiserror::Error)]
#[error(
    "the server proves to be {proved}, and its certificate is not of the host {host}: where a server is to be known by its \
     identity, say so by server_identities"
)]
struct AnotherHost {
    proved: String,
    host: String,
}

impl IdentityVerifier {
    fn check_name(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let names = self.counted.of(certificate);
        let is_meant = |name: &String| {
            let fits = |identity: &String| WildMatch::new(identity).matches(name);
            self.identities.iter().any(fits)
        };
        if names.iter().any(is_meant) {
            return Ok(());
        }
        Err(refused(AnotherServer {
            proved: listed(&names),
            wanted: self.identities.join(", "),
        }))
    }
}

impl ServerCertVerifier for IdentityVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .authorities
            .verify_server_cert(end_entity, intermediates, host, ocsp, now);
        // The name is what is looked at last: whatever else is wrong with a certificate has been said instead.
        let is_of_host = match verified {
            Ok(_) => true,
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => false,
            Err(error) => return Err(error),
        };
        if !self.identities.is_empty() {
            self.check_name(end_entity)?;
        } else if !is_of_host {
            return Err(refused(AnotherHost {
                proved: listed(&identities_in(end_entity)),
                host: host.to_str().into_owned(),
            }));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

fn refused(why: impl std::error::Error + Send + Sync + 'static) -> Error {
    CertificateError::Other(OtherError(Arc::new(why))).into()
}

fn listed(names: &[String]) -> String {
    match names {
        [] => "nobody (its certificate has neither a SPIFFE id nor a DNS name)".to_owned(),
        names => names.join(", "),
    }
}
