//! Blocks to fields.

use super::integer;
use super::table::DynamicTable;
use super::{ENTRY_OVERHEAD_BYTES, HuffmanError, TABLE_BYTES_INITIAL, huffman_decode};
use crate::fields::{FieldIndexing, FieldList};

/// Memory for fields and for half-read representations that is kept between blocks.
const KEPT_BYTES: usize = 4_096;

/// Why a block cannot be decoded. The tables of the two ends differ from here on, so the connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HpackError {
    /// RFC 7541, section 5.1.
    #[error("an integer in a field block is too large or too long")]
    Integer,
    /// RFC 7541, section 2.3.3.
    #[error("a field block names an entry that no table has")]
    Index,
    /// RFC 7541, section 5.2.
    #[error(transparent)]
    Huffman(#[from] HuffmanError),
    /// RFC 7541, section 4.2: it may stand at the beginning of a block alone.
    #[error("a change of the dynamic table's size follows a field")]
    LateSizeUpdate,
    /// RFC 7541, section 6.3: larger than what this end allows.
    #[error("the dynamic table may not be so large")]
    TableSize,
    /// RFC 9113, section 4.3.1: this end made the table smaller and the block does not say so.
    #[error("a field block does not begin with the change of the table's size that is due")]
    NoSizeUpdate,
    /// The block ends within a field.
    #[error("a field block ends within a field")]
    Truncated,
    /// More bytes than any list within the limit needs, or far more fields.
    #[error(
        "a field block is longer than {HPACK_BLOCK_LISTS} lists of the largest size, or its list is endless"
    )]
    TooLong,
}

/// A block may have as many bytes as so many lists of the largest size: the rest of a list that is over the limit is decoded,
/// for the table's sake, up to here.
pub const HPACK_BLOCK_LISTS: usize = 4;
/// The same for tiny limits of lists, in bytes.
const BLOCK_BYTES_MIN: usize = 16 << 10;
/// A list may count so many times the bytes that a block may have. A block can say far more: three bytes of it name an entry of kilobytes,
/// which is copied for each literal that begins so.
const LIST_BLOCKS_MAX: usize = 4;

/// What came of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodedBlock {
    /// [`HpackDecoder::fields`] are its fields.
    Whole,
    /// The list is over the limit: fields are missing. The tables are in step all the same.
    OverLimit,
}

/// Decodes the blocks of one peer, in order. A block comes in any pieces.
///
/// ```
/// use provost_http2::hpack::{DecodedBlock, HpackDecoder, HpackEncoder};
/// use provost_http2::FieldList;
///
/// let fields: FieldList = [(":status", "200"), ("x-id", "7")].into_iter().collect();
/// let mut block = Vec::new();
/// HpackEncoder::new().encode(&fields, &mut block);
///
/// let mut decoder = HpackDecoder::new(16 << 10);
/// let (front, back) = block.split_at(3);
/// decoder.fragment(front)?;
/// decoder.fragment(back)?;
/// assert_eq!(decoder.end()?, DecodedBlock::Whole);
/// assert_eq!(decoder.fields(), &fields);
/// # Ok::<(), provost_http2::hpack::HpackError>(())
/// ```
#[derive(Clone, Debug)]
pub struct HpackDecoder {
    table: DynamicTable,
    /// The largest size of the table that the peer may choose.
    size_allowed: usize,
    /// The next block must begin with a size no larger than this.
    size_update_due: Option<usize>,
    list_bytes_max: usize,
    block: BlockProgress,
    fields: FieldList,
}

/// How far a block has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockProgress {
    /// The beginning of a representation whose end has not come.
    pub(crate) partial: Vec<u8>,
    /// Bytes of the block so far.
    pub(crate) bytes: usize,
    /// What the list counts so far, fields that were left out among them.
    pub(crate) list_bytes: usize,
    /// Whether a field has come, after which the table's size must stay.
    pub(crate) has_field: bool,
    /// Whether the block began with a change of the table's size.
    pub(crate) has_size_update: bool,
}

