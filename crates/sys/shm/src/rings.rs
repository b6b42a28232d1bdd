//! The two control regions of [`provost_wire::region`], with the ends of their rings and wake words on each side.

use std::sync::Arc;

use provost_ring::{AtomicU32, Bell, Consumer, Producer, RingMemory, Sleeper};
use provost_wire::limits::{RING_SLOTS_MAX, RING_SLOTS_MIN};
use provost_wire::region::{HEAD_OFFSET, SLOTS_OFFSET, TAIL_OFFSET, WAKE_OFFSET, region_bytes};

use crate::fork::KeptFromChildren;
use crate::{
    Access, Mapping, Memfd, MemfdLimits, OwnedFd, SEALS_FIXED_SIZE, SEALS_READ_ONLY_FOR_OTHERS, ShmError,
};

#[derive(Debug)]
pub struct AppRings {
    /// Submissions to the service.
    pub submissions: Producer,
    /// Completions from the service.
    pub completions: Consumer,
    /// Says that this app sleeps.
    pub sleeper: Sleeper,
    /// Says whether the service has to be woken.
    pub service: Bell,
    /// A child of this process must neither submit nor take completions.
    _kept: [KeptFromChildren; 2],
    // Dropped last: the ends above point into them.
    _submission: Mapping,
    completion: Arc<Mapping>,
}

/// A service's ends, for one app.
#[derive(Debug)]
pub struct ServiceRings {
    /// Submissions from the app.
    pub submissions: Consumer,
    /// Completions to the app.
    pub completions: Producer,
    /// Says that the service sleeps.
    pub sleeper: Sleeper,
    /// Says whether the app has to be woken.
    pub app: Bell,
    // Dropped last: the ends above point into them.
    _regions: [Mapping; 2],
    memory: [Memfd; 2],
}

/// How far a service has come in the rings of an app: what another thread or version needs to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingIndices {
    pub submission_head: u32,
    pub completion_tail: u32,
}

impl AppRings {
    /// Maps the regions that a service sent, and takes the app's ends.
    pub fn map(
        submission: Memfd,
        submission_slots: u32,
        completion: Memfd,
        completion_slots: u32,
    ) -> Result<AppRings, ShmError> {
        let submission_map = map_region(&submission, submission_slots, Access::ReadWrite)?;
        let completion_map = map_region(&completion, completion_slots, Access::ReadOnly)?;
        let kept = [
            KeptFromChildren::new(submission_map.address(), submission_map.bytes())?,
            KeptFromChildren::new(completion_map.address(), completion_map.bytes())?,
        ];
        let (submission, completion) = (submission_map.address(), completion_map.address());
        let outgoing = ring(submission, submission_slots, completion);
        let incoming = ring(completion, completion_slots, submission);
        // SAFETY: `map_region` has checked that the regions hold the words and slots; they stay mapped as long as
        // the ends, which are dropped first; nobody else in this program has their addresses. The app writes to the
        // submission region only: its tail, its slots, the head of completions and its wake word.
        unsafe {
            Ok(AppRings {
                submissions: Producer::new(outgoing),
                completions: Consumer::new(incoming),
                sleeper: Sleeper::new(word(submission, WAKE_OFFSET)),
                service: Bell::new(word(completion, WAKE_OFFSET)),
                _kept: kept,
                _submission: submission_map,
                completion: Arc::new(completion_map),
            })
        }
    }

    /// The completion region, to be replaced by another one of the same size and content ([`Mapping::replace`]) when
    /// the service says so. It stays mapped for as long as the rings at least.
    #[must_use]
    pub fn completion_region(&self) -> &Arc<Mapping> {
        &self.completion
    }

    /// As [`AppRings::map`], from descriptors as they came with `Attached`.
    pub fn from_descriptors(
        submission: OwnedFd,
        submission_slots: u32,
        completion: OwnedFd,
        completion_slots: u32,
    ) -> Result<AppRings, ShmError> {
        let submission = Memfd::verify_foreign(submission, region_limits())?;
        let completion = Memfd::verify_foreign(completion, region_limits())?;
        Self::map(submission, submission_slots, completion, completion_slots)
    }
}

impl ServiceRings {
    /// Makes both regions for a new app, sealed so that the app can write to the submission region only. Returned
    /// beside the rings, in this order: the submission region, the completion region.
    pub fn create(
        submission_slots: u32,
        completion_slots: u32,
    ) -> Result<(ServiceRings, [Memfd; 2]), ShmError> {
        check_slots(submission_slots)?;
        check_slots(completion_slots)?;
        let submission = Memfd::create("provost-submissions", region_bytes(submission_slots) as u64)?;
        submission.seal(SEALS_FIXED_SIZE)?;
        let completion = Memfd::create("provost-completions", region_bytes(completion_slots) as u64)?;
        let submission_map = map_region(&submission, submission_slots, Access::ReadOnly)?;
        let completion_map = map_region(&completion, completion_slots, Access::ReadWrite)?;
        completion.seal(SEALS_READ_ONLY_FOR_OTHERS)?;
        let copies = [submission.try_clone()?, completion.try_clone()?];
        let memory = [submission, completion];
        let maps = [submission_map, completion_map];
        let rings = Self::over(
            maps,
            memory,
            (submission_slots, completion_slots),
            RingIndices::default(),
        );
        Ok((rings, copies))
    }

