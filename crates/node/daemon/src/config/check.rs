//! Ranges, and what must not contradict each other.

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;

use provost_wire::limits;

use super::{
    AccountKind, Config, ConfigError, ListenAddress, NamedAccount, Problem, RouteConfig, RouteTransport,
    apps, parse_mode,
};
use crate::plurals::counted;
use crate::policies::ATTACHMENTS_MAX;
use crate::transport::{
    GRPC_CONNECTIONS_MAX, PACKET_BYTES_MAX, PACKET_BYTES_MIN, PeerAddress, TransportKind,
};

/// What sockets of TCP are called here, those of gRPC and HTTP as well.
const TCP: &str = "tcp";
/// Runtime threads, at most.
const RUNTIMES_MAX: usize = 64;
/// Listeners and routes, at most each.
const ENTRIES_MAX: usize = 4096;
/// Longest spin before sleep: past this a runtime should say `busy_poll`.
const SPIN_US_MAX: u64 = 100_000;
/// Entries of a list of peers' identities, at most, and bytes of each (SPIFFE-ID, section 2.3).
const IDENTITIES_MAX: usize = 1024;
const IDENTITY_BYTES_MAX: usize = 2048;
/// What a Unix socket's address holds on Linux, in bytes, without the terminating zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

impl Config {
    /// Checks ranges and references, and lists everything that is wrong.
    pub fn check(&self, origin: &str) -> Result<(), ConfigError> {
        match self.problems() {
            problems if problems.is_empty() => Ok(()),
            problems => Err(ConfigError::Invalid {
                origin: origin.into(),
                problems,
            }),
        }
    }

