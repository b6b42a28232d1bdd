//! Apps at the control socket: letting them in, and carrying out what they ask.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use provost_datapath::CompressedMessages;
use provost_engine::AppIdentity;
use provost_frontend::{AppPort, AppReceiveHeap, CallQuota, ReceiveLimits, SendHeap};
use provost_shm::{
    Doorbell, Memfd, MemfdLimits, Packet, PacketListener, PacketSocket, Ringer, SEALS_FIXED_SIZE,
    ServiceRings,
};
use provost_wire::Code;
use provost_wire::control::{
    AddSchema, Attach, Attached, Bind, CONTROL_VERSION, Connected, Done, Failed, RegionMapped, Reply,
    Request, SchemaUnknown, Unbind, reply, request,
};
use provost_wire::limits::{
    BLOCK_ALIGN_BYTES, CONTROL_MESSAGE_BYTES_MAX, NAME_BYTES_MAX, RING_SLOTS_DEFAULT, RING_SLOTS_MIN,
    SCHEMA_BYTES_MAX, SEND_WINDOW, WINDOW_BYTES,
};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tracing::Instrument;

use crate::access::{self, Credentials};
use crate::admission;
use crate::app_process::AppProcess;
use crate::app_registry::{
    AppRegistry, AttachedApp, ControlSocket, GoneSignal, PendingRequest, PendingRequests, UnattachedProcess,
    watched,
};
use crate::authority::AppAuthority;
use crate::compose::{AppEndpoint, JudgedConnections};
use crate::config::Config;
use crate::configuration::Configuration;
use crate::connect::{ConnectOutcome, Connector};
use crate::connections::ConnectionRegistry;
use crate::log::{self, EventSubject};
use crate::permits::AppConnections;
use crate::places::{BoundedPlaces, HeldPlace, PlaceBounds, let_losers_go};
use crate::quiesce_barrier::{QuiesceBarrier, QuiesceGuard};
use crate::refusal::{Refusal, schema_hash};
use crate::runtime::{NewApp, RuntimeCommand, WaitMode};
use crate::runtimes::Runtimes;
use crate::schemas::{BoundSchema, StoreError};
use crate::segments::AnnouncedSegments;
use crate::services::{BringError, Offer, Services};

/// How long a process that has connected may take to attach.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one app that are carried out at once; more wait in its socket. One that keeps much counts as several.
const REQUESTS_MAX: usize = 64;
/// As many bytes of a request count as one.
const BYTES_OF_REQUEST: usize = CONTROL_MESSAGE_BYTES_MAX / REQUESTS_MAX;
/// As so many requests counts a descriptor, which is kept twice: for who carries the request out, and for a process that takes over.
const REQUESTS_OF_DESCRIPTOR: usize = 8;
/// After an error of accept, such as having no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Processes that have connected and not attached. When there are more, one of the user who has most of them makes room.
const UNATTACHED: PlaceBounds = PlaceBounds {
    all: 256,
    per_party: 256,
    grace: Duration::ZERO,
};
const PAGE_BYTES: u64 = 4096;

pub(crate) struct AppServer {
    pub(crate) config: Rc<Configuration>,
    pub(crate) apps: Rc<AppRegistry>,
    pub(crate) connections: Rc<ConnectionRegistry>,
    pub(crate) runtimes: Rc<Runtimes>,
    pub(crate) services: Arc<Services>,
    pub(crate) quiesce_barrier: Rc<QuiesceBarrier>,
    pub(crate) connector: Rc<Connector>,
    pub(crate) authority: Rc<AppAuthority>,
}

/// What came of a request.
enum RequestOutcome {
    Done,
    Connected { connection: u32, peer: String },
    SchemaUnknown,
}

