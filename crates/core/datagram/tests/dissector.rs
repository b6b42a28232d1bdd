//! The Wireshark dissector, checked with tshark: on the golden packets, field by field, and on a capture of real calls.
//!
//! Skipped, with the reason printed, where there is no tshark, or no right to capture.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use provost_datagram::{Call, Config, Driver, Event, MsgBuf, Turn};
use provost_packets::Wire;
use provost_udp::{UdpOptions, UdpWire, Use};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/packets.txt");
const GOLDEN_CRC32C: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/crc32c.txt");
const GOLDEN_SEALED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/sealed.txt");
const DISSECTOR: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../packaging/wireshark/provost-datagram.lua"
);
const WAIT_MAX: Duration = Duration::from_secs(30);
const NAP: Duration = Duration::from_millis(5);
/// Of UDP, as pcap names what its packets begin with: IPv4.
const LINK_TYPE_IPV4: u32 = 228;
/// No other dissector wants it.
const SERVER_PORT: u16 = 40_791;
const CLIENT_PORT: u16 = 1024;

fn has_tshark() -> bool {
    let version = Command::new("tshark")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}

/// What tshark says of these fields, a line for each packet of the file.
fn fields(capture: &Path, more: &[&str], fields: &[&str]) -> Vec<Vec<String>> {
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{DISSECTOR}"));
    command.arg("-r").arg(capture).args(more).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    // A script that fails is only complained about.
    assert!(!errors.contains("Lua"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// A golden packet: its fields as its second line has them, its bytes, and what it seals.
struct Golden {
    name: String,
    fields: Vec<u64>,
    bytes: Vec<u8>,
    seals: Option<usize>,
}

fn golden_packets(file: &str) -> Vec<Golden> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut packets: Vec<Golden> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            packets.push(Golden {
                name: line.to_owned(),
                fields: Vec::new(),
                bytes: Vec::new(),
                seals: None,
            });
            continue;
        }
        let packet = packets.last_mut().unwrap();
        match words[0] {
            "kind" => packet.fields = words.iter().skip(1).step_by(2).map(|word| number(word)).collect(),
            "seals" => packet.seals = Some(words.len() - 1),
            _ => {
                let bytes = words.iter().map(|word| u8::from_str_radix(word, 16).unwrap());
                packet.bytes.extend(bytes);
            }
        }
    }
    packets
}

fn number(text: &str) -> u64 {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}

/// Whether the server has sent it: it is of a kind that only servers send.
fn is_of_server(packet: &Golden) -> bool {
    matches!(packet.bytes[0] & 15, 2 | 4 | 6 | 7 | 8 | 10)
}

