//! What goes out: who may send next, and what stands before and behind.

use super::*;
use crate::checksum::Checking;
use crate::packet::{HEADER_BYTES, Head};
use crate::shared::PacketGuard;

/// Packets of session management get this part of a turn before those of calls do; the others follow if there is room.
const CONTROL_SHARE: usize = 4;

impl<A: Address> Endpoint<A> {
    /// A packet to send. Call it until there is none.
    #[inline]
    pub fn poll_transmit(&mut self, now_ns: u64) -> Option<Transmit<'_, A>> {
        let now_ns = self.shared.clock.advance(now_ns);
        if let Some(control) = self.shared.control.pop_front() {
            self.shared.statistics.packets_sent += 1;
            return Some(self.transmit_control(control));
        }
        loop {
            // What has a short way goes the usual one, too.
            let outgoing = match next_whole(&mut self.shared, &mut self.sessions) {
                Some(whole) => whole,
                None => self.shared.next_outgoing(now_ns)?,
            };
            if let Some(leaving) = leaving(&mut self.shared, &mut self.sessions, &outgoing) {
                self.shared.statistics.packets_sent += 1;
                let Leaving { to, head, source } = leaving;
                let payload = payload_of(&self.shared, &self.sessions, &outgoing, source);
                return Some(Transmit { to, head, payload });
            }
        }
    }

    /// Hands over up to so many packets to send, each with where it goes, what goes first and what follows; says how
    /// many there were. The same as [`Endpoint::poll_transmit`], for less.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        packets_max: usize,
        send_packet: impl FnMut(A, &[u8], &[u8]),
    ) -> usize {
        self.transmit_to(now_ns, packets_max, send_packet)
    }

    /// The same, to a sink.
    #[inline(always)]
    pub(crate) fn transmit_to(
        &mut self,
        now_ns: u64,
        packets_max: usize,
        mut sink: impl PacketSink<A>,
    ) -> usize {
        self.shared.clock.advance(now_ns);
        let mut packets = 0;
        if !self.shared.control.is_empty() {
            let share = packets_max.div_ceil(CONTROL_SHARE);
            packets = self.transmit_controls(share, &mut sink);
        }
        let (shared, sessions) = (&mut self.shared, &mut self.sessions[..]);
        let is_bare = shared.guard == PacketGuard::Bare;
        while packets < packets_max
            && let Some(number) = shared.whole.first()
        {
            packets += if is_bare {
                send_wholes(shared, sessions, (number, packets_max - packets), &mut sink)
            } else {
                send_guarded(shared, sessions, number, &mut sink)
            };
        }
        if packets < packets_max && shared.is_any_outgoing() {
            packets += transmit_parts(shared, sessions, packets_max - packets, &mut sink);
        }
        if packets < packets_max && !self.shared.control.is_empty() {
            packets += self.transmit_controls(packets_max - packets, &mut sink);
        }
        self.shared.statistics.packets_sent += packets as u64;
        packets
    }

    #[cold]
    fn transmit_controls(&mut self, packets_max: usize, sink: &mut dyn PacketSink<A>) -> usize {
        let mut packets = 0;
        while packets < packets_max
            && let Some(control) = self.shared.control.pop_front()
        {
            let control = self.transmit_control(control);
            sink.packet(control.to, control.head.bytes(), control.payload);
            packets += 1;
        }
        packets
    }

    #[cold]
    fn transmit_control(&mut self, control: Control<A>) -> Transmit<'_, A> {
        let control = self.current.insert(control);
        let payload = control.payload();
        let head = control.head.seal(payload, self.shared.config.checking);
        Transmit {
            to: control.to,
            head,
            payload,
        }
    }
}

/// Takes packets to send: each with where it goes, what goes first and what follows. The bytes are the endpoint's again when it
/// returns. Every such closure is one.
pub(crate) trait PacketSink<A> {
    /// Takes a packet of whatever kind.
    fn packet(&mut self, to: A, head: &[u8], payload: &[u8]);

    /// Takes the only packet of a message: the same, which may be done for less where it is so common.
    #[inline(always)]
    fn whole<const BYTES: usize>(&mut self, to: A, head: &[u8; BYTES], payload: &[u8])
    where
        Self: Sized,
    {
        self.packet(to, head, payload);
    }
}

impl<A, F: FnMut(A, &[u8], &[u8])> PacketSink<A> for F {
    #[inline]
    fn packet(&mut self, to: A, head: &[u8], payload: &[u8]) {
        self(to, head, payload);
    }
}

/// Hands over messages of one packet of the session with this number, which is first in their queue, up to so many; says how many
/// there were.
#[inline(always)]
fn send_wholes<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    (number, packets_max): (u16, usize),
    sink: &mut impl PacketSink<A>,
) -> usize {
    let (packets, leaving) = match sessions.get_mut(usize::from(number)) {
        Some(Session::Client(client)) => {
            let packets = client.transmit_wholes(shared, packets_max, sink);
            (packets, client.leaving)
        }
        Some(Session::Server(server)) => {
            let packets = server.transmit_wholes(shared, packets_max, sink);
            (packets, server.leaving)
        }
        _ => (0, 0),
    };
    if leaving == 0 {
        shared.whole.pass();
    }
    packets
}

