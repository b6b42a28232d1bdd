//! Connections through somebody who hears all packets, sends them again, and changes them.

#[path = "../../../../../core/tls/tests/certificates/mod.rs"]
mod certificates;

use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use certificates::Authority;
use provost_datapath::{FieldReader, FieldWriter};
use provost_tls::PeerIdentity;
use provost_udp::PacketBatches;
use provost_wire::Code;

use crate::socket::{PACKET_BYTES_ETHERNET, Socket, packet_batches};
use crate::stream::{Next, Reading, ResumableStream, ResumableStreamKey, Terms};
use crate::{
    AcceptError, CallerAttestation, ConnectError, ConnectParams, Decision, Encoding, Established, Greeting,
    Hello, Limits, Listener, PacketOptions, Role, accept, connect,
};

const SERVICE: &str = "canary.Canary";
const WAIT_MAX: Duration = Duration::from_secs(40);
const OPEN: u8 = 5;
const UNKNOWN: u8 = 12;
const HEADER_BYTES: usize = 16;
/// An Open with a public key and a proof.
const SEALED_OPEN_BYTES: usize = HEADER_BYTES + 112;

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    ToServer,
    ToClient,
}

type Heard = Vec<(Way, Vec<u8>)>;

/// Somebody on the path. From the first packet on that asks for a sealed session, each goes twice, and another time changed.
struct Meddler {
    address: SocketAddr,
    heard: Arc<Mutex<Heard>>,
    stops: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Meddler {
    fn before(server: SocketAddr) -> Meddler {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let back = UdpSocket::bind("127.0.0.1:0").unwrap();
        back.connect(server).unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (stops, meddles) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let client = Arc::new(Mutex::new(None));
        let address = front.local_addr().unwrap();
        let threads = [Way::ToServer, Way::ToClient].map(|way| {
            let (front, back) = (front.try_clone().unwrap(), back.try_clone().unwrap());
            let (heard, stops, meddles) = (heard.clone(), stops.clone(), meddles.clone());
            let client: Arc<Mutex<Option<SocketAddr>>> = client.clone();
            std::thread::spawn(move || {
                let from = if way == Way::ToServer { &front } else { &back };
                from.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                let mut bytes = vec![0; 65_536];
                while !stops.load(Ordering::Relaxed) {
                    let Ok((length, sender)) = from.recv_from(&mut bytes) else {
                        continue;
                    };
                    let packet = bytes[..length].to_vec();
                    if way == Way::ToServer {
                        *client.lock().unwrap() = Some(sender);
                    }
                    let is_sealed_open = packet[0] & 15 == OPEN && length == SEALED_OPEN_BYTES;
                    meddles.fetch_or(is_sealed_open, Ordering::Relaxed);
                    let pass = |packet: &[u8]| match way {
                        Way::ToServer => back.send(packet),
                        Way::ToClient => front.send_to(packet, client.lock().unwrap().unwrap()),
                    };
                    let mut changed = packet.clone();
                    changed[length - 1] ^= 1;
                    let is_sealed = !(OPEN..OPEN + 4).contains(&(packet[0] & 15));
                    let passed: &[&[u8]] = match (meddles.load(Ordering::Relaxed), is_sealed) {
                        (false, _) => &[&packet],
                        // Who asks for a session is refused one if what he says was changed, but for his second try.
                        (true, false) => &[&packet, &packet, &changed],
                        (true, true) => &[&changed, &packet, &packet],
                    };
                    // Before it goes on: who looks when it has arrived finds it.
                    heard.lock().unwrap().push((way, packet.clone()));
                    for packet in passed {
                        // Who has gone is told by the host; nobody hears it.
                        let _ = pass(packet);
                    }
                }
            })
        });
        Meddler {
            address,
            heard,
            stops,
            threads: threads.into(),
        }
    }

    fn heard(&self) -> Heard {
        self.heard.lock().unwrap().clone()
    }

    fn has_heard(&self, text: &str) -> bool {
        let has = |packet: &[u8]| packet.windows(text.len()).any(|part| part == text.as_bytes());
        self.heard().iter().any(|(_, packet)| has(packet))
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Whether an end uses TLS, and as whom.
struct Ends {
    client: Option<provost_tls::TlsConfig>,
    server: Option<provost_tls::TlsConfig>,
}

fn mutual(authority: &Authority) -> Ends {
    Ends {
        client: Some(authority.node("client", &["spiffe://mesh/client"])),
        server: Some(authority.node("server", &["127.0.0.1"])),
    }
}

type Met = (
    Result<Established, ConnectError>,
    Result<Established, AcceptError>,
    Meddler,
);

fn meet(ends: &Ends) -> Met {
    let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let meddler = Meddler::before(listener.address());
    let deadline = Instant::now() + WAIT_MAX;
    let params = ConnectParams {
        address: meddler.address.to_string(),
        hello: Hello {
            service: SERVICE.into(),
            schema_hash: [1; 32],
            methods: Vec::new(),
            limits: Limits::default(),
            caller: Some(CallerAttestation::default()),
        },
        descriptor_set: Arc::from([]),
        tls: ends.client.as_ref().map(|files| files.client().unwrap()),
        deadline,
    };
    let client = std::thread::spawn(move || connect(&params, PacketOptions::default()));
    let caller = loop {
        if let Some(caller) = listener.next_caller().unwrap() {
            break caller;
        }
        assert!(Instant::now() < deadline, "no client comes");
        std::thread::sleep(Duration::from_millis(1));
    };
    let is_secure = ends.client.is_some() && ends.server.is_some();
    let welcome = |greeting: Greeting<'_>| {
        // Word of who calls is for a server that has proved itself.
        assert_eq!(greeting.hello.caller.is_some(), is_secure);
        Decision::Welcome {
            encoding: Encoding::Native,
            methods: Vec::new(),
            limits: Limits::default(),
        }
    };
    let tls = ends.server.as_ref().map(|files| files.server().unwrap());
    let server = accept(
        caller,
        PacketOptions::default(),
        tls.as_deref(),
        deadline,
        welcome,
    );
    (client.join().unwrap(), server, meddler)
}

/// Two streams that are polled in turn.
struct Pair {
    streams: [ResumableStream; 2],
    began: Instant,
    batches: PacketBatches,
}

impl Pair {
    fn new(client: Established, server: Established) -> Pair {
        Pair {
            streams: [client.carrier.into_stream(), server.carrier.into_stream()],
            began: Instant::now(),
            batches: packet_batches(),
        }
    }

    /// Has one end say something, and the other hear it, once.
    fn carries(&mut self, from: usize, text: &[u8]) {
        let mut segment = self.streams[from].segment(text.len());
        ResumableStream::content(&mut segment).copy_from_slice(text);
        self.streams[from].send(segment);
        let mut came = Vec::new();
        while came.len() < text.len() {
            assert!(self.began.elapsed() < WAIT_MAX, "nothing arrives");
            let now_ns = self.began.elapsed().as_nanos() as u64;
            for stream in &mut self.streams {
                stream.poll(now_ns, Reading::Try, &mut self.batches).unwrap();
            }
            while let Next::Bytes(bytes) = self.streams[1 - from].next() {
                came.extend_from_slice(bytes);
                self.streams[1 - from].taken();
            }
        }
        assert_eq!(came, text);
    }

    /// Replaces an end by its successor.
    fn succeed(&mut self, end: usize) {
        let stream = &mut self.streams[end];
        let mut out = FieldWriter::new();
        stream.save(&mut out);
        let socket = stream.socket().descriptor().try_clone_to_owned().unwrap();
        let mut fields = FieldReader::new("test", &out.bytes);
        let successor = ResumableStream::restore(socket.into(), &mut fields, 2).unwrap();
        fields.end().unwrap();
        assert_eq!(successor.role(), [Role::Client, Role::Server][end]);
        *stream = successor;
        let now_ns = self.began.elapsed().as_nanos() as u64;
        stream.change_clock(now_ns);
    }
}

#[test]
fn who_hears_and_changes_all_packets_learns_nothing_and_changes_nothing() {
    let authority = Authority::new();
    let (client, server, meddler) = meet(&mutual(&authority));
    let (client, server) = (client.unwrap(), server.unwrap());
    assert_eq!(server.peer, PeerIdentity::Spiffe("spiffe://mesh/client".into()));
    assert_eq!(server.service, SERVICE);
    let mut pair = Pair::new(client, server);
    for end in [0, 1, 0, 1] {
        pair.carries(0, b"canary asks");
        pair.carries(1, b"canary answers");
        let dropped = pair.streams[1 - end].dropped();
        assert!(dropped.replayed > 0 && dropped.forged > 0, "{dropped:?}");
        pair.succeed(end);
    }
    pair.carries(0, b"canary asks");
    pair.carries(1, b"canary answers");
    for text in [SERVICE, "canary"] {
        assert!(!meddler.has_heard(text), "{text}");
    }
    no_number_twice(&meddler.heard());
}

/// Of each session, in each direction, a number seals one packet alone, and each session has a key of its own.
fn no_number_twice(heard: &[(Way, Vec<u8>)]) {
    let sealed_from = heard
        .iter()
        .position(|(_, packet)| packet.len() == SEALED_OPEN_BYTES);
    let (mut numbers, mut shares, mut packets) = (HashMap::new(), HashMap::new(), 0);
    for (way, packet) in &heard[sealed_from.unwrap()..] {
        match packet[0] & 15 {
            OPEN if packet.len() == SEALED_OPEN_BYTES => {
                let session: [u8; 14] = packet[24..38].try_into().unwrap();
                let share = packet[HEADER_BYTES + 48..HEADER_BYTES + 80].to_vec();
                shares.insert(session, share);
            }
            kind if (OPEN..OPEN + 4).contains(&kind) || kind == UNKNOWN => {}
            // A late packet of the stream before, which is not sealed: a header alone seals nothing.
            _ if packet.len() == HEADER_BYTES => {}
            _ => {
                let number = (*way, packet[2..8].to_vec(), packet[16..24].to_vec());
                let before = numbers.insert(number, packet.clone());
                assert!(
                    before.is_none_or(|before| before == *packet),
                    "a number seals two packets"
                );
                packets += 1;
            }
        }
    }
    assert!(packets > 20, "{packets}");
    assert!(shares.len() >= 5, "{} sessions", shares.len());
    let different: HashSet<_> = shares.values().collect();
    assert_eq!(different.len(), shares.len(), "a session has the key of another");
}

#[test]
fn without_tls_all_is_heard_and_with_it_at_one_end_alone_nothing_is_said() {
    let authority = Authority::new();
    let plain = Ends {
        client: None,
        server: None,
    };
    let (client, server, meddler) = meet(&plain);
    assert!(client.is_ok() && server.is_ok());
    assert!(meddler.has_heard(SERVICE));
    let (both, none) = (mutual(&authority), plain);
    for ends in [
        Ends {
            server: none.server,
            client: both.client,
        },
        Ends {
            server: both.server,
            client: none.client,
        },
    ] {
        let secret = ends.client.is_some();
        let (client, server, meddler) = meet(&ends);
        let (client, server) = (client.unwrap_err(), server.unwrap_err());
        assert!(!(secret && meddler.has_heard(SERVICE)));
        assert!(
            !secret || client.message.contains("does not speak TLS"),
            "{client}"
        );
        assert!(
            secret || server.error.to_string().contains("does not speak TLS"),
            "{server}"
        );
    }
}

#[test]
fn who_is_of_another_authority_is_refused_and_told() {
    let authorities = [Authority::new(), Authority::new()];
    let [one, other] = authorities.each_ref().map(mutual);
    let (client, server, meddler) = meet(&Ends {
        client: one.client,
        server: other.server,
    });
    assert_eq!(client.unwrap_err().code, Code::Unauthenticated);
    assert!(server.is_err());
    assert!(!meddler.has_heard(SERVICE));
}

#[test]
fn a_state_of_the_form_that_knew_no_sealed_streams_is_read() {
    let none = Ends {
        client: None,
        server: None,
    };
    let (client, server, _meddler) = meet(&none);
    let mut pair = Pair::new(client.unwrap(), server.unwrap());
    pair.carries(0, b"before");
    let mut out = FieldWriter::new();
    pair.streams[0].save(&mut out);
    // It ended before the two flags that say whether there is a key and a proof.
    let form_1 = &out.bytes[..out.bytes.len() - 2];
    let socket = pair.streams[0]
        .socket()
        .descriptor()
        .try_clone_to_owned()
        .unwrap();
    let mut fields = FieldReader::new("test", form_1);
    pair.streams[0] = ResumableStream::restore(socket.into(), &mut fields, 1).unwrap();
    fields.end().unwrap();
    pair.carries(0, b"after");
}

#[test]
fn a_forged_refusal_does_not_end_a_sealed_stream() {
    for key in [
        None,
        Some(ResumableStreamKey(std::sync::Arc::new([7; 32].into()))),
    ] {
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let terms = Terms {
            packet_bytes: PACKET_BYTES_ETHERNET,
            silence_ns: WAIT_MAX.as_nanos() as u64,
            key: key.clone(),
        };
        let socket = Socket::connect(stranger.local_addr().unwrap()).unwrap();
        let mut stream = ResumableStream::open(socket, terms).unwrap();
        let (mut bytes, mut batches) = (vec![0; 2048], packet_batches());
        stream.poll(1, Reading::Try, &mut batches).unwrap();
        let (length, client) = stranger.recv_from(&mut bytes).unwrap();
        let open = bytes[..length].to_vec();
        // To the session's number and token, with its nonce; the version is not spoken there.
        let refusal: [&[u8]; 6] = [
            &[8, 0],
            &open[24..26],
            &open[28..32],
            &[0; 8],
            &open[32..40],
            &[1],
        ];
        let refusal = [&refusal.concat()[..], &[0; 7]].concat();
        stranger.send_to(&refusal, client).unwrap();
        let polled = stream.poll(2, Reading::Try, &mut batches);
        assert_eq!(polled.is_err(), key.is_none(), "{polled:?}");
        if key.is_some() {
            let (length, _) = stranger.recv_from(&mut bytes).unwrap();
            assert_eq!(
                (bytes[0] & 15, length),
                (OPEN, SEALED_OPEN_BYTES),
                "it asks again"
            );
            assert_ne!(bytes[32..40], open[32..40], "for another session");
        }
    }
}

#[test]
fn a_key_is_not_shown() {
    assert_eq!(
        format!("{:?}", ResumableStreamKey(std::sync::Arc::new([7; 32].into()))),
        "ResumableStreamKey"
    );
}
