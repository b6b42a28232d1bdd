//! An app's port, handed from one process of the service to the next: how far it has come in the rings, which blocks of
//! the receive heap are in use, and the descriptors of all that memory.
//!
//! Form of the state, version 1: see [`AppPort::save`]. The descriptors beside it ([`AppPort::descriptors`]), in order:
//! the submission region, the completion region, the doorbell that wakes the app, and each segment in the state's order.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use provost_datapath::{
    BlockContent, FieldReader, FieldWriter, NotSaved, ReceiveHeap, ReceivedBlock, RestoreError,
};
use provost_shm::{
    Access, Mapping, Memfd, MemfdLimits, RingIndices, SEALS_FIXED_SIZE, ServiceRings, ShmError,
};
use provost_wire::limits::REGION_BYTES_MAX;

use crate::inherited::{INHERITED_SEGMENTS_MAX, InheritedBlock, InheritedSegment};
use crate::port::{SENT_WAITING_MAX, Unseen};
use crate::receive::{SEGMENTS_MAX, UNIT};
use crate::{AppPort, AppReceiveHeap, ReceiveLimits, SegmentSource};

/// What errors call the state.
const KIND: &str = "app port";
/// Version of the state's form.
const VERSION: u8 = 1;
/// Descriptors before those of the segments.
const FIXED_DESCRIPTORS: usize = 3;
/// Blocks of one segment: as many as it has units of two, and no more than fit its largest size.
const BLOCKS_MAX: usize = (REGION_BYTES_MAX / UNIT / 2) as usize;
/// Tokens: those that wait, and those of one more round of engines.
const TOKENS_MAX: usize = 4 * SENT_WAITING_MAX;

mod block {
    pub(super) const PUBLISHED: u8 = 0;
    pub(super) const FIXED: u8 = 1;
    pub(super) const MOVABLE: u8 = 2;
}

/// Blocks of an app's receive heap that states of its engines name: what [`provost_datapath::Saver::block`] noted.
#[derive(Debug, Default)]
pub struct SavedBlocks {
    by_place: HashMap<u32, TransferredBlocks>,
    /// The copies of those of them that may have to be written, once there are.
    copies: HashMap<u32, ReceivedBlock>,
}

#[derive(Clone, Copy, Debug)]
struct TransferredBlocks {
    bytes: u32,
    content: BlockContent,
}

impl SavedBlocks {
    pub fn note(&mut self, block: &ReceivedBlock, content: BlockContent) {
        let bytes = block.bytes;
        self.by_place
            .insert(block.at, TransferredBlocks { bytes, content });
    }
}

/// What a port is made of beside its state and its descriptors.
pub struct PortSource {
    /// Makes segments. It holds back what it has to tell the app until it is asked to show the new region.
    pub segments: Box<dyn SegmentSource>,
    /// How many bytes all segments may have.
    pub bytes_max: u64,
}

