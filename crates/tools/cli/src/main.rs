//! `provost`, the command line.
#![forbid(unsafe_code)]

mod call;
mod changes;
mod check;
mod config;
mod demo;
mod describe;
mod doctor;
mod engine;
mod init;
mod insight;
mod interface;
mod load;
mod log;
mod node;
mod plan;
mod policy;
mod routes;
mod schema;
mod tap;
mod top;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use provost_terminal::failure::{Failure, conclude};
use provost_terminal::output::print;
use provost_terminal::pages;
use watch::Listing;

const EXAMPLES: &str = "\
Examples:
  provost init                              a first configuration for this machine
  provost status                            is the node well?
  provost policy attach --kind rate-limit --service kv.Kv --set requests_per_second=100
  provost top                               what goes on, by app, service and method
  provost engine upgrade transport-tcp      another version, while calls go on
  provost daemon upgrade                    the whole daemon, while calls go on
  provost plan run upgrade.toml             several nodes, undone when a step fails
  provost demo                              two nodes, real data, figures beside raw TCP
  provost doctor                            why can this user's app not call?
  provost check proto/kv.proto              is this schema one that provost takes?
  provost insight predict acg.yaml --profile envoy.json   what would a mesh cost this application?

Commands about a node talk to its admin socket (--socket, PROVOST_ADMIN_SOCKET, or beside the one of PROVOST_SOCKET). With
--json they print the messages of the admin API. Colours: only on a terminal, and not with NO_COLOR.

Exit status: 0 done; 1 failed; 2 wrong command line, or a file that cannot be read; 3 the daemon cannot be reached; 4 you may
not do this; 5 refused or not valid, nothing was changed; 6 tried and undone; 7 no answer in time; 64 and more: the status
of a call (provost call).";

const DEMO_EXAMPLES: &str = "\
Starts two nodes' services, a key-value server and its client, each a process of its own, on this machine: no root and
no other server is needed. The client streams the data file to the server, gets and compares every entry, streams all
of them back, and is then measured in turn with a bare TCP ping-pong between two processes. Ctrl-C ends everything.

Data files: `key<TAB>value` lines (name ends in .tsv, or the first line has a tab); CSV records `key,value` (.csv);
otherwise every line is a value and its number is its key. Keys have up to 1024 bytes, values up to 16 MiB.

Examples:
  provost demo
  provost demo --data /usr/share/dict/words --in-flight 16
  provost demo --value-bytes 65536 --seconds 20 --json > figures.json";

const LISTING_EXAMPLES: &str = "\
Examples:
  provost status
  provost apps --watch
  provost datapath --app shop --json";

const DESCRIBE_EXAMPLES: &str = "\
Shows the schema as the text of a .proto file, and of one method also a request to fill in.

Examples:
  provost describe                          the services that the node knows
  provost describe kv.KvStore
  provost describe KvStore/Get
  provost describe KvStore/Get --json | jq '.methods[0].template' > request.json
  provost describe KvStore --proto proto/kv.proto     without a node";

const TAP_EXAMPLES: &str = "\
Calls come from policies of the kind tap: they say which calls are sampled, how often, and which fields are redacted.
Needs the role operate, as it shows what is in messages.

Examples:
  provost policy attach --kind tap
  provost tap --method '/kv.Kv/*' --count 10
  provost tap --recent 20 --brief           what was kept, and no more
  provost tap --json | jq .status";

const TOP_EXAMPLES: &str = "\
Counts come from policies of the kind metrics. Keys: q quit, s/S next or previous column to sort by, r reverse,
/ filter, p pause, arrows scroll.

Examples:
  provost top
  provost top --sort p99 --filter kv.Kv
  provost top --once --interval 5           a table, for scripts
  provost top --json                        a line for each second";

