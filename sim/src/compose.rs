//! What one end of a simulated connection is made of: its engines, fresh or from what earlier ones saved, in one order.

use std::sync::Arc;

use provost_conformance::simulated::{self, Setup};
use provost_datapath::{
    BodyForm, ConnectionSignals, Datapath, Engine, EngineStart, MissingMethods, Nanos, Predecessor,
    PrivateBytes, RestoreError, Restorer, SavedState,
};
use provost_engine::{DatapathContext, Side as ContextSide};
use provost_frontend::{AppRole, CallQuota, Frontend, FrontendParts, SendHeap};
use provost_marshalling::{Binding, Encoding, Marshalling, Side};
use provost_policies::NullPolicy;
use provost_runtime::{DatapathWaker, EngineTag, FaultPlan, FittedEngine, StandIn};
use provost_session::handshake::{self, Agreement};
use provost_transport_local::{LocalEnd, LocalTransport, PeerWake};
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, MESSAGE_BYTES_MAX};

use crate::carrier::{SimSocket, SocketTransport};
use crate::note::Service;
use crate::platform::SimNetwork;
use crate::policy::{self, CallLedger, LedgerJudging};

/// The kind of the policy that does nothing.
const NULL_KIND: &str = "null";
/// The ledger's engine as it is attached first.
pub(crate) const LEDGER: EngineTag = EngineTag::FIRST_POLICY;

/// Wakes the other end of a connection within a node.
pub(crate) struct LocalPeer(pub(crate) Arc<DatapathWaker>);

impl PeerWake for LocalPeer {
    fn wake(&self) {
        self.0.wake();
    }
}

/// By which a successor of a transport finds what it carries.
#[derive(Clone)]
pub(crate) enum TransportHandle {
    /// It has saved the numbers of its sockets.
    Network(SimNetwork),
    Local(LocalEnd),
}

/// What the engines of one end are made of.
#[derive(Clone)]
pub(crate) struct EndSpec {
    pub(crate) role: AppRole,
    pub(crate) service: Service,
    pub(crate) encoding: Encoding,
    pub(crate) send_heap: SendHeap,
    pub(crate) quota: Arc<CallQuota>,
    pub(crate) ledger: CallLedger,
}

impl EndSpec {
    /// The datapath as policies are told of it.
    pub(crate) fn context(&self) -> Arc<DatapathContext> {
        let side = match self.role {
            AppRole::Client => ContextSide::Client,
            AppRole::Server => ContextSide::Server,
        };
        Arc::new(self.service.source.datapath_context(side))
    }

