//! `provost config`: files and what is in effect.

mod forgotten;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    DiffConfigRequest, DiffConfigResponse, GetConfigRequest, ReloadConfigRequest, WriteConfigRequest,
};
use provostd::config::{ConfigError, Sources};

use crate::policy::print_change;
use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::{Exit, Failure, complain};
use provost_terminal::output::{json_document, print};
use provost_terminal::table::{Canvas, Look, clean};

const DIFF_EXAMPLES: &str = "\
Examples:
  provost config diff                          would a reload change anything?
  provost config diff /etc/provost/provostd.d  would this directory?
  provost config diff new.toml --exit-code     exit status 1 if it would";

const RELOAD_EXAMPLES: &str = "\
The configuration is checked whole; if something is wrong nothing changes, and exit status is 5.

Where a route names another transport than before, its connections go over to it while calls go on; `provost datapath`
shows by which transport each goes (VIA), and why one stays with the one it has.

Examples:
  provost config reload
  sed -i 's/transport = \"tcp\"/transport = \"datagram\"/' /etc/provost/provostd.d/routes.toml && provost config reload
  provost datapath --service kv.Kv";

/// `provost config …`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Check a configuration without a node
    #[command(
        after_help = "Examples:\n  provost config check /etc/provost/provostd.toml\n  provost config check /etc/provost/provostd.d\n\nExit status: 0 \
                      where it is good; 5 where it is not; 2 where the file cannot be read."
    )]
    Check {
        /// A file, or a directory of .toml files
        path: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what would change if a configuration were applied
    #[command(after_help = DIFF_EXAMPLES)]
    Diff {
        /// A file, or a directory of .toml files [default: what the node was started with, as it is now]
        path: Option<PathBuf>,
        /// Exit with 1 if something would change
        #[arg(long)]
        exit_code: bool,
        #[command(flatten)]
        target: Target,
    },
    /// Read the configuration again and apply it, as SIGHUP does
    #[command(
        after_help = RELOAD_EXAMPLES
    )]
    Reload {
        #[command(flatten)]
        target: Target,
    },
    /// Print the configuration in effect, with what was changed at run time
    #[command(after_help = "Examples:\n  provost config show > now.toml")]
    Show {
        #[command(flatten)]
        target: Target,
    },
    /// Write what was changed at run time back to the configuration directory
    #[command(
        after_help = "Warns where a policy reads fields that a node knows by `provost schema prefetch` alone: it forgets them when it stops.\n\n\
                            Examples:\n  provost config write"
    )]
    Write {
        #[command(flatten)]
        target: Target,
    },
}

/// Runs one.
pub(crate) async fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Check { path, json } => check(&path, json),
        Command::Diff {
            path,
            exit_code,
            target,
        } => diff(path.as_deref(), exit_code, &target).await,
        Command::Reload { target } => {
            let mut node = Node::connect(&target).await?;
            let done = node
                .call(ReloadConfigRequest {}, AdminClient::reload_config)
                .await?;
            print_change(&done, &target)
        }
        Command::Show { target } => {
            let mut node = Node::connect(&target).await?;
            let got = node.call(GetConfigRequest {}, AdminClient::get_config).await?;
            print(&if target.json {
                json_document(&got)?
            } else {
                got.toml
            })
        }
        Command::Write { target } => {
            let mut node = Node::connect(&target).await?;
            let done = node
                .call(WriteConfigRequest {}, AdminClient::write_config)
                .await?;
            if !target.json {
                // What was asked for is done, whether or not this is known.
                let warnings = forgotten::warnings(&mut node).await.unwrap_or_default();
                warnings
                    .iter()
                    .for_each(|warning| complain(&format!("warning: {}", clean(warning))));
            }
            print(&if target.json {
                json_document(&done)?
            } else {
                format!("wrote {}\n", clean(&done.path))
            })
        }
    }
}

