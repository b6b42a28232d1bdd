//! The profile of a proxy on one machine: what was observed of each component, by which method, and the functions that
//! were fitted to it. It is kept as versioned JSON.
//!
//! All times are microseconds, all sizes bytes. An [`Observation`] is the mean over the messages of one *cell* (protocol,
//! variant, size, rate, in flight) in one repetition. The times of the components of a cell add up: a component's time
//! never contains another one's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use crate::ladder::LadderRung;
pub use crate::lost::{LOST_SHARE_MAX, LostShares};
pub use crate::pacing::{LoadPacing, RateBound};

/// What the field `format` of a profile says.
pub const PROFILE_FORMAT: &str = "provost-insight-profile";
/// The version of the format that this crate writes, and the only one that it reads.
pub const PROFILE_VERSION: u32 = 1;
/// A profile's text has at most so many bytes.
pub const PROFILE_BYTES_MAX: usize = 64 << 20;
/// A profile has at most so many observations, and as many totals.
pub const OBSERVATIONS_MAX: usize = 200_000;
/// A profile has at most so many methods, notes, and fitted functions.
pub const ENTRIES_MAX: usize = 10_000;
/// No time in a profile is longer: about 17 minutes.
pub const TIME_US_MAX: f64 = 1e9;
/// No size in bytes, and no rate a second, is higher.
const LOAD_MAX: f64 = 1e12;

/// Where a proxy's time and processor go, on one machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`PROFILE_FORMAT`].
    pub format: String,
    /// [`PROFILE_VERSION`].
    pub version: u32,
    /// Whether the figures were measured.
    pub origin: ProfileOrigin,
    /// When the profile was taken, as RFC 3339 says, in UTC; empty where not known.
    #[serde(default)]
    pub taken_at: String,
    /// The version of the tool that took it.
    #[serde(default)]
    pub tool_version: String,
    /// The machine that it was taken on.
    pub machine: MachineIdentity,
    pub proxy: ProxyIdentity,
    /// How the cores waited while it was taken.
    #[serde(default)]
    pub regime: CoreRegime,
    /// Whether the profile is whole; why not, where it is not (the proxy died, a method was refused).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<String>,
    /// Of a partial profile, how many rounds (repetitions from 0 on) were measured whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole_rounds: Option<u32>,
    /// What the kernel had no room to write down; `None` where nothing was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<LostShares>,
    /// The methods that the machine granted, the best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ladder: Vec<LadderRung>,
    /// The method by which each component was measured.
    #[serde(default)]
    pub methods: Vec<ComponentMethod>,
    /// What was observed of each component.
    #[serde(default)]
    pub observations: Vec<Observation>,
    /// What the whole proxy added, measured at the client in the same repetitions; the sum of the components is held
    /// against it.
    #[serde(default)]
    pub totals: Vec<TotalObservation>,
    /// The functions that were fitted to the observations; `None` before `provost insight fit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<FitSection>,
    /// What whoever took it wants to be known.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Whether a profile's figures were measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProfileOrigin {
    /// By probes, on the machine that it names.
    Measured,
    /// Made up, for an example or a test.
    Synthetic,
}

/// How the cores of a machine waited while a profile was taken. Figures of different regimes do not compare.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CoreRegime {
    /// Cores that have nothing to do halt.
    #[default]
    Idle,
    /// Cores poll in place of halting: the kernel was started with `idle=poll`.
    NoHalt,
}

/// What makes two machines the same for a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineIdentity {
    /// A name that stays the same on this machine and tells nothing else of it, such as a hash of `/etc/machine-id`.
    pub id: String,
    /// The processor's model, as `/proc/cpuinfo` names it.
    pub processor: String,
    /// Logical processors that are online.
    pub processors: u32,
    /// Such as `x86_64`.
    pub architecture: String,
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// The distribution, as `PRETTY_NAME` of `/etc/os-release` has it.
    #[serde(default)]
    pub system: String,
    #[serde(default)]
    pub memory_bytes: u64,
    /// The hypervisor, where there is one.
    #[serde(default)]
    pub hypervisor: String,
}

