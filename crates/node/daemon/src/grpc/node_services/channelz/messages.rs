//! The messages of gRPC's channelz, as far as a node fills them (`grpc/channelz/v1/channelz.proto`).

use prost::{Message, Oneof};
use prost_types::Timestamp;

/// The request of a list: entries from this id on, and at most so many; 0 leaves both to the node.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ListRequest {
    #[prost(int64, tag = "1")]
    pub(super) start_id: i64,
    #[prost(int64, tag = "2")]
    pub(super) max_results: i64,
}

/// The message `GetServerSocketsRequest` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerSocketsRequest {
    #[prost(int64, tag = "1")]
    pub(super) server_id: i64,
    #[prost(int64, tag = "2")]
    pub(super) start_socket_id: i64,
    #[prost(int64, tag = "3")]
    pub(super) max_results: i64,
}

/// The request of one entity: all of them name it in their first field.
#[derive(Clone, PartialEq, Message)]
pub(super) struct EntityRequest {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

/// The message `GetServersResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServersResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) server: Vec<ServerEntry>,
    #[prost(bool, tag = "2")]
    pub(super) end: bool,
}

/// The message `GetServerResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) server: Option<ServerEntry>,
}

/// The message `GetServerSocketsResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerSocketsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) socket_ref: Vec<SocketRef>,
    #[prost(bool, tag = "2")]
    pub(super) end: bool,
}

/// The message `GetTopChannelsResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TopChannelsResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) channel: Vec<ChannelEntry>,
    #[prost(bool, tag = "2")]
    pub(super) end: bool,
}

/// The message `GetChannelResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ChannelResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) channel: Option<ChannelEntry>,
}

/// The message `GetSubchannelResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SubchannelResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) subchannel: Option<SubchannelEntry>,
}

/// The message `GetSocketResponse` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) socket: Option<SocketEntry>,
}

/// The message `Server` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) reference: Option<ServerRef>,
    #[prost(message, optional, tag = "2")]
    pub(super) data: Option<ServerData>,
    #[prost(message, repeated, tag = "3")]
    pub(super) listen_socket: Vec<SocketRef>,
}

/// The message `ServerRef` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerRef {
    #[prost(int64, tag = "5")]
    pub(super) server_id: i64,
    #[prost(string, tag = "6")]
    pub(super) name: String,
}

/// The message `ServerData` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ServerData {
    #[prost(int64, tag = "2")]
    pub(super) calls_started: i64,
    #[prost(int64, tag = "3")]
    pub(super) calls_succeeded: i64,
    #[prost(int64, tag = "4")]
    pub(super) calls_failed: i64,
    #[prost(message, optional, tag = "5")]
    pub(super) last_call_started_timestamp: Option<Timestamp>,
}

/// The message `Channel` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ChannelEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) reference: Option<ChannelRef>,
    #[prost(message, optional, tag = "2")]
    pub(super) data: Option<ChannelData>,
    #[prost(message, repeated, tag = "4")]
    pub(super) subchannel_ref: Vec<SubchannelRef>,
}

/// The message `Subchannel` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SubchannelEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) reference: Option<SubchannelRef>,
    #[prost(message, optional, tag = "2")]
    pub(super) data: Option<ChannelData>,
    #[prost(message, repeated, tag = "5")]
    pub(super) socket_ref: Vec<SocketRef>,
}

/// The message `ChannelRef` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ChannelRef {
    #[prost(int64, tag = "1")]
    pub(super) channel_id: i64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
}

/// The message `SubchannelRef` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SubchannelRef {
    #[prost(int64, tag = "7")]
    pub(super) subchannel_id: i64,
    #[prost(string, tag = "8")]
    pub(super) name: String,
}

/// The message `SocketRef` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketRef {
    #[prost(int64, tag = "3")]
    pub(super) socket_id: i64,
    #[prost(string, tag = "4")]
    pub(super) name: String,
}

/// The message `ChannelData` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ChannelData {
    #[prost(message, optional, tag = "1")]
    pub(super) state: Option<ChannelState>,
    #[prost(string, tag = "2")]
    pub(super) target: String,
    #[prost(int64, tag = "4")]
    pub(super) calls_started: i64,
    #[prost(int64, tag = "5")]
    pub(super) calls_succeeded: i64,
    #[prost(int64, tag = "6")]
    pub(super) calls_failed: i64,
    #[prost(message, optional, tag = "7")]
    pub(super) last_call_started_timestamp: Option<Timestamp>,
}

/// The message `ChannelConnectivityState` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ChannelState {
    #[prost(enumeration = "ConnectivityState", tag = "1")]
    pub(super) state: i32,
}

/// `ChannelConnectivityState.State`: a channel of a node is an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ConnectivityState {
    Unknown = 0,
    Ready = 3,
    Shutdown = 5,
}

/// The message `Socket` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) reference: Option<SocketRef>,
    #[prost(message, optional, tag = "2")]
    pub(super) data: Option<SocketData>,
    #[prost(message, optional, tag = "3")]
    pub(super) local: Option<AddressEntry>,
    #[prost(message, optional, tag = "4")]
    pub(super) remote: Option<AddressEntry>,
    #[prost(message, optional, tag = "5")]
    pub(super) security: Option<SecurityEntry>,
    #[prost(string, tag = "6")]
    pub(super) remote_name: String,
}

/// The message `SocketData` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketData {
    #[prost(int64, tag = "1")]
    pub(super) streams_started: i64,
    #[prost(int64, tag = "2")]
    pub(super) streams_succeeded: i64,
    #[prost(int64, tag = "3")]
    pub(super) streams_failed: i64,
    #[prost(int64, tag = "4")]
    pub(super) messages_sent: i64,
    #[prost(int64, tag = "5")]
    pub(super) messages_received: i64,
    #[prost(message, optional, tag = "7")]
    pub(super) last_local_stream_created_timestamp: Option<Timestamp>,
    #[prost(message, optional, tag = "8")]
    pub(super) last_remote_stream_created_timestamp: Option<Timestamp>,
}

/// The message `Address` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AddressEntry {
    #[prost(oneof = "AddressKind", tags = "1, 2")]
    pub(super) address: Option<AddressKind>,
}

/// The kinds of addresses that a node has.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum AddressKind {
    #[prost(message, tag = "1")]
    Internet(InternetAddress),
    #[prost(message, tag = "2")]
    Unix(UnixAddress),
}

/// The message `Address.TcpIpAddress` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct InternetAddress {
    /// 4 bytes, or 16 for IPv6.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) ip_address: Vec<u8>,
    #[prost(int32, tag = "2")]
    pub(super) port: i32,
}

/// The message `Address.UdsAddress` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct UnixAddress {
    #[prost(string, tag = "1")]
    pub(super) filename: String,
}

/// `Security`: present within TLS. Which suite was agreed on is not told.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SecurityEntry {
    #[prost(message, optional, tag = "1")]
    pub(super) tls: Option<TlsEntry>,
}

/// The message `Security.Tls` of channelz.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TlsEntry {}
