//! What the page shows, in one document: the listings of the admin API, what of them is too long cut, and who calls whom.
//!
//! However many look, and however often, it is put together once in a while: what that takes of the control plane is bounded.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use provost_admin::v1::admin_server::Admin;
use provost_admin::v1::{
    App, AttachedPolicy, Certificates, Datapath, EngineKind, GetCertificatesRequest, GetStatusRequest,
    ListAppsRequest, ListChangesRequest, ListDatapathsRequest, ListEnginesRequest, ListPoliciesRequest,
    ListRoutesRequest, LiveChange, MethodStats, Route, Snapshot,
};
use serde::Serialize;
use tokio::sync::Mutex;
use tonic::Status;

use crate::admin::{Caller, Role, Server};
use crate::page::traffic::TrafficFollower;

/// For how long an overview is good, at least; one that took long to put together is good for so many times as long.
const FRESH_FOR: Duration = Duration::from_millis(900);
const FRESH_TIMES: u32 = 20;
/// Rows of one listing, at most. The page says how many there are.
const APPS_MAX: usize = 256;
const DATAPATHS_MAX: usize = 200;
const CALL_PATHS_MAX: usize = 300;
const METHODS_MAX: usize = 500;
const ROUTES_MAX: usize = 256;

/// See the module's documentation.
pub(super) struct OverviewSource {
    admin: Rc<Server>,
    traffic: Rc<TrafficFollower>,
    kept: Mutex<Option<KeptOverview>>,
}

struct KeptOverview {
    json: String,
    fresh_until: Instant,
}

/// What one role sees of an overview.
#[derive(Serialize)]
struct NodeOverview {
    status: provost_admin::v1::Status,
    apps: CutListing<App>,
    /// Which app calls whom, and whom it serves.
    call_paths: CutListing<CallPath>,
    datapaths: CutListing<Datapath>,
    policies: Vec<AttachedPolicy>,
    engines: Vec<EngineKind>,
    routes: CutListing<Route>,
    certificates: Certificates,
    changes: Vec<LiveChange>,
    traffic: Option<TrafficRates>,
}

/// Rates, without the snapshot's own list of methods.
#[derive(Serialize)]
struct TrafficRates {
    at_unix_us: i64,
    interval_s: f64,
    counted_by: Vec<String>,
    calls_in_flight: u64,
    methods: CutListing<MethodStats>,
}

/// The first rows of a listing, and how many it has.
#[derive(Debug, PartialEq, Serialize)]
struct CutListing<T> {
    total: usize,
    rows: Vec<T>,
}

impl<T> CutListing<T> {
    fn of(mut rows: Vec<T>, rows_max: usize) -> CutListing<T> {
        let total = rows.len();
        rows.truncate(rows_max);
        CutListing { total, rows }
    }
}

/// Datapaths between the same two, of the same service, put together.
#[derive(Debug, Default, PartialEq, Serialize)]
struct CallPath {
    app: String,
    side: String,
    service: String,
    peer: String,
    transport: String,
    connections: u64,
    calls_begun: u64,
    calls_in_flight: u64,
}

impl OverviewSource {
    pub(super) fn new(admin: Rc<Server>) -> OverviewSource {
        OverviewSource {
            traffic: TrafficFollower::new(Rc::clone(&admin)),
            kept: Mutex::default(),
            admin,
        }
    }

    /// The overview as JSON, for one who may see it.
    pub(super) async fn read(&self, caller: &Caller) -> Result<String, Status> {
        // Here the role is judged, and a refusal accounted for; what is kept is the same for all who may look.
        let asked = caller.request(GetCertificatesRequest {});
        self.admin.get_certificates(asked).await?;
        let mut kept = self.kept.lock().await;
        let fresh = kept.take().filter(|kept| Instant::now() < kept.fresh_until);
        let current = match fresh {
            Some(fresh) => fresh,
            None => self.put_together(caller).await?,
        };
        let role = caller.role();
        let shows_taps = role >= Role::Operate;
        let json = format!(
            "{{\"role\":\"{role}\",\"shows_taps\":{shows_taps},\"overview\":{}}}",
            current.json
        );
        *kept = Some(current);
        Ok(json)
    }

