//! A server on one link: takes calls, polls their handlers, and shuts down.

use std::collections::VecDeque;
use std::future::Future;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use provost_wire::Code;
use provost_wire::control::{Bind, Unbind, request};
use provost_wire::descriptor::Completion;
use provost_wire::limits::CALLS_IN_FLIGHT_MAX;

use super::handler::{Bound, BoxedHandler, Place};
use super::load::{Overload, RunningCall, ServerCounts};
use super::{ManagedCall, ServerBuilder, ServerCall, Spawn};
use crate::context::{CallContext, poll_within};
use crate::link::{CallId, Half, Link, LocalEnd, Waiter, WireCall, request_with_schema, until_taken_back};
use crate::reactor::Timer;
use crate::status::Status;
use crate::waker_list::wake;

/// Handlers that are polled before new calls are looked for.
const POLLS_MAX: usize = 64;

/// How long the service may take to answer that services are taken back.
const UNBIND_TIMEOUT: Duration = Duration::from_secs(2);

/// How soon it is told of a further one that it had no room for.
const UNBIND_PAUSE: Duration = Duration::from_millis(10);

/// The server does not wait for its calls any more.
const SERVER_STOPPED: LocalEnd = LocalEnd {
    code: Code::Unavailable,
    reason: "the server stopped",
};

pub(super) enum Outcome {
    /// It was told to stop, and all calls are finished.
    ShutDown,
    /// The node's configuration does not let it offer its services any more.
    Refused(Status),
    /// The link is over.
    LinkLost,
}

/// See the module's documentation.
pub(super) struct Serving {
    link: Arc<Link>,
    /// Where new calls are waited for: a place in the table of calls like any other.
    inbox: Waiter,
    services: Vec<Bound>,
    /// How many of them the node has bound for this server, and was not told to take back: the first ones.
    offered: usize,
    tasks: Vec<Task>,
    /// Tasks without a call.
    idle_tasks: Vec<u32>,
    /// Places without a future, for each method of each service.
    idle_places: Vec<Vec<Vec<Box<dyn Place>>>>,
    ready: Arc<Ready>,
    spawner: Option<Arc<dyn Spawn>>,
    concurrency_limit: usize,
    overload: Overload,
    counts: Option<ServerCounts>,
    drain_timeout: Option<Duration>,
    shutdown: Option<Unbinding>,
    /// When calls are waited for no more, once the server shuts down.
    drained: Option<Timer>,
    /// Services that the node has taken back.
    unbound: usize,
    /// Why the last of them was.
    refusal: Option<Status>,
}

/// Taking the services back. Calls that the service had passed on before it has answered are still served.
struct Unbinding {
    /// Requests that were not answered yet.
    requests: Vec<u64>,
    /// When they, and room for more, are waited for no more.
    late: Timer,
    /// When the service may have room for a further request.
    room: Timer,
}

impl Unbinding {
    fn begin() -> Unbinding {
        Unbinding {
            requests: Vec::new(),
            late: Timer::new(UNBIND_TIMEOUT),
            room: Timer::new(Duration::ZERO),
        }
    }
}

/// A handler that may be running.
struct Task {
    place: Option<Box<dyn Place>>,
    call: CallId,
    context: CallContext,
    counted: Option<RunningCall>,
    service: usize,
    method: usize,
    wake: Arc<TaskWake>,
    waker: Waker,
}

/// What a look at the inbox comes to.
enum Found {
    Call(Completion),
    /// A handler wants to be polled.
    ReadyTask,
    /// The server shuts down, and nothing is left to do.
    Nothing,
}

