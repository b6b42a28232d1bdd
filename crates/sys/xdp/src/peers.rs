//! What is known of those that packets are sent to: the headers of their frames.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use provost_frames::{Checksum, Ends, Mac, Writer};

use crate::netlink::{News, Questions};

/// Destinations that are remembered; with one more, all are forgotten and asked for again.
const PEERS_MAX: usize = 65_536;
/// Between two questions for an address that is not known.
const WAIT_MAX: Duration = Duration::from_millis(1);

/// Destinations, with the headers of the frames to them.
#[derive(Debug)]
pub(crate) struct Peers {
    from: SocketAddrV4,
    from_mac: Mac,
    checksum: Checksum,
    fixed: HashMap<Ipv4Addr, Mac>,
    numbers: HashMap<SocketAddrV4, usize>,
    peers: Vec<Peer>,
    /// The destination of the last packet, which is often that of the next.
    last: usize,
    questions: Questions,
    news: News,
}

#[derive(Debug)]
struct Peer {
    to: SocketAddrV4,
    /// The host, or the router to it.
    next_hop: Ipv4Addr,
    headers: Headers,
}

#[derive(Debug)]
enum Headers {
    Known(Writer),
    /// Last asked for then.
    Unknown(Instant),
}

impl Peers {
    pub(crate) fn new(
        from: SocketAddrV4,
        from_mac: Mac,
        checksum: Checksum,
        interface: u32,
        neighbours: &[(Ipv4Addr, Mac)],
    ) -> io::Result<Peers> {
        Ok(Peers {
            from,
            from_mac,
            checksum,
            fixed: neighbours.iter().copied().collect(),
            numbers: HashMap::new(),
            peers: Vec::new(),
            last: 0,
            questions: Questions::new(interface)?,
            news: News::new(interface)?,
        })
    }

    /// What writes frames to there; `None` as long as the Ethernet address is not known.
    #[inline]
    pub(crate) fn writer(&mut self, to: SocketAddrV4) -> Option<&Writer> {
        if self.peers.get(self.last).is_none_or(|peer| peer.to != to) {
            self.last = match self.numbers.get(&to) {
                Some(number) => *number,
                None => self.add(to)?,
            };
        }
        if let Headers::Unknown(asked) = self.peers[self.last].headers
            && asked.elapsed() >= WAIT_MAX
        {
            self.ask(self.last);
        }
        match &self.peers[self.last].headers {
            Headers::Known(writer) => Some(writer),
            Headers::Unknown(_) => None,
        }
    }

    #[cold]
    fn add(&mut self, to: SocketAddrV4) -> Option<usize> {
        if self.peers.len() == PEERS_MAX {
            self.peers.clear();
            self.numbers.clear();
        }
        let next_hop = if self.fixed.contains_key(to.ip()) {
            *to.ip()
        } else {
            self.questions.next_hop(*to.ip()).ok()?
        };
        let number = self.peers.len();
        self.peers.push(Peer {
            to,
            next_hop,
            headers: Headers::Unknown(Instant::now()),
        });
        self.numbers.insert(to, number);
        self.ask(number);
        Some(number)
    }

    fn ask(&mut self, number: usize) {
        let next_hop = self.peers[number].next_hop;
        // A question that fails is asked again.
        let mac = match self.fixed.get(&next_hop) {
            Some(mac) => Some(*mac),
            None => self.questions.neighbour(next_hop).unwrap_or_default(),
        };
        self.set(number, mac);
    }

    fn set(&mut self, number: usize, mac: Option<Mac>) {
        let (from, from_mac) = (self.from, self.from_mac);
        let peer = &mut self.peers[number];
        let ends = |to_mac| Ends {
            from_mac,
            from,
            to_mac,
            to: peer.to,
        };
        peer.headers = match mac {
            Some(mac) => Headers::Known(Writer::new(ends(mac), self.checksum)),
            None => Headers::Unknown(Instant::now()),
        };
    }

    /// Reads what the kernel has told since, and changes Ethernet addresses that have changed.
    #[cold]
    pub(crate) fn update(&mut self) {
        let mut changed = Vec::new();
        if self.news.read(|neighbour| changed.push(neighbour)).is_err() {
            // Something was missed, so everything is asked for again.
            self.peers.clear();
            self.numbers.clear();
            return;
        }
        for neighbour in changed {
            if self.fixed.contains_key(&neighbour.ip) {
                continue;
            }
            for number in 0..self.peers.len() {
                if self.peers[number].next_hop == neighbour.ip {
                    self.set(number, neighbour.mac);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use provost_namespaces::Namespace;

    use super::*;

    const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
    /// Looks for something that the kernel does on its own.
    const LOOKS_MAX: usize = 2000;

    fn end(text: &str) -> SocketAddrV4 {
        text.parse().unwrap()
    }

    fn peers(neighbours: &[(Ipv4Addr, Mac)]) -> io::Result<Peers> {
        Peers::new(
            end("10.9.0.1:1"),
            HERE,
            Checksum::Checked,
            number_of_wire()?,
            neighbours,
        )
    }

    fn number_of_wire() -> io::Result<u32> {
        let text = std::fs::read_to_string("/proc/thread-self/net/dev_mcast")?;
        let line = text
            .lines()
            .find(|line| line.split_whitespace().nth(1) == Some("wire"));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
        number.ok_or_else(|| io::Error::other("there is no such interface"))
    }

    fn mac_to(peers: &mut Peers, to: &str) -> Option<Mac> {
        let mut frame = [0; 64];
        peers.writer(end(to))?.write(&mut frame, b"x", b"")?;
        frame.first_chunk().copied().map(Mac)
    }

    fn eventually(mut look: impl FnMut() -> bool) {
        for _ in 0..LOOKS_MAX {
            if look() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it never came about");
    }

    #[test]
    fn addresses_come_from_the_kernel_or_the_configuration_and_changes_are_followed() {
        let (here, there) = match Namespace::new().and_then(|here| Ok((here, Namespace::new()?))) {
            Ok(hosts) => hosts,
            Err(error) => return provost_skip::error(&error),
        };
        here.join("wire", &there, "wire").unwrap();
        for (host, ip) in [(&here, "10.9.0.1"), (&there, "10.9.0.2")] {
            host.command(&format!("ip addr add {ip}/24 dev wire")).unwrap();
        }
        there
            .command("ip link set wire address 02:00:00:00:00:02")
            .unwrap();
        here.command("ip route add 10.10.0.0/16 via 10.9.0.2").unwrap();
        let fixed = (Ipv4Addr::new(10, 9, 0, 77), Mac([2, 0, 0, 0, 0, 0x77]));
        let mut peers = here.run(|| peers(&[fixed])).unwrap();
        assert_eq!(mac_to(&mut peers, "10.9.0.77:5"), Some(fixed.1));
        eventually(|| mac_to(&mut peers, "10.9.0.2:5") == Some(Mac([2, 0, 0, 0, 0, 2])));
        eventually(|| mac_to(&mut peers, "10.10.3.4:5") == Some(Mac([2, 0, 0, 0, 0, 2])));
        assert_eq!(mac_to(&mut peers, "10.9.0.99:5"), None, "nobody has it");
        assert_eq!(mac_to(&mut peers, "172.16.0.1:5"), None, "no way leads there");
        here.command("ip neigh replace 10.9.0.2 lladdr 02:00:00:00:00:03 dev wire")
            .unwrap();
        eventually(|| {
            peers.update();
            mac_to(&mut peers, "10.10.3.4:5") == Some(Mac([2, 0, 0, 0, 0, 3]))
        });
    }
}
