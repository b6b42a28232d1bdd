//! A whole datapath, handed to another process of the service: what each engine saved, and the steps between them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Datapath, EngineStart, Predecessor};
use crate::{
    ConnectionSignals, FieldReader, FieldWriter, Nanos, Queue, RestoreError, Restorer, SavedState, Saver,
    Step, duplicate_descriptors,
};

/// What errors call the steps between engines.
const KIND: &str = "datapath";
/// Version of the form of [`SavedDatapath::steps`]: for each engine and the wire the steps that wait before it on their
/// way out, then for the app and each engine those behind it on their way in, the oldest first.
const STEPS_VERSION: u8 = 1;
/// Steps of one queue: its bound, and what the engines around it may have given back past that.
const QUEUE_STEPS_SAVED_MAX: usize = 1 << 20;

#[derive(Debug)]
pub struct SavedEngine {
    pub state: SavedState,
    /// The version of its code ([`crate::Engine::version`]).
    pub version: u32,
    /// Duplicates of its descriptors.
    pub descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
pub struct SavedDatapath {
    /// Its engines, the app's first.
    pub engines: Vec<SavedEngine>,
    /// The steps between them.
    pub steps: Vec<u8>,
}

impl Datapath {
    /// Lets every engine give back the steps that it holds, before the datapath is saved. Should it go on instead, they
    /// are taken again. Engines also learn of what has left so far.
    pub fn release_all(&mut self, now: Nanos) {
        self.send_egress_events(now);
        for at in 0..self.engines.len() {
            if let Some((engine, mut ports)) = self.engine_at(at) {
                engine.release(&mut ports);
            }
        }
    }

    /// Saves the datapath for another process. It stays as it is; one of the two may go on.
    pub fn save(&self, saver: &mut dyn Saver) -> io::Result<SavedDatapath> {
        let mut engines = Vec::with_capacity(self.engines.len());
        for engine in &self.engines {
            engines.push(SavedEngine {
                state: engine.save(saver),
                version: engine.version(),
                descriptors: duplicate_descriptors(&**engine)?,
            });
        }
        let mut out = FieldWriter::new();
        out.u8(STEPS_VERSION);
        for queue in self.tx.iter().chain(&self.rx) {
            let steps: Vec<&Step> = queue.iter().collect();
            Step::save_all(steps.into_iter(), saver, &mut out);
        }
        let steps = out.bytes;
        Ok(SavedDatapath { engines, steps })
    }

    /// Goes on with a datapath of another process. `starts` makes an engine of each that was saved.
    pub fn restore(
        saved: SavedDatapath,
        starts: Vec<EngineStart>,
        link: Arc<ConnectionSignals>,
        restorer: &mut dyn Restorer,
    ) -> Result<Datapath, RestoreError> {
        let mut fields = FieldReader::new(KIND, &saved.steps);
        let found = starts.len();
        if found != saved.engines.len() {
            let expected = saved.engines.len();
            return Err(fields.damaged(format!("{expected} engines were saved, {found} can be made")));
        }
        let mut engines = Vec::with_capacity(found);
        for (engine, start) in saved.engines.into_iter().zip(starts) {
            engines.push(start(Predecessor {
                saved: Some(&engine.state),
                descriptors: engine.descriptors,
                link: Arc::clone(&link),
                restorer: &mut *restorer,
            })?);
        }
        let mut datapath = Datapath::new(engines, link);
        let version = fields.u8()?;
        if version != STEPS_VERSION {
            return Err(fields.unknown_version(version.into(), STEPS_VERSION.into()));
        }
        for queue in datapath.tx.iter_mut().chain(&mut datapath.rx) {
            restore_queue(&mut fields, restorer, queue)?;
        }
        fields.end()?;
        Ok(datapath)
    }
}

fn restore_queue(
    fields: &mut FieldReader<'_>,
    restorer: &mut dyn Restorer,
    queue: &mut Queue<Step>,
) -> Result<(), RestoreError> {
    let steps = Step::restore_all(fields, restorer, QUEUE_STEPS_SAVED_MAX)?;
    steps.into_iter().for_each(|step| queue.push_past_bound(step));
    Ok(())
}
