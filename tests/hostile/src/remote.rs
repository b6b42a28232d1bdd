//! Attackers that are neither app nor node: whoever reaches the port at which a node lets other nodes in.
//!
//! Each attack runs until it is told to stop, from an address of its own (Linux has all of 127.0.0.0/8), as a node counts
//! handshakes by address.

pub mod datagrams;
pub mod streams;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use provost_e2e::peer::Claim;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

use crate::random::{Random, random_of};
use crate::report::Report;
use crate::scene::Stop;

/// How long an attacker waits for the node to say something, or to take what it says.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// The last number of the first attacker's address. Good nodes are at 127.0.0.1.
const FIRST_SOURCE: u8 = 2;

/// What remote attackers need.
#[derive(Clone, Debug)]
pub struct RemoteScene {
    /// Where the node lets other nodes in, over TCP and over datagrams.
    pub target: SocketAddr,
    /// What an honest peer says of itself.
    pub claim: Claim,
    /// What an honest peer says first: a `HELLO`, or a ClientHello of TLS.
    pub opening: Vec<u8>,
    pub report: Report,
    pub stop: Stop,
}

/// An attack, from a source of this address.
pub type RemoteAttack = fn(&RemoteScene, Ipv4Addr, &mut Random);

/// Attacks on a node's port for TCP whose first bytes are enough; they need no handshake that succeeds.
pub const UNWELCOME: [(&str, RemoteAttack); 4] = [
    ("half-open", streams::half_open),
    ("drip", streams::drip),
    ("flood", streams::flood),
    ("nonsense", streams::nonsense),
];

/// Attacks of peers that the node has welcomed.
pub const WELCOMED: [(&str, RemoteAttack); 3] = [
    ("come-and-go", streams::come_and_go),
    ("announce", streams::announce),
    ("garbage", streams::garbage),
];

/// Peers that send nearly all of the largest messages, and stop.
pub const NEARLY_ALL: [(&str, RemoteAttack); 2] = [("nearly all", streams::nearly_all); 2];

/// Attacks of peers whose schemas cost much to read, from several addresses.
pub const SCHEMA_BOMBS: [(&str, RemoteAttack); 4] = [("schema bombs", streams::schema_bombs); 4];

/// Attacks on a node's port for datagrams.
pub const DATAGRAMS: [(&str, RemoteAttack); 3] = [
    ("opens", datagrams::opens),
    ("copied-opens", datagrams::copied_opens),
    ("noise", datagrams::noise),
];

/// Attacks that go on.
#[derive(Debug)]
pub struct RemoteAttackers {
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

impl RemoteAttackers {
    /// Begins attacks, each on a thread and from an address of its own.
    #[must_use]
    pub fn begin(
        scene: &RemoteScene,
        attacks: &[(&'static str, RemoteAttack)],
        seed: u64,
    ) -> RemoteAttackers {
        let begin = |(number, (_, attack)): (usize, &(&str, RemoteAttack))| {
            let (scene, attack) = (scene.clone(), *attack);
            let source = Ipv4Addr::new(127, 0, 0, FIRST_SOURCE + number as u8);
            let mut random = random_of(seed, number as u64);
            std::thread::spawn(move || attack(&scene, source, &mut random))
        };
        RemoteAttackers {
            stop: scene.stop.clone(),
            threads: attacks.iter().enumerate().map(begin).collect(),
        }
    }

    /// Ends them, and waits for that.
    ///
    /// # Panics
    /// When one of them has.
    pub fn end(self) {
        self.stop.set();
        for thread in self.threads {
            thread.join().expect("an attacker");
        }
    }
}

/// A connection to an address, from this one.
///
/// # Errors
/// The address cannot be reached, or there is no descriptor left.
pub fn connect_from(source: Ipv4Addr, target: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    bind(&socket, &SocketAddrV4::new(source, 0))?;
    connect(&socket, &target)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.set_write_timeout(Some(WAIT_MAX))?;
    Ok(stream)
}
