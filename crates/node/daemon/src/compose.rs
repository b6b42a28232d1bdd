//! The one place where a connection becomes a datapath: what a connection is ([`ConnectionSpec`]), and the engines that it
//! gets, in the order in which an outgoing call meets them.
//!
//! ```text
//! app ◄─► frontend ◄─► policies, in the order of their table ◄─► marshalling ◄─► transport ◄─► peer
//! ```
//!
//! Connecting, listening, restoring after a hot restart and migrating to another transport all go through [`datapath`] or
//! [`planned`]; no other file knows the order.

use std::sync::Arc;

use provost_datapath::{
    BodyForm, CompressedMessages, ConnectionSignals, Datapath, Engine, EngineStart, ForeignBytes, NotSaved,
    Predecessor, PrivateBytes, ReceivedBlock, RestoreError, Restorer, SavedDatapath,
};
use provost_engine::{AppIdentity, AttestedApp, DatapathContext, MethodContext, PeerIdentity, Verdicts};
use provost_frontend::{AppRole, CallQuota, Frontend, FrontendParts, SendHeap};
use provost_marshalling::{Binding, Encoding, Marshalling, Side};

use crate::policies::chain::PolicyEngine;
use crate::runtime::{ConnectionId, EngineTag, FaultPlan, FittedEngine, PlannedEngine};
use crate::schemas::BoundSchema;
use crate::transport::TransportKind;

/// A connection of an app: everything that its datapath is built from. A connection that changes (it migrates, or its
/// transport is upgraded) gets another specification.
#[derive(Clone)]
pub(crate) struct ConnectionSpec {
    /// Unlike that of all other connections of the node.
    pub(crate) id: ConnectionId,
    /// The name of the node.
    pub(crate) node: Arc<str>,
    /// The app whose end of the connection this is.
    pub(crate) app: AppEndpoint,
    /// The app's own schema of the service.
    pub(crate) schema: Arc<BoundSchema>,
    /// What the app offers, where it serves; none where it calls.
    pub(crate) offer: Option<AcceptedOffer>,
    /// Who is at the other end.
    pub(crate) peer: PeerEndpoint,
    pub(crate) transport: TransportKind,
    /// The version of the transport's code.
    pub(crate) transport_version: u32,
    /// In which form messages go over the transport.
    pub(crate) encoding: Encoding,
    pub(crate) limits: ConnectionLimits,
}

/// The end of a connection that an app has.
#[derive(Clone)]
pub(crate) struct AppEndpoint {
    pub(crate) identity: Arc<AppIdentity>,
    /// Who it has proved to be by a certificate; empty for nobody.
    pub(crate) proved: Arc<str>,
    /// The runtime that polls the app.
    pub(crate) runtime: usize,
    pub(crate) send_heap: SendHeap,
    pub(crate) judging: JudgedConnections,
    /// In which form its messages are between it and marshalling: as it has them.
    pub(crate) form: BodyForm,
    /// What becomes of messages that are compressed for it.
    pub(crate) compressed: CompressedMessages,
}

/// Of which of an app's connections policies judge the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JudgedConnections {
    /// Of all that it has.
    AllOfThem,
    /// Of those that it serves: on the others it only passes on what came there.
    ThoseItServes,
}

/// The other end of a connection.
#[derive(Clone)]
pub(crate) struct PeerEndpoint {
    /// Who it has proved to be; empty for nobody.
    pub(crate) identity: Arc<str>,
    /// Where it is; empty on this node.
    pub(crate) address: Arc<str>,
    /// Which app it is, if it is on this node.
    pub(crate) app: Option<Arc<AppIdentity>>,
    /// Which app it is on its own node, if that node says so and its word is taken.
    pub(crate) attested: Option<Arc<AttestedApp>>,
}

/// The offer of a service by which a connection was accepted.
#[derive(Clone)]
pub(crate) struct AcceptedOffer {
    /// The app's request that made it.
    pub(crate) request: u64,
    /// How many calls the app takes over all connections.
    pub(crate) quota: Arc<CallQuota>,
}

/// What a connection may carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimits {
    /// Largest message that the app may send, in bytes.
    pub(crate) message_bytes_max: u32,
    /// Calls in flight.
    pub(crate) calls_max: u32,
    /// Whether messages go over it as the app's end has them compressed.
    pub(crate) compressed: CompressedMessages,
}

impl ConnectionSpec {
    /// Which side of its calls the app is on.
    pub(crate) fn role(&self) -> AppRole {
        match self.offer {
            None => AppRole::Client,
            Some(_) => AppRole::Server,
        }
    }

