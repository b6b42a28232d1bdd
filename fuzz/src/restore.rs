//! Targets of what a predecessor saves beside its connections: apps' ports, frontends, both ends within a node, engines of
//! policies. They may come from another version of the program, and so are anything.

use std::sync::{Arc, OnceLock};

use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
use provost_conformance::{End, Node};
use provost_datapath::{ConnectionSignals, Engine, SavedState};
use provost_engine::rig::{Service, policy};
use provost_engine::{PolicyKind, Side};
use provost_frontend::{AppPort, AppRole, Frontend, PortSource};
use provost_shm::{AsFd, Doorbell, Memfd, OwnedFd, SEALS_READ_ONLY_FOR_OTHERS, ServiceRings};
use provost_transport_local::{LocalTransport, PeerWake, SavedEnd, restore_alone, restore_pair};
use provost_wire::limits::RING_SLOTS_MIN;

use crate::submission::{HeapSegments, frontend_parts, send_heap};

/// Bytes of blocks that one state may have made.
const BLOCK_BYTES_MAX: u64 = 1 << 20;
/// Polls of what was restored.
const POLLS: u64 = 8;
/// Bytes of a segment that comes with a port.
const SEGMENT_BYTES: u64 = 1 << 20;

fn restorer() -> FromFixture {
    let mut restorer = FromFixture::default();
    restorer.heap.bytes_max = BLOCK_BYTES_MAX;
    restorer
}

/// A state of a kind: its version, then what was written.
fn state(kind: &str, input: &[u8]) -> Option<SavedState> {
    let (version, bytes) = input.split_first()?;
    Some(SavedState {
        kind: kind.to_owned(),
        version: (*version).into(),
        bytes: bytes.to_vec(),
    })
}

/// The same, the other way round.
fn input_of(state: &SavedState) -> Vec<u8> {
    [&[state.version as u8], &state.bytes[..]].concat()
}

/// The fixtures of a crate whose names begin so.
fn fixtures(folder: &str, prefix: &str) -> Vec<SavedState> {
    let fixtures = Fixtures::of(&format!("{}/../{folder}", env!("CARGO_MANIFEST_DIR")));
    let names = fixtures.names(prefix);
    names.iter().map(|name| fixtures.state(name)).collect()
}

/// The first byte says on which side of its calls the app is. What is restored works, and is saved as something that is
/// restored again.
pub(crate) fn frontend(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    let role = if *first < 128 {
        AppRole::Client
    } else {
        AppRole::Server
    };
    let restored = |state: &SavedState| {
        let parts = frontend_parts(role, send_heap(&[]).ok()?);
        Frontend::restore(parts, state, &mut restorer()).ok()
    };
    let Some(state) = state(provost_frontend::KIND, rest) else {
        return;
    };
    if let Some(frontend) = restored(&state) {
        let again = frontend.save(&mut ToFixture);
        assert!(restored(&again).is_some(), "{again:?} is not restored");
    }
}

pub(crate) fn frontend_seeds() -> Vec<Vec<u8>> {
    let states = fixtures("crates/engines/frontend", "v");
    let with_role = |state: &SavedState| [0, 255].map(|role| [vec![role], input_of(state)].concat());
    states.iter().flat_map(with_role).collect()
}

/// Two states, the first with its length before it: both ends of a connection, or one that is alone. They work on, and end.
pub(crate) fn local_pair(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else {
        return;
    };
    let (client, server) = rest.split_at(rest.len().min(usize::from(u16::from_le_bytes(*length))));
    let kind = provost_transport_local::KIND;
    let Some(client) = state(kind, client) else { return };
    let links = [0; 2].map(|_| Arc::new(ConnectionSignals::new()));
    let (mut at_client, mut at_server) = (restorer(), restorer());
    let client_end = SavedEnd {
        state: &client,
        end: local_end(&links[0]),
        restorer: &mut at_client,
    };
    let restored: Vec<LocalTransport> = match state(kind, server) {
        Some(server) => {
            let server_end = SavedEnd {
                state: &server,
                end: local_end(&links[1]),
                restorer: &mut at_server,
            };
            let pair = restore_pair(client_end, server_end);
            pair.into_iter()
                .flat_map(|(client, server)| [client, server])
                .collect()
        }
        None => restore_alone(client_end).into_iter().collect(),
    };
    let nodes = restored.into_iter().zip(&links).map(|(engine, link)| {
        Node::new(End {
            engine: Box::new(engine),
            link: Arc::clone(link),
        })
    });
    let mut nodes: Vec<Node> = nodes.collect();
    for now in 1..=POLLS {
        for node in &mut nodes {
            node.poll(now);
        }
    }
}

