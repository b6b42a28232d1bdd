//! What a profile is to be of, and whether that can be.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use provost_insight::profile::Protocol;

use crate::failure::ProbeFailure;
use crate::load::{LoadPace, LoadShape};
use crate::proxies::{ProxyKind, ProxyVariant};
use crate::stop::StopSignal;

#[derive(Clone, Debug)]
pub enum ProfiledProxy {
    /// One that this tool starts with a configuration of its own.
    BuiltIn(ProxyKind),
    /// One that is started by a command line; see [`RunningProxy::start_command`].
    Command(String),
    /// One that runs already, listens there, and passes calls on to a port at which the echo server will listen.
    Running {
        process: u32,
        listen: SocketAddr,
        /// Where it passes calls on to, on the loopback device.
        upstream_port: u16,
    },
}

/// How it is profiled.
#[derive(Clone, Debug)]
pub struct ProfileOrder {
    pub proxy: ProfiledProxy,
    /// The protocols of the load, each with a proxy of its own.
    pub protocols: Vec<Protocol>,
    /// Bytes of a request, and of its response, with one call in flight.
    pub sizes_bytes: Vec<usize>,
    /// Calls a second, with one call in flight and the first of the sizes.
    pub rates_per_s: Vec<f64>,
    /// Calls in flight as fast as they can, with the first of the sizes.
    pub in_flight: Vec<usize>,
    /// Loads of the user's own, in the place of those that the three lists above make.
    pub loads: Vec<LoadShape>,
    /// Filters, each measured alone and all of them together.
    pub filters: Vec<String>,
    /// Other ways for the proxy to pass bytes on, each measured beside its usual one.
    pub variants: Vec<ProxyVariant>,
    /// How often every cell is measured.
    pub repetitions: u32,
    /// Length of each of the slices of one measurement.
    pub slice: Duration,
    /// Which methods may be used of those that the machine grants.
    pub methods: MethodChoice,
    /// Where a proxy that this tool does not configure logs each call, in the form of [`provost_insight::access_log`].
    pub access_log: Option<PathBuf>,
    /// By what it is ended early; what was measured by then is kept.
    pub stop: StopSignal,
}

/// Which rungs of the ladder are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MethodChoice {
    /// The best that the machine grants.
    Best,
    /// What Envoy's access log says, and runs with and without the proxy.
    AccessLog,
    /// Only runs with and without the proxy.
    Differential,
}

impl ProfileOrder {
    /// The usual sizes, rates and repetitions.
    #[must_use]
    pub fn of(proxy: ProfiledProxy, protocols: Vec<Protocol>) -> ProfileOrder {
        ProfileOrder {
            proxy,
            protocols,
            sizes_bytes: vec![100, 64, 1024, 4096, 16384, 65536],
            rates_per_s: vec![500.0, 2000.0],
            in_flight: vec![4, 16, 64],
            loads: Vec::new(),
            filters: Vec::new(),
            variants: Vec::new(),
            repetitions: 5,
            slice: Duration::from_millis(250),
            methods: MethodChoice::Best,
            access_log: None,
            stop: StopSignal::never(),
        }
    }

    pub(super) fn check(&self) -> Result<(), ProbeFailure> {
        let invalid = |what: &str| Err(ProbeFailure::Invalid(what.into()));
        if self.protocols.is_empty() || self.sizes_bytes.is_empty() || self.repetitions == 0 {
            return invalid("a profile needs a protocol, a size and a repetition");
        }
        let is_running = matches!(self.proxy, ProfiledProxy::Running { .. });
        if is_running && self.protocols.len() > 1 {
            return invalid("a proxy that runs already understands one protocol: name it with --workload");
        }
        let has_filters = matches!(
            self.proxy,
            ProfiledProxy::BuiltIn(ProxyKind::Envoy | ProxyKind::Provostd)
        );
        if !self.filters.is_empty() && !has_filters {
            return invalid("filters can be profiled of Envoy and provostd only");
        }
        if !self.variants.is_empty() && !matches!(self.proxy, ProfiledProxy::BuiltIn(_)) {
            return invalid(
                "Unix sockets and zero-copy can be profiled of proxies only that this tool configures",
            );
        }
        self.check_log()
    }

    fn check_log(&self) -> Result<(), ProbeFailure> {
        let invalid = |what: &str| Err(ProbeFailure::Invalid(what.into()));
        let is_envoy = matches!(self.proxy, ProfiledProxy::BuiltIn(ProxyKind::Envoy));
        let is_built_in = matches!(self.proxy, ProfiledProxy::BuiltIn(_));
        if is_built_in && self.access_log.is_some() {
            return invalid(
                "a proxy that this tool configures logs where this tool says: leave out the access log's file",
            );
        }
        if self.methods != MethodChoice::AccessLog {
            return Ok(());
        }
        if !is_envoy && self.access_log.is_none() {
            return invalid(
                "only Envoy's access log tells nanoseconds: profile envoy, or name the file in which your Envoy logs (docs/insight-measuring.md says what)",
            );
        }
        if self.protocols.iter().all(|protocol| *protocol == Protocol::Tcp) {
            return invalid(
                "over plain TCP an access log has connections and no calls: take http1, http2 or grpc",
            );
        }
        Ok(())
    }

    pub(super) fn shapes(&self, protocol: Protocol) -> Vec<LoadShape> {
        if !self.loads.is_empty() {
            let own = self.loads.iter().filter(|load| load.protocol == protocol);
            return own.copied().collect();
        }
        let shape = |size_bytes, in_flight, pace| LoadShape {
            protocol,
            size_bytes,
            in_flight,
            pace,
        };
        let first = self.sizes_bytes[0];
        let sizes = self.sizes_bytes.iter();
        let rates = self.rates_per_s.iter();
        sizes
            .map(|size| shape(*size, 1, LoadPace::Saturating))
            .chain(rates.map(|rate| shape(first, 1, LoadPace::PerSecond(*rate))))
            .chain(
                self.in_flight
                    .iter()
                    .map(|count| shape(first, *count, LoadPace::Saturating)),
            )
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_make_no_sense_are_refused() {
        let good = ProfileOrder::of(ProfiledProxy::BuiltIn(ProxyKind::Nginx), vec![Protocol::Tcp]);
        assert!(good.check().is_ok());
        let filters = ProfileOrder {
            filters: vec!["lua".into()],
            ..good.clone()
        };
        assert!(filters.check().is_err());
        let none = ProfileOrder {
            protocols: vec![],
            ..good
        };
        assert!(none.check().is_err());
    }
}
