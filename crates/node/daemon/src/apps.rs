//! Apps at the control socket: letting them in, and carrying out what they ask.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use provost_engine::AppIdentity;
use provost_frontend::{AppPort, AppReceiveHeap, CallQuota, ReceiveLimits, SendHeap};
use provost_schema::SchemaHash;
use provost_shm::{
    Doorbell, Memfd, MemfdLimits, Packet, PacketListener, PacketSocket, Ringer, SEALS_FIXED_SIZE,
    ServiceRings,
};
use provost_wire::Code;
use provost_wire::control::{
    AddSchema, Attach, Attached, Bind, CONTROL_VERSION, Connected, Done, Failed, Reply, Request,
    SchemaUnknown, Unbind, reply, request,
};
use provost_wire::limits::{
    BLOCK_ALIGN_BYTES, CONTROL_MESSAGE_BYTES_MAX, NAME_BYTES_MAX, RING_SLOTS_DEFAULT, RING_SLOTS_MIN,
    SCHEMA_BYTES_MAX, SEND_WINDOW, WINDOW_BYTES,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::access::{self, Credentials};
use crate::connect;
use crate::gate::Pass;
use crate::node::{AttachedApp, Shared};
use crate::permits::AppConnections;
use crate::runtime::{AppId, Command, NewApp, Waiting};
use crate::segments::AnnouncedSegments;
use crate::services::{NoMatch, Offer};

/// How long a process that has connected may take to attach.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one app that are carried out at once; more wait in its socket.
const REQUESTS_MAX: usize = 64;
/// After an error of accept, such as having no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Attachments whose processes have not attached yet, over the limit on apps.
const UNATTACHED_MAX: usize = 256;
const PAGE_BYTES: u64 = 4096;

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Refusal {
        let message = message.into();
        Refusal { code, message }
    }

    fn invalid(message: impl Into<String>) -> Refusal {
        Refusal::new(Code::InvalidArgument, message)
    }
}

impl From<NoMatch> for Refusal {
    fn from(error: NoMatch) -> Refusal {
        Refusal::new(error.code, error.reason)
    }
}

/// What came of a request.
pub(crate) enum Outcome {
    Done,
    Connected { connection: u32, peer: String },
    SchemaUnknown,
}

/// Watches a control socket.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for descriptors that change under it; these sockets own theirs and lend it"
)]
fn watch<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(socket)
}

/// Lets apps in, for ever. `came` are processes that had connected already.
pub(crate) async fn accept(shared: Rc<Shared>, listener: PacketListener, came: Vec<PacketSocket>) {
    let listener = match watch(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the control socket cannot be watched: no app can attach");
            return;
        }
    };
    let waiting = Arc::new(Semaphore::new(UNATTACHED_MAX));
    let let_in = |socket: PacketSocket| {
        if let Ok(permit) = Arc::clone(&waiting).try_acquire_owned() {
            let unattached = Unattached::note(&shared, &socket);
            tokio::task::spawn_local(serve(Rc::clone(&shared), socket, permit, unattached));
        }
    };
    came.into_iter().for_each(let_in);
    loop {
        let accepted = async || {
            let mut ready = listener.readable().await?;
            match ready.try_io(|listener| listener.get_ref().accept()) {
                Ok(accepted) => accepted.map(Some),
                Err(_would_block) => Ok(None),
            }
        };
        let (accepted, pass) = shared.gate.enter_with(accepted).await;
        match accepted {
            Ok(Some(socket)) => let_in(socket),
            Ok(None) => {}
            Err(error) => {
                drop(pass);
                tracing::warn!(%error, "cannot let an app in: trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A process that has connected and not attached, as the process that may take over from this one has to know it.
struct Unattached {
    shared: Rc<Shared>,
    number: u64,
}

impl Unattached {
    fn note(shared: &Rc<Shared>, socket: &PacketSocket) -> Option<Unattached> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        let number = shared.next_request.replace(shared.next_request.get() + 1);
        shared.unattached.borrow_mut().insert(number, socket);
        let shared = Rc::clone(shared);
        Some(Unattached { shared, number })
    }
}

impl Drop for Unattached {
    fn drop(&mut self) {
        self.shared.unattached.borrow_mut().remove(&self.number);
    }
}

/// A request that is not answered yet.
pub(crate) struct PendingRequest {
    /// As it came.
    pub(crate) packet: Vec<u8>,
    /// Duplicates of what came with it.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The answer, once it was carried out.
    pub(crate) answer: Option<Vec<u8>>,
}

/// Requests of an app that are not answered yet.
pub(crate) type PendingRequests = RefCell<BTreeMap<u64, PendingRequest>>;

/// An app's control socket.
pub(crate) struct Control {
    socket: AsyncFd<PacketSocket>,
}

impl Control {
    pub(crate) fn new(socket: PacketSocket) -> io::Result<Control> {
        let socket = watch(socket)?;
        Ok(Control { socket })
    }

    /// For a process that takes over.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| socket.get_ref().receive(CONTROL_MESSAGE_BYTES_MAX));
            if let Ok(received) = received {
                return received;
            }
        }
    }

    async fn send(&self, reply: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(sent) = ready.try_io(|socket| socket.get_ref().send(reply, descriptors)) {
                return sent;
            }
        }
    }

    /// Closes it for the app, too.
    fn shut_down(&self) {
        let _ = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
    }
}

