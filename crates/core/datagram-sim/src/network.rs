//! Links, one switch, and what goes wrong there.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use provost_datagram::Mark;

use crate::{Host, Random, TravellingPacket};

/// The links and the switch.
#[derive(Clone, Copy, Debug)]
pub struct Links {
    /// What each link carries, in bytes per nanosecond; a gigabit per second is 0.125.
    pub rate: f64,
    /// How long a bit travels over one link. A round trip crosses four.
    pub latency_ns: u64,
    /// The switch's buffer, which all its ports share.
    pub buffer_bytes: usize,
    /// Bytes waiting at a port above which packets are marked.
    pub mark_bytes: usize,
    /// Bytes that the wire puts around each packet (Ethernet, IP, UDP).
    pub overhead_bytes: usize,
}

impl Default for Links {
    /// 25 Gb/s, a round trip of about five microseconds, and the 12 MB of the switch in the paper (section 6.5).
    fn default() -> Self {
        Self {
            rate: 3.125,
            latency_ns: 1_000,
            buffer_bytes: 12 << 20,
            mark_bytes: 100 << 10,
            overhead_bytes: 66,
        }
    }
}

/// What goes wrong, each with its probability for a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketFaults {
    pub loss: f64,
    pub duplication: f64,
    /// It is delayed, so that others overtake it.
    pub delay: f64,
    /// By how much at most.
    pub delay_ns_max: u64,
    /// Some of its bytes change.
    pub corruption: f64,
    /// Which bytes of a damaged packet change.
    pub damage: PacketDamage,
}

/// Which bytes of a damaged packet change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketDamage {
    /// One or both of a 16-bit word: the check of a packet always notices that.
    #[default]
    Word,
    /// So many at most, anywhere. A CRC32C and the tag of a sealed packet notice that.
    Scattered(u8),
}

/// What the network did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NetworkStatistics {
    /// Packets handed to it.
    pub sent: u64,
    /// Packets that faults took.
    pub lost: u64,
    /// Packets that the switch had no room for.
    pub dropped_by_switch: u64,
    /// Packets that a host's receive ring had no room for.
    pub dropped_by_ring: u64,
    /// Packets that the switch marked.
    pub marked: u64,
    /// The most that the switch ever held.
    pub buffered_bytes_max: usize,
}

/// What lies between the hosts.
#[derive(Debug)]
pub struct Network {
    links: Links,
    /// What goes wrong from now on.
    pub faults: PacketFaults,
    pub statistics: NetworkStatistics,
    /// How long each packet waited at the switch, in nanoseconds, since this was last emptied.
    pub waits_ns: Vec<u64>,
    pub(crate) random: Random,
    /// When each host's link to the switch, and the switch's to it, are free.
    up_free_ns: Vec<u64>,
    down_free_ns: Vec<u64>,
    buffered_bytes: usize,
    parted: BTreeSet<(Host, Host)>,
    /// Bytes of the largest packet that arrives, from one host to another.
    narrowed: BTreeMap<(Host, Host), usize>,
}

/// Something that will happen.
#[derive(Debug)]
pub(crate) enum ScheduledEvent {
    Wake(Host),
    /// A packet comes to the switch.
    Switch(TravellingPacket),
    /// It has left the switch.
    Depart(TravellingPacket),
    Arrive(TravellingPacket),
}

impl Network {
    pub(crate) fn new(links: Links, hosts: usize, random: Random) -> Self {
        Self {
            links,
            faults: PacketFaults::default(),
            statistics: NetworkStatistics::default(),
            waits_ns: Vec::new(),
            random,
            up_free_ns: vec![0; hosts],
            down_free_ns: vec![0; hosts],
            buffered_bytes: 0,
            parted: BTreeSet::new(),
            narrowed: BTreeMap::new(),
        }
    }

    /// Cuts the way between two hosts, or mends it.
    pub fn part(&mut self, one: Host, other: Host, parted: bool) {
        for pair in [(one, other), (other, one)] {
            if parted {
                self.parted.insert(pair);
            } else {
                self.parted.remove(&pair);
            }
        }
    }

    /// Has packets of more bytes vanish on the way from one host to another; `None`: none do any more.
    pub fn narrow(&mut self, from: Host, to: Host, packet_bytes_max: Option<usize>) {
        match packet_bytes_max {
            Some(bytes) => self.narrowed.insert((from, to), bytes),
            None => self.narrowed.remove(&(from, to)),
        };
    }

