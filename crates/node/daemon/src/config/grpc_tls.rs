//! TLS of gRPC: `tls` of `[[grpc.listener]]` and of `[[route]]`, and what the files of both are.

use std::path::PathBuf;

use provost_tls::{
    ClientDemand, OwnCertificate, ServerTrust, StreamClientFiles, StreamServerFiles, TrustAnchors,
    is_server_name,
};
use serde::{Deserialize, Serialize};

use super::{GrpcListenerConfig, RouteConfig, TlsFiles};

/// `tls` of a `[[grpc.listener]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GrpcListenerTls {
    /// The certificate chain that clients are shown; without it, that of `[tls]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Whether clients are asked for certificates.
    pub client_auth: ClientAuth,
    /// Authorities that clients' certificates must chain to; without it, that of `[tls]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Lists of clients' certificates that their authorities have taken back; without `ca`, those of `[tls]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crls: Vec<PathBuf>,
    /// Identities that may call, with `*` and `?`; empty: any that the authorities vouch for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_clients: Vec<String>,
}

/// Whether clients are asked for certificates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// No client is asked for one.
    #[default]
    None,
    /// Those that have one prove who they are.
    Optional,
    /// All prove who they are.
    Required,
}

/// `tls` of a `[[route]]` to gRPC servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RouteTls {
    /// Authorities that the servers' certificates must chain to; without it, those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca: Option<PathBuf>,
    /// Lists of certificates that their authorities have taken back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub crls: Vec<PathBuf>,
    /// The certificate chain that servers are shown which ask for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The private key of that certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Whether all of these come from the SPIFFE Workload API, as `[tls.spiffe]` says.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub spiffe: bool,
    /// What the servers are called, whatever their endpoints are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}

/// A key below `tls` whose value cannot stand, and why.
pub(super) type TlsProblem = (&'static str, String);

impl GrpcListenerTls {
    /// The files, with those of `[tls]` where the table names none. The error says what is wrong with which key.
    pub(crate) fn files(&self, node: Option<&TlsFiles>) -> Result<StreamServerFiles, TlsProblem> {
        let own = pair(&self.cert, &self.key)?;
        let own = own.or_else(|| node.and_then(TlsFiles::own)).ok_or_else(|| {
            let problem =
                "is missing: name a certificate and its key, as there is no [tls] whose files could be used";
            ("tls.cert", problem.to_owned())
        })?;
        Ok(StreamServerFiles {
            own,
            clients: self.clients(node)?,
        })
    }

    fn clients(&self, node: Option<&TlsFiles>) -> Result<ClientDemand, TlsProblem> {
        if self.client_auth == ClientAuth::None {
            let says_more = self.ca.is_some() || !self.crls.is_empty() || !self.allow_clients.is_empty();
            if says_more {
                let problem = "asks no client for a certificate, so ca, crls and allow_clients say nothing: set it to \
                               \"required\" or \"optional\", or remove them";
                return Err(("tls.client_auth", problem.to_owned()));
            }
            return Ok(ClientDemand::Nothing);
        }
        if self.client_auth == ClientAuth::Optional && !self.allow_clients.is_empty() {
            let problem = "says who may call, and with client_auth = \"optional\" whoever shows no certificate may: set \
                           client_auth = \"required\"";
            return Err(("tls.allow_clients", problem.to_owned()));
        }
        let of_node = || {
            let mut trust = node.and_then(TlsFiles::trust)?;
            if !self.crls.is_empty() {
                trust.crls.clone_from(&self.crls);
            }
            Some(trust)
        };
        let own = self.ca.clone().map(|ca| ServerTrust {
            anchors: TrustAnchors::File(ca),
            crls: self.crls.clone(),
        });
        let trust = own.or_else(of_node).ok_or_else(|| {
            let problem = "is missing: name the authorities of clients' certificates, as there is no [tls] whose file could \
                           be used";
            ("tls.ca", problem.to_owned())
        })?;
        Ok(match self.client_auth {
            ClientAuth::Required => ClientDemand::Everyone(trust),
            ClientAuth::Optional | ClientAuth::None => ClientDemand::IfAny(trust),
        })
    }
}

impl GrpcListenerConfig {
    /// The files of its TLS, if it has any.
    pub(crate) fn tls_files(&self, node: Option<&TlsFiles>) -> Option<Result<StreamServerFiles, TlsProblem>> {
        self.tls.as_ref().map(|tls| tls.files(node))
    }

    /// What is said of its TLS to people; empty without.
    pub(crate) fn tls_words(&self) -> &'static str {
        match self.tls.as_ref().map(|tls| tls.client_auth) {
            None => "",
            Some(ClientAuth::None) => "TLS",
            Some(ClientAuth::Optional) => "TLS, certificates of clients optional",
            Some(ClientAuth::Required) => "TLS, certificates of clients required",
        }
    }
}