fn answer(id: u64, outcome: Result<Outcome, Refusal>) -> Vec<u8> {
    let body = match outcome {
        Ok(Outcome::Done) => reply::Body::Done(Done {}),
        Ok(Outcome::Connected { connection, peer }) => reply::Body::Connected(Connected { connection, peer }),
        Ok(Outcome::SchemaUnknown) => reply::Body::SchemaUnknown(SchemaUnknown {}),
        Err(refusal) => reply::Body::Failed(Failed {
            code: refusal.code.number(),
            message: refusal.message,
        }),
    };
    let body = Some(body);
    Reply { id, body }.encode_to_vec()
}

/// An app that has attached, as its task knows it.
pub(crate) struct App {
    pub(crate) id: AppId,
    pub(crate) runtime: usize,
    pub(crate) send_heap: SendHeap,
    pub(crate) connections: AppConnections,
    pub(crate) identity: Arc<AppIdentity>,
    pub(crate) given_up: Arc<Notify>,
}

async fn serve(
    shared: Rc<Shared>,
    socket: PacketSocket,
    waiting: OwnedSemaphorePermit,
    unattached: Option<Unattached>,
) {
    let credentials = match socket.peer_credentials() {
        Ok(peer) => Credentials {
            pid: peer.process,
            uid: peer.user,
            gid: peer.group,
        },
        Err(error) => {
            tracing::warn!(%error, "cannot tell who connected to the control socket");
            return;
        }
    };
    let control = match Control::new(socket) {
        Ok(control) => Rc::new(control),
        Err(error) => {
            tracing::warn!(%error, "cannot watch an app's control socket");
            return;
        }
    };
    let first = shared.gate.enter_with(|| control.receive());
    let first = tokio::time::timeout(ATTACH_TIMEOUT, first).await;
    drop((waiting, unattached));
    let Ok((Ok(Some(first)), pass)) = first else {
        tracing::debug!(pid = credentials.pid, "a process connected and did not attach");
        return;
    };
    let attached = attach(&shared, &control, credentials, first).await;
    drop(pass);
    if let Some(app) = attached {
        attend(&shared, &control, &Rc::new(app)).await;
    }
}

/// Does what an app asks for until it is gone.
async fn attend(shared: &Rc<Shared>, control: &Rc<Control>, app: &Rc<App>) {
    let given_up = Arc::clone(&app.given_up);
    tokio::select! {
        () = obey(shared, control, app) => {}
        () = given_up.notified() => {}
    }
    let _pass = shared.gate.enter().await;
    detach(shared, control, app).await;
}