impl Serving {
    /// Offers all services on a link.
    pub(super) async fn bind(
        link: Arc<Link>,
        builder: &ServerBuilder,
        services: Vec<Bound>,
    ) -> Result<Serving, Status> {
        let nowhere = WireCall {
            connection: u32::MAX,
            call: 0,
        };
        let inbox = link
            .open(nowhere, 0)
            .map_err(|_| Status::unavailable("the node's service went away"))?;
        let methods = |bound: &Bound| bound.descriptor.methods.iter().map(|_| Vec::new()).collect();
        let mut serving = Serving {
            inbox: Waiter::new(link.clone(), inbox),
            tasks: Vec::new(),
            idle_tasks: Vec::new(),
            idle_places: services.iter().map(methods).collect(),
            services,
            offered: 0,
            ready: Arc::default(),
            spawner: builder.spawner.clone(),
            concurrency_limit: builder.concurrency_limit,
            overload: builder.overload,
            counts: builder.counts.clone(),
            drain_timeout: builder.drain_timeout,
            shutdown: None,
            drained: None,
            unbound: 0,
            refusal: None,
            link,
        };
        for index in 0..serving.services.len() {
            let descriptor = serving.services[index].descriptor;
            until_taken_back(&serving.link, descriptor.name).await;
            let id = serving.link.control.new_id();
            serving.link.register_bind(id, inbox, index);
            let bind = || {
                request::Body::Bind(Bind {
                    service: descriptor.name.to_owned(),
                    schema_hash: descriptor.schema_hash.to_vec(),
                    calls_in_flight_max: match (builder.overload, builder.concurrency_limit) {
                        // The service is not to hold back what is to be refused.
                        (Overload::Refuse, _) | (_, CALLS_IN_FLIGHT_MAX) => 0,
                        (Overload::Wait, limit) => limit as u32,
                    },
                })
            };
            // Until it is answered, it may be another server of this app that has bound it. From that one it must not be taken.
            request_with_schema(&serving.link, descriptor, id, bind).await?;
            serving.offered = index + 1;
        }
        Ok(serving)
    }

    pub(super) fn poll(
        &mut self,
        mut shutdown: Pin<&mut impl Future<Output = ()>>,
        context: &mut Context<'_>,
    ) -> Poll<Outcome> {
        self.ready.register(context.waker());
        loop {
            if self.shutdown.is_none() && shutdown.as_mut().poll(context).is_ready() {
                self.shutdown = Some(Unbinding::begin());
            }
            self.note_taken_back();
            self.poll_drained(context);
            let is_unbound = self.poll_unbinding(context);
            let has_yielded = self.poll_ready_tasks();
            match self.poll_inbox(is_unbound, context) {
                Poll::Ready(Ok(Found::Call(begin))) => self.start(begin),
                // What the handler waits for may be a matter of the executor, or of calls that nobody has taken off the ring.
                Poll::Ready(Ok(Found::ReadyTask)) if has_yielded => {
                    self.link.look_in();
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(Found::ReadyTask)) => {}
                Poll::Ready(Ok(Found::Nothing)) => {
                    let refused = self.refusal.take().map(Outcome::Refused);
                    return Poll::Ready(refused.unwrap_or(Outcome::ShutDown));
                }
                Poll::Ready(Err(_)) => {
                    let refused = self.link.control.farewell().map(Outcome::Refused);
                    return Poll::Ready(refused.unwrap_or(Outcome::LinkLost));
                }
                // What the node says of the services wakes the inbox, which has to be registered before this looks.
                Poll::Pending if !self.note_taken_back() && self.ready.is_empty() => return Poll::Pending,
                Poll::Pending => {}
            }
        }
    }

    /// Once the node has taken all services back, what is left is to finish the calls.
    ///
    /// Returns whether it has said so of one since the last time.
    fn note_taken_back(&mut self) -> bool {
        let known = self.unbound;
        let services = &self.services;
        let is_own = |name: &str| services.iter().any(|bound| bound.descriptor.name == name);
        while let Some(reason) = self.link.control.take_unbound(is_own) {
            self.unbound += 1;
            if self.unbound >= services.len() && self.shutdown.is_none() {
                self.refusal = Some(reason);
                self.offered = 0;
                self.shutdown = Some(Unbinding::begin());
            }
        }
        self.unbound > known
    }

