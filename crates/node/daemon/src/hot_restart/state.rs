//! The state that one process of the service hands to the next: its own form, not that of anything alive. It is protobuf,
//! so that a field can be added without a new format; what changes its meaning is a new [`FORMAT`].
//!
//! Descriptors are beside the state. Whoever has some says how many, and they come in the order of the fields here, depth
//! first. `docs/hot-restart.md` describes all of it.

use prost::Message;
use provost_datapath::CompressedMessages;

/// The version of the form. A process that is given another one says so, and ends.
pub(super) const FORMAT: u32 = 1;

/// What is sent before the old process rests: all that takes long to get ready for.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Preview {
    /// Path of the control socket: the new process must be configured for the same one.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) control_socket: Vec<u8>,
    /// Serialized `FileDescriptorSet`s.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(super) schemas: Vec<Vec<u8>>,
    /// Listeners whose sockets will come.
    #[prost(message, repeated, tag = "3")]
    pub(super) listeners: Vec<Listener>,
    /// The policies, in the order of their table.
    #[prost(message, optional, tag = "4")]
    pub(super) policies: Option<Policies>,
    /// Paths of libraries with kinds of policies that were loaded.
    #[prost(string, repeated, tag = "5")]
    pub(super) libraries: Vec<String>,
    /// Apps and gRPC clients, and connections of all of them, as many as there are now: for how much the successor makes room.
    #[prost(uint32, tag = "6")]
    pub(super) parties: u32,
    #[prost(uint32, tag = "7")]
    pub(super) connections: u32,
}

/// Where other nodes connect.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Listener {
    /// The address, as it is configured.
    #[prost(string, tag = "1")]
    pub(super) configured: String,
    /// The address, as the socket has it.
    #[prost(string, tag = "2")]
    pub(super) bound: String,
}

/// The policies of a node.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Policies {
    /// The table, as TOML; it names policies by their place in `instances`.
    #[prost(string, tag = "1")]
    pub(super) table: String,
    /// Every policy that has engines, or would have.
    #[prost(message, repeated, tag = "2")]
    pub(super) instances: Vec<PolicyInstance>,
}

/// A policy that is attached.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PolicyInstance {
    /// The attachment, as TOML.
    #[prost(string, tag = "1")]
    pub(super) attachment: String,
    /// What its engines share.
    #[prost(message, optional, tag = "2")]
    pub(super) shared: Option<PolicyShared>,
}

/// What the engines of a policy share.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PolicyShared {
    /// Version of the form of `state`.
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    /// The state; empty if they share nothing.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) state: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    /// The number that the next app gets.
    #[prost(uint64, tag = "1")]
    pub(super) next_app: u64,
    /// The number that the next connection gets.
    #[prost(uint64, tag = "2")]
    pub(super) next_connection: u64,
    /// Schemas that came after the [`Preview`].
    #[prost(bytes = "vec", repeated, tag = "3")]
    pub(super) schemas: Vec<Vec<u8>>,
    /// Descriptors: the control socket.
    #[prost(uint32, tag = "4")]
    pub(super) control_sockets: u32,
    /// Descriptors: one for each of [`Preview::listeners`].
    #[prost(uint32, tag = "5")]
    pub(super) listeners: u32,
    /// Descriptors: control sockets of processes that have not attached yet.
    #[prost(uint32, tag = "6")]
    pub(super) unattached: u32,
    /// What other parts of the service hand on. Descriptors: their own.
    #[prost(message, repeated, tag = "7")]
    pub(super) parts: Vec<Part>,
    /// Apps. Descriptors: their own.
    #[prost(message, repeated, tag = "8")]
    pub(super) apps: Vec<App>,
    /// What the engines of each of the [`Preview`]'s policies share by now.
    #[prost(message, repeated, tag = "9")]
    pub(super) shared: Vec<PolicyShared>,
    /// How many processes have taken over from another one so far.
    #[prost(uint64, tag = "10")]
    pub(super) hot_restarts: u64,
    /// When the service began, in milliseconds since 1970; 0 of a process that does not say.
    #[prost(uint64, tag = "11")]
    pub(super) began_unix_ms: u64,
    /// The number of the last change; 0 without one.
    #[prost(uint64, tag = "12")]
    pub(super) last_change: u64,
    #[prost(uint64, tag = "13")]
    pub(super) hot_restarts_undone: u64,
    /// Clients that speak gRPC; none if the other process does not read them. Descriptors: their own.
    #[prost(message, repeated, tag = "14")]
    pub(super) grpc_clients: Vec<GrpcClient>,
    /// Calls of other nodes that this one passes on; none if the other process does not read them. Descriptors: their own.
    #[prost(message, repeated, tag = "15")]
    pub(super) relays: Vec<SavedRelay>,
}

