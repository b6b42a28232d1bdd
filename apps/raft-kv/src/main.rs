//! Members and clients of the store, as programs.
#![forbid(unsafe_code)]

mod bench;

use std::collections::BTreeSet;
use std::error::Error;
use std::io::{BufRead, Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use provost_datagram::Driver;
use provost_raft_kv::client::ReadRoute;
use provost_raft_kv::journal::{JournalFolder, JournalMedium, MemoryOnly};
use provost_raft_kv::local::{JournalPlace, LISTENING, LocalCluster};
use provost_raft_kv::member::{Member, MemberConfig, ReadRule};
use provost_raft_kv::operation::{Operation, RequestAnswer};
use provost_raft_kv::process::{BlockingClient, PACKET_BYTES, WaitManner, serve, transport_config};
use provost_raft_kv::replica::{Replica, ReplicaConfig};
use provost_udp::UdpWire;

/// A key-value store on three members that agree by Raft, over the datagram transport.
#[derive(Parser)]
#[command(version)]
struct StoreArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs one member.
    Serve(ServeOptions),
    /// Runs three members on this machine until it is interrupted.
    Local {
        /// Keep journals in folders in this one. Without it members keep everything in memory.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Starts three members, writes, kills the leader, and reads what was written.
    Demo,
    /// Sets a key.
    Put {
        #[command(flatten)]
        members: MemberOptions,
        key: String,
        value: String,
    },
    /// Prints what a key has.
    Get {
        #[command(flatten)]
        members: MemberOptions,
        key: String,
    },
    /// Sets a key if it has an expected value.
    Cas {
        #[command(flatten)]
        members: MemberOptions,
        key: String,
        /// What it must have; without it, the key must not be there.
        #[arg(long)]
        expected: Option<String>,
        value: String,
    },
    /// Measures replicated writes beside the bare wire and the bare transport.
    Bench(bench::BenchOptions),
}

#[derive(Args)]
struct MemberOptions {
    /// All members, as 1=ADDRESS:PORT,2=ADDRESS:PORT,3=ADDRESS:PORT
    #[arg(long)]
    members: String,
}

#[derive(Args)]
struct ServeOptions {
    /// This member's number.
    #[arg(long)]
    id: u64,
    /// All members, as 1=ADDRESS:PORT,2=ADDRESS:PORT,3=ADDRESS:PORT; or '-' to read that from the standard input, and to
    /// stop when it ends
    #[arg(long)]
    members: String,
    /// Where it listens, if not at its address among the members.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Keep log and votes in this folder. Without it they are in memory: then a member that has stopped must not come
    /// back under its number.
    #[arg(long)]
    folder: Option<PathBuf>,
    /// A file of 16 bytes that all members know and nobody else. Without it, whoever reaches the port can pass for a
    /// member.
    #[arg(long)]
    key_file: Option<PathBuf>,
    /// Who may answer reads.
    #[arg(long, value_enum, default_value = "linearizable")]
    reads: ReadsArgument,
    /// How it waits.
    #[arg(long, value_enum, default_value = "sleep")]
    wait: WaitArgument,
    /// Raft's unit of time: a leader is missed after ten to twenty of them.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    tick_ms: u64,
    /// Entries after which a snapshot takes the place of the log.
    #[arg(long, default_value_t = 100_000)]
    snapshot_entries: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReadsArgument {
    /// The leader, confirmed by most members.
    Linearizable,
    /// Every member, from what it has.
    Stale,
}

#[derive(Clone, Copy, ValueEnum)]
enum WaitArgument {
    /// Look again at once, for as long as it takes: for cores that nobody else wants.
    Spin,
    /// Look again for a while after something came, then sleep.
    SpinThenSleep,
    /// Sleep until something comes.
    Sleep,
}

impl From<WaitArgument> for WaitManner {
    fn from(argument: WaitArgument) -> WaitManner {
        match argument {
            WaitArgument::Spin => WaitManner::Spin,
            WaitArgument::SpinThenSleep => WaitManner::SpinThenSleep,
            WaitArgument::Sleep => WaitManner::Sleep,
        }
    }
}

type CommandOutcome<T = ()> = Result<T, Box<dyn Error>>;

/// How long a command waits for its answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    let done = match StoreArguments::parse().command {
        Command::Serve(options) => run_member(&options),
        Command::Local { folder } => run_local(folder),
        Command::Demo => demonstrate(),
        Command::Put { members, key, value } => ask(
            &members,
            Operation::Put {
                key: key.into(),
                value: value.into(),
            },
        ),
        Command::Get { members, key } => ask(&members, Operation::Get { key: key.into() }),
        Command::Cas {
            members,
            key,
            expected,
            value,
        } => ask(
            &members,
            Operation::CompareAndSet {
                key: key.into(),
                expected: expected.map(String::into_bytes),
                value: value.into(),
            },
        ),
        Command::Bench(options) => bench::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("raft-kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_member(options: &ServeOptions) -> CommandOutcome {
    let stop = Arc::new(AtomicBool::new(false));
    let named = match options.members.as_str() {
        "-" => None,
        list => Some(parse_members(list)?),
    };
    let own = named.as_ref().and_then(|members| address_of(members, options.id));
    let listen = options.listen.or(own);
    let listen = listen.ok_or("this member is not among the members; say where it listens with --listen")?;
    let wire = UdpWire::bind(listen, PACKET_BYTES)?;
    println!("{LISTENING}{}", provost_packets::Wire::address(&wire));
    std::io::stdout().flush()?;
    let members = match named {
        Some(members) => members,
        None => members_from_input(&stop)?,
    };
    let mut driver = Driver::new(transport_config()?, wire)?;
    match &options.folder {
        Some(folder) => serve_with(
            options,
            &members,
            JournalFolder::open(folder)?,
            &mut driver,
            &stop,
        ),
        None => serve_with(options, &members, MemoryOnly, &mut driver, &stop),
    }
}

fn serve_with<M: JournalMedium>(
    options: &ServeOptions,
    members: &[(u64, SocketAddr)],
    medium: M,
    driver: &mut Driver<UdpWire>,
    stop: &AtomicBool,
) -> CommandOutcome {
    let config = MemberConfig {
        id: options.id,
        members: members.iter().map(|(id, _)| *id).collect(),
        reads: match options.reads {
            ReadsArgument::Linearizable => ReadRule::Linearizable,
            ReadsArgument::Stale => ReadRule::Stale,
        },
        snapshot_entries: options.snapshot_entries,
        seed: std::process::id().into(),
    };
    let others = members.iter().filter(|(id, _)| *id != options.id);
    let replica_config = ReplicaConfig {
        peers: others.copied().collect(),
        key: read_key(options)?,
        tick_ns: options.tick_ms * 1_000_000,
    };
    let replica = Replica::new(Member::new(config, medium)?, replica_config);
    Ok(serve(driver, replica, options.wait.into(), stop)?)
}

fn read_key(options: &ServeOptions) -> CommandOutcome<[u8; 16]> {
    let Some(path) = &options.key_file else {
        return Ok([0; 16]);
    };
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let key = bytes.try_into();
    Ok(key.map_err(|_| format!("{} does not have 16 bytes", path.display()))?)
}

fn members_from_input(stop: &Arc<AtomicBool>) -> CommandOutcome<Vec<(u64, SocketAddr)>> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        // What comes does not matter, only that it ends.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        stop.store(true, Ordering::Relaxed);
    });
    parse_members(line.trim())
}

