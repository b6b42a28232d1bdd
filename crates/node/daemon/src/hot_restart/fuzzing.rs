//! A fuzz target: a process that takes over and is given any state. It restores it, or says why not; as nothing is ever
//! committed, it never goes on with it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use provost_shm::{Doorbell, Memfd, PacketSocket, SEALS_FIXED_SIZE, ServiceRings};
use provost_wire::limits::RING_SLOTS_MIN;

use super::channel::{Body, Channel, ChannelError, CompleteState, Hello, PartiesFollow, State};
use super::state::{App, FORMAT, GrpcClient, Node as NodeState, Policies, Preview, SavedParties};
use super::succeed::Predecessor;
use crate::config::Sources;
use crate::policies::Registry;
use crate::{Config, Node, NodeParts};

/// How long each end waits for the other, whatever the machine does.
const WAIT_MAX: Duration = Duration::from_secs(4);
/// The table of a node without policies.
const NO_POLICIES: &str = "configured = []\nentries = []\n[transports]\n";
/// Bytes of an app's send heap.
const HEAP_BYTES: u64 = 1 << 20;
/// Apps for which there are descriptors, at most.
const APPS_MAX: u8 = 3;
/// First bytes from this one on say that callers come before the rest.
const CALLERS_FIRST: u8 = 128;
/// First bytes from this one on say that apps and callers come behind the rest.
const PARTIES_LAST: u8 = 192;

/// The first byte says for how many apps there are descriptors, and whether the rest is the state, in its own form, or callers that come
/// before a state of nothing else, or apps and callers that come behind it.
///
/// # Panics
/// When the process goes on with what was not committed.
pub fn saved_node(input: &[u8]) {
    if let Some((apps, state)) = input.split_first() {
        // Without memory or descriptors there is nothing to try.
        let _ = take_over(*apps, state);
    }
}

/// What the new process says of a state; it ends, as it is told nothing more.
fn take_over(kind: u8, state: &[u8]) -> io::Result<Result<Body, ChannelError>> {
    let apps = kind % (APPS_MAX + 1);
    let (of_rest, of_apps) = (vec![control_descriptor()?], descriptors(apps)?);
    let (old, new) = Channel::pair()?;
    let (new, socket) = (new.try_clone_descriptor()?, control_socket());
    let parts = NodeParts {
        config: config(&socket),
        kinds: Registry::with_built_ins(),
        sources: Sources::default(),
    };
    std::thread::scope(|scope| {
        let old = scope.spawn(|| {
            let old = old;
            greet(&old, &socket)?;
            let rest = seed_node().encode_to_vec();
            let parties = |descriptors| Body::Parties(PartiesFollow { descriptors });
            let all = |descriptors| Body::State(State { descriptors });
            match kind {
                PARTIES_LAST.. => {
                    let before = |descriptors| Body::Rest(State { descriptors });
                    send_part(&old, &rest, before, &of_rest)?;
                    send_part(&old, state, parties, &of_apps)?;
                    old.send(Body::Complete(CompleteState {}), WAIT_MAX)?;
                }
                CALLERS_FIRST.. => {
                    send_part(&old, state, parties, &[])?;
                    send_part(&old, &rest, all, &of_rest)?;
                }
                _ => {
                    let everything: Vec<OwnedFd> = of_rest.into_iter().chain(of_apps).collect();
                    send_part(&old, state, all, &everything)?;
                }
            }
            Ok(old.receive(WAIT_MAX)?.0)
        });
        let restored = Node::hot_restart(parts, Predecessor::at(new));
        assert!(restored.is_err(), "it goes on with what was not committed");
        old.join()
            .map_err(|_| io::Error::other("the old process has panicked"))
    })
}

/// States to start from: of a node without apps, and of one with an app.
///
/// # Panics
/// When the fixture is gone.
#[must_use]
pub fn saved_node_seeds() -> Vec<Vec<u8>> {
    let port = include_bytes!("../../../../engines/frontend/tests/fixtures/app-port-1.bin");
    let app = App {
        id: 1,
        name: "app".to_owned(),
        pid: 1,
        takes_regions: true,
        port: port.to_vec(),
        port_descriptors: 3,
        ..App::default()
    };
    let node = seed_node();
    let client = GrpcClient {
        app: Some(App {
            id: 1,
            ..App::default()
        }),
        ..GrpcClient::default()
    };
    // Its socket is missing, so it is left out.
    let callers = SavedParties {
        grpc_clients: vec![client],
        ..SavedParties::default()
    };
    let callers_first = [vec![CALLERS_FIRST], callers.encode_to_vec()].concat();
    let all = SavedParties {
        apps: vec![app.clone()],
        ..callers
    };
    let parties_last = [vec![PARTIES_LAST + 1], all.encode_to_vec()].concat();
    let with_app = NodeState {
        apps: vec![app],
        ..node.clone()
    };
    let seed = |apps: u8, state: &NodeState| [vec![apps], state.encode_to_vec()].concat();
    vec![
        seed(0, &node),
        seed(1, &with_app),
        seed(2, &with_app),
        vec![CALLERS_FIRST],
        callers_first,
        vec![PARTIES_LAST],
        parties_last,
    ]
}

