//! The nodes of a plan: here by their sockets, elsewhere by `ssh host provost … --json`. Both take the same requests
//! and give the same answers.

use std::process::Stdio;
use std::time::Duration;

use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    AttachPolicyRequest, DetachPolicyRequest, GetStatusRequest, ListPoliciesRequest, LoadEngineRequest,
    OrderPoliciesRequest, Policy, RollbackEngineRequest, SetPolicyRequest, UpgradeDaemonRequest,
    UpgradeEngineRequest, WatchRequest,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use provost_terminal::admin::{Node, SOCKET_DEFAULT};
use provost_terminal::failure::{Exit, Failure};

use super::file::NodeAddress;

/// What ssh ends with when it could not reach the other machine.
const SSH_FAILED: i32 = 255;
/// What ssh and the other machine may take on top of the daemon's time.
const SSH_SPARE: Duration = Duration::from_secs(30);
/// How much of what a command wrote to standard error is shown, in bytes.
const ERROR_BYTES_MAX: usize = 2000;

/// A request of a plan.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    Status,
    Policies,
    /// What goes on, over so many seconds.
    Look {
        interval_s: f64,
    },
    Attach {
        policy: Policy,
        position: Option<u32>,
        dry_run: bool,
    },
    Detach {
        name: String,
    },
    Set {
        name: String,
        config: String,
        dry_run: bool,
    },
    Order {
        names: Vec<String>,
    },
    Upgrade(UpgradeEngineRequest),
    Rollback {
        kind: String,
    },
    UpgradeDaemon {
        binary: String,
        timeout_ms: u32,
    },
    Load {
        path: String,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) name: String,
    address: NodeAddress,
    timeout: Duration,
}

impl Place {
    pub(crate) fn new(name: &str, address: &NodeAddress, timeout: Duration) -> Place {
        Place {
            name: name.to_owned(),
            address: address.clone(),
            timeout,
        }
    }

    /// The same, with the time that a replacement takes whose new process has so long to get ready.
    pub(crate) fn replaced_within(&self, ready_ms: u32) -> Place {
        let timeout_s = crate::node::replaced_within(self.timeout.as_secs_f64(), ready_ms);
        Place {
            timeout: Duration::from_secs_f64(timeout_s),
            ..self.clone()
        }
    }

    pub(crate) async fn ask<T: DeserializeOwned>(&self, ask: Ask) -> Result<T, Failure> {
        let answer = match &self.address.ssh {
            Some(host) => self.by_ssh(host, &ask).await,
            None => self.by_socket(ask).await,
        };
        let answer = answer.map_err(|failure| failure.within(&self.name))?;
        serde_json::from_value(answer).map_err(|error| {
            Failure::failed(format!("{}: an answer that makes no sense: {error}", self.name))
        })
    }

    async fn by_socket(&self, ask: Ask) -> Result<Value, Failure> {
        let socket = self
            .address
            .socket
            .clone()
            .unwrap_or_else(|| SOCKET_DEFAULT.into());
        let mut node = Node::connect_to(&socket, self.timeout).await?;
        match ask {
            Ask::Status => json(node.call(GetStatusRequest {}, AdminClient::get_status).await?),
            Ask::Policies => json(
                node.call(ListPoliciesRequest {}, AdminClient::list_policies)
                    .await?,
            ),
            Ask::Look { interval_s } => {
                let interval_ms = (interval_s * 1000.0) as u32;
                let mut looks = node
                    .stream(WatchRequest { interval_ms }, AdminClient::watch)
                    .await?;
                let look = looks.message().await.map_err(|status| node.failure(&status))?;
                json(look.unwrap_or_default())
            }
            Ask::Attach {
                policy,
                position,
                dry_run,
            } => {
                let request = AttachPolicyRequest {
                    policy: Some(policy),
                    position,
                    dry_run,
                };
                json(node.call(request, AdminClient::attach_policy).await?)
            }
            Ask::Detach { name } => json(
                node.call(DetachPolicyRequest { name }, AdminClient::detach_policy)
                    .await?,
            ),
            Ask::Set {
                name,
                config,
                dry_run,
            } => {
                let request = SetPolicyRequest {
                    name,
                    config,
                    dry_run,
                };
                json(node.call(request, AdminClient::set_policy).await?)
            }
            Ask::Order { names } => json(
                node.call(OrderPoliciesRequest { names }, AdminClient::order_policies)
                    .await?,
            ),
            Ask::Upgrade(request) => json(node.call(request, AdminClient::upgrade_engine).await?),
            Ask::Rollback { kind } => json(
                node.call(RollbackEngineRequest { kind }, AdminClient::rollback_engine)
                    .await?,
            ),
            Ask::UpgradeDaemon { binary, timeout_ms } => {
                let request = UpgradeDaemonRequest { binary, timeout_ms };
                json(node.call(request, AdminClient::upgrade_daemon).await?)
            }
            Ask::Load { path } => json(
                node.call(LoadEngineRequest { path }, AdminClient::load_engine)
                    .await?,
            ),
        }
    }

