//! Which servers a client takes: by the host's name, by identities, and none that is not vouched for, whatever it is called.

mod certificates;

use base64::prelude::{BASE64_STANDARD, Engine};
use certificates::Authority;
use provost_tls::{Purpose, TlsConfig, TlsHandshake, explain};
use rcgen::{CertificateParams, CertificateRevocationListParams, KeyIdMethod, RevokedCertParams};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

const HOST: &str = "b.example.org";
const SPIFFE_B: &str = "spiffe://example.org/node/b";

/// What a client that wants one of these identities has to say of a server; nothing if it takes it.
fn complaint(client: &TlsConfig, identities: &[&str], server: &TlsConfig) -> Option<String> {
    let identities: Vec<String> = identities.iter().map(|&identity| identity.to_owned()).collect();
    let config = client.load().unwrap().client_for(&identities);
    let mut client = TlsHandshake::client(&config, &format!("{HOST}:7700"), Purpose::Records).unwrap();
    let mut server = TlsHandshake::server(&server.server().unwrap(), Purpose::Records).unwrap();
    while !client.is_done() || !server.is_done() {
        server.input(&client.output().unwrap()).unwrap();
        if let Err(error) = client.input(&server.output().unwrap()) {
            return Some(explain(&error));
        }
    }
    None
}

#[track_caller]
fn assert_says(complaint: Option<String>, parts: &[&str]) {
    let complaint = complaint.expect("it is refused");
    for part in parts {
        assert!(complaint.contains(part), "{part:?} is not in {complaint:?}");
    }
}

#[test]
fn without_identities_the_name_of_the_host_counts() {
    let authority = Authority::new();
    let client = authority.node("a", &["spiffe://example.org/node/a"]);
    let of_host = authority.node("b", &[SPIFFE_B, HOST]);
    assert_eq!(complaint(&client, &[], &of_host), None);
    let of_id_only = authority.node("c", &[SPIFFE_B]);
    assert_says(
        complaint(&client, &[], &of_id_only),
        &[SPIFFE_B, "not of the host b.example.org", "server_identities"],
    );
    let of_nobody = authority.node("d", &["127.0.0.1"]);
    assert_says(
        complaint(&client, &[], &of_nobody),
        &["neither a SPIFFE id nor a DNS name"],
    );
}

#[test]
fn with_identities_they_count_and_the_name_of_the_host_does_not() {
    let authority = Authority::new();
    let client = authority.node("a", &["spiffe://example.org/node/a"]);
    let of_id_only = authority.node("b", &[SPIFFE_B]);
    for wanted in [
        SPIFFE_B,
        "spiffe://example.org/*",
        "spiffe://example.org/node/?",
        "*",
    ] {
        assert_eq!(
            complaint(&client, &["nobody", wanted], &of_id_only),
            None,
            "{wanted}"
        );
    }
    for wanted in ["spiffe://example.org/node/c", "spiffe://example.org/node", HOST] {
        let parts = [SPIFFE_B, "none of server_identities", wanted];
        assert_says(complaint(&client, &[wanted], &of_id_only), &parts);
    }
    // The host's name alone is not enough any more, and counts where it is listed.
    let of_both = authority.node("c", &["spiffe://example.org/node/c", HOST]);
    assert!(complaint(&client, &[SPIFFE_B], &of_both).is_some());
    assert_eq!(complaint(&client, &["*.example.org"], &of_both), None);
}

#[test]
fn whom_nobody_vouches_for_is_refused_whatever_its_identity() {
    let authority = Authority::new();
    let mut client = authority.node("a", &["spiffe://example.org/node/a"]);
    let others = Authority::new();
    let stranger = others.node("b", &[SPIFFE_B]);
    assert_says(complaint(&client, &[SPIFFE_B], &stranger), &["BadSignature"]);

    let mut params = CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    let old = authority.node_with("c", &[SPIFFE_B], params);
    assert_says(complaint(&client, &[SPIFFE_B], &old), &["expired"]);

    let mut params = CertificateParams::default();
    params.serial_number = Some(7_u64.into());
    let taken_back = authority.node_with("d", &[SPIFFE_B], params);
    assert_eq!(complaint(&client, &[SPIFFE_B], &taken_back), None);
    let list = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(2020, 1, 1),
        next_update: rcgen::date_time_ymd(2090, 1, 1),
        crl_number: 1_u64.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![RevokedCertParams {
            serial_number: 7_u64.into(),
            revocation_time: rcgen::date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let path = client.ca.with_file_name("list.pem");
    std::fs::write(&path, list.signed_by(&authority.issuer).unwrap().pem().unwrap()).unwrap();
    client.crls.push(path);
    assert_says(complaint(&client, &[SPIFFE_B], &taken_back), &["Revoked"]);
}

/// A certificate in DER as if it were of version 1: without the field that says another one (RFC 5280, section 4.1).
fn as_version_1(der: &[u8]) -> Vec<u8> {
    const VERSION_3: &[u8] = &[0xa0, 3, 2, 1, 2];
    let shorter = |length: [u8; 2]| {
        let length = u16::from_be_bytes(length) - VERSION_3.len() as u16;
        [[0x30, 0x82], length.to_be_bytes()].concat()
    };
    assert_eq!([&der[..2], &der[4..6]], [[0x30, 0x82]; 2]);
    assert_eq!(&der[8..13], VERSION_3);
    let (outer, inner) = (shorter([der[2], der[3]]), shorter([der[6], der[7]]));
    [&outer[..], &inner, &der[13..]].concat()
}

#[test]
fn a_certificate_of_version_1_is_refused_and_says_so() {
    let authority = Authority::new();
    let files = authority.node("a", &[SPIFFE_B, HOST, "a-name-that-makes-it-longer.example.org"]);
    let der = CertificateDer::from_pem_file(&files.cert).unwrap();
    let path = files.cert.with_file_name("v1.pem");
    let text = BASE64_STANDARD.encode(as_version_1(&der));
    std::fs::write(
        &path,
        format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"),
    )
    .unwrap();
    let refused = TlsConfig { cert: path, ..files }.load().unwrap_err().to_string();
    assert!(
        refused.contains("version 1") && refused.contains("subjectAltName"),
        "{refused}"
    );
}