/// A node without apps.
pub(super) fn seed_node() -> NodeState {
    NodeState {
        next_app: 2,
        next_connection: 1,
        control_sockets: 1,
        ..NodeState::default()
    }
}

/// What the old process says until the new one is ready.
pub(super) fn greet(channel: &Channel, socket: &Path) -> Result<(), ChannelError> {
    let hello = Hello {
        format: FORMAT,
        version: "fuzz".to_owned(),
    };
    let preview = Preview {
        control_socket: socket.as_os_str().as_bytes().to_vec(),
        policies: Some(Policies {
            table: NO_POLICIES.to_owned(),
            instances: Vec::new(),
        }),
        ..Preview::default()
    };
    channel.send(Body::Hello(hello), WAIT_MAX)?;
    channel.send_document(&preview.encode_to_vec(), WAIT_MAX)?;
    channel.receive(WAIT_MAX)?;
    Ok(())
}

/// Sends a document, what it is, and the descriptors beside it.
pub(super) fn send_part(
    channel: &Channel,
    document: &[u8],
    kind: impl FnOnce(u64) -> Body,
    descriptors: &[OwnedFd],
) -> Result<(), ChannelError> {
    channel.send_document(document, WAIT_MAX)?;
    channel.send(kind(descriptors.len() as u64), WAIT_MAX)?;
    channel.send_descriptors(descriptors, WAIT_MAX)
}

/// The descriptor of a control socket.
pub(super) fn control_descriptor() -> io::Result<OwnedFd> {
    let (control, _) = UnixStream::pair()?;
    Ok(control.into())
}

/// What each app has: its own socket, its send heap, its doorbell, its rings.
fn descriptors(apps: u8) -> io::Result<Vec<OwnedFd>> {
    let mut all = Vec::new();
    for _ in 0..apps {
        let (own, _) = PacketSocket::pair()?;
        let heap = Memfd::create("fuzz-heap", HEAP_BYTES).map_err(io::Error::from)?;
        heap.seal(SEALS_FIXED_SIZE).map_err(io::Error::from)?;
        let (ringer, bell) = Doorbell::create()?;
        let rings = ServiceRings::create(RING_SLOTS_MIN, RING_SLOTS_MIN);
        let (_rings, [submission, completion]) = rings.map_err(io::Error::from)?;
        let (port_ringer, _) = Doorbell::create()?;
        for descriptor in [
            own.as_fd(),
            heap.as_fd(),
            ringer.as_fd(),
            bell.as_fd(),
            submission.as_fd(),
            completion.as_fd(),
            port_ringer.as_fd(),
        ] {
            all.push(descriptor.try_clone_to_owned()?);
        }
    }
    Ok(all)
}

/// Where a control socket could be; nothing is ever there.
fn control_socket() -> PathBuf {
    std::env::temp_dir().join(format!("provost-fuzz-{}.sock", std::process::id()))
}

pub(super) fn config(socket: &Path) -> Config {
    let text = format!(
        "[node]\nname = \"fuzz\"\n[control]\nsocket = \"{}\"\n[runtime]\nthreads = 1\n",
        socket.display()
    );
    Config::parse(&text, "fuzz.toml").expect("a good configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_to_start_from_are_restored_and_others_are_refused() {
        for seed in saved_node_seeds() {
            let said = take_over(seed[0], &seed[1..]).unwrap();
            assert!(matches!(said, Ok(Body::Restored(_))), "{said:?}");
        }
        for state in [&[0xff; 9][..], &[]] {
            let said = take_over(0, state).unwrap();
            assert!(matches!(said, Err(ChannelError::Failed(_))), "{said:?}");
        }
        // What is told after the new process has ended reaches nobody.
        for kind in [CALLERS_FIRST, PARTIES_LAST] {
            let said = take_over(kind, &[0xff; 9]).unwrap();
            assert!(said.is_err(), "{said:?}");
        }
    }
}
