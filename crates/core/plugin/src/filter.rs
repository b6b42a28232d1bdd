//! A filter that a library has made.

use std::ffi::c_void;
use std::sync::Arc;

use provost_engine::abi::{
    Bytes, DENY, Ended as RawEnded, HOLD, OK, PASS, REQUEST, RESPONSE, State, Step as RawStep,
    Verdict as RawVerdict,
};
use provost_engine::{
    CallState, Code, Denial, Direction, Ended, Filter, FilterState, RestoreError, StepView, Verdict, Watch,
};

use crate::host::{ReadField, StepHandle};
use crate::kind::Handle;
use crate::lent::{BoundedBytes, TEXT_BYTES_MAX, text};

/// A filter's own state, in bytes.
const STATE_BYTES_MAX: usize = 64 << 20;
/// What it keeps of a call, saved, in bytes.
const CALL_BYTES_MAX: usize = 64 << 10;

/// A filter of a library, on one datapath.
pub(crate) struct LoadedFilter {
    handle: Arc<Handle>,
    raw: *mut c_void,
    watch: Watch,
    fields: Vec<ReadField>,
    condition: LibraryCondition,
}

// SAFETY: the ABI says that a filter may be used by one thread after another.
unsafe impl Send for LoadedFilter {}

/// Whether the library may still be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LibraryCondition {
    Sound,
    /// It has failed, where there was nobody to tell.
    Failed,
}

/// The word of a call that the library has.
#[derive(Default)]
pub(crate) struct CallWord(u64);

impl CallState for CallWord {}

impl LoadedFilter {
    pub(crate) fn new(
        handle: Arc<Handle>,
        raw: *mut c_void,
        watch: Watch,
        fields: Vec<ReadField>,
    ) -> LoadedFilter {
        LoadedFilter {
            handle,
            raw,
            watch,
            fields,
            condition: LibraryCondition::Sound,
        }
    }

    fn name(&self) -> &'static str {
        self.handle.kind.name
    }

    /// Tells the library of the end of a call of which it keeps something, or wants to know.
    fn end(&mut self, call: u64, end: *const RawEnded) {
        let wanted = call != 0 || !end.is_null();
        if self.condition == LibraryCondition::Failed || !wanted {
            return;
        }
        // SAFETY: `prepare` made the filter, and this thread alone has it; the word is one that it left there.
        if unsafe { (self.handle.kind.functions.ended)(self.raw, call, end) } != OK {
            self.condition = LibraryCondition::Failed;
        }
    }

    fn verdict(&self, result: i32, raw: &RawVerdict) -> Verdict {
        // SAFETY: the library lends the reason until the next call.
        let reason = || unsafe { text(raw.reason) };
        match (result, raw.kind) {
            (OK, PASS) => Verdict::Pass,
            (OK, HOLD) => Verdict::Hold { until: raw.until },
            (OK, DENY) => match Code::ALL.get(raw.code as usize) {
                Some(Code::Ok) | None => fault(self.name(), &format!("it denied with the code {}", raw.code)),
                Some(code) => Verdict::Deny(Denial {
                    code: *code,
                    reason: reason().into(),
                    retry_pushback_ms: (raw.has_retry_pushback != 0).then_some(raw.retry_pushback_ms),
                }),
            },
            (OK, kind) => fault(
                self.name(),
                &format!("it gave a verdict of the unknown kind {kind}"),
            ),
            _ => fault(self.name(), &reason()),
        }
    }
}

fn fault(name: &str, reason: &str) -> Verdict {
    Verdict::Fault(format!("{name}: {reason}").into())
}

impl Drop for LoadedFilter {
    fn drop(&mut self) {
        // SAFETY: `prepare` made it, nobody uses it any more, and it is destroyed once, before its policy.
        unsafe { (self.handle.kind.functions.filter_destroy)(self.raw) }
    }
}

impl Filter for LoadedFilter {
    type Call = CallWord;

    fn watch(&self) -> Watch {
        self.watch
    }

