//! Names of functions in programs that were stripped: exported symbols, and for C++ the classes whose virtual functions they
//! are.
//!
//! A C++ program that uses exceptions or `dynamic_cast` keeps each class's name, for `typeid`. A virtual table is preceded by
//! the address of its class's type information, whose second word is the address of the name (Itanium C++ ABI, 2.5.2 and
//! 2.9.5). In a position-independent program all of these words are relocations, so they are found without symbols.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, Range};

use object::read::elf::{ElfFile64, FileHeader, Rela};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, SymbolKind};

/// A name has at most so many bytes.
const NAME_BYTES_MAX: usize = 512;
/// Functions that get names at most, and words of a program that are looked at: far more than Envoy has.
const NAMES_MAX: usize = 1 << 20;
const WORDS_MAX: usize = 4 << 20;
/// Functions of one virtual table that are looked at.
const VIRTUAL_FUNCTIONS_MAX: usize = 4096;
/// `R_X86_64_RELATIVE`: the word is an address of the program itself.
const RELATIVE: u32 = 8;

/// Functions' names by their address in the file's own terms.
pub(crate) type FunctionNames = HashMap<u64, String>;

/// All names that the program tells.
pub(crate) fn function_names(file: &ElfFile64<'_>) -> FunctionNames {
    let mut names = virtual_functions(file);
    let symbols = file.symbols().chain(file.dynamic_symbols());
    for symbol in symbols.filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.address() != 0) {
        if names.len() >= NAMES_MAX {
            break;
        }
        if let Ok(name) = symbol.name() {
            names.insert(symbol.address(), clip(name));
        }
    }
    names
}

fn clip(name: &str) -> String {
    name.chars().take(NAME_BYTES_MAX).collect()
}

fn virtual_functions(file: &ElfFile64<'_>) -> FunctionNames {
    let words = relative_words(file);
    let text = file.section_by_name(".text");
    let text = text.and_then(|section| {
        let end = section.address().checked_add(section.size())?;
        Some(section.address()..end)
    });
    let Some(text) = text else {
        return FunctionNames::new();
    };
    let strings = NameStrings::of(file);
    // Type information: its second word is the address of a class's name.
    let classes: HashMap<u64, String> = words
        .iter()
        .filter_map(|(at, target)| Some((at.checked_sub(8)?, strings.class_name(*target)?)))
        .collect();
    let mut names: FunctionNames = FunctionNames::new();
    for (at, target) in &words {
        let Some(class) = classes.get(target) else {
            continue;
        };
        if names.len() >= NAMES_MAX {
            break;
        }
        // What follows the address of type information in a virtual table are functions.
        let functions = words
            .range((Bound::Excluded(at), Bound::Unbounded))
            .zip(1..)
            .take(VIRTUAL_FUNCTIONS_MAX)
            .take_while(|((slot, function), place)| {
                slot.checked_sub(*at) == Some(8 * place) && text.contains(function)
            });
        for ((_, function), _) in functions {
            // A function that derived classes inherit is in their tables as well. The shortest name is that of the base.
            let name = names.entry(*function).or_insert_with(|| class.clone());
            if (class.len(), class) < (name.len(), name) {
                name.clone_from(class);
            }
        }
    }
    names
}

/// Words of the program that are addresses in itself, by their own address.
fn relative_words(file: &ElfFile64<'_>) -> BTreeMap<u64, u64> {
    let endian = file.endian();
    let header = file.elf_header();
    let data = file.data();
    let mut words = BTreeMap::new();
    let Ok(sections) = header.sections(endian, data) else {
        return words;
    };
    for section in sections.iter() {
        let Ok(Some((relocations, _))) = object::read::elf::SectionHeader::rela(section, endian, data) else {
            continue;
        };
        for relocation in relocations {
            if words.len() >= WORDS_MAX {
                return words;
            }
            if relocation.r_type(endian, false) == RELATIVE {
                let target = relocation.r_addend(endian).cast_unsigned();
                words.insert(relocation.r_offset(endian), target);
            }
        }
    }
    words
}

/// Where names of classes are kept.
struct NameStrings<'d> {
    sections: Vec<(u64, &'d [u8])>,
}

