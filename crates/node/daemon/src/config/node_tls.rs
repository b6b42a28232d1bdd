//! `[tls]`: what this node proves itself with to other nodes, and whom it believes.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use provost_tls::{OwnCertificate, ServerTrust, TlsConfig, TrustAnchors};
use serde::{Deserialize, Serialize};

use super::grpc_tls::TlsProblem;

/// Where a workload's endpoint is, unless it is configured (SPIFFE Workload Endpoint, section 4).
const ENDPOINT_VARIABLE: &str = "SPIFFE_ENDPOINT_SOCKET";
/// Bytes of a Unix socket's path, at most, in Linux.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// `[tls]`: with it, every connection between nodes is mutual TLS. Certificates are those of PEM files, or of the SPIFFE Workload
/// API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Authorities that peers' certificates must chain to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// The certificate chain of this node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Lists of certificates that their authorities have taken back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crls: Vec<PathBuf>,
    /// Identities that may connect here (`spiffe://…` or DNS names); empty: any that the authorities vouch for.
    #[serde(default)]
    pub allow_peers: Vec<String>,
    /// Identities of peers whose word is taken on which of their apps calls; `*` stands for any run of characters, `?` for
    /// one. Empty: nobody's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attesting_peers: Vec<String>,
    /// Identities of which a server has to prove one, with `*` and `?` as above; empty: its certificate has to be of the host that
    /// is connected to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub server_identities: Vec<String>,
    /// Where certificates, key and authorities come from in the place of files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spiffe: Option<SpiffeTable>,
}

/// `[tls.spiffe]`: the SPIFFE Workload API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SpiffeTable {
    /// Where it is: `unix:PATH`, or `tcp://IP:PORT`; without it, what the environment says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Which SPIFFE id this node takes, where it is given several; without it, the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Where a node's certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeTlsOrigin {
    Files(TlsConfig),
    Workload,
}

/// Where the SPIFFE Workload API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkloadEndpoint {
    Unix(String),
    Tcp(SocketAddr),
}

impl TlsFiles {
    /// Where its certificates come from. The error says what is wrong with which key.
    pub(crate) fn origin(&self) -> Result<NodeTlsOrigin, TlsProblem> {
        let files = [
            ("tls.ca", &self.ca),
            ("tls.cert", &self.cert),
            ("tls.key", &self.key),
        ];
        if self.spiffe.is_some() {
            let named = files.iter().find(|(_, file)| file.is_some());
            let named = named.map(|(key, _)| *key);
            return match named.or((!self.crls.is_empty()).then_some("tls.crls")) {
                Some(key) => Err((key, FILES_BESIDE_SPIFFE.to_owned())),
                None => Ok(NodeTlsOrigin::Workload),
            };
        }
        let [ca, cert, key] = files.map(|(key, file)| {
            let missing = || (key, FILE_MISSING.to_owned());
            file.clone().ok_or_else(missing)
        });
        Ok(NodeTlsOrigin::Files(TlsConfig {
            ca: ca?,
            cert: cert?,
            key: key?,
            crls: self.crls.clone(),
        }))
    }

    /// What is wrong with its keys and values.
    pub(super) fn problems(&self) -> Vec<TlsProblem> {
        let mut problems: Vec<_> = self.origin().err().into_iter().collect();
        let spiffe = self.spiffe.as_ref();
        if let Some(Err(problem)) =
            spiffe.and_then(|spiffe| spiffe.socket.as_deref().map(WorkloadEndpoint::parse))
        {
            problems.push(("tls.spiffe.socket", problem));
        }
        if let Some(id) = spiffe.and_then(|spiffe| spiffe.id.as_ref())
            && !id.starts_with("spiffe://")
        {
            problems.push((
                "tls.spiffe.id",
                format!("\"{id}\" is no SPIFFE id (spiffe://TRUST-DOMAIN/PATH)"),
            ));
        }
        problems
    }

    /// What gRPC listeners without a certificate of their own show.
    pub(super) fn own(&self) -> Option<OwnCertificate> {
        Some(match self.origin().ok()? {
            NodeTlsOrigin::Files(files) => OwnCertificate::Files {
                cert: files.cert,
                key: files.key,
            },
            NodeTlsOrigin::Workload => OwnCertificate::Workload,
        })
    }

    /// Whom gRPC listeners without authorities of their own believe.
    pub(super) fn trust(&self) -> Option<ServerTrust> {
        Some(match self.origin().ok()? {
            NodeTlsOrigin::Files(files) => ServerTrust {
                anchors: TrustAnchors::File(files.ca),
                crls: files.crls,
            },
            NodeTlsOrigin::Workload => ServerTrust {
                anchors: TrustAnchors::Workload,
                crls: Vec::new(),
            },
        })
    }
}

