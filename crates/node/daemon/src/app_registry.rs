//! The apps that are attached: who they are, their control sockets, and what they have asked for.

use std::cell::{Cell, Ref, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use prost::Message;
use provost_datapath::PrivateBytes;
use provost_shm::{Packet, PacketSocket};
use provost_wire::Code;
use provost_wire::control::{Failed, PeerDescription, Reply, ServiceUnbound, reply};
use provost_wire::limits::CONTROL_MESSAGE_BYTES_MAX;
use rustix::event::{PollFd, PollFlags, Timespec};
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, OwnedSemaphorePermit};

use crate::app_process::AppProcess;
use crate::compose::AppEndpoint;
use crate::config::Config;
use crate::permits::AppConnections;
use crate::refusal::Refusal;
use crate::runtime::AppId;
use crate::table_counts::TableCounts;
use crate::user_names::UserNames;

/// How often an app that waits for many answers is looked after.
const HANG_UP_LOOK_EVERY: Duration = Duration::from_millis(100);

/// The apps, and the processes that have connected and not attached.
pub(crate) struct AppRegistry {
    attached: RefCell<HashMap<AppId, Rc<AttachedApp>>>,
    /// How many of them each user has, where that is any.
    of_users: RefCell<HashMap<u32, usize>>,
    /// How many of them each `[[app]]` table has.
    of_tables: RefCell<TableCounts>,
    next_id: Cell<AppId>,
    /// Control sockets of processes that have not attached.
    unattached: RefCell<BTreeMap<u64, OwnedFd>>,
    /// Numbers requests of apps, and processes that have not attached.
    next_request: Cell<u64>,
    /// The private memory that messages of all apps take on their way.
    private_bytes: Arc<PrivateBytes>,
    /// The shares of users in it that have apps.
    private_bytes_of_users: RefCell<HashMap<u32, Weak<PrivateBytes>>>,
    user_names: RefCell<UserNames>,
}

/// An app that has attached.
pub(crate) struct AttachedApp {
    /// Its end of all its connections.
    pub(crate) endpoint: AppEndpoint,
    /// Where it asks for things; none of a gRPC client.
    pub(crate) control: Option<ControlSocket>,
    /// What it has asked for and was not answered yet.
    pub(crate) requests: PendingRequests,
    /// Whether its library takes another completion region.
    pub(crate) takes_regions: bool,
    /// Its process, as far as authority goes by it.
    pub(crate) process: AppProcess,
    pub(crate) connections: AppConnections,
    /// Where its connection was going before it was redirected here: services without a route are called there.
    pub(crate) destination: Option<SocketAddr>,
    /// Tells the app's task that its runtime has given it up.
    pub(crate) given_up: Notify,
    /// Whether it is being detached: what waits on its behalf ends then.
    pub(crate) gone: GoneSignal,
}

/// Says once that an app is gone, to whoever waits for that then or later. There are thousands of apps, so it is small.
#[derive(Debug, Default)]
pub(crate) struct GoneSignal {
    is_set: Cell<bool>,
    changed: Notify,
}

impl GoneSignal {
    pub(crate) fn set(&self) {
        self.is_set.set(true);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_set(&self) -> bool {
        self.is_set.get()
    }

    pub(crate) async fn wait(&self) {
        // It hears of what comes from here on, also before it is awaited.
        let changed = self.changed.notified();
        if !self.is_set.get() {
            changed.await;
        }
    }
}

impl AttachedApp {
    pub(crate) fn id(&self) -> AppId {
        self.endpoint.identity.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.endpoint.identity.name
    }

    /// Does what takes time on the app's behalf, and gives it up when the app is detached. It must be something that can be
    /// given up at any point.
    pub(crate) async fn unless_gone<T>(&self, work: impl Future<Output = T>) -> Result<T, Refusal> {
        tokio::select! {
            done = work => Ok(done),
            () = self.gone.wait() => Err(gone()),
        }
    }

    /// Whether it is not being detached: what it is given from then on is taken back no more.
    pub(crate) fn check_attached(&self) -> Result<(), Refusal> {
        if self.gone.is_set() { Err(gone()) } else { Ok(()) }
    }