/// As [`send_wholes`], but one of them, with a check or sealed.
#[inline(never)]
fn send_guarded<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    number: u16,
    sink: &mut impl PacketSink<A>,
) -> usize {
    let (next, leaving) = match sessions.get_mut(usize::from(number)) {
        Some(Session::Client(client)) => {
            let (to, next) = (client.remote, client.next_whole_head(shared));
            let leaving = client.leaving;
            let next = next.map(|(slot, head)| (to, head, client.request_and_seal(slot)));
            (next, leaving)
        }
        Some(Session::Server(server)) => {
            let (to, next) = (server.remote, server.next_whole_head(shared));
            let leaving = server.leaving;
            let next = next.map(|(slot, head)| (to, head, server.response_and_seal(slot)));
            (next, leaving)
        }
        _ => (None, 0),
    };
    if leaving == 0 {
        shared.whole.pass();
    }
    let Some((to, head, (payload, seal))) = next else {
        return 0;
    };
    let checking = shared.config.checking;
    match (seal, checking) {
        (None, Checking::Wire) => sink.whole(to, &head.bytes(), payload),
        (None, Checking::Packets) => sink.whole(to, &head.with_check(payload), payload),
        (None, Checking::Crc32c) => sink.whole(to, &head.with_crc(payload), payload),
        (Some(seal), _) => {
            let (header, body) = (head.header_bytes(), &mut shared.pool.spares.lists.sealing);
            seal.seal(&header, &head.prefix_bytes(), payload, body);
            match checking {
                Checking::Wire => sink.whole(to, &header, body),
                _ => sink.packet(to, Head::of_sealed(header).seal(body, checking).bytes(), body),
            }
        }
    }
    1
}

/// Hands over up to so many packets of other messages, and those whose time has come; says how many there were.
#[inline(never)]
fn transmit_parts<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    packets_max: usize,
    sink: &mut dyn PacketSink<A>,
) -> usize {
    let now_ns = shared.clock.now_ns();
    let mut packets = 0;
    while packets < packets_max
        && let Some(outgoing) = shared.next_outgoing(now_ns)
    {
        if let Some(Leaving { to, head, source }) = leaving(shared, sessions, &outgoing) {
            sink.packet(to, head.bytes(), payload_of(shared, sessions, &outgoing, source));
            packets += 1;
        }
    }
    packets
}

/// A packet that goes out now, but for its payload.
struct Leaving<A> {
    to: A,
    head: CheckedHead,
    /// The part of the message; `None` if the packet was sealed.
    source: Option<std::ops::Range<usize>>,
}

/// What goes before the packet, and where its payload is; `None` if whatever it was about has moved on.
#[inline(never)]
fn leaving<A: Address>(
    shared: &mut Shared<A>,
    sessions: &mut [Session<A>],
    outgoing: &Outgoing,
) -> Option<Leaving<A>> {
    let (to, head, source, whole, seal) = match sessions.get_mut(usize::from(outgoing.session))? {
        Session::Client(client) => {
            let (head, source) = client.transmit(shared, outgoing)?;
            let to = client.remote;
            let (whole, seal) = client.request_and_seal(outgoing.slot);
            (to, head, source, whole, seal)
        }
        Session::Server(server) => {
            let (head, source) = server.transmit(shared, outgoing)?;
            let to = server.remote;
            let (whole, seal) = server.response_and_seal(outgoing.slot);
            (to, head, source, whole, seal)
        }
        Session::Free => return None,
    };
    let payload = whole.get(source.clone()).unwrap_or_default();
    let checking = shared.config.checking;
    let Some(seal) = seal else {
        let head = head.seal(payload, checking);
        let source = Some(source);
        return Some(Leaving { to, head, source });
    };
    let (header, prefix) = head.bytes().split_at(HEADER_BYTES);
    seal.seal(header, prefix, payload, &mut shared.pool.spares.lists.sealing);
    let head = head
        .header_alone()
        .seal(&shared.pool.spares.lists.sealing, checking);
    let source = None;
    Some(Leaving { to, head, source })
}

/// The next message of one packet that goes out at once, as one of several packets is named.
fn next_whole<A: Address>(shared: &mut Shared<A>, sessions: &mut [Session<A>]) -> Option<Outgoing> {
    while let Some(number) = shared.whole.first() {
        let (next, leaving) = match sessions.get_mut(usize::from(number)) {
            Some(Session::Client(client)) => (client.next_whole(), client.leaving),
            Some(Session::Server(server)) => (server.next_whole(number), server.leaving),
            _ => (None, 0),
        };
        if leaving == 0 {
            shared.whole.pass();
        }
        if next.is_some() {
            return next;
        }
    }
    None
}

/// The payload of a packet that goes out now.
#[inline]
fn payload_of<'e, A: Address>(
    shared: &'e Shared<A>,
    sessions: &'e [Session<A>],
    outgoing: &Outgoing,
    source: Option<std::ops::Range<usize>>,
) -> &'e [u8] {
    let Some(source) = source else {
        return &shared.pool.spares.lists.sealing;
    };
    let whole = match sessions.get(usize::from(outgoing.session)) {
        Some(Session::Client(client)) => client.request(outgoing.slot),
        Some(Session::Server(server)) => server.response(outgoing.slot),
        _ => &[],
    };
    whole.get(source).unwrap_or_default()
}