/// Some of the apps and callers of a node, which a process that takes them gets by themselves. Descriptors: those of apps, then of
/// clients, then of relays.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SavedParties {
    /// Those of [`Node::schemas`] that are not known yet: they are not there again.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub(super) schemas: Vec<Vec<u8>>,
    /// Some of those of [`Node::grpc_clients`].
    #[prost(message, repeated, tag = "2")]
    pub(super) grpc_clients: Vec<GrpcClient>,
    /// Some of those of [`Node::apps`].
    #[prost(message, repeated, tag = "3")]
    pub(super) apps: Vec<App>,
    /// Some of those of [`Node::relays`].
    #[prost(message, repeated, tag = "4")]
    pub(super) relays: Vec<SavedRelay>,
}

/// What stands between a connection of another node and a gRPC server. Descriptors: those of its connections' engines.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SavedRelay {
    /// What it has in common with apps. It has neither offers nor requests.
    #[prost(message, optional, tag = "1")]
    pub(super) app: Option<App>,
    /// Longest message that the other node takes.
    #[prost(uint32, tag = "2")]
    pub(super) message_bytes_max: u32,
    /// Whether the other node takes compressed messages.
    #[prost(bool, tag = "3")]
    pub(super) takes_compressed: bool,
}

/// A client that speaks gRPC. Descriptors: those of its port, those of its connections' engines.
#[derive(Clone, PartialEq, Message)]
pub(super) struct GrpcClient {
    /// What it has in common with apps. It has neither offers nor requests.
    #[prost(message, optional, tag = "1")]
    pub(super) app: Option<App>,
    /// The configuration of the listener to which it came, as TOML.
    #[prost(string, tag = "2")]
    pub(super) listener: String,
    /// Who it has proved to be by a certificate; empty for nobody.
    #[prost(string, tag = "3")]
    pub(super) proved: String,
    /// Where it comes from, for people.
    #[prost(string, tag = "4")]
    pub(super) origin: String,
    /// Whether it has called something.
    #[prost(bool, tag = "5")]
    pub(super) is_admitted: bool,
    /// Whether it was told to begin no more calls.
    #[prost(bool, tag = "6")]
    pub(super) is_told_to_go: bool,
    /// What it watches of the node's health.
    #[prost(message, repeated, tag = "7")]
    pub(super) watches: Vec<HealthWatch>,
}

/// What a client watches of the node's health.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthWatch {
    /// The number of its call.
    #[prost(uint32, tag = "1")]
    pub(super) stream: u32,
    /// The service; empty for the node.
    #[prost(string, tag = "2")]
    pub(super) service: String,
    /// What it was told last.
    #[prost(int32, tag = "3")]
    pub(super) told: i32,
}

/// What a part of the service hands on, in its own form.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Part {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) state: Vec<u8>,
    /// How many descriptors it has.
    #[prost(uint32, tag = "3")]
    pub(super) descriptors: u32,
}

