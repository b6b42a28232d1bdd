//! What goes to standard output.

use std::fmt::Write as _;
use std::io::Write;

use serde::Serialize;

use crate::failure::Failure;
use crate::table::is_odd;

/// An indented JSON document.
pub fn json_document(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(unwritable)?;
    Ok(escaped(text) + "\n")
}

/// JSON in which no text of others reaches the terminal but as text: serde_json escapes only what JSON demands.
fn escaped(json: String) -> String {
    let is_to_escape = |c: char| c != '\n' && is_odd(c);
    if !json.contains(is_to_escape) {
        return json;
    }
    // Such characters stand within strings alone, and none of them is beyond 16 bits.
    json.chars().fold(String::new(), |mut out, c| {
        if is_to_escape(c) {
            let _ = write!(out, "\\u{:04x}", u32::from(c));
        } else {
            out.push(c);
        }
        out
    })
}

/// A JSON document on a line.
pub fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(value).map_err(unwritable)?;
    Ok(escaped(text) + "\n")
}

fn unwritable(error: serde_json::Error) -> Failure {
    Failure::failed(format!("cannot write JSON: {error}"))
}

/// What became of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOutcome {
    Whole,
    /// The reader has gone away, such as `head`.
    Unread,
}

/// Writes to standard output. A reader that has gone away ends the program quietly.
pub fn print(text: &str) -> Result<(), Failure> {
    match write(text)? {
        WriteOutcome::Whole => Ok(()),
        WriteOutcome::Unread => std::process::exit(0),
    }
}

/// Writes to standard output what is done. It goes on, whether somebody reads that or not.
pub fn print_progress(text: &str) -> Result<(), Failure> {
    write(text).map(drop)
}

fn write(text: &str) -> Result<WriteOutcome, Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Ok(()) => Ok(WriteOutcome::Whole),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(WriteOutcome::Unread),
        Err(error) => Err(Failure::failed(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_says_the_same_and_nothing_to_a_terminal() {
        let said = "a\u{9b}2J\u{202e}b\nc é";
        for json in [json_line(&said).unwrap(), json_document(&[said]).unwrap()] {
            assert!(
                !json.trim_end().contains(|c: char| c != '\n' && is_odd(c)),
                "{json:?}"
            );
            let back: serde_json::Value = serde_json::from_str(&json).unwrap();
            let back = back.get(0).unwrap_or(&back);
            assert_eq!(back, said);
        }
    }
}
