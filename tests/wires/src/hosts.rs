//! Hosts, and what is between them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use provost_namespaces::Namespace;
use provost_packets::Wire;
use provost_udp::{UdpOptions, UdpWire};
use provost_xdp::{Mode, XdpInterface, XdpOptions, XdpWire};

/// How long the kernel may take to find out an Ethernet address.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// Two hosts with a cable between them: 10.8.0.1 and 10.8.0.2, each on its interface `wire`.
#[derive(Debug)]
pub struct Cable {
    hosts: [Namespace; 2],
}

/// Two hosts with a router between them, which loses packets: 10.8.1.1 and 10.8.2.1, each on its interface `wire`.
#[derive(Debug)]
pub struct Routed {
    hosts: [Namespace; 2],
    router: Namespace,
}

impl Cable {
    /// Makes them.
    ///
    /// # Errors
    /// Where there can be none: without root, or the command `ip`.
    pub fn new() -> io::Result<Cable> {
        let hosts = [Namespace::new()?, Namespace::new()?];
        hosts[0].join("wire", &hosts[1], "wire")?;
        hosts[0].command("ip addr add 10.8.0.1/24 dev wire")?;
        hosts[1].command("ip addr add 10.8.0.2/24 dev wire")?;
        Ok(Cable { hosts })
    }

    /// AF_XDP wires at both ends.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn xdp(&self) -> io::Result<(XdpWire, XdpWire)> {
        xdp(&self.hosts, [[10, 8, 0, 1], [10, 8, 0, 2]])
    }

    /// UDP sockets at both ends.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn udp(&self) -> io::Result<(UdpWire, UdpWire)> {
        self.udp_with(&UdpOptions::default())
    }

    /// The same with these options.
    ///
    /// # Errors
    /// As there.
    pub fn udp_with(&self, options: &UdpOptions) -> io::Result<(UdpWire, UdpWire)> {
        let bind = |at: usize, ip: [u8; 4]| {
            self.hosts[at].run(|| UdpWire::bind_with(SocketAddr::from((ip, 0)), options))
        };
        Ok((bind(0, [10, 8, 0, 1])?, bind(1, [10, 8, 0, 2])?))
    }
}

impl Routed {
    /// Makes them. The router loses so many packets of a thousand.
    ///
    /// # Errors
    /// As [`Cable::new`], and without the command `nft`.
    pub fn new(lost_per_mille: u32) -> io::Result<Routed> {
        let (hosts, router) = ([Namespace::new()?, Namespace::new()?], Namespace::new()?);
        for (host, number) in hosts.iter().zip(1..) {
            let port = format!("port{number}");
            router.join(&port, host, "wire")?;
            router.command(&format!("ip addr add 10.8.{number}.254/24 dev {port}"))?;
            host.command(&format!("ip addr add 10.8.{number}.1/24 dev wire"))?;
            host.command(&format!("ip route add default via 10.8.{number}.254"))?;
        }
        router.command("sysctl -q -w net.ipv4.ip_forward=1")?;
        router.command("nft add table ip lossy")?;
        router.command("nft add chain ip lossy forward { type filter hook forward priority 0 ; }")?;
        router.command(&format!(
            "nft add rule ip lossy forward numgen random mod 1000 < {lost_per_mille} counter drop"
        ))?;
        Ok(Routed { hosts, router })
    }

    /// AF_XDP wires at both ends.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn xdp(&self) -> io::Result<(XdpWire, XdpWire)> {
        xdp(&self.hosts, [[10, 8, 1, 1], [10, 8, 2, 1]])
    }

    /// Packets that the router has lost.
    ///
    /// # Errors
    /// If the router does not tell.
    pub fn packets_lost(&self) -> io::Result<u64> {
        let rules = self.router.command("nft list chain ip lossy forward")?;
        let words: Vec<&str> = rules.split_whitespace().collect();
        words
            .windows(3)
            .find(|words| words[..2] == ["counter", "packets"])
            .and_then(|words| words[2].parse().ok())
            .ok_or_else(|| io::Error::other(format!("no counter in: {rules}")))
    }
}

fn xdp(hosts: &[Namespace; 2], ips: [[u8; 4]; 2]) -> io::Result<(XdpWire, XdpWire)> {
    let open = |at: usize| {
        hosts[at].run(|| {
            let interface = XdpInterface::attach("wire", Mode::Fastest)?;
            let address = SocketAddrV4::new(Ipv4Addr::from(ips[at]), 0);
            Ok(XdpWire::open(&interface, &XdpOptions::new(address))?)
        })
    };
    let (mut one, mut other) = (open(0)?, open(1)?);
    let (to_one, to_other) = (one.address(), other.address());
    if one.resolve(to_other, WAIT_MAX) && other.resolve(to_one, WAIT_MAX) {
        Ok((one, other))
    } else {
        Err(io::Error::other(
            "the hosts do not find each other's Ethernet addresses",
        ))
    }
}