/// Why a port could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum PortRestoreError {
    /// Its state is not usable.
    #[error(transparent)]
    State(#[from] RestoreError),
    /// Its memory is not usable.
    #[error("{what}: {source}")]
    Memory {
        what: &'static str,
        /// What is wrong with it.
        source: ShmError,
    },
    /// There are fewer or more descriptors than the state names.
    #[error("app port: {found} descriptors came beside the state, which names {expected}")]
    Descriptors {
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// The app's window, or its limit, leaves no room for copies of what is coming in.
    #[error("app port: {0}")]
    Room(NotSaved),
}

impl AppPort {
    /// Makes the rings say what was done: everything read is released, everything pushed is published.
    pub fn settle(&mut self) -> Result<(), crate::AppFault> {
        self.release();
        self.flush()
    }

    /// Appends the port to a state. It must have been settled; it stays as it is. `named` are the blocks that the
    /// states of its engines name: another block that the app does not hold is in nobody's hands, and left out.
    pub fn save(&self, named: &SavedBlocks, out: &mut FieldWriter) {
        out.u8(VERSION);
        let RingIndices {
            submission_head,
            completion_tail,
        } = self.rings.indices();
        out.u32(self.rings.submissions.capacity());
        out.u32(self.rings.completions.capacity());
        out.u32(submission_head);
        out.u32(completion_tail);
        out.u64(self.generation);
        out.u64(self.full_since.unwrap_or(0));
        out.u64(self.retired.unwrap_or(0));
        out.count(self.sent.len());
        self.sent.iter().for_each(|token| out.u64(*token));
        self.heap.save(named, out);
    }

    /// The descriptors that belong to the state.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let [submission, completion] = self.rings.memory();
        let mut descriptors = vec![submission.as_fd(), completion.as_fd(), self.app_doorbell.as_fd()];
        descriptors.extend(self.heap.memfds().map(AsFd::as_fd));
        descriptors
    }

    /// The port of another process, to go on with. Nothing that the app can see is changed or made until the port is
    /// used. Then the app is shown a new completion region, and sees no completion before it has mapped that.
    pub fn restore(
        state: &[u8],
        descriptors: Vec<OwnedFd>,
        source: PortSource,
    ) -> Result<AppPort, PortRestoreError> {
        let mut fields = FieldReader::new(KIND, state);
        let version = fields.u8()?;
        if version != VERSION {
            return Err(fields.unknown_version(version.into(), VERSION.into()).into());
        }
        let (submission_slots, completion_slots) = (fields.u32()?, fields.u32()?);
        let indices = RingIndices {
            submission_head: fields.u32()?,
            completion_tail: fields.u32()?,
        };
        let generation = fields.u64()?;
        let full_since = Some(fields.u64()?).filter(|since| *since != 0);
        let retired = Some(fields.u64()?).filter(|segment| *segment != 0);
        let tokens = fields.count(TOKENS_MAX)?;
        let sent = (0..tokens).map(|_| fields.u64()).collect::<Result<Vec<_>, _>>()?;

        let mut descriptors = descriptors.into_iter();
        let found = descriptors.len();
        let (Some(submission), Some(completion), Some(ringer)) =
            (descriptors.next(), descriptors.next(), descriptors.next())
        else {
            let expected = FIXED_DESCRIPTORS;
            return Err(PortRestoreError::Descriptors { found, expected });
        };
        let memory = [
            verify(submission, "the submission region")?,
            verify(completion, "the completion region")?,
        ];
        let rings = ServiceRings::resume(memory, submission_slots, completion_slots, indices)
            .map_err(memory_error("the rings"))?;
        let mut heap = AppReceiveHeap::restore(&mut fields, descriptors.collect(), source)?;
        fields.end()?;
        heap.copy_movable().map_err(PortRestoreError::Room)?;
        let mut port = AppPort::new(rings, ringer.into(), heap);
        port.generation = generation.wrapping_add(1);
        port.unseen = Some(Unseen::default());
        port.blocked = full_since.is_some();
        port.full_since = full_since;
        port.retired = retired;
        port.sent = sent;
        Ok(port)
    }

    /// The block to use for one that a state names: its copy in fresh memory if it may have to be written, else itself.
    pub fn claim(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        self.heap.claim(saved)
    }

    /// Every state has been restored: blocks that none of them has claimed are in nobody's hands.
    pub fn end_claims(&mut self) {
        for (at, named) in std::mem::take(&mut self.heap.claims.by_place) {
            let bytes = named.bytes;
            match self.heap.claims.copies.remove(&at) {
                Some(copy) => self.heap.free(copy),
                None => self.heap.inherited.free(&ReceivedBlock { at, bytes }),
            }
        }
    }
}

