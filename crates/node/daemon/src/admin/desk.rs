//! The bridge from the server's handlers, which may run anywhere, to the control plane, whose state is on one thread:
//! requests go through a bounded queue to a local task there.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::{Mutex, MutexGuard, mpsc, oneshot};
use tonic::Status;

use crate::control_plane::ControlPlane;
use crate::policies::Policies;
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
    changes: Mutex<()>,
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
        self.put(job, answered).await
    }

    /// Carries a change out likewise, behind those that came before. What waits for that is not begun when its caller is gone: who gave
    /// it up may have asked for it again, or for something else.
    pub(crate) async fn change<T, F, O>(&self, operation: O) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + 'static,
        O: FnOnce(Rc<Desk>) -> F + Send + 'static,
    {
        let (mut answer, answered) = oneshot::channel();
        let job: Job = Box::new(move |desk| {
            Box::pin(async move {
                if let Some(_turn) = turn(&desk.changes, &desk.plane.policies, &mut answer).await {
                    let _ = answer.send(operation(Rc::clone(&desk)).await);
                }
            })
        });
        self.put(job, answered).await
    }

    async fn put<T>(&self, job: Job, answered: oneshot::Receiver<Result<T, Status>>) -> Result<T, Status> {
        let ending = || Status::unavailable("the service is ending");
        self.0.send(job).await.map_err(|_| ending())?;
        answered.await.map_err(|_| ending())?
    }
}

/// Waits for a turn, unless nobody waits for the answer any more: behind other changes, and behind whatever else lets no change come
/// meanwhile, as a process that gets ready to take over.
async fn turn<'a, T>(
    changes: &'a Mutex<()>,
    policies: &Policies,
    answer: &mut oneshot::Sender<Result<T, Status>>,
) -> Option<MutexGuard<'a, ()>> {
    let free = async {
        let turn = changes.lock().await;
        // That another process has taken over is for the operation to say.
        drop(policies.hold().await);
        turn
    };
    tokio::select! {
        biased;
        () = answer.closed() => None,
        turn = free => Some(turn),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use provost_engine::NoEvents;

    use super::*;
    use crate::policies::Registry;

    #[tokio::test]
    async fn a_change_that_waits_is_not_begun_when_its_caller_is_gone() {
        let changes = Mutex::new(());
        let policies = Policies::new(Arc::new(Registry::with_built_ins()), "node", Arc::new(NoEvents));
        let given_up = async || {
            let (mut answer, answered) = oneshot::channel::<Result<(), Status>>();
            let waits = turn(&changes, &policies, &mut answer);
            let (turn, ()) = tokio::join!(waits, async { drop(answered) });
            assert!(turn.is_none());
        };
        let under_way = changes.lock().await;
        given_up().await;
        drop(under_way);
        // Nor is one that waits for another process to take over, or not.
        let held = policies.hold().await.unwrap();
        given_up().await;
        let (mut answer, _waits) = oneshot::channel::<Result<(), Status>>();
        let waits = turn(&changes, &policies, &mut answer);
        let (begun, ()) = tokio::join!(waits, async { drop(held) });
        assert!(begun.is_some());
    }
}
