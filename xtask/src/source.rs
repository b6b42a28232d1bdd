//! Rust source with comments and literals blanked, so that rules match code and nothing else.

/// The text with every comment, string and character literal replaced by spaces; lines keep their numbers.
pub(crate) fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let skipped = literal_or_comment_bytes(bytes, at);
        if skipped == 0 {
            code.push(bytes[at]);
            at += 1;
            continue;
        }
        let blank = |byte: &u8| if *byte == b'\n' { b'\n' } else { b' ' };
        code.extend(bytes[at..at + skipped].iter().map(blank));
        at += skipped;
    }
    String::from_utf8_lossy(&code).into_owned()
}

/// Whether `word` stands in `line` with no identifier character beside it.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let part_of_name = |character: char| character.is_alphanumeric() || character == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part_of_name)
            && !line[at + word.len()..].chars().next().is_some_and(part_of_name)
    })
}

fn literal_or_comment_bytes(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let inside_name = at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment_bytes(rest),
        [b'"', ..] => quoted_bytes(rest),
        [b'r', b'"' | b'#', ..] if !inside_name => raw_string_bytes(rest),
        [b'\'', ..] => character_bytes(rest),
        _ => 0,
    }
}

fn block_comment_bytes(rest: &[u8]) -> usize {
    let mut depth = 0_u32;
    let mut at = 0;
    while at + 1 < rest.len() {
        match &rest[at..at + 2] {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_bytes(rest: &[u8]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn raw_string_bytes(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = &rest[2 + hashes..];
    body.windows(end.len())
        .position(|window| window == end)
        .map_or(rest.len(), |at| 2 + hashes + at + end.len())
}

/// A character literal, or nothing where the quote begins a lifetime.
fn character_bytes(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', ..] => rest[3..]
            .iter()
            .position(|byte| *byte == b'\'')
            .map_or(0, |at| 4 + at),
        [_, _, b'\'', ..] => 3,
        [_, first, ..] if !first.is_ascii() => rest
            .iter()
            .skip(1)
            .take(5)
            .position(|byte| *byte == b'\'')
            .map_or(0, |at| 2 + at),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked_and_code_stays() {
        let text = "let a = \"unsafe \\\" x\"; // unsafe\nlet b = r#\"unsafe \" \"#; /* unsafe /* */ unsafe */ fn c<'a>() {}\nlet d = '\"'; unsafe {}";
        let code = code_only(text);
        assert_eq!(code.lines().count(), 3);
        assert_eq!(code.matches("unsafe").count(), 1);
        assert!(code.contains("fn c<'a>() {}"));
        assert!(code.contains("unsafe {}"));
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe {", "unsafe"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(has_word("x.todo!()", "todo!"));
    }
}
