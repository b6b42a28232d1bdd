//! A tiny program in the layout of a stripped C++ release: what fuzzing begins with, and what tests look for names in.

/// Where its two functions are, each of 32 bytes; both are virtual ones of [`CLASS`].
pub const FUNCTIONS: [u64; 2] = [0x100, 0x120];
/// The name of its class, as compilers write it.
pub const CLASS: &str = "N5Envoy4Http5CodecE";

/// Type information of the class, the words of its table that are filled in when it is loaded, and what they point at.
const NAME: u64 = 0x140;
const TYPE_INFORMATION: u64 = 0x180;
const WORDS: [(u64, u64); 4] = [
    (TYPE_INFORMATION + 8, NAME),
    (0x198, TYPE_INFORMATION),
    (0x1a0, FUNCTIONS[0]),
    (0x1a8, FUNCTIONS[1]),
];

/// A section of the file: name, type, address (which is its place in the file as well), contents.
type ExampleSection = (&'static str, u32, u64, Vec<u8>);

/// Types of sections in the ELF format.
const BITS: u32 = 1;
const STRINGS: u32 = 3;
const RELOCATIONS: u32 = 4;

/// The file of the program, as a linker would write it.
#[must_use]
pub fn example_program() -> Vec<u8> {
    let mut names = b"\0".to_vec();
    let mut sections = sections();
    let mut headers = vec![0; 64];
    let mut file = vec![0; 0x100];
    sections.push((".shstrtab", STRINGS, 0x300, Vec::new()));
    for (name, kind, address, contents) in &mut sections {
        let name_at = names.len() as u32;
        names.extend(name.bytes().chain([0]));
        if *kind == STRINGS {
            contents.clone_from(&names);
        }
        file.resize(*address as usize, 0);
        file.extend_from_slice(contents);
        headers.extend(name_at.to_le_bytes());
        headers.extend(kind.to_le_bytes());
        let entry = if *kind == RELOCATIONS { 24 } else { 0 };
        // Flags, address, place, length, link and information, alignment, length of an entry.
        for word in [2, *address, *address, contents.len() as u64, 0, 8, entry] {
            headers.extend(word.to_le_bytes());
        }
    }
    let table = file.len() as u64;
    file.extend(headers);
    let header = file_header(table, sections.len() as u16 + 1);
    file[..header.len()].copy_from_slice(&header);
    file
}

fn sections() -> Vec<ExampleSection> {
    let mut relocations = Vec::new();
    for (at, target) in WORDS {
        // 8 is R_X86_64_RELATIVE.
        for word in [at, 8, target] {
            relocations.extend(word.to_le_bytes());
        }
    }
    let index_at = 0x240u64;
    let frames_at = 0x280u64;
    let from = |place: u64, target: u64| (target.wrapping_sub(place) as u32).to_le_bytes();
    // What both functions have in common: the caller's address lies eight bytes below its stack.
    let mut frames = vec![0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b];
    frames.extend([0x0c, 7, 8, 0x90, 1, 0, 0]);
    let mut index = vec![1, 0x1b, 0x03, 0x3b];
    index.extend(from(index_at + 4, frames_at));
    index.extend([FUNCTIONS.len() as u8, 0, 0, 0]);
    for function in FUNCTIONS {
        let entry_at = frames_at + frames.len() as u64;
        index.extend(from(index_at, function));
        index.extend(from(index_at, entry_at));
        frames.extend([0x10, 0, 0, 0]);
        frames.extend(from(frames_at, entry_at + 4));
        frames.extend(from(entry_at + 8, function));
        frames.extend([0x20, 0, 0, 0, 0, 0, 0, 0]);
    }
    frames.extend([0; 4]);
    vec![
        (".text", BITS, FUNCTIONS[0], vec![0x90; 0x40]),
        (".rodata", BITS, NAME, format!("{CLASS}\0").into_bytes()),
        (".data.rel.ro", BITS, TYPE_INFORMATION, vec![0; 0x30]),
        (".rela.dyn", RELOCATIONS, 0x1b8, relocations),
        (".eh_frame_hdr", BITS, index_at, index),
        (".eh_frame", BITS, frames_at, frames),
    ]
}

/// The file's header, and one of a segment that has all of it.
fn file_header(section_table: u64, sections: u16) -> Vec<u8> {
    let mut header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // A position-independent program for x86-64.
    header.extend([3, 0, 62, 0, 1, 0, 0, 0]);
    for word in [FUNCTIONS[0], 64, section_table] {
        header.extend(word.to_le_bytes());
    }
    header.extend([0; 4]);
    for half in [64u16, 56, 1, 64, sections, sections - 1] {
        header.extend(half.to_le_bytes());
    }
    // Loaded, to be read and run, from the file's begin.
    header.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, 0, 0, section_table, section_table, 0x1000] {
        header.extend(u64::to_le_bytes(word));
    }
    header
}
