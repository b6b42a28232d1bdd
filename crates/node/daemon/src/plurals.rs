//! Counts with their nouns, in the texts that people read.

/// So many of something: `1 entry`, `2 entries`.
pub(crate) fn counted(count: usize, one: &str, many: &str) -> String {
    let noun = if count == 1 { one } else { many };
    format!("{count} {noun}")
}