impl RouteTls {
    /// The files, and what else its servers have to be. The error says what is wrong with which key.
    pub(crate) fn files(
        &self,
        server_identities: &[String],
        node: Option<&TlsFiles>,
    ) -> Result<StreamClientFiles, TlsProblem> {
        let identities = server_identities.to_vec();
        if self.spiffe {
            self.check_spiffe(node)?;
            return Ok(StreamClientFiles {
                trust: ServerTrust {
                    anchors: TrustAnchors::Workload,
                    crls: Vec::new(),
                },
                own: Some(OwnCertificate::Workload),
                identities,
            });
        }
        Ok(StreamClientFiles {
            trust: ServerTrust {
                anchors: self.ca.clone().map_or(TrustAnchors::System, TrustAnchors::File),
                crls: self.crls.clone(),
            },
            own: pair(&self.cert, &self.key)?,
            identities,
        })
    }

    fn check_spiffe(&self, node: Option<&TlsFiles>) -> Result<(), TlsProblem> {
        let names_files = [&self.ca, &self.cert, &self.key]
            .iter()
            .any(|file| file.is_some());
        let problem = if node.is_none_or(|node| node.spiffe.is_none()) {
            "needs a [tls.spiffe] table, which says where the SPIFFE Workload API is"
        } else if names_files || !self.crls.is_empty() {
            "stands beside files, and the SPIFFE Workload API gives certificate, key, authorities and lists: remove one of              the two"
        } else {
            return Ok(());
        };
        Err(("tls.spiffe", problem.to_owned()))
    }
}

impl RouteConfig {
    /// The files of its TLS, if it has any.
    pub(crate) fn tls_files(&self, node: Option<&TlsFiles>) -> Option<Result<StreamClientFiles, TlsProblem>> {
        let tls = self.tls.as_ref()?;
        Some(tls.files(&self.server_identities, node))
    }

    /// What is wrong with its TLS.
    pub(super) fn tls_problems(&self, node: Option<&TlsFiles>) -> Vec<TlsProblem> {
        let mut problems: Vec<_> = self.tls_files(node).and_then(Result::err).into_iter().collect();
        let name = self.tls.as_ref().and_then(|tls| tls.server_name.as_ref());
        if let Some(name) = name.filter(|name| !is_server_name(name)) {
            let problem = format!("\"{name}\" is no name of a host, without a port, and no IP address");
            problems.push(("tls.server_name", problem));
        }
        problems
    }
}

