//! DPDK's devices are a wire as any other: memif within this process, and packet sockets over virtual Ethernet.
#![cfg(feature = "dpdk")]

use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use provost_dpdk::{Checksum, DpdkOptions, DpdkWire, Eal, Mac};
use provost_namespaces::Namespace;
use provost_packets::Wire;

const WAIT_MAX: Duration = Duration::from_secs(20);
const LOOKS_MAX: usize = 2000;
const LOOK: Duration = Duration::from_millis(5);
/// Packets that an idle wire takes.
const ROOM: usize = 64;

/// DPDK's environment, of which there is one: without hugepages, files and devices of the machine.
fn eal() -> &'static Eal {
    Eal::start(&[
        "-l",
        "0",
        "--no-huge",
        "-m",
        "512",
        "--no-pci",
        "--no-shconf",
        "--no-telemetry",
    ])
    .unwrap()
}

/// Names are used once: a device cannot be relied upon to connect anew.
fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Two devices with rings between them.
fn rings() -> [String; 2] {
    let number = number();
    let names = ["one", "other"].map(|end| format!("{end}{number}"));
    eal().add_pair([&names[0], &names[1]], 1024).unwrap();
    names.map(|name| format!("net_ring_{name}"))
}

/// Two devices with shared memory between them.
fn memif() -> [String; 2] {
    let number = number();
    let socket = format!("provost-dpdk-{}-{number}", std::process::id());
    ["server", "client"].map(|role| {
        let name = format!("net_memif_{role}_{number}");
        let arguments = format!("role={role},id={number},rsize=10,socket={socket},socket-abstract=yes");
        eal().add_device(&name, &arguments).unwrap();
        name
    })
}

/// Two devices on the ends of a virtual cable, both in one network namespace, whose kernel is not to be heard.
fn packet_sockets(namespace: &Namespace) -> io::Result<[String; 2]> {
    let number = number();
    let ends = [format!("a{number}"), format!("b{number}")];
    namespace.command(&format!(
        "ip link add {} type veth peer name {}",
        ends[0], ends[1]
    ))?;
    for end in &ends {
        namespace.command(&format!("ip link set {end} arp off addrgenmode none"))?;
        namespace.command(&format!("ip link set {end} up"))?;
    }
    namespace.run(|| {
        for end in &ends {
            let arguments = format!("iface={end},framesz=2048,framecnt=512,qdisc_bypass=1");
            eal()
                .add_device(&format!("net_af_packet_{end}"), &arguments)
                .map_err(io::Error::other)?;
        }
        Ok(())
    })?;
    Ok(ends.map(|end| format!("net_af_packet_{end}")))
}

fn pair(devices: &[String; 2], change: impl Fn(&mut DpdkOptions)) -> (DpdkWire, DpdkWire) {
    let open = |device, address: &str| {
        let mut options = DpdkOptions::new(device, address.parse().unwrap());
        change(&mut options);
        DpdkWire::open(eal(), &options).unwrap()
    };
    let (mut one, mut other) = (
        open(&devices[0], "10.0.0.1:4000"),
        open(&devices[1], "10.0.0.2:4000"),
    );
    one.set_neighbour([10, 0, 0, 2].into(), other.mac());
    other.set_neighbour([10, 0, 0, 1].into(), one.mac());
    assert!(
        one.wait_for_link(WAIT_MAX) && other.wait_for_link(WAIT_MAX),
        "the link stays down"
    );
    // A link may say that it is up before it carries packets.
    assert!(
        carries(&mut one, &mut other) && carries(&mut other, &mut one),
        "nothing arrives"
    );
    (one, other)
}

/// Sends until something arrives, and takes everything that does.
fn carries(one: &mut DpdkWire, other: &mut DpdkWire) -> bool {
    let mut arrived = 0;
    for _ in 0..LOOKS_MAX {
        if arrived == 0 {
            one.transmit(other.address(), b"first", b"");
        }
        one.flush().unwrap();
        let taken = other.receive(32, |_| {}).unwrap();
        if arrived > 0 && taken == 0 && one.transmit_room() == ROOM {
            return true;
        }
        arrived += taken;
        std::thread::sleep(LOOK);
    }
    false
}

