//! What the machine has: sockets, the package, ports, certificates.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use provostd::config::GroupAccount;
use rustix::io::Errno;

use super::NodePlan;
use provost_terminal::failure::{Exit, Failure};

/// Where the package puts its unit.
const UNITS: [&str; 3] = [
    "/usr/lib/systemd/system/provostd.service",
    "/lib/systemd/system/provostd.service",
    "/etc/systemd/system/provostd.service",
];
/// The group of the package's service.
pub(super) const GROUP: &str = "provost";
/// Where apps attach to the service of a machine.
const SOCKET_OF_ROOT: &str = "/run/provost/provostd.sock";
/// Ports that are tried, from the usual one on.
const PORTS_TRIED: u16 = 100;
/// Names of the file with the authority, and of a certificate with its key; `{}` is the node's name.
const AUTHORITIES: [&str; 3] = ["ca.pem", "ca.crt", "roots.pem"];
const PAIRS: [(&str, &str); 4] = [
    ("{}.pem", "{}.key"),
    ("node.pem", "node.key"),
    ("cert.pem", "key.pem"),
    ("tls.crt", "tls.key"),
];
/// How a SPIFFE id begins.
const SPIFFE: &str = "spiffe://";
/// Permissions of others on a file: read and write, by its group and by everybody.
const OTHERS: u32 = 0o066;

/// What decides what a configuration says where nothing was asked.
#[derive(Debug)]
pub(super) struct MachineFacts {
    pub(super) host: String,
    /// The number of the user who asks.
    pub(super) user: u32,
    /// The user's own directory for sockets.
    pub(super) runtime_directory: Option<PathBuf>,
    /// Whether systemd knows the service, and whether its group is there.
    pub(super) has_unit: bool,
    pub(super) has_group: bool,
}

impl MachineFacts {
    pub(super) fn of_this_machine() -> MachineFacts {
        let directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        MachineFacts {
            host: if host.is_empty() { "node".to_owned() } else { host },
            user: rustix::process::getuid().as_raw(),
            runtime_directory: directory.filter(|directory| directory.is_dir()),
            has_unit: UNITS.iter().any(|unit| Path::new(unit).exists()),
            has_group: is_group(GROUP),
        }
    }

    /// Whether the configuration is that of the package's service.
    pub(super) fn is_package(&self) -> bool {
        self.user == 0 && self.has_unit && self.has_group
    }

    pub(super) fn socket(&self) -> PathBuf {
        match &self.runtime_directory {
            _ if self.user == 0 => SOCKET_OF_ROOT.into(),
            Some(directory) => directory.join("provost.sock"),
            None => format!("/tmp/provost-{}/provost.sock", self.user).into(),
        }
    }
}

/// Whether the system has a group of this name. The configuration's own lookup decides.
fn is_group(name: &str) -> bool {
    let table = format!("name = \"{name}\"");
    #[derive(serde::Deserialize)]
    struct GroupEntry {
        name: GroupAccount,
    }
    toml::from_str::<GroupEntry>(&table).is_ok_and(|named| named.name.problem().is_none())
}

/// Where gRPC clients connect.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GrpcPlace {
    Port(SocketAddr),
    Socket(PathBuf),
}

/// Addresses that the configuration has already, and what is to be said of them.
#[derive(Debug, Default)]
pub(super) struct PlannedAddresses {
    taken: Vec<SocketAddr>,
    pub(super) warnings: Vec<String>,
}

impl PlannedAddresses {
    /// Whether a socket of the configuration has this port of this address.
    fn has(&self, ip: IpAddr, port: u16) -> bool {
        let overlaps = |other: &SocketAddr| {
            other.port() == port && (other.ip() == ip || other.ip().is_unspecified() || ip.is_unspecified())
        };
        self.taken.iter().any(overlaps)
    }
}

pub(super) fn grpc_place(
    text: &str,
    port: u16,
    planned: &mut PlannedAddresses,
) -> Result<GrpcPlace, Failure> {
    match text.strip_prefix("unix:") {
        Some(path) => absolute(Path::new(path)).map(GrpcPlace::Socket),
        None => address(text, port, "--grpc", planned).map(GrpcPlace::Port),
    }
}

