//! How much of a connection is on its way at most, while others are to have their turn.
//!
//! What the kernel has taken can be overtaken no more, and a small message of another connection stands behind it in the
//! queue of the network card or of a switch. TCP fills those queues, as deep as they are. So a transport that was asked
//! to leave others their turn hands the kernel no more than what fills the wire, and half a turn's bytes to keep it full:
//! it finds out how much that is from the round trips, whose excess over the shortest one is time in queues (FAST TCP:
//! Wei, Jin, Low, Hegde, IEEE/ACM Transactions on Networking 14(6), 2006). In equilibrium each connection has that many
//! bytes in queues, so connections share a link as they share turns. On a fast wire that is too little to be refilled in
//! time; there it is what the wire carries in [`QUEUED_US_MIN`].

use std::io;
use std::net::TcpStream;

use provost_datapath::Nanos;
use provost_net::RoundTrips;

/// Bytes on their way at most, whatever the round trips say.
const WINDOW_BYTES_MAX: u64 = 16 << 20;
/// A window is adjusted once in a round trip, and not more often than this.
const ADJUST_NS_MIN: Nanos = 100_000;
/// After so long without a question the last window says nothing.
const FORGET_NS: Nanos = 100_000_000;
/// Part of a turn that may wait in queues.
const QUEUED_PART: u64 = 2;
/// What waits in queues lasts so long at least, in microseconds: as long as a runtime may take to come back to a
/// connection.
const QUEUED_US_MIN: u64 = 100;
/// Part of a turn that there must be room for before it is worth a system call.
const ROOM_PART: u64 = 16;

/// The window of a connection.
#[derive(Debug, Default)]
pub(crate) struct FlightWindow {
    window_bytes: u64,
    asked_at: Nanos,
    adjust_at: Nanos,
}

impl FlightWindow {
    /// How many bytes the kernel may be given now, when a turn has so many.
    pub(crate) fn room(&mut self, stream: &TcpStream, turn_bytes: u64, now: Nanos) -> io::Result<usize> {
        let on_way_bytes = u64::from(provost_net::unacknowledged_bytes(stream)?);
        if self.is_due(now) {
            self.adjust(on_way_bytes, turn_bytes, provost_net::round_trips(stream)?, now);
        }
        Ok(self.room_beside(on_way_bytes, turn_bytes))
    }

    fn is_due(&mut self, now: Nanos) -> bool {
        if now.saturating_sub(self.asked_at) > FORGET_NS {
            (self.window_bytes, self.adjust_at) = (0, 0);
        }
        self.asked_at = now;
        now >= self.adjust_at
    }

    fn room_beside(&self, on_way_bytes: u64, turn_bytes: u64) -> usize {
        let window_bytes = self.window_bytes.max(turn_bytes / QUEUED_PART);
        let room = window_bytes.saturating_sub(on_way_bytes);
        if room < turn_bytes / ROOM_PART {
            0
        } else {
            room as usize
        }
    }

