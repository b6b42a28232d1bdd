//! The Wireshark dissector, through tshark, on what two NICs send each other: sessions that open and close, calls, messages of several packets,
//! losses. It finds every packet well-formed, and reads of each what software reads.

use std::path::PathBuf;
use std::process::Command;

use provost_datagram::Checking;
use provost_datagram::packet::{Kind, Packet};
use provost_nic::FetchMode;
use provost_nic_model::HostTiming;
use provost_nic_tests::{
    CallPattern, HostKind, WireFaults, World, WorldConfig, nic_config_with_areas, say_skipped,
};

const DISSECTOR: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../packaging/wireshark/provost-datagram.lua"
);
/// No other dissector wants it.
const PORT: u16 = 40_791;
/// Of packets that begin with a header of IPv4, as pcap calls them.
const LINK_TYPE_IPV4: u32 = 228;
const CALLS: u64 = 60;
const FIELDS: [&str; 7] = ["kind", "slot", "session", "token", "call", "packet", "malformed"];

fn has_tshark() -> bool {
    let output = Command::new("tshark").arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

/// The packets that two NICs send each other; `None` without a model of them.
fn captured() -> Option<Vec<(usize, Vec<u8>)>> {
    let nic = nic_config_with_areas(FetchMode::Polled);
    let config = WorldConfig {
        seed: 1,
        hosts: [HostKind::Nic; 2],
        faults: WireFaults {
            loss: 30,
            ..WireFaults::default()
        },
        sessions: 2,
        pattern: CallPattern { bytes_max: 7_000 },
        nic: [nic.clone(), nic],
        timing: HostTiming::default(),
    };
    let mut world = World::new(config).map_err(say_skipped).ok()?;
    world.captured = Some(Vec::new());
    world.connect();
    world.call(CALLS);
    world.disconnect();
    world.captured
}

/// A capture file (pcap, version 2.4) of UDP packets between two hosts, the second of which serves at the port.
fn capture_file(packets: &[(usize, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0xffff, LINK_TYPE_IPV4] {
        file.extend(word.to_le_bytes());
    }
    for (from, packet) in packets {
        let (udp_bytes, ip_bytes) = (packet.len() as u16 + 8, packet.len() as u16 + 28);
        for word in [0, 0, ip_bytes.into(), ip_bytes.into()] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend([0x45, 0]);
        file.extend(ip_bytes.to_be_bytes());
        file.extend([0, 0, 0, 0, 64, 17, 0, 0]);
        let mut ends = [([10, 0, 0, 1], 1024), ([10, 0, 0, 2], PORT)];
        if *from == 1 {
            ends.reverse();
        }
        ends.iter().for_each(|(address, _)| file.extend(address));
        for word in [ends[0].1, ends[1].1, udp_bytes, 0] {
            file.extend(word.to_be_bytes());
        }
        file.extend(packet);
    }
    file
}

/// What the dissector says of each packet, the fields separated by tabs.
fn dissected(file: &[u8]) -> Vec<String> {
    let path: PathBuf = std::env::temp_dir().join(format!("provost-nic-{}.pcap", std::process::id()));
    std::fs::write(&path, file).expect("the folder for temporary files can be written");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{DISSECTOR}"));
    command.arg("-r").arg(&path).args(["-T", "fields"]);
    command
        .arg("-d")
        .arg(format!("udp.port=={PORT},provost_datagram"));
    for field in FIELDS {
        command.arg("-e").arg(format!("provost_datagram.{field}"));
    }
    let output = command.output().expect("tshark starts");
    let _ = std::fs::remove_file(&path);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.expect("the dissector shows numbers")
}

#[test]
fn the_dissector_reads_what_nics_send_as_software_does() {
    if !has_tshark() {
        return provost_skip::missing("tshark", "Debian package tshark");
    }
    let Some(packets) = captured() else {
        return;
    };
    let lines = dissected(&capture_file(&packets));
    assert_eq!(lines.len(), packets.len());
    let mut kinds = std::collections::BTreeSet::new();
    for (line, (_, bytes)) in lines.iter().zip(&packets) {
        let header = Packet::parse(bytes, Checking::Packets)
            .expect("software takes it")
            .header;
        let (values, malformed) = line.rsplit_once('\t').expect("there are several fields");
        assert_eq!(malformed, "", "{header:?}");
        let values: Vec<u64> = values.split('\t').map(number).collect();
        let expected = [
            u64::from(bytes[0] & 15),
            header.slot.into(),
            header.session.into(),
            header.token.into(),
            header.call.into(),
            header.packet.into(),
        ];
        assert_eq!(values, expected, "{header:?}");
        kinds.insert(bytes[0] & 15);
    }
    for kind in [
        Kind::Request,
        Kind::CreditReturn,
        Kind::RequestForResponse,
        Kind::Response,
        Kind::Open,
        Kind::Accept,
    ] {
        assert!(kinds.contains(&(kind as u8)), "{kind:?} was sent: {kinds:?}");
    }
    println!("{} packets of kinds {kinds:?}", packets.len());
}
