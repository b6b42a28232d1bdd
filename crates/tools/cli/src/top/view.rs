//! What of the snapshots is shown: order, filter, pause. Knows no terminal.

use std::cmp::Ordering;

use clap::ValueEnum;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use provost_admin::v1::{MethodStats, Snapshot};

use provost_terminal::numbers;
use provost_terminal::table::clean;

/// Characters of a filter, at most.
const FILTER_MAX: usize = 64;

/// How calls come to be counted.
const ATTACH: &str = "provost policy attach --kind metrics --name metrics";

/// A column of the table.
pub(crate) struct Column {
    pub(crate) heading: &'static str,
    pub(crate) is_number: bool,
    pub(crate) key: SortKey,
}

const fn text(heading: &'static str, key: SortKey) -> Column {
    Column {
        heading,
        is_number: false,
        key,
    }
}

const fn number(heading: &'static str, key: SortKey) -> Column {
    Column {
        heading,
        is_number: true,
        key,
    }
}

/// The columns, from left to right.
pub(crate) const COLUMNS: [Column; 11] = [
    text("APP", SortKey::App),
    text("SIDE", SortKey::Side),
    text("SERVICE", SortKey::Service),
    text("METHOD", SortKey::Method),
    number("RATE/S", SortKey::Rate),
    number("ERRORS", SortKey::Errors),
    number("IN FLIGHT", SortKey::InFlight),
    number("P50", SortKey::P50),
    number("P99", SortKey::P99),
    number("QUEUED P99", SortKey::Queued),
    number("BYTES/S", SortKey::Bytes),
];

/// By what rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    App,
    Side,
    Service,
    Method,
    Rate,
    Errors,
    InFlight,
    P50,
    P99,
    Queued,
    Bytes,
}

/// What comes after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Show,
    End,
}

/// What keys mean at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    Commands,
    /// They write the filter.
    Filter,
}

/// What is shown.
#[derive(Debug)]
pub(crate) struct View {
    snapshot: Snapshot,
    sort: SortKey,
    smallest_first: bool,
    pub(crate) filter: String,
    pub(crate) keys: Keys,
    pub(crate) paused: bool,
    /// Rows that were scrolled past.
    pub(crate) scrolled: usize,
    /// Why there is nothing new.
    pub(crate) problem: Option<&'static str>,
}

impl View {
    pub(crate) fn new(sort: SortKey, filter: String) -> View {
        View {
            snapshot: Snapshot::default(),
            sort,
            smallest_first: false,
            filter,
            keys: Keys::Commands,
            paused: false,
            scrolled: 0,
            problem: None,
        }
    }

    /// Takes what is new, unless it is paused.
    pub(crate) fn take(&mut self, snapshot: Snapshot) {
        self.problem = None;
        if !self.paused {
            self.snapshot = snapshot;
        }
    }

    /// The node cannot be reached.
    pub(crate) fn lost(&mut self) {
        self.problem = Some("the daemon does not answer: waiting for it");
    }

    pub(crate) fn sort(&self) -> SortKey {
        self.sort
    }