impl AppServer {
    /// Lets apps in, for ever. `unattached` are processes that had connected already.
    pub(crate) async fn accept(self: Rc<Self>, listener: PacketListener, unattached: Vec<PacketSocket>) {
        let listener = match watched(listener) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "the control socket cannot be watched: no app can attach");
                return;
            }
        };
        let places = BoundedPlaces::new(UNATTACHED);
        let let_in = |socket: PacketSocket| match identified(&socket) {
            Ok(credentials) => {
                // Nobody has a grace.
                if let Some(place) = places.enter(credentials.uid) {
                    let unattached = self.apps.note_unattached(&socket);
                    let serving = Rc::clone(&self).serve(socket, credentials, place, unattached);
                    tokio::task::spawn_local(serving);
                }
            }
            Err(error) => tracing::warn!(%error, "cannot tell who connected to the control socket"),
        };
        unattached.into_iter().for_each(let_in);
        loop {
            let accepted = async || {
                let mut ready = listener.readable().await?;
                match ready.try_io(|listener| listener.get_ref().accept()) {
                    Ok(accepted) => accepted.map(Some),
                    Err(_would_block) => Ok(None),
                }
            };
            let (accepted, guard) = self.quiesce_barrier.enter_with(accepted).await;
            match accepted {
                Ok(Some(socket)) => {
                    let_in(socket);
                    drop(guard);
                    let_losers_go().await;
                }
                Ok(None) => {}
                Err(error) => {
                    drop(guard);
                    tracing::warn!(%error, "cannot let an app in: trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Lets a process attach, and does what it asks for until it is gone.
    async fn serve(
        self: Rc<Self>,
        socket: PacketSocket,
        credentials: Credentials,
        mut place: HeldPlace<u32>,
        unattached: Option<UnattachedProcess>,
    ) {
        let control = match ControlSocket::new(socket) {
            Ok(control) => control,
            Err(error) => {
                tracing::warn!(%error, "cannot watch a control socket");
                return;
            }
        };
        let first = self.quiesce_barrier.enter_with(|| control.receive());
        let first = tokio::time::timeout(ATTACH_TIMEOUT, first);
        let first = tokio::select! {
            biased;
            first = first => first.ok(),
            () = place.lost() => None,
        };
        drop((place, unattached));
        let Some((Ok(Some(first)), guard)) = first else {
            tracing::debug!(pid = credentials.pid, "a process connected and did not attach");
            return;
        };
        let attached = self.attach(control, credentials, first).await;
        drop(guard);
        if let Some(app) = attached {
            Rc::clone(&self).attend(app).await;
        }
    }

    async fn attach(
        &self,
        control: ControlSocket,
        credentials: Credentials,
        packet: Packet,
    ) -> Option<Rc<AttachedApp>> {
        let request = Request::decode(packet.bytes.as_slice()).ok()?;
        let process = AppProcess::at_socket(control.as_fd(), credentials.clone());
        let admitted = match &request.body {
            Some(request::Body::Attach(attach)) => self.admit(&control, process, attach, packet.descriptors),
            _ => Err(Refusal::new(
                Code::FailedPrecondition,
                "attach first: nothing else can be asked before",
            )),
        };
        let refusal = match admitted {
            Ok(admitted) => {
                let AppAdmission { app, new, reply } = admitted;
                let app = Rc::new(app.attached(control));
                match self.start(&app, new).await {
                    Ok(()) => return self.welcome(app, request.id, reply).await,
                    Err(refusal) => {
                        if let Some(control) = &app.control {
                            refuse(control, &credentials, request.id, refusal).await;
                        }
                        return None;
                    }
                }
            }
            Err(refusal) => refusal,
        };
        refuse(&control, &credentials, request.id, refusal).await;
        None
    }

    /// Tells an app that it is attached.
    async fn welcome(
        &self,
        app: Rc<AttachedApp>,
        request: u64,
        welcome: AttachReply,
    ) -> Option<Rc<AttachedApp>> {
        let borrowed: Vec<_> = welcome.descriptors.iter().map(AsFd::as_fd).collect();
        let body = Some(reply::Body::Attached(welcome.reply));
        let reply = Reply { id: request, body }.encode_to_vec();
        let control = app.control.as_ref()?;
        if control.send(&reply, &borrowed).await.is_err() {
            self.detach(&app).await;
            return None;
        }
        let identity = &app.endpoint.identity;
        let (pid, uid) = (identity.pid, identity.uid);
        if log::may_log(EventSubject::User(uid)) {
            tracing::info!(app = app.id(), name = app.name(), pid, uid, "attached");
        }
        Some(app)
    }

    /// Checks all that an app brings, and makes what it shares with the service.
    fn admit(
        &self,
        control: &ControlSocket,
        mut process: AppProcess,
        attach: &Attach,
        descriptors: Vec<OwnedFd>,
    ) -> Result<AppAdmission, Refusal> {
        let live = self.config.live();
        let credentials = process.credentials.clone();
        self.check(&live, &credentials, attach)?;
        let name = match attach.name.as_str() {
            "" => format!("process {}", credentials.pid),
            name => name.to_owned(),
        };
        let connections = self.connections.permits.of_app(credentials.uid);
        if let Some(table) = self.authority.admit(&live, &name, &mut process)? {
            admission::check_attachments(&self.config, &self.apps, &table)?;
            connections.set_bound(table.connections);
        }
        let slots = (
            self.ring_slots(attach.submission_slots)?,
            self.ring_slots(attach.completion_slots)?,
        );
        let send_heap = map_send_heap(descriptors, live.limits.send_heap_bytes)?;
        let send_heap = send_heap.counted_in(&self.apps.private_bytes_of(credentials.uid));
        let limits = receive_limits(attach, &send_heap, live.limits.receive_heap_bytes)?;
        let waiting = self.waiting(attach)?;
        let shared = SharedMemory::create(slots, control, limits)?;
        let id = self.apps.new_id();
        let endpoint = AppEndpoint {
            proved: "".into(),
            runtime: self.runtimes.place(&name),
            send_heap,
            identity: Arc::new(AppIdentity {
                id,
                name: name.as_str().into(),
                pid: credentials.pid,
                uid: credentials.uid,
                gid: credentials.gid,
                user: self.apps.name_of_user(credentials.uid),
                workload: self.connector.callers.workload(&live, &name),
            }),
            judging: JudgedConnections::AllOfThem,
            form: provost_datapath::BodyForm::Native,
            compressed: CompressedMessages::Decompressed,
        };
        Ok(AppAdmission {
            app: AdmittedApp {
                endpoint,
                takes_regions: attach.takes_regions,
                process,
                connections,
            },
            new: NewApp {
                app: id,
                port: shared.port,
                doorbell: shared.doorbell,
                waiting,
            },
            reply: AttachReply {
                reply: Attached {
                    submission_slots: slots.0,
                    completion_slots: slots.1,
                    app: id,
                    spin_ns: live.runtime.spin_us * 1000,
                    message_bytes_max: live.limits.message_bytes,
                },
                descriptors: shared.descriptors,
            },
        })
    }

    /// Checks who wants to attach, and that there is room.
    fn check(&self, live: &Config, credentials: &Credentials, attach: &Attach) -> Result<(), Refusal> {
        access::check(&live.control, access::own_user(), credentials)
            .map_err(|denied| Refusal::new(Code::PermissionDenied, self.config.refusal(denied)))?;
        if attach.version != CONTROL_VERSION {
            let message = format!(
                "the app's library speaks version {} of the control protocol, this service version \
                 {CONTROL_VERSION}: upgrade the older one",
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
        admission::check_room(&self.config, &self.apps, credentials.uid)
    }

    /// How the service is to wait for an app.
    fn waiting(&self, attach: &Attach) -> Result<WaitMode, Refusal> {
        let is_allowed = self.config.live().runtime.allow_app_busy_poll;
        match (attach.busy_poll, is_allowed) {
            (false, _) => Ok(WaitMode::Sleeps),
            (true, true) => Ok(WaitMode::BusyPolls),
            (true, false) => {
                let message = "the app asks for busy polling: set runtime.allow_app_busy_poll = true";
                let message = self.config.refusal_by("runtime.allow_app_busy_poll", message);
                Err(Refusal::new(Code::PermissionDenied, message))
            }
        }
    }

    /// As many slots of a ring as an app asks for, or as it gets by itself.
    fn ring_slots(&self, asked: u32) -> Result<u32, Refusal> {
        let most = self.config.live().limits.ring_slots;
        if asked == 0 {
            return Ok(RING_SLOTS_DEFAULT.min(most));
        }
        if asked.is_power_of_two() && (RING_SLOTS_MIN..=most).contains(&asked) {
            return Ok(asked);
        }
        let message = format!(
            "a ring of {asked} slots: ask for a power of two from {RING_SLOTS_MIN} to limits.ring_slots = {most}"
        );
        Err(Refusal::invalid(
            self.config.refusal_by("limits.ring_slots", message),
        ))
    }

    /// Gives an admitted app to its runtime.
    async fn start(&self, app: &Rc<AttachedApp>, new: NewApp) -> Result<(), Refusal> {
        let runtime = &self.runtimes[app.endpoint.runtime];
        runtime.place_app();
        self.apps.insert(Rc::clone(app));
        let told = runtime.send(RuntimeCommand::Attach(Box::new(new))).await;
        told.map_err(|overloaded| {
            self.apps.remove(app.id());
            runtime.remove_app();
            Refusal::new(Code::ResourceExhausted, overloaded.to_string())
        })
    }

    /// Does what an app asks for until it is gone.
    async fn attend(self: Rc<Self>, app: Rc<AttachedApp>) {
        tokio::select! {
            () = Rc::clone(&self).obey(&app) => {}
            () = app.given_up.notified() => {}
        }
        let _guard = self.quiesce_barrier.enter().await;
        self.detach(&app).await;
    }

    /// Goes on with an app of another process: what it had asked for and was not answered first. One whose library cannot
    /// follow has to attach anew.
    pub(crate) async fn resume(self: Rc<Self>, app: Rc<AttachedApp>) {
        if !app.takes_regions {
            tracing::warn!(
                app = app.id(),
                name = app.name(),
                "detaching an app whose library cannot follow"
            );
            return self.detach(&app).await;
        }
        self.attend(app).await;
    }

    /// Takes everything back that the app had.
    async fn detach(&self, app: &AttachedApp) {
        app.gone.set();
        self.services.unbind_all(app.id());
        // The app learns of it from this, if it still lives; the socket itself goes when the last request has ended.
        app.control.iter().for_each(ControlSocket::shut_down);
        // Taken again and again: a runtime that takes no commands for seconds gets some more.
        while self.runtimes[app.endpoint.runtime]
            .send(RuntimeCommand::Detach(app.id()))
            .await
            .is_err()
        {
            tracing::error!(app = app.id(), "a runtime thread takes no commands");
        }
    }

    /// Carries out requests until the app is gone.
    async fn obey(self: Rc<Self>, app: &Rc<AttachedApp>) {
        let Some(control) = &app.control else {
            return;
        };
        let under_way = Arc::new(Semaphore::new(REQUESTS_MAX));
        // Of an app of another process.
        let mut pending: VecDeque<u64> = app.requests.borrow().keys().copied().collect();
        loop {
            let permit = tokio::select! {
                // Never closed, so that this waits for a permit.
                Ok(permit) = Arc::clone(&under_way).acquire_owned() => permit,
                // Nothing is read from it meanwhile, which is how an end is seen otherwise.
                () = control.hung_up() => return,
            };
            let (number, guard) = match pending.pop_front() {
                Some(number) => (number, None),
                None => match self.next_request(app, control).await {
                    Some((number, guard)) => (number, Some(guard)),
                    None => return,
                },
            };
            let kept = app.requests.borrow().get(&number).map_or(1, requests_kept);
            let done = self.attend_request(app, number, permit);
            drop(guard);
            if kept == 1 {
                continue;
            }
            // The next one is read when there is room for this one, or this one has ended.
            let share = tokio::select! {
                share = Arc::clone(&under_way).acquire_many_owned(kept - 1) => share.ok(),
                _ = done => None,
                () = control.hung_up() => return,
            };
            if let Some(pending) = app.requests.borrow_mut().get_mut(&number) {
                pending.share = share;
            }
        }
    }

    /// Reads the next request of an app and notes it; none once the app is gone, or has said what makes no sense.
    async fn next_request<'a>(
        &'a self,
        app: &AttachedApp,
        control: &ControlSocket,
    ) -> Option<(u64, QuiesceGuard<'a>)> {
        let (packet, guard) = self.quiesce_barrier.enter_with(|| control.receive()).await;
        let mut packet = match packet {
            Ok(packet) => packet?,
            Err(error) => {
                if log::may_log_of(app.id(), app.uid()) {
                    tracing::info!(app = app.id(), %error, "an app's control socket broke");
                }
                return None;
            }
        };
        let Ok(request) = Request::decode(packet.bytes.as_slice()) else {
            if log::may_log_of(app.id(), app.uid()) {
                tracing::warn!(
                    app = app.id(),
                    "detaching an app that sent a malformed control message"
                );
            }
            return None;
        };
        packet.bytes.shrink_to_fit();
        let number = self.apps.new_request();
        let pending = PendingRequest {
            packet: packet.bytes,
            descriptors: wanted_descriptors(&request, packet.descriptors),
            answer: None,
            share: None,
        };
        app.requests.borrow_mut().insert(number, pending);
        Some((number, guard))
    }

    /// Carries a request out in a task of its own, and answers it.
    fn attend_request(
        self: &Rc<Self>,
        app: &Rc<AttachedApp>,
        number: u64,
        permit: OwnedSemaphorePermit,
    ) -> JoinHandle<()> {
        let (server, app) = (Rc::clone(self), Rc::clone(app));
        let span = tracing::info_span!("request", app = app.id(), request = number);
        let attending = async move {
            if let (Some(answer), Some(control)) = (server.carry_out(&app, number).await, &app.control) {
                // An app that is gone needs no answer.
                let _ = control.send(&answer, &[]).await;
            }
            app.requests.borrow_mut().remove(&number);
            drop(permit);
        };
        tokio::task::spawn_local(attending.instrument(span))
    }

    /// Carries a request out. Its answer is noted beside it before anything else can come in between.
    async fn carry_out(&self, app: &AttachedApp, number: u64) -> Option<Vec<u8>> {
        let (request, descriptors) = match pending(&app.requests, number)? {
            RequestState::Answered(answer) => return Some(answer),
            RequestState::Asked(request, descriptors) => (request, descriptors),
        };
        let id = request.id;
        let mut guard = None;
        let outcome = self
            .carry_out_request(app, request, descriptors, &mut guard)
            .await;
        if let Err(refusal) = &outcome
            && log::may_log_of(app.id(), app.uid())
        {
            let (code, reason) = (refusal.code, &*log::cut(&refusal.message));
            tracing::info!(app = app.id(), %code, reason, "refused a request");
        }
        let _guard = match guard {
            Some(guard) => guard,
            None => self.quiesce_barrier.enter().await,
        };
        let answer = answer(id, outcome);
        if let Some(pending) = app.requests.borrow_mut().get_mut(&number) {
            pending.answer = Some(answer.clone());
            pending.descriptors.clear();
        }
        Some(answer)
    }

    /// Does what is asked for. Whatever cannot be done twice is done with a guard, which is left in `guard`.
    async fn carry_out_request<'a>(
        &'a self,
        app: &AttachedApp,
        request: Request,
        descriptors: Vec<OwnedFd>,
        guard: &mut Option<QuiesceGuard<'a>>,
    ) -> Result<RequestOutcome, Refusal> {
        match request.body {
            Some(request::Body::Attach(_)) => Err(Refusal::new(Code::FailedPrecondition, "attached already")),
            Some(request::Body::AddSchema(add)) => self.add_schema(app, &add, descriptors).await,
            Some(request::Body::Bind(bind)) => {
                let Some(schema) = self.find_schema(app, &bind).await? else {
                    return Ok(RequestOutcome::SchemaUnknown);
                };
                *guard = Some(self.quiesce_barrier.enter().await);
                self.bind(app, request.id, &bind, schema)
            }
            Some(request::Body::Unbind(unbind)) => {
                *guard = Some(self.quiesce_barrier.enter().await);
                self.unbind(app, &unbind)
            }
            Some(request::Body::Connect(connect)) => {
                Ok(match self.connector.connect(app, &connect, guard).await? {
                    ConnectOutcome::SchemaUnknown => RequestOutcome::SchemaUnknown,
                    ConnectOutcome::Connected(opened) => RequestOutcome::Connected {
                        connection: opened.number,
                        peer: opened.peer,
                    },
                })
            }
            Some(request::Body::RegionMapped(mapped)) => {
                *guard = Some(self.quiesce_barrier.enter().await);
                self.region_mapped(app, &mapped).await
            }
            None => Err(Refusal::new(
                Code::Unimplemented,
                "the request is of a kind that this version does not know",
            )),
        }
    }

    async fn region_mapped(
        &self,
        app: &AttachedApp,
        mapped: &RegionMapped,
    ) -> Result<RequestOutcome, Refusal> {
        let command = RuntimeCommand::RegionMapped {
            app: app.id(),
            generation: mapped.generation,
        };
        let told = self.runtimes[app.endpoint.runtime].send(command).await;
        told.map_err(|error| Refusal::new(Code::ResourceExhausted, error.to_string()))?;
        Ok(RequestOutcome::Done)
    }

    async fn add_schema(
        &self,
        app: &AttachedApp,
        add: &AddSchema,
        descriptors: Vec<OwnedFd>,
    ) -> Result<RequestOutcome, Refusal> {
        let announced = if add.hash.is_empty() {
            None
        } else {
            Some(schema_hash(&add.hash)?)
        };
        let memory = check_schema_memory(descriptors)?;
        let bringing = self
            .services
            .bring_schema(memory, announced, &app.endpoint.identity);
        match app.unless_gone(bringing).await? {
            Ok(()) => Ok(RequestOutcome::Done),
            Err(BringError::CutShort) => {
                Err(Refusal::new(Code::Internal, "the schema could not be compiled"))
            }
            Err(error @ BringError::Store(StoreError::Full { .. })) => Err(self
                .config
                .over_limit("limits.schemas", format!("schema: {error}"))),
            Err(error @ BringError::Store(StoreError::UserFull { .. })) => {
                let message = format!("schema: {error}");
                Err(self.config.over_limit("limits.schemas_per_user", message))
            }
            Err(error) => Err(Refusal::invalid(format!("schema: {error}"))),
        }
    }

    async fn find_schema(&self, app: &AttachedApp, bind: &Bind) -> Result<Option<Arc<BoundSchema>>, Refusal> {
        let hash = schema_hash(&bind.schema_hash)?;
        let finding = self
            .services
            .find_schema(&bind.service, hash, &app.endpoint.identity);
        app.unless_gone(finding).await
    }

    fn bind(
        &self,
        app: &AttachedApp,
        request: u64,
        bind: &Bind,
        schema: Arc<BoundSchema>,
    ) -> Result<RequestOutcome, Refusal> {
        app.check_attached()?;
        let hash = schema.hash;
        let calls_max = match bind.calls_in_flight_max {
            0 => u32::MAX,
            max => max,
        };
        let bound_by = self.services.offering(&bind.service);
        let bound_by: Vec<_> = bound_by
            .into_iter()
            .filter_map(|other| self.apps.find(other))
            .collect();
        self.authority.may_bind(app, &bind.service, &bound_by)?;
        self.services.bind(Offer {
            app: Some(app.id()),
            request,
            schema,
            quota: Arc::new(CallQuota::new(calls_max)),
        })?;
        if log::may_log_of(app.id(), app.uid()) {
            tracing::info!(app = app.id(), service = bind.service, %hash, "bound");
        }
        Ok(RequestOutcome::Done)
    }

    fn unbind(&self, app: &AttachedApp, unbind: &Unbind) -> Result<RequestOutcome, Refusal> {
        if !self.services.unbind(app.id(), &unbind.service) {
            let message = format!("this app has not bound {}", log::cut(&unbind.service));
            return Err(Refusal::new(Code::NotFound, message));
        }
        self.connections.each_of_app(app.id(), |connection| {
            if connection.spec.serves() == Some(&unbind.service) {
                connection.drain();
            }
        });
        if log::may_log_of(app.id(), app.uid()) {
            tracing::info!(app = app.id(), service = unbind.service, "unbound");
        }
        Ok(RequestOutcome::Done)
    }
}

/// Who is at the other end of a control socket.
fn identified(socket: &PacketSocket) -> io::Result<Credentials> {
    let peer = socket.peer_credentials()?;
    Credentials::at_socket(socket, peer.process, peer.user, peer.group)
}

/// An app that may attach: who it is, what its runtime gets, and what it is told.
struct AppAdmission {
    app: AdmittedApp,
    new: NewApp,
    reply: AttachReply,
}

struct AdmittedApp {
    endpoint: AppEndpoint,
    takes_regions: bool,
    process: AppProcess,
    connections: AppConnections,
}

struct AttachReply {
    reply: Attached,
    descriptors: Vec<OwnedFd>,
}

impl AdmittedApp {
    fn attached(self, control: ControlSocket) -> AttachedApp {
        AttachedApp {
            endpoint: self.endpoint,
            control: Some(control),
            requests: RefCell::new(BTreeMap::new()),
            takes_regions: self.takes_regions,
            process: self.process,
            connections: self.connections,
            destination: None,
            given_up: Notify::new(),
            gone: GoneSignal::default(),
        }
    }
}

/// The memory and the doorbells that an app shares with the service.
struct SharedMemory {
    port: AppPort,
    doorbell: Doorbell,
    descriptors: Vec<OwnedFd>,
}

impl SharedMemory {
    fn create(
        slots: (u32, u32),
        control: &ControlSocket,
        limits: ReceiveLimits,
    ) -> Result<SharedMemory, Refusal> {
        let no_doorbell = |error: io::Error| Refusal::of_system("a doorbell", &error);
        let (rings, [submission, completion]) =
            ServiceRings::create(slots.0, slots.1).map_err(|error| Refusal::of_system("rings", &error))?;
        let (wakes_service, doorbell) = Doorbell::create().map_err(no_doorbell)?;
        let (app_ringer, wakes_app): (Ringer, Doorbell) = Doorbell::create().map_err(no_doorbell)?;
        let socket = control
            .duplicate()
            .map_err(|error| Refusal::of_system("the control socket", &error))?;
        let heap = AppReceiveHeap::new(Box::new(AnnouncedSegments::new(socket)), limits);
        let own = |descriptor: BorrowedFd<'_>| descriptor.try_clone_to_owned().map_err(no_doorbell);
        let descriptors = vec![
            submission.into_descriptor(),
            completion.into_descriptor(),
            own(wakes_service.as_fd())?,
            own(wakes_app.as_fd())?,
        ];
        Ok(SharedMemory {
            port: AppPort::new(rings, app_ringer, heap),
            doorbell,
            descriptors,
        })
    }
}

async fn refuse(control: &ControlSocket, credentials: &Credentials, request: u64, refusal: Refusal) {
    let &Credentials { pid, uid, .. } = credentials;
    if log::may_log(EventSubject::User(uid)) {
        tracing::warn!(pid, uid, reason = &*log::cut(&refusal.message), "refused an app");
    }
    // An app that is gone needs no answer.
    let _ = control.send(&answer(request, Err(refusal)), &[]).await;
}

/// Of what came beside a request, what it is carried out with: the others are closed at once, however long it takes.
fn wanted_descriptors(request: &Request, mut descriptors: Vec<OwnedFd>) -> Vec<OwnedFd> {
    match &request.body {
        // Two are as wrong as three.
        Some(request::Body::AddSchema(_)) => descriptors.truncate(2),
        _ => descriptors.clear(),
    }
    descriptors
}

/// As how many requests one counts, by what it keeps until it is answered.
fn requests_kept(request: &PendingRequest) -> u32 {
    let of_bytes = request.packet.len().div_ceil(BYTES_OF_REQUEST);
    let of_descriptors = request.descriptors.len() * REQUESTS_OF_DESCRIPTOR;
    of_bytes.max(of_descriptors).clamp(1, REQUESTS_MAX) as u32
}

/// A request that is to be answered.
enum RequestState {
    /// It was carried out.
    Answered(Vec<u8>),
    /// With duplicates of what came with it.
    Asked(Request, Vec<OwnedFd>),
}

fn pending(requests: &PendingRequests, number: u64) -> Option<RequestState> {
    let requests = requests.borrow();
    let pending = requests.get(&number)?;
    if let Some(answer) = &pending.answer {
        return Some(RequestState::Answered(answer.clone()));
    }
    let descriptors = pending.descriptors.iter().map(OwnedFd::try_clone);
    let descriptors = descriptors.collect::<io::Result<Vec<_>>>().unwrap_or_default();
    Some(RequestState::Asked(
        Request::decode(pending.packet.as_slice()).ok()?,
        descriptors,
    ))
}

fn answer(id: u64, outcome: Result<RequestOutcome, Refusal>) -> Vec<u8> {
    let body = match outcome {
        Ok(RequestOutcome::Done) => reply::Body::Done(Done {}),
        Ok(RequestOutcome::Connected { connection, peer }) => {
            reply::Body::Connected(Connected { connection, peer })
        }
        Ok(RequestOutcome::SchemaUnknown) => reply::Body::SchemaUnknown(SchemaUnknown {}),
        Err(refusal) => reply::Body::Failed(Failed {
            code: refusal.code.number(),
            message: refusal.message,
        }),
    };
    let body = Some(body);
    Reply { id, body }.encode_to_vec()
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

fn check_schema_memory(descriptors: Vec<OwnedFd>) -> Result<Memfd, Refusal> {
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
    Memfd::verify_foreign(descriptor, limits)
        .map_err(|error| Refusal::invalid(format!("the schema: {error}")))
}