    /// Ranges and references that are wrong.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems = Problems::default();
        self.check_control(&mut problems);
        self.check_runtime(&mut problems);
        self.check_limits(&mut problems);
        self.check_timeouts(&mut problems);
        self.check_paths_of_calls(&mut problems);
        self.check_datagram(&mut problems);
        self.check_tls(&mut problems);
        for (key, problem) in self.grpc_problems() {
            problems.add(key, problem);
        }
        self.check_sockets(&mut problems);
        if let Err(problem) = self.observe.address() {
            problems.add("observe.listen", problem);
        }
        if let Err((key, problem)) = self.observe.collector() {
            problems.add(key, problem);
        }
        problems.0.extend(self.page_problems());
        problems.0
    }

    fn check_control(&self, problems: &mut Problems) {
        let socket_bytes = self.control.socket.as_os_str().len();
        if socket_bytes == 0 || socket_bytes > SOCKET_PATH_BYTES_MAX {
            let message =
                format!("a path of {socket_bytes} bytes; a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}");
            problems.add("control.socket", message);
        }
        if parse_mode(&self.control.mode).is_none() {
            let message = format!("\"{}\" is not an octal mode such as \"0660\"", self.control.mode);
            problems.add("control.mode", message);
        }
        problems.accounts("control.allow_uids", &self.control.allow_uids);
        problems.accounts("control.allow_gids", &self.control.allow_gids);
        self.check_admin(problems);
        self.check_apps(problems);
        if self.node.name.is_empty() || self.node.name.len() > limits::NAME_BYTES_MAX {
            problems.add(
                "node.name",
                format!("give it 1 to {} bytes", limits::NAME_BYTES_MAX),
            );
        }
    }

    fn check_admin(&self, problems: &mut Problems) {
        if !self.admin.enabled {
            return;
        }
        let socket = self.admin.socket_beside(&self.control.socket);
        let bytes = socket.as_os_str().len();
        if bytes > SOCKET_PATH_BYTES_MAX {
            let message = format!(
                "{} has {bytes} bytes; a Unix socket takes 1 to {SOCKET_PATH_BYTES_MAX}: name a shorter path, or set \
                 admin.enabled = false",
                socket.display()
            );
            problems.add("admin.socket", message);
        }
        if socket == self.control.socket {
            let message = "is control.socket too: give each a path of its own";
            problems.add("admin.socket", message.into());
        }
        if parse_mode(&self.admin.mode).is_none() {
            let message = format!("\"{}\" is not an octal mode such as \"0660\"", self.admin.mode);
            problems.add("admin.mode", message);
        }
        problems.accounts("admin.view_uids", &self.admin.view_uids);
        problems.accounts("admin.view_gids", &self.admin.view_gids);
        problems.accounts("admin.operate_uids", &self.admin.operate_uids);
        problems.accounts("admin.operate_gids", &self.admin.operate_gids);
        problems.accounts("admin.admin_uids", &self.admin.admin_uids);
        problems.accounts("admin.admin_gids", &self.admin.admin_gids);
    }

    fn check_apps(&self, problems: &mut Problems) {
        problems.range("app", self.apps.len(), 0, apps::TABLES_MAX);
        let mut earlier = HashSet::new();
        for (at, table) in self.apps.iter().enumerate() {
            for (key, problem) in table.problems() {
                problems.add(format!("app[{at}].{key}"), problem);
            }
            if !earlier.insert(&table.name) {
                let message = format!(
                    "\"{}\" has a table already: give one all that it needs",
                    table.name
                );
                problems.add(format!("app[{at}].name"), message);
            }
        }
    }

    fn check_runtime(&self, problems: &mut Problems) {
        let runtime = &self.runtime;
        problems.range("runtime.threads", runtime.threads, 1, RUNTIMES_MAX);
        problems.range("runtime.spin_us", runtime.spin_us, 0, SPIN_US_MAX);
        if runtime.dedicated.len() >= runtime.threads && !runtime.dedicated.is_empty() {
            let message = format!(
                "{} a thread of its own, and one must remain for the others: raise runtime.threads to {}",
                counted(runtime.dedicated.len(), "app wants", "apps want each"),
                runtime.dedicated.len() + 1
            );
            problems.add("runtime.dedicated", message);
        }
    }

    fn check_limits(&self, problems: &mut Problems) {
        let at = &self.limits;
        problems.range("limits.apps", at.apps, 1, 1 << 20);
        problems.range("limits.connections", at.connections, 1, 1 << 20);
        problems.range(
            "limits.connections_per_app",
            at.connections_per_app,
            1,
            at.connections.max(1),
        );
        problems.range(
            "limits.calls_in_flight",
            at.calls_in_flight,
            1,
            limits::CALLS_IN_FLIGHT_MAX,
        );
        problems.range(
            "limits.message_bytes",
            at.message_bytes,
            1024,
            limits::MESSAGE_BYTES_MAX,
        );
        problems.range(
            "limits.send_heap_bytes",
            at.send_heap_bytes,
            1 << 20,
            limits::REGION_BYTES_MAX,
        );
        problems.range(
            "limits.receive_heap_bytes",
            at.receive_heap_bytes,
            1 << 20,
            limits::REGION_BYTES_MAX,
        );
        if at.receive_heap_bytes < 2 * u64::from(at.message_bytes) {
            let message = format!(
                "{} bytes do not hold two messages of limits.message_bytes = {}: raise the one or lower the other",
                at.receive_heap_bytes, at.message_bytes
            );
            problems.add("limits.receive_heap_bytes", message);
        }
        problems.range(
            "limits.ring_slots",
            at.ring_slots,
            limits::RING_SLOTS_MIN,
            limits::RING_SLOTS_MAX,
        );
        problems.range("limits.handshakes", at.handshakes, 1, 4096);
        problems.range("limits.schemas", at.schemas, 1, 1 << 16);
        // Shares may be larger than what they are shares of: then they bound nothing.
        for (key, share) in [
            ("limits.apps_per_user", at.apps_per_user),
            ("limits.connections_per_user", at.connections_per_user),
            ("limits.schemas_per_user", at.schemas_per_user),
        ] {
            problems.range(key, share, 1, 1 << 20);
        }
    }

    fn check_timeouts(&self, problems: &mut Problems) {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        let at = &self.timeouts;
        problems.range("timeouts.connect_ms", at.connect_ms, 1, DAY_MS);
        problems.range("timeouts.handshake_ms", at.handshake_ms, 1, DAY_MS);
        problems.range(
            "timeouts.keepalive_interval_ms",
            at.keepalive_interval_ms,
            10,
            DAY_MS,
        );
        problems.range(
            "timeouts.keepalive_timeout_ms",
            at.keepalive_timeout_ms,
            10,
            DAY_MS,
        );
        problems.range("timeouts.completion_stall_ms", at.completion_stall_ms, 10, DAY_MS);
        problems.range("timeouts.drain_ms", at.drain_ms, 0, DAY_MS);
        problems.range("timeouts.hot_restart_ms", at.hot_restart_ms, 10, DAY_MS);
    }

    /// What can be seen without the kinds: which there are is known when libraries have been loaded.
    fn check_policies(&self, problems: &mut Problems) {
        let count = self.policies.len() + self.attachments.len();
        problems.range("policy", count, 0, ATTACHMENTS_MAX);
        let mut earlier = HashSet::new();
        for (at, attachment) in self.attachments.iter().enumerate() {
            for bad in attachment.problems() {
                problems.add(format!("policy[{at}].{}", bad.key), bad.problem);
            }
            if !earlier.insert(&attachment.name) {
                let message = format!(
                    "\"{}\" is taken: give each policy a name of its own",
                    attachment.name
                );
                problems.add(format!("policy[{at}].name"), message);
            }
        }
    }

    fn check_tls(&self, problems: &mut Problems) {
        if let Some(tls) = &self.tls {
            for (key, problem) in tls.problems() {
                problems.add(key.to_owned(), problem);
            }
            problems.identities("tls.allow_peers", &tls.allow_peers);
            problems.identities("tls.attesting_peers", &tls.attesting_peers);
            problems.identities("tls.server_identities", &tls.server_identities);
        }
        for (at, listener) in self.grpc.listeners.iter().enumerate() {
            let allowed = listener.tls.iter().flat_map(|tls| tls.allow_clients.clone());
            let key = format!("grpc.listener[{at}].tls.allow_clients");
            problems.identities(&key, &allowed.collect::<Vec<_>>());
        }
    }

    fn check_datagram(&self, problems: &mut Problems) {
        let bytes = self.datagram.packet_bytes;
        problems.range("datagram.packet_bytes", bytes, PACKET_BYTES_MIN, PACKET_BYTES_MAX);
    }

    fn check_paths_of_calls(&self, problems: &mut Problems) {
        self.check_policies(problems);
        problems.range("listener", self.listeners.len(), 0, ENTRIES_MAX);
        for (at, listener) in self.listeners.iter().enumerate() {
            if !listener.transport.listens() {
                let message = format!(
                    "\"{}\" does not listen for other nodes",
                    listener.transport.name()
                );
                problems.add(format!("listener[{at}].transport"), message);
            }
            if let Some(problem) = self.sealing_problem(listener.transport) {
                problems.add(format!("listener[{at}].transport"), problem);
            }
        }
        problems.range("route", self.routes.len(), 0, ENTRIES_MAX);
        let mut earlier = HashSet::new();
        for (at, route) in self.routes.iter().enumerate() {
            check_route(&format!("route[{at}]"), route, problems);
            self.check_tls_of_route(&format!("route[{at}]"), route, problems);
            if let Some(problem) = self.sealing_problem(route.transport.network()) {
                problems.add(format!("route[{at}].transport"), problem);
            }
            for (key, problem) in self.export_problems(route) {
                problems.add(format!("route[{at}].{key}"), problem);
            }
            problems.identities(
                &format!("route[{at}].server_identities"),
                &route.server_identities,
            );
            if !earlier.insert(&route.service) {
                let message = format!(
                    "\"{}\" has a route already: give one all endpoints",
                    route.service
                );
                problems.add(format!("route[{at}].service"), message);
            }
        }
    }
}

