//! A server that is called, as what connects to it once more has to know it: this process, or one that takes over.

use std::io;

use provost_datapath::{FieldReader, FieldWriter};
use provost_transport_grpc::{self as grpc, ByteCarrier, LinkPurpose};

use super::same_server::SameServerCarrier;
use super::{GrpcServerTerms, GrpcServerTls, PeerAddress, ServerSocket};

/// Addresses of a name that are read.
const ADDRESSES_MAX: usize = 1_024;

/// See the module's documentation.
pub(super) struct CalledServer {
    /// As the route names it.
    pub(super) endpoint: String,
    /// Where the connection was made.
    pub(super) address: PeerAddress,
    pub(super) has_tls: bool,
    /// Further addresses of the endpoint, as it was looked up.
    pub(super) others: Vec<PeerAddress>,
    /// Who the server has proved to be, whom policies are told of; empty without TLS.
    pub(super) identity: String,
}

impl CalledServer {
    /// What a process that takes over is given. Where there is one address it is what earlier versions read, which know of no more.
    pub(super) fn saved(&self) -> Vec<u8> {
        let mut out = FieldWriter::new();
        out.text(&self.endpoint);
        out.text(&self.address.to_string());
        out.flag(self.has_tls);
        if !self.others.is_empty() {
            out.count(self.others.len());
            self.others.iter().for_each(|other| out.text(&other.to_string()));
            out.text(&self.identity);
        }
        out.bytes
    }

    /// What another process has saved; none where that makes no sense here.
    pub(super) fn read(saved: &[u8]) -> Option<CalledServer> {
        let mut fields = FieldReader::new(grpc::KIND, saved);
        let mut server = CalledServer {
            endpoint: fields.text().ok()?.to_owned(),
            address: PeerAddress::read(fields.text().ok()?)?,
            has_tls: fields.flag().ok()?,
            others: Vec::new(),
            identity: String::new(),
        };
        if fields.is_at_end() {
            return Some(server);
        }
        for _ in 0..fields.count(ADDRESSES_MAX).ok()? {
            server.others.push(PeerAddress::read(fields.text().ok()?)?);
        }
        server.identity = fields.text().ok()?.to_owned();
        fields.end().is_ok().then_some(server)
    }

    /// Connects to it once more, as its route says. Connections beside the first one go to its addresses in turns.
    pub(super) fn dialer(self, terms: GrpcServerTerms) -> grpc::LinkDialer {
        let mut turns = 0;
        Box::new(move |purpose| {
            let address = match purpose {
                LinkPurpose::Replacement => &self.address,
                LinkPurpose::Beside => {
                    turns += 1;
                    self.in_turn(turns)
                }
            };
            self.dial(address, &terms)
        })
    }

    /// The address of the connection is the first one of each turn.
    fn in_turn(&self, turn: usize) -> &PeerAddress {
        match turn % (1 + self.others.len()) {
            0 => &self.address,
            other => &self.others[other - 1],
        }
    }

    fn dial(&self, address: &PeerAddress, terms: &GrpcServerTerms) -> io::Result<Box<dyn ByteCarrier>> {
        let socket = ServerSocket::dial(address, terms.mark)?;
        match &terms.tls {
            None => Ok(socket.carrier()),
            Some(tls) => self.carrier_within(tls, socket),
        }
    }

    fn carrier_within(&self, tls: &GrpcServerTls, socket: ServerSocket) -> io::Result<Box<dyn ByteCarrier>> {
        Ok(match socket {
            ServerSocket::Tcp(stream) => {
                let stream = tls.around(stream, &self.endpoint)?;
                Box::new(SameServerCarrier::new(stream, &self.identity))
            }
            ServerSocket::Unix(stream) => {
                let stream = tls.around(stream, &self.endpoint)?;
                Box::new(SameServerCarrier::new(stream, &self.identity))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(others: &[&str]) -> CalledServer {
        let address = |text: &&str| PeerAddress::read(text).unwrap();
        CalledServer {
            endpoint: "servers.test:1".to_owned(),
            address: address(&"127.0.0.1:1"),
            has_tls: true,
            others: others.iter().map(address).collect(),
            identity: "servers.test".to_owned(),
        }
    }

    #[test]
    fn what_is_saved_is_read_again_and_one_address_as_earlier_versions_have_it() {
        let several = server(&["127.0.0.2:1", "[::1]:1"]);
        let read = CalledServer::read(&several.saved()).unwrap();
        assert_eq!(
            (&read.endpoint, &read.address),
            (&several.endpoint, &several.address)
        );
        assert_eq!(
            (&read.others, &read.identity),
            (&several.others, &several.identity)
        );
        let mut before = FieldWriter::new();
        before.text("servers.test:1");
        before.text("127.0.0.1:1");
        before.flag(true);
        assert_eq!(server(&[]).saved(), before.bytes);
        assert!(CalledServer::read(&before.bytes).unwrap().others.is_empty());
        let whole = several.saved();
        assert!(CalledServer::read(&whole[..whole.len() - 1]).is_none());
    }

    #[test]
    fn addresses_are_called_in_turns_and_the_first_ones_is_the_last() {
        let server = server(&["127.0.0.2:1", "127.0.0.3:1"]);
        let turns: Vec<String> = (1..=4).map(|turn| server.in_turn(turn).to_string()).collect();
        assert_eq!(
            turns,
            ["127.0.0.2:1", "127.0.0.3:1", "127.0.0.1:1", "127.0.0.2:1"]
        );
    }
}
