//! [`Rpc`]: an endpoint, its wire and its handlers, owned by one thread.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use provost_datagram::{
    Address, ArrivedRequest, CallError, Clock, Completion as Completed, Driver, Endpoint, Event,
    EventHandler, Monotonic, MsgBuf, Payload, RequestHandle, SessionId, Statistics, Turn,
};
use provost_packets::Wire;

use crate::buffers::{Buffers, Origin};
use crate::carrier::{CallCarrier, CarrierRef, EventSink, RpcDriver};
use crate::config::{ConfigRefused, RpcConfig};
use crate::context::{Context, Stage, Tables};
use crate::error::{RpcError, STATUS_NO_HANDLER, STATUS_OVERLOADED, outcome_of};
use crate::handlers::{Handler, Handlers, Request, SessionEvent};
use crate::mailbox::{Bell, Mailbox, Remote};
use crate::pending::{Completion, Pending, take};
use crate::workers::{Answer, Job, Workers};

/// How long an event loop sleeps at a wire that other threads cannot wake, while something may come from them.
const NAP: Duration = Duration::from_micros(50);
/// The longest sleep, so that a clock that other threads set is looked at.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Turns that a shut-down takes to say goodbye.
const GOODBYE_TURNS: usize = 2;

/// The sessions, handlers and calls of one thread over one wire. `S` is the program's state, which handlers and
/// continuations get.
///
/// Dropping it ends all sessions at once; the continuations of their calls run before with
/// [`CallError::Ended`], but not if the drop is part of a panic: then they are dropped.
pub type Rpc<W, S, C = Monotonic> = RpcLoop<Driver<W, C>, S>;

/// An event loop over whatever carries its calls: see [`Rpc`].
pub struct RpcLoop<D: RpcDriver, S> {
    driver: D,
    handling: Handling<D::Address, S>,
    mailbox: Arc<Mailbox<D::Address, S>>,
    spin: Duration,
    busy_at: Instant,
}

/// Everything that an event needs beside the endpoint.
struct Handling<A, S> {
    state: S,
    handlers: Handlers<A, S>,
    tables: Tables<A, S>,
    workers: Option<Workers>,
}

impl<D: RpcDriver, S> std::fmt::Debug for RpcLoop<D, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcLoop")
            .field("address", &self.driver.address())
            .field("sessions", &self.handling.tables.sessions.len())
            .field("calls_pending", &self.handling.tables.pending.len())
            .finish_non_exhaustive()
    }
}

impl<W: Wire, S> RpcLoop<Driver<W>, S> {
    /// Joins a wire, a program's state and its handlers.
    ///
    /// # Errors
    /// If an option is out of its range, or there is no thread to be had.
    pub fn new(
        config: RpcConfig,
        wire: W,
        state: S,
        handlers: Handlers<W::Address, S>,
    ) -> Result<Self, ConfigRefused> {
        Rpc::with_clock(config, (wire, Monotonic::default()), state, handlers)
    }
}

impl<W: Wire, S, C: Clock> RpcLoop<Driver<W, C>, S> {
    /// As [`Rpc::new`], by another clock than the machine's.
    ///
    /// # Errors
    /// As [`Rpc::new`].
    pub fn with_clock(
        config: RpcConfig,
        (wire, clock): (W, C),
        state: S,
        handlers: Handlers<W::Address, S>,
    ) -> Result<Self, ConfigRefused> {
        config.check()?;
        let driver = Driver::with_clock(config.datagram.clone(), wire, clock)?;
        RpcLoop::over(config, driver, state, handlers)
    }

    /// What the protocol has counted.
    pub fn statistics(&mut self) -> Statistics {
        self.driver.endpoint().1.statistics()
    }

    /// The wire.
    pub fn wire(&self) -> &W {
        self.driver.wire()
    }
}

impl<D: RpcDriver, S> RpcLoop<D, S> {
    /// Joins what carries calls, a program's state and its handlers. What the configuration says of the datagram protocol is of no
    /// account here.
    ///
    /// # Errors
    /// If an option is out of its range, or there is no thread to be had.
    pub fn over(
        config: RpcConfig,
        driver: D,
        state: S,
        handlers: Handlers<D::Address, S>,
    ) -> Result<Self, ConfigRefused> {
        config.check()?;
        let bell = Arc::new(Bell::new(driver.waker()));
        let mailbox = Arc::new(Mailbox::new(config.mailbox_max, bell.clone()));
        let workers = if handlers.has_workers() {
            Some(Workers::start(&config, bell)?)
        } else {
            None
        };
        let tables = Tables {
            pending: Pending::default(),
            buffers: Buffers::new(config.buffer_bytes_kept_max),
            sessions: HashSet::new(),
            connecting: HashMap::new(),
            stage: Stage::Open,
        };
        Ok(Self {
            driver,
            handling: Handling {
                state,
                handlers,
                tables,
                workers,
            },
            mailbox,
            spin: config.spin,
            busy_at: Instant::now(),
        })
    }

