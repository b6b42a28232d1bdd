//! Asking the kernel for the Ethernet address behind an IP address (rtnetlink(7)).
//!
//! The kernel answers each question at once, so nothing here waits.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use provost_frames::Mac;

/// Kinds of messages, and flags (`linux/rtnetlink.h`, `linux/neighbour.h`).
const NEW_NEIGHBOUR: u16 = 28;
const GET_NEIGHBOUR: u16 = 30;
const NEW_ROUTE: u16 = 24;
const GET_ROUTE: u16 = 26;
const REQUEST: u16 = 1;
const CREATE: u16 = 0x400;
/// Ask for the address on the link, if it is not known.
const NEIGHBOUR_USE: u8 = 1;
const NEIGHBOUR_DESTINATION: u16 = 1;
const NEIGHBOUR_ADDRESS: u16 = 2;
const ROUTE_DESTINATION: u16 = 1;
const ROUTE_INTERFACE: u16 = 4;
const ROUTE_GATEWAY: u16 = 5;
/// States of a neighbour whose Ethernet address can be used: reachable, stale, delay, probe, no ARP, permanent.
const STATES_USABLE: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
const STATE_FAILED: u16 = 0x20;
const GROUP_NEIGHBOURS: u32 = 4;

const MESSAGE_HEADER_BYTES: usize = 16;
const NEIGHBOUR_HEADER_BYTES: usize = 12;
const ROUTE_HEADER_BYTES: usize = 12;
/// Answers are far shorter.
const ANSWER_BYTES_MAX: usize = 8192;
/// Answers that are read before a question counts as not answered.
const ANSWERS_MAX: usize = 8;

/// Questions about one interface.
#[derive(Debug)]
pub(crate) struct Questions {
    socket: OwnedFd,
    interface: u32,
}

/// What the kernel tells of its own accord when an Ethernet address changes.
#[derive(Debug)]
pub(crate) struct News(Questions);

/// What the kernel says of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) interface: u32,
    pub(crate) ip: Ipv4Addr,
    /// `None` if nobody there answers.
    pub(crate) mac: Option<Mac>,
}

impl Questions {
    pub(crate) fn new(interface: u32) -> io::Result<Questions> {
        Ok(Questions {
            socket: open(0)?,
            interface,
        })
    }

    /// Who takes packets to this address on the interface: the host itself, or the router to it.
    pub(crate) fn next_hop(&self, to: Ipv4Addr) -> io::Result<Ipv4Addr> {
        let mut question = message(GET_ROUTE, REQUEST, &route_header());
        attribute(&mut question, ROUTE_DESTINATION, &to.octets());
        attribute(&mut question, ROUTE_INTERFACE, &self.interface.to_ne_bytes());
        let answer = self.ask(&mut question)?;
        let gateway = messages(&answer)
            .filter(|(kind, _)| *kind == NEW_ROUTE)
            .find_map(|(_, body)| find(body.get(ROUTE_HEADER_BYTES..)?, ROUTE_GATEWAY));
        Ok(gateway.and_then(address).unwrap_or(to))
    }

    /// The Ethernet address of a neighbour; when the kernel does not know it, it is told to find out.
    pub(crate) fn neighbour(&self, ip: Ipv4Addr) -> io::Result<Option<Mac>> {
        let mut question = message(GET_NEIGHBOUR, REQUEST, &self.neighbour_header(0));
        attribute(&mut question, NEIGHBOUR_DESTINATION, &ip.octets());
        let answer = self.ask(&mut question)?;
        let found = messages(&answer).find_map(|(kind, body)| neighbour(kind, body));
        if let Some(mac) = found.and_then(|neighbour| neighbour.mac) {
            return Ok(Some(mac));
        }
        let mut wish = message(
            NEW_NEIGHBOUR,
            REQUEST | CREATE,
            &self.neighbour_header(NEIGHBOUR_USE),
        );
        attribute(&mut wish, NEIGHBOUR_DESTINATION, &ip.octets());
        self.send(&mut wish)?;
        Ok(None)
    }

    fn neighbour_header(&self, flags: u8) -> [u8; NEIGHBOUR_HEADER_BYTES] {
        let mut header = [0; NEIGHBOUR_HEADER_BYTES];
        header[0] = libc::AF_INET as u8;
        header[4..8].copy_from_slice(&self.interface.to_ne_bytes());
        header[10] = flags;
        header
    }

    fn ask(&self, question: &mut [u8]) -> io::Result<Vec<u8>> {
        // Answers to former questions may still be there, such as refusals.
        while self.receive()?.is_some() {}
        self.send(question)?;
        Ok(self.receive()?.unwrap_or_default())
    }

    fn send(&self, question: &mut [u8]) -> io::Result<()> {
        let length = question.len() as u32;
        question[..4].copy_from_slice(&length.to_ne_bytes());
        // SAFETY: the kernel reads no more than the question.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                question.as_ptr().cast(),
                question.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    fn receive(&self) -> io::Result<Option<Vec<u8>>> {
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        // SAFETY: the kernel writes no more than there is room for.
        let bytes = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                answer.as_mut_ptr().cast(),
                answer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        let Ok(bytes) = usize::try_from(bytes) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        };
        answer.truncate(bytes);
        Ok(Some(answer))
    }
}