fn receive(wire: &mut DpdkWire, packets: usize) -> Vec<Vec<u8>> {
    let mut received = Vec::new();
    for _ in 0..LOOKS_MAX {
        wire.receive(packets - received.len(), |arrival| {
            received.push(arrival.bytes.to_vec())
        })
        .unwrap();
        if received.len() == packets {
            break;
        }
        wire.wait(Some(LOOK)).unwrap();
    }
    received
}

#[test]
fn rings_conform() {
    provost_packets::conformance::suite(|| pair(&rings(), |_| {}));
}

#[test]
fn rings_conform_without_checksums_and_with_small_packets() {
    provost_packets::conformance::suite(|| {
        pair(&rings(), |options| {
            options.checksum = Checksum::Unchecked;
            options.packet_bytes_max = 256;
        })
    });
}

#[test]
fn packet_sockets_conform() {
    match Namespace::new() {
        Ok(namespace) => {
            provost_packets::conformance::suite(|| {
                let devices = packet_sockets(&namespace).unwrap();
                namespace.run(|| Ok(pair(&devices, |_| {}))).unwrap()
            });
        }
        Err(error) => provost_skip::error(&error),
    }
}

#[test]
fn shared_memory_carries_packets() {
    let (mut one, mut other) = pair(&memif(), |_| {});
    for round in 0..100_u8 {
        for number in 0..32_u8 {
            one.transmit(other.address(), &[round, number], &[7; 1400]);
        }
        one.flush().unwrap();
        let received = receive(&mut other, 32);
        let numbers: Vec<u8> = received.iter().map(|bytes| bytes[1]).collect();
        assert_eq!(numbers, (0..32).collect::<Vec<u8>>(), "in round {round}");
    }
    // With both ends in one process, closing them upsets memif: its thread and ours free the same memory (DPDK 22.11).
    std::mem::forget((one, other));
}

/// By this, a process of this test knows that it is the other end, and of which socket.
const OTHER_END: &str = "PROVOST_DPDK_OTHER_END";
/// The ends of shared memory between two processes: role, address, port, Ethernet address.
const ENDS: [(&str, [u8; 4], Mac); 2] = [
    ("server", [10, 0, 0, 1], Mac([2, 0, 0, 0, 0, 1])),
    ("client", [10, 0, 0, 2], Mac([2, 0, 0, 0, 0, 2])),
];
const PORT: u16 = 4000;
const FAREWELL: &[u8] = b"farewell";

/// One end of shared memory with another process.
fn end_of_memif(end: usize, socket: &str) -> DpdkWire {
    let ((role, address, mac), (_, other, other_mac)) = (ENDS[end], ENDS[1 - end]);
    let Mac(bytes) = mac;
    let mac: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("net_memif_process_{role}");
    let arguments = format!(
        "role={role},id=7,rsize=10,socket={socket},socket-abstract=yes,mac={}",
        mac.join(":")
    );
    eal().add_device(&name, &arguments).unwrap();
    let mut options = DpdkOptions::new(&name, SocketAddrV4::new(address.into(), PORT));
    options.neighbours = vec![(other.into(), other_mac)];
    let wire = DpdkWire::open(eal(), &options).unwrap();
    assert!(wire.wait_for_link(WAIT_MAX), "the link stays down");
    wire
}

