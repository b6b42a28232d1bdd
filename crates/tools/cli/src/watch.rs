//! Listings: shown once, or again and again.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::Instant;

use provost_terminal::admin::{Node, Target};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, json_line, print};
use provost_terminal::table::{Canvas, Look, clean, fit};

/// Options of commands that show what there is.
#[derive(Args, Clone, Debug)]
pub(crate) struct Listing {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Show it again every so many seconds [default: 2], until interrupted
    #[arg(long, short = 'w', value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = provost_terminal::admin::seconds)]
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
    use provost_terminal::table::Colour;

    #[tokio::test]
    async fn a_node_that_does_not_answer_is_told_from_one_that_is_not_there() {
        use provost_admin::v1::admin_client::AdminClient;
        use provost_admin::v1::{GetStatusRequest, WatchRequest};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mut node = Node::connect_to(&path, Duration::from_millis(50))
            .await
            .unwrap_or_else(|failure| panic!("{failure}"));
        let asked = node.call(GetStatusRequest {}, AdminClient::get_status).await;
        let watched = node.stream(WatchRequest { interval_ms: 1 }, AdminClient::watch);
        let waited = tokio::time::timeout(Duration::from_secs(60), watched).await;
        for failure in [asked.unwrap_err(), waited.unwrap().err().unwrap()] {
            assert_eq!(failure.exit, Exit::TimedOut, "{failure}");
            assert!(failure.message.contains("--timeout"), "{failure}");
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