    /// Whether the way between two hosts, as it is, takes a packet.
    fn takes(&self, frame: &TravellingPacket) -> bool {
        let way = (frame.from, frame.to);
        let is_too_large = |bytes: &usize| frame.bytes.len() > *bytes;
        !self.parted.contains(&way) && !self.narrowed.get(&way).is_some_and(is_too_large)
    }

    fn wire_ns(&self, frame: &TravellingPacket) -> u64 {
        ((frame.bytes.len() + self.links.overhead_bytes) as f64 / self.links.rate) as u64
    }

    pub(crate) fn send(&mut self, now_ns: u64, mut frame: TravellingPacket, schedule: &mut Schedule) {
        self.statistics.sent += 1;
        let wire_ns = self.wire_ns(&frame);
        let free_ns = &mut self.up_free_ns[usize::from(frame.from)];
        *free_ns = (*free_ns).max(now_ns) + wire_ns;
        let mut at_ns = *free_ns + self.links.latency_ns;
        let faults = self.faults;
        if self.random.chance(faults.loss) || !self.takes(&frame) {
            self.statistics.lost += 1;
            return;
        }
        if self.random.chance(faults.duplication) {
            let later_ns = at_ns + self.random.below(faults.delay_ns_max.max(1));
            schedule.add(later_ns, ScheduledEvent::Switch(frame.clone()));
        }
        if self.random.chance(faults.delay) {
            at_ns += self.random.below(faults.delay_ns_max.max(1));
        }
        if self.random.chance(faults.corruption) && !frame.bytes.is_empty() {
            self.damage(&mut frame.bytes);
        }
        schedule.add(at_ns, ScheduledEvent::Switch(frame));
    }

    fn damage(&mut self, bytes: &mut [u8]) {
        let random = &mut self.random;
        match self.faults.damage {
            PacketDamage::Word => {
                let first = random.below(bytes.len() as u64) as usize & !1;
                // Zeros and ones throughout are the same number to the check.
                let changes = (1 + random.below(0xfffe) as u16).to_le_bytes();
                let word = bytes[first..].iter_mut().zip(changes);
                word.for_each(|(byte, change)| *byte ^= change);
            }
            PacketDamage::Scattered(most) => {
                for _ in 0..=random.below(most.into()) {
                    let at = random.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 + random.below(255) as u8;
                }
            }
        }
    }

    pub(crate) fn switch(&mut self, now_ns: u64, mut frame: TravellingPacket, schedule: &mut Schedule) {
        let bytes = frame.bytes.len() + self.links.overhead_bytes;
        if self.buffered_bytes + bytes > self.links.buffer_bytes {
            self.statistics.dropped_by_switch += 1;
            return;
        }
        let wire_ns = self.wire_ns(&frame);
        let free_ns = &mut self.down_free_ns[usize::from(frame.to)];
        let wait_ns = free_ns.saturating_sub(now_ns);
        *free_ns = (*free_ns).max(now_ns) + wire_ns;
        if wait_ns as f64 * self.links.rate > self.links.mark_bytes as f64 {
            frame.mark = Mark::Congested;
            self.statistics.marked += 1;
        }
        self.waits_ns.push(wait_ns);
        self.buffered_bytes += bytes;
        self.statistics.buffered_bytes_max = self.statistics.buffered_bytes_max.max(self.buffered_bytes);
        schedule.add(*free_ns, ScheduledEvent::Depart(frame));
    }

    pub(crate) fn depart(&mut self, now_ns: u64, frame: TravellingPacket, schedule: &mut Schedule) {
        self.buffered_bytes -= frame.bytes.len() + self.links.overhead_bytes;
        schedule.add(now_ns + self.links.latency_ns, ScheduledEvent::Arrive(frame));
    }
}

/// What will happen, in order of time, and of when it was decided.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    order: BinaryHeap<Reverse<(u64, u64, usize)>>,
    happenings: Vec<Option<ScheduledEvent>>,
    free: Vec<usize>,
    added: u64,
}

impl Schedule {
    pub(crate) fn add(&mut self, at_ns: u64, happening: ScheduledEvent) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.happenings.push(None);
            self.happenings.len() - 1
        });
        self.happenings[place] = Some(happening);
        self.added += 1;
        self.order.push(Reverse((at_ns, self.added, place)));
    }

    /// The next thing to happen, no later than this.
    pub(crate) fn pop(&mut self, until_ns: u64) -> Option<(u64, ScheduledEvent)> {
        let Reverse((at_ns, _, _)) = self.order.peek()?;
        if *at_ns > until_ns {
            return None;
        }
        let Reverse((at_ns, _, place)) = self.order.pop()?;
        self.free.push(place);
        Some((at_ns, self.happenings[place].take()?))
    }
}
