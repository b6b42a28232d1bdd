//! Our records against rustls on the other end, in memory.

#[path = "../tests/certificates/mod.rs"]
pub(crate) mod certificates;

use std::io::{Read, Write};
use std::sync::Arc;

use certificates::Authority;
use provost_conformance::Random;
use provost_datapath::{BufferPool, FieldReader, FieldWriter};
use provost_session::{Piece, Role};
use rustls::crypto::CryptoProvider;
use rustls::{CipherSuite, Connection};

use super::keys::Keys;
use super::*;

const SUITES: [CipherSuite; 3] = [
    CipherSuite::TLS13_AES_128_GCM_SHA256,
    CipherSuite::TLS13_AES_256_GCM_SHA384,
    CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// A connection between a session of ours and a peer with rustls.
struct Rig {
    ours: TlsSession,
    peer: Connection,
    buffers: BufferPool,
    heard: Vec<u8>,
}

fn only(suite: CipherSuite) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|known| known.suite() == suite);
    Arc::new(provider)
}

/// The peer: it may use this suite alone, and a server sends two session tickets, as rustls does by default.
fn peer(role: Role, suite: CipherSuite, files: &TlsConfig) -> Connection {
    let (chain, key) = (files.chain().unwrap(), files.private_key().unwrap());
    match role {
        Role::Client => {
            let config = rustls::ClientConfig::builder_with_provider(only(suite))
                .with_protocol_versions(VERSIONS)
                .unwrap()
                .with_root_certificates(files.authorities().unwrap())
                .with_client_auth_cert(chain, key)
                .unwrap();
            let name = "server.test".try_into().unwrap();
            rustls::ClientConnection::new(Arc::new(config), name)
                .unwrap()
                .into()
        }
        Role::Server => {
            let config = rustls::ServerConfig::builder_with_provider(only(suite))
                .with_protocol_versions(VERSIONS)
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap();
            rustls::ServerConnection::new(Arc::new(config)).unwrap().into()
        }
    }
}

/// What TLS records are in these bytes, whole.
fn records(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let mut rest = bytes;
    while let Some(header) = rest.first_chunk() {
        let (record, after) = rest.split_at(5 + TlsHandshake::bytes_behind(*header));
        records.push(record.to_vec());
        rest = after;
    }
    records
}

impl Rig {
    /// A connection of which ours is the end of this role.
    fn new(role: Role, suite: CipherSuite) -> Rig {
        let authority = Authority::new();
        let own = authority.node("own", &["client.test", "server.test"]);
        let mut peer = peer(
            role.peer(),
            suite,
            &authority.node("peer", &["client.test", "server.test"]),
        );
        let mut handshake = match role {
            Role::Client => {
                TlsHandshake::client(&own.client().unwrap(), "server.test:1", Purpose::Records).unwrap()
            }
            Role::Server => TlsHandshake::server(&own.server().unwrap(), Purpose::Records).unwrap(),
        };
        // What comes behind the handshake, such as session tickets, is not for rustls any more.
        let mut behind = Vec::new();
        while !handshake.is_done() || peer.is_handshaking() {
            feed(&mut peer, &handshake.output().unwrap());
            for record in records(&take(&mut peer)) {
                if handshake.is_done() {
                    behind.extend(record)
                } else {
                    handshake.input(&record).unwrap()
                }
            }
        }
        feed(&mut peer, &handshake.output().unwrap());
        let mut rig = Rig {
            ours: handshake.into_session().unwrap(),
            peer,
            buffers: BufferPool::new(),
            heard: Vec::new(),
        };
        assert_eq!(rig.ours_reads(&behind, 100), Ok(Vec::new()));
        assert_eq!(behind.is_empty(), role == Role::Server, "rustls sends tickets");
        rig
    }

    fn ours_says(&mut self, text: &[u8]) {
        let mut rest = text;
        while !rest.is_empty() {
            let (a, b) = rest.split_at(rest.len() / 3);
            let pieces = [Piece::Private(a), Piece::Private(b)];
            let sealed = self.ours.seal(pieces.into_iter(), &mut self.buffers).unwrap();
            rest = &rest[sealed..];
            self.deliver();
        }
    }

    /// Takes our records to the peer.
    fn deliver(&mut self) {
        let out = self.ours.output(&mut self.buffers).unwrap().to_vec();
        self.ours.sent(out.len(), &mut self.buffers);
        // rustls takes no more than it has room for until somebody reads.
        let heard = feed(&mut self.peer, &out);
        self.heard.extend(heard);
    }

