//! Certificates made for one test.

use std::path::Path;

use provost_tls::TlsConfig;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

/// An authority that lasts for a test.
pub(crate) struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, folder }
    }

    /// The files of a node with a certificate of this authority for these names.
    pub(crate) fn node(&self, file_name: &str, names: &[&str]) -> TlsConfig {
        self.node_with(file_name, names, CertificateParams::default())
    }

    /// As [`Authority::node`], with a certificate of which this is said as well.
    pub(crate) fn node_with(
        &self,
        file_name: &str,
        names: &[&str],
        mut params: CertificateParams,
    ) -> TlsConfig {
        let key = KeyPair::generate().unwrap();
        for name in names {
            let name = match name {
                name if name.starts_with("spiffe://") => SanType::URI((*name).try_into().unwrap()),
                name if name.parse::<std::net::IpAddr>().is_ok() => SanType::IpAddress(name.parse().unwrap()),
                name => SanType::DnsName((*name).try_into().unwrap()),
            };
            params.subject_alt_names.push(name);
        }
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.folder.path().join(format!("{file_name}{end}"));
        std::fs::write(path(".pem"), certificate.pem()).unwrap();
        std::fs::write(path(".key"), key.serialize_pem()).unwrap();
        TlsConfig {
            ca: self.ca(),
            cert: path(".pem"),
            key: path(".key"),
            crls: Vec::new(),
        }
    }

    fn ca(&self) -> std::path::PathBuf {
        Path::new(self.folder.path()).join("ca.pem")
    }
}
