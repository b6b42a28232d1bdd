//! Certificates for the tests' nodes.

use std::path::Path;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

/// An authority that vouches for nodes.
pub(crate) struct Authority {
    pub(crate) issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Authority {
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    /// Writes a node's identity to files, and returns the `[tls]` table that names them.
    pub(crate) fn vouch_for(&self, node: &str, directory: &Path) -> String {
        self.vouch_for_as(node, node, directory, 1)
    }

    /// As [`Authority::vouch_for`], with another name in the certificate, and this serial number.
    pub(crate) fn vouch_for_as(&self, node: &str, name: &str, directory: &Path, serial: u64) -> String {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        params
            .subject_alt_names
            .push(SanType::IpAddress([127, 0, 0, 1].into()));
        self.certify(node, name, params, directory)
    }

    /// As [`Authority::vouch_for_as`], by a certificate of which this is said: without a host, it names the SPIFFE id only.
    pub(crate) fn certify(
        &self,
        node: &str,
        name: &str,
        mut params: CertificateParams,
        directory: &Path,
    ) -> String {
        let identity = format!("spiffe://test/{name}");
        params
            .subject_alt_names
            .push(SanType::URI(identity.try_into().unwrap()));
        let key = KeyPair::generate().unwrap();
        let certificate: Certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str, text: String| {
            let path = directory.join(format!("{node}-{kind}.pem"));
            replace(&path, &text);
            format!("{kind} = \"{}\"\n", path.display())
        };
        let tables = [
            file("ca", self.issuer.pem()),
            file("cert", certificate.pem()),
            file("key", key.serialize_pem()),
        ];
        format!("[tls]\n{}", tables.concat())
    }
}

/// Puts a file in the place of another one at once, as whoever rotates certificates does.
pub(crate) fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}
