//! Somebody between two nodes who passes UDP packets on, and hears all of them.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a thread notices that it is to end.
const WAIT_MAX: Duration = Duration::from_millis(50);

pub(crate) struct Relay {
    /// Where clients find it.
    pub(crate) address: SocketAddr,
    ear: Arc<Ear>,
    listens: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Ear {
    heard: Mutex<Vec<Vec<u8>>>,
    stops: AtomicBool,
}

impl Ear {
    fn on_packet(&self, packet: &[u8]) {
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.push(packet.to_vec());
    }

    /// Takes packets until it is to stop.
    fn take_packets(&self, from: &UdpSocket, mut pass_on: impl FnMut(&[u8], SocketAddr)) {
        from.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut bytes = vec![0; 65_536];
        while !self.stops.load(Ordering::Relaxed) {
            if let Ok((length, sender)) = from.recv_from(&mut bytes) {
                self.on_packet(&bytes[..length]);
                pass_on(&bytes[..length], sender);
            }
        }
    }
}

impl Relay {
    /// One that passes on to this address what it gets, and the answers back.
    pub(crate) fn to(server: SocketAddr) -> Relay {
        let front = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (address, ear) = (front.local_addr().unwrap(), Arc::new(Ear::default()));
        let for_thread = Arc::clone(&ear);
        let listens = std::thread::spawn(move || listen(&front, server, &for_thread));
        Relay {
            address,
            ear,
            listens: Some(listens),
        }
    }

    pub(crate) fn packets(&self) -> usize {
        self.ear.heard.lock().unwrap().len()
    }

    /// Whether a packet had this text in it.
    pub(crate) fn has_heard(&self, text: &str) -> bool {
        let has = |packet: &Vec<u8>| packet.windows(text.len()).any(|part| part == text.as_bytes());
        self.ear.heard.lock().unwrap().iter().any(has)
    }
}

/// Gives each client a socket of its own towards the server, and a thread that brings the answers.
fn listen(front: &UdpSocket, server: SocketAddr, ear: &Arc<Ear>) {
    let mut clients: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut threads = Vec::new();
    ear.take_packets(front, |packet, client| {
        let back = clients.entry(client).or_insert_with(|| {
            let back = UdpSocket::bind("127.0.0.1:0").unwrap();
            back.connect(server).unwrap();
            let (answers, front, ear) = (
                back.try_clone().unwrap(),
                front.try_clone().unwrap(),
                Arc::clone(ear),
            );
            threads.push(std::thread::spawn(move || {
                ear.take_packets(&answers, |packet, _| drop(front.send_to(packet, client)));
            }));
            back
        });
        // A server that has gone gets nothing.
        let _ = back.send(packet);
    });
    for thread in threads {
        let _ = thread.join();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.ear.stops.store(true, Ordering::Relaxed);
        if let Some(thread) = self.listens.take() {
            let _ = thread.join();
        }
    }
}
