//! A NIC whose wire is a UDP socket: simulated whenever there is something to do, for as many cycles as that takes.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;

use provost_datagram::SessionId;
use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_nic_host::{HostConfig, HostError, HostEvent, MessageBounds, NicHost, RequestTag};
use provost_nic_model::{HostTiming, ModelUnavailable, SimulatedNic, WirePacket};

use crate::board::{BoardHandle, NicBoard};

/// Bytes of the largest packet: what Ethernet carries in UDP.
pub(crate) const PACKET_BYTES: u16 = 1472;
/// Sessions of a NIC: one connection's, and those that are on their way out.
const SESSIONS_MAX: u16 = 4;
/// Calls of the NIC at most: the slots of a session.
const CALLS_MAX: u8 = provost_nic::SLOTS_MAX;
/// Nanoseconds of a tick of the NIC.
const TICK_NS: u64 = 64;
/// How often the NIC's timers are looked at.
const TIMER_NS: u64 = 5_000_000;
/// Cycles without anything seen of the NIC after which all has happened that follows from one event, or from time: the NIC looks at one of 64 calls
/// in a cycle. And how many pass between two looks at the rings.
const SETTLED_CYCLES: u64 = 64;
const TIMED_CYCLES: u64 = 128;
const LOOK_CYCLES: u64 = 16;
/// Nanoseconds after which a peer that has to say something counts as gone: a client's NIC repeats the requests that it has left with
/// its server ten times a second.
const SILENCE_NS: u64 = 10_000_000_000;
/// Packets that one poll takes from the socket.
const PACKETS_MAX: usize = 64;
/// What the NIC calls the only peer.
pub(crate) const PEER: u64 = 1;

/// Why there is no NIC.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NicStartError {
    #[error(transparent)]
    Model(#[from] ModelUnavailable),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Why a successor has no board.
pub(crate) const NOT_HANDED_ON: &str =
    "a simulated NIC cannot be handed on to another process: its connections end with its own";

/// Whether the socket is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketReading {
    Try,
    Skip,
}

/// A board whose wire is a socket.
pub(crate) struct WiredNic {
    board: BoardHandle,
    socket: UdpSocket,
    /// Entries were written that the NIC has not seen.
    touched: bool,
    /// Packets may have been left in the socket.
    left_some: bool,
    timer_ns: u64,
    now_ns: u64,
    /// When a packet came last.
    heard_ns: u64,
    buffer: Box<[u8]>,
}

impl WiredNic {
    /// A NIC for the peer that the socket is connected to.
    pub(crate) fn start(socket: UdpSocket) -> Result<WiredNic, NicStartError> {
        socket.set_nonblocking(true)?;
        let config = HostConfig::of_one_flow(SESSIONS_MAX, CALLS_MAX, [draw_u64()?, draw_u64()?]);
        let timing = HostTiming {
            read_cycles: 2,
            ..HostTiming::default()
        };
        let mut nic = SimulatedNic::new(config.memory_lines(), timing)?;
        let host = NicHost::start(&mut nic, config)?;
        Ok(WiredNic::of(
            BoardHandle::install(NicBoard { nic, host })?,
            socket,
        ))
    }

    fn of(board: BoardHandle, socket: UdpSocket) -> WiredNic {
        WiredNic {
            board,
            socket,
            touched: true,
            left_some: false,
            timer_ns: 0,
            now_ns: 0,
            heard_ns: 0,
            buffer: vec![0; usize::from(u16::MAX)].into_boxed_slice(),
        }
    }

    /// Writes down the board's number, and times.
    pub(crate) fn save(&self, out: &mut FieldWriter) {
        out.u64(self.board.number());
        out.u64(self.timer_ns);
        out.u64(self.now_ns);
        out.u64(self.heard_ns);
    }

    /// Goes on with the board of an engine of this process.
    pub(crate) fn restore(socket: UdpSocket, fields: &mut FieldReader<'_>) -> Result<WiredNic, RestoreError> {
        let board = BoardHandle::find(fields.u64()?).ok_or_else(|| fields.damaged(NOT_HANDED_ON))?;
        let (timer_ns, now_ns, heard_ns) = (fields.u64()?, fields.u64()?, fields.u64()?);
        if heard_ns > now_ns {
            return Err(fields.damaged("a packet has come later than now"));
        }
        Ok(WiredNic {
            timer_ns,
            now_ns,
            heard_ns,
            // What its predecessor has left of both is found by looking.
            left_some: true,
            ..WiredNic::of(board, socket)
        })
    }

    pub(crate) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    pub(crate) fn left_some(&self) -> bool {
        self.left_some
    }

    /// When the NIC's timers want to be looked at.
    pub(crate) fn wake_ns(&self) -> u64 {
        self.timer_ns
    }

    /// Asks the peer for a session.
    pub(crate) fn connect(&mut self) -> Result<SessionId, HostError> {
        self.touched = true;
        self.board.lock().host.connect(0, PEER)
    }