impl News {
    pub(crate) fn new(interface: u32) -> io::Result<News> {
        Ok(News(Questions {
            socket: open(GROUP_NEIGHBOURS)?,
            interface,
        }))
    }

    /// Neighbours of the interface of which there is something new; an error when some were missed.
    pub(crate) fn read(&self, mut take: impl FnMut(Neighbour)) -> io::Result<()> {
        for _ in 0..ANSWERS_MAX {
            let Some(told) = self.0.receive()? else {
                break;
            };
            messages(&told)
                .filter_map(|(kind, body)| neighbour(kind, body))
                .filter(|neighbour| neighbour.interface == self.0.interface)
                .for_each(&mut take);
        }
        Ok(())
    }
}

fn open(groups: u32) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, which is ours; the kernel reads an address whose every byte is set.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        let descriptor = libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(descriptor);
        let mut address: libc::sockaddr_nl = std::mem::zeroed();
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let bytes = size_of_val(&address) as libc::socklen_t;
        if libc::bind(descriptor, (&raw const address).cast(), bytes) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(socket)
    }
}

fn route_header() -> [u8; ROUTE_HEADER_BYTES] {
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[0] = libc::AF_INET as u8;
    header[1] = 32;
    header
}

/// A message without attributes; its length is filled in when it is sent.
fn message(kind: u16, flags: u16, header: &[u8]) -> Vec<u8> {
    let mut message = vec![0; MESSAGE_HEADER_BYTES];
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message.extend(header);
    message
}

fn attribute(message: &mut Vec<u8>, kind: u16, content: &[u8; 4]) {
    message.extend(8_u16.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(content);
}

/// Kinds and bodies of the messages; one whose length is wrong ends them.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
        let body = bytes.get(MESSAGE_HEADER_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The content of the first attribute of a kind.
fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        let content = attributes.get(4..length)?;
        if kind == wanted {
            return Some(content);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn address(content: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = content.try_into().ok()?;
    Some(Ipv4Addr::from(octets))
}

/// What a message says of a neighbour, if it says that its address is known, or that there is none.
fn neighbour(kind: u16, body: &[u8]) -> Option<Neighbour> {
    let (header, attributes) = body.split_first_chunk::<NEIGHBOUR_HEADER_BYTES>()?;
    let state = u16::from_ne_bytes([header[8], header[9]]);
    if kind != NEW_NEIGHBOUR || header[0] != libc::AF_INET as u8 {
        return None;
    }
    let mac = || find(attributes, NEIGHBOUR_ADDRESS)?.try_into().ok().map(Mac);
    let mac = match state {
        STATE_FAILED => None,
        usable if usable & STATES_USABLE != 0 => Some(mac()?),
        _ => return None,
    };
    Some(Neighbour {
        interface: u32::from_ne_bytes([header[4], header[5], header[6], header[7]]),
        ip: address(find(attributes, NEIGHBOUR_DESTINATION)?)?,
        mac,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn told(state: u16) -> Vec<u8> {
        let mut header = [0; NEIGHBOUR_HEADER_BYTES];
        header[0] = libc::AF_INET as u8;
        header[4] = 7;
        header[8..10].copy_from_slice(&state.to_ne_bytes());
        let mut told = message(NEW_NEIGHBOUR, 0, &header);
        told.extend([10, 0, 2, 0, 1, 2, 3, 4, 5, 6, 0, 0]);
        attribute(&mut told, NEIGHBOUR_DESTINATION, &[10, 0, 0, 9]);
        let length = told.len() as u32;
        told[..4].copy_from_slice(&length.to_ne_bytes());
        told
    }

    fn first(told: &[u8]) -> Option<Neighbour> {
        messages(told).find_map(|(kind, body)| neighbour(kind, body))
    }

    #[test]
    fn a_neighbour_is_read_by_its_state() {
        let of = |mac| {
            Some(Neighbour {
                interface: 7,
                ip: Ipv4Addr::new(10, 0, 0, 9),
                mac,
            })
        };
        assert_eq!(first(&told(0x02)), of(Some(Mac([1, 2, 3, 4, 5, 6]))));
        assert_eq!(first(&told(STATE_FAILED)), of(None));
        assert_eq!(first(&told(0x01)), None, "it is still being asked for");
        assert_eq!(
            first(&[told(0x01), told(0x80)].concat()),
            of(Some(Mac([1, 2, 3, 4, 5, 6])))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            first(&bytes);
        }

        #[test]
        fn a_changed_byte_is_survived(at in any::<proptest::sample::Index>(), value in any::<u8>()) {
            let mut bytes = told(0x02);
            let at = at.index(bytes.len());
            bytes[at] = value;
            first(&bytes);
        }
    }
}
