//! Calls of the datagram transport over any wire: one thread for each end.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use provost_datagram::{Call, CallError, Config, CongestionConfig, Driver, EndReason, Event, MsgBuf, Turn};
use provost_packets::Wire;

const NAP: Duration = Duration::from_millis(5);

/// How many bytes call number `tag` has: mostly few, now and then many packets.
#[must_use]
pub fn echo_bytes(tag: u64) -> usize {
    if tag.is_multiple_of(50) {
        200_000
    } else {
        (tag * 37 % 3000) as usize
    }
}

/// Makes so many calls at once from one end to the other, and checks that each is answered, once, with its own bytes.
///
/// # Panics
/// If one is not.
pub fn calls_go_over<W: Wire<Address: Send> + Send>(client: W, server: W, calls: u64) {
    let traffic = Traffic {
        calls,
        bytes_of: echo_bytes,
        congestion: CongestionConfig::default(),
    };
    traffic_goes_over(client, server, traffic);
}

/// Calls that are made at once.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    pub calls: u64,
    /// How many bytes each has.
    pub bytes_of: fn(u64) -> usize,
    /// How they keep off a congested network.
    pub congestion: CongestionConfig,
}

/// As [`calls_go_over`], of any traffic.
///
/// # Panics
/// As there.
pub fn traffic_goes_over<W: Wire<Address: Send> + Send>(client: W, server: W, traffic: Traffic) {
    let address = server.address();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = Driver::new(config([1, 2]), server).expect("the configuration is one to work with");
        let serving = scope.spawn(|| serve(server, &stop));
        let config = Config {
            congestion: traffic.congestion,
            secret: [3, 4],
            ..Config::default()
        };
        let client = Driver::new(config, client).expect("the configuration is one to work with");
        let outcome = call_all(client, address, traffic);
        stop.store(true, Ordering::Relaxed);
        assert!(
            serving.join().is_ok_and(|served| served.is_ok()),
            "the server failed"
        );
        assert_eq!(outcome.expect("the wire works"), traffic.calls);
    });
}

/// Answers each request with its bytes, until told to stop.
fn serve<W: Wire>(mut driver: Driver<W>, stop: &AtomicBool) -> io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let turn = driver.turn(|endpoint, now_ns, event| {
            if let Event::Request {
                handle,
                method,
                payload,
            } = event
            {
                // A session that has ended takes no response.
                let _ = endpoint.respond(now_ns, handle, method, MsgBuf::from_slice(&payload));
            }
        })?;
        if turn == Turn::Idle {
            driver.wait(NAP)?;
        }
    }
    Ok(())
}

/// What a message is made of: no two of its packets are alike.
fn content(tag: u64, bytes: usize) -> Vec<u8> {
    let byte = |at: usize| ((at as u64 + tag).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..bytes).map(byte).collect()
}

fn call_all<W: Wire>(mut driver: Driver<W>, server: W::Address, traffic: Traffic) -> io::Result<u64> {
    let Traffic { calls, bytes_of, .. } = traffic;
    let (now_ns, endpoint) = driver.endpoint();
    let session = endpoint.connect(now_ns, server).map_err(io::Error::other)?;
    for tag in 0..calls {
        let bytes = bytes_of(tag);
        let call = Call {
            method: tag as u16,
            tag,
            request: MsgBuf::from_slice(&content(tag, bytes)),
            response: MsgBuf::with_capacity(bytes),
        };
        endpoint
            .call(now_ns, session, call)
            .map_err(|refused| io::Error::other(refused.error))?;
    }
    let (mut answered, mut ended) = (0, false);
    while !ended {
        let turn = driver.turn(|endpoint, now_ns, event| match event {
            Event::Completed(completion) => {
                let expected: Result<u16, CallError> = Ok(completion.tag as u16);
                assert_eq!(completion.outcome, expected);
                let tag = completion.tag;
                assert!(
                    *completion.response == *content(tag, bytes_of(tag)),
                    "call {tag} was answered with other bytes"
                );
                answered += 1;
                if answered == calls {
                    endpoint.disconnect(now_ns, session);
                }
            }
            Event::Ended(_, reason) => {
                // The server's answer to the goodbye may be lost, and it be gone.
                assert!(
                    matches!(reason, EndReason::Closed | EndReason::PeerTimeout),
                    "{reason}"
                );
                ended = true;
            }
            _ => {}
        })?;
        if turn == Turn::Idle {
            driver.wait(NAP)?;
        }
    }
    Ok(answered)
}

/// The default configuration, with this secret.
fn config(secret: [u64; 2]) -> Config {
    Config {
        secret,
        ..Config::default()
    }
}
