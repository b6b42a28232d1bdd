//! `grpc.channelz.v1.Channelz` (gRFC A14): the node's connections of gRPC. A listener is a server, each of its clients a socket of it;
//! each connection to a gRPC server is a channel with one subchannel, which has a socket for each connection of HTTP/2 that it has.
//!
//! Whoever may ask sees all of them, so a listener has it only where `node_services` names it.

mod messages;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use prost_types::Timestamp;
use provost_grpc::{CountedCalls, GrpcStatus};
use provost_shm::now_ns;
use provost_wire::Code;

use self::messages as wire;
use super::malformed;
use crate::config::ListenAddress;
use crate::connection_ends::EndAddress;
use crate::grpc::GrpcAccess;
use crate::grpc::clients::GrpcClient;
use crate::grpc::listeners::GrpcListener;
use crate::transport::grpc_channels::{self, ServerLink};

/// Entries of one answer, at most.
const RESULTS_MAX: usize = 100;

/// The methods of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelzMethod {
    TopChannels,
    Servers,
    Server,
    ServerSockets,
    Channel,
    Subchannel,
    Socket,
}

/// What an id names. All ids are of one space, so the kind is part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum EntityKind {
    /// A listener of the node.
    Server = 1,
    /// The socket of a listener.
    ListenSocket = 2,
    /// The socket of a client.
    ClientSocket = 3,
    /// A connection to a gRPC server.
    Channel = 4,
    Subchannel = 5,
    /// The socket of a connection of HTTP/2 to a gRPC server.
    ChannelSocket = 6,
}

impl EntityKind {
    const ALL: [EntityKind; 6] = [
        EntityKind::Server,
        EntityKind::ListenSocket,
        EntityKind::ClientSocket,
        EntityKind::Channel,
        EntityKind::Subchannel,
        EntityKind::ChannelSocket,
    ];

    /// The id of the entity of this kind that has this number.
    fn id(self, number: u64) -> i64 {
        (number << 3) as i64 | self as i64
    }

    /// What an id names.
    fn of(id: i64) -> Option<(EntityKind, u64)> {
        let kind = EntityKind::ALL.into_iter().find(|kind| *kind as i64 == id & 7)?;
        Some((kind, u64::try_from(id).ok()? >> 3))
    }
}

/// A connection to a gRPC server, as it is told.
struct ToldChannel {
    number: u64,
    target: String,
    is_draining: bool,
    /// Who the server has proved to be; empty without TLS.
    identity: Arc<str>,
    counted: CountedCalls,
    links: Vec<ServerLink>,
}

impl GrpcAccess {
    /// Answers a question of the service.
    pub(super) fn answer_channelz(
        &self,
        method: ChannelzMethod,
        request: &[u8],
    ) -> Result<Vec<u8>, GrpcStatus> {
        match method {
            ChannelzMethod::TopChannels => Ok(self.top_channels(decoded(request)?).encode_to_vec()),
            ChannelzMethod::Servers => Ok(self.servers(decoded(request)?).encode_to_vec()),
            ChannelzMethod::Server => {
                let number = named(request, EntityKind::Server)?;
                let server = self.numbered_listener(number).ok_or_else(gone)?;
                let server = Some(self.server_entry(&server));
                Ok(wire::ServerResponse { server }.encode_to_vec())
            }
            ChannelzMethod::ServerSockets => self.server_sockets(&decoded(request)?),
            ChannelzMethod::Channel => {
                let number = named(request, EntityKind::Channel)?;
                let channel = Some(self.channel_of(number).ok_or_else(gone)?.channel());
                Ok(wire::ChannelResponse { channel }.encode_to_vec())
            }
            ChannelzMethod::Subchannel => {
                let number = named(request, EntityKind::Subchannel)?;
                let subchannel = Some(self.channel_of(number).ok_or_else(gone)?.subchannel());
                Ok(wire::SubchannelResponse { subchannel }.encode_to_vec())
            }
            ChannelzMethod::Socket => {
                let asked: wire::EntityRequest = decoded(request)?;
                let socket = Some(self.socket_of(asked.id).ok_or_else(gone)?);
                Ok(wire::SocketResponse { socket }.encode_to_vec())
            }
        }
    }

