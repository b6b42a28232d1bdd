//! `provost routes` and `provost certs`: the way to other nodes, and what is proved there.

use std::time::{Duration, SystemTime};

use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{
    Certificates, Endpoint, GetCertificatesRequest, ListRoutesRequest, ListRoutesResponse, Route,
};

use crate::watch::{Listing, Shown, fact, show};
use provost_terminal::admin::Node;
use provost_terminal::failure::Failure;
use provost_terminal::numbers::age;
use provost_terminal::table::{Align, Canvas, Cell, Look, Table, broken, clean};

/// How far the lines of a reason stand in, but for its first.
const REASON_INDENT: usize = 2;

/// Lists the routes, each with the health of its endpoints.
pub(crate) async fn routes(listing: &Listing) -> Result<(), Failure> {
    show(listing, async |node: &mut Node| {
        node.call(ListRoutesRequest {}, AdminClient::list_routes).await
    })
    .await
}

/// Says what the node proves itself with, and how long that holds.
pub(crate) async fn certificates(listing: &Listing) -> Result<(), Failure> {
    show(listing, async |node: &mut Node| {
        node.call(GetCertificatesRequest {}, AdminClient::get_certificates)
            .await
    })
    .await
}

/// Seconds since a time in microseconds since 1970.
fn seconds_since(unix_us: i64) -> f64 {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(unix_us).unwrap_or(0));
    at.elapsed().map_or(0.0, |since| since.as_secs_f64())
}

impl Shown for ListRoutesResponse {
    fn draw(&self, canvas: Canvas) -> String {
        if self.routes.is_empty() {
            return "no [[route]] is configured: services are found on this node alone\n".to_owned();
        }
        let mut table = Table::new(&[
            ("SERVICE", Align::Left),
            ("TRANSPORT", Align::Left),
            ("CONNECTIONS", Align::Right),
            ("ENDPOINT", Align::Left),
            ("HEALTH", Align::Left),
        ]);
        for route in &self.routes {
            let mut rows = rows_of(route);
            let (endpoint, health) = rows.next().unwrap_or_else(|| ("-".into(), local(route)));
            let transport = if route.transport.is_empty() {
                "auto"
            } else {
                &route.transport
            };
            table.row([
                (&route.service).into(),
                transport.into(),
                route.connections.into(),
                endpoint,
                health,
            ]);
            for (endpoint, health) in rows {
                table.row(["".into(), "".into(), "".into(), endpoint, health]);
            }
        }
        let mut out = table.draw(canvas);
        for route in &self.routes {
            out.extend(
                route
                    .endpoints
                    .iter()
                    .filter_map(|endpoint| why_failed(route, endpoint, canvas)),
            );
        }
        out
    }
}

/// Why an endpoint is not reached, in lines below the table: reasons are longer than cells.
fn why_failed(route: &Route, endpoint: &Endpoint, canvas: Canvas) -> Option<String> {
    if endpoint.failed_in_a_row == 0 || endpoint.problem.is_empty() {
        return None;
    }
    // What the node notes of a failure may begin with what was to be reached already.
    let place = format!("{} at {}: ", route.service, endpoint.address);
    let reason = endpoint.problem.strip_prefix(&place);
    let text = place.clone() + reason.unwrap_or(&endpoint.problem);
    let lines = broken(&clean(&text), REASON_INDENT, canvas);
    Some(Look::Bad.paint(&lines, canvas) + "\n")
}

fn rows_of(route: &Route) -> impl Iterator<Item = (Cell, Cell)> {
    let row = |endpoint: &Endpoint| ((&endpoint.address).into(), health(endpoint));
    route.endpoints.iter().map(row)
}

/// Of a route without endpoints.
fn local(route: &Route) -> Cell {
    if route.local_apps > 0 {
        Cell::new("bound on this node", Look::Good)
    } else {
        Cell::new("nobody has bound it on this node", Look::Bad)
    }
}

fn health(endpoint: &Endpoint) -> Cell {
    if endpoint.failed_in_a_row > 0 {
        let failed_s = seconds_since(endpoint.failed_at_unix_us);
        let times = endpoint.failed_in_a_row;
        return Cell::new(format!("failed {times} ×, {} ago", age(failed_s)), Look::Bad);
    }
    if endpoint.reached == 0 {
        return Cell::new("not tried yet", Look::Faint);
    }
    let reached_s = seconds_since(endpoint.reached_at_unix_us);
    Cell::new(format!("reached {} ago", age(reached_s)), Look::Good)
}

impl Shown for Certificates {
    fn draw(&self, canvas: Canvas) -> String {
        if !self.enabled {
            let text =
                "no [tls] is configured: nothing is proved to other nodes, and nothing is hidden on the way";
            return broken(text, 0, canvas) + "\n" + &others(self, canvas);
        }
        let identity = if self.identity.is_empty() {
            "nobody"
        } else {
            &self.identity
        };
        let mut out = fact("proves", identity, canvas);
        if self.workload_api.is_empty() {
            out += &fact("certificate", &self.certificate_file, canvas);
        } else {
            out += &fact(
                "given by",
                &format!("the SPIFFE Workload API at {}", self.workload_api),
                canvas,
            );
        }
        let ends = match self.ends_unix_s {
            0 => "its times cannot be read".to_owned(),
            ends => validity(ends),
        };
        out += &fact("valid", &ends, canvas);
        if self.workload_api.is_empty() {
            out += &fact("key", &self.key_file, canvas);
            out += &fact("trusts", &self.authorities_file, canvas);
        } else {
            out += &fact("trusts", &self.trust_domains.join(", "), canvas);
        }
        for file in &self.revocation_files {
            out += &fact("revocations", file, canvas);
        }
        out += &others(self, canvas);
        for warning in &self.warnings {
            out += &Look::Bad.paint(&format!("{}\n", clean(warning)), canvas);
        }
        out
    }
}

