//! AF_XDP sockets are a wire as any other, between two network namespaces.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::Duration;

use provost_namespaces::Namespace;
use provost_packets::Wire;
use provost_xdp::{Checksum, Copying, Mode, XdpInterface, XdpOptions, XdpWire};

const WAIT_MAX: Duration = Duration::from_secs(20);
const LOOKS_MAX: usize = 2000;
const LOOK: Duration = Duration::from_millis(10);
const ADDRESSES: [&str; 2] = ["10.8.0.1:0", "10.8.0.2:0"];

/// Two hosts with a cable between them.
struct Cable {
    hosts: [Namespace; 2],
}

impl Cable {
    /// `None` where there can be none, which is said.
    fn new() -> Option<Cable> {
        let hosts = match Namespace::new().and_then(|one| Ok([one, Namespace::new()?])) {
            Ok(hosts) => hosts,
            Err(error) => {
                provost_skip::error(&error);
                return None;
            }
        };
        hosts[0].join("wire", &hosts[1], "wire").unwrap();
        for (host, ip) in hosts.iter().zip(["10.8.0.1", "10.8.0.2"]) {
            host.command(&format!("ip addr add {ip}/24 dev wire")).unwrap();
        }
        Some(Cable { hosts })
    }

    fn attach(&self, mode: Mode) -> [XdpInterface; 2] {
        [0, 1].map(|at| {
            self.hosts[at]
                .run(|| Ok(XdpInterface::attach("wire", mode)?))
                .unwrap()
        })
    }

    /// A wire at each end, which know each other.
    fn wires(&self, mode: Mode, change: impl Fn(&mut XdpOptions) + Sync) -> (XdpWire, XdpWire) {
        let [one, other] = self.attach(mode);
        let (mut one, mut other) = (
            self.open(0, &one, &change).unwrap(),
            self.open(1, &other, &change).unwrap(),
        );
        assert!(one.resolve(other.address(), WAIT_MAX));
        assert!(other.resolve(one.address(), WAIT_MAX));
        (one, other)
    }

    fn open(
        &self,
        at: usize,
        interface: &XdpInterface,
        change: impl Fn(&mut XdpOptions) + Sync,
    ) -> io::Result<XdpWire> {
        let address: SocketAddrV4 = ADDRESSES[at].parse().map_err(io::Error::other)?;
        let mut options = XdpOptions::new(address);
        change(&mut options);
        self.hosts[at].run(|| Ok(XdpWire::open(interface, &options)?))
    }
}

