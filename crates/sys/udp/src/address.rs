//! Addresses in the kernel's form.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// An address of either family, as the kernel reads and writes it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union Name {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    family: libc::sa_family_t,
}

/// Bytes of the largest.
pub(crate) const NAME_BYTES: libc::socklen_t = size_of::<Name>() as libc::socklen_t;

impl Name {
    pub(crate) const EMPTY: Name = Name {
        v6: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    /// The kernel's form of an address, and its length.
    #[inline]
    pub(crate) fn of(address: SocketAddr) -> (Name, libc::socklen_t) {
        let mut name = Name::EMPTY;
        match address {
            SocketAddr::V4(v4) => {
                name.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(v4.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                (name, size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            SocketAddr::V6(v6) => {
                name.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
                (name, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// The address, if it is of a family that a UDP socket has.
    #[inline]
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        // SAFETY: every variant begins with the family, and any bytes are a valid value of each.
        unsafe {
            match i32::from(self.family) {
                libc::AF_INET => {
                    let ip = Ipv4Addr::from(self.v4.sin_addr.s_addr.to_ne_bytes());
                    Some(SocketAddrV4::new(ip, u16::from_be(self.v4.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let v6 = self.v6;
                    let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    let port = u16::from_be(v6.sin6_port);
                    Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
                }
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_went() {
        let texts = ["127.0.0.1:80", "10.1.2.3:65535", "[::1]:9", "[fe80::1%3]:7"];
        for address in texts.map(|text| text.parse::<SocketAddr>().unwrap()) {
            assert_eq!(Name::of(address).0.address(), Some(address));
        }
        assert_eq!(Name::EMPTY.address(), None);
    }
}
