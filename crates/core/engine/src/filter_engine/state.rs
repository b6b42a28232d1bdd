//! The saved state of a filter engine.
//!
//! Version 1: the filter's state (version u32, run), the calls (count; each its number u64, when it began u64, its
//! method u16, its state as a run), the denied calls that are kept in mind (count; numbers u64). Steps that wait are not
//! in it: they are released into the queues.

use provost_datapath::{FieldWriter, RestoreError, SavedState};

use super::held::DENIED_CALLS_MAX;
use super::{FilterEngine, Remembers, SeenCall};
use crate::filter::{Filter, FilterState};

/// Version of the form.
const STATE_VERSION: u32 = 1;
/// Calls in a state, at most. (A datapath has far fewer in flight.)
const CALLS_MAX: usize = 1 << 20;

impl<F: Filter> FilterEngine<F> {
    pub(super) fn saved(&self) -> SavedState {
        let mut out = FieldWriter::new();
        let FilterState { version, bytes } = self.parts.filter.save();
        out.u32(version);
        out.run(&bytes);
        out.count(self.calls.len());
        for (id, call) in self.calls.iter() {
            out.u64(id);
            out.u64(call.begun_at);
            out.u16(call.method);
            out.nested(|out| self.parts.filter.save_call(&call.state, &mut out.bytes));
        }
        out.count(self.denied.iter().len());
        self.denied.iter().for_each(|call| out.u64(call));
        SavedState::new(self.parts.kind, STATE_VERSION, out)
    }

    pub(super) fn restore(&mut self, saved: &SavedState) -> Result<(), RestoreError> {
        let mut fields = saved.open(self.parts.kind, STATE_VERSION)?;
        let state = FilterState {
            version: fields.u32()?,
            bytes: fields.run()?.to_vec(),
        };
        if state != FilterState::default() {
            self.parts.filter.restore(&state)?;
        }
        for _ in 0..fields.count(CALLS_MAX)? {
            let (id, begun_at, method) = (fields.u64()?, fields.u64()?, fields.u16()?);
            let state = self.parts.filter.load_call(fields.run()?);
            let state = state.ok_or_else(|| fields.damaged("a call's state makes no sense"))?;
            match self.remembers {
                Remembers::Nothing => self.parts.filter.forget(state),
                Remembers::Streams | Remembers::Calls => {
                    let call = SeenCall {
                        method,
                        begun_at,
                        state,
                    };
                    self.calls.insert(id, call);
                }
            }
        }
        for _ in 0..fields.count(DENIED_CALLS_MAX)? {
            self.denied.add(fields.u64()?);
        }
        fields.end()
    }
}