/// The proxy that was profiled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProxyIdentity {
    /// `envoy`, `nginx`, `haproxy`, `provostd`, or what the user calls it.
    pub name: String,
    /// As the proxy prints it.
    pub version: String,
    /// A hash of the executable, with the name of the algorithm before it: `sha256:…`.
    #[serde(default)]
    pub binary: String,
    /// How it was started.
    #[serde(default)]
    pub command: String,
    #[serde(default)]
    pub workers: u32,
}

/// One part of what a proxy does with a message (MeshInsight, table 1; `wakeup` is ours).
///
/// As text: `ipc`, `read`, `write`, `readiness`, `wakeup`, `parse`, `other_user`, `filter:<name>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Component {
    /// Data transfer between the proxy and the application on its node.
    Ipc,
    /// The system call that reads, with its copy.
    Read,
    /// The system call that writes, with its copy and the way down the network stack.
    Write,
    /// Readiness notification: `epoll_wait` and its like.
    Readiness,
    /// From the moment that the proxy's thread could run to the moment that it does.
    Wakeup,
    /// The protocol's codec, without what the codec calls.
    Parse,
    /// Everything else that the proxy does in user space.
    OtherUser,
    /// One filter, by its name.
    Filter(String),
}

impl Component {
    /// The components that every proxy has, in the order of a message's way.
    pub const FIXED: [Component; 7] = [
        Component::Ipc,
        Component::Wakeup,
        Component::Readiness,
        Component::Read,
        Component::Parse,
        Component::OtherUser,
        Component::Write,
    ];
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Component::Ipc => "ipc",
            Component::Read => "read",
            Component::Write => "write",
            Component::Readiness => "readiness",
            Component::Wakeup => "wakeup",
            Component::Parse => "parse",
            Component::OtherUser => "other_user",
            Component::Filter(name) => return write!(f, "filter:{name}"),
        })
    }
}

/// A name that is none of a component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is no component: take ipc, read, write, readiness, wakeup, parse, other_user or filter:NAME"
)]
pub struct UnknownComponent(pub String);

impl FromStr for Component {
    type Err = UnknownComponent;

    fn from_str(text: &str) -> Result<Component, UnknownComponent> {
        Ok(match text {
            "ipc" => Component::Ipc,
            "read" => Component::Read,
            "write" => Component::Write,
            "readiness" => Component::Readiness,
            "wakeup" => Component::Wakeup,
            "parse" => Component::Parse,
            "other_user" => Component::OtherUser,
            other => match other.strip_prefix("filter:") {
                Some(name) if !name.is_empty() => Component::Filter(name.to_owned()),
                _ => return Err(UnknownComponent(other.chars().take(80).collect())),
            },
        })
    }
}

impl TryFrom<String> for Component {
    type Error = UnknownComponent;

    fn try_from(text: String) -> Result<Component, UnknownComponent> {
        text.parse()
    }
}

impl From<Component> for String {
    fn from(component: Component) -> String {
        component.to_string()
    }
}

/// What the proxy was made to understand of the bytes that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// Opaque bytes over TCP.
    Tcp,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
    /// gRPC over HTTP/2.
    Grpc,
    Provost,
}

impl Protocol {
    pub const ALL: [Protocol; 5] = [
        Protocol::Tcp,
        Protocol::Http1,
        Protocol::Http2,
        Protocol::Grpc,
        Protocol::Provost,
    ];

    /// Its name in files and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Http1 => "http1",
            Protocol::Http2 => "http2",
            Protocol::Grpc => "grpc",
            Protocol::Provost => "provost",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a figure is about: one message in one direction, or a request together with its response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Passage {
    /// A request through one proxy.
    Request,
    /// A response through one proxy.
    Response,
    /// A request and its response, of the same size, through one proxy. What cannot be told apart by direction is recorded
    /// so, and a prediction gives each direction half of it, at that direction's own size.
    #[default]
    RoundTrip,
}

/// How a component was measured, and what the measuring cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComponentMethod {
    pub component: Component,
    /// Such as `tp_btf`, `uprobe`, `perf_dwarf`, `preload`, `access_log`, `differential`.
    pub method: String,
    /// In words, what was measured between which two points.
    #[serde(default)]
    pub detail: String,
    /// What the method itself adds to a message, as measured by runs with and without it; `None` where that could not be
    /// measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_us_per_message: Option<f64>,
    /// The share of the rate that is lost while the method runs, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_rate_share: Option<f64>,
    /// Whether the overhead has been subtracted from the observations.
    #[serde(default)]
    pub overhead_subtracted: bool,
}

