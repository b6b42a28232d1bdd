//! Members and clients on a UDP wire, each in a thread of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use provost_datagram::{Config, ConfigError, Driver, Turn};
use provost_packets::Wire;
use provost_udp::UdpWire;

use crate::client::{Client, ClientConfig, ReadRoute};
use crate::journal::JournalMedium;
use crate::member::MemberError;
use crate::operation::{Operation, RequestAnswer};
use crate::replica::Replica;

/// Bytes of a packet: those of an Ethernet frame's.
pub const PACKET_BYTES: usize = provost_udp::PACKET_BYTES_ETHERNET;
/// How long a thread that has nothing to do sleeps at most.
const SLEEP_MAX: Duration = Duration::from_millis(50);
/// Silence of a peer that owes an answer after which its session ends, in nanoseconds.
const PEER_TIMEOUT_NS: u64 = 500_000_000;

/// How long a thread looks again and again, before it sleeps.
const LOOK_FOR: Duration = Duration::from_micros(50);

/// How a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitManner {
    /// It looks again at once, for as long as it takes. It wants a core for itself.
    Spin,
    /// It looks again for a while after something came, then sleeps.
    SpinThenSleep,
    /// It sleeps until a packet comes or a time is due.
    Sleep,
}

#[derive(Clone, Copy, Debug)]
pub struct IdleWait {
    how: WaitManner,
    busy_at: Instant,
}

impl IdleWait {
    #[must_use]
    pub fn new(how: WaitManner) -> Self {
        Self {
            how,
            busy_at: Instant::now(),
        }
    }

    /// After a turn: whether to sleep now.
    #[must_use]
    pub fn sleeps_after(&mut self, turn: Turn) -> bool {
        if turn == Turn::Busy {
            self.busy_at = Instant::now();
            return false;
        }
        let sleeps = match self.how {
            WaitManner::Spin => false,
            WaitManner::SpinThenSleep => self.busy_at.elapsed() >= LOOK_FOR,
            WaitManner::Sleep => true,
        };
        if !sleeps {
            std::hint::spin_loop();
        }
        sleeps
    }

    /// Waits after a turn, until there is something, or this is due, or a while has passed.
    ///
    /// # Errors
    /// If the wire is of no use.
    pub fn rest<W: Wire>(
        &mut self,
        driver: &mut Driver<W>,
        turn: Turn,
        due_in: Option<Duration>,
    ) -> io::Result<()> {
        if self.sleeps_after(turn) {
            driver.wait(due_in.unwrap_or(SLEEP_MAX).min(SLEEP_MAX))?;
        }
        Ok(())
    }
}

