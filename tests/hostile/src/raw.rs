//! An app without the app library: it can do all that its descriptors allow, right or wrong. It reaches the shared
//! memory by system calls, so that it needs no unsafe code itself.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use prost::Message;
use provost_shm::{
    AppRings, Interest, Memfd, MemfdLimits, PacketSocket, Ringer, SEALS_FIXED_SIZE,
    SEALS_READ_ONLY_FOR_OTHERS, Wait, wait_for,
};
use provost_wire::control::{
    AddSchema, Attach, Bind, CONTROL_VERSION, Connect, RegionMapped, Reply, Request, reply, request,
};
use provost_wire::descriptor::{
    BATCH_MAX, Batch, Completion, Parts, Slot, Submission, completion_kind, submission_kind,
};
use provost_wire::limits::{CONTROL_MESSAGE_BYTES_MAX, REGION_BYTES_MAX, SEND_WINDOW};
use provost_wire::metadata::{self, STATUS_MESSAGE};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::schema::TargetSchema;

/// Size of an attacker's send heap, in bytes.
pub const SEND_HEAP_BYTES: u64 = 8 << 20;
/// Where an attacker wants its receive segments, in units of 8 bytes.
pub const RECEIVE_WINDOW: u32 = (1 << 30) / 8;
/// How much room they have, in bytes.
pub const RECEIVE_WINDOW_BYTES: u64 = 256 << 20;
/// How long an honest service may take to answer anything while it is attacked.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// The number of the request that nobody waits for the answer of.
const REGION_MAPPED: u64 = u64::MAX;
const RING_SLOTS: u32 = 64;
pub(crate) const POLL_EVERY: Duration = Duration::from_micros(200);

/// Why an app cannot go on. Being thrown out is what attackers expect; the rest is not.
#[derive(Debug, thiserror::Error)]
pub enum Gone {
    /// The service has closed the socket, or faulted the rings.
    #[error("the service has detached this app")]
    Detached,
    /// The connection that was used has ended.
    #[error("the connection has ended")]
    Closed,
    /// The service has refused a request.
    #[error("refused with code {code}: {message}")]
    Refused { code: u32, message: String },
    /// The service does nothing.
    #[error("the service does not answer: {0}")]
    Silent(&'static str),
    /// The service has done what it must not do.
    #[error("the service is at fault: {0}")]
    ServiceFault(String),
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Gone {
        match error.kind() {
            io::ErrorKind::WouldBlock => Gone::Silent("its socket is full"),
            _ => Gone::Detached,
        }
    }
}

/// A segment of the receive heap.
#[derive(Debug)]
pub struct Segment {
    pub id: u64,
    /// Where it lies in the window, in bytes.
    pub at: u64,
    pub memory: Memfd,
}

#[derive(Debug)]
pub struct RawApp {
    pub socket: PacketSocket,
    /// The app's ends of the rings.
    pub rings: AppRings,
    /// The submission region, to be written to anywhere.
    pub region: Memfd,
    pub heap: Memfd,
    pub ringer: Ringer,
    /// Segments of the receive heap.
    pub segments: Vec<Segment>,
    /// What the last call that ended with a status message was told.
    pub last_message: String,
    /// Connections that have ended.
    closed: HashSet<u32>,
    last_request: u64,
    replies: VecDeque<Reply>,
}

impl RawApp {
    /// Attaches as an honest app does.
    pub fn attach(socket: &Path, name: &str) -> Result<RawApp, Gone> {
        RawApp::attach_with_window(socket, name, RECEIVE_WINDOW_BYTES)
    }

