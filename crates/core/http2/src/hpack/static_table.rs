//! The static table (RFC 7541, appendix A), and how an encoder finds a name in it.

/// Entries of the static table. Index 0 is no entry.
pub const STATIC_ENTRIES: usize = 61;

#[rustfmt::skip]
static TABLE: [(&[u8], &[u8]); STATIC_ENTRIES] = [
    (b":authority", b""), (b":method", b"GET"), (b":method", b"POST"), (b":path", b"/"),
    (b":path", b"/index.html"), (b":scheme", b"http"), (b":scheme", b"https"), (b":status", b"200"),
    (b":status", b"204"), (b":status", b"206"), (b":status", b"304"), (b":status", b"400"),
    (b":status", b"404"), (b":status", b"500"), (b"accept-charset", b""), (b"accept-encoding", b"gzip, deflate"),
    (b"accept-language", b""), (b"accept-ranges", b""), (b"accept", b""), (b"access-control-allow-origin", b""),
    (b"age", b""), (b"allow", b""), (b"authorization", b""), (b"cache-control", b""),
    (b"content-disposition", b""), (b"content-encoding", b""), (b"content-language", b""), (b"content-length", b""),
    (b"content-location", b""), (b"content-range", b""), (b"content-type", b""), (b"cookie", b""),
    (b"date", b""), (b"etag", b""), (b"expect", b""), (b"expires", b""),
    (b"from", b""), (b"host", b""), (b"if-match", b""), (b"if-modified-since", b""),
    (b"if-none-match", b""), (b"if-range", b""), (b"if-unmodified-since", b""), (b"last-modified", b""),
    (b"link", b""), (b"location", b""), (b"max-forwards", b""), (b"proxy-authenticate", b""),
    (b"proxy-authorization", b""), (b"range", b""), (b"referer", b""), (b"refresh", b""),
    (b"retry-after", b""), (b"server", b""), (b"set-cookie", b""), (b"strict-transport-security", b""),
    (b"transfer-encoding", b""), (b"user-agent", b""), (b"vary", b""), (b"via", b""),
    (b"www-authenticate", b""),
];

/// Slots of the hash table over the names; a power of two.
const SLOTS: usize = 256;
/// By the hash of a name, the index of its first entry; the next slots if that one is taken.
static BY_NAME: [u8; SLOTS] = by_name();

/// Name and value of an index from 1 on.
#[must_use]
pub fn static_field(index: usize) -> Option<(&'static [u8], &'static [u8])> {
    TABLE.get(index.checked_sub(1)?).copied()
}

/// Where a field stands in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableMatch {
    /// An entry with this name and this value.
    Field(u32),
    /// An entry with this name alone.
    Name(u32),
}

/// The entry for a field, or for its name.
pub(super) fn find(name: &[u8], value: &[u8]) -> Option<TableMatch> {
    let first = first_of_name(name)?;
    let entries = TABLE[first - 1..].iter().enumerate();
    let same_value = entries
        .take_while(|(_, entry)| entry.0 == name)
        .find(|(_, entry)| entry.1 == value);
    Some(same_value.map_or(TableMatch::Name(first as u32), |(offset, _)| {
        TableMatch::Field((first + offset) as u32)
    }))
}

fn first_of_name(name: &[u8]) -> Option<usize> {
    let mut slot = hash(name);
    loop {
        let index = usize::from(BY_NAME[slot]);
        if index == 0 {
            return None;
        }
        if TABLE[index - 1].0 == name {
            return Some(index);
        }
        slot = (slot + 1) % SLOTS;
    }
}

const fn by_name() -> [u8; SLOTS] {
    let (mut slots, mut at) = ([0; SLOTS], 0);
    while at < STATIC_ENTRIES {
        let is_first = at == 0 || !is_same(TABLE[at].0, TABLE[at - 1].0);
        if is_first {
            let mut slot = hash(TABLE[at].0);
            while slots[slot] != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = at as u8 + 1;
        }
        at += 1;
    }
    slots
}

const fn is_same(left: &[u8], right: &[u8]) -> bool {
    let mut at = 0;
    while at < left.len() && at < right.len() {
        if left[at] != right[at] {
            return false;
        }
        at += 1;
    }
    left.len() == right.len()
}

/// Of the length, the first, the last and a middle byte: enough for these names.
const fn hash(name: &[u8]) -> usize {
    if name.is_empty() {
        return 0;
    }
    let (first, middle, last) = (name[0], name[name.len() / 2], name[name.len() - 1]);
    (name.len() * 7 + first as usize * 31 + middle as usize * 13 + last as usize * 3) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541, appendix A: every entry is found by itself, and by its name.
    #[test]
    fn rfc7541_a_every_entry_is_found() {
        for index in 1..=STATIC_ENTRIES {
            let (name, value) = static_field(index).unwrap();
            assert_eq!(find(name, value), Some(TableMatch::Field(index as u32)));
            let by_name = find(name, b"no entry has this");
            let Some(TableMatch::Name(first)) = by_name else {
                panic!("{by_name:?}")
            };
            assert_eq!(static_field(first as usize).unwrap().0, name);
        }
        assert_eq!(find(b"x-unknown", b""), None);
        assert_eq!((static_field(0), static_field(62)), (None, None));
    }
}
