//! One NIC, driven ring by ring and packet by packet.

use provost_datagram::Checking;
use provost_datagram::packet::{Flags, Head, Header, Kind, Prefix};
use provost_nic::registers::{self, CounterName};
use provost_nic::{
    Balance, Board, COMMAND_LOAD, CONTROL_CHECKING, CONTROL_ENABLE, ConnectionLine, ConnectionRole,
    EntryHead, EntryKind, FetchMode, FlowShape, Received, RingDriver,
};
use provost_nic_model::{HostTiming, ModelUnavailable, SimulatedNic, WirePacket};

pub const PEER: u64 = 0x0a00_0001_1f90;
/// The token of the peer's packets.
pub const LOCAL_TOKEN: u32 = 0x0102_0304;
/// The number and token of the NIC's packets.
pub const REMOTE: (u16, u32) = (0x1122, 0x5566_7788);
/// Connection 1 makes calls, connection 2 handles them.
pub const CLIENT: u16 = 1;
pub const SERVER: u16 = 2;
/// Cycles after which whatever follows from something has happened.
const SETTLED_CYCLES: u64 = 1_500;

/// A NIC with four flows of 16 slots of 8 lines, a client's connection and a server's.
pub struct NicRig {
    pub nic: SimulatedNic,
    pub rings: Vec<RingDriver>,
}

impl NicRig {
    /// A NIC whose packets carry a check or not; the server's requests go to flows 0 to 3.
    ///
    /// # Errors
    /// If there is no model of it.
    ///
    /// # Panics
    /// If a flow does not start.
    pub fn new(checking: Checking, balance: Balance) -> Result<NicRig, ModelUnavailable> {
        let nic = SimulatedNic::new(1 << 14, HostTiming::default())?;
        Ok(NicRig::of(nic, checking, balance))
    }

    /// The same, with a NIC that has 2^14 lines of host memory.
    ///
    /// # Panics
    /// If a flow does not start.
    #[must_use]
    pub fn of(mut nic: SimulatedNic, checking: Checking, balance: Balance) -> NicRig {
        let mut rings = Vec::new();
        for flow in 0..4 {
            let shape = FlowShape {
                flow,
                base: 4096 + u32::from(flow) * 1024,
                slots_log2: 4,
                slot_lines_log2: 3,
                fetch: FetchMode::Polled,
                calls_max: 8,
            };
            rings.push(RingDriver::start(&mut nic, shape).expect("the shape can be"));
        }
        nic.write_register(registers::TIMEOUT, 100_000);
        let checked = if checking == Checking::Packets {
            CONTROL_CHECKING
        } else {
            0
        };
        nic.write_register(registers::CONTROL, CONTROL_ENABLE | checked);
        let mut rig = NicRig { nic, rings };
        for (number, role) in [(CLIENT, ConnectionRole::Client), (SERVER, ConnectionRole::Server)] {
            rig.load(number, role, balance, 0);
        }
        rig
    }

    /// Begins a connection, whose requests draw from this bucket.
    pub fn load(&mut self, number: u16, role: ConnectionRole, balance: Balance, bucket: u8) {
        let line = ConnectionLine {
            role,
            slots: 8,
            balance,
            bucket,
            flows: (0, 4),
            local_token: LOCAL_TOKEN,
            remote_token: REMOTE.1,
            remote_number: REMOTE.0,
            payload_bytes_max: 400,
            remote: PEER,
        };
        self.nic.write_line(number.into(), &line.encode());
        self.nic
            .write_register(registers::CONNECTION, COMMAND_LOAD | u32::from(number));
        while self.nic.read_register(registers::CONNECTION_BUSY) == 1 {}
    }

    /// Lets everything happen that follows.
    pub fn settle(&mut self) {
        let until = self.nic.cycle() + SETTLED_CYCLES;
        while self.nic.cycle() < until {
            self.nic.step();
        }
    }

    pub fn counter(&mut self, name: CounterName) -> u32 {
        self.nic.read_register(registers::counter(name as u16))
    }

    /// Has a packet arrive from the peer, and lets happen what follows.
    pub fn inject(&mut self, bytes: &[u8]) {
        self.nic.inject(WirePacket {
            remote: PEER,
            bytes: bytes.to_vec(),
        });
        self.settle();
    }

    /// A request of the peer to the server's connection.
    #[must_use]
    pub fn request(slot: u8, call: u32, method: u16, payload: &[u8], checking: Checking) -> Vec<u8> {
        NicRig::request_to(SERVER, slot, call, method, payload, checking)
    }

    /// The same, to this connection.
    #[must_use]
    pub fn request_to(
        session: u16,
        slot: u8,
        call: u32,
        method: u16,
        payload: &[u8],
        checking: Checking,
    ) -> Vec<u8> {
        let header = Header {
            kind: Kind::Request,
            flags: Flags::NONE,
            slot,
            session,
            token: LOCAL_TOKEN,
            call,
            packet: 0,
        };
        let prefix = Prefix {
            message_bytes: payload.len() as u32,
            code: method,
            held: 0,
        };
        let head = Head::of_data(&header, &prefix).seal(payload, checking);
        [head.bytes(), payload].concat()
    }

    /// Writes an entry into a flow's ring.
    ///
    /// # Panics
    /// If it has no room.
    pub fn send(
        &mut self,
        flow: usize,
        kind: EntryKind,
        connection: u16,
        code: u16,
        tag: u64,
        payload: &[u8],
    ) {
        let head = EntryHead {
            kind,
            bytes: 0,
            connection,
            code,
            tag,
            remote: PEER,
        };
        self.rings[flow]
            .send(&mut self.nic, &head, payload)
            .expect("there is room");
    }

    /// What a flow has received; its slots are freed.
    pub fn receive(&mut self, flow: usize) -> Vec<Received> {
        let mut all = Vec::new();
        while let Some(received) = self.rings[flow].receive(&mut self.nic) {
            all.push(received);
        }
        self.rings[flow].flush(&mut self.nic);
        all
    }

    /// Packets that the NIC has sent.
    pub fn sent(&mut self) -> Vec<WirePacket> {
        std::iter::from_fn(|| self.nic.sent()).collect()
    }
}
