//! Attacks over UDP (`docs/datagram.md`): sessions that are opened and never used, openings that were copied and come from
//! elsewhere, and noise.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use super::RemoteScene;
use crate::random::Random;

/// Ports of an attack at once.
const PORTS: usize = 64;
/// Rounds that a port is used for, before another one takes its place.
const ROUNDS: u64 = 8;
/// How long an attacker waits for an answer: those that matter come at once.
const ANSWER: Duration = Duration::from_millis(2);
/// Between two rounds over all ports.
const ROUND: Duration = Duration::from_millis(10);
/// Largest packet of noise, in bytes.
const NOISE_BYTES_MAX: u64 = 1_400;

/// Kinds of packets, in their first byte.
const REQUEST: u8 = 1;
const OPEN: u8 = 5;
const CHALLENGE: u8 = 6;
const ACCEPT: u8 = 7;
const KINDS: u64 = 16;
/// The session of a packet that belongs to none yet.
const NO_SESSION: u16 = 0xffff;
/// Where a Challenge has its cookie, and an Accept the session's number and token, in bytes.
const COOKIE_AT: usize = 24;
const NUMBER_AT: usize = 26;
const TOKEN_AT: usize = 28;
/// Bytes of an Open that is not sealed, with its header.
const OPEN_BYTES: usize = 64;
const HEADER_BYTES: usize = 16;

/// Sessions that are opened as they should be, from ever other ports, and then used for nothing, or for nonsense.
pub fn opens(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    while !scene.stop.is_set() {
        let sockets = ports(source);
        for _ in 0..ROUNDS {
            for socket in &sockets {
                if scene.stop.is_set() {
                    return;
                }
                open_and_abuse(scene, socket, random);
            }
            std::thread::sleep(ROUND);
        }
    }
}

fn open_and_abuse(scene: &RemoteScene, socket: &UdpSocket, random: &mut Random) {
    let nonce = random.number();
    let number = random.below(1000) as u16;
    let send = |packet: &[u8]| {
        // What is lost is lost.
        let _ = socket.send_to(packet, scene.target);
    };
    send(&open(nonce, number, 0));
    let Some(cookie) = answer(socket, CHALLENGE, COOKIE_AT) else {
        return;
    };
    scene.report.count("opens: challenged");
    let mut bytes = [0; 32];
    send(&open(nonce, number, u64::from_le_bytes(cookie)));
    let Ok(length) = socket.recv(&mut bytes) else {
        return;
    };
    if length < bytes.len() || bytes[0] & 0xf != ACCEPT {
        scene.report.count("opens: not accepted");
        return;
    }
    scene.report.count("opens: accepted");
    let (session, token) = (&bytes[NUMBER_AT..NUMBER_AT + 2], &bytes[TOKEN_AT..TOKEN_AT + 4]);
    for call in 0..random.below(4) as u32 {
        let mut request = header(
            REQUEST,
            [session[0], session[1]],
            [token[0], token[1], token[2], token[3]],
        );
        request[8..12].copy_from_slice(&(1 + call).to_le_bytes());
        let noise = 8 + random.below(NOISE_BYTES_MAX) as usize;
        request.extend(random.bytes(noise));
        send(&request);
    }
}

/// A good Open with its cookie, sent from ports that it was not made for.
pub fn copied_opens(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    while !scene.stop.is_set() {
        let sockets = ports(source);
        let Some(first) = sockets.first() else { return };
        let nonce = random.number();
        let _ = first.send_to(&open(nonce, 1, 0), scene.target);
        let Some(cookie) = answer(first, CHALLENGE, COOKIE_AT) else {
            std::thread::sleep(ROUND);
            continue;
        };
        let good = open(nonce, 1, u64::from_le_bytes(cookie));
        for _ in 0..ROUNDS {
            for socket in &sockets[1..] {
                let _ = socket.send_to(&good, scene.target);
                scene.report.count("copied-opens: sent");
            }
            std::thread::sleep(ROUND);
        }
        let accepted = sockets[1..]
            .iter()
            .filter(|socket| answer(socket, ACCEPT, COOKIE_AT).is_some());
        if accepted.count() > 0 {
            scene
                .report
                .finding("an Open was accepted from a port that has not shown its cookie".to_owned());
        }
    }
}

/// Packets at random, of which some have a header that could be meant.
pub fn noise(scene: &RemoteScene, source: Ipv4Addr, random: &mut Random) {
    let sockets = ports(source);
    while !scene.stop.is_set() {
        for socket in &sockets {
            let length = random.below(NOISE_BYTES_MAX) as usize;
            let mut packet = random.bytes(length);
            if random.one_in(2) && length >= HEADER_BYTES {
                packet[0] = random.below(KINDS) as u8;
                packet[2..4].copy_from_slice(&(random.below(8) as u16).to_le_bytes());
                packet[14..16].fill(0);
            }
            let _ = socket.send_to(&packet, scene.target);
            scene.report.count("noise: packets");
        }
        std::thread::sleep(ROUND);
    }
}

fn ports(source: Ipv4Addr) -> Vec<UdpSocket> {
    let port = || {
        let socket = UdpSocket::bind((source, 0)).ok()?;
        socket.set_read_timeout(Some(ANSWER)).ok()?;
        Some(socket)
    };
    (0..PORTS).map_while(|_| port()).collect()
}

fn header(kind: u8, session: [u8; 2], token: [u8; 4]) -> Vec<u8> {
    let mut header = vec![0; HEADER_BYTES];
    header[0] = kind;
    header[2..4].copy_from_slice(&session);
    header[4..8].copy_from_slice(&token);
    header
}

/// An Open that is not sealed.
fn open(nonce: u64, number: u16, cookie: u64) -> Vec<u8> {
    let mut packet = header(OPEN, NO_SESSION.to_le_bytes(), [0; 4]);
    packet.extend(b"PVDG");
    // The oldest and newest version, selective recovery, slots.
    packet.extend([1, 1, 1, 8]);
    packet.extend(number.to_le_bytes());
    // Credits, and the token for what comes back.
    packet.extend(32_u16.to_le_bytes());
    packet.extend([7; 4]);
    packet.extend(nonce.to_le_bytes());
    packet.extend(cookie.to_le_bytes());
    packet.extend(1_400_u16.to_le_bytes());
    packet.resize(OPEN_BYTES, 0);
    packet
}

/// Eight bytes at a place of the next packet, if that is of this kind.
fn answer(socket: &UdpSocket, kind: u8, at: usize) -> Option<[u8; 8]> {
    let mut bytes = [0; 256];
    let length = socket.recv(&mut bytes).ok()?;
    let is_meant = bytes[0] & 0xf == kind && length >= at + 8;
    is_meant.then(|| bytes[at..at + 8].try_into().ok()).flatten()
}
