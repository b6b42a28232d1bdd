//! `provost engine`: the code that handles calls, by kind and version.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    ListEnginesRequest, ListEnginesResponse, LoadEngineRequest, RollbackEngineRequest, UpgradeEngineRequest,
};

use crate::policy::print_change;
use crate::watch::{Listing, Shown, show};
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::Failure;
use provost_terminal::table::{Align, Canvas, Cell, Look, Table};

const UPGRADE_EXAMPLES: &str = "\
The new version continues from the saved state of the old one, between two steps of each datapath; calls in flight go
on. If it does not start, or fails its first calls, the old one is back and the exit status is 6.

Examples:
  provost engine upgrade transport-tcp                       the newest version, on all datapaths
  provost engine upgrade rate-limit --version 2 --policy limit
  provost engine upgrade transport-tcp --connection 4        first on one datapath
  provost engine rollback transport-tcp";

/// `provost engine …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// List the kinds of engines, their versions and where they are in use
    #[command(after_help = "Examples:\n  provost engine list\n  provost engine list --json")]
    List(Listing),
    /// Load a library with an engine
    #[command(
        after_help = "A library is code that runs in the daemon: needs the role admin. It cannot be unloaded.\n\nExamples:\n  provost engine load /usr/lib/provost/libshadow.so"
    )]
    Load {
        /// The library, from the folder that this is typed in
        path: PathBuf,
        #[command(flatten)]
        target: Target,
    },
    /// Put another version of an engine, policy or transport, into live datapaths
    #[command(after_help = UPGRADE_EXAMPLES)]
    Upgrade(Upgrade),
    /// Undo the last upgrade of an engine
    #[command(after_help = "Examples:\n  provost engine rollback rate-limit")]
    Rollback {
        /// The kind, such as transport-tcp, or the name of a policy
        kind: String,
        #[command(flatten)]
        target: Target,
    },
}

/// `provost engine upgrade`.
#[derive(Args, Debug)]
pub(crate) struct Upgrade {
    /// The kind, such as rate-limit or transport-tcp
    kind: String,
    /// Which version [default: the newest]
    #[arg(
        long = "version",
        id = "engine-version",
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true
    )]
    version: u32,
    /// Only the policy of this name
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true, conflicts_with_all = ["connection", "app"])]
    policy: String,
    /// Only the datapath of this connection
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 0,
        hide_default_value = true,
        conflicts_with = "app"
    )]
    connection: u64,
    /// Only the datapaths of this app
    #[arg(long, value_name = "APP", default_value = "", hide_default_value = true)]
    app: String,
    #[command(flatten)]
    target: Target,
}

/// Runs one.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::List(listing) => {
            show(&listing, async |node: &mut Node| {
                node.call(ListEnginesRequest {}, AdminClient::list_engines).await
            })
            .await
        }
        Command::Load { path, target } => {
            let path = whole(&path)?;
            let mut node = Node::connect(&target).await?;
            let done = node
                .call(LoadEngineRequest { path }, AdminClient::load_engine)
                .await?;
            print_change(&done, &target)
        }
        Command::Upgrade(asked) => {
            let mut node = Node::connect(&asked.target).await?;
            let request = UpgradeEngineRequest {
                kind: asked.kind,
                version: asked.version,
                policy: asked.policy,
                connection: asked.connection,
                app: asked.app,
            };
            let done = node.call(request, AdminClient::upgrade_engine).await?;
            print_change(&done, &asked.target)
        }
        Command::Rollback { kind, target } => {
            let mut node = Node::connect(&target).await?;
            let done = node
                .call(RollbackEngineRequest { kind }, AdminClient::rollback_engine)
                .await?;
            print_change(&done, &target)
        }
    }
}

/// A path as the node's daemon finds it too, which works in another folder.
fn whole(path: &Path) -> Result<String, Failure> {
    let problem = |problem: &str| Failure::usage(format!("{}: {problem}", path.display()));
    let whole = std::path::absolute(path).map_err(|error| problem(&error.to_string()))?;
    let whole = whole.into_os_string().into_string();
    whole.map_err(|_| problem("the path is no UTF-8: give the library another name"))
}

impl Shown for ListEnginesResponse {
    fn draw(&self, canvas: Canvas) -> String {
        let mut table = Table::new(&[
            ("KIND", Align::Left),
            ("VERSION", Align::Left),
            ("DATAPATHS", Align::Right),
            ("FROM", Align::Left),
            ("WHAT IT DOES", Align::Left),
        ]);
        for engine in &self.engines {
            // The version that new datapaths get.
            let version = if engine.current {
                Cell::new(format!("{} *", engine.version), Look::Good)
            } else {
                engine.version.into()
            };
            table.row([
                (&engine.kind).into(),
                version,
                engine.datapaths.into(),
                (&engine.source).into(),
                (&engine.summary).into(),
            ]);
        }
        format!("{}* new datapaths get this version\n", table.draw(canvas))
    }
}

#[cfg(test)]
mod tests {
    use provost_admin::v1::EngineKind;
    use provost_terminal::failure::Exit;

    use super::*;

    #[test]
    fn a_library_is_named_by_its_whole_path() {
        let here = std::env::current_dir().unwrap();
        let here = here.to_str().unwrap();
        assert_eq!(
            whole(Path::new("target/libx.so")).unwrap(),
            format!("{here}/target/libx.so")
        );
        assert_eq!(whole(Path::new("/usr/lib/libx.so")).unwrap(), "/usr/lib/libx.so");
        assert_eq!(whole(Path::new("")).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn engines_are_listed_by_version_and_the_current_one_is_marked() {
        let engine = |version, current| EngineKind {
            kind: "rate-limit".into(),
            version,
            summary: "token buckets".into(),
            source: "built in".into(),
            datapaths: version * 2,
            current,
            ..EngineKind::default()
        };
        let listed = ListEnginesResponse {
            engines: vec![engine(1, false), engine(2, true)],
        };
        let expected = "\
KIND        VERSION  DATAPATHS  FROM      WHAT IT DOES
rate-limit  1                2  built in  token buckets
rate-limit  2 *              4  built in  token buckets
* new datapaths get this version
";
        assert_eq!(listed.draw(Canvas::plain()), expected);
    }
}