    fn peer_hears(&mut self) -> Vec<u8> {
        self.deliver();
        std::mem::take(&mut self.heard)
    }

    /// What ours reads of these records, which come in pieces of so many bytes.
    fn ours_reads(&mut self, records: &[u8], piece_bytes: usize) -> Result<Vec<u8>, TlsFault> {
        let mut text = Vec::new();
        let mut into = [0; 1000];
        let mut pieces = records.chunks(piece_bytes);
        loop {
            match self.ours.read(&mut into)? {
                TlsRead::Bytes(bytes) => text.extend_from_slice(&into[..bytes]),
                TlsRead::Closed => return Ok(text),
                TlsRead::NeedsMore => match pieces.next() {
                    Some(piece) => {
                        self.ours.space()[..piece.len()].copy_from_slice(piece);
                        self.ours.came(piece.len());
                    }
                    None => return Ok(text),
                },
            }
        }
    }

    fn peer_says(&mut self, text: &[u8]) -> Vec<u8> {
        self.peer.set_buffer_limit(None);
        self.peer.writer().write_all(text).unwrap();
        take(&mut self.peer)
    }

    /// Goes on with a successor of ours.
    fn succeed(&mut self) {
        let mut out = FieldWriter::new();
        self.ours.save(&mut out);
        let mut fields = FieldReader::new("tls", &out.bytes);
        self.ours = TlsSession::restore(&mut fields).unwrap();
        fields.end().unwrap();
        for cut in (0..out.bytes.len()).step_by(out.bytes.len() / 40 + 1) {
            let mut fields = FieldReader::new("tls", &out.bytes[..cut]);
            assert!(TlsSession::restore(&mut fields).is_err(), "cut at {cut}");
        }
    }
}

fn feed(peer: &mut Connection, mut bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    while !bytes.is_empty() {
        peer.read_tls(&mut bytes).unwrap();
        peer.process_new_packets().unwrap();
        // It ends by a lack of text, which is not the end of the stream.
        let _ = peer.reader().read_to_end(&mut text);
    }
    text
}

fn take(peer: &mut Connection) -> Vec<u8> {
    let mut out = Vec::new();
    while peer.wants_write() {
        peer.write_tls(&mut out).unwrap();
    }
    out
}

fn text(random: &mut Random, bytes_max: u64) -> Vec<u8> {
    let bytes = random.between(1, bytes_max);
    (0..bytes).map(|_| random.number() as u8).collect()
}

/// Makes a handshake of ours with a peer that offers these protocols.
fn meet(mut ours: TlsHandshake, peer: &mut Connection) -> TlsHandshake {
    while !ours.is_done() || peer.is_handshaking() {
        feed(peer, &ours.output().unwrap());
        let came = take(peer);
        if !came.is_empty() {
            ours.input(&came).unwrap();
        }
    }
    ours
}

#[test]
fn callers_are_told_where_both_ends_take_them() {
    let authority = Authority::new();
    let files = authority.node("node", &["server.test"]);
    let older: &[&[u8]] = &[b"provost/1"];
    let newer: &[&[u8]] = &[b"provost/1+callers", b"provost/1"];
    for (protocols, takes_callers) in [(older, false), (newer, true)] {
        let protocols: Vec<Vec<u8>> = protocols.iter().map(|name| name.to_vec()).collect();
        let mut config = files.server().unwrap().as_ref().clone();
        config.alpn_protocols.clone_from(&protocols);
        let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap().into();
        let client = TlsHandshake::client(&files.client().unwrap(), "server.test:1", Purpose::Records);
        assert_eq!(meet(client.unwrap(), &mut server).takes_callers(), takes_callers);

        let mut config = files.client().unwrap().as_ref().clone();
        config.alpn_protocols = protocols;
        let name = "server.test".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name)
            .unwrap()
            .into();
        let server = TlsHandshake::server(&files.server().unwrap(), Purpose::Records).unwrap();
        assert_eq!(meet(server, &mut client).takes_callers(), takes_callers);
    }
}

