//! The packets of one message that are on their way: which are out, which have arrived, which count as lost.
//!
//! ```text
//!   0 ......... base ................................. next ............ total
//!   all arrived │ out (queued or sent), arrived, lost │ never sent yet
//! ```
//!
//! The same is used for request packets, which credit returns acknowledge, and for the packets of a response, which are
//! out once they were asked for and arrive as themselves.

/// Packets past the first missing one that can be out at once.
pub(crate) const WINDOW_PACKETS: u32 = 256;

/// Taken for sending, but not sent yet.
const QUEUED: u64 = u64::MAX;

/// A set of packet numbers within a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window([u64; WINDOW_PACKETS as usize / 64]);

impl Window {
    #[inline]
    pub(crate) fn has(&self, packet: u32) -> bool {
        self.0[packet as usize / 64 % 4] >> (packet % 64) & 1 == 1
    }

    #[inline]
    pub(crate) fn insert(&mut self, packet: u32) {
        self.0[packet as usize / 64 % 4] |= 1 << (packet % 64);
    }

    #[inline]
    pub(crate) fn remove(&mut self, packet: u32) {
        self.0[packet as usize / 64 % 4] &= !(1 << (packet % 64));
    }

    /// The 64 packets from this one on, the first in the lowest bit.
    pub(crate) fn bitmap_from(&self, packet: u32) -> u64 {
        let (word, shift) = (packet as usize / 64 % 4, packet % 64);
        let low = self.0[word] >> shift;
        match shift {
            0 => low,
            _ => low | self.0[(word + 1) % 4] << (64 - shift),
        }
    }
}

/// Packets of one message that are on their way.
#[derive(Debug)]
pub(crate) struct Flight {
    base: u32,
    next: u32,
    total: u32,
    outstanding: u32,
    /// Of those, packets that were sent and do not wait for their time.
    sent_packets: u32,
    lost_packets: u32,
    /// Arrived, past `base`.
    arrived_packets: u32,
    arrived: Window,
    lost: Window,
    resent: Window,
    sent_ns: [u64; WINDOW_PACKETS as usize],
    /// When the packet was sent that was sent last of those that have arrived, and its number.
    newest: (u64, u32),
    /// The round trip of that packet.
    newest_rtt_ns: u64,
}

/// What became known by the arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// When it was sent, if it was sent once: a packet sent twice measures nothing (Karn).
    pub(crate) sent_ns: Option<u64>,
    /// It was out: its credit is free again.
    pub(crate) was_out: bool,
    /// It counted as lost, and was not: the network only reordered.
    pub(crate) was_lost: bool,
}

/// What came of a look for losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    /// Packets that count as lost from now on.
    pub(crate) packets: u32,
    /// When to look again.
    pub(crate) look_again_ns: Option<u64>,
}

impl Flight {
    pub(crate) fn new() -> Self {
        Self {
            base: 0,
            next: 0,
            total: 0,
            outstanding: 0,
            sent_packets: 0,
            lost_packets: 0,
            arrived_packets: 0,
            arrived: Window::default(),
            lost: Window::default(),
            resent: Window::default(),
            sent_ns: [QUEUED; WINDOW_PACKETS as usize],
            newest: (0, 0),
            newest_rtt_ns: 0,
        }
    }

    /// Starts over with the packets from `first` to before `total`.
    pub(crate) fn begin(&mut self, first: u32, total: u32) {
        (self.base, self.next, self.total) = (first, first, total);
        (self.outstanding, self.sent_packets) = (0, 0);
        (self.lost_packets, self.arrived_packets) = (0, 0);
        self.arrived = Window::default();
        self.lost = Window::default();
        self.resent = Window::default();
        self.newest = (0, 0);
        self.newest_rtt_ns = 0;
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.base == self.total
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }

    /// Packets that hold a credit.
    pub(crate) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Whether any of them waits for its time to be sent.
    pub(crate) fn is_any_queued(&self) -> bool {
        self.outstanding > self.sent_packets
    }