impl<'d> NameStrings<'d> {
    fn of(file: &ElfFile64<'d, Endianness>) -> NameStrings<'d> {
        let sections = file.sections().filter(|section| {
            let name = section.name().unwrap_or_default();
            name.starts_with(".rodata") || name.starts_with(".data.rel.ro")
        });
        NameStrings {
            sections: sections
                .filter_map(|section| Some((section.address(), section.data().ok()?)))
                .collect(),
        }
    }

    /// The mangled name of a class at an address: nested (`N…E`) or with a length before it.
    fn class_name(&self, address: u64) -> Option<String> {
        let (start, bytes) = self
            .sections
            .iter()
            .find(|(start, bytes)| (*start..start.saturating_add(bytes.len() as u64)).contains(&address))?;
        let from = bytes.get(usize::try_from(address - start).ok()?..)?;
        let from = &from[..from.len().min(NAME_BYTES_MAX)];
        let name = &from[..from.iter().position(|byte| *byte == 0)?];
        is_class_name(name).then(|| String::from_utf8_lossy(name).into_owned())
    }
}

fn is_class_name(name: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte == b'.' || *byte == b'$';
    let begins = match name {
        [b'N', second, ..] => second.is_ascii_digit() || *second == b'S',
        [first, _, ..] => first.is_ascii_digit(),
        _ => false,
    };
    begins && name.iter().all(is_word) && name.iter().any(u8::is_ascii_alphabetic)
}

/// Starts of functions, from the index that every program with exceptions or unwinding has (`.eh_frame_hdr`, Linux Standard
/// Base, core, 10.6.2).
#[derive(Debug, Default)]
pub(crate) struct FunctionStarts(Vec<u64>);

/// Offsets from the section's start, as four bytes with a sign; what every linker writes.
const TABLE_ENCODING: u8 = 0x3b;
/// Four bytes relative to their own place, and four bytes.
const POINTER_ENCODING: u8 = 0x1b;
const COUNT_ENCODING: u8 = 0x03;

impl FunctionStarts {
    /// Of a section at an address; empty if it is of a kind that linkers do not write.
    pub(crate) fn parse(address: u64, section: &[u8]) -> FunctionStarts {
        FunctionStarts::try_parse(address, section).unwrap_or_default()
    }

    fn try_parse(address: u64, section: &[u8]) -> Option<FunctionStarts> {
        let (head, rest) = section.split_first_chunk::<12>()?;
        if head[..4] != [1, POINTER_ENCODING, COUNT_ENCODING, TABLE_ENCODING] {
            return None;
        }
        let count = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let entries = rest.chunks_exact(8).take(count);
        let mut starts: Vec<u64> = entries
            .map(|entry| {
                let offset = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
                address.wrapping_add_signed(i64::from(offset))
            })
            .collect();
        starts.sort_unstable();
        Some(FunctionStarts(starts))
    }

    /// Whether every entry of a section at an address says that its function's frames are in a range, and that the range begins
    /// where the section says: readers subtract one from the other.
    pub(crate) fn has_frames_within(address: u64, section: &[u8], frames: &Range<u64>) -> bool {
        let Some((head, rest)) = section.split_first_chunk::<12>() else {
            return false;
        };
        let target = |place: u64, bytes: &[u8]| {
            let offset = bytes
                .first_chunk::<4>()
                .map_or(0, |four| i32::from_le_bytes(*four));
            place.wrapping_add_signed(i64::from(offset))
        };
        let is_known = head[..4] == [1, POINTER_ENCODING, COUNT_ENCODING, TABLE_ENCODING];
        let begins = target(address.wrapping_add(4), &head[4..8]) == frames.start;
        let count = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let entries = rest.chunks_exact(8);
        is_known
            && begins
            && entries.len() >= count
            && entries
                .take(count)
                .all(|entry| frames.contains(&target(address, &entry[4..])))
    }

    /// The start of the function that an address is in.
    pub(crate) fn start_of(&self, address: u64) -> Option<u64> {
        let after = self.0.partition_point(|start| *start <= address);
        after.checked_sub(1).map(|at| self.0[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_address_is_in_the_function_that_starts_before_it() {
        let mut section = vec![1, POINTER_ENCODING, COUNT_ENCODING, TABLE_ENCODING, 0, 0, 0, 0];
        section.extend(3u32.to_le_bytes());
        for offset in [0x100i32, -0x20, 0x40] {
            section.extend(offset.to_le_bytes());
            section.extend([0; 4]);
        }
        let starts = FunctionStarts::parse(0x1000, &section);
        assert_eq!(starts.start_of(0xfdf), None);
        assert_eq!(starts.start_of(0xfe0), Some(0xfe0));
        assert_eq!(starts.start_of(0x10ff), Some(0x1040));
        assert_eq!(starts.start_of(u64::MAX), Some(0x1100));
    }

    #[test]
    fn class_names_are_mangled_and_other_strings_are_not() {
        assert!(is_class_name(b"N5Envoy4Http5Http114ConnectionImplE"));
        assert!(is_class_name(b"7Counter"));
        for other in [&b"Nothing"[..], b"12345", b"4 words", b"", b"N"] {
            assert!(!is_class_name(other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn no_section_panics(address: u64, bytes in proptest::collection::vec(any::<u8>(), 0..200), looked_up: u64) {
            let starts = FunctionStarts::parse(address, &bytes);
            let mut section = vec![1, POINTER_ENCODING, COUNT_ENCODING, TABLE_ENCODING];
            section.extend(&bytes);
            let more = FunctionStarts::parse(address, &section);
            for starts in [starts, more] {
                prop_assert!(starts.start_of(looked_up).is_none_or(|start| start <= looked_up));
            }
        }
    }
}
