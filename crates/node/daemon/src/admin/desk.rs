//! The bridge from the server's handlers, which may run anywhere, to the control plane, whose state is on one thread:
//! requests go through a bounded queue to a local task there.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::{Mutex, mpsc, oneshot};
use tonic::Status;

use crate::control_plane::ControlPlane;
use crate::policies::warnings::PolicyWarnings;
use crate::runtime::TimeSpent;

/// Requests that wait for the control plane, at most.
const REQUESTS_MAX: usize = 64;

type Job = Box<dyn FnOnce(Rc<Desk>) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// What operations on the control plane's thread work with.
pub(crate) struct Desk {
    pub(crate) plane: ControlPlane,
    /// When this process began to serve.
    pub(crate) began: Instant,
    /// What runtimes' threads had spent their time with at the last look.
    pub(crate) spent: RefCell<Vec<TimeSpent>>,
    /// What was said of the policies at the last look.
    pub(crate) policy_warnings: RefCell<PolicyWarnings>,
    /// Changes are made one after the other: each sees what the one before has left, and so does its audit record.
    pub(crate) changes: Mutex<()>,
}

impl Desk {
    pub(crate) fn new(plane: ControlPlane) -> Desk {
        Desk {
            plane,
            began: Instant::now(),
            spent: RefCell::default(),
            policy_warnings: RefCell::default(),
            changes: Mutex::new(()),
        }
    }
}

/// Where handlers put their requests.
#[derive(Clone)]
pub(crate) struct Counter(mpsc::Sender<Job>);

impl Counter {
    /// Starts the task that carries requests out, on the thread of the control plane.
    pub(crate) fn open(desk: Rc<Desk>) -> Counter {
        let (sender, mut jobs) = mpsc::channel::<Job>(REQUESTS_MAX);
        tokio::task::spawn_local(async move {
            while let Some(job) = jobs.recv().await {
                tokio::task::spawn_local(job(Rc::clone(&desk)));
            }
        });
        Counter(sender)
    }

    /// One at which nobody is served.
    #[cfg(test)]
    pub(super) fn of_nobody() -> Counter {
        Counter(mpsc::channel(1).0)
    }

    /// Carries an operation out on the control plane's thread. Once begun it is finished, though its caller may be gone.
    pub(crate) async fn ask<T, F, O>(&self, operation: O) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + 'static,
        O: FnOnce(Rc<Desk>) -> F + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |desk| {
            Box::pin(async move {
                // A caller that is gone needs no answer.
                let _ = answer.send(operation(desk).await);
            })
        });
        let ending = || Status::unavailable("the service is ending");
        self.0.send(job).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?
    }
}