/// What becomes of an app that another process of the service had let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Following {
    /// It goes on.
    Follows,
    /// Its library cannot: it has to attach anew.
    StaysBehind,
}

/// Goes on with an app of another process: what it had asked for and was not answered first.
pub(crate) async fn resume(shared: Rc<Shared>, app: App, following: Following) {
    let (control, requests) = {
        let apps = shared.apps.borrow();
        let Some(attached) = apps.get(&app.id) else { return };
        (Rc::clone(&attached.control), Rc::clone(&attached.requests))
    };
    let app = Rc::new(app);
    if following == Following::StaysBehind {
        tracing::warn!(app = app.id, name = %app.identity.name, "detaching an app whose library cannot follow");
        return detach(&shared, &control, &app).await;
    }
    let under_way = Arc::new(Semaphore::new(REQUESTS_MAX));
    let pending: Vec<u64> = requests.borrow().keys().copied().collect();
    for number in pending {
        let Ok(permit) = Arc::clone(&under_way).try_acquire_owned() else {
            break;
        };
        attend_request(&shared, &control, &app, number, permit);
    }
    attend(&shared, &control, &app).await;
}

async fn attach(
    shared: &Shared,
    control: &Rc<Control>,
    credentials: Credentials,
    packet: Packet,
) -> Option<App> {
    let request = Request::decode(packet.bytes.as_slice()).ok()?;
    let attached = match request.body {
        Some(request::Body::Attach(attach)) => {
            admit(shared, control, credentials, &attach, packet.descriptors)
        }
        _ => Err(Refusal::new(
            Code::FailedPrecondition,
            "attach first: nothing else can be asked before",
        )),
    };
    let attached = match attached {
        Ok(attached) => start(shared, control, attached).await,
        Err(refusal) => Err(refusal),
    };
    match attached {
        Ok((app, reply, descriptors)) => {
            let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            let id = request.id;
            let body = Some(reply::Body::Attached(reply));
            let reply = Reply { id, body }.encode_to_vec();
            if control.send(&reply, &borrowed).await.is_err() {
                detach(shared, control, &app).await;
                return None;
            }
            Some(app)
        }
        Err(refusal) => {
            let Credentials { pid, uid, .. } = credentials;
            tracing::warn!(pid, uid, reason = refusal.message, "refused an app");
            let _ = control.send(&answer(request.id, Err(refusal)), &[]).await;
            None
        }
    }
}

/// An app that may attach, and what it is to be told.
struct Admitted {
    app: App,
    new: NewApp,
    reply: Attached,
    descriptors: Vec<OwnedFd>,
    takes_regions: bool,
}

