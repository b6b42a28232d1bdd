//! Where a call goes.

use std::error::Error;
use std::io;
use std::time::Duration;

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{GetStatusRequest, GrpcListener};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use provost_terminal::admin::{Node, set_variable};
use provost_terminal::failure::{Exit, Failure};

/// Where `provost call` and `provost load` send their calls.
#[derive(Args, Clone, Debug)]
pub(crate) struct CallPlace {
    /// A gRPC listener of a node, or any gRPC server in cleartext: HOST:PORT, :PORT on this host, or unix:PATH; without it, the
    /// node's first listener without TLS
    #[arg(long, value_name = "ADDRESS", env = set_variable("PROVOST_GRPC_ADDRESS"), value_parser = uri_of)]
    address: Option<String>,
}

/// What the option says, as a URI.
fn uri_of(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} is no address: write HOST:PORT, :PORT or unix:PATH");
    let uri = match text.split_once("://") {
        Some(("http", _)) => text.to_owned(),
        Some(("https", _)) => return Err("TLS is not spoken: name a listener in cleartext".to_owned()),
        Some(_) => return Err(bad()),
        None if text.starts_with("unix:") => {
            let path = std::path::absolute(&text["unix:".len()..]).map_err(|_| bad())?;
            format!("unix:{}", path.display())
        }
        None if text.starts_with(':') => format!("http://127.0.0.1{text}"),
        None => format!("http://{text}"),
    };
    let has_port = uri
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok_and(|port| port > 0));
    match uri.starts_with("unix:/") || has_port {
        true if Endpoint::from_shared(uri.clone()).is_ok() => Ok(uri),
        _ => Err(bad()),
    }
}

impl CallPlace {
    /// A way to there, which has connected once.
    pub(crate) async fn connect(
        &self,
        timeout: Duration,
        node: impl AsyncFnOnce() -> Result<Node, Failure>,
    ) -> Result<Channel, Failure> {
        let address = match &self.address {
            Some(address) => address.clone(),
            None => listener_of(node().await?).await?,
        };
        let endpoint = Endpoint::from_shared(address.clone())
            .map_err(unreachable)?
            .connect_timeout(timeout);
        endpoint.connect().await.map_err(|error| {
            let place = address.trim_start_matches("http://");
            unreachable(error).within(place)
        })
    }
}

/// The node's first listener that one can reach from here.
async fn listener_of(mut node: Node) -> Result<String, Failure> {
    let status = node.call(GetStatusRequest {}, AdminClient::get_status).await?;
    reachable(status.grpc_listeners)
}

/// The first listener that takes cleartext; Unix sockets, which tell who calls, come first.
fn reachable(mut listeners: Vec<GrpcListener>) -> Result<String, Failure> {
    listeners.sort_by_key(|listener| !listener.address.starts_with("unix:"));
    let Some(first) = listeners.iter().find(|listener| listener.tls.is_empty()) else {
        if let Some(secure) = listeners.first() {
            let message = format!(
                "listener \"{}\" speaks TLS: name another with --address",
                secure.name
            );
            return Err(Failure::new(Exit::Refused, message));
        }
        let message = "the node has no [[grpc.listener]] in its configuration: add one, or name a gRPC server with --address";
        return Err(Failure::new(Exit::Refused, message));
    };
    // An address of the whole host is reached at its own.
    let of_host = [("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")];
    let address = of_host.iter().find_map(|(all, own)| {
        let port = first.address.strip_prefix(all)?;
        Some(format!("{own}{port}"))
    });
    uri_of(&address.unwrap_or_else(|| first.address.clone())).map_err(Failure::usage)
}

/// Why there is no connection.
pub(crate) fn unreachable(error: tonic::transport::Error) -> Failure {
    Failure::new(
        Exit::Unreachable,
        format!("cannot connect: {}", first_cause(&error)),
    )
}

/// The status of a call that nobody has answered. What broke the connection tells nobody that something else than a gRPC server is
/// there: a node's port for other nodes, its metrics, a listener that speaks TLS.
pub(crate) fn with_hint(status: Status) -> Status {
    let is_broken = matches!(status.code(), Code::Internal | Code::Unknown | Code::Unavailable);
    match status.source().filter(|_| is_broken) {
        None => status,
        Some(error) => Status::unavailable(why_broken(error)),
    }
}

fn why_broken(error: &(dyn Error + 'static)) -> String {
    let first = first_cause(error);
    let hint = match first.downcast_ref::<io::Error>().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            "nobody takes connections there any more"
        }
        _ => "is what answers there a gRPC server, in cleartext?",
    };
    format!("{first}: {hint}")
}

fn first_cause<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut first = error;
    while let Some(source) = first.source() {
        first = source;
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_with_tls_is_passed_over_or_named() {
        let listener = |name: &str, address: &str, tls: &str| GrpcListener {
            name: name.to_owned(),
            address: address.to_owned(),
            clients: 0,
            tls: tls.to_owned(),
        };
        let secure = listener("public", "0.0.0.0:50051", "clients prove nothing");
        let local = listener("local", "0.0.0.0:50052", "");
        let socket = listener("socket", "unix:/run/g.sock", "");
        let of = |listeners: &[&GrpcListener]| reachable(listeners.iter().copied().cloned().collect());
        assert_eq!(of(&[&secure, &local]).unwrap(), "http://127.0.0.1:50052");
        assert_eq!(of(&[&secure, &local, &socket]).unwrap(), "unix:/run/g.sock");
        let refused = of(&[&secure]).unwrap_err();
        assert!(
            refused.exit == Exit::Refused
                && refused.message == "listener \"public\" speaks TLS: name another with --address",
            "{refused}"
        );
        assert!(of(&[]).unwrap_err().message.contains("[[grpc.listener]]"));
    }

    #[test]
    fn where_nobody_answers_nothing_is_asked_of_what_answers() {
        let said = |kind: io::ErrorKind| {
            let mut status = Status::unavailable("tcp connect error");
            status.set_source(std::sync::Arc::new(io::Error::from(kind)));
            with_hint(status).message().to_owned()
        };
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound] {
            assert!(said(kind).ends_with(": nobody takes connections there any more"));
        }
        assert!(said(io::ErrorKind::ConnectionReset).ends_with("a gRPC server, in cleartext?"));
        assert_eq!(with_hint(Status::unavailable("x")).message(), "x");
    }

    #[test]
    fn addresses_are_hosts_with_ports_or_sockets() {
        let of = |text: &str| uri_of(text).ok();
        let is = |uri: &str| Some(uri.to_owned());
        assert_eq!(of(":50051"), is("http://127.0.0.1:50051"));
        assert_eq!(of("node-a:50051"), is("http://node-a:50051"));
        assert_eq!(of("[::1]:50051"), is("http://[::1]:50051"));
        assert_eq!(of("http://node-a:50051"), is("http://node-a:50051"));
        assert_eq!(
            of("unix:/run/provost/grpc.sock"),
            is("unix:/run/provost/grpc.sock")
        );
        let here = std::env::current_dir().unwrap();
        let beside = format!("unix:{}", here.join("grpc.sock").display());
        assert_eq!(of("unix:grpc.sock"), Some(beside));
        for bad in [
            "",
            "node-a",
            "node-a:",
            "node-a:0",
            "node-a:70000",
            "ftp://a:1",
            "unix:",
            "a b:1",
        ] {
            assert!(uri_of(bad).is_err(), "{bad:?}");
        }
        assert!(uri_of("https://a:1").unwrap_err().contains("TLS"));
    }
}
