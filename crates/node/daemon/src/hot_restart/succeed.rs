//! The new process's part.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prost::Message;
use provost_engine::SharedState;
use provost_frontend_grpc::PORT_STATE_VERSION;
use provost_runtime::RELAY_STATE_VERSION;
use provost_shm::PacketSocket;

use super::channel::{
    Body, Channel, ChannelError, Committed, EngineForm, Failed, Ready, Restored, unexpected,
};
use super::memory_reserve::{MemoryReserve, RestoredMemory, faults_of_thread};
use super::restore::{Descriptors, NotRestored, RestoredApps, RestoringNode};
use super::save::{ADMIN_PART, GRPC_PART, HTTP_PART, PAGE_PART};
use super::state::{self, FORMAT};
use crate::config::{Config, ListenerConfig};
use crate::control_plane::ControlPlane;
use crate::grpc::InheritedSocket;
use crate::observe;
use crate::policies::state_transfer::{SavedInstance, SavedPolicies};
use crate::policies::{Attachment, load_engines};
use crate::sockets::{Sockets, open_socket};
use crate::transport::{self, listener_address, listener_name};

/// How long the old process may take for what it does while it goes on. It ends this process when it gives up.
const WAIT_MAX: Duration = Duration::from_secs(120);
/// How long a letter may take to be sent.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// The place that an old process offers to this one: the channel between them.
#[derive(Debug)]
pub struct Predecessor {
    channel: Channel,
}

/// Why this process does not take over.
#[derive(Debug, thiserror::Error)]
pub enum PredecessorError {
    /// Standard input is not what an old process gives a new one.
    #[error(
        "standard input: {0}: this option is for provostd itself, which starts the process that replaces it"
    )]
    NoChannel(io::Error),
    /// The old process ended, or said what it should not.
    #[error("the old process: {0}")]
    Predecessor(String),
    /// Its state has another format.
    #[error(
        "the state has format {found}, this version reads {expected}: upgrade by way of a version between them"
    )]
    Format { found: u32, expected: u32 },
    /// The configurations do not fit.
    #[error("{0}")]
    Configuration(String),
    /// The state cannot be restored.
    #[error("the state was not restored: {0}")]
    State(String),
}

impl From<ChannelError> for PredecessorError {
    fn from(error: ChannelError) -> PredecessorError {
        PredecessorError::Predecessor(error.to_string())
    }
}

impl From<NotRestored> for PredecessorError {
    fn from(error: NotRestored) -> PredecessorError {
        PredecessorError::State(error.to_string())
    }
}

impl Predecessor {
    /// The predecessor at this process's standard input, which reads as empty from then on.
    pub fn at_standard_input() -> Result<Predecessor, PredecessorError> {
        let take = || -> io::Result<OwnedFd> {
            let stdin = io::stdin();
            let channel = stdin.as_fd().try_clone_to_owned()?;
            let kind = rustix::net::sockopt::socket_type(&channel)?;
            if kind != rustix::net::SocketType::SEQPACKET {
                return Err(io::Error::other("it is another kind of socket"));
            }
            rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
            Ok(channel)
        };
        Ok(Predecessor::at(take().map_err(PredecessorError::NoChannel)?))
    }

    /// The predecessor at the other end of a socket.
    pub(super) fn at(channel: OwnedFd) -> Predecessor {
        let channel = Channel::of_descriptor(channel);
        Predecessor { channel }
    }

    /// Says why this process cannot take over.
    pub fn decline(&self, reason: &str) {
        let reason = reason.to_owned();
        // If nobody hears it, the end of this process says enough.
        let _ = self.channel.send(Body::Failed(Failed { reason }), SEND_LIMIT);
    }

