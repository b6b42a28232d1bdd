//! Sessions that another endpoint takes over, and what is left of a session.

use provost_datagram::{
    Call, CallError, Cipher, Config, EndReason, Endpoint, Event, Mark, MsgBuf, Sealing, Security, SessionId,
};

const CLIENT: u8 = 1;
const SERVER: u8 = 2;

fn endpoint(secret: u64) -> Endpoint<u8> {
    let config = Config {
        secret: [secret, secret],
        ..Config::default()
    };
    Endpoint::new(config).unwrap()
}

/// One whose sessions are sealed with this key.
fn sealed(secret: u64, key: u8) -> Endpoint<u8> {
    let sealing = Sealing {
        cipher: Cipher::Aes128Gcm,
        pre_shared_key: [key; 32],
        seed: [secret as u8; 32],
    };
    let config = Config {
        secret: [secret, secret],
        security: Security::Sealed(sealing),
        ..Config::default()
    };
    Endpoint::new(config).unwrap()
}

/// What an endpoint has to send, as packets.
fn sent(endpoint: &mut Endpoint<u8>, now_ns: u64) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    while let Some(transmit) = endpoint.poll_transmit(now_ns) {
        packets.push([transmit.head.bytes(), transmit.payload].concat());
    }
    packets
}

fn call(tag: u64) -> Call {
    Call {
        method: 7,
        tag,
        request: MsgBuf::from_slice(b"question"),
        response: MsgBuf::with_capacity(64),
    }
}

/// A client's session with an endpoint to which a listener has passed it on.
fn passed_on() -> (Endpoint<u8>, Endpoint<u8>, SessionId) {
    let (mut client, mut listener, mut server) = (endpoint(1), endpoint(2), endpoint(3));
    let session = client.connect(1_000, SERVER).unwrap();
    let first = sent(&mut client, 1_000).remove(0);
    assert!(
        !listener.recognizes(2_000, CLIENT, &first),
        "it has no cookie yet"
    );
    assert!(listener.receive(2_000, CLIENT, Mark::None, &first).is_none());
    for challenge in sent(&mut listener, 2_000) {
        assert!(client.receive(3_000, SERVER, Mark::None, &challenge).is_none());
    }
    let second = sent(&mut client, 3_000).remove(0);
    assert!(
        !listener.recognizes(4_000, CLIENT + 2, &second),
        "a cookie is for one address"
    );
    assert!(listener.recognizes(4_000, CLIENT, &second));
    assert!(matches!(
        server.welcome(4_000, CLIENT, &second),
        Some(Event::Accepted(_))
    ));
    for accept in sent(&mut server, 4_000) {
        assert!(matches!(
            client.receive(5_000, SERVER, Mark::None, &accept),
            Some(Event::Connected(_))
        ));
    }
    (client, server, session)
}

#[test]
fn a_listener_passes_a_client_on_that_it_recognizes() {
    let (mut client, mut server, session) = passed_on();
    client.call(6_000, session, call(1)).unwrap();
    let request = sent(&mut client, 6_000).remove(0);
    let event = server.receive(7_000, CLIENT, Mark::None, &request);
    assert!(matches!(event, Some(Event::Request { method: 7, .. })));
}

