//! HotRestarts: at random moments the engines of a connection are replaced by successors, in their own process and, as
//! far as one end can go alone, in another one. Nobody may notice.

use std::sync::Arc;

use provost_conformance::simulated::{self, EndHandle};
use provost_conformance::{Random, succeed};
use provost_datapath::{
    Datapath, Engine, EngineStart, Nanos, Predecessor, ReceiveHeap, RestoreError, Stage, Successor,
};
use provost_frontend::{AppRole, CallQuota, Frontend, FrontendParts, SendHeap};
use provost_marshal::copy_foreign;
use provost_marshalling::{Binding, Encoding, Marshalling, Side};
use provost_policies::NullPolicy;
use provost_transport_local::{LocalEnd, LocalTransport};
use provost_wire::limits::{CALLS_IN_FLIGHT_MAX, MESSAGE_BYTES_MAX};

use crate::note::Service;

/// Once in how many polls of a connection something of it is succeeded.
const POLLS_BETWEEN: u64 = 60;

/// What the engines of a connection are made of, so that successors can be.
pub(super) struct Lineage {
    pub(super) role: AppRole,
    pub(super) service: Service,
    pub(super) encoding: Encoding,
    pub(super) send_heap: SendHeap,
    pub(super) quota: Arc<CallQuota>,
    pub(super) transport: TransportHandle,
    pub(super) random: Random,
}

/// By which a successor of a transport finds what it carries.
#[derive(Clone)]
pub(super) enum TransportHandle {
    Pipe(EndHandle),
    Local(LocalEnd),
}

impl Lineage {
    pub(super) fn frontend(&self, link: Arc<provost_datapath::ConnectionSignals>) -> FrontendParts {
        FrontendParts {
            role: self.role,
            tables: self.service.tables.clone(),
            methods: self.service.shapes.clone(),
            send_heap: self.send_heap.clone(),
            message_bytes_max: MESSAGE_BYTES_MAX,
            calls_max: CALLS_IN_FLIGHT_MAX as u32,
            quota: (self.role == AppRole::Server).then(|| self.quota.clone()),
            link,
        }
    }

    pub(super) fn marshalling(&self) -> Binding {
        Binding {
            tables: self.service.tables.clone(),
            methods: self.service.types.clone(),
            side: match self.role {
                AppRole::Client => Side::Client,
                AppRole::Server => Side::Server,
            },
            encoding: self.encoding,
            message_bytes_max: MESSAGE_BYTES_MAX,
        }
    }

    /// Perhaps replaces engines of the datapath; says whether it did.
    ///
    /// # Errors
    /// A successor could not be made of what its predecessor saved.
    pub(super) fn perhaps_succeed(
        &mut self,
        datapath: &mut Datapath,
        heap: &mut dyn ReceiveHeap,
        now: Nanos,
    ) -> Result<bool, String> {
        if !self.random.one_in(POLLS_BETWEEN) {
            return Ok(false);
        }
        match (&self.transport, self.random.below(3)) {
            (TransportHandle::Pipe(_), 0) => self.replace_process(datapath, heap, now)?,
            (_, 1) => self.replace_engines(datapath, |_| true)?,
            _ => {
                let chosen = self.random.below(4) as usize;
                self.replace_engines(datapath, |at| at == chosen)?;
            }
        }
        Ok(true)
    }

    fn replace_engines(&self, datapath: &mut Datapath, chosen: impl Fn(usize) -> bool) -> Result<(), String> {
        let link = datapath.link().clone();
        let stages = self
            .starts(&link)
            .into_iter()
            .enumerate()
            .map(|(was, start)| match chosen(was) {
                true => Stage::Replace { was, start },
                false => Stage::Keep { was },
            });
        let reconfigured = datapath.reconfigure(stages.collect(), copy_foreign);
        reconfigured
            .map(drop)
            .map_err(|error| format!("no successor in the same process: {error}"))
    }

    fn replace_process(
        &self,
        datapath: &mut Datapath,
        heap: &mut dyn ReceiveHeap,
        now: Nanos,
    ) -> Result<(), String> {
        let link = datapath.link().clone();
        let starts = self.starts(&link);
        datapath.release_all(now);
        let restored = succeed(
            Successor::OtherProcess,
            heap,
            |saver| datapath.save(saver),
            |saved, restorer| {
                let saved = saved.map_err(|error| error.to_string())?;
                Datapath::restore(saved, starts, link, restorer).map_err(|error| error.to_string())
            },
        );
        match restored {
            Ok(successor) => *datapath = successor,
            // An app's memory may be too full to be there twice; then the old process goes on.
            Err(error) if error.contains("no room") => {}
            Err(error) => return Err(format!("no successor in another process: {error}")),
        }
        Ok(())
    }

    fn starts(&self, link: &Arc<provost_datapath::ConnectionSignals>) -> Vec<EngineStart> {
        let (frontend, marshalling) = (self.frontend(link.clone()), self.marshalling());
        let transport = self.transport.clone();
        vec![
            start(move |saved| Frontend::restore(frontend, saved.state, saved.restorer)),
            start(|saved| NullPolicy::restore(saved.state)),
            start(move |saved| Marshalling::restore(saved.state, marshalling, saved.restorer)),
            Box::new(move |predecessor| {
                let saved = Saved::of(predecessor)?;
                Ok(match transport {
                    TransportHandle::Pipe(end) => {
                        Box::new(simulated::restore(saved.state, &end, saved.link, saved.restorer)?)
                    }
                    TransportHandle::Local(end) => Box::new(LocalTransport::restore(
                        saved.state,
                        &end,
                        saved.link,
                        saved.restorer,
                    )?),
                })
            }),
        ]
    }
}

/// What a predecessor that was there has left.
struct Saved<'a> {
    state: &'a provost_datapath::SavedState,
    link: Arc<provost_datapath::ConnectionSignals>,
    restorer: &'a mut dyn provost_datapath::Restorer,
}

impl<'a> Saved<'a> {
    fn of(predecessor: Predecessor<'a>) -> Result<Saved<'a>, RestoreError> {
        let nothing = || RestoreError::Damaged {
            kind: "engine",
            reason: "there was no predecessor".to_owned(),
        };
        Ok(Saved {
            state: predecessor.saved.ok_or_else(nothing)?,
            link: predecessor.link,
            restorer: predecessor.restorer,
        })
    }
}

fn start<E: Engine + 'static>(
    restore: impl FnOnce(Saved<'_>) -> Result<E, RestoreError> + Send + 'static,
) -> EngineStart {
    Box::new(move |predecessor| Ok(Box::new(restore(Saved::of(predecessor)?)?)))
}