impl AppReceiveHeap {
    fn save(&self, named: &SavedBlocks, out: &mut FieldWriter) {
        out.u32(self.limits.window_at);
        out.u64(self.limits.window_bytes);
        out.u64(self.segments_made);
        out.u64(self.next_place);
        out.count(self.segments.len() + self.inherited.segments.len());
        for segment in &self.segments {
            save_place(segment.id, &segment.place, out);
            let published = segment.published_blocks();
            let blocks = published.map(|(at, bytes)| (at, bytes, block::PUBLISHED, 0));
            save_blocks(blocks.chain(named.inside(&segment.place)).collect(), out);
        }
        for segment in &self.inherited.segments {
            save_place(segment.id, &segment.place, out);
            let held = segment.blocks.iter().filter(|(_, block)| block.is_published);
            let blocks = held.map(|(at, block)| (*at, block.bytes, block::PUBLISHED, 0));
            save_blocks(blocks.chain(named.inside(&segment.place)).collect(), out);
        }
    }

    fn memfds(&self) -> impl Iterator<Item = &Memfd> {
        let own = self.segments.iter().map(|segment| &segment.memory.memfd);
        own.chain(self.inherited.segments.iter().map(|segment| &segment.memfd))
    }

    fn restore(
        fields: &mut FieldReader<'_>,
        descriptors: Vec<OwnedFd>,
        source: PortSource,
    ) -> Result<AppReceiveHeap, PortRestoreError> {
        let limits = ReceiveLimits {
            window_at: fields.u32()?,
            window_bytes: fields.u64()?,
            bytes_max: source.bytes_max,
        };
        let mut heap = AppReceiveHeap::new(source.segments, limits);
        heap.segments_made = fields.u64()?;
        heap.next_place = fields.u64()?;
        if !heap.next_place.is_multiple_of(UNIT) {
            return Err(fields.damaged("the next segment's place is within a unit").into());
        }
        let count = fields.count(INHERITED_SEGMENTS_MAX + SEGMENTS_MAX)?;
        if count != descriptors.len() {
            let (found, expected) = (FIXED_DESCRIPTORS + descriptors.len(), FIXED_DESCRIPTORS + count);
            return Err(PortRestoreError::Descriptors { found, expected });
        }
        for descriptor in descriptors {
            let memfd = verify(descriptor, "a segment of the receive heap")?;
            let segment = restore_segment(fields, memfd, &mut heap.claims)?;
            let place = &segment.place;
            let overlaps = |other: Range<u64>| other.start < place.end && place.start < other.end;
            if heap.inherited.places().any(overlaps) {
                return Err(fields.damaged("two segments have a place in common").into());
            }
            heap.inherited.add(segment);
        }
        Ok(heap)
    }

    fn claim(&mut self, saved: ReceivedBlock) -> Result<ReceivedBlock, NotSaved> {
        let at = saved.at;
        let named = self.claims.by_place.get(&at).copied();
        named
            .filter(|named| named.bytes == saved.bytes)
            .ok_or(NotSaved::Block { at })?;
        self.claims.by_place.remove(&at);
        Ok(self.claims.copies.remove(&at).unwrap_or(saved))
    }

    /// Copies the blocks to fresh memory that may have to be written. It is done before any state is restored: an app that
    /// has no room for them is left out before anything depends on it.
    fn copy_movable(&mut self) -> Result<(), NotSaved> {
        let movable = self.claims.by_place.iter();
        let movable = movable.filter_map(|(at, named)| match named.content {
            BlockContent::Movable { filled } => Some((*at, named.bytes, filled)),
            BlockContent::Fixed => None,
        });
        for (at, bytes, filled) in movable.collect::<Vec<_>>() {
            let copy = self.copy_of(&ReceivedBlock { at, bytes }, filled)?;
            self.claims.copies.insert(at, copy);
        }
        Ok(())
    }

    fn copy_of(&mut self, old: &ReceivedBlock, filled: u32) -> Result<ReceivedBlock, NotSaved> {
        let at = old.at;
        let content = self.inherited.bytes(old);
        let content = content
            .get(..filled as usize)
            .ok_or(NotSaved::Block { at })?
            .to_vec();
        self.inherited.free(old);
        let mut fresh = self.allocate(old.bytes).map_err(|_| NotSaved::Full { at })?;
        if let Some(place) = self.bytes_mut(&mut fresh).get_mut(..content.len()) {
            place.copy_from_slice(&content);
        }
        Ok(fresh)
    }
}

