//! The way of each message through a proxy, on the path that its caller waits for.
//!
//! With one message in flight, what a proxy adds is the time from its own socket becoming readable to the next one's:
//! that of the server on the way there, that of the client on the way back. Without the proxy, the first of each pair
//! would have been the second. So these two hops are the critical path, and whatever a thread does outside of them (such
//! as returning from a write whose packet is received already) costs processor time but no latency.
//!
//! ```text
//!   client ──► proxy ─────────────► server ──► proxy ──────────────► client
//!          readable     request    readable   readable   response    readable
//!                       hop                              hop
//! ```
//!
//! What lies between the hops is the neighbours' own time. A proxy makes it longer as well: a server that waits longer
//! sleeps deeper, and its caches are colder. So the same stretches are taken of calls that go without the proxy, and the
//! difference belongs to what the proxy adds.

use super::event::{TraceEvent, TraceKind};
use super::timeline::{AsleepCounts, MessagePhase, PhaseTimes, ThreadTimeline};

/// The ports by which sockets are told apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HopPorts {
    /// The one that the proxy listens on; none if calls go without it.
    pub(crate) proxy: Option<u16>,
    /// The one that the server listens on.
    pub(crate) server: u16,
}

/// Whose socket became readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArrivalPlace {
    ProxyFromClient,
    Server,
    ProxyFromServer,
    Client,
}

impl HopPorts {
    fn receiver(self, local: u16, peer: u16) -> Option<ArrivalPlace> {
        let is_proxy = |port| Some(port) == self.proxy;
        if is_proxy(local) {
            Some(ArrivalPlace::ProxyFromClient)
        } else if is_proxy(peer) {
            Some(ArrivalPlace::Client)
        } else if local == self.server {
            Some(ArrivalPlace::Server)
        } else if peer == self.server && self.proxy.is_some() {
            Some(ArrivalPlace::ProxyFromServer)
        } else if peer == self.server {
            Some(ArrivalPlace::Client)
        } else {
            None
        }
    }
}

/// Time by phase, and the events that were written down during it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct PhaseSums {
    /// Nanoseconds.
    pub(crate) times_ns: PhaseTimes,
    pub(crate) events: PhaseTimes,
}

impl PhaseSums {
    fn add(&mut self, other: &PhaseSums, factor: f64) {
        for phase in 0..MessagePhase::ALL.len() {
            self.times_ns[phase] += other.times_ns[phase] * factor;
            self.events[phase] += other.events[phase] * factor;
        }
    }
}

/// What one message met on its critical path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MessagePath {
    /// In the proxy; nothing if calls go without it.
    pub(crate) proxy: PhaseSums,
    /// In the client and the server.
    pub(crate) neighbours: PhaseSums,
}

impl MessagePath {
    pub(crate) fn total_ns(&self) -> f64 {
        let both = self.proxy.times_ns.iter().chain(&self.neighbours.times_ns);
        both.sum()
    }
}

/// What was found of the messages between two times.
#[derive(Debug, Default)]
pub(crate) struct MessagePaths {
    pub(crate) paths: Vec<MessagePath>,
    /// Messages whose path was not covered by what is known of the threads.
    pub(crate) incomplete: usize,
}

/// A moment at which a socket became readable, and the thread that had sent what it reads.
#[derive(Clone, Copy, Debug)]
struct PacketArrival {
    time_ns: u64,
    sender: u32,
}

/// The last arrival of each kind for a message. Of a message in several packets the last one counts, for the
/// receiver waits for it.
#[derive(Clone, Copy, Debug, Default)]
struct MessageArrivals {
    at_proxy: Option<PacketArrival>,
    at_server: Option<PacketArrival>,
    back_at_proxy: Option<PacketArrival>,
    at_client: Option<PacketArrival>,
}

/// The paths of all messages that were alone in flight.
pub(crate) fn message_paths(
    events: &[TraceEvent],
    timeline: &ThreadTimeline,
    ports: HopPorts,
) -> MessagePaths {
    let mut found = MessagePaths::default();
    let mut message = MessageArrivals::default();
    let mut before = None;
    let mut last_sender = 0;
    for event in events {
        let TraceKind::Readable { local, peer } = event.kind else {
            if event.kind == TraceKind::Sent {
                last_sender = event.thread;
            }
            continue;
        };
        let Some(receiver) = ports.receiver(local, peer) else {
            continue;
        };
        // The loopback device receives on the sender's thread, unless the kernel's own thread had to.
        let is_known = timeline.knows(event.thread);
        let arrival = PacketArrival {
            time_ns: event.time_ns,
            sender: if is_known { event.thread } else { last_sender },
        };
        if message.is_over(receiver, ports) {
            found.add(&message, before, timeline, ports);
            before = message.at_client;
            message = MessageArrivals::default();
        }
        message.note(receiver, arrival, ports);
    }
    found
}

impl MessageArrivals {
    /// Whether this arrival is the next message's: the client has its answer, and something comes from it.
    fn is_over(&self, receiver: ArrivalPlace, ports: HopPorts) -> bool {
        let first = if ports.proxy.is_some() {
            ArrivalPlace::ProxyFromClient
        } else {
            ArrivalPlace::Server
        };
        self.at_client.is_some() && receiver == first
    }

