//! The program that runs for every packet of an interface, and says which of them come to us.
//!
//! ```text
//! a whole UDP packet over plain IPv4? ─no─► the kernel's stack
//!   │ yes
//! addresses[destination port] == destination address? ─no─► the kernel's stack
//!   │ yes
//! sockets[queue that it came by] ─none─► the kernel's stack
//!   │
//!   ▼ AF_XDP socket
//! ```

use std::io;
use std::net::SocketAddrV4;

use crate::bpf::{self, AttachMode, Instruction, Link, Map, MapKind};
use crate::error::XdpError;

/// Queues of an interface at most.
pub(crate) const QUEUES_MAX: u32 = 256;
const PORTS: u32 = 1 << 16;

const NEEDS: &str =
    "give the process CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW (or run it as root), on Linux 5.9 or later";

/// An interface's program with its maps. It is taken off when this is dropped, or the process ends.
#[derive(Debug)]
pub(crate) struct Program {
    /// By port, in the network's order of bytes: the address that is ours, or zero.
    addresses: Map,
    /// By queue: the socket.
    sockets: Map,
    _link: Link,
}

impl Program {
    /// Loads the program, and puts it onto the interface: in its driver where that can, unless told otherwise.
    pub(crate) fn attach(interface: u32, modes: &[AttachMode]) -> Result<Program, XdpError> {
        let map =
            |kind, entries| Map::new(kind, entries).map_err(XdpError::kernel("making a BPF map", NEEDS));
        let addresses = map(MapKind::Array, PORTS)?;
        let sockets = map(MapKind::Sockets, QUEUES_MAX)?;
        let instructions = instructions(addresses.descriptor(), sockets.descriptor());
        let program = bpf::load(&instructions).map_err(|(source, log)| XdpError::Program { source, log })?;
        let mut outcome = Err(io::Error::from(io::ErrorKind::Unsupported));
        for mode in modes {
            outcome = Link::attach(&program, interface, *mode);
            if outcome.is_ok() {
                break;
            }
        }
        let link = outcome.map_err(XdpError::kernel(
            "attaching the XDP program",
            "only one program can be on an interface: `ip link` shows it, `ip link set DEVICE xdp off` takes it off; \
             an MTU above the driver's limit for XDP (on many, 3,498) also refuses it",
        ))?;
        Ok(Program {
            addresses,
            sockets,
            _link: link,
        })
    }

    /// From now on, packets to this address that come by this queue go to this socket.
    pub(crate) fn direct(&self, address: SocketAddrV4, queue: u32, socket: i32) -> Result<(), XdpError> {
        let refused = XdpError::kernel(
            "directing packets to a socket",
            "the queue may be taken by another wire",
        );
        self.sockets.set(queue, socket as u32).map_err(&refused)?;
        self.addresses
            .set(port_key(address), u32::from_ne_bytes(address.ip().octets()))
            .map_err(&refused)
    }

    /// Packets to this address, and those of this queue, go to the kernel again.
    pub(crate) fn release(&self, address: SocketAddrV4, queue: u32) {
        // Neither can fail but by our own fault, and then packets are still not ours: the socket is closed.
        let _ = self.addresses.set(port_key(address), 0);
        let _ = self.sockets.remove(queue);
    }
}

fn port_key(address: SocketAddrV4) -> u32 {
    u32::from(u16::from_ne_bytes(address.port().to_be_bytes()))
}

/// Registers: r1 to r5 are arguments, r6 to r9 survive calls, r10 is the end of the stack.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
const R4: u8 = 4;
const R6: u8 = 6;
const R7: u8 = 7;
const R10: u8 = 10;

/// Helpers, and what a program can return (`linux/bpf.h`).
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
/// Where `struct xdp_md` has what is read.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

/// The network's order of bytes, as this processor loads it.
const fn network(value: u16) -> i32 {
    u16::from_ne_bytes(value.to_be_bytes()) as i32
}

