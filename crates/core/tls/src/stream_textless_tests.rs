//! Peers that send records without text: a few are taken, a flood of them is not, and no read goes on for as long as they come.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;

use provost_datapath::BufferPool;

use super::tests::{PipeEnd, StreamPair, pipe, server_files};
use super::{READ_STEPS_MAX, StreamRecords, TlsStream};
use crate::ClientDemand;
use crate::session::{TlsSession, content};
use crate::tests::certificates::Authority;
use crate::textless::TEXTLESS_RECORDS_MAX;

/// What a peer may say without text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextlessSaying {
    KeyUpdate,
    /// One that asks for another in return.
    KeyUpdateAsked,
    UserCanceled,
    Empty,
    Ticket,
}

fn session(stream: &mut TlsStream<PipeEnd>) -> &mut TlsSession {
    match &mut stream.records {
        StreamRecords::Own(session) => session,
        _ => panic!("no records of our own"),
    }
}

/// Says something without text, which leaves with what is written next.
fn say(stream: &mut TlsStream<PipeEnd>, textless: TextlessSaying) {
    let session = session(stream);
    let (content, said): (_, &[u8]) = match textless {
        TextlessSaying::KeyUpdate => (content::HANDSHAKE, &[24, 0, 0, 1, 0]),
        TextlessSaying::KeyUpdateAsked => (content::HANDSHAKE, &[24, 0, 0, 1, 1]),
        TextlessSaying::UserCanceled => (content::ALERT, &[1, 90]),
        TextlessSaying::Empty => (content::APPLICATION_DATA, &[]),
        TextlessSaying::Ticket => (content::HANDSHAKE, &[4, 0, 0, 3, 7, 7, 7]),
    };
    session.put(content, said, &mut BufferPool::new()).unwrap();
    if matches!(
        textless,
        TextlessSaying::KeyUpdate | TextlessSaying::KeyUpdateAsked
    ) {
        session.tx = session.tx.next().unwrap();
    }
}