    /// Bytes of the heap that it has brought: none, if it is a gRPC client.
    pub(crate) fn shared_heap_bytes(&self) -> u64 {
        self.control
            .as_ref()
            .map_or(0, |_| self.endpoint.send_heap.bytes())
    }

    /// The user of its process.
    pub(crate) fn uid(&self) -> u32 {
        self.endpoint.identity.uid
    }

    /// Has it detached, and tells it why.
    pub(crate) fn detach_because(&self, refusal: Refusal) {
        self.send_notice(reply::Body::Failed(Failed {
            code: refusal.code.number(),
            message: refusal.message,
        }));
        self.given_up.notify_one();
    }

    /// Tells it that a service of its is not bound any more, and why.
    pub(crate) fn send_unbound(&self, service: &str, refusal: &Refusal) {
        self.send_notice(reply::Body::Unbound(ServiceUnbound {
            service: service.to_owned(),
            code: refusal.code.number(),
            message: refusal.message.clone(),
        }));
    }

    /// Tells it who is at the other end of a connection that it serves.
    pub(crate) fn send_peer(&self, peer: PeerDescription) {
        self.send_notice(reply::Body::Peer(peer));
    }

    /// Says something on the service's own account, if there is room: an app that does not listen is not waited for.
    fn send_notice(&self, body: reply::Body) {
        let Some(control) = &self.control else {
            return;
        };
        let body = Some(body);
        let reply = Reply { id: 0, body }.encode_to_vec();
        if let Err(error) = control.socket.get_ref().send(&reply, &[]) {
            tracing::debug!(app = self.id(), %error, "an app was not told");
        }
    }
}

fn gone() -> Refusal {
    Refusal::new(Code::Cancelled, "the app is gone")
}

/// A request that is not answered yet.
pub(crate) struct PendingRequest {
    pub(crate) packet: Vec<u8>,
    /// Duplicates of what came with it.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// The answer, once it was carried out.
    pub(crate) answer: Option<Vec<u8>>,
    /// What it takes of the app's share of requests beyond that of a small one.
    pub(crate) share: Option<OwnedSemaphorePermit>,
}

/// Requests of an app that are not answered yet, by number.
pub(crate) type PendingRequests = RefCell<BTreeMap<u64, PendingRequest>>;

impl AppRegistry {
    pub(crate) fn new() -> AppRegistry {
        AppRegistry {
            attached: RefCell::default(),
            of_users: RefCell::default(),
            of_tables: RefCell::default(),
            next_id: Cell::new(1),
            unattached: RefCell::default(),
            next_request: Cell::new(1),
            private_bytes: PrivateBytes::of_node(),
            private_bytes_of_users: RefCell::default(),
            user_names: RefCell::default(),
        }
    }

    /// The name of a user; empty for one that the local user database does not have.
    pub(crate) fn name_of_user(&self, user: u32) -> Arc<str> {
        self.user_names.borrow_mut().name(user)
    }

    /// A user's share of the node's private memory, in which those of its apps lie.
    pub(crate) fn private_bytes_of(&self, user: u32) -> Arc<PrivateBytes> {
        let mut of_users = self.private_bytes_of_users.borrow_mut();
        if let Some(share) = of_users.get(&user).and_then(Weak::upgrade) {
            return share;
        }
        of_users.retain(|_, share| share.strong_count() > 0);
        let share = PrivateBytes::of_user(&self.private_bytes);
        of_users.insert(user, Arc::downgrade(&share));
        share
    }

    /// A number for an app that no other has had.
    pub(crate) fn new_id(&self) -> AppId {
        self.next_id.replace(self.next_id.get() + 1)
    }

    /// The number that the next app gets.
    pub(crate) fn next_id(&self) -> AppId {
        self.next_id.get()
    }

    /// Goes on numbering from here.
    pub(crate) fn number_from(&self, next: AppId) {
        self.next_id.set(next);
    }

    /// A number for a request.
    pub(crate) fn new_request(&self) -> u64 {
        self.next_request.replace(self.next_request.get() + 1)
    }

    pub(crate) fn all(&self) -> Ref<'_, HashMap<AppId, Rc<AttachedApp>>> {
        self.attached.borrow()
    }

    pub(crate) fn count(&self) -> usize {
        self.attached.borrow().len()
    }

    pub(crate) fn count_of_user(&self, user: u32) -> usize {
        self.of_users.borrow().get(&user).copied().unwrap_or(0)
    }

