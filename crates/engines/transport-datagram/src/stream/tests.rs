//! Two ends of a stream in one thread, over sockets of the loopback interface.

use std::net::{ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use provost_udp::UdpStatistics;

use super::*;
use crate::Listener;
use crate::socket::{PACKET_BYTES_ETHERNET, packet_batches};

const WAIT_MAX: Duration = Duration::from_secs(30);
const TERMS: Terms = Terms {
    packet_bytes: PACKET_BYTES_ETHERNET,
    silence_ns: WAIT_MAX.as_nanos() as u64,
    key: None,
};

struct StreamEnds {
    streams: [ResumableStream; 2],
    batches: PacketBatches,
    clock: PollClock,
    began: Instant,
}

/// A time that goes on with each look at it, so that nothing is late because others had the core.
struct PollClock(u64);

impl PollClock {
    fn now_ns(&mut self) -> u64 {
        self.0 += 1_000;
        self.0
    }
}

impl StreamEnds {
    /// A client's end and a server's.
    fn new() -> StreamEnds {
        let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        StreamEnds::through(&mut listener, address, || {})
    }

    /// The same; the client finds the server at this address, where `pass` passes packets on.
    fn through(listener: &mut Listener, address: SocketAddr, mut pass: impl FnMut()) -> StreamEnds {
        let (began, mut clock, mut batches) = (Instant::now(), PollClock(0), packet_batches());
        let socket = Socket::connect(address).unwrap();
        let mut client = ResumableStream::open(socket, TERMS).unwrap();
        let caller = loop {
            client.poll(clock.now_ns(), Reading::Try, &mut batches).unwrap();
            pass();
            if let Some(caller) = listener.next_caller().unwrap() {
                break caller;
            }
            assert!(began.elapsed() < WAIT_MAX, "no client comes");
        };
        let server = ResumableStream::serve(caller.socket, TERMS, &caller.opening, clock.now_ns()).unwrap();
        StreamEnds {
            streams: [client, server],
            batches,
            clock,
            began,
        }
    }

    /// Has the client send so many segments of so many bytes, one after the other.
    fn carry(&mut self, segments: usize, bytes: usize) {
        self.carry_while(segments, bytes, || {});
    }

    /// The same, with something to do between polls.
    fn carry_while(&mut self, segments: usize, bytes: usize, mut pass: impl FnMut()) {
        for number in 0..segments {
            let mut segment = self.streams[0].segment(bytes);
            ResumableStream::content(&mut segment).fill(number as u8);
            self.streams[0].send(segment);
            while !self.streams[1].has_next() {
                assert!(
                    self.began.elapsed() < WAIT_MAX,
                    "segment {number} does not arrive"
                );
                self.poll();
                pass();
            }
            assert_eq!(self.streams[1].next(), Next::Bytes(&vec![number as u8; bytes]));
            self.streams[1].taken();
        }
    }

    fn poll(&mut self) {
        for stream in &mut self.streams {
            stream
                .poll(self.clock.now_ns(), Reading::Try, &mut self.batches)
                .unwrap();
        }
    }

    /// Polls both, and says whether the client's end goes on.
    fn polls_well(&mut self) -> bool {
        let [client, server] = &mut self.streams;
        server
            .poll(self.clock.now_ns(), Reading::Try, &mut self.batches)
            .unwrap();
        client
            .poll(self.clock.now_ns(), Reading::Try, &mut self.batches)
            .is_ok()
    }

    /// Packets that both ends have sent, and their calls of the kernel.
    fn spent(&self) -> (u64, u64) {
        let statistics = self.streams.each_ref().map(|end| *end.socket().statistics());
        let sum = |of: fn(&UdpStatistics) -> u64| statistics.iter().map(of).sum();
        (
            sum(|end| end.packets_sent),
            sum(|end| end.send_calls + end.receive_calls),
        )
    }
}

#[test]
fn a_segment_of_many_packets_takes_few_system_calls() {
    const SEGMENTS: usize = 40;
    let mut ends = StreamEnds::new();
    ends.carry(8, SEGMENT_BYTES_MAX);
    let before = ends.spent();
    ends.carry(SEGMENTS, SEGMENT_BYTES_MAX);
    let after = ends.spent();
    let (packets, calls) = (after.0 - before.0, after.1 - before.1);
    println!("{SEGMENTS} segments of 64 KiB: {packets} packets, {calls} system calls of both ends");
    assert!(packets >= 45 * SEGMENTS as u64, "{packets} packets");
    assert!(calls < packets / 3, "{calls} calls for {packets} packets");
}

/// ECT(0) and CE of RFC 3168.
const CAPABLE: u8 = 0b10;
const CONGESTED: u8 = 0b11;
/// Where a packet says whether its sender reads marks: in an Open, and in an Accept.
const OPEN_MARKS_AT: usize = 16 + 35;
const ACCEPT_MARKS_AT: usize = 16 + 24;
/// Kinds of packets, and where a response has the flags of the segment that it carries.
const RESPONSE: u8 = 4;
const OPEN: u8 = 5;
const UNKNOWN: u8 = 12;
const RESPONSE_FLAGS_AT: usize = 24 + 16;

fn bind(address: impl ToSocketAddrs) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// Somebody between a client and a server, in the thread of both, who passes packets on.
struct MarkingRelay {
    front: UdpSocket,
    back: UdpSocket,
    client: Option<SocketAddr>,
    /// Whether what begins sessions is changed to what versions without marks say.
    hides_marks: bool,
    /// Packets to the server of more bytes vanish.
    to_server_bytes_max: usize,
    late: LateAnswer,
    /// Whether the client is told before each packet, in the server's name, that nobody knows its session.
    slanders: bool,
    /// The session and its token of the last packet to the server.
    asked_for: [u8; 6],
    /// The last packet that has asked the server for a session, and an old one that is repeated behind each.
    open: Vec<u8>,
    repeated_open: Option<Vec<u8>>,
}

/// The answer of a busy server that reaches the client late.
#[derive(PartialEq, Eq)]
enum LateAnswer {
    /// All come as they were sent.
    None,
    /// The next one does not pass.
    Awaited,
    /// This one has not, and nothing else of its call does.
    Kept(Vec<u8>),
}

impl MarkingRelay {
    fn before(server: SocketAddr, hides_marks: bool) -> MarkingRelay {
        let (front, back) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
        back.connect(server).unwrap();
        MarkingRelay {
            front,
            back,
            client: None,
            hides_marks,
            to_server_bytes_max: usize::MAX,
            late: LateAnswer::None,
            slanders: false,
            asked_for: [0; 6],
            open: Vec::new(),
            repeated_open: None,
        }
    }

    /// Where the client finds the server.
    fn address(&self) -> SocketAddr {
        self.front.local_addr().unwrap()
    }

    /// Has nobody listen there while something is done: the client's host says so of each packet.
    fn away(&mut self, body: impl FnOnce()) {
        let address = self.address();
        self.front = bind("127.0.0.1:0");
        body();
        self.front = bind(address);
    }

    /// Marks all packets from now on, to the server or to the client.
    fn mark(&self, to: Role) {
        let socket = if to == Role::Server {
            &self.back
        } else {
            &self.front
        };
        rustix::net::sockopt::set_ip_tos(socket, CONGESTED).unwrap();
    }

    fn pass(&mut self) {
        let mut bytes = [0; 2048];
        while let Ok((length, client)) = self.front.recv_from(&mut bytes) {
            self.client = Some(client);
            self.asked_for.copy_from_slice(&bytes[2..8]);
            self.hide(&mut bytes[..length]);
            if length <= self.to_server_bytes_max {
                self.back.send(&bytes[..length]).unwrap();
            }
            if bytes[0] & 15 == OPEN {
                self.open = bytes[..length].to_vec();
                self.repeat_open();
            }
        }
        while let Ok(length) = self.back.recv(&mut bytes) {
            self.hide(&mut bytes[..length]);
            if self.slanders {
                let unknown = [&[UNKNOWN, 0], &self.asked_for[..], &[0; 8]].concat();
                self.to_client(&unknown);
            }
            if !self.keeps(&bytes[..length]) {
                self.to_client(&bytes[..length]);
            }
        }
    }

    fn repeat_open(&self) {
        if let Some(open) = &self.repeated_open {
            self.back.send(open).unwrap();
        }
    }

    fn to_client(&self, packet: &[u8]) {
        self.front.send_to(packet, self.client.unwrap()).unwrap();
    }

    /// Whether a packet to the client is kept for later.
    fn keeps(&mut self, packet: &[u8]) -> bool {
        let is_busy = packet[0] & 15 == RESPONSE && packet[RESPONSE_FLAGS_AT] & BUSY != 0;
        if is_busy && self.late == LateAnswer::Awaited {
            self.late = LateAnswer::Kept(packet.to_vec());
        }
        let call = |packet: &[u8]| (packet[1], packet[8..12].to_vec());
        matches!(&self.late, LateAnswer::Kept(kept) if call(kept) == call(packet))
    }

    /// Has the answer arrive that was kept.
    fn let_go(&mut self) {
        if let LateAnswer::Kept(kept) = std::mem::replace(&mut self.late, LateAnswer::None) {
            self.to_client(&kept);
        }
    }

    fn hide(&self, packet: &mut [u8]) {
        let at = match packet[0] & 15 {
            _ if !self.hides_marks => return,
            OPEN => OPEN_MARKS_AT,
            7 => ACCEPT_MARKS_AT,
            _ => return,
        };
        assert_eq!(packet[at], 1, "it is said where this test believes");
        packet[at] = 0;
    }
}

/// The classes of both ends' packets once they have carried something, and how often the client has heard of marks.
fn classes_and_marks(hides_marks: bool, marked: Option<Role>) -> ([u8; 2], u64) {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut relay = MarkingRelay::before(listener.address(), hides_marks);
    let began = Instant::now();
    let mut ends = StreamEnds::through(&mut listener, relay.address(), || relay.pass());
    let class =
        |stream: &ResumableStream| rustix::net::sockopt::ip_tos(stream.socket().descriptor()).unwrap();
    assert_eq!(class(&ends.streams[0]), 0, "before it is known who the peer is");
    ends.carry_while(4, 3_000, || relay.pass());
    let classes = [class(&ends.streams[0]), class(&ends.streams[1])];
    let before = ends.streams[0].marks();
    if let Some(to) = marked {
        relay.mark(to);
    }
    ends.carry_while(8, 3_000, || relay.pass());
    // A request that the server holds is answered, with its mark, when there is something to say.
    while marked.is_some() && ends.streams[0].marks() == before {
        assert!(began.elapsed() < WAIT_MAX, "no mark is heard");
        ends.carry_while(1, 3_000, || relay.pass());
    }
    let mut out = provost_datapath::FieldWriter::new();
    for stream in &ends.streams {
        stream.save(&mut out);
    }
    let left = [class(&ends.streams[0]), class(&ends.streams[1])];
    assert_eq!(
        left,
        [0, 0],
        "a successor of any version says for itself what it reads"
    );
    (classes, ends.streams[0].marks() - before)
}

#[test]
fn packets_can_be_marked_where_the_peer_reads_marks_and_the_client_hears_of_both_ways() {
    assert_eq!(classes_and_marks(false, None), ([CAPABLE; 2], 0));
    for marked in [Role::Server, Role::Client] {
        let (classes, marks) = classes_and_marks(false, Some(marked));
        assert_eq!(classes, [CAPABLE; 2]);
        assert!(marks > 0, "marked on the way to the {marked:?}");
    }
}

#[test]
fn packets_to_a_peer_of_a_version_without_marks_cannot_be_marked() {
    assert_eq!(classes_and_marks(true, None), ([0; 2], 0));
}

#[test]
fn a_path_that_no_longer_carries_full_size_packets_is_counted() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut relay = MarkingRelay::before(listener.address(), false);
    let mut ends = StreamEnds::through(&mut listener, relay.address(), || relay.pass());
    ends.carry_while(2, 3_000, || relay.pass());
    let fallbacks = |ends: &StreamEnds| ends.streams[0].packets().path_fallbacks;
    assert_eq!(fallbacks(&ends), 0, "the path carries them");
    relay.to_server_bytes_max = 1_300;
    ends.carry_while(4, 3_000, || relay.pass());
    assert_eq!(fallbacks(&ends), 1, "once for the session");
}

