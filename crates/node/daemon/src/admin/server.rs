//! The gRPC service: what each method needs of its caller, and which operation it is.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use provost_admin::v1::admin_server::Admin;
use provost_admin::v1::*;
use provost_engine::WallClock;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::access::Credentials;
use crate::audit_log::{AuditLog, cut, cut_to};
use crate::config::AdminConfig;
use crate::log::may_record_refusal;
use crate::user_names::UserNames;

use super::audit::{self, Record, RecordBounds, Who};
use super::desk::{Counter, Desk};
use super::{Denied, Role, changes, configuration, dry_run, listings, schemas, status, watching};

/// A method, and what it needs of its caller.
#[derive(Clone, Copy, Debug)]
struct Method {
    name: &'static str,
    role: Role,
}

const fn view(name: &'static str) -> Method {
    let role = Role::View;
    Method { name, role }
}

const fn operate(name: &'static str) -> Method {
    let role = Role::Operate;
    Method { name, role }
}

const fn admin(name: &'static str) -> Method {
    let role = Role::Admin;
    Method { name, role }
}

/// By what the roles of callers are judged.
pub(crate) struct Roles {
    pub(crate) config: AdminConfig,
    /// Which file an operator changes to give other roles.
    pub(crate) place: String,
    pub(crate) own_uid: u32,
    pub(crate) node: String,
    /// Where changes and refusals are accounted for.
    pub(crate) log: Arc<AuditLog>,
}

pub(crate) struct Server {
    counter: Counter,
    roles: Roles,
    users: Mutex<UserNames>,
}

/// Who calls. Among a request's extensions it says for whom somebody within this process asks; nobody outside can put it there.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    peer: Credentials,
    role: Role,
}

impl Caller {
    /// One whom a secret has proved, and of whom the kernel says nothing.
    pub(crate) fn with_role(role: Role) -> Caller {
        let peer = Credentials::unknown();
        Caller { peer, role }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// A request of the caller's.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.clone());
        request
    }
}

impl Server {
    pub(crate) fn new(counter: Counter, roles: Roles) -> Server {
        Server {
            counter,
            roles,
            users: Mutex::default(),
        }
    }

    /// A process, with the role that the configuration gives it.
    pub(crate) fn caller(&self, peer: Credentials) -> Caller {
        let role = Role::of(&self.roles.config, self.roles.own_uid, &peer);
        Caller { peer, role }
    }

    /// Who calls, if they may.
    fn admit<M: Serialize>(&self, method: Method, request: &Request<M>) -> Result<Caller, Status> {
        let process = || {
            let peer = request.extensions().get::<Credentials>().cloned();
            peer.map(|peer| self.caller(peer))
        };
        let within = request.extensions().get::<Caller>().cloned();
        let caller = within
            .or_else(process)
            .ok_or_else(|| Status::unauthenticated("the kernel does not say who is calling"))?;
        if caller.role >= method.role {
            return Ok(caller);
        }
        let denied = Denied {
            method: method.name,
            needed: method.role,
            has: caller.role,
            peer: caller.peer.clone(),
        };
        let status = Status::permission_denied(format!("{denied} ({})", self.roles.place));
        // Whoever can open the socket can be refused as often as it likes.
        if let Some(withheld) = may_record_refusal(caller.peer.uid, None) {
            let mut record = self.record(method, caller, request.get_ref(), RecordBounds::DENIED);
            record.withheld = Some(withheld).filter(|withheld| *withheld > 0);
            record.conclude(&status);
            audit::write(&record, &self.roles.log);
        }
        Err(status)
    }

    /// An operation that changes nothing.
    async fn look<M, T, F>(
        &self,
        method: Method,
        request: Request<M>,
        operation: impl FnOnce(Rc<Desk>, M) -> F + Send + 'static,
    ) -> Result<Response<T>, Status>
    where
        M: Serialize + Send + 'static,
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + 'static,
    {
        self.admit(method, &request)?;
        let request = request.into_inner();
        self.counter
            .ask(move |desk| operation(desk, request))
            .await
            .map(Response::new)
    }

