//! The packets of `docs/datagram.md`, byte by byte, as in `tests/golden/packets.txt`.
//!
//! A golden packet never changes within a version of the protocol. `GOLDEN=write` writes the file anew.

use std::fmt::Write as _;

use provost_datagram::handshake::{Accept, Open, encode_challenge, encode_refuse};
use provost_datagram::packet::{Flags, Head, Header, Kind, Packet, Prefix};
use provost_datagram::{Checking, Refusal};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/packets.txt");

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
    };
    let request = Head::of_data(&header(Kind::Request, Flags::RETURN), &prefix(513, 0));
    let response = Head::of_data(&header(Kind::Response, Flags::MARKED), &prefix(2, 99));
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
    let mut text = String::new();
    for (name, mut head, payload, checking) in packets() {
        head.seal(&payload, checking);
        let bytes = [head.bytes(), &payload].concat();
        let packet = Packet::parse(&bytes, checking).unwrap();
        let header = packet.header;
        writeln!(text, "{name}").unwrap();
        writeln!(
            text,
            "  kind {} slot {} session {:#x} token {:#x} call {:#x} packet {:#x}",
            header.kind as u8, header.slot, header.session, header.token, header.call, header.packet
        )
        .unwrap();
        for line in bytes.chunks(16) {
            let hexadecimal: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "  {}", hexadecimal.join(" ")).unwrap();
        }
    }
    if std::env::var("GOLDEN").is_ok_and(|golden| golden == "write") {
        std::fs::write(FILE, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(FILE).unwrap_or_default());
}