impl SavedBlocks {
    fn inside<'a>(
        &'a self,
        place: &'a std::ops::Range<u64>,
    ) -> impl Iterator<Item = (u32, u32, u8, u32)> + 'a {
        let inside = self
            .by_place
            .iter()
            .filter(|(at, _)| place.contains(&(u64::from(**at) * UNIT)));
        inside.map(|(at, named)| match named.content {
            BlockContent::Fixed => (*at, named.bytes, block::FIXED, 0),
            BlockContent::Movable { filled } => (*at, named.bytes, block::MOVABLE, filled),
        })
    }
}

fn save_place(id: u64, place: &std::ops::Range<u64>, out: &mut FieldWriter) {
    out.u64(id);
    out.u64(place.start);
    out.u64(place.end - place.start);
}

fn save_blocks(blocks: Vec<(u32, u32, u8, u32)>, out: &mut FieldWriter) {
    out.count(blocks.len());
    for (at, bytes, state, filled) in blocks {
        out.u32(at);
        out.u32(bytes);
        out.u8(state);
        out.u32(filled);
    }
}

fn restore_segment(
    fields: &mut FieldReader<'_>,
    memfd: Memfd,
    claims: &mut SavedBlocks,
) -> Result<InheritedSegment, PortRestoreError> {
    let (id, start, length) = (fields.u64()?, fields.u64()?, fields.u64()?);
    let end = start
        .checked_add(length)
        .ok_or_else(|| fields.damaged("a segment past the end of all addresses"))?;
    if !start.is_multiple_of(UNIT) || !length.is_multiple_of(UNIT) {
        return Err(fields
            .damaged("a segment that begins or ends within a unit")
            .into());
    }
    let place = start..end;
    if memfd.bytes() < length {
        let reason = format!("a segment of {length} bytes in memory of {}", memfd.bytes());
        return Err(fields.damaged(reason).into());
    }
    let mut blocks = HashMap::new();
    for _ in 0..fields.count(BLOCKS_MAX)? {
        let (at, bytes) = (fields.u32()?, fields.u32()?);
        let (state, filled) = (fields.u8()?, fields.u32()?);
        let from = u64::from(at) * UNIT;
        if !place.contains(&from) || from + u64::from(bytes) > end || filled > bytes {
            let reason = format!("block {at} is outside of its segment");
            return Err(fields.damaged(reason).into());
        }
        let content = match state {
            block::PUBLISHED => None,
            block::FIXED => Some(BlockContent::Fixed),
            block::MOVABLE => Some(BlockContent::Movable { filled }),
            other => {
                return Err(fields
                    .damaged(format!("a block in the unknown state {other}"))
                    .into());
            }
        };
        if let Some(content) = content {
            claims.note(&ReceivedBlock { at, bytes }, content);
        }
        let is_published = content.is_none();
        let earlier = blocks.insert(at, InheritedBlock { bytes, is_published });
        if earlier.is_some() {
            return Err(fields.damaged(format!("block {at} is there twice")).into());
        }
    }
    let memory = Mapping::new(&memfd, Access::ReadOnly).map_err(memory_error("a segment"))?;
    Ok(InheritedSegment {
        id,
        place,
        memfd,
        memory,
        blocks,
    })
}

fn verify(descriptor: OwnedFd, what: &'static str) -> Result<Memfd, PortRestoreError> {
    let limits = MemfdLimits {
        bytes_min: 1,
        bytes_max: REGION_BYTES_MAX,
        seals: SEALS_FIXED_SIZE,
    };
    Memfd::verify_foreign(descriptor, limits).map_err(memory_error(what))
}

fn memory_error(what: &'static str) -> impl Fn(ShmError) -> PortRestoreError {
    move |source| PortRestoreError::Memory { what, source }
}

#[cfg(test)]
mod tests {
    use provost_datapath::{Body, Offsets, ReceivedBody, Step};
    use provost_ring::{Consumer, Producer};
    use provost_shm::AppRings;
    use provost_wire::descriptor::{Batch, Completion, Parts, completion_kind, submission_kind};
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;
    use crate::testing::{MemfdSource, RECEIVE_BYTES_MAX, port_and_app};