    /// What does not carry the message further, such as a window that is opened, comes when nothing is expected there.
    fn note(&mut self, receiver: ArrivalPlace, arrival: PacketArrival, ports: HopPorts) {
        match receiver {
            ArrivalPlace::ProxyFromClient if self.back_at_proxy.is_none() => self.at_proxy = Some(arrival),
            ArrivalPlace::Server if self.back_at_proxy.is_none() => self.at_server = Some(arrival),
            ArrivalPlace::ProxyFromServer if self.at_client.is_none() => self.back_at_proxy = Some(arrival),
            ArrivalPlace::Client if self.back_at_proxy.is_some() || ports.proxy.is_none() => {
                self.at_client = Some(arrival);
            }
            _ => {}
        }
    }

    /// Stretches of the proxy's and of the neighbours', if it has them all. The client's lies before the message.
    fn stretches(&self, before: Option<PacketArrival>, ports: HopPorts) -> Option<(Stretches, Stretches)> {
        let (before, at_server, at_client) = (before?, self.at_server?, self.at_client?);
        if ports.proxy.is_none() {
            return Some((vec![], vec![(before, at_server), (at_server, at_client)]));
        }
        let (at_proxy, back) = (self.at_proxy?, self.back_at_proxy?);
        let proxy = vec![(at_proxy, at_server), (back, at_client)];
        Some((proxy, vec![(before, at_proxy), (at_server, back)]))
    }
}

/// From one arrival to the next, which the thread that sent the next one is responsible for.
type Stretches = Vec<(PacketArrival, PacketArrival)>;

impl MessagePaths {
    /// Messages that are not whole, such as the first of a trace, do not count; those whose threads are not known do.
    fn add(
        &mut self,
        message: &MessageArrivals,
        before: Option<PacketArrival>,
        timeline: &ThreadTimeline,
        ports: HopPorts,
    ) {
        let Some((proxy, neighbours)) = message.stretches(before, ports) else {
            return;
        };
        let sums = |stretches: &Stretches, asleep| {
            let mut sums = PhaseSums::default();
            for (from, to) in stretches {
                let times_ns = timeline.spent_ns(to.sender, from.time_ns, to.time_ns, asleep)?;
                let events = timeline.ends(to.sender, from.time_ns, to.time_ns);
                sums.add(&PhaseSums { times_ns, events }, 1.0);
            }
            Some(sums)
        };
        // A client that keeps a pace sleeps of its own will.
        let both = sums(&proxy, AsleepCounts::AsWakeUp).zip(sums(&neighbours, AsleepCounts::Not));
        match both {
            Some((proxy, neighbours)) => self.paths.push(MessagePath { proxy, neighbours }),
            None => self.incomplete += 1,
        }
    }
}

