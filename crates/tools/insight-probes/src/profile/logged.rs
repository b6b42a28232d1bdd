//! What an access log adds to a profile: the time within the proxy; the rest of what the client sees remains one sum.

use provost_insight::profile::{Component, ComponentMethod, LadderRung, Observation};

use super::{MeasuredCell, ProfileSession, load_cell, median};
use crate::access_log::LoggedSlice;

/// The name of this rung of the ladder.
const METHOD: &str = "access_log";

impl ProfileSession<'_> {
    /// Runs that were logged, each with the run of the same round by the proxy that does not log, or itself.
    fn logged(&self) -> impl Iterator<Item = (LoggedSlice, &MeasuredCell, &MeasuredCell)> {
        self.runs.iter().filter_map(|cell| {
            let logged = cell.run.logged?;
            let bare = self.runs.iter().find(|other| {
                other.difference.is_bare() && other.shape == cell.shape && other.repetition == cell.repetition
            });
            Some((logged, cell, bare?))
        })
    }

    /// Two components for each logged run.
    pub(super) fn logged_observations(&self) -> Vec<Observation> {
        let parts = self.logged().map(|(logged, _, bare)| {
            let load = load_cell(bare);
            let (added_us, cpu_us) = (bare.run.added_us(), bare.run.proxied_cpu_us);
            let within_us = logged.proxy_us;
            let within_cpu_us = within_us.min(cpu_us);
            let rest_us = added_us - within_us;
            let rest_cpu_us = cpu_us - within_cpu_us;
            let seen = |component, latency_us: f64, cpu_us: f64| Observation {
                repetition: bare.repetition,
                messages: logged.calls as u64,
                latency_us,
                cpu_us,
                cpu_off_path_us: (cpu_us - latency_us.max(0.0)).max(0.0),
                ..Observation::none_of(component, load.clone())
            };
            [
                seen(Component::OtherUser, within_us, within_cpu_us),
                seen(Component::Ipc, rest_us, rest_cpu_us),
            ]
        });
        parts.flatten().collect()
    }

    pub(super) fn log_methods(&self) -> Vec<ComponentMethod> {
        if self.logged().next().is_none() {
            return Vec::new();
        }
        let with_and_without = || self.logged().filter(|(_, cell, _)| cell.difference.logs);
        let slower = with_and_without()
            .map(|(_, cell, bare)| cell.run.proxied.middle_mean_us() - bare.run.proxied.middle_mean_us());
        let rate_lost =
            with_and_without().map(|(_, cell, bare)| 1.0 - cell.run.proxied.rate() / bare.run.proxied.rate());
        let (slower, rate_lost) = (median(slower.collect()), median(rate_lost.collect()));
        let method = |component, method: &str, detail: &str| ComponentMethod {
            component,
            method: method.into(),
            detail: detail.into(),
            overhead_us_per_message: slower,
            overhead_rate_share: rate_lost.map(|share| share.clamp(0.0, 1.0)),
            overhead_subtracted: false,
        };
        vec![
            method(
                Component::OtherUser,
                METHOD,
                "from the first byte of a message that Envoy decodes to the last that it encodes, filters with it; in several parts, with reading and writing between them; it counts as time on a core",
            ),
            method(
                Component::Ipc,
                "differential",
                "all the rest of what the client sees: waking up, readiness, reading, the parsing of first bytes, writing, transfer; a log does not tell them apart",
            ),
        ]
    }

    pub(super) fn log_notes(&self) -> Vec<String> {
        let Some(upstream_us) = median(self.logged().map(|(logged, ..)| logged.upstream_us).collect()) else {
            return Vec::new();
        };
        let direct_us = median(
            self.logged()
                .map(|(.., bare)| bare.run.direct.middle_mean_us())
                .collect(),
        );
        let mut notes = vec![format!(
            "access log: the proxy waits {upstream_us:.1} us for its server, a client without a proxy {:.1} us (medians over the measurements)",
            direct_us.unwrap_or_default()
        )];
        let untold: usize = self.logged().map(|(logged, ..)| logged.untold).sum();
        if untold > 0 {
            notes.push(format!(
                "{untold} lines of the access log do not tell where their call's time went"
            ));
        }
        if self.logged().all(|(_, cell, _)| !cell.difference.logs) {
            notes.push(
                "what logging itself takes is not known: the proxy's configuration is not this tool's, and it always logs".into(),
            );
        }
        notes
    }

    /// Processor time that writing a line takes.
    pub(super) fn note_log_cost(&self, ladder: &mut [LadderRung]) {
        let with_and_without = self.logged().filter(|(_, cell, _)| cell.difference.logs);
        let longer_us =
            with_and_without.map(|(_, cell, bare)| cell.run.proxied_cpu_us - bare.run.proxied_cpu_us);
        let cost_ns = median(longer_us.collect()).map(|longer_us| (longer_us * 1e3).max(0.0));
        for rung in ladder.iter_mut().filter(|rung| rung.method == METHOD) {
            rung.hit_cost_ns = cost_ns;
        }
    }
}
