//! Congestion control: how fast a client session may send, from what its round trips and marks say.
//!
//! All of it is the client's: it paces its request packets, and by its requests-for-response those of the server.

mod dctcp;
mod swift;
mod timely;

pub use dctcp::DctcpConfig;
pub use swift::SwiftConfig;
pub use timely::TimelyConfig;

use crate::config::ShortCut;
use dctcp::Dctcp;
use swift::Swift;
use timely::Timely;

/// What an acknowledgement says of the network.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When it came.
    pub now_ns: u64,
    /// The round trip without the time that the server held the call, where that is known, and without what the acknowledgement
    /// may have waited here.
    pub rtt_ns: Option<u64>,
    /// Whether the network marked a packet on the way.
    pub marked: bool,
    /// Packets that it acknowledges.
    pub packets: u32,
}

/// What a round trip with marked packets leaves of a rate or window where nothing tells how many they are: packets that say that
/// their sender understands marks must not go on as if there were none (RFC 3168 section 5; RFC 8511 section 3.1 has the factor).
const MARKED_LEAVES: f64 = 0.85;

/// An algorithm that decides how fast to send.
pub trait CongestionControl {
    /// Packets have arrived.
    fn acknowledged(&mut self, sample: &Sample);
    /// A packet was lost, the network going on.
    fn lost(&mut self, now_ns: u64);
    /// Repeatedly, nothing arrived in time. One time-out alone is not reported: a host that was preempted looks so.
    fn timed_out(&mut self, now_ns: u64);
    /// How fast to send, in bytes per nanosecond.
    fn rate(&self) -> f64;
    /// How many packets may be out at once.
    fn window_packets(&self) -> u32;
    /// A sample without marks and with a shorter round trip than this, or without one, would change nothing; zero if any may.
    fn indifferent_below_ns(&self) -> u64;
}

/// Which algorithm, and how fast the link is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CongestionConfig {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// What the link carries, in bytes per nanosecond.
    pub link_rate: f64,
    /// Whether samples that change nothing are skipped at once.
    pub bypass: ShortCut,
}

impl Default for CongestionConfig {
    fn default() -> Self {
        Self {
            // At 20 to 100 senders all three keep queues short with the link full. This one can also send less than a packet
            // in a round trip.
            algorithm: Algorithm::Swift(SwiftConfig::default()),
            link_rate: 3.125,
            bypass: ShortCut::On,
        }
    }
}

/// The algorithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Algorithm {
    /// None: as fast as credits allow.
    Off,
    /// By the gradient of round trips (Timely, SIGCOMM '15, with the correction that eRPC applies).
    Timely(TimelyConfig),
    /// By a target delay (after Swift, SIGCOMM '20).
    Swift(SwiftConfig),
    /// By the share of packets that the network marked (after DCTCP, RFC 8257).
    Dctcp(DctcpConfig),
}

/// One session's congestion control. What every packet asks is kept at hand; it changes only with the algorithm's mind.
#[derive(Clone, Debug)]
#[repr(C)]
pub(crate) struct Controller {
    /// A round trip below this changes nothing.
    indifferent_below_ns: u64,
    window_packets: u32,
    /// The session may send as fast as the link.
    uncongested: bool,
    bypass: ShortCut,
    link_rate: f64,
    state: State,
    /// Since time-outs have slowed it down, until it is known whose fault they were.
    slowed: Option<Box<Slowed>>,
}

/// What time-outs have changed.
#[derive(Clone, Debug)]
struct Slowed {
    /// What was before.
    state: State,
    /// When it was slowed down last.
    at_ns: u64,
}

#[derive(Clone, Debug)]
enum State {
    Off,
    Timely(Timely),
    Swift(Swift),
    Dctcp(Dctcp),
}

impl Controller {
    /// Its first bytes, which every packet asks.
    pub(crate) const HOT_BYTES: usize = std::mem::offset_of!(Controller, window_packets);

    /// Congestion control of a session with so many credits, which bound every window.
    pub(crate) fn new(config: &CongestionConfig, credits: u16, packet_bytes: usize) -> Self {
        let state = match config.algorithm {
            Algorithm::Off => State::Off,
            Algorithm::Timely(of) => State::Timely(Timely::new(of, config.link_rate, packet_bytes)),
            Algorithm::Swift(of) => {
                let window_packets_max = of.window_packets_max.min(credits.into());
                let config_of = SwiftConfig {
                    window_packets_max,
                    ..of
                };
                State::Swift(Swift::new(config_of, config.link_rate, packet_bytes))
            }
            Algorithm::Dctcp(of) => {
                let window_packets_max = of.window_packets_max.min(credits.into());
                State::Dctcp(Dctcp::new(DctcpConfig { window_packets_max }, config.link_rate))
            }
        };
        let mut controller = Self {
            indifferent_below_ns: 0,
            window_packets: u32::MAX,
            uncongested: true,
            bypass: config.bypass,
            link_rate: config.link_rate,
            state,
            slowed: None,
        };
        controller.note();
        controller
    }