    /// The next packet to send: the first lost one, else the next new one.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let packet = match self.first_lost() {
            Some(packet) => {
                self.lost.remove(packet);
                self.lost_packets -= 1;
                self.resent.insert(packet);
                packet
            }
            None if self.next < self.total && self.next < self.base + WINDOW_PACKETS => {
                self.next += 1;
                self.resent.remove(self.next - 1);
                self.next - 1
            }
            None => return None,
        };
        self.sent_ns[index(packet)] = QUEUED;
        self.outstanding += 1;
        Some(packet)
    }

    /// Takes this packet, if it is the next one to send.
    pub(crate) fn take_if_next(&mut self, packet: u32) -> bool {
        let is_new = self.lost_packets == 0 && self.next == packet;
        is_new && self.take().is_some()
    }

    fn first_lost(&self) -> Option<u32> {
        (self.lost_packets > 0)
            .then(|| (self.base..self.next).find(|packet| self.lost.has(*packet)))
            .flatten()
    }

    fn is_out(&self, packet: u32) -> bool {
        (self.base..self.next).contains(&packet) && !self.arrived.has(packet) && !self.lost.has(packet)
    }

    /// Whether this was sent more than once.
    pub(crate) fn is_resent(&self, packet: u32) -> bool {
        self.resent.has(packet)
    }

    /// Notes that a packet goes out now; not if it is no longer wanted.
    pub(crate) fn send(&mut self, packet: u32, now_ns: u64) -> bool {
        let wanted = self.is_out(packet) && self.sent_ns[index(packet)] == QUEUED;
        if wanted {
            self.sent_ns[index(packet)] = now_ns;
            self.sent_packets += 1;
        }
        wanted
    }

    /// Packets that are to be sent and have not been.
    pub(crate) fn queued(&self) -> impl Iterator<Item = u32> {
        (self.base..self.next).filter(|packet| self.is_out(*packet) && self.sent_ns[index(*packet)] == QUEUED)
    }

    /// Takes a packet that is out for sending once more, with the credit that it has.
    pub(crate) fn send_again(&mut self, packet: u32) {
        if self.is_out(packet) {
            self.sent_packets -= u32::from(self.sent_ns[index(packet)] != QUEUED);
            self.sent_ns[index(packet)] = QUEUED;
            self.resent.insert(packet);
        }
    }

    /// Notes that a packet has arrived; `None` if that was known, or it was never sent.
    pub(crate) fn arrive(&mut self, packet: u32, now_ns: u64) -> Option<Arrival> {
        if !(self.base..self.next).contains(&packet) || self.arrived.has(packet) {
            return None;
        }
        let (was_lost, sent_ns) = (self.lost.has(packet), self.sent_ns[index(packet)]);
        if was_lost {
            self.lost.remove(packet);
            self.lost_packets -= 1;
        } else {
            self.outstanding -= 1;
            self.sent_packets -= u32::from(sent_ns != QUEUED);
        }
        // What was sent twice tells nothing of when what was sent before it should have arrived: this may be the first of the two.
        let measures = !was_lost && sent_ns != QUEUED && !self.resent.has(packet);
        if measures && (sent_ns, packet) > self.newest {
            self.newest = (sent_ns, packet);
            self.newest_rtt_ns = now_ns.saturating_sub(sent_ns);
        }
        self.arrived.insert(packet);
        self.arrived_packets += 1;
        self.slide();
        Some(Arrival {
            sent_ns: measures.then_some(sent_ns),
            was_out: !was_lost,
            was_lost,
        })
    }

    fn slide(&mut self) {
        while self.base < self.next && self.arrived.has(self.base) {
            self.arrived.remove(self.base);
            self.arrived_packets -= 1;
            self.base += 1;
        }
    }

    /// Takes for lost what was sent before something that has arrived, and should have arrived by now itself
    /// (RACK, RFC 8985 section 6.2).
    pub(crate) fn look_for_losses(&mut self, now_ns: u64, reordering_ns: u64) -> Losses {
        let mut losses = Losses::default();
        if self.arrived_packets == 0 {
            return losses;
        }
        let overtaken_ns_max = self.newest_rtt_ns + reordering_ns;
        for packet in self.base..self.next {
            let sent_ns = self.sent_ns[index(packet)];
            if !self.is_out(packet) || sent_ns == QUEUED || (sent_ns, packet) > self.newest {
                continue;
            }
            if sent_ns + overtaken_ns_max <= now_ns {
                self.lose(packet);
                losses.packets += 1;
            } else {
                let again_ns = losses.look_again_ns.unwrap_or(u64::MAX);
                losses.look_again_ns = Some(again_ns.min(sent_ns + overtaken_ns_max));
            }
        }
        losses
    }

    /// Takes for lost whatever was sent before this time, and the first missing packet in any case.
    pub(crate) fn time_out(&mut self, sent_before_ns: u64) -> u32 {
        let before = self.lost_packets;
        for packet in self.base..self.next {
            let sent_ns = self.sent_ns[index(packet)];
            let old = sent_ns < sent_before_ns || packet == self.base;
            if self.is_out(packet) && sent_ns != QUEUED && old {
                self.lose(packet);
            }
        }
        self.lost_packets - before
    }

    /// A packet that was sent counts as lost.
    fn lose(&mut self, packet: u32) {
        self.lost.insert(packet);
        self.lost_packets += 1;
        self.outstanding -= 1;
        self.sent_packets -= 1;
    }
}