/// What a read finds where nothing is to be read yet.
fn reads_nothing(stream: &mut TlsStream<PipeEnd>) {
    let error = stream.read(&mut [0; 100]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
}

fn unsent_bytes(stream: &mut TlsStream<PipeEnd>) -> usize {
    let session = session(stream);
    session.output.len() - session.output_sent
}

#[test]
fn a_flood_of_records_without_text_ends_the_connection() {
    use TextlessSaying::{Empty, KeyUpdate, KeyUpdateAsked, Ticket, UserCanceled};
    for textless in [KeyUpdate, KeyUpdateAsked, UserCanceled, Empty, Ticket] {
        let StreamPair {
            mut client,
            mut server,
        } = StreamPair::shaken();
        let (from, to) = match textless {
            Ticket => (&mut server, &mut client),
            _ => (&mut client, &mut server),
        };
        // Text forgives all that came before.
        for _ in 0..2 {
            (0..TEXTLESS_RECORDS_MAX).for_each(|_| say(from, textless));
            from.flush().unwrap();
            reads_nothing(to);
            from.write_all(b"text").unwrap();
            assert_eq!(to.read(&mut [0; 100]).unwrap(), 4, "{textless:?}");
        }
        (0..=TEXTLESS_RECORDS_MAX).for_each(|_| say(from, textless));
        from.write_all(b"never read").unwrap();
        let error = to.read(&mut [0; 100]).unwrap_err().to_string();
        assert!(error.contains("32 records without text"), "{textless:?}: {error}");
        let told = from.read(&mut [0; 100]).unwrap_err().to_string();
        assert!(told.contains("UnexpectedMessage"), "{textless:?}: {told}");
    }
}

#[test]
fn tickets_that_fill_a_record_are_taken_at_once() {
    let StreamPair {
        mut client,
        mut server,
    } = StreamPair::shaken();
    let tickets = [4, 0, 0, 0].repeat(4_000);
    session(&mut server)
        .put(content::HANDSHAKE, &tickets, &mut BufferPool::new())
        .unwrap();
    server.flush().unwrap_err();
    let mut room = [0; 100];
    while let Err(error) = client.read(&mut room) {
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
        let _ = server.write(b"x");
    }
    assert!(session(&mut client).message.is_empty());
}

#[test]
fn a_read_returns_however_many_records_without_text_come_between_texts() {
    let StreamPair {
        mut client,
        mut server,
    } = StreamPair::shaken();
    let mut rounds = 0;
    while client.flush().is_ok() {
        (0..20).for_each(|_| say(&mut client, TextlessSaying::KeyUpdate));
        let _ = client.write(&[rounds as u8]);
        rounds += 1;
    }
    let opened = |server: &mut TlsStream<PipeEnd>| session(server).records_opened();
    let (mut room, mut got, mut before) = ([0; 1_000], Vec::<u8>::new(), opened(&mut server));
    let mut stopped = 0;
    while got.len() < rounds {
        match server.read(&mut room) {
            Ok(count) => got.extend(&room[..count]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        let now = opened(&mut server);
        assert!(now - before <= READ_STEPS_MAX + 32, "{} at once", now - before);
        if server.has_more() {
            stopped += 1;
        } else {
            let _ = client.flush();
        }
        before = now;
    }
    assert!(stopped >= 2 && rounds > 10, "{stopped} of {rounds}");
    assert!(got.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at));
}

/// Says `updates` times that keys have changed and that others are to, each with a byte of text, to an end that reads all of it.
fn ask_often(asking: &mut TlsStream<PipeEnd>, asked: &mut TlsStream<PipeEnd>, updates: usize) {
    let mut got = 0;
    for at in 0..updates {
        say(asking, TextlessSaying::KeyUpdateAsked);
        asking.write_all(&[7]).unwrap();
        got += asked.read(&mut [0; 100]).unwrap();
        assert_eq!(got, at + 1);
    }
}

#[test]
fn a_peer_that_asks_for_new_keys_and_takes_nothing_away_finds_one_answer() {
    for is_full in [false, true] {
        let StreamPair {
            mut client,
            mut server,
        } = StreamPair::shaken();
        let mut expected = 0;
        // To the last byte that the pipe takes, and then as much as is kept; or so that the very first answer has no room.
        while let Ok(count) = server.write(&[1; 4_000]) {
            expected += count;
            if !is_full && server.has_output() {
                break;
            }
        }
        let full = unsent_bytes(&mut server);
        assert!(full > 0);
        ask_often(&mut client, &mut server, 1_000);
        assert!(
            unsent_bytes(&mut server) <= full + 100,
            "{full} and then {}",
            unsent_bytes(&mut server)
        );
        // Whoever takes it all finds it whole, and then new keys, once.
        let (mut room, mut got) = ([0; 9_000], 0);
        while got < expected || server.has_output() {
            let _ = server.flush();
            got += client.read(&mut room).unwrap_or(0);
        }
        reads_nothing(&mut client);
        assert_eq!(got, expected);
        assert_eq!(session(&mut client).rx.secret(), session(&mut server).tx.secret());
        server.write_all(b"text").unwrap();
        assert_eq!(client.read(&mut room).unwrap(), 4);
    }
}

#[test]
fn new_keys_that_are_due_come_before_the_next_text() {
    let StreamPair {
        mut client,
        mut server,
    } = StreamPair::shaken();
    while !server.has_output() {
        server.write_all(&[1; 4_000]).unwrap();
    }
    let before = session(&mut server).tx.secret().to_vec();
    ask_often(&mut client, &mut server, 1);
    assert_eq!(
        session(&mut server).tx.secret(),
        before,
        "other records wait, so that answer does too"
    );
    let _ = server.write(b"text").unwrap();
    assert_ne!(session(&mut server).tx.secret(), before);
}

#[test]
fn tickets_and_changes_of_keys_between_texts_are_ordinary() {
    let StreamPair {
        mut client,
        mut server,
    } = StreamPair::shaken();
    let mut room = [0; 100];
    (0..3).for_each(|_| say(&mut server, TextlessSaying::Ticket));
    for round in 0..200 {
        for _ in 0..2 {
            let (from, to) = (&mut client, &mut server);
            say(
                from,
                [TextlessSaying::KeyUpdate, TextlessSaying::KeyUpdateAsked][round % 2],
            );
            from.write_all(b"text").unwrap();
            assert_eq!(to.read(&mut room).unwrap(), 4, "round {round}");
            assert!(!to.has_more());
            std::mem::swap(&mut client, &mut server);
        }
    }
}

/// A client of TLS 1.2 alone, and a server, which have shaken hands.
fn shaken_of_version_12() -> StreamPair {
    let authority = Authority::new();
    let own = authority.node("a", &["server.test"]);
    let server = server_files(&own, ClientDemand::Nothing).load().unwrap().config;
    let client = rustls::ClientConfig::builder_with_provider(crate::provider());
    let client = client.with_protocol_versions(&[&rustls::version::TLS12]).unwrap();
    let mut client = client
        .with_root_certificates(own.authorities().unwrap())
        .with_no_client_auth();
    client.alpn_protocols = vec![b"h2".to_vec()];
    let (at_client, at_server) = pipe();
    let mut pair = StreamPair {
        client: TlsStream::client(at_client, client.into(), "server.test").unwrap(),
        server: TlsStream::server(at_server, server).unwrap(),
    };
    let (client, server) = pair.shake_hands();
    assert!(client.unwrap() && server.unwrap());
    pair
}

/// The library bounds records without text by itself; how long a read goes on is bounded here.
#[test]
fn a_read_returns_however_small_the_records_of_version_12_are() {
    let StreamPair {
        mut client,
        mut server,
    } = shaken_of_version_12();
    let comes = Rc::clone(&client.socket.goes);
    let (mut sealed, mut expected) = (VecDeque::new(), 0);
    while sealed.len() < 2_000_000 {
        client.write_all(&[7]).unwrap();
        sealed.append(&mut comes.borrow_mut().bytes);
        expected += 1;
    }
    comes.borrow_mut().bytes = sealed;
    let (mut room, mut got) = (vec![0; 100_000], 0);
    let first = server.read(&mut room).unwrap();
    assert!(server.has_more() && first < expected / 2, "{first} of {expected}");
    got += first;
    while server.has_more() {
        got += server.read(&mut room).unwrap();
    }
    assert_eq!(got, expected);
}
