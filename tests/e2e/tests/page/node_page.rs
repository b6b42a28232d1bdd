//! A pair of nodes of which the first has a page, and its answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use provost_e2e::driver::WAIT_MAX;
use provost_e2e::script::{Ask, Echo};
use provost_e2e::{Node, NodeOptions, Setting, eventually};
use serde_json::Value;

pub(crate) const ROLE: &str = env!("CARGO_BIN_EXE_e2e-role");
/// A token, as `openssl rand -hex 32` makes them.
pub(crate) const TOKEN: &str = "7d1c0f3e5a9b8c7d6e5f4a3b2c1d0e9f7d1c0f3e5a9b8c7d6e5f4a3b2c1d0e9f";
/// What a node logs when the page is there.
const SERVING: &str = "serving the page address=";

/// What a page answers.
#[derive(Debug)]
pub(crate) struct PageAnswer {
    pub(crate) status: u16,
    /// The head, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl PageAnswer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Why there is nothing to see.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends a request with these lines in its head.
pub(crate) fn ask(mut stream: impl Read + Write, request: &str, lines: &[&str]) -> PageAnswer {
    let lines: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
    write!(stream, "{request} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    PageAnswer {
        status: status.unwrap_or_default(),
        head: head.to_lowercase(),
        body: body.to_owned(),
    }
}

/// The same at a port, as a program asks that has the token.
pub(crate) fn ask_with(token: &str, address: SocketAddr, path: &str) -> PageAnswer {
    let authorization = format!("Authorization: Bearer {token}");
    ask_port(
        address,
        &format!("GET {path}"),
        &["Host: localhost", &authorization],
    )
}

pub(crate) fn ask_port(address: SocketAddr, request: &str, lines: &[&str]) -> PageAnswer {
    ask(TcpStream::connect(address).unwrap(), request, lines)
}

pub(crate) fn ask_socket(socket: &Path, path: &str) -> PageAnswer {
    let stream = UnixStream::connect(socket).unwrap();
    ask(stream, &format!("GET {path}"), &["Host: localhost"])
}

/// A folder for what a configuration names before its world is there.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("ppage-").tempdir().unwrap()
}

/// A file with a token that nobody else may read.
pub(crate) fn token_file(folder: &Path) -> PathBuf {
    let file = folder.join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

/// The tables of a page at a port, for whoever has the token of the file.
pub(crate) fn page_at_port(token_file: &Path, role: &str) -> String {
    format!(
        "[page]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"{}\"\ntoken_role = \"{role}\"\n",
        token_file.display()
    )
}

/// Policies of some kinds, and one that no call matches.
pub(crate) const POLICIES: &str = "\
[[policy]]\nname = \"counts\"\nkind = \"metrics\"\n\
[[policy]]\nname = \"samples\"\nkind = \"tap\"\n[policy.config]\nredact_metadata = [\"secret\"]\n\
[[policy]]\nname = \"limits-fails\"\nkind = \"rate-limit\"\nservice = \"probe.Probe\"\nmethods = [\"Fail\"]\n\
[policy.config]\nrequests_per_second = 1000\nburst = 10\n";

/// Two nodes, of which the first has these tables in its configuration.
pub(crate) fn pair(tables: String) -> Setting {
    let options = NodeOptions {
        tables,
        ..NodeOptions::default()
    };
    Setting::with(ROLE, &options, &NodeOptions::default())
}

/// Where the page of a node is that has it at a port: the last time that it said so.
pub(crate) fn address(node: &Node) -> SocketAddr {
    let mut found = None;
    eventually("the page is served", WAIT_MAX, || {
        let log = node.program.log();
        let said = log.lines().rev().find_map(|line| line.split_once(SERVING));
        found = said.and_then(|(_, address)| address.split(' ').next()?.parse().ok());
        found.is_some()
    });
    found.unwrap()
}

/// So many small calls.
pub(crate) fn echo(calls: usize) -> Ask {
    Ask::Echo(Echo {
        calls,
        ..Echo::default()
    })
}