fn parse_members(list: &str) -> CommandOutcome<Vec<(u64, SocketAddr)>> {
    let parse = |part: &str| -> CommandOutcome<(u64, SocketAddr)> {
        let (id, address) = part
            .split_once('=')
            .ok_or_else(|| format!("'{part}' is not NUMBER=ADDRESS:PORT"))?;
        let id = id.parse().ok().filter(|id| *id != 0);
        let id = id.ok_or_else(|| format!("'{part}' begins with no number above zero"))?;
        let address = address.parse().map_err(|error| format!("'{address}': {error}"))?;
        Ok((id, address))
    };
    let members: Vec<(u64, SocketAddr)> = list.split(',').map(parse).collect::<Result<_, _>>()?;
    let mut ids = BTreeSet::new();
    match members.iter().find(|(id, _)| !ids.insert(*id)) {
        Some((id, _)) => Err(format!("member {id} is named twice").into()),
        None => Ok(members),
    }
}

fn address_of(members: &[(u64, SocketAddr)], id: u64) -> Option<SocketAddr> {
    let member = members.iter().find(|(other, _)| *other == id);
    member.map(|(_, address)| *address)
}

fn ask(members: &MemberOptions, operation: Operation) -> CommandOutcome {
    let members = parse_members(&members.members)?;
    let mut client = BlockingClient::connect(members, 1, ReadRoute::Leader, WaitManner::Sleep)?;
    match client.call(operation, ANSWER_WITHIN)? {
        RequestAnswer::Value(Some(value)) => println!("{}", String::from_utf8_lossy(&value)),
        RequestAnswer::Value(None) => return Err("there is no such key".into()),
        RequestAnswer::Done => {}
        RequestAnswer::Differs => return Err("the key has another value than expected".into()),
        other => return Err(format!("the store answered {other:?}").into()),
    }
    Ok(())
}