#[test]
fn what_was_said_can_be_said_again_when_the_session_is_lost() {
    let (mut client, mut server, session) = passed_on();
    client.call(6_000, session, call(1)).unwrap();
    assert_eq!(client.messages_kept(session).collect::<Vec<_>>(), [b"question"]);
    let request = sent(&mut client, 6_000).remove(0);
    let Some(Event::Request { handle, .. }) = server.receive(7_000, CLIENT, Mark::None, &request) else {
        panic!("the request did not arrive");
    };
    let answer = MsgBuf::from_slice(b"answer");
    assert!(server.respond(7_000, handle, 0, answer).is_ok());
    let kept: Vec<_> = server.messages_kept(handle.session()).collect();
    assert_eq!(kept, [b"answer"]);
    // Another endpoint in the server's place knows the session by its number alone.
    let mut successor = endpoint(4);
    let number = handle.session().to_bits();
    assert_eq!(SessionId::from_bits(number), handle.session());
    successor.disown(8_000, CLIENT, SessionId::from_bits(number), None);
    for unknown in sent(&mut successor, 8_000) {
        assert!(client.receive(9_000, SERVER, Mark::None, &unknown).is_none());
    }
    let events: Vec<_> = std::iter::from_fn(|| client.poll_event()).collect();
    let [
        Event::Completed(completion),
        Event::Ended(ended, EndReason::Reset),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(completion.outcome, Err(CallError::Ended(EndReason::Reset)));
    assert_eq!((&*completion.request, *ended), (&b"question"[..], session));
    assert_eq!(client.messages_kept(session).count(), 0);
}

#[test]
fn who_asks_for_a_session_shows_the_key_and_whether_it_is_to_be_sealed() {
    let (mut client, mut plain) = (sealed(1, 5), endpoint(2));
    client.connect(1_000, SERVER).unwrap();
    plain.connect(1_000, SERVER).unwrap();
    let (asks, asks_plainly) = (
        sent(&mut client, 1_000).remove(0),
        sent(&mut plain, 1_000).remove(0),
    );
    let server = sealed(3, 5);
    assert!(server.vouches(&asks) && !server.asks_otherwise(&asks));
    assert!(!sealed(3, 6).vouches(&asks), "another key");
    assert!(!plain.vouches(&asks) && plain.asks_otherwise(&asks));
    assert!(!server.vouches(&asks_plainly) && server.asks_otherwise(&asks_plainly));
    for at in 0..asks.len() {
        let mut changed = asks.clone();
        changed[at] ^= 1;
        // The header says to whom it goes, the cookie comes later, and neither is part of what is proven.
        let is_said = !(0..16).contains(&at) && !(40..48).contains(&at);
        assert!(!(is_said && server.vouches(&changed)), "byte {at}");
    }
}

#[test]
fn that_a_sealed_session_is_lost_is_believed_with_its_proof_alone() {
    let (mut client, mut server) = (sealed(1, 5), sealed(2, 5));
    let session = client.connect(1_000, SERVER).unwrap();
    for _ in 0..2 {
        for packet in sent(&mut client, 1_000) {
            server.receive(1_000, CLIENT, Mark::None, &packet);
        }
        for packet in sent(&mut server, 1_000) {
            client.receive(1_000, SERVER, Mark::None, &packet);
        }
    }
    client.call(2_000, session, call(1)).unwrap();
    let request = sent(&mut client, 2_000).remove(0);
    let Some(Event::Request { handle, .. }) = server.receive(2_000, CLIENT, Mark::None, &request) else {
        panic!("the request did not arrive");
    };
    let lost = handle.session();
    let proof = server.loss_proof(lost).unwrap();
    let mut wrong = proof;
    wrong[15] ^= 1;
    let mut successor = sealed(3, 5);
    for not_proven in [None, Some(wrong)] {
        successor.disown(3_000, CLIENT, lost, not_proven);
        for unknown in sent(&mut successor, 3_000) {
            client.receive(3_000, SERVER, Mark::None, &unknown);
        }
    }
    assert_eq!(client.unproven_losses(), 2);
    assert!(client.poll_event().is_none());
    // The first that proves it gets lost; what the client sends is answered by another, and by no stranger's.
    successor.disown(4_000, CLIENT, lost, Some(proof));
    assert_eq!(sent(&mut successor, 4_000).len(), 1);
    successor.receive(5_000, CLIENT + 2, Mark::None, &request);
    assert_eq!(sent(&mut successor, 5_000)[0].len(), 16);
    successor.receive(6_000, CLIENT, Mark::None, &request);
    let answers = sent(&mut successor, 6_000);
    assert!(answers[0].len() < request.len(), "it is no amplifier");
    for unknown in answers {
        client.receive(6_000, SERVER, Mark::None, &unknown);
    }
    let ended = std::iter::from_fn(|| client.poll_event());
    let reset = Event::Ended(session, EndReason::Reset);
    assert!(
        ended
            .into_iter()
            .any(|event| format!("{event:?}") == format!("{reset:?}"))
    );
}