/// Checks all that an app brings, and makes what it shares with the service.
fn admit(
    shared: &Shared,
    control: &Control,
    credentials: Credentials,
    attach: &Attach,
    descriptors: Vec<OwnedFd>,
) -> Result<Admitted, Refusal> {
    let live = shared.live();
    let config = &*live;
    access::check(&config.control, shared.own_user, credentials)
        .map_err(|denied| Refusal::new(Code::PermissionDenied, denied.to_string()))?;
    if attach.version != CONTROL_VERSION {
        let message = format!(
            "the app's library speaks version {} of the control protocol, this service version {CONTROL_VERSION}: \
             upgrade the older one",
            attach.version
        );
        return Err(Refusal::new(Code::FailedPrecondition, message));
    }
    if attach.name.len() > NAME_BYTES_MAX {
        let message = format!(
            "the app's name has {} bytes, at most {NAME_BYTES_MAX} are allowed",
            attach.name.len()
        );
        return Err(Refusal::invalid(message));
    }
    let attached = shared.apps.borrow().len();
    if attached >= config.limits.apps {
        let message = format!("{attached} apps are attached, as many as limits.apps allows");
        return Err(Refusal::new(Code::ResourceExhausted, message));
    }
    let slots = (
        ring_slots(attach.submission_slots, config.limits.ring_slots)?,
        ring_slots(attach.completion_slots, config.limits.ring_slots)?,
    );
    let send_heap = map_send_heap(descriptors, config.limits.send_heap_bytes)?;
    let limits = receive_limits(attach, &send_heap, config.limits.receive_heap_bytes)?;
    let waiting = waiting(attach, config)?;

    let system = |what: &str, error: &dyn std::fmt::Display| {
        Refusal::new(Code::ResourceExhausted, format!("{what}: {error}"))
    };
    let (rings, [submission, completion]) =
        ServiceRings::create(slots.0, slots.1).map_err(|error| system("rings", &error))?;
    let (wakes_service, doorbell) = Doorbell::create().map_err(|error| system("a doorbell", &error))?;
    let (app_ringer, wakes_app): (Ringer, Doorbell) =
        Doorbell::create().map_err(|error| system("a doorbell", &error))?;
    let socket = control
        .socket
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| system("the control socket", &error))?;
    let heap = AppReceiveHeap::new(Box::new(AnnouncedSegments::new(socket)), limits);
    let own = |descriptor: BorrowedFd<'_>| {
        descriptor
            .try_clone_to_owned()
            .map_err(|error| system("a doorbell", &error))
    };
    let descriptors = vec![
        submission.into_descriptor(),
        completion.into_descriptor(),
        own(wakes_service.as_fd())?,
        own(wakes_app.as_fd())?,
    ];

    let id = shared.next_app.replace(shared.next_app.get() + 1);
    let name = match attach.name.as_str() {
        "" => format!("process {}", credentials.pid),
        name => name.to_owned(),
    };
    tracing::info!(
        app = id,
        name,
        pid = credentials.pid,
        uid = credentials.uid,
        "attached"
    );
    let app = App {
        id,
        runtime: place(shared, &name),
        send_heap,
        connections: AppConnections::default(),
        identity: Arc::new(AppIdentity {
            id,
            name: name.into(),
            pid: credentials.pid,
            uid: credentials.uid,
            gid: credentials.gid,
        }),
        given_up: Arc::new(Notify::new()),
    };
    let new = NewApp {
        app: id,
        port: AppPort::new(rings, app_ringer, heap),
        doorbell,
        waiting,
    };
    let reply = Attached {
        submission_slots: slots.0,
        completion_slots: slots.1,
        app: id,
        spin_ns: config.runtime.spin_us * 1000,
        message_bytes_max: config.limits.message_bytes,
    };
    Ok(Admitted {
        app,
        new,
        reply,
        descriptors,
        takes_regions: attach.takes_regions,
    })
}

/// Gives an admitted app to its runtime.
async fn start(
    shared: &Shared,
    control: &Rc<Control>,
    admitted: Admitted,
) -> Result<(App, Attached, Vec<OwnedFd>), Refusal> {
    let Admitted {
        app,
        new,
        reply,
        descriptors,
        takes_regions,
    } = admitted;
    let attached = AttachedApp {
        control: Rc::clone(control),
        requests: Rc::default(),
        takes_regions,
        identity: Arc::clone(&app.identity),
        runtime: app.runtime,
        send_heap: app.send_heap.clone(),
        connections: app.connections.clone(),
        given_up: Arc::clone(&app.given_up),
    };
    let runtime = &shared.runtimes[app.runtime];
    runtime.place_app();
    shared.apps.borrow_mut().insert(app.id, attached);
    match runtime.tell(Command::Attach(Box::new(new))).await {
        Ok(()) => Ok((app, reply, descriptors)),
        Err(overloaded) => {
            shared.apps.borrow_mut().remove(&app.id);
            runtime.remove_app();
            Err(Refusal::new(Code::ResourceExhausted, overloaded.to_string()))
        }
    }
}

