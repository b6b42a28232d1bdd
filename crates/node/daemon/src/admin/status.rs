//! The node at a glance.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use provost_admin::v1;
use provost_admin::v1::status::State;

use crate::authority::openness;
use crate::control_plane::ControlPlane;
use crate::counts::unix_ms;
use crate::inspect::{self, PolicyDescription};
use crate::observe;
use crate::runtime::{Runtime, TimeSpent};

use super::Role;
use super::desk::Desk;
use super::listings;

/// What the node is and does.
pub(crate) async fn status(desk: &Desk, role: Role) -> v1::Status {
    let plane = &desk.plane;
    let polled = inspect::polled(plane).await;
    let of_policies = policy_warnings(desk).await;
    let paths = polled.paths.values();
    let config = plane.config.state();
    let service_ms = unix_ms().saturating_sub(plane.counts.began_unix_ms.get());
    let uptime_s = desk.began.elapsed().as_secs_f64();
    v1::Status {
        node: plane.config.started.node.name.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id() as i32,
        uptime_s,
        // By another clock, which somebody may have set meanwhile.
        service_uptime_s: uptime_s.max(service_ms as f64 / 1e3),
        state: state(plane).into(),
        control_socket: plane.config.started.control.socket.display().to_string(),
        listeners: plane.peers.addresses.iter().map(ToString::to_string).collect(),
        apps: plane.apps.count() as u32,
        connections: plane.connections.count() as u32,
        calls_in_flight: paths.map(|path| path.calls_in_flight as u64).sum(),
        policies: plane.policies.table().entries.len() as u32,
        runtimes: runtimes(desk),
        daemon_upgrades: plane.counts.hot_restarts.get(),
        daemon_rollbacks: plane.counts.hot_restarts_undone.get(),
        config_source: config.sources.describe(),
        config_error: config.error.clone().unwrap_or_default(),
        config_read_at_unix_us: unix_us(config.read_at),
        caller_role: role.name().to_owned(),
        packets: listings::packets(plane.connections.packets(), None),
        warnings: warnings(plane, &of_policies),
        grpc_listeners: plane.grpc.describe_listeners(),
        never_matched: never_matched(plane),
        listener_transports: listener_transports(plane),
    }
}

fn listener_transports(plane: &ControlPlane) -> Vec<String> {
    let listeners = plane.config.started.listeners.iter();
    listeners
        .map(|listener| listener.transport.name().to_owned())
        .collect()
}

/// What an operator should look at.
fn warnings(plane: &ControlPlane, of_policies: &[String]) -> Vec<String> {
    let open = openness(&plane.config.live()).map(str::to_owned);
    let certificates = plane.peers.certificates.iter();
    let failures = observe::failures(plane).into_iter();
    let lost = plane.policies.lost().map(|lost| format!("policies: {lost}"));
    open.into_iter()
        .chain(lost)
        .chain(of_policies.iter().cloned())
        .chain(failures.map(|(what, why)| format!("{what}: {why}")))
        .chain(certificates.flat_map(|certificates| certificates.warnings()))
        .chain(plane.peers.grpc.warnings())
        .chain(
            plane
                .peers
                .workload
                .iter()
                .filter_map(|workload| workload.warning()),
        )
        .collect()
}

/// Policies that have judged no call yet, with where they wait for one.
fn never_matched(plane: &ControlPlane) -> Vec<String> {
    let unmatched = |policy: &PolicyDescription| policy.calls_judged == Some(0);
    let describe = |policy: PolicyDescription| {
        let name = &policy.attachment.name;
        match policy.datapaths {
            0 => format!("{name}: no datapath has it"),
            1 => format!("{name}: no call that it is for has begun on the 1 datapath that has it"),
            datapaths => {
                format!("{name}: no call that it is for has begun on the {datapaths} datapaths that have it")
            }
        }
    };
    let policies = inspect::policies(plane).into_iter();
    policies.filter(unmatched).map(describe).collect()
}

/// What whoever attaches the policies now would be warned of.
async fn policy_warnings(desk: &Desk) -> Arc<[String]> {
    let checked = desk.plane.checked_policies();
    if let Some(known) = desk.policy_warnings.borrow().known(&checked) {
        return known;
    }
    let checking = tokio::task::spawn_blocking(move || (checked.warnings(), checked));
    let Ok((warnings, checked)) = checking.await else {
        return Arc::default();
    };
    let warnings = warnings.into();
    desk.policy_warnings.borrow_mut().keep(checked, &warnings);
    warnings
}

fn state(plane: &ControlPlane) -> State {
    match (plane.connections.is_draining(), plane.peers.barrier.is_closed()) {
        (true, _) => State::Draining,
        (false, true) => State::BeingReplaced,
        (false, false) => State::Serving,
    }
}

/// A time in microseconds since 1970, as the API has it.
pub(crate) fn unix_us(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as i64)
}

fn runtimes(desk: &Desk) -> Vec<v1::Runtime> {
    let plane = &desk.plane;
    let mut datapaths: HashMap<usize, u32> = HashMap::new();
    for connection in plane.connections.all().values() {
        *datapaths.entry(connection.spec.app.runtime).or_default() += 1;
    }
    let spent: Vec<TimeSpent> = plane.runtimes.iter().map(|runtime| runtime.spent()).collect();
    let before = desk.spent.replace(spent.clone());
    let describe = |(number, runtime): (usize, &Runtime)| v1::Runtime {
        number: number as u32,
        apps: runtime.apps() as u32,
        datapaths: datapaths.get(&number).copied().unwrap_or(0),
        busy: busy(spent[number], before.get(number).copied().unwrap_or_default()),
    };
    plane.runtimes.iter().enumerate().map(describe).collect()
}

/// The part of the time between two looks in which a thread had work.
fn busy(now: TimeSpent, before: TimeSpent) -> f64 {
    let all = |spent: TimeSpent| spent.busy_ns + spent.polling_ns + spent.asleep_ns;
    let busy = now.busy_ns.saturating_sub(before.busy_ns) as f64;
    let all = all(now).saturating_sub(all(before)) as f64;
    (busy / all.max(1.0)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_as_busy_as_it_had_work_since_the_last_look() {
        let spent = |busy_ns, polling_ns, asleep_ns| TimeSpent {
            busy_ns,
            polling_ns,
            asleep_ns,
            sleeps: 1,
        };
        assert_eq!(busy(spent(25, 25, 50), TimeSpent::default()), 0.25);
        assert_eq!(busy(spent(75, 25, 50), spent(25, 25, 50)), 1.0);
        assert_eq!(busy(spent(25, 25, 50), spent(25, 25, 50)), 0.0);
    }
}