/// An app. Descriptors: its control socket, its send heap, the two ends of its doorbell, those of its port, those of its
/// requests, those of its connections' engines.
#[derive(Clone, PartialEq, Message)]
pub(super) struct App {
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    /// Its process, user and group, as the kernel said when it attached.
    #[prost(int32, tag = "3")]
    pub(super) pid: i32,
    #[prost(uint32, tag = "4")]
    pub(super) uid: u32,
    #[prost(uint32, tag = "5")]
    pub(super) gid: u32,
    /// Whether its runtime never sleeps for it.
    #[prost(bool, tag = "6")]
    pub(super) busy_poll: bool,
    /// Whether it takes another completion region; if not, it is detached.
    #[prost(bool, tag = "7")]
    pub(super) takes_regions: bool,
    #[prost(bytes = "vec", tag = "8")]
    pub(super) port: Vec<u8>,
    /// How many descriptors its port has.
    #[prost(uint32, tag = "9")]
    pub(super) port_descriptors: u32,
    /// The numbers of its connections by place, 0 where there never was one.
    #[prost(uint32, repeated, tag = "10")]
    pub(super) places: Vec<u32>,
    /// A step that waits for room on a connection, of versions that keep one beside it; now it is among those of the connection.
    #[prost(message, optional, tag = "11")]
    pub(super) stuck: Option<Stuck>,
    /// When its connections must have ended, in nanoseconds of CLOCK_MONOTONIC; 0 while it is there.
    #[prost(uint64, tag = "12")]
    pub(super) leaving_ns: u64,
    /// The services that it offers.
    #[prost(message, repeated, tag = "13")]
    pub(super) offers: Vec<Offer>,
    /// Requests that are not answered.
    #[prost(message, repeated, tag = "14")]
    pub(super) requests: Vec<PendingRequest>,
    #[prost(message, repeated, tag = "15")]
    pub(super) connections: Vec<Connection>,
    /// Ranges of send heaps that its connections' states name by number.
    #[prost(message, repeated, tag = "16")]
    pub(super) ranges: Vec<Range>,
    /// The program of an `[[app]]` that it was found to run when it attached; empty for none.
    #[prost(bytes = "vec", tag = "17")]
    pub(super) program: Vec<u8>,
}

/// See [`App::stuck`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct Stuck {
    #[prost(uint32, tag = "1")]
    pub(super) connection: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) step: Vec<u8>,
}

/// A service that an app offers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Offer {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    /// Hash of the app's schema of it.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) schema_hash: Vec<u8>,
    /// The request by which it was offered.
    #[prost(uint64, tag = "3")]
    pub(super) request: u64,
    /// How many calls the app takes.
    #[prost(uint32, tag = "4")]
    pub(super) calls_max: u32,
}

/// A request of an app that is not answered: to be carried out anew, or answered if that is all that is left of it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PendingRequest {
    /// The request, as it came.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) packet: Vec<u8>,
    /// How many descriptors came with it.
    #[prost(uint32, tag = "2")]
    pub(super) descriptors: u32,
    /// The answer, if it was carried out.
    #[prost(bytes = "vec", optional, tag = "3")]
    pub(super) answer: Option<Vec<u8>>,
}

/// A range of an app's send heap.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(uint64, tag = "1")]
    pub(super) app: u64,
    /// Where it begins, in bytes.
    #[prost(uint64, tag = "2")]
    pub(super) offset: u64,
    /// Its length in bytes.
    #[prost(uint32, tag = "3")]
    pub(super) bytes: u32,
}