fn run_local(folder: Option<PathBuf>) -> CommandOutcome {
    let keep = folder.map_or(JournalPlace::Memory, JournalPlace::Folder);
    let mut local = LocalCluster::start(&std::env::current_exe()?, 3, &keep, &[])?;
    println!("three members run until this is interrupted; in another terminal, try\n");
    println!("  raft-kv put --members {} greeting hello", local.list());
    println!("  raft-kv get --members {} greeting", local.list());
    Ok(local.wait()?)
}

fn demonstrate() -> CommandOutcome {
    let mut local = LocalCluster::start(&std::env::current_exe()?, 3, &JournalPlace::Memory, &[])?;
    let mut client = BlockingClient::connect(local.members(), 1, ReadRoute::Leader, WaitManner::Sleep)?;
    let began = Instant::now();
    let say = |what: &str| println!("{:6} ms  {what}", began.elapsed().as_millis());
    say(&format!("three members: {}", local.list()));
    let key = || b"greeting".to_vec();
    let put = Operation::Put {
        key: key(),
        value: b"hello".to_vec(),
    };
    let answer = client.call(put, ANSWER_WITHIN)?;
    let leader = client.leader();
    say(&format!(
        "put greeting = hello: {answer:?}; member {leader} leads"
    ));
    local.kill(leader)?;
    say(&format!("member {leader} is killed"));
    let answer = client.call(Operation::Get { key: key() }, ANSWER_WITHIN)?;
    let RequestAnswer::Value(Some(value)) = answer else {
        return Err(format!("what was written is lost: {answer:?}").into());
    };
    let value = String::from_utf8_lossy(&value);
    say(&format!(
        "get greeting: {value}; member {} leads",
        client.leader()
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_cluster_can_have_is_refused() {
        assert_eq!(parse_members("1=127.0.0.1:1,2=127.0.0.1:2").unwrap().len(), 2);
        let twice = parse_members("1=127.0.0.1:1,2=127.0.0.1:2,1=127.0.0.1:3").unwrap_err();
        assert!(twice.to_string().contains("member 1"), "{twice}");
        let serve = |tick_ms| {
            let arguments = [
                "raft-kv",
                "serve",
                "--id",
                "1",
                "--members",
                "-",
                "--tick-ms",
                tick_ms,
            ];
            StoreArguments::try_parse_from(arguments).is_ok()
        };
        assert!(serve("1") && !serve("0"));
    }
}