/// The load under which something was observed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadCell {
    /// What the proxy understood of the bytes.
    pub protocol: Protocol,
    /// What was different from the proxy's usual way: empty, `unix_sockets`, `zero_copy`, or a name of the user's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// The size of the message; with [`Passage::RoundTrip`], of each of the two.
    pub size_bytes: f64,
    /// Calls per second that the proxy carried.
    pub rate_per_s: f64,
    /// Calls in flight at a time.
    pub in_flight: u32,
}

/// What was observed of one component, in one cell of one repetition: means per passage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observation {
    pub component: Component,
    /// One direction, or both.
    #[serde(default)]
    pub passage: Passage,
    pub load: LoadCell,
    /// The repetition, from 0. Repetitions are interleaved over the cells; all observations with one number were taken in
    /// the same round.
    pub repetition: u32,
    /// Messages (or round trips) that the means are over.
    pub messages: u64,
    /// What the component adds to the message's latency: time on the critical path, exclusive of other components. Negative
    /// only where a difference of two runs came out so.
    pub latency_us: f64,
    /// Processor time of the component for a message, on and off the critical path.
    pub cpu_us: f64,
    /// The part of `cpu_us` that is spent off the critical path, such as work after the message was written.
    #[serde(default)]
    pub cpu_off_path_us: f64,
    /// The latency with what the component calls, for information; it is never added to anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_inclusive_us: Option<f64>,
    /// The latencies of individual messages, where the method sees them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_quantiles_us: Option<LatencyQuantiles>,
}

impl Observation {
    /// A component that does nothing, as what a difference of runs is added to.
    #[must_use]
    pub fn none_of(component: Component, load: LoadCell) -> Observation {
        Observation {
            component,
            passage: Passage::RoundTrip,
            load,
            repetition: 0,
            messages: 0,
            latency_us: 0.0,
            cpu_us: 0.0,
            cpu_off_path_us: 0.0,
            latency_inclusive_us: None,
            latency_quantiles_us: None,
        }
    }
}

/// What the whole proxy added, in one cell of one repetition: the client's figures with the proxy less those without.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TotalObservation {
    /// The filters that the proxy ran, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filters: Vec<String>,
    pub load: LoadCell,
    /// The repetition, as in [`Observation::repetition`].
    pub repetition: u32,
    /// Calls that the figures are over.
    pub messages: u64,
    /// Mean added latency of a round trip.
    pub added_latency_us: f64,
    /// Processor time of the proxy for a round trip, with the kernel's share for it.
    pub added_cpu_us: f64,
    /// Differences of the quantiles of latency, with the proxy less without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_quantiles_us: Option<LatencyQuantiles>,
    /// What was seen of the load through the proxy, which says what bounded its rate; `None` where it was not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacing: Option<LoadPacing>,
}

/// Quantiles of a latency over messages.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyQuantiles {
    /// The 10th percentile.
    pub p10: f64,
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

/// Functions that were fitted to a profile's observations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitSection {
    /// Repetitions that the observations came from.
    pub repetitions: u32,
    /// One for each component, protocol, variant and passage that was observed.
    pub functions: Vec<ComponentFunction>,
    /// Where the functions' residuals hold.
    #[serde(default)]
    pub residuals: ResidualScale,
    /// What the fit leaves to be known: rows that were left out, components with too few sizes.
    #[serde(default)]
    pub remarks: Vec<String>,
}

/// Where the residuals of a function hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResidualScale {
    /// Everywhere the same: what was fitted before the profile said so.
    #[default]
    Everywhere,
    /// In proportion to the function, as [`PiecewiseFunction::residual_quantiles`] has it.
    Proportional,
}

/// What a component costs, as functions of size and rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComponentFunction {
    pub component: Component,
    /// What the proxy understood of the bytes.
    pub protocol: Protocol,
    /// As in [`LoadCell::variant`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
    /// One direction, or both.
    #[serde(default)]
    pub passage: Passage,
    /// Latency of a passage.
    pub latency_us: PiecewiseFunction,
    /// Processor time of a passage.
    pub cpu_us: PiecewiseFunction,
    /// The latencies of individual messages, as multiples of their mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_ratio: Option<LatencyQuantiles>,
}