/// A capture file of UDP packets (pcap, version 2.4), each with an IPv4 header and without checksums.
fn capture_of(packets: &[Golden]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0xffff, LINK_TYPE_IPV4] {
        file.extend(word.to_le_bytes());
    }
    for packet in packets {
        let (udp_bytes, ip_bytes) = (packet.bytes.len() + 8, packet.bytes.len() + 28);
        for word in [0, 0, ip_bytes as u32, ip_bytes as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend([0x45, 0]);
        file.extend((ip_bytes as u16).to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        let mut ends = [([10, 0, 0, 1], CLIENT_PORT), ([10, 0, 0, 2], SERVER_PORT)];
        if is_of_server(packet) {
            ends.reverse();
        }
        ends.iter().for_each(|(address, _)| file.extend(address));
        for word in [ends[0].1, ends[1].1, udp_bytes as u16, 0] {
            file.extend(word.to_be_bytes());
        }
        file.extend(&packet.bytes);
    }
    file
}

#[test]
fn golden_packets_are_dissected_field_by_field() {
    golden_packets_are_dissected(GOLDEN, &[]);
}

#[test]
fn golden_packets_with_a_crc_are_dissected_field_by_field() {
    golden_packets_are_dissected(GOLDEN_CRC32C, &["-o", "provost_datagram.crc32c:TRUE"]);
}

fn golden_packets_are_dissected(file: &str, preferences: &[&str]) {
    if !has_tshark() {
        return provost_skip::missing("tshark", "Debian package tshark");
    }
    let packets = golden_packets(file);
    assert!(packets.len() > 10);
    // Tests of one process have a folder each: those of several files run at the same time.
    let folder = Folder::new(&format!("golden-{}", preferences.len()));
    let capture = folder.0.join("golden.pcap");
    std::fs::write(&capture, capture_of(&packets)).unwrap();
    let decode = format!("udp.port=={SERVER_PORT},provost_datagram");
    let names = [
        "provost_datagram.kind",
        "provost_datagram.slot",
        "provost_datagram.session",
        "provost_datagram.token",
        "provost_datagram.call",
        "provost_datagram.packet",
        "provost_datagram.malformed",
    ];
    let more = [&["-d", &decode], preferences].concat();
    let lines = fields(&capture, &more, &names);
    assert_eq!(lines.len(), packets.len());
    for (line, packet) in lines.iter().zip(&packets) {
        let (malformed, values) = line.split_last().unwrap();
        let values: Vec<u64> = values.iter().map(|value| number(value)).collect();
        assert_eq!(values, packet.fields, "{}", packet.name);
        assert_eq!(malformed, "", "{}", packet.name);
    }
    // Of kinds that have more than a header: one field each, which is the last of its kind.
    let find = |name: &str| packets.iter().position(|packet| packet.name == name).unwrap();
    for (name, field, value) in [
        ("request", "provost_datagram.message_bytes", 100_000),
        ("request", "provost_datagram.method", 513),
        ("response", "provost_datagram.status", 2),
        ("response", "provost_datagram.held_ns", 99 * 64),
        ("credit return, with a bitmap", "provost_datagram.bitmap", 5),
        ("request for four response packets", "provost_datagram.wanted", 4),
        ("open", "provost_datagram.packet_bytes", 1472),
        ("challenge", "provost_datagram.cookie", 0x2122_2324_2526_2728),
        ("accept", "provost_datagram.request_bytes_max", 64 << 20),
        ("refuse", "provost_datagram.refusal", 2),
    ] {
        let lines = fields(&capture, &more, &[field]);
        assert_eq!(number(&lines[find(name)][0]), value, "{name}: {field}");
    }
}

const HEADER_BYTES: usize = 16;
const NUMBER_BYTES: usize = 8;
const TAG_BYTES: usize = 16;

#[test]
fn sealed_packets_show_their_header_and_nothing_that_is_sealed() {
    if !has_tshark() {
        return provost_skip::missing("tshark", "Debian package tshark");
    }
    let packets = golden_packets(GOLDEN_SEALED);
    assert!(packets.iter().filter(|packet| packet.seals.is_some()).count() > 10);
    let folder = Folder::new("sealed");
    let names = [
        "provost_datagram.kind",
        "provost_datagram.slot",
        "provost_datagram.session",
        "provost_datagram.token",
        "provost_datagram.call",
        "provost_datagram.packet",
        "provost_datagram.malformed",
        "provost_datagram.message_bytes",
        "provost_datagram.bitmap",
        "provost_datagram.sealed.encrypted",
        "provost_datagram.sealed.tag",
        "provost_datagram.public_key",
    ];
    let check = |packets: &[Golden], lines: Vec<Vec<String>>| {
        assert_eq!(lines.len(), packets.len());
        for (line, packet) in lines.iter().zip(packets) {
            let name = &packet.name;
            let values: Vec<u64> = line[..6].iter().map(|value| number(value)).collect();
            assert_eq!(values, packet.fields, "{name}");
            assert_eq!(line[6], "", "{name}: malformed");
            let Some(seals) = packet.seals else {
                assert_eq!(line[9..11], ["", ""], "{name} is not sealed");
                continue;
            };
            let (encrypted, tag) = packet.bytes[HEADER_BYTES + NUMBER_BYTES..].split_at(seals);
            let expected = [
                String::new(),
                String::new(),
                hexadecimal(encrypted),
                hexadecimal(tag),
            ];
            assert_eq!(line[7..11], expected, "{name}");
            assert_eq!(tag.len(), TAG_BYTES, "{name}");
        }
    };
    let capture = folder.0.join("sealed.pcap");
    std::fs::write(&capture, capture_of(&packets)).unwrap();
    // The Open packet says what the conversation is, and which session is sealed.
    let lines = fields(&capture, &[], &names);
    assert_eq!(
        lines.iter().filter(|line| !line[11].is_empty()).count(),
        6,
        "two Opens and one Accept, twice"
    );
    check(&packets, lines);

    // Of a capture that begins later, two preferences say it.
    let later = packets.iter().position(|packet| packet.seals.is_some()).unwrap();
    let end = packets
        .iter()
        .position(|packet| packet.name.starts_with("closed"))
        .unwrap();
    let packets = &packets[later..=end];
    std::fs::write(&capture, capture_of(packets)).unwrap();
    let decode = format!("udp.port=={SERVER_PORT},provost_datagram");
    let more = ["-d", &decode, "-o", "provost_datagram.sealed:TRUE"];
    check(packets, fields(&capture, &more, &names));
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn damaged_packets_are_called_malformed() {
    if !has_tshark() {
        return provost_skip::missing("tshark", "Debian package tshark");
    }
    let damaged = |name: &str, bytes: &[u8]| Golden {
        name: name.to_owned(),
        fields: Vec::new(),
        bytes: bytes.to_owned(),
        seals: None,
    };
    let packets = [
        damaged("short", &[1; 15]),
        damaged("of no kind", &[0; 40]),
        damaged("a request without all of its prefix", &[1; 23]),
        damaged("an Open that is cut short", &[5; 63]),
    ];
    let folder = Folder::new("damaged");
    let capture = folder.0.join("damaged.pcap");
    std::fs::write(&capture, capture_of(&packets)).unwrap();
    let decode = format!("udp.port=={SERVER_PORT},provost_datagram");
    let lines = fields(&capture, &["-d", &decode], &["provost_datagram.malformed"]);
    assert_eq!(lines.len(), packets.len());
    for (line, packet) in lines.iter().zip(&packets) {
        assert_ne!(line[0], "", "{}", packet.name);
    }
}

#[test]
fn a_capture_of_real_calls_is_recognized_and_dissected() {
    if !has_tshark() {
        return provost_skip::missing("tshark", "Debian package tshark");
    }
    let folder = Folder::new("capture");
    let file = folder.0.join("calls.pcap");
    // On loopback nothing ever cuts up what the kernel is given as one.
    let options = UdpOptions {
        packet_bytes_max: 1472,
        segmentation: Use::Never,
        coalescing: Use::Never,
        ..UdpOptions::default()
    };
    let bind = || UdpWire::bind_with(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &options).unwrap();
    let (client, server) = (bind(), bind());
    let port = server.address().port();
    let Some(capture) = Capture::start(&file, port) else {
        return provost_skip::forbidden(
            "packets cannot be captured here (it takes the right to, CAP_NET_RAW)",
        );
    };
    const CALLS: usize = 20;
    call(client, server, CALLS);
    capture.stop_when(|| {
        let lines = fields(&file, &[], &["provost_datagram.kind"]);
        lines.iter().any(|line| line[0] == "10")
    });
    // Nothing says which port it is: the Open packet does.
    let lines = fields(
        &file,
        &["-Y", "provost_datagram"],
        &["provost_datagram.kind", "provost_datagram.method", "_ws.col.Info"],
    );
    let of_kind = |kind: &str| lines.iter().filter(|line| line[0] == kind).count();
    let methods: Vec<&str> = lines
        .iter()
        .filter(|line| line[0] == "1" && !line[1].is_empty())
        .map(|line| line[1].as_str())
        .collect();
    assert!(
        (0..CALLS).all(|method| methods.contains(&method.to_string().as_str())),
        "{lines:?}"
    );
    assert!(of_kind("4") >= CALLS, "{lines:?}");
    for session_management in ["5", "6", "7", "9", "10"] {
        assert!(
            of_kind(session_management) >= 1,
            "{session_management}: {lines:?}"
        );
    }
    assert!(
        lines.iter().all(|line| !line[2].contains("Malformed")),
        "{lines:?}"
    );
}

/// Calls one method after the other and ends the session.
fn call(client: UdpWire, server: UdpWire, calls: usize) {
    let address = server.address();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut driver = Driver::new(config([1, 2]), server).unwrap();
            while !stop.load(Ordering::Relaxed) {
                turn(&mut driver, |endpoint, now_ns, event| {
                    if let Event::Request { handle, payload, .. } = event {
                        let response = MsgBuf::from_slice(&payload);
                        endpoint.respond(now_ns, handle, 0, response).unwrap();
                    }
                });
            }
        });
        let config = Config {
            secret: [5, 6],
            ..Config::default()
        };
        let mut driver = Driver::new(config, client).unwrap();
        let (now_ns, endpoint) = driver.endpoint();
        let session = endpoint.connect(now_ns, address).unwrap();
        for method in 0..calls {
            let call = Call {
                method: method as u16,
                tag: method as u64,
                request: MsgBuf::from_slice(b"a request"),
                response: MsgBuf::with_capacity(64),
            };
            endpoint.call(now_ns, session, call).unwrap();
        }
        let (mut done, mut has_ended) = (0, false);
        while !has_ended {
            turn(&mut driver, |endpoint, now_ns, event| match event {
                Event::Completed(_) => {
                    done += 1;
                    if done == calls {
                        endpoint.disconnect(now_ns, session);
                    }
                }
                Event::Ended(..) => has_ended = true,
                _ => {}
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn turn(
    driver: &mut Driver<UdpWire>,
    handle: impl FnMut(&mut provost_datagram::Endpoint<SocketAddr>, u64, Event<'_>),
) {
    if driver.turn(handle).unwrap() == Turn::Idle {
        driver.wait(NAP).unwrap();
    }
}

/// A tshark that captures; it ends when this is dropped.
struct Capture(Child);

impl Capture {
    /// Starts to capture what goes to and from a port of this machine; `None` if that is not allowed.
    fn start(file: &Path, port: u16) -> Option<Capture> {
        let mut command = Command::new("tshark");
        command.args(["-q", "-i", "lo", "-f", &format!("udp port {port}"), "-w"]);
        command
            .arg(file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut capture = Capture(command.spawn().unwrap());
        // It captures once a packet from here is in its file: one that is not of the protocol.
        let probe = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let began = Instant::now();
        while began.elapsed() < WAIT_MAX {
            if capture.0.try_wait().unwrap().is_some() {
                return None;
            }
            probe.send_to(b"probe", (Ipv4Addr::LOCALHOST, port)).unwrap();
            std::thread::sleep(NAP * 10);
            // A capture file without packets is its header alone.
            if std::fs::metadata(file).is_ok_and(|metadata| metadata.len() > 1000) {
                return Some(capture);
            }
        }
        None
    }

    /// Ends once what it has written is enough.
    fn stop_when(self, is_enough: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_enough() {
            assert!(
                began.elapsed() < WAIT_MAX,
                "the capture does not have the session's end"
            );
            std::thread::sleep(NAP * 20);
        }
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Asked to end rather than killed, it ends its own helper too.
        let id = self.0.id().to_string();
        let _ = Command::new("kill").args(["-INT", &id]).status();
        let _ = self.0.wait();
    }
}

/// A temporary folder; it goes when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("provost-dissector-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The default configuration, with this secret.
fn config(secret: [u64; 2]) -> Config {
    Config {
        secret,
        ..Config::default()
    }
}
