//! The control socket of an attachment: requests, their replies, and what the service says on its own account.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use prost::Message;
use provost_shm::{AsFd, BorrowedFd, Interest, Memfd, OwnedFd, PacketSocket, Wait, now_ns, wait_for};
use provost_wire::Code;
use provost_wire::control::{
    AddSchema, PeerDescription, RegionReplaced, Reply, Request, SegmentAdded, ServiceUnbound, Unbind, reply,
    request,
};
use provost_wire::limits::CONTROL_MESSAGE_BYTES_MAX;

use super::Link;
use crate::descriptor::ServiceDescriptor;
use crate::reactor::Timer;
use crate::status::Status;
use crate::waker_list::wake;

/// How long one attempt to connect may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// What the service may take beyond that to say so.
const REPLY_GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Control {
    socket: PacketSocket,
    next_id: AtomicU64,
    /// Requests under way, by id.
    pending: Mutex<HashMap<u64, Pending>>,
    /// Services that were taken back on the service's own account, each with the reason.
    unbound: Mutex<Vec<(String, Status)>>,
    /// How many these are, for servers, which ask with each call.
    unbound_count: AtomicUsize,
    /// Why the service detaches this app, if it has said so.
    farewell: Mutex<Option<Status>>,
    /// Held while packets are received, so that they are handled in order.
    receiving: Mutex<()>,
}

#[derive(Default)]
struct Pending {
    reply: Option<Result<reply::Body, Status>>,
    waker: Option<Waker>,
    /// The service that it has bound.
    binds: Option<String>,
    /// It was given up, and what it has bound is to be taken back.
    is_forgotten: bool,
}

/// Requests to bind that were given up before they were answered, at most. What more of them bind stays bound.
const FORGOTTEN_MAX: usize = 1024;

/// How soon a server that waits for such a one looks again.
const TAKE_BACK_PAUSE: Duration = Duration::from_millis(2);

/// Services that were taken back and that nobody has asked about, at most.
const UNBOUND_MAX: usize = 1024;

/// A packet that is not a reply to a request under way.
pub(crate) enum Notice {
    Segment(SegmentAdded, OwnedFd),
    /// What was done for a request that was given up.
    Unwanted(reply::Body),
    Region(RegionReplaced, OwnedFd),
    Peer(PeerDescription),
    Unbound(ServiceUnbound),
}

/// How long the service may take to make room for what it must be told.
const SAY_WAIT_NS: u64 = 1_000_000_000;

impl Control {
    pub(crate) fn new(socket: PacketSocket) -> Control {
        Control {
            socket,
            next_id: AtomicU64::new(1),
            pending: Mutex::default(),
            unbound: Mutex::default(),
            unbound_count: AtomicUsize::new(0),
            farewell: Mutex::default(),
            receiving: Mutex::default(),
        }
    }

    /// An id for the next request.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request; its reply is kept until [`Control::poll_reply`] or [`Control::forget`]. An error of the kind `WouldBlock` says that
    /// the service has not read those before.
    pub(crate) fn send(
        &self,
        id: u64,
        body: request::Body,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let binds = match &body {
            request::Body::Bind(bind) => Some(bind.service.clone()),
            _ => None,
        };
        let pending = Pending {
            binds,
            ..Pending::default()
        };
        self.pending().insert(id, pending);
        let request = Request { id, body: Some(body) };
        let sent = self.socket.send(&request.encode_to_vec(), descriptors);
        sent.inspect_err(|_| drop(self.pending().remove(&id)))
    }

