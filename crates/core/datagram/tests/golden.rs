//! The packets of `docs/datagram.md`, byte by byte, as in `tests/golden/packets.txt`, and those of sealed sessions as in
//! `tests/golden/sealed.txt`; `tests/golden/crc32c.txt` has the first ones with a CRC32C.
//!
//! A golden packet never changes within a version of the protocol. `GOLDEN=write` writes the files anew.

use std::fmt::Write as _;

use provost_datagram::handshake::{Accept, MarkUse, Open, PacketFallback, encode_challenge, encode_refuse};
use provost_datagram::packet::{Flags, Head, Header, Kind, Packet, Prefix};
use provost_datagram::{
    Call, Checking, Cipher, Config, Endpoint, Event, Mark, MsgBuf, Refusal, RequestHandle, Sealing, Security,
    SessionId,
};

const PACKETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/packets.txt");
const CRC32C: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/crc32c.txt");
const SEALED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sealed.txt");

fn header(kind: Kind, flags: Flags) -> Header {
    Header {
        kind,
        flags,
        slot: 3,
        session: 0x1122,
        token: 0x5566_7788,
        call: 0x0a0b_0c0d,
        packet: 0x0102,
    }
}

/// Every packet, with its name and who notices damage to it.
fn packets() -> Vec<(&'static str, Head, Vec<u8>, Checking)> {
    let prefix = |code, held| Prefix {
        message_bytes: 100_000,
        code,
        held,
    };
    let bare = |kind, flags| Head::bare(&header(kind, flags));
    let management = |kind| Head::bare(&Header::of_session(kind, 0x1122, 0x5566_7788));
    let open = Open {
        versions: (1, 1),
        selective: true,
        slots: 8,
        session: 7,
        token: 0x0102_0304,
        credits: 32,
        packet_bytes: 1472,
        nonce: 0x1112_1314_1516_1718,
        cookie: 0x2122_2324_2526_2728,
        cipher: 0,
        marks: MarkUse::Unread,
        fallback: PacketFallback::Off,
    };
    let accept = Accept {
        nonce: 0x1112_1314_1516_1718,
        version: 1,
        slots: 8,
        session: 9,
        token: 0x3132_3334,
        credits: 32,
        packet_bytes: 1472,
        message_bytes_max: 64 << 20,
        marks: MarkUse::Unread,
        fallback: PacketFallback::Off,
    };
    let request = Head::of_data(&header(Kind::Request, Flags::RETURN), &prefix(513, 0));
    let response = Head::of_data(&header(Kind::Response, Flags::MARKED), &prefix(2, 99));
    let away = Flags::UNTIMED.with(Flags::AWAY);
    let away = Head::of_data(&header(Kind::Response, away), &prefix(2, u16::MAX));
    let credit_return = header(Kind::CreditReturn, Flags::MARKED.with(Flags::UNTIMED));
    let (wire, own) = (Checking::Wire, Checking::Packets);
    vec![
        ("request", request, b"abc".to_vec(), wire),
        ("request, with a check", request, b"abc".to_vec(), own),
        (
            "credit return",
            Head::of_credit_return(&credit_return, 0),
            vec![],
            wire,
        ),
        (
            "credit return, with a bitmap",
            Head::of_credit_return(&credit_return, 5),
            vec![],
            wire,
        ),
        (
            "request for four response packets",
            bare(Kind::RequestForResponse, Flags::range(4)),
            vec![],
            wire,
        ),
        ("response", response, b"xyz".to_vec(), wire),
        (
            "response of a server that was off its core",
            away,
            b"xyz".to_vec(),
            wire,
        ),
        ("open", management(Kind::Open), open.encode().to_vec(), wire),
        (
            "challenge",
            management(Kind::Challenge),
            encode_challenge(open.nonce, open.cookie).to_vec(),
            wire,
        ),
        (
            "refuse",
            management(Kind::Refuse),
            encode_refuse(open.nonce, Refusal::RingFull).to_vec(),
            wire,
        ),
        ("accept", management(Kind::Accept), accept.encode().to_vec(), wire),
        ("close", management(Kind::Close), vec![], wire),
        ("closed", management(Kind::Closed), vec![], wire),
        ("reset", management(Kind::Reset), vec![], wire),
        ("unknown", management(Kind::Unknown), vec![], wire),
        ("ping", management(Kind::Ping), vec![], wire),
        ("pong", management(Kind::Pong), vec![], own),
    ]
}

#[test]
fn packets_are_the_golden_ones() {
    assert_golden(&written(packets()), PACKETS);
}