/// Takes everything back that the app had.
async fn detach(shared: &Shared, control: &Control, app: &App) {
    shared.services.unbind_all(app.id);
    // The app learns of it from this, if it still lives; the socket itself goes when the last request has ended.
    control.shut_down();
    // Taken again and again: a runtime that takes no commands for seconds gets some more.
    while shared.runtimes[app.runtime]
        .tell(Command::Detach(app.id))
        .await
        .is_err()
    {
        tracing::error!(app = app.id, "a runtime thread takes no commands");
    }
}

/// Carries out requests until the app is gone.
async fn obey(shared: &Rc<Shared>, control: &Rc<Control>, app: &Rc<App>) {
    let under_way = Arc::new(Semaphore::new(REQUESTS_MAX));
    loop {
        // Never closed, so that this waits for a place.
        let Ok(permit) = Arc::clone(&under_way).acquire_owned().await else {
            return;
        };
        let (packet, _pass) = shared.gate.enter_with(|| control.receive()).await;
        let packet = match packet {
            Ok(Some(packet)) => packet,
            Ok(None) => return,
            Err(error) => {
                tracing::info!(app = app.id, %error, "an app's control socket broke");
                return;
            }
        };
        if Request::decode(packet.bytes.as_slice()).is_err() {
            tracing::warn!(
                app = app.id,
                "detaching an app that sent a malformed control message"
            );
            return;
        }
        let number = shared.next_request.replace(shared.next_request.get() + 1);
        let pending = PendingRequest {
            packet: packet.bytes,
            descriptors: packet.descriptors,
            answer: None,
        };
        match shared.apps.borrow().get(&app.id) {
            Some(attached) => attached.requests.borrow_mut().insert(number, pending),
            None => return,
        };
        attend_request(shared, control, app, number, permit);
    }
}

/// Carries a request out in a task of its own, and answers it.
fn attend_request(
    shared: &Rc<Shared>,
    control: &Rc<Control>,
    app: &Rc<App>,
    number: u64,
    permit: OwnedSemaphorePermit,
) {
    let requests = match shared.apps.borrow().get(&app.id) {
        Some(attached) => Rc::clone(&attached.requests),
        None => return,
    };
    let (shared, control, app) = (Rc::clone(shared), Rc::clone(control), Rc::clone(app));
    tokio::task::spawn_local(async move {
        if let Some(answer) = carry_out(&shared, &app, &requests, number).await {
            // An app that is gone needs no answer.
            let _ = control.send(&answer, &[]).await;
        }
        requests.borrow_mut().remove(&number);
        drop(permit);
    });
}

/// Carries a request out. Its answer is noted beside it before anything else can come in between.
async fn carry_out(
    shared: &Rc<Shared>,
    app: &App,
    requests: &PendingRequests,
    number: u64,
) -> Option<Vec<u8>> {
    let (request, descriptors) = {
        let requests = requests.borrow();
        let pending = requests.get(&number)?;
        if let Some(answer) = &pending.answer {
            return Some(answer.clone());
        }
        let duplicate = |descriptor: &OwnedFd| descriptor.try_clone();
        let descriptors = pending.descriptors.iter().map(duplicate);
        let descriptors = descriptors.collect::<io::Result<Vec<_>>>().unwrap_or_default();
        (Request::decode(pending.packet.as_slice()).ok()?, descriptors)
    };
    let id = request.id;
    let mut pass = None;
    let outcome = carry_out_request(shared, app, request, descriptors, &mut pass).await;
    if let Err(refusal) = &outcome {
        let (code, reason) = (refusal.code, &refusal.message);
        tracing::info!(app = app.id, %code, reason, "refused a request");
    }
    let _pass = match pass {
        Some(pass) => pass,
        None => shared.gate.enter().await,
    };
    let answer = answer(id, outcome);
    if let Some(pending) = requests.borrow_mut().get_mut(&number) {
        pending.answer = Some(answer.clone());
        pending.descriptors.clear();
    }
    Some(answer)
}

