//! What stands before a gRPC server in cleartext and says how many streams a client may have at a time, in the server's place.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const PREFACE_BYTES: usize = 24;
/// Types of frames, flags and settings of RFC 9113.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// Connections that it has passed on, and what clients may do on them.
pub(crate) struct LimitingProxy {
    address: SocketAddr,
    shared: Arc<Mutex<ProxyState>>,
}

struct ProxyState {
    streams_max: u32,
    connections: Vec<Arc<LimitedConnection>>,
}

/// A client's connection, and the one to the server that it leads to.
struct LimitedConnection {
    /// Where frames to the client are written, each whole.
    to_client: Mutex<TcpStream>,
    limits: Mutex<StreamLimits>,
}

/// Who has sent settings that the client has not acknowledged.
enum SettingsFrom {
    /// With this limit in them, which the server knows nothing of.
    Server(Option<u32>),
    Proxy(u32),
}

#[derive(Default)]
struct StreamLimits {
    unacknowledged: VecDeque<SettingsFrom>,
    /// What the client goes by; RFC 9113 has no limit before there is one.
    acknowledged: Option<u32>,
    /// Streams, and which of their ends are open.
    open: HashMap<u32, OpenEnds>,
    /// How often a client began one more than it might.
    over: usize,
}

struct OpenEnds {
    client: bool,
    server: bool,
}