    /// Whether the service has taken note that it shall pass on no more calls.
    fn poll_unbinding(&mut self, context: &mut Context<'_>) -> bool {
        let Some(unbinding) = &mut self.shutdown else {
            return false;
        };
        if self.offered == 0 && unbinding.requests.is_empty() {
            return true;
        }
        let control = &self.link.control;
        while self.offered > 0 && unbinding.room.poll(context).is_ready() {
            let id = control.new_id();
            let sent = control.send(id, unbind(&self.services[self.offered - 1]), &[]);
            match sent.map_err(|error| error.kind()) {
                Err(ErrorKind::WouldBlock) => unbinding.room = Timer::new(UNBIND_PAUSE),
                // A service that is gone has nothing bound.
                Err(_) => self.offered -= 1,
                Ok(()) => {
                    unbinding.requests.push(id);
                    self.offered -= 1;
                }
            }
        }
        unbinding
            .requests
            .retain(|id| control.poll_reply(*id, context).is_pending());
        let is_late = unbinding.late.poll(context).is_ready();
        if is_late {
            unbinding
                .requests
                .drain(..)
                .for_each(|id| drop(control.forget(id)));
        }
        let is_unbound = unbinding.requests.is_empty() && (self.offered == 0 || is_late);
        if is_unbound {
            self.link.look_in();
        }
        is_unbound
    }

    /// Ends the calls that are still under way when the time for that is over.
    fn poll_drained(&mut self, context: &mut Context<'_>) {
        let Some(drain_timeout) = self.drain_timeout.filter(|_| self.shutdown.is_some()) else {
            return;
        };
        let drained = self.drained.get_or_insert_with(|| Timer::new(drain_timeout));
        if self.ready.is_stopped() || drained.poll(context).is_pending() {
            return;
        }
        self.ready.stop();
        for task in self.tasks.iter().filter(|task| task.place.is_some()) {
            self.link.calls.end(task.call, SERVER_STOPPED);
        }
        self.link.calls.wake_served();
    }

    fn poll_inbox(&mut self, is_unbound: bool, context: &mut Context<'_>) -> Poll<Result<Found, LocalEnd>> {
        let running = self.running();
        let has_room = running < self.concurrency_limit || self.overload == Overload::Refuse;
        let is_done = is_unbound && running == 0;
        let ready = &self.ready;
        let found = self.inbox.poll_keeping(Half::Reader, context, |state| {
            // Ready handlers were polled just now: a call first, or they would keep it waiting.
            let call = has_room
                .then(|| state.steps.pop_front())
                .flatten()
                .map(Found::Call);
            call.or_else(|| (!ready.is_empty()).then_some(Found::ReadyTask))
                .or(is_done.then_some(Found::Nothing))
        });
        self.inbox.step_aside();
        found
    }

    fn running(&self) -> usize {
        self.tasks.len() - self.idle_tasks.len() + self.ready.spawned.load(Ordering::SeqCst)
    }

    fn start(&mut self, begin: Completion) {
        let (service, method) = (begin.reserved[0] as usize, begin.method);
        let Some(call) = ManagedCall::new(&self.link, begin) else {
            return;
        };
        if self.ready.is_stopped() {
            return call.refuse(&stopped());
        }
        if self.overload == Overload::Refuse && self.running() >= self.concurrency_limit {
            self.counts.iter().for_each(ServerCounts::note_shed);
            return call.refuse(&Status::resource_exhausted(
                "the server handles as many calls as it may",
            ));
        }
        let Some(handler) = self.services.get(service).and_then(|bound| bound.handler(method)) else {
            return call.refuse(&Status::unimplemented(
                "the server does not implement this method",
            ));
        };
        let counted = self.counts.as_ref().map(ServerCounts::begin);
        if let Some(spawner) = &self.spawner {
            let mut spawned = Spawned::new(self.link.clone(), self.ready.clone(), handler, call);
            spawned.counted = counted;
            return spawner.spawn(Box::pin(spawned));
        }
        let idle = self.idle_places[service]
            .get_mut(usize::from(method))
            .and_then(Vec::pop);
        let mut place = idle.unwrap_or_else(|| handler.place());
        let index = self.idle_task();
        let task = &mut self.tasks[index as usize];
        (task.call, task.context) = (call.id(), CallContext::until(call.deadline_ns()));
        (task.service, task.method) = (service, usize::from(method));
        task.counted = counted;
        if let Some(mut state) = self.link.calls.state(call.id()) {
            let replaced = state.register(Half::Owner, &task.waker);
            drop(state);
            drop(replaced);
        }
        place.start(ServerCall::Managed(call));
        task.place = Some(place);
        self.poll_task(index);
    }

