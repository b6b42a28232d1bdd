//! `provost init`: a first configuration for what this machine has.

mod found;
mod text;

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use provostd::AdminConfig;
use provostd::config::Sources;

use found::{GrpcPlace, MachineFacts, PlannedAddresses, TlsFound};
use provost_terminal::admin::set_variable;
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::print;

/// Where files go that say nothing else.
const OUTPUT_DEFAULT: &str = "provostd.toml";
/// The file of the packaged service.
const PACKAGE_FILE: &str = "/etc/provost/provostd.toml";
/// Ports that are tried first: of other nodes, gRPC clients, scrapers.
const LISTEN_PORT: u16 = 7700;
const GRPC_PORT: u16 = 50051;
const METRICS_PORT: u16 = 9464;

pub(crate) const EXAMPLES: &str = "\
Examples:
  provost init                              a node of its own, in provostd.toml
  provost init --output /etc/provost/provostd.toml --force
  provost init --grpc 127.0.0.1             for gRPC clients: port 50051, or the next
  provost init --grpc unix:/run/provost/grpc.sock
  provost init --name b --listen 0.0.0.0:7700 --tls-dir /etc/provost/tls
  provost init --route kv.Kv=b.example.org:7700 --tls-dir /etc/provost/tls
  provost init --output - | less            only look

A directory of --tls-dir has ca.pem (or ca.crt), and NAME.pem with NAME.key (or node.pem with node.key, cert.pem with
key.pem, tls.crt with tls.key); docs/configuration.md, \"Making certificates\", has the commands.";

/// What the configuration is to have.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InitOptions {
    /// The file to write; - prints it
    #[arg(long, short = 'o', value_name = "FILE", default_value = OUTPUT_DEFAULT)]
    output: PathBuf,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
    /// The node's name [default: the host's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The socket at which apps attach [default: the package's, or one of this user's]
    #[arg(long, value_name = "PATH", env = set_variable("PROVOST_SOCKET"))]
    app_socket: Option<PathBuf>,
    /// Where other nodes connect: IP or IP:PORT. Any number
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Where gRPC clients connect: IP, IP:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<String>,
    /// Where /metrics and health are: IP, IP:PORT, or none
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    metrics: String,
    /// Where a service on another node is. Any number
    #[arg(long, value_name = "SERVICE=HOST:PORT")]
    route: Vec<String>,
    /// A directory with this node's certificate, its key and the authority
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,
    /// Identity that other nodes prove, with * and ?, where certificates name no host. Any number
    #[arg(long, value_name = "PATTERN", requires = "tls_dir")]
    server_identity: Vec<String>,
}

/// What the configuration says.
#[derive(Debug, PartialEq, Eq)]
struct NodePlan {
    name: String,
    socket: PathBuf,
    /// Whether it is the service's of the package: its group, its directories.
    is_package: bool,
    listeners: Vec<SocketAddr>,
    grpc: Option<GrpcPlace>,
    metrics: Option<SocketAddr>,
    /// Services, each with the address of a node that has it.
    routes: Vec<(String, String)>,
    tls: Option<TlsFound>,
    server_identities: Vec<String>,
}

impl NodePlan {
    fn admin_socket(&self) -> PathBuf {
        AdminConfig::default().socket_beside(&self.socket)
    }
}

/// Writes a configuration, and says what to do with it.
pub(crate) fn run(options: &InitOptions) -> Result<(), Failure> {
    let surroundings = MachineFacts::of_this_machine();
    let (plan, warnings) = plan(options, &surroundings)?;
    let text = text::configuration(&plan);
    if options.output == Path::new("-") {
        return print(&text);
    }
    write(&text, options)?;
    let steps = text::next_steps(&plan, &options.output, &warnings);
    print(&steps)
}

fn plan(options: &InitOptions, surroundings: &MachineFacts) -> Result<(NodePlan, Vec<String>), Failure> {
    let mut planned = PlannedAddresses::default();
    let name = options.name.clone().unwrap_or_else(|| surroundings.host.clone());
    let tls = options
        .tls_dir
        .as_deref()
        .map(|directory| found::tls(directory, &name));
    let mut listeners = Vec::new();
    for address in &options.listen {
        listeners.push(found::address(address, LISTEN_PORT, "--listen", &mut planned)?);
    }
    let grpc = options.grpc.as_deref();
    let grpc = grpc.map(|address| found::grpc_place(address, GRPC_PORT, &mut planned));
    let metrics = match options.metrics.as_str() {
        "none" => None,
        address => Some(found::address(address, METRICS_PORT, "--metrics", &mut planned)?),
    };
    let routes: Result<_, Failure> = options.route.iter().map(|route| parse_route(route)).collect();
    let socket = options
        .app_socket
        .clone()
        .unwrap_or_else(|| surroundings.socket());
    let plan = NodePlan {
        name,
        socket: found::absolute(&socket)?,
        is_package: surroundings.is_package(),
        listeners,
        grpc: grpc.transpose()?,
        metrics,
        routes: routes?,
        tls: tls.transpose()?,
        server_identities: options.server_identity.clone(),
    };
    let mut warnings = planned.warnings;
    warnings.extend(found::warnings(&plan, surroundings));
    Ok((plan, warnings))
}

