//! Listings: shown once, or again and again.

use std::fmt::Write as _;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

use crate::admin::{Node, Target};
use crate::failure::{Exit, Failure};
use crate::table::{Canvas, Look, clean, fit, is_odd};

/// Options of commands that show what there is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Listing {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Show it again every so many seconds [default: 2], until interrupted
    #[arg(long, short = 'w', value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = crate::admin::seconds)]
    pub(crate) watch: Option<f64>,
}

/// What a listing shows.
pub(crate) trait Shown: Serialize {
    /// For people.
    fn draw(&self, canvas: Canvas) -> String;
}

/// Shows what `ask` gets from the node.
pub(crate) async fn show<T: Shown>(
    listing: &Listing,
    ask: impl AsyncFn(&mut Node) -> Result<T, Failure>,
) -> Result<(), Failure> {
    let once = async || ask(&mut Node::connect(&listing.target).await?).await;
    match listing.watch {
        None => {
            let shown = once().await?;
            print(&if listing.target.json {
                json_document(&shown)?
            } else {
                shown.draw(Canvas::of_stdout())
            })
        }
        Some(interval_s) => again_and_again(listing, Duration::from_secs_f64(interval_s), once).await,
    }
}

async fn again_and_again<T: Shown>(
    listing: &Listing,
    interval: Duration,
    once: impl AsyncFn() -> Result<T, Failure>,
) -> Result<(), Failure> {
    loop {
        let next = Instant::now() + interval;
        let canvas = Canvas::of_stdout();
        let shown = once().await;
        match shown {
            Ok(shown) if listing.target.json => print(&json_line(&shown)?)?,
            Ok(shown) => print(&frame(&shown.draw(canvas), canvas, interval))?,
            // On a terminal a daemon that is replaced or restarted is waited for.
            Err(failure) if canvas.width.is_some() && failure.exit == Exit::Unreachable => {
                let text = Look::Bad.paint(&format!("{failure}\n"), canvas);
                print(&frame(&text, canvas, interval))?;
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep_until(next).await;
    }
}

/// On a terminal: over what was there before, without flicker. Else: one after the other.
fn frame(text: &str, canvas: Canvas, interval: Duration) -> String {
    if canvas.width.is_none() {
        return format!("{text}\n");
    }
    let heading = format!("every {} s, Ctrl-C ends", interval.as_secs_f64());
    let mut frame = String::from("\x1b[H");
    for line in std::iter::once(Look::Faint.paint(&heading, canvas).as_str()).chain(text.lines()) {
        frame.push_str(line);
        frame.push_str("\x1b[K\n");
    }
    frame.push_str("\x1b[J");
    frame
}

/// An indented JSON document.
pub(crate) fn json_document(value: &impl Serialize) -> Result<String, Failure> {
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
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(value).map_err(unwritable)?;
    Ok(escaped(text) + "\n")
}

fn unwritable(error: serde_json::Error) -> Failure {
    Failure::failed(format!("cannot write JSON: {error}"))
}

/// Writes to standard output. A reader that has gone away, such as `head`, ends the program quietly.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::failed(format!(
            "cannot write to standard output: {error}"
        ))),
    }
}

/// Where the value of a fact stands in its line.
pub(crate) const FACT_AT: usize = 13;

/// A line `name: value`, its name in a column of this width.
pub(crate) fn fact(name: &str, value: &str, canvas: Canvas) -> String {
    const NAME_WIDTH: usize = FACT_AT - 1;
    let value = clean(value);
    let value = match canvas.width {
        Some(width) => fit(&value, width.saturating_sub(NAME_WIDTH + 1).max(1)),
        None => value,
    };
    format!(
        "{} {value}\n",
        Look::Heading.paint(&format!("{name:<NAME_WIDTH$}"), canvas)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Colour;

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

    #[test]
    fn a_frame_overwrites_on_a_terminal_and_follows_elsewhere() {
        let canvas = Canvas {
            width: Some(80),
            colour: Colour::Plain,
        };
        let drawn = frame("a\nb\n", canvas, Duration::from_secs(2));
        assert_eq!(
            drawn,
            "\x1b[Hevery 2 s, Ctrl-C ends\x1b[K\na\x1b[K\nb\x1b[K\n\x1b[J"
        );
        assert_eq!(frame("a\n", Canvas::plain(), Duration::from_secs(2)), "a\n\n");
    }
}