    fn port() -> (AppPort, AppRings) {
        let (port, app, _) = port_and_app();
        (port, app)
    }

    fn state_of(port: &AppPort, named: &SavedBlocks) -> (Vec<u8>, Vec<OwnedFd>) {
        let mut out = FieldWriter::new();
        port.save(named, &mut out);
        let own = |descriptor: &BorrowedFd<'_>| descriptor.try_clone_to_owned().unwrap();
        (out.bytes, port.descriptors().iter().map(own).collect())
    }

    fn restore(state: &[u8], descriptors: Vec<OwnedFd>) -> Result<AppPort, PortRestoreError> {
        let source = PortSource {
            segments: Box::new(MemfdSource::default()),
            bytes_max: RECEIVE_BYTES_MAX,
        };
        AppPort::restore(state, descriptors, source)
    }

    fn received(port: &mut AppPort, bytes: u32, value: u8) -> ReceivedBlock {
        let mut block = port.heap.allocate(bytes).unwrap();
        port.heap.bytes_mut(&mut block).fill(value);
        block
    }

    fn publish(port: &mut AppPort, block: ReceivedBlock) {
        let mut step = Step::new(7, Parts::MESSAGE);
        step.body = Body::Received(ReceivedBody {
            added: None,
            metadata_bytes: 0,
            message_bytes: block.bytes,
            block,
            offsets: Offsets::Window,
        });
        port.push_step(1, step).unwrap();
        port.flush().unwrap();
    }

    fn next(completions: &mut Consumer) -> Option<Completion> {
        let slot = completions.pop().unwrap()?;
        completions.release();
        Some(Completion::read_from_bytes(slot.as_bytes()).unwrap())
    }

    fn reclaim(submissions: &mut Producer, at: u32) {
        let mut batch = Batch {
            kind: submission_kind::RECLAIM,
            count: 1,
            ..Batch::default()
        };
        batch.items[0] = u64::from(at);
        submissions
            .push(&provost_ring::Slot::read_from_bytes(batch.as_bytes()).unwrap())
            .unwrap();
        submissions.publish();
    }

    #[test]
    fn a_port_goes_on_in_another_process_and_old_segments_are_retired_when_nothing_of_them_is_left() {
        let (mut old, mut app) = port();
        let held = received(&mut old, 100, 1);
        let held_at = held.at;
        publish(&mut old, held);
        let (fixed, movable) = (received(&mut old, 5000, 2), received(&mut old, 300_000, 3));
        let nobodys = received(&mut old, 64, 4);
        let (fixed_at, movable_at, nobodys_at) = (fixed.at, movable.at, nobodys.at);
        let mut named = SavedBlocks::default();
        named.note(&fixed, BlockContent::Fixed);
        named.note(&movable, BlockContent::Movable { filled: 1000 });
        old.settle().unwrap();
        let (state, descriptors) = state_of(&old, &named);

        let mut new = restore(&state, descriptors).unwrap();
        let again = |at, bytes| ReceivedBlock { at, bytes };
        let fixed = new.claim(fixed).unwrap();
        let mut movable = new.claim(movable).unwrap();
        assert_eq!(fixed.at, fixed_at);
        assert_ne!(movable.at, movable_at);
        for (at, bytes) in [(fixed_at, 5000), (nobodys_at, 64), (held_at, 100)] {
            assert_eq!(new.claim(again(at, bytes)), Err(NotSaved::Block { at }));
        }
        new.end_claims();
        assert_eq!(new.heap.bytes(&fixed), [2; 5000]);
        assert!(new.heap.bytes_mut(&mut again(fixed_at, 5000)).is_empty());
        assert_eq!(&new.heap.bytes_mut(&mut movable)[..1000], [3; 1000]);
        new.heap.bytes_mut(&mut movable).fill(5);

        // The app does not look at the new region yet: it is polled.
        assert_eq!(next(&mut app.completions).map(|step| step.block), Some(held_at));
        publish(&mut new, fixed);
        assert!(next(&mut app.completions).is_none());
        new.maintain(1, u64::MAX).unwrap();
        assert!(new.wake_at().unwrap() < 1_000_000);
        app.completion_region().replace(&new.rings.memory()[1]).unwrap();
        new.region_mapped(1);
        assert_eq!(next(&mut app.completions).map(|step| step.block), Some(fixed_at));

        reclaim(&mut app.submissions, held_at);
        assert!(new.next_request().unwrap().is_none());
        new.maintain(2, u64::MAX).unwrap();
        new.flush().unwrap();
        assert!(next(&mut app.completions).is_none(), "one block is left");
        reclaim(&mut app.submissions, fixed_at);
        assert!(new.next_request().unwrap().is_none());
        new.maintain(3, u64::MAX).unwrap();
        new.flush().unwrap();
        let retired = next(&mut app.completions).unwrap();
        assert_eq!(
            (retired.kind, retired.call),
            (completion_kind::SEGMENT_RETIRED, 1)
        );
        new.heap.free(movable);
        assert!(new.heap.is_empty());
        reclaim(&mut app.submissions, fixed_at);
        assert!(new.next_request().is_err(), "given back twice");
    }

