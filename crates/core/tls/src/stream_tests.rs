//! Streams within TLS: two ends of ours over pipes in memory, and what others say there.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;

use provost_datapath::{FieldReader, FieldWriter};
use provost_random::SeededRandom;

use super::StreamRecords;
use crate::tests::certificates::Authority;
use crate::{
    ClientDemand, OwnCertificate, PeerIdentity, ServerTrust, StreamClientFiles, StreamServerFiles, TlsConfig,
    TlsStream, TrustAnchors,
};

/// Bytes that a pipe holds in one direction.
const PIPE_BYTES: usize = 10_000;

/// One end of a pipe that does not block.
#[derive(Clone, Default)]
pub(super) struct PipeEnd {
    pub(super) comes: Rc<RefCell<PipeHalf>>,
    pub(super) goes: Rc<RefCell<PipeHalf>>,
}

#[derive(Default)]
pub(super) struct PipeHalf {
    pub(super) bytes: VecDeque<u8>,
    is_closed: bool,
}

pub(super) fn pipe() -> (PipeEnd, PipeEnd) {
    let one = PipeEnd::default();
    let other = PipeEnd {
        comes: Rc::clone(&one.goes),
        goes: Rc::clone(&one.comes),
    };
    (one, other)
}

impl Read for PipeEnd {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut half = self.comes.borrow_mut();
        if half.bytes.is_empty() && !half.is_closed {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        half.bytes.read(into)
    }
}

impl Write for PipeEnd {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut half = self.goes.borrow_mut();
        let room = PIPE_BYTES - half.bytes.len();
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = room.min(bytes.len());
        half.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn own_files(own: &TlsConfig) -> OwnCertificate {
    OwnCertificate::Files {
        cert: own.cert.clone(),
        key: own.key.clone(),
    }
}

pub(super) fn server_files(own: &TlsConfig, clients: ClientDemand) -> StreamServerFiles {
    StreamServerFiles {
        own: own_files(own),
        clients,
    }
}

fn trust(own: &TlsConfig) -> ServerTrust {
    ServerTrust {
        anchors: TrustAnchors::File(own.ca.clone()),
        crls: Vec::new(),
    }
}

pub(super) fn client_files(authority: &TlsConfig, own: Option<&TlsConfig>) -> StreamClientFiles {
    StreamClientFiles {
        trust: trust(authority),
        own: own.map(own_files),
        identities: Vec::new(),
    }
}

/// A client and a server, connected.
pub(super) struct StreamPair {
    pub(super) client: TlsStream<PipeEnd>,
    pub(super) server: TlsStream<PipeEnd>,
}

impl StreamPair {
    pub(super) fn new(client: &StreamClientFiles, server: &StreamServerFiles, name: &str) -> StreamPair {
        let (at_client, at_server) = pipe();
        let (client, server) = (client.load().unwrap(), server.load().unwrap());
        StreamPair {
            client: TlsStream::client(at_client, client.config, name).unwrap(),
            server: TlsStream::server(at_server, server.config).unwrap(),
        }
    }

    /// Two ends that have shaken hands.
    pub(super) fn shaken() -> StreamPair {
        let authority = Authority::new();
        let own = authority.node("a", &["server.test"]);
        let files = server_files(&own, ClientDemand::Nothing);
        let mut pair = StreamPair::new(&client_files(&own, None), &files, "server.test");
        let (client, server) = pair.shake_hands();
        assert!(client.unwrap() && server.unwrap());
        pair
    }