    /// Tells the service something to which no reply matters.
    pub(crate) fn say(&self, body: request::Body) -> io::Result<()> {
        let (id, body) = (self.new_id(), Some(body));
        let bytes = Request { id, body }.encode_to_vec();
        match self.socket.send(&bytes, &[]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                wait_for(&self.socket, Interest::Writable, Wait::AtMost(SAY_WAIT_NS))?;
                self.socket.send(&bytes, &[])
            }
            sent => sent,
        }
    }

    pub(crate) fn poll_reply(&self, id: u64, context: &mut Context<'_>) -> Poll<Result<reply::Body, Status>> {
        let mut pending = self.pending();
        let Some(entry) = pending.get_mut(&id) else {
            return Poll::Ready(Err(Status::internal("nobody waits for this reply")));
        };
        let Some(reply) = entry.reply.take() else {
            let replaced = entry.waker.replace(context.waker().clone());
            drop(pending);
            drop(replaced);
            return Poll::Pending;
        };
        pending.remove(&id);
        Poll::Ready(reply)
    }

    /// Gives a request up; its reply, if it has come. What it binds is taken back, also when it is answered only later.
    pub(crate) fn forget(&self, id: u64) -> Option<Result<reply::Body, Status>> {
        let mut pending = self.pending();
        let may_bind = |entry: &Pending| entry.binds.is_some() && entry.reply.is_none();
        if pending.get(&id).is_some_and(may_bind)
            && pending.values().filter(|entry| entry.is_forgotten).count() < FORGOTTEN_MAX
            && let Some(entry) = pending.get_mut(&id)
        {
            entry.is_forgotten = true;
            let waker = entry.waker.take();
            drop(pending);
            drop(waker);
            return None;
        }
        let entry = pending.remove(&id)?;
        drop(pending);
        self.take_back(entry.binds, entry.reply.as_ref());
        entry.reply
    }

    /// Whether this service may be bound for a request that was given up.
    fn has_forgotten_bind(&self, service: &str) -> bool {
        let is_of_it = |entry: &Pending| entry.is_forgotten && entry.binds.as_deref() == Some(service);
        self.pending().values().any(is_of_it)
    }

    /// Has what was bound for a request that was given up bound no more.
    fn take_back(&self, service: Option<String>, reply: Option<&Result<reply::Body, Status>>) {
        if let (Some(service), Some(Ok(reply::Body::Done(_)))) = (service, reply) {
            // A service that is gone has nothing bound.
            let _ = self.say(request::Body::Unbind(Unbind { service }));
        }
    }

    /// The next of these services that was taken back on the service's own account: why.
    pub(crate) fn take_unbound(&self, is_own: impl Fn(&str) -> bool) -> Option<Status> {
        if self.unbound_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut unbound = self.unbound.lock().unwrap_or_else(PoisonError::into_inner);
        let at = unbound.iter().position(|(service, _)| is_own(service))?;
        let (_, reason) = unbound.swap_remove(at);
        self.unbound_count.store(unbound.len(), Ordering::Release);
        Some(reason)
    }

    /// Why the service detaches this app, if it has said so.
    pub(crate) fn farewell(&self) -> Option<Status> {
        let farewell = self.farewell.lock().unwrap_or_else(PoisonError::into_inner);
        farewell.clone()
    }

    pub(super) fn note_unbound(&self, unbound: ServiceUnbound) {
        let reason = Status::new(Code::from_number(unbound.code), unbound.message);
        let mut all = self.unbound.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < UNBOUND_MAX {
            all.push((unbound.service, reason));
        }
        self.unbound_count.store(all.len(), Ordering::Release);
    }

    /// Receives all packets that are there. An error, or the end of the socket, ends the attachment.
    pub(crate) fn receive(&self, mut notice: impl FnMut(Notice) -> io::Result<()>) -> io::Result<()> {
        let _in_order = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let packet = match self.socket.receive(CONTROL_MESSAGE_BYTES_MAX) {
                Ok(Some(packet)) => packet,
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let reply = Reply::decode(&packet.bytes[..]).map_err(io::Error::other)?;
            match reply.body {
                Some(reply::Body::SegmentAdded(added)) => {
                    let segment = packet.descriptors.into_iter().next();
                    let segment =
                        segment.ok_or_else(|| io::Error::other("a segment came without its memory"))?;
                    notice(Notice::Segment(added, segment))?;
                }
                Some(reply::Body::RegionReplaced(replaced)) => {
                    let region = packet.descriptors.into_iter().next();
                    let region =
                        region.ok_or_else(|| io::Error::other("a region came without its memory"))?;
                    notice(Notice::Region(replaced, region))?;
                }
                Some(reply::Body::Unbound(unbound)) => notice(Notice::Unbound(unbound))?,
                Some(reply::Body::Peer(description)) => notice(Notice::Peer(description))?,
                Some(reply::Body::Failed(failed)) if reply.id == 0 => {
                    let reason = Status::new(Code::from_number(failed.code), failed.message);
                    *self.farewell.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                }
                Some(reply::Body::Failed(failed)) => {
                    self.answer(
                        reply.id,
                        Err(Status::new(Code::from_number(failed.code), failed.message)),
                    );
                }
                Some(body) => {
                    if let Some(Ok(body)) = self.answer(reply.id, Ok(body)) {
                        notice(Notice::Unwanted(body))?;
                    }
                }
                None => {
                    let empty = Status::internal("the node's service sent an empty reply");
                    self.answer(reply.id, Err(empty));
                }
            }
        }
    }

    /// Fails all requests under way, and all to come.
    pub(crate) fn fail_all(&self) {
        let reason = self
            .farewell()
            .unwrap_or_else(|| Status::unavailable("the node's service went away"));
        let ids: Vec<u64> = self.pending().keys().copied().collect();
        for id in ids {
            self.answer(id, Err(reason.clone()));
        }
    }

    /// Gives a reply to who waits for it, or back if nobody does.
    fn answer(&self, id: u64, reply: Result<reply::Body, Status>) -> Option<Result<reply::Body, Status>> {
        let mut pending = self.pending();
        let Some(entry) = pending.get_mut(&id) else {
            return Some(reply);
        };
        if entry.is_forgotten {
            let service = entry.binds.clone();
            drop(pending);
            self.take_back(service, Some(&reply));
            // Not before that: whoever binds the service next waits for it.
            self.pending().remove(&id);
            return None;
        }
        entry.reply.get_or_insert(reply);
        let waker = entry.waker.take();
        drop(pending);
        waker.into_iter().for_each(wake);
        None
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Waits until nothing that a server which is gone has asked for can have this service bound. The service answers requests in their
/// order, so that this takes no longer than its answer to the next one.
pub(crate) async fn until_taken_back(link: &Link, service: &str) {
    let until_ns = now_ns().saturating_add((CONNECT_TIMEOUT + REPLY_GRACE).as_nanos() as u64);
    while link.control.has_forgotten_bind(service) && !link.is_dead() && now_ns() < until_ns {
        Timer::new(TAKE_BACK_PAUSE).wait().await;
    }
}

/// Sends a request that names a schema, and the schema itself if the service does not know it.
pub(crate) async fn request_with_schema(
    link: &Link,
    service: &ServiceDescriptor,
    id: u64,
    body: impl Fn() -> request::Body,
) -> Result<reply::Body, Status> {
    let timeout = CONNECT_TIMEOUT + REPLY_GRACE;
    let reply = link.request(id, body(), &[], timeout).await?;
    if !matches!(reply, reply::Body::SchemaUnknown(_)) {
        return Ok(reply);
    }
    let schema = Memfd::of_bytes("provost-schema", service.file_descriptor_set)
        .map_err(|error| Status::resource_exhausted(format!("no memory for the schema: {error}")))?;
    let add = request::Body::AddSchema(AddSchema {
        hash: service.schema_hash.to_vec(),
    });
    link.request(link.control.new_id(), add, &[schema.as_fd()], timeout)
        .await?;
    link.request(id, body(), &[], timeout).await
}