    fn frontend(&self, link: Arc<ConnectionSignals>) -> FrontendParts {
        FrontendParts {
            role: self.role,
            form: BodyForm::Native,
            tables: self.service.tables.clone(),
            methods: self.service.shapes.clone(),
            send_heap: self.send_heap.clone(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            calls_max: CALLS_IN_FLIGHT_MAX as u32,
            quota: (self.role == AppRole::Server).then(|| self.quota.clone()),
            link,
        }
    }

    fn marshalling(&self) -> Binding {
        Binding {
            tables: self.service.tables.clone(),
            methods: self.service.types.clone(),
            side: match self.role {
                AppRole::Client => Side::Client,
                AppRole::Server => Side::Server,
            },
            form: BodyForm::Native,
            encoding: self.encoding,
            message_bytes_max: MESSAGE_BYTES_MAX,
            share: PrivateBytes::of_connection(self.send_heap.share()),
        }
    }

    /// A new datapath over this transport. Calls are judged where they are made.
    pub(crate) fn datapath(
        &self,
        transport: Box<dyn Engine>,
        link: &Arc<ConnectionSignals>,
    ) -> (Datapath, Vec<FittedEngine>) {
        let mut engines: Vec<(EngineTag, Box<dyn Engine>)> = vec![(
            EngineTag::FRONTEND,
            Box::new(Frontend::new(self.frontend(link.clone()))),
        )];
        if self.role == AppRole::Client {
            let ledger = policy::ledger(&self.ledger, LedgerJudging::Done, 1, &self.context(), None);
            engines.extend(ledger.ok().map(|ledger| (LEDGER, ledger)));
        }
        let marshalling = Marshalling::new(self.marshalling());
        engines.push((EngineTag::MARSHALLING, Box::new(marshalling)));
        engines.push((EngineTag::TRANSPORT, transport));
        let (tags, engines): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
        let fitted = tags.into_iter().map(|tag| self.fit(tag));
        (Datapath::new(engines, link.clone()), fitted.collect())
    }

    /// What is known of an engine beside it.
    pub(crate) fn fit(&self, tag: EngineTag) -> FittedEngine {
        FittedEngine::new(tag, self.fault_plan(tag))
    }

    /// A failed ledger ends the calls that it would judge; any other policy is left out.
    pub(crate) fn fault_plan(&self, tag: EngineTag) -> FaultPlan {
        if tag != LEDGER {
            return FaultPlan::default();
        }
        let context = self.context();
        FaultPlan {
            probation: None,
            stand_in: StandIn::Deny(Arc::new(move || {
                let context = context.clone();
                Box::new(move |predecessor| policy::closed(&context, predecessor.saved))
            })),
        }
    }

    /// Starts the successor of an engine of this kind.
    pub(crate) fn successor(
        &self,
        kind: &str,
        judging: LedgerJudging,
        transport: Option<TransportSource>,
    ) -> Result<EngineStart, String> {
        let context = self.context();
        let ledger = self.ledger.clone();
        let spec = self.clone();
        Ok(match kind {
            NULL_KIND => started(|saved| NullPolicy::restore(saved.state)),
            policy::LEDGER_KIND => {
                Box::new(move |predecessor| policy::ledger(&ledger, judging, 2, &context, predecessor.saved))
            }
            policy::CLOSED_KIND => Box::new(move |predecessor| policy::closed(&context, predecessor.saved)),
            policy::FAILING_KIND => {
                Box::new(move |predecessor| policy::failing(3, &context, predecessor.saved))
            }
            "frontend" => started(move |saved| {
                Frontend::restore(spec.frontend(saved.link), saved.state, saved.restorer)
            }),
            "marshalling" => {
                started(move |saved| Marshalling::restore(saved.state, spec.marshalling(), saved.restorer))
            }
            other => match transport {
                Some(source) => source.start(),
                None => return Err(format!("nothing is known of engines of the kind {other}")),
            },
        })
    }
}

/// Of what the successor of a transport is made.
pub(crate) enum TransportSource {
    /// Of what its predecessor saved, on the same carrier.
    Saved(TransportHandle),
    /// It was made together with the other end's.
    Made(LocalTransport),
}

impl TransportSource {
    fn start(self) -> EngineStart {
        match self {
            TransportSource::Made(transport) => Box::new(move |_| Ok(Box::new(transport))),
            TransportSource::Saved(TransportHandle::Network(network)) => Box::new(move |predecessor| {
                let kind = predecessor.saved.map(|saved| saved.kind.clone());
                restoring(&network, &kind.unwrap_or_default())(predecessor)
            }),
            TransportSource::Saved(TransportHandle::Local(end)) => {
                started(move |saved| LocalTransport::restore(saved.state, &end, saved.link, saved.restorer))
            }
        }
    }
}

/// How a transport over a carrier, or two of them beside each other, goes on from what was saved.
pub(crate) fn restoring(network: &SimNetwork, kind: &str) -> EngineStart {
    let network = network.clone();
    if kind == provost_transport_migration::KIND {
        return Box::new(move |predecessor| {
            provost_transport_migration::restore(predecessor, |kind, _| Some(restoring(&network, kind)))
        });
    }
    started(move |saved| SocketTransport::restore(saved.state, &network, saved.link, saved.restorer))
}

/// One end of a carrier.
pub(crate) fn socket_end(
    service: &Service,
    network: &SimNetwork,
    socket: SimSocket,
    setup: Setup,
    link: &Arc<ConnectionSignals>,
    now: Nanos,
) -> SocketTransport {
    let methods = service.kinds.iter().enumerate();
    let agreement = Agreement {
        encoding: setup.encoding,
        peer_limits: setup.limits,
        methods: methods.map(|(at, kind)| Some((at as u16, *kind))).collect(),
        missing: MissingMethods::default(),
    };
    let transport = simulated::transport(
        socket.role,
        socket.pipe.clone(),
        setup,
        agreement,
        link.clone(),
        now,
    );
    network.register(&socket, transport.carrier().handle());
    SocketTransport::new(transport, socket, link.clone())
}

/// The form in which an end's messages travel.
pub(crate) fn encoding(setup: &Setup) -> Encoding {
    match setup.encoding {
        handshake::Encoding::Native => Encoding::Native,
        handshake::Encoding::Protobuf => Encoding::Protobuf,
    }
}

/// What a predecessor that was there has left.
struct PredecessorState<'a> {
    state: &'a SavedState,
    link: Arc<ConnectionSignals>,
    restorer: &'a mut dyn Restorer,
}

fn started<E: Engine + 'static>(
    restore: impl FnOnce(PredecessorState<'_>) -> Result<E, RestoreError> + Send + 'static,
) -> EngineStart {
    Box::new(move |predecessor: Predecessor<'_>| {
        let state = predecessor.saved.ok_or_else(|| RestoreError::Damaged {
            kind: "engine",
            reason: "there was no predecessor".to_owned(),
        })?;
        let engine = restore(PredecessorState {
            state,
            link: predecessor.link,
            restorer: predecessor.restorer,
        })?;
        Ok(Box::new(engine))
    })
}
