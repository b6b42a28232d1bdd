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
        let mut index = section(".eh_frame_hdr");
        let mut frames = section(".eh_frame");
        let starts = index
            .as_ref()
            .map_or_else(FunctionStarts::default, |(range, bytes)| {
                FunctionStarts::parse(range.start, bytes)
            });
        let is_walkable = index.as_ref().zip(frames.as_ref());
        let is_walkable = is_walkable.is_some_and(|((at, index), (frames, _))| {
            FunctionStarts::has_frames_within(at.start, index, frames)
        });
        if !is_walkable {
            (index, frames) = (None, None);
        }
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
            frames,
        })
    }

    /// The name of the function that an address of the program's is in.
    #[must_use]
    pub fn function_at(&self, address: u64) -> Option<&str> {
        let start = self.starts.start_of(address)?;
        self.names.get(&start).map(String::as_str)
    }

    /// How many of its functions have names.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::example::{CLASS, FUNCTIONS, example_program};
    use crate::stacks::frames_walked;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<ProgramCode, UnreadableProgram> {
        ProgramCode::read(bytes, NamedFunctions::All)
    }

    #[test]
    fn virtual_functions_of_a_stripped_program_have_their_class_for_a_name() {
        let code = read(&example_program()).unwrap();
        assert_eq!(code.named_functions(), 2);
        for function in FUNCTIONS {
            assert_eq!(code.function_at(function + 5), Some(CLASS));
        }
        assert_eq!(code.function_at(FUNCTIONS[0] - 1), None);
        assert_eq!(code.address_of(0x104), Some(0x104));
        assert_eq!(code.address_of(1 << 40), None);
        // A caller's address on the stack is walked to.
        let stack = [(FUNCTIONS[1] + 8).to_le_bytes(), [0; 8]].concat();
        assert!(frames_walked(code, FUNCTIONS[0] + 4, &stack) >= 2);
        let library = ProgramCode::read(&example_program(), NamedFunctions::None).unwrap();
        assert_eq!(library.named_functions(), 0);
    }

    #[test]
    fn other_files_are_refused_with_what_they_are() {
        let error = |bytes: &[u8]| read(bytes).map(|_| ()).unwrap_err().to_string();
        assert!(error(b"#!/bin/sh\n").contains("not a 64-bit ELF file"));
        assert!(error(&[]).contains("not a 64-bit ELF file"));
        let mut other = example_program();
        // The machine: 183 is AArch64.
        other[18] = 183;
        assert!(
            error(&other).contains("only those for x86-64"),
            "{}",
            error(&other)
        );
    }

    #[test]
    fn a_section_that_claims_to_be_longer_than_its_file_is_not_read() {
        let mut file = example_program();
        let headers = u64::from_le_bytes(file[40..48].try_into().unwrap()) as usize;
        for section in 1..7 {
            let size = headers + section * 64 + 32;
            file[size..size + 8].copy_from_slice(&(u64::MAX >> 1).to_le_bytes());
        }
        let code = read(&file).unwrap();
        assert_eq!(
            (code.named_functions(), code.function_at(FUNCTIONS[0])),
            (0, None)
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_file_panics_or_names_more_than_it_has(
            damages in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
            cut: prop::sample::Index,
            is_cut: bool,
            stack in prop::collection::vec(any::<u8>(), 0..256),
            instruction: u64,
        ) {
            let mut file = example_program();
            for (at, byte) in damages {
                let at = at.index(file.len());
                file[at] = byte;
            }
            if is_cut {
                file.truncate(cut.index(file.len()));
            }
            if let Ok(code) = read(&file) {
                prop_assert!(code.named_functions() <= file.len() / 8);
                prop_assert!(code.function_at(instruction).is_none_or(|name| name.len() <= file.len()));
                let near = FUNCTIONS[0] + instruction % 64;
                prop_assert!(frames_walked(code, near, &stack) <= crate::stacks::code::FRAMES_MAX);
            }
        }
    }
}
