//! Proxies of others that pass gRPC on and do nothing else, each on one thread as everything else is.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::envoy;
use crate::failure::Failure;
use crate::machine::is_program;
use crate::plan::ProxyKind;

impl ProxyKind {
    /// Its program: Envoy's of PyPI, Debian's of the others.
    ///
    /// # Errors
    /// It is not to be had here.
    pub(crate) fn program(self) -> Result<PathBuf, Failure> {
        match self {
            ProxyKind::Envoy => envoy::program(),
            ProxyKind::Nginx => found("nginx"),
            ProxyKind::Haproxy => found("haproxy"),
            ProxyKind::Provost => Err(Failure::role("provost", "is no program of others")),
        }
    }

    /// What passes every call from `listen` on to `upstream`; `filters` are Envoy's.
    pub(crate) fn configuration(
        self,
        name: &str,
        listen: SocketAddr,
        upstream: SocketAddr,
        filters: &[Value],
    ) -> String {
        match self {
            ProxyKind::Envoy => envoy::configuration(name, listen, upstream, filters).to_string(),
            ProxyKind::Nginx => nginx(listen, upstream),
            ProxyKind::Haproxy | ProxyKind::Provost => haproxy(listen, upstream),
        }
    }

    /// Arguments that start it in the foreground.
    pub(crate) fn arguments(self, configuration: &Path) -> Vec<String> {
        let file = configuration.to_string_lossy().into_owned();
        match self {
            ProxyKind::Envoy => envoy::arguments(configuration),
            // It writes into its own folder unless told otherwise.
            ProxyKind::Nginx => {
                let folder = configuration.parent().unwrap_or(Path::new("/"));
                let folder = folder.to_string_lossy().into_owned();
                [
                    "-p".into(),
                    folder,
                    "-e".into(),
                    "stderr".into(),
                    "-c".into(),
                    file,
                ]
                .into()
            }
            ProxyKind::Haproxy | ProxyKind::Provost => ["-db".into(), "-f".into(), file].into(),
        }
    }
}

/// A program on the path, or where Debian has those of administrators.
fn found(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
    let mut programs = folders.map(|folder| folder.join(name));
    programs.find(|program| is_program(program)).ok_or_else(|| {
        Failure::Unavailable(format!(
            "{name} is not installed (Debian's package has that name)"
        ))
    })
}

/// One process. A connection ends for no number of calls, and nothing is logged or kept in files.
fn nginx(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "daemon off;
master_process off;
pid nginx-{port}.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_max_body_size 0;
  client_body_temp_path nginx-{port}-bodies;
  grpc_read_timeout 1h;
  grpc_send_timeout 1h;
  keepalive_requests 1000000000;
  http2_max_concurrent_streams 1024;
  upstream server {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}
  server {{
    listen {listen} http2;
    location / {{ grpc_pass grpc://server; grpc_socket_keepalive on; }}
  }}
}}
",
        port = listen.port()
    )
}

/// One thread. Connections to the server are shared by all calls.
fn haproxy(listen: SocketAddr, upstream: SocketAddr) -> String {
    format!(
        "global
  nbthread 1
  maxconn 4000
  tune.h2.max-concurrent-streams 1024
defaults
  mode http
  http-reuse always
  timeout connect 2s
  timeout client 1h
  timeout server 1h
listen grpc
  bind {listen} proto h2
  server server {upstream} proto h2
"
    )
}
