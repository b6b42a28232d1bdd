//! The terminal: taken over for `top`, and given back however it ends.

use std::time::Duration;

use crossterm::event::{Event, KeyEvent, KeyEventKind};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};
use ratatui::{DefaultTerminal, Frame};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use provost_terminal::failure::Failure;
use provost_terminal::numbers;
use provost_terminal::table::{Canvas, Colour};

use super::view::{COLUMNS, Keys, View, cells};

/// Keys that wait, at most.
const KEYS_MAX: usize = 64;
/// How often the keyboard's thread looks whether it is to end.
const KEYS_POLL: Duration = Duration::from_millis(100);

/// What an operator did.
pub(crate) enum Input {
    Key(KeyEvent),
    Resized,
    /// A signal asked the program to end.
    End,
}

/// The terminal, taken over. Dropping it gives it back.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    events: mpsc::Receiver<Event>,
    terminate: Signal,
    colour: Colour,
}

impl Screen {
    pub(crate) fn open() -> Result<Screen, Failure> {
        let colour = Canvas::of_stdout().colour;
        let wrong =
            |error: std::io::Error| Failure::failed(format!("cannot take over the terminal: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(wrong)?;
        // A panic restores the terminal, too.
        let terminal = ratatui::try_init().map_err(wrong)?;
        Ok(Screen {
            terminal,
            events: read_events(),
            terminate,
            colour,
        })
    }

    /// The next thing that the operator does.
    pub(crate) async fn input(&mut self) -> Result<Input, Failure> {
        loop {
            let event = tokio::select! {
                event = self.events.recv() => event,
                _ = self.terminate.recv() => return Ok(Input::End),
            };
            match event {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => return Ok(Input::Key(key)),
                Some(Event::Resize(..)) => return Ok(Input::Resized),
                Some(_) => {}
                // The terminal is gone.
                None => return Ok(Input::End),
            }
        }
    }

    pub(crate) fn draw(&mut self, view: &mut View) -> Result<(), Failure> {
        let colour = self.colour;
        self.terminal
            .draw(|frame| draw(frame, view, colour))
            .map(drop)
            .map_err(|error| Failure::failed(format!("cannot draw: {error}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Events of the terminal, read by a thread of their own, which ends when nobody wants them any more.
fn read_events() -> mpsc::Receiver<Event> {
    let (found, events) = mpsc::channel(KEYS_MAX);
    std::thread::spawn(move || {
        while !found.is_closed() {
            match crossterm::event::poll(KEYS_POLL) {
                Ok(false) => {}
                Ok(true) => {
                    let Ok(event) = crossterm::event::read() else {
                        return;
                    };
                    if found.blocking_send(event).is_err() {
                        return;
                    }
                }
                Err(_) => return,
            }
        }
    });
    events
}

fn draw(frame: &mut Frame<'_>, view: &mut View, colour: Colour) {
    let [heading, table, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
            .areas(frame.area());
    frame.render_widget(Paragraph::new(heading_line(view, colour)), heading);
    draw_table(frame, table, view, colour);
    frame.render_widget(Paragraph::new(keys_line(view)), keys);
}

fn heading_line(view: &View, colour: Colour) -> Line<'static> {
    let (rate, error_rate) = view.sums();
    let mut line = Line::from(vec![Span::styled("provost top", bold())]);
    line.push_span(format!(
        "  {} calls/s, {} errors/s",
        numbers::rate(rate),
        numbers::rate(error_rate)
    ));
    line.push_span(format!(", {} in flight", view.calls_in_flight()));
    if view.paused {
        line.push_span(Span::styled("  PAUSED", bold()));
    }
    if let Some(problem) = view.problem {
        line.push_span(Span::styled(format!("  {problem}"), bad(colour)));
    }
    line
}

fn keys_line(view: &View) -> Line<'static> {
    match view.keys {
        Keys::Filter => Line::from(format!(
            "filter: {}_   Enter takes it, Esc clears it",
            view.filter
        )),
        Keys::Commands if view.filter.is_empty() => {
            Line::from("q quit  s/S sort  r reverse  / filter  p pause  arrows scroll")
        }
        Keys::Commands => Line::from(format!(
            "q quit  s/S sort  r reverse  / filter ({})  p pause",
            view.filter
        )),
    }
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, view: &mut View, colour: Colour) {
    let rows_shown = usize::from(area.height.saturating_sub(1));
    let count = view.rows().len();
    view.scrolled = view.scrolled.min(count.saturating_sub(rows_shown.max(1)));
    let scrolled = view.scrolled;
    let rows = view.rows();
    if rows.is_empty() {
        let why = Paragraph::new(view.nothing_shown()).wrap(Wrap { trim: true });
        return frame.render_widget(why, area);
    }
    let shown: Vec<_> = rows
        .iter()
        .skip(scrolled)
        .take(rows_shown)
        .map(|row| (cells(row), row.error_rate > 0.0))
        .collect();
    let heading = |column: &super::view::Column| {
        if column.key == view.sort() {
            Span::styled(format!("{}*", column.heading), bold())
        } else {
            Span::styled(column.heading, bold())
        }
    };
    let headings: Vec<_> = COLUMNS.iter().map(heading).collect();
    let widths: Vec<_> = COLUMNS
        .iter()
        .enumerate()
        .map(|(at, column)| {
            let widest = shown
                .iter()
                .map(|(cells, _)| Span::raw(&*cells[at]).width())
                .max()
                .unwrap_or(0);
            Constraint::Length(widest.max(column.heading.len() + 1) as u16)
        })
        .collect();
    let rows = shown.iter().map(|(cells, has_errors)| {
        let aligned = cells.iter().zip(&COLUMNS).map(|(cell, column)| {
            let line = Line::from(cell.as_str());
            if column.is_number {
                line.right_aligned()
            } else {
                line
            }
        });
        let style = if *has_errors { bad(colour) } else { Style::new() };
        Row::new(aligned).style(style)
    });
    let headings = headings.into_iter().zip(&COLUMNS).map(|(span, column)| {
        if column.is_number {
            Line::from(span).right_aligned()
        } else {
            Line::from(span)
        }
    });
    let table = Table::new(rows, widths)
        .header(Row::new(headings))
        .column_spacing(1);
    frame.render_widget(table, area);
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

fn bad(colour: Colour) -> Style {
    match colour {
        Colour::Shown => Style::new().red(),
        Colour::Plain => Style::new().add_modifier(Modifier::BOLD),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::view::SortKey;
    use super::super::view::tests::snapshot;
    use super::*;

    fn drawn(view: &mut View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view, Colour::Plain)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_shows_sums_rows_and_keys_at_any_size() {
        let mut view = View::new(SortKey::Rate, String::new());
        view.take(snapshot());
        let wide = drawn(&mut view, 120, 10);
        for word in [
            "1543 calls/s, 10.0 errors/s, 7 in flight",
            "RATE/S*",
            "shop",
            "25.0 %",
            "q quit",
        ] {
            assert!(wide.contains(word), "{word}: {wide}");
        }
        for (width, height) in [(1, 1), (20, 3), (40, 2), (300, 100)] {
            drawn(&mut view, width, height);
        }
    }

    #[test]
    fn an_empty_screen_says_why_it_is_empty() {
        let mut view = View::new(SortKey::Rate, String::new());
        view.take(provost_admin::v1::Snapshot {
            at_unix_us: 1,
            ..Default::default()
        });
        let drawn = drawn(&mut view, 100, 10);
        assert!(drawn.contains("provost policy attach --kind metrics"), "{drawn}");
    }

    #[test]
    fn scrolling_stops_at_the_last_row() {
        let mut view = View::new(SortKey::Rate, String::new());
        view.take(snapshot());
        view.scrolled = 100;
        let small = drawn(&mut view, 120, 4);
        assert_eq!(view.scrolled, 2);
        assert!(small.contains("Scan") && !small.contains("Get"), "{small}");
    }
}
