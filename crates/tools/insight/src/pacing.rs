//! What kept a load from being faster: its own pace, the proxy, the load's own threads, the machine, or others' work on it.
//!
//! The highest rate of a load says what a proxy can carry only where the proxy was busy all the time. On a machine on which
//! others work as well, client, proxy and server wait for cores, and the rate says how much the others left.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::profile::{ProfileError, TotalObservation, within};

/// A thread that ran so much of the time had no time left.
const BUSY_SHARE: f64 = 0.9;
/// A load that reached so much of its pace has kept it.
const PACE_SHARE: f64 = 0.95;
/// A load of which so many calls were sent late has not kept its pace.
const LATE_SHARE: f64 = 0.1;
/// Others that used less than so many cores were not there.
const OTHERS_CORES: f64 = 0.1;
/// Threads that waited for cores for so much of the time, all together, were held up by it.
const CORE_WAIT_SHARE: f64 = 0.1;
/// Cores of which less than this was left were all taken.
const SPARE_CORES: f64 = 0.1;

/// What was seen of client, proxy and server while a load ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadPacing {
    /// Calls a second that were asked for; `None` for as many as can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_per_s: Option<f64>,
    /// The share of the calls that left late although their connection was free: the client's thread had no core.
    pub late_share: f64,
    /// How long all threads of client, proxy and server waited for a core, as a share of the time: 2 if two did so all the time.
    pub core_wait_share: f64,
    /// How often one of them was taken off its core for another one, for a call.
    pub preemptions_per_call: f64,
    /// The share of the time that the busiest thread of the proxy ran.
    pub proxy_busy_share: f64,
    /// The same of client and server.
    pub load_busy_share: f64,
    /// Cores' worth of work of client, proxy and server.
    pub own_cores: f64,
    /// Cores' worth of work of all others.
    pub other_cores: f64,
    /// Cores that there are.
    pub cores: u32,
}

/// What kept a load from being faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RateBound {
    /// It was as fast as it was told to be.
    Pace,
    /// The proxy: this is its saturation.
    Proxy,
    /// Others' work held the cores.
    OthersWork,
    /// Client or server had no time left.
    Load,
    /// Client, proxy and server had all cores.
    Machine,
    /// Nothing was busy all the time: each call waits for the one before it.
    InFlight,
}

impl fmt::Display for RateBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RateBound::Pace => "its pace",
            RateBound::Proxy => "the proxy",
            RateBound::OthersWork => "others' work, which held the cores",
            RateBound::Load => "the load's own client and server",
            RateBound::Machine => "the machine's cores, all of which client, proxy and server had",
            RateBound::InFlight => "the number of calls in flight",
        })
    }
}

impl LoadPacing {
    /// What bounded a load that reached so many calls a second.
    #[must_use]
    pub fn bound(&self, rate_per_s: f64) -> RateBound {
        let is_late = self.late_share >= LATE_SHARE;
        let has_others = self.other_cores >= OTHERS_CORES;
        if let Some(asked) = self.asked_per_s {
            if rate_per_s >= PACE_SHARE * asked && !(is_late && has_others) {
                return RateBound::Pace;
            }
            if is_late && has_others {
                return RateBound::OthersWork;
            }
        }
        if self.proxy_busy_share >= BUSY_SHARE {
            RateBound::Proxy
        } else if has_others && self.core_wait_share >= CORE_WAIT_SHARE {
            RateBound::OthersWork
        } else if self.load_busy_share >= BUSY_SHARE {
            RateBound::Load
        } else if self.own_cores + self.other_cores >= f64::from(self.cores) - SPARE_CORES {
            RateBound::Machine
        } else {
            RateBound::InFlight
        }
    }
}

impl LoadPacing {
    /// Whether all figures are such as can have been seen.
    pub(crate) fn check(&self, place: &str) -> Result<(), ProfileError> {
        const FIGURE_MAX: f64 = 1e12;
        let figures = [
            ("asked_per_s", self.asked_per_s.unwrap_or_default()),
            ("late_share", self.late_share),
            ("core_wait_share", self.core_wait_share),
            ("preemptions_per_call", self.preemptions_per_call),
            ("proxy_busy_share", self.proxy_busy_share),
            ("load_busy_share", self.load_busy_share),
            ("own_cores", self.own_cores),
            ("other_cores", self.other_cores),
        ];
        figures
            .into_iter()
            .try_for_each(|(field, value)| within(place, field, value, 0.0, FIGURE_MAX))
    }
}

impl TotalObservation {
    /// What bounded the load's rate, where that is known.
    #[must_use]
    pub fn bound(&self) -> Option<RateBound> {
        Some(self.pacing?.bound(self.load.rate_per_s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> LoadPacing {
        LoadPacing {
            proxy_busy_share: 0.5,
            load_busy_share: 0.4,
            own_cores: 1.2,
            core_wait_share: 0.02,
            cores: 2,
            ..LoadPacing::default()
        }
    }

    #[test]
    fn a_rate_is_the_proxys_saturation_only_where_the_proxy_was_busy_all_the_time() {
        let bound = |pacing: LoadPacing| pacing.bound(1000.0);
        assert_eq!(bound(quiet()), RateBound::InFlight);
        let busy = LoadPacing {
            proxy_busy_share: 0.97,
            core_wait_share: 0.8,
            ..quiet()
        };
        assert_eq!(bound(busy), RateBound::Proxy);
        // One that others take off its core is not busy, though no core is free.
        let disturbed = LoadPacing {
            core_wait_share: 0.9,
            other_cores: 1.1,
            own_cores: 0.9,
            ..quiet()
        };
        assert_eq!(bound(disturbed), RateBound::OthersWork);
        // The same wait without others is of client, proxy and server for each other.
        let full = LoadPacing {
            own_cores: 1.95,
            other_cores: 0.0,
            ..disturbed
        };
        assert_eq!(bound(full), RateBound::Machine);
        let own = LoadPacing {
            load_busy_share: 0.95,
            ..full
        };
        assert_eq!(bound(own), RateBound::Load);
    }

    #[test]
    fn figures_that_cannot_be_are_refused_with_their_place() {
        assert_eq!(quiet().check("totals[3].pacing"), Ok(()));
        let wrong = LoadPacing {
            late_share: -1.0,
            ..quiet()
        };
        let error = wrong.check("totals[3].pacing").unwrap_err().to_string();
        assert!(error.starts_with("totals[3].pacing.late_share"), "{error}");
    }

    #[test]
    fn a_pace_that_was_not_kept_is_not_blamed_on_the_proxy_while_others_work() {
        let paced = LoadPacing {
            asked_per_s: Some(1000.0),
            ..quiet()
        };
        assert_eq!(paced.bound(960.0), RateBound::Pace);
        let late = LoadPacing {
            late_share: 0.3,
            other_cores: 1.0,
            ..paced
        };
        assert_eq!(late.bound(960.0), RateBound::OthersWork);
        assert_eq!(late.bound(500.0), RateBound::OthersWork);
        let overrun = LoadPacing {
            proxy_busy_share: 1.0,
            ..paced
        };
        assert_eq!(overrun.bound(500.0), RateBound::Proxy);
        assert_eq!(paced.bound(500.0), RateBound::InFlight);
    }
}