fn check(path: &Path, json: bool) -> Result<(), Failure> {
    let read = provostd::read_configuration(&Sources::at(path));
    let failure = read.err().map(refused);
    let problem = failure.as_ref().map(|failure| &failure.message);
    if json {
        let verdict = serde_json::json!({ "path": path, "good": problem.is_none(), "problem": problem });
        print(&json_document(&verdict)?)?;
    }
    match failure {
        Some(failure) => Err(failure),
        None if json => Ok(()),
        None => print(&format!("the configuration is good{}\n", told_of_nothing(path))),
    }
}

/// A directory of which nothing is read may be another one than was meant, or its files have other names.
fn told_of_nothing(path: &Path) -> String {
    let read = Sources::at(path).texts();
    if read.is_ok_and(|files| files.is_empty()) {
        format!(
            ": {} has no .toml file, so every key has its default",
            path.display()
        )
    } else {
        String::new()
    }
}

async fn diff(path: Option<&Path>, exit_code: bool, target: &Target) -> Result<(), Failure> {
    let files = path.map(read_files).transpose()?.unwrap_or_default();
    if let Some(path) = path {
        // What they name is opened with the caller's rights, not with the node's.
        provostd::read_configuration(&Sources::at(path)).map_err(refused)?;
    }
    let mut node = Node::connect(target).await?;
    let diff = node
        .call(DiffConfigRequest { files }, AdminClient::diff_config)
        .await?;
    print(&if target.json {
        json_document(&diff)?
    } else {
        draw(&diff, Canvas::of_stdout())
    })?;
    if exit_code && !diff.changes.is_empty() {
        Err(Failure::failed(match diff.changes.len() {
            1 => "1 key differs".to_owned(),
            keys => format!("{keys} keys differ"),
        }))
    } else {
        Ok(())
    }
}

/// The files that a node would read, by their paths.
fn read_files(path: &Path) -> Result<HashMap<String, String>, Failure> {
    let texts = Sources::at(path).texts();
    texts.map(HashMap::from_iter).map_err(refused)
}

fn refused(error: ConfigError) -> Failure {
    let exit = match error {
        ConfigError::Read { .. } => Exit::Usage,
        _ => Exit::Refused,
    };
    Failure::new(exit, error.to_string())
}

fn draw(diff: &DiffConfigResponse, canvas: Canvas) -> String {
    if diff.changes.is_empty() {
        return "nothing would change\n".to_owned();
    }
    let mut out = String::new();
    for change in &diff.changes {
        let when = if change.live {
            ""
        } else {
            "  (needs a restart or `provost daemon upgrade`)"
        };
        out += &format!("{}{when}\n", Look::Heading.paint(&clean(&change.key), canvas));
        for (sign, text, look) in [("-", &change.before, Look::Bad), ("+", &change.after, Look::Good)] {
            for line in text.lines() {
                out += &(look.paint(&format!("{sign} {}", clean(line)), canvas) + "\n");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use provost_admin::v1::ConfigChange;

    use super::*;

    #[test]
    fn a_directory_of_which_nothing_is_read_is_said_to_be_so() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.conf"), "[node]\n").unwrap();
        let said = told_of_nothing(directory.path());
        assert!(
            said.ends_with("has no .toml file, so every key has its default"),
            "{said}"
        );
        std::fs::write(directory.path().join("a.toml"), "[node]\n").unwrap();
        assert_eq!(told_of_nothing(directory.path()), "");
        assert_eq!(told_of_nothing(&directory.path().join("a.toml")), "");
    }

    #[test]
    fn a_difference_is_shown_key_by_key() {
        assert_eq!(
            draw(&DiffConfigResponse::default(), Canvas::plain()),
            "nothing would change\n"
        );
        let change = |key: &str, before: &str, after: &str, live| ConfigChange {
            key: key.into(),
            before: before.into(),
            after: after.into(),
            live,
        };
        let diff = DiffConfigResponse {
            changes: vec![
                change("policy.limit", "", "kind = \"rate-limit\"\nburst = 2", true),
                change("runtime.threads", "1", "2", false),
            ],
        };
        let expected = "\
policy.limit
+ kind = \"rate-limit\"
+ burst = 2
runtime.threads  (needs a restart or `provost daemon upgrade`)
- 1
+ 2
";
        assert_eq!(draw(&diff, Canvas::plain()), expected);
    }
}
