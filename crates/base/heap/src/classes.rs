//! The size classes of small blocks.

/// Largest block that comes from a span, in bytes.
pub const SMALL_BYTES_MAX: u32 = 16 << 10;
/// Length of a span, in bytes.
pub(crate) const SPAN_BYTES: u32 = 64 << 10;
/// Number of size classes.
pub(crate) const CLASSES: usize = SIZES.len();

/// Sizes are multiples of this, in bytes.
const GRAIN_BYTES: u32 = 16;
/// Blocks' sizes, in bytes. From 1 KiB on each is the largest of which a certain number fills a span, in whole cache
/// lines.
const SIZES: [u32; 39] = [
    16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1152,
    1344, 1536, 1728, 1984, 2240, 2560, 2944, 3392, 3840, 4352, 4992, 5952, 7232, 8192, 9344, 10880, 13056,
    16384,
];
/// Blocks in a span of the smallest class: the most that a span holds.
pub(crate) const SPAN_BLOCKS_MAX: usize = (SPAN_BYTES / SIZES[0]) as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

impl Class {
    /// The class of the least size that holds so many bytes, if any does.
    pub(crate) fn of(bytes: u32) -> Option<Class> {
        let grains = bytes.div_ceil(GRAIN_BYTES) as usize;
        BY_GRAINS.get(grains).map(|class| Class(*class))
    }

    pub(crate) fn all() -> impl Iterator<Item = Class> {
        (0..CLASSES as u8).map(Class)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn block_bytes(self) -> u32 {
        SIZES[self.index()]
    }

    pub(crate) fn blocks(self) -> u32 {
        SPAN_BYTES / self.block_bytes()
    }

    /// Which block begins so many bytes into a span, if one does.
    pub(crate) fn block_at(self, offset_bytes: u32) -> Option<u32> {
        // A division by multiplication: exact, as offset × (error of the reciprocal) < 2¹⁶ × 2¹⁴ < 2³².
        let block = ((u64::from(offset_bytes) * u64::from(RECIPROCALS[self.index()])) >> 32) as u32;
        (block * self.block_bytes() == offset_bytes && block < self.blocks()).then_some(block)
    }
}

/// 2³² over each size, rounded up.
const RECIPROCALS: [u32; CLASSES] = {
    let mut reciprocals = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        reciprocals[class] = (1u64 << 32).div_ceil(SIZES[class] as u64) as u32;
        class += 1;
    }
    reciprocals
};

const BY_GRAINS: [u8; (SMALL_BYTES_MAX / GRAIN_BYTES) as usize + 1] = {
    let mut classes = [0; (SMALL_BYTES_MAX / GRAIN_BYTES) as usize + 1];
    let (mut grains, mut class) = (0, 0);
    while grains < classes.len() {
        if grains as u32 * GRAIN_BYTES > SIZES[class as usize] {
            class += 1;
        }
        classes[grains] = class;
        grains += 1;
    }
    classes
};

const _: () = assert!(SIZES[CLASSES - 1] == SMALL_BYTES_MAX);