    async fn by_ssh(&self, host: &str, ask: &Ask) -> Result<Value, Failure> {
        let (mut arguments, stdin) = remote(ask);
        if !matches!(ask, Ask::Look { .. }) {
            arguments.extend(["--timeout".to_owned(), self.timeout.as_secs_f64().to_string()]);
        }
        if let Some(socket) = &self.address.socket {
            arguments.extend(["--socket".to_owned(), socket.display().to_string()]);
        }
        arguments.push("--json".to_owned());
        // The other machine's shell takes the words apart again.
        let words: Vec<_> = std::iter::once(&self.address.provost)
            .chain(&arguments)
            .map(|word| quoted(word))
            .collect();
        let mut command = self.address.ssh_command.clone();
        command.extend(["--".to_owned(), host.to_owned(), words.join(" ")]);
        let done = run(&command, stdin.as_deref(), self.timeout + SSH_SPARE).await?;
        match done.code {
            Some(0) => serde_json::from_str(&done.stdout)
                .map_err(|error| Failure::failed(format!("{host} answered what is no JSON: {error}"))),
            Some(SSH_FAILED) => Err(Failure::new(
                Exit::Unreachable,
                format!("ssh {host}: {}", done.stderr),
            )),
            code => Err(Failure::new(exit(code), done.stderr)),
        }
    }
}

fn json(answer: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(answer).map_err(|error| Failure::failed(error.to_string()))
}

/// What the exit status of a `provost` elsewhere says.
fn exit(code: Option<i32>) -> Exit {
    let all = [
        Exit::Usage,
        Exit::Unreachable,
        Exit::Denied,
        Exit::Refused,
        Exit::Undone,
        Exit::TimedOut,
    ];
    all.into_iter()
        .find(|exit| code == Some(exit.code().into()))
        .unwrap_or(Exit::Failed)
}

/// The command line of a request, and what goes to its standard input.
fn remote(ask: &Ask) -> (Vec<String>, Option<String>) {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let option = |arguments: &mut Vec<String>, name: &str, value: &str| {
        if !value.is_empty() {
            arguments.push(format!("{name}={value}"));
        }
    };
    match ask {
        Ask::Status => (words(&["status"]), None),
        Ask::Policies => (words(&["policy", "list"]), None),
        Ask::Look { interval_s } => (
            words(&["top", "--once", "--interval", &interval_s.to_string()]),
            None,
        ),
        Ask::Attach {
            policy,
            position,
            dry_run,
        } => {
            let mut arguments = words(&["policy", "attach", "--config=-"]);
            option(&mut arguments, "--kind", &policy.kind);
            option(&mut arguments, "--name", &policy.name);
            if policy.version > 0 {
                option(&mut arguments, "--kind-version", &policy.version.to_string());
            }
            option(&mut arguments, "--app", &policy.app);
            option(&mut arguments, "--service", &policy.service);
            for method in &policy.methods {
                option(&mut arguments, "--method", method);
            }
            option(&mut arguments, "--side", &policy.side);
            option(&mut arguments, "--on-fault", &policy.on_fault);
            if let Some(position) = position {
                option(&mut arguments, "--position", &position.to_string());
            }
            arguments.extend(dry_run.then(|| "--dry-run".to_owned()));
            (arguments, Some(policy.config.clone()))
        }
        Ask::Detach { name } => (words(&["policy", "detach", name]), None),
        Ask::Set {
            name,
            config,
            dry_run,
        } => {
            let mut arguments = words(&["policy", "set", name, "--config=-"]);
            arguments.extend(dry_run.then(|| "--dry-run".to_owned()));
            (arguments, Some(config.clone()))
        }
        Ask::Order { names } => {
            let mut arguments = words(&["policy", "order"]);
            arguments.extend(names.iter().cloned());
            (arguments, None)
        }
        Ask::Upgrade(request) => {
            let mut arguments = words(&["engine", "upgrade", &request.kind]);
            if request.version > 0 {
                option(&mut arguments, "--version", &request.version.to_string());
            }
            option(&mut arguments, "--policy", &request.policy);
            option(&mut arguments, "--app", &request.app);
            if request.connection > 0 {
                option(&mut arguments, "--connection", &request.connection.to_string());
            }
            (arguments, None)
        }
        Ask::Rollback { kind } => (words(&["engine", "rollback", kind]), None),
        Ask::UpgradeDaemon { binary, timeout_ms } => {
            let mut arguments = words(&["daemon", "upgrade"]);
            option(&mut arguments, "--binary", binary);
            if *timeout_ms > 0 {
                option(&mut arguments, "--ready-ms", &timeout_ms.to_string());
            }
            (arguments, None)
        }
        Ask::Load { path } => (words(&["engine", "load", path]), None),
    }
}