    /// The rows that pass the filter, in order. Methods that nobody has called yet are not shown.
    pub(crate) fn rows(&self) -> Vec<&MethodStats> {
        let wanted = self.filter.to_lowercase();
        let passes = |row: &&MethodStats| {
            let is_used = row.calls > 0 || row.in_flight > 0 || row.rate > 0.0;
            is_used
                && [&row.app, &row.service, &row.method]
                    .iter()
                    .any(|text| text.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<_> = self.snapshot.methods.iter().filter(passes).collect();
        rows.sort_by(|one, other| {
            let by_key = compare(self.sort, one, other);
            let by_key = if self.smallest_first {
                by_key.reverse()
            } else {
                by_key
            };
            by_key.then_with(|| names(one).cmp(&names(other)))
        });
        rows
    }

    /// Calls of all apps that have begun and not ended, whoever counts them.
    pub(crate) fn calls_in_flight(&self) -> u64 {
        self.snapshot.calls_in_flight
    }

    /// Why there are no rows, and what to do.
    pub(crate) fn nothing_shown(&self) -> String {
        let snapshot = &self.snapshot;
        if snapshot.at_unix_us == 0 {
            "the first interval is not over yet".to_owned()
        } else if snapshot.methods.is_empty() && snapshot.counted_by.is_empty() {
            format!("nobody counts the calls of this node: {ATTACH}")
        } else if self.filter.is_empty() {
            "no calls since the policies that count them were attached".to_owned()
        } else {
            format!("no app, service or method contains \"{}\"", clean(&self.filter))
        }
    }

    /// Calls and errors per second over all rows that are shown. (A call within the node counts at both its ends.)
    pub(crate) fn sums(&self) -> (f64, f64) {
        let rows = self.rows();
        let sum = |value: fn(&MethodStats) -> f64| rows.iter().map(|row| value(row)).sum();
        (sum(|row| row.rate), sum(|row| row.error_rate))
    }

    /// Does what a key means.
    pub(crate) fn press(&mut self, key: KeyEvent) -> After {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return After::End;
        }
        match self.keys {
            Keys::Filter => self.edit_filter(key.code),
            Keys::Commands => return self.command(key.code),
        }
        After::Show
    }

    fn command(&mut self, key: KeyCode) -> After {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return After::End,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('r') => self.smallest_first = !self.smallest_first,
            KeyCode::Char('s') | KeyCode::Right => self.sort_by(1),
            KeyCode::Char('S') | KeyCode::Left => self.sort_by(COLUMNS.len() - 1),
            KeyCode::Char('/') => {
                self.keys = Keys::Filter;
                self.filter.clear();
            }
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        After::Show
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.keys = Keys::Commands,
            KeyCode::Esc => {
                self.keys = Keys::Commands;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX => self.filter.push(c),
            _ => {}
        }
        self.scrolled = 0;
    }

    /// Sorts by the column so many places further right.
    fn sort_by(&mut self, places: usize) {
        let at = COLUMNS
            .iter()
            .position(|column| column.key == self.sort)
            .unwrap_or(0);
        self.sort = COLUMNS[(at + places) % COLUMNS.len()].key;
    }
}

/// Names ascending, numbers descending.
fn compare(key: SortKey, one: &MethodStats, other: &MethodStats) -> Ordering {
    let larger = |value: fn(&MethodStats) -> f64| value(other).total_cmp(&value(one));
    match key {
        SortKey::App => one.app.cmp(&other.app),
        SortKey::Side => one.side.cmp(&other.side),
        SortKey::Service => one.service.cmp(&other.service),
        SortKey::Method => one.method.cmp(&other.method),
        SortKey::Rate => larger(|row| row.rate),
        SortKey::Errors => larger(|row| row.error_rate),
        SortKey::InFlight => other.in_flight.cmp(&one.in_flight),
        SortKey::P50 => larger(|row| row.latency_us_p50),
        SortKey::P99 => larger(|row| row.latency_us_p99),
        SortKey::Queued => larger(|row| row.time_in_queue_us_p99),
        SortKey::Bytes => larger(|row| row.bytes_per_s),
    }
}

fn names(row: &MethodStats) -> [&str; 4] {
    [&row.app, &row.service, &row.method, &row.side]
}

/// The cells of a row, by column.
pub(crate) fn cells(row: &MethodStats) -> [String; COLUMNS.len()] {
    let errors = if row.error_rate > 0.0 {
        numbers::percent(row.error_rate / row.rate.max(row.error_rate))
    } else {
        "-".to_owned()
    };
    [
        clean(&row.app),
        clean(&row.side),
        clean(&row.service),
        clean(&row.method),
        numbers::rate(row.rate),
        errors,
        row.in_flight.to_string(),
        numbers::time_us(row.latency_us_p50),
        numbers::time_us(row.latency_us_p99),
        numbers::time_us(row.time_in_queue_us_p99),
        numbers::bytes(row.bytes_per_s as u64),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn snapshot() -> Snapshot {
        let row = |app: &str, method: &str, rate, error_rate, p99| MethodStats {
            app: app.into(),
            side: "client".into(),
            service: "kv.Kv".into(),
            method: method.into(),
            rate,
            error_rate,
            latency_us_p50: p99 / 2.0,
            latency_us_p99: p99,
            time_in_queue_us_p99: 20.0,
            ..MethodStats::default()
        };
        Snapshot {
            at_unix_us: 1,
            interval_s: 1.0,
            counted_by: vec!["metrics".into()],
            calls_in_flight: 7,
            policies: Vec::new(),
            methods: vec![
                row("bank", "Scan", 3.0, 0.0, 9000.0),
                row("shop", "Get", 1500.0, 0.0, 120.0),
                row("shop", "Put", 40.0, 10.0, 300.0),
            ],
        }
    }

    fn view() -> View {
        let mut view = View::new(SortKey::Rate, String::new());
        view.take(snapshot());
        view
    }

    fn press(view: &mut View, keys: &str) -> After {
        let mut after = After::Show;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                key => KeyCode::Char(key),
            };
            after = view.press(KeyEvent::new(code, KeyModifiers::NONE));
        }
        after
    }