/// The mean over the middle half by total, so that the parts of the mean still sum up to the mean of the sums, and a message
/// that was disturbed does not count.
pub(crate) fn middle_mean(mut paths: Vec<MessagePath>) -> Option<MessagePath> {
    paths.sort_by(|one, other| one.total_ns().total_cmp(&other.total_ns()));
    let quarter = paths.len() / 4;
    let middle = &paths[quarter..paths.len() - quarter];
    let share = 1.0 / middle.len() as f64;
    let mut mean = MessagePath::default();
    for path in middle {
        mean.proxy.add(&path.proxy, share);
        mean.neighbours.add(&path.neighbours, share);
    }
    (!middle.is_empty()).then_some(mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKER: u32 = 7;
    const CLIENT: u32 = 1;
    const SERVER: u32 = 2;
    const PROXIED: HopPorts = HopPorts {
        proxy: Some(80),
        server: 90,
    };

    fn event(time_ns: u64, thread: u32, kind: TraceKind) -> TraceEvent {
        TraceEvent {
            time_ns,
            thread,
            kind,
        }
    }

    /// A thread's part of a message: 10 asleep, 5 ready, 3 until epoll_wait returns, 2 of the program, 4 to read, 6 of the
    /// program, 7 to send, 8 until it is received.
    fn part(at: u64, thread: u32, to: TraceKind) -> Vec<TraceEvent> {
        vec![
            event(at + 10, thread, TraceKind::Waking),
            event(at + 15, thread, TraceKind::OnCore),
            event(at + 18, thread, TraceKind::Leave { call: 232 }),
            event(at + 20, thread, TraceKind::Enter { call: 0 }),
            event(at + 24, thread, TraceKind::Leave { call: 0 }),
            event(at + 30, thread, TraceKind::Enter { call: 20 }),
            event(at + 37, thread, TraceKind::Sent),
            event(at + 45, thread, to),
            event(at + 50, thread, TraceKind::Leave { call: 20 }),
            event(at + 55, thread, TraceKind::Enter { call: 232 }),
            event(at + 60, thread, TraceKind::OffCore { is_preempted: false }),
        ]
    }

    fn readable(local: u16, peer: u16) -> TraceKind {
        TraceKind::Readable { local, peer }
    }

    /// Four parts of 45 each, one after the other.
    fn message(at: u64) -> Vec<TraceEvent> {
        let mut events = [
            part(at, CLIENT, readable(80, 5000)),
            part(at + 45, WORKER, readable(90, 6000)),
            part(at + 90, SERVER, readable(6000, 90)),
            part(at + 135, WORKER, readable(5000, 80)),
        ]
        .concat();
        events.sort_by_key(|event| event.time_ns);
        events
    }

    const PROXY_OF_EACH: PhaseTimes = [30.0, 6.0, 8.0, 14.0, 16.0, 0.0, 16.0];
    /// Without the two times 10 that they are asleep.
    const NEIGHBOURS_OF_EACH: PhaseTimes = [10.0, 6.0, 8.0, 14.0, 16.0, 0.0, 16.0];

    #[test]
    fn every_nanosecond_of_a_hop_has_one_phase_and_what_follows_it_none() {
        let events: Vec<_> = (0..5).flat_map(|number| message(number * 180)).collect();
        let timeline = ThreadTimeline::of(&events);
        let found = message_paths(&events, &timeline, PROXIED);
        // Of the first one the client's part is not known, the last one is not known to be over.
        assert_eq!((found.paths.len(), found.incomplete), (3, 0));
        let mean = middle_mean(found.paths).unwrap();
        assert_eq!(mean.proxy.times_ns.map(f64::round), PROXY_OF_EACH);
        assert_eq!(mean.neighbours.times_ns.map(f64::round), NEIGHBOURS_OF_EACH);
        assert_eq!(mean.total_ns().round(), 160.0);
        // The tails of the writes, and going back to sleep, cost processor time all the same.
        let running = timeline.running_ns(180, 360, |thread| thread == WORKER);
        assert_eq!(running[MessagePhase::Ipc as usize], 26.0);
        assert_eq!(running[MessagePhase::Readiness as usize], 16.0);
        assert_eq!(running[MessagePhase::WakeUp as usize], 0.0);
    }

    #[test]
    fn without_a_proxy_there_are_only_neighbours() {
        let direct = |at| {
            let parts = [
                part(at, CLIENT, readable(90, 5000)),
                part(at + 45, SERVER, readable(5000, 90)),
            ];
            let mut events = parts.concat();
            events.sort_by_key(|event| event.time_ns);
            events
        };
        let mut events: Vec<_> = (0..5).flat_map(|number| direct(number * 90)).collect();
        events.sort_by_key(|event| event.time_ns);
        let timeline = ThreadTimeline::of(&events);
        let ports = HopPorts {
            proxy: None,
            ..PROXIED
        };
        let found = message_paths(&events, &timeline, ports);
        let mean = middle_mean(found.paths).unwrap();
        assert_eq!(mean.proxy, PhaseSums::default());
        assert_eq!(mean.neighbours.times_ns.map(f64::round), NEIGHBOURS_OF_EACH);
    }

    #[test]
    fn a_message_of_several_packets_is_there_with_its_last_one_and_windows_are_no_messages() {
        let mut events: Vec<_> = (0..5).flat_map(|number| message(number * 180)).collect();
        let more = [
            // Another packet of a request reaches the proxy a little later.
            event(180 + 49, CLIENT, readable(80, 5000)),
            // The proxy opens the server's window once it has the answer, and the client's before.
            event(180 + 140, WORKER, readable(90, 6000)),
            event(180 + 80, WORKER, readable(5000, 80)),
        ];
        events.extend(more);
        events.sort_by_key(|event| event.time_ns);
        let timeline = ThreadTimeline::of(&events);
        let paths = message_paths(&events, &timeline, PROXIED).paths;
        assert_eq!(paths.len(), 3);
        assert_eq!(paths[0].proxy.times_ns.iter().sum::<f64>(), 86.0);
        assert_eq!(paths[1].proxy.times_ns, PROXY_OF_EACH);
    }

    #[test]
    fn a_preempted_thread_waits_for_its_core() {
        let events = [
            event(0, WORKER, TraceKind::Leave { call: 0 }),
            event(10, WORKER, TraceKind::OffCore { is_preempted: true }),
            event(30, WORKER, TraceKind::OnCore),
            event(35, WORKER, TraceKind::Enter { call: 202 }),
            event(36, WORKER, TraceKind::Leave { call: 202 }),
        ];
        let timeline = ThreadTimeline::of(&events);
        let spent = timeline.spent_ns(WORKER, 0, 36, AsleepCounts::Not).unwrap();
        assert_eq!(spent[MessagePhase::WakeUp as usize], 20.0);
        assert_eq!(spent[MessagePhase::User as usize], 15.0);
        assert_eq!(spent[MessagePhase::OtherSystem as usize], 1.0);
        assert_eq!(timeline.spent_ns(WORKER, 0, 40, AsleepCounts::Not), None);
        assert_eq!(timeline.spent_ns(WORKER, 36, 35, AsleepCounts::Not), None);
    }
}
