//! Raw UDP: what the sockets themselves cost where a packet is a call. Requests are answered with 8 bytes, in the order in which
//! they come.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::failure::{Doing, Failure};
use crate::load::{Latencies, Run, measure};
use crate::process::say_ready;
use crate::report::{Load, Report};
use crate::roles::{RESPONSE, payload};

/// The most bytes of a request: what a datagram of IPv4 holds.
const REQUEST_BYTES_MAX: usize = 65_507;
/// How long an answer may take before its packet, or the request's, counts as lost.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(1);

/// Answers each datagram that comes.
pub(crate) fn serve() -> Result<(), Failure> {
    let socket = UdpSocket::bind("127.0.0.1:0").doing(|| "open a socket".into())?;
    say_ready(socket.local_addr().doing(|| "name the socket".into())?);
    let mut request = vec![0; REQUEST_BYTES_MAX];
    loop {
        let received = socket.recv_from(&mut request);
        // That a client has gone is said here (ICMP), too, and others go on asking.
        if let Ok((_, client)) = received {
            let _ = socket.send_to(RESPONSE, client);
        }
    }
}

/// Makes load on a server.
pub(crate) fn load(address: &str, load: &Load) -> Result<Report, Failure> {
    measure(load, |run| {
        let socket = open(address).doing(|| format!("open a socket to {address}"))?;
        let request = payload(load.size_bytes);
        pipelined(&socket, run, &request, load.calls_in_flight).doing(|| format!("call {address}"))
    })
}

fn open(address: &str) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    Ok(socket)
}

/// One thread: it sends requests until enough are in flight, and takes an answer. `Err` is the system's.
fn pipelined(socket: &UdpSocket, run: &Run, request: &[u8], calls: usize) -> std::io::Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut begun = VecDeque::with_capacity(calls);
    let mut response = *RESPONSE;
    run.ready();
    loop {
        while begun.len() < calls && !run.is_stopped() {
            begun.push_back(Instant::now());
            socket.send(request)?;
        }
        let Some(began) = begun.pop_front() else {
            return Ok(latencies);
        };
        match socket.recv(&mut response) {
            Ok(_) => run.record(&mut latencies, began),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                // Which of them was lost is not known: none that is in flight counts.
                run.error(&format_args!("no answer within {ANSWER_TIME_MAX:?}"));
                begun.clear();
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Traffic;

    #[test]
    fn calls_are_answered_one_and_several_at_a_time() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap().to_string();
        // It ends with the process: nobody asks it any more.
        std::thread::spawn(move || {
            let mut request = [0; 64];
            while let Ok((_, client)) = server.recv_from(&mut request) {
                let _ = server.send_to(RESPONSE, client);
            }
        });
        for calls_in_flight in [1, 8] {
            let plan = Load {
                size_bytes: 32,
                calls_in_flight,
                connections: 1,
                warmup_seconds: 0.01,
                seconds: 0.1,
                watched: Vec::new(),
                cores: vec![0],
                traffic: Traffic::Plain,
                interval_us: 0,
            };
            let report = load(&address, &plan).unwrap();
            assert!(report.count > 0, "{calls_in_flight} in flight");
        }
    }
}
