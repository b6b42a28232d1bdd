//! `[observe]`: where a node tells about itself.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What begins the name of a Unix socket.
const UNIX: &str = "unix:";

/// `[observe]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveConfig {
    /// Where `/metrics`, `/healthz` and `/readyz` are: `ip:port` or `unix:PATH`; empty: nowhere.
    pub listen: String,
    /// The file to which audit records are appended; empty: they go to the log.
    pub audit_file: String,
}

/// Where HTTP is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A TCP port; port 0 takes a free one and logs it.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

impl ObserveConfig {
    /// Where HTTP is served, if anywhere. The error says what is wrong with the key `listen`.
    pub fn address(&self) -> Result<Option<ListenAddress>, String> {
        if self.listen.is_empty() {
            return Ok(None);
        }
        if let Some(path) = self.listen.strip_prefix(UNIX) {
            return match path.is_empty() {
                true => Err("name the socket after \"unix:\"".into()),
                false => Ok(Some(ListenAddress::Unix(path.into()))),
            };
        }
        match self.listen.parse() {
            Ok(address) => Ok(Some(ListenAddress::Tcp(address))),
            Err(_) => Err(format!(
                "\"{}\" is neither \"ip:port\" nor \"unix:PATH\"",
                self.listen
            )),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Tcp(address) => write!(f, "{address}"),
            ListenAddress::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(listen: &str) -> Result<Option<ListenAddress>, String> {
        let config = ObserveConfig {
            listen: listen.into(),
            ..ObserveConfig::default()
        };
        config.address()
    }

    #[test]
    fn addresses_are_ports_or_sockets() {
        assert_eq!(address(""), Ok(None));
        for text in ["127.0.0.1:9464", "[::1]:0", "unix:/run/provost/metrics.sock"] {
            assert_eq!(address(text).unwrap().unwrap().to_string(), text);
        }
        assert!(address("9464").unwrap_err().contains("\"9464\""));
        assert!(address("unix:").is_err());
    }
}
