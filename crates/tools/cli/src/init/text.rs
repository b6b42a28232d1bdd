//! The text of a first configuration, and what to do with it.

use std::fmt::Write as _;
use std::path::Path;

use super::found::{GROUP, GrpcPlace};
use super::{NodePlan, PACKAGE_FILE};
use crate::plan::place::quoted as shell_word;
use provost_terminal::table::clean;

/// The name of the app that gRPC clients are.
const GRPC_APP: &str = "grpc-clients";
/// TLS towards gRPC clients, where the node has a certificate.
const GRPC_TLS: &str = "# TLS towards them, with the certificate of [tls]; docs/configuration.md has more keys.\n# [grpc.listener.tls]\n";
/// The directory that nobody has to make: the service's unit does.
const PACKAGE_RUNTIME: &str = "/run/provost";

/// A configuration with comments.
pub(super) fn configuration(plan: &NodePlan) -> String {
    let mut text = String::from(
        "# Configuration of provostd, written by `provost init`. Whatever is not said here has its default:\n\
         # `provostd --print-default-config` prints every key. After a change: `provost config check FILE`, then\n\
         # `provost config reload`.\n",
    );
    text += &node(plan);
    text += &control(plan);
    text += &observed(plan);
    text += &tls(plan);
    text += &listeners(plan);
    text += &grpc(plan);
    text += &routes(plan);
    text += POLICIES;
    text
}

/// A string as TOML writes it.
fn quoted(text: impl std::fmt::Display) -> String {
    toml::Value::String(text.to_string()).to_string()
}

fn node(plan: &NodePlan) -> String {
    format!(
        "\n[node]\n# What logs, metrics and other nodes call it.\nname = {}\n",
        quoted(&plan.name)
    )
}

fn control(plan: &NodePlan) -> String {
    let mut text = format!(
        "\n[control]\n# Where apps attach. Programs find it by the environment variable PROVOST_SOCKET. The operator's\n\
         # command finds the admin socket beside it: {}\nsocket = {}\n",
        clean(&plan.admin_socket().display().to_string()),
        quoted(plan.socket.display())
    );
    if plan.is_package {
        let _ = writeln!(
            text,
            "# Users in this group may attach apps: usermod --append --groups {GROUP} USER.\nallow_gids = [\"{GROUP}\"]\n\
             \n[schemas]\n# Schemas that were seen, so that a start compiles none anew.\ncache_dir = \"/var/cache/provost\""
        );
    } else {
        text += "# Root and the user who runs the service may attach. Others by name or number:\n# allow_uids = [\"shop\"]\n\
                 # allow_gids = [\"apps\"]\n";
    }
    text
}

fn observed(plan: &NodePlan) -> String {
    let mut text = "\n[observe]\n".to_owned();
    match plan.metrics {
        Some(address) => {
            let _ = writeln!(
                text,
                "# /metrics for Prometheus, /healthz, /readyz. Nobody has to log in there: keep it where only the scraper comes.\n\
                 listen = \"{address}\""
            );
        }
        None => text += "# /metrics for Prometheus, /healthz, /readyz:\n# listen = \"127.0.0.1:9464\"\n",
    }
    text += if plan.is_package {
        "# What operators did, and what policies denied.\naudit_file = \"/var/log/provost/audit.log\"\n"
    } else {
        "# What operators did, and what policies denied. Without a file it goes to the log.\n\
         # audit_file = \"/var/log/provost/audit.log\"\n"
    };
    text
}

fn tls(plan: &NodePlan) -> String {
    let Some(files) = &plan.tls else {
        return "\n# Mutual TLS between nodes. With this table every connection uses it; `provost init --tls-dir DIR` fills it in.\n\
                # [tls]\n# ca = \"/etc/provost/tls/ca.pem\"\n# cert = \"/etc/provost/tls/node.pem\"\n\
                # key = \"/etc/provost/tls/node.key\"\n"
            .to_owned();
    };
    let mut text = format!(
        "\n# Mutual TLS between nodes: every connection uses it. Files are looked at every second: replace one by renaming\n\
         # another over it.\n[tls]\nca = {}\ncert = {}\nkey = {}\n",
        quoted(files.authority.display()),
        quoted(files.certificate.display()),
        quoted(files.key.display())
    );
    text += "# Who may connect here; empty: all that the authority vouches for.\n# allow_peers = [\"spiffe://example.org/node/a\"]\n";
    if plan.server_identities.is_empty() {
        text += "# Who the nodes at the routes have to be, where their certificates name no host.\n\
                 # server_identities = [\"spiffe://example.org/node/*\"]\n";
    } else {
        let identities: Vec<_> = plan.server_identities.iter().map(quoted).collect();
        let _ = writeln!(
            text,
            "# Who the nodes at the routes have to be.\nserver_identities = [{}]",
            identities.join(", ")
        );
    }
    text
}