    /// Makes a call, which a completion with this tag ends.
    pub(crate) fn call(
        &mut self,
        session: SessionId,
        tag: u64,
        method: u16,
        payload: &[u8],
    ) -> Result<(), HostError> {
        self.touched = true;
        let NicBoard { nic, host } = &mut *self.board.lock();
        host.call(nic, session, tag, method, payload)
    }

    /// Answers a request, well.
    pub(crate) fn respond(&mut self, request: RequestTag, payload: &[u8]) {
        self.touched = true;
        let NicBoard { nic, host } = &mut *self.board.lock();
        host.respond(nic, request, 0, payload);
    }

    /// What has happened next.
    pub(crate) fn poll_event(&mut self) -> Option<HostEvent> {
        self.board.lock().host.poll_event()
    }

    /// Calls that the session takes now.
    pub(crate) fn free_slots(&self, session: SessionId) -> usize {
        self.board.lock().host.free_slots(session).into()
    }

    /// Bytes of messages of a session that is open.
    pub(crate) fn message_bounds(&self, session: SessionId) -> Option<MessageBounds> {
        self.board.lock().host.message_bounds(session)
    }

    /// Has a packet arrive that was taken from the socket before.
    pub(crate) fn inject(&mut self, bytes: &[u8]) {
        let packet = WirePacket {
            remote: PEER,
            bytes: bytes.to_vec(),
        };
        self.board.lock().nic.inject(packet);
        self.touched = true;
    }

    /// Moves packets between the socket and the NIC until nothing more happens; says whether anything has.
    pub(crate) fn poll(&mut self, now_ns: u64, reading: SocketReading) -> Result<bool, WireLost> {
        self.now_ns = self.now_ns.max(now_ns);
        self.board.lock().nic.skip_to(self.now_ns / TICK_NS);
        let mut moved = false;
        if reading == SocketReading::Try || self.left_some {
            moved = self.receive()?;
        }
        let is_due = self.timer_ns <= self.now_ns;
        if self.now_ns - self.heard_ns > SILENCE_NS {
            // What has come while this end was not there counts.
            moved |= self.receive()?;
        }
        if self.now_ns - self.heard_ns > SILENCE_NS {
            return Err(WireLost("nothing has come from the peer for ten seconds".into()));
        }
        if is_due {
            self.timer_ns = self.now_ns + TIMER_NS;
        }
        if moved || is_due || std::mem::take(&mut self.touched) {
            moved |= self.settle(if is_due { TIMED_CYCLES } else { SETTLED_CYCLES })?;
        }
        Ok(moved)
    }

    fn receive(&mut self) -> Result<bool, WireLost> {
        self.left_some = false;
        for packet in 0..PACKETS_MAX {
            match self.socket.recv(&mut self.buffer) {
                Ok(bytes) => {
                    self.heard_ns = self.now_ns;
                    let bytes = self.buffer[..bytes].to_vec();
                    self.inject(&bytes);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(packet > 0),
                Err(error) => return Err(WireLost::from(error)),
            }
        }
        self.left_some = true;
        Ok(true)
    }

    /// Runs until nothing was seen of the NIC for so many cycles.
    fn settle(&mut self, cycles: u64) -> Result<bool, WireLost> {
        let mut moved = false;
        let NicBoard { nic, host } = &mut *self.board.lock();
        let until = nic.cycle() + cycles;
        while nic.cycle() < until || nic.idle_cycles() < cycles {
            host.poll(nic, self.now_ns)?;
            for _ in 0..LOOK_CYCLES {
                nic.step();
            }
            while let Some(packet) = nic.sent() {
                self.send(&packet.bytes)?;
                moved = true;
            }
        }
        host.poll(nic, self.now_ns)?;
        Ok(moved)
    }

    /// What the socket has no room for is lost, as it may be further on.
    fn send(&self, bytes: &[u8]) -> Result<(), WireLost> {
        match self.socket.send(bytes) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(WireLost::from(error)),
        }
    }
}

impl std::fmt::Debug for WiredNic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WiredNic")
            .field("board", &self.board.number())
            .finish_non_exhaustive()
    }
}

/// Why the peer is reached no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WireLost(pub(crate) String);

impl From<io::Error> for WireLost {
    fn from(error: io::Error) -> WireLost {
        if error.kind() == ErrorKind::ConnectionRefused {
            WireLost("nobody listens at the peer's address any more".into())
        } else {
            WireLost(error.to_string())
        }
    }
}

impl From<HostError> for WireLost {
    fn from(error: HostError) -> WireLost {
        WireLost(error.to_string())
    }
}

/// A number that nobody can guess.
pub(crate) fn draw_u64() -> io::Result<u64> {
    use ring::rand::SecureRandom;
    let mut bytes = [0; 8];
    let drawn = ring::rand::SystemRandom::new().fill(&mut bytes);
    drawn.map_err(|_| io::Error::other("the system gives no random numbers"))?;
    Ok(u64::from_le_bytes(bytes))
}
