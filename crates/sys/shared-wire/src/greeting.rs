//! What two processes say to each other, once, over a Unix socket: each hands over its memory and its doorbell.
//!
//! A greeting is 16 bytes, little-endian: `PVSW`, version (1 byte), whether this process takes barriers from the kernel
//! (1 byte), zeros (2), slots (4), bytes of the largest packet (4). Beside it go two descriptors: the memory, and the end of
//! a pipe that wakes the sender.

use std::time::{Duration, Instant};

use provost_shm::{AsFd, Interest, OwnedFd, PacketSocket, Wait, wait_for};

use crate::SetupError;
use crate::region::Shape;

const MAGIC: [u8; 4] = *b"PVSW";
const VERSION: u8 = 1;
const BYTES: usize = 16;
/// How long the peer may take to greet.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);

/// Whether a process has the kernel interrupt it with memory barriers that its peer asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barriers {
    /// It does: it need not have any itself when it sends.
    Kernel,
    /// It must have its own.
    Own,
}

/// What a process tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) shape: Shape,
    pub(crate) barriers: Barriers,
}

/// What the peer has told, and handed over.
#[derive(Debug)]
pub(crate) struct Greeted {
    pub(crate) greeting: Greeting,
    pub(crate) memory: OwnedFd,
    pub(crate) ringer: OwnedFd,
}

impl Greeting {
    pub(crate) fn send(
        self,
        socket: &PacketSocket,
        memory: impl AsFd,
        ringer: impl AsFd,
    ) -> Result<(), SetupError> {
        socket
            .send(&self.encode(), &[memory.as_fd(), ringer.as_fd()])
            .map_err(SetupError::system("greet the peer"))
    }

    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = u8::from(self.barriers == Barriers::Kernel);
        bytes[8..12].copy_from_slice(&self.shape.ring_packets.to_le_bytes());
        bytes[12..].copy_from_slice(&self.shape.packet_bytes.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Greeting, SetupError> {
        let bytes: &[u8; BYTES] = bytes
            .try_into()
            .map_err(|_| peer("sent a greeting of another length"))?;
        if bytes[..4] != MAGIC {
            return Err(peer("sent something else than a greeting"));
        }
        if bytes[4] != VERSION {
            return Err(peer("speaks another version"));
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let barriers = match bytes[5] {
            0 => Barriers::Own,
            _ => Barriers::Kernel,
        };
        Ok(Greeting {
            shape: Shape {
                ring_packets: word(8),
                packet_bytes: word(12),
            },
            barriers,
        })
    }
}

/// Waits for the peer's greeting.
pub(crate) fn receive(socket: &PacketSocket) -> Result<Greeted, SetupError> {
    let until = Instant::now() + GREETING_TIME_MAX;
    let packet = loop {
        match socket.receive(BYTES) {
            Ok(Some(packet)) => break packet,
            Ok(None) => return Err(peer("hung up instead of greeting")),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(SetupError::system("receive the peer's greeting")(error)),
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(peer("did not greet in time"));
        }
        let wait = Wait::AtMost(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
        wait_for(socket, Interest::Readable, wait).map_err(SetupError::system("wait for the peer"))?;
    };
    let greeting = Greeting::decode(&packet.bytes)?;
    let [memory, ringer]: [OwnedFd; 2] = packet
        .descriptors
        .try_into()
        .map_err(|_| peer("did not pass two descriptors"))?;
    Ok(Greeted {
        greeting,
        memory,
        ringer,
    })
}

fn peer(what: &'static str) -> SetupError {
    SetupError::Peer { what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_comes_back_as_it_was_and_others_are_refused() {
        let shape = Shape {
            ring_packets: 64,
            packet_bytes: 1472,
        };
        for barriers in [Barriers::Kernel, Barriers::Own] {
            let greeting = Greeting { shape, barriers };
            assert_eq!(Greeting::decode(&greeting.encode()).unwrap(), greeting);
        }
        let mut bytes = Greeting {
            shape,
            barriers: Barriers::Own,
        }
        .encode();
        assert!(Greeting::decode(&bytes[..15]).is_err());
        bytes[4] = 9;
        assert!(
            Greeting::decode(&bytes)
                .unwrap_err()
                .to_string()
                .contains("version")
        );
        bytes[0] = 0;
        assert!(Greeting::decode(&bytes).is_err());
    }
}
