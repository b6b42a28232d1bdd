//! Figures of MeshInsight (SoCC 2023), which is about Envoy 1.21 on machines of 2022.

use provost_insight::profile::Component;

use super::PROTOCOLS;

/// Shares of latency in table 2, of messages of 100 bytes: TCP, HTTP, gRPC.
const SHARES: [(Component, [&str; 3]); 6] = [
    (Component::Ipc, ["30 %", "8 %", "7 %"]),
    (Component::Read, ["16 %", "5 %", "5 %"]),
    (Component::Write, ["34 %", "8 %", "7 %"]),
    (Component::Readiness, ["3 %", "1 %", "1 %"]),
    (Component::Parse, ["none", "70 %", "73 %"]),
    (Component::OtherUser, ["11 %", "8 %", "7 %"]),
];
/// Added latency of a whole sidecar in table 2.
const ADDED: [&str; 3] = ["38.6 us", "167.3 us", "194.8 us"];
/// Latency of filters in table 3, over HTTP.
const FILTERS: [(&str, &str); 4] = [
    ("fault", "5.7 us"),
    ("rate-limit", "8.2 us"),
    ("lua", "80.6 us"),
    ("wasm", "26.3 us"),
];
/// What 16 KB cost more than 100 bytes over HTTP: latency (figure 10), processor time (figure 11).
pub(super) const GROWTH: [&str; 2] = ["30 %", "44 %"];
/// What Unix sockets save over TCP, over traces of messages of 100 bytes: latency (figure 13), processor time (figure 14).
pub(super) const UNIX_SOCKETS: [&str; 2] = ["27 % over traces", "18 % over traces"];
/// What zero-copy writes save.
pub(super) const ZERO_COPY: &str = "negligible";
/// What was found of the sum of filters (figure 9), and of predictions (figure 8).
pub(super) const FILTERS_SUM: &str = "quite accurate";
pub(super) const PREDICTIONS: &str = "tracks well, on the lower end";
/// The median over traces in figure 12, in the modes TCP and gRPC with filters.
pub(super) const TRACES: [&str; 2] = ["0.2 ms", "2 ms with five filters"];

/// Which mode of the paper's a setup is; only of messages of 100 bytes through Envoy.
fn mode(setup: &str) -> Option<usize> {
    PROTOCOLS
        .iter()
        .position(|protocol| setup == format!("envoy {protocol} 100 B"))
}

/// Of a component's share.
pub(super) fn share(setup: &str, component: &Component) -> Option<&'static str> {
    let at = mode(setup)?;
    let (_, shares) = SHARES.iter().find(|(each, _)| each == component)?;
    Some(shares[at])
}

/// Of what a whole sidecar adds.
pub(super) fn added(setup: &str) -> Option<&'static str> {
    Some(ADDED[mode(setup)?])
}

/// Of a filter's latency.
pub(super) fn filter(name: &str) -> Option<&'static str> {
    let (_, latency) = FILTERS.iter().find(|(each, _)| *each == name)?;
    Some(latency)
}