/// Has a client send small segments while nobody reads them at the server, as long as it may.
fn send_unread(ends: &mut StreamEnds) {
    for _ in 0..6_000 {
        if ends.streams[0].has_room() {
            let mut segment = ends.streams[0].segment(1);
            ResumableStream::content(&mut segment).fill(ends.streams[0].outgoing.last as u8);
            ends.streams[0].send(segment);
        }
        ends.poll();
    }
}

fn restored(stream: &ResumableStream) -> Result<ResumableStream, provost_datapath::RestoreError> {
    let mut out = provost_datapath::FieldWriter::new();
    stream.save(&mut out);
    let socket = stream.socket().descriptor().try_clone_to_owned().unwrap();
    ResumableStream::restore(
        socket.into(),
        &mut provost_datapath::FieldReader::new("test", &out.bytes),
        2,
    )
}

#[test]
fn however_small_the_segments_are_that_nobody_reads_a_successor_takes_them_over() {
    let mut ends = StreamEnds::new();
    send_unread(&mut ends);
    let unread = ends.streams[1].incoming.ready.len();
    println!("{unread} segments of a byte wait");
    let mut successor = restored(&ends.streams[1]).unwrap();
    let came = std::iter::from_fn(|| {
        let byte = match successor.next() {
            Next::Bytes(bytes) => bytes[0],
            Next::Nothing | Next::Finished => return None,
        };
        successor.taken();
        Some(byte)
    });
    assert!(came.eq((0..unread).map(|number| number as u8)));
    // Once they are read the others come.
    while ends.streams[1].has_next() || ends.streams[1].incoming.received < ends.streams[0].outgoing.last {
        assert!(
            ends.began.elapsed() < WAIT_MAX,
            "the client was not told to go on"
        );
        ends.streams[1].taken();
        ends.poll();
    }
    ends.carry(1, 100);
}