fn parse_route(route: &str) -> Result<(String, String), Failure> {
    match route.split_once('=') {
        Some((service, endpoint)) if !service.is_empty() && endpoint.contains(':') => {
            Ok((service.to_owned(), endpoint.to_owned()))
        }
        _ => Err(Failure::usage(format!(
            "--route {route}: write SERVICE=HOST:PORT, such as kv.Kv=b.example.org:{LISTEN_PORT}"
        ))),
    }
}

/// Checks the text as a start would, and puts it in its place. What does not pass is not written.
fn write(text: &str, options: &InitOptions) -> Result<(), Failure> {
    let output = &options.output;
    let is_there = || {
        let message = format!(
            "{} is there already: name another file with --output, or write over it with --force",
            output.display()
        );
        Failure::new(Exit::Refused, message)
    };
    if output.exists() && !options.force {
        return Err(is_there());
    }
    let directory = match output.parent() {
        Some(directory) if directory != Path::new("") => directory,
        _ => Path::new("."),
    };
    let failed =
        |error: std::io::Error| Failure::failed(format!("cannot write {}: {error}", output.display()));
    // Beside the file, so that it takes its place at once. A directory of configurations ignores names with a dot.
    let mut draft = tempfile::Builder::new()
        .prefix(".provost-init-")
        .suffix(".toml")
        .tempfile_in(directory)
        .map_err(failed)?;
    draft.write_all(text.as_bytes()).map_err(failed)?;
    draft
        .as_file()
        .set_permissions(Permissions::from_mode(0o644))
        .map_err(failed)?;
    check(draft.path(), output)?;
    let placed = if options.force {
        draft.persist(output)
    } else {
        draft.persist_noclobber(output)
    };
    match placed {
        Ok(file) => File::sync_all(&file).map_err(failed),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Err(is_there()),
        Err(error) => Err(failed(error.error)),
    }
}

