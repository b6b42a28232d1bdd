//! Generated clients and servers over datagram: the same types, the same code, another constructor.
//!
//! | | by the node's service | by a thread of this program |
//! |---|---|---|
//! | server | `provost::Server::builder().add_service(s).serve().await` | `RpcThread::builder().add_service(s).start(wire)?` |
//! | client | `GreeterClient::connect("hello.Greeter").await?` | `GreeterClient::new(thread.channel(&SERVICE, address).await?)` |
//!
//! Methods of all four kinds are carried, with metadata, deadlines, statuses and cancellation.

mod client;
mod format;
mod frames;
pub mod fuzzing;
mod server;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_queue::ArrayQueue;
use provost::codegen::{Service, ServiceDescriptor};
use provost::linked::Codec;
use provost::offered::Offered;
use provost::{Channel, Spawn, Status};
use provost_datagram::{Address, CallError, Driver, MsgBuf, SessionId};
use provost_packets::Wire;
use slab::Slab;

use crate::carrier::RpcDriver;
use crate::config::{ConfigRefused, RpcConfig};
use crate::context::Context;
use crate::error::RpcError;
use crate::handlers::{Handlers, SessionEvent};
use crate::mailbox::{MailboxFull, Remote};
use crate::oneshot::{Sender, oneshot};
use crate::rpc::RpcLoop;
use client::{BegunCalls, ChannelState, LinkedChannel, Sent};
use server::Tasks;
use stream::{Place, Ready};

/// The longest response of any kind, in bytes: a message, and what is beside it.
const RESPONSE_BYTES_MAX: u32 = provost_wire::limits::MESSAGE_BYTES_MAX + (64 << 10);

/// A thread with an [`Rpc`](crate::Rpc) of its own, which serves generated services and carries the calls of generated clients.
/// Dropping it stops both.
pub struct RpcThread<A: Address + Send + Sync + 'static> {
    address: A,
    remote: Remote<A, Stubs<A>>,
    begun: Arc<BegunCalls<A>>,
    ready: Arc<Ready>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

/// Says what an [`RpcThread`] serves, and how.
#[must_use = "nothing is served before `start` is called"]
#[derive(Default)]
pub struct RpcThreadBuilder {
    config: RpcConfig,
    services: Vec<Result<Offered, Status>>,
    spawner: Option<Arc<dyn Spawn>>,
}

/// Why an [`RpcThread`] cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option, or the system.
    #[error(transparent)]
    Config(#[from] ConfigRefused),
    /// A service's generated code.
    #[error("a service cannot be offered: {0}")]
    Service(Status),
    /// The system gives no thread.
    #[error("cannot start the thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What the event loop knows of generated code.
pub(crate) struct Stubs<A: Address + Send + Sync + 'static> {
    tasks: Tasks<A>,
    channels: HashMap<u64, ChannelState<A>>,
    channels_made: u64,
    /// Calls that clients have made.
    begun: Arc<BegunCalls<A>>,
    /// Calls that were sent.
    sent: Slab<Sent<A>>,
    ready: Arc<Ready>,
    /// Channels whose streams are to be looked at.
    touched: Vec<u64>,
    /// Sessions of clients whose streams are.
    touched_sessions: Vec<SessionId>,
    is_over: bool,
}

impl<A: Address + Send + Sync + 'static> Stubs<A> {
    /// Makes the calls that clients ask for, and lets handlers and streams go on that have something to say.
    fn go_on(&mut self, context: &mut Context<'_, A, Self>) {
        for _ in 0..self.begun.len() {
            let Some(begun) = self.begun.pop() else { break };
            client::begin(self, context, begun);
        }
        self.tasks.poll_ready(context);
        for _ in 0..self.ready.len() {
            let Some(cell) = self.ready.pop() else { break };
            match cell.place {
                Place::Client(channel) => {
                    client::streams::ready(self, context, channel, cell);
                    touch(&mut self.touched, channel);
                }
                Place::Server(session) => {
                    self.tasks.stream_ready(session, cell);
                    touch(&mut self.touched_sessions, session);
                }
            }
        }
        for _ in 0..self.touched.len() {
            let channel = self.touched.remove(0);
            client::streams::flush(self, context, channel);
        }
        while let Some(session) = self.touched_sessions.pop() {
            self.tasks.flush(context, session);
        }
    }
}