    /// An operation that changes something: one at a time, each with a record in the audit log.
    async fn change<M, T, F>(
        &self,
        method: Method,
        request: Request<M>,
        operation: impl FnOnce(Rc<Desk>, M) -> F + Send + 'static,
    ) -> Result<Response<T>, Status>
    where
        M: Serialize + Send + 'static,
        T: Outcome + Send + 'static,
        F: Future<Output = Result<T, Status>> + 'static,
    {
        let caller = self.admit(method, &request)?;
        let bounds = RecordBounds::permitted(&self.roles.log);
        let mut record = self.record(method, caller, request.get_ref(), bounds);
        let request = request.into_inner();
        let log = Arc::clone(&self.roles.log);
        let carry_out = move |desk: Rc<Desk>| async move {
            if desk.plane.quiesce_barrier.is_closed() {
                return Err(Status::unavailable("the service is being replaced: ask again"));
            }
            let began = Instant::now();
            let outcome = operation(Rc::clone(&desk), request).await;
            record.duration_ms = began.elapsed().as_secs_f64() * 1000.0;
            match &outcome {
                Ok(done) => {
                    let shown = done.shown();
                    record.number = shown.number;
                    let whole = |text| cut_to(bounds.text_bytes, text);
                    record.message = whole(shown.summary);
                    record.before = whole(shown.before);
                    record.after = whole(shown.after);
                }
                Err(status) => record.conclude(status),
            }
            audit::write(&record, &log);
            outcome
        };
        self.counter.change(carry_out).await.map(Response::new)
    }

    /// An operation that answers again and again, until its caller is gone.
    async fn stream<M, T, F>(
        &self,
        method: Method,
        request: Request<M>,
        operation: impl FnOnce(Rc<Desk>, M, mpsc::Sender<Result<T, Status>>) -> F + Send + 'static,
    ) -> Result<Response<Answers<T>>, Status>
    where
        M: Serialize + Send + 'static,
        T: Send + 'static,
        F: Future<Output = Result<(), Status>> + 'static,
    {
        self.admit(method, &request)?;
        let request = request.into_inner();
        let (sender, receiver) = mpsc::channel(ANSWERS_MAX);
        let begin = move |desk: Rc<Desk>| async move {
            tokio::task::spawn_local(async move {
                let gone = sender.clone();
                tokio::select! {
                    ended = operation(desk, request, sender) => if let Err(status) = ended {
                        // A caller that is gone needs no answer.
                        let _ = gone.send(Err(status)).await;
                    },
                    () = gone.closed() => {}
                }
            });
            Ok(())
        };
        self.counter.ask(begin).await?;
        Ok(Response::new(Answers(receiver)))
    }

    fn record(
        &self,
        method: Method,
        caller: Caller,
        request: &impl Serialize,
        bounds: RecordBounds,
    ) -> Record {
        // Whoever panicked with the lock has left at worst a name out.
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        Record {
            time: provost_engine::rfc3339(WallClock::now(0).unix_ns(0)),
            event: "admin",
            node: self.roles.node.clone(),
            number: 0,
            who: Who::new(&caller.peer, caller.role, &mut users),
            method: method.name,
            arguments: audit::arguments(request, bounds),
            before: String::new(),
            after: String::new(),
            outcome: "OK",
            message: String::new(),
            duration_ms: 0.0,
            withheld: None,
        }
    }
}

impl Record {
    fn conclude(&mut self, status: &Status) {
        self.outcome = code_name(status.code());
        self.message = cut(status.message().to_owned());
    }
}

/// A status code by its name in gRPC.
fn code_name(code: tonic::Code) -> &'static str {
    provost_wire::Code::ALL
        .get(code as usize)
        .map_or("UNKNOWN", |code| code.name())
}

/// Answers of a stream that wait for their reader, at most.
const ANSWERS_MAX: usize = 16;

/// The answers of a stream.
pub(crate) struct Answers<T>(mpsc::Receiver<Result<T, Status>>);

impl<T> Answers<T> {
    /// The next answer; none when there are no more.
    pub(crate) async fn next(&mut self) -> Option<Result<T, Status>> {
        self.0.recv().await
    }
}

impl<T> Stream for Answers<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// What a change has done, for its audit record.
pub(crate) struct Shown {
    number: u64,
    summary: String,
    before: String,
    after: String,
}

/// The response of a method that changes something.
trait Outcome {
    /// For the audit record.
    fn shown(&self) -> Shown;
}

impl Outcome for Change {
    fn shown(&self) -> Shown {
        Shown {
            number: self.number,
            summary: self.summary.clone(),
            before: self.before.clone(),
            after: self.after.clone(),
        }
    }
}

impl Outcome for UpgradeDaemonResponse {
    fn shown(&self) -> Shown {
        Shown {
            number: 0,
            summary: format!("replaced the daemon within {:.1} ms", self.pause_ms),
            before: format!("process {}", std::process::id()),
            after: format!("process {}, version {}", self.pid, self.version),
        }
    }
}