#[test]
fn many_records_go_both_ways_through_successions_and_changes_of_keys() {
    for (at, suite) in SUITES.into_iter().enumerate() {
        for role in [Role::Client, Role::Server] {
            let mut rig = Rig::new(role, suite);
            let mut random = Random::new(at as u64);
            for round in 0..120 {
                let said = text(&mut random, 50_000);
                rig.ours_says(&said);
                assert!(rig.peer_hears() == said, "{suite:?} {role:?} round {round}");
                if random.one_in(3) {
                    rig.succeed();
                }
                if random.one_in(5) {
                    // The peer changes its keys and wants ours to change.
                    rig.peer.refresh_traffic_keys().unwrap();
                }
                if random.one_in(5) {
                    rig.ours.key_update_due = true;
                }
                let said = text(&mut random, 50_000);
                let records = rig.peer_says(&said);
                let piece_bytes = random.between(1, 8_000) as usize;
                // A successor takes over with text unread, a record in part, and a change of keys due.
                let (first, rest) = records.split_at(random.below(records.len() as u64) as usize);
                let mut heard = rig.ours_reads(first, piece_bytes).unwrap();
                if random.one_in(2) {
                    rig.succeed();
                }
                heard.extend(rig.ours_reads(rest, piece_bytes).unwrap());
                assert!(heard == said, "{suite:?} {role:?} round {round}");
            }
        }
    }
}

#[test]
fn a_change_of_keys_that_the_peer_asks_for_is_answered_once() {
    let mut rig = Rig::new(Role::Client, SUITES[0]);
    let before = rig.ours.tx.secret().to_vec();
    for _ in 0..3 {
        rig.peer.refresh_traffic_keys().unwrap();
        let records = rig.peer_says(b"x");
        assert_eq!(rig.ours_reads(&records, 4096).unwrap(), b"x");
    }
    assert!(rig.ours.wants_write());
    rig.ours_says(b"answer");
    assert_eq!(rig.peer_hears(), b"answer");
    assert_ne!(rig.ours.tx.secret(), &before[..]);
    assert!(!rig.ours.wants_write());
}

#[test]
fn keys_change_by_themselves_before_they_have_sealed_too_much() {
    let mut rig = Rig::new(Role::Server, SUITES[1]);
    let before = rig.ours.tx.secret().to_vec();
    rig.ours_says(b"young");
    assert_eq!(rig.ours.tx.secret(), &before[..]);
    let aged = Keys::new(
        rig.ours.tx.suite(),
        before.clone().into(),
        session::RECORDS_PER_KEY_MAX,
    );
    rig.ours.tx = aged.unwrap();
    rig.ours
        .seal(std::iter::once(Piece::Private(b"old")), &mut rig.buffers)
        .unwrap();
    assert_ne!(rig.ours.tx.secret(), &before[..]);
    assert_eq!(rig.ours.tx.sequence(), 1);
}

#[test]
fn an_end_is_said_and_heard() {
    for role in [Role::Client, Role::Server] {
        let mut rig = Rig::new(role, SUITES[2]);
        rig.peer.send_close_notify();
        let mut records = rig.peer_says(b"");
        records.extend(take(&mut rig.peer));
        assert_eq!(rig.ours_reads(&records, 7).unwrap(), b"");
        assert_eq!(rig.ours.read(&mut [0; 9]), Ok(TlsRead::Closed));
        rig.succeed();
        assert_eq!(rig.ours.read(&mut [0; 9]), Ok(TlsRead::Closed));
        rig.ours_says(b"last words");
        rig.ours.close(&mut rig.buffers);
        rig.ours.close(&mut rig.buffers);
        assert_eq!(rig.peer_hears(), b"last words");
        assert_eq!(rig.peer.reader().read(&mut [0; 9]).unwrap(), 0, "an orderly end");
    }
}

#[test]
fn a_damaged_record_is_refused_and_the_peer_is_told() {
    let mut random = Random::new(9);
    for bit in 0..60 {
        let mut rig = Rig::new(Role::Client, SUITES[0]);
        let mut records = rig.peer_says(&text(&mut random, 300));
        let at = match bit {
            0..40 => bit / 8,
            _ => 5 + random.below(records.len() as u64 - 5) as usize,
        };
        records[at] ^= 1 << (bit % 8);
        // (A header may announce more than comes.)
        let more = rig.peer_says(&[7; 40_000]);
        records.extend(more);
        let fault = rig.ours_reads(&records, 4096).unwrap_err();
        assert!(matches!(fault, TlsFault::Broken { .. }), "bit {bit}: {fault}");
        rig.ours.complain(fault, &mut rig.buffers);
        let alert = rig.ours.output(&mut rig.buffers).unwrap().to_vec();
        let told = rig.peer.read_tls(&mut &alert[..]).is_ok() && rig.peer.process_new_packets().is_err();
        assert!(told, "bit {bit}: the peer gets a fatal alert");
    }
}

