//! What an engine that carries a connection does with it, whatever carries the bytes.

use provost_datapath::{
    ConnectionSignals, Context, FieldReader, FieldWriter, FlowHints, Nanos, Ports, RestoreError, SavedField,
};
use provost_wire::Code;

use crate::{Connection, Role};

/// How far an engine has come with its connection.
///
/// ```text
/// Open ──► Ending (calls are ended towards the app) ──► Lingering (the peer takes in the rest) ──► Ended
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Calls come and go.
    Open,
    /// The app is told of the end of each of its calls.
    Ending {
        /// Whether the peer is to get all that it was sent.
        orderly: bool,
    },
    /// The peer takes in the rest.
    Lingering {
        /// No longer than this.
        until: Nanos,
    },
    /// Nothing is left to do.
    Ended,
}

impl Stage {
    /// What comes when the app has been told everything.
    #[must_use]
    pub fn after_ending(orderly: bool, now: Nanos, linger_ns: u64) -> Stage {
        if orderly {
            Stage::Lingering {
                until: now.saturating_add(linger_ns),
            }
        } else {
            Stage::Ended
        }
    }
}

impl SavedField for Stage {
    fn save(&self, out: &mut FieldWriter) {
        let (stage, until) = match *self {
            Stage::Open => (0, 0),
            Stage::Ending { orderly: false } => (1, 0),
            Stage::Ending { orderly: true } => (2, 0),
            Stage::Lingering { until } => (3, until),
            Stage::Ended => (4, 0),
        };
        out.u8(stage);
        out.u64(until);
    }

    fn restore(fields: &mut FieldReader<'_>) -> Result<Stage, RestoreError> {
        match (fields.u8()?, fields.u64()?) {
            (0, _) => Ok(Stage::Open),
            (1, _) => Ok(Stage::Ending { orderly: false }),
            (2, _) => Ok(Stage::Ending { orderly: true }),
            (3, until) => Ok(Stage::Lingering { until }),
            (4, _) => Ok(Stage::Ended),
            (other, _) => Err(fields.damaged(format!("a transport in the unknown state {other}"))),
        }
    }
}

impl Connection {
    /// Counts messages in part where the signals say, drains if they ask for it, and sets them when the peer drains. A client's end
    /// waits until no call of its app is under way, for an engine before this one may hold calls that are still to be sent.
    pub fn apply_signals(&mut self, signals: &ConnectionSignals, flow: FlowHints) {
        if let Some(share) = signals.peer_share() {
            self.parser.held.move_to(share);
        }
        if signals.drain_requested() && !self.awaits_calls(flow) {
            self.drain();
        }
        if self.peer_drains() {
            signals.set_peer_drains();
        }
    }

    /// Whether an end drains and the last call is done, also of those that have not come here yet: the connection can be closed
    /// without loss.
    #[must_use]
    pub fn is_drained_of(&self, flow: FlowHints) -> bool {
        self.is_drained() && !self.awaits_calls(flow)
    }

    /// Whether a client's end has to be told later that it drains: the peer closes once it has no calls, and may
    /// not have heard yet of all that began.
    fn awaits_calls(&self, flow: FlowHints) -> bool {
        self.role == Role::Client && (flow.calls > 0 || self.calls_in_flight() > 0)
    }

    /// Hands on the steps that have come, as far as there is room; says whether there were any.
    pub fn deliver(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while !ports.rx_out.is_full()
            && let Some(step) = self.poll_step(context)
        {
            moved = true;
            if ports.rx_out.push(step).is_err() {
                break;
            }
        }
        moved
    }

    /// Takes the steps that are to go out, as far as it takes any; says whether there were some.
    pub fn take_steps(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while self.accepts_steps()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.send(step, context);
        }
        moved
    }

    /// After the end: refuses what the app still begins, and hands on what there is to say.
    pub fn decline_steps(&mut self, ports: &mut Ports<'_>, context: &mut Context<'_>) -> bool {
        let mut moved = self.deliver(ports, context);
        while !ports.rx_out.is_full()
            && let Some(step) = ports.tx_in.pop()
        {
            moved = true;
            self.send(step, context);
            self.deliver(ports, context);
        }
        moved
    }

    /// How calls end, and why, when the peer has closed the connection.
    #[must_use]
    pub fn closed_by_peer(&self, signals: &ConnectionSignals) -> (Code, &'static str) {
        let is_asked_for = self.peer_drains() || signals.drain_requested();
        match (self.is_between_frames(), self.is_at_rest()) {
            (true, true) if is_asked_for => (Code::Ok, "the connection was drained"),
            (true, true) => (Code::Ok, "the peer closed the connection"),
            (true, false) => (
                Code::Unavailable,
                "the peer closed the connection while calls were in flight",
            ),
            (false, _) => (
                Code::Unavailable,
                "the peer closed the connection in the middle of a frame",
            ),
        }
    }
}