impl Outcome for PrefetchSchemaResponse {
    fn shown(&self) -> Shown {
        let schemas: Vec<_> = self
            .schemas
            .iter()
            .map(|schema| format!("{} {}", schema.service, schema.hash))
            .collect();
        Shown {
            number: 0,
            summary: match schemas.len() {
                1 => "took the schema of 1 service".to_owned(),
                services => format!("took the schemas of {services} services"),
            },
            before: String::new(),
            after: schemas.join(", "),
        }
    }
}

impl Outcome for WriteConfigResponse {
    fn shown(&self) -> Shown {
        Shown {
            number: 0,
            summary: format!("wrote {}", self.path),
            before: String::new(),
            after: String::new(),
        }
    }
}

#[tonic::async_trait]
impl Admin for Server {
    async fn get_status(&self, request: Request<GetStatusRequest>) -> Answer<provost_admin::v1::Status> {
        const METHOD: Method = view("GetStatus");
        let role = self.admit(METHOD, &request)?.role;
        self.look(METHOD, request, move |desk, _| async move {
            Ok(status::status(&desk, role).await)
        })
        .await
    }

    async fn list_apps(&self, request: Request<ListAppsRequest>) -> Answer<ListAppsResponse> {
        self.look(view("ListApps"), request, |desk, _| async move {
            Ok(listings::apps(&desk).await)
        })
        .await
    }

    async fn list_datapaths(&self, request: Request<ListDatapathsRequest>) -> Answer<ListDatapathsResponse> {
        self.look(view("ListDatapaths"), request, |desk, asked| async move {
            Ok(listings::datapaths(&desk, &asked).await)
        })
        .await
    }

    async fn list_policies(&self, request: Request<ListPoliciesRequest>) -> Answer<ListPoliciesResponse> {
        self.look(view("ListPolicies"), request, |desk, _| async move {
            Ok(listings::policies(&desk))
        })
        .await
    }

    async fn attach_policy(&self, request: Request<AttachPolicyRequest>) -> Answer<Change> {
        self.change(operate("AttachPolicy"), request, |desk, asked| async move {
            changes::attach(&desk, asked).await
        })
        .await
    }

    async fn detach_policy(&self, request: Request<DetachPolicyRequest>) -> Answer<Change> {
        self.change(operate("DetachPolicy"), request, |desk, asked| async move {
            changes::detach(&desk, asked).await
        })
        .await
    }

    async fn set_policy(&self, request: Request<SetPolicyRequest>) -> Answer<Change> {
        self.change(operate("SetPolicy"), request, |desk, asked| async move {
            changes::set(&desk, asked).await
        })
        .await
    }

    async fn order_policies(&self, request: Request<OrderPoliciesRequest>) -> Answer<Change> {
        self.change(operate("OrderPolicies"), request, |desk, asked| async move {
            changes::order(&desk, asked).await
        })
        .await
    }

    async fn test_policy(&self, request: Request<TestPolicyRequest>) -> Answer<TestPolicyResponse> {
        self.look(operate("TestPolicy"), request, |desk, asked| async move {
            dry_run::test(&desk, asked).await
        })
        .await
    }

    async fn list_engines(&self, request: Request<ListEnginesRequest>) -> Answer<ListEnginesResponse> {
        self.look(view("ListEngines"), request, |desk, _| async move {
            Ok(listings::engines(&desk))
        })
        .await
    }

    async fn load_engine(&self, request: Request<LoadEngineRequest>) -> Answer<Change> {
        self.change(admin("LoadEngine"), request, |desk, asked| async move {
            changes::load(&desk, asked).await
        })
        .await
    }

    async fn upgrade_engine(&self, request: Request<UpgradeEngineRequest>) -> Answer<Change> {
        self.change(operate("UpgradeEngine"), request, |desk, asked| async move {
            changes::upgrade(&desk, asked).await
        })
        .await
    }

    async fn rollback_engine(&self, request: Request<RollbackEngineRequest>) -> Answer<Change> {
        self.change(operate("RollbackEngine"), request, |desk, asked| async move {
            changes::roll_back(&desk, asked).await
        })
        .await
    }

    async fn upgrade_daemon(&self, request: Request<UpgradeDaemonRequest>) -> Answer<UpgradeDaemonResponse> {
        self.change(admin("UpgradeDaemon"), request, |desk, asked| async move {
            changes::replace(&desk, asked).await
        })
        .await
    }

    async fn list_changes(&self, request: Request<ListChangesRequest>) -> Answer<ListChangesResponse> {
        self.look(view("ListChanges"), request, |desk, _| async move {
            Ok(listings::changes(&desk))
        })
        .await
    }