    /// How many apps a table of the configuration in effect has.
    pub(crate) fn count_of_table(&self, live: &Rc<Config>, table: &str) -> usize {
        let attached = self.attached.borrow();
        let names = || attached.values().map(|app| app.name());
        self.of_tables.borrow_mut().of_table(live, table, names)
    }

    pub(crate) fn find(&self, id: AppId) -> Option<Rc<AttachedApp>> {
        self.attached.borrow().get(&id).map(Rc::clone)
    }

    pub(crate) fn insert(&self, app: Rc<AttachedApp>) {
        let user = app.endpoint.identity.uid;
        self.of_tables.borrow_mut().count_in(app.name());
        let replaced = self.attached.borrow_mut().insert(app.id(), app);
        replaced.iter().for_each(|app| self.count_out(app));
        *self.of_users.borrow_mut().entry(user).or_default() += 1;
    }

    pub(crate) fn remove(&self, id: AppId) -> Option<Rc<AttachedApp>> {
        let removed = self.attached.borrow_mut().remove(&id);
        removed.iter().for_each(|app| self.count_out(app));
        removed
    }

    /// An app is not attached any more.
    fn count_out(&self, app: &AttachedApp) {
        self.of_tables.borrow_mut().count_out(app.name());
        let mut of_users = self.of_users.borrow_mut();
        if let Entry::Occupied(mut of_user) = of_users.entry(app.endpoint.identity.uid) {
            *of_user.get_mut() -= 1;
            if *of_user.get() == 0 {
                of_user.remove();
            }
        }
    }

    /// Notes a process that has connected, until what this returns is dropped: one that takes over has to know it.
    pub(crate) fn note_unattached(self: &Rc<Self>, socket: &PacketSocket) -> Option<UnattachedProcess> {
        let socket = socket.as_fd().try_clone_to_owned().ok()?;
        let number = self.new_request();
        self.unattached.borrow_mut().insert(number, socket);
        Some(UnattachedProcess {
            registry: Rc::clone(self),
            number,
        })
    }

    /// Duplicates of the control sockets of processes that have not attached.
    pub(crate) fn unattached(&self) -> io::Result<Vec<OwnedFd>> {
        self.unattached
            .borrow()
            .values()
            .map(OwnedFd::try_clone)
            .collect()
    }
}

/// A process that has connected and not attached.
pub(crate) struct UnattachedProcess {
    registry: Rc<AppRegistry>,
    number: u64,
}

impl Drop for UnattachedProcess {
    fn drop(&mut self) {
        self.registry.unattached.borrow_mut().remove(&self.number);
    }
}

/// An app's control socket.
pub(crate) struct ControlSocket {
    socket: AsyncFd<PacketSocket>,
}

/// Has the event loop watch a socket.
#[expect(
    deprecated,
    reason = "its successor is unsafe, for descriptors that change under it; these sockets own theirs and lend it"
)]
pub(crate) fn watched<T: AsRawFd>(socket: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(socket)
}

impl ControlSocket {
    pub(crate) fn new(socket: PacketSocket) -> io::Result<ControlSocket> {
        let socket = watched(socket)?;
        Ok(ControlSocket { socket })
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    pub(crate) async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| socket.get_ref().receive(CONTROL_MESSAGE_BYTES_MAX));
            if let Ok(received) = received {
                return received;
            }
        }
    }

    pub(crate) async fn send(&self, reply: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            if let Ok(sent) = ready.try_io(|socket| socket.get_ref().send(reply, descriptors)) {
                return sent;
            }
        }
    }

    /// Waits until the app has closed its end, without reading what it has sent.
    pub(crate) async fn hung_up(&self) {
        loop {
            tokio::time::sleep(HANG_UP_LOOK_EVERY).await;
            let mut looked = [PollFd::new(&self.socket, PollFlags::empty())];
            // A failure is tried again.
            let _ = rustix::event::poll(&mut looked, Some(&Timespec::default()));
            if looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
                return;
            }
        }
    }

    /// Closes it for the app, too.
    pub(crate) fn shut_down(&self) {
        // It fails only when the app has closed its end.
        let _ = rustix::net::shutdown(self.socket.as_fd(), rustix::net::Shutdown::Both);
    }
}
