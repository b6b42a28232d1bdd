//! An app's send heap, as the service sees it: memory that it reads and never trusts.

use std::num::NonZeroUsize;
use std::sync::Arc;

use provost_datapath::{ForeignBytes, Keepalive, PrivateBytes};
use provost_marshal::ForeignRegion;
use provost_shm::{Access, Mapping, Memfd, ShmError};
use provost_wire::limits::SEND_WINDOW;

/// An app's send heap, mapped for reading for as long as a copy of this or a message in it lives.
#[derive(Clone)]
pub struct SendHeap {
    region: ForeignRegion,
    address: NonZeroUsize,
    bytes: u64,
    mapping: Arc<dyn Keepalive>,
    memory: Option<Arc<Memfd>>,
    share: Arc<PrivateBytes>,
}

struct MappedHeap {
    _mapping: Mapping,
}

impl Keepalive for MappedHeap {}

impl SendHeap {
    /// The heap in this mapping. `None` for a mapping at address 0, which no kernel gives.
    #[must_use]
    pub fn new(mapping: Mapping) -> Option<SendHeap> {
        let address = NonZeroUsize::new(mapping.address().expose_provenance())?;
        let bytes = mapping.bytes() as u64;
        // SAFETY: a mapping is page-aligned and readable over its whole length; it lives as long as the keepalive,
        // which stays beside the region here and in everything that a frontend makes of it.
        let region = unsafe { ForeignRegion::new(address, bytes, SEND_WINDOW) };
        Some(SendHeap {
            region,
            address,
            bytes,
            mapping: Arc::new(MappedHeap { _mapping: mapping }),
            memory: None,
            share: PrivateBytes::of_attachment(&PrivateBytes::of_node()),
        })
    }

    /// The same heap, of an attachment that counts what its messages take of the service's memory in the share of this user.
    #[must_use]
    pub fn counted_in(self, user: &Arc<PrivateBytes>) -> SendHeap {
        SendHeap {
            share: PrivateBytes::of_attachment(user),
            ..self
        }
    }

    /// What the attachment's messages take of the service's memory.
    #[must_use]
    pub fn share(&self) -> &Arc<PrivateBytes> {
        &self.share
    }

    /// The heap in this memory, which is kept, so that it can be handed to another process of the service.
    pub fn map(memory: Memfd) -> Result<SendHeap, ShmError> {
        let mapping = Mapping::new(&memory, Access::ReadOnly)?;
        let size = ShmError::Size {
            bytes: 0,
            least: 1,
            most: u64::MAX,
        };
        let heap = SendHeap::new(mapping).ok_or(size)?;
        Ok(SendHeap {
            memory: Some(Arc::new(memory)),
            ..heap
        })
    }

    /// Its memory, if it was given by [`SendHeap::map`].
    #[must_use]
    pub fn memory(&self) -> Option<&Memfd> {
        self.memory.as_deref()
    }

    /// Its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where in the heap a range begins, in bytes, if it lies there.
    #[must_use]
    pub fn offset_of(&self, range: &ForeignBytes) -> Option<u64> {
        let offset = range.address().get().checked_sub(self.address.get())? as u64;
        (offset + u64::from(range.len()) <= self.bytes).then_some(offset)
    }

    /// The range of so many bytes from an offset on, if it lies in the heap.
    #[must_use]
    pub fn range(&self, offset: u64, bytes: u32) -> Option<ForeignBytes> {
        let end = offset.checked_add(u64::from(bytes))?;
        let address = self.address.checked_add(usize::try_from(offset).ok()?)?;
        (end <= self.bytes).then(|| ForeignBytes::new(address, bytes, Arc::clone(&self.mapping)))
    }

    pub(crate) fn region(&self) -> &ForeignRegion {
        &self.region
    }

    pub(crate) fn keepalive(&self) -> &Arc<dyn Keepalive> {
        &self.mapping
    }
}
