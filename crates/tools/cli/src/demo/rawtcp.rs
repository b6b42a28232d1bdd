//! The yardstick: a message to and fro on a bare TCP connection between two processes, nothing else.
//!
//! Both ends wait alike. *Blocking*, they sleep in `read`. *Spinning*, they try again and again, and yield the core
//! between tries as Provost's own programs do. A pinger opens a connection for each slice, so that between slices
//! neither end uses the processor.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::tally::Tally;
use super::wire::{Command, Event, Figures, Measure};
use super::worker::{self, WorkerError};

/// How an end waits for bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Waiting {
    /// Sleeps in the kernel.
    Blocking,
    /// Polls, yielding the core between tries.
    Spinning,
}

/// Answers every message with one of the same length, one connection after the other, until its input ends.
pub(crate) fn echo(waiting: Waiting, message_bytes: usize) -> Result<(), WorkerError> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(WorkerError::Socket)?;
    let address = listener.local_addr().map_err(WorkerError::Socket)?;
    worker::send_event(&Event::Ready {
        address: Some(address.to_string()),
    })?;
    std::thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            // A connection ends when its slice does; that is no error here, and the pinger tells of real ones.
            let _ = echo_on(peer, waiting, message_bytes);
        }
    });
    worker::until_input_ends();
    Ok(())
}

fn echo_on(peer: TcpStream, waiting: Waiting, message_bytes: usize) -> io::Result<()> {
    let mut end = End::new(peer, waiting)?;
    let mut message = vec![0; message_bytes];
    loop {
        end.receive(&mut message)?;
        end.send(&message)?;
    }
}

/// Measures round trips to an [`echo`] at `address`, as it is commanded.
pub(crate) fn ping(address: SocketAddr, waiting: Waiting, message_bytes: usize) -> Result<(), WorkerError> {
    worker::send_event(&Event::Ready { address: None })?;
    let mut tally = Tally::default();
    worker::each_command(|command| match command {
        Command::Measure(measure) => {
            ping_slice(address, waiting, message_bytes, measure, &mut tally).map_err(WorkerError::Socket)
        }
        other => Err(WorkerError::NotMine(other)),
    })
}

fn ping_slice(
    address: SocketAddr,
    waiting: Waiting,
    message_bytes: usize,
    measure: Measure,
    tally: &mut Tally,
) -> io::Result<Event> {
    let mut end = End::new(TcpStream::connect(address)?, waiting)?;
    let mut message = vec![0x5a; message_bytes];
    let begin = Instant::now();
    let length = Duration::from_secs_f64(measure.seconds);
    while begin.elapsed() < length {
        let sent = Instant::now();
        end.send(&message)?;
        end.receive(&mut message)?;
        tally.record(sent.elapsed());
    }
    tally.slice_took(begin.elapsed());
    let figures: Figures = tally.figures();
    Ok(Event::Measured(figures))
}

struct End {
    stream: TcpStream,
}

impl End {
    fn new(stream: TcpStream, waiting: Waiting) -> io::Result<End> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(waiting == Waiting::Spinning)?;
        Ok(End { stream })
    }

    fn send(&mut self, mut message: &[u8]) -> io::Result<()> {
        while !message.is_empty() {
            match self.stream.write(message) {
                Ok(bytes) => message = &message[bytes..],
                Err(error) => wait_after(error)?,
            }
        }
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < message.len() {
            match self.stream.read(&mut message[filled..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => filled += bytes,
                Err(error) => wait_after(error)?,
            }
        }
        Ok(())
    }
}

fn wait_after(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock => std::thread::yield_now(),
        ErrorKind::Interrupted => {}
        _ => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::wire::Activity;

    #[test]
    fn messages_come_back_in_both_ways_of_waiting() {
        for waiting in [Waiting::Blocking, Waiting::Spinning] {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let echo = std::thread::spawn(move || echo_on(listener.accept().unwrap().0, waiting, 100));
            let mut tally = Tally::default();
            let measure = Measure {
                activity: Activity::Ping,
                in_flight: 1,
                seconds: 0.02,
            };
            ping_slice(address, waiting, 100, measure, &mut tally).unwrap();
            assert!(tally.figures().calls > 0);
            assert_eq!(echo.join().unwrap().unwrap_err().kind(), ErrorKind::UnexpectedEof);
        }
    }
}
