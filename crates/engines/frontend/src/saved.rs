//! The frontend's saved state.
//!
//! Version 2: the highest call begun, the open calls, and the steps that wait in the engine. Version 1, which had only
//! calls of which no step waited, is still read: it ends behind the calls and does not count them.

use std::collections::VecDeque;

use provost_datapath::{FieldReader, FieldWriter, RestoreError, Restorer, SavedState, Saver, Step};
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::calls::{FrontendCall, FrontendCalls};
use crate::engine::{FAILED_STEPS_MAX, KIND, PENDING_STEPS_MAX, SEND_WINDOW_MAX, WAITING_STEPS_MAX};

/// The newest version of [`FrontendState`]'s form.
const VERSION: u32 = 2;
/// What a call's windows may come to, in bytes: a peer adds no more, and a message takes far less.
const WINDOW_BYTES_MAX: u64 = 2 * SEND_WINDOW_MAX as u64;

#[derive(Debug, Default)]
pub(crate) struct FrontendState {
    pub(crate) last_begun: u64,
    pub(crate) calls: Vec<FrontendCall>,
    /// Steps of the app that were admitted.
    pub(crate) waiting: Vec<Step>,
    /// Cancellations for the wire.
    pub(crate) pending: Vec<Step>,
    /// Ends of calls for the app.
    pub(crate) failed: Vec<Step>,
}

/// What is saved, of a frontend that goes on.
pub(crate) struct SavedCopy<'a> {
    pub(crate) last_begun: u64,
    pub(crate) calls: &'a FrontendCalls,
    pub(crate) waiting: &'a VecDeque<Step>,
    pub(crate) pending: &'a VecDeque<Step>,
    pub(crate) failed: &'a VecDeque<Step>,
}

impl SavedCopy<'_> {
    pub(crate) fn save(&self, saver: &mut dyn Saver) -> SavedState {
        let mut out = FieldWriter::new();
        out.u64(self.last_begun);
        out.count(self.calls.len());
        self.calls.iter().for_each(|call| save_call(call, &mut out));
        for steps in [self.waiting, self.pending, self.failed] {
            Step::save_all(steps.iter(), saver, &mut out);
        }
        SavedState::new(KIND, VERSION, out)
    }
}

impl FrontendState {
    pub(crate) fn load(
        saved: &SavedState,
        restorer: &mut dyn Restorer,
    ) -> Result<FrontendState, RestoreError> {
        let mut fields = saved.open(KIND, VERSION)?;
        let mut state = FrontendState {
            last_begun: fields.u64()?,
            ..FrontendState::default()
        };
        if saved.version == 1 {
            while !fields.is_at_end() {
                state.calls.push(load_call(&mut fields)?);
            }
            return Ok(state);
        }
        for _ in 0..fields.count(CALLS_IN_FLIGHT_MAX)? {
            state.calls.push(load_call(&mut fields)?);
        }
        state.waiting = Step::restore_all(&mut fields, restorer, WAITING_STEPS_MAX)?;
        state.pending = Step::restore_all(&mut fields, restorer, CALLS_IN_FLIGHT_MAX + PENDING_STEPS_MAX)?;
        state.failed = Step::restore_all(&mut fields, restorer, 2 * FAILED_STEPS_MAX)?;
        fields.end()?;
        Ok(state)
    }
}

/// A call is the same in both versions; the last byte is reserved.
fn save_call(call: &FrontendCall, out: &mut FieldWriter) {
    out.u64(call.call);
    out.u64(call.deadline);
    out.i64(call.send_window);
    out.u64(call.unread_bytes);
    out.u16(call.method);
    out.u8(call.app_messages);
    out.u8(call.peer_messages);
    out.flag(call.app_ended);
    out.flag(call.peer_ended);
    out.flag(call.on_wire);
    out.u8(0);
}

fn load_call(fields: &mut FieldReader<'_>) -> Result<FrontendCall, RestoreError> {
    let (number, deadline) = (fields.u64()?, fields.u64()?);
    let (send_window, unread_bytes) = (fields.i64()?, fields.u64()?);
    let mut call = FrontendCall::new(number, fields.u16()?, deadline);
    call.send_window = send_window;
    call.unread_bytes = unread_bytes;
    call.app_messages = fields.u8()?.min(1);
    call.peer_messages = fields.u8()?.min(1);
    call.app_ended = fields.flag()?;
    call.peer_ended = fields.flag()?;
    call.on_wire = fields.flag()?;
    fields.u8()?;
    if send_window.unsigned_abs().max(unread_bytes) <= WINDOW_BYTES_MAX {
        Ok(call)
    } else {
        Err(fields.damaged(format!("a window of call {number} is out of range")))
    }
}