    #[inline]
    fn algorithm(&self) -> Option<&dyn CongestionControl> {
        match &self.state {
            State::Off => None,
            State::Timely(timely) => Some(timely),
            State::Swift(swift) => Some(swift),
            State::Dctcp(dctcp) => Some(dctcp),
        }
    }

    /// Has the algorithm learn something, and notes what it makes of that.
    fn apply(&mut self, something: impl FnOnce(&mut dyn CongestionControl)) {
        match &mut self.state {
            State::Off => return,
            State::Timely(timely) => something(timely),
            State::Swift(swift) => something(swift),
            State::Dctcp(dctcp) => something(dctcp),
        }
        self.note();
    }

    fn note(&mut self) {
        let (uncongested, window_packets, indifferent_below_ns) = match self.algorithm() {
            None => (true, u32::MAX, u64::MAX),
            Some(algorithm) => (
                algorithm.rate() >= self.link_rate,
                algorithm.window_packets(),
                algorithm.indifferent_below_ns(),
            ),
        };
        self.uncongested = uncongested;
        self.window_packets = window_packets;
        self.indifferent_below_ns = match self.bypass {
            ShortCut::On => indifferent_below_ns,
            ShortCut::Off => 0,
        };
    }

    /// Whether a packet that was not marked, with this round trip, changes nothing.
    #[inline(always)]
    pub(crate) fn is_indifferent(&self, rtt_ns: u64) -> bool {
        rtt_ns < self.indifferent_below_ns
    }

    /// Learns of a packet that came back; says whether that can have changed anything.
    #[inline]
    pub(crate) fn acknowledged(&mut self, sample: &Sample) -> bool {
        let changes_nothing = match sample.rtt_ns {
            _ if sample.marked => false,
            Some(rtt_ns) => rtt_ns < self.indifferent_below_ns,
            None => self.indifferent_below_ns > 0,
        };
        if !changes_nothing {
            self.learn(sample);
        }
        !changes_nothing
    }

    #[inline(never)]
    fn learn(&mut self, sample: &Sample) {
        if sample.rtt_ns.is_some() {
            self.slowed = None;
        }
        self.apply(|algorithm| algorithm.acknowledged(sample));
    }

    #[cold]
    pub(crate) fn lost(&mut self, now_ns: u64) {
        self.apply(|algorithm| algorithm.lost(now_ns));
    }

    /// Nothing arrived in this time, again. Calls of one session that time out together tell it once.
    #[cold]
    pub(crate) fn timed_out(&mut self, now_ns: u64, timeout_ns: u64) {
        match &mut self.slowed {
            Some(slowed) if now_ns.saturating_sub(slowed.at_ns) < timeout_ns => return,
            Some(slowed) => slowed.at_ns = now_ns,
            None => {
                let state = self.state.clone();
                self.slowed = Some(Box::new(Slowed { state, at_ns: now_ns }));
            }
        }
        self.apply(|algorithm| algorithm.timed_out(now_ns));
    }

    /// The peer was off its core: what timed out says nothing of the network, and changes nothing. Says whether anything
    /// had changed.
    #[cold]
    pub(crate) fn forgive_timeouts(&mut self) -> bool {
        let Some(slowed) = self.slowed.take() else {
            return false;
        };
        self.state = slowed.state;
        self.note();
        true
    }

    /// How long the link is taken by so many bytes at the present rate; `None` where nothing is to be paced at all.
    #[inline]
    pub(crate) fn pace_ns(&self, bytes: usize) -> Option<u64> {
        let rate = self.algorithm()?.rate();
        Some((bytes as f64 / rate) as u64)
    }

    /// Whether the session may send as fast as the link.
    #[inline]
    pub(crate) fn is_uncongested(&self) -> bool {
        self.uncongested
    }

    #[inline]
    pub(crate) fn window_packets(&self) -> u32 {
        self.window_packets
    }

    /// How fast the session sends now, in bytes per nanosecond.
    pub(crate) fn rate(&self) -> f64 {
        self.algorithm().map_or(self.link_rate, CongestionControl::rate)
    }
}