    fn idle_task(&mut self) -> u32 {
        self.idle_tasks.pop().unwrap_or_else(|| {
            let index = self.tasks.len() as u32;
            let wake = Arc::new(TaskWake {
                index,
                is_queued: AtomicBool::new(false),
                ready: self.ready.clone(),
            });
            self.tasks.push(Task {
                place: None,
                call: CallId(0),
                context: CallContext::new(),
                counted: None,
                service: 0,
                method: 0,
                waker: Waker::from(wake.clone()),
                wake,
            });
            index
        })
    }

    /// Says whether one of the handlers is to be polled again at once.
    fn poll_ready_tasks(&mut self) -> bool {
        let mut has_yielded = false;
        for _ in 0..POLLS_MAX {
            let Some(index) = self.ready.pop() else { break };
            let at = index as usize;
            self.tasks[at].wake.is_queued.store(false, Ordering::SeqCst);
            self.poll_task(index);
            has_yielded |= self.tasks[at].wake.is_queued.load(Ordering::SeqCst);
        }
        has_yielded
    }

    fn poll_task(&mut self, index: u32) {
        let task = &mut self.tasks[index as usize];
        let Some(place) = &mut task.place else { return };
        let has_ended = self.link.calls.ended(task.call).is_some();
        let is_whole = if has_ended {
            drop_handler(&mut **place)
        } else {
            let mut context = Context::from_waker(&task.waker);
            let own = &mut task.context;
            let poll = || poll_within(own, || place.poll(&mut context));
            match catch_unwind(AssertUnwindSafe(poll)) {
                Ok(Poll::Pending) => return,
                Ok(Poll::Ready(())) => true,
                Err(_) => {
                    drop_handler(&mut **place);
                    false
                }
            }
        };
        let place = task.place.take();
        task.context = CallContext::new();
        task.counted = None;
        if is_whole {
            self.idle_places[task.service][task.method].extend(place);
        }
        self.idle_tasks.push(index);
    }
}

fn unbind(bound: &Bound) -> request::Body {
    let service = bound.descriptor.name.to_owned();
    request::Body::Unbind(Unbind { service })
}

impl Drop for Serving {
    fn drop(&mut self) {
        for bound in &self.services[..self.offered] {
            // A service that is gone has nothing bound, and one that reads nothing is waited for once.
            if self.link.control.say(unbind(bound)).is_err() {
                break;
            }
        }
        for id in self.shutdown.iter().flat_map(|unbinding| &unbinding.requests) {
            self.link.control.forget(*id);
        }
        for place in self.tasks.iter_mut().filter_map(|task| task.place.as_mut()) {
            drop_handler(&mut **place);
        }
        self.inbox.leave();
        // Calls that no handler has begun end as those do whose handlers are dropped.
        for begin in self.link.close_with_steps(self.inbox.id()) {
            if let Some(call) = ManagedCall::new(&self.link, begin) {
                call.refuse(&stopped());
            }
        }
    }
}

fn stopped() -> Status {
    Status::new(SERVER_STOPPED.code, SERVER_STOPPED.reason)
}

/// Drops a handler's future; a panic on the way ends there. Says whether there was none.
fn drop_handler(place: &mut dyn Place) -> bool {
    catch_unwind(AssertUnwindSafe(|| place.clear())).is_ok()
}

/// The tasks that want to be polled.
#[derive(Default)]
pub(super) struct Ready {
    queue: Mutex<VecDeque<u32>>,
    queued: AtomicUsize,
    waker: Mutex<Option<Waker>>,
    /// The waker was woken since it was registered.
    is_woken: AtomicBool,
    /// Handlers that run elsewhere.
    spawned: AtomicUsize,
    /// No handler is to go on.
    is_stopped: AtomicBool,
}

