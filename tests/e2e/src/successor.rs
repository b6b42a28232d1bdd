//! A process that is to take over from a node, and fails. It speaks just enough of the language between the two (see
//! `docs/hot-restart.md`) to get to where it fails.

use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::Duration;

use provost_shm::{Interest, PacketSocket, Wait, wait_for};

/// Longest letter, in bytes.
const LETTER_BYTES_MAX: usize = 64 << 10;
/// How long a process hangs that hangs. The node ends it before.
const HANG: Duration = Duration::from_secs(3600);
/// The format of the state that the node sends.
const FORMAT: u8 = 1;
/// Letters: the number of the field that a letter has, and of its first field.
const READY: u8 = 2;
const FAILED: u8 = 3;
const STATE: u8 = 5;
const RESTORED: u8 = 7;
const COMMIT: u8 = 8;
const PARTIES: u8 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It ends at once.
    EndsAtOnce,
    Hangs,
    /// It says what nobody understands.
    TalksNonsense,
    /// It wants a state of another format.
    WantsAnotherFormat,
    /// It says that it cannot.
    Declines,
    /// It ends when it is given the state.
    EndsAtTheState,
    /// It is given the state, and says nothing.
    HangsAtTheState,
    /// It takes apps and callers in batches, and ends when the first has come.
    EndsAmongParties,
    /// It says that it cannot go on with the first of them.
    DeclinesAmongParties,
    /// It says that it has restored the state, and ends.
    EndsBeforeTheCommit,
    /// It says that it has restored the state, and does not go on.
    HangsAtTheCommit,
}

pub const FAULTS: [Fault; 11] = [
    Fault::EndsAtOnce,
    Fault::Hangs,
    Fault::TalksNonsense,
    Fault::WantsAnotherFormat,
    Fault::Declines,
    Fault::EndsAtTheState,
    Fault::HangsAtTheState,
    Fault::EndsAmongParties,
    Fault::DeclinesAmongParties,
    Fault::EndsBeforeTheCommit,
    Fault::HangsAtTheCommit,
];

impl Fault {
    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::EndsAtOnce => "ends-at-once",
            Fault::Hangs => "hangs",
            Fault::TalksNonsense => "talks-nonsense",
            Fault::WantsAnotherFormat => "wants-another-format",
            Fault::Declines => "declines",
            Fault::EndsAtTheState => "ends-at-the-state",
            Fault::HangsAtTheState => "hangs-at-the-state",
            Fault::EndsAmongParties => "ends-among-parties",
            Fault::DeclinesAmongParties => "declines-among-parties",
            Fault::EndsBeforeTheCommit => "ends-before-the-commit",
            Fault::HangsAtTheCommit => "hangs-at-the-commit",
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> Result<Fault, String> {
        let found = FAULTS.into_iter().find(|fault| fault.name() == name);
        found.ok_or_else(|| format!("{name} is no way to fail"))
    }
}

/// Fails in this way.
pub fn run(fault: Fault) -> Result<(), String> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let socket = PacketSocket::from(socket.map_err(|error| error.to_string())?);
    let old = Old(&socket);
    match fault {
        Fault::EndsAtOnce => {}
        Fault::Hangs => hang(),
        Fault::TalksNonsense => {
            old.say(&[0xff; 100])?;
            hang();
        }
        Fault::WantsAnotherFormat => {
            old.ready(FORMAT + 1)?;
            hang();
        }
        Fault::Declines => old.letter(FAILED, b"\x0a\x0bnot my type")?,
        Fault::EndsAtTheState => {
            old.ready(FORMAT)?;
            old.wait_for_letter(STATE)?;
        }
        Fault::HangsAtTheState => {
            old.ready(FORMAT)?;
            old.wait_for_letter(STATE)?;
            hang();
        }
        Fault::EndsAmongParties => {
            old.takes_parties_last()?;
            old.wait_for_letter(PARTIES)?;
        }
        Fault::DeclinesAmongParties => {
            old.takes_parties_last()?;
            old.wait_for_letter(PARTIES)?;
            old.letter(FAILED, b"\x0a\x0bnot my type")?;
            hang();
        }
        Fault::EndsBeforeTheCommit => {
            old.ready(FORMAT)?;
            old.letter(RESTORED, b"")?;
        }
        Fault::HangsAtTheCommit => {
            old.ready(FORMAT)?;
            old.letter(RESTORED, b"")?;
            old.wait_for_letter(COMMIT)?;
            hang();
        }
    }
    Ok(())
}

fn hang() {
    std::thread::sleep(HANG);
}

/// The process at the other end.
struct Old<'a>(&'a PacketSocket);

impl Old<'_> {
    fn say(&self, bytes: &[u8]) -> Result<(), String> {
        self.0.send(bytes, &[]).map_err(|error| error.to_string())
    }

    /// A protobuf message whose one field is a message.
    fn letter(&self, field: u8, content: &[u8]) -> Result<(), String> {
        let mut bytes = vec![field << 3 | 2, content.len() as u8];
        bytes.extend_from_slice(content);
        self.say(&bytes)
    }

    fn ready(&self, format: u8) -> Result<(), String> {
        // It says that it goes on with gRPC clients and calls of other nodes, so that they are among what it is given.
        self.letter(READY, &[0x0a, 1, b'x', 0x10, format, 0x18, 1, 0x28, 1])
    }

    /// As [`Old::ready`], and that it takes apps and callers last.
    fn takes_parties_last(&self) -> Result<(), String> {
        self.letter(
            READY,
            &[0x0a, 1, b'x', 0x10, FORMAT, 0x18, 1, 0x28, 1, 0x30, 1, 0x38, 1],
        )
    }

    /// Waits for a letter with this field.
    fn wait_for_letter(&self, field: u8) -> Result<(), String> {
        loop {
            wait_for(self.0, Interest::Readable, Wait::Forever).map_err(|error| error.to_string())?;
            match self.0.receive_batch(LETTER_BYTES_MAX) {
                Ok(Some(packet)) if packet.bytes.first() == Some(&(field << 3 | 2)) => return Ok(()),
                Ok(Some(_)) => {}
                Ok(None) => return Err("the node has gone".to_owned()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}
