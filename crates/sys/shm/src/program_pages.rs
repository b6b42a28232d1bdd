//! Pages of the program's own file that a process maps and that it has only read: code and constants.
//!
//! A program that has started keeps all code mapped that it has gone through for that, and most of it never runs again. The kernel keeps
//! such pages in its cache of files for as long as there is memory, so a process that gives them back and needs one again finds it
//! there: a minor fault for sixteen pages, about a microsecond.

use std::ffi::c_void;
use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// What this process maps, with what of each mapping is in memory.
const MAPPINGS: &str = "/proc/self/smaps";

/// Gives back the pages of the program's file that are as they are there. Those that run or are read again come back by themselves.
///
/// # Errors
/// The kernel does not tell the mappings, or does not give back the pages of one: locked ones, for example.
pub fn release_program_pages() -> io::Result<()> {
    let own_code = release_program_pages as *const () as usize;
    for range in unchanged(&std::fs::read_to_string(MAPPINGS)?, own_code) {
        let (address, bytes): (*mut c_void, usize) =
            (std::ptr::without_provenance_mut(range.start), range.len());
        // SAFETY: the mapping is of the program's own file, which is mapped as long as the process lives. It is private and cannot
        // be written, and no page of it differs from the file, so what is read there next is what was there before. A mapping with
        // relocations, or with a breakpoint of a debugger, has pages that differ.
        unsafe { madvise(address, bytes, Advice::LinuxDontNeed) }?;
    }
    Ok(())
}

/// A mapping of a process: where it is, how it may be used, and the file behind it (device and inode).
struct FileMapping<'a> {
    range: Range<usize>,
    access: &'a str,
    file: [&'a str; 2],
}

impl<'a> FileMapping<'a> {
    /// From the line that begins what is said of a mapping:
    /// `55e0c0a00000-55e0c0c00000 r-xp 00100000 fe:00 1234 /usr/bin/provostd`.
    fn read(line: &'a str) -> Option<FileMapping<'a>> {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (access, _offset) = (words.next()?, words.next()?);
        Some(FileMapping {
            range: address(start)?..address(end)?,
            access,
            file: [words.next()?, words.next()?],
        })
    }

    fn is_read_only(&self) -> bool {
        self.access.ends_with('p') && !self.access.contains('w')
    }
}

/// Private mappings of the file with this code that cannot be written, and of which no page was written before.
fn unchanged(mappings: &str, code: usize) -> Vec<Range<usize>> {
    let all = || mappings.lines().filter_map(FileMapping::read);
    let Some(program) = all().find(|mapping| mapping.range.contains(&code)) else {
        return Vec::new();
    };
    let mut ranges = Vec::new();
    let mut last = None;
    for line in mappings.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            let read_only = last.take();
            ranges.extend(read_only.filter(|_| kib.trim() == "0 kB"));
        } else if let Some(mapping) = FileMapping::read(line) {
            let is_ours = mapping.file == program.file && mapping.is_read_only();
            last = is_ours.then_some(mapping.range);
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
1000-3000 r--p 00000000 fe:00 77 /usr/bin/provostd
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
3000-5000 r-xp 00002000 fe:00 77 /usr/bin/provostd
Anonymous:             0 kB
5000-6000 r--p 00004000 fe:00 77 /usr/bin/provostd
Anonymous:             4 kB
6000-7000 rw-p 00005000 fe:00 77 /usr/bin/provostd
Anonymous:             0 kB
7000-8000 r--s 00000000 fe:00 77 /usr/bin/provostd
Anonymous:             0 kB
8000-9000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
9000-a000 r--p 00000000 00:00 0
Anonymous:             0 kB
a000-b000 r-xp 00000000 fe:00 79 /usr/lib/libc.so.6
Anonymous:             0 kB
";

    #[test]
    fn only_what_is_as_in_its_file_is_given_back() {
        assert_eq!(unchanged(SAMPLE, 0x3010), [0x1000..0x3000, 0x3000..0x5000]);
        assert_eq!(unchanged(SAMPLE, 0xa000).first(), Some(&(0xa000..0xb000)));
        assert_eq!(unchanged(SAMPLE, 0xb000), []);
        assert_eq!(unchanged("1000-3000 r-xp\nAnonymous: 0 kB\n", 0x1000), []);
    }

    /// How much of this program's file is in this process's memory, in KiB.
    fn program_kib() -> u64 {
        let mappings = std::fs::read_to_string(MAPPINGS).unwrap();
        let code = program_kib as *const () as usize;
        let all = || mappings.lines().filter_map(FileMapping::read);
        let program = all().find(|mapping| mapping.range.contains(&code)).unwrap();
        let (mut is_ours, mut sum) = (false, 0);
        for line in mappings.lines() {
            if let Some(mapping) = FileMapping::read(line) {
                is_ours = mapping.file == program.file;
            } else if let Some(kib) = line.strip_prefix("Rss:").filter(|_| is_ours) {
                sum += kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
            }
        }
        sum
    }

    #[test]
    fn pages_are_given_back_and_come_back() {
        let before = program_kib();
        release_program_pages().unwrap();
        let after = program_kib();
        assert!(
            after < before,
            "{before} KiB of the program before, {after} after"
        );
        // Code and constants are as they were.
        assert_eq!(unchanged(SAMPLE, 0x1000).len(), 2);
    }
}
