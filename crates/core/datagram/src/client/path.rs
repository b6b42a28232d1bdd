//! Full-size packets that vanish on the way while small ones arrive (a black hole: RFC 8899 section 4.3, RFC 4821 section 7.7): the
//! session's calls go on in small packets, and a full-size one is tried from time to time.
//!
//! ```text
//!            calls time out, small packets arrive, full-size probes do not
//!   Full ───────────────────────────────────────────────────────────────────► Small
//!    ▲                                                                           │
//!    └───────────────────────────────────────────────────────────────────────────┘
//!                       a full-size probe has come back
//! ```

use super::*;

/// Time-outs in a row in which nothing of a call came, after which both a small and a full-size packet are sent to find out which arrive.
const PROBE_TIMEOUTS: u8 = 2;
/// The same, after which full-size packets count as lost on the way if small ones arrived and no probe did.
const BLACK_HOLE_TIMEOUTS: u8 = 4;

impl<A: Copy> ClientSession<A> {
    /// Nothing of a call has come in time, again: says whether it is to begin anew, in small packets.
    pub(super) fn is_to_shrink(&mut self, shared: &mut Shared<A>, index: u8) -> bool {
        let now_ns = shared.clock.now_ns();
        let slot = &mut self.slots[usize::from(index)];
        if !self.sizes.can_fall_back() || slot.size == PacketSize::Small {
            return false;
        }
        if slot.unanswered == 0 || slot.unanswered >= BLACK_HOLE_TIMEOUTS {
            // What came in an earlier silence, perhaps late, says nothing of this one.
            (slot.silent_ns, slot.unanswered) = (now_ns, 0);
        }
        slot.unanswered += 1;
        let (unanswered, silent_ns) = (slot.unanswered, slot.silent_ns);
        if self.size == PacketSize::Small {
            return true;
        }
        let only_small_arrive = self.heard_ns > silent_ns && self.probed_ns < silent_ns;
        if unanswered >= BLACK_HOLE_TIMEOUTS && only_small_arrive {
            self.fall_back(shared);
            return true;
        }
        if unanswered >= PROBE_TIMEOUTS {
            self.ask(shared);
            self.probe_path(shared);
        }
        false
    }

    fn fall_back(&mut self, shared: &mut Shared<A>) {
        self.size = PacketSize::Small;
        self.is_trying_full = false;
        self.probe_due_ns = shared.clock.now_ns() + shared.config.path_probe_ns;
        self.find_floor();
        shared.statistics.fallbacks += 1;
    }

    /// While packets are small: tries from time to time whether full-size ones arrive again.
    pub(super) fn try_full_size(&mut self, shared: &mut Shared<A>) {
        if self.size == PacketSize::Small && shared.clock.now_ns() >= self.probe_due_ns {
            self.is_trying_full = true;
            self.probe_path(shared);
        }
    }

    /// Asks the server whether it is there, by a packet as large as any: its answer is as large.
    fn probe_path(&mut self, shared: &mut Shared<A>) {
        self.probe_due_ns = shared.clock.now_ns() + shared.config.path_probe_ns;
        shared.statistics.path_probes += 1;
        let header = Header::of_session(Kind::Ping, self.remote_number, self.remote_token);
        let more_bytes = self.sizes.probe_bytes();
        shared.control_lengthened(self.seal.as_deref_mut(), self.remote, (&header, more_bytes));
    }

    /// A Pong has come with so many bytes after its header.
    pub(crate) fn probe_arrived(&mut self, shared: &Shared<A>, bytes: usize) {
        if bytes < self.sizes.probe_bytes() {
            return;
        }
        self.probed_ns = shared.clock.now_ns();
        // A late one was sent before packets became small.
        if std::mem::take(&mut self.is_trying_full) {
            self.size = PacketSize::Full;
            self.find_floor();
        }
    }

    /// Begins a call anew in small packets, under its number: a server that has executed it answers without doing so again.
    pub(super) fn begin_anew(&mut self, shared: &mut Shared<A>, index: u8) {
        self.leave_server(index);
        let slot = &mut self.slots[usize::from(index)];
        let flight = slot.flight.take();
        let credits = match &flight {
            Some(flight) => flight.outstanding(),
            None => u32::from(slot.sent != Sent::NOT_YET),
        };
        shared.land(flight);
        slot.shrink(shared.clock.now_ns());
        if slot.request.len() > self.sizes.small as usize {
            slot.total = packets_of(slot.request.len() as u32, self.sizes.small);
            slot.flight = Some(shared.flight(0, slot.total));
        }
        shared.statistics.packets_resent += 1;
        self.starved |= 1 << index;
        self.release(shared, credits);
    }
}

impl ClientSlot {
    /// The call is as at its beginning, but in small packets.
    fn shrink(&mut self, now_ns: u64) {
        self.size = PacketSize::Small;
        (self.phase, self.sent, self.total) = (Phase::Request, Sent::NOT_YET, 1);
        (self.timeouts, self.unanswered) = (0, 0);
        (self.progress_ns, self.look_again_ns) = (now_ns, NEVER);
        self.note_resent();
    }
}