/// A connection of an app. Descriptors: those of its engines.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Connection {
    /// Its number at the control plane.
    #[prost(uint64, tag = "1")]
    pub(super) id: u64,
    /// Its number at the app.
    #[prost(uint32, tag = "2")]
    pub(super) number: u32,
    /// Whether the app serves.
    #[prost(bool, tag = "3")]
    pub(super) serves: bool,
    /// The service, and the hash of the app's schema of it.
    #[prost(string, tag = "4")]
    pub(super) service: String,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) schema_hash: Vec<u8>,
    /// Whether messages go as protobuf.
    #[prost(bool, tag = "6")]
    pub(super) is_protobuf: bool,
    /// Longest message that the app may send.
    #[prost(uint32, tag = "7")]
    pub(super) message_bytes_max: u32,
    /// Calls in flight.
    #[prost(uint32, tag = "8")]
    pub(super) calls_max: u32,
    /// Of an app that serves: the request by which it offered the service, and how many calls it takes over all
    /// connections of that.
    #[prost(uint64, tag = "9")]
    pub(super) offer_request: u64,
    #[prost(uint32, tag = "10")]
    pub(super) offer_calls_max: u32,
    /// Whether the app that serves has not been told of the connection.
    #[prost(bool, tag = "11")]
    pub(super) is_unannounced: bool,
    /// Whether the app knows that it goes away; whether it is being closed; whether its engines have ended.
    #[prost(bool, tag = "12")]
    pub(super) told_going_away: bool,
    #[prost(bool, tag = "13")]
    pub(super) is_closing: bool,
    #[prost(bool, tag = "14")]
    pub(super) has_ended: bool,
    /// Who is at the other end: identity, address, transport, and the app's number if it is on this node.
    #[prost(string, tag = "15")]
    pub(super) peer_identity: String,
    #[prost(string, tag = "16")]
    pub(super) peer_address: String,
    #[prost(string, tag = "17")]
    pub(super) transport: String,
    #[prost(uint64, tag = "18")]
    pub(super) peer_app: u64,
    /// What the transport and the node say to each other.
    #[prost(bytes = "vec", tag = "19")]
    pub(super) link: Vec<u8>,
    /// Its engines, the app's first.
    #[prost(message, repeated, tag = "20")]
    pub(super) engines: Vec<Engine>,
    /// The steps between them.
    #[prost(bytes = "vec", tag = "21")]
    pub(super) steps: Vec<u8>,
    /// The app at the other end, on another node, as that node has said.
    #[prost(message, optional, tag = "22")]
    pub(super) attested: Option<AttestedApp>,
    /// Whether messages go over it as the app's end has them compressed.
    #[prost(bool, tag = "23")]
    pub(super) passes_compressed: bool,
}

impl Connection {
    pub(super) fn compressed(&self) -> CompressedMessages {
        if self.passes_compressed {
            CompressedMessages::Passed
        } else {
            CompressedMessages::Decompressed
        }
    }
}