    /// Everything is restored: waits until the old process has ended its part. From then on this one goes on.
    pub(crate) fn commit(&self) -> Result<(), PredecessorError> {
        self.channel.send(Body::Restored(Restored {}), SEND_LIMIT)?;
        match self.channel.receive(WAIT_MAX)?.0 {
            Body::Commit(_) => {}
            other => return Err(unexpected(&other, "to commit").into()),
        }
        match self.channel.send(Body::Committed(Committed {}), SEND_LIMIT) {
            // It has ended its part, and would end this process before it went on itself: if it is gone, only this one is left.
            Ok(()) | Err(ChannelError::Ended) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn greet(&self) -> Result<state::Preview, PredecessorError> {
        let hello = match self.channel.receive(WAIT_MAX)?.0 {
            Body::Hello(hello) => hello,
            other => return Err(unexpected(&other, "hello").into()),
        };
        if hello.format != FORMAT {
            let (found, expected) = (hello.format, FORMAT);
            return Err(PredecessorError::Format { found, expected });
        }
        decode(&self.channel.receive_document(WAIT_MAX)?, "the preview")
    }

    fn ready(&self) -> Result<(), PredecessorError> {
        let ready = Ready {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            format: FORMAT,
            grpc_clients: PORT_STATE_VERSION,
            relays: RELAY_STATE_VERSION,
            takes_callers_first: true,
            takes_parties_last: true,
            engine_forms: transport::newest_forms()
                .map(|(kind, newest)| EngineForm {
                    kind: kind.to_owned(),
                    newest,
                })
                .collect(),
        };
        Ok(self.channel.send(Body::Ready(ready), SEND_LIMIT)?)
    }

    /// The next part of the state, unless all of it has come.
    fn receive_part(&self) -> Result<Option<StatePart>, PredecessorError> {
        let Some(document) = self.channel.receive_of_state(WAIT_MAX)? else {
            return Ok(None);
        };
        let (kind, count) = match self.channel.receive(WAIT_MAX)?.0 {
            Body::Parties(parties) => (None, parties.descriptors),
            Body::Rest(rest) => (Some(FollowingParts::Parties), rest.descriptors),
            Body::State(state) => (Some(FollowingParts::Nothing), state.descriptors),
            other => return Err(unexpected(&other, "the state").into()),
        };
        let descriptors = Descriptors::new(self.channel.receive_descriptors(count, WAIT_MAX)?);
        Ok(Some(match kind {
            None => StatePart::Parties(decode(&document, "apps or callers")?, descriptors),
            Some(following) => {
                let node = Box::new(decode(&document, "the state")?);
                StatePart::Rest(node, descriptors, following)
            }
        }))
    }
}

/// A part of the state, as it comes.
enum StatePart {
    /// Some apps and callers, as many batches as the old process likes.
    Parties(state::SavedParties, Descriptors),
    /// What the node has beside those.
    Rest(Box<state::Node>, Descriptors, FollowingParts),
}

/// What comes after what the node has beside its apps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FollowingParts {
    Parties,
    Nothing,
}

fn decode<T: Message + Default>(document: &[u8], what: &str) -> Result<T, PredecessorError> {
    T::decode(document).map_err(|error| PredecessorError::State(format!("{what}: {error}")))
}

/// What is known before the old process rests.
pub(crate) struct Prepared {
    /// Where this process will listen for other nodes.
    pub(crate) addresses: Vec<SocketAddr>,
    preview: state::Preview,
    /// For each listener of the configuration: the socket to come that it has, or a fresh one.
    listeners: Vec<(ListenerConfig, ListenerOrigin)>,
}

enum ListenerOrigin {
    ToCome(usize),
    Fresh(OwnedFd),
}

/// Reads what the old process tells of itself, and opens what only this one has.
pub(crate) fn begin(predecessor: &Predecessor, config: &Config) -> Result<Prepared, PredecessorError> {
    let preview = predecessor.greet()?;
    let socket = Path::new(OsStr::from_bytes(&preview.control_socket));
    if socket != config.control.socket {
        return Err(PredecessorError::Configuration(format!(
            "control.socket is {}, and apps are attached at {}: a process that takes over keeps the socket",
            config.control.socket.display(),
            socket.display()
        )));
    }
    let mut taken = vec![false; preview.listeners.len()];
    let (mut addresses, mut listeners) = (Vec::new(), Vec::new());
    for listener in &config.listeners {
        let wanted = listener_name(listener.transport, listener.address);
        let mut old = preview.listeners.iter().zip(&taken);
        let to_come = old.position(|(listener, taken)| {
            !taken && (listener.configured == wanted || listener.bound == wanted)
        });
        let (address, origin) = match to_come {
            Some(at) => {
                taken[at] = true;
                let bound = listener_address(&preview.listeners[at].bound);
                (bound.unwrap_or(listener.address), ListenerOrigin::ToCome(at))
            }
            None => open(listener)
                .map_err(|error| PredecessorError::Configuration(format!("listener {wanted}: {error}")))?,
        };
        addresses.push(address);
        listeners.push((listener.clone(), origin));
    }
    Ok(Prepared {
        addresses,
        preview,
        listeners,
    })
}

fn open(listener: &ListenerConfig) -> io::Result<(SocketAddr, ListenerOrigin)> {
    let (socket, address) = open_socket(listener)?;
    Ok((address, ListenerOrigin::Fresh(socket)))
}

/// Everything is there, and nothing has been touched.
pub(crate) struct Taken {
    pub(crate) sockets: Sockets,
    /// The policies that the old process's configuration had.
    pub(crate) configured: Vec<Attachment>,
    pub(crate) restored: RestoredApps,
    /// How long it took until all of the state was there once some had come, with what was made of apps and callers meanwhile, and to
    /// make what was left.
    pub(crate) received: Duration,
    pub(crate) made: Duration,
    /// Pages that the kernel had to bring for that.
    pub(crate) faults: u64,
}

/// Takes the state in, once the old process rests.
pub(crate) fn complete(
    predecessor: &Predecessor,
    prepared: Prepared,
    plane: &ControlPlane,
) -> Result<Taken, PredecessorError> {
    for schema in &prepared.preview.schemas {
        let added = plane.services.restore_schema(schema);
        added.map_err(|error| PredecessorError::State(format!("a schema: {error}")))?;
    }
    let libraries: Vec<PathBuf> = prepared.preview.libraries.iter().map(PathBuf::from).collect();
    load_engines(plane.policies.registry(), &libraries).map_err(PredecessorError::State)?;
    let policies = prepared.preview.policies.unwrap_or_default();
    let configured = plane
        .policies
        .hot_restart(&saved_policies(policies))
        .map_err(|error| PredecessorError::State(error.to_string()))?;
    let parties = prepared.preview.parties as usize;
    let _reserve = MemoryReserve::of(RestoredMemory {
        parties,
        connections: prepared.preview.connections as usize,
    });
    let faults_before = faults_of_thread();
    predecessor.ready()?;
    let mut came_at = None;
    let mut restoring = RestoringNode::default();
    let (mut listeners, mut rest) = (prepared.listeners, None);
    while let Some(part) = predecessor.receive_part()? {
        came_at.get_or_insert_with(Instant::now);
        match part {
            StatePart::Parties(parties, mut descriptors) => {
                restoring.add(plane, parties, &mut descriptors)?;
            }
            StatePart::Rest(node, mut descriptors, following) => {
                rest = Some(open_rest(
                    plane,
                    &node,
                    std::mem::take(&mut listeners),
                    &mut descriptors,
                )?);
                restoring.add_rest(plane, *node, &mut descriptors)?;
                if following == FollowingParts::Nothing {
                    break;
                }
            }
        }
    }
    let received_at = Instant::now();
    let came_at = came_at.unwrap_or(received_at);
    let missing = || PredecessorError::State("what the node has beside its apps is missing".to_owned());
    let (sockets, unattached) = rest.ok_or_else(missing)?;
    let restored = restoring.finish(plane, unattached)?;
    Ok(Taken {
        sockets,
        configured,
        restored,
        received: received_at - came_at,
        made: received_at.elapsed(),
        faults: faults_of_thread() - faults_before,
    })
}

/// Takes what the node has beside its apps: its sockets, those of processes that have not attached, and what policies and observers go
/// on from.
fn open_rest(
    plane: &ControlPlane,
    node: &state::Node,
    listeners: Vec<(ListenerConfig, ListenerOrigin)>,
    descriptors: &mut Descriptors,
) -> Result<(Sockets, Vec<PacketSocket>), PredecessorError> {
    let control = descriptors
        .take(node.control_sockets, &"the control socket")?
        .pop();
    let control =
        control.ok_or_else(|| PredecessorError::State("the control socket is missing".to_owned()))?;
    let old = descriptors.take(node.listeners, &"listeners")?;
    let mut old: Vec<Option<OwnedFd>> = old.into_iter().map(Some).collect();
    let mut sockets = Sockets {
        control: control.into(),
        admin: None,
        http: None,
        page: None,
        grpc: Vec::new(),
        peers: Vec::with_capacity(listeners.len()),
    };
    for (listener, origin) in listeners {
        let socket = match origin {
            ListenerOrigin::Fresh(socket) => socket,
            ListenerOrigin::ToCome(at) => {
                let address = listener.address;
                let socket = old.get_mut(at).and_then(Option::take);
                let missing =
                    || PredecessorError::State(format!("the socket of listener {address} is missing"));
                socket.ok_or_else(missing)?
            }
        };
        sockets.peers.push((listener.transport, socket));
    }
    let unattached = descriptors.take(node.unattached, &"processes that have not attached")?;
    let unattached = unattached.into_iter().map(PacketSocket::from).collect();
    for part in &node.parts {
        let socket = descriptors.take(part.descriptors, &part.name)?.pop();
        match part.name.as_str() {
            ADMIN_PART => {
                let path = PathBuf::from(OsStr::from_bytes(&part.state));
                sockets.admin = socket.map(|socket| (socket, path));
            }
            HTTP_PART => {
                let address = String::from_utf8_lossy(&part.state).into_owned();
                sockets.http = socket.map(|socket| (socket, address));
            }
            PAGE_PART => {
                let address = String::from_utf8_lossy(&part.state).into_owned();
                sockets.page = socket.map(|socket| (socket, address));
            }
            GRPC_PART => {
                let key = String::from_utf8_lossy(&part.state).into_owned();
                let inherited = socket.map(|socket| InheritedSocket { key, socket });
                sockets.grpc.extend(inherited);
            }
            // Of an older or newer version: what it had is not had here.
            _ => {}
        }
    }
    let of_engines = node.shared.iter().map(shared_state).collect::<Vec<_>>();
    plane
        .policies
        .hot_restart_shared(&of_engines)
        .map_err(|error| PredecessorError::State(error.to_string()))?;
    if let Some(part) = node
        .parts
        .iter()
        .find(|part| part.name == observe::state_transfer::PART)
        && let Err(error) = observe::state_transfer::restore(plane, &part.state)
    {
        // Nobody's call depends on it.
        tracing::warn!(%error, "what the other process has counted cannot be gone on from");
    }
    Ok((sockets, unattached))
}

fn saved_policies(saved: state::Policies) -> SavedPolicies {
    let instances = saved.instances.into_iter().map(|instance| SavedInstance {
        shared: shared_state(&instance.shared.unwrap_or_default()),
        attachment: instance.attachment,
    });
    SavedPolicies {
        table: saved.table,
        instances: instances.collect(),
    }
}

fn shared_state(saved: &state::PolicyShared) -> SharedState {
    SharedState {
        version: saved.version,
        bytes: saved.state.clone(),
    }
}
