//! `[observe]`: where a node tells about itself.

use std::fmt;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::transport::Endpoint;

/// What can be between two exports of metrics.
const OTLP_INTERVALS_MS: RangeInclusive<u64> = 100..=3_600_000;
/// What begins the name of a Unix socket.
const UNIX: &str = "unix:";

/// `[observe]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ObserveConfig {
    /// Where `/metrics`, `/healthz` and `/readyz` are: `ip:port` or `unix:PATH`; empty: nowhere.
    pub listen: String,
    /// The file to which audit records are appended; empty: they go to the log.
    pub audit_file: String,
    /// Where a collector takes metrics (OTLP over gRPC), `http://HOST:PORT`; empty: nowhere.
    pub otlp_endpoint: String,
    /// Between two exports, in milliseconds.
    pub otlp_interval_ms: u64,
}

impl Default for ObserveConfig {
    fn default() -> ObserveConfig {
        ObserveConfig {
            listen: String::new(),
            audit_file: String::new(),
            otlp_endpoint: String::new(),
            otlp_interval_ms: 60_000,
        }
    }
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
        ListenAddress::parse(&self.listen).map(Some)
    }

    /// Where metrics are exported to, if anywhere, and how often. The error has the key, and says what is wrong with it.
    pub fn collector(&self) -> Result<Option<(Endpoint, Duration)>, (&'static str, String)> {
        if !OTLP_INTERVALS_MS.contains(&self.otlp_interval_ms) {
            let (from, to) = (OTLP_INTERVALS_MS.start(), OTLP_INTERVALS_MS.end());
            let problem = format!("{} is out of range: {from} to {to}", self.otlp_interval_ms);
            return Err(("observe.otlp_interval_ms", problem));
        }
        if self.otlp_endpoint.is_empty() {
            return Ok(None);
        }
        let endpoint = provost_observers::tracing::endpoint(&self.otlp_endpoint);
        let endpoint = endpoint.map_err(|problem| ("observe.otlp_endpoint", problem))?;
        Ok(Some((endpoint, Duration::from_millis(self.otlp_interval_ms))))
    }
}

impl ListenAddress {
    /// `ip:port`, or `unix:PATH`. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<ListenAddress, String> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return if path.is_empty() {
                Err("name the socket after \"unix:\"".into())
            } else {
                Ok(ListenAddress::Unix(path.into()))
            };
        }
        let address = text.parse().map(ListenAddress::Tcp);
        address.map_err(|_| format!("\"{text}\" is neither \"ip:port\" nor \"unix:PATH\""))
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

    #[test]
    fn a_collector_is_named_by_its_address_and_asked_now_and_then() {
        let config = |endpoint: &str, interval_ms| ObserveConfig {
            otlp_endpoint: endpoint.into(),
            otlp_interval_ms: interval_ms,
            ..ObserveConfig::default()
        };
        assert!(ObserveConfig::default().collector().unwrap().is_none());
        let (endpoint, interval) = config("http://localhost:4317", 500).collector().unwrap().unwrap();
        assert_eq!(endpoint.uri(), "http://localhost:4317");
        assert_eq!(interval, Duration::from_millis(500));
        let key = |config: ObserveConfig| config.collector().unwrap_err().0;
        assert_eq!(key(config("localhost", 500)), "observe.otlp_endpoint");
        assert_eq!(
            key(config("http://localhost:4317", 1)),
            "observe.otlp_interval_ms"
        );
    }
}
