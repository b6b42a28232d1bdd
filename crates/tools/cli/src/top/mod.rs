//! `provost top`: what goes on, by app, service and method.
//!
//! ```text
//! node ─ snapshots ─┐
//! keyboard ─ keys ──┼─► view (what is shown of it: order, filter, pause) ─► screen
//! ```

mod screen;
mod view;

use std::time::Duration;

use clap::Args;
use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{Snapshot, WatchRequest};
use tokio::sync::mpsc;
use tonic::Streaming;

use provost_terminal::admin::{Node, Target, seconds};
use provost_terminal::failure::{Exit, Failure};
use provost_terminal::output::{json_document, json_line, print};
use provost_terminal::table::{Align, Canvas, Cell, Look, Table};

use screen::{Input, Screen};
use view::{After, COLUMNS, SortKey, View};

/// Between two attempts to reach a daemon that went away.
const RECONNECT: Duration = Duration::from_millis(500);

/// `provost top`.
#[derive(Args, Debug)]
pub(crate) struct Top {
    /// How often to look, in seconds
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// The column by which rows are sorted, the largest first
    #[arg(long, value_enum, default_value_t = SortKey::Rate)]
    sort: SortKey,
    /// Only rows whose app, service or method contains this
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    filter: String,
    /// Print one table after one interval, and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows it until it is told to end.
pub(crate) async fn run(asked: Top) -> Result<(), Failure> {
    let mut view = View::new(asked.sort, asked.filter.clone());
    let mut node = Node::connect(&asked.target).await?;
    let mut snapshots = watch(&mut node, asked.interval).await?;
    if asked.once || asked.target.json {
        return report(&asked, &node, &mut snapshots, &mut view).await;
    }
    let Canvas { width: Some(_), .. } = Canvas::of_stdout() else {
        let message = "standard output is no terminal: use --once for a table, or --json";
        return Err(Failure::usage(message));
    };
    let screen = Screen::open()?;
    interact(&asked, view, snapshots, screen).await
}

/// One table, or lines of JSON.
async fn report(
    asked: &Top,
    node: &Node,
    snapshots: &mut Streaming<Snapshot>,
    view: &mut View,
) -> Result<(), Failure> {
    loop {
        let snapshot = next(snapshots).await.map_err(|status| node.failure(&status))?;
        match (asked.target.json, asked.once) {
            (true, true) => return print(&json_document(&snapshot)?),
            (true, false) => print(&json_line(&snapshot)?)?,
            (false, _) => {
                view.take(snapshot);
                return print(&draw(view, Canvas::of_stdout()));
            }
        }
    }
}

async fn watch(node: &mut Node, interval_s: f64) -> Result<Streaming<Snapshot>, Failure> {
    let request = WatchRequest {
        interval_ms: (interval_s * 1000.0) as u32,
    };
    node.stream(request, AdminClient::watch).await
}

async fn next(snapshots: &mut Streaming<Snapshot>) -> Result<Snapshot, tonic::Status> {
    snapshots
        .message()
        .await?
        .ok_or_else(|| tonic::Status::unavailable("the service has ended"))
}

async fn interact(
    asked: &Top,
    mut view: View,
    snapshots: Streaming<Snapshot>,
    mut screen: Screen,
) -> Result<(), Failure> {
    let (found, mut looks) = mpsc::channel(4);
    let reader = tokio::spawn(keep_looking(
        asked.target.clone(),
        asked.interval,
        snapshots,
        found,
    ));
    let outcome = loop {
        screen.draw(&mut view)?;
        let input = tokio::select! {
            input = screen.input() => input?,
            look = looks.recv() => {
                match look {
                    Some(Ok(snapshot)) => view.take(snapshot),
                    Some(Err(failure)) if failure.exit == Exit::Unreachable => view.lost(),
                    Some(Err(failure)) => break Err(failure),
                    None => break Ok(()),
                }
                continue;
            }
        };
        match input {
            Input::End => break Ok(()),
            Input::Resized => {}
            Input::Key(key) => {
                if view.press(key) == After::End {
                    break Ok(());
                }
            }
        }
    };
    reader.abort();
    outcome
}

/// Snapshots for ever: a daemon that is replaced or restarted is waited for.
async fn keep_looking(
    target: Target,
    interval_s: f64,
    mut snapshots: Streaming<Snapshot>,
    found: mpsc::Sender<Result<Snapshot, Failure>>,
) {
    loop {
        match next(&mut snapshots).await {
            Ok(snapshot) => {
                if found.send(Ok(snapshot)).await.is_err() {
                    return;
                }
                continue;
            }
            Err(status) => {
                let failure = Failure::answered("top", &status);
                let failure = match failure.exit {
                    Exit::Denied | Exit::Refused => failure,
                    _ => Failure::new(Exit::Unreachable, failure.message),
                };
                if found.send(Err(failure)).await.is_err() {
                    return;
                }
            }
        }
        loop {
            tokio::time::sleep(RECONNECT).await;
            let Ok(mut again) = Node::connect(&target).await else {
                continue;
            };
            if let Ok(stream) = watch(&mut again, interval_s).await {
                snapshots = stream;
                break;
            }
        }
    }
}

/// The plain table.
fn draw(view: &View, canvas: Canvas) -> String {
    let rows = view.rows();
    if rows.is_empty() {
        return view.nothing_shown() + "\n";
    }
    let columns: Vec<_> = COLUMNS
        .iter()
        .map(|column| {
            (
                column.heading,
                if column.is_number {
                    Align::Right
                } else {
                    Align::Left
                },
            )
        })
        .collect();
    let mut table = Table::new(&columns);
    for row in rows {
        let bad = row.error_rate > 0.0;
        let cells = view::cells(row);
        table.row(std::array::from_fn::<Cell, { COLUMNS.len() }, _>(|at| {
            let is_errors = COLUMNS[at].heading == "ERRORS";
            let look = if is_errors && bad { Look::Bad } else { Look::Normal };
            Cell::new(&cells[at], look)
        }));
    }
    table.draw(canvas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use view::tests::snapshot;

    #[test]
    fn the_plain_table_is_sorted_and_aligned() {
        let mut view = View::new(SortKey::Rate, String::new());
        view.take(snapshot());
        let drawn = draw(&view, Canvas::plain());
        let expected = "\
APP   SIDE    SERVICE  METHOD  RATE/S  ERRORS  IN FLIGHT     P50     P99  QUEUED P99  BYTES/S
shop  client  kv.Kv    Get       1500       -          0   60 µs  120 µs       20 µs      0 B
";
        assert!(drawn.starts_with(expected), "{drawn}");
        let rows: Vec<_> = drawn
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().nth(3).unwrap())
            .collect();
        assert_eq!(rows, ["Get", "Put", "Scan"], "{drawn}");
    }
}
