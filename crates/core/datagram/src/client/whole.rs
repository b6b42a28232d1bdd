//! Requests of one packet that go out at once: which slots have one is a bit each.

use super::*;
use crate::endpoint::PacketSink;
use crate::shared::lowest_of;

impl<A: Copy> ClientSession<A> {
    /// A slot's request of one packet, that says nothing beside, goes out with the next packets.
    #[inline(always)]
    pub(super) fn queue_whole(&mut self, shared: &mut Shared<A>, index: u8) {
        if self.leaving == 0 {
            shared.whole.push(self.id.number);
        }
        self.leaving |= 1u32.wrapping_shl(index.into());
    }

    /// One of the requests of one packet that are to go out; the others are still to go.
    pub(crate) fn next_whole(&mut self) -> Option<Outgoing> {
        let index = lowest_of(&mut self.leaving)?;
        let slot = self.slots.get(usize::from(index))?;
        let place = (self.id.number, index);
        Some(Outgoing::first_of(place, slot.call, What::Request))
    }

    /// Hands over requests of one packet that go out now, up to so many; says how many there were.
    #[inline(always)]
    pub(crate) fn transmit_wholes(
        &mut self,
        shared: &mut Shared<A>,
        packets_max: usize,
        sink: &mut impl PacketSink<A>,
    ) -> usize {
        if self.leaving == 0 {
            return 0;
        }
        let now_ns = self.begin_transmitting(shared);
        let (mut leaving, mut packets) = (self.leaving, 0);
        while packets < packets_max
            && let Some(index) = lowest_of(&mut leaving)
        {
            if let Some(slot) = self.slots.get_mut(usize::from(index))
                && let Some(head) = slot.whole_head(now_ns)
            {
                sink.whole(self.remote, &head.bytes(), &slot.request);
                packets += 1;
            }
        }
        self.leaving = leaving;
        packets
    }

    /// What goes before the next request of one packet, and which slot it is of, if one goes out.
    pub(crate) fn next_whole_head(&mut self, shared: &mut Shared<A>) -> Option<(u8, DataHead)> {
        if self.leaving == 0 {
            return None;
        }
        let now_ns = self.begin_transmitting(shared);
        while let Some(index) = lowest_of(&mut self.leaving) {
            let slot = self.slots.get_mut(usize::from(index))?;
            if let Some(head) = slot.whole_head(now_ns) {
                return Some((index, head));
            }
        }
        None
    }

    /// Requests are sent now for the first time: sees that it is noticed when they time out, and says when they go.
    #[inline(always)]
    fn begin_transmitting(&mut self, shared: &mut Shared<A>) -> u64 {
        let now_ns = shared.clock.now_ns();
        let due_ns = now_ns + self.trips.first_timeout_ns();
        if due_ns < self.timer_ns {
            self.timer_ns = due_ns;
            shared.timers.watch(self.id.number, due_ns);
        }
        now_ns
    }
}

impl ClientSlot {
    /// What goes before the only packet of the request, which goes out now; `None` if it is no longer wanted.
    #[inline(always)]
    fn whole_head(&mut self, now_ns: u64) -> Option<DataHead> {
        if self.sent != Sent::QUEUED {
            return None;
        }
        self.leave(now_ns);
        self.progress_ns = now_ns;
        let prefix = Prefix {
            message_bytes: self.request.len() as u32,
            code: self.method,
            held: 0,
        };
        Some(DataHead::of_whole(self.request_to, self.call, &prefix))
    }
}