    fn top_channels(&self, asked: wire::ListRequest) -> wire::TopChannelsResponse {
        let mut channels = self.channels();
        channels.sort_by_key(|channel| channel.number);
        let entries = channels.iter().map(ToldChannel::channel).collect();
        let id = |entry: &wire::ChannelEntry| entry.reference.as_ref().map_or(0, |named| named.channel_id);
        let (channel, end) = page(entries, id, asked.start_id, asked.max_results);
        wire::TopChannelsResponse { channel, end }
    }

    fn servers(&self, asked: wire::ListRequest) -> wire::ServersResponse {
        let mut listeners = self.open_listeners();
        listeners.sort_by_key(|listener| listener.number);
        let entries = listeners
            .iter()
            .map(|listener| self.server_entry(listener))
            .collect();
        let id = |entry: &wire::ServerEntry| entry.reference.as_ref().map_or(0, |named| named.server_id);
        let (server, end) = page(entries, id, asked.start_id, asked.max_results);
        wire::ServersResponse { server, end }
    }

    fn server_sockets(&self, asked: &wire::ServerSocketsRequest) -> Result<Vec<u8>, GrpcStatus> {
        let number = number_of(asked.server_id, EntityKind::Server)?;
        let listener = self.numbered_listener(number).ok_or_else(gone)?;
        let mut sockets: Vec<wire::SocketRef> = self
            .clients_of(&listener)
            .iter()
            .map(|client| client_ref(client))
            .collect();
        sockets.sort_by_key(|socket| socket.socket_id);
        let id = |socket: &wire::SocketRef| socket.socket_id;
        let (socket_ref, end) = page(sockets, id, asked.start_socket_id, asked.max_results);
        Ok(wire::ServerSocketsResponse { socket_ref, end }.encode_to_vec())
    }

    fn numbered_listener(&self, number: u64) -> Option<Rc<GrpcListener>> {
        let mut listeners = self.open_listeners().into_iter();
        listeners.find(|listener| listener.number == number)
    }

    fn server_entry(&self, listener: &Rc<GrpcListener>) -> wire::ServerEntry {
        let mut counted = listener.ended_calls.get();
        for client in self.clients_of(listener) {
            counted = counted.plus(client.counts.now());
        }
        let server_id = EntityKind::Server.id(listener.number);
        let name = listener.config.name.clone();
        wire::ServerEntry {
            reference: Some(wire::ServerRef { server_id, name }),
            data: Some(wire::ServerData {
                calls_started: counted.started as i64,
                calls_succeeded: counted.succeeded as i64,
                calls_failed: counted.failed as i64,
                last_call_started_timestamp: timestamp(counted.last_started_ns),
            }),
            listen_socket: vec![listen_ref(listener)],
        }
    }

    /// The connections to gRPC servers.
    fn channels(&self) -> Vec<ToldChannel> {
        let connections = self.connector.connections.all();
        let to_servers = connections
            .values()
            .filter(|open| open.spec.transport.leads_to_servers());
        let told = to_servers.filter_map(|open| {
            let (counted, links) = grpc_channels::find(&open.signals)?;
            Some(ToldChannel {
                number: open.spec.id,
                target: open.spec.peer.address.to_string(),
                is_draining: open.signals.drain_requested() || open.signals.peer_drains(),
                identity: Arc::clone(&open.spec.peer.identity),
                counted,
                links,
            })
        });
        told.collect()
    }

    fn channel_of(&self, number: u64) -> Option<ToldChannel> {
        self.channels()
            .into_iter()
            .find(|channel| channel.number == number)
    }

    fn link_socket(&self, number: u64) -> Option<wire::SocketEntry> {
        let channels = self.channels();
        let sockets = channels.iter().flat_map(|channel| {
            let links = channel.links.iter().filter(|link| link.number == number);
            links.map(|link| channel.socket(link))
        });
        sockets.into_iter().next()
    }