/// Of an older version, which has asked for no pause.
#[test]
fn a_successor_of_one_that_took_as_much_as_can_be_saved_loses_nothing() {
    const MORE: usize = 2 * WINDOW_SEGMENTS as usize;
    let mut ends = StreamEnds::new();
    ends.carry(4, 100);
    while ends.streams[1].incoming.ready.len() < INCOMING_SEGMENTS_ABSURD {
        ends.streams[1].put_back(&[0]);
    }
    ends.streams[1] = restored(&ends.streams[1]).unwrap();
    for _ in 0..MORE {
        let segment = ends.streams[0].segment(2);
        ends.streams[0].send(segment);
    }
    // It is told to wait before anything of these is taken.
    while !ends.streams[0].peer_busy {
        assert!(ends.began.elapsed() < WAIT_MAX, "the client is not asked to wait");
        ends.poll();
    }
    let mut taken = 0;
    while taken < INCOMING_SEGMENTS_ABSURD + MORE {
        assert!(
            ends.began.elapsed() < WAIT_MAX,
            "{taken} segments have come, and no more"
        );
        ends.poll();
        while ends.streams[1].has_next() {
            ends.streams[1].taken();
            taken += 1;
        }
    }
}

#[test]
fn a_peer_that_sends_segments_however_small_without_end_is_left() {
    let mut ends = StreamEnds::new();
    let server = &mut ends.streams[1];
    let mut is_taken = |number: u64| {
        let head = Head {
            number,
            ..Head::default()
        };
        let segment = Segment {
            buffer: MsgBuf::from_slice(&[0; HEAD_BYTES]),
            is_lent: false,
            is_last: false,
        };
        server.arrived(head, segment).is_ok()
    };
    assert_eq!((1..10_000).take_while(|number| is_taken(*number)).count(), 4_096);
    assert!(restored(&ends.streams[1]).is_ok());
}

