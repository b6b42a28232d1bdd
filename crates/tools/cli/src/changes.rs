//! `provost changes`: the last changes of what runs, and how far each has come.

use std::time::{Duration, SystemTime};

use provost_admin::v1::admin_client::AdminClient;
use provost_admin::v1::{ListChangesRequest, ListChangesResponse, LiveChange};

use crate::watch::{Listing, Shown, show};
use provost_terminal::admin::Node;
use provost_terminal::failure::Failure;
use provost_terminal::numbers::{age, time_us};
use provost_terminal::table::{Align, Canvas, Cell, Look, Table};

/// Lists the changes, the newest first.
pub(crate) async fn changes(listing: &Listing) -> Result<(), Failure> {
    show(listing, async |node: &mut Node| {
        node.call(ListChangesRequest {}, AdminClient::list_changes).await
    })
    .await
}

impl Shown for ListChangesResponse {
    fn draw(&self, canvas: Canvas) -> String {
        if self.changes.is_empty() {
            return "nothing was changed since this process began\n".to_owned();
        }
        let mut table = Table::new(&[
            ("AGO", Align::Right),
            ("STATE", Align::Left),
            ("PATHS", Align::Right),
            ("PAUSE MAX", Align::Right),
            ("CHANGE", Align::Left),
        ]);
        for change in &self.changes {
            table.row([
                age(seconds_since(change.began_unix_us)).into(),
                Cell::new(&change.state, look(&change.state)),
                change.datapaths.into(),
                time_us(change.pause_us_max).into(),
                said(change).into(),
            ]);
        }
        table.draw(canvas)
    }
}

fn said(change: &LiveChange) -> String {
    if change.problem.is_empty() {
        change.summary.clone()
    } else {
        format!("{}: {}", change.summary, change.problem)
    }
}

fn look(state: &str) -> Look {
    match state {
        "committed" => Look::Good,
        "rolled back" | "refused" => Look::Bad,
        _ => Look::Normal,
    }
}

/// Seconds since a time in microseconds since 1970.
fn seconds_since(unix_us: i64) -> f64 {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(unix_us).unwrap_or(0));
    at.elapsed().map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_a_row_with_why_it_came_no_further() {
        let began = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let change = |summary: &str, state: &str, problem: &str| LiveChange {
            summary: summary.into(),
            state: state.into(),
            problem: problem.into(),
            began_unix_us: (began.as_micros() - 90_500_000) as i64,
            datapaths: 3,
            pause_us_max: 42.0,
            ..LiveChange::default()
        };
        let changes = vec![
            change("attach limit", "refused", "the name is taken"),
            change("attached limit on 3 datapaths", "committed", ""),
        ];
        let drawn = ListChangesResponse { changes }.draw(Canvas::plain());
        let expected = "       AGO  STATE      PATHS  PAUSE MAX  CHANGE
1 min 30 s  refused        3      42 µs  attach limit: the name is taken
1 min 30 s  committed      3      42 µs  attached limit on 3 datapaths
";
        assert_eq!(drawn, expected);
        assert!(
            ListChangesResponse::default()
                .draw(Canvas::plain())
                .contains("nothing was changed")
        );
    }
}