/// One representation (RFC 7541, section 6).
enum FieldRepresentation<'a> {
    Indexed(u32),
    Literal {
        name: LiteralName<'a>,
        value: StringLiteral<'a>,
        insertion: TableInsertion,
    },
    SizeUpdate(u32),
}

enum LiteralName<'a> {
    Index(u32),
    Text(StringLiteral<'a>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum TableInsertion {
    Insert,
    Leave(FieldIndexing),
}

struct StringLiteral<'a> {
    bytes: &'a [u8],
    coding: LiteralCoding,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LiteralCoding {
    Plain,
    Huffman,
}

impl HpackDecoder {
    /// A decoder of lists up to so many bytes.
    #[must_use]
    pub fn new(list_bytes_max: usize) -> HpackDecoder {
        HpackDecoder {
            table: DynamicTable::new(TABLE_BYTES_INITIAL as usize),
            size_allowed: TABLE_BYTES_INITIAL as usize,
            size_update_due: None,
            list_bytes_max,
            block: BlockProgress::default(),
            fields: FieldList::new(),
        }
    }

    /// This end announces another size: the peer may use a larger one from now on.
    pub fn announce_table_bytes(&mut self, bytes: u32) {
        self.size_allowed = self.size_allowed.max(bytes as usize);
    }

    /// The peer knows the size that was announced: it must say so itself if its table shrinks.
    pub fn acknowledge_table_bytes(&mut self, bytes: u32) {
        let bytes = bytes as usize;
        let is_due = bytes < self.table.size_max() || self.size_update_due.is_some();
        self.size_allowed = bytes;
        if is_due {
            self.size_update_due = Some(self.size_update_due.map_or(bytes, |due| due.min(bytes)));
        }
    }

    /// Decodes the next bytes of a block.
    ///
    /// # Errors
    /// They belong to no block that the peer could have written.
    pub fn fragment(&mut self, bytes: &[u8]) -> Result<(), HpackError> {
        if self.block == BlockProgress::default() {
            self.fields.clear();
        }
        self.block.bytes += bytes.len();
        if self.block.bytes > self.block_bytes_max() {
            return Err(HpackError::TooLong);
        }
        if self.block.partial.is_empty() {
            let used = self.representations(bytes)?;
            self.block.partial.extend_from_slice(&bytes[used..]);
        } else {
            let mut partial = std::mem::take(&mut self.block.partial);
            partial.extend_from_slice(bytes);
            let used = self.representations(&partial)?;
            partial.drain(..used);
            self.block.partial = partial;
        }
        Ok(())
    }

    /// Ends the block.
    ///
    /// # Errors
    /// It ends within a field, or does not begin as it must.
    pub fn end(&mut self) -> Result<DecodedBlock, HpackError> {
        if self.block == BlockProgress::default() {
            self.fields.clear();
        }
        if !self.block.partial.is_empty() {
            return Err(HpackError::Truncated);
        }
        self.check_size_update()?;
        let is_over_limit = self.block.list_bytes > self.list_bytes_max;
        let mut partial = std::mem::take(&mut self.block.partial);
        partial.shrink_to(KEPT_BYTES);
        self.block = BlockProgress {
            partial,
            ..BlockProgress::default()
        };
        Ok(if is_over_limit {
            DecodedBlock::OverLimit
        } else {
            DecodedBlock::Whole
        })
    }

    /// The fields of the block that ended last.
    #[must_use]
    pub fn fields(&self) -> &FieldList {
        &self.fields
    }

    /// Forgets those fields, and gives back memory that only a large list needed.
    pub(crate) fn forget_fields(&mut self) {
        self.fields.clear();
        self.fields.shrink(KEPT_BYTES);
    }

    fn block_bytes_max(&self) -> usize {
        self.list_bytes_max
            .saturating_mul(HPACK_BLOCK_LISTS)
            .max(BLOCK_BYTES_MIN)
    }