#[test]
fn an_answer_that_comes_late_does_not_stop_who_was_told_to_go_on() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut relay = MarkingRelay::before(listener.address(), false);
    let mut ends = StreamEnds::through(&mut listener, relay.address(), || relay.pass());
    ends.carry_while(2, 3_000, || relay.pass());
    // Nobody reads at the server, which says so with the next thing that it says.
    relay.late = LateAnswer::Awaited;
    while !ends.streams[1].is_busy() {
        assert!(ends.began.elapsed() < WAIT_MAX, "the server takes everything");
        if ends.streams[0].has_room() {
            let segment = ends.streams[0].segment(SEGMENT_BYTES_SENT);
            ends.streams[0].send(segment);
        }
        ends.poll();
        relay.pass();
    }
    let segment = ends.streams[1].segment(100);
    ends.streams[1].send(segment);
    ends.poll();
    relay.pass();
    assert!(matches!(relay.late, LateAnswer::Kept(_)), "it was said");
    // Everything is read, and all other requests are answered.
    for _ in 0..100 {
        ends.clock.0 += REST_NS / 10;
        ends.poll();
        relay.pass();
        while ends.streams[1].has_next() {
            ends.streams[1].taken();
        }
    }
    assert!(ends.streams[0].has_room() && !ends.streams[0].has_next());
    relay.let_go();
    while !ends.streams[0].has_next() {
        assert!(ends.began.elapsed() < WAIT_MAX, "the answer does not come");
        ends.poll();
        relay.pass();
    }
    assert!(ends.streams[0].has_room(), "the client waits to be told to go on");
    ends.carry_while(2, 3_000, || relay.pass());
}