    async fn list_schemas(&self, request: Request<ListSchemasRequest>) -> Answer<ListSchemasResponse> {
        self.look(view("ListSchemas"), request, |desk, _| async move {
            Ok(schemas::list(&desk))
        })
        .await
    }

    async fn get_schema(&self, request: Request<GetSchemaRequest>) -> Answer<GetSchemaResponse> {
        self.look(view("GetSchema"), request, |desk, asked| async move {
            schemas::get(&desk, &asked)
        })
        .await
    }

    async fn prefetch_schema(
        &self,
        request: Request<PrefetchSchemaRequest>,
    ) -> Answer<PrefetchSchemaResponse> {
        self.change(operate("PrefetchSchema"), request, |desk, asked| async move {
            schemas::prefetch(&desk, asked).await
        })
        .await
    }

    async fn check_schema(&self, request: Request<CheckSchemaRequest>) -> Answer<CheckSchemaResponse> {
        self.look(view("CheckSchema"), request, |desk, asked| async move {
            schemas::check(&desk, asked).await
        })
        .await
    }

    type TapStream = Answers<TapSample>;

    async fn tap(&self, request: Request<TapRequest>) -> Answer<Self::TapStream> {
        self.stream(operate("Tap"), request, |desk, asked, answers| async move {
            watching::tap(&desk, asked, answers).await
        })
        .await
    }

    type WatchStream = Answers<Snapshot>;

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        self.stream(view("Watch"), request, |desk, asked, answers| async move {
            watching::watch(&desk, asked, answers).await
        })
        .await
    }

    async fn diff_config(&self, request: Request<DiffConfigRequest>) -> Answer<DiffConfigResponse> {
        self.look(view("DiffConfig"), request, |desk, asked| async move {
            configuration::diff(&desk, asked).await
        })
        .await
    }

    async fn reload_config(&self, request: Request<ReloadConfigRequest>) -> Answer<Change> {
        self.change(operate("ReloadConfig"), request, |desk, _| async move {
            configuration::reload(&desk).await
        })
        .await
    }

    async fn get_log(&self, request: Request<GetLogRequest>) -> Answer<Log> {
        self.look(view("GetLog"), request, |desk, _| async move {
            Ok(configuration::show_log(&desk))
        })
        .await
    }

    async fn set_log(&self, request: Request<SetLogRequest>) -> Answer<Change> {
        self.change(operate("SetLog"), request, |desk, asked| async move {
            configuration::set_log(&desk, &asked)
        })
        .await
    }

    async fn list_routes(&self, request: Request<ListRoutesRequest>) -> Answer<ListRoutesResponse> {
        self.look(view("ListRoutes"), request, |desk, _| async move {
            Ok(listings::routes(&desk))
        })
        .await
    }

    async fn get_certificates(&self, request: Request<GetCertificatesRequest>) -> Answer<Certificates> {
        self.look(view("GetCertificates"), request, |desk, _| async move {
            Ok(listings::certificates(&desk))
        })
        .await
    }

    async fn get_config(&self, request: Request<GetConfigRequest>) -> Answer<GetConfigResponse> {
        self.look(view("GetConfig"), request, |desk, _| async move {
            Ok(configuration::show(&desk))
        })
        .await
    }

    async fn write_config(&self, request: Request<WriteConfigRequest>) -> Answer<WriteConfigResponse> {
        self.change(operate("WriteConfig"), request, |desk, _| async move {
            configuration::write(&desk).await
        })
        .await
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_denied_again_and_again_does_not_fill_the_audit_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let roles = Roles {
            config: AdminConfig::default(),
            place: "test".into(),
            own_uid: 1,
            node: "n1".into(),
            log: Arc::new(AuditLog::start("n1", path.to_str().unwrap()).unwrap()),
        };
        let server = Server::new(Counter::of_nobody(), roles);
        let stranger = Credentials {
            uid: 4_000_000_011,
            ..Credentials::unknown()
        };
        let mut request = Request::new(GetStatusRequest {});
        request.extensions_mut().insert(stranger);
        for _ in 0..5_000 {
            let denied = server.admit(view("GetStatus"), &request).unwrap_err();
            assert_eq!(denied.code(), tonic::Code::PermissionDenied);
        }
        drop(server);
        let records = std::fs::read_to_string(&path).unwrap();
        // A slow machine may give the user some more meanwhile.
        let written = records.lines().count();
        assert!((100..4_000).contains(&written), "{written}");
        assert!(records.contains("\"outcome\":\"PERMISSION_DENIED\""), "{records}");
    }
}