#[test]
fn packets_with_a_crc_are_the_golden_ones() {
    let packets = packets()
        .into_iter()
        .filter(|(.., checking)| *checking == Checking::Wire)
        .map(|(name, head, payload, _)| (name, head, payload, Checking::Crc32c));
    assert_golden(&written(packets.collect()), CRC32C);
}

/// Packets with their fields, as a golden file has them.
fn written(packets: Vec<(&'static str, Head, Vec<u8>, Checking)>) -> String {
    let mut text = String::new();
    for (name, head, payload, checking) in packets {
        let bytes = [head.seal(&payload, checking).bytes(), &payload].concat();
        let header = Packet::parse(&bytes, checking).unwrap().header;
        write_packet(&mut text, name, &header, &bytes);
    }
    text
}

#[test]
fn sealed_sessions_are_the_golden_ones() {
    let mut text = String::new();
    for cipher in [Cipher::ChaCha20Poly1305, Cipher::Aes128Gcm] {
        let mut conversation = Conversation::new(cipher);
        let session = conversation.begin();
        conversation.call(session, b"abc", b"xyz");
        let (request, response): (Vec<u8>, Vec<u8>) = ((1..=150).collect(), (101..=250).collect());
        conversation.call(session, &request, &response);
        conversation.end(session);
        text += &conversation.text;
    }
    assert_golden(&text, SEALED);
}

fn write_packet(text: &mut String, name: &str, header: &Header, bytes: &[u8]) {
    writeln!(text, "{name}").unwrap();
    writeln!(
        text,
        "  kind {} slot {} session {:#x} token {:#x} call {:#x} packet {:#x}",
        header.kind as u8, header.slot, header.session, header.token, header.call, header.packet
    )
    .unwrap();
    for line in bytes.chunks(16) {
        writeln!(text, "  {}", hexadecimal(line)).unwrap();
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}

fn assert_golden(text: &str, file: &str) {
    if std::env::var("GOLDEN").is_ok_and(|golden| golden == "write") {
        std::fs::write(file, text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(file).unwrap_or_default());
}

const CLIENT: u8 = 0;
const SERVER: u8 = 1;
const METHOD: u16 = 513;
const STATUS: u16 = 2;
/// How long the server keeps each call: 20 units of 64 ns.
const KEPT_NS: u64 = 1_280;
/// Of a packet, so that 150 bytes are two.
const PACKET_BYTES: usize = 160;
const PAYLOAD_BYTES: usize = PACKET_BYTES - 48;

/// The packets of a sealed session, which follow from both ends' secrets, seeds and clocks. Each is written down with
/// what it seals.
struct Conversation {
    cipher: Cipher,
    now_ns: u64,
    ends: [Endpoint<u8>; 2],
    text: String,
}

impl Conversation {
    fn new(cipher: Cipher) -> Conversation {
        let end = |end: u8| {
            let sealing = Sealing {
                cipher,
                pre_shared_key: [7; 32],
                seed: [8 + end; 32],
            };
            let config = Config {
                secret: [end.into(), 1],
                packet_bytes_max: PACKET_BYTES,
                message_bytes_max: 1 << 20,
                security: Security::Sealed(sealing),
                ..Config::default()
            };
            Endpoint::new(config).unwrap()
        };
        Conversation {
            cipher,
            now_ns: 1_000_000_000,
            ends: [end(CLIENT), end(SERVER)],
            text: String::new(),
        }
    }

    /// The one packet that an end has to send now. `sealed` is what follows its header in the clear.
    fn packet(&mut self, from: u8, name: &str, sealed: Option<&[u8]>) -> Vec<u8> {
        let end = &mut self.ends[usize::from(from)];
        let transmit = end.poll_transmit(self.now_ns).expect("a packet");
        let bytes = [transmit.head.bytes(), transmit.payload].concat();
        let header = header_of(&bytes);
        let name = format!("{name} ({:?})", self.cipher);
        write_packet(&mut self.text, &name, &header, &bytes);
        if let Some(plain) = sealed {
            assert_eq!(bytes.len(), 16 + 8 + plain.len() + 16, "{name}");
            writeln!(self.text, "  seals {}", hexadecimal(plain)).unwrap();
        }
        bytes
    }

    /// The same, and the other end gets it.
    fn pass(&mut self, from: u8, name: &str, sealed: Option<&[u8]>) -> Option<Event<'static>> {
        let bytes = self.packet(from, name, sealed);
        self.arrive(from, &bytes)
    }

    fn arrive(&mut self, from: u8, bytes: &[u8]) -> Option<Event<'static>> {
        let to = &mut self.ends[usize::from(1 - from)];
        // What a sealed packet carries is a copy, so the event outlives it.
        match to.receive(self.now_ns, from, Mark::None, bytes) {
            Some(Event::Request {
                handle,
                method,
                payload: provost_datagram::Payload::Owned(payload),
            }) => {
                let payload = provost_datagram::Payload::Owned(payload);
                Some(Event::Request {
                    handle,
                    method,
                    payload,
                })
            }
            Some(Event::Connected(session)) => Some(Event::Connected(session)),
            Some(Event::Completed(completion)) => Some(Event::Completed(completion)),
            Some(Event::Ended(session, reason)) => Some(Event::Ended(session, reason)),
            _ => None,
        }
    }

    fn begin(&mut self) -> SessionId {
        let session = self.ends[0].connect(self.now_ns, SERVER).unwrap();
        self.pass(CLIENT, "open", None);
        self.pass(SERVER, "challenge", None);
        self.pass(CLIENT, "open with the cookie", None);
        assert!(matches!(
            self.pass(SERVER, "accept", None),
            Some(Event::Connected(_))
        ));
        session
    }

    fn call(&mut self, session: SessionId, request: &[u8], response: &[u8]) {
        let call = Call {
            method: METHOD,
            tag: 0,
            request: MsgBuf::from_slice(request),
            response: MsgBuf::with_capacity(response.len()),
        };
        self.ends[0].call(self.now_ns, session, call).unwrap();
        let handle = self.pass_request(request);
        self.now_ns += KEPT_NS;
        let answered = self.ends[1].respond_inline(self.now_ns, handle, STATUS, response);
        answered.unwrap();
        let held = (KEPT_NS / 64) as u16;
        let pieces = response.chunks(PAYLOAD_BYTES).enumerate();
        let mut completed = None;
        for (number, piece) in pieces {
            if number > 0 {
                self.pass(CLIENT, "request for response", Some(&[]));
            }
            let held = if number == 0 { held } else { 0 };
            let plain = [&prefix(response, STATUS, held), piece].concat();
            completed = self.pass(SERVER, "response", Some(&plain));
        }
        let Some(Event::Completed(completion)) = completed else {
            panic!("the call is not over");
        };
        assert_eq!(
            (completion.outcome, &*completion.response),
            (Ok(STATUS), response)
        );
    }

    /// The packets of a request, the last of which arrives first.
    fn pass_request(&mut self, request: &[u8]) -> RequestHandle {
        let pieces: Vec<&[u8]> = request.chunks(PAYLOAD_BYTES).collect();
        let packets: Vec<Vec<u8>> = pieces
            .iter()
            .map(|piece| {
                let plain = [&prefix(request, METHOD, 0), *piece].concat();
                self.packet(CLIENT, "request", Some(&plain))
            })
            .collect();
        for (number, bytes) in packets.iter().enumerate().rev() {
            if let Some(Event::Request { handle, .. }) = self.arrive(CLIENT, bytes) {
                return handle;
            }
            assert_eq!(number, 1);
            // Packet 0 is missing; bit 0 of the bitmap is packet 1.
            self.pass(SERVER, "credit return", Some(&1u64.to_le_bytes()));
        }
        panic!("the request is not whole");
    }

    fn end(&mut self, session: SessionId) {
        self.ends[0].disconnect(self.now_ns, session);
        self.pass(CLIENT, "close", Some(&[]));
        assert!(matches!(
            self.pass(SERVER, "closed", Some(&[])),
            Some(Event::Ended(..)) | None
        ));
    }
}

fn header_of(bytes: &[u8]) -> Header {
    // What follows may be sealed, so the header is read alone, as if of a kind that nothing has to follow.
    let mut head = [0; 16];
    head.copy_from_slice(&bytes[..16]);
    let (kind, flags) = (head[0] & 15, head[0]);
    head[0] = flags & 0xf0 | Kind::Ping as u8;
    let mut header = Packet::parse(&head, Checking::Wire).unwrap().header;
    let kinds = [
        Kind::Request,
        Kind::CreditReturn,
        Kind::RequestForResponse,
        Kind::Response,
        Kind::Open,
        Kind::Challenge,
        Kind::Accept,
        Kind::Close,
        Kind::Closed,
    ];
    header.kind = kinds.into_iter().find(|of| *of as u8 == kind).unwrap();
    header
}

fn prefix(message: &[u8], code: u16, held: u16) -> [u8; 8] {
    let mut prefix = [0; 8];
    prefix[..4].copy_from_slice(&(message.len() as u32).to_le_bytes());
    prefix[4..6].copy_from_slice(&code.to_le_bytes());
    prefix[6..].copy_from_slice(&held.to_le_bytes());
    prefix
}
