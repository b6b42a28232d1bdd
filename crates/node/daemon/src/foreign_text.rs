//! Texts that an app or a peer has chosen.

use std::borrow::Cow;

/// Longest text that an app or a peer has chosen, in bytes.
const TEXT_BYTES_MAX: usize = 512;

/// A text that an app or a peer has chosen, as it is written down.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let mut end = TEXT_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let shown = &text[..end];
    Cow::Owned(format!("{shown}… ({} bytes)", text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_name_is_cut() {
        assert_eq!(cut("kv.Kv"), "kv.Kv");
        let long = "ä".repeat(30_000);
        let long = cut(&long);
        assert!(
            long.len() < TEXT_BYTES_MAX + 30 && long.ends_with("… (60000 bytes)"),
            "{long}"
        );
    }
}