fn receive(wire: &mut XdpWire, packets: usize) -> Vec<Vec<u8>> {
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
fn it_conforms() {
    let Some(cable) = Cable::new() else { return };
    provost_packets::conformance::suite(|| cable.wires(Mode::Fastest, |_| {}));
    provost_packets::conformance::suite(|| {
        cable.wires(Mode::Fastest, |options| {
            options.checksum = Checksum::Unchecked;
            options.copying = Copying::Always;
            options.packet_bytes_max = 128;
        })
    });
}

#[test]
fn it_conforms_where_the_driver_cannot_run_programs() {
    let Some(cable) = Cable::new() else { return };
    provost_packets::conformance::suite(|| cable.wires(Mode::GenericOnly, |_| {}));
}

#[test]
fn it_conforms_with_large_frames_and_small_rings() {
    let Some(cable) = Cable::new() else { return };
    for host in &cable.hosts {
        host.command("ip link set wire mtu 3400").unwrap();
    }
    let change = |options: &mut XdpOptions| {
        options.packet_bytes_max = 9000;
        options.receive_ring_packets = 64;
        options.send_ring_packets = 64;
    };
    provost_packets::conformance::suite(|| {
        let (one, other) = cable.wires(Mode::Fastest, change);
        assert_eq!(one.packet_bytes_max(), 3400 - 28);
        (one, other)
    });
}

#[test]
fn it_conforms_while_polling_the_device() {
    let Some(cable) = Cable::new() else { return };
    provost_packets::conformance::suite(|| {
        cable.wires(Mode::Fastest, |options| {
            options.busy_poll = Some(Duration::from_micros(20))
        })
    });
}

#[test]
fn everything_else_goes_on_to_the_kernel() {
    let Some(cable) = Cable::new() else { return };
    let (mut one, mut other) = cable.wires(Mode::Fastest, |_| {});
    let bind = |at: usize, ip: &str| cable.hosts[at].run(|| UdpSocket::bind((ip, 0))).unwrap();
    let (here, there) = (bind(0, "10.8.0.1"), bind(1, "10.8.0.2"));
    let mut bytes = [0; 16];
    for socket in [&here, &there] {
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    }
    here.send_to(b"kernel", there.local_addr().unwrap()).unwrap();
    assert_eq!(
        there.recv_from(&mut bytes).unwrap(),
        (6, here.local_addr().unwrap())
    );
    // The port of the wire, but an address of the host that is not the wire's.
    cable.hosts[1]
        .command("ip addr add 10.8.0.3/24 dev wire")
        .unwrap();
    let SocketAddr::V4(taken) = other.address() else {
        panic!("it is of IPv4")
    };
    let twin = cable.hosts[1]
        .run(|| UdpSocket::bind(("10.8.0.3", taken.port())))
        .unwrap();
    twin.set_read_timeout(Some(WAIT_MAX)).unwrap();
    here.send_to(b"twin", twin.local_addr().unwrap()).unwrap();
    assert_eq!(twin.recv_from(&mut bytes).unwrap().0, 4);
    // The wire is not disturbed, and the kernel takes its packets.
    one.transmit(other.address(), b"wire", b"");
    one.transmit(there.local_addr().unwrap(), b"to the kernel", b"");
    one.flush().unwrap();
    assert_eq!(receive(&mut other, 1), [b"wire".to_vec()]);
    assert_eq!(there.recv_from(&mut bytes).unwrap(), (13, one.address()));
}

#[test]
fn a_port_is_the_kernels_again_when_its_wire_is_gone() {
    let Some(cable) = Cable::new() else { return };
    let [_one, two] = cable.attach(Mode::Fastest);
    let wire = cable.open(1, &two, |_| {}).unwrap();
    let address = wire.address();
    assert!(
        cable.hosts[1].run(|| UdpSocket::bind(address)).is_err(),
        "the port is taken"
    );
    drop(wire);
    // The commands of other tests may hold copies of all descriptors for a moment.
    let free = (0..LOOKS_MAX).find_map(|_| {
        let socket = cable.hosts[1].run(|| UdpSocket::bind(address));
        socket.inspect_err(|_| std::thread::sleep(LOOK)).ok()
    });
    let socket = free.unwrap();
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    let sender = cable.hosts[0].run(|| UdpSocket::bind("10.8.0.1:0")).unwrap();
    sender.send_to(b"x", address).unwrap();
    assert_eq!(socket.recv(&mut [0; 4]).unwrap(), 1);
}

/// A socket of the kernel leaves the checksum to its device, and a virtual one does not fill it in.
#[test]
fn a_packet_whose_checksum_is_wrong_is_dropped_by_who_checks() {
    let Some(cable) = Cable::new() else { return };
    let [_one, two] = cable.attach(Mode::Fastest);
    let sender = cable.hosts[0].run(|| UdpSocket::bind("10.8.0.1:0")).unwrap();
    let open = |checksum| {
        cable
            .open(1, &two, move |options| options.checksum = checksum)
            .unwrap()
    };
    let mut unchecked = open(Checksum::Unchecked);
    sender.send_to(b"x", unchecked.address()).unwrap();
    assert_eq!(receive(&mut unchecked, 1), [b"x".to_vec()]);
    drop(unchecked);
    let mut checked = open(Checksum::Checked);
    sender.send_to(b"x", checked.address()).unwrap();
    for _ in 0..LOOKS_MAX {
        assert_eq!(checked.receive(1, |_| {}).unwrap(), 0);
        if checked.statistics().malformed == 1 {
            return;
        }
        checked.wait(Some(LOOK)).unwrap();
    }
    panic!("it never came: {:?}", checked.statistics());
}

#[test]
fn packets_that_are_too_long_or_to_nobody_are_counted() {
    let Some(cable) = Cable::new() else { return };
    let [one, two] = cable.attach(Mode::Fastest);
    let mut small = cable
        .open(1, &two, |options| options.packet_bytes_max = 200)
        .unwrap();
    let mut large = cable.open(0, &one, |_| {}).unwrap();
    assert!(large.resolve(small.address(), WAIT_MAX));
    large.transmit(small.address(), &[1; 201], b"");
    large.transmit(small.address(), &[2; 200], b"");
    large.transmit("10.8.0.9:1".parse().unwrap(), b"nobody", b"");
    large.transmit("[::1]:1".parse().unwrap(), b"wrong family", b"");
    large.flush().unwrap();
    assert_eq!(receive(&mut small, 1), [vec![2; 200]]);
    assert_eq!(small.statistics().too_long, 1);
    let sent = large.statistics();
    assert_eq!((sent.packets_sent, sent.unresolved, sent.not_sent), (2, 1, 1));
    assert!(!large.resolve("10.8.0.9:1".parse().unwrap(), Duration::from_millis(20)));
}

#[test]
fn a_batch_is_one_call_and_a_look_at_nothing_none() {
    let Some(cable) = Cable::new() else { return };
    let (mut one, mut other) = cable.wires(Mode::Fastest, |_| {});
    for _ in 0..10 {
        for _ in 0..16 {
            one.transmit(other.address(), &[7; 100], b"");
        }
        one.flush().unwrap();
        assert_eq!(receive(&mut other, 16).len(), 16);
    }
    assert_eq!(
        (one.statistics().packets_sent, one.statistics().send_calls),
        (160, 10)
    );
    for _ in 0..10 {
        one.flush().unwrap();
        assert_eq!(one.receive(16, |_| {}).unwrap(), 0);
    }
    assert_eq!(
        (one.statistics().send_calls, one.statistics().receive_calls),
        (10, 0)
    );
    assert_eq!(other.kernel_statistics().unwrap(), Default::default());
}

#[test]
fn another_thread_ends_a_wait() {
    let Some(cable) = Cable::new() else { return };
    let (mut one, _other) = cable.wires(Mode::Fastest, |_| {});
    let waker = one.waker().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| waker.wake_by_ref());
        one.wait(None).unwrap();
    });
}