/// A piecewise-linear function of size and rate:
///
/// `c0 + c1·size + Σ c(2+i)·max(0, size − size_knots[i]) + d0·rate + Σ d(1+i)·max(0, rate − rate_knots[i])`
///
/// The coefficients stand in this order. There is no rate term, and no `d0`, where a profile has one rate only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PiecewiseFunction {
    /// Where the slope over size changes.
    #[serde(default)]
    pub size_knots_bytes: Vec<f64>,
    /// Whether there is a term for the rate.
    #[serde(default)]
    pub has_rate_term: bool,
    /// Where the slope over rate changes.
    #[serde(default)]
    pub rate_knots_per_s: Vec<f64>,
    /// In the order above.
    pub coefficients: Vec<f64>,
    /// Of the coefficients, row by row.
    pub covariance: Vec<Vec<f64>>,
    /// Degrees of freedom behind the covariance.
    pub degrees_of_freedom: u32,
    /// Quantiles of what the observed cells differ from the function, where it is as large as at the smallest or the largest size
    /// observed, whichever is more (at the lowest rate); elsewhere they are in proportion to it.
    pub residual_quantiles: Vec<ResidualQuantile>,
    /// Where it was observed.
    pub observed: ObservedRange,
}

/// So large a share of the residuals is at most so much. Of a function they ascend.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResidualQuantile {
    /// From 0 to 1.
    pub share: f64,
    /// Microseconds.
    pub us: f64,
}

/// The loads between which a function was observed; beyond, it is extrapolated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObservedRange {
    pub size_bytes_min: f64,
    pub size_bytes_max: f64,
    pub rate_per_s_min: f64,
    pub rate_per_s_max: f64,
}

