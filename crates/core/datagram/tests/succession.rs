//! Sessions that another endpoint takes over, and what is left of a session.

use provost_datagram::{Call, CallError, Config, EndReason, Endpoint, Event, Mark, MsgBuf, SessionId};

const CLIENT: u8 = 1;
const SERVER: u8 = 2;

fn endpoint(secret: u64) -> Endpoint<u8> {
    let config = Config {
        secret: [secret, secret],
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
    successor.disown(8_000, CLIENT, SessionId::from_bits(number));
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
