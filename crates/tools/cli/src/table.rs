//! Tables for people: aligned columns, one line a row whatever the terminal's width, no control characters.

use std::fmt::Write;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: &str = "  ";
/// A column that is cut to fit a terminal keeps so many characters at least.
const CUT_WIDTH_MIN: usize = 8;

/// How a column's cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// For whom a table is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Canvas {
    /// Columns of the terminal; `None` where nothing has to be cut, as in a file.
    pub(crate) width: Option<usize>,
    /// Whether it shows colours.
    pub(crate) colour: Colour,
}

/// Whether colours are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colour {
    Shown,
    Plain,
}

impl Canvas {
    /// What standard output is: a terminal of some width, or not a terminal. No colours with `NO_COLOR`
    /// (<https://no-color.org>) or on a dumb terminal.
    pub(crate) fn of_stdout() -> Canvas {
        use std::io::IsTerminal;
        let stdout = std::io::stdout();
        if !stdout.is_terminal() {
            return Canvas::plain();
        }
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
        let width = rustix::termios::tcgetwinsize(&stdout).map_or(0, |size| size.ws_col);
        Canvas {
            width: (width > 0).then_some(usize::from(width)),
            colour: match set("NO_COLOR") || dumb {
                true => Colour::Plain,
                false => Colour::Shown,
            },
        }
    }

    pub(crate) const fn plain() -> Canvas {
        Canvas {
            width: None,
            colour: Colour::Plain,
        }
    }
}

/// How a cell or line is to look, where colours are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Look {
    #[default]
    Normal,
    Heading,
    Good,
    Bad,
    Faint,
}

impl Look {
    /// The text in this look.
    pub(crate) fn paint(self, text: &str, canvas: Canvas) -> String {
        let code = match (canvas.colour, self) {
            (Colour::Plain, _) | (_, Look::Normal) => return text.to_owned(),
            (_, Look::Heading) => "1",
            (_, Look::Good) => "32",
            (_, Look::Bad) => "31",
            (_, Look::Faint) => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    look: Look,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>, look: Look) -> Cell {
        let text = clean(text.as_ref());
        Cell { text, look }
    }
}

impl<T: ToString> From<T> for Cell {
    fn from(value: T) -> Cell {
        Cell::new(value.to_string(), Look::Normal)
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    /// The column that gives way when the terminal is too narrow.
    flexible: usize,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table whose last column gives way.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Table {
        Table {
            columns: columns.to_vec(),
            flexible: columns.len().saturating_sub(1),
            rows: Vec::new(),
        }
    }

    /// Adds a row: a cell for each column.
    pub(crate) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.rows.push(cells.into());
    }

    /// As text, each line with its end.
    pub(crate) fn draw(&self, canvas: Canvas) -> String {
        let widths = self.widths(canvas);
        let mut out = String::new();
        let headings: Vec<Cell> = self
            .columns
            .iter()
            .map(|(name, _)| Cell::new(name, Look::Heading))
            .collect();
        for row in std::iter::once(&headings).chain(&self.rows) {
            let line = self.line(row, &widths, canvas);
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    fn widths(&self, canvas: Canvas) -> Vec<usize> {
        let mut widths: Vec<usize> = self.columns.iter().map(|(name, _)| name.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.width().max(*width);
            }
        }
        let whole = widths.iter().sum::<usize>() + GAP.len() * widths.len().saturating_sub(1);
        if let (Some(room), Some(flexible)) = (canvas.width, widths.get_mut(self.flexible)) {
            let excess = whole.saturating_sub(room);
            *flexible = flexible.saturating_sub(excess).max(CUT_WIDTH_MIN.min(*flexible));
        }
        widths
    }

    fn line(&self, row: &[Cell], widths: &[usize], canvas: Canvas) -> String {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            if at > 0 {
                line.push_str(GAP);
            }
            let text = fit(&cell.text, *width);
            let padding = " ".repeat(width.saturating_sub(text.width()));
            let painted = cell.look.paint(&text, canvas);
            match self.columns.get(at).map(|(_, align)| *align) {
                Some(Align::Right) => line.extend([padding.as_str(), painted.as_str()]),
                // Nothing stands behind the last column, so nothing has to be filled.
                _ if at + 1 == row.len() => line.push_str(&painted),
                _ => line.extend([painted.as_str(), padding.as_str()]),
            }
        }
        line
    }
}

/// A text of at most this width: what does not fit gives way to an ellipsis.
pub(crate) fn fit(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut fitted = String::new();
    let mut left = width.saturating_sub(1);
    for character in text.chars() {
        let wide = character.width().unwrap_or(0);
        if wide > left {
            break;
        }
        left -= wide;
        fitted.push(character);
    }
    fitted.push('…');
    fitted
}

/// Whether a character says something to a terminal, or turns the direction of what follows.
pub(crate) fn is_odd(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A text without control characters. Names come from apps: they shall not write to an operator's terminal.
pub(crate) fn clean(text: &str) -> String {
    if !text.contains(is_odd) {
        return text.to_owned();
    }
    let mut cleaned = String::with_capacity(text.len());
    for character in text.chars() {
        match is_odd(character) {
            true => cleaned.extend(character.escape_default()),
            false => cleaned.push(character),
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(&[
            ("APP", Align::Left),
            ("CALLS", Align::Right),
            ("SERVES", Align::Left),
        ]);
        table.row(["kv".into(), 12.into(), "kv.Kv, kv.Admin".into()]);
        table.row(["日本".into(), 1234.into(), Cell::new("", Look::Bad)]);
        table
    }

    #[test]
    fn columns_are_aligned_by_what_is_seen() {
        let expected = "APP   CALLS  SERVES\nkv       12  kv.Kv, kv.Admin\n日本   1234\n";
        assert_eq!(table().draw(Canvas::plain()), expected);
    }

    #[test]
    fn a_narrow_terminal_cuts_the_last_column_and_wraps_nothing() {
        let canvas = Canvas {
            width: Some(24),
            colour: Colour::Plain,
        };
        let drawn = table().draw(canvas);
        assert!(drawn.contains("12  kv.Kv, kv.…\n"), "{drawn}");
        assert!(drawn.lines().all(|line| line.width() <= 24), "{drawn}");
    }

    #[test]
    fn colours_do_not_move_columns() {
        let canvas = Canvas {
            width: None,
            colour: Colour::Shown,
        };
        let drawn = table().draw(canvas);
        assert!(
            drawn.starts_with("\x1b[1mAPP\x1b[0m   \x1b[1mCALLS\x1b[0m"),
            "{drawn:?}"
        );
    }

    #[test]
    fn names_cannot_write_to_the_terminal() {
        let cell = Cell::from("a\x1b[2Jb\n\u{202e}");
        assert_eq!(cell.text, "a\\u{1b}[2Jb\\n\\u{202e}");
    }
}
