//! The certificate by which the nodes of a setup prove themselves to each other, where calls between them are encrypted.

use std::path::Path;

use rcgen::{CertificateParams, CertifiedKey, SanType};

use crate::failure::{Doing, Failure};

/// The files of a folder: the certificate, which is its own authority, and its private key.
const CERTIFICATE: &str = "nodes.pem";
const KEY: &str = "nodes.key";

/// The `[tls]` table of a node whose files go into `folder`. The first node of a folder gets a new certificate, which the
/// others have, too: who they are makes no difference to what a call costs.
pub(crate) fn tls_table(folder: &Path) -> Result<String, Failure> {
    let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
    if !key.exists() {
        let made = make().map_err(|error| Failure::role("certificate", error.to_string()))?;
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).doing(|| format!("write {}", path.display()))
        };
        write(&certificate, made.cert.pem())?;
        write(&key, made.signing_key.serialize_pem())?;
    }
    let (certificate, key) = (certificate.display(), key.display());
    Ok(format!(
        "[tls]\nca = \"{certificate}\"\ncert = \"{certificate}\"\nkey = \"{key}\"\n"
    ))
}

/// A certificate of the loopback address.
fn make() -> Result<CertifiedKey<rcgen::KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params
        .subject_alt_names
        .push(SanType::IpAddress([127, 0, 0, 1].into()));
    let signing_key = rcgen::KeyPair::generate()?;
    let cert = params.self_signed(&signing_key)?;
    Ok(CertifiedKey { cert, signing_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_folder_have_one_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let first = tls_table(folder.path()).unwrap();
        let certificate = std::fs::read_to_string(folder.path().join(CERTIFICATE)).unwrap();
        assert!(
            certificate.starts_with("-----BEGIN CERTIFICATE-----"),
            "{certificate}"
        );
        assert_eq!(tls_table(folder.path()).unwrap(), first);
        assert_eq!(
            std::fs::read_to_string(folder.path().join(CERTIFICATE)).unwrap(),
            certificate
        );
    }
}
