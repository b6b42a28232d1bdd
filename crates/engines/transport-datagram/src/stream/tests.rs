//! Two ends of a stream in one thread, over sockets of the loopback interface.

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
    began: Instant,
}

impl StreamEnds {
    /// A client's end and a server's.
    fn new() -> StreamEnds {
        let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (began, mut batches) = (Instant::now(), packet_batches());
        let socket = Socket::connect(listener.address()).unwrap();
        let mut client = ResumableStream::open(socket, TERMS).unwrap();
        let caller = loop {
            client.poll(now_ns(began), Reading::Try, &mut batches).unwrap();
            if let Some(caller) = listener.next_caller().unwrap() {
                break caller;
            }
            assert!(began.elapsed() < WAIT_MAX, "no client comes");
        };
        let server = ResumableStream::serve(caller.socket, TERMS, &caller.opening, now_ns(began)).unwrap();
        StreamEnds {
            streams: [client, server],
            batches,
            began,
        }
    }

    /// Has the client send so many segments of so many bytes, one after the other.
    fn carry(&mut self, segments: usize, bytes: usize) {
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
            }
            assert_eq!(self.streams[1].next(), Next::Bytes(&vec![number as u8; bytes]));
            self.streams[1].taken();
        }
    }

    fn poll(&mut self) {
        for stream in &mut self.streams {
            stream
                .poll(now_ns(self.began), Reading::Try, &mut self.batches)
                .unwrap();
        }
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

fn now_ns(began: Instant) -> u64 {
    began.elapsed().as_nanos() as u64
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
