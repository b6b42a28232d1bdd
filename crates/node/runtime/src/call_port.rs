//! Who begins calls at a runtime and is no app: what the runtime asks of its port.

use std::io;
use std::os::fd::OwnedFd;

use provost_datapath::{
    BlockContent, BufferPool, FieldWriter, Interest, Nanos, ReceiveHeap, ReceivedBlock, Step,
};
use provost_frontend_grpc::{
    GrpcPort, NodeAnswer, NodeEvent, PortProgress, ServiceBinding, ServiceRefusal, WantedService,
};
use provost_wire::Code;

/// The port of a gRPC client, or of calls that another node passes on. One runtime thread has it.
pub trait CallPort: Send {
    /// Reads what there is, and does what is due.
    fn poll(&mut self, now: Nanos) -> PortProgress;

    /// The poller says that its socket may be ready.
    fn note_ready(&mut self);

    /// The next step for a datapath, and the number of its connection.
    fn next_request(&mut self, buffers: &mut BufferPool) -> Option<(u32, Step)>;

    /// Takes a step of a datapath.
    ///
    /// # Errors
    /// The step, to be given again later.
    fn push_step(&mut self, connection: u32, step: Step) -> Result<(), Step>;

    /// A connection is there that it serves.
    fn accepted(&mut self, connection: u32);

    /// A connection takes no more calls.
    fn going_away(&mut self, connection: u32);

    /// A connection has ended; its calls were ended before.
    fn closed(&mut self, connection: u32, code: Code);

    /// Writes what waits to be sent.
    fn flush(&mut self, now: Nanos);

    /// No more calls are taken; those under way go on.
    fn drain(&mut self, now: Nanos);

    /// All calls end with this.
    fn end(&mut self, refusal: &ServiceRefusal, now: Nanos);

    /// The next service that the control plane is to be asked for.
    fn take_wanted(&mut self) -> Option<WantedService>;

    /// What the control plane found of a service.
    fn answer_service(&mut self, service: &str, answer: Result<ServiceBinding, ServiceRefusal>, now: Nanos);

    /// What the control plane is to be told of calls that the node answers itself. Only gRPC clients make such calls.
    fn take_node_event(&mut self) -> Option<NodeEvent> {
        None
    }

    /// What the control plane says to such a call.
    fn answer_node(&mut self, _answer: NodeAnswer, _now: Nanos) {}

    /// Why it has ended, if it has, and all steps of its calls were taken.
    fn ended(&self) -> Option<&str>;

    /// The socket that is to be watched, if it has one.
    fn interest(&self) -> Option<Interest>;

    /// Whether input is not to be looked for.
    fn is_stopped(&self) -> bool;

    /// When it wants to be polled though nothing comes.
    fn wake_at(&self) -> Option<Nanos>;

    /// Whether there is nothing to do before something comes.
    fn is_idle(&self) -> bool;

    /// Since when it takes no steps.
    fn blocked_since(&self) -> Option<Nanos>;

    /// Bytes of what has come and was not passed on.
    fn receive_heap_bytes(&self) -> u64;

    /// What engines of its datapaths are lent.
    fn lend(&mut self) -> (&mut dyn ReceiveHeap, &mut Vec<u64>);

    /// What another process needs to go on with it. It stays as it is. `named` are the blocks that states of engines name.
    ///
    /// # Errors
    /// No other process can.
    fn save(&self, named: &NamedBlocks) -> io::Result<SavedPort>;
}

/// A port as another process needs it.
pub struct SavedPort {
    /// The state that the port is made of again.
    pub state: Vec<u8>,
    /// Duplicates of its descriptors.
    pub descriptors: Vec<OwnedFd>,
}

/// Blocks of a receive heap that states of engines name, with what each is good for.
pub type NamedBlocks = Vec<(ReceivedBlock, BlockContent)>;

impl CallPort for GrpcPort {
    fn poll(&mut self, now: Nanos) -> PortProgress {
        GrpcPort::poll(self, now)
    }

    fn note_ready(&mut self) {
        GrpcPort::note_ready(self);
    }

    fn next_request(&mut self, buffers: &mut BufferPool) -> Option<(u32, Step)> {
        let request = GrpcPort::next_request(self, buffers)?;
        Some((request.connection, request.step))
    }

    fn push_step(&mut self, connection: u32, step: Step) -> Result<(), Step> {
        GrpcPort::push_step(self, connection, step)
    }

    /// Nothing is offered by a client.
    fn accepted(&mut self, _connection: u32) {}

    fn going_away(&mut self, connection: u32) {
        GrpcPort::going_away(self, connection);
    }

    fn closed(&mut self, connection: u32, code: Code) {
        GrpcPort::closed(self, connection, code);
    }

    fn flush(&mut self, now: Nanos) {
        GrpcPort::flush(self, now);
    }

    fn drain(&mut self, now: Nanos) {
        GrpcPort::drain(self, now);
    }

    fn end(&mut self, refusal: &ServiceRefusal, now: Nanos) {
        GrpcPort::end(self, refusal, now);
    }

    fn take_wanted(&mut self) -> Option<WantedService> {
        GrpcPort::take_wanted(self)
    }

    fn answer_service(&mut self, service: &str, answer: Result<ServiceBinding, ServiceRefusal>, now: Nanos) {
        GrpcPort::answer_service(self, service, answer, now);
    }

    fn take_node_event(&mut self) -> Option<NodeEvent> {
        GrpcPort::take_node_event(self)
    }

    fn answer_node(&mut self, answer: NodeAnswer, now: Nanos) {
        GrpcPort::answer_node(self, answer, now);
    }

    fn ended(&self) -> Option<&str> {
        GrpcPort::ended(self)
    }

    fn interest(&self) -> Option<Interest> {
        GrpcPort::interest(self)
    }

    fn is_stopped(&self) -> bool {
        GrpcPort::is_stopped(self)
    }

    fn wake_at(&self) -> Option<Nanos> {
        GrpcPort::wake_at(self)
    }

    fn is_idle(&self) -> bool {
        GrpcPort::is_idle(self)
    }

    fn blocked_since(&self) -> Option<Nanos> {
        GrpcPort::blocked_since(self)
    }

    fn receive_heap_bytes(&self) -> u64 {
        GrpcPort::receive_heap_bytes(self)
    }

    fn lend(&mut self) -> (&mut dyn ReceiveHeap, &mut Vec<u64>) {
        GrpcPort::lend(self)
    }

    fn save(&self, named: &NamedBlocks) -> io::Result<SavedPort> {
        let mut out = FieldWriter::new();
        GrpcPort::save(self, named, &mut out).map_err(io::Error::other)?;
        let socket = self.carried_socket().map(|socket| socket.try_clone_to_owned());
        Ok(SavedPort {
            state: out.bytes,
            descriptors: socket.into_iter().collect::<io::Result<_>>()?,
        })
    }
}