/// An address with a port: the one that was given, or the first that is free from the usual one on and not planned for
/// something else.
pub(super) fn address(
    text: &str,
    usual: u16,
    option: &str,
    planned: &mut PlannedAddresses,
) -> Result<SocketAddr, Failure> {
    let address = free_address(text, usual, option, planned)?;
    planned.taken.push(address);
    Ok(address)
}

fn free_address(
    text: &str,
    usual: u16,
    option: &str,
    planned: &mut PlannedAddresses,
) -> Result<SocketAddr, Failure> {
    if let Ok(given) = text.parse::<SocketAddr>() {
        match TcpListener::bind(given) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => {
                return Err(not_here(option, given.ip()));
            }
            Err(error) => planned.warnings.push(format!(
                "{option} {given}: {error}: the node cannot start before that is free"
            )),
            Ok(_) => {}
        }
        return Ok(given);
    }
    let Ok(ip) = text.parse::<IpAddr>() else {
        let message = format!("{option} {text}: write an IP address, or IP:PORT, such as 127.0.0.1:{usual}");
        return Err(Failure::usage(message));
    };
    free_port(ip, usual, option, planned).map(|port| SocketAddr::new(ip, port))
}

fn free_port(ip: IpAddr, usual: u16, option: &str, planned: &PlannedAddresses) -> Result<u16, Failure> {
    for port in (usual..usual + PORTS_TRIED).filter(|port| !planned.has(ip, *port)) {
        match TcpListener::bind((ip, port)) {
            Ok(_) => return Ok(port),
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => return Err(not_here(option, ip)),
            Err(_) => {}
        }
    }
    let last = usual + PORTS_TRIED - 1;
    let message = format!("{option} {ip}: no port from {usual} to {last} is free; give one");
    Err(Failure::new(Exit::Refused, message))
}

fn not_here(option: &str, ip: IpAddr) -> Failure {
    let message = format!("{option}: {ip} is no address of this machine; `ip address` shows them");
    Failure::new(Exit::Refused, message)
}

/// Files of a node's identity.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TlsFound {
    pub(super) authority: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// Finds the files of a node in a directory, by their usual names.
pub(super) fn tls(directory: &Path, node: &str) -> Result<TlsFound, Failure> {
    let directory = absolute(directory)?;
    let there = |name: &str| Some(directory.join(name)).filter(|path| path.is_file());
    let pairs = PAIRS.map(|(certificate, key)| (certificate.replace("{}", node), key.replace("{}", node)));
    let authority = AUTHORITIES.iter().find_map(|name| there(name));
    let pair = pairs
        .iter()
        .find_map(|(certificate, key)| there(certificate).zip(there(key)));
    let what = match (authority, pair) {
        (Some(authority), Some((certificate, key))) => {
            return Ok(TlsFound {
                authority,
                certificate,
                key,
            });
        }
        (None, _) => format!("no authority ({})", AUTHORITIES.join(", ")),
        (Some(_), None) => {
            let names: Vec<_> = pairs
                .iter()
                .map(|(certificate, key)| format!("{certificate} with {key}"))
                .collect();
            format!("no certificate with its key ({})", names.join(", "))
        }
    };
    let message = format!(
        "--tls-dir: {} has {what}; docs/configuration.md, \"Making certificates\", says how to make them",
        directory.display()
    );
    Err(Failure::new(Exit::Refused, message))
}

/// What a configuration works with, but whoever writes it has to know.
pub(super) fn warnings(plan: &NodePlan, surroundings: &MachineFacts) -> Vec<String> {
    let mut warnings = Vec::new();
    let socket = plan.socket.display();
    if is_answered(&plan.socket) {
        warnings.push(format!(
            "a node answers at {socket} now: end that one first, or give --app-socket another path"
        ));
    }
    if let (None, Some(open)) = (
        &plan.tls,
        plan.listeners.iter().find(|address| is_open(**address)),
    ) {
        warnings.push(format!(
            "other nodes connect to {open} without TLS: use --tls-dir where the network is not yours alone"
        ));
    }
    if let Some(GrpcPlace::Port(open)) = plan.grpc.as_ref()
        && is_open(*open)
    {
        warnings.push(format!(
            "gRPC clients connect to {open} in cleartext, and prove nothing of themselves: add a [grpc.listener.tls] table \
             (docs/configuration.md)"
        ));
    }
    if let Some(open) = plan.metrics.filter(|address| is_open(*address)) {
        warnings.push(format!(
            "metrics at {open} need no login: keep that port where only the scraper comes"
        ));
    }
    warnings.extend(nameless_servers(plan));
    if let Some(key) = plan.tls.as_ref().map(|tls| &tls.key)
        && std::fs::metadata(key).is_ok_and(|file| file.permissions().mode() & OTHERS != 0)
    {
        let key = key.display();
        warnings.push(format!("others may read the private key {key}: chmod 600 {key}"));
    }
    if surroundings.has_unit && !plan.is_package {
        let who = "the package's service has files of its own; this configuration is for a node that you start yourself";
        warnings.push(who.to_owned());
    }
    warnings
}