/// What the sockets of listeners are told apart by: a port of TCP is none of UDP.
type SocketOf = (&'static str, SocketAddr);

impl Config {
    /// One address is listened at once. Those of `[[grpc.listener]]` are compared where they are checked.
    fn check_sockets(&self, problems: &mut Problems) {
        let mut taken: Vec<(String, SocketOf)> = Vec::new();
        let mut take = |key: String, socket: SocketOf, is_compared: &dyn Fn(&str) -> bool| {
            let (_, address) = socket;
            let first = taken
                .iter()
                .find(|(other, at)| *at == socket && is_compared(other));
            match first {
                _ if address.port() == 0 => {}
                Some((other, _)) => {
                    let message = format!("{address} is {other} too: give each an address of its own");
                    problems.add(key, message);
                }
                None => taken.push((key, socket)),
            }
        };
        for (at, listener) in self.listeners.iter().enumerate() {
            let socket = (listener.transport.name(), listener.address);
            take(format!("listener[{at}].address"), socket, &|_| true);
        }
        for (at, listener) in self.grpc.listeners.iter().enumerate() {
            if let Ok(ListenAddress::Tcp(address)) = listener.listen_address() {
                let is_other = |key: &str| !key.starts_with("grpc.");
                take(format!("grpc.listener[{at}].address"), (TCP, address), &is_other);
            }
        }
        if let Ok(Some(ListenAddress::Tcp(address))) = self.observe.address() {
            take("observe.listen".to_owned(), (TCP, address), &|_| true);
        }
        if let Ok(Some(ListenAddress::Tcp(address))) = self.page.address() {
            take("page.listen".to_owned(), (TCP, address), &|_| true);
        }
    }

    /// Why a transport cannot stand beside the `[tls]` table, if there is one.
    fn sealing_problem(&self, transport: TransportKind) -> Option<String> {
        let reason = transport.unsealed().filter(|_| self.tls.is_some())?;
        Some(format!(
            "{reason}, and with a [tls] table nothing leaves this node that way: use another transport"
        ))
    }

    fn check_tls_of_route(&self, key: &str, route: &RouteConfig, problems: &mut Problems) {
        let is_grpc = route.transport.network().leads_to_servers();
        if self.tls.is_none() && route.tls.is_none() && !route.server_identities.is_empty() {
            let message = "without a [tls] table no server proves who it is: add one, or remove this key";
            problems.add(format!("{key}.server_identities"), message.into());
        }
        if route.tls.is_some() && !is_grpc {
            let message = "is for transport = \"grpc\": other transports go by [tls]";
            problems.add(format!("{key}.tls"), message.into());
        }
        if !route.compression.is_none() && !is_grpc {
            let message = "is for transport = \"grpc\": messages between nodes are not compressed";
            problems.add(format!("{key}.compression"), message.into());
        }
        if route.connections.is_some() && !is_grpc {
            let message =
                "is for transport = \"grpc\": between nodes one connection takes all calls of a client";
            problems.add(format!("{key}.connections"), message.into());
        } else if route
            .connections
            .is_some_and(|count| !(1..=GRPC_CONNECTIONS_MAX as u32).contains(&count))
        {
            let message = format!("must be 1 to {GRPC_CONNECTIONS_MAX}");
            problems.add(format!("{key}.connections"), message);
        }
        if route.connection_age_s != 0 && !is_grpc {
            let message = "is for transport = \"grpc\": connections between nodes have no greatest age";
            problems.add(format!("{key}.connection_age_s"), message.into());
        }
        if route.reflection && !is_grpc {
            let message = "is for transport = \"grpc\": other nodes do not tell schemas";
            problems.add(format!("{key}.reflection"), message.into());
        }
        for (of, problem) in route.tls_problems(self.tls.as_ref()) {
            problems.add(format!("{key}.{of}"), problem);
        }
        let leaves = route
            .endpoints
            .iter()
            .any(|endpoint| !PeerAddress::is_unix(endpoint));
        if self.tls.is_some() && is_grpc && route.tls.is_none() && leaves {
            let message = "goes without TLS, and with a [tls] table nothing leaves this node that way: give the route a \
                           tls table, if only an empty one (tls = {})";
            problems.add(format!("{key}.transport"), message.into());
        }
        for endpoint in &route.endpoints {
            let problem = match PeerAddress::unix(endpoint) {
                Some(Err(problem)) => problem,
                Some(Ok(_)) if !is_grpc => {
                    format!("\"{endpoint}\" is a Unix socket: those are for transport = \"grpc\"")
                }
                Some(Ok(_)) | None => continue,
            };
            problems.add(format!("{key}.endpoints"), problem);
        }
    }
}

fn check_route(key: &str, route: &RouteConfig, problems: &mut Problems) {
    if !is_service_name(&route.service) {
        let message = format!(
            "\"{}\" is no service's name: name one in full, such as \"kv.Kv\", or \"*\" for all others",
            route.service.escape_debug()
        );
        problems.add(format!("{key}.service"), message);
    }
    match (route.transport, route.endpoints.is_empty()) {
        (RouteTransport::Over(kind), true) if kind.is_network() => {
            let message = format!(
                "{} needs at least one \"host:port\" for \"{}\"",
                kind.name(),
                route.service
            );
            problems.add(format!("{key}.endpoints"), message);
        }
        (RouteTransport::Over(kind), false) if !kind.is_network() => {
            let message = "a local service has no endpoints: remove them, or use transport = \"auto\"";
            problems.add(format!("{key}.endpoints"), message.into());
        }
        _ => {}
    }
    let others = route
        .endpoints
        .iter()
        .filter(|endpoint| !PeerAddress::is_unix(endpoint));
    for endpoint in others {
        if let Some((_, address)) = endpoint.split_once("://") {
            let address = address.split('/').next().unwrap_or_default();
            let message = format!(
                "\"{endpoint}\" is a URL: write \"host:port\" alone, here \"{address}\" (the route's transport and tls say what \
                 is spoken there)"
            );
            problems.add(format!("{key}.endpoints"), message);
            continue;
        }
        let port = endpoint.rsplit_once(':').and_then(|(host, port)| {
            let port: u16 = port.parse().ok()?;
            let is_host =
                !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/@?#".contains(c));
            (is_host && port != 0).then_some(port)
        });
        if port.is_none() {
            let message = format!("\"{endpoint}\" is not \"host:port\" with a port from 1 to 65535");
            problems.add(format!("{key}.endpoints"), message);
        }
    }
}

/// Whether a service can be called so: `*`, or parts between dots of which none is empty. (gRPC takes names that Protocol Buffers does not.)
fn is_service_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let is_bad = |c: char| c.is_whitespace() || c.is_control() || c == '*';
        !part.is_empty() && !part.contains(is_bad)
    };
    let is_path = name.starts_with('/') || name.ends_with('/');
    name == "*" || (name.len() <= limits::NAME_BYTES_MAX && !is_path && name.split('.').all(is_part))
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    /// Identities of peers, or patterns of them.
    fn identities(&mut self, key: &str, identities: &[String]) {
        self.range(key, identities.len(), 0, IDENTITIES_MAX);
        let is_bad = |identity: &&String| identity.is_empty() || identity.len() > IDENTITY_BYTES_MAX;
        if let Some(bad) = identities.iter().find(is_bad) {
            let message = format!(
                "an identity of {} bytes: give each 1 to {IDENTITY_BYTES_MAX}, such as \"spiffe://example.org/node/b\"",
                bad.len()
            );
            self.add(key, message);
        }
    }

    fn add(&mut self, key: impl Into<String>, message: String) {
        self.0.push(Problem {
            key: key.into(),
            message,
        });
    }

    fn accounts<K: AccountKind>(&mut self, key: &str, accounts: &[NamedAccount<K>]) {
        for problem in accounts.iter().filter_map(NamedAccount::problem) {
            self.add(key, problem);
        }
    }

    fn range<T: PartialOrd + fmt::Display>(&mut self, key: &str, value: T, least: T, most: T) {
        if value < least || value > most {
            self.add(key, format!("{value} is out of range: {least} to {most}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_service_has_and_endpoints_that_are_none_are_refused() {
        for good in ["*", "a.B", "B", "grpc.health.v1.Health", "odd/name.S-1"] {
            assert!(is_service_name(good), "{good}");
        }
        for bad in ["", "a..B", "a..B/", "/a.B", "a.B/", ".B", "a.", "a .B", "a.*"] {
            assert!(!is_service_name(bad), "{bad}");
        }
        let said = |endpoint: &str| {
            let route = RouteConfig {
                service: "a.B".into(),
                endpoints: vec![endpoint.into()],
                ..RouteConfig::default()
            };
            let mut problems = Problems::default();
            check_route("route[0]", &route, &mut problems);
            problems.0.into_iter().map(|problem| problem.message).next()
        };
        for good in ["localhost:50061", "[::1]:50061", "10.0.0.1:1"] {
            assert_eq!(said(good), None);
        }
        let url = said("http://localhost:50061/path").unwrap();
        assert!(
            url.contains("is a URL") && url.contains("here \"localhost:50061\""),
            "{url}"
        );
        for bad in ["user@host:1", "a b:1", "host/x:1", "host"] {
            assert!(said(bad).unwrap().contains("is not \"host:port\""), "{bad}");
        }
    }
}
