//! A simulated NIC whose wire is a UDP socket, for an event loop to turn. It is simulated while there is something to do, for as many cycles as
//! that takes, and now and then for its timers.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use provost_datagram::{Clock, Monotonic, Turn};
use provost_datagram_rpc::{CarrierRef, EventSink, RpcDriver, Wire};
use provost_nic_host::{HostConfig, HostError, IDLE_NS_MIN, NicHost};
use provost_nic_model::{HostTiming, ModelUnavailable, SimulatedNic, WirePacket};
use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

use crate::carrier::{NicCarrier, address_of, remote_of};

/// Sessions at a time.
const SESSIONS_MAX: u16 = 64;
/// Calls of the NIC at a time: fewer than slots of a ring.
const CALLS_MAX: u8 = 24;
/// Nanoseconds of a tick of the NIC.
const TICK_NS: u64 = 64;
/// How often the NIC's timers are looked at.
const TIMER: Duration = Duration::from_millis(5);
/// Cycles after which all has happened that follows from one event, and how many pass between two looks at the rings.
const SETTLED_CYCLES: u32 = 192;
const LOOK_CYCLES: u32 = 16;
/// Packets that one turn takes from the socket.
const PACKETS_MAX: usize = 64;

/// Why there is no NIC.
#[derive(Debug, thiserror::Error)]
pub enum NicStartError {
    /// The program was built without it.
    #[error(transparent)]
    Model(#[from] ModelUnavailable),
    /// The NIC does not start.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The address cannot be taken.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A NIC has no such address.
    #[error("a NIC's addresses are of IPv4: {0} is none")]
    Address(SocketAddr),
}

/// A simulated NIC on a UDP socket, for `RpcThreadBuilder::start_over`.
#[derive(Debug)]
pub struct SimulatedNicDriver {
    carrier: NicCarrier<SimulatedNic>,
    wire: UdpWire,
    clock: Monotonic,
    timer_ns: u64,
}

impl SimulatedNicDriver {
    /// A NIC that is reached at this address.
    ///
    /// # Errors
    /// If the program was built without the model, or the address cannot be had.
    pub fn bind(address: SocketAddr) -> Result<SimulatedNicDriver, NicStartError> {
        SimulatedNicDriver::bind_with(address, Duration::from_nanos(IDLE_NS_MIN))
    }

    /// A NIC that is reached at this address, and that leaves a client without calls its session for so long before another may have its place.
    ///
    /// # Errors
    /// As [`SimulatedNicDriver::bind`].
    pub fn bind_with(
        address: SocketAddr,
        client_idle_min: Duration,
    ) -> Result<SimulatedNicDriver, NicStartError> {
        if remote_of(address).is_none() {
            return Err(NicStartError::Address(address));
        }
        // The standard library keys its hashers from the system's random numbers.
        let draw = || RandomState::new().hash_one(std::process::id());
        let config = HostConfig {
            idle_ns_min: u64::try_from(client_idle_min.as_nanos()).unwrap_or(u64::MAX),
            ..HostConfig::of_one_flow(SESSIONS_MAX, CALLS_MAX, [draw(), draw()])
        };
        let timing = HostTiming {
            read_cycles: 2,
            ..HostTiming::default()
        };
        let bytes_max = config.payload_bytes_max();
        let mut board = SimulatedNic::new(config.memory_lines(), timing)?;
        let host = NicHost::start(&mut board, config)?;
        Ok(SimulatedNicDriver {
            carrier: NicCarrier::new(board, host, bytes_max),
            wire: UdpWire::bind(address, PACKET_BYTES_ETHERNET)?,
            clock: Monotonic::default(),
            timer_ns: 0,
        })
    }

    fn receive(&mut self) -> io::Result<usize> {
        let board = &mut self.carrier.board;
        self.wire.receive(PACKETS_MAX, |arrival| {
            if let Some(remote) = remote_of(arrival.from) {
                let bytes = arrival.bytes.to_vec();
                board.inject(WirePacket { remote, bytes });
            }
        })
    }

    /// Simulates until nothing more happens.
    fn settle(&mut self, now_ns: u64) -> io::Result<()> {
        let mut left = SETTLED_CYCLES;
        while left > 0 || self.carrier.board.arriving() > 0 {
            self.carrier.poll(now_ns).map_err(io::Error::other)?;
            for _ in 0..LOOK_CYCLES {
                self.carrier.board.step();
            }
            left = left.saturating_sub(LOOK_CYCLES);
            while let Some(packet) = self.carrier.board.sent() {
                self.wire.transmit(address_of(packet.remote), &packet.bytes, &[]);
                left = SETTLED_CYCLES;
            }
            self.wire.flush()?;
        }
        self.carrier.poll(now_ns).map_err(io::Error::other)
    }
}

impl RpcDriver for SimulatedNicDriver {
    type Address = SocketAddr;

    fn address(&self) -> SocketAddr {
        self.wire.address()
    }

    fn carrier(&mut self) -> (u64, CarrierRef<'_, SocketAddr>) {
        (self.clock.now_ns(), CarrierRef::Other(&mut self.carrier))
    }

    fn turn(&mut self, sink: &mut impl EventSink<SocketAddr>) -> io::Result<Turn> {
        let now_ns = self.clock.now_ns();
        self.carrier.board.skip_to(now_ns / TICK_NS);
        let packets = self.receive()?;
        let is_due = self.timer_ns <= now_ns;
        if is_due {
            self.timer_ns = now_ns + TIMER.as_nanos() as u64;
        }
        let is_touched = std::mem::take(&mut self.carrier.is_touched);
        if packets > 0 || is_due || is_touched {
            self.settle(now_ns)?;
        }
        let mut turn = if packets > 0 || is_touched {
            Turn::Busy
        } else {
            Turn::Idle
        };
        while let Some(event) = self.carrier.event() {
            sink.take(&mut self.carrier, now_ns, event);
            turn = Turn::Busy;
        }
        Ok(turn)
    }

    fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        if self.carrier.is_touched {
            return Ok(());
        }
        self.wire.wait(Some(at_most.min(TIMER)))
    }

    fn waker(&self) -> Option<Waker> {
        self.wire.waker()
    }
}