fn index(packet: u32) -> usize {
    (packet % WINDOW_PACKETS) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(total: u32) -> Flight {
        let mut flight = Flight::new();
        flight.begin(0, total);
        while let Some(packet) = flight.take() {
            assert!(flight.send(packet, 100 + u64::from(packet)));
        }
        flight
    }

    #[test]
    fn a_packet_behind_a_later_one_is_lost_only_after_the_reordering_window() {
        let mut flight = sent(4);
        assert_eq!(flight.arrive(2, 1102).unwrap().sent_ns, Some(102));
        let early = flight.look_for_losses(1102, 50);
        assert_eq!((early.packets, early.look_again_ns), (0, Some(1150)));
        assert_eq!(flight.arrive(0, 1120).unwrap().sent_ns, Some(100));
        assert_eq!(
            flight.look_for_losses(1151, 50).packets,
            1,
            "1 is lost, 3 was sent later"
        );
        assert_eq!(flight.outstanding(), 1);
        assert_eq!(flight.take(), Some(1));
        assert!(flight.send(1, 1200));
        assert_eq!(
            flight.arrive(1, 2000).unwrap().sent_ns,
            None,
            "sent twice measures nothing"
        );
        assert!(flight.arrive(1, 2000).is_none());
        flight.arrive(3, 2000);
        assert!(flight.is_complete());
    }

    #[test]
    fn the_first_of_a_packet_that_was_sent_twice_makes_nothing_lost() {
        let mut flight = sent(4);
        // Nothing has come for long, as it waits in the network.
        flight.send_again(1);
        assert!(flight.send(1, 5_000));
        assert!(flight.arrive(1, 5_010).is_some());
        assert_eq!(flight.look_for_losses(5_020, 5).packets, 0);
        assert_eq!(flight.outstanding(), 3);
    }

    #[test]
    fn a_time_out_takes_what_is_old_and_the_first_missing_one() {
        let mut flight = sent(4);
        assert_eq!(flight.time_out(102), 2);
        assert_eq!(flight.outstanding(), 2);
        assert_eq!(flight.take(), Some(0));
        assert!(!flight.send(3, 5), "what is out is not sent again");
        assert!(flight.arrive(1, 9).unwrap().was_lost);
    }

    proptest! {
        #[test]
        fn every_packet_arrives_once_and_credits_balance(
            total in 1u32..600,
            choices in prop::collection::vec(any::<(u8, u8)>(), 1..3000),
        ) {
            let mut flight = Flight::new();
            flight.begin(0, total);
            let (mut now_ns, mut out, mut arrived) = (1, Vec::new(), 0);
            let mut credits = 0i64;
            for (choice, pick) in choices {
                now_ns += 1;
                match choice % 4 {
                    0 | 1 => if let Some(packet) = flight.take() {
                        credits += 1;
                        // Some wait for their time, and some of those that are out go again.
                        prop_assert!(pick < 16 || flight.send(packet, now_ns));
                        out.push(packet);
                    } else if !out.is_empty() {
                        let packet = out[usize::from(pick) % out.len()];
                        match pick % 2 {
                            0 => flight.send_again(packet),
                            _ => _ = flight.send(packet, now_ns),
                        }
                    },
                    2 if !out.is_empty() => {
                        let packet = out.swap_remove(usize::from(pick) % out.len());
                        if let Some(arrival) = flight.arrive(packet, now_ns) {
                            credits -= i64::from(arrival.was_out);
                            arrived += 1;
                        }
                    }
                    _ => {
                        credits -= i64::from(flight.look_for_losses(now_ns, u64::from(pick)).packets);
                        if pick == 0 {
                            credits -= i64::from(flight.time_out(now_ns));
                        }
                    }
                }
                prop_assert_eq!(credits, i64::from(flight.outstanding()));
                prop_assert_eq!(flight.is_any_queued(), flight.queued().next().is_some());
                prop_assert_eq!(flight.is_complete(), arrived == total);
            }
        }
    }
}
