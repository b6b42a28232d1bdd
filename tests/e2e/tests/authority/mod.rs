//! Certificates for the tests' nodes.

use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, SanType,
};

/// An authority that vouches for nodes.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
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
        let identity = format!("spiffe://test/{name}");
        params
            .subject_alt_names
            .push(SanType::URI(identity.try_into().unwrap()));
        params
            .subject_alt_names
            .push(SanType::IpAddress([127, 0, 0, 1].into()));
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

    /// Writes the list of certificates that were taken back, by their serial numbers.
    pub(crate) fn take_back(&self, serials: &[u64], path: &Path) {
        let day = |year| rcgen::date_time_ymd(year, 1, 1);
        let taken_back = serials.iter().map(|serial| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: day(2020),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: day(2020),
            next_update: day(2090),
            crl_number: (serials.len() as u64 + 1).into(),
            issuing_distribution_point: None,
            revoked_certs: taken_back.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        replace(path, &list.signed_by(&self.issuer).unwrap().pem().unwrap());
    }
}

/// Puts a file in the place of another one at once, as whoever rotates certificates does.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}