pub(crate) fn local_pair_seeds() -> Vec<Vec<u8>> {
    let inputs = |suffix: &str| {
        let states = fixtures("crates/engines/transport-local", suffix);
        states.iter().map(input_of).collect::<Vec<_>>()
    };
    let pairs = inputs("v2-client").into_iter().zip(inputs("v2-server"));
    let seed = |(client, server): (Vec<u8>, Vec<u8>)| {
        let length = (client.len() as u16).to_le_bytes();
        [
            [&length[..], &client, &server].concat(),
            [&length[..], &client].concat(),
        ]
    };
    pairs.flat_map(seed).collect()
}

fn local_end(link: &Arc<ConnectionSignals>) -> provost_transport_local::End {
    provost_transport_local::End {
        link: Arc::clone(link),
        wake: Arc::new(Unwoken),
    }
}

/// An end that is polled anyway.
struct Unwoken;

impl PeerWake for Unwoken {
    fn wake(&self) {}
}

/// The first byte says how many segments come with the port. The rings are good, as the service itself has made them.
pub(crate) fn port(input: &[u8]) {
    let Some((first, saved)) = input.split_first() else {
        return;
    };
    // Without memory or descriptors there is nothing to try.
    let Ok(descriptors) = port_descriptors(usize::from(*first % 4)) else {
        return;
    };
    let source = PortSource {
        segments: Box::new(HeapSegments),
        bytes_max: 4 * SEGMENT_BYTES,
    };
    if let Ok(mut port) = AppPort::restore(saved, descriptors, source) {
        port.end_claims();
        while let Ok(Some(_)) = port.next_request() {}
    }
}

fn port_descriptors(segments: usize) -> Result<Vec<OwnedFd>, Box<dyn std::error::Error>> {
    let (_rings, [submission, completion]) = ServiceRings::create(RING_SLOTS_MIN, RING_SLOTS_MIN)?;
    let (ringer, _) = Doorbell::create()?;
    let mut descriptors = vec![
        submission.as_fd().try_clone_to_owned()?,
        completion.as_fd().try_clone_to_owned()?,
        ringer.as_fd().try_clone_to_owned()?,
    ];
    for _ in 0..segments {
        let memory = Memfd::create("fuzz-segment", SEGMENT_BYTES)?;
        memory.seal(SEALS_READ_ONLY_FOR_OTHERS)?;
        descriptors.push(memory.as_fd().try_clone_to_owned()?);
    }
    Ok(descriptors)
}

pub(crate) fn port_seeds() -> Vec<Vec<u8>> {
    let fixture = include_bytes!("../../crates/engines/frontend/tests/fixtures/app-port-1.bin");
    (0..4)
        .map(|segments| [&[segments], &fixture[..]].concat())
        .collect()
}

/// The first byte chooses one of the policies that keep calls in mind.
pub(crate) fn filter(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else {
        return;
    };
    let kinds = filters();
    let (kind, text) = &kinds[usize::from(*first) % kinds.len()];
    let Some(state) = state(kind.name(), rest) else {
        return;
    };
    let policy = policy(kind.as_ref(), text, None).expect("a good configuration");
    let start = |state: &SavedState| {
        let start = policy.prepare(&service().datapath_context(Side::Client));
        start.expect("a policy for any service")(Some(state))
    };
    if let Ok(engine) = start(&state) {
        let again = engine.save(&mut ToFixture);
        assert!(start(&again).is_ok(), "{again:?} is not restored");
    }
}

fn service() -> &'static Service {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    SERVICE.get_or_init(|| Service::from_source(PROTO))
}

const PROTO: &str = "syntax = \"proto3\"; package f; message M {} service S { rpc Get(M) returns (M); }";

fn filters() -> Vec<(Arc<dyn PolicyKind>, &'static str)> {
    let configured = [
        ("rate-limit", "requests_per_second = 10"),
        ("access", "default = \"deny\""),
        ("qos", ""),
        ("fault", ""),
    ];
    let kind = |(name, text)| Some((provost_policies::kind(name)?, text));
    configured.into_iter().filter_map(kind).collect()
}

pub(crate) fn filter_seeds() -> Vec<Vec<u8>> {
    let seed = |(number, (kind, text)): (usize, &(Arc<dyn PolicyKind>, &str))| {
        let policy = policy(kind.as_ref(), text, None).expect("a good configuration");
        let start = policy.prepare(&service().datapath_context(Side::Client)).ok()?;
        let state = start(None).ok()?.save(&mut ToFixture);
        Some([vec![number as u8], input_of(&state)].concat())
    };
    filters().iter().enumerate().filter_map(seed).collect()
}
