//! Members on this machine, each a process: for a look at the store, and for tests and measurements.

use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

/// What a member writes before its address, once it has one.
pub const LISTENING: &str = "listening on ";

/// Members of one cluster. They end when this is dropped, and also if this process dies.
#[derive(Debug)]
pub struct LocalCluster {
    members: Vec<MemberProcess>,
}

#[derive(Debug)]
struct MemberProcess {
    id: u64,
    address: SocketAddr,
    child: Child,
    /// A member ends when this ends.
    _input: ChildStdin,
}

/// Where members keep their journals.
#[derive(Clone, Debug)]
pub enum JournalPlace {
    Memory,
    /// In folders in this one, named by the members' numbers.
    Folder(PathBuf),
}

impl LocalCluster {
    /// Starts so many members of this program, with these further arguments, on free ports of the loopback interface.
    ///
    /// # Errors
    /// If one does not start.
    pub fn start(
        program: &Path,
        members: u64,
        keep: &JournalPlace,
        arguments: &[&str],
    ) -> io::Result<LocalCluster> {
        let mut local = LocalCluster { members: Vec::new() };
        for id in 1..=members {
            local.members.push(begin(program, id, keep, arguments)?);
        }
        let list = local.list();
        for member in &mut local.members {
            writeln!(member._input, "{list}")?;
            member._input.flush()?;
        }
        Ok(local)
    }

    /// The members, as other commands take them.
    #[must_use]
    pub fn list(&self) -> String {
        let name = |member: &MemberProcess| format!("{}={}", member.id, member.address);
        self.members.iter().map(name).collect::<Vec<_>>().join(",")
    }

    #[must_use]
    pub fn members(&self) -> Vec<(u64, SocketAddr)> {
        self.members
            .iter()
            .map(|member| (member.id, member.address))
            .collect()
    }

    /// Ends one member at once, as if its machine had failed.
    ///
    /// # Errors
    /// If there is no such member, or it cannot be ended.
    pub fn kill(&mut self, id: u64) -> io::Result<()> {
        let member = self.members.iter_mut().find(|member| member.id == id);
        let member = member.ok_or_else(|| io::Error::other(format!("there is no member {id}")))?;
        member.child.kill()?;
        member.child.wait()?;
        Ok(())
    }

    /// Waits until a member ends.
    ///
    /// # Errors
    /// If that cannot be known.
    pub fn wait(&mut self) -> io::Result<()> {
        match self.members.first_mut() {
            Some(member) => member.child.wait().map(drop),
            None => Ok(()),
        }
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            // One that has ended already is as it should be.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}

fn begin(program: &Path, id: u64, keep: &JournalPlace, arguments: &[&str]) -> io::Result<MemberProcess> {
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "127.0.0.1:0", "--members", "-", "--id"]);
    command.arg(id.to_string()).args(arguments);
    if let JournalPlace::Folder(folder) = keep {
        command.arg("--folder").arg(folder.join(id.to_string()));
    }
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("a member has no pipes"));
    };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let address = line
        .trim()
        .strip_prefix(LISTENING)
        .and_then(|address| address.parse().ok());
    match address {
        Some(address) => Ok(MemberProcess {
            id,
            address,
            child,
            _input: input,
        }),
        None => {
            let _ = child.kill();
            let _ = child.wait();
            Err(io::Error::other(format!("member {id} did not start: '{line}'")))
        }
    }
}