/// An app of another node, as that node has said.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttestedApp {
    /// The name of its node.
    #[prost(string, tag = "1")]
    pub(super) node: String,
    /// The name with which it attached.
    #[prost(string, tag = "2")]
    pub(super) name: String,
    /// Its user there, by name and by number.
    #[prost(string, tag = "3")]
    pub(super) user: String,
    #[prost(uint32, tag = "4")]
    pub(super) uid: u32,
    /// Its workload identity; empty without one.
    #[prost(string, tag = "5")]
    pub(super) workload: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Engine {
    #[prost(string, tag = "1")]
    pub(super) kind: String,
    /// Version of its state.
    #[prost(uint32, tag = "2")]
    pub(super) state_version: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) state: Vec<u8>,
    /// Version of its code.
    #[prost(uint32, tag = "4")]
    pub(super) version: u32,
    /// Which one it is: its place, or a policy's instance.
    #[prost(uint64, tag = "5")]
    pub(super) tag: u64,
    /// How many descriptors it has.
    #[prost(uint32, tag = "6")]
    pub(super) descriptors: u32,
    /// It stands in for a policy that has failed.
    #[prost(bool, tag = "7")]
    pub(super) stands_in: bool,
    /// The policy whose engine it is.
    #[prost(string, tag = "8")]
    pub(super) policy: String,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A node with something in every field that the format had when its document was kept. A field that is added later
    /// has its default here.
    fn sample() -> Node {
        let engine = |tag| Engine {
            kind: "frontend".into(),
            state_version: 2,
            state: vec![1, 2, 3],
            version: 1,
            tag,
            descriptors: 1,
            stands_in: true,
            policy: "limit".into(),
        };
        let connection = Connection {
            id: 7,
            number: 1 << 20,
            serves: true,
            service: "kv.Kv".into(),
            schema_hash: vec![9; 32],
            is_protobuf: true,
            message_bytes_max: 1 << 26,
            calls_max: 100,
            offer_request: 5,
            offer_calls_max: 50,
            is_unannounced: true,
            told_going_away: true,
            is_closing: true,
            has_ended: true,
            peer_identity: "spiffe://a/b".into(),
            peer_address: "127.0.0.1:1".into(),
            transport: "tcp".into(),
            peer_app: 4,
            link: vec![0, 0],
            engines: vec![engine(1), engine(16)],
            steps: vec![1, 0, 0, 0, 0],
            attested: None,
            passes_compressed: false,
        };
        let app = App {
            id: 3,
            name: "app".into(),
            pid: 1000,
            uid: 1001,
            gid: 1002,
            busy_poll: true,
            takes_regions: true,
            port: vec![1; 5],
            port_descriptors: 4,
            places: vec![1 << 20, 0],
            stuck: Some(Stuck {
                connection: 1 << 20,
                step: vec![4],
            }),
            leaving_ns: 12,
            offers: vec![Offer {
                service: "kv.Kv".into(),
                schema_hash: vec![9; 32],
                request: 5,
                calls_max: 50,
            }],
            program: Vec::new(),
            requests: vec![PendingRequest {
                packet: vec![8, 1],
                descriptors: 1,
                answer: Some(vec![8, 2]),
            }],
            connections: vec![connection],
            ranges: vec![Range {
                app: 3,
                offset: 4096,
                bytes: 5000,
            }],
        };
        Node {
            next_app: 4,
            next_connection: 8,
            schemas: vec![vec![10, 0]],
            control_sockets: 1,
            listeners: 2,
            unattached: 3,
            parts: vec![Part {
                name: "admin".into(),
                state: b"/run/admin.sock".to_vec(),
                descriptors: 1,
            }],
            apps: vec![app],
            shared: vec![PolicyShared {
                version: 1,
                state: vec![5],
            }],
            hot_restarts: 6,
            began_unix_ms: 1_700_000_000_000,
            last_change: 11,
            hot_restarts_undone: 2,
            grpc_clients: Vec::new(),
            relays: Vec::new(),
        }
    }

    #[test]
    fn documents_of_every_format_are_read() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/takeover-{FORMAT}.bin"));
        if std::env::var_os("BLESS").is_some() && !path.exists() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, sample().encode_to_vec()).unwrap();
        }
        let kept = std::fs::read(&path).unwrap();
        assert_eq!(Node::decode(kept.as_slice()).unwrap(), sample());
        // Fields that a newer version adds are passed over.
        let newer = [kept.as_slice(), &[0x82, 0x7d, 2, 1, 1]].concat();
        assert_eq!(Node::decode(newer.as_slice()).unwrap(), sample());
    }

    /// The fixture's version did not know an app's program, nor who calls from other nodes.
    #[test]
    fn programs_of_apps_and_callers_of_other_nodes_are_saved() {
        let mut node = sample();
        node.apps[0].program = b"/usr/bin/app".to_vec();
        node.apps[0].connections[0].attested = Some(AttestedApp {
            node: "a".into(),
            name: "till".into(),
            user: "shop".into(),
            uid: 1001,
            workload: "spiffe://example.org/till".into(),
        });
        assert_eq!(Node::decode(node.encode_to_vec().as_slice()).unwrap(), node);
    }
}
