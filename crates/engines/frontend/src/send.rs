//! An app's send heap, as the service sees it: memory that it reads and never trusts.

use std::num::NonZeroUsize;
use std::sync::Arc;

use provost_datapath::Keepalive;
use provost_marshal::ForeignRegion;
use provost_shm::Mapping;
use provost_wire::limits::SEND_WINDOW;

/// An app's send heap, mapped for reading for as long as a copy of this or a message in it lives.
#[derive(Clone)]
pub struct SendHeap {
    region: ForeignRegion,
    mapping: Arc<dyn Keepalive>,
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
        // SAFETY: a mapping is page-aligned and readable over its whole length; it lives as long as the keepalive,
        // which stays beside the region here and in everything that a frontend makes of it.
        let region = unsafe { ForeignRegion::new(address, mapping.bytes() as u64, SEND_WINDOW) };
        Some(SendHeap {
            region,
            mapping: Arc::new(MappedHeap { _mapping: mapping }),
        })
    }

    pub(crate) fn region(&self) -> &ForeignRegion {
        &self.region
    }

    pub(crate) fn keepalive(&self) -> &Arc<dyn Keepalive> {
        &self.mapping
    }
}
