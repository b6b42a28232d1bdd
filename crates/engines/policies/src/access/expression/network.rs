//! Networks in CIDR notation, and addresses that lie in them.

use std::net::{IpAddr, SocketAddr};

use super::evaluate::Failure;

/// Bytes of the longest text that is read as an address: IPv6 with a zone, brackets and a port.
const ADDRESS_BYTES_MAX: usize = 64;

/// Addresses whose first bits are the same. No IPv4 address lies in a network of IPv6, however it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AddressNetwork {
    first: AddressBits,
    prefix: u32,
}

/// An address as a number, its first bit the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressBits {
    V4(u32),
    V6(u128),
}

impl AddressBits {
    fn of(address: IpAddr) -> AddressBits {
        match address.to_canonical() {
            IpAddr::V4(address) => AddressBits::V4(address.to_bits()),
            IpAddr::V6(address) => AddressBits::V6(address.to_bits()),
        }
    }

    fn count(self) -> u32 {
        match self {
            AddressBits::V4(_) => u32::BITS,
            AddressBits::V6(_) => u128::BITS,
        }
    }

    /// With zeros behind so many bits.
    fn masked(self, prefix: u32) -> AddressBits {
        match self {
            AddressBits::V4(bits) => AddressBits::V4(bits & !u32::MAX.checked_shr(prefix).unwrap_or(0)),
            AddressBits::V6(bits) => AddressBits::V6(bits & !u128::MAX.checked_shr(prefix).unwrap_or(0)),
        }
    }
}

impl AddressNetwork {
    /// Reads `10.0.0.0/8`, or an address alone. The error says what is wrong.
    pub(crate) fn parse(text: &str) -> Result<AddressNetwork, String> {
        let (address, prefix) = text
            .split_once('/')
            .map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let parsed: IpAddr = address
            .parse()
            .map_err(|_| format!("{address:?} is no address of IPv4 or IPv6"))?;
        let first = AddressBits::of(parsed);
        let longest = first.count();
        let prefix = match prefix {
            None => longest,
            Some(prefix) => prefix
                .parse()
                .ok()
                .filter(|bits| *bits <= longest)
                .ok_or_else(|| format!("{prefix:?} is no length from 0 to {longest}"))?,
        };
        if first.masked(prefix) == first {
            Ok(AddressNetwork { first, prefix })
        } else {
            Err(format!(
                "{address} has bits behind the first {prefix}, which say nothing"
            ))
        }
    }

    /// Whether an address lies in it, with a port or without. An empty text, as the address of a peer on the same node is,
    /// lies in none.
    pub(crate) fn contains(self, text: &str) -> Result<bool, Failure> {
        if text.is_empty() {
            return Ok(false);
        }
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(Failure::NotAddress);
        }
        let with_port = text.parse().map(|address: SocketAddr| address.ip());
        let address = with_port.or_else(|_| text.parse());
        let bits = AddressBits::of(address.map_err(|_| Failure::NotAddress)?);
        Ok(bits.count() == self.first.count() && bits.masked(self.prefix) == self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_in(address: &str, network: &str) -> Result<bool, Failure> {
        AddressNetwork::parse(network).unwrap().contains(address)
    }

    #[test]
    fn addresses_lie_in_networks_that_begin_as_they_do() {
        for (address, network, expected) in [
            ("10.1.2.3", "10.0.0.0/8", true),
            ("10.1.2.3:4000", "10.0.0.0/8", true),
            ("11.0.0.1:4000", "10.0.0.0/8", false),
            ("192.0.2.7:1", "192.0.2.6/31", true),
            ("192.0.2.7:1", "192.0.2.7", true),
            ("192.0.2.8", "192.0.2.7/32", false),
            ("203.0.113.9", "0.0.0.0/0", true),
            ("2001:db8::1", "2001:db8::/32", true),
            ("[2001:db8::1]:443", "2001:db8::/32", true),
            ("[fe80::1%3]:443", "fe80::/10", true),
            ("2001:db9::1", "2001:db8::/32", false),
            ("::ffff:10.1.2.3", "10.0.0.0/8", true),
            ("10.1.2.3", "::/0", false),
            ("2001:db8::1", "0.0.0.0/0", false),
            ("", "0.0.0.0/0", false),
        ] {
            assert_eq!(is_in(address, network), Ok(expected), "{address} {network}");
        }
        for no_address in [
            "localhost",
            "10.1.2",
            "10.1.2.3/8",
            &"1".repeat(ADDRESS_BYTES_MAX + 1),
        ] {
            assert_eq!(is_in(no_address, "0.0.0.0/0"), Err(Failure::NotAddress));
        }
    }

    #[test]
    fn what_is_no_network_is_named() {
        for (text, problem) in [
            ("10.0.0.1/8", "bits behind the first 8"),
            ("10.0.0.0/33", "0 to 32"),
            ("::/129", "0 to 128"),
            ("10.0.0.0/", "0 to 32"),
            ("ten/8", "no address"),
        ] {
            let error = AddressNetwork::parse(text).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