    /// The service that the app serves here, if it does.
    pub(crate) fn serves(&self) -> Option<&str> {
        self.offer.as_ref().map(|_| self.schema.service.as_str())
    }

    /// Its methods, as far as policies may judge their calls here.
    fn judged_methods(&self) -> Arc<[MethodContext]> {
        match (self.app.judging, self.role()) {
            (JudgedConnections::ThoseItServes, AppRole::Client) => Arc::from([]),
            _ => Arc::clone(&self.schema.methods().contexts),
        }
    }

    /// The connection as its policies are told of it.
    pub(crate) fn context(&self) -> Arc<DatapathContext> {
        Arc::new(DatapathContext {
            node: Arc::clone(&self.node),
            app: Arc::clone(&self.app.identity),
            side: match self.role() {
                AppRole::Client => provost_engine::Side::Client,
                AppRole::Server => provost_engine::Side::Server,
            },
            service: self.schema.service.as_str().into(),
            methods: self.judged_methods(),
            scope: Arc::from([]),
            schema: Arc::clone(&self.schema.schema),
            tables: Arc::clone(&self.schema.tables),
            peer: PeerIdentity {
                identity: Arc::clone(&self.peer.identity),
                address: Arc::clone(&self.peer.address),
                transport: self.transport.name(),
                app: self.peer.app.clone(),
                attested: self.peer.attested.clone(),
            },
            connection: self.id,
            runtime: self.app.runtime,
            verdicts: Verdicts::of_nobody(),
        })
    }

    fn frontend(&self, signals: &Arc<ConnectionSignals>) -> EngineStart {
        let parts = FrontendParts {
            role: self.role(),
            form: self.app.form,
            tables: Arc::clone(&self.schema.tables),
            methods: Arc::clone(&self.schema.methods().shapes),
            send_heap: self.app.send_heap.clone(),
            message_bytes_max: self.limits.message_bytes_max,
            calls_max: self.limits.calls_max,
            quota: self.offer.as_ref().map(|offer| Arc::clone(&offer.quota)),
            link: Arc::clone(signals),
        };
        Box::new(move |predecessor: Predecessor<'_>| {
            let frontend = match predecessor.saved {
                None => Frontend::new(parts),
                Some(saved) => Frontend::restore(parts, saved, predecessor.restorer)?,
            };
            Ok(Box::new(frontend) as Box<dyn Engine>)
        })
    }

    fn marshalling(&self) -> EngineStart {
        let binding = Binding {
            tables: Arc::clone(&self.schema.tables),
            methods: Arc::clone(&self.schema.methods().types),
            side: match self.role() {
                AppRole::Client => Side::Client,
                AppRole::Server => Side::Server,
            },
            form: self.app.form,
            encoding: self.encoding,
            message_bytes_max: self.limits.message_bytes_max,
            share: PrivateBytes::of_connection(self.app.send_heap.share()),
        };
        Box::new(move |predecessor: Predecessor<'_>| {
            let marshalling = match predecessor.saved {
                None => Marshalling::new(binding),
                Some(saved) => Marshalling::restore(saved, binding, predecessor.restorer)?,
            };
            Ok(Box::new(marshalling) as Box<dyn Engine>)
        })
    }
}

/// The order of the engines of a datapath, whatever is known of each: this function alone has it.
fn in_order<T>(frontend: T, policies: impl IntoIterator<Item = T>, marshalling: T, transport: T) -> Vec<T> {
    let mut engines = vec![frontend];
    engines.extend(policies);
    engines.extend([marshalling, transport]);
    engines
}

/// The engines of a datapath with these policies.
pub(crate) fn tags(policies: impl IntoIterator<Item = EngineTag>) -> Vec<EngineTag> {
    in_order(
        EngineTag::FRONTEND,
        policies,
        EngineTag::MARSHALLING,
        EngineTag::TRANSPORT,
    )
}

/// The engines that a datapath is to have: what connects it to its app and its schema stays.
pub(crate) fn planned(policies: Vec<PlannedEngine>, transport: PlannedEngine) -> Vec<PlannedEngine> {
    in_order(
        PlannedEngine::Keep(EngineTag::FRONTEND),
        policies,
        PlannedEngine::Keep(EngineTag::MARSHALLING),
        transport,
    )
}