struct ProxiedFrame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl ProxiedFrame {
    fn read(from: &mut TcpStream) -> io::Result<ProxiedFrame> {
        let mut head = [0; 9];
        from.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        from.read_exact(&mut payload)?;
        Ok(ProxiedFrame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }

    fn write(&self, to: &mut TcpStream) -> io::Result<()> {
        let mut bytes = (self.payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        to.write_all(&bytes)
    }

    fn limit(streams_max: u32) -> ProxiedFrame {
        let mut settings = ProxiedFrame {
            kind: SETTINGS,
            flags: 0,
            stream: 0,
            payload: Vec::new(),
        };
        settings.set_limit(streams_max);
        settings
    }

    /// Of a setting that comes twice the last one counts.
    fn set_limit(&mut self, streams_max: u32) {
        self.payload.extend(MAX_CONCURRENT_STREAMS.to_be_bytes());
        self.payload.extend(streams_max.to_be_bytes());
    }

    fn is_settings(&self) -> bool {
        self.kind == SETTINGS && self.flags & ACK == 0
    }

    fn is_acknowledgement(&self) -> bool {
        self.kind == SETTINGS && self.flags & ACK != 0
    }

    fn ends_an_end(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }
}

impl StreamLimits {
    /// What a client has sent; whether it is for the server.
    fn sent_by_client(&mut self, frame: &ProxiedFrame) -> bool {
        if frame.is_acknowledgement() {
            let settings = self
                .unacknowledged
                .pop_front()
                .expect("settings are acknowledged once");
            let (limit, is_of_server) = match settings {
                SettingsFrom::Server(limit) => (limit, true),
                SettingsFrom::Proxy(limit) => (Some(limit), false),
            };
            self.acknowledged = limit.or(self.acknowledged);
            return is_of_server;
        }
        if frame.kind == HEADERS && !self.open.contains_key(&frame.stream) {
            let ends = OpenEnds {
                client: true,
                server: true,
            };
            self.open.insert(frame.stream, ends);
            let limit = self.acknowledged.unwrap_or(u32::MAX);
            self.over += usize::from(self.open.len() as u64 > u64::from(limit));
        }
        self.note(frame, |ends| ends.client = false);
        true
    }

    /// Forgets a stream both of whose ends are closed.
    fn note(&mut self, frame: &ProxiedFrame, close: fn(&mut OpenEnds)) {
        let Some(ends) = self.open.get_mut(&frame.stream) else {
            return;
        };
        if frame.ends_an_end() {
            close(ends);
        }
        if frame.kind == RST_STREAM || !(ends.client || ends.server) {
            self.open.remove(&frame.stream);
        }
    }
}

impl LimitedConnection {
    fn pass_to_server(&self, from: &mut TcpStream, to: &mut TcpStream) -> io::Result<()> {
        let mut preface = [0; PREFACE_BYTES];
        from.read_exact(&mut preface)?;
        to.write_all(&preface)?;
        loop {
            let frame = ProxiedFrame::read(from)?;
            if self.limits.lock().unwrap().sent_by_client(&frame) {
                frame.write(to)?;
            }
        }
    }

    fn pass_to_client(&self, from: &mut TcpStream, streams_max: u32) -> io::Result<()> {
        let mut first_limit = Some(streams_max);
        loop {
            let mut frame = ProxiedFrame::read(from)?;
            let mut to = self.to_client.lock().unwrap();
            let mut limits = self.limits.lock().unwrap();
            if frame.is_settings() {
                let limit = first_limit.take();
                if let Some(streams_max) = limit {
                    frame.set_limit(streams_max);
                }
                limits.unacknowledged.push_back(SettingsFrom::Server(limit));
            }
            // Before the client may think so.
            limits.note(&frame, |ends| ends.server = false);
            drop(limits);
            frame.write(&mut to)?;
        }
    }

    fn allow(&self, streams_max: u32) {
        let mut to = self.to_client.lock().unwrap();
        self.limits
            .lock()
            .unwrap()
            .unacknowledged
            .push_back(SettingsFrom::Proxy(streams_max));
        // It fails where the client has gone.
        let _ = ProxiedFrame::limit(streams_max).write(&mut to);
    }
}

impl LimitingProxy {
    /// In front of this server; clients may have so many streams at a time on each connection.
    pub(crate) fn to(server: SocketAddr, streams_max: u32) -> LimitingProxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Mutex::new(ProxyState {
            streams_max,
            connections: Vec::new(),
        }));
        let connected = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, server) = (client.unwrap(), TcpStream::connect(server).unwrap());
                let mut state = connected.lock().unwrap();
                let connection = Arc::new(LimitedConnection {
                    to_client: Mutex::new(client.try_clone().unwrap()),
                    limits: Mutex::default(),
                });
                state.connections.push(Arc::clone(&connection));
                serve(connection, client, server, state.streams_max);
            }
        });
        LimitingProxy { address, shared }
    }

    /// Where clients find it.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on clients may have so many streams at a time on each connection.
    pub(crate) fn allow(&self, streams_max: u32) {
        let mut state = self.shared.lock().unwrap();
        state.streams_max = streams_max;
        for connection in &state.connections {
            connection.allow(streams_max);
        }
    }

    /// How many connections have come.
    pub(crate) fn connections(&self) -> usize {
        self.shared.lock().unwrap().connections.len()
    }

    /// Streams that are open now.
    pub(crate) fn streams_open(&self) -> usize {
        self.sum(|limits| limits.open.len())
    }

    /// Streams that were begun over the limit that the client had acknowledged.
    pub(crate) fn streams_over_limit(&self) -> usize {
        self.sum(|limits| limits.over)
    }

    fn sum(&self, number: fn(&StreamLimits) -> usize) -> usize {
        let state = self.shared.lock().unwrap();
        let numbers = state
            .connections
            .iter()
            .map(|connection| number(&connection.limits.lock().unwrap()));
        numbers.sum()
    }
}

fn serve(connection: Arc<LimitedConnection>, client: TcpStream, server: TcpStream, streams_max: u32) {
    let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let other = Arc::clone(&connection);
    // Both end with their connections.
    std::thread::spawn(move || {
        let _ = other.pass_to_server(&mut from_client, &mut to_server);
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let mut from_server = server;
    std::thread::spawn(move || {
        let _ = connection.pass_to_client(&mut from_server, streams_max);
        let _ = client.shutdown(Shutdown::Both);
    });
}