    fn methods(view: &View) -> Vec<&str> {
        view.rows().iter().map(|row| row.method.as_str()).collect()
    }

    #[test]
    fn rows_are_sorted_by_the_chosen_column() {
        let mut view = view();
        assert_eq!(methods(&view), ["Get", "Put", "Scan"]);
        press(&mut view, "r");
        assert_eq!(methods(&view), ["Scan", "Put", "Get"]);
        press(&mut view, "rs");
        assert_eq!((view.sort(), methods(&view)[0]), (SortKey::Errors, "Put"));
        press(&mut view, "SS");
        assert_eq!(view.sort(), SortKey::Method);
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut view = view();
        press(&mut view, "/SHOP\n");
        assert_eq!(methods(&view), ["Get", "Put"]);
        press(&mut view, "/q");
        assert_eq!((view.filter.as_str(), view.keys), ("q", Keys::Filter));
        press(&mut view, "\x1b");
        assert_eq!(methods(&view).len(), 3);
    }

    #[test]
    fn an_empty_table_says_why_it_is_empty() {
        let mut view = View::new(SortKey::Rate, String::new());
        assert!(view.nothing_shown().contains("interval"));
        let mut look = Snapshot {
            at_unix_us: 1,
            ..Snapshot::default()
        };
        view.take(look.clone());
        assert!(
            view.nothing_shown()
                .contains("provost policy attach --kind metrics")
        );
        look.counted_by.push("metrics".into());
        view.take(look);
        assert!(view.nothing_shown().starts_with("no calls"));
        press(&mut view, "/shop\n");
        assert!(view.nothing_shown().contains("\"shop\""));
    }

    #[test]
    fn a_pause_keeps_what_was_there_and_q_ends() {
        let mut view = view();
        press(&mut view, "p");
        view.take(Snapshot::default());
        assert_eq!(methods(&view).len(), 3);
        press(&mut view, "p");
        view.take(Snapshot::default());
        assert!(methods(&view).is_empty());
        assert_eq!(press(&mut view, "q"), After::End);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.press(interrupt), After::End);
    }

    #[test]
    fn errors_are_a_share_of_the_calls() {
        let snapshot = snapshot();
        let errors: Vec<_> = snapshot.methods.iter().map(|row| cells(row)[5].clone()).collect();
        assert_eq!(errors, ["-", "-", "25.0 %"]);
        assert_eq!(view().sums(), (1543.0, 10.0));
    }
}