    async fn put_together(&self, caller: &Caller) -> Result<KeptOverview, Status> {
        let traffic = self.traffic.latest(caller).await?;
        let began = Instant::now();
        let admin = &self.admin;
        let status = admin.get_status(caller.request(GetStatusRequest {})).await?;
        let apps = admin.list_apps(caller.request(ListAppsRequest {})).await?;
        let datapaths = admin.list_datapaths(caller.request(ListDatapathsRequest::default()));
        let datapaths = datapaths.await?.into_inner().datapaths;
        let policies = admin
            .list_policies(caller.request(ListPoliciesRequest {}))
            .await?;
        let engines = admin.list_engines(caller.request(ListEnginesRequest {})).await?;
        let routes = admin.list_routes(caller.request(ListRoutesRequest {})).await?;
        let certificates = admin.get_certificates(caller.request(GetCertificatesRequest {}));
        let certificates = certificates.await?.into_inner();
        let changes = admin.list_changes(caller.request(ListChangesRequest {})).await?;
        let overview = NodeOverview {
            status: status.into_inner(),
            apps: CutListing::of(apps.into_inner().apps, APPS_MAX),
            call_paths: CutListing::of(call_paths(&datapaths), CALL_PATHS_MAX),
            datapaths: CutListing::of(datapaths, DATAPATHS_MAX),
            policies: policies.into_inner().policies,
            engines: engines.into_inner().engines,
            routes: CutListing::of(routes.into_inner().routes, ROUTES_MAX),
            certificates,
            changes: changes.into_inner().changes,
            traffic: traffic.map(TrafficRates::from),
        };
        let json = serde_json::to_string(&overview)
            .map_err(|error| Status::internal(format!("what the page shows cannot be written: {error}")))?;
        let good_for = FRESH_FOR.max(began.elapsed() * FRESH_TIMES);
        let fresh_until = Instant::now() + good_for;
        Ok(KeptOverview { json, fresh_until })
    }
}

impl From<Snapshot> for TrafficRates {
    fn from(snapshot: Snapshot) -> TrafficRates {
        let mut methods = snapshot.methods;
        // Where not all have room, the busiest do.
        methods.sort_by(|one, other| other.rate.total_cmp(&one.rate).then(other.calls.cmp(&one.calls)));
        TrafficRates {
            at_unix_us: snapshot.at_unix_us,
            interval_s: snapshot.interval_s,
            counted_by: snapshot.counted_by,
            calls_in_flight: snapshot.calls_in_flight,
            methods: CutListing::of(methods, METHODS_MAX),
        }
    }
}

/// Who calls whom, the busiest first.
fn call_paths(datapaths: &[Datapath]) -> Vec<CallPath> {
    let mut paths: BTreeMap<[&str; 5], CallPath> = BTreeMap::new();
    for datapath in datapaths {
        let peer = if datapath.peer_identity.is_empty() {
            &datapath.peer
        } else {
            &datapath.peer_identity
        };
        let key = [
            &datapath.app,
            &datapath.side,
            &datapath.service,
            peer,
            &datapath.transport,
        ];
        let key = key.map(String::as_str);
        let path = paths.entry(key).or_insert_with(|| {
            let [app, side, service, peer, transport] = key.map(str::to_owned);
            CallPath {
                app,
                side,
                service,
                peer,
                transport,
                ..CallPath::default()
            }
        });
        path.connections += 1;
        path.calls_begun += datapath.calls_begun;
        path.calls_in_flight += datapath.calls_in_flight;
    }
    let mut paths: Vec<CallPath> = paths.into_values().collect();
    // It is stable: those that are equally busy stay in the order of their names.
    paths.sort_by_key(|path| std::cmp::Reverse(path.calls_begun));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datapath(app: &str, peer: &str, identity: &str, calls_begun: u64) -> Datapath {
        Datapath {
            app: app.into(),
            side: "client".into(),
            service: "kv.Kv".into(),
            peer: peer.into(),
            peer_identity: identity.into(),
            transport: "tcp".into(),
            calls_begun,
            calls_in_flight: 1,
            ..Datapath::default()
        }
    }

    #[test]
    fn datapaths_between_the_same_two_are_one_path() {
        let datapaths = [
            datapath("shop", "10.0.0.2:7700", "", 3),
            datapath("shop", "10.0.0.2:7700", "", 4),
            datapath("shop", "10.0.0.3:1", "spiffe://x/b", 20),
            datapath("shop", "10.0.0.4:1", "spiffe://x/b", 1),
            datapath("till", "10.0.0.2:7700", "", 7),
        ];
        let told: Vec<_> = call_paths(&datapaths)
            .into_iter()
            .map(|path| {
                (
                    path.app,
                    path.peer,
                    path.connections,
                    path.calls_begun,
                    path.calls_in_flight,
                )
            })
            .collect();
        let path = |app: &str, peer: &str, connections, calls| {
            (app.to_owned(), peer.to_owned(), connections, calls, connections)
        };
        let expected = [
            path("shop", "spiffe://x/b", 2, 21),
            path("shop", "10.0.0.2:7700", 2, 7),
            path("till", "10.0.0.2:7700", 1, 7),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_listing_that_is_cut_says_how_long_it_is() {
        let cut = CutListing::of(vec![1, 2, 3], 2);
        assert_eq!((cut.total, cut.rows), (3, vec![1, 2]));
    }
}