    /// Shakes hands, and says what each end made of it.
    pub(super) fn shake_hands(&mut self) -> (io::Result<bool>, io::Result<bool>) {
        for _ in 0..10 {
            let (client, server) = (self.client.shake_hands(), self.server.shake_hands());
            if matches!(
                (&client, &server),
                (Ok(true), Ok(true)) | (Err(_), _) | (_, Err(_))
            ) {
                return (client, server);
            }
        }
        panic!("a handshake does not end");
    }
}

fn failure(outcome: io::Result<bool>) -> String {
    outcome.expect_err("it should have failed").to_string()
}

#[test]
fn streams_carry_bytes_both_ways_through_narrow_pipes() {
    let authority = Authority::new();
    let (a, b) = (
        authority.node("a", &["spiffe://test/a"]),
        authority.node("b", &["server.test"]),
    );
    let everyone = ClientDemand::Everyone(trust(&b));
    let mut pair = StreamPair::new(
        &client_files(&a, Some(&a)),
        &server_files(&b, everyone),
        "server.test",
    );
    let bytes: Vec<u8> = (0..=255).cycle().take(500_000).collect();
    // What is written before the handshake waits for it.
    let (mut sent, mut got) = (0, Vec::<u8>::new());
    let mut room = vec![0; 7_777];
    while got.len() < bytes.len() {
        match pair.client.write(&bytes[sent..]) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        for end in [&mut pair.server, &mut pair.client] {
            match end.read(&mut room) {
                Ok(count) => got.extend(&room[..count]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
    }
    assert!(got == bytes && sent == bytes.len());
    assert_eq!(
        pair.server.identity(),
        PeerIdentity::Spiffe("spiffe://test/a".to_owned())
    );
    pair.server.write_all(b"answer").unwrap();
    pair.server.flush().unwrap();
    assert_eq!(pair.client.read(&mut room).unwrap(), 6);
    drop(pair.server);
    assert_eq!(pair.client.read(&mut room).unwrap(), 0);
}

/// A stream as a successor has it: the one before says nothing as it goes.
fn replaced(stream: TlsStream<PipeEnd>, end: &PipeEnd) -> TlsStream<PipeEnd> {
    assert!(stream.can_be_saved());
    let mut out = FieldWriter::new();
    stream.save(&mut out);
    drop(stream);
    let mut fields = FieldReader::new("stream", &out.bytes);
    // One that fails half way says nothing either.
    let mut failed = fields.clone();
    drop(TlsStream::restore(end.clone(), &mut failed).unwrap());
    let restored = TlsStream::restore(end.clone(), &mut fields).unwrap();
    fields.end().unwrap();
    restored
}

#[test]
fn successors_go_on_with_streams_at_any_moment() {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let files = server_files(&own, ClientDemand::Nothing);
    let mut random = SeededRandom::new(7);
    let mut pair = StreamPair::new(&client_files(&own, None), &files, "server.test");
    let (client, server) = pair.shake_hands();
    assert!(client.unwrap() && server.unwrap());
    let ends = [pair.client.socket.clone(), pair.server.socket.clone()];
    let mut streams = [Some(pair.client), Some(pair.server)];
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let (mut sent, mut got) = ([0; 2], [Vec::<u8>::new(), Vec::new()]);
    while got.iter().any(|got| got.len() < bytes.len()) {
        let at = random.index(2);
        let mut stream = streams[at].take().unwrap();
        if random.one_in(4) {
            stream = replaced(stream, &ends[at]);
        }
        let piece = (random.between(1, 9_000) as usize).min(bytes.len() - sent[at]);
        match stream.write(&bytes[sent[at]..][..piece]) {
            Ok(count) => sent[at] += count,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        let mut room = vec![0; random.between(1, 20_000) as usize];
        match stream.read(&mut room) {
            Ok(count) => got[at].extend(&room[..count]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        streams[at] = Some(stream);
    }
    assert!(got[0] == bytes && got[1] == bytes);
    let [client, server] = streams.map(Option::unwrap);
    let mut client = replaced(client, &ends[0]);
    drop(server);
    assert_eq!(
        client.read(&mut [0; 9]).unwrap(),
        0,
        "an end that is meant is said"
    );
}

#[test]
fn what_has_not_left_is_said_by_flush() {
    let mut pair = StreamPair::shaken();
    assert_eq!(pair.server.identity(), PeerIdentity::Anonymous);
    let written = pair.client.write(&[7; 60_000]).unwrap();
    assert_eq!(pair.client.flush().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    let (mut room, mut got) = (vec![0; 100_000], 0);
    while got < written {
        match pair.server.read(&mut room) {
            Ok(count) => got += count,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        let _ = pair.client.flush();
    }
    pair.client.flush().unwrap();
    // More than it keeps is not taken.
    let mut taken = 0;
    while let Ok(count) = pair.client.write(&[7; 60_000]) {
        taken += count;
    }
    assert!(taken < 200_000, "{taken}");
}

#[test]
fn ends_that_do_not_prove_what_they_must_are_refused_with_the_reason() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (own, stranger) = (
        authority.node("a", &["server.test"]),
        other.node("c", &["server.test"]),
    );
    let everyone = || ClientDemand::Everyone(trust(&own));
    let shaken = |client: StreamClientFiles, demand, name| {
        StreamPair::new(&client, &server_files(&own, demand), name).shake_hands()
    };
    let (client, _) = shaken(client_files(&own, None), ClientDemand::Nothing, "else.test");
    assert!(failure(client).contains("not of the host else.test"));
    let (client, _) = shaken(
        client_files(&stranger, None),
        ClientDemand::Nothing,
        "server.test",
    );
    assert!(failure(client).contains("invalid peer certificate"));
    let (_, server) = shaken(client_files(&own, None), everyone(), "server.test");
    assert!(failure(server).contains("has no certificate"));
    let (_, server) = shaken(client_files(&own, Some(&stranger)), everyone(), "server.test");
    assert!(failure(server).contains("invalid peer certificate"));
    let if_any = || ClientDemand::IfAny(trust(&own));
    let (client, server) = shaken(client_files(&own, None), if_any(), "server.test");
    assert!(client.unwrap() && server.unwrap());
    let (_, server) = shaken(client_files(&own, Some(&stranger)), if_any(), "server.test");
    assert!(failure(server).contains("invalid peer certificate"));
}

#[test]
fn an_end_or_an_error_behind_bytes_is_told_by_the_next_read() {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let files = server_files(&own, ClientDemand::Nothing);
    let mut room = vec![0; 10_000];
    for is_broken in [false, true] {
        let mut pair = StreamPair::new(&client_files(&own, None), &files, "server.test");
        let (client, server) = pair.shake_hands();
        assert!(client.unwrap() && server.unwrap());
        pair.client.write_all(b"first").unwrap();
        assert_eq!(pair.server.read(&mut room).unwrap(), 5);
        assert!(!pair.server.has_more());
        // Two records, as an error takes the bytes with it that have come at the same time.
        pair.client.write_all(&[1; 3_000]).unwrap();
        pair.client.write_all(&[2; 3_000]).unwrap();
        let below = pair.client.socket.clone();
        if is_broken {
            let no_record = b"\x17\x03\x03\x00\x20nothing that was sealed for anyone";
            below.goes.borrow_mut().bytes.extend(no_record);
        } else {
            drop(pair.client);
        }
        assert!(pair.server.read(&mut room).unwrap() >= 3_000);
        let below_bytes = below.goes.borrow().bytes.len();
        assert_eq!((pair.server.has_more(), below_bytes), (true, 0), "{is_broken}");
        let told = pair.server.read(&mut room);
        assert_eq!(told.is_err(), is_broken, "{told:?}");
        assert!(!pair.server.has_more());
    }
}

#[test]
fn a_stream_whose_handshake_goes_on_waits_for_its_peer() {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let files = server_files(&own, ClientDemand::Nothing);
    let mut pair = StreamPair::new(&client_files(&own, None), &files, "server.test");
    assert!(!pair.client.waits_for_peer(), "its first words are to be sent");
    while pair.client.write(&[7; 10_000]).is_ok() {}
    assert!(pair.client.waits_for_peer());
    let (client, server) = pair.shake_hands();
    assert!(client.unwrap() && server.unwrap());
    assert!(!pair.client.waits_for_peer());
}

/// A client and a server, of which one has another opinion on ALPN.
fn with_protocols(of_client: &[&[u8]], of_server: &[&[u8]]) -> (io::Result<bool>, io::Result<bool>, Vec<u8>) {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let list = |protocols: &[&[u8]]| protocols.iter().map(|name| name.to_vec()).collect();
    let mut client = (*client_files(&own, None).load().unwrap().config).clone();
    client.alpn_protocols = list(of_client);
    let server = server_files(&own, ClientDemand::Nothing).load().unwrap();
    let mut server = (*server.config).clone();
    server.alpn_protocols = list(of_server);
    let (at_client, at_server) = pipe();
    let mut pair = StreamPair {
        client: TlsStream::client(at_client, client.into(), "server.test").unwrap(),
        server: TlsStream::server(at_server, server.into()).unwrap(),
    };
    pair.client.write_all(b"secret").unwrap();
    let (client, server) = pair.shake_hands();
    let mut told = vec![0; 100];
    let count = match &mut pair.server.records {
        StreamRecords::Library(library) => library.tls.reader().read(&mut told).unwrap_or(0),
        StreamRecords::Own(_) | StreamRecords::Lost => pair.server.read(&mut told).unwrap_or(0),
    };
    told.truncate(count);
    (client, server, told)
}

/// What a server makes of a client that has never heard of ALPN.
fn with_client_without_alpn() -> io::Result<bool> {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let mut config = (*client_files(&own, None).load().unwrap().config).clone();
    config.alpn_protocols = Vec::new();
    let name = "server.test".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(config.into(), name).unwrap();
    let server = server_files(&own, ClientDemand::Nothing).load().unwrap();
    let (mut at_client, at_server) = pipe();
    let mut server = TlsStream::server(at_server, server.config).unwrap();
    loop {
        while client.wants_write() {
            client.write_tls(&mut at_client).unwrap();
        }
        match server.shake_hands() {
            Ok(false) => {}
            other => return other,
        }
        client.read_tls(&mut at_client).unwrap();
        client.process_new_packets().unwrap();
    }
}

#[test]
fn both_ends_have_to_agree_on_http2() {
    let (client, server, _) = with_protocols(&[b"h2"], &[b"h2"]);
    assert!(client.unwrap() && server.unwrap());
    let (client, _, told) = with_protocols(&[b"h2"], &[]);
    assert!(failure(client).contains("the server does not agree on HTTP/2"));
    assert!(told.is_empty(), "it was told {told:?}");
    assert!(failure(with_client_without_alpn()).contains("the client does not offer HTTP/2"));
    let (_, server, _) = with_protocols(&[b"http/1.1"], &[b"h2"]);
    assert!(failure(server).contains("does not speak HTTP/2 within TLS"));
}

#[test]
fn whoever_does_not_speak_tls_is_told_apart() {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let config = server_files(&own, ClientDemand::Nothing).load().unwrap().config;
    for said in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let (mut at_client, at_server) = pipe();
        let mut server = TlsStream::server(at_server, config.clone()).unwrap();
        at_client.write_all(said).unwrap();
        assert!(failure(server.shake_hands()).contains("does not speak TLS"));
        // It stays so.
        assert!(server.read(&mut [0; 10]).is_err() && server.write(b"x").is_err());
    }
    let (at_client, at_server) = pipe();
    let mut server = TlsStream::server(at_server, config).unwrap();
    assert!(!server.shake_hands().unwrap());
    at_client.goes.borrow_mut().is_closed = true;
    assert!(failure(server.shake_hands()).contains("before the handshake was over"));
}

#[test]
fn a_handshake_has_so_many_bytes_at_most() {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let config = server_files(&own, ClientDemand::Nothing).load().unwrap().config;
    let (mut at_client, at_server) = pipe();
    let mut server = TlsStream::server(at_server, config).unwrap();
    // Parts of a first message that never is whole, each a record of one byte.
    let mut sent = 0;
    let failed = loop {
        let part: &[u8] = if sent == 0 {
            &[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff]
        } else {
            &[22, 3, 1, 0, 1, 7]
        };
        at_client.write_all(part).unwrap();
        sent += part.len();
        match server.shake_hands() {
            Ok(is_done) => assert!(!is_done && sent < 1 << 20),
            Err(error) => break error,
        }
    };
    assert!(failed.to_string().contains("bytes"), "{failed}");
    assert!((40_000..60_000).contains(&sent), "{sent}");
}

#[test]
fn certificates_that_were_taken_back_prove_nothing() {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let of_serial = |name: &str, serial: u64| {
        let mut params = rcgen::CertificateParams::default();
        params.serial_number = Some(serial.into());
        authority.node_with(name, &["client.test"], params)
    };
    let (good, taken_back) = (of_serial("good", 7), of_serial("back", 8));
    let day = |year| rcgen::date_time_ymd(year, 1, 1);
    let list = rcgen::CertificateRevocationListParams {
        this_update: day(2020),
        next_update: day(2090),
        crl_number: 1_u64.into(),
        issuing_distribution_point: None,
        revoked_certs: vec![rcgen::RevokedCertParams {
            serial_number: 8_u64.into(),
            revocation_time: day(2020),
            reason_code: None,
            invalidity_date: None,
        }],
        key_identifier_method: rcgen::KeyIdMethod::Sha256,
    };
    let path = own.ca.with_file_name("list.pem");
    std::fs::write(&path, list.signed_by(&authority.issuer).unwrap().pem().unwrap()).unwrap();
    let trust = ServerTrust {
        crls: vec![path],
        ..trust(&own)
    };
    let shaken = |client: &TlsConfig| {
        let files = server_files(&own, ClientDemand::Everyone(trust.clone()));
        StreamPair::new(&client_files(&own, Some(client)), &files, "server.test")
            .shake_hands()
            .1
    };
    assert!(shaken(&good).unwrap());
    assert!(failure(shaken(&taken_back)).contains("Revoked"));
}

#[test]
fn files_are_named_when_they_are_no_good() {
    let authority = Authority::new();
    let (own, other) = (
        authority.node("a", &["server.test"]),
        authority.node("b", &["server.test"]),
    );
    let files = server_files(&own, ClientDemand::Everyone(trust(&own)));
    assert_eq!(files.files(), [own.cert.clone(), own.key.clone(), own.ca.clone()]);
    assert!(files.load().unwrap().validity.is_some());
    let mixed = StreamServerFiles {
        own: OwnCertificate::Files {
            cert: own.cert.clone(),
            key: other.key.clone(),
        },
        ..files.clone()
    };
    let error = mixed.load().unwrap_err().to_string();
    assert!(error.contains("a.pem") && error.contains("b.key"), "{error}");
    let mut client = client_files(&own, Some(&own));
    assert!(client.load().unwrap().validity.is_some());
    client.trust.anchors = TrustAnchors::File("/nowhere/ca.pem".into());
    assert!(client.load().unwrap_err().to_string().contains("/nowhere/ca.pem"));
}