const FILES_BESIDE_SPIFFE: &str = "stands beside tls.spiffe, and the SPIFFE Workload API gives certificate, key, authorities and lists: \
                                   remove one of the two";
const FILE_MISSING: &str = "is missing: [tls] needs ca, cert and key, or a tls.spiffe table";

impl SpiffeTable {
    /// Where the Workload API is. The error says that it is not known.
    pub(crate) fn endpoint(&self) -> Result<WorkloadEndpoint, String> {
        if let Some(socket) = &self.socket {
            return WorkloadEndpoint::parse(socket)
                .map_err(|problem| format!("tls.spiffe.socket: {problem}"));
        }
        match std::env::var(ENDPOINT_VARIABLE) {
            Ok(socket) => {
                WorkloadEndpoint::parse(&socket).map_err(|problem| format!("{ENDPOINT_VARIABLE}: {problem}"))
            }
            Err(_) => Err(format!(
                "tls.spiffe.socket: is missing, and the environment has no {ENDPOINT_VARIABLE}: name the socket of the SPIFFE \
                 agent, such as \"unix:///run/spire/sockets/agent.sock\""
            )),
        }
    }
}

impl WorkloadEndpoint {
    /// An endpoint as the specification writes it, or as the other addresses of a configuration are.
    fn parse(text: &str) -> Result<WorkloadEndpoint, String> {
        let refused = || format!("\"{text}\" is neither unix:/PATH nor tcp://IP:PORT");
        if let Some(address) = text.strip_prefix("tcp://") {
            return address.parse().map(WorkloadEndpoint::Tcp).map_err(|_| refused());
        }
        let path = text.strip_prefix("unix:").ok_or_else(refused)?;
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(refused());
        }
        if path.len() > SOCKET_PATH_BYTES_MAX {
            return Err(format!(
                "the path of a Unix socket has {SOCKET_PATH_BYTES_MAX} bytes at most"
            ));
        }
        Ok(WorkloadEndpoint::Unix(path.to_owned()))
    }
}

impl fmt::Display for WorkloadEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkloadEndpoint::Unix(path) => write!(f, "unix:{path}"),
            WorkloadEndpoint::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError};
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        match Config::parse(text, "test") {
            Err(ConfigError::Invalid { problems, .. }) => problems.into_iter().map(|at| at.key).collect(),
            Ok(_) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn certificates_come_from_files_or_from_the_workload_api() {
        let files = "[tls]\nca = \"/a\"\ncert = \"/c\"\nkey = \"/k\"\n";
        let spiffe = "[tls.spiffe]\nsocket = \"unix:///run/agent.sock\"\n";
        for (text, keys) in [
            (files.to_owned(), &[][..]),
            (spiffe.to_owned(), &[]),
            ("[tls.spiffe]\n".to_owned(), &[]),
            (files.to_owned() + spiffe, &["tls.ca"]),
            ("[tls]\ncrls = [\"/l\"]\n".to_owned() + spiffe, &["tls.crls"]),
            ("[tls]\n".to_owned(), &["tls.ca"]),
            ("[tls]\nca = \"/a\"\ncert = \"/c\"\n".to_owned(), &["tls.key"]),
            (
                "[tls.spiffe]\nsocket = \"run/agent.sock\"\n".to_owned(),
                &["tls.spiffe.socket"],
            ),
            ("[tls.spiffe]\nid = \"node/a\"\n".to_owned(), &["tls.spiffe.id"]),
        ] {
            assert_eq!(problems(&text), keys, "{text}");
        }
        let config = Config::parse(spiffe, "test").unwrap();
        assert_eq!(config.tls.as_ref().unwrap().origin(), Ok(NodeTlsOrigin::Workload));
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn endpoints_are_those_of_the_specification() {
        let unix = Ok(WorkloadEndpoint::Unix("/run/a.sock".to_owned()));
        assert_eq!(WorkloadEndpoint::parse("unix:///run/a.sock"), unix);
        assert_eq!(WorkloadEndpoint::parse("unix:/run/a.sock"), unix);
        let tcp = WorkloadEndpoint::Tcp("127.0.0.1:8000".parse().unwrap());
        assert_eq!(WorkloadEndpoint::parse("tcp://127.0.0.1:8000"), Ok(tcp));
        let long = format!("unix:/{}", "a".repeat(SOCKET_PATH_BYTES_MAX));
        for text in [
            "",
            "/run/a.sock",
            "unix:a.sock",
            "unix://host/a.sock",
            "tcp://host:8000",
            "tcp://127.0.0.1:8000/foo",
            "http://127.0.0.1:8000",
            &long,
        ] {
            assert!(WorkloadEndpoint::parse(text).is_err(), "{text}");
        }
    }
}