fn check(draft: &Path, output: &Path) -> Result<(), Failure> {
    let read = provostd::read_configuration(&Sources::at(draft));
    read.map(drop).map_err(|error| {
        let told = error
            .to_string()
            .replace(&draft.display().to_string(), &output.display().to_string());
        Failure::new(Exit::Refused, format!("nothing was written: {told}"))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct CommandLine {
        #[command(flatten)]
        options: InitOptions,
    }

    fn options(arguments: &[&str]) -> InitOptions {
        let arguments = ["init", "--metrics", "none"].iter().chain(arguments);
        CommandLine::parse_from(arguments).options
    }

    fn alone() -> MachineFacts {
        MachineFacts {
            host: "host".to_owned(),
            user: 1000,
            runtime_directory: Some("/run/user/1000".into()),
            has_unit: false,
            has_group: false,
        }
    }

    fn planned(arguments: &[&str], surroundings: &MachineFacts) -> (NodePlan, Vec<String>) {
        plan(&options(arguments), surroundings).unwrap_or_else(|failure| panic!("{failure}"))
    }

    fn config(arguments: &[&str], surroundings: &MachineFacts) -> provostd::Config {
        let text = text::configuration(&planned(arguments, surroundings).0);
        provostd::Config::parse(&text, "init").unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    #[test]
    fn a_user_gets_sockets_of_the_users_own_and_the_package_gets_the_package_s() {
        let own = config(&["--app-socket", "/run/user/1000/provost.sock"], &alone());
        assert_eq!(own.node.name, "host");
        assert!(own.listeners.is_empty() && own.tls.is_none() && own.control.allow_gids.is_empty());
        let root = MachineFacts { user: 0, ..alone() };
        assert_eq!(root.socket(), Path::new("/run/provost/provostd.sock"));
        assert_eq!(alone().socket(), Path::new("/run/user/1000/provost.sock"));
        let bare = MachineFacts {
            runtime_directory: None,
            ..alone()
        };
        assert_eq!(bare.socket(), Path::new("/tmp/provost-1000/provost.sock"));
        let package = MachineFacts {
            has_unit: true,
            has_group: true,
            ..root
        };
        let (plan, _) = planned(&[], &package);
        let text = text::configuration(&plan);
        for line in [
            "allow_gids = [\"provost\"]",
            "cache_dir = \"/var/cache/provost\"",
            "/var/log/provost/audit.log",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text::next_steps(&plan, Path::new("x.toml"), &[]).contains("systemctl restart provostd"));
        // A user cannot write the package's files: the configuration is the user's.
        assert!(
            !MachineFacts {
                user: 1000,
                ..package
            }
            .is_package()
        );
    }

    #[test]
    fn what_is_to_be_typed_next_is_as_a_shell_takes_it() {
        let (plan, _) = planned(&["--app-socket", "/tmp/a b.sock"], &alone());
        let steps = text::next_steps(&plan, Path::new("it's.toml"), &[]);
        for line in [
            "wrote it's.toml; ",
            "  provostd --config 'it'\\''s.toml' &\n",
            "  export PROVOST_SOCKET='/tmp/a b.sock'\n",
        ] {
            assert!(steps.contains(line), "{line}: {steps}");
        }
    }

    #[test]
    fn everything_that_was_asked_for_is_in_the_configuration() {
        let asked = [
            "--name",
            "quoted \"b\"",
            "--listen",
            "127.0.0.1:0",
            "--grpc",
            "unix:/tmp/g.sock",
            "--route",
            "kv.Kv=b.example.org:7700",
            "--route",
            "*=c.example.org:7700",
        ];
        let config = config(&asked, &alone());
        assert_eq!(config.node.name, "quoted \"b\"");
        assert_eq!(config.listeners.len(), 1);
        assert_eq!(config.grpc.listeners[0].app.as_deref(), Some("grpc-clients"));
        let routes: Vec<_> = config.routes.iter().map(|route| &*route.service).collect();
        assert_eq!(routes, ["kv.Kv", "*"]);
        let over_tcp = super::tests::config(&["--grpc", "127.0.0.1:0"], &alone());
        assert_eq!(over_tcp.grpc.listeners[0].app.as_deref(), Some("grpc-clients"));
        let failure = plan(&options(&["--route", "kv.Kv"]), &alone()).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.message.contains("SERVICE=HOST:PORT"));
    }

    #[test]
    fn what_is_in_the_clear_for_others_is_warned_of() {
        let warned = |arguments: &[&str]| planned(arguments, &alone()).1.join("\n");
        assert_eq!(warned(&["--listen", "127.0.0.1:0"]), "");
        assert!(warned(&["--listen", "0.0.0.0:0"]).contains("--tls-dir"));
        assert!(warned(&["--grpc", "0.0.0.0:0"]).contains("add a [grpc.listener.tls] table"));
        let metrics = CommandLine::parse_from(["init", "--metrics", "0.0.0.0:0"]).options;
        let (_, warnings) = plan(&metrics, &alone()).unwrap();
        assert!(
            warnings[0].contains("metrics at 0.0.0.0:0 need no login"),
            "{warnings:?}"
        );
    }

    #[test]
    fn servers_that_only_an_id_names_are_warned_of() {
        let directory = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        let of = |more: &[&str]| {
            let own = ["--tls-dir", directory.path().to_str().unwrap()];
            let (plan, warnings) = planned(&[&own, more].concat(), &alone());
            let text = text::configuration(&plan);
            let offered = text.contains("\n# [grpc.listener.tls]\n");
            let warned = warnings
                .into_iter()
                .find(|warning| warning.contains("--server-identity"));
            (warned, offered)
        };
        let make = |names: Vec<rcgen::SanType>| {
            let mut params = rcgen::CertificateParams::default();
            params.subject_alt_names = names;
            write("node.pem", &params.self_signed(&key).unwrap().pem());
        };
        write("ca.pem", "");
        write("node.key", "");
        let route = ["--route", "kv.Kv=b.example.org:7700"];
        let id = rcgen::SanType::URI("spiffe://shop.example/node/a".try_into().unwrap());
        make(vec![id.clone()]);
        let said = of(&route).0.unwrap();
        assert!(
            said.ends_with("add --server-identity 'spiffe://shop.example/node/*'"),
            "{said}"
        );
        let named = [&route[..], &["--server-identity", "spiffe://shop.example/*"]].concat();
        assert_eq!(of(&named).0, None);
        assert_eq!(of(&[]), (None, false));
        assert_eq!(of(&["--grpc", "127.0.0.1:0"]), (None, true));
        make(vec![
            id,
            rcgen::SanType::DnsName("a.shop.example".try_into().unwrap()),
        ]);
        assert_eq!(of(&route).0, None);
    }
}