#[derive(Parser)]
#[command(
    name = "provost",
    version,
    about = "Managed RPC: operate nodes, change policies live, check schemas",
    after_help = EXAMPLES
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a first configuration for what this machine has
    Init(init::InitOptions),
    /// Show the node at a glance
    #[command(after_help = LISTING_EXAMPLES)]
    Status(Listing),
    /// List the apps that are attached
    #[command(after_help = LISTING_EXAMPLES)]
    Apps(Listing),
    /// List the datapaths, each with its engines in order
    #[command(visible_alias = "datapaths", after_help = LISTING_EXAMPLES)]
    Datapath(node::Datapaths),
    /// List the routes to other nodes, with the health of their endpoints
    #[command(
        after_help = "Examples:\n  provost routes\n  provost routes --watch\n  provost routes --json | jq '.routes[].endpoints'"
    )]
    Routes(Listing),
    /// Say what the node proves itself with, and when that ends
    #[command(after_help = "Examples:\n  provost certs\n  provost certs --json | jq .ends_unix_s")]
    Certs(Listing),
    /// List the last changes of what runs, and how far each has come
    #[command(
        after_help = "Examples:\n  provost changes\n  provost changes --watch\n  provost changes --json | jq '.changes[0].state'"
    )]
    Changes(Listing),
    /// Attach, change and test what happens to calls
    #[command(subcommand)]
    Policy(policy::Command),
    /// List, load and upgrade the code that handles calls
    #[command(subcommand)]
    Engine(engine::Command),
    /// Replace the daemon while calls go on
    #[command(subcommand)]
    Daemon(node::Daemon),
    /// List, prefetch and compare schemas
    #[command(subcommand)]
    Schema(schema::Command),
    /// Say what a service looks like, and what to type to call it
    #[command(after_help = DESCRIBE_EXAMPLES)]
    Describe(describe::DescribeOptions),
    /// Call a method, with messages in JSON
    #[command(after_help = call::EXAMPLES)]
    Call(call::CallOptions),
    /// Call a method again and again, and say how fast it answers
    #[command(after_help = load::EXAMPLES)]
    Load(load::LoadOptions),
    /// Show calls as they pass
    #[command(after_help = TAP_EXAMPLES)]
    Tap(tap::Tap),
    /// Show rates, errors and latencies by app, service and method
    #[command(after_help = TOP_EXAMPLES)]
    Top(top::Top),
    /// Check, compare, reload and write the configuration
    #[command(subcommand)]
    Config(config::Command),
    /// Change what the node logs, while it runs
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Carry out changes over several nodes, in order
    #[command(subcommand)]
    Plan(plan::Command),
    /// Say what is wrong with this node, or with this user's way to it, and what to do
    Doctor(doctor::DoctorOptions),
    /// Show a call through two nodes' services, with real data and figures
    #[command(after_help = DEMO_EXAMPLES)]
    Demo(demo::Options),
    /// Check .proto files and say what is in them
    #[command(
        after_help = "Examples:\n  provost check proto/kv.proto\n  provost check -I proto proto/a.proto proto/b.proto\n\nExit status: 0 \
                      where they are good; 5 where they are not; 2 where a file is not there."
    )]
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE.proto")]
        files: Vec<PathBuf>,
        /// Directories in which imports are looked for [default: each file's own]
        #[arg(long = "include", short = 'I', value_name = "DIRECTORY")]
        includes: Vec<PathBuf>,
    },
    /// Say what a service mesh costs an application, and what would change that
    #[command(
        disable_help_flag = true,
        after_help = "Examples:\n  provost insight --help\n  provost insight predict acg.yaml --profile envoy.json"
    )]
    Insight {
        /// What provost-insight(1) takes
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
        arguments: Vec<OsString>,
    },
    /// Print a shell's completions
    #[command(
        after_help = "Examples:\n  provost completions bash > /etc/bash_completion.d/provost\n  source <(provost completions bash)"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write those of all commands into a directory
    #[command(after_help = "Examples:\n  provost man | man -l -\n  provost man /usr/local/share/man/man1")]
    Man {
        /// Where the pages go
        directory: Option<PathBuf>,
    },
    /// A program of the demonstration, started by it
    #[command(hide = true)]
    DemoPart(demo::Part),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    conclude(run(command))
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Completions { shell } => pages::completions(shell, "provost", Arguments::command()),
        Command::Man { directory } => pages::man(directory.as_deref(), "provost", Arguments::command()),
        Command::Check { files, includes } => check::run(&files, &includes),
        Command::Init(options) => init::run(&options),
        Command::Insight { arguments } => insight::run(&arguments),
        Command::DemoPart(part) => demo::run_part(part).map_err(|error| Failure::failed(error.to_string())),
        other => wait_for(run_async(other)),
    }
}

/// Waits until a command is done, and not for what it has given up, such as a resolver that does not answer.
fn wait_for(command: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
    let done = runtime.block_on(command);
    runtime.shutdown_background();
    done
}

async fn run_async(command: Command) -> Result<(), Failure> {
    match command {
        Command::Status(listing) => node::status(&listing).await,
        Command::Apps(listing) => node::apps(&listing).await,
        Command::Datapath(asked) => node::datapaths(&asked).await,
        Command::Routes(listing) => routes::routes(&listing).await,
        Command::Certs(listing) => routes::certificates(&listing).await,
        Command::Changes(listing) => changes::changes(&listing).await,
        Command::Log(command) => log::run(command).await,
        Command::Policy(command) => policy::run(command).await,
        Command::Engine(command) => engine::run(command).await,
        Command::Daemon(command) => node::daemon(&command).await,
        Command::Schema(command) => schema::run(command).await,
        Command::Describe(asked) => describe::run(&asked).await,
        Command::Call(asked) => call::run(asked).await,
        Command::Load(asked) => load::run(asked).await,
        Command::Tap(asked) => tap::run(asked).await,
        Command::Top(asked) => top::run(asked).await,
        Command::Config(command) => config::run(command).await,
        Command::Plan(command) => plan::run(command).await,
        Command::Doctor(asked) => doctor::run(&asked).await,
        Command::Demo(options) => {
            let report = demo::run(&options).await.map_err(|error| match error {
                demo::DemoError::Data(error) => Failure::usage(error.to_string()),
                error => Failure::failed(error.to_string()),
            });
            print(&report?)
        }
        // Dealt with before, as they need no event loop.
        Command::Completions { .. }
        | Command::Man { .. }
        | Command::Check { .. }
        | Command::Init(_)
        | Command::Insight { .. }
        | Command::DemoPart(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_though_what_it_has_given_up_goes_on() {
        use std::sync::mpsc;
        let (answer, answered) = mpsc::sync_channel::<()>(1);
        let (ended, ends) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let asks = async move {
                tokio::task::spawn_blocking(move || answered.recv());
                Ok(())
            };
            ended.send(wait_for(asks)).unwrap();
        });
        let outcome = ends.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(outcome, Ok(Ok(())));
        drop(answer);
    }

    #[test]
    fn the_command_line_is_consistent_and_every_command_has_examples() {
        Arguments::command().debug_assert();
        assert_eq!(pages::without_examples(Arguments::command()), [""; 0]);
    }
}