/// A word as a POSIX shell reads it back.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// A command that has ended.
pub(crate) struct Done {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Done {
    /// How it failed, with what it said of it; `Ok` where it did not.
    pub(crate) fn succeeded(&self) -> Result<(), Failure> {
        let ended = match self.code {
            Some(0) => return Ok(()),
            Some(code) => format!("exit status {code}"),
            None => "killed by a signal".to_owned(),
        };
        Err(Failure::failed(match self.stderr.as_str() {
            "" => ended,
            said => format!("{ended}: {said}"),
        }))
    }
}

/// Runs a command on this machine.
pub(crate) async fn run(command: &[String], stdin: Option<&str>, timeout: Duration) -> Result<Done, Failure> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(Failure::usage("an empty command"));
    };
    let wrong = |error: std::io::Error| Failure::failed(format!("{program}: {error}"));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(match stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(wrong)?;
    let input = child.stdin.take();
    let feed = async {
        if let (Some(mut input), Some(text)) = (input, stdin) {
            // A command that does not read its input says itself what is wrong.
            let _ = input.write_all(text.as_bytes()).await;
        }
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(timeout, both)
        .await
        .map_err(|_| {
            Failure::new(
                Exit::TimedOut,
                format!("{program}: not done within {:.0} s", timeout.as_secs_f64()),
            )
        })?
        .map_err(wrong)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let stderr = text(&output.stderr[output.stderr.len().saturating_sub(ERROR_BYTES_MAX)..]);
    Ok(Done {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: stderr.strip_prefix("provost: ").unwrap_or(&stderr).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_the_other_shell() {
        assert_eq!(quoted("--kind=rate-limit"), "--kind=rate-limit");
        assert_eq!(quoted("--app=shop-*"), "'--app=shop-*'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn every_request_is_a_command_line_that_this_program_takes() {
        use clap::CommandFactory;
        let policy = Policy {
            kind: "rate-limit".into(),
            name: "limit".into(),
            version: 2,
            app: "shop-*".into(),
            service: "kv.Kv".into(),
            methods: vec!["Get".into(), "/kv.Kv/P*".into()],
            side: "client".into(),
            on_fault: "pass".into(),
            config: "burst = 1\n".into(),
        };
        let upgrade = UpgradeEngineRequest {
            kind: "transport-tcp".into(),
            version: 2,
            connection: 7,
            ..UpgradeEngineRequest::default()
        };
        let asks = [
            Ask::Status,
            Ask::Policies,
            Ask::Look { interval_s: 1.5 },
            Ask::Attach {
                policy,
                position: Some(0),
                dry_run: true,
            },
            Ask::Detach { name: "limit".into() },
            Ask::Set {
                name: "limit".into(),
                config: String::new(),
                dry_run: true,
            },
            Ask::Order {
                names: vec!["a".into(), "b".into()],
            },
            Ask::Upgrade(upgrade),
            Ask::Rollback {
                kind: "transport-tcp".into(),
            },
            Ask::UpgradeDaemon {
                binary: "/opt/provostd".into(),
                timeout_ms: 500,
            },
            Ask::Load {
                path: "/lib/x.so".into(),
            },
        ];
        for ask in asks {
            let mut words = vec!["provost".to_owned()];
            words.extend(remote(&ask).0);
            words.extend(["--timeout", "3", "--socket", "/tmp/a.sock", "--json"].map(str::to_owned));
            let parsed = crate::Arguments::command().try_get_matches_from(&words);
            assert!(parsed.is_ok(), "{words:?}: {}", parsed.unwrap_err());
        }
    }
}