    /// Attaches with room for so many bytes of receive segments.
    pub fn attach_with_window(socket: &Path, name: &str, receive_window_bytes: u64) -> Result<RawApp, Gone> {
        let heap = sealed_memory("hostile-send-heap", SEND_HEAP_BYTES)?;
        let request = Attach {
            version: CONTROL_VERSION,
            name: name.to_owned(),
            submission_slots: RING_SLOTS,
            completion_slots: RING_SLOTS,
            receive_window: RECEIVE_WINDOW,
            receive_window_bytes,
            busy_poll: false,
            takes_regions: true,
        };
        let socket = PacketSocket::connect_within(socket, WAIT_MAX)?;
        let packet = Request {
            id: 1,
            body: Some(request::Body::Attach(request)),
        }
        .encode_to_vec();
        socket.send(&packet, &[heap.as_fd()])?;
        Self::finish_attaching(socket, heap)
    }

    fn finish_attaching(socket: PacketSocket, heap: Memfd) -> Result<RawApp, Gone> {
        let (reply, descriptors) = receive_within(&socket, WAIT_MAX)?.ok_or(Gone::Silent("to Attach"))?;
        let attached = match reply.body {
            Some(reply::Body::Attached(attached)) => attached,
            Some(reply::Body::Failed(failed)) => {
                return Err(Gone::Refused {
                    code: failed.code,
                    message: failed.message,
                });
            }
            other => return Err(Gone::ServiceFault(format!("answered Attach with {other:?}"))),
        };
        let fault = |error: &dyn std::fmt::Display| Gone::ServiceFault(error.to_string());
        let [submission, completion, ringer, _doorbell] = <[OwnedFd; 4]>::try_from(descriptors)
            .map_err(|descriptors| fault(&format!("{} descriptors with Attached", descriptors.len())))?;
        let region_limits = |seals| MemfdLimits {
            bytes_min: 4096,
            bytes_max: REGION_BYTES_MAX,
            seals,
        };
        let submission = Memfd::verify_foreign(submission, region_limits(SEALS_FIXED_SIZE))
            .map_err(|error| fault(&error))?;
        // What only the service may write must be sealed against everybody else.
        let completion = Memfd::verify_foreign(completion, region_limits(SEALS_READ_ONLY_FOR_OTHERS))
            .map_err(|error| fault(&error))?;
        let region = submission.try_clone().map_err(|error| fault(&error))?;
        let slots = (attached.submission_slots, attached.completion_slots);
        let rings = AppRings::map(submission, slots.0, completion, slots.1).map_err(|error| fault(&error))?;
        Ok(RawApp {
            socket,
            rings,
            region,
            heap,
            ringer: Ringer::from(ringer),
            segments: Vec::new(),
            last_message: String::new(),
            closed: HashSet::new(),
            last_request: 1,
            replies: VecDeque::new(),
        })
    }

    /// Opens a connection to a service, bringing the schema if need be.
    pub fn connect(&mut self, schema: &TargetSchema, service: &str) -> Result<u32, Gone> {
        let body = request::Body::Connect(Connect {
            service: service.to_owned(),
            schema_hash: schema.hash(service).0.to_vec(),
            address: String::new(),
            timeout_ns: 0,
        });
        match self.ask_with_schema(schema, service, body)? {
            reply::Body::Connected(connected) => Ok(connected.connection),
            other => Err(Gone::ServiceFault(format!("answered Connect with {other:?}"))),
        }
    }

    /// Offers a service, bringing the schema if need be.
    pub fn bind(&mut self, schema: &TargetSchema, service: &str) -> Result<(), Gone> {
        self.bind_for(schema, service, 0)
    }

    /// Offers a service for so many calls at once; 0: for as many as the service lets it have.
    pub fn bind_for(
        &mut self,
        schema: &TargetSchema,
        service: &str,
        calls_in_flight_max: u32,
    ) -> Result<(), Gone> {
        let body = request::Body::Bind(Bind {
            service: service.to_owned(),
            schema_hash: schema.hash(service).0.to_vec(),
            calls_in_flight_max,
        });
        self.ask_with_schema(schema, service, body).map(drop)
    }