fn listeners(plan: &NodePlan) -> String {
    if plan.listeners.is_empty() {
        return "\n# Where other nodes connect. Calls between programs of this node need none.\n# [[listener]]\n\
                # address = \"0.0.0.0:7700\"\n"
            .to_owned();
    }
    let mut text = "\n# Where other nodes connect.\n".to_owned();
    for address in &plan.listeners {
        let _ = writeln!(text, "[[listener]]\naddress = \"{address}\"");
    }
    text
}

fn grpc(plan: &NodePlan) -> String {
    match &plan.grpc {
        None => "\n# Where gRPC clients of any language connect.\n# [[grpc.listener]]\n# name = \"grpc\"\n\
                 # address = \"127.0.0.1:50051\"\n# app = \"grpc-clients\"\n"
            .to_owned(),
        Some(GrpcPlace::Socket(path)) => format!(
            "\n# Where gRPC clients of any language connect. The kernel says whose process a client is. Without `app`, each is an app of\n\
             # its own, `process PID`, or the [[app]] whose conditions it meets.\n\
             [[grpc.listener]]\nname = \"grpc\"\naddress = {}\nmode = \"0660\"\napp = \"{GRPC_APP}\"\n",
            quoted(format!("unix:{}", path.display()))
        ),
        Some(GrpcPlace::Port(address)) => format!(
            "\n# Where gRPC clients of any language connect. They prove nothing: all of them are this app.\n\
             [[grpc.listener]]\nname = \"grpc\"\naddress = \"{address}\"\napp = \"{GRPC_APP}\"\n{}",
            if plan.tls.is_some() { GRPC_TLS } else { "" }
        ),
    }
}

fn routes(plan: &NodePlan) -> String {
    let mut text = "\n# Where services are. \"auto\" takes this node's own while one is bound here, else the endpoints.\n".to_owned();
    if plan.routes.is_empty() {
        text += "# [[route]]\n# service = \"kv.Kv\"\n# endpoints = [\"b.example.org:7700\"]\n";
    }
    for (service, endpoint) in &plan.routes {
        let (service, endpoint) = (quoted(service), quoted(endpoint));
        let _ = writeln!(text, "[[route]]\nservice = {service}\nendpoints = [{endpoint}]");
    }
    text
}

/// Counts calls from the start: dashboards and `provost top` live on them.
const POLICIES: &str = "
# What happens to calls, in this order: `provost engine list` has the kinds. This one counts them, for
# `provost top` and /metrics.
[[policy]]
name = \"metrics\"
kind = \"metrics\"
";

/// What was written, what to know, and what to do next.
pub(super) fn next_steps(plan: &NodePlan, output: &Path, warnings: &[String]) -> String {
    let mut text = format!(
        "wrote {}; it passes the checks of a start\n\n",
        clean(&output.display().to_string())
    );
    let mut fact = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<10} {}", clean(&value));
    };
    fact("node", plan.name.clone());
    fact("apps", plan.socket.display().to_string());
    fact("operators", plan.admin_socket().display().to_string());
    for address in &plan.listeners {
        let how = if plan.tls.is_some() {
            "mutual TLS"
        } else {
            "no TLS"
        };
        fact("nodes", format!("{address}, {how}"));
    }
    match &plan.grpc {
        Some(GrpcPlace::Port(address)) => fact("gRPC", address.to_string()),
        Some(GrpcPlace::Socket(path)) => fact("gRPC", format!("unix:{}", path.display())),
        None => {}
    }
    if let Some(address) = plan.metrics {
        fact("metrics", format!("http://{address}/metrics"));
    }
    for warning in warnings {
        let _ = writeln!(text, "\nwarning: {}", clean(warning));
    }
    text += "\nNext:\n";
    for step in steps(plan, output) {
        let _ = writeln!(text, "  {step}");
    }
    text
}

/// A path as a shell takes it.
fn typed(path: &Path) -> String {
    clean(&shell_word(&path.display().to_string()))
}

fn steps(plan: &NodePlan, output: &Path) -> Vec<String> {
    let file = typed(output);
    if plan.is_package {
        let place = format!("install -m 0644 {file} {PACKAGE_FILE}");
        let placed = (output != Path::new(PACKAGE_FILE)).then_some(place);
        let rest = ["systemctl restart provostd", "provost doctor"].map(str::to_owned);
        return placed.into_iter().chain(rest).collect();
    }
    let mut steps = Vec::new();
    let directory = plan.socket.parent().filter(|directory| !directory.exists());
    if let Some(directory) = directory {
        let mode = if directory == Path::new(PACKAGE_RUNTIME) {
            "0755"
        } else {
            "0700"
        };
        steps.push(format!("mkdir -m {mode} {}", typed(directory)));
    }
    steps.push(format!("provostd --config {file} &"));
    steps.push(format!("export PROVOST_SOCKET={}", typed(&plan.socket)));
    steps.extend(["provost status", "provost doctor"].map(str::to_owned));
    steps
}