/// Sends back what comes, until the other end says farewell.
fn echo(mut wire: DpdkWire) {
    let began = std::time::Instant::now();
    let mut is_over = false;
    while !is_over {
        assert!(began.elapsed() < 2 * WAIT_MAX, "no farewell");
        let mut packets = Vec::new();
        let taken = wire.receive(32, |arrival| packets.push((arrival.from, arrival.bytes.to_vec())));
        if taken.unwrap() == 0 {
            wire.wait(Some(LOOK)).unwrap();
        }
        for (from, bytes) in packets {
            is_over |= bytes == FAREWELL;
            wire.transmit(from, &bytes, b"");
        }
        wire.flush().unwrap();
    }
}

/// A process that ends with this.
struct OtherEnd(Child);

impl Drop for OtherEnd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn shared_memory_carries_packets_between_two_processes() {
    if let Ok(socket) = std::env::var(OTHER_END) {
        return echo(end_of_memif(1, &socket));
    }
    let socket = format!("provost-dpdk-{}-processes", std::process::id());
    let this = "shared_memory_carries_packets_between_two_processes";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", this]).env(OTHER_END, &socket);
    let mut process = OtherEnd(command.spawn().unwrap());
    let mut wire = end_of_memif(0, &socket);
    let other = SocketAddr::from((ENDS[1].1, PORT));
    // A link may say that it is up before it carries packets.
    let greeted = (0..LOOKS_MAX).any(|_| {
        wire.transmit(other, b"greeting", b"");
        wire.flush().unwrap();
        std::thread::sleep(LOOK);
        wire.receive(32, |_| {}).unwrap() > 0
    });
    assert!(greeted, "nothing comes back");
    for round in 0..100_u8 {
        for number in 0..32_u8 {
            wire.transmit(other, &[round, number], &[7; 1400]);
        }
        wire.flush().unwrap();
        let mut numbers = Vec::new();
        for _ in 0..LOOKS_MAX {
            let of_round = receive(&mut wire, 1)
                .into_iter()
                .filter(|bytes| bytes[0] == round && bytes.len() == 1402);
            numbers.extend(of_round.map(|bytes| bytes[1]));
            if numbers.len() == 32 {
                break;
            }
        }
        assert_eq!(numbers, (0..32).collect::<Vec<u8>>(), "in round {round}");
    }
    wire.transmit(other, FAREWELL, b"");
    wire.flush().unwrap();
    assert!(process.0.wait().unwrap().success(), "the other end failed");
}

#[test]
fn what_is_not_for_the_wire_is_counted_and_dropped() {
    let (mut one, mut other) = pair(&rings(), |_| {});
    one.transmit("10.0.0.2:4001".parse().unwrap(), b"another port", b"");
    one.transmit("10.0.0.9:1".parse().unwrap(), b"an unknown host", b"");
    one.transmit("[::1]:1".parse().unwrap(), b"another family", b"");
    one.transmit(other.address(), b"good", b"");
    one.flush().unwrap();
    assert_eq!(receive(&mut other, 1), [b"good".to_vec()]);
    assert_eq!(other.statistics().misdirected, 1);
    assert_eq!((one.statistics().unresolved, one.statistics().not_sent), (1, 1));
}

#[test]
fn another_thread_ends_a_wait() {
    let (mut one, _other) = pair(&rings(), |_| {});
    let waker = one.waker().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| waker.wake_by_ref());
        one.wait(None).unwrap();
    });
}

#[test]
fn a_device_is_one_wires_alone() {
    let devices = rings();
    let options = DpdkOptions::new(&devices[0], "10.0.0.1:1".parse().unwrap());
    let first = DpdkWire::open(eal(), &options).unwrap();
    let again = DpdkWire::open(eal(), &options).unwrap_err().to_string();
    assert!(again.contains("in use"), "{again}");
    drop(first);
    let closed = DpdkWire::open(eal(), &options).unwrap_err().to_string();
    assert!(closed.contains(&devices[0]), "{closed}");
    let none = DpdkOptions::new("nothing", "10.0.0.1:1".parse().unwrap());
    let refusal = DpdkWire::open(eal(), &none).unwrap_err().to_string();
    assert!(refusal.contains("device nothing"), "{refusal}");
}