    fn socket_of(&self, id: i64) -> Option<wire::SocketEntry> {
        let (kind, number) = EntityKind::of(id)?;
        match kind {
            EntityKind::ListenSocket => Some(listen_socket(&*self.numbered_listener(number)?)),
            EntityKind::ClientSocket => Some(client_socket(&*self.clients.find(number)?)),
            EntityKind::ChannelSocket => self.link_socket(number),
            EntityKind::Server | EntityKind::Channel | EntityKind::Subchannel => None,
        }
    }
}

impl ToldChannel {
    fn data(&self) -> wire::ChannelData {
        let state = if self.is_draining {
            wire::ConnectivityState::Shutdown
        } else {
            wire::ConnectivityState::Ready
        };
        wire::ChannelData {
            state: Some(wire::ChannelState { state: state.into() }),
            target: self.target.clone(),
            calls_started: self.counted.started as i64,
            calls_succeeded: self.counted.succeeded as i64,
            calls_failed: self.counted.failed as i64,
            last_call_started_timestamp: timestamp(self.counted.last_started_ns),
        }
    }

    fn channel(&self) -> wire::ChannelEntry {
        let channel_id = EntityKind::Channel.id(self.number);
        let name = self.target.clone();
        wire::ChannelEntry {
            reference: Some(wire::ChannelRef { channel_id, name }),
            data: Some(self.data()),
            subchannel_ref: vec![self.subchannel_ref()],
        }
    }

    fn subchannel_ref(&self) -> wire::SubchannelRef {
        wire::SubchannelRef {
            subchannel_id: EntityKind::Subchannel.id(self.number),
            name: self.target.clone(),
        }
    }

    fn subchannel(&self) -> wire::SubchannelEntry {
        wire::SubchannelEntry {
            reference: Some(self.subchannel_ref()),
            data: Some(self.data()),
            socket_ref: self.links.iter().map(|link| self.socket_ref(link)).collect(),
        }
    }

    fn socket_ref(&self, link: &ServerLink) -> wire::SocketRef {
        wire::SocketRef {
            socket_id: EntityKind::ChannelSocket.id(link.number),
            name: self.target.clone(),
        }
    }

    fn socket(&self, link: &ServerLink) -> wire::SocketEntry {
        let data = wire::SocketData {
            last_local_stream_created_timestamp: timestamp(link.counted.last_started_ns),
            ..socket_data(link.counted)
        };
        wire::SocketEntry {
            reference: Some(self.socket_ref(link)),
            data: Some(data),
            local: address(&link.ends.local),
            remote: address(&link.ends.remote),
            security: (!self.identity.is_empty()).then(within_tls),
            remote_name: self.identity.to_string(),
        }
    }
}

fn client_ref(client: &GrpcClient) -> wire::SocketRef {
    wire::SocketRef {
        socket_id: EntityKind::ClientSocket.id(client.id),
        name: client.origin.clone(),
    }
}

fn client_socket(client: &GrpcClient) -> wire::SocketEntry {
    let counted = client.counts.now();
    let data = wire::SocketData {
        last_remote_stream_created_timestamp: timestamp(counted.last_started_ns),
        ..socket_data(counted)
    };
    wire::SocketEntry {
        reference: Some(client_ref(client)),
        data: Some(data),
        local: address(&client.ends.local),
        remote: address(&client.ends.remote),
        security: client.listener().config.tls.is_some().then(within_tls),
        remote_name: client.proved.to_string(),
    }
}

fn listen_ref(listener: &GrpcListener) -> wire::SocketRef {
    wire::SocketRef {
        socket_id: EntityKind::ListenSocket.id(listener.number),
        name: listener.address.to_string(),
    }
}

fn listen_socket(listener: &GrpcListener) -> wire::SocketEntry {
    let local = match &listener.address {
        ListenAddress::Tcp(address) => EndAddress::Internet(*address),
        ListenAddress::Unix(path) => EndAddress::Unix(path.display().to_string()),
    };
    wire::SocketEntry {
        reference: Some(listen_ref(listener)),
        data: Some(wire::SocketData::default()),
        local: address(&local),
        ..wire::SocketEntry::default()
    }
}

