//! For tests: where in the memory of a process something is.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use memchr::memmem::Finder;

/// Bytes of memory that are read at once.
const READ_BYTES: usize = 1 << 20;
/// What a secret is covered with while it is looked for, so that this process's own copy is not found.
const COVER: u8 = 0x5A;

/// A secret that is looked for. It is kept covered, so that it can be looked for in the process that looks.
#[derive(Clone, Debug)]
pub struct SoughtSecret {
    name: String,
    covered: Vec<u8>,
}

impl SoughtSecret {
    /// # Panics
    /// It is so short that it would be found by chance.
    #[must_use]
    pub fn new(name: &str, secret: &[u8]) -> SoughtSecret {
        assert!(secret.len() >= 12, "{name} is too short to be looked for");
        SoughtSecret {
            name: name.to_owned(),
            covered: secret.iter().map(|byte| byte ^ COVER).collect(),
        }
    }

    /// What it is called in what was found.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Where copies of secrets are in what a process may write: its heap, its stacks, its variables and memory that it shares. Names of secrets,
/// with the part of the memory that each copy is in.
///
/// # Errors
/// The process is not there, or this one may not read its memory.
pub fn copies_in(process: u32, secrets: &[SoughtSecret]) -> io::Result<Vec<String>> {
    let memory = File::open(format!("/proc/{process}/mem"))?;
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let longest = secrets.iter().map(|secret| secret.covered.len()).max();
    let finders: Vec<_> = secrets
        .iter()
        .map(|secret| (secret, Finder::new(&secret.covered)))
        .collect();
    let mut room = vec![0; READ_BYTES];
    let mut found = Vec::new();
    for (part, range) in maps.lines().filter_map(writable_part) {
        let mut at = range.start;
        while at < range.end {
            // What was read last is not found again where this process's own memory is read.
            room.fill(0);
            let bytes = &mut room[..READ_BYTES.min((range.end - at) as usize)];
            let read = read_covered(&memory, at, bytes);
            for (secret, finder) in &finders {
                let copies = finder.find_iter(&bytes[..read]);
                found.extend(copies.map(|copy| {
                    let place = at + copy as u64;
                    format!("{} at {place:#x} of {part}", secret.name)
                }));
            }
            // What lies across two reads is seen whole by one of them.
            at += (READ_BYTES - longest.unwrap_or(0)) as u64;
        }
    }
    room.fill(0);
    Ok(found)
}

/// Reads what is at a place, and covers it.
fn read_covered(memory: &File, at: u64, bytes: &mut [u8]) -> usize {
    // Memory that nothing lies behind, such as that of a device, cannot be read.
    let read = memory.read_at(bytes, at).unwrap_or(0);
    bytes[..read].iter_mut().for_each(|byte| *byte ^= COVER);
    read
}

/// A line of `/proc/PID/maps`, if the process may write there: what is mapped, and where.
fn writable_part(line: &str) -> Option<(&str, Range<u64>)> {
    let mut words = line.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let is_writable = rights.starts_with("rw");
    let range = hex(from)?..hex(to)?;
    let name = words.nth(3).unwrap_or_default().trim();
    let part = if name.is_empty() {
        "memory without a name"
    } else {
        name
    };
    is_writable.then_some((part, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_while_it_is_there_and_not_afterwards() {
        let sought = SoughtSecret::new("the secret", &[0xC3; 40]);
        let me = std::process::id();
        let copies = |sought: &SoughtSecret| copies_in(me, std::slice::from_ref(sought)).unwrap();
        let mut secret = vec![0xC3_u8; 40];
        std::hint::black_box(&mut secret);
        let found = copies(&sought);
        assert!(
            found.iter().any(|copy| copy.starts_with("the secret at")),
            "{found:?}"
        );
        secret.fill(0);
        std::hint::black_box(&mut secret);
        crate::wipe_stack();
        assert_eq!(copies(&sought), Vec::<String>::new());
    }
}