impl<A: Address + Send + Sync + 'static> Drop for Stubs<A> {
    fn drop(&mut self) {
        self.ready.close();
        while self.begun.pop().is_some() {}
    }
}

/// Notes what is to be looked at.
fn touch<T: PartialEq>(touched: &mut Vec<T>, one: T) {
    if !touched.contains(&one) {
        touched.push(one);
    }
}

impl<A: Address + Send + Sync + 'static> std::fmt::Debug for RpcThread<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcThread")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for RpcThreadBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RpcThreadBuilder")
            .field("config", &self.config)
            .field("services", &self.services)
            .finish_non_exhaustive()
    }
}

impl RpcThreadBuilder {
    /// Sets the options of its [`Rpc`](crate::Rpc).
    pub fn config(mut self, config: RpcConfig) -> Self {
        self.config = config;
        self
    }

    /// Offers a service. Its handlers run in the event loop: those that wait let others go on, those that compute for
    /// long belong to another thread, see [`RpcThreadBuilder::spawn`].
    pub fn add_service(mut self, service: impl Service) -> Self {
        self.services.push(Offered::new(&service));
        self
    }

    /// Runs each handler as a task elsewhere, for instance with `|handler| { tokio::spawn(handler); }`.
    pub fn spawn(mut self, spawner: impl Spawn) -> Self {
        self.spawner = Some(Arc::new(spawner));
        self
    }

    /// Starts the thread, on this wire.
    ///
    /// # Errors
    /// If an option is out of its range, a service's generated code is broken, or there is no thread to be had.
    pub fn start<W>(self, wire: W) -> Result<RpcThread<W::Address>, StartError>
    where
        W: Wire<Address: Send + Sync + 'static> + Send + 'static,
    {
        self.config.check()?;
        let driver = Driver::new(self.config.datagram.clone(), wire).map_err(ConfigRefused::from)?;
        self.start_over(driver)
    }

    /// Starts the thread over something else than the datagram protocol in software, for instance a NIC.
    ///
    /// # Errors
    /// As [`RpcThreadBuilder::start`].
    pub fn start_over<D>(self, driver: D) -> Result<RpcThread<D::Address>, StartError>
    where
        D: RpcDriver<Address: Send + Sync + 'static> + Send + 'static,
    {
        let services: Result<Vec<Offered>, Status> = self.services.into_iter().collect();
        let services = services.map_err(StartError::Service)?;
        let ready = Arc::new(Ready::default());
        self.config.check()?;
        let begun = Arc::new(ArrayQueue::new(self.config.mailbox_max));
        let stubs = Stubs {
            tasks: Tasks::new((services, self.spawner), ready.clone()),
            channels: HashMap::new(),
            channels_made: 0,
            begun: begun.clone(),
            sent: Slab::default(),
            ready: ready.clone(),
            touched: Vec::new(),
            touched_sessions: Vec::new(),
            is_over: false,
        };
        let mut rpc = RpcLoop::over(self.config, driver, stubs, handlers())?;
        let (address, remote) = (rpc.address(), rpc.remote());
        rpc.parts().0.tasks.set_remote(remote.clone());
        ready.set_bell(remote.bell());
        let thread = std::thread::Builder::new().name("datagram-rpc".to_owned());
        let thread = thread.spawn(move || rpc.run_until(|stubs| stubs.is_over))?;
        Ok(RpcThread {
            address,
            remote,
            begun,
            ready,
            thread: Some(thread),
        })
    }
}

