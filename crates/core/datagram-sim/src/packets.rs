//! The simulator's links, switch and faults for hosts that are no endpoints of the software transport, such as one with a simulated NIC.

use provost_datagram::Mark;

use crate::network::{Links, Network, Schedule, ScheduledEvent};
use crate::{Host, Random, TravellingPacket};

/// A network of hosts that hand it packets themselves.
#[derive(Debug)]
pub struct PacketNetwork {
    /// Its faults and statistics.
    pub network: Network,
    schedule: Schedule,
}

/// A packet that has come to its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedPacket {
    pub from: Host,
    pub to: Host,
    pub mark: Mark,
    pub bytes: Vec<u8>,
}

impl PacketNetwork {
    /// A network with so many hosts. The seed decides what goes wrong.
    #[must_use]
    pub fn new(links: Links, hosts: usize, seed: u64) -> PacketNetwork {
        PacketNetwork {
            network: Network::new(links, hosts, Random::new(seed)),
            schedule: Schedule::default(),
        }
    }

    /// Takes a packet from one host to another.
    pub fn send(&mut self, now_ns: u64, (from, to): (Host, Host), bytes: Vec<u8>) {
        let mark = Mark::None;
        let packet = TravellingPacket {
            from,
            to,
            mark,
            bytes,
        };
        self.network.send(now_ns, packet, &mut self.schedule);
    }

    /// A packet that has arrived by this time, the earliest first.
    pub fn arrived(&mut self, now_ns: u64) -> Option<ArrivedPacket> {
        while let Some((at_ns, event)) = self.schedule.pop(now_ns) {
            match event {
                // Nobody here is woken.
                ScheduledEvent::Wake(_) => {}
                ScheduledEvent::Switch(packet) => self.network.switch(at_ns, packet, &mut self.schedule),
                ScheduledEvent::Depart(packet) => self.network.depart(at_ns, packet, &mut self.schedule),
                ScheduledEvent::Arrive(packet) => {
                    return Some(ArrivedPacket {
                        from: packet.from,
                        to: packet.to,
                        mark: packet.mark,
                        bytes: packet.bytes,
                    });
                }
            }
        }
        None
    }
}
