//! The frontend's saved state: its open calls.

use provost_datapath::{RestoreError, SavedState};

use crate::calls::Call;
use crate::engine::KIND;

/// Version of [`State`]'s form.
const VERSION: u32 = 1;
const CALL_BYTES: usize = 40;

/// What is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) last_begun: u64,
    pub(crate) calls: Vec<SavedCall>,
}

/// An open call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SavedCall {
    pub(crate) call: u64,
    pub(crate) deadline: u64,
    pub(crate) send_window: i64,
    pub(crate) unread_bytes: u64,
    pub(crate) method: u16,
    /// Messages seen of the app and of the peer; ended by the app and by the peer; heard of by the wire.
    pub(crate) flags: [u8; 5],
}

impl From<&Call> for SavedCall {
    fn from(call: &Call) -> SavedCall {
        SavedCall {
            call: call.call,
            deadline: call.deadline,
            send_window: call.send_window,
            unread_bytes: call.unread_bytes,
            method: call.method,
            flags: [
                call.app_messages,
                call.peer_messages,
                u8::from(call.app_ended),
                u8::from(call.peer_ended),
                u8::from(call.on_wire),
            ],
        }
    }
}

impl From<&SavedCall> for Call {
    fn from(saved: &SavedCall) -> Call {
        let [app_messages, peer_messages, app_ended, peer_ended, on_wire] = saved.flags;
        let mut call = Call::new(saved.call, saved.method, saved.deadline);
        call.send_window = saved.send_window;
        call.unread_bytes = saved.unread_bytes;
        call.app_messages = app_messages.min(1);
        call.peer_messages = peer_messages.min(1);
        call.app_ended = app_ended != 0;
        call.peer_ended = peer_ended != 0;
        call.on_wire = on_wire != 0;
        call
    }
}

impl State {
    pub(crate) fn save(&self) -> SavedState {
        let mut bytes = Vec::with_capacity(8 + self.calls.len() * CALL_BYTES);
        bytes.extend_from_slice(&self.last_begun.to_le_bytes());
        for call in &self.calls {
            bytes.extend_from_slice(&call.call.to_le_bytes());
            bytes.extend_from_slice(&call.deadline.to_le_bytes());
            bytes.extend_from_slice(&call.send_window.to_le_bytes());
            bytes.extend_from_slice(&call.unread_bytes.to_le_bytes());
            bytes.extend_from_slice(&call.method.to_le_bytes());
            bytes.extend_from_slice(&call.flags);
            bytes.push(0);
        }
        SavedState {
            kind: KIND.to_owned(),
            version: VERSION,
            bytes,
        }
    }

    pub(crate) fn load(saved: &SavedState) -> Result<State, RestoreError> {
        if saved.kind != KIND {
            return Err(RestoreError::Kind {
                expected: KIND,
                found: saved.kind.clone(),
            });
        }
        if saved.version > VERSION {
            return Err(RestoreError::Version {
                kind: KIND,
                found: saved.version,
                newest: VERSION,
            });
        }
        let damaged = || RestoreError::Damaged {
            kind: KIND,
            reason: format!("{} bytes are no whole number of calls", saved.bytes.len()),
        };
        let (last_begun, calls) = saved.bytes.split_first_chunk::<8>().ok_or_else(damaged)?;
        if calls.len() % CALL_BYTES != 0 {
            return Err(damaged());
        }
        let calls = calls
            .chunks_exact(CALL_BYTES)
            .map(|bytes| load_call(bytes).ok_or_else(damaged));
        Ok(State {
            last_begun: u64::from_le_bytes(*last_begun),
            calls: calls.collect::<Result<_, _>>()?,
        })
    }
}

fn load_call(bytes: &[u8]) -> Option<SavedCall> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?));
    Some(SavedCall {
        call: word(0)?,
        deadline: word(8)?,
        send_window: word(16)? as i64,
        unread_bytes: word(24)?,
        method: u16::from_le_bytes(*bytes.get(32..)?.first_chunk::<2>()?),
        flags: *bytes.get(34..)?.first_chunk::<5>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_round_trip_and_damage_is_noticed() {
        let mut call = Call::new(7, 3, 99);
        call.send_window = -5;
        call.unread_bytes = 12;
        call.app_ended = true;
        let state = State {
            last_begun: 9,
            calls: vec![SavedCall::from(&call), SavedCall::from(&Call::new(8, 0, 0))],
        };
        let saved = state.save();
        assert_eq!(State::load(&saved), Ok(state));
        let mut damaged = saved;
        damaged.bytes.pop();
        assert!(matches!(State::load(&damaged), Err(RestoreError::Damaged { .. })));
    }
}
