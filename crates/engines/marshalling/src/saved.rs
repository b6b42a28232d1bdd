//! The engine's saved state.
//!
//! Version 2: the open calls with their methods, then the cancellations that are pending to the peer and to the app.
//! Version 1 is still read. It was records of 11 bytes in any order, each a kind, a call (`u64`) and a number (`u16`):
//! an open call and its method, or a cancellation without its reason.

use provost_datapath::{FieldReader, FieldWriter, RestoreError, Restorer, SavedState, Saver, Step};
use provost_wire::Code;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use crate::calls::MarshalledCalls;
use crate::engine::KIND;
use crate::pending::{PENDING_STEPS_MAX, PendingSteps, StepDirection};

const VERSION: u32 = 2;

pub(crate) fn save(calls: &MarshalledCalls, pending: &PendingSteps, saver: &mut dyn Saver) -> SavedState {
    let mut out = FieldWriter::new();
    out.count(calls.len());
    for (call, method) in calls.iter() {
        out.u64(call);
        out.u16(method);
    }
    for direction in [StepDirection::Tx, StepDirection::Rx] {
        Step::save_all(pending.steps(direction), saver, &mut out);
    }
    SavedState::new(KIND, VERSION, out)
}

/// What was saved by any version; methods are below `methods`.
pub(crate) fn restore(
    state: &SavedState,
    methods: usize,
    restorer: &mut dyn Restorer,
) -> Result<(MarshalledCalls, PendingSteps), RestoreError> {
    let mut fields = state.open(KIND, VERSION)?;
    let mut restored = RestoredCalls {
        methods,
        calls: MarshalledCalls::new(),
        pending: PendingSteps::new(),
    };
    match state.version {
        1 => restored.records(&mut fields)?,
        _ => restored.fields(&mut fields, restorer)?,
    }
    fields.end()?;
    Ok((restored.calls, restored.pending))
}

struct RestoredCalls {
    methods: usize,
    calls: MarshalledCalls,
    pending: PendingSteps,
}

impl RestoredCalls {
    fn fields(
        &mut self,
        fields: &mut FieldReader<'_>,
        restorer: &mut dyn Restorer,
    ) -> Result<(), RestoreError> {
        for _ in 0..fields.count(CALLS_IN_FLIGHT_MAX)? {
            let (call, method) = (fields.u64()?, fields.u16()?);
            self.call(call, method, fields)?;
        }
        for direction in [StepDirection::Tx, StepDirection::Rx] {
            for step in Step::restore_all(fields, restorer, PENDING_STEPS_MAX)? {
                self.pending.add(direction, step);
            }
        }
        Ok(())
    }

    fn records(&mut self, fields: &mut FieldReader<'_>) -> Result<(), RestoreError> {
        while !fields.is_at_end() {
            let (kind, call, number) = (fields.u8()?, fields.u64()?, fields.u16()?);
            let direction = match kind {
                0 => {
                    self.call(call, number, fields)?;
                    continue;
                }
                1 => StepDirection::Tx,
                2 => StepDirection::Rx,
                _ => return Err(fields.damaged(format!("a record of kind {kind}"))),
            };
            let code = Code::ALL.get(usize::from(number)).copied();
            let code =
                code.ok_or_else(|| fields.damaged(format!("call {call} is cancelled with status {number}")))?;
            if !self.pending.has_room() {
                return Err(fields.damaged("too many cancellations"));
            }
            self.pending.add(direction, Step::cancel(call, code));
        }
        Ok(())
    }