    /// Where others reach it.
    #[must_use]
    pub fn address(&self) -> D::Address {
        self.driver.address()
    }

    /// The program's state.
    #[must_use]
    pub fn state(&self) -> &S {
        &self.handling.state
    }

    /// The program's state and what can be asked for, between two turns.
    pub fn parts(&mut self) -> (&mut S, Context<'_, D::Address, S>) {
        let (now_ns, carrier) = self.driver.carrier();
        let tables = &mut self.handling.tables;
        let context = Context {
            carrier,
            tables,
            now_ns,
        };
        (&mut self.handling.state, context)
    }

    /// Reaches the event loop from other threads.
    #[must_use]
    pub fn remote(&self) -> Remote<D::Address, S> {
        Remote::new(self.mailbox.clone())
    }

    /// The event loop as a future, for executors: at each poll it takes one turn and asks to be polled again, so it keeps
    /// its executor's thread busy. It ends when the wire is of no use any more.
    pub async fn drive(&mut self) -> io::Result<std::convert::Infallible> {
        std::future::poll_fn(|context| match self.run_once() {
            Ok(_) => {
                context.waker().wake_by_ref();
                std::task::Poll::Pending
            }
            Err(error) => std::task::Poll::Ready(Err(error)),
        })
        .await
    }

    /// One turn: does what other threads asked for, takes packets, runs handlers and continuations, sends. It never
    /// sleeps.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    #[inline]
    pub fn run_once(&mut self) -> io::Result<Turn> {
        let did = self.serve_other_threads();
        let turn = self.driver.turn(&mut self.handling)?;
        Ok(if did { Turn::Busy } else { turn })
    }

    /// Turns for so long. Between them it spins a while and then sleeps.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    pub fn run_for(&mut self, duration: Duration) -> io::Result<()> {
        let end = Instant::now() + duration;
        loop {
            self.turn_and_rest(end.saturating_duration_since(Instant::now()))?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    /// Turns until the state says that it is enough.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    pub fn run_until(&mut self, mut is_enough: impl FnMut(&mut S) -> bool) -> io::Result<()> {
        while !is_enough(&mut self.handling.state) {
            self.turn_and_rest(SLEEP_MAX)?;
        }
        Ok(())
    }

    /// One turn; if it did nothing for a while, sleeps until there is something, but at most so long.
    ///
    /// # Errors
    /// If the wire is of no use any more.
    pub fn turn_and_rest(&mut self, at_most: Duration) -> io::Result<()> {
        if self.run_once()? == Turn::Busy {
            self.busy_at = Instant::now();
        } else if self.busy_at.elapsed() < self.spin {
            std::hint::spin_loop();
        } else {
            self.rest(at_most.min(SLEEP_MAX))?;
        }
        Ok(())
    }

    fn rest(&mut self, at_most: Duration) -> io::Result<()> {
        let bell = self.mailbox.bell.clone();
        let workers = self.handling.workers.as_ref();
        let expects_others = Arc::strong_count(&self.mailbox) > 1 || workers.is_some_and(Workers::is_busy);
        let at_most = if bell.rings() || !expects_others {
            at_most
        } else {
            at_most.min(NAP)
        };
        bell.sleep();
        let has_answers = workers.is_some_and(Workers::has_answers);
        let result = if self.mailbox.is_empty() && !has_answers && !bell.is_called() {
            self.driver.wait(at_most)
        } else {
            Ok(())
        };
        bell.awake();
        result
    }

    /// Does what other threads asked for; says whether there was something.
    #[inline]
    fn serve_other_threads(&mut self) -> bool {
        let is_busy = self.handling.workers.as_ref().is_some_and(Workers::is_busy);
        let is_called = self.mailbox.bell.answer();
        if !is_busy && !is_called && self.mailbox.is_empty() && self.handling.tables.buffers.home.is_empty() {
            return false;
        }
        let (now_ns, mut carrier) = self.driver.carrier();
        let mut did = self.handling.bring_home(carrier.by_ref());
        did |= self.handling.take_answers(carrier.by_ref(), now_ns);
        for errand in self.mailbox.take_all() {
            let (state, mut context) = self.handling.parts(carrier.by_ref(), now_ns);
            errand(state, &mut context);
            did = true;
        }
        if is_called {
            self.handling.answer_ring(carrier.by_ref(), now_ns);
        }
        did || is_called
    }

