//! `provost log`: what a node writes to its log.

use clap::{Args, Subcommand};
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{GetLogRequest, Log, SetLogRequest};

use crate::policy::print_change;
use crate::watch::{Shown, fact};
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::Failure;
use provost_terminal::output::{json_document, print};
use provost_terminal::table::Canvas;

/// Subcommands of `provost log`.
#[derive(Subcommand, Debug)]
pub(crate) enum LogCommand {
    /// Show or change what is logged, while the node runs
    #[command(
        after_help = "It holds until the configuration is read again, or the daemon is replaced or restarted.\n\nExamples:\n  \
                      provost log level\n  provost log level debug\n  provost log level info,provostd::connect=debug\n  \
                      provost log level --reset"
    )]
    Level(LevelOptions),
}

/// Options of `provost log level`.
#[derive(Args, Debug)]
pub(crate) struct LevelOptions {
    /// error, warn, info, debug, trace or off, or a filter by part of the program
    #[arg(value_name = "LEVEL", conflicts_with = "reset")]
    level: Option<String>,
    /// Go back to the configured level
    #[arg(long)]
    reset: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows or changes what a node logs.
pub(crate) async fn run(command: LogCommand) -> Result<(), Failure> {
    let LogCommand::Level(asked) = command;
    let mut node = Node::connect(&asked.target).await?;
    if asked.level.is_none() && !asked.reset {
        let log = node.call(GetLogRequest {}, AdminClient::get_log).await?;
        return print(&if asked.target.json {
            json_document(&log)?
        } else {
            log.draw(Canvas::of_stdout())
        });
    }
    let level = asked.level.unwrap_or_default();
    let change = node.call(SetLogRequest { level }, AdminClient::set_log).await?;
    print_change(&change, &asked.target)
}

impl Shown for Log {
    fn draw(&self, canvas: Canvas) -> String {
        let mut out = fact("logs", &self.level, canvas);
        if self.level != self.configured {
            out += &fact("configured", &self.configured, canvas);
        }
        out
    }
}
