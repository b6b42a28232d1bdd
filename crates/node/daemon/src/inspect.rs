//! What the node is doing, for operators: datapaths with their engines, policies with where they are, kinds of engines.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use provost_datapath::{EngineDescription, Packets};
use provost_engine::{AppIdentity, HeldTime, PeerIdentity, Side, VerdictLedger};

use crate::connections::OpenConnection;
use crate::control_plane::ControlPlane;
use crate::policies::table::Entry;
use crate::policies::{Attachment, KindDescription, Origin};
use crate::runtime::{
    self, AppId, ConnectionId, DatapathDescription, DescribeOrder, EngineTag, RuntimeCommand,
};
use crate::transport::TransportKind;

#[derive(Clone, Debug)]
pub(crate) struct DatapathReport {
    /// Number of its connection on the node.
    pub(crate) connection: ConnectionId,
    pub(crate) app: Arc<AppIdentity>,
    /// Which end of its calls the app is.
    pub(crate) side: Side,
    pub(crate) service: Arc<str>,
    /// Who is at the other end.
    pub(crate) peer: PeerIdentity,
    /// `native` or `protobuf`.
    pub(crate) encoding: &'static str,
    /// Which runtime polls it.
    pub(crate) runtime: usize,
    /// Calls that began on it so far.
    pub(crate) calls_begun: u64,
    /// Calls under way on it.
    pub(crate) calls_in_flight: usize,
    /// Its engines, the app's first.
    pub(crate) engines: Vec<EngineLine>,
    /// Packets of its transport, if that makes them itself.
    pub(crate) packets: Packets,
    /// How long a packet and its answer take, where that is measured at this end.
    pub(crate) round_trip_ns: Option<u64>,
    /// Why it has not gone over to the transport that its route names, if it should have.
    pub(crate) stays_because: Option<String>,
}

/// One engine of a datapath.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineLine {
    /// What it is, and what waits for it.
    pub(crate) engine: EngineDescription,
    /// The name under which it was attached, if it is a policy's.
    pub(crate) policy: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(crate) struct PolicyDescription {
    /// As the operator has it.
    pub(crate) attachment: Attachment,
    /// The version of its code on most datapaths.
    pub(crate) version: u32,
    pub(crate) origin: AttachedBy,
    /// Datapaths that have an engine of it.
    pub(crate) datapaths: usize,
    /// Apps and connections for which it has another version, such as `app shop: version 2`.
    pub(crate) exceptions: Vec<String>,
    /// Calls that it has judged; none where its kind does something else with calls.
    pub(crate) calls_judged: Option<u64>,
}

/// Who attached a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachedBy {
    /// The configuration, and it is as the configuration says.
    Configuration,
    /// An operator, at run time.
    Operator,
}

/// One kind of engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineKindDescription {
    /// Its name, version and what it does.
    pub(crate) kind: KindDescription,
    /// Datapaths that have an engine of it.
    pub(crate) datapaths: usize,
    /// Whether new datapaths get this version, where it is attached.
    pub(crate) is_current: bool,
}

/// All datapaths, by connection.
pub(crate) async fn datapaths(plane: &ControlPlane) -> Vec<DatapathReport> {
    let mut paths = polled(plane).await.paths;
    let connections = plane.connections.all();
    let mut all: Vec<DatapathReport> = connections
        .iter()
        .filter_map(|(id, connection)| {
            let path = paths.remove(id)?;
            let context = &connection.context;
            let name = |tag: EngineTag| {
                let mut chain = connection.chain.iter();
                let instance = chain.find(|instance| instance.tag == tag);
                instance.map(|instance| Arc::clone(&instance.name))
            };
            let lines = path.engines.into_iter().map(|(tag, engine)| EngineLine {
                engine,
                policy: name(tag),
            });
            Some(DatapathReport {
                connection: *id,
                app: Arc::clone(&context.app),
                side: context.side,
                service: Arc::clone(&context.service),
                peer: context.peer.clone(),
                encoding: match connection.spec.encoding {
                    provost_marshalling::Encoding::Native => "native",
                    provost_marshalling::Encoding::Protobuf => "protobuf",
                },
                runtime: context.runtime,
                calls_begun: path.calls_begun,
                calls_in_flight: path.calls_in_flight,
                engines: lines.collect(),
                packets: connection.signals.packets().read(),
                round_trip_ns: connection.signals.packets().round_trip_ns(),
                stays_because: connection.stays_because.clone(),
            })
        })
        .collect();
    all.sort_by_key(|datapath| datapath.connection);
    all
}

/// What runtimes know of what they poll.
#[derive(Default)]
pub(crate) struct Polled {
    pub(crate) paths: HashMap<ConnectionId, DatapathDescription>,
    /// Bytes of the apps' receive heaps.
    pub(crate) receive_heaps: HashMap<AppId, u64>,
}

pub(crate) async fn polled(plane: &ControlPlane) -> Polled {
    let mut polled = Polled::default();
    for runtime in 0..plane.runtimes.count() {
        ask(plane, runtime, &mut polled).await;
    }
    polled
}