    fn adjust(&mut self, on_way_bytes: u64, turn_bytes: u64, trips: RoundTrips, now: Nanos) {
        self.adjust_at = now
            + Nanos::from(trips.smoothed_us)
                .saturating_mul(1000)
                .max(ADJUST_NS_MIN);
        // Without a window yet, what is on its way stands for it.
        let window_bytes = match self.window_bytes {
            0 => on_way_bytes,
            // A window that is not used must not grow: it would say nothing.
            unused if on_way_bytes < unused / 2 => return,
            used => used,
        };
        let (least, smoothed) = (
            u64::from(trips.least_us.max(1)),
            u64::from(trips.smoothed_us.max(1)),
        );
        let carried = |us: u64| window_bytes.min(WINDOW_BYTES_MAX) * us / smoothed;
        let wanted = carried(least.min(smoothed)) + carried(QUEUED_US_MIN).max(turn_bytes / QUEUED_PART);
        self.window_bytes = match self.window_bytes {
            0 => wanted,
            // Half way, so that the delay of what is measured does not make it swing.
            window_bytes => window_bytes.midpoint(wanted),
        }
        .min(WINDOW_BYTES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Connections that always have something to send, over one wire with one queue, from microsecond to microsecond.
    struct Wire {
        bytes_per_us: u64,
        least_us: u64,
        flows: Vec<Flow>,
        now_us: u64,
        /// Until when the wire has work.
        busy_until_us: u64,
        idle_us: u64,
    }

    struct Flow {
        flight: FlightWindow,
        turn_bytes: u64,
        on_way_bytes: u64,
        acknowledged_bytes: u64,
        /// When which bytes are acknowledged.
        packets: VecDeque<(u64, u64)>,
    }

    impl Wire {
        fn new(bytes_per_us: u64, least_us: u64, turns: &[u64]) -> Wire {
            let flow = |turn_bytes: &u64| Flow {
                flight: FlightWindow::default(),
                turn_bytes: *turn_bytes,
                on_way_bytes: 0,
                acknowledged_bytes: 0,
                packets: VecDeque::new(),
            };
            Wire {
                bytes_per_us,
                least_us,
                flows: turns.iter().map(flow).collect(),
                now_us: 0,
                busy_until_us: 0,
                idle_us: 0,
            }
        }

        /// How long what comes now waits in the queue.
        fn queue_us(&self) -> u64 {
            self.busy_until_us.saturating_sub(self.now_us)
        }

        fn run(&mut self, for_us: u64) {
            let end_us = self.now_us + for_us;
            while self.now_us < end_us {
                self.now_us += 1;
                self.idle_us += u64::from(self.busy_until_us < self.now_us);
                let first = self.now_us as usize % self.flows.len();
                for at in 0..self.flows.len() {
                    self.poll((first + at) % self.flows.len());
                }
            }
        }

        fn poll(&mut self, at: usize) {
            let (queue_us, now) = (self.queue_us(), self.now_us * 1000 + 1);
            let flow = &mut self.flows[at];
            while let Some((_, bytes)) = flow.packets.pop_front_if(|(at_us, _)| *at_us <= self.now_us) {
                flow.on_way_bytes -= bytes;
                flow.acknowledged_bytes += bytes;
            }
            if flow.flight.is_due(now) {
                let trips = RoundTrips {
                    smoothed_us: (self.least_us + queue_us) as u32,
                    least_us: self.least_us as u32,
                };
                flow.flight.adjust(flow.on_way_bytes, flow.turn_bytes, trips, now);
            }
            let mut room = flow.flight.room_beside(flow.on_way_bytes, flow.turn_bytes) as u64;
            while room > 0 {
                let bytes = room.min(PACKET);
                room -= bytes;
                flow.on_way_bytes += bytes;
                self.busy_until_us = self.busy_until_us.max(self.now_us) + bytes.div_ceil(self.bytes_per_us);
                flow.packets
                    .push_back((self.busy_until_us + self.least_us, bytes));
            }
        }
    }

    const TURN: u64 = 64 << 10;
    /// What is acknowledged at once.
    const PACKET: u64 = 8 << 10;

    #[test]
    fn a_wire_is_full_and_its_queue_short_whatever_its_speed_and_length() {
        for (bytes_per_us, least_us) in [(125, 50), (250, 100), (1250, 40), (3125, 500), (12_500, 30)] {
            let mut wire = Wire::new(bytes_per_us, least_us, &[TURN]);
            wire.run(100_000);
            wire.idle_us = 0;
            let mut longest_us = 0;
            for _ in 0..1000 {
                wire.run(10);
                longest_us = longest_us.max(wire.queue_us());
            }
            let queued_us = (TURN / QUEUED_PART / bytes_per_us).max(QUEUED_US_MIN);
            assert!(
                longest_us <= 2 * queued_us,
                "{bytes_per_us}, {least_us}: {longest_us} us"
            );
            assert!(
                wire.idle_us < 100,
                "{bytes_per_us}, {least_us}: idle for {} us",
                wire.idle_us
            );
        }
    }

    #[test]
    fn connections_share_a_wire_as_they_share_turns() {
        let mut wire = Wire::new(250, 60, &[TURN / 4, 3 * TURN / 4]);
        wire.run(100_000);
        let done = |wire: &Wire| [0, 1].map(|at: usize| wire.flows[at].acknowledged_bytes as f64);
        let before = done(&wire);
        wire.run(400_000);
        let after = done(&wire);
        let ratio = (after[1] - before[1]) / (after[0] - before[0]);
        assert!((2.0..4.5).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_deep_queue_is_left_to_drain_and_an_unused_window_does_not_grow() {
        let trips = RoundTrips {
            smoothed_us: 2000,
            least_us: 100,
        };
        let mut flight = FlightWindow::default();
        assert!(flight.is_due(1));
        flight.adjust(500_000, TURN, trips, 1);
        assert_eq!(flight.room_beside(500_000, TURN), 0);
        assert!(flight.window_bytes <= 500_000 / 20 + TURN);
        let window_bytes = flight.window_bytes;
        let trips = RoundTrips {
            smoothed_us: 100,
            ..trips
        };
        flight.adjust(0, TURN, trips, 2);
        assert_eq!(flight.window_bytes, window_bytes);
        flight.adjust(window_bytes, TURN, trips, 3);
        assert!(flight.window_bytes > window_bytes);
    }

    #[test]
    fn what_a_peer_has_not_taken_counts_until_it_does() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        provost_net::make_ready(&here).unwrap();
        let bytes = vec![0; 1 << 20];
        let mut sent = 0;
        while let provost_net::Moved::Bytes(more) = provost_net::write_gather(
            &here,
            std::iter::once(provost_net::Gather::Private(&bytes)),
            provost_net::FollowUp::Later,
        )
        .unwrap()
        {
            sent += more;
        }
        // Its buffers are full, and so are ours.
        let mut flight = FlightWindow::default();
        assert!(provost_net::unacknowledged_bytes(&here).unwrap() as usize > TURN as usize);
        let mut came = 0;
        while came < sent {
            came += there.read(&mut vec![0; 1 << 20]).unwrap();
        }
        while provost_net::unacknowledged_bytes(&here).unwrap() > 0 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let trips = provost_net::round_trips(&here).unwrap();
        assert!(
            trips.least_us <= trips.smoothed_us && trips.smoothed_us > 0,
            "{trips:?}"
        );
        assert!(flight.room(&here, TURN, 2).unwrap() as u64 >= TURN / QUEUED_PART);
    }
}