/// The place of the policies among the engines of a saved datapath; none, if that has another order.
pub(crate) fn policies_among(saved: &[EngineTag]) -> Option<std::ops::Range<usize>> {
    let policies = 1..saved.len().checked_sub(2)?.max(1);
    let of_policies = saved.get(policies.clone())?.iter().copied();
    let is_policy = |tag: &EngineTag| *tag >= EngineTag::FIRST_POLICY;
    (tags(of_policies.clone()) == saved && of_policies.clone().all(|tag| is_policy(&tag))).then_some(policies)
}

/// A datapath that another process has saved.
pub(crate) struct SavedConnection<'a> {
    pub(crate) datapath: SavedDatapath,
    /// Where the memory comes from that the state names.
    pub(crate) restorer: &'a mut dyn Restorer,
}

/// Builds a connection's datapath, fresh or from what was saved of it. Beside it comes what is known of each engine.
/// `policies` are in the order of their table; `transport` starts the engine that carries the connection.
pub(crate) fn datapath(
    spec: &ConnectionSpec,
    signals: &Arc<ConnectionSignals>,
    policies: Vec<PolicyEngine>,
    transport: EngineStart,
    saved: Option<SavedConnection<'_>>,
) -> Result<(Datapath, Vec<FittedEngine>), RestoreError> {
    let fixed = |tag, start| PolicyEngine {
        start,
        fitted: FittedEngine::new(tag, FaultPlan::default()),
    };
    let engines = in_order(
        fixed(EngineTag::FRONTEND, spec.frontend(signals)),
        policies,
        fixed(EngineTag::MARSHALLING, spec.marshalling()),
        fixed(EngineTag::TRANSPORT, transport),
    );
    let mut starts: Vec<EngineStart> = Vec::with_capacity(engines.len());
    let mut fitted: Vec<FittedEngine> = Vec::with_capacity(engines.len());
    for engine in engines {
        starts.push(engine.start);
        fitted.push(engine.fitted);
    }
    let datapath = match saved {
        Some(saved) => Datapath::restore(saved.datapath, starts, Arc::clone(signals), saved.restorer)?,
        None => {
            let engines = starts
                .into_iter()
                .map(|start| start(fresh(signals, &mut NamesNothing)));
            Datapath::new(engines.collect::<Result<_, _>>()?, Arc::clone(signals))
        }
    };
    Ok((datapath, fitted))
}

/// For an engine that has no predecessor.
fn fresh<'a>(signals: &Arc<ConnectionSignals>, restorer: &'a mut NamesNothing) -> Predecessor<'a> {
    Predecessor {
        saved: None,
        descriptors: Vec::new(),
        link: Arc::clone(signals),
        restorer,
    }
}

/// For state that names neither blocks nor ranges of memory.
pub(crate) struct NamesNothing;

impl Restorer for NamesNothing {
    fn block(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        Err(NotSaved::Block { at: saved.at })
    }

    fn foreign(&mut self, kept: u32) -> Result<ForeignBytes, NotSaved> {
        Err(NotSaved::Foreign { kept })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn a_saved_datapath_has_the_order_of_a_fresh_one() {
        let policies = [EngineTag(16), EngineTag(40)];
        let all = tags(policies);
        assert_eq!(
            all,
            [
                EngineTag::FRONTEND,
                EngineTag(16),
                EngineTag(40),
                EngineTag::MARSHALLING,
                EngineTag::TRANSPORT
            ]
        );
        assert_eq!(policies_among(&all), Some(1..3));
        assert_eq!(policies_among(&tags([])), Some(1..1));
        let mut turned = all.clone();
        turned.swap(1, 3);
        assert_eq!(policies_among(&turned), None);
        for short in 0..all.len() {
            assert_eq!(policies_among(&all[..short]), None, "{short}");
        }
    }

    #[test]
    fn no_other_file_knows_the_order_of_engines() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let fixed = [
            "EngineTag::FRONTEND",
            "EngineTag::MARSHALLING",
            "Frontend::new(",
            "Marshalling::new(",
        ];
        let mut knowing = Vec::new();
        visit(&source, &mut |path, text| {
            if fixed.iter().any(|name| text.contains(name)) {
                knowing.push(path.strip_prefix(&source).unwrap().to_path_buf());
            }
        });
        // The runtime has the names of engines, and not their order.
        knowing.retain(|path| !path.starts_with("runtime"));
        assert_eq!(knowing, [PathBuf::from("compose.rs")]);
    }

    fn visit(folder: &Path, found: &mut dyn FnMut(&Path, &str)) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                visit(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found(&path, &std::fs::read_to_string(&path).unwrap());
            }
        }
    }
}
