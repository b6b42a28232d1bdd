//! Nodes of the Provost setups: `provostd`, and how it is configured.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::failure::{Doing, Failure};
use crate::machine::is_program;
use crate::process::{Environment, Process};

/// What passes through a node's datapaths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policies {
    /// None.
    Bare,
    /// One that does nothing.
    Null,
}

/// How a node reaches the service that the bench calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It is bound here, and other nodes reach it at this address.
    Listen(SocketAddr),
    /// At this address of another node.
    Peer(SocketAddr),
    /// It is bound here.
    Local,
}

/// A node that runs.
pub(crate) struct Node {
    pub(crate) process: Process,
    /// Where apps attach.
    pub(crate) socket: PathBuf,
}

impl Node {
    /// Starts a node; its files go into `folder`.
    pub(crate) fn start(
        name: &str,
        reach: Reach,
        policies: Policies,
        folder: &Path,
    ) -> Result<Node, Failure> {
        let program = program()?;
        let in_folder = |suffix: &str| folder.join(format!("{name}.{suffix}"));
        let (socket, path, log) = (in_folder("sock"), in_folder("toml"), in_folder("log"));
        let text = configuration(name, &socket, reach, policies);
        std::fs::write(&path, text).doing(|| format!("write {}", path.display()))?;
        let arguments = ["--config".to_string(), path.to_string_lossy().into_owned()];
        let mut process = Process::start_program(name, &program, &arguments, &log)?;
        process
            .wait_for("it lets apps attach", || socket.exists())
            .map_err(|error| {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                Failure::role(
                    name,
                    format!("{error}; it said: {}", said.lines().last().unwrap_or("nothing")),
                )
            })?;
        Ok(Node { process, socket })
    }

    /// The environment of an app of this node.
    pub(crate) fn environment(&self) -> Environment {
        [("PROVOST_SOCKET".into(), self.socket.clone())].into()
    }
}

/// `provostd`, as cargo has built it beside this program.
fn program() -> Result<PathBuf, Failure> {
    let bench = std::env::current_exe().doing(|| "find this program".into())?;
    let program = bench.with_file_name("provostd");
    match is_program(&program) {
        true => Ok(program),
        false => Err(Failure::Unavailable(format!(
            "{} is missing: build the package provostd",
            program.display()
        ))),
    }
}

fn configuration(name: &str, socket: &Path, reach: Reach, policies: Policies) -> String {
    let policies = match policies {
        Policies::Bare => "",
        Policies::Null => "\"null\"",
    };
    let reach = match reach {
        Reach::Listen(address) => format!("[[listener]]\naddress = \"{address}\"\n"),
        Reach::Peer(address) => {
            format!("[[route]]\nservice = \"*\"\ntransport = \"tcp\"\nendpoints = [\"{address}\"]\n")
        }
        Reach::Local => "[[route]]\nservice = \"*\"\ntransport = \"local\"\n".into(),
    };
    format!(
        "policies = [{policies}]\n[node]\nname = \"{name}\"\n[control]\nsocket = \"{}\"\nmode = \"0600\"\n{reach}",
        socket.display()
    )
}