/// Where this node's certificate names no host, those of its servers will not either.
fn nameless_servers(plan: &NodePlan) -> Option<String> {
    let files = plan.tls.as_ref()?;
    if plan.routes.is_empty() || !plan.server_identities.is_empty() {
        return None;
    }
    // Files that are no good are refused before anything is written.
    let identities = provost_tls::identities_of(&files.certificate).ok()?;
    if identities.iter().any(|identity| !identity.starts_with(SPIFFE)) {
        return None;
    }
    let domain = identities.first()?.strip_prefix(SPIFFE)?.split('/').next()?;
    Some(format!(
        "servers whose certificates name no host are refused: add --server-identity '{SPIFFE}{domain}/node/*'"
    ))
}

/// Whether somebody listens at a socket. A node's control socket keeps the bounds of messages: it refuses a stream by its type,
/// where a file that nobody listens at refuses every connection.
fn is_answered(socket: &Path) -> bool {
    match UnixStream::connect(socket) {
        Ok(_) => true,
        Err(error) => error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()),
    }
}

/// Whether others than this machine reach an address.
fn is_open(address: SocketAddr) -> bool {
    !address.ip().is_loopback()
}

/// The path from the root: the service may run in another directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_passed_over_or_warned_of() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = taken.local_addr().unwrap();
        let mut planned = PlannedAddresses::default();
        // Ports of this kind end well below the highest.
        let next = address("127.0.0.1", here.port(), "--listen", &mut planned).unwrap();
        assert!(
            next.port() > here.port() && planned.warnings.is_empty(),
            "{next} {planned:?}"
        );
        // Nobody listens there yet, and the configuration has it.
        for ip in ["127.0.0.1", "0.0.0.0"] {
            let other = address(ip, next.port(), "--grpc", &mut planned).unwrap();
            assert!(other.port() > next.port(), "{other}");
        }
        let same = address(&here.to_string(), 1, "--listen", &mut planned).unwrap();
        assert!(
            same == here && planned.warnings[0].contains("before that is free"),
            "{planned:?}"
        );
        let elsewhere = address("192.0.2.1", 7700, "--listen", &mut planned).unwrap_err();
        assert!(
            elsewhere.message.contains("no address of this machine"),
            "{elsewhere}"
        );
        let nonsense = address("here", 7700, "--grpc", &mut planned).unwrap_err();
        assert!(
            nonsense.exit == Exit::Usage && nonsense.message.contains("127.0.0.1:7700"),
            "{nonsense}"
        );
    }

    #[test]
    fn certificates_are_found_by_the_node_s_name_first() {
        let directory = tempfile::tempdir().unwrap();
        let missing = tls(directory.path(), "b").unwrap_err();
        assert!(missing.message.contains("no authority (ca.pem"), "{missing}");
        let make = |name: &str| std::fs::write(directory.path().join(name), "").unwrap();
        make("ca.crt");
        make("b.pem");
        let missing = tls(directory.path(), "b").unwrap_err();
        assert!(missing.message.contains("b.pem with b.key"), "{missing}");
        make("tls.crt");
        make("tls.key");
        assert!(tls(directory.path(), "b").unwrap().key.ends_with("tls.key"));
        make("b.key");
        let found = tls(directory.path(), "b").unwrap();
        assert!(found.certificate.ends_with("b.pem") && found.authority.ends_with("ca.crt"));
        assert!(found.key.is_absolute());
    }

    #[test]
    fn groups_are_looked_up_as_a_configuration_does() {
        assert!(is_group("root"));
        assert!(!is_group("no-such-group-here"));
    }
}
