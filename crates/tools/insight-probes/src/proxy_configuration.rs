//! The configurations that proxies are started with: one listener, one upstream, nothing else, and no timeout, so that a
//! slow run is seen as slow.

use std::fmt::Write;
use std::path::Path;

use provost_insight::access_log::ENVOY_LOG_FORMAT;
use provost_insight::profile::Protocol;
use serde_json::{Value, json};

use crate::failure::ProbeFailure;
use crate::filters;
use crate::load::{ECHO_PATH, MESSAGE_BYTES_MAX};
use crate::proxies::{ProxyJob, ProxyKind, ProxyVariant, ServerAddress};

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
        ProxyKind::Provostd => "provostd.toml",
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
            // Access logs are read while it runs.
            "--file-flush-interval-msec",
            "50",
            "-c",
            &file,
        ],
        ProxyKind::Nginx => vec!["-p", folder.to_str().unwrap_or("."), "-e", "stderr", "-c", &file],
        ProxyKind::Haproxy => vec!["-db", "-f", &file],
        ProxyKind::Provostd => vec!["--config", &file],
    };
    words.into_iter().map(String::from).collect()
}

/// A proxy's configuration for a job.
pub(crate) fn of(kind: ProxyKind, job: &ProxyJob, folder: &Path) -> Result<String, ProbeFailure> {
    let has_filters = matches!(kind, ProxyKind::Envoy | ProxyKind::Provostd);
    if !has_filters && !job.filters.is_empty() {
        let why = format!(
            "filters are for Envoy and provostd; {} runs none here",
            kind.name()
        );
        return Err(ProbeFailure::Unavailable(why));
    }
    let splices = kind == ProxyKind::Haproxy && job.protocol == Protocol::Tcp;
    if job.variant == Some(ProxyVariant::ZeroCopy) && !splices {
        let why = format!(
            "{} copies what it passes on of {}: HAProxy splices tcp",
            kind.name(),
            job.protocol
        );
        return Err(ProbeFailure::Unavailable(why));
    }
    match kind {
        ProxyKind::Envoy => Ok(envoy(job)?.to_string()),
        ProxyKind::Nginx => nginx(job, folder),
        ProxyKind::Haproxy => haproxy(job),
        ProxyKind::Provostd => provostd(job, folder),
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
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": envoy_server(&job.upstream) } }] }],
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
    let logs = job.access_log.iter().map(|path| envoy_log(path));
    Ok(json!({
        "@type": format!("{ENVOY_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "access_log": logs.collect::<Vec<_>>(),
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

fn envoy_log(path: &Path) -> Value {
    let keys = ENVOY_LOG_FORMAT.map(|(key, operator)| (key.to_string(), Value::from(operator)));
    json!({
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": format!("{ENVOY_TYPE}access_loggers.file.v3.FileAccessLog"),
            "path": path.display().to_string(),
            "log_format": { "json_format": Value::Object(keys.into_iter().collect()) },
        },
    })
}

fn envoy_address(address: std::net::SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}

fn envoy_server(address: &ServerAddress) -> Value {
    match address {
        ServerAddress::Tcp(address) => envoy_address(*address),
        ServerAddress::Unix(path) => json!({ "pipe": { "path": path.display().to_string() } }),
    }
}

/// A server as nginx and provostd write it, and with another word before the path HAProxy.
fn server(address: &ServerAddress, before_path: &str) -> String {
    match address {
        ServerAddress::Tcp(address) => address.to_string(),
        ServerAddress::Unix(path) => format!("{before_path}{}", path.display()),
    }
}

/// Where Debian keeps nginx's loadable modules.
const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

fn nginx(job: &ProxyJob, folder: &Path) -> Result<String, ProbeFailure> {
    let (listen, upstream, folder) = (job.listen, server(&job.upstream, "unix:"), folder.display());
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
    let (listen, upstream) = (job.listen, server(&job.upstream, "unix@"));
    let splicing = if job.variant == Some(ProxyVariant::ZeroCopy) {
        "  option splice-request\n  option splice-response\n"
    } else {
        ""
    };
    Ok(format!(
        "global\n  nbthread 1\n  maxconn 4096\ndefaults\n  mode {mode}\n  timeout connect 2s\n  timeout client 1h\n  timeout server 1h\n{splicing}\
         frontend profiled\n  bind {listen}{protocol}\n  default_backend upstream\n\
         backend upstream\n  server upstream {upstream}{protocol}\n"
    ))
}

/// A node between a client and a server of gRPC, neither of which brings a schema.
fn provostd(job: &ProxyJob, folder: &Path) -> Result<String, ProbeFailure> {
    if job.protocol != Protocol::Grpc {
        return Err(unsupported(ProxyKind::Provostd, job.protocol));
    }
    let (listen, upstream) = (job.listen, server(&job.upstream, "unix:"));
    let service = ECHO_PATH
        .trim_start_matches('/')
        .split('/')
        .next()
        .unwrap_or_default();
    let policies: String = job
        .filters
        .iter()
        .map(|name| filters::provost(name))
        .collect::<Result<_, _>>()?;
    Ok(format!(
        "[control]\nsocket = \"{}/provostd.sock\"\n[log]\nlevel = \"warn\"\n\
         [[grpc.listener]]\nname = \"profiled\"\naddress = \"{listen}\"\napp = \"profiled\"\nmessage_bytes = {MESSAGE_BYTES_MAX}\n\
         [[route]]\nservice = \"{service}\"\ntransport = \"grpc\"\nendpoints = [\"{upstream}\"]\n{policies}",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(protocol: Protocol, variant: Option<ProxyVariant>) -> ProxyJob {
        ProxyJob {
            protocol,
            listen: ([127, 0, 0, 1], 1000).into(),
            upstream: match variant {
                Some(ProxyVariant::UnixSockets) => ServerAddress::Unix("/folder/server".into()),
                _ => ServerAddress::Tcp(([127, 0, 0, 1], 2000).into()),
            },
            filters: vec![],
            variant,
            access_log: None,
        }
    }

    fn text(kind: ProxyKind, job: &ProxyJob) -> String {
        of(kind, job, Path::new("/folder")).unwrap()
    }

    #[test]
    fn each_proxy_is_told_of_a_unix_socket_in_its_own_words() {
        let unix = job(Protocol::Grpc, Some(ProxyVariant::UnixSockets));
        for (kind, words) in [
            (ProxyKind::Envoy, r#""pipe":{"path":"/folder/server"}"#),
            (ProxyKind::Nginx, "server unix:/folder/server;"),
            (ProxyKind::Haproxy, "server upstream unix@/folder/server proto h2"),
            (ProxyKind::Provostd, r#"endpoints = ["unix:/folder/server"]"#),
        ] {
            assert!(text(kind, &unix).contains(words), "{}", text(kind, &unix));
            let tcp = text(kind, &job(Protocol::Grpc, None));
            assert!(!tcp.contains("/folder/server") && tcp.contains("2000"), "{tcp}");
        }
    }

    #[test]
    fn what_a_proxy_cannot_do_is_said_with_who_can() {
        let zero_copy = |protocol| job(protocol, Some(ProxyVariant::ZeroCopy));
        assert!(text(ProxyKind::Haproxy, &zero_copy(Protocol::Tcp)).contains("splice-request"));
        let refused = |kind, job: &ProxyJob| {
            let refused = of(kind, job, Path::new("/folder")).unwrap_err();
            assert!(matches!(refused, ProbeFailure::Unavailable(_)), "{refused}");
            refused.to_string()
        };
        assert!(refused(ProxyKind::Haproxy, &zero_copy(Protocol::Http1)).contains("HAProxy splices tcp"));
        assert!(refused(ProxyKind::Envoy, &zero_copy(Protocol::Tcp)).contains("HAProxy splices tcp"));
        assert!(refused(ProxyKind::Provostd, &job(Protocol::Http1, None)).contains("http1"));
        let filtered = ProxyJob {
            filters: vec!["lua".into()],
            ..job(Protocol::Http1, None)
        };
        assert!(refused(ProxyKind::Nginx, &filtered).contains("filters are for Envoy and provostd"));
    }
}