    fn ask_with_schema(
        &mut self,
        schema: &TargetSchema,
        service: &str,
        body: request::Body,
    ) -> Result<reply::Body, Gone> {
        let reply = self.ask(body.clone(), &[])?;
        if !matches!(reply, reply::Body::SchemaUnknown(_)) {
            return Ok(reply);
        }
        let add = request::Body::AddSchema(AddSchema {
            hash: schema.hash(service).0.to_vec(),
        });
        let memory = Memfd::of_bytes("schema", &schema.descriptor_set).map_err(io::Error::from)?;
        self.ask(add, &[memory.as_fd()])?;
        self.ask(body, &[])
    }

    /// Why requests were refused whose replies nobody has waited for.
    pub fn refusals(&mut self) -> Result<Vec<&str>, Gone> {
        self.receive_packets()?;
        let refusals = self.replies.iter().filter_map(|reply| match &reply.body {
            Some(reply::Body::Failed(failed)) => Some(failed.message.as_str()),
            _ => None,
        });
        Ok(refusals.collect())
    }

    /// Sends a request and waits for its reply.
    pub fn ask(&mut self, body: request::Body, descriptors: &[BorrowedFd<'_>]) -> Result<reply::Body, Gone> {
        self.last_request += 1;
        let id = self.last_request;
        self.socket
            .send(&Request { id, body: Some(body) }.encode_to_vec(), descriptors)?;
        let begin = Instant::now();
        while begin.elapsed() < WAIT_MAX {
            if let Some(at) = self.replies.iter().position(|reply| reply.id == id) {
                return match self.replies.remove(at).and_then(|reply| reply.body) {
                    Some(reply::Body::Failed(failed)) => Err(Gone::Refused {
                        code: failed.code,
                        message: failed.message,
                    }),
                    Some(body) => Ok(body),
                    None => Err(Gone::ServiceFault("an empty reply".to_owned())),
                };
            }
            wait_for(&self.socket, Interest::Readable, Wait::AtMost(100_000_000))?;
            self.receive_packets()?;
        }
        Err(Gone::Silent("to a request"))
    }

    /// Sends a slot through the ring, and waits until it has room.
    pub fn submit<T: IntoBytes + Immutable>(&mut self, descriptor: &T) -> Result<(), Gone> {
        self.submit_while(descriptor, |_| Ok(()))
    }

    /// The same, and gives back what comes meanwhile: a service takes nothing from an app that does not read what it is told.
    pub fn submit_and_reclaim<T: IntoBytes + Immutable>(&mut self, descriptor: &T) -> Result<(), Gone> {
        self.submit_while(descriptor, RawApp::reclaim_all)?;
        self.reclaim_all()
    }

    fn submit_while<T: IntoBytes + Immutable>(
        &mut self,
        descriptor: &T,
        mut meanwhile: impl FnMut(&mut RawApp) -> Result<(), Gone>,
    ) -> Result<(), Gone> {
        let begin = Instant::now();
        while !self.try_submit(descriptor)? {
            if self.is_detached() {
                return Err(Gone::Detached);
            }
            if begin.elapsed() > WAIT_MAX {
                return Err(Gone::Silent("its submission ring stays full"));
            }
            meanwhile(self)?;
            std::thread::sleep(POLL_EVERY);
        }
        Ok(())
    }

    /// Gives back all that has come.
    fn reclaim_all(&mut self) -> Result<(), Gone> {
        let completions = self.completions()?;
        completions
            .iter()
            .try_for_each(|completion| self.reclaim(completion))
    }

    /// Sends a slot through the ring, if that has room. Says whether it had.
    pub fn try_submit<T: IntoBytes + Immutable>(&mut self, descriptor: &T) -> Result<bool, Gone> {
        let mut slot = Slot::default();
        slot.as_mut_bytes().copy_from_slice(descriptor.as_bytes());
        if self.rings.submissions.push(&slot).is_err() {
            return Ok(false);
        }
        self.rings.submissions.publish();
        self.wake_service()?;
        Ok(true)
    }

    /// Wakes the service if it sleeps.
    pub fn wake_service(&mut self) -> Result<(), Gone> {
        if self.rings.service.needed() {
            Ok(self.ringer.ring()?)
        } else {
            Ok(())
        }
    }

    /// All completions that are there. Blocks in them must be given to [`RawApp::reclaim`].
    pub fn completions(&mut self) -> Result<Vec<Completion>, Gone> {
        let mut completions = Vec::new();
        loop {
            match self.rings.completions.pop() {
                Ok(Some(slot)) => completions.extend(Completion::read_from_bytes(slot.as_bytes())),
                Ok(None) => break,
                Err(fault) => return Err(Gone::ServiceFault(fault.to_string())),
            }
        }
        if self.rings.completions.release() {
            self.wake_service()?;
        }
        let closed = completions
            .iter()
            .filter(|completion| completion.kind == completion_kind::CLOSED);
        self.closed.extend(closed.map(|completion| completion.connection));
        // Segments are announced before the completions that use them.
        self.receive_packets()?;
        Ok(completions)
    }

    /// Waits until `look` finds what it looks for in a step of a connection, or the connection ends. Everything is
    /// reclaimed.
    pub fn wait_for<R>(
        &mut self,
        connection: u32,
        what: &'static str,
        mut look: impl FnMut(&RawApp, &Completion) -> Option<R>,
    ) -> Result<R, Gone> {
        let begin = Instant::now();
        loop {
            let mut found = None;
            for completion in self.completions()? {
                let is_step = completion.kind == completion_kind::STEP;
                if is_step && completion.connection == connection && found.is_none() {
                    found = look(self, &completion);
                    self.note_message(&completion);
                }
                self.reclaim(&completion)?;
            }
            if let Some(found) = found {
                return Ok(found);
            }
            if self.closed.contains(&connection) {
                return Err(Gone::Closed);
            }
            if begin.elapsed() > WAIT_MAX {
                return Err(Gone::Silent(what));
            }
            std::thread::sleep(POLL_EVERY);
        }
    }

    /// Takes note of a status message, for findings.
    fn note_message(&mut self, step: &Completion) {
        if !step.parts.intersects(Parts::STATUS | Parts::CANCEL) {
            return;
        }
        let at = u64::from(step.metadata) * 8;
        let mut block = vec![0; step.metadata_bytes as usize];
        for segment in &self.segments {
            if at >= segment.at && at + block.len() as u64 <= segment.at + segment.memory.bytes() {
                // What cannot be read is not told.
                let _ = segment.memory.read_at(at - segment.at, &mut block);
            }
        }
        let message = metadata::entries(&block).find(|(key, _)| *key == STATUS_MESSAGE);
        self.last_message = message
            .map(|(_, text)| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default();
    }

    /// Gives the block of a completion back, if it has one.
    pub fn reclaim(&mut self, completion: &Completion) -> Result<(), Gone> {
        match (completion.kind, completion.block) {
            (completion_kind::STEP, block) if block != 0 => self.submit(&reclaim_batch(&[block])),
            _ => Ok(()),
        }
    }

    /// Whether the service has closed the socket.
    pub fn is_detached(&mut self) -> bool {
        matches!(self.receive_packets(), Err(Gone::Detached))
    }

    /// Writes at an offset of the send heap, in bytes.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        // Past the end nothing is written, which no attack depends on.
        let _ = self.heap.write_at(at, bytes);
    }

    /// A step with these parts and nothing else, which every field may be set of.
    #[must_use]
    pub fn step(connection: u32, call: u64, parts: Parts) -> Submission {
        Submission {
            kind: submission_kind::STEP,
            parts,
            connection,
            call,
            ..Submission::default()
        }
    }

    fn receive_packets(&mut self) -> Result<(), Gone> {
        while let Some((reply, descriptors)) = receive(&self.socket)? {
            let added = match &reply.body {
                Some(reply::Body::SegmentAdded(added)) => added,
                Some(reply::Body::RegionReplaced(replaced)) => {
                    self.take_region(replaced.generation, descriptors)?;
                    continue;
                }
                // Who is at the other end of a connection is of no use to an attacker.
                Some(reply::Body::Peer(_)) => continue,
                _ if reply.id == REGION_MAPPED => continue,
                _ => {
                    self.replies.push_back(reply);
                    continue;
                }
            };
            let limits = MemfdLimits {
                bytes_min: 1,
                bytes_max: REGION_BYTES_MAX,
                seals: SEALS_READ_ONLY_FOR_OTHERS,
            };
            let memory = descriptors
                .into_iter()
                .next()
                .map(|memory| Memfd::verify_foreign(memory, limits));
            match memory {
                Some(Ok(memory)) => {
                    self.segments.push(Segment {
                        id: added.segment,
                        at: u64::from(added.at) * 8,
                        memory,
                    });
                }
                other => return Err(Gone::ServiceFault(format!("a segment came with {other:?}"))),
            }
        }
        Ok(())
    }
}

impl RawApp {
    /// Another process of the service goes on, in memory of its own.
    fn take_region(&mut self, generation: u64, descriptors: Vec<OwnedFd>) -> Result<(), Gone> {
        let fault = |error: &dyn std::fmt::Display| Gone::ServiceFault(error.to_string());
        let memory = descriptors.into_iter().next();
        let memory = memory.ok_or_else(|| fault(&"a region came without its memory"))?;
        let region = self.rings.completion_region();
        let bytes = region.bytes() as u64;
        let limits = MemfdLimits {
            bytes_min: bytes,
            bytes_max: bytes,
            seals: SEALS_READ_ONLY_FOR_OTHERS,
        };
        let memory = Memfd::verify_foreign(memory, limits).map_err(|error| fault(&error))?;
        region.replace(&memory).map_err(|error| fault(&error))?;
        let mapped = Request {
            id: REGION_MAPPED,
            body: Some(request::Body::RegionMapped(RegionMapped { generation })),
        };
        Ok(self.socket.send(&mapped.encode_to_vec(), &[])?)
    }
}

/// A batch of blocks to be reclaimed.
#[must_use]
pub fn reclaim_batch(blocks: &[u32]) -> Batch {
    let mut batch = Batch {
        kind: submission_kind::RECLAIM,
        count: blocks.len() as u8,
        ..Batch::default()
    };
    for (item, block) in batch.items.iter_mut().zip(blocks.iter().take(BATCH_MAX)) {
        *item = u64::from(*block);
    }
    batch
}

/// The window offset, in units of 8 bytes, of a byte of the send heap.
#[must_use]
pub fn window_offset(heap_at: u64) -> u32 {
    SEND_WINDOW + (heap_at / 8) as u32
}

/// Memory as an honest app makes it.
pub fn sealed_memory(name: &str, bytes: u64) -> Result<Memfd, Gone> {
    let memory = Memfd::create(name, bytes).map_err(io::Error::from)?;
    memory.seal(SEALS_FIXED_SIZE).map_err(io::Error::from)?;
    Ok(memory)
}

/// The next packet of a socket, if one is there.
pub fn receive(socket: &PacketSocket) -> Result<Option<(Reply, Vec<OwnedFd>)>, Gone> {
    let packet = match socket.receive(CONTROL_MESSAGE_BYTES_MAX) {
        Ok(Some(packet)) => packet,
        Ok(None) => return Err(Gone::Detached),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        Err(_) => return Err(Gone::Detached),
    };
    let reply = Reply::decode(&packet.bytes[..]).map_err(|error| Gone::ServiceFault(error.to_string()))?;
    Ok(Some((reply, packet.descriptors)))
}

/// The next packet of a socket, if one comes in time.
pub fn receive_within(socket: &PacketSocket, limit: Duration) -> Result<Option<(Reply, Vec<OwnedFd>)>, Gone> {
    if wait_for(socket, Interest::Readable, Wait::AtMost(limit.as_nanos() as u64))? {
        receive(socket)
    } else {
        Ok(None)
    }
}
