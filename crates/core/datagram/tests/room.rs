//! Calls that wait for room: for that of a server whose memory for requests of several packets is taken, and for that of
//! a slow link. Who waits takes nobody for dead, and nothing for lost.

use provost_datagram::{
    Call, Config, EndReason, Endpoint, Event, Mark, MsgBuf, Payload, RequestHandle, ShortCut,
};

const SERVER: usize = 0;
/// Two of them, as calls of one would keep each other's session alive.
const CLIENTS: [usize; 2] = [1, 2];
const REQUEST_BYTES: usize = 100_000;
const SECOND_NS: u64 = 1_000_000_000;

/// Clients, and a server that keeps every request until it is told to answer.
struct Network {
    now_ns: u64,
    ends: [Endpoint<usize>; 3],
    kept: Vec<(RequestHandle, MsgBuf)>,
    completed: Vec<u64>,
    ended: Option<EndReason>,
}

impl Network {
    fn new() -> Network {
        Network::with(&Config::default())
    }

    fn with(config: &Config) -> Network {
        let end = |secret, assembly_bytes_max| {
            let config = Config {
                secret,
                assembly_bytes_max,
                ..config.clone()
            };
            Endpoint::new(config).unwrap()
        };
        Network {
            now_ns: 1,
            ends: [
                end([1, 2], REQUEST_BYTES * 3 / 2),
                end([3, 4], 64 << 20),
                end([5, 6], 64 << 20),
            ],
            kept: Vec::new(),
            completed: Vec::new(),
            ended: None,
        }
    }

    /// Carries packets and lets time pass for so long.
    fn run(&mut self, for_ns: u64) {
        let end_ns = self.now_ns + for_ns;
        while self.now_ns < end_ns {
            for side in 0..self.ends.len() {
                self.ends[side].handle_timers(self.now_ns);
                while let Some(transmit) = self.ends[side].poll_transmit(self.now_ns) {
                    let bytes = [transmit.head.bytes(), transmit.payload].concat();
                    let to = transmit.to;
                    match self.ends[to].receive(self.now_ns, side, Mark::None, &bytes) {
                        Some(Event::Request {
                            handle,
                            payload: Payload::Owned(request),
                            ..
                        }) => self.kept.push((handle, request)),
                        Some(Event::Completed(completion)) => self.completed.push(completion.tag),
                        _ => {}
                    }
                }
                while let Some(event) = self.ends[side].poll_event() {
                    match event {
                        Event::Completed(completion) => self.completed.push(completion.tag),
                        Event::Ended(_, reason) => self.ended = Some(reason),
                        _ => {}
                    }
                }
            }
            self.now_ns += 20_000;
        }
    }

    fn call(&mut self, client: usize, tag: u64) {
        let session = self.ends[client].connect(self.now_ns, SERVER).unwrap();
        let call = Call {
            method: 1,
            tag,
            request: MsgBuf::from_slice(&vec![tag as u8; REQUEST_BYTES]),
            response: MsgBuf::with_capacity(64),
        };
        self.ends[client].call(self.now_ns, session, call).unwrap();
    }

    fn answer_oldest(&mut self) {
        let (handle, request) = self.kept.remove(0);
        self.ends[SERVER].recycle(request);
        let response = MsgBuf::from_slice(b"done");
        self.ends[SERVER]
            .respond(self.now_ns, handle, 7, response)
            .unwrap();
    }
}

#[test]
fn a_server_without_room_for_a_request_is_not_taken_for_dead() {
    let mut network = Network::new();
    network.call(CLIENTS[0], 1);
    network.run(SECOND_NS / 10);
    assert_eq!(network.kept.len(), 1, "the first request is there");
    network.call(CLIENTS[1], 2);
    // Much longer than a client waits for a peer that says nothing.
    let peer_timeout_ns = Config::default().peer_timeout_ns;
    network.run(peer_timeout_ns * 3);
    assert_eq!((network.kept.len(), network.ended), (1, None));
    assert!(
        network.ends[SERVER].statistics().dropped.room > 0,
        "there was no room"
    );
    network.answer_oldest();
    network.run(peer_timeout_ns);
    assert_eq!(
        (network.kept.len(), network.ended),
        (1, None),
        "there is room now"
    );
    network.answer_oldest();
    network.run(SECOND_NS / 10);
    assert_eq!((network.completed, network.ended), (vec![1, 2], None));
}

#[test]
fn what_is_paced_slower_than_time_runs_out_is_not_taken_for_lost() {
    let mut config = Config {
        pacing_bypass: ShortCut::Off,
        ..Config::default()
    };
    let packet_ns = 4 * config.timeout_ns_initial;
    config.congestion.link_rate = config.packet_bytes_max as f64 / packet_ns as f64;
    let mut network = Network::with(&config);
    network.call(CLIENTS[0], 1);
    let began_ns = network.now_ns;
    while network.kept.is_empty() && network.now_ns < 10 * SECOND_NS {
        network.run(packet_ns / 100);
    }
    assert!(network.now_ns - began_ns > packet_ns, "it was not paced");
    let client = network.ends[CLIENTS[0]].statistics();
    assert!(client.packets_paced > 0 && client.timeouts == 0, "{client:?}");
    assert_eq!(client.packets_resent, 0);
}

#[test]
fn a_server_takes_no_larger_requests_than_it_can_put_together() {
    let mut network = Network::new();
    let session = network.ends[CLIENTS[0]].connect(network.now_ns, SERVER).unwrap();
    network.run(SECOND_NS / 100);
    let bytes_max = network.ends[CLIENTS[0]].request_bytes_max(session);
    // Of so much memory a buffer can have the largest power of two.
    assert_eq!(bytes_max, Some(128 << 10));
}