/// Why a text is not a profile, or a profile not one that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    /// The text is too long.
    #[error("the profile has {0} bytes, at most {PROFILE_BYTES_MAX} are read: profile fewer cells")]
    TooLong(usize),
    /// It is not JSON, or not of this shape.
    #[error("line {line}, column {column}: {problem}")]
    Malformed {
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// What is wrong there.
        problem: String,
    },
    /// It is JSON of another kind.
    #[error("this is no profile: its field `format` is {0}, not \"{PROFILE_FORMAT}\"")]
    AnotherFormat(String),
    /// It is of another version.
    #[error(
        "the profile has version {0}, this program reads version {PROFILE_VERSION}: take it anew with `provost insight profile`"
    )]
    AnotherVersion(u64),
    /// A field has a value that it cannot have.
    #[error("{place}: {problem}")]
    Invalid {
        /// The field, as a path.
        place: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Profile {
    #[must_use]
    pub fn new(origin: ProfileOrigin, machine: MachineIdentity, proxy: ProxyIdentity) -> Profile {
        Profile {
            format: PROFILE_FORMAT.to_owned(),
            version: PROFILE_VERSION,
            origin,
            taken_at: String::new(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            machine,
            proxy,
            regime: CoreRegime::Idle,
            partial: None,
            whole_rounds: None,
            lost: None,
            ladder: Vec::new(),
            methods: Vec::new(),
            observations: Vec::new(),
            totals: Vec::new(),
            fit: None,
            notes: Vec::new(),
        }
    }

    /// Reads a profile and checks it.
    ///
    /// # Errors
    /// If it is no profile of this version, with the place where it is wrong.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        if text.len() > PROFILE_BYTES_MAX {
            return Err(ProfileError::TooLong(text.len()));
        }
        let head: ProfileHead = serde_json::from_str(text).map_err(malformed)?;
        match head.format {
            Some(serde_json::Value::String(format)) if format == PROFILE_FORMAT => {}
            other => return Err(ProfileError::AnotherFormat(describe(other.as_ref()))),
        }
        if head.version != Some(u64::from(PROFILE_VERSION)) {
            return Err(ProfileError::AnotherVersion(head.version.unwrap_or(0)));
        }
        let profile: Profile = serde_json::from_str(text).map_err(malformed)?;
        profile.check()?;
        Ok(profile)
    }

    #[must_use]
    pub fn to_json(&self) -> String {
        // Only maps with keys that are no strings fail, and there is none.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Whether every figure is one that can be. [`Profile::parse`] has checked it.
    ///
    /// # Errors
    /// The first figure that cannot be.
    pub fn check(&self) -> Result<(), ProfileError> {
        let counts = [
            ("observations", self.observations.len(), OBSERVATIONS_MAX),
            ("totals", self.totals.len(), OBSERVATIONS_MAX),
            ("ladder", self.ladder.len(), ENTRIES_MAX),
            ("methods", self.methods.len(), ENTRIES_MAX),
            ("notes", self.notes.len(), ENTRIES_MAX),
        ];
        for (name, count, max) in counts {
            if count > max {
                return Err(invalid(name, format!("{count} entries, at most {max} are read")));
            }
        }
        for (at, observation) in self.observations.iter().enumerate() {
            observation.check(&format!("observations[{at}]"))?;
        }
        for (at, total) in self.totals.iter().enumerate() {
            total.check(&format!("totals[{at}]"))?;
        }
        if let Some(lost) = &self.lost {
            lost.check("lost")?;
        }
        match &self.fit {
            Some(fit) => fit.check(),
            None => Ok(()),
        }
    }
}

/// Enough of a profile to see what it is.
#[derive(Deserialize)]
struct ProfileHead {
    #[serde(default)]
    format: Option<serde_json::Value>,
    #[serde(default)]
    version: Option<u64>,
}

fn describe(value: Option<&serde_json::Value>) -> String {
    value.map_or_else(
        || "missing".to_owned(),
        |value| value.to_string().chars().take(80).collect(),
    )
}

fn malformed(error: serde_json::Error) -> ProfileError {
    let (line, column) = (error.line(), error.column());
    let whole = error.to_string();
    let problem = whole
        .rsplit_once(" at line ")
        .map_or(&*whole, |(before, _)| before);
    ProfileError::Malformed {
        line,
        column,
        problem: problem.to_owned(),
    }
}

fn invalid(place: &str, problem: impl Into<String>) -> ProfileError {
    ProfileError::Invalid {
        place: place.to_owned(),
        problem: problem.into(),
    }
}

/// A figure within its bounds.
pub(crate) fn within(place: &str, field: &str, value: f64, min: f64, max: f64) -> Result<(), ProfileError> {
    if value.is_finite() && (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(invalid(
            &format!("{place}.{field}"),
            format!("{value} is not between {min} and {max}"),
        ))
    }
}

impl LoadCell {
    fn check(&self, place: &str) -> Result<(), ProfileError> {
        within(place, "size_bytes", self.size_bytes, 0.0, LOAD_MAX)?;
        within(place, "rate_per_s", self.rate_per_s, 0.0, LOAD_MAX)
    }
}

impl Observation {
    fn check(&self, place: &str) -> Result<(), ProfileError> {
        self.load.check(&format!("{place}.load"))?;
        within(place, "latency_us", self.latency_us, -TIME_US_MAX, TIME_US_MAX)?;
        within(place, "cpu_us", self.cpu_us, -TIME_US_MAX, TIME_US_MAX)?;
        within(
            place,
            "cpu_off_path_us",
            self.cpu_off_path_us,
            -TIME_US_MAX,
            TIME_US_MAX,
        )?;
        if let Some(inclusive) = self.latency_inclusive_us {
            within(
                place,
                "latency_inclusive_us",
                inclusive,
                -TIME_US_MAX,
                TIME_US_MAX,
            )?;
        }
        match &self.latency_quantiles_us {
            Some(quantiles) => quantiles.check(&format!("{place}.latency_quantiles_us")),
            None => Ok(()),
        }
    }
}

impl TotalObservation {
    fn check(&self, place: &str) -> Result<(), ProfileError> {
        self.load.check(&format!("{place}.load"))?;
        within(
            place,
            "added_latency_us",
            self.added_latency_us,
            -TIME_US_MAX,
            TIME_US_MAX,
        )?;
        within(
            place,
            "added_cpu_us",
            self.added_cpu_us,
            -TIME_US_MAX,
            TIME_US_MAX,
        )?;
        if let Some(pacing) = &self.pacing {
            pacing.check(&format!("{place}.pacing"))?;
        }
        match &self.added_quantiles_us {
            Some(quantiles) => quantiles.check(&format!("{place}.added_quantiles_us")),
            None => Ok(()),
        }
    }
}

impl LatencyQuantiles {
    /// The values with their shares.
    #[must_use]
    pub const fn points(&self) -> [(f64, f64); 4] {
        [
            (0.1, self.p10),
            (0.5, self.p50),
            (0.9, self.p90),
            (0.99, self.p99),
        ]
    }

    fn check(&self, place: &str) -> Result<(), ProfileError> {
        for ((_, value), field) in self.points().into_iter().zip(["p10", "p50", "p90", "p99"]) {
            within(place, field, value, -TIME_US_MAX, TIME_US_MAX)?;
        }
        Ok(())
    }
}

impl FitSection {
    fn check(&self) -> Result<(), ProfileError> {
        if self.functions.len() > ENTRIES_MAX {
            return Err(invalid(
                "fit.functions",
                format!("more than {ENTRIES_MAX} entries"),
            ));
        }
        for (at, function) in self.functions.iter().enumerate() {
            let place = format!("fit.functions[{at}]");
            function.latency_us.check(&format!("{place}.latency_us"))?;
            function.cpu_us.check(&format!("{place}.cpu_us"))?;
            if let Some(ratio) = &function.message_ratio {
                ratio.check(&format!("{place}.message_ratio"))?;
            }
        }
        Ok(())
    }
}

/// A function changes its slope at most so often over size, and as often over rate.
pub const KNOTS_MAX: usize = 16;

impl PiecewiseFunction {
    /// How many coefficients a function of this shape has.
    #[must_use]
    pub fn terms(&self) -> usize {
        let rate = if self.has_rate_term {
            1 + self.rate_knots_per_s.len()
        } else {
            0
        };
        2 + self.size_knots_bytes.len() + rate
    }

    fn check(&self, place: &str) -> Result<(), ProfileError> {
        let knots = self.size_knots_bytes.len().max(self.rate_knots_per_s.len());
        if knots > KNOTS_MAX {
            return Err(invalid(
                place,
                format!("{knots} knots, at most {KNOTS_MAX} are read"),
            ));
        }
        let terms = self.terms();
        if self.coefficients.len() != terms {
            let problem = format!("{} coefficients for {terms} terms", self.coefficients.len());
            return Err(invalid(place, problem));
        }
        let is_square =
            self.covariance.len() == terms && self.covariance.iter().all(|row| row.len() == terms);
        if !is_square {
            return Err(invalid(
                place,
                format!("the covariance is not {terms} by {terms}"),
            ));
        }
        let knots = self.size_knots_bytes.iter().chain(&self.rate_knots_per_s);
        let residuals = self
            .residual_quantiles
            .iter()
            .flat_map(|one| [&one.share, &one.us]);
        let all = self.coefficients.iter().chain(self.covariance.iter().flatten());
        let is_finite = all
            .chain(knots)
            .chain(residuals)
            .all(|value| value.is_finite() && value.abs() < 1e30);
        if !is_finite {
            return Err(invalid(place, "a figure is not finite"));
        }
        self.check_residuals(place)?;
        self.observed.check(&format!("{place}.observed"))
    }

    fn check_residuals(&self, place: &str) -> Result<(), ProfileError> {
        let quantiles = &self.residual_quantiles;
        for (at, one) in quantiles.iter().enumerate() {
            within(
                &format!("{place}.residual_quantiles[{at}]"),
                "share",
                one.share,
                0.0,
                1.0,
            )?;
        }
        let ascends = |pair: &[ResidualQuantile]| pair[0].share < pair[1].share && pair[0].us <= pair[1].us;
        if quantiles.windows(2).all(ascends) {
            Ok(())
        } else {
            let place = format!("{place}.residual_quantiles");
            Err(invalid(&place, "shares and residuals do not ascend"))
        }
    }
}

impl ObservedRange {
    fn check(&self, place: &str) -> Result<(), ProfileError> {
        within(place, "size_bytes_max", self.size_bytes_max, 0.0, LOAD_MAX)?;
        within(
            place,
            "size_bytes_min",
            self.size_bytes_min,
            0.0,
            self.size_bytes_max,
        )?;
        within(place, "rate_per_s_max", self.rate_per_s_max, 0.0, LOAD_MAX)?;
        within(
            place,
            "rate_per_s_min",
            self.rate_per_s_min,
            0.0,
            self.rate_per_s_max,
        )
    }
}

#[cfg(test)]
mod tests;