    /// Goes on where another process of the same service stopped, with its memory in the order of
    /// [`ServiceRings::memory`].
    ///
    /// Nobody can map the old completion region for writing any more, so the rings get a new one with the same content.
    /// Nothing that the app sees is changed by that: it still looks at the old region, until it is given the new one
    /// ([`ServiceRings::memory`]) and has mapped it over the old.
    pub fn resume(
        memory: [Memfd; 2],
        submission_slots: u32,
        completion_slots: u32,
        at: RingIndices,
    ) -> Result<ServiceRings, ShmError> {
        let [submission, old] = memory;
        let submission_map = map_region(&submission, submission_slots, Access::ReadOnly)?;
        check_slots(completion_slots)?;
        let bytes = region_bytes(completion_slots);
        let mut content = vec![0; bytes];
        let read = old.read_at(0, &mut content)?;
        if read < bytes {
            let (bytes, least) = (read as u64, bytes as u64);
            let most = u64::MAX;
            return Err(ShmError::Size { bytes, least, most });
        }
        let completion = Memfd::create("provost-completions", bytes as u64)?;
        completion.write_at(0, &content)?;
        let completion_map = map_region(&completion, completion_slots, Access::ReadWrite)?;
        completion.seal(SEALS_READ_ONLY_FOR_OTHERS)?;
        let maps = [submission_map, completion_map];
        let memory = [submission, completion];
        Ok(Self::over(maps, memory, (submission_slots, completion_slots), at))
    }

    /// The submission region and the completion region.
    #[must_use]
    pub fn memory(&self) -> &[Memfd; 2] {
        &self.memory
    }

    /// How far this side has come.
    #[must_use]
    pub fn indices(&self) -> RingIndices {
        RingIndices {
            submission_head: self.submissions.head(),
            completion_tail: self.completions.tail(),
        }
    }

    fn over(maps: [Mapping; 2], memory: [Memfd; 2], slots: (u32, u32), at: RingIndices) -> ServiceRings {
        let [submission_map, completion_map] = maps;
        let (submission, completion) = (submission_map.address(), completion_map.address());
        let incoming = ring(submission, slots.0, completion);
        let outgoing = ring(completion, slots.1, submission);
        // SAFETY: `map_region` has checked that the regions hold the words and slots; they stay mapped as long as
        // the ends, which are dropped first; nobody else in this program has their addresses. The service writes
        // to the completion region only: its tail, its slots, the head of submissions and its wake word.
        unsafe {
            ServiceRings {
                submissions: Consumer::resume(incoming, at.submission_head),
                completions: Producer::resume(outgoing, at.completion_tail),
                sleeper: Sleeper::new(word(completion, WAKE_OFFSET)),
                app: Bell::new(word(submission, WAKE_OFFSET)),
                _regions: [submission_map, completion_map],
                memory,
            }
        }
    }
}

/// The ring whose tail and slots are in region `own` and whose head is in region `other`.
fn ring(own: *mut u8, slots: u32, other: *mut u8) -> RingMemory {
    RingMemory {
        slots: own.wrapping_add(SLOTS_OFFSET).cast(),
        capacity: slots,
        tail: word(own, TAIL_OFFSET),
        head: word(other, HEAD_OFFSET),
    }
}

fn word(region: *mut u8, offset: usize) -> *const AtomicU32 {
    region.wrapping_add(offset).cast()
}

fn map_region(memfd: &Memfd, slots: u32, access: Access) -> Result<Mapping, ShmError> {
    check_slots(slots)?;
    let least = region_bytes(slots) as u64;
    if memfd.bytes() < least {
        return Err(ShmError::Size {
            bytes: memfd.bytes(),
            least,
            most: u64::MAX,
        });
    }
    Mapping::new(memfd, access)
}

fn check_slots(slots: u32) -> Result<(), ShmError> {
    let (least, most) = (RING_SLOTS_MIN, RING_SLOTS_MAX);
    if slots.is_power_of_two() && (least..=most).contains(&slots) {
        Ok(())
    } else {
        Err(ShmError::RingSlots { slots, least, most })
    }
}

fn region_limits() -> MemfdLimits {
    let bytes_max = (region_bytes(RING_SLOTS_MAX) as u64).next_multiple_of(rustix::param::page_size() as u64);
    MemfdLimits {
        bytes_min: 1,
        bytes_max,
        seals: SEALS_FIXED_SIZE,
    }
}