/// What is proved to gRPC clients and servers.
fn others(certificates: &Certificates, canvas: Canvas) -> String {
    let told = certificates.others.iter().map(|other| {
        let ends = match other.ends_unix_s {
            0 => "its times cannot be read".to_owned(),
            ends => validity(ends),
        };
        let line = format!("{}: {}, valid {ends}", other.used_for, other.file);
        fact("also", &line, canvas)
    });
    told.collect()
}

/// For how long a certificate is good still.
fn validity(ends_unix_s: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let left_s = ends_unix_s - now.map_or(0, |now| now.as_secs() as i64);
    if left_s > 0 {
        format!("for {} more", age(left_s as f64))
    } else {
        format!("ended {} ago", age(-left_s as f64))
    }
}

#[cfg(test)]
mod tests {
    use provost_admin::v1::UsedCertificate;

    use super::*;

    #[test]
    fn a_route_has_a_line_for_each_endpoint_with_what_is_wrong_there() {
        let endpoint = |address: &str, reached, failed_in_a_row, problem: &str| Endpoint {
            address: address.into(),
            reached,
            failed_in_a_row,
            problem: problem.into(),
            reached_at_unix_us: 1,
            failed_at_unix_us: 1,
            ..Endpoint::default()
        };
        let route = Route {
            service: "kv.Kv".into(),
            transport: "tcp".into(),
            connections: 2,
            endpoints: vec![
                endpoint("b:1", 3, 0, "of old"),
                endpoint("c:1", 0, 4, &format!("refused{}", " again and again".repeat(15))),
                endpoint("d:1", 0, 0, ""),
            ],
            ..Route::default()
        };
        let local = Route {
            service: "*".into(),
            ..Route::default()
        };
        let routes = vec![route, local];
        let listed = ListRoutesResponse { routes };
        let terminal = Canvas {
            width: Some(100),
            ..Canvas::plain()
        };
        let drawn = listed.draw(terminal);
        let lines: Vec<_> = drawn.lines().collect();
        assert_eq!(lines.len(), 8, "{drawn}");
        assert!(lines[1].contains("kv.Kv") && lines[1].contains("b:1") && lines[1].contains("reached"));
        assert!(!drawn.contains("of old"), "{drawn}");
        assert!(lines[2].contains("failed 4 ×"), "{drawn}");
        assert!(lines[3].contains("not tried yet"), "{drawn}");
        assert!(lines[4].contains("nobody has bound it"), "{drawn}");
        assert!(lines[5].starts_with("kv.Kv at c:1: refused again"), "{drawn}");
        assert!(
            lines[6].starts_with("  ") && lines[7].ends_with("again"),
            "{drawn}"
        );
        let route = Route {
            service: "kv.Kv".into(),
            endpoints: vec![endpoint("c:1", 0, 1, "kv.Kv at c:1: Connection refused")],
            ..Route::default()
        };
        let routes = vec![route];
        let named = ListRoutesResponse { routes }.draw(Canvas::plain());
        assert_eq!(named.lines().last(), Some("kv.Kv at c:1: Connection refused"));
        let is_narrow = |line: &&str| line.chars().count() <= 100;
        assert!(lines.iter().all(is_narrow), "{drawn}");
        // Elsewhere a reason is a line, for programs that search in it.
        let elsewhere = listed.draw(Canvas::plain());
        assert_eq!(elsewhere.lines().count(), 6, "{elsewhere}");
    }

    #[test]
    fn a_certificate_says_who_it_proves_and_for_how_long() {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let mut certificates = Certificates {
            enabled: true,
            identity: "spiffe://x/a".into(),
            ends_unix_s: now.as_secs() as i64 + 2 * 86_400 + 3_700,
            warnings: vec!["certificates: it ends".into()],
            ..Certificates::default()
        };
        let drawn = certificates.draw(Canvas::plain());
        for words in ["spiffe://x/a", "for 2 d 1 h more", "certificates: it ends"] {
            assert!(drawn.contains(words), "{words}: {drawn}");
        }
        certificates.others = vec![UsedCertificate {
            used_for: "to gRPC clients".into(),
            file: "shop.pem".into(),
            ends_unix_s: now.as_secs() as i64 + 86_400 + 7_300,
        }];
        let line = "also         to gRPC clients: shop.pem, valid for 1 d 2 h more";
        assert!(certificates.draw(Canvas::plain()).contains(line));
        certificates.ends_unix_s = now.as_secs() as i64 - 3_600;
        assert!(certificates.draw(Canvas::plain()).contains("ended 1 h 0 min ago"));
        assert!(Certificates::default().draw(Canvas::plain()).contains("no [tls]"));
    }
}
