//! Servers and clients of the store, as programs.
#![forbid(unsafe_code)]

mod bench;

use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use clap::{Parser, Subcommand, ValueEnum};
use provost_datagram_rpc::{Rpc, RpcConfig, Wire};
use provost_ordered_kv::client::Client;
use provost_ordered_kv::server::{Scans, handlers};
use provost_ordered_kv::tree::Tree;
use provost_udp::{PACKET_BYTES_ETHERNET, UdpWire};

/// An ordered store of 64-bit keys and values, over the datagram transport.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves a store until it is interrupted.
    Serve {
        /// Where the first thread listens; each further one listens at the next port.
        #[arg(long, default_value = "127.0.0.1:7400")]
        listen: SocketAddr,
        /// Threads that take requests. They share one tree.
        #[arg(long, default_value_t = 1)]
        threads: u16,
        /// Threads, for each of those, that run scans.
        #[arg(long, default_value_t = 2)]
        workers: usize,
        /// Where scans run.
        #[arg(long, value_enum, default_value = "workers")]
        scans: ScansArgument,
        /// Keys to begin with: 0, 1, 2 and so on, each with itself as value.
        #[arg(long, default_value_t = 0)]
        keys: u64,
    },
    /// Starts a server, writes, reads and scans, all in this process.
    Demo,
    /// Prints what a key has.
    Get { server: SocketAddr, key: u64 },
    /// Sets a key.
    Put {
        server: SocketAddr,
        key: u64,
        value: u64,
    },
    /// Takes a key away.
    Delete { server: SocketAddr, key: u64 },
    /// Prints the sum of the values of some keys from this one on, and how many there were.
    Scan {
        server: SocketAddr,
        first: u64,
        #[arg(default_value_t = 128)]
        keys: u32,
    },
    /// Prints some keys from this one on, with their values.
    Range {
        server: SocketAddr,
        first: u64,
        #[arg(default_value_t = 128)]
        keys: u32,
    },
    /// Measures reads, alone and mixed with scans in workers and in the event loop.
    Bench(bench::BenchOptions),
}

#[derive(Clone, Copy, ValueEnum)]
enum ScansArgument {
    /// In worker threads.
    Workers,
    /// In the event loop, where everything waits meanwhile.
    Dispatch,
}

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ordered-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Serve {
            listen,
            threads,
            workers,
            scans,
            keys,
        } => {
            let scans = match scans {
                ScansArgument::Workers => Scans::InWorkers,
                ScansArgument::Dispatch => Scans::InDispatch,
            };
            let tree = Arc::new(Tree::default());
            for key in 0..keys {
                tree.put(key, key)?;
            }
            let servers = (0..threads).map(|thread| start(at_port(listen, thread)?, &tree, scans, workers));
            for (_, server) in servers.collect::<Result<Vec<_>, _>>()? {
                server.join().map_err(|_| "a server has panicked")??;
            }
        }
        Command::Demo => demonstrate()?,
        Command::Get { server, key } => match client(server)?.get(key)? {
            Some(value) => println!("{value}"),
            None => return Err("there is no such key".into()),
        },
        Command::Put { server, key, value } => client(server)?.put(key, value)?,
        Command::Delete { server, key } => {
            if !client(server)?.delete(key)? {
                return Err("there is no such key".into());
            }
        }
        Command::Scan { server, first, keys } => {
            let scanned = client(server)?.scan(first, keys)?;
            println!("sum {} of {} keys", scanned.sum, scanned.keys);
        }
        Command::Range { server, first, keys } => {
            for (key, value) in client(server)?.range(first, keys)? {
                println!("{key} {value}");
            }
        }
        Command::Bench(options) => bench::run(&options)?,
    }
    Ok(())
}

/// The address of a thread: each has the port after the one before, or any where any will do.
fn at_port(listen: SocketAddr, thread: u16) -> Outcome<SocketAddr> {
    let port = match listen.port() {
        0 => 0,
        first => first.checked_add(thread).ok_or("there are not so many ports")?,
    };
    Ok(SocketAddr::new(listen.ip(), port))
}

type Server = JoinHandle<std::io::Result<()>>;

fn start(
    listen: SocketAddr,
    tree: &Arc<Tree>,
    scans: Scans,
    workers: usize,
) -> Outcome<(SocketAddr, Server)> {
    let wire = UdpWire::bind(listen, PACKET_BYTES_ETHERNET)?;
    let address = wire.address();
    let config = RpcConfig {
        workers,
        ..RpcConfig::default()
    };
    let mut rpc = Rpc::new(config, wire, (), handlers::<UdpWire>(tree, scans))?;
    println!("listening on {address}");
    std::io::stdout().flush()?;
    let server = std::thread::spawn(move || rpc.run_until(|()| false));
    Ok((address, server))
}

fn client(server: SocketAddr) -> Outcome<Client<UdpWire>> {
    let any: SocketAddr = if server.is_ipv4() {
        ([0, 0, 0, 0], 0).into()
    } else {
        ([0u16; 8], 0).into()
    };
    let wire = UdpWire::bind(any, PACKET_BYTES_ETHERNET)?;
    Ok(Client::connect(wire, server)?)
}

fn demonstrate() -> Outcome {
    let tree = Arc::new(Tree::default());
    let (address, _server) = start(([127, 0, 0, 1], 0).into(), &tree, Scans::InWorkers, 1)?;
    let mut client = client(address)?;
    for key in 0..1000 {
        client.put(key * 10, key)?;
    }
    println!("put 1000 keys: 0, 10, 20 and so on");
    println!("get 420: {:?}; get 421: {:?}", client.get(420)?, client.get(421)?);
    let scanned = client.scan(421, 128)?;
    println!(
        "scan from 421: the values of {} keys make {}",
        scanned.keys, scanned.sum
    );
    println!("range from 421: {:?}", client.range(421, 3)?);
    Ok(())
}
