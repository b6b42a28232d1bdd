//! Where an engine is: what is fixed for one datapath.

use std::sync::Arc;

use provost_marshal::Tables;
use provost_schema::{MessageId, Method, Schema, Service};

use crate::{Direction, Verdicts};

/// One datapath, as a policy is told of it.
#[derive(Clone, Debug)]
pub struct DatapathContext {
    /// The node's name.
    pub node: Arc<str>,
    /// The app whose datapath it is.
    pub app: Arc<AppIdentity>,
    /// Which end of its calls the app is.
    pub side: Side,
    /// Full name of the service, such as `kv.Kv`.
    pub service: Arc<str>,
    /// Its methods, by their index in the app's schema.
    pub methods: Arc<[MethodContext]>,
    /// For each method: whether the policy was attached to it.
    pub scope: Arc<[bool]>,
    /// The app's schema of the service.
    pub schema: Arc<Schema>,
    /// Tables of that schema, to read fields with.
    pub tables: Arc<Tables>,
    /// Who is at the other end.
    pub peer: PeerIdentity,
    /// Number of the connection on its node.
    pub connection: u64,
    /// Number of the runtime thread that polls the datapath.
    pub runtime: usize,
    /// Where the engine counts what the policy says of calls.
    pub verdicts: Arc<Verdicts>,
}

impl DatapathContext {
    /// Whether the policy was attached to this method.
    #[must_use]
    pub fn applies_to(&self, method: u16) -> bool {
        let in_scope = self.scope.get(usize::from(method));
        in_scope.is_some_and(|in_scope| *in_scope)
    }

    /// The message that goes in this direction in calls of this method.
    #[must_use]
    pub fn message(&self, method: u16, direction: Direction) -> Option<MessageId> {
        let method = self.methods.get(usize::from(method))?;
        Some(match direction {
            Direction::Request => method.input,
            Direction::Response => method.output,
        })
    }
}

/// An app on this node. The operating system vouches for its ids, the app itself only for its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppIdentity {
    /// Number of its attachment.
    pub id: u64,
    /// The name with which it attached.
    pub name: Arc<str>,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The name of its user, as this node has it; empty where the number has none.
    pub user: Arc<str>,
    /// Its workload identity, such as a SPIFFE id, as the node's operator says; empty without one.
    pub workload: Arc<str>,
}

/// Which end of its calls an app is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// It makes them.
    Client,
    /// It serves them.
    Server,
}

impl Side {
    /// As configurations and metrics name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// A method of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MethodContext {
    /// Such as `Get`.
    pub name: Arc<str>,
    /// Such as `/kv.Kv/Get`.
    pub path: Arc<str>,
    /// Request message.
    pub input: MessageId,
    /// Response message.
    pub output: MessageId,
    /// Whether the client sends any number of messages.
    pub client_streaming: bool,
    /// Whether the server sends any number of messages.
    pub server_streaming: bool,
}

impl MethodContext {
    /// All methods of a service, as its schema has them.
    #[must_use]
    pub fn of_service(service: &Service) -> Arc<[MethodContext]> {
        let context = |method: &Method| MethodContext {
            name: method.name.as_str().into(),
            path: format!("/{}/{}", service.full_name, method.name).into(),
            input: method.input,
            output: method.output,
            client_streaming: method.client_streaming,
            server_streaming: method.server_streaming,
        };
        service.methods.iter().map(context).collect()
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerIdentity {
    /// What its certificate proves, such as a SPIFFE id; empty where nothing was proved.
    pub identity: Arc<str>,
    /// Its address; empty on the same node.
    pub address: Arc<str>,
    /// What carries the connection, as configurations call it, such as `tcp` or `local`.
    pub transport: &'static str,
    /// On the same node: the app at the other end.
    pub app: Option<Arc<AppIdentity>>,
    /// On another node: the app at the other end, as that node says, if its word is taken.
    pub attested: Option<Arc<AttestedApp>>,
}

/// An app of another node, as that node says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttestedApp {
    /// The name of its node.
    pub node: Arc<str>,
    /// The name with which it attached there.
    pub name: Arc<str>,
    /// The name of its user there; empty where the number has none.
    pub user: Arc<str>,
    /// The number of its user there.
    pub uid: u32,
    /// Its workload identity, such as a SPIFFE id; empty without one.
    pub workload: Arc<str>,
}

/// The app at the other end of a connection, wherever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerApp<'a> {
    /// The name with which it attached.
    pub name: &'a Arc<str>,
    /// The name of its user on its own node.
    pub user: &'a Arc<str>,
    /// Its user on its own node.
    pub uid: u32,
    /// Its workload identity; empty without one.
    pub workload: &'a Arc<str>,
}

impl PeerIdentity {
    /// The app at the other end, where it is known: by this node, or by the word of one that is believed.
    #[must_use]
    pub fn known_app(&self) -> Option<PeerApp<'_>> {
        let local = self.app.as_deref().map(|app| PeerApp {
            name: &app.name,
            user: &app.user,
            uid: app.uid,
            workload: &app.workload,
        });
        let attested = || {
            self.attested.as_deref().map(|app| PeerApp {
                name: &app.name,
                user: &app.user,
                uid: app.uid,
                workload: &app.workload,
            })
        };
        local.or_else(attested)
    }
}

impl DatapathContext {
    /// The name of the node at the other end, where it is known; it may be this one.
    #[must_use]
    pub fn peer_node(&self) -> Option<&Arc<str>> {
        let attested = self.peer.attested.as_deref();
        let local = self.peer.app.as_ref().map(|_| &self.node);
        local.or(attested.map(|app| &app.node))
    }
}