impl Ready {
    /// For who looks at the tasks after that.
    fn register(&self, waker: &Waker) {
        let mut registered = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = registered
            .as_ref()
            .is_some_and(|registered| registered.will_wake(waker));
        let replaced = (!is_known).then(|| registered.replace(waker.clone()));
        // Not before that: whoever wakes from now on finds this waker, and not one that may be a task's that is over.
        self.is_woken.store(false, Ordering::SeqCst);
        drop(registered);
        drop(replaced);
    }

    fn stop(&self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    fn is_empty(&self) -> bool {
        self.queued.load(Ordering::SeqCst) == 0
    }

    fn pop(&self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let index = queue.pop_front();
        self.queued.store(queue.len(), Ordering::SeqCst);
        index
    }

    fn push(&self, index: u32) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.push_back(index);
        self.queued.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        self.wake();
    }

    /// Has the server look at the tasks, if it is not about to anyway.
    fn wake(&self) {
        if self.is_woken.swap(true, Ordering::SeqCst) {
            return;
        }
        let registered = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        // It stays registered. The clone is woken without the lock: an executor may poll, or drop, the server right there.
        let waker = registered.clone();
        drop(registered);
        waker.into_iter().for_each(wake);
    }
}

struct TaskWake {
    index: u32,
    is_queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            self.ready.push(self.index);
        }
    }
}

/// A handler that runs as a task of its own.
struct Spawned {
    link: Arc<Link>,
    call: CallId,
    context: CallContext,
    counted: Option<RunningCall>,
    handler: Option<BoxedHandler>,
    ready: Arc<Ready>,
}

impl Spawned {
    fn new(
        link: Arc<Link>,
        ready: Arc<Ready>,
        handler: &dyn super::handler::Handler,
        call: ManagedCall,
    ) -> Spawned {
        ready.spawned.fetch_add(1, Ordering::SeqCst);
        Spawned {
            link,
            call: call.id(),
            context: CallContext::until(call.deadline_ns()),
            counted: None,
            handler: Some(handler.boxed(ServerCall::Managed(call))),
            ready,
        }
    }

    fn poll_handler(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(handler) = &mut self.handler else {
            return Poll::Ready(());
        };
        match self.link.calls.state(self.call) {
            Some(mut state) if state.ended.is_none() => {
                let replaced = state.register(Half::Owner, context.waker());
                drop(state);
                drop(replaced);
            }
            _ => return Poll::Ready(()),
        }
        // Asked once this can be woken: who stops wakes after that.
        if self.ready.is_stopped() {
            self.link.calls.end(self.call, SERVER_STOPPED);
            return Poll::Ready(());
        }
        let own = &mut self.context;
        let poll = || poll_within(own, || handler.as_mut().poll(context));
        // What the call came to, `ManagedCall` says when it is dropped.
        catch_unwind(AssertUnwindSafe(poll)).unwrap_or(Poll::Ready(()))
    }

    /// Drops the handler's future; a panic on the way ends there.
    fn drop_handler(&mut self) {
        let handler = self.handler.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(handler)));
    }
}

impl Future for Spawned {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let polled = self.poll_handler(context);
        if polled.is_ready() {
            self.drop_handler();
        }
        polled
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        self.drop_handler();
        self.counted = None;
        self.ready.spawned.fetch_sub(1, Ordering::SeqCst);
        self.ready.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;

    /// As the waker of an executor that polls a task as soon as it is woken.
    struct PollsAtOnce(Weak<Ready>);

    impl Wake for PollsAtOnce {
        fn wake(self: Arc<Self>) {
            let ready = self.0.upgrade().expect("the server is there");
            ready.register(Waker::noop());
        }
    }

    #[test]
    fn a_server_may_be_polled_by_who_wakes_it() {
        let ready = Arc::new(Ready::default());
        let polls_at_once = Arc::new(PollsAtOnce(Arc::downgrade(&ready)));
        ready.register(&Waker::from(polls_at_once.clone()));
        ready.push(0);
        assert_eq!(
            Arc::strong_count(&polls_at_once),
            1,
            "another waker is in its place"
        );
    }
}