/// A certificate and its key, or neither.
fn pair(cert: &Option<PathBuf>, key: &Option<PathBuf>) -> Result<Option<OwnCertificate>, TlsProblem> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(OwnCertificate::Files {
            cert: cert.clone(),
            key: key.clone(),
        })),
        (None, None) => Ok(None),
        (Some(_), None) => Err(("tls.key", "is missing: name the key of tls.cert".to_owned())),
        (None, Some(_)) => Err((
            "tls.cert",
            "is missing: name the certificate of tls.key".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::super::tests::problems;
    use super::*;

    const NODE: &str = "[tls]\nca = \"/ca\"\ncert = \"/cert\"\nkey = \"/key\"\ncrls = [\"/crl\"]\n";
    const LISTENER: &str =
        "[[grpc.listener]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\napp = \"a\"\n[grpc.listener.tls]\n";
    const ROUTE: &str =
        "[[route]]\nservice = \"a.A\"\ntransport = \"grpc\"\nendpoints = [\"a:1\"]\n[route.tls]\n";

    fn own_files(cert: &str, key: &str) -> OwnCertificate {
        OwnCertificate::Files {
            cert: cert.into(),
            key: key.into(),
        }
    }

    #[test]
    fn listeners_and_routes_have_what_the_workload_api_gives_the_node() {
        let node = "[tls.spiffe]\nsocket = \"unix:/run/agent.sock\"\n";
        let listener = format!("{node}{LISTENER}client_auth = \"required\"\n");
        let config = Config::parse(&listener, "test").unwrap();
        let files = config.grpc.listeners[0]
            .tls_files(config.tls.as_ref())
            .unwrap()
            .unwrap();
        assert_eq!(files.own, OwnCertificate::Workload);
        assert!(files.is_of_workload() && files.files().is_empty());
        let route = format!("{ROUTE}spiffe = true\n");
        let config = Config::parse(&format!("{node}{route}"), "test").unwrap();
        let files = config.routes[0].tls_files(config.tls.as_ref()).unwrap().unwrap();
        assert_eq!(files.own, Some(OwnCertificate::Workload));
        assert!(files.is_of_workload() && files.files().is_empty());
        assert_eq!(problems(&route), ["route[0].tls.spiffe"]);
        assert_eq!(problems(&format!("{NODE}{route}")), ["route[0].tls.spiffe"]);
        assert_eq!(
            problems(&format!("{node}{route}ca = \"/a\"\n")),
            ["route[0].tls.spiffe"]
        );
    }

    #[test]
    fn a_listener_has_the_files_of_the_node_unless_it_names_others() {
        let config = Config::parse(&format!("{NODE}{LISTENER}client_auth = \"required\"\n"), "test").unwrap();
        let files = config.grpc.listeners[0]
            .tls_files(config.tls.as_ref())
            .unwrap()
            .unwrap();
        let node = ServerTrust {
            anchors: TrustAnchors::File("/ca".into()),
            crls: vec!["/crl".into()],
        };
        assert_eq!(files.own, own_files("/cert", "/key"));
        assert_eq!(files.clients, ClientDemand::Everyone(node));
        let own = "cert = \"/c\"\nkey = \"/k\"\nca = \"/a\"\nclient_auth = \"optional\"\n";
        let config = Config::parse(&format!("{NODE}{LISTENER}{own}"), "test").unwrap();
        let files = config.grpc.listeners[0]
            .tls_files(config.tls.as_ref())
            .unwrap()
            .unwrap();
        let trust = ServerTrust {
            anchors: TrustAnchors::File("/a".into()),
            crls: Vec::new(),
        };
        assert_eq!(
            (files.own, files.clients),
            (own_files("/c", "/k"), ClientDemand::IfAny(trust))
        );
        let again: Config = toml::from_str(&toml::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
    }

    #[test]
    fn listeners_whose_tls_cannot_be_are_refused_with_the_key() {
        let own = "cert = \"/c\"\nkey = \"/k\"\n";
        for (text, key) in [
            ("", "tls.cert"),
            ("cert = \"/c\"\n", "tls.key"),
            (&format!("{own}client_auth = \"required\"\n"), "tls.ca"),
            (&format!("{own}ca = \"/a\"\n"), "tls.client_auth"),
            (
                &format!("{own}ca = \"/a\"\nclient_auth = \"optional\"\nallow_clients = [\"a\"]\n"),
                "tls.allow_clients",
            ),
        ] {
            assert_eq!(
                problems(&format!("{LISTENER}{text}")),
                [format!("grpc.listener[0].{key}")]
            );
        }
        let unix = LISTENER.replace("127.0.0.1:1", "unix:/run/a.sock");
        assert_eq!(problems(&format!("{unix}{own}")), ["grpc.listener[0].tls"]);
    }

    #[test]
    fn routes_leave_a_node_with_tls_within_tls_or_not_at_all() {
        let bare = ROUTE.replace("[route.tls]\n", "");
        assert!(Config::parse(&format!("{NODE}{ROUTE}"), "test").is_ok());
        assert!(Config::parse(&bare, "test").is_ok());
        assert_eq!(problems(&format!("{NODE}{bare}")), ["route[0].transport"]);
        // A Unix socket does not leave it.
        let unix = bare.replace("a:1", "unix:/run/a.sock");
        assert!(Config::parse(&format!("{NODE}{unix}"), "test").is_ok());
        assert_eq!(
            problems(&unix.replace("\"grpc\"", "\"tcp\"")),
            ["route[0].endpoints"]
        );
        assert_eq!(
            problems(&bare.replace("a:1", "unix:a.sock")),
            ["route[0].endpoints"]
        );
        assert_eq!(problems(&ROUTE.replace("\"grpc\"", "\"tcp\"")), ["route[0].tls"]);
        let key = format!("{ROUTE}key = \"/k\"\nserver_name = \"a:1\"\n");
        assert_eq!(problems(&key), ["route[0].tls.cert", "route[0].tls.server_name"]);
    }
}
