//! TCP sockets for the data plane: they never block, send from many places at once, and read into two. And what the kernel says of
//! connections that it has redirected ([`transparent`]).
//!
//! Nothing here allocates, and nothing raises `SIGPIPE`.

mod bell;
mod gather;
pub mod transparent;

pub use bell::Bell;
pub use gather::{
    FollowUp, GATHER_PIECES_MAX, Gather, output_state, push, read_into, round_trips, unacknowledged_bytes,
    write_gather,
};

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Connections that may wait to be accepted.
const LISTEN_BACKLOG: i32 = 1024;
/// After how long of silence the kernel asks whether the peer is there, and how often then.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How many unanswered questions the kernel takes for the peer's end.
const KEEPALIVE_COUNT: u32 = 3;
/// Bytes that the kernel holds before they are on the wire. Past this, what is sent next is still ours to choose, so
/// that a small call can go ahead of a large message.
const UNSENT_BYTES_MAX: u32 = 256 << 10;

/// What came of an attempt to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes; more may be possible.
    Bytes(usize),
    /// Nothing now: the socket is empty, or full.
    NotNow,
    /// The peer has ended its direction (reading only).
    End,
}

/// How long it takes until a peer's kernel acknowledges what was sent, in microseconds; 0 where nothing was measured yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    pub smoothed_us: u32,
    /// At best, in the last minutes.
    pub least_us: u32,
}

/// What became of what a socket was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputState {
    /// Segments sent, those without bytes among them.
    pub sent_segments: u32,
    /// Bytes that the kernel has not sent yet.
    pub unsent_bytes: u32,
}

/// Listens on an address. The socket does not block.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Connects to the first of these addresses that answers, and gives up at the deadline. The socket blocks; see
/// [`make_ready`].
pub fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match TcpStream::connect_timeout(address, left) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Makes a connected socket fit for the data plane: it does not block, does not wait to fill segments, notices a dead
/// peer, and keeps little in the kernel that could be overtaken.
pub fn make_ready(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_COUNT)?;
    gather::set_unsent_bytes_max(stream, UNSENT_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::num::NonZeroUsize;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let near = connect(&[listener.local_addr().unwrap()], deadline).unwrap();
        let (far, _) = listener.accept().unwrap();
        make_ready(&near).unwrap();
        (near, far)
    }

    fn foreign(bytes: &[u8]) -> Gather<'_> {
        Gather::Foreign {
            address: NonZeroUsize::new(bytes.as_ptr().addr()).unwrap(),
            bytes: bytes.len(),
        }
    }

    #[test]
    fn pieces_arrive_in_order() {
        let (near, mut far) = pair();
        let app = b" from app memory ".to_vec();
        let pieces = [Gather::Private(b"private"), foreign(&app), Gather::Private(b"")];
        assert_eq!(
            write_gather(&near, pieces.into_iter(), FollowUp::Later).unwrap(),
            Moved::Bytes(24)
        );
        let mut got = [0; 24];
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"private from app memory ");
    }

    #[test]
    fn what_is_followed_waits_for_that_or_for_a_push() {
        let (near, mut far) = pair();
        let write = |bytes, following| {
            let pieces = std::iter::once(Gather::Private(bytes));
            write_gather(&near, pieces, following).unwrap();
            output_state(&near).unwrap().unsent_bytes
        };
        assert_eq!(write(b"a", FollowUp::Later), 0);
        assert_eq!(write(b"b", FollowUp::AtOnce), 1);
        assert_eq!(write(b"c", FollowUp::AtOnce), 2);
        assert_eq!(write(b"d", FollowUp::Later), 0);
        assert_eq!(write(b"e", FollowUp::AtOnce), 1);
        push(&near).unwrap();
        assert_eq!(output_state(&near).unwrap().unsent_bytes, 0);
        let mut got = [0; 5];
        far.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abcde");
    }

    #[test]
    fn a_full_socket_and_an_empty_one_say_not_now_and_a_closed_one_ends() {
        let (near, mut far) = pair();
        let block = vec![7; 1 << 20];
        while write_gather(&near, [Gather::Private(&block)].into_iter(), FollowUp::Later).unwrap()
            != Moved::NotNow
        {}
        let (mut first, mut second) = ([0; 4], [0; 16]);
        assert_eq!(read_into(&near, &mut first, &mut second).unwrap(), Moved::NotNow);
        far.write_all(b"12345").unwrap();
        far.shutdown(std::net::Shutdown::Write).unwrap();
        near.set_nonblocking(false).unwrap();
        assert_eq!(
            read_into(&near, &mut first, &mut second).unwrap(),
            Moved::Bytes(5)
        );
        assert_eq!((&first, second[0]), (b"1234", b'5'));
        assert_eq!(read_into(&near, &mut first, &mut second).unwrap(), Moved::End);
    }

    #[test]
    fn memory_that_is_not_mapped_is_an_error_and_a_dead_peer_no_signal() {
        let (near, far) = pair();
        let nowhere = Gather::Foreign {
            address: NonZeroUsize::new(4096).unwrap(),
            bytes: 8,
        };
        assert!(write_gather(&near, [nowhere].into_iter(), FollowUp::Later).is_err());
        drop(far);
        let mut result = Ok(Moved::NotNow);
        for _ in 0..1000 {
            result = write_gather(&near, [Gather::Private(b"anyone?")].into_iter(), FollowUp::Later);
            if result.is_err() {
                break;
            }
            std::thread::yield_now();
        }
        assert!(result.is_err());
    }
}