    /// Takes all whole representations, and says how many bytes they have.
    fn representations(&mut self, input: &[u8]) -> Result<usize, HpackError> {
        let mut used = 0;
        while let Some((representation, bytes)) = representation(&input[used..])? {
            used += bytes;
            match representation {
                FieldRepresentation::SizeUpdate(size) => self.change_size(size as usize)?,
                FieldRepresentation::Indexed(index) => {
                    self.begin_field()?;
                    self.indexed(index as usize)?;
                }
                FieldRepresentation::Literal {
                    name,
                    value,
                    insertion,
                } => {
                    self.begin_field()?;
                    self.literal(&name, &value, insertion)?;
                }
            }
        }
        Ok(used)
    }

    fn change_size(&mut self, size: usize) -> Result<(), HpackError> {
        if self.block.has_field {
            return Err(HpackError::LateSizeUpdate);
        }
        if size > self.size_allowed {
            return Err(HpackError::TableSize);
        }
        self.table.set_size_max(size);
        self.block.has_size_update = true;
        if self.size_update_due.is_some_and(|due| size <= due) {
            self.size_update_due = None;
        }
        Ok(())
    }

    fn begin_field(&mut self) -> Result<(), HpackError> {
        if !self.block.has_field {
            self.check_size_update()?;
            self.block.has_field = true;
        }
        Ok(())
    }

    fn check_size_update(&self) -> Result<(), HpackError> {
        if self.size_update_due.is_some() {
            return Err(HpackError::NoSizeUpdate);
        }
        Ok(())
    }

    fn indexed(&mut self, index: usize) -> Result<(), HpackError> {
        let (name, value) = self.table.field(index).ok_or(HpackError::Index)?;
        self.block.list_bytes += name.len() + value.len() + ENTRY_OVERHEAD_BYTES;
        if self.block.list_bytes <= self.list_bytes_max {
            self.fields.push(name, value);
        }
        self.check_list_bytes()
    }

    fn literal(
        &mut self,
        name: &LiteralName<'_>,
        value: &StringLiteral<'_>,
        insertion: TableInsertion,
    ) -> Result<(), HpackError> {
        let indexing = match insertion {
            TableInsertion::Insert => FieldIndexing::Automatic,
            TableInsertion::Leave(indexing) => indexing,
        };
        let text = self.fields.open();
        let start = text.len();
        match name {
            LiteralName::Index(index) => {
                let (name, _) = self.table.field(*index as usize).ok_or(HpackError::Index)?;
                text.extend_from_slice(name);
            }
            LiteralName::Text(name) => name.append_to(text)?,
        }
        let name_end = text.len();
        value.append_to(text)?;
        if insertion == TableInsertion::Insert {
            self.table.insert(&text[start..name_end], &text[name_end..]);
        }
        self.block.list_bytes += text.len() - start + ENTRY_OVERHEAD_BYTES;
        self.fields.close(start, name_end, indexing);
        if self.block.list_bytes > self.list_bytes_max {
            self.fields.pop();
        }
        self.check_list_bytes()
    }

    fn check_list_bytes(&self) -> Result<(), HpackError> {
        if self.block.list_bytes > self.block_bytes_max().saturating_mul(LIST_BLOCKS_MAX) {
            return Err(HpackError::TooLong);
        }
        Ok(())
    }
}

/// Everything that a decoder knows, as it is saved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedDecoder {
    /// The dynamic table's fields, oldest first.
    pub(crate) table: FieldList,
    /// Bytes that the table may have.
    pub(crate) table_bytes_max: usize,
    /// Bytes that the peer may choose.
    pub(crate) size_allowed: usize,
    /// What the next block must begin with.
    pub(crate) size_update_due: Option<usize>,
    /// Fields of the block that is half decoded.
    pub(crate) fields: FieldList,
    pub(crate) block: BlockProgress,
}

impl SavedDecoder {
    /// Whether a block was half decoded.
    pub(crate) fn is_within_block(&self) -> bool {
        self.block != BlockProgress::default()
    }
}