    /// Ends all sessions at once, and takes no further ones. The continuations of all calls run, here, before it
    /// returns. What other threads asked for and was not begun is dropped.
    pub fn shut_down(&mut self) {
        self.handling.tables.stage = Stage::ShutDown;
        self.mailbox.close();
        let sessions: Vec<SessionId> = self.handling.tables.sessions.drain().collect();
        let (now_ns, mut carrier) = self.driver.carrier();
        for session in sessions {
            carrier.reset(now_ns, session);
        }
        while let Some(event) = carrier.poll_event() {
            self.handling.take_event(carrier.by_ref(), now_ns, event);
        }
        debug_assert_eq!(self.handling.tables.pending.len(), 0, "every call has ended");
        for _ in 0..GOODBYE_TURNS {
            // Goodbye is a courtesy: peers notice without it, later.
            let _ = self.run_once();
        }
        self.handling.workers = None;
    }
}

impl<D: RpcDriver, S> Drop for RpcLoop<D, S> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.mailbox.close();
        } else {
            self.shut_down();
        }
    }
}

impl<A: Address, S> EventHandler<'_, A> for Handling<A, S> {
    fn handle(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, event: Event<'_>) {
        self.take_event(CarrierRef::Software(endpoint), now_ns, event);
    }

    #[inline(always)]
    fn request(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, request: ArrivedRequest<'_>) {
        let payload = Payload::Borrowed(request.bytes);
        self.dispatch(
            CarrierRef::Software(endpoint),
            now_ns,
            (request.handle, request.method, payload),
        );
    }

    #[inline(always)]
    fn completed(&mut self, endpoint: &mut Endpoint<A>, now_ns: u64, completion: Completed) {
        self.go_on(CarrierRef::Software(endpoint), now_ns, completion);
    }
}

impl<A: Address, S> EventSink<A> for Handling<A, S> {
    fn take(&mut self, carrier: &mut (dyn CallCarrier<A> + 'static), now_ns: u64, event: Event<'_>) {
        self.take_event(CarrierRef::Other(carrier), now_ns, event);
    }
}

impl<A: Address, S> Handling<A, S> {
    fn parts<'c>(&'c mut self, carrier: CarrierRef<'c, A>, now_ns: u64) -> (&'c mut S, Context<'c, A, S>) {
        let tables = &mut self.tables;
        let context = Context {
            carrier,
            tables,
            now_ns,
        };
        (&mut self.state, context)
    }

    fn take_event(&mut self, mut carrier: CarrierRef<'_, A>, now_ns: u64, event: Event<'_>) {
        match event {
            Event::Request {
                handle,
                method,
                payload,
            } => self.dispatch(carrier, now_ns, (handle, method, payload)),
            Event::Completed(completed) => self.go_on(carrier, now_ns, completed),
            Event::ResponseReturned(buffer) => self.tables.buffers.keep(buffer),
            Event::Connected(session) => {
                self.connected(carrier.by_ref(), now_ns, session, Ok(session));
                self.on_session_event(carrier, now_ns, SessionEvent::Connected(session));
            }
            Event::Accepted(session) if self.tables.stage == Stage::ShutDown => {
                carrier.reset(now_ns, session)
            }
            Event::Accepted(session) => {
                self.tables.sessions.insert(session);
                self.on_session_event(carrier, now_ns, SessionEvent::Accepted(session));
            }
            Event::Ended(session, reason) => {
                self.tables.sessions.remove(&session);
                let error = RpcError::Call(CallError::Ended(reason));
                self.connected(carrier.by_ref(), now_ns, session, Err(error));
                self.on_session_event(carrier, now_ns, SessionEvent::Ended(session, reason));
            }
        }
    }

    #[cold]
    fn connected(
        &mut self,
        carrier: CarrierRef<'_, A>,
        now_ns: u64,
        session: SessionId,
        result: Result<SessionId, RpcError>,
    ) {
        let Some(continuation) = self.tables.connecting.remove(&session) else {
            return;
        };
        let (state, mut context) = self.parts(carrier, now_ns);
        continuation(state, &mut context, result);
    }