fn socket_data(counted: CountedCalls) -> wire::SocketData {
    wire::SocketData {
        streams_started: counted.started as i64,
        streams_succeeded: counted.succeeded as i64,
        streams_failed: counted.failed as i64,
        messages_sent: counted.messages_sent as i64,
        messages_received: counted.messages_received as i64,
        ..wire::SocketData::default()
    }
}

fn within_tls() -> wire::SecurityEntry {
    wire::SecurityEntry {
        tls: Some(wire::TlsEntry {}),
    }
}

fn address(end: &EndAddress) -> Option<wire::AddressEntry> {
    let kind = match end {
        EndAddress::Unknown => return None,
        EndAddress::Internet(address) => wire::AddressKind::Internet(wire::InternetAddress {
            ip_address: match address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
                std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
            },
            port: address.port().into(),
        }),
        EndAddress::Unix(path) => wire::AddressKind::Unix(wire::UnixAddress {
            filename: path.clone(),
        }),
    };
    Some(wire::AddressEntry { address: Some(kind) })
}

/// The part of a list, sorted by id, that begins at an id; whether nothing comes behind it.
fn page<T>(entries: Vec<T>, id: impl Fn(&T) -> i64, start_id: i64, max_results: i64) -> (Vec<T>, bool) {
    let wanted = usize::try_from(max_results).unwrap_or(0);
    let most = match wanted {
        0 => RESULTS_MAX,
        wanted => wanted.min(RESULTS_MAX),
    };
    let mut rest: Vec<T> = entries
        .into_iter()
        .filter(|entry| id(entry) >= start_id)
        .collect();
    let end = rest.len() <= most;
    rest.truncate(most);
    (rest, end)
}

/// A time of the monotonic clock as people have it; none for 0.
fn timestamp(at_ns: u64) -> Option<Timestamp> {
    if at_ns == 0 {
        return None;
    }
    let ago = std::time::Duration::from_nanos(now_ns().saturating_sub(at_ns));
    let since = SystemTime::now()
        .checked_sub(ago)?
        .duration_since(UNIX_EPOCH)
        .ok()?;
    Some(Timestamp {
        seconds: i64::try_from(since.as_secs()).ok()?,
        nanos: i32::try_from(since.subsec_nanos()).ok()?,
    })
}

fn decoded<T: Message + Default>(request: &[u8]) -> Result<T, GrpcStatus> {
    T::decode(request).map_err(|error| malformed(&error))
}

fn named(request: &[u8], kind: EntityKind) -> Result<u64, GrpcStatus> {
    let asked: wire::EntityRequest = decoded(request)?;
    number_of(asked.id, kind)
}

fn number_of(id: i64, kind: EntityKind) -> Result<u64, GrpcStatus> {
    match EntityKind::of(id) {
        Some((of, number)) if of == kind => Ok(number),
        _ => Err(gone()),
    }
}

fn gone() -> GrpcStatus {
    GrpcStatus::new(
        Code::NotFound,
        "the node has nothing of this id: it has ended, or is of another kind",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_say_what_they_name() {
        for kind in EntityKind::ALL {
            assert_eq!(EntityKind::of(kind.id(77)), Some((kind, 77)));
        }
        for nothing in [0, 7, -1, i64::MIN] {
            assert_eq!(EntityKind::of(nothing), None, "{nothing}");
        }
    }

    #[test]
    fn lists_come_in_pages() {
        let entries = || vec![3, 5, 8, 9];
        let page = |start, most| page(entries(), |entry| *entry, start, most);
        assert_eq!(page(0, 0), (entries(), true));
        assert_eq!(page(0, 3), (vec![3, 5, 8], false));
        assert_eq!(page(9, 3), (vec![9], true));
        assert_eq!(page(4, 2), (vec![5, 8], false));
        assert_eq!(page(10, -1), (vec![], true));
    }
}
