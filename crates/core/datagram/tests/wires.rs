//! Calls over real wires: two threads, each with a driver.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use provost_datagram::{Call, Checking, Config, Driver, Event, MsgBuf, Turn};
use provost_packets::{InProcess, Wire};
use provost_udp::UdpWire;

const CALLS: u64 = 300;
const NAP: Duration = Duration::from_millis(5);

/// Answers each request with its bytes, until told to stop.
fn serve<W: Wire>(mut driver: Driver<W>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let turn = driver
            .turn(|endpoint, now_ns, event| {
                if let Event::Request {
                    handle,
                    method,
                    payload,
                } = event
                {
                    let response = MsgBuf::from_slice(&payload);
                    endpoint.respond(now_ns, handle, method, response).unwrap();
                }
            })
            .unwrap();
        if turn == Turn::Idle {
            driver.wait(NAP).unwrap();
        }
    }
}

fn bytes_of(tag: u64) -> usize {
    if tag.is_multiple_of(50) {
        200_000
    } else {
        (tag * 37 % 3000) as usize
    }
}

fn call_all<W: Wire>(mut driver: Driver<W>, server: W::Address) {
    let (now_ns, endpoint) = driver.endpoint();
    let session = endpoint.connect(now_ns, server).unwrap();
    for tag in 0..CALLS {
        let bytes = bytes_of(tag);
        let call = Call {
            method: tag as u16,
            tag,
            request: MsgBuf::from_slice(&vec![tag as u8; bytes]),
            response: MsgBuf::with_capacity(bytes),
        };
        endpoint.call(now_ns, session, call).unwrap();
    }
    let (mut done, mut ended) = (0, false);
    while !ended {
        let turn = driver
            .turn(|endpoint, now_ns, event| match event {
                Event::Completed(completion) => {
                    assert_eq!(completion.outcome, Ok(completion.tag as u16));
                    assert_eq!(*completion.response, *completion.request);
                    assert_eq!(
                        *completion.response,
                        *vec![completion.tag as u8; bytes_of(completion.tag)]
                    );
                    done += 1;
                    if done == CALLS {
                        endpoint.disconnect(now_ns, session);
                    }
                }
                Event::Ended(..) => ended = true,
                _ => {}
            })
            .unwrap();
        if turn == Turn::Idle {
            driver.wait(NAP).unwrap();
        }
    }
    assert_eq!(done, CALLS);
}

fn calls_go_over<W: Wire<Address: Send> + Send>(client: W, server: W, checking: Checking) {
    let address = server.address();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = Driver::new(config([1, 2], checking), server).unwrap();
        scope.spawn(|| serve(server, &stop));
        call_all(Driver::new(config([3, 4], checking), client).unwrap(), address);
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn calls_go_over_the_wire_within_a_process() {
    for checking in [Checking::Wire, Checking::Packets, Checking::Crc32c] {
        let (client, server) = InProcess::pair(1500, 512);
        calls_go_over(client, server, checking);
    }
}

#[test]
fn calls_go_over_udp_sockets() {
    let bind = || UdpWire::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 1472).unwrap();
    calls_go_over(bind(), bind(), Checking::Wire);
    calls_go_over(bind(), bind(), Checking::Crc32c);
}

/// The default configuration, with this secret, and packets checked so.
fn config(secret: [u64; 2], checking: Checking) -> Config {
    Config {
        secret,
        checking,
        ..Config::default()
    }
}
