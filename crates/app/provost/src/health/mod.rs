//! gRPC's health checking protocol, `grpc.health.v1`: an app says how its services are, and answers who asks.
//!
//! ```no_run
//! # async fn serve(kv: impl provost::codegen::Service) -> Result<(), provost::Status> {
//! use provost::health::{HealthReporter, ServingStatus};
//!
//! let health = HealthReporter::new();
//! health.set("kv.Kv", ServingStatus::NOT_SERVING);
//! let server = provost::Server::builder().add_service(kv).add_service(health.service());
//! # let load_entries = || {};
//! load_entries();
//! health.set("kv.Kv", ServingStatus::SERVING);
//! server.serve().await
//! # }
//! ```
//!
//! Callers have a [`HealthClient`]; those that speak gRPC have their library's, at a listener of the node whose
//! `node_services` leave health to the app.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_core::Stream;

use crate::received::Received;
use crate::request::{Request, Response};
use crate::server::Service;
use crate::status::Status;
use crate::waker_list::wake;

/// The generated code of `grpc.health.v1`.
#[allow(
    missing_docs,
    unused_imports,
    reason = "generated for programs, which use all of it"
)]
mod generated {
    include!("generated.rs");
}

pub use generated::health_check_response::ServingStatus;
pub use generated::health_client::{HealthClient, SERVICE};
pub use generated::{HealthCheckRequest, HealthCheckResponse};

use generated::health_server::{Health, HealthServer};

/// Services that a reporter knows, at most: their names come from the program, so that more are an error of the program.
const SERVICES_MAX: usize = 4096;
/// Calls that watch at one time, at most; further ones are refused.
const WATCHES_MAX: usize = 4096;
/// The name of the server as a whole.
const WHOLE_SERVER: &str = "";

/// Says how the services of an app are. Clones say it to the same callers.
///
/// The server as a whole (the empty name) takes calls from the beginning; a service is unknown until it is set.
#[derive(Clone)]
pub struct HealthReporter {
    board: Arc<HealthBoard>,
}

/// What all clones of a reporter, its services and their watches share.
struct HealthBoard {
    state: Mutex<BoardState>,
}

struct BoardState {
    services: BTreeMap<String, ServingStatus>,
    /// The tasks of watches that wait for a change, by the number of the watch. A watch that does not wait has `None`.
    watches: BTreeMap<u64, Option<Waker>>,
    /// The number of the last watch.
    last_watch: u64,
}

impl Default for HealthReporter {
    fn default() -> HealthReporter {
        HealthReporter::new()
    }
}

impl HealthReporter {
    /// A reporter that knows the server as a whole, which takes calls.
    #[must_use]
    pub fn new() -> HealthReporter {
        let services = BTreeMap::from([(WHOLE_SERVER.to_owned(), ServingStatus::SERVING)]);
        let state = BoardState {
            services,
            watches: BTreeMap::new(),
            last_watch: 0,
        };
        HealthReporter {
            board: Arc::new(HealthBoard {
                state: Mutex::new(state),
            }),
        }
    }

    /// The service to add to a server.
    #[must_use]
    pub fn service(&self) -> impl Service + use<> {
        HealthServer::new(HealthAnswers {
            board: self.board.clone(),
        })
    }

    /// Says how a service is, by its full name; empty for the server as a whole.
    ///
    /// # Panics
    /// If that makes more than 4096 services, the whole server among them; then nothing is changed.
    pub fn set(&self, service: &str, status: ServingStatus) {
        let has_room = self.board.change(|services| {
            let has_room = services.len() < SERVICES_MAX || services.contains_key(service);
            if has_room {
                services.insert(service.to_owned(), status);
            }
            has_room
        });
        assert!(
            has_room,
            "a health reporter knows at most {SERVICES_MAX} services: {service} is one more"
        );
    }

    /// Forgets a service: it is unknown from now on.
    pub fn remove(&self, service: &str) {
        self.board.change(|services| {
            services.remove(service);
        });
    }

    /// Says that no service takes calls any more, not even the server as a whole: before it drains.
    pub fn set_all_not_serving(&self) {
        self.board.change(|services| {
            let all = services.values_mut();
            all.for_each(|status| *status = ServingStatus::NOT_SERVING);
        });
    }

    /// How a service is; `None` for one that is not known.
    #[must_use]
    pub fn status(&self, service: &str) -> Option<ServingStatus> {
        self.board.state().services.get(service).copied()
    }
}

impl std::fmt::Debug for HealthReporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(&self.board.state().services).finish()
    }
}

