//! Messages out of the send heap and into it.

use std::any::TypeId;
use std::num::NonZeroUsize;

use provost_marshal::{ForeignRegion, GatherError, Tables};
use provost_schema::{MessageId, Schema};
use provost_wire::limits::{MESSAGE_BYTES_MAX, SEND_WINDOW};

use crate::descriptor::ServiceDescriptor;
use crate::link::OutgoingMessage;
use crate::message::Message;
use crate::received::Received;
use crate::shared::heap;
use crate::status::Status;

/// Which of a method's messages is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What the client sends.
    Request = 0,
    /// What the server sends.
    Response = 1,
}

/// Writes and reads the messages of a service, by tables made from its schema.
#[derive(Debug)]
pub struct Codec {
    tables: Tables,
    methods: Vec<Method>,
    heap: ForeignRegion,
}

#[derive(Debug)]
struct Method {
    messages: [MessageId; 2],
    types: [TypeId; 2],
}

/// A message on its way out, with the metadata beside it. Dropping it frees both.
pub struct Outbound {
    outgoing: OutgoingMessage,
}

/// A message that has arrived, in the send heap, checked. Dropping it frees it.
#[derive(Debug)]
pub struct Inbound {
    block: u32,
    /// What it was validated as.
    is: TypeId,
}

impl Codec {
    /// Makes the tables of a service.
    ///
    /// # Errors
    /// If the generated code is not of one piece.
    pub fn new(service: &'static ServiceDescriptor) -> Result<Codec, Status> {
        let broken = |error: &dyn std::fmt::Display| {
            Status::internal(format!("the generated code of {}: {error}", service.name))
        };
        let schema =
            Schema::from_descriptor_set(service.file_descriptor_set).map_err(|error| broken(&error))?;
        let tables = Tables::compile(&schema).map_err(|error| broken(&error))?;
        let described = schema
            .service(service.name)
            .filter(|described| described.methods.len() == service.methods.len())
            .ok_or_else(|| broken(&"its schema is of another service"))?;
        let methods = described.methods.iter().zip(service.methods);
        let methods = methods.map(|(described, method)| Method {
            messages: [described.input, described.output],
            types: method.message_types(),
        });
        Ok(Codec {
            tables,
            methods: methods.collect(),
            heap: send_heap()?,
        })
    }

    /// Writes a message to the beginning of `out`, which has room for [`Outbound::message_bytes_max`]. Its length.
    ///
    /// # Errors
    /// If there is no such method, or no room.
    pub fn write(
        &self,
        method: u16,
        side: Side,
        message: &Outbound,
        out: &mut [u8],
    ) -> Result<usize, Status> {
        let method = self.method(method)?;
        let root = message.outgoing.root();
        let written = self
            .tables
            .gather_to(method.messages[side as usize], root, &self.heap, out);
        match written {
            Ok(bytes) => Ok(bytes as usize),
            Err(error) => Err(unsent(&error)),
        }
    }

    /// Copies a message that a peer sent into the send heap, and checks it there.
    ///
    /// # Errors
    /// If it is malformed, or there is no room.
    pub fn read(&self, method: u16, side: Side, message: &[u8]) -> Result<Inbound, Status> {
        let method = self.method(method)?;
        if message.len() > MESSAGE_BYTES_MAX as usize {
            return Err(Status::resource_exhausted("the peer's message is too long"));
        }
        // At least one byte, so that there is a block in any case.
        let block = heap::allocate(message.len().max(1))?;
        let inbound = Inbound {
            block,
            is: method.types[side as usize],
        };
        let place = heap::address(block);
        // SAFETY: the block is new, has at least as many bytes, and is no part of what was received. The slice is the
        // only way to it until this returns.
        let place = unsafe {
            std::ptr::copy_nonoverlapping(message.as_ptr(), place, message.len());
            std::slice::from_raw_parts_mut(place, message.len())
        };
        let checked = self
            .tables
            .validate_and_relocate(method.messages[side as usize], place, block);
        match checked {
            Ok(()) => Ok(inbound),
            Err(error) => Err(Status::internal(format!(
                "the peer's message is malformed: {error}"
            ))),
        }
    }

    fn method(&self, method: u16) -> Result<&Method, Status> {
        self.methods
            .get(usize::from(method))
            .ok_or_else(|| Status::unimplemented("the service has no such method"))
    }
}

#[cold]
fn unsent(error: &GatherError) -> Status {
    Status::resource_exhausted(format!("the message cannot be sent: {error}"))
}

fn send_heap() -> Result<ForeignRegion, Status> {
    let bytes = heap::window().send_bytes();
    let address = NonZeroUsize::new(heap::address(SEND_WINDOW).expose_provenance())
        .ok_or_else(|| Status::internal("the send heap has no address"))?;
    // SAFETY: the send heap begins on a page and stays mapped, for reading and writing, until the process ends. What
    // `Codec` copies of it is messages that an `Outbound` keeps, so no thread of this process writes to them.
    Ok(unsafe { ForeignRegion::new(address, bytes, SEND_WINDOW) })
}

impl Outbound {
    pub(crate) fn new(outgoing: OutgoingMessage) -> Outbound {
        Outbound { outgoing }
    }

    /// The metadata block beside the message.
    #[must_use]
    pub fn metadata(&self) -> &[u8] {
        self.outgoing.metadata_block()
    }

    /// Whether there is a message.
    #[must_use]
    pub fn has_message(&self) -> bool {
        self.outgoing.root() != 0
    }

    /// What the message takes at most when it is written, in bytes.
    ///
    /// # Errors
    /// If it is longer than any message may be.
    pub fn message_bytes_max(&self) -> Result<usize, Status> {
        match self.outgoing.window_bytes() {
            bytes if bytes <= MESSAGE_BYTES_MAX => Ok((bytes as usize).next_multiple_of(8)),
            bytes => Err(Status::resource_exhausted(format!(
                "a message of {bytes} bytes: at most {MESSAGE_BYTES_MAX} are sent"
            ))),
        }
    }
}

impl std::fmt::Debug for Outbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbound")
            .field("has_message", &self.has_message())
            .field("metadata_bytes", &self.metadata().len())
            .finish()
    }
}

impl Inbound {
    /// The message, if it is one of these.
    pub(crate) fn received<T: Message>(self) -> Result<Received<T>, Status> {
        if self.is != TypeId::of::<T>() {
            return Err(Status::internal(format!("what arrived is no {}", T::FULL_NAME)));
        }
        let block = self.block;
        std::mem::forget(self);
        // SAFETY: the message was validated, and relocated to the block at whose beginning it is, by the tables of the
        // method whose message has this type (contract of `ServiceDescriptor::new`); the block was ours alone.
        Ok(unsafe { Received::in_send_heap(block) })
    }
}

impl Drop for Inbound {
    fn drop(&mut self) {
        // SAFETY: the block was allocated for this message and nobody else has it.
        unsafe { heap::free(self.block) };
    }
}