    fn call(&mut self, call: u64, method: u16, fields: &FieldReader<'_>) -> Result<(), RestoreError> {
        if usize::from(method) >= self.methods {
            return Err(fields.damaged(format!("call {call} is of method {method}, which is none")));
        }
        if self.calls.method(call).is_some() || self.calls.begin(call, method).is_err() {
            return Err(fields.damaged(format!("call {call} is there twice, or there are too many")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use provost_conformance::fixtures::{Fixtures, FromFixture, ToFixture};
    use provost_datapath::{Body, BufferPool, InPlace, KeptMemory};

    use super::*;

    #[test]
    fn what_was_saved_comes_back_and_damage_is_noticed() {
        let (mut calls, mut pending) = (MarshalledCalls::new(), PendingSteps::new());
        calls.begin(u64::MAX - 1, 513).unwrap();
        pending.add(StepDirection::Tx, Step::cancel(7, Code::Internal));
        pending.add(StepDirection::Rx, Step::cancel(8, Code::Unauthenticated));
        let saved = save(&calls, &pending, &mut InPlace::new(|_, _| {}));
        let (calls, pending) = restore(&saved, 514, &mut KeptMemory::default()).unwrap();
        assert_eq!(calls.method(u64::MAX - 1), Some(513));
        let told = |direction| {
            pending
                .steps(direction)
                .map(|step| (step.call, step.status))
                .collect::<Vec<_>>()
        };
        assert_eq!(told(StepDirection::Tx), [(7, Code::Internal)]);
        assert_eq!(told(StepDirection::Rx), [(8, Code::Unauthenticated)]);
        assert!(
            restore(&saved, 513, &mut KeptMemory::default()).is_err(),
            "a method that is none"
        );
        for cut in 0..saved.bytes.len() {
            let bytes = saved.bytes[..cut].to_vec();
            let damaged = SavedState {
                bytes,
                ..saved.clone()
            };
            assert!(
                restore(&damaged, 514, &mut KeptMemory::default()).is_err(),
                "cut at {cut}"
            );
        }
    }

    #[test]
    fn version_1_is_read() {
        let bytes = [
            &[0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0][..],
            &[1, 7, 0, 0, 0, 0, 0, 0, 0, 13, 0],
        ];
        let state = |bytes: &[u8]| SavedState {
            kind: KIND.to_owned(),
            version: 1,
            bytes: bytes.to_vec(),
        };
        let (calls, pending) = restore(&state(&bytes.concat()), 4, &mut KeptMemory::default()).unwrap();
        assert_eq!((calls.method(9), calls.len()), (Some(3), 1));
        assert_eq!(
            pending.steps(StepDirection::Tx).next().map(|step| step.status),
            Some(Code::Internal)
        );
        assert!(restore(&state(&bytes.concat()[1..]), 4, &mut KeptMemory::default()).is_err());
    }

    /// What versions of the past have saved is read for ever.
    #[test]
    fn fixtures_are_read() {
        let fixtures = Fixtures::of(env!("CARGO_MANIFEST_DIR"));
        let (mut calls, mut pending) = (MarshalledCalls::new(), PendingSteps::new());
        calls.begin(1 << 40, 2).unwrap();
        calls.begin(7, 0).unwrap();
        let mut buffers = BufferPool::new();
        let told = Step::cancel_because(5, Code::Internal, "a malformed message", &mut buffers);
        pending.add(StepDirection::Tx, told);
        pending.add(StepDirection::Rx, Step::cancel(6, Code::Cancelled));
        fixtures.add("calls-and-reasons", &save(&calls, &pending, &mut ToFixture));
        let mut bytes = vec![0, 9, 0, 0, 0, 0, 0, 0, 0, 3, 0];
        bytes.extend([2, 7, 0, 0, 0, 0, 0, 0, 0, 13, 0]);
        let version_1 = SavedState {
            kind: KIND.to_owned(),
            version: 1,
            bytes,
        };
        fixtures.add("calls-and-codes", &version_1);
        for name in fixtures.names("v") {
            let (calls, pending) = restore(&fixtures.state(&name), 4, &mut FromFixture::default()).unwrap();
            let mut calls: Vec<_> = calls.iter().collect();
            calls.sort_unstable();
            let told = |direction| {
                let told = pending.steps(direction).map(|step| match &step.body {
                    Body::Encoded(body) => (step.call, step.status, body.metadata_bytes),
                    _ => (step.call, step.status, 0),
                });
                told.collect::<Vec<_>>()
            };
            let facts = format!(
                "{calls:?}\n{:?}\n{:?}\n",
                told(StepDirection::Tx),
                told(StepDirection::Rx)
            );
            fixtures.check(&name, &facts);
        }
    }
}
