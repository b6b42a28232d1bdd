//! The configurations that proxies are started with: one listener, one upstream, nothing else, and no timeout, so that a
//! slow run is seen as slow.

use std::fmt::Write;
use std::path::Path;

use provost_insight::profile::Protocol;
use serde_json::{Value, json};

use crate::failure::ProbeFailure;
use crate::filters;
use crate::proxies::{ProxyJob, ProxyKind};

/// Prefix of the type of every piece of Envoy's configuration.
pub(crate) const ENVOY_TYPE: &str = "type.googleapis.com/envoy.extensions.";
/// Far over what is ever in flight.
const UNBOUNDED: u32 = 1 << 20;

/// The name of the file that a configuration goes into.
pub(crate) fn file_name(kind: ProxyKind) -> &'static str {
    match kind {
        ProxyKind::Envoy => "envoy.json",
        ProxyKind::Nginx => "nginx.conf",
        ProxyKind::Haproxy => "haproxy.cfg",
    }
}

/// Arguments that start a proxy with it, in the foreground.
pub(crate) fn arguments(kind: ProxyKind, file: &Path, folder: &Path) -> Vec<String> {
    let file = file.display().to_string();
    let words: Vec<&str> = match kind {
        ProxyKind::Envoy => vec![
            "--concurrency",
            "1",
            "--disable-hot-restart",
            "-l",
            "warning",
            "-c",
            &file,
        ],
        ProxyKind::Nginx => vec!["-p", folder.to_str().unwrap_or("."), "-e", "stderr", "-c", &file],
        ProxyKind::Haproxy => vec!["-db", "-f", &file],
    };
    words.into_iter().map(String::from).collect()
}

/// A proxy's configuration for a job.
pub(crate) fn of(kind: ProxyKind, job: &ProxyJob, folder: &Path) -> Result<String, ProbeFailure> {
    if kind != ProxyKind::Envoy && !job.filters.is_empty() {
        let why = format!("filters are for Envoy; {} runs none here", kind.name());
        return Err(ProbeFailure::Unavailable(why));
    }
    match kind {
        ProxyKind::Envoy => Ok(envoy(job)?.to_string()),
        ProxyKind::Nginx => nginx(job, folder),
        ProxyKind::Haproxy => haproxy(job),
    }
}

fn unsupported(kind: ProxyKind, protocol: Protocol) -> ProbeFailure {
    ProbeFailure::Unavailable(format!("{} does not pass on {protocol}", kind.name()))
}

fn envoy(job: &ProxyJob) -> Result<Value, ProbeFailure> {
    let thresholds = json!([{
        "max_connections": UNBOUNDED, "max_requests": UNBOUNDED, "max_pending_requests": UNBOUNDED,
    }]);
    let mut cluster = json!({
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "2s",
        "circuit_breakers": { "thresholds": thresholds },
        "load_assignment": {
            "cluster_name": "upstream",
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": envoy_address(job.upstream) } }] }],
        },
    });
    let (name, filter) = match job.protocol {
        Protocol::Tcp => {
            let kind = format!("{ENVOY_TYPE}filters.network.tcp_proxy.v3.TcpProxy");
            let proxy = json!({ "@type": kind, "stat_prefix": "profiled", "cluster": "upstream" });
            ("tcp_proxy", proxy)
        }
        Protocol::Http1 => ("http_connection_manager", connection_manager(job, "HTTP1")?),
        Protocol::Http2 | Protocol::Grpc => {
            cluster["typed_extension_protocol_options"] = json!({
                "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": format!("{ENVOY_TYPE}upstreams.http.v3.HttpProtocolOptions"),
                    "explicit_http_config": { "http2_protocol_options": {} },
                },
            });
            ("http_connection_manager", connection_manager(job, "HTTP2")?)
        }
        Protocol::Provost => return Err(unsupported(ProxyKind::Envoy, job.protocol)),
    };
    let listener = json!({
        "name": "profiled",
        "address": envoy_address(job.listen),
        "filter_chains": [{ "filters": [{ "name": format!("envoy.filters.network.{name}"), "typed_config": filter }] }],
    });
    Ok(json!({ "static_resources": { "listeners": [listener], "clusters": [cluster] } }))
}

fn connection_manager(job: &ProxyJob, codec: &str) -> Result<Value, ProbeFailure> {
    let mut filters = job
        .filters
        .iter()
        .map(|name| filters::envoy(name))
        .collect::<Result<Vec<_>, _>>()?;
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": format!("{ENVOY_TYPE}filters.http.router.v3.Router") },
    }));
    Ok(json!({
        "@type": format!("{ENVOY_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "profiled",
        "codec_type": codec,
        "route_config": { "virtual_hosts": [{
            "name": "all",
            "domains": ["*"],
            "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream", "timeout": "0s" } }],
        }] },
        "http_filters": filters,
    }))
}

fn envoy_address(address: std::net::SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

/// Where Debian keeps nginx's loadable modules.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

fn nginx(job: &ProxyJob, folder: &Path) -> Result<String, ProbeFailure> {
    let (listen, upstream, folder) = (job.listen, job.upstream, folder.display());
    let mut text = String::from("daemon off;\nworker_processes 1;\n");
    // Not that of the machine's own nginx.
    let _ = writeln!(text, "pid {folder}/nginx.pid;\nerror_log stderr warn;");
    if Path::new(NGINX_STREAM).exists() && job.protocol == Protocol::Tcp {
        let _ = writeln!(text, "load_module {NGINX_STREAM};");
    }
    text.push_str("events { worker_connections 4096; }\n");
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
        .concat();
    let http = |server: &str, location: &str| {
        format!(
            "http {{\naccess_log off;\n{temporary}client_body_buffer_size 1m;\nclient_max_body_size 0;\n\
             keepalive_requests 1000000000;\nupstream up {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}\n\
             server {{ listen {listen}{server};\n location / {{ {location} }} }}\n}}\n"
        )
    };
    let rest = match job.protocol {
        Protocol::Tcp => format!(
            "stream {{ server {{ listen {listen}; proxy_pass {upstream}; tcp_nodelay on; proxy_buffer_size 64k; }} }}\n"
        ),
        Protocol::Http1 => http(
            "",
            "proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_buffers 16 64k;",
        ),
        Protocol::Grpc => http(" http2", "grpc_pass grpc://up;"),
        Protocol::Http2 | Protocol::Provost => return Err(unsupported(ProxyKind::Nginx, job.protocol)),
    };
    text.push_str(&rest);
    Ok(text)
}

fn haproxy(job: &ProxyJob) -> Result<String, ProbeFailure> {
    let (mode, protocol) = match job.protocol {
        Protocol::Tcp => ("tcp", ""),
        Protocol::Http1 => ("http", ""),
        Protocol::Http2 | Protocol::Grpc => ("http", " proto h2"),
        Protocol::Provost => return Err(unsupported(ProxyKind::Haproxy, job.protocol)),
    };
    let (listen, upstream) = (job.listen, job.upstream);
    Ok(format!(
        "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode {mode}\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n\
         frontend profiled\n  bind {listen}{protocol}\n  default_backend upstream\n\
         backend upstream\n  server upstream {upstream}{protocol}\n"
    ))
}