#[test]
fn records_out_of_their_order_are_refused() {
    let mut rig = Rig::new(Role::Server, SUITES[2]);
    let (first, second) = (rig.peer_says(b"first"), rig.peer_says(b"second"));
    assert!(rig.ours_reads(&second, 100).is_err());
    let mut rig = Rig::new(Role::Server, SUITES[2]);
    let _ = first;
    let record = rig.peer_says(b"once");
    assert_eq!(rig.ours_reads(&record, 100).unwrap(), b"once");
    assert!(rig.ours_reads(&record, 100).is_err());
}

#[test]
fn a_fatal_alert_of_the_peer_ends_the_connection() {
    let mut rig = Rig::new(Role::Client, SUITES[0]);
    // The peer gets what it cannot open, and says so.
    let junk = [
        23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
    ];
    rig.peer.read_tls(&mut &junk[..]).unwrap();
    assert!(rig.peer.process_new_packets().is_err());
    let records = take(&mut rig.peer);
    let fault = rig.ours_reads(&records, 100).unwrap_err();
    assert_eq!(fault, TlsFault::Alert(rustls::AlertDescription::BadRecordMac));
}

#[test]
fn secrets_are_not_shown() {
    let rig = Rig::new(Role::Client, SUITES[0]);
    assert_eq!(format!("{:?}", rig.ours), "TlsSession(Aes128GcmSha256)");
}

/// Two ends that speak until neither has anything to say, or one complains.
fn shaken(authority: &Authority, purposes: [Purpose; 2]) -> Result<[TlsHandshake; 2], rustls::Error> {
    let client = authority
        .node("client", &["spiffe://mesh/client"])
        .client()
        .unwrap();
    let server = authority.node("server", &["server.test"]).server().unwrap();
    let mut ends = [
        TlsHandshake::client(&client, "server.test:1", purposes[0])?,
        TlsHandshake::server(&server, purposes[1])?,
    ];
    loop {
        let mut said = 0;
        for from in 0..2 {
            let bytes = ends[from].output().unwrap();
            said += bytes.len();
            ends[1 - from].input(&bytes)?;
        }
        if said == 0 {
            return Ok(ends);
        }
    }
}

#[test]
fn both_ends_of_a_handshake_have_its_keys_and_nobody_else() {
    let authority = Authority::new();
    let keys = |ends: &[TlsHandshake; 2], context: &[u8]| {
        ends.each_ref().map(|end| end.export_key(context).unwrap())
    };
    let ends = shaken(&authority, [Purpose::Key; 2]).unwrap();
    let [at_client, at_server] = keys(&ends, b"one");
    assert_eq!(at_client, at_server);
    assert_ne!(at_client, keys(&ends, b"other")[0], "another context");
    let again = shaken(&authority, [Purpose::Key; 2]).unwrap();
    assert_ne!(
        at_client,
        keys(&again, b"one")[0],
        "another handshake of the same ends"
    );
    // By another label, as for something else, the key is another one.
    let something = ends[0]
        .connection()
        .export_keying_material([0; 32], b"EXPERIMENTAL x", Some(b"one"));
    assert_ne!(**at_client, something.unwrap());
    assert_eq!(identity(ends[1].connection()).name(), "spiffe://mesh/client");
}

#[test]
fn there_is_no_key_before_the_end_and_none_with_an_end_that_wants_records() {
    let authority = Authority::new();
    let files = authority.node("a", &["server.test"]);
    let fresh = TlsHandshake::client(&files.client().unwrap(), "server.test:1", Purpose::Key).unwrap();
    assert!(fresh.export_key(b"").is_err());
    for purposes in [[Purpose::Key, Purpose::Records], [Purpose::Records, Purpose::Key]] {
        assert!(shaken(&authority, purposes).is_err(), "{purposes:?}");
    }
}

#[test]
fn what_is_told_after_the_handshake_arrives() {
    let mut ends = shaken(&Authority::new(), [Purpose::Key; 2]).unwrap();
    assert!(ends[0].told().is_empty());
    ends[1].send(b"word").unwrap();
    let record = ends[1].output().unwrap();
    ends[0].input(&record).unwrap();
    assert_eq!(ends[0].told(), b"word");
}