impl HpackDecoder {
    pub(crate) fn save(&self) -> SavedDecoder {
        let is_within_block = self.block != BlockProgress::default();
        SavedDecoder {
            table: self.table.oldest_first().collect(),
            table_bytes_max: self.table.size_max(),
            size_allowed: self.size_allowed,
            size_update_due: self.size_update_due,
            fields: if is_within_block {
                self.fields.clone()
            } else {
                FieldList::new()
            },
            block: self.block.clone(),
        }
    }

    /// A decoder that goes on. None: the state cannot be one of a decoder with this limit.
    pub(crate) fn restore(saved: SavedDecoder, list_bytes_max: usize) -> Option<HpackDecoder> {
        let mut decoder = HpackDecoder::new(list_bytes_max);
        let table = super::table::restored(&saved.table, saved.table_bytes_max)?;
        let block = &saved.block;
        let is_within = block.bytes <= decoder.block_bytes_max()
            && block.partial.len() <= block.bytes
            && saved.fields.list_bytes() <= list_bytes_max.min(block.list_bytes)
            && block.list_bytes <= block.bytes.saturating_mul(saved.table_bytes_max + 256);
        let is_consistent = (block.has_field || block.list_bytes == 0)
            && (block.bytes > 0 || saved.block == BlockProgress::default());
        if !is_within || !is_consistent {
            return None;
        }
        decoder.table = table;
        decoder.size_allowed = saved.size_allowed;
        decoder.size_update_due = saved.size_update_due;
        decoder.block = saved.block;
        decoder.fields = saved.fields;
        Some(decoder)
    }
}

impl StringLiteral<'_> {
    fn append_to(&self, out: &mut Vec<u8>) -> Result<(), HuffmanError> {
        match self.coding {
            LiteralCoding::Plain => out.extend_from_slice(self.bytes),
            LiteralCoding::Huffman => huffman_decode(self.bytes, out)?,
        }
        Ok(())
    }
}

/// The first representation and how many bytes it has. None: its end has not come.
fn representation(input: &[u8]) -> Result<Option<(FieldRepresentation<'_>, usize)>, HpackError> {
    let Some(first) = input.first() else {
        return Ok(None);
    };
    match first.leading_zeros() {
        0 => {
            let indexed = integer::decode(input, 7)?;
            Ok(indexed.map(|(index, used)| (FieldRepresentation::Indexed(index), used)))
        }
        1 => literal(input, 6, TableInsertion::Insert),
        2 => {
            let update = integer::decode(input, 5)?;
            Ok(update.map(|(size, used)| (FieldRepresentation::SizeUpdate(size), used)))
        }
        3 => literal(input, 4, TableInsertion::Leave(FieldIndexing::Never)),
        _ => literal(input, 4, TableInsertion::Leave(FieldIndexing::Without)),
    }
}

fn literal(
    input: &[u8],
    prefix_bits: u32,
    insertion: TableInsertion,
) -> Result<Option<(FieldRepresentation<'_>, usize)>, HpackError> {
    let Some((index, mut used)) = integer::decode(input, prefix_bits)? else {
        return Ok(None);
    };
    let name = if index > 0 {
        LiteralName::Index(index)
    } else {
        let Some((name, bytes)) = string_literal(&input[used..])? else {
            return Ok(None);
        };
        used += bytes;
        LiteralName::Text(name)
    };
    let Some((value, bytes)) = string_literal(&input[used..])? else {
        return Ok(None);
    };
    let literal = FieldRepresentation::Literal {
        name,
        value,
        insertion,
    };
    Ok(Some((literal, used + bytes)))
}

fn string_literal(input: &[u8]) -> Result<Option<(StringLiteral<'_>, usize)>, HpackError> {
    let Some((length, used)) = integer::decode(input, 7)? else {
        return Ok(None);
    };
    let end = used + length as usize;
    let Some(bytes) = input.get(used..end) else {
        return Ok(None);
    };
    let is_coded = input[0] & 0x80 != 0;
    let coding = if is_coded {
        LiteralCoding::Huffman
    } else {
        LiteralCoding::Plain
    };
    Ok(Some((StringLiteral { bytes, coding }, end)))
}
