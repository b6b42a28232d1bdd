//! Text of Rust with its indentation, and rustdoc from comments.

use std::fmt::Display;

/// Keeps the lints of the program that includes the code quiet; its authors cannot change it.
pub(super) const ALLOW: &str =
    "#[allow(dead_code, unreachable_pub, clippy::all, clippy::pedantic, rustdoc::all)]";

/// Generated text.
pub(super) struct Code {
    text: String,
    depth: usize,
}

impl Code {
    pub(super) fn new() -> Self {
        Code {
            text: String::new(),
            depth: 0,
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }

    /// One line. An empty one is left out where a block begins.
    pub(super) fn line(&mut self, line: impl Display) {
        let line = line.to_string();
        if line.is_empty() && self.text.ends_with("{\n") {
            return;
        }
        if !line.is_empty() {
            self.text.push_str(&"    ".repeat(self.depth));
            self.text.push_str(&line);
        }
        self.text.push('\n');
    }

    /// Lines between `open` and a brace that closes it.
    pub(super) fn block(&mut self, open: impl Display, inside: impl FnOnce(&mut Code)) {
        self.enter(open);
        inside(self);
        self.leave("}");
    }

    /// The lines of a block that is open already, and a brace that closes it.
    pub(super) fn block_end(&mut self, inside: impl FnOnce(&mut Code)) {
        self.depth += 1;
        inside(self);
        self.leave("}");
    }

    /// `open`, after which lines are deeper, until [`Code::leave`].
    pub(super) fn enter(&mut self, open: impl Display) {
        self.line(open);
        self.depth += 1;
    }

    pub(super) fn leave(&mut self, close: impl Display) {
        self.depth -= 1;
        self.line(close);
    }

    /// The comment of an element; `without` says what stands there if it has none.
    pub(super) fn docs(&mut self, comment: &str, without: impl Display) {
        if comment.trim().is_empty() {
            self.line(format_args!("/// {without}"))
        } else {
            self.doc_lines(comment)
        }
    }

    fn doc_lines(&mut self, comment: &str) {
        let mut fence: Option<&str> = None;
        for line in comment.lines() {
            let marks = fence_of(line);
            let shown = match (fence, marks) {
                (None, None) => not_indented_code(line),
                (None, Some(opened)) => {
                    fence = Some(opened);
                    // A block of code in a comment is not a test in Rust, unless it says so.
                    let is_plain = line.trim() == opened;
                    not_indented_code(line.trim_end()) + if is_plain { "text" } else { "" }
                }
                (Some(opened), Some(closed)) if closed.starts_with(opened) && line.trim() == closed => {
                    fence = None;
                    not_indented_code(line)
                }
                (Some(_), _) => line.to_owned(),
            };
            let shown: String = shown.chars().filter(|c| !NOT_IN_COMMENTS.contains(c)).collect();
            if shown.is_empty() {
                self.line("///")
            } else {
                self.line(format_args!("/// {shown}"))
            }
        }
        if let Some(opened) = fence {
            self.line(format_args!("/// {opened}"));
        }
    }
}

/// Characters that the compiler refuses in comments: a carriage return alone, and those that change the direction of text.
const NOT_IN_COMMENTS: [char; 10] = [
    '\r', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}',
    '\u{2069}',
];

/// The marks at a line's beginning that open or close a block of code, if it has some.
fn fence_of(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let mark = text.chars().next().filter(|first| "`~".contains(*first))?;
    let marks = &text[..text.len() - text.trim_start_matches(mark).len()];
    (marks.len() >= 3).then_some(marks)
}

/// Four spaces would make the line code, and so a test: it keeps three.
fn not_indented_code(line: &str) -> String {
    let text = line.trim_start_matches([' ', '\t']);
    let indent = (line.len() - text.len()).min(3);
    format!("{}{text}", " ".repeat(indent))
}

/// A number as a literal that strict lints take: long ones have separators.
pub(super) fn separated(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut literal = String::from(if number < 0 { "-" } else { "" });
    for (at, digit) in digits.char_indices() {
        if digits.len() > 5 && at > 0 && (digits.len() - at).is_multiple_of(3) {
            literal.push('_');
        }
        literal.push(digit);
    }
    literal
}