#[test]
fn what_cannot_be_is_refused_with_advice() {
    let Some(cable) = Cable::new() else { return };
    let [one, _two] = cable.attach(Mode::Fastest);
    let refusal = |change: fn(&mut XdpOptions)| cable.open(0, &one, change).unwrap_err().to_string();
    let again = cable.hosts[0]
        .run(|| Ok(XdpInterface::attach("wire", Mode::Fastest)?))
        .unwrap_err();
    assert!(again.to_string().contains("only one program"), "{again}");
    let none = cable.hosts[0]
        .run(|| Ok(XdpInterface::attach("nothing", Mode::Fastest)?))
        .unwrap_err();
    assert!(none.to_string().contains("interface nothing"), "{none}");
    let elsewhere = refusal(|options| options.address = SocketAddrV4::new([10, 99, 0, 1].into(), 0));
    assert!(elsewhere.contains("one of the interface"), "{elsewhere}");
    assert!(refusal(|options| options.queue = 7).contains("ethtool -l"));
    assert!(refusal(|options| options.queue = 256).contains("below 256"));
    assert!(refusal(|options| options.receive_ring_packets = 100).contains("power of two"));
    let _wire = cable.open(0, &one, |_| {}).unwrap();
    assert!(refusal(|_| {}).contains("taken by another socket"));
}