/// Does what is asked for. Whatever cannot be done twice is done with a pass, which is left in `pass`.
async fn carry_out_request<'a>(
    shared: &'a Rc<Shared>,
    app: &App,
    request: Request,
    descriptors: Vec<OwnedFd>,
    pass: &mut Option<Pass<'a>>,
) -> Result<Outcome, Refusal> {
    match request.body {
        Some(request::Body::Attach(_)) => Err(Refusal::new(Code::FailedPrecondition, "attached already")),
        Some(request::Body::AddSchema(add)) => add_schema(shared, &add, descriptors).await,
        Some(request::Body::Bind(bind)) => {
            *pass = Some(shared.gate.enter().await);
            self::bind(shared, app, request.id, &bind)
        }
        Some(request::Body::Unbind(unbind)) => {
            *pass = Some(shared.gate.enter().await);
            self::unbind(shared, app, &unbind)
        }
        Some(request::Body::Connect(connect)) => connect::connect(shared, app, &connect, pass).await,
        Some(request::Body::RegionMapped(mapped)) => {
            *pass = Some(shared.gate.enter().await);
            let generation = mapped.generation;
            let command = Command::RegionMapped {
                app: app.id,
                generation,
            };
            let told = shared.runtimes[app.runtime].tell(command).await;
            told.map_err(|error| Refusal::new(Code::ResourceExhausted, error.to_string()))?;
            Ok(Outcome::Done)
        }
        None => Err(Refusal::new(
            Code::Unimplemented,
            "the request is of a kind that this version does not know",
        )),
    }
}

async fn add_schema(
    shared: &Rc<Shared>,
    add: &AddSchema,
    descriptors: Vec<OwnedFd>,
) -> Result<Outcome, Refusal> {
    let announced = match add.hash.is_empty() {
        true => None,
        false => Some(schema_hash(&add.hash)?),
    };
    let descriptor_set = read_schema(descriptors)?;
    let services = Arc::clone(&shared.services);
    // Compiling a large schema takes milliseconds, which other apps' requests need not wait for.
    let added = tokio::task::spawn_blocking(move || services.add_schema(&descriptor_set, announced)).await;
    match added {
        Ok(Ok(())) => Ok(Outcome::Done),
        Ok(Err(error)) => Err(Refusal::invalid(format!("schema: {error}"))),
        Err(_) => Err(Refusal::new(Code::Internal, "the schema could not be compiled")),
    }
}

fn bind(shared: &Shared, app: &App, request: u64, bind: &Bind) -> Result<Outcome, Refusal> {
    let hash = schema_hash(&bind.schema_hash)?;
    let Some(schema) = shared.services.schema(&bind.service, hash) else {
        return Ok(Outcome::SchemaUnknown);
    };
    let calls_max = match bind.calls_in_flight_max {
        0 => u32::MAX,
        max => max,
    };
    shared.services.bind(Offer {
        app: app.id,
        request,
        schema,
        quota: Arc::new(CallQuota::new(calls_max)),
    })?;
    tracing::info!(app = app.id, service = bind.service, %hash, "bound");
    Ok(Outcome::Done)
}

fn unbind(shared: &Shared, app: &App, unbind: &Unbind) -> Result<Outcome, Refusal> {
    if !shared.services.unbind(app.id, &unbind.service) {
        let message = format!("this app has not bound {}", unbind.service);
        return Err(Refusal::new(Code::NotFound, message));
    }
    for connection in shared.connections.borrow().values() {
        if connection.app == app.id && connection.serves.as_ref() == Some(&unbind.service) {
            connection.drain();
        }
    }
    tracing::info!(app = app.id, service = unbind.service, "unbound");
    Ok(Outcome::Done)
}

/// The runtime that an app gets: its own, if the configuration gives it one, else the one with the fewest apps.
pub(crate) fn place(shared: &Shared, name: &str) -> usize {
    let dedicated = &shared.config.runtime.dedicated;
    if let Some(at) = dedicated.iter().position(|app| app == name) {
        return at;
    }
    let shared_ones = dedicated.len()..shared.runtimes.len();
    shared_ones
        .min_by_key(|at| shared.runtimes[*at].apps())
        .unwrap_or(0)
}