    fn judge(&mut self, call: &mut CallWord, view: &mut StepView<'_>) -> Verdict {
        if self.condition == LibraryCondition::Failed {
            return fault(self.name(), "it failed when a call ended, or when it was saved");
        }
        let step = raw_step(view);
        let mut verdict = RawVerdict {
            kind: PASS,
            code: 0,
            until: 0,
            retry_pushback_ms: 0,
            has_retry_pushback: 0,
            reserved: 0,
            reason: Bytes::EMPTY,
        };
        let mut handle = StepHandle {
            view,
            fields: &self.fields,
        };
        // SAFETY: `prepare` made the filter, and this thread alone has it; all that is lent is alive.
        let result = unsafe {
            let judge = self.handle.kind.functions.judge;
            judge(
                self.raw,
                &step,
                (&raw mut handle).cast(),
                &mut call.0,
                &mut verdict,
            )
        };
        self.verdict(result, &verdict)
    }

    fn ended(&mut self, call: CallWord, end: &Ended) {
        let end = RawEnded {
            at: end.at,
            code: end.code as u32,
            cancelled: u8::from(end.cancelled),
            direction: direction(end.direction),
            reserved: [0; 2],
        };
        if self.watch.calls {
            self.end(call.0, &end)
        } else {
            self.end(call.0, std::ptr::null())
        }
    }

    fn forget(&mut self, call: CallWord) {
        self.end(call.0, std::ptr::null());
    }

    fn save_call(&self, call: &CallWord, out: &mut Vec<u8>) {
        if call.0 == 0 || self.condition == LibraryCondition::Failed {
            return;
        }
        let mut bytes = BoundedBytes::new(CALL_BYTES_MAX);
        // SAFETY: `prepare` made the filter, and this thread alone has it; the word is one that it left there.
        let result = unsafe { (self.handle.kind.functions.call_save)(self.raw, call.0, bytes.sink()) };
        if let (OK, Some(bytes)) = (result, bytes.whole()) {
            out.extend_from_slice(&bytes);
        }
    }

    fn load_call(&mut self, saved: &[u8]) -> Option<CallWord> {
        let mut call = CallWord::default();
        if saved.is_empty() {
            return Some(call);
        }
        // SAFETY: `prepare` made the filter, and this thread alone has it.
        let result =
            unsafe { (self.handle.kind.functions.call_load)(self.raw, Bytes::of(saved), &mut call.0) };
        (result == OK).then_some(call)
    }

    fn save(&self) -> FilterState {
        if self.condition == LibraryCondition::Failed {
            return FilterState::default();
        }
        let (mut version, mut bytes) = (0, BoundedBytes::new(STATE_BYTES_MAX));
        // SAFETY: `prepare` made the filter, and this thread alone has it.
        let result =
            unsafe { (self.handle.kind.functions.filter_save)(self.raw, &mut version, bytes.sink()) };
        match (result, bytes.whole()) {
            (OK, Some(bytes)) => FilterState { version, bytes },
            _ => FilterState::default(),
        }
    }

    fn restore(&mut self, state: &FilterState) -> Result<(), RestoreError> {
        let kind = self.name();
        if !self.handle.kind.states.contains(&state.version) {
            return Err(RestoreError::Version {
                kind,
                found: state.version,
                newest: *self.handle.kind.states.end(),
            });
        }
        let raw = State {
            version: state.version,
            reserved: 0,
            bytes: Bytes::of(&state.bytes),
        };
        let mut problem = BoundedBytes::new(TEXT_BYTES_MAX);
        // SAFETY: `prepare` made the filter, and this thread alone has it; the state is alive.
        match unsafe { (self.handle.kind.functions.filter_restore)(self.raw, &raw, problem.sink()) } {
            OK => Ok(()),
            _ => Err(RestoreError::Damaged {
                kind,
                reason: problem.text(),
            }),
        }
    }
}

fn raw_step(view: &mut StepView<'_>) -> RawStep {
    RawStep {
        struct_bytes: size_of::<RawStep>() as u32,
        message_bytes: view.message_bytes(),
        call: view.call(),
        now: view.now(),
        begun_at: view.begun_at(),
        held_since: view.held_since().unwrap_or_default(),
        deadline: view.deadline(),
        method: view.method_index(),
        parts: view.parts().0,
        direction: direction(view.direction()),
        status: view.status() as u8,
        is_held: u8::from(view.held_since().is_some()),
        is_split: u8::from(view.is_split()),
        reserved: 0,
    }
}

fn direction(direction: Direction) -> u8 {
    match direction {
        Direction::Request => REQUEST,
        Direction::Response => RESPONSE,
    }
}