fn handlers<A: Address + Send + Sync + 'static>() -> Handlers<A, Stubs<A>> {
    let mut handlers: Handlers<A, Stubs<A>> = Handlers::new();
    handlers
        .dispatch(format::BIND, |stubs, context, request| {
            stubs.tasks.bind(context, request)
        })
        .dispatch(format::CALL, |stubs, context, request| {
            stubs.tasks.begin(context, request)
        })
        .dispatch(format::FETCH, |stubs, context, request| {
            stubs.tasks.fetch(context, request)
        })
        .dispatch(format::CANCEL, |stubs, context, request| {
            stubs.tasks.cancel(context, request)
        })
        .dispatch(format::SEND, |stubs, context, request| {
            stubs.tasks.receive(context, request);
            stubs.go_on(context);
        })
        .dispatch(format::LISTEN, |stubs, context, request| {
            stubs.tasks.listen(context, request)
        })
        .on_ring(|stubs, context| stubs.go_on(context))
        .on_session(|stubs, context, event| {
            if let SessionEvent::Ended(session, why) = event {
                stubs.tasks.session_ended(context, session);
                for channel in stubs.channels.values_mut() {
                    channel.session_ended(session, why);
                }
            }
        });
    handlers
}

impl RpcThread<()> {
    /// Says what to serve; a thread that only calls serves nothing. The wire that it is given decides what its addresses
    /// are.
    pub fn builder() -> RpcThreadBuilder {
        RpcThreadBuilder::default()
    }
}

impl<A: Address + Send + Sync + 'static> RpcThread<A> {
    /// Where others reach it.
    #[must_use]
    pub fn address(&self) -> A {
        self.address
    }

    /// A channel to a service of whoever is at this address, for the generated client of that service. It opens its
    /// session again when that was lost.
    ///
    /// # Errors
    /// `UNAVAILABLE` if nobody answers, `UNIMPLEMENTED` if they do not offer the service, `FAILED_PRECONDITION` if theirs
    /// is of another schema.
    pub async fn channel(&self, service: &'static ServiceDescriptor, to: A) -> Result<Channel, Status> {
        let codec = Arc::new(Codec::new(service)?);
        let idle = client::idle_cells();
        let reaching = (self.remote.clone(), self.begun.clone(), self.ready.clone());
        let (sender, mut receiver) = oneshot();
        let asked = self.remote.run(move |stubs, context| {
            let number = stubs.channels_made;
            stubs.channels_made += 1;
            let linked = LinkedChannel::new((service, codec.clone()), number, idle.clone(), reaching);
            let told: Sender<Result<LinkedChannel<A>, Status>> = sender;
            let opened = move |result: Result<(), Status>| told.send(result.map(|()| linked));
            let channel = ChannelState::new((service, codec), idle, to);
            stubs.channels.insert(number, channel);
            client::open(stubs, context, number, Box::new(opened));
        });
        asked.map_err(|error| status_of_mailbox(&error))?;
        let channel = std::future::poll_fn(|context| receiver.poll(context)).await;
        let channel = channel.unwrap_or_else(|| Err(gone()))?;
        Ok(Channel::linked(Arc::new(channel)))
    }

    /// Waits until the thread ends, which it does when its wire is of no use any more.
    ///
    /// # Errors
    /// What is wrong with the wire.
    pub fn join(mut self) -> std::io::Result<()> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => Err(std::io::Error::other("the thread panicked")),
        }
    }
}

impl<A: Address + Send + Sync + 'static> Drop for RpcThread<A> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.remote.give_up(|stubs, _| stubs.is_over = true);
        // What went wrong with the wire, its calls have told.
        let _ = thread.join();
    }
}

fn gone() -> Status {
    Status::unavailable("the thread of the transport has ended")
}

fn status_of_mailbox(error: &MailboxFull) -> Status {
    match error {
        MailboxFull::Full => Status::resource_exhausted(error.to_string()),
        MailboxFull::Gone => gone(),
    }
}

fn status_of_error(error: RpcError) -> Status {
    match error {
        RpcError::Call(CallError::Ended(_) | CallError::NoSession)
        | RpcError::Connect(_)
        | RpcError::ShutDown => Status::unavailable(error.to_string()),
        RpcError::NoHandler => Status::unimplemented("the peer serves no generated services"),
        RpcError::HandlerPanicked => Status::internal(error.to_string()),
        _ => Status::resource_exhausted(error.to_string()),
    }
}

/// A call by what both ends know it.
type CallName = (SessionId, u64);

/// A response that waits to be fetched.
type Kept = (u16, MsgBuf);