fn waiting(attach: &Attach, config: &crate::config::Config) -> Result<Waiting, Refusal> {
    match (attach.busy_poll, config.runtime.allow_app_busy_poll) {
        (false, _) => Ok(Waiting::Sleeps),
        (true, true) => Ok(Waiting::BusyPolls),
        (true, false) => Err(Refusal::new(
            Code::PermissionDenied,
            "the app asks for busy polling: set runtime.allow_app_busy_poll = true",
        )),
    }
}

fn ring_slots(asked: u32, most: u32) -> Result<u32, Refusal> {
    if asked == 0 {
        return Ok(RING_SLOTS_DEFAULT.min(most));
    }
    match asked.is_power_of_two() && (RING_SLOTS_MIN..=most).contains(&asked) {
        true => Ok(asked),
        false => Err(Refusal::invalid(format!(
            "a ring of {asked} slots: ask for a power of two from {RING_SLOTS_MIN} to {most}"
        ))),
    }
}

fn map_send_heap(descriptors: Vec<OwnedFd>, bytes_max: u64) -> Result<SendHeap, Refusal> {
    let Ok([descriptor]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        return Err(Refusal::invalid(
            "pass one descriptor beside Attach: the send heap",
        ));
    };
    let limits = MemfdLimits {
        bytes_min: PAGE_BYTES,
        bytes_max,
        seals: SEALS_FIXED_SIZE,
    };
    Memfd::verify_foreign(descriptor, limits)
        .and_then(SendHeap::map)
        .map_err(|error| Refusal::invalid(format!("the send heap: {error}")))
}

/// Checks that the room for received segments is inside of the window and behind the send heap.
fn receive_limits(attach: &Attach, send_heap: &SendHeap, bytes_max: u64) -> Result<ReceiveLimits, Refusal> {
    let unit = BLOCK_ALIGN_BYTES as u64;
    let start = u64::from(attach.receive_window) * unit;
    let end = start.saturating_add(attach.receive_window_bytes);
    let send_end = u64::from(SEND_WINDOW) * unit + send_heap.bytes();
    if start < send_end
        || end > WINDOW_BYTES
        || !start.is_multiple_of(PAGE_BYTES)
        || attach.receive_window_bytes < PAGE_BYTES
    {
        return Err(Refusal::invalid(format!(
            "receive_window: bytes {start} to {end} of the window must begin on a page, behind the send heap's end at \
             {send_end}, and end before {WINDOW_BYTES}"
        )));
    }
    Ok(ReceiveLimits {
        window_at: attach.receive_window,
        window_bytes: attach.receive_window_bytes,
        bytes_max,
    })
}

fn read_schema(descriptors: Vec<OwnedFd>) -> Result<Vec<u8>, Refusal> {
    let Ok([descriptor]) = <[OwnedFd; 1]>::try_from(descriptors) else {
        return Err(Refusal::invalid(
            "pass one descriptor beside AddSchema: a sealed memfd with a FileDescriptorSet",
        ));
    };
    let limits = MemfdLimits {
        bytes_min: 1,
        bytes_max: SCHEMA_BYTES_MAX as u64,
        seals: SEALS_FIXED_SIZE,
    };
    let read = || {
        let memfd = Memfd::verify_foreign(descriptor, limits)?;
        let mut bytes = vec![0; memfd.bytes() as usize];
        let length = memfd.read_at(0, &mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    };
    read().map_err(|error: provost_shm::ShmError| Refusal::invalid(format!("the schema: {error}")))
}

pub(crate) fn schema_hash(bytes: &[u8]) -> Result<SchemaHash, Refusal> {
    SchemaHash::try_from(bytes).map_err(|error| Refusal::invalid(error.to_string()))
}