#[cfg(test)]
mod tests {
    use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
    use provost_datapath::{Body, BufferPool, InPlace, KeptMemory, Untrusted};
    use provost_wire::Code;
    use provost_wire::descriptor::Parts;

    use super::*;

    #[test]
    fn calls_and_steps_come_back_and_damage_is_noticed() {
        let mut call = FrontendCall::new(7, 3, 99);
        call.send_window = -5;
        call.unread_bytes = 12;
        call.app_ended = true;
        let mut calls = FrontendCalls::new();
        calls.insert(call);
        calls.insert(FrontendCall::new(8, 0, 0));
        let saving = SavedCopy {
            last_begun: 9,
            calls: &calls,
            waiting: &[Step::new(7, Parts::MESSAGE), Step::new(8, Parts::END)].into(),
            pending: &[Step::cancel(3, Code::Cancelled)].into(),
            failed: &VecDeque::new(),
        };
        let saved = saving.save(&mut InPlace::new(|_, _| {}));
        let state = FrontendState::load(&saved, &mut KeptMemory::default()).unwrap();
        let numbers = |steps: &[Step]| steps.iter().map(|step| step.call).collect::<Vec<_>>();
        assert_eq!(
            (
                state.last_begun,
                numbers(&state.waiting),
                numbers(&state.pending),
                state.failed.len()
            ),
            (9, vec![7, 8], vec![3], 0)
        );
        let [first, second] = &state.calls[..] else {
            panic!("{} calls", state.calls.len());
        };
        assert_eq!((first.call, first.method, first.deadline), (7, 3, 99));
        assert_eq!(
            (first.send_window, first.unread_bytes, first.app_ended),
            (-5, 12, true)
        );
        assert_eq!((second.call, second.app_ended), (8, false));
        for cut in 0..saved.bytes.len() {
            let bytes = saved.bytes[..cut].to_vec();
            let damaged = SavedState {
                bytes,
                ..saved.clone()
            };
            assert!(
                FrontendState::load(&damaged, &mut KeptMemory::default()).is_err(),
                "cut at {cut}"
            );
        }
    }

    /// What versions of the past have saved is read for ever.
    #[test]
    fn fixtures_are_read() {
        let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
        let mut calls = FrontendCalls::new();
        let mut streaming = FrontendCall::new(70, 1, 5_000);
        (streaming.send_window, streaming.unread_bytes, streaming.on_wire) = (-64, 4096, true);
        calls.insert(streaming);
        calls.insert(FrontendCall::new(71, 0, 0));
        let mut waiting = Step::new(70, Parts::MESSAGE);
        waiting.body = Body::Untrusted(Untrusted {
            root: 1 << 19,
            metadata: 0,
            metadata_bytes: 0,
            token: 77,
        });
        let mut buffers = BufferPool::new();
        let saving = SavedCopy {
            last_begun: 71,
            calls: &calls,
            waiting: &[waiting, Step::new(71, Parts::END)].into(),
            pending: &[Step::cancel_because(
                60,
                Code::DeadlineExceeded,
                "late",
                &mut buffers,
            )]
            .into(),
            failed: &[Step::cancel(61, Code::Internal)].into(),
        };
        fixtures.add("calls-and-steps", &saving.save(&mut ToFixture));
        let mut version_1 = FieldWriter::new();
        version_1.u64(71);
        calls.iter().for_each(|call| save_call(call, &mut version_1));
        let version_1 = SavedState {
            kind: KIND.to_owned(),
            version: 1,
            bytes: version_1.bytes,
        };
        fixtures.add("calls", &version_1);
        for name in fixtures.names("v") {
            let state = FrontendState::load(&fixtures.state(&name), &mut FromFixture::default()).unwrap();
            fixtures.check(&name, &facts(&state));
        }
    }

    fn facts(state: &FrontendState) -> String {
        let mut facts = format!("begun {}\n", state.last_begun);
        for call in &state.calls {
            let messages = (call.app_messages, call.peer_messages);
            let flags = (call.app_ended, call.peer_ended, call.on_wire);
            let window = (call.send_window, call.unread_bytes);
            let (number, method, deadline) = (call.call, call.method, call.deadline);
            facts += &format!("call {number} {method} {deadline} {window:?} {messages:?} {flags:?}\n");
        }
        for (what, steps) in [
            ("waiting", &state.waiting),
            ("owed", &state.pending),
            ("failed", &state.failed),
        ] {
            for step in steps {
                let body = match &step.body {
                    Body::Untrusted(untrusted) => format!("alleged {} {}", untrusted.root, untrusted.token),
                    Body::Encoded(encoded) => format!("encoded {}", encoded.metadata_bytes),
                    Body::Empty => "empty".to_owned(),
                    _ => "other".to_owned(),
                };
                facts += &format!("{what} {} {:?} {:?} {body}\n", step.call, step.parts, step.status);
            }
        }
        facts
    }
}
