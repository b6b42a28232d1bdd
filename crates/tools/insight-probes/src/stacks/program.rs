//! What a program's file tells of its code: where functions start, what they are called, how to walk up from them.

use std::ops::Range;

use framehop::ExplicitModuleSectionInfo;
use object::read::elf::ElfFile64;
use object::{Architecture, Endianness, Object, ObjectSection, ObjectSegment};

use super::names::{FunctionNames, FunctionStarts, function_names};

/// Why a file tells nothing of its code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableProgram {
    #[error("not a 64-bit ELF file: {0}")]
    Malformed(String),
    #[error("a program for {0}: only those for x86-64 are read")]
    AnotherArchitecture(String),
}

/// Which names of functions are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedFunctions {
    All,
    /// Of libraries: they work for whoever calls them.
    None,
}

/// A section with code's tables, at its address.
type AddressedSection = Option<(Range<u64>, Vec<u8>)>;

/// A program's or library's code. Whatever the file has, this is never much larger than the file.
pub struct ProgramCode {
    /// Where parts of the file are in the program's own addresses: offset, length, address.
    segments: Vec<(u64, u64, u64)>,
    starts: FunctionStarts,
    names: FunctionNames,
    index: AddressedSection,
    frames: AddressedSection,
}

impl ProgramCode {
    /// Reads a file's bytes. What is missing in it, such as symbols, is missing here.
    ///
    /// # Errors
    /// If it is no program that could run here.
    pub fn read(bytes: &[u8], named: NamedFunctions) -> Result<ProgramCode, UnreadableProgram> {
        let file = ElfFile64::<Endianness>::parse(bytes)
            .map_err(|error| UnreadableProgram::Malformed(error.to_string()))?;
        if file.architecture() != Architecture::X86_64 {
            let found = format!("{:?}", file.architecture());
            return Err(UnreadableProgram::AnotherArchitecture(found));
        }
        // As it is in the file: the kernel maps it so, and what is said to be compressed might be of any length.
        let section = |name| {
            let section = file.section_by_name(name)?;
            let end = section.address().checked_add(section.size())?;
            Some((section.address()..end, section.data().ok()?.to_vec()))
        };
        let index = section(".eh_frame_hdr");
        let starts = index
            .as_ref()
            .map_or_else(FunctionStarts::default, |(range, bytes)| {
                FunctionStarts::parse(range.start, bytes)
            });
        let segments = file.segments().map(|segment| {
            let (offset, length) = segment.file_range();
            (offset, length, segment.address())
        });
        Ok(ProgramCode {
            segments: segments.collect(),
            starts,
            names: match named {
                NamedFunctions::All => function_names(&file),
                NamedFunctions::None => FunctionNames::new(),
            },
            index,
            frames: section(".eh_frame"),
        })
    }

    /// The name of the function that an address of the program's is in.
    #[must_use]
    pub fn function_at(&self, address: u64) -> Option<&str> {
        let start = self.starts.start_of(address)?;
        self.names.get(&start).map(String::as_str)
    }

    /// How many functions have names.
    #[must_use]
    pub fn named_functions(&self) -> usize {
        self.names.len()
    }

    /// The names, each with the start of its function.
    #[cfg(test)]
    pub(crate) fn names(&self) -> &FunctionNames {
        &self.names
    }

    /// The address of what stands in the file's page at an offset.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        // The loader maps whole pages, so a mapping may begin before its segment does.
        let page = |offset: u64| offset & !0xfff;
        let (begin, _, address) = self
            .segments
            .iter()
            .find(|(begin, length, _)| (page(*begin)..begin.saturating_add(*length)).contains(&offset))?;
        Some(offset.wrapping_sub(*begin).wrapping_add(*address))
    }

    /// What walking up a stack needs. It is given away: who walks keeps it.
    pub(crate) fn take_frames(&mut self) -> ExplicitModuleSectionInfo<Vec<u8>> {
        let (eh_frame_hdr_svma, eh_frame_hdr) = self.index.take().unzip();
        let (eh_frame_svma, eh_frame) = self.frames.take().unzip();
        ExplicitModuleSectionInfo {
            base_svma: 0,
            eh_frame_svma,
            eh_frame,
            eh_frame_hdr_svma,
            eh_frame_hdr,
            ..Default::default()
        }
    }
}