    /// A port that has done a little of everything.
    fn used_port() -> (AppPort, AppRings, SavedBlocks) {
        let (mut old, app) = port();
        let held = received(&mut old, 100, 1);
        publish(&mut old, held);
        let mut named = SavedBlocks::default();
        let movable = received(&mut old, 300_000, 3);
        named.note(&movable, BlockContent::Movable { filled: 1000 });
        old.sent.push(77);
        (old, app, named)
    }

    #[test]
    fn states_of_every_version_are_gone_on_with() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/fixtures/app-port-{VERSION}.bin"));
        let (old, mut app, named) = used_port();
        let (state, descriptors) = state_of(&old, &named);
        if std::env::var_os("BLESS").is_some() && !path.exists() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &state).unwrap();
        }
        let mut new = restore(&std::fs::read(&path).unwrap(), descriptors).unwrap();
        new.end_claims();
        let held_at = next(&mut app.completions).unwrap().block;
        reclaim(&mut app.submissions, held_at);
        assert!(new.next_request().unwrap().is_none());
        assert!(new.heap.is_empty());
        new.flush().unwrap();
        app.completion_region().replace(&new.rings.memory()[1]).unwrap();
        assert_eq!(next(&mut app.completions).unwrap().kind, completion_kind::SENT);
    }

    #[test]
    fn an_app_without_room_for_what_is_coming_in_is_found_out_before_its_states_are_restored() {
        let (mut old, _app) = port();
        let held = received(&mut old, 100, 1);
        publish(&mut old, held);
        let movable = received(&mut old, 300_000, 3);
        let mut named = SavedBlocks::default();
        named.note(&movable, BlockContent::Movable { filled: 1000 });
        // Its window has room for no other segment than the one that it holds.
        old.heap.limits.window_bytes = old.heap.total_bytes();
        let (state, descriptors) = state_of(&old, &named);
        let refused = restore(&state, descriptors);
        assert!(matches!(
            refused,
            Err(PortRestoreError::Room(NotSaved::Full { at })) if at == movable.at
        ));
    }

    #[test]
    fn a_state_that_is_cut_short_or_without_its_descriptors_is_refused() {
        let (mut old, _app) = port();
        let block = received(&mut old, 100, 1);
        publish(&mut old, block);
        let (state, _) = state_of(&old, &SavedBlocks::default());
        for cut in 0..state.len() {
            let (_, descriptors) = state_of(&old, &SavedBlocks::default());
            assert!(restore(&state[..cut], descriptors).is_err());
        }
        let (_, mut descriptors) = state_of(&old, &SavedBlocks::default());
        descriptors.pop();
        assert!(matches!(
            restore(&state, descriptors),
            Err(PortRestoreError::Descriptors { .. })
        ));
    }
}
