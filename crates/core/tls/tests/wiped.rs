//! What is left of keys in the memory of a process that overwrites what it frees, when it needs them no more: nothing, neither of files
//! that were read nor of handshakes. The process looks through its own memory.

use std::alloc::System;
use std::path::Path;

use provost_tls::{KEY_BYTES, Purpose, TlsConfig, TlsHandshake};
use provost_wiping::{SoughtSecret, WipingAllocator, copies_in, wipe_stack};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};

#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator(System);

/// Where the private number of a key of P-256 is in PKCS #8, in bytes.
const PRIVATE_NUMBER: std::ops::Range<usize> = 36..68;

/// Writes the files of a node, and tells what of its key must not stay in memory.
fn write_files(directory: &Path) -> (TlsConfig, Vec<SoughtSecret>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let id = "spiffe://test/node".try_into().unwrap();
    params.subject_alt_names.push(SanType::URI(id));
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let text = key.serialize_pem();
    let line = text.lines().nth(1).unwrap().trim();
    let number = &key.serialize_der()[PRIVATE_NUMBER];
    let sought = vec![
        SoughtSecret::new("the first half", &number[..KEY_BYTES / 2]),
        SoughtSecret::new("the second half", &number[KEY_BYTES / 2..]),
        SoughtSecret::new("the end of a line", &line.as_bytes()[line.len() - 16..]),
    ];
    let config = TlsConfig {
        ca: file("ca.pem", &issuer.pem()),
        cert: file("cert.pem", &certificate.pem()),
        key: file("key.pem", &text),
        crls: Vec::new(),
    };
    (config, sought)
}

/// Has the two ends of a handshake agree, and returns the key that they both have, to be looked for.
#[inline(never)]
fn agree(config: &TlsConfig) -> (SoughtSecret, Vec<String>) {
    let loaded = config.load().unwrap();
    let mut client = TlsHandshake::client(&loaded.client, "localhost:1", Purpose::Key).unwrap();
    let mut server = TlsHandshake::server(&loaded.server, Purpose::Key).unwrap();
    while !client.is_done() || !server.is_done() {
        server.input(&client.output().unwrap()).unwrap();
        client.input(&server.output().unwrap()).unwrap();
    }
    let key = client.export_key(b"a stream").unwrap();
    assert_eq!(key, server.export_key(b"a stream").unwrap());
    let sought = SoughtSecret::new("the key of the stream", &key[..]);
    let found = copies(std::slice::from_ref(&sought));
    (sought, found)
}

fn copies(sought: &[SoughtSecret]) -> Vec<String> {
    copies_in(std::process::id(), sought).unwrap()
}

#[test]
fn nothing_is_left_of_a_key_that_was_read_nor_of_one_that_was_agreed_on() {
    let directory = tempfile::tempdir().unwrap();
    let (config, sought) = write_files(directory.path());
    // What made the key is not what is tested.
    wipe_stack();
    assert_eq!(copies(&sought), Vec::<String>::new());

    let loaded = config.load().unwrap();
    assert_eq!(copies(&sought), Vec::<String>::new(), "while it is loaded");
    drop(loaded);

    let (agreed, while_used) = agree(&config);
    assert!(
        !while_used.is_empty(),
        "what is looked for is found while it is used"
    );
    assert_eq!(copies(&[agreed]), Vec::<String>::new());
    assert_eq!(copies(&sought), Vec::<String>::new(), "in the end");
}