    #[cold]
    fn on_session_event(&mut self, carrier: CarrierRef<'_, A>, now_ns: u64, event: SessionEvent) {
        let Some(handler) = &mut self.handlers.on_session else {
            return;
        };
        let tables = &mut self.tables;
        let mut context = Context {
            carrier,
            tables,
            now_ns,
        };
        handler(&mut self.state, &mut context, event);
    }

    fn answer_ring(&mut self, carrier: CarrierRef<'_, A>, now_ns: u64) {
        let Some(handler) = &mut self.handlers.on_ring else {
            return;
        };
        let tables = &mut self.tables;
        let mut context = Context {
            carrier,
            tables,
            now_ns,
        };
        handler(&mut self.state, &mut context);
    }

    #[inline]
    fn dispatch(
        &mut self,
        carrier: CarrierRef<'_, A>,
        now_ns: u64,
        (handle, request_type, payload): (RequestHandle, u16, Payload<'_>),
    ) {
        let tables = &mut self.tables;
        let mut context = Context {
            carrier,
            tables,
            now_ns,
        };
        let mut request = Request {
            handle,
            request_type,
            payload,
        };
        let handlers = &mut self.handlers;
        let handler = match handlers.by_type.get_mut(usize::from(request_type)) {
            Some(Some(Handler::Dispatch(handler))) => Some(handler),
            Some(Some(Handler::Worker(handler))) => {
                let handler = handler.clone();
                return hand_to_worker(self.workers.as_mut(), &mut context, request, handler);
            }
            _ => handlers.otherwise.as_mut(),
        };
        match handler {
            Some(handler) => handler(&mut self.state, &mut context, &mut request),
            None => refuse(&mut context, handle, STATUS_NO_HANDLER),
        }
        if let Payload::Owned(buffer) = request.payload {
            context.carrier.recycle(buffer);
        }
    }

    #[inline]
    fn go_on(&mut self, carrier: CarrierRef<'_, A>, now_ns: u64, completed: Completed) {
        let waiting = take(&mut self.tables.pending, completed.tag);
        debug_assert!(waiting.is_some(), "a call ends once");
        let Some(waiting) = waiting else { return };
        let completion = Completion {
            session: completed.session,
            tag: waiting.tag,
            outcome: outcome_of(completed.outcome),
            request: completed.request,
            response: completed.response,
        };
        let (state, mut context) = self.parts(carrier, now_ns);
        (waiting.continuation)(state, &mut context, completion);
    }

    fn take_answers(&mut self, mut carrier: CarrierRef<'_, A>, now_ns: u64) -> bool {
        let Some(workers) = &mut self.workers else {
            return false;
        };
        let mut did = false;
        while let Some(answer) = workers.pop() {
            let Answer {
                handle,
                status,
                response,
            } = answer;
            // The client may have gone meanwhile.
            if let Err(refused) = carrier.respond(now_ns, handle, status, response) {
                self.tables.buffers.keep(refused.response);
                if refused.error == CallError::ResponseTooLarge {
                    // Nothing else would ever answer it.
                    let _ = carrier.respond_inline(now_ns, handle, STATUS_OVERLOADED, &[]);
                }
            }
            did = true;
        }
        did
    }

    fn bring_home(&mut self, mut carrier: CarrierRef<'_, A>) -> bool {
        let mut did = false;
        while let Some(homecoming) = self.tables.buffers.home.pop() {
            match homecoming.origin {
                Origin::Buffers => self.tables.buffers.keep(homecoming.buffer),
                Origin::Endpoint => {
                    self.tables.buffers.away -= 1;
                    carrier.recycle(homecoming.buffer);
                }
            }
            did = true;
        }
        did
    }
}

fn hand_to_worker<A: Address, S>(
    workers: Option<&mut Workers>,
    context: &mut Context<'_, A, S>,
    mut request: Request<'_>,
    handler: crate::handlers::OnWork,
) {
    let Some(workers) = workers.filter(|workers| workers.has_room()) else {
        refuse(context, request.handle, STATUS_OVERLOADED);
        if let Payload::Owned(buffer) = request.payload {
            context.carrier.recycle(buffer);
        }
        return;
    };
    let owned = request.take(context);
    let response: MsgBuf = context.buffer(context.packet_payload_bytes());
    workers.submit(Job::new(
        request.handle,
        request.request_type,
        (owned, response),
        handler,
    ));
}

/// Says why a request is not handled.
#[cold]
fn refuse<A: Address, S>(context: &mut Context<'_, A, S>, handle: RequestHandle, status: u16) {
    // If the session is over by now, nobody waits for this.
    let _ = context
        .carrier
        .respond_inline(context.now_ns, handle, status, &[]);
}
