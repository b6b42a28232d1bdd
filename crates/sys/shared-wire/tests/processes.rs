//! Wires between two processes: this program, and itself again, which does with its end what it is told over a pipe.

use std::cell::RefCell;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use provost_packets::{Arrival, Integrity, Wire, conformance};
use provost_shared_wire::{Listener, Options, SharedWire, Side};

const OPTIONS: Options = Options {
    packet_bytes_max: 1500,
    ring_packets: 64,
};
const TIME_MAX: Duration = Duration::from_secs(50);
const CHILD: &str = "--child";

/// The other process's end of a wire.
struct Remote {
    pipes: RefCell<Pipes>,
    child: Child,
}

struct Pipes {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Pipes {
    fn ask(&mut self, order: &str) -> io::Result<String> {
        writeln!(self.orders, "{order}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        match answer.trim_end_matches('\n').split_once(' ') {
            Some(("ok", rest)) => Ok(rest.into()),
            _ => Err(io::Error::other(answer)),
        }
    }
}

impl Remote {
    fn ask(&self, order: &str) -> io::Result<String> {
        self.pipes.borrow_mut().ask(order)
    }

    fn number(&self, order: &str) -> usize {
        let answer = self.ask(order).expect("the other process works");
        answer.parse().expect("it answers with a number")
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Wire for Remote {
    type Address = Side;

    fn address(&self) -> Side {
        Side::Connecting
    }

    fn packet_bytes_max(&self) -> usize {
        self.number("packet_bytes_max")
    }

    fn receive_ring_packets(&self) -> usize {
        self.number("receive_ring_packets")
    }

    fn integrity(&self) -> Integrity {
        Integrity::Checked
    }

    fn receive(&mut self, packets_max: usize, mut take: impl FnMut(Arrival<'_, Side>)) -> io::Result<usize> {
        let answer = self.ask(&format!("receive {packets_max}"))?;
        let packets: Vec<_> = answer.split_whitespace().map(from_hex).collect();
        for bytes in &packets {
            take(Arrival {
                from: Side::Listening,
                bytes,
                congested: false,
            });
        }
        Ok(packets.len())
    }

    fn transmit_room(&self) -> usize {
        self.number("transmit_room")
    }

    fn transmit(&mut self, to: Side, head: &[u8], payload: &[u8]) {
        assert_eq!(to, Side::Listening);
        let order = format!("transmit {}", to_hex(&[head, payload].concat()));
        self.ask(&order).expect("the other process works");
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ask("flush").map(drop)
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        let at_most = at_most.unwrap_or(TIME_MAX);
        self.ask(&format!("wait {}", at_most.as_nanos())).map(drop)
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    text.as_bytes().chunks(2).map(byte).collect()
}

/// An end here, and one in another process.
fn pair() -> (SharedWire, Remote) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("wire");
    let listener = Listener::bind(&path, 0o600).expect("the path is free");
    let program = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(program)
        .arg(CHILD)
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts again");
    let (orders, answers) = (child.stdin.take(), child.stdout.take());
    let pipes = RefCell::new(Pipes {
        orders: orders.expect("it is piped"),
        answers: BufReader::new(answers.expect("it is piped")),
    });
    // From here on the other process ends with this, whatever happens.
    let remote = Remote { pipes, child };
    let here = listener
        .accept(OPTIONS, TIME_MAX)
        .expect("the other process connects");
    (here, remote)
}

/// What the other process does.
fn obey(path: &Path) -> io::Result<()> {
    let mut wire = SharedWire::connect(path, OPTIONS).map_err(io::Error::other)?;
    for order in io::stdin().lines() {
        let order = order?;
        let (what, detail) = order.split_once(' ').unwrap_or((&order, ""));
        match follow(&mut wire, what, detail) {
            Ok(answer) => println!("ok {answer}"),
            Err(error) => println!("error {error}"),
        }
    }
    Ok(())
}

fn follow(wire: &mut SharedWire, what: &str, detail: &str) -> io::Result<String> {
    let number = || detail.parse::<u64>().map_err(io::Error::other);
    match what {
        "packet_bytes_max" => Ok(wire.packet_bytes_max().to_string()),
        "receive_ring_packets" => Ok(wire.receive_ring_packets().to_string()),
        "transmit_room" => Ok(wire.transmit_room().to_string()),
        "transmit" => {
            wire.transmit(wire.peer(), &from_hex(detail), b"");
            Ok(String::new())
        }
        "receive" => {
            let mut packets = Vec::new();
            wire.receive(number()? as usize, |arrival| packets.push(to_hex(arrival.bytes)))?;
            Ok(packets.join(" "))
        }
        "flush" => wire.flush().map(|()| String::new()),
        "wait" => wire
            .wait(Some(Duration::from_nanos(number()?)))
            .map(|()| String::new()),
        other => Err(io::Error::other(format!("unknown order {other}"))),
    }
}

/// The suite takes two ends of one type.
enum End {
    Here(Box<SharedWire>),
    There(Remote),
}

macro_rules! either {
    ($end:expr, $wire:ident => $act:expr) => {
        match $end {
            End::Here($wire) => $act,
            End::There($wire) => $act,
        }
    };
}

impl Wire for End {
    type Address = Side;

    fn address(&self) -> Side {
        either!(self, wire => wire.address())
    }

    fn packet_bytes_max(&self) -> usize {
        either!(self, wire => wire.packet_bytes_max())
    }

    fn receive_ring_packets(&self) -> usize {
        either!(self, wire => wire.receive_ring_packets())
    }

    fn integrity(&self) -> Integrity {
        either!(self, wire => wire.integrity())
    }

    fn receive(&mut self, packets_max: usize, take: impl FnMut(Arrival<'_, Side>)) -> io::Result<usize> {
        either!(self, wire => wire.receive(packets_max, take))
    }

    fn transmit_room(&self) -> usize {
        either!(self, wire => wire.transmit_room())
    }

    fn transmit(&mut self, to: Side, head: &[u8], payload: &[u8]) {
        either!(self, wire => wire.transmit(to, head, payload));
    }

    fn flush(&mut self) -> io::Result<()> {
        either!(self, wire => wire.flush())
    }

    fn wait(&mut self, at_most: Option<Duration>) -> io::Result<()> {
        either!(self, wire => wire.wait(at_most))
    }
}

fn it_conforms_between_two_processes() {
    conformance::suite(|| {
        let (here, there) = pair();
        (End::Here(Box::new(here)), End::There(there))
    });
    conformance::suite(|| {
        let (here, there) = pair();
        (End::There(there), End::Here(Box::new(here)))
    });
}

fn a_process_that_is_killed_is_an_error_once_its_packets_are_read() {
    let (mut here, mut there) = pair();
    there.transmit(here.address(), b"last words", b"");
    there.flush().expect("the other process works");
    there.child.kill().expect("it can be killed");
    there.child.wait().expect("it ends");
    let mut packets = 0;
    let began = Instant::now();
    let error = loop {
        let received = here.receive(8, |arrival| assert_eq!(arrival.bytes, b"last words"));
        let waited = received.and_then(|received| {
            packets += received;
            here.wait(Some(Duration::from_millis(100)))
        });
        match waited {
            Err(error) => break error,
            Ok(()) => assert!(began.elapsed() < TIME_MAX, "nobody told"),
        }
    };
    assert_eq!(
        (error.kind(), packets),
        (io::ErrorKind::ConnectionAborted, 1),
        "{error}"
    );
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if let [mode, path] = &arguments[..]
        && mode == CHILD
    {
        return match obey(Path::new(path)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("the other process: {error}");
                ExitCode::FAILURE
            }
        };
    }
    // `cargo test -- --list` and the like ask for nothing to be run.
    if arguments.iter().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let tests: [(&str, fn()); 2] = [
        (
            "it_conforms_between_two_processes",
            it_conforms_between_two_processes,
        ),
        (
            "a_process_that_is_killed_is_an_error_once_its_packets_are_read",
            a_process_that_is_killed_is_an_error_once_its_packets_are_read,
        ),
    ];
    for (name, test) in tests {
        println!("test {name}");
        test();
    }
    ExitCode::SUCCESS
}
