//! What a profile is to be of, and whether that can be.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use provost_insight::profile::{Component, OBSERVATIONS_MAX, Protocol};

use crate::failure::ProbeFailure;
use crate::filters;
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

    /// Whether it can be carried out: what is wrong is said before anything is started.
    pub(crate) fn check(&self) -> Result<(), ProbeFailure> {
        if self.protocols.is_empty() || self.sizes_bytes.is_empty() || self.repetitions == 0 {
            return invalid("a profile needs a protocol, a size and a repetition");
        }
        self.check_proxy()?;
        self.check_differences()?;
        self.check_loads()?;
        self.check_log()
    }

    fn check_proxy(&self) -> Result<(), ProbeFailure> {
        match &self.proxy {
            ProfiledProxy::Running { .. } if self.protocols.len() > 1 => {
                invalid("a proxy that runs already understands one protocol: name it with --workload")
            }
            ProfiledProxy::Running {
                listen,
                upstream_port,
                ..
            } if listen.port() == 0 || *upstream_port == 0 => invalid(
                "port 0 is nobody's: say where the proxy listens, and to which port it passes calls on",
            ),
            _ => Ok(()),
        }
    }

    /// What shall be measured beside the proxy as it is.
    fn check_differences(&self) -> Result<(), ProbeFailure> {
        if !self.variants.is_empty() && !matches!(self.proxy, ProfiledProxy::BuiltIn(_)) {
            return invalid(
                "Unix sockets and zero-copy can be profiled of proxies only that this tool configures",
            );
        }
        if self.filters.is_empty() {
            return Ok(());
        }
        let check: fn(&str) -> Result<(), ProbeFailure> = match self.proxy {
            ProfiledProxy::BuiltIn(ProxyKind::Envoy) => |name| filters::envoy(name).map(drop),
            ProfiledProxy::BuiltIn(ProxyKind::Provostd) => |name| filters::provost(name).map(drop),
            _ => return invalid("filters can be profiled of Envoy and provostd only"),
        };
        self.filters.iter().try_for_each(|name| check(name))?;
        if let Some(twice) = first_twice(&self.filters) {
            return invalid(format!("the filter '{twice}' is named twice"));
        }
        if self.protocols.iter().all(|protocol| *protocol == Protocol::Tcp) {
            return invalid(NO_FILTERS_OVER_TCP);
        }
        Ok(())
    }

    /// Loads, each by itself, and how many there are.
    fn check_loads(&self) -> Result<(), ProbeFailure> {
        let shapes: Vec<LoadShape> = self.protocols.iter().flat_map(|one| self.shapes(*one)).collect();
        shapes.iter().try_for_each(LoadShape::check)?;
        // Of a load each component is observed, or what a filter or a variant changes.
        let kinds = Component::FIXED.len() + self.filters.len() + self.variants.len();
        let of_round = (shapes.len() * kinds).max(1);
        let most = OBSERVATIONS_MAX / of_round;
        if self.repetitions as usize > most {
            let (repetitions, loads) = (self.repetitions, shapes.len());
            return invalid(format!(
                "{repetitions} repetitions of {loads} loads are more than a profile has room for: take {most} at most"
            ));
        }
        Ok(())
    }

    fn check_log(&self) -> Result<(), ProbeFailure> {
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

/// Why filters are not measured there.
pub(super) const NO_FILTERS_OVER_TCP: &str = "over plain TCP no filter is measured: bytes that a proxy does not understand pass none; take http1, http2 or grpc";

fn invalid(what: impl Into<String>) -> Result<(), ProbeFailure> {
    Err(ProbeFailure::Invalid(what.into()))
}

fn first_twice(names: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    names.iter().find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_that_make_no_sense_are_refused_before_anything_is_started() {
        let good = ProfileOrder::of(
            ProfiledProxy::BuiltIn(ProxyKind::Envoy),
            vec![Protocol::Tcp, Protocol::Http1],
        );
        let with_filters = |names: &[&str]| ProfileOrder {
            filters: names.iter().map(ToString::to_string).collect(),
            ..good.clone()
        };
        assert!(good.check().is_ok());
        assert!(with_filters(&["lua"]).check().is_ok());
        let with_rate = |rate| ProfileOrder {
            rates_per_s: vec![500.0, rate],
            ..good.clone()
        };
        let running = |port| ProfileOrder {
            protocols: vec![Protocol::Http1],
            proxy: ProfiledProxy::Running {
                process: 1,
                listen: ([127, 0, 0, 1], 80).into(),
                upstream_port: port,
            },
            ..good.clone()
        };
        assert!(running(90).check().is_ok());
        for (order, says) in [
            (
                ProfileOrder {
                    protocols: vec![],
                    ..good.clone()
                },
                "needs a protocol",
            ),
            (
                ProfileOrder {
                    sizes_bytes: vec![],
                    ..good.clone()
                },
                "needs a protocol, a size",
            ),
            (
                ProfileOrder {
                    sizes_bytes: vec![100, usize::MAX],
                    ..good.clone()
                },
                "bytes",
            ),
            (
                ProfileOrder {
                    in_flight: vec![0],
                    ..good.clone()
                },
                "can be in flight",
            ),
            (
                ProfileOrder {
                    in_flight: vec![1 << 20],
                    ..good.clone()
                },
                "can be in flight",
            ),
            (
                ProfileOrder {
                    repetitions: u32::MAX,
                    ..good.clone()
                },
                "more than a profile has room for",
            ),
            (with_rate(0.0), "0 calls a second is no rate"),
            (with_rate(-1.0), "-1 calls a second is no rate"),
            (with_rate(f64::NAN), "NaN calls a second is no rate"),
            (with_rate(f64::INFINITY), "is no rate"),
            (with_rate(1e-300), "is no rate"),
            (with_rate(1e300), "is no rate"),
            (
                ProfileOrder {
                    loads: vec![LoadShape {
                        protocol: Protocol::Tcp,
                        size_bytes: 1,
                        in_flight: 100,
                        pace: LoadPace::PerSecond(10.0),
                    }],
                    ..good.clone()
                },
                "with 100 in flight are too few",
            ),
            (running(0), "port 0"),
            (with_filters(&["nosuch"]), "no filter 'nosuch'"),
            (with_filters(&["lua", "rbac", "lua"]), "'lua' is named twice"),
            (
                ProfileOrder {
                    protocols: vec![Protocol::Tcp],
                    ..with_filters(&["lua"])
                },
                "over plain TCP no filter",
            ),
            (
                ProfileOrder {
                    proxy: ProfiledProxy::BuiltIn(ProxyKind::Nginx),
                    ..with_filters(&["lua"])
                },
                "filters can be profiled of Envoy and provostd only",
            ),
        ] {
            let refused = order.check().unwrap_err();
            assert!(matches!(refused, ProbeFailure::Invalid(_)), "{refused:?}");
            assert!(refused.to_string().contains(says), "{refused}");
        }
    }
}