/// Has the network say three times that nobody listens at the peer's address, which anybody can make it say, and lets the ends
/// go on for longer than that is believed.
fn is_lost_by_refusals(key: Option<ResumableStreamKey>) -> bool {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut relay = MarkingRelay::before(listener.address(), false);
    let mut ends = StreamEnds::through(&mut listener, relay.address(), || relay.pass());
    if let Some(key) = key {
        let sealed = |stream: &ResumableStream| stream.sealed(key.clone()).unwrap();
        ends.streams = ends.streams.each_ref().map(sealed);
    }
    ends.carry_while(4, 3_000, || relay.pass());
    let mut is_lost = false;
    relay.away(|| {
        for _ in 0..REFUSALS_MAX {
            let refused = ends.streams[0].socket().statistics().refused;
            let segment = ends.streams[0].segment(100);
            ends.streams[0].send(segment);
            while !is_lost && ends.streams[0].socket().statistics().refused == refused {
                assert!(ends.began.elapsed() < WAIT_MAX, "the network says nothing");
                is_lost = !ends.polls_well();
            }
            ends.clock.0 += REFUSALS_NS_MIN / 2;
        }
    });
    for _ in 0..2 * REFUSED_NS_MAX / ASK_NS {
        ends.clock.0 += ASK_NS;
        for _ in 0..100 {
            is_lost |= !ends.polls_well();
            relay.pass();
        }
    }
    is_lost
}

#[test]
fn forged_messages_of_the_network_end_no_sealed_stream_whose_peer_answers() {
    assert!(is_lost_by_refusals(None), "nothing was tested");
    assert!(!is_lost_by_refusals(Some(ResumableStreamKey(
        std::sync::Arc::new([7; 32].into())
    ))));
}

#[test]
fn forged_word_that_a_session_is_lost_ends_no_sealed_stream_whose_peer_answers() {
    let key = ResumableStreamKey(std::sync::Arc::new([7; 32].into()));
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut relay = MarkingRelay::before(listener.address(), false);
    let mut ends = StreamEnds::through(&mut listener, relay.address(), || relay.pass());
    let sealed = |stream: &ResumableStream| stream.sealed(key.clone()).unwrap();
    ends.streams = ends.streams.each_ref().map(sealed);
    ends.carry_while(4, 3_000, || relay.pass());
    relay.slanders = true;
    for _ in 0..2 * REFUSED_NS_MAX / ASK_NS {
        ends.clock.0 += ASK_NS;
        for _ in 0..100 {
            assert!(ends.polls_well(), "the client believes it");
            relay.pass();
        }
    }
    assert!(ends.streams[0].dropped().unproven > 5, "nothing was tested");
}

#[test]
fn an_old_packet_that_asks_for_a_session_takes_none_away() {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut relay = MarkingRelay::before(listener.address(), false);
    let mut ends = StreamEnds::through(&mut listener, relay.address(), || relay.pass());
    ends.carry_while(4, 3_000, || relay.pass());
    // The client goes on in another session, and in a third one, where what had asked for the second follows each of its packets that ask.
    for old_open in [None, Some(())] {
        relay.repeated_open = old_open.map(|()| relay.open.clone());
        let before = ends.streams[0].session().unwrap();
        let now_ns = ends.clock.now_ns();
        ends.streams[0].endpoint.reset(now_ns, before);
        ends.carry_while(4, 3_000, || relay.pass());
    }
    let session = ends.streams[1].session();
    assert!(session.is_some());
    // Once more, with nothing else on its way.
    relay.repeat_open();
    while ends.streams[1].asked_for.len() < 2 {
        assert!(ends.began.elapsed() < WAIT_MAX, "it is not asked for");
        ends.poll();
        relay.pass();
    }
    ends.carry_while(4, 3_000, || relay.pass());
    assert_eq!(ends.streams[1].session(), session);
    assert_eq!(ends.streams[1].last_session().map(|last| last.session), session);
    // In the one that was asked for nothing comes, so that it is not kept for long.
    for _ in 0..4 * WAIT_MAX.as_secs() {
        ends.clock.0 += 1_000_000_000;
        ends.poll();
        relay.pass();
    }
    assert_eq!(ends.streams[1].session(), session);
}
