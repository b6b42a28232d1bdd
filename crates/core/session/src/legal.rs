//! Which steps may follow which. The same rules hold for what the own app sends and for what a peer sends.
//!
//! ```text
//! client:  BEGIN ─► MESSAGE* ─► END          server:  HEADERS? ─► MESSAGE* ─► STATUS
//! ```
//!
//! Neighbours may share a step. `CANCEL` may come from either end at any time and ends the call; `WINDOW` may come
//! from either end as long as the other may still send messages. Both stand alone.

use provost_datapath::{FieldReader, FieldWriter, RestoreError};
use provost_wire::descriptor::Parts;

use crate::Role;
use crate::handshake::MethodKind;

/// How far one direction of a call has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallFlow {
    begun: bool,
    messages: bool,
    done: bool,
}

impl CallFlow {
    pub(crate) fn save(self, out: &mut FieldWriter) {
        out.u8(u8::from(self.begun) | u8::from(self.messages) << 1 | u8::from(self.done) << 2);
    }

    pub(crate) fn restore(fields: &mut FieldReader<'_>) -> Result<CallFlow, RestoreError> {
        let flags = fields.u8()?;
        if flags < 8 {
            Ok(CallFlow {
                begun: flags & 1 != 0,
                messages: flags & 2 != 0,
                done: flags & 4 != 0,
            })
        } else {
            Err(fields.damaged(format!(
                "a direction of a call that is in the unknown state {flags}"
            )))
        }
    }

    /// Whether this direction's last step has been seen.
    pub(crate) fn is_done(self) -> bool {
        self.done
    }

    /// Checks the next step of this direction, and counts it.
    pub(crate) fn check(
        &mut self,
        sender: Role,
        kind: MethodKind,
        parts: Parts,
        metadata_bytes: u32,
    ) -> Result<(), &'static str> {
        check_shape(sender, parts, metadata_bytes)?;
        if parts.intersects(Parts::WINDOW | Parts::CANCEL) {
            return Ok(());
        }
        if self.done {
            return Err("it comes after the last step of its direction");
        }
        if parts.contains(Parts::BEGIN) && self.begun {
            return Err("the call has begun before");
        }
        if parts.contains(Parts::HEADERS) && (self.begun || self.messages) {
            return Err("headers come once, and before messages");
        }
        self.check_message(sender, kind, parts)?;
        self.begun |= parts.intersects(Parts::BEGIN | Parts::HEADERS);
        self.done = parts.intersects(Parts::END | Parts::STATUS);
        Ok(())
    }

    fn check_message(&mut self, sender: Role, kind: MethodKind, parts: Parts) -> Result<(), &'static str> {
        let message = parts.contains(Parts::MESSAGE);
        if streams(sender, kind) {
            self.messages |= message;
            return Ok(());
        }
        if message && self.messages {
            return Err("a second message, though the method does not stream in this direction");
        }
        self.messages |= message;
        if parts.contains(Parts::END) && !self.messages {
            return Err("an end without a request message, though the method does not stream requests");
        }
        Ok(())
    }
}

/// Whether messages from `sender` are a stream and so obey its window. The single message of a direction that does
/// not stream is not windowed.
pub(crate) fn streams(sender: Role, kind: MethodKind) -> bool {
    match sender {
        Role::Client => kind.client_streaming,
        Role::Server => kind.server_streaming,
    }
}

fn check_shape(sender: Role, parts: Parts, metadata_bytes: u32) -> Result<(), &'static str> {
    let own = match sender {
        Role::Client => Parts::BEGIN | Parts::MESSAGE | Parts::END | Parts::CANCEL | Parts::WINDOW,
        Role::Server => Parts::HEADERS | Parts::MESSAGE | Parts::STATUS | Parts::CANCEL | Parts::WINDOW,
    };
    if parts == Parts::NONE {
        return Err("a step without parts");
    }
    if !own.contains(parts) {
        return Err("a part that does not come from this end");
    }
    if parts.intersects(Parts::WINDOW | Parts::CANCEL) && parts.0.count_ones() != 1 {
        return Err("WINDOW and CANCEL stand alone");
    }
    let with_metadata = Parts::BEGIN | Parts::HEADERS | Parts::STATUS | Parts::CANCEL;
    if metadata_bytes > 0 && !parts.intersects(with_metadata) {
        return Err("metadata where none can be");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNARY: MethodKind = MethodKind {
        client_streaming: false,
        server_streaming: false,
    };
    const BOTH: MethodKind = MethodKind {
        client_streaming: true,
        server_streaming: true,
    };

    fn run(sender: Role, kind: MethodKind, steps: &[Parts]) -> Result<(), &'static str> {
        let mut flow = CallFlow::default();
        steps
            .iter()
            .try_for_each(|parts| flow.check(sender, kind, *parts, 0))
    }

    #[test]
    fn what_grpc_allows_is_allowed() {
        let request = [Parts::BEGIN | Parts::MESSAGE | Parts::END];
        assert_eq!(run(Role::Client, UNARY, &request), Ok(()));
        assert_eq!(
            run(
                Role::Server,
                UNARY,
                &[Parts::HEADERS, Parts::MESSAGE | Parts::STATUS]
            ),
            Ok(())
        );
        assert_eq!(run(Role::Server, UNARY, &[Parts::STATUS]), Ok(()));
        let stream = [
            Parts::BEGIN,
            Parts::MESSAGE,
            Parts::MESSAGE,
            Parts::WINDOW,
            Parts::END,
            Parts::WINDOW,
        ];
        assert_eq!(run(Role::Client, BOTH, &stream), Ok(()));
        assert_eq!(
            run(Role::Client, BOTH, &[Parts::BEGIN | Parts::END, Parts::CANCEL]),
            Ok(())
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let wrong: [(Role, MethodKind, &[Parts]); 9] = [
            (Role::Client, UNARY, &[Parts::NONE]),
            (Role::Client, UNARY, &[Parts::STATUS]),
            (Role::Server, UNARY, &[Parts::BEGIN]),
            (Role::Client, UNARY, &[Parts::BEGIN | Parts::CANCEL]),
            (Role::Client, UNARY, &[Parts::BEGIN, Parts::END]),
            (
                Role::Client,
                UNARY,
                &[Parts::BEGIN | Parts::MESSAGE, Parts::MESSAGE],
            ),
            (Role::Client, BOTH, &[Parts::BEGIN | Parts::END, Parts::MESSAGE]),
            (Role::Server, BOTH, &[Parts::MESSAGE, Parts::HEADERS]),
            (Role::Server, BOTH, &[Parts::STATUS, Parts::STATUS]),
        ];
        for (role, kind, steps) in wrong {
            assert!(run(role, kind, steps).is_err(), "{role:?} {steps:?}");
        }
        assert!(
            CallFlow::default()
                .check(Role::Client, BOTH, Parts::MESSAGE, 1)
                .is_err()
        );
    }
}
