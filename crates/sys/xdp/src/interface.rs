//! An interface whose packets pass by our program.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use provost_frames::Mac;

use crate::bpf::AttachMode;
use crate::error::XdpError;
use crate::options::Mode;
use crate::program::Program;

/// An interface with the program that picks packets out for its wires. Everything else goes on to the kernel. The program
/// is taken off when the last wire is gone.
#[derive(Clone, Debug)]
pub struct XdpInterface(pub(crate) Arc<Attached>);

#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) program: Program,
    pub(crate) number: u32,
    pub(crate) mac: Mac,
    pub(crate) mtu_bytes: usize,
}

impl XdpInterface {
    /// Puts the program onto the interface of this name, in the network namespace of this thread.
    ///
    /// # Errors
    /// If there is no such interface, or the kernel refuses: see the error for what may help.
    pub fn attach(name: &str, mode: Mode) -> Result<XdpInterface, XdpError> {
        let facts = Facts::of(name).map_err(|source| XdpError::Interface {
            name: name.to_owned(),
            source,
        })?;
        let modes: &[AttachMode] = match mode {
            Mode::Fastest => &[AttachMode::Driver, AttachMode::Generic],
            Mode::DriverOnly => &[AttachMode::Driver],
            Mode::GenericOnly => &[AttachMode::Generic],
        };
        Ok(XdpInterface(Arc::new(Attached {
            program: Program::attach(facts.number, modes)?,
            number: facts.number,
            mac: facts.mac,
            mtu_bytes: facts.mtu_bytes,
        })))
    }

    /// The interface's Ethernet address.
    #[must_use]
    pub fn mac(&self) -> Mac {
        self.0.mac
    }
}

/// What an interface tells of itself.
struct Facts {
    number: u32,
    mac: Mac,
    mtu_bytes: usize,
}

impl Facts {
    fn of(name: &str) -> io::Result<Facts> {
        // Any socket will do for these questions.
        let socket = UdpSocket::bind(("0.0.0.0", 0))?;
        // SAFETY: the kernel fills in the member of the union that belongs to each question.
        unsafe {
            let number = ask(&socket, name, libc::SIOCGIFINDEX)?.ifr_ifru.ifru_ifindex;
            let mac = ask(&socket, name, libc::SIOCGIFHWADDR)?
                .ifr_ifru
                .ifru_hwaddr
                .sa_data;
            let mtu = ask(&socket, name, libc::SIOCGIFMTU)?.ifr_ifru.ifru_mtu;
            Ok(Facts {
                number: u32::try_from(number).unwrap_or_default(),
                mac: Mac(std::array::from_fn(|at| mac[at] as u8)),
                mtu_bytes: usize::try_from(mtu).unwrap_or_default(),
            })
        }
    }
}

fn ask(socket: &UdpSocket, name: &str, question: libc::Ioctl) -> io::Result<libc::ifreq> {
    // SAFETY: zeros are a value of it.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() || name.contains('\0') {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the kernel reads and writes one such request; the name ends with a zero.
    match unsafe { libc::ioctl(socket.as_raw_fd(), question, &raw mut request) } {
        0 => Ok(request),
        _ => Err(io::Error::last_os_error()),
    }
}