impl HealthBoard {
    fn state(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is known, and wakes who watches.
    fn change<R>(&self, change: impl FnOnce(&mut BTreeMap<String, ServingStatus>) -> R) -> R {
        let mut state = self.state();
        let result = change(&mut state.services);
        let waiting: Vec<Waker> = state.watches.values_mut().filter_map(Option::take).collect();
        drop(state);
        waiting.into_iter().for_each(wake);
        result
    }

    /// The number of a new watch.
    fn watch(&self) -> Result<u64, Status> {
        let mut state = self.state();
        if state.watches.len() >= WATCHES_MAX {
            let message = format!("{WATCHES_MAX} calls watch the health of this server, which is its limit");
            return Err(Status::resource_exhausted(message));
        }
        state.last_watch += 1;
        let number = state.last_watch;
        state.watches.insert(number, None);
        Ok(number)
    }
}

/// Answers the calls of the protocol.
struct HealthAnswers {
    board: Arc<HealthBoard>,
}

impl Health for HealthAnswers {
    type WatchStream = HealthWatch;

    async fn check(
        &self,
        request: Request<Received<HealthCheckRequest>>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        let status = self.board.state().services.get(service.as_str()).copied();
        let unknown = || Status::not_found(format!("this server says nothing of a service `{service}`"));
        let status = status.ok_or_else(unknown)?;
        Ok(HealthCheckResponse { status }.into())
    }

    async fn watch(
        &self,
        request: Request<Received<HealthCheckRequest>>,
    ) -> Result<Response<HealthWatch>, Status> {
        Ok(Response::new(HealthWatch {
            number: self.board.watch()?,
            board: self.board.clone(),
            service: request.get_ref().service.as_str().to_owned(),
            told: None,
        }))
    }
}

/// The states of one service, one after the other; never ends by itself.
struct HealthWatch {
    board: Arc<HealthBoard>,
    number: u64,
    service: String,
    told: Option<ServingStatus>,
}

impl Stream for HealthWatch {
    type Item = Result<HealthCheckResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let mut state = this.board.state();
        let known = state.services.get(&this.service).copied();
        let status = known.unwrap_or(ServingStatus::SERVICE_UNKNOWN);
        if this.told == Some(status) {
            let replaced = state.watches.insert(this.number, Some(context.waker().clone()));
            // Dropped without the lock: it may be the last owner of a task that has another watch.
            drop(state);
            drop(replaced);
            return Poll::Pending;
        }
        drop(state);
        this.told = Some(status);
        Poll::Ready(Some(Ok(HealthCheckResponse { status })))
    }
}

impl Drop for HealthWatch {
    fn drop(&mut self) {
        let waker = self.board.state().watches.remove(&self.number);
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::task::Wake;

    use super::*;

    /// A waker that is the owner of its task, and so of the watch that the task has.
    struct OwnerOfWatch {
        _watch: Mutex<HealthWatch>,
    }

    impl Wake for OwnerOfWatch {
        fn wake(self: Arc<Self>) {}
    }

    /// A watch that has told the present state.
    fn watch(reporter: &HealthReporter) -> HealthWatch {
        let mut watch = HealthWatch {
            number: reporter.board.watch().unwrap(),
            board: reporter.board.clone(),
            service: WHOLE_SERVER.to_owned(),
            told: None,
        };
        assert!(poll(&mut watch, Waker::noop().clone()).is_ready());
        watch
    }

    fn poll(watch: &mut HealthWatch, waker: Waker) -> Poll<Option<Result<HealthCheckResponse, Status>>> {
        Pin::new(watch).poll_next(&mut Context::from_waker(&waker))
    }

    #[test]
    fn a_waker_may_be_the_last_owner_of_another_watch() {
        let reporter = HealthReporter::new();
        let mut first = watch(&reporter);
        let owner = || {
            let _watch = Mutex::new(watch(&reporter));
            Waker::from(Arc::new(OwnerOfWatch { _watch }))
        };
        assert!(poll(&mut first, owner()).is_pending());
        assert!(poll(&mut first, Waker::noop().clone()).is_pending());
        assert!(poll(&mut first, owner()).is_pending());
        drop(first);
        assert!(reporter.board.state().watches.is_empty());
    }

    #[test]
    fn one_service_too_many_is_refused_and_those_before_stay() {
        let reporter = HealthReporter::new();
        let set = |service: &str| reporter.set(service, ServingStatus::SERVING);
        (1..SERVICES_MAX).for_each(|number| set(&number.to_string()));
        assert!(catch_unwind(std::panic::AssertUnwindSafe(|| set("one more"))).is_err());
        assert_eq!(reporter.status("one more"), None);
        reporter.set("1", ServingStatus::NOT_SERVING);
        assert_eq!(reporter.status("1"), Some(ServingStatus::NOT_SERVING));
    }
}