fn instructions(addresses: i32, sockets: i32) -> Vec<Instruction> {
    let mut program = vec![
        move_register(R6, R1),
        load_word(R7, R1, DATA),
        load_word(R3, R1, DATA_END),
        move_register(R2, R7),
        add(R2, provost_frames::HEADER_BYTES as i32),
        pass_if_greater(R2, R3),
        load_half(R4, R7, 12),
        pass_unless(R4, network(0x0800)),
        load_byte(R4, R7, 14),
        pass_unless(R4, 0x45),
        load_byte(R4, R7, 23),
        pass_unless(R4, 17),
        load_half(R4, R7, 20),
        and(R4, network(0x3fff)),
        pass_unless(R4, 0),
        load_half(R4, R7, 36),
        store_word(R10, R4, -4),
    ];
    program.extend(load_map(R1, addresses));
    program.extend([
        move_register(R2, R10),
        add(R2, -4),
        call(MAP_LOOKUP),
        pass_if(R0, 0),
        load_word(R3, R0, 0),
        load_word(R4, R7, 30),
        pass_unless_same(R4, R3),
        load_word(R2, R6, QUEUE),
    ]);
    program.extend(load_map(R1, sockets));
    program.extend([
        // What is returned when the queue has no socket.
        set(R3, XDP_PASS),
        call(REDIRECT_MAP),
        EXIT,
        set(R0, XDP_PASS),
        EXIT,
    ]);
    resolve(program)
}

/// Marks a jump to the end that passes packets on, until [`resolve`] knows how far that is.
const TO_PASS: i16 = i16::MAX;

/// Jumps are relative to the next instruction.
fn resolve(mut program: Vec<Instruction>) -> Vec<Instruction> {
    let pass = program.len() - 2;
    for (at, instruction) in program.iter_mut().enumerate() {
        if instruction.offset == TO_PASS {
            instruction.offset = (pass - at - 1) as i16;
        }
    }
    program
}

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: from << 4 | to,
        offset,
        immediate,
    }
}

const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

fn move_register(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

fn set(to: u8, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}

fn add(to: u8, value: i32) -> Instruction {
    instruction(0x07, to, 0, 0, value)
}

fn and(to: u8, value: i32) -> Instruction {
    instruction(0x57, to, 0, 0, value)
}

fn load_word(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x61, to, from, offset, 0)
}

fn load_half(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x69, to, from, offset, 0)
}

fn load_byte(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x71, to, from, offset, 0)
}

fn store_word(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x63, to, from, offset, 0)
}

fn pass_if_greater(register: u8, than: u8) -> Instruction {
    instruction(0x2d, register, than, TO_PASS, 0)
}

fn pass_unless(register: u8, value: i32) -> Instruction {
    instruction(0x55, register, 0, TO_PASS, value)
}

fn pass_unless_same(register: u8, other: u8) -> Instruction {
    instruction(0x5d, register, other, TO_PASS, 0)
}

fn pass_if(register: u8, value: i32) -> Instruction {
    instruction(0x15, register, 0, TO_PASS, value)
}

fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

/// A map's address takes two instructions; the kernel puts it in the place of the descriptor.
fn load_map(to: u8, descriptor: i32) -> [Instruction; 2] {
    const PSEUDO_MAP: u8 = 1;
    [
        instruction(0x18, to, PSEUDO_MAP, 0, descriptor),
        instruction(0, 0, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_jump_goes_to_the_end_that_passes_packets_on() {
        let program = instructions(3, 4);
        let pass = program.len() - 2;
        let jumps = [0x2d, 0x55, 0x5d, 0x15];
        let targets = program
            .iter()
            .enumerate()
            .filter(|(_, one)| jumps.contains(&one.code));
        let targets: Vec<usize> = targets.map(|(at, one)| at + 1 + one.offset as usize).collect();
        assert_eq!(targets, vec![pass; 7]);
        assert_eq!(program[pass..], [set(R0, XDP_PASS), EXIT]);
    }
}