async fn ask(plane: &ControlPlane, runtime: usize, polled: &mut Polled) {
    let mut from = Some(0);
    while let Some(at) = from.take() {
        let (answer, hears) = runtime::reply();
        let question = RuntimeCommand::Describe(Box::new(DescribeOrder { from: at, answer }));
        // A runtime that takes no command, or ends, has nothing to say.
        if plane.runtimes[runtime].send(question).await.is_err() {
            break;
        }
        let Ok(described) = hears.await else { break };
        polled.receive_heaps.extend(described.receive_heaps);
        let by_id = described.datapaths.into_iter().map(|path| (path.id, path));
        polled.paths.extend(by_id);
        from = described.next;
    }
}

/// The attached policies, in order.
pub(crate) fn policies(plane: &ControlPlane) -> Vec<PolicyDescription> {
    let table = plane.policies.table();
    let configured = plane.policies.configured();
    let connections = plane.connections.all();
    let describe = |entry: &Entry| {
        let has_it = |connection: &&OpenConnection| {
            let mut chain = connection.chain.iter();
            chain.any(|instance| *instance.name == *entry.attachment.name)
        };
        let exceptions = entry.exceptions.iter();
        PolicyDescription {
            attachment: entry.attachment.clone(),
            version: entry.live.kind.version(),
            origin: if configured.contains(&entry.attachment) {
                AttachedBy::Configuration
            } else {
                AttachedBy::Operator
            },
            datapaths: connections.values().filter(has_it).count(),
            exceptions: exceptions
                .map(|(reach, instance)| format!("{reach}: version {}", instance.kind.version()))
                .collect(),
            calls_judged: calls_judged(entry),
        }
    };
    table.entries.iter().map(describe).collect()
}

/// Calls that an attachment has judged, in whatever version; none where its kind does something else with calls.
fn calls_judged(entry: &Entry) -> Option<u64> {
    let ledgers = ledgers(entry);
    let judged = ledgers.iter().map(|ledger| ledger.calls_judged());
    (!ledgers.is_empty()).then(|| judged.sum())
}

/// How long one policy has kept calls waiting.
pub(crate) struct PolicyHeld {
    pub(crate) name: Arc<str>,
    pub(crate) kind: &'static str,
    pub(crate) all: HeldTime,
    /// By path of the method.
    pub(crate) methods: BTreeMap<Arc<str>, HeldTime>,
}

/// How long the policies that judge calls have kept them waiting, in order.
pub(crate) fn held_times(plane: &ControlPlane) -> Vec<PolicyHeld> {
    let table = plane.policies.table();
    let of_entry = |entry: &Entry| {
        let ledgers = ledgers(entry);
        let mut methods: BTreeMap<Arc<str>, HeldTime> = BTreeMap::new();
        for (method, held) in ledgers.iter().flat_map(|ledger| ledger.held_by_method()) {
            let so_far = methods.entry(method).or_default();
            *so_far = [*so_far, held].into_iter().sum();
        }
        (!ledgers.is_empty()).then(|| PolicyHeld {
            name: Arc::clone(&entry.live.name),
            kind: entry.live.kind.name(),
            all: ledgers.iter().map(|ledger| ledger.held_time()).sum(),
            methods,
        })
    };
    table.entries.iter().filter_map(of_entry).collect()
}

/// Where what an attachment says of calls is counted; none where its kind does something else with calls.
fn ledgers(entry: &Entry) -> Vec<&Arc<VerdictLedger>> {
    let mut ledgers: Vec<&Arc<VerdictLedger>> = Vec::new();
    for instance in entry.instances().filter(|instance| instance.kind.judges_calls()) {
        // What took the place of another one goes on with the same ledger.
        if !ledgers.iter().any(|known| Arc::ptr_eq(known, &instance.verdicts)) {
            ledgers.push(&instance.verdicts);
        }
    }
    ledgers
}

/// The kinds of policies, and the transports to other nodes.
pub(crate) fn engines(plane: &ControlPlane) -> Vec<EngineKindDescription> {
    let table = plane.policies.table();
    let connections = plane.connections.all();
    let of_policy = |kind: KindDescription| {
        let is_it = |name: &str, version: u32| name == kind.name && version == kind.version;
        let has_it = |connection: &&OpenConnection| {
            let mut chain = connection.chain.iter();
            chain.any(|instance| is_it(instance.kind.name(), instance.kind.version()))
        };
        let mut entries = table.entries.iter();
        let in_use = entries.clone().any(|entry| entry.live.kind.name() == kind.name);
        let newest = plane.policies.registry().find(&kind.name, None);
        EngineKindDescription {
            datapaths: connections.values().filter(has_it).count(),
            is_current: if in_use {
                entries.any(|entry| is_it(entry.live.kind.name(), entry.live.kind.version()))
            } else {
                newest.is_ok_and(|newest| newest.version() == kind.version)
            },
            kind,
        }
    };
    let mut all: Vec<_> = plane
        .policies
        .registry()
        .list()
        .into_iter()
        .map(of_policy)
        .collect();
    for transport in TransportKind::ALL
        .iter()
        .copied()
        .filter(|kind| kind.is_network())
    {
        let description = transport.description();
        for version in description.versions.iter().copied() {
            let has_it = |connection: &&OpenConnection| {
                let spec = &connection.spec;
                spec.transport == transport && spec.transport_version == version
            };
            all.push(EngineKindDescription {
                kind: KindDescription {
                    name: description.engine.to_owned(),
                    version,
                    summary: description.summary.to_owned(),
                    example: String::new(),
                    origin: Origin::BuiltIn,
                },
                datapaths: connections.values().filter(has_it).count(),
                is_current: table.transports.current(transport) == version,
            });
        }
    }
    all
}