/// Why a member or a client cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    #[error("the socket is of no use: {0}")]
    Wire(#[from] io::Error),
    #[error("the transport cannot be set up so: {0}")]
    Config(#[from] ConfigError),
    #[error("the member cannot go on: {0}")]
    Member(#[from] MemberError),
    /// Nobody answered in time.
    #[error("no member answered in time; are at least two of three running, and reachable from here?")]
    Unanswered,
}

/// The transport's options for members and clients.
///
/// # Errors
/// If there is no chance to be had for its secret.
pub fn transport_config() -> io::Result<Config> {
    let mut secret = [0; 16];
    let got = rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
    if got < secret.len() {
        return Err(io::Error::other("the kernel has too little chance to give"));
    }
    let (first, second) = secret.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    Ok(Config {
        peer_timeout_ns: PEER_TIMEOUT_NS,
        secret: [number(first), number(second)],
        ..Config::default()
    })
}

/// Runs a member until it is told to stop.
///
/// # Errors
/// If the wire or the member cannot go on.
pub fn serve<W: Wire, M: JournalMedium>(
    driver: &mut Driver<W>,
    mut replica: Replica<W::Address, M>,
    wait: WaitManner,
    stop: &AtomicBool,
) -> Result<(), ProcessError>
where
    W::Address: provost_datagram::Address,
{
    let mut waiting = IdleWait::new(wait);
    while !stop.load(Ordering::Relaxed) {
        let turn = driver.turn(|endpoint, now_ns, event| replica.handle(endpoint, now_ns, event))?;
        let (mut now_ns, endpoint) = driver.endpoint();
        let mut due_ns = replica.idle(endpoint, now_ns);
        let mut sent = driver.transmit()?;
        while replica.is_sync_due() {
            let endpoint;
            (now_ns, endpoint) = driver.endpoint();
            due_ns = replica.idle(endpoint, now_ns);
            sent += driver.transmit()?;
        }
        if let Some(failure) = replica.failure() {
            return Err(failure.into());
        }
        waiting.rest(driver, busy_if(turn, sent), due_in(due_ns, now_ns))?;
    }
    Ok(())
}

/// What a turn did, and what was sent beside it.
fn busy_if(turn: Turn, sent: usize) -> Turn {
    if sent > 0 { Turn::Busy } else { turn }
}

fn due_in(due_ns: Option<u64>, now_ns: u64) -> Option<Duration> {
    due_ns.map(|due_ns| Duration::from_nanos(due_ns.saturating_sub(now_ns)))
}

/// A client that waits for its answers.
pub struct BlockingClient<W: Wire> {
    driver: Driver<W>,
    client: Client<W::Address>,
    waiting: IdleWait,
}

impl BlockingClient<UdpWire> {
    /// A client of members at these addresses, with so many slots.
    ///
    /// # Errors
    /// If no socket is to be had.
    pub fn connect(
        members: Vec<(u64, SocketAddr)>,
        slots: usize,
        route: ReadRoute,
        wait: WaitManner,
    ) -> Result<Self, ProcessError> {
        let any: SocketAddr = if members.iter().all(|(_, address)| address.is_ipv4()) {
            ([0, 0, 0, 0], 0).into()
        } else {
            ([0u16; 8], 0).into()
        };
        let wire = UdpWire::bind(any, PACKET_BYTES)?;
        let config = ClientConfig {
            members,
            slots,
            attempt_ns: 400_000_000,
            pause_ns: 20_000_000,
            route,
        };
        Ok(Self {
            driver: Driver::new(transport_config()?, wire)?,
            client: Client::new(config),
            waiting: IdleWait::new(wait),
        })
    }
}

impl<W: Wire> BlockingClient<W>
where
    W::Address: provost_datagram::Address,
{
    /// Asks for something on the first slot, and waits for the answer. Where the call before was not answered in time, its request is
    /// answered first, and this one begins then.
    ///
    /// # Errors
    /// If there is none in this time, or the wire is of no use.
    pub fn call(&mut self, operation: Operation, at_most: Duration) -> Result<RequestAnswer, ProcessError> {
        let (began, mut unasked) = (Instant::now(), Some(operation));
        while began.elapsed() < at_most {
            if !self.client.is_busy(0)
                && let Some(operation) = unasked.take()
            {
                // Nobody waits for the answer to the call before any more.
                while self.client.poll_outcome().is_some() {}
                self.submit(0, operation);
            }
            if let Some((_, answer)) = self.turn()?
                && unasked.is_none()
            {
                return Ok(answer);
            }
        }
        Err(ProcessError::Unanswered)
    }

    /// The member that it takes for the leader: the one that answered last.
    #[must_use]
    pub fn leader(&self) -> u64 {
        self.client.leader()
    }

    /// Asks for something on a slot that has nothing to do.
    pub fn submit(&mut self, slot: usize, operation: Operation) {
        let (now_ns, _) = self.driver.endpoint();
        // A slot whose last request went unanswered goes on with that one.
        let _ = self.client.submit(now_ns, slot, operation);
    }

    /// Sends, receives and waits once; an answer, with its slot, if there is one.
    ///
    /// # Errors
    /// If the wire is of no use.
    pub fn turn(&mut self) -> Result<Option<(usize, RequestAnswer)>, ProcessError> {
        if let Some(outcome) = self.client.poll_outcome() {
            return Ok(Some(outcome));
        }
        let (now_ns, endpoint) = self.driver.endpoint();
        let due_ns = self.client.idle(endpoint, now_ns);
        let sent = self.driver.transmit()?;
        let turn = self
            .driver
            .turn(|_, now_ns, event| self.client.handle(now_ns, event))?;
        let outcome = self.client.poll_outcome();
        if outcome.is_none() {
            let turn = busy_if(turn, sent);
            self.waiting
                .rest(&mut self.driver, turn, due_in(due_ns, now_ns))?;
        }
        Ok(outcome)
    }
}
